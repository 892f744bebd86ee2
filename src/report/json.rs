//! The result for programs.

use std::collections::BTreeMap;

use ckpt_passes::analysis::mirrors::is_mirror;
use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::NodeId;
use ckpt_passes::operators::variants::Approximation;
use ckpt_passes::optimize::{Execution, Measured, Peak};
use serde::Serialize;

use super::names::stop_reason;
use super::{Outcome, inspection};
use crate::inspect::Inspection;
use crate::json::line;
use crate::session::{ProviderOptions, provider_options};
use crate::verify::Verification;

/// What `--json` prints. Other people's scripts rely on the names.
#[derive(Serialize)]
struct Figures<'a> {
    budget_bytes: u64,
    fixed_bytes: u64,
    peak_before_bytes: u64,
    peak_after_bytes: u64,
    /// What the unmodified graph needs in each order and at each level.
    peaks_before: Vec<ExecutionReport>,
    /// What the rewritten graph needs in each order and at each level.
    peaks_after: Vec<ExecutionReport>,
    smallest_peak_bytes: u64,
    reordered_peak_bytes: u64,
    /// What the runtime's arena takes from the system, by how it grows; 0 where the settings have none.
    reserved_before_bytes: u64,
    reserved_after_bytes: u64,
    reserved_before_as_requested_bytes: u64,
    reserved_after_as_requested_bytes: u64,
    /// Added time / time of the unmodified step.
    overhead: f64,
    recomputation_overhead: f64,
    lower_bound_overhead: f64,
    /// Of a plan that was given up for adding more.
    overhead_in_every_session: Option<f64>,
    recomputed_nodes: usize,
    evaluations: u64,
    barriers: usize,
    /// Nodes that are replaced by others that compute the same.
    variants: usize,
    nodes_before: usize,
    nodes_after: usize,
    strategy: &'static str,
    stop_reason: &'static str,
    search_seconds: f64,
    total_seconds: f64,
    runtime: &'static str,
    runtime_settings: &'static str,
    /// Of the session, as far as kernels' buffers depend on it.
    threads: u32,
    /// In which order and at which level the unmodified graph takes that.
    before_order: &'static str,
    before_level: &'static str,
    /// For which order and level the budget holds.
    order: &'static str,
    level: &'static str,
    device: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_options: Option<ProviderOptions>,
}

#[derive(Serialize)]
struct ExecutionReport {
    order: &'static str,
    level: &'static str,
    bytes: u64,
    /// Does the budget hold there?
    within_budget: bool,
}

/// What `--report` writes.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    figures: Figures<'a>,
    /// The names of the added copies, in file order.
    recomputed: Vec<&'a str>,
    /// The nodes that are replaced, and by what.
    replaced: Vec<Replaced<'a>>,
    /// What convolutions should compute with, and whether ONNX Runtime itself does; where cuDNN computes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    convolutions: Vec<ConvolutionReport<'a>>,
    /// What the strategy says of its plan.
    notes: &'a [String],
    before: PeakReport<'a>,
    after: PeakReport<'a>,
}

#[derive(Serialize)]
struct Replaced<'a> {
    node: &'a str,
    variant: &'a str,
    /// How far off its results may be; bitwise variants have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    error_bound: Option<&'static str>,
}

#[derive(Serialize)]
struct ConvolutionReport<'a> {
    node: &'a str,
    product: &'static str,
    algorithm: &'static str,
    time_ns: u64,
    workspace_bytes: u64,
    followed: bool,
}

#[derive(Serialize)]
struct PeakReport<'a> {
    step: usize,
    node: &'a str,
    /// What is live besides what the caller owns, largest first.
    holders: Vec<HolderReport<'a>>,
    /// The same by kind.
    kinds: BTreeMap<&'static str, u64>,
    /// The tensors of it by layer, largest first.
    layers: Vec<LayerReport>,
}

#[derive(Serialize)]
struct LayerReport {
    name: String,
    bytes: u64,
    tensors: usize,
}

#[derive(Serialize)]
struct HolderReport<'a> {
    name: &'a str,
    bytes: u64,
}

pub(super) fn json(outcome: &Outcome<'_>) -> String {
    line(&figures(outcome))
}

pub(super) fn full_json(outcome: &Outcome<'_>) -> String {
    let graph = outcome.rewritten.graph();
    let originals = outcome.rewritten.original().node_count();
    let is_mirror = |&id: &NodeId| id.index() >= originals && is_mirror(graph.node(id));
    let order = graph.order().iter().copied();
    line(&Report {
        figures: figures(outcome),
        recomputed: order
            .filter(is_mirror)
            .map(|id| graph.node(id).name.as_str())
            .collect(),
        notes: &outcome.rewritten.summary().notes,
        replaced: replaced(outcome),
        convolutions: convolutions(outcome),
        before: peak(&outcome.rewritten.summary().before),
        after: peak(&outcome.rewritten.summary().after),
    })
}

fn replaced<'a>(outcome: &Outcome<'a>) -> Vec<Replaced<'a>> {
    let variants = outcome.rewritten.summary().variants.iter();
    variants
        .map(|(node, variant)| Replaced {
            node,
            variant,
            error_bound: Approximation::of(variant).map(|one| one.bound),
        })
        .collect()
}

fn convolutions<'a>(outcome: &Outcome<'a>) -> Vec<ConvolutionReport<'a>> {
    let chosen = outcome.rewritten.summary().algorithms.iter();
    let each = chosen.map(|chosen| ConvolutionReport {
        node: &chosen.node,
        product: chosen.direction.name(),
        algorithm: chosen.algorithm.name,
        time_ns: chosen.algorithm.time.0,
        workspace_bytes: chosen.algorithm.workspace.0,
        followed: chosen.followed,
    });
    each.collect()
}

fn figures<'a>(outcome: &Outcome<'a>) -> Figures<'a> {
    let summary = outcome.rewritten.summary();
    Figures {
        budget_bytes: summary.budget.0,
        fixed_bytes: summary.fixed.0,
        peak_before_bytes: summary.before.bytes.0,
        peak_after_bytes: summary.after.bytes.0,
        peaks_before: executions(&summary.executions_before, summary.budget),
        peaks_after: executions(&summary.executions, summary.budget),
        smallest_peak_bytes: summary.smallest_peak.0,
        reordered_peak_bytes: summary.reordered_peak.0,
        reserved_before_bytes: summary.reserved_before.powers_of_two.0,
        reserved_after_bytes: summary.reserved_after.powers_of_two.0,
        reserved_before_as_requested_bytes: summary.reserved_before.as_requested.0,
        reserved_after_as_requested_bytes: summary.reserved_after.as_requested.0,
        overhead: summary.overhead(),
        recomputation_overhead: summary.recomputation_overhead(),
        lower_bound_overhead: summary.lower_bound_overhead(),
        overhead_in_every_session: summary.overhead_for_all(),
        recomputed_nodes: summary.recomputed_nodes,
        evaluations: summary.evaluations,
        barriers: summary.barriers,
        variants: summary.variants.len(),
        nodes_before: summary.nodes_before,
        nodes_after: summary.nodes_after,
        strategy: outcome.rewritten.options().strategy.name(),
        stop_reason: stop_reason(summary.stop_reason),
        search_seconds: outcome.rewritten.search_time().as_secs_f64(),
        total_seconds: outcome.total_time.as_secs_f64(),
        runtime: outcome.rewritten.runtime().name,
        runtime_settings: outcome.rewritten.options().settings().name(),
        threads: outcome.rewritten.options().threads(),
        before_order: summary.reported.0.name(),
        before_level: summary.reported.1.name(),
        order: summary.promise.order_name(),
        level: summary.promise.level_name(),
        device: &outcome.rewritten.options().device.name,
        provider_options: provider_options(summary),
    }
}

fn executions(all: &[Execution], budget: Bytes) -> Vec<ExecutionReport> {
    let each = all.iter().map(|execution| ExecutionReport {
        order: execution.order.name(),
        level: execution.level.name(),
        bytes: execution.bytes.0,
        within_budget: execution.bytes <= budget,
    });
    each.collect()
}

/// What one training step takes, order by order.
#[derive(Serialize)]
struct MeasuredReport<'a> {
    fixed_bytes: u64,
    /// By execution order; those that are the same as another are left out.
    orders: BTreeMap<&'static str, OrderReport<'a>>,
}

#[derive(Serialize)]
struct OrderReport<'a> {
    peak_bytes: u64,
    #[serde(flatten)]
    peak: PeakReport<'a>,
}

#[derive(Serialize)]
struct InspectionReport<'a> {
    nodes: usize,
    #[serde(flatten)]
    measured: MeasuredReport<'a>,
    /// No plan that keeps the node as it is needs less.
    floor_bytes: u64,
    floor_node: &'a str,
    /// Results that are not computed again, by reason.
    kept: Vec<KeptReport<'a>>,
    unknown_operators: &'a BTreeMap<String, usize>,
}

#[derive(Serialize)]
struct KeptReport<'a> {
    reason: &'a str,
    bytes: u64,
    operators: &'a BTreeMap<String, usize>,
}

#[derive(Serialize)]
struct VerificationReport<'a> {
    before: MeasuredReport<'a>,
    after: MeasuredReport<'a>,
}

pub(super) fn inspected(inspection: &Inspection) -> String {
    let limits = &inspection.limits;
    let kept = limits.kept.iter().map(|kept| KeptReport {
        reason: kept.reason,
        bytes: kept.bytes.0,
        operators: &kept.operators,
    });
    line(&InspectionReport {
        nodes: inspection.nodes,
        measured: measured(&inspection.measured),
        floor_bytes: limits.floor.0,
        floor_node: &limits.floor_node,
        kept: kept.collect(),
        unknown_operators: &limits.unknown,
    })
}

pub(super) fn verification(verification: &Verification) -> String {
    line(&VerificationReport {
        before: measured(&verification.before),
        after: measured(&verification.after),
    })
}

fn measured(measured: &Measured) -> MeasuredReport<'_> {
    let orders = super::peaks(measured).map(|(order, found)| {
        let report = OrderReport {
            peak_bytes: found.bytes.0,
            peak: peak(found),
        };
        (order, report)
    });
    MeasuredReport {
        fixed_bytes: measured.fixed.0,
        orders: orders.collect(),
    }
}

fn peak(peak: &Peak) -> PeakReport<'_> {
    let holders = peak.holders.iter().map(|(name, size)| HolderReport {
        name,
        bytes: size.0,
    });
    let kinds = inspection::kinds(peak).into_iter();
    let layers = inspection::layers_of(peak).into_iter();
    let layers = layers.map(|layer| LayerReport {
        name: layer.name,
        bytes: layer.bytes.0,
        tensors: layer.members.len(),
    });
    PeakReport {
        step: peak.step,
        node: &peak.node,
        holders: holders.collect(),
        kinds: kinds.map(|(kind, size)| (kind, size.0)).collect(),
        layers: layers.collect(),
    }
}
