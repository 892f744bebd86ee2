//! The result of `inspect`, for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::optimize::{BufferKind, Peak, StepLimits};
use ckpt_passes::runtime::level::Level;

use super::layers::{Layer, layers};
use super::sketch::sketch;
use super::{Name, peaks};
use crate::inspect::Inspection;

/// Of each list, so many lines.
const SHOWN: usize = 8;

/// Of single buffers so many.
const LARGEST: usize = 5;

/// Results that take together less than this part of the peak are not told of.
pub(super) const TELLING: u64 = 1000;

/// Memory over the step, who holds the peak, and what limits any plan.
pub(super) fn text(inspection: &Inspection) -> String {
    let measured = &inspection.measured;
    let mut text = format!(
        "{} nodes; the caller owns {}\n",
        inspection.nodes, measured.fixed
    );
    let level = match measured.level {
        Level::DisableAll => String::new(),
        level => format!(", {}", level.name()),
    };
    for (order, peak) in peaks(measured) {
        let _ = writeln!(
            text,
            "\n{order} order{level}: peak {} at step {} of {} (node {})",
            peak.bytes,
            peak.step,
            peak.nodes.len(),
            Name(&peak.node)
        );
        text.push_str(&sketch(&peak.steps, measured.fixed));
        text.push_str("held there besides what the caller owns\n");
        text.push_str(&held(peak));
        let own = peak.bytes - measured.fixed - peak.at(peak.step).total();
        let _ = writeln!(text, "{:>12}  the runtime's own accounts", own.to_string());
        text.push_str(&by_layer(peak));
        text.push_str(&largest(peak));
    }
    let least = Bytes((measured.default.bytes - measured.fixed).0 / TELLING);
    text.push_str(&limited(&inspection.limits, least));
    text
}

/// What the running node allocates for itself, as a kind.
pub(super) const WORKSPACE: &str = "workspace of the node";

/// What of the memory pattern's block is empty, as a kind.
pub(super) const GAPS: &str = "gaps in the memory pattern's block";

/// What is there at the peak by kind.
pub(super) fn kinds(peak: &Peak) -> Vec<(&'static str, Bytes)> {
    let there = peak.at(peak.step);
    let mut kinds: BTreeMap<BufferKind, Bytes> = BTreeMap::new();
    for buffer in &there.buffers {
        *kinds.entry(buffer.kind).or_insert(Bytes::ZERO) += buffer.size;
    }
    let kinds = kinds.into_iter().map(|(kind, size)| (kind.plural(), size));
    let others = [(WORKSPACE, there.workspace), (GAPS, there.gaps)];
    let kinds = kinds.chain(others).filter(|&(_, size)| size > Bytes::ZERO);
    kinds.collect()
}

/// The same, a line each.
pub(super) fn held(peak: &Peak) -> String {
    let kinds = kinds(peak).into_iter();
    let lines = kinds.map(|(what, size)| format!("{:>12}  {what}\n", size.to_string()));
    lines.collect()
}

/// The buffers of the peak by layer, the largest first.
pub(super) fn layers_of(peak: &Peak) -> Vec<Layer> {
    let there = peak.at(peak.step).buffers.into_iter();
    layers(there.map(|held| (held.node.as_str(), held.size)))
}

/// The same, a line each.
pub(super) fn by_layer(peak: &Peak) -> String {
    let layers = layers_of(peak);
    let mut text = "by layer, with the number of tensors\n".to_owned();
    let all: Bytes = layers.iter().map(|layer| layer.bytes).sum();
    let telling = layers
        .iter()
        .take_while(|layer| layer.bytes.0 >= all.0 / TELLING);
    let shown = telling.count().min(SHOWN);
    for layer in &layers[..shown] {
        let size = layer.bytes.to_string();
        let _ = writeln!(
            text,
            "{size:>12}  {} ({})",
            Name(&layer.name),
            layer.members.len()
        );
    }
    let rest = &layers[shown..];
    let count = rest.len();
    let size: Bytes = rest.iter().map(|layer| layer.bytes).sum();
    if count > 0 {
        let _ = writeln!(text, "{:>12}  {count} more", size.to_string());
    }
    text
}

/// The largest buffers of the peak.
fn largest(peak: &Peak) -> String {
    let mut buffers = peak.at(peak.step).buffers;
    buffers.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.first.cmp(&b.first)));
    let mut text = "the largest\n".to_owned();
    for buffer in buffers.iter().take(LARGEST) {
        let size = buffer.size.to_string();
        let (name, first, last) = (Name(&buffer.tensor), buffer.first, buffer.last);
        let _ = writeln!(text, "{size:>12}  {name}, from step {first} to {last}");
    }
    text
}

/// What no plan can get round.
fn limited(limits: &StepLimits, least: Bytes) -> String {
    let mut text = String::new();
    if !limits.floor_node.is_empty() {
        let _ = writeln!(
            text,
            "\nno plan that keeps {} as it is needs less than {}",
            Name(&limits.floor_node),
            limits.floor
        );
    }
    let kept = limits.kept.iter().filter(|kept| kept.bytes > least);
    if kept.clone().next().is_some() {
        text.push_str("\nresults that are never computed again\n");
    }
    for kept in kept.take(SHOWN) {
        let _ = writeln!(
            text,
            "{:>12}  {}: {}",
            kept.bytes.to_string(),
            kept.reason,
            counted(&kept.operators)
        );
    }
    if !limits.unknown.is_empty() {
        let _ = writeln!(
            text,
            "\noperators that are not known, and therefore kept as they are: {}",
            counted(&limits.unknown)
        );
    }
    text
}

/// Operators with how many nodes there are of each, the most frequent first.
fn counted(operators: &BTreeMap<String, usize>) -> String {
    let mut operators: Vec<_> = operators.iter().collect();
    operators.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
    let shown = operators.iter().take(SHOWN);
    let mut shown: Vec<String> = shown
        .map(|(name, count)| format!("{} ({count})", Name(name)))
        .collect();
    if operators.len() > SHOWN {
        shown.push(format!("{} more", operators.len() - SHOWN));
    }
    shown.join(", ")
}
