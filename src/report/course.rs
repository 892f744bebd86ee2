//! Memory over one step as a picture: before and after.

use ckpt_passes::optimize::{Peak, Summary};

use super::plot::{self, Curve, Picture};

/// What each step needs before and after, over the time of the step, and the budget.
pub(super) fn picture(summary: &Summary) -> Picture {
    let unit = 1024.0 * 1024.0;
    let (before, after) = (course(&summary.before, unit), course(&summary.after, unit));
    let ends = [&before, &after].map(|points| points.last().map_or(0.0, |&(time, _)| time));
    let end = ends[0].max(ends[1]);
    let budget = summary.budget.0 as f64 / unit;
    let curve = |name: String, points| Curve { name, points };
    let curves = [
        curve(format!("before, peak {}", summary.before.bytes), before),
        curve(format!("after, peak {}", summary.after.bytes), after),
        curve(
            format!("budget, {}", summary.budget),
            vec![(0.0, budget), (end, budget)],
        ),
    ];
    plot::picture(
        "time within one step in ms, estimated",
        "memory in MiB",
        &curves,
    )
}

/// The most that is needed in each of at most [`PARTS`] parts of the time.
fn course(peak: &Peak, unit: f64) -> Vec<(f64, f64)> {
    let total: f64 = peak.steps.iter().map(|&(time, _)| time as f64).sum();
    let mut points: Vec<(f64, f64)> = Vec::new();
    let (mut begin, mut part) = (0.0, None);
    for &(time, bytes) in &peak.steps {
        let bytes = bytes.0 as f64 / unit;
        let of = (begin / total * PARTS).floor();
        match points.last_mut() {
            Some((_, most)) if part == Some(of) => *most = most.max(bytes),
            _ => points.push((begin / MILLISECOND, bytes)),
        }
        part = Some(of);
        begin += time as f64;
    }
    let last = points.last().map(|&(_, bytes)| bytes);
    points.extend(last.map(|bytes| (begin / MILLISECOND, bytes)));
    plot::as_steps(&points)
}

/// More than these nobody could tell apart.
const PARTS: f64 = 600.0;

/// In nanoseconds.
const MILLISECOND: f64 = 1e6;

#[cfg(test)]
mod tests {
    use ckpt_passes::bytes::Bytes;

    use super::*;

    fn peak(steps: Vec<(u64, Bytes)>) -> Peak {
        Peak {
            steps,
            ..Peak::nothing(Bytes::ZERO)
        }
    }

    #[test]
    fn every_step_lasts_as_long_as_it_takes() {
        let steps = vec![(2_000_000, Bytes(10)), (1_000_000, Bytes(30))];
        let points = [(0.0, 10.0), (2.0, 10.0), (2.0, 30.0), (3.0, 30.0)];
        assert_eq!(course(&peak(steps), 1.0), points);
    }

    #[test]
    fn many_steps_keep_their_peak() {
        let need = |i: u64| if i == 7_777 { Bytes(9) } else { Bytes(1) };
        let points = course(&peak((0..100_000).map(|i| (1, need(i))).collect()), 1.0);
        assert!(points.len() <= 2 * 601, "{}", points.len());
        assert!(points.iter().any(|&(_, bytes)| bytes == 9.0));
    }

    #[test]
    fn a_graph_without_nodes_has_no_course() {
        assert!(course(&peak(Vec::new()), 1.0).is_empty());
    }
}
