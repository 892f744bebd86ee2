//! Sums that a Gemm would take in.

use super::facts::Facts;
use crate::graph::{Graph, NodeId, TensorId, Uses};
use crate::runtime::fused_pairs::gemm_of_sum;

/// Makes each Sum of two an Add where a Gemm would take it in that may run long before the other summand is there.
///
/// Runtime fact (`GemmSumFusion`, from saved graphs of 1.32.0): a session makes one node of a Gemm and the Sum that alone reads its result, or a Transpose
/// of it; it takes in no Add, which computes the same bits. The gradient of an embedding that is the last layer's weights, too, is such a Sum: its one half
/// would wait for the other to the end of the step, and with it the logits' gradient.
///
/// Nothing changes where all that the Gemm reads is known to be smaller than what it writes: that would wait instead.
pub(super) fn add_instead(graph: &mut Graph, facts: &Facts) {
    let uses = Uses::of(graph);
    let count = |id: TensorId| -> Option<u64> {
        let mut sizes = facts.sizes(id)?.iter().copied();
        sizes.try_fold(1u64, |all, size| all.checked_mul(size?))
    };
    let waits_for_less = |&sum: &NodeId| {
        gemm_of_sum(graph, &uses, sum).is_some_and(|(gemm, _)| {
            let read: Option<Vec<u64>> = graph.node(gemm).reads().map(count).collect();
            let read = read.and_then(|all| all.into_iter().max());
            let written = graph.node(sum).output(0).and_then(count);
            !matches!((read, written), (Some(read), Some(written)) if read < written)
        })
    };
    let sums = graph.order().iter().copied().filter(waits_for_less);
    for id in sums.collect::<Vec<_>>() {
        graph.node_mut(id).op_type = "Add".to_owned();
    }
}
