//! What convolutions cost where cuDNN computes them.

use super::convolutions::{AlgorithmChoice, Product, Timed, fastest_first};
use super::device::{Device, efficiency, rate, started};
use crate::cost::{Cost, Nanos};
use crate::graph::{Graph, Node};
use crate::operators::algorithms::{Direction, algorithms, channels_last};
use crate::operators::{Provider, family};

/// What a convolution costs where cuDNN computes it: its products one after another. `None` for other nodes and
/// devices. Needs concrete shapes.
pub(crate) fn cost(graph: &Graph, node: &Node, device: &Device) -> Option<Cost> {
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

/// The parts of a device's rates that matrix products reach whose operands are copied, which counts as bytes: the gradients by the data of
/// three convolutions of ResNet-18 on an H100 (64 images, 3 x 3 windows, float32, cuDNN 9.19), each within a tenth.
const CHANNELS_LAST: (f64, f64) = (0.3, 0.5);

/// By the roofline model of [`crate::analysis::cost`], the fastest first.
fn modelled(graph: &Graph, node: &Node, device: &Device) -> Vec<(Direction, Vec<Timed>)> {
    let family = family(graph, node);
    let (arithmetic, memory) = match device.convolutions.choice {
        AlgorithmChoice::Graph => CHANNELS_LAST,
        _ => efficiency(device.provider, family),
    };
    let rate = rate(graph, node, device) * arithmetic;
    let bandwidth = device.bytes_per_second * memory;
    let products = match device.convolutions.choice {
        AlgorithmChoice::Graph => channels_last(graph, node),
        _ => algorithms(graph, node),
    };
    let each = products.into_iter().map(|(direction, all)| {
        let timed = all.into_iter().map(|one| {
            let work = (one.operations / rate).max(one.bytes / bandwidth);
            Timed {
                name: one.name,
                time: started(device, family, work),
                workspace: one.workspace,
            }
        });
        (direction, fastest_first(timed.collect()))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::convolutions::{AlgorithmChoice, ConvolutionTable};
    use super::*;
    use crate::bytes::Bytes;
    use crate::graph::{AttributeValue, NodeId};
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

    fn device(choice: AlgorithmChoice, table: ConvolutionTable) -> Device {
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
        let of = |choice| costs(&graph, &device(choice, ConvolutionTable::new()));
        let [heuristic, limited, fixed] = AlgorithmChoice::TRAINING.map(of);
        // Winograd: 16 * 64 * 64 * 4.
        assert_eq!(heuristic[0].workspace, Bytes(262_144));
        assert_eq!(limited[0].workspace, AlgorithmChoice::LIMIT);
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
        let table = ConvolutionTable::from([(forward, measured)]);
        let of = |choice| costs(&graph, &device(choice, table.clone()));
        let model = |choice| costs(&graph, &device(choice, ConvolutionTable::new()));
        let [heuristic, limited, fixed] = AlgorithmChoice::TRAINING.map(of);
        let cost = |time, workspace| Cost {
            time: Nanos(time),
            workspace,
        };
        assert_eq!(heuristic[0], cost(10, Bytes(1 << 30)));
        assert_eq!(limited[0], cost(20, AlgorithmChoice::LIMIT));
        // Neither the algorithm that is always taken nor the other node is in the table.
        assert_eq!(fixed[0], model(AlgorithmChoice::Fixed)[0]);
        assert_eq!(heuristic[1], model(AlgorithmChoice::Heuristic)[1]);
        let listed = timed(
            &graph,
            graph.node(NodeId(0)),
            &device(AlgorithmChoice::Fixed, table.clone()),
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
