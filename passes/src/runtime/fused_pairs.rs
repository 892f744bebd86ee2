//! Of which nodes of a graph the runtime makes one with what alone reads their results, where a plan could change that.
//!
//! Copies leave nodes with other readers than they had. What the runtime makes of two nodes rounds otherwise than both do, has no marker,
//! or runs at another time: so enforcement asks here what has to be kept apart or together (`enforce/keep_apart.rs`).

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::graph::{ElementType, Graph, Node, NodeId, TensorId, TensorKind, Uses, all_numbers};
use crate::operators::MICROSOFT;

/// Operators that `GemmActivationFusion` takes for an activation, without their domains.
const GEMM_ACTIVATIONS: [&str; 12] = [
    "Elu",
    "HardSigmoid",
    "LeakyRelu",
    "ParametricSoftplus",
    "Relu",
    "ScaledTanh",
    "Selu",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Tanh",
    "ThresholdedRelu",
];

/// May it become one node with the Gemm whose result it alone reads?
pub fn is_activation_of_gemm(node: &Node) -> bool {
    node.domain.is_empty() && GEMM_ACTIVATIONS.contains(&node.op_type.as_str())
}

/// What a Gemm reads that the runtime makes of this node and the one that alone reads its result, or what it reads; and which of both
/// reads it. Nothing where none is made. It has none of their attributes. Measured for MatMul and Add; for Gemm and Sum, and Gemm and Transpose,
/// from the source.
pub(crate) fn reads_of_gemm(graph: &Graph, uses: &Uses, id: NodeId) -> Vec<(NodeId, TensorId)> {
    let node = graph.node(id);
    let alone = lone_reader(graph, uses, id);
    let Some((reader, written)) = alone.zip(node.output(0)) else {
        return Vec::new();
    };
    let with_reader = match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "MatMul") => reader.is("", "Add") && multiplies_matrices(graph, node),
        ("", "Gemm") => takes_in(node, reader),
        _ => return Vec::new(),
    };
    let own = node.reads().map(|read| (id, read));
    let reader_id = reader.output(0).and_then(|result| uses.producer(result));
    match reader_id.filter(|_| with_reader) {
        Some(reader_id) => {
            let others = reader.reads().filter(|&read| read != written);
            own.chain(others.map(|read| (reader_id, read))).collect()
        }
        None if node.is("", "Gemm") && reads_a_transpose(graph, uses, node) => own.collect(),
        None => Vec::new(),
    }
}

/// The sum that such a Gemm takes in, and what it adds there.
pub(crate) fn sum_of_product(graph: &Graph, uses: &Uses, id: NodeId) -> Option<(NodeId, TensorId)> {
    let mut read = reads_of_gemm(graph, uses, id).into_iter();
    read.rfind(|&(reader, _)| reader != id)
}

/// The Gemm that takes in this sum of two, of its result or a Transpose of that, if both summands are matrices of one shape, and what it adds there. An
/// Add computes the same bits, and is not taken in.
pub(crate) fn gemm_of_sum(graph: &Graph, uses: &Uses, sum: NodeId) -> Option<(NodeId, TensorId)> {
    let node = graph.node(sum);
    let &[Some(first), Some(second)] = node.inputs.as_slice() else {
        return None;
    };
    if !node.is("", "Sum") {
        return None;
    }
    let writer = |tensor| {
        let id = uses.producer(tensor)?;
        lone_reader(graph, uses, id).map(|_| (id, graph.node(id)))
    };
    let gemm = |tensor| {
        let (mut id, mut node) = writer(tensor)?;
        if node.is("", "Transpose") {
            (id, node) = writer(node.input(0)?)?;
        }
        (node.is("", "Gemm") && node.inputs.len() == 2).then_some(id)
    };
    let found = gemm(first).map(|id| (id, second));
    found.or_else(|| Some((gemm(second)?, first)))
}

/// Can such a Gemm read what this node reads in place of what it writes?
pub(crate) fn is_read_past(node: &Node) -> bool {
    node.is("", "Identity") || node.is("", "Transpose")
}

/// Does the runtime make one node of this sum and the layer normalization that alone reads it, though somebody reads mean and
/// deviation? That node gives none (SkipLayerNormalization; measured: the step fails).
pub(crate) fn loses_statistics(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    normalization_of_sum(graph, uses, id).is_some_and(|reader| has_statistics(graph, uses, reader))
}

/// The layer normalization of which the runtime makes one node with this sum, which it alone reads, as nobody reads its mean and deviation.
pub(crate) fn normalized_at_once(graph: &Graph, uses: &Uses, id: NodeId) -> Option<NodeId> {
    let reader = normalization_of_sum(graph, uses, id)?;
    let reader = Some(reader).filter(|reader| !has_statistics(graph, uses, reader))?;
    uses.producer(reader.output(0)?)
}

/// The product of which the runtime makes a Div with this Div of a number, which it alone reads: it divides then, and rounds once. Of the number
/// 1 alone; others count as well. Source: `DivMulFusion`, from ORT_ENABLE_BASIC on; measured in 1.20.1 and 1.32.0.
pub(crate) fn divided_at_once(graph: &Graph, uses: &Uses, id: NodeId) -> Option<NodeId> {
    let node = graph.node(id);
    let of = node.input(0).filter(|_| node.is("", "Div"))?;
    let is_number = graph.tensor(of).element_count() == Some(1) && is_constant(graph, uses, of);
    let reader = lone_reader(graph, uses, id).filter(|reader| is_number && reader.is("", "Mul"))?;
    uses.producer(reader.output(0)?)
}

/// The layer normalization that alone reads this sum.
fn normalization_of_sum<'g>(graph: &'g Graph, uses: &Uses, id: NodeId) -> Option<&'g Node> {
    let node = graph.node(id);
    let reader = lone_reader(graph, uses, id).filter(|_| node.is("", "Add"))?;
    let normalizes = reader.is("", "LayerNormalization") && reader.input(0) == node.output(0);
    normalizes.then_some(reader)
}

fn has_statistics(graph: &Graph, uses: &Uses, normalization: &Node) -> bool {
    let is_read = |tensor| !uses.readers(tensor).is_empty() || graph.outputs.contains(&tensor);
    (1..3).any(|statistic| normalization.output(statistic).is_some_and(is_read))
}

/// Nodes of which the runtime makes nothing with one that reads them, because another does too, by the node of the file that they and
/// their copies come from: with that one reader left, an instance would become something that rounds otherwise, or runs
/// at another time.
pub(crate) fn read_by_several(graph: &Graph, uses: &Uses) -> HashSet<u32> {
    let mut readers: HashMap<u32, BTreeSet<(Option<u32>, &str)>> = HashMap::new();
    for node in graph.nodes() {
        let Some(template) = node.template else {
            continue;
        };
        let all = readers.entry(template).or_default();
        if let Some(written) = node.output(0).filter(|_| !node.is("", "Identity")) {
            let is_sized = has_numbers(graph, written);
            let read = readers_past_identities(graph, uses, written);
            let read = read.filter(|of| !(of.is("", "Size") || is_sized && is_folded(of)));
            all.extend(read.map(|reader| (reader.template, reader.op_type.as_str())));
        }
    }
    readers.retain(|_, readers| readers.len() > 1);
    readers.into_keys().collect()
}

/// What Gemms write that read past a Transpose, as a single node of the file reads their result: with another reader they would not, and their sums
/// of more than 128 terms have other bits then (measured in 1.32.0). Not what leaves the graph behind. Source: `GemmTransposeFusion`.
pub(crate) fn read_once(graph: &Graph, uses: &Uses) -> BTreeSet<TensorId> {
    let leaves = |written: TensorId| {
        let mut at = written;
        while let &[reader] = uses.readers(at) {
            let reader = graph.node(reader);
            match reader.output(0).filter(|_| reader.is("", "Identity")) {
                Some(same) => at = same,
                None => return false,
            }
        }
        at != written && graph.outputs.contains(&at)
    };
    let is_read_once = |written: &TensorId| {
        let readers = uses.readers(*written);
        let of_file = |&id: &NodeId| match graph.node(id).template {
            Some(template) => (Some(template), None),
            None => (None, Some(id)),
        };
        let of_file: BTreeSet<_> = readers.iter().map(of_file).collect();
        of_file.len() == 1 && !leaves(*written)
    };
    let written = |id: NodeId| {
        let node = graph.node(id);
        let by = match sum_of_product(graph, uses, id) {
            Some((sum, _)) => graph.node(sum),
            None => Some(node).filter(|node| node.is("", "Gemm"))?,
        };
        by.output(0)
            .filter(|_| is_transposed_first(graph, uses, node))
    };
    let written = graph.order().iter().filter_map(|&id| written(id));
    written.filter(is_read_once).collect()
}

/// Are all sizes of the tensor numbers in the file?
fn has_numbers(graph: &Graph, tensor: TensorId) -> bool {
    let declared = graph.tensor(tensor).declared.as_deref();
    declared.is_some_and(all_numbers)
}

/// Is it one of those, and would the runtime make one node of it and of what alone reads it now? Measured in 1.32.0 for a sum and
/// its layer normalization (SkipLayerNormalization), a Pad, and products: of each, which operators it takes in, in 1.19.2 and 1.20.1, too, as the Div of a number.
pub(crate) fn is_newly_fused(
    graph: &Graph,
    uses: &Uses,
    id: NodeId,
    several: &HashSet<u32>,
) -> bool {
    let node = graph.node(id);
    let is_one_of_several = node.template.is_some_and(|of| several.contains(&of));
    let reader = lone_reader(graph, uses, id).filter(|_| is_one_of_several);
    let is_number = |read| graph.tensor(read).element_count() == Some(1);
    let is_scaled = |reader: &Node| {
        (reader.is("", "Mul") || reader.is("", "Div")) && reader.reads().any(is_number)
    };
    reader.is_some_and(|reader| {
        let by = match (node.domain.as_str(), node.op_type.as_str()) {
            ("", "Add") => {
                let summands = node.reads().filter_map(|read| uses.producer(read));
                let mut products = summands.filter(|&by| sum_of_product(graph, uses, by).is_some());
                return normalization_of_sum(graph, uses, id).is_some()
                    || products.any(|by| is_transposed_first(graph, uses, graph.node(by)));
            }
            (MICROSOFT, "FusedMatMul") => return is_scaled(reader),
            ("", "MatMul") => return reader.is("", "Add") || is_scaled(reader),
            ("", "Gemm") => {
                return takes_in(node, reader) || is_transposed_first(graph, uses, node);
            }
            ("", "Div") => return divided_at_once(graph, uses, id).is_some(),
            ("", "Pad") => ["Conv", "AveragePool", "MaxPool", "Cast"],
            ("", "Conv") => {
                return takes_in_constants(graph, uses, id, |read| is_constant(graph, uses, read));
            }
            _ => return false,
        };
        reader.domain.is_empty() && by.contains(&reader.op_type.as_str())
    })
}

/// Is it the first of four Slices of a tensor, each with every second row and column, that one Concat alone reads? Releases from 1.26.0 on make
/// something else of them, which runs later (SpaceToDepth; measured in 1.26.0 and 1.32.0; not in 1.20.1).
pub(crate) fn is_part_of_depth(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    const PARTS: usize = 4;
    let node = graph.node(id);
    let Some(joined) = lone_reader(graph, uses, id).filter(|_| node.is("", "Slice")) else {
        return false;
    };
    let is_alike = |read: &TensorId| {
        let other = uses.producer(*read).map(|id| graph.node(id));
        other.is_some_and(|other| other.is("", "Slice") && other.input(0) == node.input(0))
    };
    joined.is("", "Concat")
        && joined.inputs.len() == PARTS
        && joined.input(0) == node.output(0)
        && joined.inputs.iter().flatten().all(is_alike)
}

/// Does the runtime make one node of this one and of what alone reads it, an activation that the file has in pieces? Copies leave the
/// pieces without their other readers. Source: `QuickGeluFusion`, `GeluFusion`, `FastGeluFusion`; measured for the first:
/// what it makes runs later than planned, and a step took 30 % more in PRIORITY_BASED order.
pub(crate) fn is_piece_of_an_activation(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    let node = graph.node(id);
    let (Some(read), Some(written)) = (node.input(0), node.output(0)) else {
        return false;
    };
    let Some(reader) = lone_reader(graph, uses, id) else {
        return false;
    };
    // What is multiplied by its own sigmoid, which may be one of a multiple.
    let multiplied = uses.producer(read).map(|id| graph.node(id));
    let multiplied = multiplied.filter(|before| before.is("", "Mul"));
    let times = |tensor| {
        tensor == read || multiplied.is_some_and(|before| before.reads().any(|of| of == tensor))
    };
    let has_kernel = graph.tensor(written).element != Some(ElementType::Float16);
    has_kernel
        && match (node.op_type.as_str(), reader.op_type.as_str()) {
            ("Sigmoid", "Mul") => reader.reads().any(times),
            ("Erf" | "Tanh", "Add") => reader
                .reads()
                .any(|of| graph.tensor(of).element_count() == Some(1)),
            _ => false,
        }
}

/// Does the runtime make one node of this convolution and of the sum that alone reads its result, though it did not before
/// there were copies, when somebody else read that too? The node rounds otherwise. Measured (a residual network in ORTModule).
pub(crate) fn is_newly_added(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    let node = graph.node(id);
    let Some(weights) = node.input(1) else {
        return false;
    };
    if sum_of_convolution(graph, uses, id).is_none() {
        return false;
    }
    // Who reads what this node, and what its copies write: all of them were readers of one tensor.
    let siblings = uses.readers(weights).iter().map(|&id| graph.node(id));
    let siblings = siblings.filter(|other| other.is("", "Conv") && other.template == node.template);
    let readers = siblings.filter_map(|node| node.output(0));
    let readers = readers.flat_map(|written| uses.readers(written));
    let readers: BTreeSet<(Option<u32>, &str)> = readers
        .map(|&id| graph.node(id))
        .map(|reader| (reader.template, reader.op_type.as_str()))
        .collect();
    readers.len() > 1
}

/// A sum of two images of one size that the runtime lets a convolution add.
pub(crate) struct ConvolvedSum {
    /// The sum.
    pub(crate) sum: NodeId,
    /// What comes from the convolution.
    pub(crate) convolved: TensorId,
    /// What it adds.
    pub(crate) other: TensorId,
}

/// The one that alone reads what this convolution writes, or what becomes part of it: of one with a bias. Source:
/// `ConvAddActivationFusion`.
pub(crate) fn sum_of_convolution(graph: &Graph, uses: &Uses, id: NodeId) -> Option<ConvolvedSum> {
    const WITH_BIAS: usize = 3;
    const AXES: usize = 4;
    let node = graph.node(id);
    if !node.is("", "Conv") {
        return None;
    }
    let is_constant = |read| is_constant(graph, uses, read);
    let has_constants = node.reads().skip(1).all(is_constant);
    let mut biased = node.reads().count() == WITH_BIAS;
    let mut convolved = node.output(0)?;
    let mut reader = lone_reader_of(graph, uses, convolved)?;
    while has_constants && computes_with(reader, convolved, is_constant) {
        biased |= !reader.is("", "Mul");
        convolved = reader.output(0)?;
        reader = lone_reader_of(graph, uses, convolved)?;
    }
    let &[Some(one), Some(other)] = &*reader.inputs else {
        return None;
    };
    let written = graph.tensor(convolved);
    let is_alike = |read| graph.tensor(read).shape == written.shape;
    let is_image = written.shape.as_ref().is_some_and(|of| of.len() == AXES)
        && written.element == Some(ElementType::Float);
    let fuses = reader.is("", "Add") && is_image && is_alike(one) && is_alike(other);
    Some(ConvolvedSum {
        sum: uses
            .producer(reader.output(0)?)
            .filter(|_| biased && fuses)?,
        convolved,
        other: if one == convolved { other } else { one },
    })
}

/// Does the runtime put into the weights of this convolution what alone reads its result: a product with, or a sum with constants, or a
/// normalization by constants? Weights and bias must be constant. Source: `ConvMulFusion`, `ConvAddFusion`, `ConvBNFusion`; measured
/// for the first two in 1.32.0.
pub(crate) fn takes_in_constants(
    graph: &Graph,
    uses: &Uses,
    id: NodeId,
    is_constant: impl Fn(TensorId) -> bool + Copy,
) -> bool {
    let node = graph.node(id);
    let convolves = node.is("", "Conv") && node.reads().skip(1).all(is_constant);
    let reader = lone_reader(graph, uses, id).filter(|_| convolves);
    let computes =
        |written| reader.is_some_and(|reader| computes_with(reader, written, is_constant));
    node.output(0).is_some_and(computes)
}

/// Does the file say what is in the tensor?
fn is_constant(graph: &Graph, uses: &Uses, tensor: TensorId) -> bool {
    let by = uses.producer(tensor).map(|id| graph.node(id));
    graph.tensor(tensor).kind == TensorKind::Initializer
        || by.is_some_and(|by| by.is("", "Constant"))
}

/// Is it a product, a sum or a normalization of the tensor with constants?
fn computes_with(node: &Node, tensor: TensorId, is_constant: impl Fn(TensorId) -> bool) -> bool {
    let by = ["Mul", "Add", "BatchNormalization"];
    let mut others = node.reads().filter(|&read| read != tensor).peekable();
    node.domain.is_empty()
        && by.contains(&&*node.op_type)
        && others.peek().is_some()
        && others.all(is_constant)
}

/// Who reads the tensor once Identities have gone.
fn readers_past_identities<'g>(
    graph: &'g Graph,
    uses: &Uses,
    tensor: TensorId,
) -> impl Iterator<Item = &'g Node> {
    let mut open = vec![uses.readers(tensor).iter()];
    std::iter::from_fn(move || {
        loop {
            let Some(&id) = open.last_mut()?.next() else {
                open.pop();
                continue;
            };
            let reader = graph.node(id);
            let written = reader.output(0).filter(|_| reader.is("", "Identity"));
            match written.filter(|same| !graph.outputs.contains(same)) {
                Some(same) => open.push(uses.readers(same).iter()),
                None => return Some(reader),
            }
        }
    })
}

/// The one node that reads the first result of a node, once shapes are folded and Identities gone. None reads that of an Identity: so
/// chains of them are followed from their beginnings alone.
fn lone_reader<'g>(graph: &'g Graph, uses: &Uses, id: NodeId) -> Option<&'g Node> {
    let node = graph.node(id);
    let written = node.output(0).filter(|_| !node.is("", "Identity"))?;
    lone_reader_of(graph, uses, written)
}

fn lone_reader_of<'g>(graph: &'g Graph, uses: &Uses, tensor: TensorId) -> Option<&'g Node> {
    let readers = readers_past_identities(graph, uses, tensor);
    let mut lasting = readers.filter(|reader| !is_folded(reader));
    let reader = lasting.next()?;
    lasting.next().is_none().then_some(reader)
}

/// Shapes of known sizes are constants before anything is fused.
pub(crate) fn is_folded(node: &Node) -> bool {
    node.is("", "Shape")
}

fn multiplies_matrices(graph: &Graph, node: &Node) -> bool {
    let rank = |tensor: TensorId| graph.tensor(tensor).shape.as_ref().map(Vec::len);
    node.reads().all(|tensor| rank(tensor) == Some(2))
}

fn takes_in(gemm: &Node, reader: &Node) -> bool {
    let adds = reader.is("", "Sum") && reader.inputs.len() == 2;
    gemm.reads().count() == 2 && (adds || reader.is("", "Transpose"))
}

/// Would a Gemm that is read once read past a Transpose here, by which its bits change? (Not by its second matrix.)
fn is_transposed_first(graph: &Graph, uses: &Uses, product: &Node) -> bool {
    let producer = product.input(0).and_then(|first| uses.producer(first));
    producer.is_some_and(|by| graph.node(by).is("", "Transpose"))
}

fn reads_a_transpose(graph: &Graph, uses: &Uses, node: &Node) -> bool {
    let mut producers = node.reads().filter_map(|tensor| uses.producer(tensor));
    producers.any(|producer| graph.node(producer).is("", "Transpose"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A product, so many Identities, and a sum that reads the last; with `more`, another node that does.
    fn chain(identities: usize, more: &str) -> Graph {
        let identity = |at| format!("i{at} = Identity (i{})\n", at - 1);
        let all: String = (1..=identities).map(identity).collect();
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[4,4] x, float[4,4] w) => (float[4,4] y) {{
                i0 = MatMul (x, w)
                {all}
                y = Add (i{identities}, w)
                {more}
            }}"#,
        );
        let mut graph = Graph::parse(&text).expect("a graph");
        for (place, id) in (0..).zip(graph.order().to_vec()) {
            graph.node_mut(id).template = Some(place);
        }
        graph
    }

    /// This many would take minutes if they were followed from each of them.
    #[test]
    fn what_reads_behind_a_long_chain_of_identities_is_found_from_its_beginning() {
        const IDENTITIES: usize = 100_000;
        let graph = chain(IDENTITIES, "z = Exp (i100000)");
        let uses = Uses::of(&graph);
        assert_eq!(read_by_several(&graph, &uses), HashSet::from([0]));
        let alone = |graph: &Graph, uses: &Uses| {
            let order = graph.order().iter();
            let found = order.filter(|&&id| lone_reader(graph, uses, id).is_some());
            found.copied().collect::<Vec<NodeId>>()
        };
        assert_eq!(alone(&graph, &uses), []);
        let graph = chain(IDENTITIES, "");
        let uses = Uses::of(&graph);
        assert_eq!(alone(&graph, &uses), [graph.order()[0]]);
    }
}
