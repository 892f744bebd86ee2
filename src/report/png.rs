//! Pictures in pixels, for places that show no SVG: drawn from the SVG by `resvg`.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, Options, Tree, fontdb::Database};
use thiserror::Error;

/// Pixels of the picture for one of the SVG: small text stays sharp.
const SCALE: f32 = 2.0;

/// The longest side of a picture, in units of the SVG.
const LARGEST: f32 = 4096.0;

/// The one font that there is, whatever the machine has: the same bytes come out everywhere.
static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    Arc::new(fonts)
});

/// Why an SVG has no picture in pixels.
#[derive(Debug, Error)]
pub enum PngError {
    /// It is no SVG, or one without a size.
    #[error("expected an SVG image: {0}")]
    Svg(#[from] usvg::Error),
    /// It is larger than any picture of ours, or has no pixel.
    #[error("expected an image of at most {LARGEST} units each way, found {width} by {height}")]
    Size {
        /// In units of the SVG.
        width: f32,
        /// In units of the SVG.
        height: f32,
    },
    /// The pixels cannot be packed.
    #[error("the image cannot be written as PNG: {0}")]
    Packing(String),
}

/// An SVG image as a PNG file, twice as many pixels wide and high as the SVG has units. All text is in DejaVu Sans.
pub fn png(svg: &str) -> Result<Vec<u8>, PngError> {
    let options = Options {
        fontdb: Arc::clone(&FONTS),
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options)?;
    let (width, height) = (tree.size().width(), tree.size().height());
    let pixels = |units: f32| (units * SCALE).ceil() as u32;
    let mut image = match width.max(height) <= LARGEST {
        true => Pixmap::new(pixels(width), pixels(height)),
        false => None,
    }
    .ok_or(PngError::Size { width, height })?;
    let scale = Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, scale, &mut image.as_mut());
    image
        .encode_png()
        .map_err(|error| PngError::Packing(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use resvg::tiny_skia::PremultipliedColorU8;

    const BOX: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">
        <rect width="40" height="20" fill="white"/><rect x="30" width="10" height="20" fill="#d55e00"/>
        <text x="2" y="15" font-family="sans-serif" font-size="12">M</text></svg>"##;

    #[test]
    fn a_picture_has_its_colours_where_they_were_and_its_text() {
        let image = Pixmap::decode_png(&png(BOX).expect("a picture")).expect("a PNG");
        let rgb = |x, y| {
            let pixel: PremultipliedColorU8 = image.pixel(x, y).expect("a pixel");
            [pixel.red(), pixel.green(), pixel.blue()]
        };
        assert_eq!([image.width(), image.height()], [80, 40]);
        assert_eq!([rgb(50, 20), rgb(70, 20)], [[255; 3], [0xd5, 0x5e, 0x00]]);
        let black = (0..60).flat_map(|x| (0..40).map(move |y| (x, y)));
        assert!(black.filter(|&(x, y)| rgb(x, y) == [0; 3]).count() > 20);
    }

    #[test]
    fn what_is_no_image_or_too_large_is_an_error() {
        let large = BOX.replace("width=\"40\" height", "width=\"20000\" height");
        insta::assert_snapshot!(png(&large).unwrap_err(), @"expected an image of at most 4096 units each way, found 20000 by 20");
        insta::assert_snapshot!(png("<svg").unwrap_err(), @"expected an SVG image: SVG data parsing failed cause the document does not have a root node");
    }
}
