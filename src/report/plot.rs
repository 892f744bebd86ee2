//! Curves as an SVG image, in plain text.

use std::fmt::Write;

/// A named curve.
pub struct Curve {
    /// What the legend says.
    pub name: String,
    /// Points by ascending x.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 980.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 300.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 60.0;
const TICKS: u32 = 5;

/// Colours that colour-blind readers tell apart (Okabe and Ito, 2008); dashes tell apart curves
/// that share one.
const COLOURS: [&str; 7] = [
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7",
];
const DASHES: [&str; 3] = ["", "6 3", "2 3"];

/// The image; the y axis begins at 0.
pub fn svg(x_label: &str, y_label: &str, curves: &[Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    let mut top: f64 = 0.0;
    for &(x, y) in points() {
        (low, high, top) = (low.min(x), high.max(x), top.max(y));
    }
    if low > high {
        (low, high) = (0.0, 1.0);
    }
    let width = if high > low { high - low } else { 1.0 };
    let top = if top > 0.0 { top } else { 1.0 };
    let place = |x: f64, y: f64| {
        (
            LEFT + (x - low) / width * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM),
        )
    };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n"
    );
    for tick in 0..=TICKS {
        let part = f64::from(tick) / f64::from(TICKS);
        let (x, y) = place(low + part * width, part * top);
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {y:.1}H{right}M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            shown(part * top),
            bottom + 18.0,
            shown(low + part * width),
        );
    }
    for (i, curve) in curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let dash = DASHES[i / COLOURS.len() % DASHES.len()];
        let places: Vec<(f64, f64)> = curve.points.iter().map(|&(x, y)| place(x, y)).collect();
        let line: Vec<String> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/>",
            line.join(" ")
        );
        for (x, y) in places {
            let _ = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 12.0 + 20.0 * i as f64);
        let _ = writeln!(
            text,
            "<path d=\"M{x} {y}h24\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 30.0,
            y + 4.0,
            escaped(&curve.name)
        );
    }
    let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
    let _ = writeln!(
        text,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n</svg>",
        HEIGHT - 14.0,
        escaped(x_label),
        (HEIGHT - BOTTOM) / 2.0,
        escaped(y_label)
    );
    text
}

/// Three digits that tell something.
fn shown(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
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
        // The drawing area is 70..680 by 460..20; the middle point lies in its middle.
        assert!(
            image.contains("70.0,460.0 375.0,240.0 680.0,20.0"),
            "{image}"
        );
        assert!(image.contains("a&lt;b"));
    }

    #[test]
    fn no_points_still_make_an_image() {
        let image = svg("x", "y", &[]);
        assert!(!image.contains("NaN") && !image.contains("inf"), "{image}");
    }
}
