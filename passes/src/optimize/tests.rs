//! Graphs that nobody would make and the runtime runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::analysis::cost::NodeOverride;
use crate::bytes::Bytes;
use crate::graph::{Dimension, TensorKind};
use crate::operators::clears_behind_its_result;
use crate::operators::variants::Group;
use crate::pass::Runner;
use crate::runtime::Runtime;
use crate::runtime::settings::RuntimeSettings;
use crate::strategy::Strategy;
use crate::strategy::tests::options;
use crate::testing::{SplitMix64, random_training_graph};

fn planned(graph: &Graph, options: &PlanOptions) -> Result<Optimized, String> {
    let found = optimize(graph, options).map_err(|error| error.to_string())?;
    let summary = &found.summary;
    assert_eq!(summary.faults, []);
    verify_written(graph, &found.graph, options, summary.budget).unwrap();
    Ok(found)
}

fn planned_for_least(nodes: &str) -> Result<Optimized, String> {
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        g (float[64,64] dy, float[64,64] a, float[64] b, bool[1] always) => (float[64,64] q, bool[1] u) {{ {nodes} }}"#
    );
    let graph = Graph::parse(&text).unwrap();
    planned(&graph, &options(Strategy::Auto, BudgetRequest::Smallest))
}

/// ONNX Runtime 1.19.2 loads it, and takes no notice of what it reads.
#[test]
fn a_constant_that_reads_something_stands_behind_that() {
    let nodes = "[e] c = Exp (a) [k] k = Constant <value_ints = [64, 64]> (c) [r] r = Reshape (c, k) q = com.microsoft.ReluGrad (dy, r) u = Identity (always)";
    let found = planned_for_least(nodes).unwrap();
    let place = |name: &str| {
        let mut order = found.graph.order().iter();
        order.position(|&id| found.graph.node(id).name == name)
    };
    assert!(place("e") < place("k"));
}

#[test]
fn what_is_taken_apart_may_read_updated_memory_and_may_not_be_updated_itself() {
    let of = |buffer: &str| {
        let nodes = format!(
            "[div] q, y = com.microsoft.DivGrad (dy, a, b) [sum] u = com.microsoft.InPlaceAccumulatorV2 ({buffer}, dy, always)"
        );
        planned_for_least(&nodes)
    };
    let found = of("a").unwrap();
    // It fits as it is.
    let mut nodes = found.graph.order().iter();
    assert!(nodes.any(|&id| found.graph.node(id).op_type == "DivGrad"));
    insta::assert_snapshot!(of("q").unwrap_err(), @r#"the input graph is not valid: InPlaceAccumulatorV2 "sum" updates "q" in place, which DivGrad "div" computes and the runtime takes apart: expected memory that no such node writes"#);
}

/// A float has 53 bits, and the workspace takes more.
#[test]
fn a_graph_fits_all_of_its_peak_however_large_that_is() {
    let graph = random_training_graph(3, 12);
    for request in [
        BudgetRequest::PartOfPeak(1.0),
        BudgetRequest::FixedPlusPart(1.0),
    ] {
        for more in 0..16 {
            let mut options = options(Strategy::Auto, request);
            let said = NodeOverride {
                workspace_bytes: Some((83 << 50) + more),
                ..NodeOverride::default()
            };
            let last = *graph.order().last().unwrap();
            options
                .overrides
                .insert(graph.node(last).name.clone(), said);
            options.effort.evaluations = 0;
            planned(&graph, &options).unwrap();
        }
    }
}

#[test]
fn no_plan_needs_less_than_the_floor_and_below_it_nothing_is_searched() {
    let mut refused = 0;
    let mut work = (0, 0);
    for seed in 0..12 {
        let graph = random_training_graph(seed, 40);
        let with = |budget| {
            let options = PlanOptions {
                variants: Group::ALL.into(),
                reserve: Bytes(1000),
                ..options(Strategy::Auto, budget)
            };
            let found = optimize(&graph, &options);
            (found, options.watch.evaluations())
        };
        let (nothing, few) = with(BudgetRequest::Bytes(Bytes(1001)));
        let Err(OptimizeError::Infeasible {
            smallest,
            floor: Some(floor),
            ..
        }) = nothing
        else {
            panic!("seed {seed}: {nothing:?}");
        };
        assert!(
            graph
                .order()
                .iter()
                .any(|&id| graph.node(id).name == floor.node)
        );
        let (least, many) = with(BudgetRequest::Smallest);
        let least = least.expect("a plan").summary;
        let reached = least.smallest_peak.min(smallest.bytes);
        assert!(floor.bytes <= reached, "seed {seed}: {floor:?}, {reached}");
        work = (work.0 + few, work.1 + many);
        // At the floor itself it is not known whether there is a plan.
        let (at, _) = with(BudgetRequest::Bytes(floor.bytes));
        if let Err(OptimizeError::Infeasible { floor, .. }) = at {
            assert_eq!(floor, None);
        }
        let (below, _) = with(BudgetRequest::Bytes(floor.bytes - Bytes(1)));
        refused += usize::from(matches!(
            below,
            Err(OptimizeError::Infeasible { floor: Some(_), .. })
        ));
    }
    assert_eq!(refused, 12);
    // The graph in which nodes work slice by slice, where it is looked for a small peak in passing, has more nodes.
    let (few, many) = work;
    assert!(3 * few <= many, "{few} of {many}");
}

/// Passes are most of what takes long in a large graph.
#[test]
fn what_is_done_once_the_time_is_over_does_not_grow_with_the_graph() {
    let passes = |nodes: usize, until: usize| {
        let graph = random_training_graph(1, nodes);
        let mut options = options(Strategy::Auto, BudgetRequest::FixedPlusPart(0.5));
        options.runtime = Runtime::DEFAULT;
        let ran = Arc::new(AtomicUsize::new(0));
        let (watch, count) = (options.watch.clone(), ran.clone());
        options.runner = Runner::telling(Arc::new(move |_| {
            if count.fetch_add(1, Ordering::Relaxed) >= until {
                watch.stop();
            }
        }));
        let found = optimize(&graph, &options);
        assert!(matches!(found, Err(OptimizeError::Infeasible { .. })));
        assert!(graph.order().len() > 5_000);
        ran.load(Ordering::Relaxed)
    };
    for until in [0, 2] {
        let (few, many) = (passes(6_000, until), passes(18_000, until));
        assert_eq!(few, many);
        assert!(few <= until + 6, "{few}");
    }
}

/// The graph, in which a quarter of the declarations is gone, a quarter has wrong numbers, and a quarter names that nobody else has.
fn declared_otherwise(graph: &Graph, seed: u64) -> Graph {
    let mut draw = SplitMix64::new(seed);
    let mut other = graph.clone();
    for id in graph.tensor_ids() {
        let tensor = graph.tensor(id);
        if tensor.kind != TensorKind::Value || graph.outputs.contains(&id) {
            continue;
        }
        let Some(mut dims) = tensor.declared.clone().filter(|dims| !dims.is_empty()) else {
            continue;
        };
        let at = draw.below(dims.len());
        match (draw.below(4), &dims[at]) {
            (0, _) => {
                other.tensor_mut(id).declared = None;
                continue;
            }
            (1, Dimension::Known(size)) => {
                let wrong = [1, *size + 1, *size * 2];
                dims[at] = Dimension::Known(wrong[draw.below(3)]);
            }
            (2, _) => dims[at] = Dimension::Symbol(format!("other_{}", id.0)),
            _ => {}
        }
        other.tensor_mut(id).declared = Some(dims);
    }
    other
}

#[test]
fn declarations_that_are_gone_wrong_or_renamed_make_no_peak_lower_than_it_is_and_no_plan_larger() {
    let mut stale_ones = 0;
    for seed in 0..24 {
        let graph = random_training_graph(seed, 12 + seed as usize);
        let other = declared_otherwise(&graph, seed);
        let lean = options(Strategy::Auto, BudgetRequest::Smallest);
        stale_ones += stale(&other, &lean).len();
        let [clean, odd] = [&graph, &other].map(|graph| measure(graph, &lean).unwrap());
        // Each result has a buffer of its own, whatever is declared, unless it is computed in place.
        assert!(odd.default.bytes >= clean.default.bytes, "seed {seed}");
        assert!(odd.priority.bytes >= clean.priority.bytes, "seed {seed}");
        for runtime in [Runtime::LEAN, Runtime::DEFAULT] {
            for request in [
                BudgetRequest::Smallest,
                BudgetRequest::PartOfPeak(1.0),
                BudgetRequest::PartOfPeak(0.9),
            ] {
                let mut options = options(Strategy::Auto, request);
                options.runtime = runtime;
                options.effort.evaluations = 200;
                match optimize(&other, &options) {
                    Ok(found) => {
                        let summary = &found.summary;
                        assert_eq!(summary.faults, [], "seed {seed}");
                        assert!(summary.after.bytes <= summary.budget, "seed {seed}");
                        let own = measure(&other, &options).unwrap().default.bytes;
                        assert_eq!(summary.before.bytes, own, "seed {seed}");
                        verify_written(&other, &found.graph, &options, summary.budget).unwrap();
                    }
                    Err(OptimizeError::Infeasible { .. })
                        if request == BudgetRequest::PartOfPeak(0.9) => {}
                    Err(error) => panic!("seed {seed}, {request:?}: {error}"),
                }
            }
        }
    }
    assert!(stale_ones > 50, "{stale_ones}");
}

/// As measured of a file that declares a batch of 4, or one of 2,048, for one of 256: what has the wrong size has its place in the block
/// and memory of its own, and hands that on by the size that is declared.
#[test]
fn a_wrong_size_takes_a_place_in_the_block_beside_what_it_takes() {
    let need = |declared: &str| {
        let text = format!(
            "<ir_version: 8, opset_import: [\"\" : 15]> g (float[N,64] x) => (float[N,64] y)
            <float[{declared},64] a, float[{declared},64] b> {{ a = Exp (x) b = Sin (a) c = Neg (b) y = Mul (c, x) }}"
        );
        let mut options = options(Strategy::Auto, BudgetRequest::Smallest);
        options.runtime = Runtime::DEFAULT;
        options.bindings.insert("N".to_owned(), 256);
        let measured = measure(&Graph::parse(&text).unwrap(), &options).unwrap();
        (measured.default.bytes - measured.fixed).0
    };
    const TENSOR: u64 = 256 * 64 * 4;
    let (right, small, large) = (need("N"), need("4"), need("2048"));
    // c follows from b, so it has the wrong size as well; a hands its memory on, and two are there at a time at most.
    assert!(large - small >= 7 * TENSOR, "{small} {large}");
    assert!(small.abs_diff(right) < TENSOR, "{small} {right}");
}

/// What it becomes there, and when that runs, nothing here tells.
#[test]
fn a_loss_that_a_runtime_takes_apart_is_to_be_lowered_first() {
    let nodes = "[loss] q = SoftmaxCrossEntropyLoss (dy, b) u = Identity (always)";
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[64,64] dy, int64[64] b, bool[1] always) => (float q, bool[1] u) {{ {nodes} }}"#
    );
    let graph = Graph::parse(&text).unwrap();
    let mut options = options(Strategy::Auto, BudgetRequest::Smallest);
    options.runtime.release = &crate::runtime::STOCK;
    let error = optimize(&graph, &options).map_err(|error| error.to_string());
    insta::assert_snapshot!(error.unwrap_err(), @r#"SoftmaxCrossEntropyLoss "loss" is taken apart by ONNX Runtime 1.20 to 1.32, in a way that is not simulated: expected a graph without it, as ckpt-opt lower writes it, or --runtime training-1.19.2"#);
}

/// Gradients of two convolutions with groups, one of which has a kernel that writes behind its result.
fn with_gradients_in_groups(element: &str) -> Graph {
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        g ({element}[2,8,64] dy, {element}[2,8,64] x, {element}[8,4,3] w, {element}[2,8,8,8] ey, {element}[2,8,8,8] x2, {element}[8,4,3,3] v)
          => ({element}[2,8,64] q, {element}[8,4,3] dw, {element}[2,8,8,8] r, {element}[8,4,3,3] dv)
        {{
            [a] a = Exp (x) [b] b = Exp (a) [c] c = Neg (b) [d] d = Mul (c, x)
            [one] dx, dw, db = com.microsoft.ConvGrad <group = 2, kernel_shape = [3], pads = [1, 1]> (dy, d, w)
            [e] e = Mul (dx, a) [f] f = Mul (e, b) [q] q = Mul (f, c)
            [two] r, dv, dbv = com.microsoft.ConvGrad <group = 2, kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (ey, x2, v)
        }}"#
    );
    Graph::parse(&text).unwrap()
}

#[test]
fn plans_do_without_kernels_that_write_behind_their_results() {
    let graph = with_gradients_in_groups("float");
    let overrun = |graph: &Graph| {
        let mut nodes = graph.order().iter().map(|&id| graph.node(id));
        nodes.any(|node| clears_behind_its_result(graph, node))
    };
    assert!(overrun(&graph));
    let narrow = with_gradients_in_groups("double");
    for settings in [RuntimeSettings::LEAN, RuntimeSettings::DEFAULT] {
        for strategy in [
            Strategy::Auto,
            Strategy::ChenSqrt,
            Strategy::LowerSetExactTime,
        ] {
            let with = |graph: &Graph, budget, variants: &[Group]| {
                let options = PlanOptions {
                    runtime: Runtime::of(settings),
                    variants: variants.iter().copied().collect(),
                    ..options(strategy, budget)
                };
                planned(graph, &options).unwrap()
            };
            let smallest = BudgetRequest::Smallest;
            let found = with(&graph, smallest, &Group::ALL);
            let replaced = |found: &Optimized, name: &str| {
                let mut all = found.summary.variants.iter();
                all.any(|(of, by)| of == name && *by == "transposed-convolution")
            };
            if found.graph.order().len() != graph.order().len() {
                assert!(!overrun(&found.graph), "{settings:?} {strategy}");
                assert!(replaced(&found, "one"));
            }
            assert!(strategy != Strategy::Auto || replaced(&found, "one"));
            // What fits is left as it is.
            let whole = with(&graph, BudgetRequest::PartOfPeak(2.0), &Group::ALL);
            assert!(overrun(&whole.graph) && whole.summary.variants.is_empty());
            let not_allowed = with(&graph, smallest, &[Group::Sums]);
            assert!(overrun(&not_allowed.graph));
            assert!(overrun(&with(&narrow, smallest, &Group::ALL).graph));
        }
    }
}
