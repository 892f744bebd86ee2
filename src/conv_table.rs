//! `ckpt-opt conv-table` and `profile-conv`: what each convolution of a graph takes with each of cuDNN's algorithms, by
//! the model and measured.
//! `docs/convolution-algorithms.md` describes the JSON.

use std::collections::BTreeMap;
use std::path::Path;

use ckpt_passes::bytes::Bytes;
use ckpt_passes::cost::Nanos;
use ckpt_passes::operators::Provider;
use ckpt_passes::operators::algorithms::{Direction, Geometry, geometry};
use ckpt_passes::optimize::{self, BudgetRequest, OptimizeError, with_shapes};
use ckpt_passes::runtime::convolutions::{Product, ProductAttributes, Timed, fastest_first};
use ckpt_passes::runtime::device::Device;
use serde::Serialize;

use crate::control::{Event, Warning};
use crate::cudnn::{self, Gpu};
use crate::error::Error;
use crate::job::Job;
use crate::onnx::Model;
use crate::options::Options;
use crate::products::{Products, products};

#[derive(Serialize)]
struct Table<'a> {
    device: &'a str,
    /// Where the figures are from.
    source: &'a str,
    convolutions: Vec<Convolution<'a>>,
}

/// One product of all nodes with the same operator, sizes and attributes.
#[derive(Serialize)]
struct Convolution<'a> {
    operator: &'a str,
    product: &'static str,
    /// Sizes of the node's inputs.
    inputs: &'a [Vec<u64>],
    attributes: Attributes<'a>,
    element_type: &'a str,
    /// Names.
    nodes: &'a [&'a str],
    algorithms: Vec<Algorithm>,
}

/// Those that are given.
#[derive(Serialize)]
struct Attributes<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_pad: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pads: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strides: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dilations: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<i64>,
}

#[derive(Serialize)]
struct Algorithm {
    algorithm: &'static str,
    time_ns: u64,
    workspace_bytes: u64,
}

/// The table as JSON: what the model says of each convolution, or the table that [`Device::convolutions`] has.
pub fn modelled(model: &Model, options: &Options) -> Result<String, Error> {
    let (job, plan_options) = open("conv-table", model, options)?;
    let source = match plan_options.device.convolutions.table.is_empty() {
        true => "model",
        false => "table and model",
    };
    Ok(json(
        &plan_options,
        source,
        &products(&job.graph, &plan_options),
    ))
}

/// This machine's first GPU.
pub fn open_gpu(cudart: Option<&Path>, cudnn: Option<&Path>) -> Result<Gpu, Error> {
    Ok(Gpu::open(cudart, cudnn)?)
}

/// The same, measured on the GPU.
pub fn measured(gpu: &Gpu, model: &Model, options: &Options) -> Result<String, Error> {
    let (mut job, plan_options) = open("profile-conv", model, options)?;
    let graph = job.graph.clone();
    let mut products = products(&graph, &plan_options);
    let places: Vec<(Product, Geometry)> = graph
        .order()
        .iter()
        .map(|&id| graph.node(id))
        .filter_map(|node| Some((node, geometry(&graph, node)?)))
        .flat_map(|(node, geometry)| {
            let each = Direction::ALL.map(|direction| Product::of(&graph, node, direction));
            each.map(|product| (product, geometry.clone()))
        })
        .collect();
    let geometries: BTreeMap<Product, Geometry> = places.into_iter().collect();
    let all = products.len();
    let mut done = 0;
    products.retain(|product, (nodes, algorithms)| {
        done += 1;
        let node = nodes.first().copied().unwrap_or_default();
        let direction = product.direction;
        options.control.tell(&Event::Measuring {
            done,
            all,
            what: &format!("{node}, {}", direction.name()),
        });
        let measured = match geometries.get(product) {
            Some(geometry) => gpu
                .measure(geometry, direction)
                .map_err(|error| error.to_string()),
            None => Err("cuDNN pads both ends of an axis alike".to_owned()),
        };
        let problem = match measured {
            Ok(measured) if !measured.is_empty() => {
                let timed = measured.iter().map(|one| Timed {
                    name: one.name,
                    time: Nanos((f64::from(one.milliseconds) * 1e6) as u64),
                    workspace: Bytes(one.workspace as u64),
                });
                *algorithms = fastest_first(timed.collect());
                return true;
            }
            Ok(_) => "no algorithm runs".to_owned(),
            Err(problem) => problem,
        };
        let name = direction.name();
        job.warn(Warning::Doubt(format!(
            "node {node:?}, {name} is not measured: {problem}"
        )));
        false
    });
    Ok(json(&plan_options, &cudnn::name_of(gpu.version), &products))
}

/// The graph with shapes, and what it shall run on; `asked` needs cuDNN.
fn open(
    asked: &'static str,
    model: &Model,
    options: &Options,
) -> Result<(Job, optimize::PlanOptions), Error> {
    has_cudnn(asked, &options.device)?;
    let mut job = Job::new(model, options, optimize::check_measurable)?;
    let plan_options = job.options.to_plan(BudgetRequest::Smallest)?;
    job.graph = with_shapes(&job.graph, &plan_options)
        .map_err(|error| job.failed(OptimizeError::Shape(error)))?;
    Ok((job, plan_options))
}

fn json(options: &optimize::PlanOptions, source: &str, products: &Products<'_>) -> String {
    crate::json::line(&Table {
        device: &options.device.name,
        source,
        convolutions: products
            .iter()
            .map(|(product, (nodes, all))| convolution(product, nodes, all))
            .collect(),
    })
}

/// An error where cuDNN computes nothing; `asked` needs it.
pub(crate) fn has_cudnn(asked: &'static str, device: &Device) -> Result<(), Error> {
    match device.provider {
        Provider::Cuda => Ok(()),
        Provider::Cpu => Err(Error::NoCudnn {
            asked,
            device: device.name.clone(),
        }),
    }
}

fn convolution<'a>(
    product: &'a Product,
    nodes: &'a [&'a str],
    algorithms: &[Timed],
) -> Convolution<'a> {
    let ProductAttributes {
        auto_pad,
        pads,
        strides,
        dilations,
        group,
    } = &product.attributes;
    Convolution {
        operator: &product.operator,
        product: product.direction.name(),
        inputs: &product.inputs,
        attributes: Attributes {
            auto_pad: auto_pad.as_deref(),
            pads: pads.as_deref(),
            strides: strides.as_deref(),
            dilations: dilations.as_deref(),
            group: *group,
        },
        element_type: &product.element_type,
        nodes,
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
