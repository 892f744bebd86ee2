//! Uniform chains with their optimum in closed form.

use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::graph::Graph;

/// The training graph of a chain of equal layers; what Revolve answers for it is the optimum.
///
/// `length` layers `x1 = Gelu(x0)`, `x2 = Gelu(x1)`, …, a turn that makes the first gradient of
/// the last result (of a squared error), and `length` gradients `d_i = GeluGrad(d_{i+1}, x_i)`
/// back to the graph output `d_0`. Every tensor has one size, [`UniformChain::UNIT`], and every
/// node takes one nanosecond. The caller owns `x0` and the labels, as always.
///
/// # From memory slots to the bytes of our peak
///
/// While a node runs, what it reads and what it writes exist side by side, and nothing here is in
/// place (Gelu and GeluGrad never are on the CPU). Count in units, without what the caller owns:
///
/// - a gradient `d_i` with i > 0 needs `x_i`, `d_{i+1}` and `d_i`, so M units leave room for
///   M − 2 results `x_j` at that moment, `x_i` among them;
/// - a layer that runs while a gradient waits needs that gradient, `x_i` and `x_{i+1}`: between
///   two nodes there may again be M − 2 results, of which the running one moves along.
///
/// One of the M − 2 is the running result; M − 3 lie still, and `x0`, which the caller keeps, is
/// one more checkpoint. So M units are Revolve with s = M − 2 checkpoints (the initial state
/// among them) for the `length` gradients, and one layer more into the turn. The join paper
/// (Beaumont et al. 2019) counts c = M slots for the same: `x0`, one gradient, M − 2 results.
/// Were gradients in place (on CUDA they are), M would be one less for the same s.
///
/// Every layer before the turn runs once without any recomputation; added are
/// t(length, s) − (length − 1) of [`fewest_advances`].
#[derive(Clone, Debug)]
pub struct UniformChain {
    /// The graph; its file order is the order of first computations.
    pub graph: Graph,
    /// By node id.
    pub costs: Vec<Cost>,
    length: u64,
}

impl UniformChain {
    /// The size of every tensor.
    pub const UNIT: Bytes = Bytes(1 << 20);

    /// A chain of `length` layers, at least 2.
    pub fn new(length: u64) -> UniformChain {
        let length = length.max(2);
        let float = "float[512, 512]";
        let results: Vec<String> = (1..=length).map(|i| format!("{float} x{i}")).collect();
        let gradients: Vec<String> = (1..=length).map(|i| format!("{float} d{i}")).collect();
        let layers: Vec<String> = (0..length)
            .map(|i| format!("x{} = com.microsoft.Gelu(x{i})", i + 1))
            .collect();
        let backward: Vec<String> = (0..length)
            .rev()
            .map(|i| format!("d{i} = com.microsoft.GeluGrad(d{}, x{i})", i + 1))
            .collect();
        let text = format!(
            "chain ({float} x0, {float} labels) => ({float} d0) <{}, {}> {{\n{}\nd{length} = Sub(x{length}, labels)\n{}\n}}",
            results.join(", "),
            gradients.join(", "),
            layers.join("\n"),
            backward.join("\n"),
        );
        // The text is ours, so it parses; an empty graph would fail every test.
        let graph = Graph::parse(&text).unwrap_or_else(|_| Graph::new("chain".to_owned()));
        let cost = Cost {
            time: Nanos(1),
            workspace: Bytes::ZERO,
        };
        let costs = vec![cost; graph.node_count()];
        UniformChain {
            graph,
            costs,
            length,
        }
    }

    /// What the caller owns: `x0` and the labels.
    pub fn owned() -> Bytes {
        Bytes(2 * UniformChain::UNIT.0)
    }

    /// The smallest peak that any schedule reaches, what the caller owns included: one checkpoint.
    pub fn smallest_peak(&self) -> Bytes {
        UniformChain::peak(1)
    }

    /// The peak of Revolve with that many checkpoints, what the caller owns included.
    pub fn peak(checkpoints: u64) -> Bytes {
        UniformChain::owned() + Bytes((checkpoints + 2) * UniformChain::UNIT.0)
    }

    /// Every peak at which the optimum is another one, from the smallest to that without copies.
    pub fn peaks(&self) -> impl Iterator<Item = Bytes> + use<> {
        (1..self.length).map(UniformChain::peak)
    }

    /// The fewest layers that have to run again within `budget`, what the caller owns included;
    /// `None` if nothing fits.
    pub fn optimum(&self, budget: Bytes) -> Option<u64> {
        let units = (budget - UniformChain::owned()).0 / UniformChain::UNIT.0;
        let checkpoints = units.checked_sub(2).filter(|&s| s > 0)?;
        Some(fewest_advances(self.length, checkpoints)? - (self.length - 1))
    }
}

/// The fewest forward steps with which `steps` steps are reversed one by one, last first, with
/// `checkpoints` stored states, the initial one among them: t = r·l − β(s + 1, r − 1) for
/// β(s, r − 1) < l ≤ β(s, r), where β(s, r) = (s + r choose s) (Griewank and Walther, Algorithm
/// 799, 2000). `None` without checkpoints.
pub fn fewest_advances(steps: u64, checkpoints: u64) -> Option<u64> {
    if checkpoints == 0 {
        return None;
    }
    let (steps, s) = (u128::from(steps), u128::from(checkpoints));
    let (mut r, mut reached) = (0, 1);
    // β(s + 1, r − 1), the sum of all β(s, q) with q < r.
    let mut below = 0;
    while reached < steps {
        below += reached;
        r += 1;
        reached = reached * (s + r) / r;
    }
    u64::try_from(r * steps - below).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{brute_force, naive_peak};
    use super::*;
    use crate::operators::Provider;

    const CPU: Provider = Provider::Cpu;

    #[test]
    fn closed_form_of_known_cases() {
        // Two states: x0 and one more. 6 = β(2, 2) steps need 2·6 − β(3, 1) = 12 − 4 forward steps.
        assert_eq!(fewest_advances(6, 2), Some(8));
        // One checkpoint: 4 + 3 + 2 + 1. As many as steps, less the last: each step once.
        assert_eq!(fewest_advances(5, 1), Some(10));
        assert_eq!(fewest_advances(5, 4), Some(4));
        assert_eq!(fewest_advances(1, 1), Some(0));
        assert_eq!(fewest_advances(5, 0), None);
    }

    #[test]
    fn closed_form_solves_the_recurrence() {
        const STEPS: usize = 80;
        // t(l, s) = min over k of k + t(l − k, s − 1) + t(k, s), which is how checkpoints work.
        let mut table = vec![vec![u64::MAX; STEPS + 1]; 13];
        for s in 1..=12usize {
            table[s][1] = 0;
            for l in 2..=STEPS {
                let at = |k: usize| match (s, k) {
                    (1, k) if k + 1 < l => u64::MAX,
                    (1, k) => k as u64 + table[1][k],
                    _ => k as u64 + table[s - 1][l - k] + table[s][k],
                };
                table[s][l] = (1..l).map(at).min().unwrap();
                let closed = fewest_advances(l as u64, s as u64);
                assert_eq!(closed, Some(table[s][l]), "{l} steps, {s} checkpoints");
            }
        }
    }

    #[test]
    fn nothing_is_cheaper_by_exhaustive_search() {
        for length in 2..=5 {
            let chain = UniformChain::new(length);
            assert_eq!(chain.graph.node_count() as u64, 2 * length + 1);
            for units in 3..=length + 4 {
                // Budgets between two whole units as well.
                for budget in [
                    units * UniformChain::UNIT.0,
                    (2 * units + 1) * UniformChain::UNIT.0 / 2,
                ] {
                    let found = brute_force(&chain.graph, CPU, &chain.costs, Bytes(budget));
                    assert_eq!(
                        found.map(|found| found.added.0),
                        chain.optimum(Bytes(budget)),
                        "{length} layers, {budget} bytes"
                    );
                }
            }
        }
    }

    #[test]
    fn largest_listed_peak_is_that_of_the_unmodified_graph() {
        for length in [2, 3, 16, 64] {
            let chain = UniformChain::new(length);
            let last = chain.peaks().last().unwrap();
            let graph = &chain.graph;
            assert_eq!(naive_peak(graph, graph.order(), CPU, &chain.costs), last);
            assert_eq!(chain.optimum(last), Some(0));
            assert_eq!(chain.peaks().next(), Some(chain.smallest_peak()));
            // Without checkpoints but x0: length − 1 more, then length − 2 more, and so on.
            let most = (length - 1) * (length - 2) / 2;
            assert_eq!(chain.optimum(chain.smallest_peak()), Some(most));
            assert_eq!(chain.optimum(chain.smallest_peak() - Bytes(1)), None);
        }
    }
}
