//! Copies that are made otherwise than their originals, where that is faster.

use super::PlanOptions;
use crate::analysis::cost::costs;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::graph::{Graph, NodeId, TensorId, Uses};
use crate::operators::variants::{Group, Part, copy_parts};
use crate::operators::{Provider, Recompute};
use crate::rewrite::insert_mirrors::{mirror_of_dropout, mirror_of_parts};
use crate::runtime::fusing::drops_for_nobody;
use crate::strategy::Strategy;

/// Says how copies of Dropouts are made, which make no random numbers, and what they cost.
pub(super) fn copies_of_dropouts(
    recomputation: &mut Recomputation,
    graph: &Graph,
    options: &PlanOptions,
) {
    let from_mask = |id: &&NodeId| recomputation.rule(**id) == Recompute::DropoutFromMask;
    let mut dropouts: Vec<NodeId> = graph.order().iter().filter(from_mask).copied().collect();
    if !options.runtime.release.trains {
        // One that goes as nobody reads its mask would stay, and drop.
        let uses = Uses::of(graph);
        dropouts.retain(|&id| !drops_for_nobody(options.runtime.release, graph, &uses, id));
        // The published planners know of a copy that it reads what its original does; and bits are only known to agree on the CPU.
        if !dropouts.is_empty()
            && options.strategy == Strategy::Auto
            && options.variants.contains(&Group::Copies)
            && options.device.provider == Provider::Cpu
        {
            copy_dropouts_in_parts(recomputation, graph, &dropouts, options);
        }
        recomputation.keep_to_release(graph, options.runtime.release);
        return;
    }
    if dropouts.is_empty() {
        return;
    }
    let mut with = graph.clone();
    let made: Vec<NodeId> = dropouts
        .iter()
        .map(|&id| mirror_of_dropout(&mut with, id))
        .collect();
    let costs = costs(&with, &options.device, &options.overrides);
    for (id, made) in dropouts.into_iter().zip(made) {
        recomputation.set_copy_cost(id, costs[made.index()]);
    }
}

/// Lets copies of Dropouts be made in standard operators.
fn copy_dropouts_in_parts(
    recomputation: &mut Recomputation,
    graph: &Graph,
    dropouts: &[NodeId],
    options: &PlanOptions,
) {
    for (id, parts, cost) in in_parts(graph, &Uses::of(graph), dropouts, options) {
        // Two of what the parts make are there at a time, the last of which is the result.
        let result = graph.node(id).output(0);
        let beside = result.and_then(|result| graph.tensor(result).bytes());
        let cost = Cost {
            workspace: beside.unwrap_or(Bytes::ZERO),
            ..cost
        };
        recomputation.copy_from_parts(id, parts, cost);
    }
}

/// Lets copies be made from what their originals left where the model says that this is faster;
/// `before` are the costs by node.
pub(super) fn use_cheaper_copies(
    recomputation: &mut Recomputation,
    graph: &Graph,
    before: &[Cost],
    options: &PlanOptions,
) {
    // The bits are only known to agree on the CPU, and the published planners know of a copy that it reads what its original does.
    if !options.variants.contains(&Group::Copies)
        || options.device.provider != Provider::Cpu
        || options.strategy != Strategy::Auto
    {
        return;
    }
    let uses = Uses::of(graph);
    let activated = |id: NodeId| uses.producer(graph.node(id).input(0)?);
    let normalizes = |id| recomputation.rule(id) == Recompute::BatchNorm;
    let may = |id: &NodeId| {
        recomputation.rule(*id) == Recompute::Clone && activated(*id).is_some_and(normalizes)
    };
    let chosen: Vec<NodeId> = graph.order().iter().copied().filter(may).collect();
    // In the place of both.
    for (id, parts, cost) in in_parts(graph, &uses, &chosen, options) {
        let normalized = before[activated(id).expect("a batch normalization").index()];
        let time = before[id.index()].time.0.saturating_add(normalized.time.0);
        // The search knows one workspace for a node and its copies.
        if cost.time.0 < time && cost.workspace <= before[id.index()].workspace {
            recomputation.copy_from_parts(id, parts, cost);
        }
    }
}

/// Those of the nodes that can be made again from parts, with these and what they cost.
fn in_parts(
    graph: &Graph,
    uses: &Uses,
    nodes: &[NodeId],
    options: &PlanOptions,
) -> Vec<(NodeId, Vec<Part>, Cost)> {
    let mut with = graph.clone();
    let mut latest: Vec<TensorId> = graph.tensor_ids().collect();
    let mut made = Vec::new();
    for &id in nodes {
        if let Some(parts) = copy_parts(graph, uses, id) {
            let name = &graph.node(id).name;
            let nodes = mirror_of_parts(&mut with, &parts, name, 1, &mut latest);
            made.push((id, parts, nodes));
        }
    }
    let costs = costs(&with, &options.device, &options.overrides);
    let cost = |(id, parts, nodes): (_, _, Vec<NodeId>)| (id, parts, of_all(&costs, &nodes));
    made.into_iter().map(cost).collect()
}

/// Of nodes that run one after another.
fn of_all(costs: &[Cost], nodes: &[NodeId]) -> Cost {
    let each = || nodes.iter().map(|id| costs[id.index()]);
    let times = each().map(|cost| cost.time.0);
    let workspaces = each().map(|cost| cost.workspace);
    Cost {
        time: Nanos(times.fold(0, u64::saturating_add)),
        workspace: workspaces.max().unwrap_or(Bytes::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::BudgetRequest;
    use crate::optimize::variant_graph::Form;
    use crate::pass::Pass;
    use crate::plan::{Originals, Plan};
    use crate::rewrite::insert_mirrors::InsertMirrors;
    use crate::strategy::tests::options;

    #[test]
    fn a_copy_of_a_dropout_costs_what_its_mirror_does() {
        let graph = Graph::parse(
            "g (float[4096] x, float[4096] dy) => (float[4096] dx, float[4096] z)
             <float r = {0.5}, bool t = {1}, float[4096] y, bool[4096] m, float[4096] h>
             { y, m = Dropout(x, r, t) h = Exp(y) z = Mul(h, y)
               dx = com.microsoft.DropoutGrad(dy, m, r, t) }",
        )
        .unwrap();
        let options = options(Strategy::Auto, BudgetRequest::Smallest);
        let form = Form::new(graph, &options);
        let ids = form.graph.order().to_vec();
        let told = form.recomputation.copy_cost(ids[0]).expect("a cost");
        assert!(told.time < form.costs[ids[0].index()].time);
        let plan = Plan {
            sequence: vec![ids[0], ids[1], ids[0], ids[2], ids[3]],
            ..Plan::default()
        };
        let mut mirrored = form.graph.clone();
        let recomputation = &form.recomputation;
        let Ok(_) = (InsertMirrors {
            instances: &plan.instances(&form.graph, recomputation, Originals::AsPlanned),
        })
        .run(&mut mirrored);
        let all = costs(&mirrored, &options.device, &options.overrides);
        assert_eq!(all[mirrored.order()[2].index()], told);
    }

    #[test]
    fn builds_without_training_make_a_dropout_again_from_its_mask_in_standard_operators() {
        let reads_with = |mask: &str, ratio: &str, options: PlanOptions| {
            let graph = Graph::parse(&format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[4096] x, float[4096] dy) => (float[4096] z, bool[4096] n)
                 <float r = {{{ratio}}}, bool t = {{1}}, bool[4096] m, float[4096] w, float[4096] y, float[4096] h>
                 {{ w = Neg(x) y, m = Dropout(w, r, t) n = Not({mask}) h = Exp(y) z = Mul(h, y) }}"#
            ))
            .unwrap();
            let form = Form::new(graph, &options);
            let dropout = form.graph.order()[1];
            form.recomputation.parts(dropout).map(|_| {
                let reads = form.recomputation.copy_reads(&form.graph, dropout);
                let cost = form.recomputation.copy_cost(dropout).expect("a cost");
                // What is kept, as numbers.
                assert_eq!(cost.workspace, Bytes(4 * 4096));
                let names: Vec<_> = reads
                    .into_iter()
                    .map(|t| form.graph.tensor(t).name.clone())
                    .collect();
                names.join(" ")
            })
        };
        let reads = |ratio: &str, options: PlanOptions| reads_with("m", ratio, options);
        let stock = |strategy| {
            let mut options = PlanOptions {
                variants: Group::ALL.into(),
                ..options(strategy, BudgetRequest::Smallest)
            };
            options.runtime.release = &crate::runtime::STOCK;
            options
        };
        assert_eq!(reads("0.5", stock(Strategy::Auto)).as_deref(), Some("m w"));
        // A session takes it out where nobody reads the mask.
        assert_eq!(reads_with("t", "0.5", stock(Strategy::Auto)), None);
        assert_eq!(reads("1.0", stock(Strategy::Auto)), None);
        assert_eq!(reads("0.5", stock(Strategy::ChenSqrt)), None);
        assert_eq!(
            reads("0.5", options(Strategy::Auto, BudgetRequest::Smallest)),
            None
        );
    }

    #[test]
    fn what_a_relu_makes_of_a_batch_norm_is_copied_from_its_statistics_by_auto_alone() {
        let graph = Graph::parse(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float[8,64,56,56] x, float[64] s, float[64] t, float[64] m, float[64] v)
                => (float[8,64,56,56] z)
            <float[8,64,56,56] y, float[64] nm, float[64] nv, float[64] mean, float[64] inverse,
             float[8,64,56,56] a>
            {
                y, nm, nv, mean, inverse = com.microsoft.BatchNormInternal <training_mode = 1> (x, s, t, m, v)
                a = Relu(y) z = Neg(a)
            }"#,
        )
        .unwrap();
        let reads = |strategy| {
            let options = PlanOptions {
                variants: Group::ALL.into(),
                ..options(strategy, BudgetRequest::Smallest)
            };
            let form = Form::new(graph.clone(), &options);
            let relu = form.graph.order()[1];
            let reads = form.recomputation.copy_reads(&form.graph, relu).into_iter();
            let mut names: Vec<_> = reads.map(|t| form.graph.tensor(t).name.clone()).collect();
            names.sort();
            names.dedup();
            names.join(" ")
        };
        assert_eq!(reads(Strategy::Auto), "inverse mean s t x");
        assert_eq!(reads(Strategy::ChenSqrt), "y");
    }
}
