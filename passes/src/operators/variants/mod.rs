//! Other ways to compute what a node computes.
//!
//! A variant replaces one node by a few others that write the same tensors. What it reads, how
//! long it takes and what its kernels allocate follow from these nodes, which are ordinary
//! operators; so the same simulation and the same cost model judge both forms.
//!
//! Every variant has a test that runs both forms in ONNX Runtime and compares the bits
//! (`tests/variants.rs`).

mod activation;
mod approximate;
mod convolution;
mod dropout;
pub(crate) mod nodes;
mod normalization;
mod pointwise;
mod pooling;
mod slices;
mod sums;

pub use approximate::{APPROXIMATIONS, Approximation};
/// What takes dX out of a kernel that computes it wrongly.
pub(crate) use convolution::TRANSPOSED;

use super::Provider;
use std::collections::BTreeSet;

use crate::graph::{Attribute, AttributeValue, ElementType, Graph, Node, NodeId, TensorId, Uses};

/// Which idea a variant belongs to: what the ablation of MONeT's Figure 4 (Shah et al., 2021)
/// switches on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Gradients are added up one after another.
    Sums,
    /// Other forms of convolutions and their gradients.
    Convolution,
    /// Gradients of activations from their output instead of their input, or back.
    OutputActivated,
    /// Smaller masks instead of values.
    Masks,
    /// Cheaper ways to compute something again.
    Copies,
    /// Large gradients slice by slice.
    Slices,
}

impl Group {
    /// All groups.
    pub const ALL: [Group; 6] = [
        Group::Sums,
        Group::Convolution,
        Group::OutputActivated,
        Group::Masks,
        Group::Copies,
        Group::Slices,
    ];

    /// As reports show it.
    pub fn name(self) -> &'static str {
        match self {
            Group::Sums => "sums",
            Group::Convolution => "convolution",
            Group::OutputActivated => "output-activated",
            Group::Masks => "masks",
            Group::Copies => "copies",
            Group::Slices => "slices",
        }
    }
}

/// One way to replace a node.
pub struct Variant {
    /// As reports show it.
    pub name: &'static str,
    /// Which idea it belongs to.
    pub group: Group,
    replace: fn(&Site) -> Option<Vec<Part>>,
}

/// There is one of each name.
impl PartialEq for Variant {
    fn eq(&self, other: &Variant) -> bool {
        self.name == other.name
    }
}

impl Eq for Variant {}

impl std::fmt::Debug for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All variants, all of them bitwise: the results are those of the replaced node to the bit.
pub const VARIANTS: &[Variant] = &[
    sums::RUNNING_SUM,
    TRANSPOSED,
    convolution::SPLIT_GRADIENT,
    pointwise::PRODUCT,
    activation::FROM_OUTPUT,
    activation::FROM_INPUT,
    pooling::NARROW_MASK,
    activation::BOOL_MASK,
    slices::RELU_OF_NORM,
    slices::NORM,
    slices::RELU_OF_CONVOLUTION,
];

impl Variant {
    /// The nodes that replace `node`, in the order in which they run; `None` where the variant
    /// does not apply. Needs concrete shapes.
    pub fn parts(&self, graph: &Graph, uses: &Uses, node: NodeId) -> Option<Vec<Part>> {
        let node = graph.node(node);
        // What subgraphs read, and domains that only look like ONNX's, are left alone.
        if !node.captures.is_empty() {
            return None;
        }
        (self.replace)(&Site { graph, uses, node })
    }

    /// Is there a chance that it pays on this provider?
    pub fn suits(&self, provider: Provider) -> bool {
        // Bits of other kernels are only known to agree on the CPU.
        provider == Provider::Cpu
            || *self != TRANSPOSED && *self != pointwise::PRODUCT && self.group != Group::Slices
    }

    /// Does it write sizes into the graph that the runtime did not know before a step? With a memory
    /// pattern it lays out what has such a size, and what follows from it, for the whole step
    /// (measured: unet_nearest takes 80 MB more).
    pub fn fixes_sizes(&self) -> bool {
        *self == pointwise::PRODUCT
    }
}

/// The variants of these groups and approximations that have a chance to pay on this provider.
pub fn offered(
    groups: &BTreeSet<Group>,
    allowed: &BTreeSet<String>,
    provider: Provider,
) -> Vec<&'static Variant> {
    // Two ways for one sum.
    let in_order = allowed.contains("reassociated-sums");
    let bitwise = VARIANTS
        .iter()
        .filter(|v| groups.contains(&v.group) && !(in_order && **v == sums::RUNNING_SUM));
    let approximations = APPROXIMATIONS.iter().filter(|a| allowed.contains(a.name));
    bitwise
        .chain(approximations.flat_map(|a| a.variants))
        .filter(|variant| variant.suits(provider))
        .collect()
}

/// The nodes that compute the first result of `node` again in another way than it did, with what a batch
/// normalization has left, in the order in which they run; they write it as if they were
/// the original. `None` where there is no such way. Needs concrete shapes.
pub fn copy_parts(graph: &Graph, uses: &Uses, node: NodeId) -> Option<Vec<Part>> {
    let node = graph.node(node);
    let site = Site { graph, uses, node };
    normalization::activated_from_statistics(&site).or_else(|| dropout::from_mask(&site))
}

/// One node of a replacement.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its domain.
    pub domain: &'static str,
    /// Its operator.
    pub op_type: &'static str,
    /// Its attributes.
    pub attributes: Vec<Attribute>,
    /// What it reads.
    pub inputs: Vec<Option<Read>>,
    /// What it writes.
    pub outputs: Vec<Option<Write>>,
}

/// What a part reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A tensor of the graph.
    Tensor(TensorId),
    /// An output of an earlier part: the part's position, the output's.
    Output(usize, usize),
}

/// What a part writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// An output of the replaced node.
    Tensor(TensorId),
    /// A new tensor.
    New {
        /// What is put behind the name of the replaced node's first output.
        suffix: String,
        /// Its shape.
        shape: Like,
        /// The type of its elements.
        element: ElementType,
    },
}

/// The shape of a new tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Like {
    /// That of another tensor.
    Tensor(TensorId),
    /// Numbers; none for a scalar.
    Static(Vec<u64>),
    /// That of another tensor, but with that size of that axis.
    Cut(TensorId, usize, u64),
}

/// A node that might be replaced.
struct Site<'g> {
    graph: &'g Graph,
    uses: &'g Uses,
    node: &'g Node,
}

impl Site<'_> {
    fn element(&self, tensor: TensorId) -> Option<ElementType> {
        self.graph.tensor(tensor).element
    }

    fn shape(&self, tensor: TensorId) -> Option<&[u64]> {
        self.graph.tensor(tensor).shape.as_deref()
    }

    /// Are both shapes known and equal?
    fn alike(&self, a: TensorId, b: TensorId) -> bool {
        self.shape(a).is_some() && self.shape(a) == self.shape(b)
    }

    fn opset(&self) -> i64 {
        self.graph.opset().unwrap_or(0)
    }
}

fn part(
    domain: &'static str,
    op_type: &'static str,
    inputs: impl IntoIterator<Item = Option<Read>>,
    outputs: impl IntoIterator<Item = Option<Write>>,
) -> Part {
    Part {
        domain,
        op_type,
        attributes: Vec::new(),
        inputs: inputs.into_iter().collect(),
        outputs: outputs.into_iter().collect(),
    }
}

impl Part {
    /// The tensors of the graph that it reads.
    pub fn tensors_read(&self) -> impl Iterator<Item = TensorId> {
        self.inputs.iter().filter_map(|input| match input {
            Some(Read::Tensor(tensor)) => Some(*tensor),
            _ => None,
        })
    }

    /// The tensors of the graph that it writes.
    pub fn tensors_written(&self) -> impl Iterator<Item = TensorId> {
        self.outputs.iter().filter_map(|output| match output {
            Some(Write::Tensor(tensor)) => Some(*tensor),
            _ => None,
        })
    }

    fn with(mut self, name: &str, value: AttributeValue) -> Part {
        self.attributes.push(Attribute {
            name: name.to_owned(),
            value,
        });
        self
    }

    /// With all attributes that the node has.
    fn like(mut self, node: &Node) -> Part {
        self.attributes.clone_from(&node.attributes);
        self
    }
}

impl Write {
    fn new(suffix: impl Into<String>, shape: Like, element: ElementType) -> Write {
        let suffix = suffix.into();
        Write::New {
            suffix,
            shape,
            element,
        }
    }
}

fn tensor(id: TensorId) -> Option<Read> {
    Some(Read::Tensor(id))
}

fn cast(read: Read, to: ElementType, written: Write) -> Part {
    let cast = part("", "Cast", [Some(read)], [Some(written)]);
    cast.with("to", AttributeValue::Int(to as i64))
}

fn scalar_zero() -> Part {
    let zero = Write::new("zero", Like::Static(Vec::new()), ElementType::Float);
    part("", "Constant", [], [Some(zero)]).with("value_float", AttributeValue::Float(0.0))
}
