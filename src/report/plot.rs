//! Curves as an SVG image, drawn by `plotters`.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

/// A named curve.
pub struct Curve {
    /// What the legend says.
    pub name: String,
    /// Points by ascending x.
    pub points: Vec<(f64, f64)>,
}

const SIZE: (u32, u32) = (980, 520);

/// The size of labels: plotters writes four fifths of it into the image.
const LABEL: u32 = 16;

/// The width of the legend, at the right.
const LEGEND: u32 = 300;

/// Colours that colour-blind readers tell apart (Okabe and Ito, 2008); dashes tell apart curves that share one.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
];

/// Curves of more points are drawn without a dot at each.
const DOTTED: usize = 40;

/// Points that rise and fall at once instead of by slopes: each value holds up to the next one's x.
pub fn as_steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for &(x, y) in points {
        let before = steps.last().map(|&(_, before)| before);
        steps.extend(
            before
                .filter(|&before| before != y)
                .map(|before| (x, before)),
        );
        steps.push((x, y));
    }
    steps
}

/// An image, and where its curves lie.
pub struct Picture {
    /// The image.
    pub svg: String,
    /// Where the axes are.
    pub area: Area,
}

/// The rectangle between the axes, in pixels from the left and from the top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// The width of the whole image.
    pub width: u32,
    /// From the least value to the largest.
    pub x: Range<i32>,
    /// From the top down.
    pub y: Range<i32>,
}

/// The image; the y axis begins at 0.
pub fn svg(x_label: &str, y_label: &str, curves: &[Curve]) -> String {
    picture(x_label, y_label, curves).svg
}

/// The same, with the place of its curves.
pub fn picture(x_label: &str, y_label: &str, curves: &[Curve]) -> Picture {
    let ys = curves.iter().flat_map(|curve| &curve.points).map(|p| p.1);
    drawn(x_label, y_label, curves, range(ys.chain([0.0])))
}

/// The image; the y axis begins at the least value.
pub fn svg_of_range(x_label: &str, y_label: &str, curves: &[Curve]) -> String {
    let ys = curves.iter().flat_map(|curve| &curve.points).map(|p| p.1);
    drawn(x_label, y_label, curves, range(ys)).svg
}

/// From the least of the values to the largest, or some range where there is none.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    match () {
        () if low > high => 0.0..1.0,
        () if low == high => low..low + 1.0,
        () => low..high,
    }
}

fn drawn(x_label: &str, y_label: &str, curves: &[Curve], ys: Range<f64>) -> Picture {
    let mut svg = String::new();
    let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    // Text cannot fail to be written to.
    let area = draw(&canvas, [x_label, y_label], curves, ys).unwrap_or_default();
    let _ = canvas.present();
    drop(canvas);
    Picture { svg, area }
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn draw<'a>(
    canvas: &Canvas<'a>,
    [x_label, y_label]: [&str; 2],
    curves: &[Curve],
    ys: Range<f64>,
) -> Result<Area, Failure<'a>> {
    canvas.fill(&WHITE)?;
    let (left, legend) = canvas.split_horizontally(SIZE.0 - LEGEND);
    let xs = range(curves.iter().flat_map(|curve| &curve.points).map(|p| p.0));
    let mut chart = ChartBuilder::on(&left)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(xs, ys)?;
    let label = |value: &f64| shown(*value);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.13))
        .x_labels(7)
        .y_labels(7)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .x_desc(x_label)
        .y_desc(y_label)
        .label_style(("sans-serif", LABEL))
        .axis_desc_style(("sans-serif", LABEL))
        .draw()?;
    for (i, curve) in curves.iter().enumerate() {
        let line = COLOURS[i % COLOURS.len()].stroke_width(2);
        let points = || curve.points.iter().copied();
        match i / COLOURS.len() % 2 {
            0 => drop(chart.draw_series(LineSeries::new(points(), line))?),
            _ => drop(chart.draw_series(DashedLineSeries::new(points(), 6, 3, line))?),
        }
        if curve.points.len() <= DOTTED {
            let dots = points().map(|point| Circle::new(point, 3, line.color.filled()));
            chart.draw_series(dots)?;
        }
        let (x, y) = (4, 28 + 20 * i as i32);
        legend.draw(&PathElement::new([(x, y), (x + 24, y)], line))?;
        let style = ("sans-serif", LABEL).into_text_style(&legend);
        legend.draw(&Text::new(curve.name.clone(), (x + 30, y - 6), style))?;
    }
    let (x, y) = chart.plotting_area().get_pixel_range();
    let width = SIZE.0;
    Ok(Area { width, x, y })
}

/// Without digits that tell nothing.
fn shown(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_lies_where_its_numbers_say() {
        let curve = Curve {
            name: "a<b".to_owned(),
            points: vec![(1.0, 0.0), (2.0, 5.0), (3.0, 10.0)],
        };
        let image = svg("x", "y", &[curve]);
        let dots: Vec<[f64; 2]> = image
            .split("<circle ")
            .skip(1)
            .map(|dot| {
                ["cx=\"", "cy=\""].map(|key| {
                    let text = dot.split_once(key).unwrap().1;
                    text.split_once('"').unwrap().0.parse().unwrap()
                })
            })
            .collect();
        let [first, middle, last] = dots[..] else {
            panic!("{image}")
        };
        // Half of the way to the right, half of the way up.
        for axis in 0..2 {
            let half = (first[axis] + last[axis]) / 2.0;
            assert!((middle[axis] - half).abs() <= 1.0, "{dots:?}");
        }
        assert!(first[0] < last[0] && first[1] > last[1], "{dots:?}");
        assert!(image.contains("a&lt;b"));
    }

    #[test]
    fn labels_have_no_digits_that_tell_nothing() {
        assert_eq!(
            [0.5, 1.0, 120.0, 0.125].map(shown),
            ["0.5", "1", "120", "0.125"]
        );
    }

    #[test]
    fn a_value_holds_up_to_the_next() {
        let steps = as_steps(&[(0.0, 1.0), (1.0, 4.0), (2.0, 4.0)]);
        assert_eq!(steps, [(0.0, 1.0), (1.0, 1.0), (1.0, 4.0), (2.0, 4.0)]);
    }

    #[test]
    fn no_points_still_make_an_image() {
        let image = svg("x", "y", &[]);
        assert!(!image.contains("NaN") && !image.contains("inf"), "{image}");
    }
}
