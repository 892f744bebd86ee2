//! A training graph: nodes, tensors, and the order in which the file lists the nodes.
//!
//! The words are ONNX's. Ids are positions in arenas and stay valid while nodes and tensors
//! are added; only [`Graph::set_order`] changes the order. A node's *index*, in ONNX Runtime's
//! sense, is its position in [`Graph::order`].

mod dimension;
mod element;
mod identities;
mod made;
mod outputs;
mod rows;
pub mod text;
mod topology;
mod uses;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use dimension::Dimension;
pub(crate) use dimension::{all_numbers, checked_count, count, numbers};
pub use element::ElementType;
pub use identities::WithoutIdentities;
pub use outputs::OutputList;
pub(crate) use rows::MultipliedRows;
pub use topology::{Cycle, in_sequence, topological, writers_first};
pub use uses::Uses;

/// A node of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A tensor of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u32);

impl NodeId {
    /// The position in the node arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl TensorId {
    /// The position in the tensor arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Who owns a tensor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorKind {
    /// A graph input: the caller owns it.
    Input,
    /// An initializer (also one that is listed among the inputs): the session owns it.
    Initializer,
    /// A node's output: allocated and freed during the step.
    Value,
}

/// A small constant's contents, as far as shapes can depend on them.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// Integers and booleans, in row-major order.
    Ints(Vec<i64>),
    /// Floating point numbers, in row-major order.
    Floats(Vec<f64>),
}

impl Constant {
    /// The integers and booleans.
    pub(crate) fn ints(&self) -> Option<&[i64]> {
        match self {
            Constant::Ints(values) => Some(values),
            Constant::Floats(_) => None,
        }
    }

    /// The floating point numbers.
    pub(crate) fn floats(&self) -> Option<&[f64]> {
        match self {
            Constant::Floats(values) => Some(values),
            Constant::Ints(_) => None,
        }
    }

    /// As bits: NaN equals itself, and 0 is not -0.
    pub(crate) fn bits(&self) -> Vec<u64> {
        match self {
            Constant::Ints(values) => values.iter().map(|&value| value as u64).collect(),
            Constant::Floats(values) => values.iter().map(|value| value.to_bits()).collect(),
        }
    }
}

/// One tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its unique name in the graph.
    pub name: String,
    /// Who owns its memory.
    pub kind: TensorKind,
    /// The type of its elements; `None` until known (not a tensor, or not inferred yet).
    pub element: Option<ElementType>,
    /// The shape that the file declares, if it does.
    pub declared: Option<Vec<Dimension>>,
    /// What it declares where that is wrong: the runtime goes by it, as long as a file says so. `declared` has what is right of it then.
    pub stale: Option<Vec<Dimension>>,
    /// The concrete shape, once inferred.
    pub shape: Option<Vec<u64>>,
    /// The contents, where they are known and small.
    pub constant: Option<Constant>,
    /// Of a sequence, an optional value, a map: of what is no tensor and has no shape. What it holds, as far as that is
    /// known. No pass touches such a value.
    pub other: Option<crate::bytes::Bytes>,
    /// Of a result of what the runtime takes apart: whose shape it has. The runtime works that out of the whole first, and keeps it.
    pub like: Option<TensorId>,
    /// Of a graph output: the graph input in whose memory the caller has it written. It takes none of its own then.
    pub overwrites: Option<TensorId>,
}

impl Tensor {
    /// A tensor of which only the name is known.
    pub fn new(name: impl Into<String>, kind: TensorKind) -> Tensor {
        Tensor {
            name: name.into(),
            kind,
            element: None,
            declared: None,
            stale: None,
            shape: None,
            constant: None,
            other: None,
            like: None,
            overwrites: None,
        }
    }

    /// What it takes in memory beside all others, be it a tensor or not, as far as that is known. Saturates.
    pub fn memory(&self) -> Option<crate::bytes::Bytes> {
        match self.overwrites {
            Some(_) => Some(crate::bytes::Bytes::ZERO),
            None => self.other.or_else(|| self.bytes()),
        }
    }

    /// The contents, where they are integers that are known.
    pub(crate) fn ints(&self) -> Option<&[i64]> {
        self.constant.as_ref()?.ints()
    }

    /// The same of floating point numbers.
    pub(crate) fn floats(&self) -> Option<&[f64]> {
        self.constant.as_ref()?.floats()
    }

    /// The number of elements, once the shape is known. Saturates.
    pub fn element_count(&self) -> Option<u64> {
        self.shape.as_deref().map(count)
    }

    /// The size in memory, once type and shape are known. Saturates.
    pub fn bytes(&self) -> Option<crate::bytes::Bytes> {
        Some(self.element?.bytes(self.element_count()?))
    }
}

/// An attribute's value. What no pass reads is [`AttributeValue::Opaque`].
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// INT
    Int(i64),
    /// FLOAT
    Float(f32),
    /// STRING: bytes, since ONNX does not promise UTF-8
    String(Vec<u8>),
    /// INTS
    Ints(Vec<i64>),
    /// FLOATS
    Floats(Vec<f32>),
    /// STRINGS
    Strings(Vec<Vec<u8>>),
    /// A small TENSOR
    Tensor {
        /// The type of the elements
        element: ElementType,
        /// The dimensions
        shape: Vec<u64>,
        /// The contents, where they are small numbers
        constant: Option<Constant>,
    },
    /// Anything else: subgraphs, large tensors, types, and kinds newer than this program.
    Opaque,
}

/// A named attribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Its name, unique in the node.
    pub name: String,
    /// Its value.
    pub value: AttributeValue,
}

/// A subgraph of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// The attribute that holds it.
    pub attribute: String,
    /// Its nodes. Outer tensors that they read are there by their names, as inputs that [`Graph::inputs`] does not list.
    pub graph: Arc<Graph>,
    /// The same in a topological order and with the shapes of all tensors, once inferred, if it can run with these.
    pub shaped: Option<Arc<Graph>>,
}

/// What a node's subgraphs need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// While the node runs, besides its results, where the CPU runs them.
    pub cpu: crate::bytes::Bytes,
    /// The same on CUDA.
    pub cuda: crate::bytes::Bytes,
    /// Before its results are made; where these have their memory already, that comes to it.
    pub early: crate::bytes::Bytes,
    /// All the time: their initializers, which the session owns.
    pub owned: crate::bytes::Bytes,
    /// Why some of it is not counted, if so.
    pub uncounted: Option<String>,
}

/// One node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name; may be empty or repeated in files we did not write.
    pub name: String,
    /// The operator's domain; `ai.onnx` is written as the empty string.
    pub domain: String,
    /// The operator.
    pub op_type: String,
    /// Inputs by position; an omitted optional input is `None`.
    pub inputs: Vec<Option<TensorId>>,
    /// Outputs by position; an omitted optional output is `None`.
    pub outputs: Vec<Option<TensorId>>,
    /// Attributes, in file order.
    pub attributes: Vec<Attribute>,
    /// Outer tensors that the node's subgraphs read.
    pub captures: Vec<TensorId>,
    /// Its subgraphs. Their attributes are [`AttributeValue::Opaque`].
    pub bodies: Vec<Body>,
    /// What the subgraphs need, once inferred.
    pub held: Held,
    /// The node of the input file whose encoding this node starts from: itself, or for a mirror
    /// its original. Everything that is not modelled here (doc strings, metadata, opaque
    /// attributes, newer fields) is taken from it. `None` for a node made from scratch.
    pub template: Option<u32>,
    /// The node of the file that this one is a piece of, if that calls a function of the model or has no kernel.
    pub piece_of: Option<u32>,
}

impl Node {
    /// A node made from scratch, without attributes.
    pub fn new(
        name: impl Into<String>,
        domain: impl Into<String>,
        op_type: impl Into<String>,
        inputs: Vec<Option<TensorId>>,
        outputs: Vec<Option<TensorId>>,
    ) -> Node {
        Node {
            name: name.into(),
            domain: domain.into(),
            op_type: op_type.into(),
            inputs,
            outputs,
            attributes: Vec::new(),
            captures: Vec::new(),
            bodies: Vec::new(),
            held: Held::default(),
            template: None,
            piece_of: None,
        }
    }

    /// Is this the operator `op_type` of `domain`?
    pub fn is(&self, domain: &str, op_type: &str) -> bool {
        self.domain == domain && self.op_type == op_type
    }

    /// The attribute called `name`.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes
            .iter()
            .find(|a| a.name == name)
            .map(|a| &a.value)
    }

    /// The integer attribute called `name`.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name) {
            Some(AttributeValue::Int(value)) => Some(*value),
            _ => None,
        }
    }

    /// The float attribute called `name`.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name) {
            Some(AttributeValue::Float(value)) => Some(*value),
            _ => None,
        }
    }

    /// The integer list called `name`.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name) {
            Some(AttributeValue::Ints(values)) => Some(values),
            _ => None,
        }
    }

    /// The string attribute called `name`, where it is UTF-8.
    pub fn string(&self, name: &str) -> Option<&str> {
        match self.attribute(name) {
            Some(AttributeValue::String(value)) => std::str::from_utf8(value).ok(),
            _ => None,
        }
    }

    /// Sets the attribute called `name`, adding it at the end if there is none.
    pub fn set_attribute(&mut self, name: &str, value: AttributeValue) {
        match self.attributes.iter_mut().find(|a| a.name == name) {
            Some(attribute) => attribute.value = value,
            None => self.attributes.push(Attribute {
                name: name.to_owned(),
                value,
            }),
        }
    }

    /// The input at `position`, if present.
    pub fn input(&self, position: usize) -> Option<TensorId> {
        self.inputs.get(position).copied().flatten()
    }

    /// The first inputs, if all of these are present.
    pub fn first_inputs<const N: usize>(&self) -> Option<[TensorId; N]> {
        self.inputs.first_chunk().and_then(all_present)
    }

    /// The first outputs, if all of these are present.
    pub fn first_outputs<const N: usize>(&self) -> Option<[TensorId; N]> {
        self.outputs.first_chunk().and_then(all_present)
    }

    /// The output at `position`, if present.
    pub fn output(&self, position: usize) -> Option<TensorId> {
        self.outputs.get(position).copied().flatten()
    }

    /// Every tensor the node reads: inputs, then captures. A tensor read twice appears twice.
    pub fn reads(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.inputs.iter().flatten().chain(&self.captures).copied()
    }

    /// Lets the node read another tensor wherever it reads this one; not in its bodies.
    pub fn read_instead(&mut self, tensor: TensorId, instead: TensorId) {
        for input in &mut self.inputs {
            if *input == Some(tensor) {
                *input = Some(instead);
            }
        }
    }

    /// Every tensor the node writes.
    pub fn writes(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.outputs.iter().flatten().copied()
    }
}

fn all_present<const N: usize>(tensors: &[Option<TensorId>; N]) -> Option<[TensorId; N]> {
    let all = tensors.iter().copied().collect::<Option<Vec<_>>>()?;
    all.try_into().ok()
}

/// The standard's rules of shapes, where releases of the runtime differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShapeRules {
    /// Those that all releases have.
    #[default]
    Common,
    /// Those of the newest build for inference as well. What older ones do not work out by them is declared.
    Newest,
}

/// A training graph. Clones share the nodes and tensors that none of them changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The graph's name.
    pub name: String,
    nodes: Vec<Arc<Node>>,
    tensors: Vec<Arc<Tensor>>,
    order: Vec<NodeId>,
    /// Graph inputs, in order.
    pub inputs: Vec<TensorId>,
    /// Graph outputs, in order.
    pub outputs: OutputList,
    /// Operator set versions by domain (`ai.onnx` is the empty string).
    pub opsets: BTreeMap<String, i64>,
    /// By which rules its runtime works out shapes.
    pub shape_rules: ShapeRules,
    by_name: HashMap<Arc<str>, TensorId>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph {
            name: name.into(),
            ..Graph::default()
        }
    }

    /// Adds a tensor. Panics if the name is taken or empty: check with [`Graph::tensor_named`].
    pub fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        let id = TensorId(self.tensors.len() as u32);
        assert!(!tensor.name.is_empty(), "a tensor needs a name");
        let taken = self.by_name.insert(tensor.name.as_str().into(), id);
        assert!(taken.is_none(), "two tensors are called {:?}", tensor.name);
        self.tensors.push(Arc::new(tensor));
        id
    }

    /// Adds a node at the end of the order.
    pub fn add_node(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Arc::new(node));
        self.order.push(id);
        id
    }

    /// The version of ai.onnx, if the file names one.
    pub(crate) fn opset(&self) -> Option<i64> {
        self.opsets.get("").copied()
    }

    /// The node called `id`.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The node called `id`, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        Arc::make_mut(&mut self.nodes[id.index()])
    }

    /// The tensor called `id`.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// The tensor called `id`, to be changed. Its name must stay.
    pub fn tensor_mut(&mut self, id: TensorId) -> &mut Tensor {
        Arc::make_mut(&mut self.tensors[id.index()])
    }

    /// The tensor with this name.
    pub fn tensor_named(&self, name: &str) -> Option<TensorId> {
        self.by_name.get(name).copied()
    }

    /// The number of nodes; ids run from 0 to here.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// All node ids, whatever the order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The number of tensors; ids run from 0 to here.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// All tensor ids.
    pub fn tensor_ids(&self) -> impl Iterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// The nodes in file order.
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// The nodes in file order, with their ids.
    pub fn listed(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.order.iter().map(|&id| (id, self.node(id)))
    }

    /// The nodes in file order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = &Node> + ExactSizeIterator + Clone {
        self.order.iter().map(|&id| self.node(id))
    }

    /// Each node's position in the order, by node id: its index in the runtime's sense.
    pub fn positions(&self) -> Vec<u32> {
        let mut positions = vec![0; self.nodes.len()];
        for (position, id) in self.order.iter().enumerate() {
            positions[id.index()] = position as u32;
        }
        positions
    }

    /// Lists the nodes in another order. Panics unless `order` has every node once;
    /// whether it is topological is for [`crate::verify`] to say.
    pub fn set_order(&mut self, order: Vec<NodeId>) {
        let mut seen = vec![false; self.nodes.len()];
        for id in &order {
            assert!(
                !std::mem::replace(&mut seen[id.index()], true),
                "{id:?} is listed twice"
            );
        }
        assert_eq!(order.len(), self.nodes.len(), "every node is listed");
        self.order = order;
    }

    /// Makes pieces of functions nodes like others, as they are in a file that is written with them.
    pub fn own_pieces(&mut self) {
        let is_piece = |node: &&mut Arc<Node>| node.piece_of.is_some();
        for piece in self.nodes.iter_mut().filter(is_piece) {
            Arc::make_mut(piece).piece_of = None;
        }
        let is_of_whole = |tensor: &&mut Arc<Tensor>| tensor.like.is_some();
        for result in self.tensors.iter_mut().filter(is_of_whole) {
            Arc::make_mut(result).like = None;
        }
    }

    /// Leaves these nodes, in this order, and no others. They get other numbers. Panics if one is listed twice.
    pub fn keep_nodes(&mut self, order: Vec<NodeId>) {
        let mut now = vec![None; self.nodes.len()];
        let mut kept: Vec<NodeId> = order.clone();
        kept.sort_unstable();
        self.nodes = kept
            .iter()
            .enumerate()
            .map(|(place, id)| {
                let before = now[id.index()].replace(NodeId(place as u32));
                assert!(before.is_none(), "{id:?} is listed twice");
                Arc::clone(&self.nodes[id.index()])
            })
            .collect();
        self.order = order.iter().filter_map(|id| now[id.index()]).collect();
    }

    /// The outputs that the caller has written to the memory of an input, and that input.
    pub fn overwritten(&self) -> impl Iterator<Item = (TensorId, TensorId)> + '_ {
        let overwrites = |&output: &TensorId| Some((output, self.tensor(output).overwrites?));
        self.outputs.iter().filter_map(overwrites)
    }

    /// Of a subgraph: the tensors of the graph around it that it reads.
    pub fn outer(&self) -> impl Iterator<Item = TensorId> + '_ {
        let is_outer =
            |id: &TensorId| self.tensor(*id).kind == TensorKind::Input && !self.inputs.contains(id);
        self.tensor_ids().filter(is_outer)
    }

    /// By tensor: does the file say that it has the same sizes in every step? All of its dimensions are numbers, or there are nothing but
    /// numbers anywhere.
    pub fn fixed_shapes(&self) -> Vec<bool> {
        let are_numbers = |tensor: &Arc<Tensor>| {
            let mut declared = tensor.declared.iter().flatten();
            declared.all(Dimension::is_number)
        };
        let only_numbers = self.tensors.iter().all(are_numbers);
        let is_fixed = |of: &Arc<Tensor>| only_numbers || of.declared.is_some() && are_numbers(of);
        self.tensors.iter().map(is_fixed).collect()
    }

    /// A tensor name that is not taken: `wish`, or `wish` with a free number behind it, of which the one before is taken. Of a graph with
    /// many such names few are looked at.
    pub fn free_tensor_name(&self, wish: &str) -> String {
        let numbered = |number: u64| match number {
            0 => wish.to_owned(),
            _ => format!("{wish}_{number}"),
        };
        let is_free = |number: u64| !self.by_name.contains_key(numbered(number).as_str());
        let (mut taken, mut free) = (0, 0);
        while !is_free(free) {
            (taken, free) = (free, 2 * free + 1);
        }
        while free > taken + 1 {
            let middle = taken + (free - taken) / 2;
            match is_free(middle) {
                true => free = middle,
                false => taken = middle,
            }
        }
        numbered(free)
    }
}
