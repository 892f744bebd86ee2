//! `ckpt-opt conv-table`: what each convolution of a graph takes with each of cuDNN's algorithms.
//! `docs/convolution-algorithms.md` describes the JSON.

use ckpt_passes::analysis::algorithms::{Timed, timed};
use ckpt_passes::graph::{Graph, Node};
use ckpt_passes::operators::Provider;
use ckpt_passes::operators::algorithms::Direction;
use ckpt_passes::optimize::{OptimizeError, with_shapes};
use serde::Serialize;

use crate::cli::{ConvTable, Messages};
use crate::onnx::Model;
use crate::run::{self, Failure};

#[derive(Serialize)]
struct Table<'a> {
    device: &'a str,
    /// Where the figures are from: only a model so far.
    source: &'static str,
    convolutions: Vec<Convolution<'a>>,
}

/// One product of all nodes with the same operator, sizes and attributes.
#[derive(PartialEq, Serialize)]
struct Convolution<'a> {
    operator: &'a str,
    product: &'static str,
    /// Sizes of the node's inputs.
    inputs: Vec<&'a [u64]>,
    /// Those attributes that are given.
    attributes: Attributes<'a>,
    element_type: &'static str,
    /// Names.
    nodes: Vec<&'a str>,
    algorithms: Vec<Algorithm>,
}

#[derive(PartialEq, Serialize)]
struct Attributes<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pads: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strides: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dilations: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<i64>,
}

#[derive(PartialEq, Serialize)]
struct Algorithm {
    algorithm: &'static str,
    time_ns: u64,
    workspace_bytes: u64,
}

/// The table as JSON.
pub fn conv_table(arguments: &ConvTable, messages: &Messages) -> Result<String, Failure> {
    let profile = run::profile(&arguments.setting)?;
    let options = run::options(&arguments.setting, profile.as_ref())?;
    if options.device.provider != Provider::Cuda {
        return Err(Failure::Usage(format!(
            "--device {} has no cuDNN; conv-table is for v100, a100, h100, h200 or a file with the \
             provider cuda",
            options.device.name
        )));
    }
    let model = Model::open(&arguments.input)?;
    let graph = run::graph(&model, profile.as_ref(), &options)?;
    run::warn(&model, &graph, &options, profile.as_ref(), messages);
    let graph = with_shapes(&graph, &options).map_err(|error| Failure::Optimize {
        file: arguments.input.clone(),
        error: OptimizeError::Shape(error).into(),
    })?;
    let mut convolutions: Vec<Convolution<'_>> = Vec::new();
    for &id in graph.order() {
        let node = graph.node(id);
        for (direction, algorithms) in timed(&graph, node, &options.device) {
            let one = convolution(&graph, node, direction, &algorithms);
            let same = |other: &&mut Convolution<'_>| {
                let key = |of: &Convolution<'_>| (of.product, of.element_type);
                key(other) == key(&one)
                    && other.operator == one.operator
                    && other.inputs == one.inputs
                    && other.attributes == one.attributes
            };
            match convolutions.iter_mut().find(same) {
                Some(known) => known.nodes.push(&node.name),
                None => convolutions.push(one),
            }
        }
    }
    Ok(crate::report::line(&Table {
        device: &options.device.name,
        source: "model",
        convolutions,
    }))
}

fn convolution<'a>(
    graph: &'a Graph,
    node: &'a Node,
    direction: Direction,
    algorithms: &[Timed],
) -> Convolution<'a> {
    let shape = |id| graph.tensor(id).shape.as_deref();
    let element = node.reads().find_map(|id| graph.tensor(id).element);
    Convolution {
        operator: &node.op_type,
        product: match direction {
            Direction::Forward => "forward",
            Direction::BackwardData => "backward-data",
            Direction::BackwardFilter => "backward-filter",
        },
        inputs: node.reads().filter_map(shape).collect(),
        attributes: Attributes {
            pads: node.ints("pads"),
            strides: node.ints("strides"),
            dilations: node.ints("dilations"),
            group: node.int("group"),
        },
        element_type: element.map_or("unknown", |element| element.name()),
        nodes: vec![&node.name],
        algorithms: algorithms
            .iter()
            .map(|one| Algorithm {
                algorithm: one.name,
                time_ns: one.time.0,
                workspace_bytes: one.workspace.0,
            })
            .collect(),
    }
}
