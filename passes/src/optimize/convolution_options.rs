//! The CUDA provider's options, chosen with the plan.
//!
//! They hold for all convolutions of a session, so each choice is planned for as a device of its own. The fastest
//! comes first, and is what the others are compared with: their convolutions are slower, which counts as added.

use super::comparison::better;
use super::convolutions::name_algorithms;
use super::faults::Found;
use super::published::MOST_NODES;
use super::simulation::{describe, reserved_in_default_order, simulated};
use super::{BudgetRequest, OptimizeError, Optimized, Options, replacements};
use crate::analysis::cost::{costs, time_of_all};
use crate::analysis::mirrors::is_mirror;
use crate::graph::Graph;
use crate::operators::Provider;
use crate::runtime::convolution_costs::timed;
use crate::runtime::convolutions::AlgorithmChoice;

/// One result for each budget, with the provider's options where they matter.
pub(super) fn optimize_each(
    graph: &Graph,
    options: &Options,
    budgets: &[BudgetRequest],
) -> Result<Vec<Found>, OptimizeError> {
    if !has_algorithms(graph, options) {
        let options = options.beside_model(graph);
        let mut row = replacements::optimize_each(graph, &options, budgets)?;
        replacements::or_untouched(&mut row, graph, &options, budgets);
        return Ok(row);
    }
    let [fastest, others @ ..] =
        AlgorithmChoice::ALL.map(|choice| options.with_choice(graph, choice));
    let reference = Reference::of(graph, fastest);
    let mut row = replacements::optimize_each(graph, &reference.options, budgets)?;
    for found in row.iter_mut().flatten() {
        found.summary.convolutions = Some(reference.options.device.convolutions.choice);
    }
    for options in others {
        if options.watch.is_stopped() && graph.order().len() > MOST_NODES {
            break;
        }
        let step = step(graph, &options);
        let slower = step.saturating_sub(reference.step);
        let may_win = |(found, budget): &(&mut Found, &BudgetRequest)| match found {
            Ok(_) if **budget == BudgetRequest::Smallest => !options.watch.is_stopped(),
            Ok(found) => found.summary.time_added > slower && !options.watch.is_stopped(),
            Err(OptimizeError::Infeasible { .. } | OptimizeError::Unproved { .. }) => true,
            Err(_) => false,
        };
        let open: Vec<_> = row.iter_mut().zip(budgets).filter(may_win).collect();
        if open.is_empty() {
            continue;
        }
        let requests: Vec<_> = open
            .iter()
            .map(|(found, budget)| in_bytes(found, **budget))
            .collect();
        let tried = replacements::optimize_each(graph, &options, &requests)?;
        for ((found, budget), other) in open.into_iter().zip(tried) {
            if other
                .as_ref()
                .is_ok_and(|other| may_differ(other, &options))
            {
                continue;
            }
            let other = other.map(|other| reference.in_its_terms(other, slower, &options));
            better(found, other, *budget);
        }
    }
    let chosen = Some(reference.options.device.convolutions.choice);
    for untouched in replacements::or_untouched(&mut row, graph, &reference.options, budgets) {
        untouched.summary.convolutions = chosen;
    }
    for found in row.iter_mut().flatten() {
        name_algorithms(found, graph, options);
    }
    Ok(row)
}

fn has_algorithms(graph: &Graph, options: &Options) -> bool {
    let device = &options.device;
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    device.provider == Provider::Cuda && nodes.any(|node| !timed(graph, node, device).is_empty())
}

/// May a copy of a convolution compute other bits than its original? Where algorithms are tried, each node takes
/// what was fastest for it then.
fn may_differ(found: &Optimized, options: &Options) -> bool {
    let (graph, device) = (&found.graph, &options.device);
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    device.convolutions.choice.tries()
        && nodes.any(|node| is_mirror(node) && !timed(graph, node, device).is_empty())
}

/// What a step of `graph` takes, in nanoseconds.
fn step(graph: &Graph, options: &Options) -> u64 {
    let costs = costs(graph, &options.device, &options.overrides);
    time_of_all(graph, &costs)
}

/// The same budget whatever the convolutions take: parts are parts of the peak with the fastest.
fn in_bytes(found: &Found, budget: BudgetRequest) -> BudgetRequest {
    match (budget, found) {
        (BudgetRequest::Smallest, _) => budget,
        (_, Ok(found)) => BudgetRequest::Bytes(found.summary.budget),
        (
            _,
            Err(OptimizeError::Infeasible { budget, .. } | OptimizeError::Unproved { budget, .. }),
        ) => BudgetRequest::Bytes(*budget),
        _ => budget,
    }
}

/// The unmodified graph with the fastest algorithms.
struct Reference<'g> {
    graph: &'g Graph,
    options: Options,
    step: u64,
}

impl<'g> Reference<'g> {
    fn of(graph: &'g Graph, options: Options) -> Reference<'g> {
        Reference {
            graph,
            step: step(graph, &options),
            options,
        }
    }

    /// `found` with `options`, under which the unmodified step is `slower`.
    fn in_its_terms(&self, mut found: Optimized, slower: u64, options: &Options) -> Optimized {
        let summary = &mut found.summary;
        summary.convolutions = Some(options.device.convolutions.choice);
        summary.time_before = self.step;
        summary.time_added = summary.time_added.saturating_add(slower);
        summary.lower_bound = summary.lower_bound.saturating_add(slower);
        let Options {
            device, overrides, ..
        } = &self.options;
        let costs = costs(self.graph, device, overrides);
        if let Some((_, run)) = simulated(self.graph, &costs, &self.options).first() {
            summary.before = describe(self.graph, &costs, run, self.options.reserve);
        }
        summary.reserved_before = reserved_in_default_order(self.graph, &costs, &self.options);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::cost::NodeOverride;
    use crate::bytes::Bytes;
    use crate::runtime::device::Device;
    use crate::strategy::Strategy;
    use crate::strategy::tests::options;

    #[test]
    fn what_the_user_says_of_a_convolution_goes_for_every_choice() {
        let graph = Graph::parse(
            "<ir_version: 8, opset_import: [\"\" : 17]>
            g (float[8,16,64,64] x, float[64,16,3,3] w) => (float[8,64,62,62] y)
            {
                [conv] y = Conv (x, w)
            }",
        );
        let graph = graph.unwrap();
        let said = NodeOverride {
            time_us: Some(3.0),
            workspace_bytes: Some(77),
            ..NodeOverride::default()
        };
        let options = Options {
            device: Device::preset("h100").unwrap(),
            overrides: [("conv".to_owned(), said)].into(),
            ..options(Strategy::Auto, BudgetRequest::Smallest)
        };
        assert!(has_algorithms(&graph, &options));
        for choice in AlgorithmChoice::ALL {
            let options = options.with_choice(&graph, choice);
            let cost = costs(&graph, &options.device, &options.overrides)[0];
            assert_eq!((cost.time.0, cost.workspace), (3_000, Bytes(77)));
        }
    }
}
