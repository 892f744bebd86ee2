//! What the user should look at before planning: what in the model, the options and their files does not go together.

use ckpt_passes::bytes::Bytes;
use ckpt_passes::graph::{Dimension, Graph, TensorId};
use ckpt_passes::operators::variants::{APPROXIMATIONS, Approximation, Group};
use ckpt_passes::operators::{CpuKernels, Provider, clears_behind_its_result, workspace};
use ckpt_passes::optimize::{PlanOptions, stale, uncounted, with_shapes};
use ckpt_passes::runtime::blocks::in_blocks;
use ckpt_passes::runtime::promise::Promise;
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::runtime::{STOCK_WITH_COLUMNS, TRAINING};
use ckpt_passes::strategy::Strategy;

use crate::inputs::{Profile, unknown_nodes};
use crate::onnx::{Fault, Model};
use crate::products;
use crate::text::some_of;

/// How far what is said of a step holds on a GPU (docs/gpu.md). In other sessions than the measured one, nodes on either device form
/// streams, which share buffers by other rules than one stream does.
fn on_gpu(options: &PlanOptions) -> &'static str {
    let runtime = &options.runtime;
    match runtime.settings == RuntimeSettings::LEAN && runtime.promise == Promise::ON_GPU {
        true => {
            "what CUDA, cuDNN and cuBLAS hold for themselves comes beside what is said: leave room with --reserve"
        }
        false => {
            "on a GPU, what a step takes is known in DEFAULT order at ORT_DISABLE_ALL alone, with enable_mem_reuse and enable_mem_pattern \
             off: elsewhere steps took far more than is said; leave --order, --level and --runtime-settings out"
        }
    }
}

/// What in the model and the options does not go together, a sentence each.
pub(crate) fn doubts(
    model: &Model,
    graph: &Graph,
    options: &PlanOptions,
    profile: Option<&Profile>,
) -> Vec<String> {
    let mut doubts = Vec::new();
    for file in model.external_data() {
        let (tensor, location) = (&file.tensor, &file.location);
        match file.fault() {
            None => {}
            Some(Fault::Missing) => doubts.push(format!(
                "the model keeps {tensor:?} in {location:?}, which is missing: it cannot run without"
            )),
            Some(Fault::NotAFile) => doubts.push(format!(
                "the model keeps {tensor:?} in {location:?}, which is not a file: it cannot run so"
            )),
            Some(Fault::Ends(end)) => doubts.push(format!(
                "the model keeps {:?} in {location:?} up to byte {}, but that ends at byte {end}: it cannot run so",
                file.last, file.bytes
            )),
        }
    }
    let stale = stale(graph, options);
    if let Some(first) = stale.first() {
        let more = match stale.len() - 1 {
            0 => String::new(),
            more => format!(" (and so are {more} more)"),
        };
        doubts.push(format!(
            "{:?} is declared as {}, but {} makes it {}{more}: sizes are taken as the nodes make them",
            first.tensor, first.declared, first.node, first.inferred
        ));
    }
    let inputs = graph.inputs.iter().map(|&id| graph.tensor(id));
    let unseen: Vec<&str> = inputs
        .filter(|input| input.other.is_some())
        .map(|input| input.name.as_str())
        .collect();
    if !unseen.is_empty() {
        doubts.push(format!(
            "graph inputs that are no tensors have no size, and what they hold is not counted, but by --reserve: {}",
            some_of(&unseen)
        ));
    }
    let uncounted = uncounted(graph, options);
    if let Some((node, why)) = uncounted.first() {
        let more = match uncounted.len() - 1 {
            0 => String::new(),
            more => format!(" (and of {more} more)"),
        };
        doubts.push(format!(
            "the memory that the subgraphs of {node}{more} take is not counted: {why}; --costs can give it, as the node's workspace_bytes"
        ));
    }
    if options.device.provider == Provider::Cuda {
        doubts.push(on_gpu(options).to_owned());
        if options.runtime.release.trains {
            doubts.push(format!(
                "plans for {} were not run on a GPU; those for current builds were: ckpt-opt lower writes the graph for them",
                options.runtime.release.title
            ));
        }
    }
    if has_yield(graph) {
        let settings = match options.runtime.settings {
            RuntimeSettings::LEAN => "",
            _ => {
                "; ORTModule turns enable_mem_reuse and enable_mem_pattern off: --runtime-settings lean reaches less"
            }
        };
        doubts.push(format!(
            "the graph has a YieldOp, as ORTModule's graphs do: what PyTorch keeps between its two halves is not \
             counted{settings}"
        ));
    }
    let replaces =
        |one: &&Approximation| options.allowed.contains(one.name) && !one.variants.is_empty();
    if options.strategy != Strategy::Auto {
        for one in APPROXIMATIONS.iter().filter(replaces) {
            doubts.push(format!(
                "--allow {} changes nothing with --strategy {}: only auto replaces such nodes",
                one.name, options.strategy
            ));
        }
    }
    let of_profile = profile.map(|profile| profile.doubts(graph, &options.bindings));
    doubts.extend(of_profile.into_iter().flatten());
    let (missing, all) = products::missing(graph, options);
    if missing > 0 {
        doubts.push(format!(
            "the convolution table has nothing for {missing} of {all} products of convolutions, which are worked out"
        ));
    }
    let overrunning = overrunning(graph);
    if options.device.provider == Provider::Cpu && !overrunning.is_empty() {
        let plans = match options.variants.contains(&Group::Convolution) {
            true => {
                "plans have transposed convolutions in their place, which compute the same bits, unless they are not in float32 or pad by \"auto_pad\""
            }
            false => "plans, too, since --variants leaves out \"convolution\"",
        };
        doubts.push(format!(
            "{} clears memory behind the result of gradients of convolutions with groups and \
             one or three axes on the CPU, so in the graph as it is gradients can be wrong and the process can end; {plans}. What ckpt-opt lower \
             writes is right: {}",
            options.runtime.release.name,
            some_of(&overrunning)
        ));
    }
    let trains = options.runtime.release == &TRAINING && options.device.provider == Provider::Cpu;
    let unpadded = unpadded(graph);
    if trains && !unpadded.is_empty() {
        doubts.push(format!(
            "{} computes gradients of convolutions that pad by \"auto_pad\" from memory that nobody wrote on the CPU, so they are wrong, \
             and other ones each time, in either graph; \"pads\" says the same and is computed right: {}",
            options.runtime.release.name,
            some_of(&unpadded)
        ));
    }
    let unsized_poolings = unsized_poolings(graph);
    if trains && !unsized_poolings.is_empty() {
        doubts.push(format!(
            "{} makes the results of gradients of poolings on the CPU as large as the file declares them, and takes a name, such as \
             \"batch\", for 0: others read memory that nobody wrote, or the process ends, with either graph; declare numbers, as \
             tools/fix_dims.py does: {}",
            options.runtime.release.name,
            some_of(&unsized_poolings)
        ));
    }
    let shaped = with_shapes(graph, options);
    let in_blocks = shaped.as_ref().map_or(Vec::new(), in_blocks);
    if options.device.provider == Provider::Cpu && !in_blocks.is_empty() {
        doubts.push(format!(
            "at ORT_ENABLE_ALL the runtime computes these in blocks of channels, with copies of what they read and write, which the figures of \
             the unmodified graph leave out (they hold with the config entry \"optimization.disable_specified_optimizers\": \
             \"NchwcTransformer\"); the written graph avoids the copies, or --session-options asks for the entry: {}",
            some_of(&in_blocks)
        ));
    }
    let uncounted_columns = shaped
        .as_ref()
        .ok()
        .and_then(|graph| uncounted_columns(graph, options));
    doubts.extend(uncounted_columns);
    let chosen = shaped.as_ref().map_or(Vec::new(), chosen_before);
    if !chosen.is_empty() {
        doubts.push(format!(
            "from ORT_ENABLE_BASIC on the runtime puts the branch that a constant chooses in the place of these, which is not \
             simulated, so that a step can take more than is said, in either graph; ORT_DISABLE_ALL does not, and --reserve leaves \
             room: {}",
            some_of(&chosen)
        ));
    }
    let unknown = unknown_nodes(&options.overrides, graph);
    if !unknown.is_empty() {
        doubts.push(format!(
            "the cost table has {} of {} entries for nodes that the graph does not have: {}",
            unknown.len(),
            options.overrides.len(),
            some_of(&unknown)
        ));
    }
    doubts
}

/// The names of the nodes with two branches of which a constant chooses one, that no caller can replace. The contents of constants
/// must be known.
///
/// Runtime fact (measured: a step that took 2,571 KiB unoptimized took 2,827 KiB at ORT_ENABLE_ALL).
fn chosen_before(graph: &Graph) -> Vec<&str> {
    let is_constant =
        |id: TensorId| graph.tensor(id).constant.is_some() && !graph.inputs.contains(&id);
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let found = nodes.filter(|node| {
        let mut bodies = node.bodies.iter();
        bodies.any(|body| body.attribute == "then_branch") && node.input(0).is_some_and(is_constant)
    });
    found.map(|node| node.name.as_str()).collect()
}

/// How much more convolutions take than is counted in some sessions: of other releases, or with more threads. Says nothing of less than a
/// two thousandth of what a step computes.
fn uncounted_columns(graph: &Graph, options: &PlanOptions) -> Option<String> {
    const HARDLY_ANYTHING: u64 = 2_000;
    let (release, counted) = (options.runtime.release, options.device.kernels);
    if release.trains || options.device.provider != Provider::Cpu {
        return None;
    }
    let others = match release.whole_columns {
        true => CpuKernels {
            threads: counted.threads.saturating_add(1),
            ..counted
        },
        false => CpuKernels {
            whole_columns: true,
            ..counted
        },
    };
    let takes = |node, kernels| workspace(graph, node, Provider::Cpu, kernels);
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let more = nodes.map(|node| {
        let more = takes(node, others) - takes(node, counted);
        (more, node.name.as_str())
    });
    let computed = graph.order().iter().flat_map(|&id| graph.node(id).writes());
    let computed = computed.filter_map(|id| graph.tensor(id).bytes());
    let all = computed.fold(Bytes::ZERO, |all, bytes| all + bytes);
    let (more, node) = more
        .max()
        .filter(|(more, _)| more.0 > all.0 / HARDLY_ANYTHING)?;
    Some(match release.whole_columns {
        true => format!(
            "in {} convolutions take up to {more} more for each thread above {} (most in {node}): --threads says how many there are",
            release.title, counted.threads
        ),
        false => format!(
            "in {} convolutions take up to {more} more than is counted (most in {node}): --runtime {} counts it",
            STOCK_WITH_COLUMNS.title, STOCK_WITH_COLUMNS.name
        ),
    })
}

/// The names of the nodes whose kernels write behind their results.
fn overrunning(graph: &Graph) -> Vec<&str> {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let found = nodes.filter(|node| clears_behind_its_result(graph, node));
    found.map(|node| node.name.as_str()).collect()
}

/// The names of the nodes whose CPU kernel does not look at what "auto_pad" asks for, so that it takes the windows from too small
/// an image.
///
/// Runtime fact (measured: the bits follow what is in the memory that the process gets).
fn unpadded(graph: &Graph) -> Vec<&str> {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let found = nodes.filter(|node| {
        let pads = node.string("auto_pad").unwrap_or_default();
        node.is("com.microsoft", "ConvGrad") && pads.starts_with("SAME")
    });
    found.map(|node| node.name.as_str()).collect()
}

/// The names of the gradients of poolings whose results are not declared in numbers, which MaxPoolGrad does not need for the batch.
///
/// Runtime fact (measured: AveragePoolGrad writes `[0, 112, 4, 4]` for `[batch, 112, 4, 4]`; both end the process without
/// a declaration).
fn unsized_poolings(graph: &Graph) -> Vec<&str> {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let found = nodes.filter(|node| {
        let from = match node.op_type.as_str() {
            "AveragePoolGrad" => 0,
            "MaxPoolGrad" => 1,
            _ => return false,
        };
        let written = node.output(0).map(|written| graph.tensor(written));
        let declared = written.and_then(|written| written.declared.as_ref());
        let in_numbers = |dims: &Vec<Dimension>| {
            let mut dims = dims.iter().skip(from);
            dims.all(Dimension::is_number)
        };
        node.domain.is_empty() && !declared.is_some_and(in_numbers)
    });
    found.map(|node| node.name.as_str()).collect()
}

/// Does the graph hand over to PyTorch in the middle?
fn has_yield(graph: &Graph) -> bool {
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    nodes
        .into_iter()
        .any(|node| node.is("com.microsoft", "YieldOp"))
}

#[cfg(test)]
mod tests {
    use ckpt_passes::graph::Body;
    use ckpt_passes::optimize::BudgetRequest;
    use ckpt_passes::runtime::STOCK;

    use super::*;
    use crate::options::Options;

    #[test]
    fn branches_that_a_constant_chooses_are_named() {
        let found = |listed: &str| {
            let text = format!(
                "<ir_version: 8, opset_import: [\"\" : 17]> g (float[4] x{listed}) => (float[4] y) <bool[1] flag = {{1}}>
                {{ [choice] y = If (flag) }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            let body = Body {
                attribute: "then_branch".to_owned(),
                graph: Graph::new("branch").into(),
                shaped: None,
            };
            let id = graph.order()[0];
            graph.node_mut(id).bodies.push(body);
            chosen_before(&graph).len()
        };
        assert_eq!(found(""), 1);
        assert_eq!(found(", bool[1] flag"), 0);
    }

    #[test]
    fn convolutions_of_which_some_releases_take_all_columns_are_named() {
        let found = |kernel: u64, size: u64| {
            let text = format!(
                "<ir_version: 8, opset_import: [\"\" : 15]>
                g (float[2,32,{size},{size}] x, float[32,32,{kernel},{kernel}] w) => (float[2,32,{size},{size}] y)
                {{ [small] z = Conv (x, w) [large] y = Conv <pads = [{pad}, {pad}, {pad}, {pad}]> (x, w) }}",
                pad = kernel / 2
            );
            let mut graph = Graph::parse(&text).unwrap();
            for id in graph.tensor_ids() {
                let tensor = graph.tensor_mut(id);
                tensor.element = Some(ckpt_passes::graph::ElementType::Float);
                tensor.shape = match tensor.name.as_str() {
                    "w" => Some(vec![32, 32, kernel, kernel]),
                    "z" => Some(vec![2, 32, size - kernel + 1, size - kernel + 1]),
                    _ => Some(vec![2, 32, size, size]),
                };
            }
            let said = |release, threads| {
                let options = Options {
                    runtime: Some(release),
                    threads: Some(threads),
                    ..Options::default()
                };
                let options = options.to_plan(BudgetRequest::Smallest).unwrap();
                uncounted_columns(&graph, &options)
            };
            [
                said(&STOCK, 1),
                said(&STOCK, 4),
                said(&STOCK_WITH_COLUMNS, 1),
                said(&STOCK_WITH_COLUMNS, 2),
                said(&TRAINING, 2),
            ]
        };
        insta::assert_debug_snapshot!(found(3, 64), @r#"
        [
            Some(
                "in ONNX Runtime 1.23.2 to 1.26.0 convolutions take up to 4.44 MiB more than is counted (most in large): --runtime stock-1.26 counts it",
            ),
            Some(
                "in ONNX Runtime 1.23.2 to 1.26.0 convolutions take up to 8.75 MiB more than is counted (most in large): --runtime stock-1.26 counts it",
            ),
            Some(
                "in ONNX Runtime 1.23.2 to 1.26.0 convolutions take up to 4.50 MiB more for each thread above 1 (most in large): --threads says how many there are",
            ),
            None,
            None,
        ]
        "#);
        assert_eq!(found(1, 64), [const { None }; 5]);
        assert_eq!(found(3, 5), [const { None }; 5]);
    }

    #[test]
    fn gradients_that_the_runtime_gets_wrong_are_named() {
        let found = |axes: &str, attributes: &str| {
            let text = format!(
                "<ir_version: 8, opset_import: [\"com.microsoft\" : 1]>
                g (float[2,4,{axes}] dy, float[2,4,{axes}] x, float[4,2,{axes}] w) => (float[2,4,{axes}] dx)
                {{ [grad] dx = com.microsoft.ConvGrad {attributes} (dy, x, w) }}"
            );
            overrunning(&Graph::parse(&text).unwrap()).len()
        };
        assert_eq!(found("1", "<group = 2>"), 1);
        assert_eq!(found("1,1,1", "<group = 2>"), 1);
        assert_eq!(found("1,1", "<group = 2>"), 0);
        assert_eq!(found("1", ""), 0);
    }

    #[test]
    fn gradients_of_convolutions_that_pad_by_themselves_are_named() {
        let found = |attributes: &str| {
            let text = format!(
                "<ir_version: 8, opset_import: [\"com.microsoft\" : 1]>
                g (float[2,4,8,8] dy, float[2,4,8,8] x, float[4,4,3,3] w) => (float[2,4,8,8] dx)
                {{ [grad] dx = com.microsoft.ConvGrad {attributes} (dy, x, w) }}"
            );
            unpadded(&Graph::parse(&text).unwrap()).len()
        };
        assert_eq!(found("<auto_pad = \"SAME_UPPER\">"), 1);
        assert_eq!(found("<auto_pad = \"SAME_LOWER\">"), 1);
        assert_eq!(found("<auto_pad = \"VALID\">"), 0);
        assert_eq!(found("<auto_pad = \"NOTSET\", pads = [1, 1, 1, 1]>"), 0);
    }

    #[test]
    fn gradients_of_poolings_without_numbers_for_their_sizes_are_named() {
        let found = |operator: &str, dx: &str| {
            let text = format!(
                "<ir_version: 8, opset_import: [\"\" : 15]>
                g (float[N,4,4,4] dy, int64[N,4,4,4] at) => (float[N,4,8,8] y) <{dx}>
                {{ [grad] dx = {operator} <kernel_shape = [2, 2], strides = [2, 2]> (dy{}) y = Exp(dx) }}",
                if operator == "MaxPoolGrad" { ", at" } else { "" }
            );
            unsized_poolings(&Graph::parse(&text).unwrap()).len()
        };
        for (operator, of_batch) in [("AveragePoolGrad", 1), ("MaxPoolGrad", 0)] {
            assert_eq!(found(operator, "float[2,4,8,8] dx"), 0);
            assert_eq!(found(operator, "float[N,4,8,8] dx"), of_batch);
            assert_eq!(found(operator, "float[2,C,8,8] dx"), 1);
            assert_eq!(found(operator, "float[4] other"), 1);
        }
    }
}
