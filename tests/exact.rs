//! The search against the exact 0-1 program, solved by HiGHS.
//!
//! `cargo test --release --features highs,testing --test exact`

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ckpt_opt::solver::Highs;
use ckpt_passes::analysis::recompute::Recomputation;
use ckpt_passes::bytes::Bytes;
use ckpt_passes::cost::{Cost, Nanos};
use ckpt_passes::graph::Graph;
use ckpt_passes::operators::Provider;
use ckpt_passes::operators::variants::Group;
use ckpt_passes::optimize::{APPLYING, BudgetRequest, OptimizeError, PlanOptions, optimize};
use ckpt_passes::program::{Limits, Solving};
use ckpt_passes::runtime::Runtime;
use ckpt_passes::runtime::device::Device;
use ckpt_passes::search::{Effort, Search};
use ckpt_passes::strategy::{Strategy, Task, planner};
use ckpt_passes::testing::{UniformChain, random_training_graph};

const LIMITS: Limits = Limits {
    nodes: 20_000,
    seconds: Some(20.0),
    gap: 1e-6,
};

/// Times from 100 to 970 ns; some nodes have workspace.
fn costs(graph: &Graph) -> Vec<Cost> {
    let cost = |id: u64| Cost {
        time: Nanos(100 + id * 70 % 900),
        workspace: Bytes(id % 5 * 300),
    };
    (0..graph.node_count() as u64).map(cost).collect()
}

#[derive(Debug, Default)]
struct Tally {
    /// How many optima are proved.
    closed: usize,
    /// In how many of them something has to be computed twice.
    positive: usize,
    /// In how many of them the search adds no more.
    equal: usize,
    /// The largest excess over an optimum, in parts of the step's time.
    most: f64,
    worse: Vec<String>,
}

fn compare(name: &str, graph: &Graph, tally: &mut Tally) {
    let costs = costs(graph);
    let rules = Recomputation::of(graph, &BTreeMap::new());
    let effort = Effort {
        seed: 1,
        evaluations: 100_000,
    };
    let mut search = Search::new(graph, graph.order(), Provider::Cpu, &costs, &rules, effort);
    let step: u64 = graph
        .order()
        .iter()
        .map(|id| costs[id.index()].time.0)
        .sum();
    let most = search.without_copies().predicted_peak;
    let least = search.smallest().predicted_peak;
    for part in [1, 3] {
        let budget = least + Bytes((most - least).0 * part / 4);
        let Ok(ours) = search.cheaper(budget, u64::MAX) else {
            tally
                .worse
                .push(format!("{name}, part {part}: nothing found"));
            continue;
        };
        // The program has every node run where it first does.
        let ours = ours.without_unread(graph, &rules);
        let time: u64 = ours
            .sequence
            .iter()
            .map(|id| costs[id.index()].time.0)
            .sum();
        let ours = time - step;
        let solved = search
            .solve(budget, None, &Highs::default(), LIMITS)
            .unwrap();
        let bound = search.lower_bound(budget, ours * 2 + 1000);
        let optimum = solved.plan.as_ref().map(|plan| plan.1);
        let Some(optimum) = optimum else { continue };
        assert!(
            optimum as f64 >= solved.bound * (1.0 - 1e-6) - 1.0,
            "{name}, part {part}"
        );
        if (optimum as f64) > solved.bound * (1.0 + 1e-4) + 1.0 {
            continue;
        }
        tally.closed += 1;
        tally.positive += usize::from(optimum > 0);
        assert!(
            bound <= optimum,
            "{name}, part {part}: bound {bound}, optimum {optimum}"
        );
        tally.equal += usize::from(ours <= optimum);
        tally.most = tally.most.max((ours as f64 - optimum as f64) / step as f64);
        // 0.1 points of the step's time.
        if ours as f64 > optimum as f64 + 0.001 * step as f64 {
            tally.worse.push(format!(
                "{name}, part {part}: {ours} ns, optimum {optimum} of {step}"
            ));
        }
    }
}

#[test]
#[allow(clippy::print_stdout)]
fn the_search_finds_the_optimum_of_small_random_graphs() {
    let mut tally = Tally::default();
    let sizes = (0..20).map(|seed| (seed, 8 + seed as usize));
    // Larger ones that HiGHS closes in about a second.
    let larger = [
        100, 101, 103, 104, 105, 107, 108, 110, 111, 113, 120, 122, 126, 128, 131, 133,
    ];
    let larger = larger.map(|seed| (seed, 24 + seed as usize % 20));
    for (seed, size) in sizes.chain(larger) {
        let graph = random_training_graph(seed, size);
        compare(&format!("seed {seed}"), &graph, &mut tally);
    }
    println!("{tally:?}");
    assert!(tally.worse.is_empty(), "{tally:?}");
    assert!(tally.closed >= 60 && tally.positive >= 40, "{tally:?}");
}

#[test]
fn the_program_agrees_with_revolve_on_uniform_chains() {
    let mut compared = 0;
    for length in 3..8 {
        let chain = UniformChain::new(length);
        let rules = Recomputation::of(&chain.graph, &BTreeMap::new());
        let effort = Effort {
            seed: 1,
            evaluations: 1_000,
        };
        let (graph, costs) = (&chain.graph, &chain.costs);
        let search = Search::new(graph, graph.order(), Provider::Cpu, costs, &rules, effort);
        for budget in chain.peaks() {
            let solved = search
                .solve(budget, None, &Highs::default(), LIMITS)
                .unwrap();
            let optimum = solved.plan.map(|(_, added)| added);
            assert_eq!(optimum, chain.optimum(budget), "{length} layers, {budget}");
            compared += 1;
        }
    }
    assert!(compared > 15, "{compared}");
}

/// HiGHS, for so many seconds.
fn solving(seconds: u64) -> Solving {
    let until = Instant::now() + Duration::from_secs(seconds);
    Solving {
        solver: Some(Arc::new(Highs { until: Some(until) })),
        ..Solving::default()
    }
}

/// What `strategy` adds on the chain within `budget` and what the runtime's objects take.
fn added(chain: &UniformChain, strategy: Strategy, budget: Bytes) -> Option<u64> {
    added_in(chain, strategy, budget, solving(60))
}

fn added_in(
    chain: &UniformChain,
    strategy: Strategy,
    budget: Bytes,
    solving: Solving,
) -> Option<u64> {
    let (graph, device) = (&chain.graph, Device::preset("cpu").unwrap());
    let overrides = BTreeMap::new();
    let rules = Recomputation::of(graph, &overrides);
    let task = Task {
        joint: None,
        graph,
        run: graph,
        runtime: Runtime::LEAN,
        order: graph.order(),
        sequences: &[],
        device: &device,
        overrides: &overrides,
        costs: &chain.costs,
        recomputation: &rules,
        effort: Effort {
            seed: 1,
            evaluations: 1_000,
        },
        watch: Arc::default(),
        solving: &solving,
        rewriting: APPLYING,
    };
    let objects = Bytes(UniformChain::UNIT.0 / 20);
    let plan = planner(strategy, &task)
        .unwrap()
        .within(budget + objects)
        .ok()?;
    assert!(task.judge(plan.clone()).predicted_peak <= budget + objects);
    Some(plan.copies().iter().filter(|&&copy| copy).count() as u64)
}

#[test]
fn checkmates_program_finds_revolves_optimum_on_uniform_chains() {
    let mut compared = 0;
    for length in 3..8 {
        let chain = UniformChain::new(length);
        for budget in chain.peaks() {
            let found = added(&chain, Strategy::CheckmateIlp, budget);
            assert_eq!(found, chain.optimum(budget), "{length} layers, {budget}");
            compared += 1;
        }
    }
    assert!(compared > 15, "{compared}");
}

#[test]
fn without_time_to_solve_there_is_a_plan_by_the_cheap_rule() {
    let chain = UniformChain::new(16);
    // Sixteen layers need 17 units of memory, and 11 with some of them run twice.
    let budget = UniformChain::owned() + Bytes(UniformChain::UNIT.0 * 11);
    for strategy in [Strategy::CheckmateIlp, Strategy::MonetIlp] {
        let found = added_in(&chain, strategy, budget, solving(0));
        let optimum = chain.optimum(budget).unwrap();
        assert!(
            found.is_some_and(|found| found >= optimum && found <= 4 * optimum),
            "{strategy}: {found:?}, optimum {optimum}"
        );
    }
}

#[test]
fn monets_program_is_never_better_and_at_most_a_unit_of_memory_away() {
    // Its bound on local tensors takes the inputs of layers that may not run for alive.
    for length in 3..8 {
        let chain = UniformChain::new(length);
        for budget in chain.peaks() {
            let optimum = chain.optimum(budget).unwrap();
            let more = added(&chain, Strategy::MonetIlp, budget + UniformChain::UNIT);
            assert!(
                more.is_some_and(|more| more <= optimum),
                "{length} layers, {budget}: {more:?} {optimum}"
            );
            let same = added(&chain, Strategy::MonetIlp, budget);
            assert!(
                same.is_none_or(|same| same >= optimum),
                "{length} layers, {budget}"
            );
        }
    }
}

#[test]
fn what_the_programs_plan_is_written_verified_and_within_the_budget() {
    for strategy in [Strategy::CheckmateIlp, Strategy::MonetIlp] {
        let (mut written, mut recomputed) = (0, 0);
        let random = [0, 5].map(|seed| random_training_graph(seed, 20));
        let chains = [5, 8].map(|length| UniformChain::new(length).graph);
        for (seed, graph) in random.into_iter().chain(chains).enumerate() {
            for budget in [0.85, 0.7].map(BudgetRequest::FixedPlusPart) {
                let options = PlanOptions {
                    bindings: BTreeMap::new(),
                    budget,
                    reserve: Bytes::ZERO,
                    device: Device::preset("cpu").unwrap(),
                    overrides: BTreeMap::new(),
                    strategy,
                    variants: Group::ALL.into_iter().collect(),
                    allowed: BTreeSet::new(),
                    effort: Effort {
                        seed: 1,
                        evaluations: 1_000,
                    },
                    runtime: Runtime::LEAN,
                    watch: Arc::default(),
                    solving: solving(10),
                    passes: ckpt_passes::pass::Runner::default(),
                };
                // `optimize` verifies what it returns.
                match optimize(&graph, &options) {
                    Ok(optimized) => {
                        let summary = optimized.summary;
                        assert!(summary.after.bytes <= summary.budget, "{strategy}, {seed}");
                        written += 1;
                        recomputed += summary.recomputed_nodes;
                    }
                    Err(OptimizeError::Infeasible { .. }) => {}
                    Err(other) => panic!("{strategy}, seed {seed}: {other}"),
                }
            }
        }
        assert!(
            written >= 4 && recomputed >= 4,
            "{strategy}: {written} {recomputed}"
        );
    }
}

#[test]
fn what_is_certified_is_between_the_simple_bound_and_the_optimum() {
    let mut raised = 0;
    for seed in 100..112 {
        let graph = random_training_graph(seed, 20);
        let costs = costs(&graph);
        let rules = Recomputation::of(&graph, &BTreeMap::new());
        let effort = Effort {
            seed: 1,
            evaluations: 10_000,
        };
        let mut search = Search::new(&graph, graph.order(), Provider::Cpu, &costs, &rules, effort);
        let most = search.without_copies().predicted_peak;
        let least = search.smallest().predicted_peak;
        let budget = least + Bytes((most - least).0 / 4);
        let solved = search
            .solve(budget, None, &Highs::default(), LIMITS)
            .unwrap();
        let (_, optimum) = solved.plan.unwrap();
        // What is known may be twice what is best.
        let known = optimum * 2 + 100;
        let simple = search.lower_bound(budget, known);
        let certified = search.certified_bound(budget, known, &Highs::default(), LIMITS);
        assert!(
            simple <= certified && certified <= optimum,
            "seed {seed}: {simple} {certified} {optimum}"
        );
        raised += usize::from(certified > simple);
    }
    assert!(raised > 4, "{raised}");
}
