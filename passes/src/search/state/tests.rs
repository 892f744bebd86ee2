//! A state has to be what the rewritten graph is, whatever moves led to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::analysis::mirrors::MARKER;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::enforce::release_unread::ReleaseUnread;
use crate::graph::{Graph, Node, NodeId, Uses};
use crate::operators::variants::{VARIANTS, Variant};
use crate::operators::{self, Provider};
use crate::pass::Pass;
use crate::plan::{Originals, Plan};
use crate::random::Random;
use crate::rewrite::apply_variants::ApplyVariants;
use crate::rewrite::insert_mirrors::InsertMirrors;
use crate::runtime::TRAINING;
use crate::runtime::liveness::Liveness;
use crate::search::neighbourhood::restore;
use crate::search::{AllForms, Effort, Search};
use crate::testing::random_training_graph;
use crate::verify;

const CPU: Provider = Provider::Cpu;

/// Times from 1 to 7, and no workspace.
fn costs(graph: &Graph) -> Vec<Cost> {
    let cost = |id: u64| Cost {
        time: Nanos(1 + id * 3 % 7),
        workspace: Bytes::ZERO,
    };
    (0..graph.node_count() as u64).map(cost).collect()
}

fn problem(graph: &Graph) -> (Problem, Recomputation) {
    let rules = Recomputation::of(graph, &BTreeMap::new());
    let problem = Problem::new(graph, graph.order(), CPU, &costs(graph), &rules);
    (problem, rules)
}

/// Any copy that there may be; `None` if this try finds none.
fn any_copy(problem: &Problem, random: &mut Random) -> Option<Copy> {
    let steps = problem.steps.len();
    let node = random.below(steps);
    let after = node + 1 + random.below((steps - node).min(20));
    (problem.steps[node].recomputable && after < steps).then_some(Copy {
        node: node as Step,
        before: after as Step,
    })
}

fn some_copies(problem: &Problem, random: &mut Random, tries: usize) -> Vec<Copy> {
    let mut copies: Vec<Copy> = (0..tries)
        .filter_map(|_| any_copy(problem, random))
        .collect();
    copies.sort();
    copies.dedup();
    copies
}

/// Everything that can be seen of a state. Φ is compared apart, since it is rounded.
fn seen(state: &State<'_>) -> (Vec<f64>, u64, bool, Vec<Copy>, Vec<Vec<Lifetime>>) {
    (
        (0..state.groups.len() as Step)
            .map(|group| state.memory(group))
            .collect(),
        state.cost(),
        state.fits(),
        state.all_copies(),
        state.lifetimes.clone(),
    )
}

/// A state that is made from nothing with these copies.
fn fresh<'p>(problem: &'p Problem, of: &State<'p>) -> State<'p> {
    let mut state = State::new(problem, of.budget(), of.exponent());
    state.copies = vec![Vec::new(); problem.steps.len()];
    for copy in of.all_copies() {
        state.toggle(copy);
        state.cost += problem.steps[copy.node as usize].copy_time;
    }
    state.next_stamp();
    for (id, value) in problem.values.iter().enumerate() {
        let id = id as ValueId;
        let first = state.lifetimes[id as usize][0];
        state.end(id, first);
        let copies = match value.recomputed {
            true => state.copies[value.producer as usize].len(),
            false => 0,
        };
        let lifetimes: Vec<Lifetime> = (0..=copies).map(|i| state.lifetime(id, i)).collect();
        for &lifetime in &lifetimes {
            state.begin(id, lifetime);
        }
        state.lifetimes[id as usize] = lifetimes;
    }
    for group in 0..problem.steps.len() as Step {
        state.touch_group(group);
    }
    for node in 0..problem.steps.len() as Step {
        state.weigh(node);
    }
    state.refresh(&mut Undo::default());
    state.aim(of.budget(), of.exponent());
    state
}

#[test]
fn after_any_moves_a_state_is_what_it_is_when_made_afresh() {
    let mut moves = 0;
    for seed in 0..60 {
        let graph = random_training_graph(seed, 8 + seed as usize);
        let (problem, _) = problem(&graph);
        let mut random = Random::new(seed);
        let exponent = [Exponent::Half, Exponent::One, Exponent::Two][seed as usize % 3];
        let peak = State::new(&problem, 0.0, exponent).peak();
        let mut state = State::new(&problem, (peak * 0.7).floor(), exponent);
        for _ in 0..60 {
            let tries = 1 + random.below(4);
            let toggles = some_copies(&problem, &mut random, tries);
            state.apply(&toggles);
            let again = fresh(&problem, &state);
            assert_eq!(seen(&state), seen(&again), "seed {seed}, {toggles:?}");
            let slack = 1e-9 * (1.0 + again.phi());
            assert!((state.phi() - again.phi()).abs() < slack, "seed {seed}");
            moves += toggles.len();
        }
    }
    assert!(moves > 3000, "{moves}");
}

#[test]
fn undoing_restores_the_state_to_the_bit() {
    for seed in 0..60 {
        let graph = random_training_graph(seed, 8 + seed as usize);
        let (problem, _) = problem(&graph);
        let mut random = Random::new(seed);
        let exponent = [Exponent::Half, Exponent::One, Exponent::Two][seed as usize % 3];
        let peak = State::new(&problem, 0.0, exponent).peak();
        let mut state = State::new(&problem, (peak * 0.7).floor(), exponent);
        state.apply(&some_copies(&problem, &mut random, 10));
        let mut history = Vec::new();
        for _ in 0..30 {
            let before = (seen(&state), state.phi().to_bits());
            let toggles = some_copies(&problem, &mut random, 3);
            history.push((before, state.apply(&toggles)));
        }
        for (before, undo) in history.into_iter().rev() {
            state.undo(undo);
            assert_eq!((seen(&state), state.phi().to_bits()), before, "seed {seed}");
        }
    }
}

/// Copies of which each is read, by an original or by another one.
fn read_copies(problem: &Problem, random: &mut Random, tries: usize) -> Vec<Copy> {
    let mut state = State::new(problem, 0.0, Exponent::One);
    state.apply(&some_copies(problem, random, tries));
    loop {
        let copies = state.all_copies();
        let unread: Vec<Copy> = copies
            .iter()
            .copied()
            .filter(|&c| !state.is_used(c))
            .collect();
        if unread.is_empty() {
            return copies;
        }
        state.apply(&unread);
    }
}

/// Bytes of results that nobody reads, of the nodes in question.
fn unread(graph: &Graph, asked: impl Fn(&Node) -> bool) -> Bytes {
    let uses = Uses::of(graph);
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let written = nodes.filter(|node| asked(node)).flat_map(Node::writes);
    let unread = written
        .filter(|&tensor| uses.readers(tensor).is_empty() && !graph.outputs.contains(&tensor));
    unread
        .filter_map(|tensor| graph.tensor(tensor).bytes())
        .sum()
}

fn plan(graph: &Graph, rules: &Recomputation, copies: &[Copy]) -> Plan {
    let effort = Effort {
        seed: 0,
        evaluations: 0,
    };
    let search = Search::new(graph, graph.order(), CPU, &costs(graph), rules, effort);
    search.plan(&Decisions {
        copies: copies.to_vec(),
        forms: Vec::new(),
    })
}

/// The graph with the plan's copies as mirrors.
fn rewritten(graph: &Graph, rules: &Recomputation, plan: &Plan) -> Graph {
    let mut rewritten = graph.clone();
    let insert = InsertMirrors {
        instances: &plan.instances(graph, rules, Originals::AsPlanned),
    };
    insert.run(&mut rewritten).unwrap();
    ReleaseUnread { release: &TRAINING }
        .run(&mut rewritten)
        .unwrap();
    rewritten
}

#[test]
fn the_peak_is_that_of_the_graph_with_mirrors() {
    let mut exact = 0;
    for seed in 0..200 {
        let graph = random_training_graph(seed, 6 + seed as usize % 50);
        let (problem, rules) = problem(&graph);
        let mut random = Random::new(seed);
        let tries = 2 + random.below(20);
        let copies = read_copies(&problem, &mut random, tries);
        let mut state = State::new(&problem, 0.0, Exponent::One);
        state.apply(&copies);
        let believed = problem.fixed + Bytes(state.peak() as u64);
        let rewritten = rewritten(&graph, &rules, &plan(&graph, &rules, &copies));
        let plain = Liveness::in_file_order(&rewritten, CPU, &costs(&rewritten)).peak;
        // Not in the state: the result of a Size, 8 bytes, and what a mirror has to write although
        // only the original supplies it (a graph output).
        let more = unread(&rewritten, |node| {
            node.is("", "Size") || node.attribute(MARKER).is_some()
        });
        // Only in the state: an in-place result that nobody reads. It is freed with its input.
        let fewer = unread(&rewritten, |node| {
            !operators::in_place(&rewritten, node, CPU).is_empty()
        });
        assert!(
            plain <= believed + more,
            "seed {seed}: {plain:?} {believed:?} {more:?}"
        );
        assert!(
            believed <= plain + fewer,
            "seed {seed}: {plain:?} {believed:?} {fewer:?}"
        );
        exact += usize::from(!copies.is_empty() && more + fewer == Bytes::ZERO);
    }
    assert!(exact > 50, "{exact}");
}

#[test]
fn an_original_that_nobody_reads_costs_little() {
    let mut spared = 0;
    for seed in 0..600 {
        let graph = random_training_graph(seed, 6 + seed as usize % 50);
        let (problem, rules) = problem(&graph);
        let mut random = Random::new(seed);
        let tries = 2 + random.below(20);
        let copies = read_copies(&problem, &mut random, tries);
        let mut state = State::new(&problem, 0.0, Exponent::One);
        state.apply(&copies);
        let plan = plan(&graph, &rules, &copies);
        let without = plan.without_unread(&graph, &rules);
        let costs = costs(&graph);
        let time = |plan: &Plan| -> u64 {
            let times = plan.sequence.iter().map(|id| costs[id.index()].time.0);
            times.sum()
        };
        // Less where the result is small, or what it is computed from need not be there either.
        let added = time(&without)
            - time(&Plan {
                sequence: graph.order().to_vec(),
                ..Plan::default()
            });
        assert!(
            added <= state.cost(),
            "seed {seed}: {added} {}",
            state.cost()
        );
        let all: u64 = copies
            .iter()
            .map(|copy| problem.steps[copy.node as usize].copy_time)
            .sum();
        assert_eq!(state.cost() + state.spared_time, all, "seed {seed}");
        spared += usize::from(state.spared_time > 0 && added == state.cost());
        // It takes no more memory than with them, but for what only they read, which lives to the end where it is small.
        let [with, without] = [&plan, &without].map(|plan| rewritten(&graph, &rules, plan));
        let peak = |graph: &Graph| Liveness::in_file_order(graph, CPU, &self::costs(graph)).peak;
        let left = unread(&without, |_| true);
        assert!(peak(&without) <= peak(&with) + left, "seed {seed}");
    }
    assert!(spared > 15, "{spared}");
}

#[test]
fn results_lie_in_place_only_where_the_runtime_knows_sizes_to_be_equal() {
    let graph = Graph::parse(
        "<ir_version: 8, opset_import: [\"\" : 17]>
        g (float[1] x, int64[1] to) => (float[1] y) <float[1000] a, float[1000] b>
        { a = Expand (x, to)  b = Relu (a)  y = ReduceSum <keepdims = 1> (b) }",
    );
    let mut graph = graph.unwrap();
    let needs = |graph: &Graph| {
        let (problem, _) = problem(graph);
        let needed = State::new(&problem, 0.0, Exponent::One).peak();
        let run = Liveness::in_file_order(graph, CPU, &costs(graph));
        assert_eq!(problem.fixed + Bytes(needed as u64), run.peak);
        needed
    };
    assert_eq!(needs(&graph), 4004.0, "`b` lies where `a` lay");
    for id in graph.tensor_ids().collect::<Vec<_>>() {
        graph.tensor_mut(id).declared = None;
    }
    assert_eq!(needs(&graph), 8000.0, "nothing tells how large `a` is");
}

#[test]
fn nodes_that_take_for_ever_do_not_overflow_the_cost() {
    let graph = random_training_graph(3, 20);
    let cost = Cost {
        time: Nanos(u64::MAX),
        workspace: Bytes(u64::MAX),
    };
    let rules = Recomputation::of(&graph, &BTreeMap::new());
    let costs = vec![cost; graph.node_count()];
    let problem = Problem::new(&graph, graph.order(), CPU, &costs, &rules);
    let mut random = Random::new(0);
    let copies = some_copies(&problem, &mut random, 50);
    assert!(copies.len() > 5);
    let mut state = State::new(&problem, 0.0, Exponent::One);
    let undo = state.apply(&copies);
    // Each counts 2^42.
    assert_eq!(state.cost_with_originals(), copies.len() as u64 * (1 << 42));
    state.undo(undo);
    assert_eq!(state.cost(), 0);
}

/// All that may be replaced in the graph.
fn offers(graph: &Graph) -> Vec<(NodeId, &'static Variant)> {
    let uses = Uses::of(graph);
    let all = graph.order().iter();
    let all = all.flat_map(|&id| VARIANTS.iter().map(move |variant| (id, variant)));
    all.filter(|&(id, variant)| variant.parts(graph, &uses, id).is_some())
        .collect()
}

fn joint(graph: &Graph) -> (Search, Problem) {
    let all_forms = Arc::new(AllForms::of(
        graph,
        &offers(graph),
        &[graph.order().to_vec()],
    ));
    let rules = Recomputation::of(&all_forms.graph, &BTreeMap::new());
    let costs = costs(&all_forms.graph);
    let effort = Effort {
        seed: 0,
        evaluations: 0,
    };
    let problem = Problem::joint(&all_forms, graph.order(), CPU, &costs, &rules);
    let search = Search::joint(all_forms, graph.order(), CPU, &costs, &rules, effort);
    (search, problem)
}

/// Any other form of any site, or any copies of what runs; `None` if this try finds none.
fn any_move(state: &State<'_>, random: &mut Random) -> Option<Move> {
    let problem = state.problem;
    if random.below(2) == 0 {
        let mut copies = some_copies(problem, random, 3);
        copies.retain(|copy| state.is_active(copy.node));
        return Some(Move::Toggle(copies));
    }
    let site = random.below(problem.sites.len().max(1));
    let forms = &problem.sites.get(site)?.forms;
    let form = random.below(forms.len()) as FormNumber;
    (form != state.form(site as SiteId)).then_some(Move::Switch(site as SiteId, form))
}

#[test]
fn after_any_switches_a_state_is_what_it_is_when_made_afresh_and_undoing_restores_it() {
    let mut switches = 0;
    for seed in 0..60 {
        let graph = random_training_graph(seed, 8 + seed as usize);
        let (_, problem) = joint(&graph);
        let mut random = Random::new(seed);
        let peak = State::new(&problem, 0.0, Exponent::One).peak();
        let target = (peak * 0.7).floor();
        let mut state = State::new(&problem, target, Exponent::One);
        let mut history = Vec::new();
        for _ in 0..60 {
            let Some(chosen) = any_move(&state, &mut random) else {
                continue;
            };
            let before = (seen(&state), state.decisions(), state.phi().to_bits());
            history.push((before, state.make(&chosen)));
            let mut again = State::new(&problem, target, Exponent::One);
            restore(&mut again, &state.decisions());
            assert_eq!(seen(&state), seen(&again), "seed {seed}, {chosen:?}");
            let slack = 1e-9 * (1.0 + again.phi());
            assert!((state.phi() - again.phi()).abs() < slack, "seed {seed}");
            switches += usize::from(matches!(chosen, Move::Switch(..)));
        }
        for (before, undo) in history.into_iter().rev() {
            state.undo(undo);
            let now = (seen(&state), state.decisions(), state.phi().to_bits());
            assert_eq!(now, before, "seed {seed}");
        }
    }
    assert!(switches > 300, "{switches}");
}

#[test]
fn the_peak_of_any_forms_is_that_of_the_graph_with_them() {
    let (mut exact, mut replaced) = (0, 0);
    for seed in 0..300 {
        let graph = random_training_graph(seed, 6 + seed as usize % 50);
        let (search, problem) = joint(&graph);
        let mut random = Random::new(seed);
        let mut state = State::new(&problem, 0.0, Exponent::One);
        for _ in 0..10 {
            if let Some(chosen) = any_move(&state, &mut random) {
                state.make(&chosen);
            }
        }
        loop {
            let copies = state.all_copies().into_iter();
            let unread: Vec<Copy> = copies.filter(|&copy| !state.is_used(copy)).collect();
            if unread.is_empty() {
                break;
            }
            state.apply(&unread);
        }
        let plan = search.plan(&state.decisions());
        let mut form = graph.clone();
        let choices = &plan.variants;
        ApplyVariants { choices }.run(&mut form).unwrap();
        let rules = Recomputation::of(&form, &BTreeMap::new());
        let mut rewritten = form.clone();
        let insert = InsertMirrors {
            instances: &plan.instances(&form, &rules, Originals::AsPlanned),
        };
        insert.run(&mut rewritten).unwrap();
        ReleaseUnread { release: &TRAINING }
            .run(&mut rewritten)
            .unwrap();
        verify::equivalence(&graph, &rewritten, &Default::default()).unwrap();
        let plain = Liveness::in_file_order(&rewritten, CPU, &costs(&rewritten)).peak;
        // See `the_peak_is_that_of_the_graph_with_mirrors`.
        let more = unread(&rewritten, |node| {
            node.is("", "Size") || node.attribute(MARKER).is_some()
        });
        let fewer = unread(&rewritten, |node| {
            !operators::in_place(&rewritten, node, CPU).is_empty()
        });
        // Constants are the runtime's: the state counts them and the graph does not.
        let constants = rewritten.order().iter().map(|&id| rewritten.node(id));
        let constants = constants.filter(|node| node.is("", "Constant"));
        let constants = constants.flat_map(|node| node.writes().collect::<Vec<_>>());
        let constants = constants.map(|tensor| rewritten.tensor(tensor).bytes().unwrap());
        let fewer = constants.fold(fewer, |sum, bytes| sum + bytes);
        let believed = plan.predicted_peak;
        assert!(
            plain <= believed + more && believed <= plain + fewer,
            "seed {seed}: {plain:?} {believed:?} {more:?} {fewer:?}"
        );
        exact += usize::from(!choices.is_empty() && more == Bytes::ZERO && believed == plain);
        replaced += choices.len();
    }
    assert!(exact > 40 && replaced > 150, "{exact} {replaced}");
}
