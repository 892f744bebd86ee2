//! The joint choice of variants and copies against MONeT's 0-1 program (Shah et al. 2021), solved by HiGHS, on small
//! convolutional networks of up to 60 forward nodes.
//!
//! `cargo test --release --features highs --test joint -- --nocapture`
#![cfg(feature = "highs")]
// What was compared is worth a look.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ckpt_opt::solver::Highs;
use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::Graph;
use ckpt_passes::operators::variants::Group;
use ckpt_passes::optimize::{BudgetRequest, OptimizeError, PlanOptions, Summary, optimize};
use ckpt_passes::program::Solving;
use ckpt_passes::runtime::Runtime;
use ckpt_passes::runtime::device::Device;
use ckpt_passes::search::Effort;
use ckpt_passes::strategy::Strategy;

/// How much more of the step's time the search may add than the program: half a point.
const MORE: f64 = 0.005;

/// Forward nodes, and how long HiGHS may take for each budget.
const NETWORKS: [(usize, u64); 8] = [
    (8, 20),
    (10, 20),
    (12, 20),
    (16, 20),
    (20, 20),
    (28, 30),
    (40, 30),
    (60, 30),
];

#[test]
fn the_joint_search_is_within_half_a_point_of_monets_program() {
    let (mut compared, mut optima, mut worse) = (0, 0, Vec::new());
    let (mut replaced, mut replaced_by_program) = (0, 0);
    for (seed, (nodes, seconds)) in NETWORKS.into_iter().enumerate() {
        let graph = network(seed as u64, nodes);
        let least = plan(&graph, Strategy::Auto, BudgetRequest::Smallest, 0).expect("a plan");
        let (before, least) = (least.before.bytes, least.after.bytes);
        for part in [1, 2] {
            let budget = BudgetRequest::Bytes(least + Bytes((before - least).0 * part / 3));
            let ours = plan(&graph, Strategy::Auto, budget, 0).expect("more than the least");
            let Some(theirs) = plan(&graph, Strategy::MonetIlp, budget, seconds) else {
                println!(
                    "{nodes} forward nodes, {part}/3: ours {:.2} %, no plan",
                    100.0 * ours.overhead()
                );
                continue;
            };
            let misses = |note: &String| note.starts_with("its schedule needs");
            let joint = theirs.notes.iter().find_map(|note| Joint::of(note));
            // What needs more than the program thought is no measure.
            let joint = joint.filter(|_| !theirs.notes.iter().any(misses));
            println!(
                "{nodes} forward nodes, {part}/3: ours {:.2} % with {} replaced, MONeT's {:.2} % with {}: {}",
                100.0 * ours.overhead(),
                ours.variants.len(),
                100.0 * theirs.overhead(),
                theirs.variants.len(),
                theirs.notes.join("; "),
            );
            compared += 1;
            replaced += ours.variants.len();
            replaced_by_program += theirs.variants.len();
            // What the program says may be less than what its plan takes once it is written.
            optima += usize::from(joint.as_ref().is_some_and(|joint| joint.proved));
            let least = joint.map_or(f64::INFINITY, |joint| joint.added);
            let least = least.min(theirs.overhead());
            if ours.overhead() > least + MORE {
                worse.push((nodes, part, ours.overhead(), least));
            }
        }
    }
    println!(
        "{compared} compared, {optima} optima of the joint program proved, {replaced} nodes replaced by ours and \
         {replaced_by_program} by the program"
    );
    assert!(worse.is_empty(), "{worse:?}");
    assert!(
        compared >= 8 && optima >= 3 && replaced > 8 && replaced_by_program > 0,
        "{compared} {optima} {replaced} {replaced_by_program}"
    );
}

/// What the program for implementations and schedule together found.
struct Joint {
    /// Part of the step that its schedule adds.
    added: f64,
    /// Is that the least?
    proved: bool,
}

impl Joint {
    fn of(note: &str) -> Option<Joint> {
        let (_, behind) = note
            .strip_prefix("implementations of ")?
            .split_once("0-1 program within ")?;
        let (_, behind) = behind.split_once(": ")?;
        let (kind, behind) = behind.split_once(" of ")?;
        let (percent, _) = behind.split_once(" %")?;
        Some(Joint {
            added: percent.parse::<f64>().ok()? / 100.0,
            proved: kind == "optimum",
        })
    }
}

/// Convolutions whose gradients' workspace and results are the peak: no copies help there, and MONeT's
/// program takes other forms of them.
#[test]
fn monets_program_replaces_a_convolution_where_its_gradient_is_the_peak() {
    let graph = Graph::parse(
        "<ir_version: 8, opset_import: [\"\" : 17, \"com.microsoft\" : 1]>
        g (float[8,16,64,64] t0, float[64,16,3,3] w1, float[16,64,3,3] w2, float[8,16,64,64] d2)
          => (float[64,16,3,3] dw1, float[16,64,3,3] dw2)
        {
          t1 = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (t0, w1)
          t2 = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (t1, w2)
          d1, dw2 = com.microsoft.ConvGrad <kernel_shape = [3,3], pads = [1,1,1,1]> (d2, t1, w2)
          \"\", dw1 = com.microsoft.ConvGrad <kernel_shape = [3,3], pads = [1,1,1,1]> (d1, t0, w1)
        }",
    );
    let graph = graph.expect("a graph");
    let plan =
        |variants: &[Group], budget| plan_with(variants, &graph, Strategy::MonetIlp, budget, 20);
    let least = plan(&[], BudgetRequest::Smallest).expect("a plan");
    // t1 and d1 have 8 x 64 x 64 x 64 numbers, 8 MiB; one of them goes.
    let budget = BudgetRequest::Bytes(least.after.bytes - Bytes(4 << 20));
    assert!(plan(&[], budget).is_none());
    let found = plan(&Group::ALL, budget).expect("a plan");
    let convolutions = ["split-gradient", "transposed-convolution"];
    let is_convolution = |(_, variant): &(String, &str)| convolutions.contains(variant);
    assert!(
        found.variants.iter().any(is_convolution),
        "{:?}",
        found.variants
    );
}

fn plan(graph: &Graph, strategy: Strategy, budget: BudgetRequest, seconds: u64) -> Option<Summary> {
    plan_with(&Group::ALL, graph, strategy, budget, seconds)
}

fn plan_with(
    variants: &[Group],
    graph: &Graph,
    strategy: Strategy,
    budget: BudgetRequest,
    seconds: u64,
) -> Option<Summary> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let options = PlanOptions {
        bindings: BTreeMap::new(),
        budget,
        reserve: Bytes::ZERO,
        device: Device::preset("cpu").expect("a preset"),
        overrides: BTreeMap::new(),
        strategy,
        variants: variants.iter().copied().collect(),
        allowed: BTreeSet::new(),
        effort: Effort {
            seed: 1,
            evaluations: 1_000_000,
        },
        runtime: Runtime::LEAN,
        watch: Arc::default(),
        solving: Solving {
            solver: (strategy == Strategy::MonetIlp)
                .then(|| Arc::new(Highs { until: Some(until) }) as _),
            ..Solving::default()
        },
        passes: ckpt_passes::pass::Runner::default(),
    };
    match optimize(graph, &options) {
        Ok(found) => Some(found.summary),
        Err(OptimizeError::Infeasible { .. }) => None,
        Err(other) => panic!("{strategy}: {other}"),
    }
}

/// A forward node, by what it reads.
enum Layer {
    Convolution(usize),
    Relu,
    Pool,
    /// With the result of that node.
    Add(usize),
}

/// A training graph of about that many forward nodes: convolutions with Relu, pooling here and there, and skips.
fn network(seed: u64, forward: usize) -> Graph {
    let mut state = seed + 1;
    let mut random = move |below: u64| {
        // Knuth's constants.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let batch = 8;
    // By result, the input first: channels and side.
    let mut shapes: Vec<(u64, u64)> = vec![(8, 64)];
    let mut layers: Vec<Layer> = Vec::new();
    while layers.len() < forward {
        let (channels, side) = shapes[shapes.len() - 1];
        let block = shapes.len() - 1;
        let wide = channels * (1 + random(2)).min(128 / channels);
        shapes.extend([(wide, side); 2]);
        layers.extend([Layer::Convolution(block), Layer::Relu]);
        if wide == channels && block > 0 && random(3) == 0 {
            shapes.push((wide, side));
            layers.push(Layer::Add(block));
        }
        if side > 8 && random(3) == 0 {
            shapes.push((wide, side / 2));
            layers.push(Layer::Pool);
        }
    }
    let tensor = |at: usize| {
        format!(
            "float[{batch},{},{},{}]",
            shapes[at].0, shapes[at].1, shapes[at].1
        )
    };
    let window = "kernel_shape = [3,3], pads = [1,1,1,1]";
    let pooling = "kernel_shape = [2,2], strides = [2,2]";
    let (mut inputs, mut outputs) = (format!("{} t0", tensor(0)), String::new());
    let mut nodes = String::new();
    for (at, layer) in layers.iter().enumerate() {
        let after = at + 1;
        let _ = match layer {
            Layer::Convolution(block) => {
                let weights = format!("float[{},{},3,3]", shapes[after].0, shapes[*block].0);
                let _ = write!(inputs, ", {weights} w{after}");
                let _ = write!(outputs, "{weights} dw{after}, ");
                writeln!(
                    nodes,
                    "[n{after}] t{after} = Conv <{window}> (t{at}, w{after})"
                )
            }
            Layer::Relu => writeln!(nodes, "[n{after}] t{after} = Relu (t{at})"),
            Layer::Add(with) => writeln!(nodes, "[n{after}] t{after} = Add (t{at}, t{with})"),
            Layer::Pool => writeln!(
                nodes,
                "[n{after}] t{after}, m{after} = MaxPool <{pooling}> (t{at})"
            ),
        };
    }
    let last = layers.len();
    let _ = write!(inputs, ", {} loss", tensor(last));
    // By result: the gradients that have come together so far.
    let mut gradients: Vec<Vec<String>> = vec![Vec::new(); layers.len() + 1];
    gradients[last].push("loss".to_owned());
    for (at, layer) in layers.iter().enumerate().rev() {
        let after = at + 1;
        let mut dy = gradients[after][0].clone();
        if let [one, other] = gradients[after].as_slice() {
            let _ = writeln!(nodes, "[s{after}] s{after} = Sum ({one}, {other})");
            dy = format!("s{after}");
        }
        let dx = format!("d{at}");
        let _ = match layer {
            Layer::Convolution(_) if at == 0 => {
                writeln!(
                    nodes,
                    "[g{after}] \"\", dw{after} = com.microsoft.ConvGrad <{window}> ({dy}, t0, w{after})"
                )
            }
            Layer::Convolution(_) => writeln!(
                nodes,
                "[g{after}] {dx}, dw{after} = com.microsoft.ConvGrad <{window}> ({dy}, t{at}, w{after})"
            ),
            Layer::Relu => writeln!(
                nodes,
                "[g{after}] {dx} = com.microsoft.ReluGrad ({dy}, t{after})"
            ),
            Layer::Pool => writeln!(
                nodes,
                "[g{after}] {dx} = MaxPoolGrad <{pooling}> ({dy}, m{after})"
            ),
            Layer::Add(with) => {
                gradients[*with].push(dy.clone());
                gradients[at].push(dy);
                continue;
            }
        };
        gradients[at].push(dx);
    }
    let outputs = outputs.trim_end_matches(", ");
    let text = format!(
        "<ir_version: 8, opset_import: [\"\" : 17, \"com.microsoft\" : 1]>\ng ({inputs}) => ({outputs})\n{{\n{nodes}}}"
    );
    Graph::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}
