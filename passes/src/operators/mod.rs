//! What is known about each operator: shapes, work, workspace, aliasing, and how it is
//! recomputed. Operator facts live here alone: adding an operator changes no pass.

use crate::bytes::Bytes;
use crate::graph::{Graph, Node};

/// Who executes the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// ONNX Runtime's CPU execution provider.
    Cpu,
    /// ONNX Runtime's CUDA execution provider.
    Cuda,
}

/// How a node is computed a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// A clone computes every output again, bit for bit.
    Clone,
    /// A clone of BatchNormInternal with `momentum = 1`: outputs 0, 3 and 4 again, bit for bit,
    /// while the running statistics (outputs 1 and 2) stay as the original left them.
    BatchNorm,
    /// Dropout's output 0 from its input and the original's mask (output 1), by DropoutGrad.
    DropoutFromMask,
    /// Never, and why: random, stateful, side effects, or unknown.
    Never(&'static str),
}

impl Recompute {
    /// Does a copy compute output `position` again? If not, its readers keep to the original.
    pub fn recomputes(self, position: usize) -> bool {
        match self {
            Recompute::Clone => true,
            Recompute::BatchNorm => !matches!(position, 1 | 2),
            Recompute::DropoutFromMask => position == 0,
            Recompute::Never(_) => false,
        }
    }

    /// Which outputs of the original a copy reads.
    pub fn reads_own_outputs(self) -> &'static [usize] {
        match self {
            Recompute::DropoutFromMask => &[1],
            _ => &[],
        }
    }
}

/// Arithmetic and memory traffic of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating point operations (a multiply-add counts two).
    pub operations: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// Output position, input position: that output is that input's memory.
pub type Alias = (usize, usize);

/// Outputs that are always their input's memory, without a copy
/// (Identity, Reshape, PassThrough ..., BatchNormInternal's running statistics).
pub fn aliases(node: &Node) -> Vec<Alias> {
    let _ = node;
    Vec::new()
}

/// Outputs that take over the memory of an input which has no other reader left
/// and has the same static shape and element size.
pub fn in_place(node: &Node, provider: Provider) -> Vec<Alias> {
    let _ = (node, provider);
    Vec::new()
}

/// How `node` may be recomputed.
pub fn recompute(node: &Node) -> Recompute {
    let _ = node;
    Recompute::Never("no rule")
}

/// What the kernel allocates besides its outputs. Needs concrete shapes; 0 where no rule is known.
pub fn workspace(graph: &Graph, node: &Node, provider: Provider) -> Bytes {
    let _ = (graph, node, provider);
    Bytes::ZERO
}

/// What the node has to do. Needs concrete shapes.
pub fn work(graph: &Graph, node: &Node) -> Work {
    let _ = (graph, node);
    Work::default()
}
