//! Whatever gives an order gives one that can be run: each node behind what it reads, and each copy as well. On graphs of
//! operators that nobody knows, with ties, unread results, several results, shared inputs and any file order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::all_forms::AllForms;
use super::evict_many::{evict_below, prices};
use super::greedy::greedy;
use super::neighbourhood::improve;
use super::prune::prune;
use super::reversal::ForwardChain;
use super::*;
use crate::analysis::cost::Overrides;
use crate::analysis::sequences::sequences;
use crate::cost::Nanos;
use crate::graph::{TensorKind, Uses};
use crate::operators::variants::{VARIANTS, Variant};
use crate::pass::Pass;
use crate::plan::Originals;
use crate::rewrite::apply_variants::ApplyVariants;
use crate::rewrite::insert_mirrors::InsertMirrors;
use crate::runtime::Runtime;
use crate::runtime::liveness::Liveness;
use crate::runtime::order::{ExecutionOrder, execution_order};
use crate::runtime::skeleton::Skeleton;
use crate::testing::{
    SplitMix64, random_training_graph, strange_training_graph, unknown_costs, unknown_graph,
};
use crate::verify;

const CPU: Provider = Provider::Cpu;

/// A graph and what is said of it.
struct Case {
    graph: Graph,
    costs: Vec<Cost>,
    overrides: Overrides,
    pairs: Vec<(NodeId, NodeId)>,
    name: String,
}

impl Case {
    fn of(graph: Graph, overrides: Overrides, name: String) -> Case {
        let time = |id: u64| Cost {
            time: Nanos(1 + id * 3 % 7),
            workspace: Bytes(id * 5 % 3 * 1024),
        };
        let costs: Vec<Cost> = (0..graph.node_count() as u64).map(time).collect();
        let run = Liveness::simulate(&graph, ExecutionOrder::Default, CPU, &costs);
        Case {
            pairs: sequences(&graph, &run.order),
            graph,
            costs,
            overrides,
            name,
        }
    }

    /// A third of them are of unknown operators, the others of layers.
    fn all(count: u64) -> impl Iterator<Item = Case> {
        (0..count).flat_map(|seed| {
            let random = &mut SplitMix64::new(seed);
            let graph = unknown_graph(random, 4 << (seed % 5));
            let mut overrides = unknown_costs(random, &graph);
            // Nothing can be told apart by what takes for ever.
            overrides.values_mut().for_each(|said| said.time_us = None);
            let unknown = Case::of(graph, overrides, format!("unknown {seed}"));
            let graph = random_training_graph(seed, 4 + seed as usize % 60);
            let layers = Case::of(graph, BTreeMap::new(), format!("layers {seed}"));
            let graph = strange_training_graph(seed, 12 + seed as usize % 60);
            let strange = Case::of(graph, BTreeMap::new(), format!("strange {seed}"));
            [unknown, layers, strange]
        })
    }

    fn orders(&self) -> Vec<Vec<NodeId>> {
        first_orders(
            &self.graph,
            CPU,
            &self.costs,
            &self.pairs,
            Runtime::LEAN,
            &Watch::default(),
        )
    }

    fn rules(&self) -> Recomputation {
        Recomputation::of(&self.graph, &self.overrides)
    }

    /// Every node once, each behind those that it reads of.
    fn assert_order(&self, graph: &Graph, order: &[NodeId], by: &str) {
        let uses = Uses::of(graph);
        let mut ran = vec![false; graph.node_count()];
        for &id in order {
            for producer in graph.node(id).reads().filter_map(|t| uses.producer(t)) {
                let (name, by) = (&self.name, by);
                assert!(ran[producer.index()], "{name}: {by}: {id:?} too early");
            }
            let twice = std::mem::replace(&mut ran[id.index()], true);
            assert!(!twice, "{}: {by}: {id:?} twice", self.name);
        }
        assert_eq!(order.len(), graph.order().len(), "{}: {by}", self.name);
    }

    /// The same of the first computations of a plan, and what is written of it computes what the graph does.
    fn assert_plan(&self, graph: &Graph, plan: &Plan, by: &str) {
        let copies = plan.copies();
        let firsts = plan.sequence.iter().zip(copies);
        let firsts: Vec<NodeId> = firsts.filter(|of| !of.1).map(|of| *of.0).collect();
        self.assert_order(graph, &firsts, by);
        let recomputation = &Recomputation::of(graph, &self.overrides);
        for originals in [Originals::AsPlanned, Originals::Late] {
            let mut written = graph.clone();
            let insert = InsertMirrors {
                instances: &plan.instances(graph, recomputation, originals),
            };
            insert.run(&mut written).unwrap();
            assert_eq!(verify::structure(&written), Ok(()), "{}: {by}", self.name);
            let vouched = self.overrides.iter();
            let vouched = vouched.filter(|(_, said)| said.recomputable == Some(true));
            let vouched = vouched.map(|(name, _)| name.clone()).collect();
            if verify::declarations(graph, &vouched).is_ok() {
                let found = verify::equivalence(graph, &written, &vouched);
                assert!(found.is_ok(), "{}: {by}: {found:?}", self.name);
            }
        }
    }

    /// All that may be replaced.
    fn offers(&self) -> Vec<(NodeId, &'static Variant)> {
        let uses = Uses::of(&self.graph);
        let all = self.graph.order().iter();
        let all = all.flat_map(|&id| VARIANTS.iter().map(move |variant| (id, variant)));
        all.filter(|&(id, variant)| variant.parts(&self.graph, &uses, id).is_some())
            .collect()
    }
}

#[test]
fn the_runtime_s_orders_and_those_of_first_computations_can_be_run() {
    let mut several = 0;
    for case in Case::all(150) {
        let skeleton = Skeleton::of(&case.graph, CPU, &case.costs);
        for order in ExecutionOrder::ALL {
            let order = execution_order(&skeleton, order).into_iter();
            let nodes: Vec<NodeId> = order.map(|at| case.graph.order()[at as usize]).collect();
            case.assert_order(&case.graph, &nodes, "execution_order");
        }
        let orders = case.orders();
        several += usize::from(orders.len() > 1);
        for order in orders {
            case.assert_order(&case.graph, &order, "first_orders");
            let place = |id: &NodeId| order.iter().position(|other| other == id);
            let kept = |(first, second): &(NodeId, NodeId)| place(first) < place(second);
            assert!(case.pairs.iter().all(kept), "{}", case.name);
        }
    }
    assert!(several > 20, "{several}");
}

#[test]
fn the_order_of_all_forms_can_be_run_whatever_is_chosen() {
    let (mut sites, mut left_out) = (0, 0);
    for case in Case::all(200) {
        let (orders, offers) = (case.orders(), case.offers());
        let all_forms = AllForms::of(&case.graph, &offers, &orders);
        let forms: usize = all_forms.sites.iter().map(|site| site.forms.len()).sum();
        sites += all_forms.sites.len();
        left_out += offers.len() - forms;
        let graph = &all_forms.graph;
        let mut writers = vec![Vec::new(); graph.tensor_count()];
        for id in graph.node_ids() {
            graph
                .node(id)
                .writes()
                .for_each(|t| writers[t.index()].push(id));
        }
        for base in &orders {
            let mut ran = vec![false; graph.node_count()];
            for id in all_forms.order(base) {
                for tensor in graph.node(id).reads() {
                    let mut writers = writers[tensor.index()].iter();
                    let there = writers.all(|writer| ran[writer.index()]);
                    let name = &graph.tensor(tensor).name;
                    assert!(there, "{}: {id:?} reads {name}", case.name);
                }
                ran[id.index()] = true;
            }
            assert!(ran.iter().all(|&ran| ran), "{}", case.name);
        }
    }
    assert!(sites > 100 && left_out > 0, "{sites} {left_out}");
}

#[test]
fn a_graph_with_any_variants_is_listed_in_an_order_that_can_be_run() {
    let mut replaced = 0;
    for (seed, case) in Case::all(100).enumerate() {
        let random = &mut SplitMix64::new(seed as u64);
        let mut choices = case.offers();
        choices.retain(|_| random.below(2) == 0);
        choices.sort_by_key(|&(id, _)| id);
        choices.dedup_by_key(|&mut (id, _)| id);
        // The order that is tried first for them.
        for order in case.orders() {
            let mut graph = case.graph.clone();
            graph.set_order(order);
            let applied = ApplyVariants { choices: &choices }.replace(&mut graph);
            replaced += applied.len();
            assert_eq!(verify::structure(&graph), Ok(()), "{}", case.name);
        }
    }
    assert!(replaced > 50, "{replaced}");
}

#[test]
fn plans_of_all_ways_to_change_a_schedule_can_be_run() {
    let mut copies: BTreeMap<&str, usize> = BTreeMap::new();
    for case in Case::all(40) {
        let (rules, effort) = (case.rules(), 300);
        for order in case.orders() {
            let with = Effort {
                seed: 1,
                evaluations: effort,
            };
            let mut search = Search::new(&case.graph, &order, CPU, &case.costs, &rules, with);
            let problem = search.problem.clone();
            let peak = State::new(&problem, 0.0, Exponent::One).peak();
            let mut check = |by: &'static str, plan: &Plan| {
                case.assert_plan(&case.graph, plan, by);
                *copies.entry(by).or_default() += plan.sequence.len() - order.len();
            };
            let turn = problem.steps.len() as Step / 2;
            for checkpoints in [1, 2, 3] {
                if let Some(found) = ForwardChain::of(&problem, turn).copies(checkpoints) {
                    check("reversal", &search.plan(&of_copies(found)));
                }
            }
            for part in [0.8, 0.6] {
                let target = (peak * part).floor();
                for price in prices(&problem) {
                    let mut state = State::new(&problem, target, Exponent::One);
                    evict_below(&mut state, price);
                    check("bulk", &search.plan(&state.decisions()));
                    prune(&mut state, effort);
                    check("prune", &search.plan(&state.decisions()));
                }
                let mut state = State::new(&problem, target, Exponent::Half);
                greedy(&mut state, &mut None, effort);
                check("greedy", &search.plan(&state.decisions()));
                improve(&mut state, 7, 5.0, effort);
                check("neighbourhood", &search.plan(&state.decisions()));
                let budget = problem.fixed + Bytes(target as u64);
                let plans = [
                    search.begin(budget),
                    search.sketch(budget),
                    search.cheaper(budget, u64::MAX).ok(),
                ];
                plans
                    .iter()
                    .flatten()
                    .for_each(|plan| check("rounds", plan));
            }
            check("smallest", &search.smallest());
            check("small", &search.small());
        }
    }
    let expected = [
        "bulk",
        "greedy",
        "neighbourhood",
        "prune",
        "reversal",
        "rounds",
        "small",
        "smallest",
    ];
    assert_eq!(copies.keys().copied().collect::<Vec<_>>(), expected);
    assert!(copies.values().all(|&copies| copies > 20), "{copies:?}");
}

#[test]
fn plans_with_variants_can_be_run() {
    let (mut varied, mut planned) = (0, 0);
    for case in Case::all(60) {
        let (orders, offers) = (case.orders(), case.offers());
        let all_forms = AllForms::of(&case.graph, &offers, &orders);
        if all_forms.is_empty() {
            continue;
        }
        let all_forms = Arc::new(all_forms);
        let rules = Recomputation::of(&all_forms.graph, &case.overrides);
        let time = |id: u64| Cost {
            time: Nanos(1 + id % 5),
            ..Cost::default()
        };
        let costs: Vec<Cost> = (0..all_forms.graph.node_count() as u64).map(time).collect();
        for order in &orders {
            let effort = Effort {
                seed: 2,
                evaluations: 300,
            };
            let all_forms = all_forms.clone();
            let mut search = Search::joint(all_forms, order, CPU, &costs, &rules, effort);
            let mut plans = vec![search.smallest(), search.without_copies()];
            let (most, least) = (plans[1].predicted_peak, plans[0].predicted_peak);
            plans.extend(
                search
                    .cheaper(least + Bytes((most - least).0 / 2), u64::MAX)
                    .ok(),
            );
            for plan in &plans {
                let mut graph = case.graph.clone();
                let choices = &plan.variants;
                ApplyVariants { choices }.replace(&mut graph);
                case.assert_plan(&graph, plan, "joint");
                varied += usize::from(!choices.is_empty());
                planned += 1;
            }
        }
    }
    assert!(varied > 20, "{varied} of {planned}");
}

#[test]
fn the_gradient_of_a_constant_runs_before_its_activation_and_reads_nothing_of_it() {
    // What the finding was: in the order with the gradient first, it may not read what the Relu writes.
    let text = r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        g (float[64,64] x, float[64,64] s) => (float[64,64] dx, float[64,64] y) <float[64,64] a> {
        a = Exp(x) [grad] dx = com.microsoft.ReluGrad(s, a) [relu] y = Relu(a) }"#;
    let graph = Graph::parse(text).unwrap();
    assert!(
        graph
            .inputs
            .iter()
            .all(|&id| graph.tensor(id).kind == TensorKind::Input)
    );
    let case = Case::of(graph, BTreeMap::new(), "constant".to_owned());
    let names = |orders: &[Vec<NodeId>]| {
        let all_forms = AllForms::of(&case.graph, &case.offers(), orders);
        let forms = all_forms.sites.iter().flat_map(|site| &site.forms);
        forms
            .map(|form| form.variant.name)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let file = case.graph.order().to_vec();
    let other = vec![file[0], file[2], file[1]];
    let of_output = "relu-from-output";
    assert!(names(std::slice::from_ref(&other)).contains(of_output));
    assert!(!names(&[other, file.clone()]).contains(of_output));
    // Where it is decided all the same, it stands behind.
    let offers = case.offers();
    let choices: Vec<_> = offers
        .into_iter()
        .filter(|of| of.1.name == of_output)
        .collect();
    let mut graph = case.graph.clone();
    assert_eq!(graph.order(), file);
    ApplyVariants { choices: &choices }.replace(&mut graph);
    assert_eq!(verify::structure(&graph), Ok(()));
}
