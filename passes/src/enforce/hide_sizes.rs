//! Keeps from ONNX Runtime the sizes of large tensors that no symbol is in.
//!
//! In its default settings the runtime lays whatever has a known size out in one block that is there for
//! the whole step, or hands its memory on to tensors of the same size only. A name for a dimension prevents
//! both ([`ColourShapes`]), but a number that the runtime infers cannot be named: results with the shape of
//! a weight, or of a batch that is fixed. So such a result is computed from an input whose shape the runtime cannot
//! infer: a Reshape to a shape of zeros, each of which means the same dimension as before, and which comes
//! out of a PassThrough, the value of whose results is unknown. A Reshape or an Expand to constant sizes takes these out of a
//! PassThrough itself. All only forward. What follows from a result without sizes has none either, without further nodes. Measured: the smallest
//! peak of gpt2_small in the default settings is half of what it is otherwise. Builds without training have no PassThrough, and barriers hide
//! sizes there (`handing.rs`): a Reshape to zeros that are computed from the Size of a graph input.
//!
//! [`ColourShapes`]: super::colour_shapes::ColourShapes

mod handing;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use crate::bytes::Bytes;
use crate::graph::{
    Constant, Dimension, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses, all_numbers,
};
use crate::operators::{self, Provider};
use crate::pass::{Changed, Pass};
use crate::runtime::Runtime;
use crate::runtime::inferred_shapes::{InferredBy, dimensions_from};
use crate::runtime::known_shapes::RuntimeInference;
use crate::runtime::rounding::Rounding;
use handing::Handing;

pub use handing::ByBarriers;

/// What the names of hidden dimensions begin with.
pub const PREFIX: &str = "hidden_";

/// **Does**: makes the runtime forget one dimension of each result with at least `from` bytes all of whose dimensions it
/// knows as numbers, where the operator has an input from which alone it knows it; and of smaller ones, where that takes
/// no node.
/// **Needs**: concrete shapes; the nodes in an order that can run.
/// **Keeps**: all values; graph inputs, outputs and initializers. Graphs with a YieldOp stay as they are.
pub struct HideSizes<'a> {
    /// For smaller results no node is added.
    pub from: Bytes,
    /// The tensors that may be read through added nodes; without, all.
    pub only: Option<&'a BTreeSet<TensorId>>,
    /// Who is to run the graph.
    pub provider: Provider,
    /// By what.
    pub runtime: Runtime,
    /// What is known of the graph where barriers do it: in builds without training, which hide nothing without.
    pub by_barriers: Option<&'a ByBarriers>,
}

impl HideSizes<'_> {
    /// The tensors that are read through added nodes where all may be, each with the bytes of the results that have no
    /// sizes then, what such nodes forward included; the most first. O(nodes), but that who reads what is looked up anew
    /// after each added node.
    pub fn worth(&self, graph: &Graph) -> Vec<(TensorId, Bytes)> {
        if let Some(known) = self.by_barriers {
            return known.worth.clone();
        }
        let mut graph = graph.clone();
        let everywhere = HideSizes {
            only: None,
            ..*self
        };
        let hiding = everywhere.hide(&mut graph);
        hiding.map_or_else(Vec::new, |hiding| hiding.worth(&graph))
    }

    /// Hides what may be hidden; `None` where nothing may.
    fn hide(&self, graph: &mut Graph) -> Option<Hiding<'_>> {
        if let Some(known) = self.by_barriers {
            return known.hide(graph, self).map(|(hiding, _)| hiding);
        }
        let trains = self.runtime.release.trains;
        let may = trains && self.is_possible(graph);
        may.then(|| Hiding::of(graph, self, None))?
    }

    /// Can anything be hidden in that graph?
    fn is_possible(&self, graph: &Graph) -> bool {
        let mut nodes = graph.nodes();
        let yields = nodes.any(operators::hands_over);
        let has_operators = graph.opset() >= Some(OPSET);
        has_operators && !yields && self.runtime.release.hides_sizes()
    }
}

impl Pass for HideSizes<'_> {
    const NAME: &'static str = "hide-sizes";
    type Error = Infallible;

    fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
        let hiding = self.hide(graph);
        Ok(hiding.map_or(Changed::No, |hiding| hiding.changed))
    }
}

/// Since then a Constant may have a list of integers.
const OPSET: i64 = 12;

/// The smallest graph input of those that serve: nothing that is computed of it is constant, and whoever waits for it waits for no node.
pub(super) fn anchor(graph: &Graph, serves: impl Fn(&Tensor) -> bool) -> Option<TensorId> {
    let inputs = graph.inputs.iter().copied();
    let fed = inputs.filter(|&id| graph.tensor(id).kind == TensorKind::Input);
    let fed = fed.filter(|&id| serves(graph.tensor(id)));
    fed.filter_map(|id| Some((graph.tensor(id).bytes()?, id)))
        .min()
        .map(|(_, id)| id)
}

struct Hiding<'a> {
    from: Bytes,
    only: Option<&'a BTreeSet<TensorId>>,
    runtime: Runtime,
    /// What may have no further readers.
    rounding: Rounding,
    anchor: TensorId,
    /// Of the graph.
    outputs: BTreeSet<TensorId>,
    /// Of a session that optimizes, which knows more.
    inference: RuntimeInference,
    /// Of one node: what the runtime infers of its results.
    inferred: Option<(NodeId, Vec<Option<Vec<Dimension>>>)>,
    order: Vec<NodeId>,
    /// Where nothing but barriers forwards.
    handing: Option<Handing<'a>>,
    /// Results of the node that is looked at, which are to be handed on without their sizes.
    behind: Vec<TensorId>,
    /// By rank: as many zeros, of which the runtime does not know that they are.
    zeros: HashMap<usize, TensorId>,
    /// By tensor: the same without its sizes.
    forwarded: HashMap<TensorId, TensorId>,
    /// By result without sizes: the tensor that was read through an added node for that.
    sources: BTreeMap<TensorId, TensorId>,
    /// Until a node is added.
    uses: Option<Uses>,
    changed: Changed,
}

impl<'a> Hiding<'a> {
    /// Hides what may be hidden; `None` where nothing may.
    fn of(
        graph: &mut Graph,
        hide: &HideSizes<'a>,
        handing: Option<Handing<'a>>,
    ) -> Option<Hiding<'a>> {
        let mut hiding = Hiding {
            from: hide.from,
            only: hide.only,
            runtime: hide.runtime,
            rounding: Rounding::of(graph, hide.provider, hide.runtime.release),
            anchor: anchor(graph, |input| hide.runtime.release.may_wait_for(input))?,
            outputs: graph.outputs.iter().copied().collect(),
            inference: RuntimeInference::optimizing(graph),
            inferred: None,
            order: Vec::with_capacity(graph.order().len()),
            handing,
            behind: Vec::new(),
            zeros: HashMap::new(),
            forwarded: HashMap::new(),
            sources: BTreeMap::new(),
            uses: None,
            changed: Changed::No,
        };
        for id in graph.order().to_vec() {
            hiding.give_back(graph, id);
            hiding.inference.node(graph, id);
            for position in 0..graph.node(id).outputs.len() {
                match hiding.handing.is_some() {
                    true => hiding.hide_by_barriers(graph, id, position),
                    false => hiding.hide(graph, id, position),
                }
            }
            hiding.order.push(id);
            for output in std::mem::take(&mut hiding.behind) {
                hiding.hand_on_to_all(graph, output);
            }
        }
        graph.set_order(std::mem::take(&mut hiding.order));
        Some(hiding)
    }

    /// By what is read through an added node: the bytes of results that have no sizes; the most first.
    fn worth(&self, graph: &Graph) -> Vec<(TensorId, Bytes)> {
        let mut bytes: BTreeMap<TensorId, Bytes> = BTreeMap::new();
        for (&result, &source) in &self.sources {
            let own = graph.tensor(result).bytes().unwrap_or(Bytes::ZERO);
            *bytes.entry(source).or_insert(Bytes::ZERO) += own;
        }
        let mut all: Vec<(TensorId, Bytes)> = bytes.into_iter().collect();
        all.sort_by_key(|&(source, bytes)| (Reverse(bytes), source));
        all
    }

    fn hide(&mut self, graph: &mut Graph, id: NodeId, position: usize) {
        let node = graph.node(id);
        let Some(output) = node.output(position) else {
            return;
        };
        let forwards = operators::aliases(node)
            .iter()
            .any(|&(to, _)| to == position);
        let takes_sizes = node.is("", "Expand");
        let is_inner = graph.tensor(output).kind == TensorKind::Value;
        let is_large = graph.tensor(output).bytes() >= Some(self.from);
        if !is_inner || self.outputs.contains(&output) {
            return;
        }
        let shape = self.inference.shape(output).map(<[Dimension]>::to_vec);
        let Some(mut shape) = shape.filter(|shape| are_numbers(shape)) else {
            return;
        };
        let inferred = self.inferred(graph, id, position);
        let hidden = match inferred.as_ref().filter(|here| here.len() == shape.len()) {
            // What follows from the inputs, if only it were not declared.
            Some(here) if !are_numbers(here) => {
                let mut here = here.iter().cloned().enumerate();
                here.find(|(_, dimension)| !dimension.is_number())
            }
            _ => {
                let alone = self.declared_alone(graph, id, position, inferred.is_none(), is_large);
                let at = match alone {
                    Some(at) => Some(at),
                    None if !is_large => None,
                    None if forwards || takes_sizes => self.take_otherwise(graph, id, output),
                    None => self.read_otherwise(graph, id, position, shape.len()),
                };
                at.map(|at| (at, Dimension::Unknown))
            }
        };
        let Some((at, dimension)) = hidden else {
            return;
        };
        shape[at] = match (dimension, &shape[at]) {
            (Dimension::Unknown, Dimension::Known(size)) => name(*size),
            (dimension, _) => dimension,
        };
        graph.tensor_mut(output).declared = Some(shape);
        let mut inputs = graph.node(id).inputs.iter().flatten();
        if let Some(&source) = inputs.find_map(|input| self.sources.get(input)) {
            self.sources.entry(output).or_insert(source);
        }
        self.inference.node_again(graph, id);
        self.changed = Changed::Yes;
    }

    /// What the runtime infers of that result from the node's inputs.
    fn inferred(&mut self, graph: &Graph, id: NodeId, position: usize) -> Option<Vec<Dimension>> {
        let inferred = match self.inferred.take() {
            Some((of, inferred)) if of == id => inferred,
            _ => self.inference.inferred(graph, id),
        };
        let here = inferred.get(position).cloned().flatten();
        self.inferred = Some((id, inferred));
        here
    }

    /// A dimension that the runtime knows from the declaration alone. Of a small result only one that an input without
    /// sizes has as well: then others that are computed from it have none either.
    fn declared_alone(
        &mut self,
        graph: &Graph,
        id: NodeId,
        position: usize,
        nothing_inferred: bool,
        is_large: bool,
    ) -> Option<usize> {
        let node = graph.node(id);
        let alone = match self.inference.rule(node, position) {
            InferredBy::Unknown | InferredBy::Rank => true,
            InferredBy::Of(_) | InferredBy::Broadcast => nothing_inferred,
            InferredBy::AllNumbered => {
                let first = self.inference.shape(node.input(0)?);
                let parts = node.input(1);
                let parts_are_known = parts.is_some_and(|parts| self.inference.is_folded(parts));
                nothing_inferred && !first.is_some_and(are_numbers) && !parts_are_known
            }
            _ => false,
        };
        if !alone {
            return None;
        }
        // So that others find it, it must follow from the inputs.
        let uses = self.uses.get_or_insert_with(|| Uses::of(graph));
        let sizes = operators::infer(graph, uses, node)?.ok()?;
        let sizes = &sizes.get(position)?.as_ref()?.shape;
        if is_large {
            return Some(0);
        }
        (0..sizes.len()).find(|&at| {
            node.inputs.iter().flatten().any(|&input| {
                let known = self.inference.shape(input).and_then(|shape| shape.get(at));
                let is_named = known.is_some_and(|known| !known.is_number());
                let of = graph.tensor(input).shape.as_ref();
                is_named && of.is_some_and(|of| of[at] == sizes[at])
            })
        })
    }

    /// Lets the node read, without its sizes, the input from which a dimension of the result comes; which one.
    fn read_otherwise(
        &mut self,
        graph: &mut Graph,
        id: NodeId,
        position: usize,
        rank: usize,
    ) -> Option<usize> {
        let node = graph.node(id);
        let (input, pairs) = dimensions_from(node, position, rank)?;
        let read = node.input(input)?;
        let known = self.inference.shape(read)?;
        let is_named =
            |&&(_, of): &&(usize, usize)| known.get(of).is_some_and(|of| !of.is_number());
        if let Some(&(at, _)) = pairs.iter().find(is_named) {
            return Some(at);
        }
        let rank = known.len();
        let &(at, _) = pairs.iter().find(|&&(_, of)| of < rank)?;
        if self.rounding.depends(read) || !self.may_read_otherwise(read) {
            return None;
        }
        let forwarded = self.forwarded(graph, read, rank);
        graph.node_mut(id).inputs[input] = Some(forwarded);
        self.inferred = None;
        Some(at)
    }

    /// Lets a Reshape or an Expand to constant sizes take these from where the runtime does not know them; a dimension of its
    /// `output`.
    fn take_otherwise(&mut self, graph: &mut Graph, id: NodeId, output: TensorId) -> Option<usize> {
        let node = graph.node(id);
        let at = match (node.domain.as_str(), node.op_type.as_str()) {
            ("", "Reshape") => 0,
            // Only what its input does not tell.
            ("", "Expand") => {
                let from = self.inference.shape(node.input(0)?)?;
                let is_one = |size: &Dimension| *size == Dimension::Known(1);
                match graph.tensor(output).shape.as_ref()?.len() > from.len() {
                    true => 0,
                    false => from.iter().position(is_one)?,
                }
            }
            _ => return None,
        };
        let sizes = node.input(1)?;
        if !matches!(graph.tensor(sizes).constant, Some(Constant::Ints(_)))
            || !self.may_read_otherwise(sizes)
        {
            return None;
        }
        let unknown = match self.forwarded.get(&sizes) {
            Some(&known) => known,
            None => {
                let name = format!("{}/hidden", graph.tensor(sizes).name);
                let unknown = self.pass_through(graph, sizes, name);
                self.forwarded.insert(sizes, unknown);
                unknown
            }
        };
        graph.node_mut(id).inputs[1] = Some(unknown);
        self.sources.insert(output, sizes);
        self.inferred = None;
        Some(at)
    }

    fn may_read_otherwise(&self, tensor: TensorId) -> bool {
        self.only.is_none_or(|only| only.contains(&tensor))
    }

    /// `tensor` without its sizes.
    fn forwarded(&mut self, graph: &mut Graph, tensor: TensorId, rank: usize) -> TensorId {
        if let Some(&known) = self.forwarded.get(&tensor) {
            return known;
        }
        let zeros = self.zeros(graph, rank);
        let of = graph.alike(tensor, "/hidden");
        let named = |sizes: &Vec<u64>| sizes.iter().copied().map(name).collect();
        let hidden = Tensor {
            declared: of.shape.as_ref().map(named),
            constant: None,
            ..of
        };
        let name = format!("ckpt-opt/hide/{}", graph.tensor(tensor).name);
        let inputs = vec![Some(tensor), Some(zeros)];
        let reshape = Node::new(name, "", "Reshape", inputs, Vec::new());
        let (reshape, hidden) = graph.add_made(reshape, hidden);
        self.list(graph, reshape);
        self.forwarded.insert(tensor, hidden);
        self.sources.insert(hidden, tensor);
        hidden
    }

    /// As many zeros as there are dimensions.
    fn zeros(&mut self, graph: &mut Graph, rank: usize) -> TensorId {
        if let Some(&known) = self.zeros.get(&rank) {
            return known;
        }
        let name = graph.free_tensor_name(&format!("ckpt-opt/zeros/{rank}"));
        let (constant, zeros) = graph.add_list(&name, vec![0; rank]);
        self.list(graph, constant);
        let forwarded = self.pass_through(graph, zeros, format!("ckpt-opt/shape/{rank}"));
        self.zeros.insert(rank, forwarded);
        forwarded
    }

    /// `constant`, so that the runtime does not know that it is one, by this name.
    fn pass_through(&mut self, graph: &mut Graph, constant: TensorId, name: String) -> TensorId {
        let of = graph.tensor(constant).clone();
        let forwarded = Tensor {
            name: graph.free_tensor_name(&name),
            kind: TensorKind::Value,
            declared: of.shape.as_deref().map(Dimension::all_known),
            ..of
        };
        let name = forwarded.name.clone();
        let forwarded = graph.add_tensor(forwarded);
        let anchored = graph.alike(self.anchor, "/hidden");
        let anchored = graph.add_tensor(anchored);
        let inputs = vec![Some(constant), Some(self.anchor)];
        let outputs = vec![Some(forwarded), Some(anchored)];
        if let Some(forward) = self.runtime.release.forwarding(name, inputs, outputs) {
            let forward = graph.add_node(forward);
            self.list(graph, forward);
        }
        forwarded
    }

    /// Lists a node that was added.
    fn list(&mut self, graph: &Graph, id: NodeId) {
        self.uses = None;
        self.inference.node_again(graph, id);
        self.order.push(id);
    }
}

/// The same name for the same size, so that results are still computed in place.
pub(super) fn name(size: u64) -> Dimension {
    Dimension::Symbol(format!("{PREFIX}{size}"))
}

fn are_numbers(shape: &[Dimension]) -> bool {
    !shape.is_empty() && all_numbers(shape)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cost::Cost;
    use crate::enforce::colour_shapes::ColourShapes;
    use crate::graph::AttributeValue;
    use crate::graph::text::diff;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::executions::Executions;
    use crate::runtime::settings::RuntimeSettings;
    use crate::verify::equivalence;

    /// Matrices of 4 KiB.
    const TEXT: &str = "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>
        g (float[n,32] x, float[32,32] w, float[1] s) => (float[32,32] y)
        <float[32,32] t, float[32,32] a, float[32,32] b, float[32,32] c>
        { t = Transpose <perm = [1, 0]> (w) a = Gemm <transA = 1> (x, x) b = Relu(a) c = Gemm(b, t) y = Exp(c) }";

    fn parsed(text: &str) -> Graph {
        let mut graph = Graph::parse(text).unwrap();
        let mut bindings = BTreeMap::from([("n".to_owned(), 32)]);
        bindings.retain(|name, _| text.contains(&format!("[{name},")));
        InferShapes { bindings }.run(&mut graph).unwrap();
        graph
    }

    fn hidden(text: &str) -> (Graph, Graph) {
        let graph = parsed(text);
        let mut hidden = graph.clone();
        let changed = HideSizes {
            from: Bytes(4096),
            only: None,
            provider: Provider::Cpu,
            runtime: Runtime::DEFAULT,
            by_barriers: None,
        }
        .run(&mut hidden)
        .unwrap();
        assert_eq!(changed == Changed::Yes, hidden != graph);
        (graph, hidden)
    }

    #[test]
    fn results_whose_sizes_are_numbers_are_computed_from_inputs_without_sizes() {
        let (graph, hidden) = hidden(TEXT);
        insta::assert_snapshot!(diff(&graph.to_listing(), &hidden.to_listing()), @r#"
        - t = Transpose(w)
        - a = Gemm(x, x)
        + "ckpt-opt/zeros/2" = Constant()
        + "ckpt-opt/shape/2", "s/hidden" = PassThrough("ckpt-opt/zeros/2", s)
        + "w/hidden" = Reshape(w, "ckpt-opt/shape/2")
        + t = Transpose("w/hidden")
        + "x/hidden" = Reshape(x, "ckpt-opt/shape/2")
        + a = Gemm("x/hidden", x)
          b = Relu(a)
        "#);
        let forwards = equivalence(&graph, &hidden, &Default::default()).unwrap();
        assert_eq!((forwards.copies(), forwards.barriers()), (0, 4));
    }

    #[test]
    fn parts_whose_lengths_are_computed_before_the_first_step_keep_their_sizes() {
        let ones = ["1"; 32].join(", ");
        let text = |fed: &str, constant: &str| {
            format!(
                r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
                g (float[64,32] w{fed}) => (float[32,32] y, float[32,32] z)
                <{constant} float[32] b = {{{ones}}}, float[64] c, int64[2] lengths, float[64,32] d, float[32,32] s, float[32,32] t> {{
                    c, lengths = com.microsoft.ConcatTraining <axis = 0> (a, b)
                    d = com.microsoft.ReluGrad(w, w)
                    s, t = com.microsoft.SplitTraining <axis = 0> (d, lengths)
                    y = Exp(s) z = Exp(t)
                }}"#
            )
        };
        let sizes = |text: &str| {
            let (_, hidden) = hidden(text);
            let tensors = hidden.tensor_ids().map(|id| hidden.tensor(id));
            let parts = tensors.filter(|tensor| ["s", "t"].contains(&tensor.name.as_str()));
            let declared = parts.map(|tensor| tensor.declared.as_deref());
            declared
                .map(|shape| shape.is_some_and(are_numbers))
                .collect::<Vec<_>>()
        };
        let constant = format!("float[32] a = {{{ones}}},");
        assert_eq!(sizes(&text("", &constant)), [true, true]);
        assert_eq!(sizes(&text(", float[32] a", "")), [false, false]);
    }

    // The gradient of a pooling over all places: the session that optimizes knows the Shape, and with it what is expanded to it.
    #[test]
    fn what_is_expanded_to_a_shape_that_the_session_folds_takes_it_from_where_that_is_unknown() {
        let (graph, hidden) = hidden(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float[8,4,8,8] x, float[8,4,1,1] m, float[1] s) => (float[8,4,8,8] y) <float[8,4,8,8] e> {
                of = Shape(x)
                e = Expand(m, of)
                y = Exp(e)
            }"#,
        );
        insta::assert_snapshot!(diff(&graph.to_listing(), &hidden.to_listing()), @r#"
      of = Shape(x)
    - e = Expand(m, of)
    + "of/hidden", "s/hidden" = PassThrough(of, s)
    + e = Expand(m, "of/hidden")
      y = Exp(e)
    "#);
    }

    /// Large, small, and large results of a batch of 32.
    const BATCH: &str = "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>
        g (float[32,64] x, float[1,64] w, float[1] s) => (float[128,16] y)
        <float[32,64] a, float[32,1] m, float[32,64] b, float[32,64] d, float[16,128] r, float[16,128] e>
        {
            a = Relu(x)
            m = ReduceMean <axes = [1]> (a)
            b = Add(m, w)
            p = GreaterOrEqual(a, s)
            c = Cast <to = 1> (p)
            d = Mul(b, c)
            k = Constant <value_ints = [16, 128]> ()
            r = Reshape(d, k)
            e = Exp(r)
            l = Constant <value_ints = [128, 16]> ()
            y = Reshape(e, l)
        }";

    #[test]
    fn what_follows_from_a_result_without_sizes_takes_no_further_node() {
        let (graph, hidden) = hidden(BATCH);
        insta::assert_snapshot!(diff(&graph.to_listing(), &hidden.to_listing()), @r#"
        - a = Relu(x)
        + "ckpt-opt/zeros/2" = Constant()
        + "ckpt-opt/shape/2", "s/hidden" = PassThrough("ckpt-opt/zeros/2", s)
        + "x/hidden" = Reshape(x, "ckpt-opt/shape/2")
        + a = Relu("x/hidden")
          m = ReduceMean(a)
        ...
          k = Constant()
        - r = Reshape(d, k)
        + "k/hidden", "s/hidden_1" = PassThrough(k, s)
        + r = Reshape(d, "k/hidden")
          e = Exp(r)
        "#);
        let declared = |name: &str| {
            let id = hidden
                .tensor_ids()
                .find(|&id| hidden.tensor(id).name == name);
            hidden.tensor(id.unwrap()).declared.clone().unwrap()
        };
        let named = |size: u64| Dimension::Symbol(format!("hidden_{size}"));
        for (result, size, other) in [
            ("a", 32, 64),
            ("m", 32, 1),
            ("b", 32, 64),
            ("d", 32, 64),
            ("r", 16, 128),
            ("e", 16, 128),
        ] {
            let expected = vec![named(size), Dimension::Known(other)];
            assert_eq!(declared(result), expected, "{result}");
        }
        let forwards = equivalence(&graph, &hidden, &Default::default()).unwrap();
        assert_eq!((forwards.copies(), forwards.barriers()), (0, 4));
    }

    #[test]
    fn nodes_are_added_for_what_is_said_to_be_worth_it() {
        let graph = parsed(BATCH);
        let hide = HideSizes {
            from: Bytes(4096),
            only: None,
            provider: Provider::Cpu,
            runtime: Runtime::DEFAULT,
            by_barriers: None,
        };
        let worth = hide.worth(&graph);
        let names = worth
            .iter()
            .map(|&(id, bytes)| (graph.tensor(id).name.as_str(), bytes.0));
        let (part, whole) = (32 * 4, 32 * 64 * 4);
        // The results, and what is read instead of x and k.
        let [x, k] = [4 * whole + part, 2 * whole];
        assert_eq!(names.collect::<Vec<_>>(), [("x", x), ("k", k)]);
        let only = BTreeSet::from([worth[1].0]);
        let mut one = graph.clone();
        let Ok(_) = HideSizes {
            only: Some(&only),
            ..hide
        }
        .run(&mut one);
        insta::assert_snapshot!(diff(&graph.to_listing(), &one.to_listing()), @r#"
          k = Constant()
        - r = Reshape(d, k)
        + "k/hidden", "s/hidden" = PassThrough(k, s)
        + r = Reshape(d, "k/hidden")
          e = Exp(r)
        "#);
    }

    #[test]
    fn nothing_lies_in_the_memory_pattern_then() {
        let (graph, mut hidden) = hidden(TEXT);
        let provider = Provider::Cpu;
        let Ok(_) = ColourShapes {
            provider,
            runtime: crate::runtime::Runtime::DEFAULT,
        }
        .run(&mut hidden);
        let pattern = |graph: &Graph| {
            let costs = vec![Cost::default(); graph.node_count()];
            let settings = RuntimeSettings::DEFAULT;
            let mut all = Executions::of(graph, &crate::runtime::TRAINING, provider, &costs)
                .simulate(settings);
            all.swap_remove(0).1.pattern
        };
        assert!(pattern(&graph) >= Some(Bytes(2 * 4096)));
        assert!(pattern(&hidden) < Some(Bytes(4096)));
    }

    #[test]
    fn old_operator_sets_and_graphs_that_yield_stay_as_they_are() {
        for text in [
            TEXT.replace(": 15", ": 11"),
            TEXT.replace("y = Exp(c)", "d = com.microsoft.YieldOp(c) y = Exp(d)"),
        ] {
            let (graph, hidden) = hidden(&text);
            assert_eq!(graph, hidden);
        }
    }

    #[test]
    fn a_reshape_to_anything_else_is_not_taken_for_the_same() {
        let (graph, hidden) = hidden(TEXT);
        let zeros = hidden.tensor_named("ckpt-opt/zeros/2").unwrap();
        let mut other = hidden.clone();
        let constant = other.order().iter().copied();
        let constant = constant
            .clone()
            .find(|&id| other.node(id).output(0) == Some(zeros));
        let node = other.node_mut(constant.unwrap());
        node.set_attribute("value_ints", AttributeValue::Ints(vec![32, 0]));
        assert!(equivalence(&graph, &other, &Default::default()).is_err());
    }
}
