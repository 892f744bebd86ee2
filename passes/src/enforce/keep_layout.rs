//! Keeps ONNX Runtime from computing convolutions and pools in blocks of channels.
//!
//! At ORT_ENABLE_ALL the runtime would copy what such nodes read and write into another layout, which is not simulated
//! (`runtime/blocks.rs`). It leaves a convolution alone whose weights may change, and a pool of which it does not know how many channels
//! it reads (measured). So both read these from a Reshape to zeros, each of which means the same dimension as
//! before, and of which the runtime does not know that they are zeros. It only forwards, and all bits stay. A convolution with such
//! weights takes in no constants behind it any more (`takes_in_constants`): where bits have to be the same at that level, it is left alone, and
//! the session has to do without those blocks.

use std::collections::HashMap;
use std::convert::Infallible;

use super::hide_sizes;
use crate::graph::{Dimension, Graph, Node, NodeId, Tensor, TensorId, Uses};
use crate::operators::Provider;
use crate::pass::{Changed, Pass};
use crate::runtime::Release;
use crate::runtime::blocks::{self, InBlocks};
use crate::runtime::fused_pairs::takes_in_constants;
use crate::runtime::known_shapes::runtime_shapes;

/// Since then a Constant may have a list of integers, and a Min takes them.
const OPSET: i64 = 12;

/// What the zeros are called that are computed.
const SHAPE: &str = "ckpt-opt/kept_shape";

/// The axis of the channels.
const CHANNELS: usize = 1;

/// **Does**: lets convolutions and pools that the runtime would compute in blocks of channels read their weights, or what they pool,
/// from a node that forwards these.
/// **Needs**: concrete shapes; the nodes in an order that can run.
/// **Keeps**: all values, and what the runtime knows of all shapes that were there.
#[derive(Clone, Copy, Debug)]
pub struct KeepLayout {
    /// Who is to run the graph.
    pub provider: Provider,
    /// By what.
    pub release: &'static Release,
}

impl Pass for KeepLayout {
    const NAME: &str = "keep-layout";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        if self.provider != Provider::Cpu || graph.opset() < Some(OPSET) {
            return Ok(Changed::No);
        }
        let in_blocks = self.keepable(graph);
        if in_blocks.is_empty() {
            return Ok(Changed::No);
        }
        let mut keeping = Keeping {
            release: self.release,
            known: runtime_shapes(graph),
            order: Vec::with_capacity(graph.order().len()),
            zeros: None,
            unknown: HashMap::new(),
            forwarded: HashMap::new(),
        };
        for id in graph.order().to_vec() {
            if let Some(&kind) = in_blocks.get(&id) {
                keeping.read_otherwise(graph, id, kind);
            }
            keeping.order.push(id);
        }
        graph.set_order(keeping.order);
        Ok(Changed::Yes)
    }
}

impl KeepLayout {
    /// What can be kept from blocks. Builds without training have all bits at every level, so a convolution that takes in constants
    /// there has to do so.
    fn keepable(self, graph: &Graph) -> HashMap<NodeId, InBlocks> {
        let uses = Uses::of(graph);
        let constants = blocks::constants(graph);
        let is_constant = |tensor| constants.contains(&tensor);
        let takes_in = |&(id, _): &(NodeId, InBlocks)| {
            !self.release.trains && takes_in_constants(graph, &uses, id, is_constant)
        };
        let found = blocks::found(graph).into_iter();
        found.filter(|found| !takes_in(found)).collect()
    }
}

struct Keeping {
    release: &'static Release,
    /// By tensor: what the runtime knew of its shape.
    known: Vec<Option<Vec<Dimension>>>,
    order: Vec<NodeId>,
    /// Four of them.
    zeros: Option<TensorId>,
    /// By tensor of which the size is read, if any is: the same, of which the runtime does not know that they are zeros.
    unknown: HashMap<Option<TensorId>, TensorId>,
    /// By tensor, and whether a pool reads it.
    forwarded: HashMap<(TensorId, bool), TensorId>,
}

impl Keeping {
    fn read_otherwise(&mut self, graph: &mut Graph, id: NodeId, kind: InBlocks) {
        let node = graph.node(id);
        let position = match kind {
            InBlocks::Convolution => 1,
            InBlocks::Pool => 0,
        };
        let (Some(read), Some(data)) = (node.input(position), node.input(0)) else {
            return;
        };
        let forwarded = match self.forwarded.get(&(read, kind == InBlocks::Pool)) {
            Some(&forwarded) => forwarded,
            None => self.forward(graph, read, data, kind),
        };
        self.forwarded
            .insert((read, kind == InBlocks::Pool), forwarded);
        graph.node_mut(id).inputs[position] = Some(forwarded);
        if kind == InBlocks::Pool
            && let Some(output) = graph.node(id).output(0)
        {
            // Otherwise it would follow from what the pool reads.
            let known = self.known.get(output.index()).cloned().flatten();
            // What the caller gets is declared as it was.
            if known.is_some() && !graph.outputs.contains(&output) {
                graph.tensor_mut(output).declared = known;
            }
        }
    }

    /// The same as `read`, which a node reads that reads `data` as well.
    fn forward(
        &mut self,
        graph: &mut Graph,
        read: TensorId,
        data: TensorId,
        kind: InBlocks,
    ) -> TensorId {
        let zeros = self.unknown_zeros(graph, data);
        let of = graph.alike(read, "/kept");
        let known = self.known.get(read.index()).cloned().flatten();
        let mut shape = known.or(of.declared.clone());
        if kind == InBlocks::Pool
            && let Some(shape) = &mut shape
            && let Some(sizes) = &of.shape
        {
            shape[CHANNELS] = hide_sizes::name(sizes[CHANNELS]);
        }
        let forwarded = Tensor {
            declared: shape,
            constant: None,
            ..of
        };
        let name = format!("{}{}", blocks::KEPT, forwarded.name);
        let inputs = vec![Some(read), Some(zeros)];
        let reshape = Node::new(name, "", "Reshape", inputs, Vec::new());
        self.list(graph.add_made(reshape, forwarded))
    }

    /// Four zeros that are computed: forwarded, or no more than the size of `data`.
    fn unknown_zeros(&mut self, graph: &mut Graph, data: TensorId) -> TensorId {
        let zeros = self.zeros(graph);
        let name = graph.free_tensor_name(SHAPE);
        let forward = (self.release).forwarding(name.clone(), vec![Some(zeros)], Vec::new());
        let sized = forward.is_none().then_some(data);
        if let Some(&known) = self.unknown.get(&sized) {
            return known;
        }
        let node = forward.unwrap_or_else(|| {
            let size_name = format!("{name}/size");
            let size = self.list(graph.add_size(&size_name, data, &size_name));
            Node::new(&name, "", "Min", vec![Some(size), Some(zeros)], Vec::new())
        });
        let shape = graph.integers(&name, vec![blocks::AXES as u64]);
        let made = self.list(graph.add_made(node, shape));
        self.unknown.insert(sized, made);
        made
    }

    fn zeros(&mut self, graph: &mut Graph) -> TensorId {
        if let Some(zeros) = self.zeros {
            return zeros;
        }
        let name = graph.free_tensor_name("ckpt-opt/kept_zeros");
        let zeros = self.list(graph.add_list(&name, vec![0; blocks::AXES]));
        self.zeros = Some(zeros);
        zeros
    }

    /// Lists the node; what it writes.
    fn list(&mut self, (node, written): (NodeId, TensorId)) -> TensorId {
        self.order.push(node);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::blocks::in_blocks;
    use crate::runtime::optimized_shapes::runtime_shapes_once_optimized;
    use crate::runtime::{STOCK, TRAINING};
    use crate::verify;

    fn graph(opset: u8) -> Graph {
        let text = format!(
            "<ir_version: 8, opset_import: [\"\" : {opset}, \"com.microsoft\" : 1]>
            g (float[N,16,9,9] x) => (float[N,16,8,8] y, float[N,16,8,8] z) <float[16,16,2,2] w = {{...}}> {{
                y = Conv (x, w)
                a = MaxPool <kernel_shape = [2, 2]> (x)
                b = AveragePool <kernel_shape = [2, 2]> (x)
                z = Add (a, b)
            }}"
        );
        let mut graph = Graph::parse(&text).unwrap();
        let bindings = [("N".to_owned(), 2)].into_iter().collect();
        InferShapes { bindings }.run(&mut graph).unwrap();
        graph
    }

    fn kept(graph: &Graph, provider: Provider, release: &'static Release) -> Graph {
        let mut kept = graph.clone();
        KeepLayout { provider, release }.run(&mut kept).unwrap();
        kept
    }

    #[test]
    fn nothing_is_left_that_would_be_computed_in_blocks() {
        let before = graph(15);
        assert_eq!(in_blocks(&before).len(), 3);
        // The zeros, and two Reshapes: both pools read the same. Computed of a size, the zeros take two nodes more and one less.
        for (release, nodes) in [(&TRAINING, 4 + 2 + 2), (&STOCK, 4 + 1 + 2 + 2)] {
            let after = kept(&before, Provider::Cpu, release);
            assert_eq!(in_blocks(&after), [""; 0], "{}", release.name);
            assert_eq!(after.order().len(), nodes, "{}", release.name);
            verify::equivalence(&before, &after, &Default::default()).unwrap();
            // What the runtime knows of all that was there it still knows.
            let (known, still) = (runtime_shapes(&before), runtime_shapes(&after));
            assert_eq!(known[..], still[..known.len()]);
            let again = kept(&after, Provider::Cpu, release);
            assert_eq!(again.order(), after.order());
        }
    }

    /// Read again from a file, a graph tells more of new nodes than when they were made.
    #[test]
    fn a_session_that_folds_does_not_know_the_channels_either() {
        let mut before = graph(15);
        for id in before.inputs.clone() {
            let sizes = before.tensor(id).shape.clone().unwrap();
            before.tensor_mut(id).declared =
                Some(sizes.into_iter().map(Dimension::Known).collect());
        }
        let mut after = kept(&before, Provider::Cpu, &TRAINING);
        InferShapes::default().run(&mut after).unwrap();
        let shapes = runtime_shapes_once_optimized(&after);
        let kept = after.tensor_named("x/kept").unwrap();
        let shape = shapes[kept.index()].as_ref().unwrap();
        assert!(!matches!(shape[CHANNELS], Dimension::Known(_)), "{shape:?}");
    }

    #[test]
    fn builds_without_training_still_put_constants_into_weights() {
        let left = |behind: &str, release| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[2,16,9,9] x) => (float[2,16,8,8] y)
                <float[16,16,2,2] w = {{...}}, float[16,1,1] c = {{...}}, float[16] s = {{...}}, float[2,16,8,8] a> {{ a = Conv (x, w) {behind} }}"#
            );
            in_blocks(&kept(&Graph::parse(&text).unwrap(), Provider::Cpu, release)).len()
        };
        for behind in [
            "y = Mul (a, c)",
            "y = Add (c, a)",
            "y = BatchNormalization (a, s, s, s, s)",
        ] {
            assert_eq!(left(behind, &STOCK), 1, "{behind}");
            assert_eq!(left(behind, &TRAINING), 0, "{behind}");
        }
        for behind in [
            "y = Relu (a)",
            "y = Add (a, a)",
            "b = Mul (a, c) y = Add (a, b)",
        ] {
            assert_eq!(left(behind, &STOCK), 0, "{behind}");
        }
    }

    #[test]
    fn what_needs_no_such_nodes_or_cannot_have_them_stays() {
        let (old, new) = (graph(11), graph(15));
        assert_eq!(kept(&old, Provider::Cpu, &TRAINING).order(), old.order());
        assert_eq!(kept(&new, Provider::Cuda, &TRAINING).order(), new.order());
    }
}
