//! Sums that a Gemm would take in.

use super::facts::Facts;
use crate::graph::{Graph, TensorId, Uses};

/// Makes each Sum of two an Add where a Gemm would take it in that may run long before the other summand is there.
///
/// Runtime fact (`GemmSumFusion`, from saved graphs of 1.32.0): a session makes one node of a Gemm and the Sum that alone reads its result, or a Transpose
/// of it; it takes in no Add, which computes the same bits. The gradient of an embedding that is the last layer's weights, too, is such a Sum: its one half
/// would wait for the other to the end of the step, and with it the logits' gradient.
///
/// Nothing changes where all that the Gemm reads is known to be smaller than what it writes: that would wait instead.
pub(super) fn add_instead(graph: &mut Graph, facts: &Facts) {
    let uses = Uses::of(graph);
    let of_gemms = graph.listed().filter_map(|(id, node)| {
        let may_be = node.is("", "Sum") && node.inputs.len() == 2;
        let waits = |read| {
            node.output(0)
                .is_some_and(|sum| waits_for_less(graph, &uses, facts, (read, sum)))
        };
        (may_be && node.reads().any(waits)).then_some(id)
    });
    for id in of_gemms.collect::<Vec<_>>() {
        graph.node_mut(id).op_type = "Add".to_owned();
    }
}

/// Is the summand a Gemm's result, or a Transpose of it, and may it be smaller than something that the Gemm reads?
fn waits_for_less(
    graph: &Graph,
    uses: &Uses,
    facts: &Facts,
    (summand, sum): (TensorId, TensorId),
) -> bool {
    let written = |tensor| uses.producer(tensor).map(|id| graph.node(id));
    let gemm = match written(summand) {
        Some(node) if node.is("", "Transpose") => node.input(0).and_then(written),
        other => other,
    };
    let count = |id: TensorId| -> Option<u64> {
        let sizes = facts.sizes(id)?.iter();
        sizes
            .copied()
            .try_fold(1u64, |all, size| all.checked_mul(size?))
    };
    gemm.filter(|node| node.is("", "Gemm")).is_some_and(|node| {
        let reads = node.reads().map(count);
        let largest: Option<Vec<u64>> = reads.collect();
        let largest = largest.and_then(|all| all.into_iter().max());
        !matches!((largest, count(sum)), (Some(read), Some(written)) if read < written)
    })
}
