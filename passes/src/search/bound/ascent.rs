//! The dual of covering needs by gaps, climbed.

use super::gaps::Gap;
use super::overlap::Overlap;
use crate::search::problem::Step;

/// Rounds of the subgradient method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounds {
    /// To decide by: what is left to gain is a hundredth of the bound or so.
    Few = 100,
    /// To report.
    Many = 400,
}

/// Rounds without a better bound before the pace is halved.
const ROUNDS_TO_HALVE: usize = 20;

/// A cover: what is needed, and what can give it.
pub(crate) struct Cover<'a> {
    /// By step: the bytes that have to be away.
    pub deficit: &'a [f64],
    /// What may be away.
    pub gaps: &'a [Gap],
    /// By step: the nanoseconds of one run of its node.
    pub times: &'a [f64],
}

/// Climbs the dual to the best lower bound in nanoseconds that it finds; `known` is an upper bound,
/// which sets the pace at first, and ends the climb when it is reached.
pub(crate) fn climb(cover: &Cover<'_>, known: f64, rounds: Rounds) -> f64 {
    let Cover { deficit, gaps, .. } = cover;
    let scale = deficit.iter().copied().fold(1.0, f64::max);
    let steps = deficit.len();
    let mut price = vec![0.0; steps];
    let mut prefix = vec![0.0; steps + 1];
    let mut away = vec![0.0; steps + 1];
    let mut split = GapShares::new(cover);
    let mut chosen = vec![false; gaps.len()];
    let mut best = 0.0;
    let (mut best_price, mut best_weights) = (price.clone(), split.weights.clone());
    let (mut pace, mut stale) = (1.0, 0);
    for _ in 0..rounds as usize {
        if best > known {
            break;
        }
        for step in 0..steps {
            prefix[step + 1] = prefix[step] + price[step];
        }
        away.fill(0.0);
        let needs = price.iter().zip(*deficit);
        let mut bound: f64 = needs.map(|(price, need)| price * need / scale).sum();
        for (at, gap) in gaps.iter().enumerate() {
            let size = gap.size / scale;
            let gained = size * (prefix[gap.until as usize] - prefix[gap.from as usize]);
            let reduced = split.cost[at] - gained;
            chosen[at] = reduced < 0.0;
            if reduced < 0.0 {
                bound += reduced;
                away[gap.from as usize] += size;
                away[gap.until as usize] -= size;
            }
        }
        if bound > best {
            best = bound;
            best_price.clone_from(&price);
            best_weights.clone_from(&split.weights);
            stale = 0;
        } else {
            stale += 1;
            if stale == ROUNDS_TO_HALVE {
                (pace, stale) = (pace / 2.0, 0);
                price.clone_from(&best_price);
                split.weights.clone_from(&best_weights);
                split.share_out();
                continue;
            }
        }
        let mut gone = 0.0;
        let mut square = 0.0;
        for step in 0..steps {
            gone += away[step];
            let slope = deficit[step] / scale - gone;
            // Only what the price can still follow counts.
            away[step] = if slope < 0.0 && price[step] == 0.0 {
                0.0
            } else {
                slope
            };
            square += away[step] * away[step];
            // `away` now holds the slope; its running sum is in `gone`.
        }
        if square == 0.0 {
            break;
        }
        let length = pace * (level(best, known, pace) - bound).max(0.0) / square;
        for step in 0..steps {
            price[step] = (price[step] + length * away[step]).max(0.0);
        }
        split.lean(&chosen, 0.1 * pace);
    }
    best
}

/// What the climb aims at: at most `known`, which may be far above the optimum and then makes steps too long; not far
/// above the best bound so far, and nearer the slower the pace.
fn level(best: f64, known: f64, pace: f64) -> f64 {
    known.min(2.0 * best + 0.5 * pace * known)
}

/// Who pays for a run that serves several gaps at once.
///
/// Every gap pays a share of each node that has to run in it. Shares are valid if nowhere in
/// time those of one node exceed one run.
struct GapShares {
    /// By gap: all that it pays.
    cost: Vec<f64>,
    /// By share, what the gap would like to pay: positive, of any scale.
    weights: Vec<f64>,
    /// Nodes whose shares overlap somewhere.
    contested: Vec<Contested>,
    /// By gap: what it pays for nodes that it has for itself.
    own: Vec<f64>,
}

struct Contested {
    time: f64,
    /// How many weights before belong to other nodes.
    offset: usize,
    /// The gaps that share the node.
    gaps: Vec<usize>,
    /// When it may run for them.
    overlap: Overlap,
}

impl GapShares {
    fn new(cover: &Cover<'_>) -> GapShares {
        let gaps = cover.gaps;
        let mut by_node: Vec<Vec<usize>> = vec![Vec::new(); cover.times.len()];
        for (at, gap) in gaps.iter().enumerate() {
            for &run in &gap.runs {
                by_node[run as usize].push(at);
            }
        }
        let mut split = GapShares {
            cost: vec![0.0; gaps.len()],
            weights: Vec::new(),
            contested: Vec::new(),
            own: vec![0.0; gaps.len()],
        };
        for (sharing, &time) in by_node.into_iter().zip(cover.times) {
            let stretch = |&at: &usize| (gaps[at].first, gaps[at].until + 1);
            let stretches: Vec<(Step, Step)> = sharing.iter().map(stretch).collect();
            let overlap = Overlap::of(&stretches);
            let most = overlap.most(&vec![1.0; sharing.len()]);
            if most.iter().all(|&load| load == 1.0) {
                for at in sharing {
                    split.own[at] += time;
                }
            } else {
                let offset = split.weights.len();
                // What is large is worth most.
                split
                    .weights
                    .extend(sharing.iter().map(|&at| gaps[at].size));
                split.contested.push(Contested {
                    time,
                    offset,
                    gaps: sharing,
                    overlap,
                });
            }
        }
        split.share_out();
        split
    }

    /// Gives gaps that are chosen a larger share, others a smaller one.
    fn lean(&mut self, chosen: &[bool], strength: f64) {
        for node in &self.contested {
            let weights = &mut self.weights[node.offset..];
            for (&gap, weight) in node.gaps.iter().zip(weights) {
                let sign = if chosen[gap] { 1.0 } else { -1.0 };
                *weight = (*weight * (1.0 + sign * strength)).clamp(SMALL, LARGE);
            }
        }
        self.share_out();
    }

    fn share_out(&mut self) {
        self.cost.clone_from(&self.own);
        for node in &self.contested {
            let weights = &self.weights[node.offset..node.offset + node.gaps.len()];
            let most = node.overlap.most(weights);
            for ((&gap, weight), most) in node.gaps.iter().zip(weights).zip(most) {
                self.cost[gap] += node.time * weight / most;
            }
        }
    }
}

/// Weights stay where products and sums of them are numbers.
const SMALL: f64 = 1e-50;
const LARGE: f64 = 1e50;
