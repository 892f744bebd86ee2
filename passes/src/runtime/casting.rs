//! What nodes and tensors are to the casts that the runtime inserts on the CPU (`casts.rs`).

use super::half::{Half, half};
use crate::graph::{ElementType, Graph, Node, TensorId};

/// No number of a tensor: of what no cast makes anything.
pub(crate) const NO_TENSOR: u32 = u32::MAX;

/// What a node is to the casts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Casting {
    /// Nothing.
    #[default]
    No,
    /// One of the file's casts.
    Cast { from: ElementType, to: ElementType },
    /// It reads float16, for which there is no kernel.
    Needs,
    /// Likewise; it is taken apart first.
    Pieces,
    /// It reads float16, for which there is a kernel.
    Kernel { any_inputs: bool, any_outputs: bool },
}

impl Casting {
    /// A PassThrough.
    pub(crate) const BARRIER: Casting = Casting::Kernel {
        any_inputs: true,
        any_outputs: true,
    };

    /// A Reshape or a Shape of a tensor in float16.
    pub(crate) const RESHAPE: Casting = Casting::Kernel {
        any_inputs: false,
        any_outputs: false,
    };

    /// What the node is on the CPU.
    pub(crate) fn of(graph: &Graph, node: &Node) -> Casting {
        let element = |tensor: Option<TensorId>| graph.tensor(tensor?).element;
        if node.is("", "Cast") {
            return match (element(node.input(0)), element(node.output(0))) {
                (Some(from), Some(to)) => Casting::Cast { from, to },
                _ => Casting::No,
            };
        }
        if !node.reads().any(|tensor| is_half(graph, tensor)) {
            return Casting::No;
        }
        match half(graph, node) {
            Half::Casts => Casting::Needs,
            Half::Pieces => Casting::Pieces,
            Half::Kernel {
                any_inputs,
                any_outputs,
            } => Casting::Kernel {
                any_inputs,
                any_outputs,
            },
        }
    }

    /// A node that the runtime looks at before a kernel is chosen has no place there if it has none.
    pub(crate) fn has_kernel(self) -> bool {
        !matches!(self, Casting::Needs | Casting::Pieces)
    }
}

fn is_half(graph: &Graph, tensor: TensorId) -> bool {
    graph.tensor(tensor).element == Some(ElementType::Float16)
}

/// The tensors in float16.
pub(crate) fn halves(graph: &Graph) -> impl Iterator<Item = TensorId> + '_ {
    graph.tensor_ids().filter(|&id| is_half(graph, id))
}

/// Does the CPU compute the node in float32, between casts?
pub(crate) fn is_cast(graph: &Graph, node: &Node) -> bool {
    !Casting::of(graph, node).has_kernel()
}

/// Can there be casts to insert or to take out?
pub(crate) fn are_there(graph: &Graph) -> bool {
    let mut cast = vec![false; graph.tensor_count()];
    graph.order().iter().any(|&id| {
        let node = graph.node(id);
        if node.is("", "Cast") {
            for tensor in node.writes() {
                cast[tensor.index()] = true;
            }
            return node.reads().any(|tensor| cast[tensor.index()]);
        }
        is_cast(graph, node)
    })
}

/// May a cast change a value, so that the runtime does not take it out? Casts of its `own` count as exact.
pub(super) fn loses_bits(from: ElementType, to: ElementType, own: bool) -> bool {
    let (Some((from_kind, from_bits)), Some((to_kind, to_bits))) = (kind(from), kind(to)) else {
        return true;
    };
    match (from_kind, to_kind) {
        (Kind::Integer | Kind::Float, Kind::Unsigned) => true,
        (Kind::Float, kind) if kind != Kind::Float => true,
        (Kind::Unsigned, Kind::Integer) | (Kind::Integer | Kind::Unsigned, Kind::Float) => {
            to_bits <= from_bits
        }
        _ if from != to && from_bits == 16 && to_bits == 16 && from_kind == Kind::Float => true,
        _ => from_bits > to_bits && !own,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    Integer,
    Unsigned,
    Float,
}

/// And how many bits it has.
fn kind(element: ElementType) -> Option<(Kind, u32)> {
    Some(match element {
        ElementType::Bool => (Kind::Bool, 1),
        ElementType::Int8 => (Kind::Integer, 8),
        ElementType::Int16 => (Kind::Integer, 16),
        ElementType::Int32 => (Kind::Integer, 32),
        ElementType::Int64 => (Kind::Integer, 64),
        ElementType::Uint8 => (Kind::Unsigned, 8),
        ElementType::Uint16 => (Kind::Unsigned, 16),
        ElementType::Uint32 => (Kind::Unsigned, 32),
        ElementType::Uint64 => (Kind::Unsigned, 64),
        ElementType::Float16 | ElementType::Bfloat16 => (Kind::Float, 16),
        ElementType::Float => (Kind::Float, 32),
        ElementType::Double => (Kind::Float, 64),
        _ => return None,
    })
}
