//! What no plan can get round: the node that needs most by itself, and results that cannot be computed again.

use std::collections::BTreeMap;

use super::cheaper_copies::copies_of_dropouts;
use super::loading::as_loaded;
use super::original::Original;
use super::sizes::{LIMIT, check_sizes};
use super::{OptimizeError, PlanOptions};
use crate::analysis::cost::costs;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId};
use crate::operators::{self, Recompute};
use crate::runtime::liveness::fixed_bytes;
use crate::runtime::skeleton::Skeleton;

/// What limits the plans of a graph whose nodes stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepLimits {
    /// No order and no copies need less: what the caller owns, and what one node reads, writes and works with. Other
    /// forms of the node may.
    pub floor: Bytes,
    /// That node's name.
    pub floor_node: String,
    /// Which results are not computed again, by reason; those that hold most first.
    pub kept: Vec<Kept>,
    /// Operators that nothing is known of, and how many nodes there are of each.
    pub unknown: BTreeMap<String, usize>,
}

/// Nodes whose results are not computed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Why.
    pub reason: &'static str,
    /// Their operators, and how many nodes there are of each.
    pub operators: BTreeMap<String, usize>,
    /// What their results take together, were all there at once.
    pub bytes: Bytes,
}

/// Finds them.
pub fn limits(graph: &Graph, options: &PlanOptions) -> Result<StepLimits, OptimizeError> {
    let graph = as_loaded(graph, options)?;
    check_sizes(&graph, options, LIMIT)?;
    let options = &options.beside_model(&graph);
    let costs = costs(&graph, &options.device, &options.overrides);
    let skeleton = Skeleton::of(&graph, options.device.provider, &costs);
    let (node, most) = largest_node(&graph, &skeleton);
    let mut recomputation = Recomputation::of(&graph, &options.overrides);
    copies_of_dropouts(&mut recomputation, &graph, options);
    recomputation.keep_rounding(&graph, options.device.provider, options.runtime.release);
    let mut kept: BTreeMap<&'static str, Kept> = BTreeMap::new();
    let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
    for (id, node) in graph.listed() {
        let operator = || node.op_type.clone();
        if operators::is_unknown(node) {
            *unknown.entry(operator()).or_default() += 1;
        }
        let Recompute::Never(reason) = recomputation.rule(id) else {
            continue;
        };
        let written = node.outputs.iter().flatten();
        let written = written.filter_map(|&tensor| graph.tensor(tensor).bytes());
        let entry = kept.entry(reason).or_insert_with(|| Kept {
            reason,
            operators: BTreeMap::new(),
            bytes: Bytes::ZERO,
        });
        entry.bytes = written.fold(entry.bytes, |sum, bytes| sum + bytes);
        *entry.operators.entry(operator()).or_default() += 1;
    }
    let mut kept: Vec<Kept> = kept.into_values().collect();
    kept.sort_by_key(|kept| std::cmp::Reverse(kept.bytes));
    Ok(StepLimits {
        floor: fixed_bytes(&graph) + options.reserve + most,
        floor_node: node.map_or_else(String::new, |id| graph.node(id).name.clone()),
        kept,
        unknown,
    })
}

/// What no plan can need less than in which all nodes stay as they are, the reserve included.
pub(super) fn plain_floor(original: &Original<'_>, options: &PlanOptions) -> Bytes {
    let (graph, provider) = (original.graph, options.device.provider);
    let skeleton = Skeleton::of(graph, provider, &original.costs);
    original.liveness.fixed + options.reserve + largest_node(graph, &skeleton).1
}

/// The node that reads, writes and works with most, and how much that is. Results in place of what is read and
/// tensors that share memory count once; what the caller owns does not count.
fn largest_node(graph: &Graph, skeleton: &Skeleton) -> (Option<NodeId>, Bytes) {
    // By tensor: the one whose memory it names.
    let mut root: Vec<u32> = (0..skeleton.size.len() as u32).collect();
    let mut largest = (None, 0);
    for (position, &id) in graph.order().iter().enumerate() {
        let shares = skeleton.shares.get(position);
        for share in shares.iter().filter(|share| share.always) {
            root[share.written as usize] = root[share.read as usize];
        }
        let read = skeleton.reads.get(position).iter();
        let mut there: Vec<u32> = read.map(|&tensor| root[tensor as usize]).collect();
        let written = skeleton.writes.get(position).iter();
        let of_its_own = |tensor: &&u32| shares.iter().all(|share| share.written != **tensor);
        there.extend(
            written
                .filter(of_its_own)
                .map(|&tensor| root[tensor as usize]),
        );
        there.sort_unstable();
        there.dedup();
        let there = there
            .iter()
            .filter(|&&tensor| !skeleton.owned[tensor as usize]);
        let need = there.fold(skeleton.workspace[position], |sum, &tensor| {
            sum.saturating_add(skeleton.size[tensor as usize])
        });
        if need > largest.1 {
            largest = (Some(id), need);
        }
    }
    (largest.0, Bytes(largest.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::operators::Provider;

    fn largest(text: &str, workspace: &[u64]) -> (String, u64) {
        let graph = Graph::parse(text).unwrap();
        let mut costs = vec![Cost::default(); graph.node_count()];
        for (cost, &bytes) in costs.iter_mut().zip(workspace) {
            cost.workspace = Bytes(bytes);
        }
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let (node, most) = largest_node(&graph, &skeleton);
        (graph.node(node.unwrap()).op_type.clone(), most.0)
    }

    #[test]
    fn the_node_that_needs_most_is_found() {
        let text = "g (float[10] x) => () <float[10] a, float[10] b, float[10] c> {
            a = Exp(x) b = Sin(a) c = Foo(a, b)
        }";
        assert_eq!(largest(text, &[]), ("Foo".to_owned(), 120));
        assert_eq!(largest(text, &[7, 50, 1]), ("Sin".to_owned(), 130));
    }

    #[test]
    fn memory_that_is_shared_counts_once() {
        // flat is a's memory; y may lie in that of b.
        let text = "g (float[2,5] x) => (float[10] z)
            <int64[1] to = {10}, float[2,5] a, float[10] flat, float[10] b, float[10] y>
            { a = Exp(x) flat = Reshape(a, to) b = Foo(flat, flat) y = Relu(b) z = Foo(y) }";
        assert_eq!(largest(text, &[]), ("Foo".to_owned(), 80));
        assert_eq!(largest(text, &[0, 0, 0, 60]), ("Relu".to_owned(), 100));
    }
}
