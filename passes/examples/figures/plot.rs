//! Curves as CSV and SVG.

use std::fmt::Write;

/// A named line.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Curves over common axes.
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) curves: Vec<Curve>,
}

const COLORS: [&str; 6] = [
    "#1b6ca8", "#c8553d", "#3c8d5a", "#7b4fa3", "#b08900", "#4d4d4d",
];
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const TICKS: u32 = 5;

impl Figure {
    /// One line for each point: curve, x, y.
    pub(crate) fn csv(&self) -> String {
        let mut text = format!("curve,{},{}\n", self.x, self.y);
        for curve in &self.curves {
            for (x, y) in &curve.points {
                let _ = writeln!(text, "\"{}\",{x},{y}", curve.name);
            }
        }
        text
    }

    /// A plot with linear axes.
    pub(crate) fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let across = span(points().map(|point| point.0));
        let up = span(points().map(|point| point.1));
        let x =
            |value: f64| LEFT + (value - across.0) / (across.1 - across.0) * (WIDTH - LEFT - RIGHT);
        let y =
            |value: f64| HEIGHT - BOTTOM - (value - up.0) / (up.1 - up.0) * (HEIGHT - TOP - BOTTOM);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
            self.title
        );
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in 0..=TICKS {
            let part = f64::from(tick) / f64::from(TICKS);
            let (at_x, at_y) = (
                across.0 + part * (across.1 - across.0),
                up.0 + part * (up.1 - up.0),
            );
            let (px, py) = (x(at_x), y(at_y));
            let _ = write!(
                text,
                "<path d=\"M{LEFT} {py:.1}H{right}M{px:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\n\
                 <text x=\"{px:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                bottom + 18.0,
                label(at_x),
                LEFT - 6.0,
                py + 4.0,
                label(at_y)
            );
        }
        let _ = write!(
            text,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            (LEFT + right) / 2.0,
            HEIGHT - 12.0,
            self.x,
            (TOP + bottom) / 2.0,
            self.y
        );
        for (i, curve) in self.curves.iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            let points: Vec<String> = curve
                .points
                .iter()
                .map(|&(at_x, at_y)| format!("{:.1},{:.1}", x(at_x), y(at_y)))
                .collect();
            let line = TOP + 16.0 + 18.0 * i as f64;
            let _ = write!(
                text,
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\" points=\"{}\"/>\n\
                 <path d=\"M{} {}h22\" stroke=\"{color}\" stroke-width=\"3\"/>\n\
                 <text x=\"{}\" y=\"{line}\">{}</text>\n",
                points.join(" "),
                right + 12.0,
                line - 4.0,
                right + 40.0,
                curve.name
            );
        }
        text.push_str("</svg>\n");
        text
    }
}

/// From the least to the largest; never empty.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low < high {
        (low, high)
    } else {
        (low - 1.0, low + 1.0)
    }
}

fn label(value: f64) -> String {
    match value {
        value if value.abs() >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}
