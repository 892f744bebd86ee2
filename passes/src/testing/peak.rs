//! The peak of a graph, step by step, by definition: O(steps · tensors), nothing clever.

use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId, TensorId, TensorKind};
use crate::operators::{self, Provider};

/// What one step of `graph` needs at most when its nodes run in `order`, everything that the
/// caller owns included; `costs` are by node id.
///
/// The runtime's rules: an output is allocated when its node starts and freed right after the
/// last node that reads its buffer; one that nobody reads, and a graph output, never. An alias shares its input's buffer, unless it is a graph output. So does an
/// in-place result if the node's read is the last of that buffer, the buffer belongs to neither
/// the caller nor a graph output, and shape and element size agree.
pub fn naive_peak(graph: &Graph, order: &[NodeId], provider: Provider, costs: &[Cost]) -> Bytes {
    let buffers = buffers(graph, order, provider);
    let steps = order.len();
    let mut peak = Bytes::ZERO;
    for (step, id) in order.iter().enumerate() {
        let workspace = costs[id.index()].workspace;
        let mut live = workspace;
        // What some kernels have before their results are there.
        let mut before = Bytes(operators::early_workspace(graph.node(*id), workspace.0));
        for owner in graph.tensor_ids() {
            let tensors = || graph.tensor_ids().filter(|t| buffers[t.index()] == owner);
            let Some(first) = tensors().filter_map(|t| written(graph, order, t)).min() else {
                continue;
            };
            let held = |t: TensorId| match graph.outputs.contains(&t) {
                true => Some(steps),
                false => last_read(graph, order, t),
            };
            let last = tensors().filter_map(held).max().unwrap_or(steps);
            let owned = graph.tensor(owner).kind != TensorKind::Value;
            if (first..=last).contains(&step) && !owned {
                live += size(graph, owner);
                if first < step {
                    before += size(graph, owner);
                }
            }
        }
        peak = peak.max(live).max(before);
    }
    peak + owned(graph)
}

/// What the caller owns: graph inputs and initializers.
pub(super) fn owned(graph: &Graph) -> Bytes {
    let owned = |&id: &TensorId| graph.tensor(id).kind != TensorKind::Value;
    graph
        .tensor_ids()
        .filter(owned)
        .map(|id| size(graph, id))
        .sum()
}

pub(super) fn size(graph: &Graph, id: TensorId) -> Bytes {
    graph.tensor(id).bytes().unwrap_or(Bytes::ZERO)
}

/// Could an in-place result of `to` take over the memory of `from`?
pub(super) fn same_memory(graph: &Graph, from: TensorId, to: TensorId) -> bool {
    let (from, to) = (graph.tensor(from), graph.tensor(to));
    from.shape.is_some() && from.shape == to.shape && from.bytes() == to.bytes()
}

/// For every tensor, the one that its buffer was allocated for.
fn buffers(graph: &Graph, order: &[NodeId], provider: Provider) -> Vec<TensorId> {
    let mut buffers: Vec<TensorId> = graph.tensor_ids().collect();
    for (step, &id) in order.iter().enumerate() {
        let node = graph.node(id);
        for (output, input) in operators::aliases(node) {
            let (Some(output), Some(input)) = (node.output(output), node.input(input)) else {
                continue;
            };
            if !graph.outputs.contains(&output) {
                buffers[output.index()] = buffers[input.index()];
            }
        }
        for (output, input) in operators::in_place(graph, node, provider) {
            let (Some(output), Some(input)) = (node.output(output), node.input(input)) else {
                continue;
            };
            let owner = buffers[input.index()];
            let sharing = || graph.tensor_ids().filter(|t| buffers[t.index()] == owner);
            let reads_to_come = order[step..]
                .iter()
                .flat_map(|&id| graph.node(id).reads())
                .filter(|read| sharing().any(|t| t == *read))
                .count();
            let free = graph.tensor(owner).kind == TensorKind::Value
                && !sharing().any(|t| graph.outputs.contains(&t));
            let fits = same_memory(graph, input, output) && !graph.outputs.contains(&output);
            if reads_to_come == 1 && free && fits {
                buffers[output.index()] = owner;
            }
        }
    }
    buffers
}

fn written(graph: &Graph, order: &[NodeId], tensor: TensorId) -> Option<usize> {
    order
        .iter()
        .position(|&id| graph.node(id).writes().any(|t| t == tensor))
}

fn last_read(graph: &Graph, order: &[NodeId], tensor: TensorId) -> Option<usize> {
    order
        .iter()
        .rposition(|&id| graph.node(id).reads().any(|t| t == tensor))
}

#[cfg(test)]
mod tests {
    use super::super::random_training_graph;
    use super::*;
    use crate::cost::Nanos;
    use crate::runtime::liveness::Liveness;

    fn workspaces(graph: &Graph, bytes: impl Fn(u64) -> u64) -> Vec<Cost> {
        let cost = |n| Cost {
            time: Nanos(0),
            workspace: Bytes(bytes(n)),
        };
        (0..graph.node_count() as u64).map(cost).collect()
    }

    #[test]
    fn counts_inputs_outputs_workspace_aliases_and_in_place_results() {
        let graph = Graph::parse(
            "g (float[10] x) => (float[10] y)
             <float[10] a, float[10] b, float[10] c, float[10] d>
             {
                a = Exp(x)
                b = Identity(a)
                c = Relu(b)
                d = Exp(c)
                y = Add(c, d)
             }",
        )
        .unwrap();
        // x is 40 bytes. a, b and c are one buffer; at the end c, d and y: 40 + 120.
        let peak = |costs: Vec<Cost>| naive_peak(&graph, graph.order(), Provider::Cpu, &costs);
        assert_eq!(peak(workspaces(&graph, |_| 0)), Bytes(160));
        // With 90 more while c is computed in place: 40 + 40 + 90.
        assert_eq!(
            peak(workspaces(&graph, |n| if n == 2 { 90 } else { 0 })),
            Bytes(170)
        );
    }

    #[test]
    fn the_fast_simulation_agrees() {
        for provider in [Provider::Cpu, Provider::Cuda] {
            for seed in 0..150 {
                let graph = random_training_graph(seed, 4 + seed as usize % 60);
                let costs = workspaces(&graph, |n| n * 37 % 500);
                let fast = Liveness::in_file_order(&graph, provider, &costs).peak;
                assert_eq!(
                    naive_peak(&graph, graph.order(), provider, &costs),
                    fast,
                    "{seed}"
                );
            }
        }
    }
}
