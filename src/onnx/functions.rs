//! The model's own functions, in place of the nodes that call them: so the runtime runs them.
//!
//! Runtime fact (measured peaks and bits, at every level): a node that calls a function of the model is replaced by the function's nodes before anything else is done to the graph, unless a kernel has its name. They come
//! behind all other nodes, in the sequence of the calls and of the body, and are nodes like others: they run where the
//! execution order puts them, and may be merged.

use std::collections::{HashMap, HashSet};

use ckpt_passes::graph::{
    Attribute, AttributeValue, Graph, Node, NodeId, Tensor, TensorId, TensorKind,
};
use prost::Message as _;

use super::attribute;
use super::constant::constant_output;
use super::import_error::{DEEPEST, ImportProblem};
use super::model::Model;
use super::node::canonical_domain;
use super::schema::{AttributeProto, FunctionProto, NodeProto, model};

/// So many nodes may come of a file's calls, or so many for each of its nodes if that is more: a function that calls another
/// twice, and that another, grows without bounds.
const MOST_PIECES: usize = 1 << 17;
const MOST_FOR_A_NODE: usize = 16;

/// A function by domain, operator and overload.
type Key = (String, String, String);

/// Replaces each call by the function's nodes, which keep the call's place. What cannot be written as a node of the graph (a
/// subgraph, a large constant, another version of an operator set than the model's, a function that calls itself) stays a call.
pub(super) fn inline(graph: &mut Graph, source: &Model) -> Result<(), ImportProblem> {
    let functions = functions(source)?;
    if functions.is_empty() {
        return Ok(());
    }
    let mut names: HashSet<String> = HashSet::new();
    names.extend(graph.node_ids().map(|id| graph.node(id).name.clone()));
    let mut left = MOST_PIECES.max(MOST_FOR_A_NODE * graph.order().len());
    let mut order = Vec::with_capacity(graph.order().len());
    let mut pieces = 0;
    for id in graph.order().to_vec() {
        let Some(made) = call(graph, id, source, &functions, left)? else {
            order.push(id);
            continue;
        };
        left -= made.pieces.len();
        pieces += made.pieces.len();
        order.extend(put(graph, id, made, &mut names)?);
    }
    if pieces > 0 {
        graph.set_order(order);
    }
    Ok(())
}

fn functions(source: &Model) -> Result<HashMap<Key, FunctionBody>, ImportProblem> {
    let mut all = HashMap::new();
    for field in source.message().fields() {
        let field = field?;
        if field.number != model::FUNCTIONS {
            continue;
        }
        let proto = FunctionProto::decode(field.message()?.bytes)?;
        let domain = canonical_domain(&proto.domain).to_owned();
        // What has a kernel is run by that.
        if domain.is_empty() || domain.starts_with("com.microsoft") {
            continue;
        }
        let key = (domain, proto.name.clone(), proto.overload.clone());
        let nodes = proto.node.iter();
        let nodes: Result<_, _> = nodes.map(|node| NodeProto::decode(node.clone())).collect();
        all.insert(
            key,
            FunctionBody {
                nodes: nodes?,
                proto,
            },
        );
    }
    Ok(all)
}

struct FunctionBody {
    proto: FunctionProto,
    nodes: Vec<NodeProto>,
}

/// What a name in a body stands for.
#[derive(Clone, Copy)]
enum Slot {
    /// Nothing: an input that the call omits.
    Omitted,
    /// A tensor of the graph.
    Known(TensorId),
    /// One that is to be made, by its place among these.
    New(usize),
}

struct Piece {
    name: String,
    domain: String,
    op_type: String,
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
    attributes: Vec<Attribute>,
}

/// What becomes of a call.
#[derive(Default)]
struct Inlined {
    pieces: Vec<Piece>,
    /// Wishes for the names of new tensors.
    tensors: Vec<String>,
}

/// What the call at `id` stands for; `None` if it is none, or has to stay one.
fn call(
    graph: &Graph,
    id: NodeId,
    source: &Model,
    functions: &HashMap<Key, FunctionBody>,
    left: usize,
) -> Result<Option<Inlined>, ImportProblem> {
    let node = graph.node(id);
    let Some(place) = node.template else {
        return Ok(None);
    };
    let proto = source.node(place as usize)?;
    let key = (node.domain.clone(), node.op_type.clone(), proto.overload);
    let Some(function) = functions.get(&key) else {
        return Ok(None);
    };
    let slot = |tensor: &Option<TensorId>| tensor.map_or(Slot::Omitted, Slot::Known);
    let inputs: Vec<Slot> = node.inputs.iter().map(slot).collect();
    let outputs: Vec<Slot> = node.outputs.iter().map(slot).collect();
    let Some(base) = node.writes().next() else {
        return Ok(None);
    };
    let base = match node.name.as_str() {
        "" => graph.tensor(base).name.clone(),
        name => name.to_owned(),
    };
    let mut inlining = Inlining {
        graph,
        functions,
        left,
        calls: vec![&key],
        made: Inlined::default(),
    };
    let done = inlining.function(function, &inputs, &outputs, &node.attributes, &base)?;
    let made = inlining.made;
    Ok((done.is_some() && !made.pieces.is_empty()).then_some(made))
}

struct Inlining<'a> {
    graph: &'a Graph,
    functions: &'a HashMap<Key, FunctionBody>,
    left: usize,
    /// The functions that are being put in, each called by the one before it.
    calls: Vec<&'a Key>,
    made: Inlined,
}

impl<'a> Inlining<'a> {
    /// Adds the pieces of a call; `None` if it cannot be replaced.
    fn function(
        &mut self,
        function: &'a FunctionBody,
        inputs: &[Slot],
        outputs: &[Slot],
        attributes: &[Attribute],
        base: &str,
    ) -> Result<Option<()>, ImportProblem> {
        let proto = &function.proto;
        if inputs.len() > proto.input.len()
            || outputs.len() > proto.output.len()
            || self.calls.len() > DEEPEST
        {
            return Ok(None);
        }
        let mut known: HashMap<&str, Slot> = HashMap::new();
        for (position, name) in proto.input.iter().enumerate() {
            let slot = inputs.get(position).copied().unwrap_or(Slot::Omitted);
            known.insert(name, slot);
        }
        let mut wanted: HashMap<&str, Slot> = HashMap::new();
        for (name, &slot) in proto.output.iter().zip(outputs) {
            // What is read and written, or twice an output, would take a node more.
            let is_new = !known.contains_key(name.as_str());
            if !matches!(slot, Slot::Omitted) && (!is_new || wanted.insert(name, slot).is_some()) {
                return Ok(None);
            }
        }
        for (position, node) in function.nodes.iter().enumerate() {
            let domain = canonical_domain(&node.domain);
            if !self.has_version(proto, domain) {
                return Ok(None);
            }
            let mut read = Vec::with_capacity(node.input.len());
            for name in &node.input {
                read.push(match known.get(name.as_str()) {
                    Some(&slot) => slot,
                    None if name.is_empty() => Slot::Omitted,
                    None => return Ok(None),
                });
            }
            let mut written = Vec::with_capacity(node.output.len());
            for name in &node.output {
                if name.is_empty() {
                    written.push(Slot::Omitted);
                    continue;
                }
                let slot = wanted.remove(name.as_str()).unwrap_or_else(|| {
                    self.made.tensors.push(format!("{base}/{name}"));
                    Slot::New(self.made.tensors.len() - 1)
                });
                if known.insert(name, slot).is_some() {
                    return Ok(None);
                }
                written.push(slot);
            }
            let Some(values) = resolved(node, proto, attributes)? else {
                return Ok(None);
            };
            let name = match node.name.as_str() {
                "" => format!("{base}/{}_{position}", node.op_type),
                name => format!("{base}/{name}"),
            };
            let key = (
                domain.to_owned(),
                node.op_type.clone(),
                node.overload.clone(),
            );
            if let Some((key, inner)) = self.functions.get_key_value(&key) {
                if self.calls.contains(&key) {
                    return Ok(None);
                }
                self.calls.push(key);
                if self
                    .function(inner, &read, &written, &values, &name)?
                    .is_none()
                {
                    return Ok(None);
                }
                self.calls.pop();
                continue;
            }
            if self.made.pieces.len() >= self.left {
                return Ok(None);
            }
            self.made.pieces.push(Piece {
                name,
                domain: domain.to_owned(),
                op_type: node.op_type.clone(),
                inputs: read,
                outputs: written,
                attributes: values,
            });
        }
        Ok(wanted.is_empty().then_some(()))
    }

    /// Does the function mean the operators of `domain` that the model means?
    fn has_version(&self, function: &FunctionProto, domain: &str) -> bool {
        let mut imports = function.opset_import.iter();
        let import = imports.find(|import| canonical_domain(&import.domain) == domain);
        import.is_some_and(|import| self.graph.opsets.get(domain) == Some(&import.version))
    }
}

/// The node's attributes, with those of the call where it refers to them, or else with the function's defaults; `None` if one of
/// them could not be written again.
fn resolved(
    node: &NodeProto,
    function: &FunctionProto,
    call: &[Attribute],
) -> Result<Option<Vec<Attribute>>, ImportProblem> {
    let mut attributes: Vec<Attribute> = Vec::with_capacity(node.attribute.len());
    for bytes in &node.attribute {
        let proto = AttributeProto::decode(bytes.clone())?;
        let value = match proto.ref_attr_name.as_str() {
            "" => Some(attribute::value(&proto)?),
            referred => {
                let mut given = call.iter();
                match given.find(|attribute| attribute.name == referred) {
                    Some(given) => Some(given.value.clone()),
                    None => default(function, referred)?,
                }
            }
        };
        let is_known = attributes.iter().any(|known| known.name == proto.name);
        let can_be_written = match &value {
            Some(AttributeValue::Opaque) => false,
            Some(AttributeValue::Tensor { constant, .. }) => constant.is_some(),
            _ => true,
        };
        if is_known || proto.name.is_empty() || !can_be_written {
            return Ok(None);
        }
        attributes.extend(value.map(|value| Attribute {
            name: proto.name,
            value,
        }));
    }
    Ok(Some(attributes))
}

fn default(function: &FunctionProto, name: &str) -> Result<Option<AttributeValue>, ImportProblem> {
    for bytes in &function.attribute_proto {
        let proto = AttributeProto::decode(bytes.clone())?;
        if proto.name == name {
            return Ok(Some(attribute::value(&proto)?));
        }
    }
    Ok(None)
}

/// Puts the pieces into the graph; the last one takes the call's number. Says which nodes they are.
fn put(
    graph: &mut Graph,
    call: NodeId,
    made: Inlined,
    names: &mut HashSet<String>,
) -> Result<Vec<NodeId>, ImportProblem> {
    let mut new = Vec::with_capacity(made.tensors.len());
    for wish in &made.tensors {
        let name = graph.free_tensor_name(wish);
        new.push(graph.add_tensor(Tensor::new(name, TensorKind::Value)));
    }
    let tensor = |slot: &Slot| match *slot {
        Slot::Omitted => None,
        Slot::Known(id) => Some(id),
        Slot::New(place) => Some(new[place]),
    };
    let place = graph.node(call).template;
    let mut nodes = Vec::with_capacity(made.pieces.len());
    let last = made.pieces.len() - 1;
    for (position, piece) in made.pieces.into_iter().enumerate() {
        let inputs = piece.inputs.iter().map(tensor).collect();
        let outputs: Vec<Option<TensorId>> = piece.outputs.iter().map(tensor).collect();
        let proto = NodeProto {
            op_type: piece.op_type.clone(),
            domain: piece.domain.clone(),
            ..NodeProto::default()
        };
        if let (Some(constant), Some(Some(output))) =
            (constant_output(&proto, &piece.attributes)?, outputs.first())
        {
            let tensor = graph.tensor_mut(*output);
            tensor.element = constant.element;
            tensor.shape = constant.shape;
            tensor.constant = constant.constant;
        }
        let mut name = piece.name;
        for number in 1u64.. {
            if names.insert(name.clone()) {
                break;
            }
            name = format!("{name}_{number}");
        }
        let node = Node {
            attributes: piece.attributes,
            piece_of: place,
            ..Node::new(name, piece.domain, piece.op_type, inputs, outputs)
        };
        nodes.push(match position == last {
            true => {
                *graph.node_mut(call) = node;
                call
            }
            false => graph.add_node(node),
        });
    }
    Ok(nodes)
}
