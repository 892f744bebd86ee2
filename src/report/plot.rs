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
/// Lines of the grid each way, about.
const TICKS: f64 = 6.0;

/// Colours that colour-blind readers tell apart (Okabe and Ito, 2008); dashes tell apart curves
/// that share one.
const COLOURS: [&str; 7] = [
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7",
];
const DASHES: [&str; 3] = ["", "6 3", "2 3"];

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

/// The image; the y axis begins at 0.
pub fn svg(x_label: &str, y_label: &str, curves: &[Curve]) -> String {
    let ys = curves.iter().flat_map(|curve| &curve.points).map(|p| p.1);
    drawn(x_label, y_label, curves, range(ys.chain([0.0])))
}

/// The image; the y axis begins at the least value.
pub fn svg_of_range(x_label: &str, y_label: &str, curves: &[Curve]) -> String {
    let ys = curves.iter().flat_map(|curve| &curve.points).map(|p| p.1);
    drawn(x_label, y_label, curves, range(ys))
}

/// The least of the values and how far the largest is from it, or some range where there is none.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    match () {
        () if low > high => (0.0, 1.0),
        () if low == high => (low, 1.0),
        () => (low, high - low),
    }
}

fn drawn(x_label: &str, y_label: &str, curves: &[Curve], (least, top): (f64, f64)) -> String {
    let (low, width) = range(curves.iter().flat_map(|curve| &curve.points).map(|p| p.0));
    let place = |x: f64, y: f64| {
        (
            LEFT + (x - low) / width * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - least) / top * (HEIGHT - TOP - BOTTOM),
        )
    };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n"
    );
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for at in ticks(low, low + width) {
        let (x, _) = place(at, least);
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            shown(at),
        );
    }
    for at in ticks(least, least + top) {
        let (_, y) = place(low, at);
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            shown(at),
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
        let dots = places.iter().filter(|_| places.len() <= DOTTED);
        for (x, y) in dots {
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

/// Round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let least = (high - low) / TICKS;
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|&step| step >= least * 0.999);
    let Some(step) = step.filter(|step| step.is_normal()) else {
        return Vec::new();
    };
    let (first, last) = ((low / step - 0.001).ceil(), (high / step + 0.001).floor());
    let count = (last - first) as usize;
    (0..=count).map(|i| (first + i as f64) * step).collect()
}

/// Without digits that tell nothing.
fn shown(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
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
    fn the_grid_has_round_numbers() {
        assert_eq!(
            ticks(0.0, 120.0),
            [0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0]
        );
        let some: Vec<String> = ticks(0.31, 1.9).into_iter().map(shown).collect();
        assert_eq!(some, ["0.5", "1", "1.5"]);
        assert!(ticks(3.0, 3.0).is_empty());
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
