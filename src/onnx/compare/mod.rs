//! Does a written file hold what its original holds, in everything that a graph does not model?
//!
//! Verification proves that nodes compute the same values, as far as a graph knows them. The rest of two files
//! is held against each other here: contents of tensors of any size and type, wherever they lie, subgraphs, functions,
//! and fields that are newer than this program. What is not known is compared byte by byte. [`rules`] says what may differ.
//!
//! Nothing is hashed or collected: messages are walked side by side in the mapped files, and data beside them is read
//! in blocks. So a file of any size takes little memory, and equal means equal.

mod contents;
mod data_place;
mod declared;
mod difference;
mod fields;
mod labels;
mod messages;
mod rules;
mod sound;

use std::collections::{BTreeSet, HashMap, HashSet};

use prost::Message as _;

use self::contents::Sides;
use self::declared::value_info;
pub use self::difference::Difference;
use self::fields::encoded;
use self::labels::label;
use self::messages::{message, numbered};
use self::rules::Kind;
use super::model::Model;
use super::schema::{
    OperatorSetIdProto, StringStringEntryProto, ValueInfoProto, graph, model, node,
};
use super::tensor::{TensorHeader, text};
use super::wire::{Field, Message, WireError};

/// What a node of the written file comes from, by the original file's node numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counterpart {
    /// This very node.
    Same(usize),
    /// It computes what this node computes, or a part of it.
    InsteadOf(usize),
    /// Nothing.
    New,
}

/// Checks that `written` says what `original` says, but for what `rules` permits. The nodes correspond as
/// `counterparts` tells, by the written file's node numbers; that their inputs, outputs, operators, and attributes of
/// plain numbers and texts correspond is for verification to prove. Metadata whose keys begin with `own` is our own.
pub fn compare(
    original: &Model,
    written: &Model,
    counterparts: &[Counterpart],
    own: &str,
) -> Result<(), Difference> {
    sound::model(written)?;
    let sides = Sides::of(original, written);
    let compared = Compared {
        original,
        written,
        sides: &sides,
    };
    let (ours, theirs) = ([original.message()], [written.message()]);
    numbered(&sides, Kind::Model, &ours, &theirs)?;
    compared.metadata(own)?;
    compared.opsets()?;
    let pieces = |model: &Model| -> Vec<Range> { model.graph.clone() };
    let (ours, theirs) = (pieces(original), pieces(written));
    let ours: Vec<_> = ours
        .iter()
        .map(|r| Message::of(&original.bytes, r))
        .collect();
    let theirs: Vec<_> = theirs
        .iter()
        .map(|r| Message::of(&written.bytes, r))
        .collect();
    let within = |difference: Difference| difference.within(|| "the graph".to_owned());
    numbered(&sides, Kind::MainGraph, &ours, &theirs).map_err(within)?;
    compared.initializers(graph::INITIALIZER, Kind::Tensor, "initializer")?;
    compared.initializers(
        graph::SPARSE_INITIALIZER,
        Kind::Sparse,
        "sparse initializer",
    )?;
    compared.declarations()?;
    for (position, counterpart) in counterparts.iter().enumerate() {
        compared.node(position, *counterpart)?;
    }
    Ok(())
}

/// What the runtime would not load, in any file: for files that are read.
pub fn sound(model: &Model) -> Result<(), Difference> {
    sound::model(model)
}

type Range = std::ops::Range<usize>;

struct Compared<'a> {
    original: &'a Model,
    written: &'a Model,
    sides: &'a Sides,
}

impl<'a> Compared<'a> {
    /// Everything in the main graph's fields with this number.
    fn in_graph(
        model: &'a Model,
        number: u32,
    ) -> impl Iterator<Item = Result<Field<'a>, WireError>> {
        let fields = model.graph_message().flat_map(Message::fields);
        fields.filter(move |field| field.as_ref().map_or(true, |field| field.number == number))
    }

    /// The original's stays, unless it is of an earlier rewriting; new is only our own.
    fn metadata(&self, own: &str) -> Result<(), Difference> {
        let others = |model: &'a Model| -> Result<Vec<Message<'a>>, Difference> {
            let mut kept = Vec::new();
            for field in model.message().fields() {
                let field = field?;
                if field.number == model::METADATA_PROPS {
                    let entry = field.message()?;
                    let key = StringStringEntryProto::decode(entry.bytes).map(|entry| entry.key);
                    if !key.is_ok_and(|key| key.starts_with(own)) {
                        kept.push(entry);
                    }
                }
            }
            Ok(kept)
        };
        let (ours, theirs) = (others(self.original)?, others(self.written)?);
        let equal = ours
            .iter()
            .map(|m| m.bytes)
            .eq(theirs.iter().map(|m| m.bytes));
        equal
            .then_some(())
            .ok_or_else(|| Difference::new("the model's metadata_props differ"))
    }

    /// Verification compares versions. Here: that they are said in the same words, once.
    fn opsets(&self) -> Result<(), Difference> {
        let imports = |model: &'a Model| -> Result<Vec<(String, &'a [u8])>, Difference> {
            let mut all = Vec::new();
            for field in model.message().fields() {
                let field = field?;
                if field.number == model::OPSET_IMPORT {
                    let bytes = field.message()?.bytes;
                    all.push((OperatorSetIdProto::decode(bytes)?.domain, bytes));
                }
            }
            Ok(all)
        };
        let (ours, mut theirs) = (imports(self.original)?, imports(self.written)?);
        let known: BTreeSet<&str> = ours.iter().map(|(domain, _)| domain.as_str()).collect();
        let mut new = BTreeSet::new();
        let mut twice = None;
        theirs.retain(|(domain, bytes)| {
            if known.contains(domain.as_str()) {
                return true;
            }
            let plain = OperatorSetIdProto::decode(*bytes)
                .is_ok_and(|import| import.encode_to_vec() == *bytes);
            if !new.insert(domain.clone()) || !plain {
                twice = Some(domain.clone());
            }
            false
        });
        if let Some(domain) = twice {
            return Err(Difference::new(format!(
                "operator set {domain:?} is imported twice, or with a field that is not known"
            )));
        }
        match ours == theirs {
            true => Ok(()),
            false => Err(Difference::new("the model's opset_import entries differ")),
        }
    }

    /// By name: their place in the file means nothing.
    fn initializers(&self, number: u32, kind: Kind, what: &str) -> Result<(), Difference> {
        let name = |contents: Message<'_>| -> Result<String, WireError> {
            Ok(match kind {
                Kind::Sparse => TensorHeader::of_sparse(contents)?.name,
                _ => TensorHeader::of(&[contents])?.name,
            })
        };
        let mut wanted = HashMap::new();
        for field in Self::in_graph(self.original, number) {
            let contents = field?.message()?;
            wanted.insert(name(contents)?, contents);
        }
        let expected = wanted.len();
        let mut found = 0;
        for field in Self::in_graph(self.written, number) {
            let contents = field?.message()?;
            let name = name(contents)?;
            let within = |difference: Difference| difference.within(|| format!("{what} {name:?}"));
            let Some(original) = wanted.get(&name) else {
                return Err(within(Difference::new("the original does not have it")));
            };
            found += 1;
            message(self.sides, kind, &[*original], &[contents]).map_err(within)?;
        }
        match found == expected {
            true => Ok(()),
            false => Err(Difference::new(format!(
                "the graph has {found} entries of kind {what}, expected {expected}"
            ))),
        }
    }

    /// `value_info`: all that the original has of what is still computed, with types that are its or that verification has looked at.
    fn declarations(&self) -> Result<(), Difference> {
        let all = |model: &'a Model| -> Result<Vec<(String, Message<'a>)>, Difference> {
            Self::in_graph(model, graph::VALUE_INFO)
                .map(|field| {
                    let contents = field?.message()?;
                    Ok((ValueInfoProto::decode(contents.bytes)?.name, contents))
                })
                .collect()
        };
        let (ours, theirs) = (all(self.original)?, all(self.written)?);
        let mut wanted: HashMap<&str, Vec<Message<'a>>> = HashMap::new();
        for (name, contents) in ours.iter().rev() {
            wanted.entry(name).or_default().push(*contents);
        }
        let mut new = HashSet::new();
        for (name, contents) in &theirs {
            let within =
                |difference: Difference| difference.within(|| format!("value_info of {name:?}"));
            match wanted.get_mut(name.as_str()) {
                Some(list) => match list.pop() {
                    Some(original) => value_info(self.sides, original, *contents),
                    None => Err(Difference::new(
                        "it is there more often than in the original",
                    )),
                },
                None if !new.insert(name) => Err(Difference::new("it is there twice")),
                None => declared::made_here(*contents),
            }
            .map_err(within)?;
        }
        let missing: Vec<&str> = ours
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| !wanted[name].is_empty())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        // What nobody computes any more needs no declaration.
        let mut computed = HashSet::new();
        for node in &self.written.nodes {
            for field in Message::of(&self.written.bytes, &node.contents).fields() {
                let field = field?;
                if field.number == node::OUTPUT {
                    computed.insert(field.message()?.bytes);
                }
            }
        }
        let missing = missing
            .iter()
            .find(|name| computed.contains(name.as_bytes()));
        missing.map_or(Ok(()), |name| {
            Err(Difference::new(format!(
                "value_info of {name:?} is missing"
            )))
        })
    }

    fn node(&self, position: usize, counterpart: Counterpart) -> Result<(), Difference> {
        let piece = |model: &'a Model, position: usize| {
            Message::of(&model.bytes, &model.nodes[position].contents)
        };
        let found = piece(self.written, position);
        let of = match counterpart {
            Counterpart::Same(of) => of,
            Counterpart::InsteadOf(of) => of,
            Counterpart::New => {
                let within =
                    |difference: Difference| difference.within(|| label(Kind::Node, found));
                return nothing_besides(found, None).map_err(within);
            }
        };
        let expected = piece(self.original, of);
        if self.sides.equal(expected.bytes, found.bytes) {
            return Ok(());
        }
        let same = counterpart == Counterpart::Same(of);
        let check = || {
            match same {
                true => numbered(self.sides, Kind::MainNode, &[expected], &[found])?,
                false => nothing_besides(found, Some(expected))?,
            }
            self.attributes(expected, found, same)
        };
        check().map_err(|difference| difference.within(|| label(Kind::Node, found)))
    }

    /// Attributes by name. Which there are, and the plain values of those of copies, verification compares.
    fn attributes(
        &self,
        expected: Message<'a>,
        found: Message<'a>,
        same: bool,
    ) -> Result<(), Difference> {
        let named = |node: Message<'a>| -> Result<Vec<(String, Message<'a>)>, Difference> {
            let mut all = Vec::new();
            for field in node.fields() {
                let field = field?;
                if field.number == node::ATTRIBUTE {
                    let contents = field.message()?;
                    all.push((labels::name(Kind::Attribute, contents)?, contents));
                }
            }
            Ok(all)
        };
        let wanted: HashMap<String, Message<'a>> = named(expected)?.into_iter().collect();
        for (name, contents) in named(found)? {
            let within =
                |difference: Difference| difference.within(|| format!("attribute {name:?}"));
            match wanted.get(&name) {
                Some(original) if same && !rules::SETTINGS.contains(&name.as_str()) => {
                    message(self.sides, Kind::Attribute, &[*original], &[contents])
                        .map_err(within)?;
                }
                Some(original) => {
                    let plain = rules::plain(contents)? && rules::plain(*original)?;
                    let plain = plain || rules::SETTINGS.contains(&name.as_str());
                    let (ours, theirs) = ([*original], [contents]);
                    match plain {
                        true => rules::known_besides(*original, contents).map_err(within)?,
                        false => {
                            message(self.sides, Kind::Attribute, &ours, &theirs).map_err(within)?;
                        }
                    }
                }
                None => rules::all_known(contents).map_err(within)?,
            }
        }
        Ok(())
    }
}

/// A node that is new has no field that verification does not know, but from the node that it stands for.
fn nothing_besides(found: Message<'_>, original: Option<Message<'_>>) -> Result<(), Difference> {
    let mut allowed = HashSet::new();
    for field in original.into_iter().flat_map(Message::fields) {
        let field = field?;
        if !rules::of_new_nodes(field.number) {
            allowed.insert((field.number, encoded(&field)));
        }
    }
    for field in found.fields() {
        let field = field?;
        let is_known = rules::of_new_nodes(field.number);
        if !is_known && !allowed.contains(&(field.number, encoded(&field))) {
            return Err(Difference::new(format!(
                "{} is none of a node that is new",
                rules::field_name(Kind::Node, field.number)
            )));
        }
    }
    // A copy of a function's node without its overload would call another function.
    let overload = |node: Message<'_>| -> Result<Vec<u8>, Difference> {
        let mut found = Vec::new();
        for field in node.fields() {
            let field = field?;
            if field.number == rules::OVERLOAD {
                found = text(field.message()?)?.into_bytes();
            }
        }
        Ok(found)
    };
    match original {
        Some(original)
            if labels::operator(original)? == labels::operator(found)?
                && overload(original)? != overload(found)? =>
        {
            Err(Difference::new(
                "its overload is not that of the node it stands for",
            ))
        }
        _ => Ok(()),
    }
}
