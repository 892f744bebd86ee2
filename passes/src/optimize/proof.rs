//! The proof that a graph may be written, or is what was to be written.

use std::borrow::Cow;

use super::listing::{as_listed, is_as_listed};
use super::loading::with_shapes;
use super::simulation::{SimulatedRun, need, simulated};
use super::sizes::{LIMIT, WITH_COPIES, check_sizes};
use super::{OptimizeError, PlanOptions};
use crate::analysis::cost::costs;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, Uses, topological};
use crate::operators::Provider;
use crate::pass::{Changed, Pass};
use crate::rewrite::infer_shapes::{InferShapesError, sizes_of_inputs};
use crate::rewrite::take_apart::TakeApart;
use crate::runtime::optimized_shapes::runtime_shapes_once_optimized;
use crate::verify::{self, Correspondence, Violation};

/// Proves that `written`, read back from the file, is what was to be written: it computes what
/// `original` computes, and its peak in all execution orders is within `budget`. Gives what each node is, so that what a
/// graph does not hold of the files can be compared too.
pub fn verify_written(
    original: &Graph,
    written: &Graph,
    options: &PlanOptions,
    budget: Bytes,
) -> Result<Correspondence, OptimizeError> {
    let original = with_shapes(original, options)?;
    // The inputs are the same, so what followed for one need not follow for the other again.
    let mut bound = options.for_written(written);
    for (name, size) in sizes_of_inputs(written, &original) {
        bound.bindings.entry(name).or_insert(size);
    }
    let mut written = with_shapes(written, &bound)?;
    // A graph that is to stay as it is stays in its file's order, which need not be one in which nodes can run.
    if let Ok(order) = topological(&written, &Uses::of(&written)) {
        written.set_order(order);
    }
    verify::declarations(&original, &options.permitted()).map_err(OptimizeError::Input)?;
    check_sizes(&original, options, LIMIT)?;
    check_sizes(&written, options, WITH_COPIES)?;
    let options = options.beside_model(&original);
    let listed = as_listed(&written);
    let budget = budget - options.reserve;
    verify_rewritten(&original, &written, Some(&listed), &options, budget)
}

/// Proves that `rewritten` computes what `original` computes and that its peak, simulated afresh
/// in all execution orders, is within the budget. Both graphs must have concrete shapes. `listed` is the latter with its
/// nodes as its file lists them, where that is not its order.
pub(super) fn verify_rewritten(
    original: &Graph,
    rewritten: &Graph,
    listed: Option<&Graph>,
    options: &PlanOptions,
    budget: Bytes,
) -> Result<Correspondence, OptimizeError> {
    let failed = OptimizeError::Verification;
    verify::overwrites(rewritten).map_err(failed)?;
    let correspondence =
        verify::equivalence_allowing(original, rewritten, &options.permitted(), &options.allowed)
            .map_err(failed)?;
    let unchanged = is_unchanged(original, rewritten, &correspondence);
    let (then, now) = (apart(original, options)?, apart(rewritten, options)?);
    if options.device.provider == Provider::Cpu && !unchanged {
        let are_whole = matches!((&then, &now), (Cow::Borrowed(_), Cow::Borrowed(_)));
        let known = are_whole.then_some(&correspondence);
        verify_rounding(&then, &now, known, options).map_err(failed)?;
    }
    let simulate = |graph: &Graph| {
        let costs = costs(graph, &options.device, &options.overrides);
        simulated(graph, &costs, options)
    };
    // Pieces are behind all that the graph itself has.
    let whole = |graph: &Graph, run: &SimulatedRun| -> Vec<NodeId> {
        let nodes = run.liveness.nodes().into_iter();
        nodes.filter(|id| id.index() < graph.node_count()).collect()
    };
    let before = simulate(&as_listed(&then));
    let before = before
        .first()
        .map_or(Vec::new(), |run| whole(original, run));
    // Sorted, its nodes have other indices than they had.
    let runs_as_before = unchanged
        && match listed {
            Some(_) => is_listed_alike(original, rewritten),
            None => is_as_listed(original),
        };
    let listed = match now {
        Cow::Owned(_) => as_listed(&now),
        Cow::Borrowed(_) => Cow::Borrowed(listed.unwrap_or(rewritten)),
    };
    for (number, run) in simulate(&listed).iter().enumerate() {
        // The unmodified graph may itself update in another sequence in another order.
        if !runs_as_before && (number == 0 || !unchanged) {
            let after = whole(rewritten, run);
            verify::updates(original, &before, rewritten, &after, &correspondence)
                .map_err(failed)?;
        }
        // Of a graph as it is, one peak is told. What it takes in the other ways, the result says.
        let holds = match unchanged {
            true => run.reported,
            false => run.promised,
        };
        if holds {
            let need = need(&now, &run.liveness);
            verify::budget(budget, [(run.order.name(), need)]).map_err(failed)?;
        }
    }
    Ok(correspondence)
}

/// Proves that the runtime rounds in `now` what it rounds in `then`. Both have functions taken apart, for it rounds what the pieces
/// compute, too. That they compute what the operators do is proved; `known` is how they correspond, where there are no pieces.
fn verify_rounding(
    then: &Graph,
    now: &Graph,
    known: Option<&Correspondence>,
    options: &PlanOptions,
) -> Result<(), Violation> {
    let pieces;
    let known = match known {
        Some(known) => known,
        None => {
            let permitted = options.permitted();
            pieces = verify::equivalence_allowing(then, now, &permitted, &options.allowed)?;
            &pieces
        }
    };
    verify::rounding(then, now, known)?;
    // Where bits are promised at every level.
    match options.runtime.release.trains {
        true => Ok(()),
        false => verify::rounding_optimized(then, now, known, runtime_shapes_once_optimized),
    }
}

/// Has `rewritten` the nodes of `original` in its sequence, and no other?
fn is_unchanged(original: &Graph, rewritten: &Graph, correspondence: &Correspondence) -> bool {
    let (before, after) = (original.order(), rewritten.order());
    let mut nodes = before.iter().zip(after);
    before.len() == after.len()
        && nodes.all(|(&then, &now)| correspondence.role(now) == verify::Role::Original(then))
}

/// Have the nodes, which are the same ones in the same order, the same places in their files?
fn is_listed_alike(original: &Graph, rewritten: &Graph) -> bool {
    let place = |graph: &Graph, id: NodeId| graph.node(id).template;
    let mut nodes = original.order().iter().zip(rewritten.order());
    nodes.all(|(&then, &now)| place(original, then) == place(rewritten, now))
}

/// `graph` as the runtime takes it apart.
fn apart<'g>(graph: &'g Graph, options: &PlanOptions) -> Result<Cow<'g, Graph>, InferShapesError> {
    let mut apart = graph.clone();
    let take_apart = TakeApart {
        provider: options.device.provider,
    };
    let Ok(changed) = take_apart.run(&mut apart);
    Ok(match changed {
        Changed::No => Cow::Borrowed(graph),
        Changed::Yes => Cow::Owned(with_shapes(&apart, &options.for_written(&apart))?),
    })
}
