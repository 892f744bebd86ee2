//! From a [`Graph`] back to a model file.
//!
//! The file is spliced: what the graph leaves as it was is copied byte for byte, whether this
//! program understands it or not.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use ckpt_passes::graph::{Dimension, Graph, NodeId, Tensor, TensorId, TensorKind};
use prost::Message as _;

use super::destination::Destination;
use super::export_error::ExportError;
use super::external_data;
use super::model::{LONGEST, METADATA, Model};
use super::node::{self, InGraph, NodeProblem, canonical_domain};
use super::overwrites;
use super::pending::{Pending, Sink};
use super::schema::{
    DimensionProto, OperatorSetIdProto, StringStringEntryProto, TensorShapeProto, TensorType,
    TypeProto, ValueInfoProto, graph as graph_field, model as model_field,
    value_info as value_info_field,
};
use super::splice::Splice;
use super::wire::{Field, Message, WireError};

/// Writes `graph`, which was made from [`Model::graph`] of `model`, to a temporary file beside
/// `out`, to be checked and then moved to `out` by [`Pending::commit`].
///
/// Nodes that equal their template keep its bytes; others keep all of it that [`Graph`] does not
/// model. Everything else in the file stays as it is, except that
/// - values that are new, or that are declared otherwise than in the file, get a `value_info`
///   entry, if they have a type and declared dimensions;
/// - domains that only new nodes use are imported, at the version in [`Graph::opsets`] or 1.
///
/// Nor do entries of `metadata_props` stay that say what a graph was planned for: another one is not planned for that.
///
/// A graph in which nothing changed gives the same bytes. Weights are not copied in memory.
pub fn export(model: &Model, graph: &Graph, out: &Path) -> Result<Pending, ExportError> {
    export_with(model, graph, out, &[])
}

/// As [`export`], with `metadata` (keys and values) in the model's `metadata_props`, in place of what stands there
/// under the same keys. An unchanged graph's file gets none, unless it has some of an earlier plan.
pub fn export_with(
    model: &Model,
    graph: &Graph,
    out: &Path,
    metadata: &[(String, String)],
) -> Result<Pending, ExportError> {
    write(model, graph, out, metadata, Interface::Kept)
}

/// As [`export_with`], for a graph whose operators were written in others: it may ask for a newer operator set, an
/// output may have another type and shape, and inputs and outputs may be new or gone.
pub fn export_lowered(
    model: &Model,
    graph: &Graph,
    out: &Path,
    metadata: &[(String, String)],
) -> Result<Pending, ExportError> {
    write(model, graph, out, metadata, Interface::Lowered)
}

fn write(
    model: &Model,
    graph: &Graph,
    out: &Path,
    metadata: &[(String, String)],
    interface: Interface,
) -> Result<Pending, ExportError> {
    let sink = check_destination(model, out)?;
    let spliced = Exporter {
        model,
        original: &model.graph()?,
        graph,
        metadata,
        interface,
    }
    .model()?;
    if spliced.len() > LONGEST {
        return Err(ExportError::TooLarge {
            bytes: spliced.len(),
        });
    }
    Pending::write(sink, |file| spliced.write(&model.bytes, file))
}

/// Can a graph made from `model` be written to `out`? [`export`] says so too, but a search may
/// lie before it.
pub(crate) fn check_destination(model: &Model, out: &Path) -> Result<Sink, ExportError> {
    // The usual name; a file of that name is `./-`.
    if out == Path::new("-") {
        // Nobody knows in which folder the file will lie, and whether its data will lie there too.
        if let Some(file) = model.external_data().into_iter().next() {
            return Err(ExportError::DataBesideOutput {
                location: file.location,
            });
        }
        return Ok(Sink::Output);
    }
    let destination = Destination::of(out)?;
    if let Some(source) = &model.source
        && destination.is(&source.identity)
    {
        return Err(ExportError::OntoInput {
            path: out.to_owned(),
        });
    }
    external_data::check(model, out, &destination)?;
    Ok(Sink::File(destination))
}

/// What of a graph may differ besides nodes and values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interface {
    /// Nothing.
    Kept,
    /// Operator sets may be newer, outputs of another type, inputs and outputs new or gone.
    Lowered,
}

struct Exporter<'a> {
    model: &'a Model,
    /// The graph as the file has it.
    original: &'a Graph,
    graph: &'a Graph,
    metadata: &'a [(String, String)],
    interface: Interface,
}

impl Exporter<'_> {
    /// ModelProto.
    fn model(&self) -> Result<Splice, ExportError> {
        self.check_interface()?;
        let mut graph = Some(self.graph()?);
        let unchanged = graph.as_ref() == Some(&self.unchanged_graph());
        let mut imports = Splice::default();
        for import in self.new_opsets() {
            imports.add_message(model_field::OPSET_IMPORT, &import);
        }
        let fields = || self.model.message().fields();
        let says_of_a_plan = || fields().flatten().any(|field| self.replaces(&field));
        let keeps_metadata = unchanged && (self.metadata.is_empty() || !says_of_a_plan());
        let last_import = last(fields(), model_field::OPSET_IMPORT)?;
        let mut out = Splice::default();
        for (position, field) in fields().enumerate() {
            let field = field?;
            if !keeps_metadata && self.replaces(&field) {
                continue;
            }
            if let Some(newer) = self.newer_opset(&field)? {
                out.add_message(model_field::OPSET_IMPORT, &newer);
            } else if field.number != model_field::GRAPH || unchanged {
                out.keep(field.span);
            } else if let Some(graph) = graph.take() {
                out.add_field(model_field::GRAPH, graph);
            }
            if Some(position) == last_import {
                out.append(std::mem::take(&mut imports));
            }
        }
        out.append(imports);
        let metadata = self.metadata.iter().filter(|_| !keeps_metadata).cloned();
        for (key, value) in metadata {
            let entry = StringStringEntryProto { key, value };
            out.add_message(model_field::METADATA_PROPS, &entry);
        }
        Ok(out)
    }

    /// Is it an entry of metadata that says what a graph was planned for, or whose key new metadata has? One that cannot be read is not.
    fn replaces(&self, field: &Field<'_>) -> bool {
        if field.number != model_field::METADATA_PROPS {
            return false;
        }
        let contents = field.message().ok();
        let entry =
            contents.and_then(|contents| StringStringEntryProto::decode(contents.bytes).ok());
        entry.is_some_and(|StringStringEntryProto { key, .. }| {
            // What outputs overwrite holds for every plan.
            let is_of_a_plan = key.starts_with(METADATA) && key != overwrites::KEY;
            is_of_a_plan || self.metadata.iter().any(|(new, _)| *new == key)
        })
    }

    /// What an operator set's import becomes, where the graph asks for a newer one.
    fn newer_opset(&self, field: &Field<'_>) -> Result<Option<OperatorSetIdProto>, ExportError> {
        if field.number != model_field::OPSET_IMPORT || self.interface == Interface::Kept {
            return Ok(None);
        }
        let import = OperatorSetIdProto::decode(field.message()?.bytes)?;
        let now = self.graph.opsets.get(canonical_domain(&import.domain));
        Ok(now
            .filter(|&&version| version > import.version)
            .map(|&version| OperatorSetIdProto { version, ..import }))
    }

    fn unchanged_graph(&self) -> Splice {
        let mut splice = Splice::default();
        self.model
            .graph
            .iter()
            .for_each(|range| splice.keep(range.clone()));
        splice
    }

    /// GraphProto.
    fn graph(&self) -> Result<Splice, ExportError> {
        let (changed_infos, mut new_infos) = self.value_info()?;
        let changed_outputs = self.changed_outputs();
        let all_as_declared = changed_infos.is_empty() && new_infos == Splice::default();
        let mut nodes = self.nodes(all_as_declared)?;
        let fields = || self.model.graph_message().flat_map(Message::fields);
        let last_info = last(fields(), graph_field::VALUE_INFO)?;
        let mut out = Splice::default();
        for (position, field) in fields().enumerate() {
            let field = field?;
            match field.number {
                graph_field::NODE => match &mut nodes {
                    None => out.keep(field.span),
                    Some(nodes) => out.append(std::mem::take(nodes)),
                },
                graph_field::VALUE_INFO if !changed_infos.is_empty() => {
                    let contents = field.message()?;
                    let name = ValueInfoProto::decode(contents.bytes)?.name;
                    match changed_infos.get(&name) {
                        None => out.keep(field.span),
                        Some(now) => {
                            let changed = changed_value_info(contents, now)?;
                            out.add_field(graph_field::VALUE_INFO, changed);
                        }
                    }
                }
                graph_field::INPUT | graph_field::OUTPUT if self.is_gone(&field)? => {}
                graph_field::OUTPUT if !changed_outputs.is_empty() => {
                    let contents = field.message()?;
                    let name = ValueInfoProto::decode(contents.bytes)?.name;
                    match changed_outputs.get(&name) {
                        None => out.keep(field.span),
                        Some(now) => {
                            let changed = changed_value_info(contents, now)?;
                            out.add_field(graph_field::OUTPUT, changed);
                        }
                    }
                }
                _ => out.keep(field.span),
            }
            if Some(position) == last_info {
                out.append(std::mem::take(&mut new_infos));
            }
        }
        self.add_interface(&mut out);
        out.append(nodes.unwrap_or_default());
        out.append(new_infos);
        Ok(out)
    }

    /// All `node` fields, in the graph's order. `None`: they are those of the file.
    fn nodes(&self, all_as_declared: bool) -> Result<Option<Splice>, ExportError> {
        let mut out = Splice::default();
        let places = &self.model.nodes;
        let mut unchanged = self.graph.node_count() == self.original.node_count();
        let mut next = 0;
        // Calls stay calls where the runtime puts what it makes of them, or where nothing changed at all.
        let may_be_between = all_as_declared && self.graph.order() == self.original.order();
        let mut pieces = false;
        for &id in self.graph.order() {
            let node = InGraph {
                node: self.graph.node(id),
                graph: self.graph,
            };
            let in_node = |problem| ExportError::Node {
                node: node.node.name.clone(),
                problem,
            };
            let Some(template) = node.node.template else {
                let is_piece = node.node.piece_of.is_some() && self.is_original(id);
                unchanged &= is_piece;
                pieces = true;
                out.add_field(
                    graph_field::NODE,
                    node::from_scratch(node).map_err(in_node)?,
                );
                continue;
            };
            let place = places
                .get(template as usize)
                .ok_or_else(|| in_node(NodeProblem::NoTemplate { template }))?;
            let original = self.original.node(NodeId(template));
            let original = InGraph {
                node: original,
                graph: self.original,
            };
            let encoded = Message::of(&self.model.bytes, &place.contents);
            match node::splice(original, encoded, node).map_err(in_node)? {
                None => out.keep(place.field.clone()),
                Some(contents) => {
                    unchanged = false;
                    out.add_field(graph_field::NODE, contents);
                }
            }
            unchanged &= next <= template && (!pieces || may_be_between);
            next = template + 1;
        }
        Ok((!unchanged).then_some(out))
    }

    /// Is the node what it is in the original, reading and writing what that does?
    fn is_original(&self, id: NodeId) -> bool {
        let names = |graph: &Graph, tensors: &[Option<TensorId>]| -> Vec<Option<String>> {
            let name = |tensor: &Option<TensorId>| Some(graph.tensor((*tensor)?).name.clone());
            tensors.iter().map(name).collect()
        };
        if id.index() >= self.original.node_count() {
            return false;
        }
        let (before, now) = (self.original.node(id), self.graph.node(id));
        before.piece_of == now.piece_of
            && (&before.domain, &before.op_type, &before.name)
                == (&now.domain, &now.op_type, &now.name)
            && before.attributes == now.attributes
            && names(self.original, &before.inputs) == names(self.graph, &now.inputs)
            && names(self.original, &before.outputs) == names(self.graph, &now.outputs)
    }

    /// Declarations to be changed in place, and new `value_info` fields.
    fn value_info(&self) -> Result<(HashMap<String, TypeProto>, Splice), ExportError> {
        let described = self.described()?;
        let mut changed = HashMap::new();
        let mut new = Splice::default();
        for &id in self.graph.order() {
            for output in self.graph.node(id).writes() {
                let tensor = self.graph.tensor(output);
                let before = self.original.tensor_named(&tensor.name);
                let before = before.map(|id| &self.original.tensor(id).declared);
                if before == Some(&tensor.declared) {
                    continue;
                }
                if self.interface == Interface::Lowered && self.graph.outputs.contains(&output) {
                    continue;
                }
                if self.is_original_output(tensor) {
                    return Err(ExportError::Declaration {
                        tensor: tensor.name.clone(),
                    });
                }
                let Some(declaration) = declaration(tensor) else {
                    continue;
                };
                if described.contains(&tensor.name) {
                    changed.insert(tensor.name.clone(), declaration);
                } else {
                    let name = tensor.name.clone();
                    let info = ValueInfoProto {
                        name,
                        r#type: Some(declaration),
                    };
                    new.add_message(graph_field::VALUE_INFO, &info);
                }
            }
        }
        Ok((changed, new))
    }

    /// Is it an input or an output that the graph has no more?
    fn is_gone(&self, field: &Field<'_>) -> Result<bool, ExportError> {
        if self.interface == Interface::Kept {
            return Ok(false);
        }
        let name = ValueInfoProto::decode(field.message()?.bytes)?.name;
        let id = self.graph.tensor_named(&name);
        let is_initializer = |id: TensorId| self.graph.tensor(id).kind == TensorKind::Initializer;
        Ok(match field.number {
            graph_field::INPUT => {
                !id.is_some_and(|id| is_initializer(id) || self.graph.inputs.contains(&id))
            }
            _ => !id.is_some_and(|id| self.graph.outputs.contains(&id)),
        })
    }

    /// Adds inputs and outputs that the file does not have.
    fn add_interface(&self, out: &mut Splice) {
        if self.interface == Interface::Kept {
            return;
        }
        let (now, before) = (self.graph, self.original);
        for (field, now, before) in [
            (graph_field::INPUT, &now.inputs[..], &before.inputs[..]),
            (graph_field::OUTPUT, &now.outputs[..], &before.outputs[..]),
        ] {
            let known = before
                .iter()
                .map(|&id| self.original.tensor(id).name.as_str());
            let known: HashSet<&str> = known.collect();
            let new = now.iter().map(|&id| self.graph.tensor(id));
            for tensor in new.filter(|tensor| !known.contains(tensor.name.as_str())) {
                let info = ValueInfoProto {
                    name: tensor.name.clone(),
                    r#type: declaration(tensor),
                };
                out.add_message(field, &info);
            }
        }
    }

    /// Declarations of outputs to be changed in place.
    fn changed_outputs(&self) -> HashMap<String, TypeProto> {
        let mut changed = HashMap::new();
        if self.interface == Interface::Kept {
            return changed;
        }
        for &id in self.graph.outputs.iter() {
            let tensor = self.graph.tensor(id);
            let before = self.original.tensor_named(&tensor.name);
            let before = before.map(|id| self.original.tensor(id));
            let is_same = before.is_some_and(|before| {
                before.declared == tensor.declared && before.element == tensor.element
            });
            if let (false, Some(now)) = (is_same, declaration(tensor)) {
                changed.insert(tensor.name.clone(), now);
            }
        }
        changed
    }

    /// The names that the file's `value_info` describes.
    fn described(&self) -> Result<HashSet<String>, ExportError> {
        let mut names = HashSet::new();
        for field in self.model.graph_message().flat_map(Message::fields) {
            let field = field?;
            if field.number == graph_field::VALUE_INFO {
                names.insert(ValueInfoProto::decode(field.message()?.bytes)?.name);
            }
        }
        Ok(names)
    }

    /// Is the tensor an output of the graph? Its declaration is the caller's.
    fn is_original_output(&self, tensor: &Tensor) -> bool {
        let id = self.original.tensor_named(&tensor.name);
        id.is_some_and(|id| self.original.outputs.contains(&id))
    }

    /// Imports for the domains of nodes that the file had no node of.
    fn new_opsets(&self) -> Vec<OperatorSetIdProto> {
        let domains = |graph: &Graph| -> BTreeSet<String> {
            let domain = |&id| canonical_domain(&graph.node(id).domain).to_owned();
            graph.order().iter().map(domain).collect()
        };
        let known = domains(self.original);
        let new = domains(self.graph)
            .into_iter()
            .filter(|domain| !known.contains(domain) && !self.original.opsets.contains_key(domain));
        new.map(|domain| {
            let version = self.graph.opsets.get(&domain).copied().unwrap_or(1);
            OperatorSetIdProto { domain, version }
        })
        .collect()
    }

    /// The splice writes nodes and declarations. Anything else that changed would be lost.
    fn check_interface(&self) -> Result<(), ExportError> {
        let names = |graph: &Graph, ids: &[TensorId]| -> Vec<String> {
            ids.iter()
                .map(|&id| graph.tensor(id).name.clone())
                .collect()
        };
        let (before, now) = (self.original, self.graph);
        for (what, before, now) in [
            (
                "inputs",
                names(before, &before.inputs),
                names(now, &now.inputs),
            ),
            (
                "outputs",
                names(before, &before.outputs),
                names(now, &now.outputs),
            ),
        ] {
            if before != now && self.interface == Interface::Kept {
                return Err(ExportError::Interface { what });
            }
        }
        let kept = |(domain, version): (&String, &i64)| {
            let now = now.opsets.get(domain);
            now == Some(version)
                || self.interface == Interface::Lowered && now.is_some_and(|now| now > version)
        };
        if !before.opsets.iter().all(kept) {
            return Err(ExportError::Interface {
                what: "operator set versions",
            });
        }
        for id in now.tensor_ids() {
            let tensor = now.tensor(id);
            let known = before.tensor_named(&tensor.name);
            let is_initializer = |id| before.tensor(id).kind == TensorKind::Initializer;
            if tensor.kind == TensorKind::Initializer && !known.is_some_and(is_initializer) {
                return Err(ExportError::NewInitializer {
                    tensor: tensor.name.clone(),
                });
            }
        }
        Ok(())
    }
}

/// The position of the last field with this number.
fn last<'a>(
    fields: impl Iterator<Item = Result<Field<'a>, WireError>>,
    number: u32,
) -> Result<Option<usize>, WireError> {
    let mut last = None;
    for (position, field) in fields.enumerate() {
        if field?.number == number {
            last = Some(position);
        }
    }
    Ok(last)
}

/// TypeProto for a tensor that has a type and declared dimensions. Sizes that follow from a binding (`--dim batch=4`)
/// are not declared: the file is for every batch, and the runtime's planner would take them for known.
fn declaration(tensor: &Tensor) -> Option<TypeProto> {
    let declared = tensor.declared.as_ref()?;
    let dim = declared.iter().map(dimension).collect::<Option<_>>()?;
    let elem_type = tensor.element? as i32;
    let tensor_type = Some(TensorType {
        elem_type,
        shape: Some(TensorShapeProto { dim }),
    });
    Some(TypeProto {
        tensor_type,
        ..TypeProto::default()
    })
}

/// `None` for a size that ONNX cannot express.
fn dimension(dimension: &Dimension) -> Option<DimensionProto> {
    let mut proto = DimensionProto::default();
    match dimension {
        Dimension::Known(size) => proto.dim_value = Some(i64::try_from(*size).ok()?),
        Dimension::Symbol(name) => proto.dim_param = Some(name.clone()),
        Dimension::Unknown => {}
    }
    Some(proto)
}

/// ValueInfoProto with the type `now`, and all else from `before`.
fn changed_value_info(before: Message<'_>, now: &TypeProto) -> Result<Splice, WireError> {
    let mut out = Splice::default();
    for field in before.fields() {
        let field = field?;
        if field.number != value_info_field::TYPE {
            out.keep(field.span);
        }
    }
    out.add_message(value_info_field::TYPE, now);
    Ok(out)
}
