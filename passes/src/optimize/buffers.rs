//! What the buffers of a step are to those who train.

use super::Peak;
use crate::analysis::mirrors::is_mirror;
use crate::bytes::Bytes;
use crate::graph::{Graph, TensorId, Uses};
use crate::operators;
use crate::runtime::liveness::Liveness;

/// A buffer that is there during a part of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBuffer {
    /// The tensor that was written to it first.
    pub tensor: String,
    /// The node that wrote it; the tensor's name where no node did.
    pub node: String,
    /// What it is to the training step.
    pub kind: BufferKind,
    /// How large it is.
    pub size: Bytes,
    /// The first position in the executed order at which it is there.
    pub first: usize,
    /// The last one.
    pub last: usize,
    /// Does it lie in the memory pattern's block?
    pub in_pattern: bool,
}

/// What a buffer is to the training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BufferKind {
    /// Computed from inputs and weights alone.
    Activation,
    /// Computed from a gradient.
    Gradient,
    /// Computed again by a mirror.
    Recomputed,
    /// Given to the caller.
    Output,
}

impl BufferKind {
    /// What people call several of it.
    pub fn plural(self) -> &'static str {
        match self {
            BufferKind::Activation => "activations",
            BufferKind::Gradient => "gradients",
            BufferKind::Recomputed => "activations computed again",
            BufferKind::Output => "results for the caller",
        }
    }
}

/// What is there at one position of the executed order, besides what the caller owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMoment<'a> {
    /// The buffers, those in the memory pattern's block too.
    pub buffers: Vec<&'a HeldBuffer>,
    /// What the node that runs then allocates for itself.
    pub workspace: Bytes,
    /// What of the memory pattern's block no buffer has then.
    pub gaps: Bytes,
}

impl StepMoment<'_> {
    /// All of it.
    pub fn total(&self) -> Bytes {
        let buffers = self.buffers.iter().map(|buffer| buffer.size);
        buffers.sum::<Bytes>() + self.workspace + self.gaps
    }
}

impl Peak {
    /// Of a graph without nodes.
    pub fn nothing(bytes: Bytes) -> Peak {
        Peak {
            bytes,
            step: 0,
            node: String::new(),
            holders: Vec::new(),
            steps: Vec::new(),
            nodes: Vec::new(),
            buffers: Vec::new(),
            pattern: Bytes::ZERO,
            workspaces: Vec::new(),
        }
    }

    /// What the caller and the runtime itself own of it.
    pub fn owned(&self) -> Bytes {
        self.bytes - self.at(self.step).total()
    }

    /// What is there at a position of the executed order.
    pub fn at(&self, step: usize) -> StepMoment<'_> {
        let there = |buffer: &&HeldBuffer| (buffer.first..=buffer.last).contains(&step);
        let buffers: Vec<&HeldBuffer> = self.buffers.iter().filter(there).collect();
        let inside = buffers.iter().filter(|buffer| buffer.in_pattern);
        let inside: Bytes = inside.map(|buffer| buffer.size).sum();
        StepMoment {
            workspace: self.workspaces.get(step).copied().unwrap_or(Bytes::ZERO),
            gaps: self.pattern - inside,
            buffers,
        }
    }
}

/// The buffers of one way of running `graph`, by name.
pub(super) fn of(graph: &Graph, liveness: &Liveness) -> Vec<HeldBuffer> {
    let uses = Uses::of(graph);
    let backward = backward(graph, &uses);
    let kind = |tensor: TensorId| match uses.producer(tensor) {
        _ if graph.outputs.contains(&tensor) => BufferKind::Output,
        Some(id) if is_mirror(graph.node(id)) => BufferKind::Recomputed,
        Some(id) if backward[id.index()] => BufferKind::Gradient,
        _ => BufferKind::Activation,
    };
    let held = liveness.buffers.iter().map(|buffer| {
        let name = &graph.tensor(buffer.tensor).name;
        let node = uses.producer(buffer.tensor);
        let node = node
            .map(|id| &graph.node(id).name)
            .filter(|name| !name.is_empty());
        HeldBuffer {
            tensor: name.clone(),
            node: node.unwrap_or(name).clone(),
            kind: kind(buffer.tensor),
            size: buffer.size,
            first: buffer.first,
            last: buffer.last,
            in_pattern: buffer.in_pattern,
        }
    });
    held.collect()
}

/// By node id: is it computed from a gradient? Copies are not, whatever they wait for.
fn backward(graph: &Graph, uses: &Uses) -> Vec<bool> {
    let mut backward = vec![false; graph.node_count()];
    for (id, node) in graph.listed() {
        let mut inputs = node.reads().filter_map(|tensor| uses.producer(tensor));
        backward[id.index()] = !is_mirror(node)
            && (operators::computes_gradients(node)
                || operators::hands_over(node)
                || inputs.any(|input| backward[input.index()]));
    }
    backward
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::operators::Provider;

    #[test]
    fn buffers_are_told_apart_by_what_they_are_computed_from() {
        let text = "<ir_version: 8, opset_import: [\"com.microsoft\" : 1]>
            g (float[10] x) => (float[10] dx) <float[10] a, float[10] b, float[10] d> {
            [one] a = Exp(x)
            [two] b = Sigmoid(a)
            [grad] d = com.microsoft.SigmoidGrad(b, b)
            [after] dx = Mul(d, a)
        }";
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let liveness = Liveness::in_file_order(&graph, Provider::Cpu, &costs);
        let held = of(&graph, &liveness);
        let shown: Vec<String> = held
            .iter()
            .map(|held| {
                let HeldBuffer {
                    tensor,
                    node,
                    kind,
                    first,
                    last,
                    ..
                } = held;
                format!("{tensor} of {node}: {kind:?} {first}..={last}")
            })
            .collect();
        insta::assert_debug_snapshot!(shown, @r#"
        [
            "a of one: Activation 0..=3",
            "b of two: Activation 1..=2",
            "d of grad: Gradient 2..=3",
            "dx of after: Output 3..=3",
        ]
        "#);
    }
}
