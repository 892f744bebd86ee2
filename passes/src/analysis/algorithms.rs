//! Which of cuDNN's algorithms convolutions take on a device, and what they cost there.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cost::{Cost, Device, Nanos, efficiency, nanos, rate};
use crate::bytes::Bytes;
use crate::graph::{AttributeValue, Graph, Node};
use crate::operators::algorithms::{Direction, algorithms};
use crate::operators::{Provider, family};

/// One algorithm on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// As the table names it.
    pub name: &'static str,
    /// How long it takes.
    pub time: Nanos,
    /// What it allocates besides its results.
    pub workspace: Bytes,
}

/// One product of a convolution; all nodes with an equal one take equally long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Product {
    /// The node's operator.
    pub operator: String,
    /// Which of its products.
    pub direction: Direction,
    /// The shapes of the node's inputs.
    pub inputs: Vec<Vec<u64>>,
    /// Those attributes that are given.
    pub attributes: Attributes,
    /// ONNX's name of the first input's type.
    pub element_type: String,
}

/// Attributes that change what a convolution has to do, as far as the node has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes {
    /// `auto_pad`.
    pub auto_pad: Option<String>,
    /// `pads`.
    pub pads: Option<Vec<i64>>,
    /// `strides`.
    pub strides: Option<Vec<i64>>,
    /// `dilations`.
    pub dilations: Option<Vec<i64>>,
    /// `group`.
    pub group: Option<i64>,
}

impl Product {
    /// What `node` computes in `direction`. Needs concrete shapes.
    pub fn of(graph: &Graph, node: &Node, direction: Direction) -> Product {
        let element = node.reads().find_map(|id| graph.tensor(id).element);
        let list = |name| node.ints(name).map(<[i64]>::to_vec);
        let auto_pad = match node.attribute("auto_pad") {
            Some(AttributeValue::String(name)) => Some(String::from_utf8_lossy(name).into_owned()),
            _ => None,
        };
        Product {
            operator: node.op_type.clone(),
            direction,
            inputs: node
                .reads()
                .filter_map(|id| graph.tensor(id).shape.clone())
                .collect(),
            attributes: Attributes {
                auto_pad,
                pads: list("pads"),
                strides: list("strides"),
                dilations: list("dilations"),
                group: node.int("group"),
            },
            element_type: element
                .map_or("unknown", |element| element.name())
                .to_owned(),
        }
    }
}

/// Figures that take the place of the model's, at least one algorithm for each product.
pub type Table = BTreeMap<Product, Vec<Timed>>;

/// How a device computes convolutions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Convolutions {
    /// How the provider chooses.
    pub choice: Choice,
    /// What is known of single products; for the rest there is the model.
    pub table: Arc<Table>,
}

/// How ONNX Runtime's CUDA provider chooses an algorithm, by its options (read in the code of 1.19).
///
/// The default, an exhaustive search with as much workspace as there is, is not among them: in the first
/// step it allocates the largest workspace of any algorithm to try all, which no budget could hold for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// cuDNN says which is the fastest, whatever it allocates.
    #[default]
    Heuristic,
    /// All that need at most [`Choice::LIMIT`] are tried, in a workspace of that size.
    Limited,
    /// Always [`Direction::fixed`].
    Fixed,
}

impl Choice {
    /// The workspace of a search that is not to take more.
    pub const LIMIT: Bytes = Bytes(32 << 20);

    /// All of them, the fastest first.
    pub const ALL: [Choice; 3] = [Choice::Heuristic, Choice::Limited, Choice::Fixed];

    /// The provider's options, by name.
    pub fn provider_options(self) -> [(&'static str, &'static str); 2] {
        let (search, max) = match self {
            Choice::Heuristic => ("HEURISTIC", "1"),
            Choice::Limited => ("EXHAUSTIVE", "0"),
            Choice::Fixed => ("DEFAULT", "1"),
        };
        [
            ("cudnn_conv_algo_search", search),
            ("cudnn_conv_use_max_workspace", max),
        ]
    }

    /// Does each node try algorithms for itself? Those with equal products may then take different ones.
    pub fn tries(self) -> bool {
        self == Choice::Limited
    }

    /// Which of `all`, the fastest first, is taken.
    pub fn takes(self, direction: Direction, all: &[Timed]) -> Option<Timed> {
        let mut all = all.iter();
        let taken = match self {
            Choice::Heuristic => all.next(),
            Choice::Limited => all.find(|one| one.workspace <= Choice::LIMIT),
            Choice::Fixed => all.find(|one| one.name == direction.fixed()),
        };
        taken.copied()
    }

    /// Its time; what is allocated for it, the search included.
    fn of(self, direction: Direction, all: &[Timed]) -> Option<(Nanos, Bytes)> {
        let taken = self.takes(direction, all)?;
        let workspace = match self.tries() {
            true => Choice::LIMIT,
            false => taken.workspace,
        };
        Some((taken.time, workspace))
    }
}

/// What a convolution costs where cuDNN computes it: its products one after another. `None` for other nodes and
/// devices. Needs concrete shapes.
pub(super) fn cost(graph: &Graph, node: &Node, device: &Device) -> Option<Cost> {
    if device.provider != Provider::Cuda {
        return None;
    }
    let choice = device.convolutions.choice;
    let mut cost: Option<Cost> = None;
    for (direction, model) in modelled(graph, node, device) {
        let known = in_table(graph, node, direction, device);
        let taken = known.and_then(|known| choice.of(direction, known));
        let (time, workspace) = taken.or_else(|| choice.of(direction, &model))?;
        let sum = cost.get_or_insert_default();
        sum.time = Nanos(sum.time.0.saturating_add(time.0));
        sum.workspace = sum.workspace.max(workspace);
    }
    cost
}

/// For each product that `node` computes, its algorithms, the fastest first: as the table has them, or else
/// by the model. Empty for nodes that are no convolutions. Needs concrete shapes.
pub fn timed(graph: &Graph, node: &Node, device: &Device) -> Vec<(Direction, Vec<Timed>)> {
    let mut products = modelled(graph, node, device);
    for (direction, all) in &mut products {
        if let Some(known) = in_table(graph, node, *direction, device) {
            *all = known.to_vec();
        }
    }
    products
}

fn in_table<'d>(
    graph: &Graph,
    node: &Node,
    direction: Direction,
    device: &'d Device,
) -> Option<&'d [Timed]> {
    let table = &device.convolutions.table;
    if table.is_empty() {
        return None;
    }
    let known = table.get(&Product::of(graph, node, direction))?;
    Some(known)
}

/// By the roofline model of [`super::cost`], the fastest first.
fn modelled(graph: &Graph, node: &Node, device: &Device) -> Vec<(Direction, Vec<Timed>)> {
    let (arithmetic, memory) = efficiency(device.provider, family(graph, node));
    let rate = rate(graph, node, device) * arithmetic;
    let bandwidth = device.bytes_per_second * memory;
    let products = algorithms(graph, node).into_iter();
    let each = products.map(|(direction, all)| {
        let timed = all.into_iter().map(|one| {
            let work = (one.operations / rate).max(one.bytes / bandwidth);
            Timed {
                name: one.name,
                time: nanos(device.launch.0 as f64 * 1e-9 + work),
                workspace: one.workspace,
            }
        });
        (direction, fastest_first(timed.collect()))
    });
    each.collect()
}

/// As [`Table`] has them.
pub fn fastest_first(mut all: Vec<Timed>) -> Vec<Timed> {
    all.sort_by_key(|one| (one.time, one.workspace));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::NodeId;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;

    fn graph() -> Graph {
        let text = "<ir_version: 8, opset_import: [\"\" : 17, \"com.microsoft\" : 1]>
            g (float[8,64,56,56] dy, float[8,64,56,56] x, float[64,64,3,3] w)
                => (float[8,64,56,56] y, float[8,64,56,56] dx, float[64,64,3,3] dw)
            {
                [conv] y = Conv <pads = [1,1,1,1]> (x, w)
                [grad] dx, dw = com.microsoft.ConvGrad <pads = [1,1,1,1]> (dy, x, w)
            }";
        let mut graph = Graph::parse(text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        graph
    }

    fn device(choice: Choice, table: Table) -> Device {
        let mut device = Device::preset("v100").expect("a preset");
        device.convolutions.choice = choice;
        device.convolutions.table = Arc::new(table);
        device
    }

    fn costs(graph: &Graph, device: &Device) -> [Cost; 2] {
        [0, 1].map(|n| cost(graph, graph.node(NodeId(n)), device).expect("a convolution"))
    }

    #[test]
    fn the_provider_s_options_say_which_algorithm_counts() {
        let graph = graph();
        let of = |choice| costs(&graph, &device(choice, Table::new()));
        let [heuristic, limited, fixed] = Choice::ALL.map(of);
        // Winograd: 16 * 64 * 64 * 4.
        assert_eq!(heuristic[0].workspace, Bytes(262_144));
        assert_eq!(limited[0].workspace, Choice::LIMIT);
        // 4 * 56 * 56 * 9
        assert_eq!(fixed[0].workspace, Bytes(112_896));
        for node in [0, 1] {
            assert!(heuristic[node].time <= limited[node].time);
            assert!(limited[node].time < fixed[node].time);
        }
        // Two products, one after another.
        assert!(fixed[1].time > fixed[0].time);
        assert_eq!(fixed[1].workspace, fixed[0].workspace);
        let cpu = Device::preset("cpu").expect("a preset");
        assert_eq!(cost(&graph, graph.node(NodeId(0)), &cpu), None);
    }

    #[test]
    fn what_the_table_has_takes_the_place_of_the_model() {
        let graph = graph();
        let forward = Product::of(&graph, graph.node(NodeId(0)), Direction::Forward);
        let one = |name, time, workspace| Timed {
            name,
            time: Nanos(time),
            workspace: Bytes(workspace),
        };
        let measured = vec![one("fft", 10, 1 << 30), one("implicit-gemm", 20, 0)];
        let table = Table::from([(forward, measured)]);
        let of = |choice| costs(&graph, &device(choice, table.clone()));
        let model = |choice| costs(&graph, &device(choice, Table::new()));
        let [heuristic, limited, fixed] = Choice::ALL.map(of);
        let cost = |time, workspace| Cost {
            time: Nanos(time),
            workspace,
        };
        assert_eq!(heuristic[0], cost(10, Bytes(1 << 30)));
        assert_eq!(limited[0], cost(20, Choice::LIMIT));
        // Neither the algorithm that is always taken nor the other node is in the table.
        assert_eq!(fixed[0], model(Choice::Fixed)[0]);
        assert_eq!(heuristic[1], model(Choice::Heuristic)[1]);
        let listed = timed(
            &graph,
            graph.node(NodeId(0)),
            &device(Choice::Fixed, table.clone()),
        );
        assert_eq!(listed[0].1.len(), 2);
    }

    #[test]
    fn other_attributes_are_another_product() {
        let graph = graph();
        let mut node = graph.node(NodeId(0)).clone();
        let product = |node: &Node| Product::of(&graph, node, Direction::Forward);
        let before = product(&node);
        node.set_attribute("auto_pad", AttributeValue::String(b"VALID".to_vec()));
        assert_ne!(product(&node), before);
    }
}
