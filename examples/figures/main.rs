//! `figures DIR`: writes the trade-off curves of the chain and join papers as CSV and SVG.
//!
//! - `thesis_4_1`: time against memory for uniform chains of 20, 40 and 100 layers (Butt 2019,
//!   Figure 4.1).
//! - `join_7`: makespan against the fraction of the memory that makes it least, for siamese,
//!   cross-modal and recurrent networks (Beaumont et al. 2019, Figure 7).
//! - `join_9`: the equivalent chain's makespan divided by the optimum (the same, Figure 9b).
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use ckpt_opt::report::plot::{self, Curve};
use ckpt_passes::strategy::chain::Chain;
use ckpt_passes::strategy::equivalent_chain::equivalent_chain;
use ckpt_passes::strategy::join_dp::{JoinDp, Times, fewest_slots, least_span, most_slots};
use ckpt_passes::strategy::precise_dp::{PreciseDp, SizeRounding};

/// Curves over common axes.
struct Figure {
    x: &'static str,
    y: &'static str,
    curves: Vec<Curve>,
}

impl Figure {
    /// One line for each point: curve, x, y.
    fn csv(&self) -> String {
        let mut text = format!("curve,{},{}\n", self.x, self.y);
        for curve in &self.curves {
            for (x, y) in &curve.points {
                text.push_str(&format!("\"{}\",{x},{y}\n", curve.name));
            }
        }
        text
    }
}

fn main() -> ExitCode {
    let Some(directory) = env::args().nth(1) else {
        eprintln!("usage: figures DIR");
        return ExitCode::from(2);
    };
    for (name, figure) in [
        ("thesis_4_1", thesis()),
        ("join_7", join_trade_off()),
        ("join_9", equivalent_chains()),
    ] {
        if let Err(error) = write(Path::new(&directory), name, &figure) {
            eprintln!("{directory}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn write(directory: &Path, name: &str, figure: &Figure) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let svg = plot::svg_of_range(figure.x, figure.y, &figure.curves);
    for (extension, text) in [("csv", figure.csv()), ("svg", svg)] {
        let path = directory.join(name).with_extension(extension);
        fs::write(&path, text)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Every forward and backward operation takes 1, every value 1; f_0 counts.
fn thesis() -> Figure {
    const MOST: u32 = 60;
    let curves = [20, 40, 100].map(|layers| {
        let tables = PreciseDp::solve(&Chain::uniform(layers), MOST, 1, SizeRounding::Up);
        let point = |m: u32| Some((f64::from(m), tables.cost(m - 1)?.0 as f64));
        Curve {
            name: format!("N = {layers}"),
            points: (1..=MOST).filter_map(point).collect(),
        }
    });
    Figure {
        x: "memory m",
        y: "time of a step",
        curves: curves.into(),
    }
}

fn join_trade_off() -> Figure {
    let mut curves = Vec::new();
    for l in [5, 15] {
        for (model, lengths) in [
            ("SNN", vec![2 * l; 3]),
            ("CM", vec![l, 5 * l]),
            ("RNN", vec![6 * l]),
        ] {
            let most = most_slots(&lengths);
            let least = least_span(&lengths, Times::UNIT) as f64;
            let tables = JoinDp::solve(&lengths, most, Times::UNIT);
            let point = |c: usize| {
                let makespan = tables.cost(c)? as f64;
                Some((c as f64 / most as f64, makespan / least))
            };
            curves.push(Curve {
                name: format!("{model}, L = {l}"),
                points: (fewest_slots(&lengths)..=most).filter_map(point).collect(),
            });
        }
    }
    Figure {
        x: "slots / slots for the least makespan",
        y: "makespan / least makespan",
        curves,
    }
}

fn equivalent_chains() -> Figure {
    const LONGEST: usize = 20;
    let curves = [9, 12, 15].map(|slots| {
        let point = |l: usize| {
            let lengths = [2 * l; 3];
            let optimum = JoinDp::solve(&lengths, slots, Times::UNIT).cost(slots)?;
            let chain = equivalent_chain(&lengths, slots, Times::UNIT)?;
            Some(((2 * l + 1) as f64, chain as f64 / optimum as f64))
        };
        Curve {
            name: format!("{slots} slots"),
            points: (1..=LONGEST).filter_map(point).collect(),
        }
    });
    Figure {
        x: "length 2L + 1",
        y: "makespan / optimum",
        curves: curves.into(),
    }
}
