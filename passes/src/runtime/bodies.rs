//! What ONNX Runtime allocates while it runs the subgraphs of a node.
//!
//! A subgraph is run like a graph: in an order of its own, with a frame and, should the settings have one, a memory pattern of
//! its own. What it reads from around it is not copied. Measured with If, Loop and Scan of one to six nodes, names
//! and numbers for sizes, one to five iterations, on the CPU (1.19.2): exact to some kilobytes.

use super::known_shapes::{Shapes, runtime_shapes};
use super::liveness::{Needs, TENSOR};
use super::order::{ExecutionOrder, execution_order};
use super::release::PatternOf;
use super::settings::RuntimeSettings;
use super::skeleton::Skeleton;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, TensorKind};
use crate::operators::{self, CpuKernels, Provider};

/// What a subgraph needs at most besides what it is given, whatever the settings and the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// With its results.
    pub(crate) whole: Bytes,
    /// With results that have their memory from outside.
    pub(crate) beside_results: Bytes,
}

/// Its tensors' places in the frame, 28 bytes each, and what else a run takes.
fn frame(body: &Graph) -> Bytes {
    Bytes((body.tensor_count() as u64).saturating_mul(28) + 4096)
}

/// Of `body`, which has concrete shapes.
pub(crate) fn need(body: &Graph, provider: Provider) -> Need {
    let cost = |id| {
        let node = body.node(id);
        let held = match provider {
            Provider::Cpu => node.held.cpu,
            Provider::Cuda => node.held.cuda,
        };
        Cost {
            workspace: operators::workspace(body, node, provider, CpuKernels::DEFAULT) + held,
            ..Cost::default()
        }
    };
    let costs: Vec<Cost> = body.node_ids().map(cost).collect();
    let all_known = runtime_shapes(body);
    // How much the runtime knows before of the sizes in a subgraph depends on the node and on what is around it.
    let known = [&all_known, &vec![None; all_known.len()]];
    let most = |without_results: bool| {
        let needs = known.iter().map(|shapes| {
            let mut skeleton = Skeleton::with_shapes(body, shapes, provider, &costs);
            for output in body.outputs.iter().filter(|_| without_results) {
                skeleton.size[output.index()] = 0;
            }
            // From the second run or iteration on, the memory pattern is that of what was allocated in the first.
            let shapes = skeleton
                .shapes(body, shapes, &[])
                .for_pattern(PatternOf::FirstStep);
            largest(&skeleton, &shapes)
        });
        Bytes(needs.max().unwrap_or(0)) + frame(body)
    };
    let results = body.outputs.iter().map(|&id| body.tensor(id));
    // What is handed through as it is, is copied.
    let handed_on = results
        .filter(|tensor| tensor.kind != TensorKind::Value)
        .filter_map(|tensor| tensor.memory())
        .sum::<Bytes>();
    Need {
        whole: most(false) + handed_on,
        beside_results: most(true),
    }
}

/// Of both orders and settings.
fn largest(skeleton: &Skeleton, shapes: &Shapes) -> u64 {
    let orders = ExecutionOrder::of(skeleton).iter();
    let needs = orders.flat_map(|&order| {
        let order = execution_order(skeleton, order);
        let settings = [None, Some((RuntimeSettings::DEFAULT, shapes))];
        settings.map(|settings| Needs::of(skeleton, &order, settings, TENSOR.0).most())
    });
    needs.max().unwrap_or(0)
}

/// What an If takes besides its results, of which the runtime makes the memory before it runs a branch: the branch
/// that takes most.
pub(crate) fn of_if(branches: &[Need]) -> Bytes {
    let needs = branches.iter().map(|branch| branch.beside_results);
    needs.max().unwrap_or(Bytes::ZERO)
}

/// What a Loop holds of values that go from one iteration to the next and of what each iteration adds to its results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Iterations {
    /// How many there are at most.
    pub(crate) trips: u64,
    /// The values that are carried on.
    pub(crate) carried: Bytes,
    /// What one iteration adds.
    pub(crate) added: Bytes,
    /// The node's results.
    pub(crate) results: Bytes,
}

/// What a Loop takes before its results, and besides them. An iteration has the values of the one before and what all of them
/// added; at the end there are the last values twice, and all that was added, while the results are copied from them.
pub(crate) fn of_loop(body: Need, given: Iterations) -> (Bytes, Bytes) {
    let added = |trips: u64| Bytes(given.added.0.saturating_mul(trips));
    // What the first one is given is nobody's copy.
    let before = match given.trips {
        0 | 1 => Bytes::ZERO,
        _ => given.carried,
    };
    let within = before + added(given.trips.saturating_sub(1)) + body.whole;
    let at_the_end = before + given.carried + added(given.trips) + given.results;
    (within, within.max(at_the_end) - given.results)
}

/// What a Scan takes besides its results, which the body writes slice by slice. Values that are carried on lie in two
/// buffers in turn from the third iteration on; inputs and results along other axes than the first are transposed.
pub(crate) fn of_scan(body: Need, given: Iterations, transposed: Bytes) -> Bytes {
    let buffers = given.trips.saturating_sub(1).min(2);
    body.beside_results + Bytes(given.carried.0.saturating_mul(buffers)) + transposed
}
