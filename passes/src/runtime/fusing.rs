//! What ONNX Runtime's optimizations do with a node, as far as it changes which nodes run when.
//!
//! Source: the runtime's graph transformers. Compared with measured peaks at ORT_ENABLE_ALL: Identity, activations and
//! plain transpositions (lstm4x64, unet_nearest). Not compared: scaling, and transpositions of batches.

use super::folding::Folding;
use super::known_shapes::is_resolved;
use super::release::Release;
use super::transposes::Transposition;
use crate::graph::{
    Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId, Uses, all_numbers,
};
use crate::operators::{self, MICROSOFT, Provider};

/// What a node is to the optimizations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusing {
    /// Nothing: it stays as it is.
    #[default]
    No,
    /// Goes from ORT_ENABLE_BASIC on; its readers read its input.
    Forwards,
    /// An Identity that writes an output of the graph: goes, too, if it alone reads what it reads and nobody what it writes; what computes that
    /// writes the output then.
    HandsOut,
    /// Adds zero to what it reads, or multiplies or divides it by one: goes from ORT_ENABLE_BASIC on, too.
    Idles {
        /// Which input its readers read.
        input: usize,
    },
    /// A Dropout whose mask nobody reads. Builds without training take it for one that [`Idles`](Fusing::Idles), and others leave it alone.
    Drops,
    /// A Not that only Wheres read: goes from ORT_ENABLE_BASIC on, and they choose the other way round.
    Negates {
        /// Does every release do so? Of later Wheres the newer ones alone (measured: 1.26.0 and 1.32.0, not 1.19.2 and 1.20.1).
        always: bool,
    },
    /// A Transpose: one that reads it does both at once, and a matrix product can do some by the way, unless its result is a graph
    /// output that the product reads.
    Transposes(Transposition),
    /// A Cast: goes in front of such a Transpose for the product that reads it.
    Casts,
    /// A Shape: reads past a Transpose.
    Shape {
        /// Does a Cast that only such nodes read go, so that they read what it reads?
        passes_casts: bool,
    },
    /// A Gemm: takes in a Transpose that only such nodes read, and the Transpose, the Sum or the activation that alone
    /// reads its result.
    Gemm,
    /// A Sum of two matrices that the runtime knows to have one shape.
    Sum,
    /// An addition of a vector along the last axis: takes in the Gelu that alone reads its result.
    Bias {
        /// Is the vector constant, the second summand, and the other one has three axes? A sum of such tensors that a layer normalization
        /// takes in is taken in with it.
        of_tokens: bool,
    },
    /// An addition of two images in float32 that the runtime knows to be of one size.
    AddsImages,
    /// An addition of two tensors with three axes that the runtime knows to be of one size.
    AddsTokens,
    /// Any other addition of two tensors.
    Adds,
    /// A layer normalization: takes in such an addition whose result it alone reads.
    Normalizes,
    /// A Gelu.
    Gelu {
        /// Is it the standard's, which 1.19.2 and 1.20.1 leave alone, and later releases do not (measured)?
        standard: bool,
        /// The bytes that its kernel takes once it has a bias: on the CPU as many as it writes.
        workspace: u64,
    },
    /// A tensor times one constant number, which a matrix product can do by the way.
    Scales {
        /// Which input is the tensor.
        input: usize,
        /// Can one that reads the result do it as well as one of which it is the only reader? Where the runtime knows how many
        /// axes the tensor has (measured in 1.19.2).
        before: bool,
        /// Is it a Mul?
        multiplies: bool,
    },
    /// One divided by a tensor: divides by it what the Mul multiplies it with that alone reads it.
    Inverts,
    /// Such a Mul, where it is nothing else.
    Multiplies,
    /// A matrix product that takes in transpositions and scaling; `adds`: and becomes a Gemm with the addition that alone reads it.
    Product {
        /// Is that addition there?
        adds: Adding,
    },
    /// A convolution that takes in the activation which alone reads its result.
    Convolution {
        /// Are its weights and its bias constant? It takes in constants before.
        constant: bool,
    },
    /// A product with, or a sum with constants, one for each channel of an image, or a normalization by them.
    Channels {
        /// Does a convolution that takes it in have a bias then, whether it had one or not?
        biased: bool,
    },
    /// Such an activation.
    Activation,
    /// A Pad with zeros that a convolution or an average pool reads, which pads by itself: goes from ORT_ENABLE_BASIC on if it alone does.
    Pads,
    /// A Reshape, a Squeeze or an Unsqueeze: goes into the Reshape before it which it alone reads, if it writes so many elements as the runtime
    /// knows in numbers. In releases after 1.20.1 alone (measured in 1.26.0 and 1.32.0, and none of it in 1.19.2 and 1.20.1).
    Reshapes {
        /// Is it such a Reshape, which goes on with those behind it?
        leads: bool,
        /// Does the runtime know all sizes of what it writes?
        joins: bool,
    },
    /// Puts the shape together to which a Reshape goes: constant from ORT_ENABLE_BASIC on, without what it alone reads.
    Assembles,
    /// Follows from constants (`folding.rs`): computed before the first step from ORT_ENABLE_BASIC on.
    Folded,
    /// A Slice of a tensor, or a Gather of one of its rows, of which other such nodes take the rest: one Split takes their place. (Of a
    /// row without its axis it is a Split and a Squeeze, which takes no memory.)
    Splits {
        /// Where the part begins.
        from: u64,
        /// Is it a row whose size is known before a step? The Split writes it by a new name, so that it has what follows from the tensor,
        /// whatever the file says of the row (measured).
        sized: bool,
        /// Is it a row, which a Squeeze is left of?
        squeezes: bool,
    },
}

/// Is there an addition that becomes a Gemm with a matrix product?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adding {
    /// No.
    #[default]
    Nothing,
    /// To a product of two matrices.
    ToMatrix,
    /// Of a vector to each row of a tensor with another number of axes, all of whose sizes are numbers. In releases after 1.20.1 alone: a
    /// Reshape makes a matrix of the tensor, and another one of the result a tensor (measured in 1.26.0 and 1.32.0).
    ToRows,
}

/// How many axes a batch of sequences of vectors has.
const TOKENS: usize = 3;

/// Since then there is another Where, of which `NotWhereFusion` knows in some releases alone.
const NEW_WHERE: i64 = 16;

/// Does somebody read what this Not writes, and nothing but Wheres? Source: `NotWhereFusion`.
fn is_read_by_wheres(graph: &Graph, uses: &Uses, node: &Node) -> bool {
    let written = node.output(0);
    let readers = written.map_or(&[][..], |written| uses.readers(written));
    let mut readers = readers.iter().map(|&id| graph.node(id)).peekable();
    readers.peek().is_some()
        && readers.all(|reader| {
            let values = [1, 2].map(|position| reader.input(position));
            reader.is("", "Where") && reader.input(0) == written && !values.contains(&written)
        })
}

impl Fusing {
    /// Is such a node a Gemm?
    pub(crate) fn is_gemm(self) -> bool {
        self == Fusing::Gemm
    }

    /// Is such a node a Mul?
    pub(crate) fn is_multiplication(self) -> bool {
        match self {
            Fusing::Scales { multiplies, .. } => multiplies,
            Fusing::Channels { biased } => !biased,
            _ => self == Fusing::Multiplies,
        }
    }

    /// Does such a node go, so that its readers read its input? In the `oldest` releases fewer do.
    pub(crate) fn goes(self, oldest: bool) -> bool {
        match self {
            Fusing::Forwards | Fusing::Idles { .. } => true,
            Fusing::Negates { always } => always || !oldest,
            _ => false,
        }
    }

    /// The same where `release` runs it.
    pub(crate) fn by(self, release: &Release) -> Fusing {
        match self {
            Fusing::Drops if !release.trains => Fusing::Idles { input: 0 },
            _ => self,
        }
    }

    /// Can the runtime make one node of this one and a `reader` of its result as input `place`, which rounds otherwise than both do? Only of
    /// products with a number, of sums, and of products that read their first matrix transposed: where they sum up more than 128 terms,
    /// they have other bits then, and never by their second one (measured in 1.20.1, 1.26.0 and 1.32.0). A Gemm may exchange both.
    pub(crate) fn rounds_with(self, reader: Fusing, place: usize) -> bool {
        use Adding::{ToMatrix, ToRows};
        use Fusing::{
            Adds, AddsImages, AddsTokens, Bias, Channels, Convolution, Gemm, Inverts, Multiplies,
            Product, Scales, Sum, Transposes,
        };
        let is_transposed = match (self, reader) {
            (Transposes(of), Gemm | Product { adds: ToMatrix }) => of.is_done_by_a_product(),
            // The Gemm reads a Reshape.
            (Transposes(of), Product { adds: ToRows }) => place == 1 && of.is_done_by_a_product(),
            (Transposes(of), Product { .. }) => place == 0 && of.is_done_by_a_product(),
            _ => false,
        };
        is_transposed
            || matches!(
                (self, reader),
                (Scales { .. }, Product { .. })
                    | (Product { .. }, Scales { .. })
                    | (
                        Inverts,
                        Scales {
                            multiplies: true,
                            ..
                        } | Channels { biased: false }
                            | Multiplies
                    )
                    | (
                        Product {
                            adds: ToMatrix | ToRows
                        },
                        Adds | AddsImages | AddsTokens | Bias { .. }
                    )
                    | (Bias { of_tokens: true }, AddsTokens)
                    | (Gemm, Sum | Transposes(_))
                    | (Transposes(_), Sum)
                    | (Convolution { .. }, AddsImages)
                    | (
                        Convolution { constant: true } | Channels { .. },
                        Channels { .. }
                    )
            )
    }

    /// What `node` is when `provider` runs it; `shape` is what the runtime knows of a tensor's, `folding` what it computes before
    /// the first step.
    pub(crate) fn of<'g>(
        graph: &Graph,
        uses: &Uses,
        node: &Node,
        provider: Provider,
        (shape, folding): (impl Fn(TensorId) -> Option<&'g [Dimension]>, &Folding),
    ) -> Fusing {
        let [first, second] = [0, 1].map(|i| node.input(i).and_then(&shape));
        let written = node.output(0);
        let is_output = written.is_some_and(|written| graph.outputs.contains(&written));
        let name = node.op_type.as_str();
        let activates = provider == Provider::Cpu;
        let is_folded = written.is_some_and(|written| folding.is_folded(written));
        let idle = idle_input(graph, uses, node, (&shape, folding))
            .or_else(|| hands_on(graph, uses, node, (&shape, folding)).then_some(0));
        if let Some(input) = idle.filter(|_| !is_output && !is_folded) {
            return Fusing::Idles { input };
        }
        if !is_output && draws_for_nobody(graph, uses, node, folding) {
            return Fusing::Drops;
        }
        match (node.domain.as_str(), name) {
            // One of a constant goes before constants are worked out.
            ("", "Identity") if !is_output => Fusing::Forwards,
            ("", "Identity") => Fusing::HandsOut,
            _ if is_folded => Fusing::Folded,
            ("", "Slice" | "Gather") => {
                part_of_split(graph, uses, node, (&shape, folding)).unwrap_or(Fusing::No)
            }
            ("", "Not") if !is_output && is_read_by_wheres(graph, uses, node) => Fusing::Negates {
                always: graph.opset() < Some(NEW_WHERE),
            },
            ("", "Transpose") => {
                Transposition::of(graph, uses, node, &shape).map_or(Fusing::No, Fusing::Transposes)
            }
            ("", "Cast") => Fusing::Casts,
            ("", "Reshape" | "Squeeze" | "Unsqueeze") => {
                let known = written.and_then(&shape);
                Fusing::Reshapes {
                    leads: name == "Reshape" && node.int("allowzero").unwrap_or(0) == 0,
                    joins: known.is_some_and(all_numbers),
                }
            }
            ("", "Shape") => Fusing::Shape {
                passes_casts: is_rid_of_casts(graph),
            },
            ("", "Mul" | "Add" | "BatchNormalization")
                if !is_output && is_by_channel(graph, uses, node, folding) =>
            {
                Fusing::Channels {
                    biased: name != "Mul",
                }
            }
            ("", "Div") if is_output => Fusing::No,
            ("", "Div") if is_inverse(graph, node, folding) => Fusing::Inverts,
            ("", "Mul") if is_output => Fusing::Multiplies,
            ("", "Mul" | "Div") => scaled(graph, node, (&shape, folding)),
            ("", "MatMul") => Fusing::Product {
                adds: adds(graph, uses, node, &shape),
            },
            (MICROSOFT, "FusedMatMul") => Fusing::Product {
                adds: Adding::Nothing,
            },
            ("", "Gemm") => Fusing::Gemm,
            ("", "Sum") if node.inputs.len() == 2 && is_same(2, first, second) => Fusing::Sum,
            ("", "Add") if is_bias(first, second) || is_bias(second, first) => Fusing::Bias {
                of_tokens: first.is_some_and(|first| first.len() == TOKENS)
                    && node.input(1).is_some_and(|bias| folding.is_constant(bias)),
            },
            ("", "Add") if is_same(4, first, second) && is_single(graph, written) => {
                Fusing::AddsImages
            }
            ("", "Add") if is_same_tokens(first, second) => Fusing::AddsTokens,
            ("", "Add") => Fusing::Adds,
            ("", "LayerNormalization") => Fusing::Normalizes,
            ("", "Gelu") | (MICROSOFT, "Gelu" | "FastGelu") if node.inputs.len() == 1 => {
                let bytes = written.and_then(|written| graph.tensor(written).bytes());
                let workspace = bytes.filter(|_| activates).map_or(0, |bytes| bytes.0);
                let standard = node.domain.is_empty();
                Fusing::Gelu {
                    standard,
                    workspace,
                }
            }
            ("", "Pad") if !is_output && is_done_by_reader(graph, uses, node, folding) => {
                Fusing::Pads
            }
            ("", "Conv") if activates => Fusing::Convolution {
                constant: node.reads().skip(1).all(|read| folding.is_constant(read)),
            },
            ("", "Relu" | "Sigmoid" | "Tanh" | "LeakyRelu") if activates => Fusing::Activation,
            _ => Fusing::No,
        }
    }
}

/// Which input the node hands on, as the other one is a constant zero that it adds or subtracts, or a one by which it multiplies or
/// divides. Source: `NoopElimination`; measured in all four releases.
fn idle_input<'g>(
    graph: &Graph,
    uses: &Uses,
    node: &Node,
    (shape, folding): (impl Fn(TensorId) -> Option<&'g [Dimension]>, &Folding),
) -> Option<usize> {
    let &[Some(first), Some(second)] = &*node.inputs else {
        return None;
    };
    let nothing = match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "Add" | "Sub") => 0,
        ("", "Mul" | "Div") => 1,
        _ => return None,
    };
    let commutes = matches!(node.op_type.as_str(), "Add" | "Mul");
    let (input, read, constant) = match (folding.is_constant(first), folding.is_constant(second)) {
        (false, true) => (0, first, second),
        (true, false) if commutes => (1, second, first),
        _ => return None,
    };
    let rank = graph.tensor(constant).shape.as_ref()?.len();
    let goes = holds(graph, constant, nothing)
        && rank <= shape(read)?.len()
        && is_computed(graph, uses, read);
    goes.then_some(input)
}

/// Is that one number all that the constant holds?
fn holds(graph: &Graph, constant: TensorId, number: i64) -> bool {
    let tensor = graph.tensor(constant);
    tensor.ints() == Some(&[number]) || tensor.floats() == Some(&[number as f64])
}

/// Does the node hand on what it reads first, or its only reader do the same as well? Measured in all four releases.
fn hands_on<'g>(
    graph: &Graph,
    uses: &Uses,
    node: &Node,
    (shape, folding): (impl Fn(TensorId) -> Option<&'g [Dimension]>, &Folding),
) -> bool {
    let numbers = |place: usize| graph.tensor(node.input(place)?).ints();
    let element = |of: Option<TensorId>| of.and_then(|of| graph.tensor(of).element);
    let is_computed = || node.input(0).is_some_and(|of| is_computed(graph, uses, of));
    match (node.domain.as_str(), node.op_type.as_str()) {
        // Source: `CastElimination`.
        ("", "Cast") => {
            let read = element(node.input(0));
            read.is_some() && read == element(node.output(0))
        }
        // Source: `ExpandElimination`.
        ("", "Expand") => {
            let read = node.input(0).and_then(shape).unwrap_or_default();
            let fits = |(size, &wanted): (&Dimension, &i64)| {
                let is_wanted = size.number().is_some_and(|size| size as i64 == wanted);
                wanted <= 1 || is_wanted
            };
            numbers(1).is_some_and(|wanted| {
                let mut both = read.iter().rev().zip(wanted.iter().rev());
                !wanted.is_empty() && wanted.len() <= read.len() && both.all(fits)
            }) && is_computed()
        }
        // Source: `EliminateSlice`.
        ("", "Slice") => {
            let all = |place: usize, number: i64| {
                let given = node.input(place).is_some();
                !given || numbers(place).is_some_and(|of| of.iter().all(|&one| one == number))
            };
            let takes_all = node.inputs.len() > 2 && all(1, 0) && all(2, i64::MAX);
            // It looks at steps only where there are axes.
            let of_axes = node
                .input(3)
                .is_none_or(|axes| folding.is_constant(axes) && all(4, 1));
            takes_all && of_axes && is_computed()
        }
        // Source: `EliminateDropout`.
        ("", "Dropout") => {
            let ratio = || graph.tensor(node.input(1)?).floats();
            match node.inputs.len() {
                1 => is_for_nobody(graph, uses, node),
                _ => draws_for_nobody(graph, uses, node, folding) && ratio() == Some(&[0.0]),
            }
        }
        // Not where somebody else says how far the Clip goes down. Source: `FuseReluClip`.
        ("", "Relu") => {
            let readers = node.output(0).map_or(&[][..], |of| uses.readers(of));
            let clips = |reader: &Node| {
                let least = reader.input(1);
                reader.is("", "Clip")
                    && reader.input(0) == node.output(0)
                    && least.is_none_or(|least| folding.is_constant(least))
            };
            readers.len() == 1 && clips(graph.node(readers[0]))
        }
        _ => false,
    }
}

/// Is it a Dropout with a ratio of which nobody reads the mask, and that can go? Measured in all four releases.
fn draws_for_nobody(graph: &Graph, uses: &Uses, node: &Node, folding: &Folding) -> bool {
    let is_given = |of: &Option<TensorId>| {
        of.is_none_or(|of| uses.producer(of).is_none() || folding.is_constant(of))
    };
    node.is("", "Dropout")
        && node.inputs.len() > 1
        && node.inputs[1..].iter().all(is_given)
        && is_for_nobody(graph, uses, node)
        && node.input(0).is_some_and(|of| is_computed(graph, uses, of))
}

/// Would `release` take the Dropout out, whether it draws or not, and keep it if somebody read its mask, or a node computed what it reads?
pub(crate) fn drops_for_nobody(release: &Release, graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    let node = graph.node(id);
    !release.trains && node.is("", "Dropout") && is_for_nobody(graph, uses, node)
}

/// Does nobody read anything but the node's first output?
fn is_for_nobody(graph: &Graph, uses: &Uses, node: &Node) -> bool {
    let mut others = node.outputs.iter().skip(1).flatten();
    others.all(|of| uses.readers(*of).is_empty() && !graph.outputs.contains(of))
}

/// Does a node compute it, or is it an input of the graph, by itself or by another name that goes before? A node with two inputs of which no
/// other node computes one is not removed (measured in 1.19.2 and 1.32.0).
fn is_computed(graph: &Graph, uses: &Uses, tensor: TensorId) -> bool {
    let mut tensor = tensor;
    while let Some(node) = uses.producer(tensor).map(|id| graph.node(id)) {
        let element = |of: Option<TensorId>| of.map(|of| graph.tensor(of).element);
        let goes = match (node.domain.as_str(), node.op_type.as_str()) {
            ("", "Identity") => true,
            ("", "Dropout") => node.inputs.len() == 1,
            ("", "Cast") => element(node.input(0)) == element(node.output(0)),
            _ => false,
        };
        match node.input(0).filter(|_| goes) {
            Some(read) => tensor = read,
            None => return true,
        }
    }
    false
}

/// Does the node compute with constants, one for each channel of an image, as a convolution before it can? Source: `ConvMulFusion`,
/// `ConvAddFusion`, `ConvBNFusion`; measured for the first two in 1.32.0, with one number for all channels as well.
fn is_by_channel(graph: &Graph, uses: &Uses, node: &Node, folding: &Folding) -> bool {
    let sizes = |tensor: TensorId| graph.tensor(tensor).shape.as_deref();
    if node.op_type == "BatchNormalization" {
        let single = node.writes().count() == 1 && node.int("training_mode").unwrap_or(0) == 0;
        return single && node.reads().skip(1).all(|read| folding.is_constant(read));
    }
    let (constants, images): (Vec<TensorId>, Vec<TensorId>) =
        node.reads().partition(|&read| folding.is_constant(read));
    let (&[constants], &[image]) = (&*constants, &*images) else {
        return false;
    };
    let by = uses.producer(image).map(|id| graph.node(id));
    let scales = node.op_type == "Mul" && sizes(constants).is_some_and(<[u64]>::is_empty);
    let is_one = match sizes(constants) {
        Some([_, 1, 1]) => true,
        // Other products with a number are what products of matrices take in.
        _ => scales && by.is_some_and(|by| by.is("", "Conv")),
    };
    is_one
        && node
            .output(0)
            .and_then(sizes)
            .is_some_and(|written| written.len() == 4)
}

/// Does this Pad put zeros around images, as does whoever reads it first? Source: `PadFusion`; measured in 1.19.2 and 1.32.0. What only
/// some releases do is not simulated: with a MaxPool, and with what has no `pads`.
fn is_done_by_reader(graph: &Graph, uses: &Uses, node: &Node, folding: &Folding) -> bool {
    const IMAGES: usize = 2;
    let pads_itself = |reader: &Node| {
        let is_one = reader.is("", "Conv") || reader.is("", "AveragePool");
        let explicit = matches!(reader.string("auto_pad"), None | Some("NOTSET"));
        is_one
            && explicit
            && reader.attribute("pads").is_some()
            && reader.input(0) == node.output(0)
    };
    let readers = node
        .output(0)
        .map_or(&[][..], |written| uses.readers(written));
    let constant = |position: usize| {
        let tensor = node.input(position).filter(|&id| folding.is_constant(id))?;
        Some(graph.tensor(tensor))
    };
    let Some(pads) = constant(1).and_then(Tensor::ints) else {
        return false;
    };
    let (before, behind) = pads.split_at(pads.len() / 2);
    let is_whole = |sizes: &[i64]| {
        sizes.iter().all(|&size| size >= 0) && sizes.iter().take(IMAGES).all(|&size| size == 0)
    };
    let zeros = node.input(2).is_none() || constant(2).and_then(Tensor::floats) == Some(&[0.0]);
    node.inputs.len() <= 3
        && matches!(node.string("mode"), None | Some("constant"))
        && zeros
        && is_whole(before)
        && is_whole(behind)
        && readers
            .first()
            .is_some_and(|&id| pads_itself(graph.node(id)))
}

/// Does the runtime take casts out that are there for their shape alone? Measured for the opsets 11 to 21. Source:
/// `PreShapeNodeElimination`.
fn is_rid_of_casts(graph: &Graph) -> bool {
    graph.opset().is_some_and(|opset| (13..21).contains(&opset))
}

/// Which addition alone reads the product, and adds what Gemm can add? Source: `MatMulAddFusion`.
fn adds<'g>(
    graph: &Graph,
    uses: &Uses,
    node: &Node,
    shape: &impl Fn(TensorId) -> Option<&'g [Dimension]>,
) -> Adding {
    let Some(written) = node.output(0) else {
        return Adding::Nothing;
    };
    let &[reader] = uses.readers(written) else {
        return Adding::Nothing;
    };
    let add = graph.node(reader);
    let has_kernel = matches!(
        graph.tensor(written).element,
        Some(ElementType::Float | ElementType::Float16)
    );
    let added = add.inputs.iter().flatten().find(|&&read| read != written);
    let Some(&added) = added.filter(|_| add.is("", "Add") && has_kernel) else {
        return Adding::Nothing;
    };
    let [a, b] = [0, 1].map(|place| node.input(place).and_then(shape));
    let is = |one: &Dimension, other: &Dimension| one == other && *one != Dimension::Unknown;
    let single = Dimension::Known(1);
    let (rows, columns) = match (a, b) {
        (Some([rows, _]), Some([_, columns])) => (rows, columns),
        (Some(axes), Some([depth, columns])) => {
            let mut sizes = axes.iter().chain([depth, columns]);
            let fits = !axes.is_empty()
                && sizes.all(Dimension::is_number)
                && shape(added).is_some_and(|added| added == [columns.clone()]);
            return match fits {
                true => Adding::ToRows,
                false => Adding::Nothing,
            };
        }
        _ => return Adding::Nothing,
    };
    let fits = match shape(added) {
        Some([width]) => is(width, columns),
        Some([height, width]) => {
            is(width, columns) && (is(height, rows) || *height == single)
                || is(height, rows) && *width == single
        }
        _ => false,
    };
    match fits {
        true => Adding::ToMatrix,
        false => Adding::Nothing,
    }
}

/// Are both shapes known whole, of so many axes, and equal?
fn is_same(axes: usize, first: Option<&[Dimension]>, second: Option<&[Dimension]>) -> bool {
    let whole = |shape: &[Dimension]| shape.len() == axes && !shape.contains(&Dimension::Unknown);
    first.is_some_and(whole) && first == second
}

/// Source: `SkipLayerNormFusion`, which wants numbers for all sizes but the first.
fn is_same_tokens(first: Option<&[Dimension]>, second: Option<&[Dimension]>) -> bool {
    let whole = |shape: &[Dimension]| {
        shape.len() == TOKENS && shape[0] != Dimension::Unknown && all_numbers(&shape[1..])
    };
    first.is_some_and(whole) && first == second
}

fn is_single(graph: &Graph, tensor: Option<TensorId>) -> bool {
    tensor.is_some_and(|tensor| graph.tensor(tensor).element == Some(ElementType::Float))
}

/// Is `bias` a vector with as many elements as the last axis of `tensor`, in numbers?
fn is_bias(tensor: Option<&[Dimension]>, bias: Option<&[Dimension]>) -> bool {
    let last = tensor.and_then(|shape| shape.last());
    matches!((bias, last), (Some([bias]), Some(last)) if bias == last && bias.is_number())
}

/// Does this Div divide the number 1? Source: `DivMulFusion`; measured in 1.19.2, 1.20.1, 1.26.0 and 1.32.0.
fn is_inverse(graph: &Graph, node: &Node, folding: &Folding) -> bool {
    let number = node.input(0).filter(|&number| folding.is_constant(number));
    number.is_some_and(|number| holds(graph, number, 1))
}

fn scaled<'g>(
    graph: &Graph,
    node: &Node,
    (shape, folding): (&impl Fn(TensorId) -> Option<&'g [Dimension]>, &Folding),
) -> Fusing {
    let multiplies = node.op_type == "Mul";
    let other = match multiplies {
        true => Fusing::Multiplies,
        false => Fusing::No,
    };
    let (Some(first), Some(second)) = (node.input(0), node.input(1)) else {
        return other;
    };
    let is_number =
        |id: TensorId| graph.tensor(id).element_count() == Some(1) && folding.is_constant(id);
    let (input, tensor) = match (is_number(first), is_number(second)) {
        (false, true) => (0, first),
        (true, false) if multiplies => (1, second),
        _ => return other,
    };
    // Not in float64: measured in 1.19.2, 1.20.1 and 1.32.0, but 1.26.0 does.
    let result = node.output(0).and_then(|id| graph.tensor(id).element);
    if result == Some(ElementType::Double) {
        return other;
    }
    Fusing::Scales {
        input,
        before: shape(tensor).is_some(),
        multiplies,
    }
}

/// Does this Slice or Gather take a part of a tensor, and others the rest? Not of what a node writes beside something else. Source:
/// `GatherSliceToSplitFusion`. Rows that are graph outputs are not simulated.
fn part_of_split<'g>(
    graph: &Graph,
    uses: &Uses,
    node: &Node,
    (shape, folding): (&impl Fn(TensorId) -> Option<&'g [Dimension]>, &Folding),
) -> Option<Fusing> {
    const FROM_OPSET: i64 = 13;
    const MOST: usize = 64;
    let read = node.input(0)?;
    let readers = uses.readers(read);
    if graph.opset()? < FROM_OPSET || !(2..=MOST).contains(&readers.len()) {
        return None;
    }
    let producer = uses.producer(read).map(|id| graph.node(id));
    if producer.is_some_and(|node| node.outputs.len() > 1) {
        return None;
    }
    let axes = shape(read)?;
    let readers = readers.iter().map(|&id| graph.node(id));
    let mut parts = Vec::new();
    for reader in readers.filter(|reader| reader.input(0) == Some(read)) {
        match reader.op_type.as_str() {
            "Gather" => parts.push(row(graph, reader, axes, folding)?),
            "Slice" => parts.push(part(graph, reader, axes, folding)?),
            _ => {}
        }
    }
    parts.sort_unstable();
    let &(axis, ..) = parts.first()?;
    let mut end = 0;
    let follows = |&(along, from, to): &(usize, u64, u64)| {
        along == axis && from == std::mem::replace(&mut end, to)
    };
    let all = parts.len() > 1 && parts.iter().all(follows) && axes[axis] == Dimension::Known(end);
    let (_, from, _) = match node.op_type.as_str() {
        "Gather" => row(graph, node, axes, folding)?,
        _ => part(graph, node, axes, folding)?,
    };
    let squeezes = node.op_type == "Gather";
    all.then(|| Fusing::Splits {
        from,
        sized: squeezes && is_resolved(graph, axes),
        squeezes,
    })
}

/// A part of a tensor: the axis, and from where to where.
type AxisPart = (usize, u64, u64);

/// Of a Gather of one row that is constant.
fn row(graph: &Graph, node: &Node, axes: &[Dimension], folding: &Folding) -> Option<AxisPart> {
    let index = node.input(1)?;
    let written = node.output(0)?;
    if graph.tensor(index).element != Some(ElementType::Int64) || graph.outputs.contains(&written) {
        return None;
    }
    let axis = operators::resolve_axis(node.int("axis").unwrap_or(0), axes.len())?;
    let size = known(axes, axis)?;
    let row = session_number(graph, index, folding)?;
    let row = if row < 0 {
        row.saturating_add(size)
    } else {
        row
    };
    (0..size)
        .contains(&row)
        .then(|| (axis, row as u64, row as u64 + 1))
}

/// Of a Slice with one constant range of a known dimension, every element.
fn part(graph: &Graph, node: &Node, axes: &[Dimension], folding: &Folding) -> Option<AxisPart> {
    let one = |position: usize| session_number(graph, node.input(position)?, folding);
    let axis = match node.input(3) {
        Some(_) => one(3)?,
        None => 0,
    };
    let axis = operators::resolve_axis(axis, axes.len())?;
    let size = known(axes, axis)?;
    let place = |place: i64| {
        let from_the_end = if place < 0 { size } else { 0 };
        place.saturating_add(from_the_end).clamp(0, size)
    };
    let (from, to) = (place(one(1)?), place(one(2)?));
    let whole = node.input(4).is_none() || one(4) == Some(1);
    (whole && from < to).then_some((axis, from as u64, to as u64))
}

fn known(axes: &[Dimension], axis: usize) -> Option<i64> {
    match *axes.get(axis)? {
        Dimension::Known(size) => i64::try_from(size).ok(),
        _ => None,
    }
}

/// The one number of a tensor that becomes constant.
fn session_number(graph: &Graph, id: TensorId, folding: &Folding) -> Option<i64> {
    match graph.tensor(id).ints()? {
        &[number] if folding.is_constant(id) => Some(number),
        _ => None,
    }
}
