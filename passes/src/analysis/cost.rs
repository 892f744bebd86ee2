//! Time and workspace of every node on a device.
//!
//! The roofline model (Williams, Waterman and Patterson, 2009): a kernel is limited either by
//! arithmetic or by memory traffic, `max(operations / rate, bytes / bandwidth)`, and has to be started (`started` in runtime/device.rs).
//! Both rates are the device's, times what kernels of the node's family reach of them.

use std::collections::BTreeMap;

use super::mirrors::mirrored_or_part;
use crate::bytes::Bytes;
use crate::cost::{Cost, Nanos};
use crate::graph::{ElementType, Graph, Node, NodeId};
use crate::operators::variants::nodes::{PART, part_name};
use crate::operators::{self, Family, Provider};
use crate::runtime::casting;
use crate::runtime::convolution_costs;
use crate::runtime::device::{Device, efficiency, nanos, rate, started};

/// The sizes of a tensor of eight dimensions: bytes.
const FEW_SIZES: Bytes = Bytes(64);

/// What the user says of one node (`--costs`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeOverride {
    /// Its measured time in microseconds.
    pub time_us: Option<f64>,
    /// What its kernel allocates besides its outputs.
    pub workspace_bytes: Option<u64>,
    /// Whether it may be computed twice.
    pub recomputable: Option<bool>,
    /// How many mirrors it gets from the strategies that go by mirror counts; none keeps its
    /// results.
    pub mirrors: Option<u32>,
    /// What the model says of it, once [`beside_model`] has looked.
    pub modelled: Option<Cost>,
}

/// Overrides by node name.
pub type Overrides = BTreeMap<String, NodeOverride>;

/// The cost of every node, by node id: at least a nanosecond each. Needs concrete shapes.
///
/// What is said of a node goes for its mirrors, `<original>/recompute_<k>` with the attribute `__recompute = k`,
/// and for the nodes of its variants, unless something is said of these themselves.
pub fn costs(graph: &Graph, device: &Device, overrides: &Overrides) -> Vec<Cost> {
    let between_casts = device.provider == Provider::Cpu && casting::are_there(graph);
    let wide = between_casts.then(|| in_float(graph));
    let cost = |id: NodeId| {
        let node = graph.node(id);
        let wide = wide.as_ref().filter(|_| casting::is_cast(graph, node));
        let modelled = modelled(wide.unwrap_or(graph), node, device);
        said_of(overrides, node).map_or(modelled, |said| said.cost(modelled))
    };
    (0..graph.node_count() as u32)
        .map(|id| cost(NodeId(id)))
        .collect()
}

/// The graph with float32 in place of float16, as the CPU computes what it has no kernels for.
fn in_float(graph: &Graph) -> Graph {
    let mut wide = graph.clone();
    let halves: Vec<_> = casting::halves(graph).collect();
    for half in halves {
        wide.tensor_mut(half).element = Some(ElementType::Float);
    }
    wide
}

/// `overrides` of nodes of `original`, beside what the model says of these: then their mirrors and the nodes
/// of their variants, which may be other operators, take as many times as long as the model says.
pub fn beside_model(overrides: &Overrides, original: &Graph, device: &Device) -> Overrides {
    let mut all = overrides.clone();
    for node in original.nodes() {
        let Some(&said) = overrides.get(&node.name) else {
            continue;
        };
        let modelled = Some(modelled(original, node, device));
        all.insert(node.name.clone(), NodeOverride { modelled, ..said });
        let part = NodeOverride {
            time_us: said.time_us,
            modelled,
            ..NodeOverride::default()
        };
        for tensor in node.writes() {
            let name = part_name(&original.tensor(tensor).name);
            all.entry(name).or_insert(part);
        }
    }
    all
}

impl NodeOverride {
    /// What a node costs of which the model says `modelled`.
    fn cost(&self, modelled: Cost) -> Cost {
        let reference = self.modelled.unwrap_or(modelled);
        let factor = modelled.time.0 as f64 / reference.time.0 as f64;
        let alike = modelled.workspace == reference.workspace;
        Cost {
            time: self
                .time_us
                .map_or(modelled.time, |us| nanos(us * 1e-6 * factor)),
            workspace: match self.workspace_bytes {
                Some(bytes) if alike => Bytes(bytes),
                _ => modelled.workspace,
            },
        }
    }
}

/// What is said of the node itself, or of what it stands for.
fn said_of<'o>(overrides: &'o Overrides, node: &Node) -> Option<&'o NodeOverride> {
    if overrides.is_empty() {
        return None;
    }
    let of = |name: &str| {
        let part = || {
            let (of, _) = name.rsplit_once('/')?;
            name.starts_with(PART).then(|| overrides.get(of))?
        };
        overrides.get(name).or_else(part)
    };
    of(&node.name).or_else(|| of(mirrored_or_part(node)?))
}

/// The name under which `node` is measured: its own, or that of the node that it is a mirror of.
pub fn measured_as(node: &Node) -> &str {
    mirrored_or_part(node).unwrap_or(&node.name)
}

/// What `node` costs where nobody says otherwise.
fn modelled(graph: &Graph, node: &Node, device: &Device) -> Cost {
    convolution_costs::cost(graph, node, device).unwrap_or_else(|| Cost {
        time: time(graph, node, device),
        workspace: operators::workspace(graph, node, device.provider, device.kernels)
            + match device.provider {
                Provider::Cpu => node.held.cpu,
                Provider::Cuda => node.held.cuda,
            },
    })
}

fn time(graph: &Graph, node: &Node, device: &Device) -> Nanos {
    let (family, seconds) = at_work(graph, node, device);
    started(device, family, seconds)
}

/// `device` as it is beside a step of `graph` in a session in which the host never waits for it; see [`Device::unawaited`].
pub(crate) fn unawaited(graph: &Graph, device: &Device) -> Device {
    let nodes = graph.nodes();
    let at_work = nodes.map(|node| match at_work(graph, node, device) {
        (Family::View, _) => 0.0,
        (_, seconds) => seconds,
    });
    device.unawaited(graph.order().len(), at_work.sum())
}

/// What kind of kernel the node has, and for how many seconds it is at work.
fn at_work(graph: &Graph, node: &Node, device: &Device) -> (Family, f64) {
    let family = match device.provider {
        Provider::Cuda if is_of_sizes(graph, node) => Family::View,
        _ => operators::family(graph, node),
    };
    let work = operators::work(graph, node, device.provider);
    let (arithmetic, memory) = efficiency(device.provider, family);
    let arithmetic = work.operations / (rate(graph, node, device) * arithmetic);
    let memory = work.bytes / (device.bytes_per_second * memory);
    (family, arithmetic.max(memory))
}

/// Does it compute but a few integers? The CUDA provider leaves such nodes to the host (runtime fact).
fn is_of_sizes(graph: &Graph, node: &Node) -> bool {
    node.writes().all(|id| {
        let tensor = graph.tensor(id);
        let is_small = tensor.bytes().is_some_and(|bytes| bytes <= FEW_SIZES);
        tensor.element == Some(ElementType::Int64) && is_small
    })
}

/// Nanoseconds of all nodes of a graph; `costs` by node id.
pub(crate) fn time_of_all(graph: &Graph, costs: &[Cost]) -> u64 {
    let times = graph.order().iter().map(|id| costs[id.index()].time.0);
    times.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{ElementType, Tensor, TensorKind};
    use crate::operators::variants::VARIANTS;
    use crate::rewrite::apply_variants::ApplyVariants;

    /// A product of two matrices `[n, n]`, and a view of the result.
    fn graph(n: u64, element: ElementType) -> Graph {
        let mut graph = Graph::new("test");
        let mut tensor = |name: &str, kind| {
            let known = Tensor {
                element: Some(element),
                shape: Some(vec![n, n]),
                ..Tensor::new(name, kind)
            };
            Some(graph.add_tensor(known))
        };
        let [a, b] = ["a", "b"].map(|name| tensor(name, TensorKind::Input));
        let [c, d] = ["c", "d"].map(|name| tensor(name, TensorKind::Value));
        graph.add_node(Node::new("product", "", "MatMul", vec![a, b], vec![c]));
        graph.add_node(Node::new("view", "", "Identity", vec![c], vec![d]));
        graph
    }

    fn times(graph: &Graph, device: &str, overrides: &Overrides) -> Vec<u64> {
        let device = Device::preset(device).expect("a preset");
        costs(graph, &device, overrides)
            .iter()
            .map(|cost| cost.time.0)
            .collect()
    }

    #[test]
    fn the_slower_of_arithmetic_and_memory_counts() {
        // 2 * 1024^3 operations / (0.42e12 * 1.0) = 5113.056 us; memory: 3 * 4 MiB / (70e9 * 0.21)
        // = 855.98 us; a launch of 4 us
        let graph = graph(1024, ElementType::Float);
        assert_eq!(times(&graph, "cpu", &Overrides::new()), [5_117_056, 4_000]);
        // 2 * 1024^3 / (494e12 * 0.65) = 6.688 us; 12 MiB / (3350e9 * 0.8) = 4.695 us; a launch of 4 us is hidden, and half
        // of one is left of what only hands on
        assert_eq!(times(&graph, "h100", &Overrides::new()), [6_688, 2_000]);
    }

    /// Two nodes start in 8 µs: their product takes 0.4 ms or 27 ns.
    #[test]
    fn a_view_is_free_beside_work_that_keeps_the_device_behind() {
        let device = Device::preset("h100").expect("a preset");
        let view = |n| {
            let graph = graph(n, ElementType::Float);
            costs(&graph, &unawaited(&graph, &device), &Overrides::new())[1].time
        };
        assert_eq!((view(4096), view(16)), (Nanos(1), Nanos(1000)));
    }

    #[test]
    fn half_precision_is_faster() {
        // 2 * 4096^3 / (125e12 * 0.65) = 1691.5 us against 2 * 4096^3 / (15.7e12 * 0.65)
        // = 13,467.6 us
        let times = |element| times(&graph(4096, element), "v100", &Overrides::new())[0];
        assert_eq!(times(ElementType::Float16) / 1000, 1_691);
        assert_eq!(times(ElementType::Float) / 1000, 13_467);
    }

    #[test]
    fn measured_times_replace_the_model_also_for_mirrors() {
        let mut graph = graph(16, ElementType::Float);
        let mut mirror = graph.node(crate::graph::NodeId(0)).clone();
        mirror.name = "product/recompute_2".to_owned();
        mirror.outputs = vec![None];
        mirror.set_attribute("__recompute", crate::graph::AttributeValue::Int(2));
        graph.add_node(mirror.clone());
        mirror.set_attribute("__recompute", crate::graph::AttributeValue::Int(3));
        graph.add_node(mirror);
        let measured = NodeOverride {
            time_us: Some(12.5),
            ..NodeOverride::default()
        };
        let overrides = Overrides::from([("product".to_owned(), measured)]);
        let times = times(&graph, "cpu", &overrides);
        assert_eq!(times[0], 12_500);
        assert_eq!(times[2], 12_500);
        assert_ne!(times[3], 12_500);
    }

    #[test]
    fn the_nodes_of_a_variant_share_what_was_measured_of_the_node() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[64,128] a, float[64,128] b) => ()
            <float[64,128] c, float[64,128] y> {
               [negative] c = Neg(a)
               [total] y = Sum(a, b, c, a, b)
            }"#;
        let original = Graph::parse(text).unwrap();
        let device = Device::preset("cpu").expect("a preset");
        let said = NodeOverride {
            time_us: Some(900.0),
            workspace_bytes: Some(5),
            ..NodeOverride::default()
        };
        let overrides = Overrides::from([("total".to_owned(), said)]);
        let overrides = beside_model(&overrides, &original, &device);
        let sum = costs(&original, &device, &overrides)[1];
        assert_eq!((sum.time, sum.workspace), (Nanos(900_000), Bytes(5)));

        let running = VARIANTS
            .iter()
            .find(|variant| variant.name == "running-sum");
        let choices = [(NodeId(1), running.unwrap())];
        let mut graph = original.clone();
        let replaced = ApplyVariants { choices: &choices }.replace(&mut graph);
        let costs = costs(&graph, &device, &overrides);
        let times = replaced[0].1.iter().map(|id| costs[id.index()].time.0);
        // Four Adds instead of a launch less of the same work.
        let launches = 3.0 * device.launch.0 as f64;
        let modelled = modelled(&original, original.node(NodeId(1)), &device)
            .time
            .0 as f64;
        let expected = 900_000.0 * (modelled + launches) / modelled;
        // Half a nanosecond of the model is as much more of what was measured.
        assert!((times.sum::<u64>() as f64 - expected).abs() < 1e-3 * expected);
        assert!(costs.iter().all(|cost| cost.workspace == Bytes(0)));
    }

    #[test]
    fn nothing_is_free_and_nonsense_does_not_overflow() {
        let graph = graph(16, ElementType::Float);
        let with = |us| {
            let said = NodeOverride {
                time_us: Some(us),
                ..NodeOverride::default()
            };
            times(&graph, "cpu", &Overrides::from([("view".to_owned(), said)]))[1]
        };
        assert_eq!(with(0.0), 1);
        assert_eq!(with(f64::NAN), 1);
        assert_eq!(with(-5.0), 1);
        assert_eq!(with(f64::INFINITY), u64::MAX);
    }

    #[test]
    fn workspace_can_be_overridden() {
        let graph = graph(16, ElementType::Float);
        let said = NodeOverride {
            workspace_bytes: Some(77),
            ..NodeOverride::default()
        };
        let overrides = Overrides::from([("product".to_owned(), said)]);
        let device = Device::preset("cpu").expect("a preset");
        assert_eq!(costs(&graph, &device, &overrides)[0].workspace, Bytes(77));
    }

    #[test]
    fn presets_are_found_by_name() {
        assert_eq!(
            Device::names().collect::<Vec<_>>(),
            ["cpu", "v100", "a100", "h100", "h200"]
        );
        assert_eq!(Device::preset("abacus"), None);
    }
}
