//! What ONNX Runtime's optimizations do with a node, as far as it changes which nodes run when.
//!
//! Source: the runtime's graph transformers. Compared with measured peaks at ORT_ENABLE_ALL: Identity, activations and
//! plain transpositions (lstm4x64, unet_nearest). Not compared: scaling, and transpositions of batches.

use super::{MICROSOFT, Provider};
use crate::graph::{Graph, Node, TensorId, TensorKind, Uses};

/// What a node is to the optimizations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusing {
    /// Nothing: it stays as it is.
    #[default]
    No,
    /// Goes from ORT_ENABLE_BASIC on; its readers read its input.
    Forwards,
    /// A Transpose that a matrix product can do by the way.
    Transposes,
    /// A Gemm: takes in a Transpose that only such nodes read, and the activation that alone reads its result.
    Gemm,
    /// A tensor times one constant number, which a matrix product can do by the way; which input is the tensor.
    Scales(usize),
    /// A matrix product that takes in the two kinds above.
    Product,
    /// A convolution that takes in the activation which alone reads its result.
    Convolution,
    /// Such an activation.
    Activation,
}

impl Fusing {
    /// What `node` is when `provider` runs it.
    pub fn of(graph: &Graph, uses: &Uses, node: &Node, provider: Provider) -> Fusing {
        let written = node.output(0);
        let is_output = written.is_some_and(|written| graph.outputs.contains(&written));
        let name = node.op_type.as_str();
        let activates = provider == Provider::Cpu;
        match (node.domain.as_str(), name) {
            ("", "Identity") if !is_output => Fusing::Forwards,
            ("", "Transpose") if !is_output && swaps_rows(node) => Fusing::Transposes,
            ("", "Mul" | "Div") if !is_output => scaled(graph, uses, node),
            ("", "MatMul") | (MICROSOFT, "FusedMatMul") => Fusing::Product,
            ("", "Gemm") => Fusing::Gemm,
            ("", "Conv") if activates => Fusing::Convolution,
            ("", "Relu" | "Sigmoid" | "Tanh" | "LeakyRelu") if activates => Fusing::Activation,
            _ => Fusing::No,
        }
    }
}

/// Does a Transpose swap the last two axes, or put the first of three or more behind the second last or the last?
fn swaps_rows(node: &Node) -> bool {
    let Some(permutation) = node.ints("perm").filter(|axes| axes.len() >= 2) else {
        return false;
    };
    let rank = permutation.len() as i64;
    let is = |wanted: &dyn Fn(i64) -> i64| (0..rank).all(|i| permutation[i as usize] == wanted(i));
    let swapped = |i: i64| match rank - i {
        2 => rank - 1,
        1 => rank - 2,
        _ => i,
    };
    let rows_last = |i: i64| match rank - i {
        2 => 0,
        1 => rank - 1,
        _ => i + 1,
    };
    let batch_last = |i: i64| if i == rank - 1 { 0 } else { i + 1 };
    is(&swapped) || rank > 2 && (is(&rows_last) || is(&batch_last))
}

fn scaled(graph: &Graph, uses: &Uses, node: &Node) -> Fusing {
    let (Some(first), Some(second)) = (node.input(0), node.input(1)) else {
        return Fusing::No;
    };
    let is_number = |id: TensorId| {
        let tensor = graph.tensor(id);
        let constant = uses
            .producer(id)
            .map(|id| graph.node(id).is("", "Constant"));
        let constant = constant.unwrap_or(tensor.kind == TensorKind::Initializer);
        constant && tensor.element_count() == Some(1)
    };
    match (is_number(first), is_number(second)) {
        (false, true) => Fusing::Scales(0),
        (true, false) if node.op_type == "Mul" => Fusing::Scales(1),
        _ => Fusing::No,
    }
}
