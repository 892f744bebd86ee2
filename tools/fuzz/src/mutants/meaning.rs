//! What a model computes, as a number: a judge of mutants that shares nothing with verification.
//!
//! Every tensor gets a hash of the expression that computes it. The meaning of a model are the hashes of its outputs
//! and of what its nodes do besides, and what the caller sees. Only what a rewriting is known to add is seen through:
//! barriers, markers, copies of Dropout and of batch normalization, and that a Sum of two is an Add.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::wire::{Msg, Value};

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Two models with the same meaning compute the same. `None`: nobody can run it.
pub(crate) fn meaning(bytes: &[u8]) -> Option<u64> {
    let model = Msg::parse(bytes)?;
    let graph = Msg::parse(model.all(7).next()?)?;
    // Everything but nodes, value_info and metadata counts as it is.
    let mut rest = model.clone();
    rest.0.retain(|(number, _)| ![7, 14].contains(number));
    let mut declared = graph.clone();
    declared.0.retain(|(number, _)| ![1, 13].contains(number));
    let mut names = BTreeMap::new();
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    for input in graph.msgs(11) {
        known.insert(input.text(1), hash(("input", input.text(1))));
    }
    for tensor in graph.msgs(5) {
        known.insert(tensor.text(8), hash(("initializer", tensor)));
    }
    for sparse in graph.msgs(15) {
        let values = Msg::parse(sparse.all(1).next()?)?;
        known.insert(values.text(8), hash(("sparse", sparse)));
    }
    let mut nodes: Vec<Msg> = graph.msgs(1);
    for node in &nodes {
        let name = node.text(3);
        if !name.is_empty() && names.insert(name, ()).is_some() {
            return None;
        }
    }
    // What a Relu made of what.
    let mut relus = BTreeMap::new();
    let mut effects = Vec::new();
    while !nodes.is_empty() {
        let before = nodes.len();
        let mut waiting = Vec::new();
        for node in nodes {
            let ready = reads(&node)?
                .iter()
                .all(|name| name.is_empty() || known.contains_key(name));
            match ready {
                true => compute(&node, &mut known, &mut relus, &mut effects)?,
                false => waiting.push(node),
            }
        }
        nodes = waiting;
        if nodes.len() == before {
            return None;
        }
    }
    effects.sort_unstable();
    let outputs: Option<Vec<u64>> = graph
        .msgs(12)
        .iter()
        .map(|output| known.get(&output.text(1)).copied())
        .collect();
    Some(hash((rest, declared, effects, outputs?)))
}

/// The node's inputs, and what its bodies read from outside.
fn reads(node: &Msg) -> Option<Vec<String>> {
    let mut all = node.texts(1);
    for attribute in node.msgs(5) {
        for body in attribute.msgs(6).iter().chain(&attribute.msgs(11)) {
            all.extend(captured(body)?);
        }
    }
    Some(all)
}

fn captured(body: &Msg) -> Option<Vec<String>> {
    let mut defined: Vec<String> = body.msgs(11).iter().map(|info| info.text(1)).collect();
    defined.extend(body.msgs(5).iter().map(|tensor| tensor.text(8)));
    let mut wanted = Vec::new();
    for node in body.msgs(1) {
        wanted.extend(reads(&node)?);
        defined.extend(node.texts(2));
    }
    wanted.extend(body.msgs(12).iter().map(|info| info.text(1)));
    wanted.retain(|name| !name.is_empty() && !defined.contains(name));
    Some(wanted)
}

fn compute(
    node: &Msg,
    known: &mut BTreeMap<String, u64>,
    relus: &mut BTreeMap<u64, u64>,
    effects: &mut Vec<u64>,
) -> Option<()> {
    let (mut op, mut outputs) = ((node.text(7), node.text(4), node.text(8)), node.texts(2));
    let inputs = reads(node)?;
    if op.1 == "Sum" && inputs.len() == 2 {
        op.1 = "Add".to_owned();
    }
    let operator = op.1.as_str();
    let mut read: Vec<u64> = inputs
        .iter()
        .map(|name| known.get(name).copied().unwrap_or(0))
        .collect();
    while read.last() == Some(&0) {
        read.pop();
    }
    let mut attributes = Vec::new();
    let mut names = Vec::new();
    for attribute in node.msgs(5) {
        let name = attribute.text(1);
        // What has no type, or one that does not exist, is not loaded.
        if attribute.text(21).is_empty() && !(1..=14).contains(&attribute.int(20)) {
            return None;
        }
        if !["__recompute", "__ckpt_conv_algo"].contains(&name.as_str()) {
            attributes.push(attribute);
        }
        if names.contains(&name) {
            return None;
        }
        names.push(name);
    }
    // It asks which numbers are above 0, which a Relu does not change.
    if operator == "ReluGrad"
        && let Some(before) = read.get(1).and_then(|value| relus.get(value))
    {
        read[1] = *before;
    }
    attributes.sort_by_key(|attribute| attribute.text(1));
    if operator == "Split" && read.len() == 1 {
        read.push(outputs.len() as u64);
    }
    let momentum = |attribute: &Msg| attribute.text(1) == "momentum";
    let normalizes = operator == "BatchNormInternal";
    let stays = normalizes
        && attributes
            .iter()
            .any(|a| momentum(a) && a.0.contains(&(2, Value::Fixed32(1.0_f32.to_le_bytes()))));
    let varies = ["Random", "Bernoulli", "Multinomial"]
        .iter()
        .any(|part| operator.contains(part))
        || operator == "Dropout";
    let who = if varies { node.text(3) } else { String::new() };
    let acts = ["Accumulator", "Optimizer", "ZeroGradient", "Yield"]
        .iter()
        .any(|p| operator.contains(p))
        || normalizes && !stays
        || operator == "BatchNormalization" && outputs.len() > 1;
    if acts {
        // By name: what is updated in place is this very tensor.
        effects.push(hash((
            &op,
            &attributes,
            &read,
            &inputs[..inputs.len().min(1)],
            &outputs,
        )));
    }
    for (place, name) in outputs.drain(..).enumerate() {
        let value = match (operator, place) {
            ("PassThrough", place) => *read.get(place)?,
            ("Dropout", 0) if inputs.len() > 2 => {
                let mask = hash(("mask", &op, &who, &read, &attributes));
                hash(("dropped", read[0], mask, &read[1..]))
            }
            ("Dropout", 1) => hash(("mask", &op, &who, &read, &attributes)),
            ("DropoutGrad", 0) if read.len() > 2 => hash(("dropped", read[0], read[1], &read[2..])),
            ("BatchNormInternal", 0 | 3 | 4) => {
                let mut rest = attributes.clone();
                rest.retain(|attribute| !momentum(attribute));
                hash((&op, place, &read[..read.len().min(3)], rest))
            }
            _ => hash((&op, place, &who, &read, &attributes)),
        };
        if operator == "Relu" && read.len() == 1 {
            relus.insert(value, read[0]);
        }
        if !name.is_empty() && known.insert(name, value).is_some() {
            return None;
        }
    }
    Some(())
}
