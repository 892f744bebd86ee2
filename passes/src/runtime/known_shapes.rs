//! What ONNX Runtime knows of shapes before a step runs: where tensors may share memory, and what
//! lies in the memory pattern.
//!
//! The runtime compares declared shapes, dimension by dimension: numbers with numbers, names of
//! symbols with names (source: the allocation planner's SameShape). Two tensors with one concrete
//! shape and different names do not match. A tensor has a place in the memory pattern if all its
//! dimensions are numbers or symbols that a graph input has as well, which are known once the step
//! is fed (source: the training build's GeneratePatternGroupCache; measured).

mod classes;
mod dimensions;
mod newly_known;

use std::collections::BTreeMap;

pub(super) use classes::is_resolved;
pub(crate) use classes::{Shapes, flattened};
pub(crate) use dimensions::is_known_to_equal;
use dimensions::{
    agreed, broadcast, broadcast_all, by_numbers, channels, has_statistics, known, merged,
    nothing_but_rank, of_both, one_hot, rank_of, recurrent,
};
pub use newly_known::infer_as;
pub(crate) use newly_known::{has_newly_known, newly_known};

use super::casting::{are_there, halves};
use super::folding::Folding;
use super::inferred_shapes::{InferredBy, inferred_by_rules};
use super::moving::KnownDimensions;
use super::named_sizes::{self, KnownInput};
use super::propagation::Propagation;
use super::transposes::{movable_casts, shapes_of_transposed};
use crate::graph::{
    Constant, Dimension, ElementType, Graph, Node, NodeId, ShapeRules, TensorId, TensorKind,
    all_numbers, in_sequence,
};
use crate::operators::{einsum_dimensions, resolve_axis};

/// By the shape that a Reshape reads, where it is constant once the graph is optimized: its numbers.
pub(crate) type Targets = BTreeMap<TensorId, Vec<i64>>;

/// By tensor: its shape as the runtime has it before a step runs, `None` where it has none: what the file declares and what
/// the runtime's rule for the operator infers, as far as it has one. `graph` needs concrete shapes. Where the runtime inserts casts
/// on the CPU, two more stand behind for each tensor in float16: that of what a cast makes of it, and that of what is cast to it.
/// Behind these, one for each of the casts that can be moved, and one for what each of the Shapes that can be moved writes there: how
/// many axes there are, if what is transposed has a shape.
pub fn runtime_shapes(graph: &Graph) -> Vec<KnownDimensions> {
    RuntimeInference::of(graph).all(graph)
}

/// The same if the file declared these shapes instead, of a session that optimizes or not.
pub(crate) fn runtime_shapes_declared(
    graph: &Graph,
    instead: BTreeMap<TensorId, Vec<Dimension>>,
    optimizes: bool,
) -> Vec<KnownDimensions> {
    let mut inference = match optimizes {
        true => RuntimeInference::optimizing(graph),
        false => RuntimeInference::of(graph),
    };
    for (tensor, shape) in instead {
        inference.shapes[tensor.index()] = Some(shape);
    }
    inference.all(graph)
}

/// The same once the session has optimized the graph, where it makes constants of these shapes, to which Reshapes go.
pub(crate) fn runtime_shapes_optimized(graph: &Graph, targets: &Targets) -> Vec<KnownDimensions> {
    let mut inference = RuntimeInference::optimizing(graph);
    inference.targets.clone_from(targets);
    inference.all(graph)
}

/// The runtime's inference of shapes, node by node.
pub(crate) struct RuntimeInference {
    /// By tensor: as declared, until its node has been looked at.
    shapes: Vec<KnownDimensions>,
    /// Whose contents it knows.
    constants: Folding,
    /// Whose numbers it knows beside those, by [`ShapeRules::Newest`].
    propagated: Propagation,
    /// Does it fold?
    optimizes: bool,
    rules: ShapeRules,
    /// What becomes constant.
    targets: Targets,
}

impl RuntimeInference {
    /// Before any node.
    pub(crate) fn of(graph: &Graph) -> RuntimeInference {
        RuntimeInference {
            shapes: graph.tensor_ids().map(|id| declared(graph, id)).collect(),
            constants: Folding::none(graph),
            propagated: Propagation::default(),
            optimizes: false,
            rules: graph.shape_rules,
            targets: Targets::new(),
        }
    }

    /// The same of a session that optimizes, from ORT_ENABLE_BASIC on: what it folds it knows.
    pub(crate) fn optimizing(graph: &Graph) -> RuntimeInference {
        RuntimeInference {
            optimizes: true,
            ..RuntimeInference::of(graph)
        }
    }

    /// See [`runtime_shapes`].
    fn all(mut self, graph: &Graph) -> Vec<KnownDimensions> {
        for &id in in_sequence(graph).iter() {
            self.node(graph, id);
        }
        let mut shapes = match are_there(graph) {
            true => self.with_casts(graph),
            false => self.shapes,
        };
        for transposed in movable_casts(graph).into_values() {
            shapes.push(shapes[transposed.index()].clone());
        }
        for (transposed, axes) in shapes_of_transposed(graph).into_values() {
            let has_rank = shapes[transposed.index()].is_some();
            shapes.push(has_rank.then(|| vec![Dimension::Known(axes as u64)]));
        }
        shapes
    }

    /// The tensor's shape, once its node has been looked at.
    pub(crate) fn shape(&self, tensor: TensorId) -> Option<&[Dimension]> {
        self.shapes[tensor.index()].as_deref()
    }

    /// Takes tensors in that were added to the graph since, and new declarations of the node's results; then as
    /// [`RuntimeInference::node`].
    pub(crate) fn node_again(&mut self, graph: &Graph, id: NodeId) {
        let added = graph.tensor_ids().skip(self.shapes.len());
        self.shapes.extend(added.map(|id| declared(graph, id)));
        self.constants.grow(graph);
        for output in graph.node(id).writes() {
            self.shapes[output.index()] = declared(graph, output);
        }
        self.node(graph, id);
    }

    /// What the runtime makes of a node's results, once its inputs have been looked at.
    pub(crate) fn node(&mut self, graph: &Graph, id: NodeId) {
        let node = graph.node(id);
        // Declared numbers stand, whatever is inferred: in a graph of fixed sizes there is nothing to be asked.
        let is_declared = |output: TensorId| {
            let declared = self.shapes[output.index()].as_deref();
            declared.is_some_and(all_numbers)
        };
        if !node.writes().all(is_declared) {
            let inferred = self.inferred(graph, id);
            for (output, inferred) in node.outputs.iter().zip(inferred) {
                let Some(output) = *output else { continue };
                let declared = self.shapes[output.index()].take();
                let whole = known(&self.shapes, graph.tensor(output).like).cloned();
                self.shapes[output.index()] = merged(merged(declared, whole), inferred);
            }
        }
        if self.optimizes {
            self.constants.look_at(graph, node, &self.shapes);
        }
        if self.rules == ShapeRules::Newest {
            let (shapes, constants) = (&self.shapes, &self.constants);
            self.propagated.look_at(graph, node, shapes, constants);
        }
    }

    /// Does it know the tensor's numbers?
    fn has_contents(&self, tensor: TensorId) -> bool {
        self.constants.is_constant(tensor) || self.propagated.knows(tensor)
    }

    /// Is it computed before the first step?
    pub(crate) fn is_folded(&self, tensor: TensorId) -> bool {
        self.constants.is_folded(tensor)
    }

    /// All shapes, with those of what casts make of tensors in float16. What a node writes before a cast is new to the runtime, so
    /// that only its rules tell the shape; they are asked before casts that undo each other go.
    fn with_casts(self, graph: &Graph) -> Vec<KnownDimensions> {
        let mut written = vec![None; self.shapes.len()];
        for (id, node) in graph.listed() {
            let is_half =
                |tensor: TensorId| graph.tensor(tensor).element == Some(ElementType::Float16);
            if node.writes().any(is_half) {
                for (output, inferred) in node.outputs.iter().zip(self.inferred(graph, id)) {
                    if let Some(output) = output {
                        written[output.index()] = inferred;
                    }
                }
            }
        }
        let mut all = self.shapes;
        for half in halves(graph) {
            all.push(all[half.index()].clone());
            all.push(written[half.index()].take());
        }
        all
    }

    /// How the runtime works out the shape of that result.
    pub(crate) fn rule(&self, node: &Node, position: usize) -> InferredBy {
        inferred_by_rules(self.rules, node, position)
    }

    /// What the runtime infers of each result from the node's inputs.
    pub(crate) fn inferred(&self, graph: &Graph, id: NodeId) -> Vec<KnownDimensions> {
        let shapes = &self.shapes;
        let node = graph.node(id);
        if !node.bodies.is_empty() {
            return self.through_bodies(graph, node);
        }
        let first = known(shapes, node.input(0));
        // What the operator's rule says.
        let mut ruled: Option<Vec<KnownDimensions>> = None;
        let mut by_rule = |position: usize| {
            let ruled = ruled.get_or_insert_with(|| self.by_rule(graph, node));
            ruled.get_mut(position)?.take()
        };
        let mut inferred = |position: usize| {
            let output = node.output(position)?;
            match self.rule(node, position) {
                InferredBy::Of(input) => known(shapes, node.input(input)).cloned(),
                InferredBy::Broadcast => broadcast(shapes, node),
                InferredBy::Expanded => self.expanded(graph, node, output),
                InferredBy::Other if node.is("", "Reshape") => self.reshaped(graph, node, output),
                // How many dimensions there are depends on the last one of the indices.
                InferredBy::Other if node.is("", "GatherND") => {
                    let indices = known(shapes, node.input(1))?;
                    by_rule(position).filter(|_| indices.last().is_some_and(Dimension::is_number))
                }
                InferredBy::Other if node.is("", "ConstantOfShape") => {
                    by_rule(position).or_else(|| rank_of(graph, shapes, node.input(0)?, output))
                }
                InferredBy::Other if node.is("", "Range") => {
                    by_rule(position).or_else(|| Some(vec![Dimension::Unknown]))
                }
                InferredBy::Other if node.is("", "OneHot") && self.rules == ShapeRules::Common => {
                    one_hot(first?, node)
                }
                InferredBy::Other if node.is("", "Einsum") => match einsum_dimensions(node) {
                    Some(sources) => {
                        let dimension =
                            |(input, at)| known(shapes, node.input(input))?.get(at).cloned();
                        sources.into_iter().map(dimension).collect()
                    }
                    None => by_rule(position),
                },
                InferredBy::Other if node.is("", "Shape") && first.is_none() => {
                    Some(vec![Dimension::Unknown])
                }
                InferredBy::Other if position > 0 && has_statistics(node) => {
                    by_rule(position).or_else(|| channels(shapes, node))
                }
                InferredBy::Other => by_rule(position),
                InferredBy::Resized => {
                    let says = |at: usize, is: &Dimension| first.is_some_and(|f| f[at] == *is);
                    let whole = match by_rule(position) {
                        None if !node.is("", "Split") => nothing_but_rank(first),
                        whole => whole,
                    };
                    Some(by_numbers(first?, whole?, says))
                }
                InferredBy::Numbered => {
                    let says = |_, is: &Dimension| is.is_number();
                    let whole = by_rule(position).or_else(|| nothing_but_rank(first))?;
                    Some(by_numbers(first?, whole, says))
                }
                InferredBy::Windowed => {
                    let is_window = |(at, size): (usize, &Dimension)| at < 2 || size.is_number();
                    let weights = known(shapes, node.input(1));
                    // Where no attribute tells how large windows are, the weights have to.
                    if let Some(weights) = weights.filter(|_| node.ints("kernel_shape").is_none())
                        && !weights.iter().enumerate().all(is_window)
                    {
                        return None;
                    }
                    let says = |at: usize, is: &Dimension| at < 2 || is.is_number();
                    Some(by_numbers(first?, by_rule(position)?, says))
                }
                InferredBy::AllNumbered => {
                    by_rule(position).filter(|_| first.is_some_and(|first| all_numbers(first)))
                }
                InferredBy::AxisNumbered => {
                    let (first, whole) = (
                        first?,
                        by_rule(position).or_else(|| nothing_but_rank(first))?,
                    );
                    let axis = resolve_axis(node.int("axis").unwrap_or(-1), first.len());
                    Some(match axis.is_some_and(|axis| first[axis].is_number()) {
                        true => whole,
                        false => vec![Dimension::Unknown; whole.len()],
                    })
                }
                InferredBy::Rank => Some(vec![Dimension::Unknown; by_rule(position)?.len()]),
                InferredBy::Recurrent => recurrent(shapes, node, position),
                InferredBy::Unknown => None,
            }
        };
        (0..node.outputs.len()).map(&mut inferred).collect()
    }

    /// What it infers through subgraphs: of an If what both branches agree on; of a Scan all; of a Loop what each iteration
    /// adds to a result, but not how many there are, nor anything of what it carries on.
    fn through_bodies(&self, graph: &Graph, node: &Node) -> Vec<KnownDimensions> {
        let run = |attribute: &str, given: &[KnownDimensions]| {
            let body = node.bodies.iter().find(|body| body.attribute == attribute);
            self.through_body(graph, body?.shaped.as_ref()?, given)
        };
        let inferred = match node.op_type.as_str() {
            "If" => run("then_branch", &[])
                .zip(run("else_branch", &[]))
                .map(|(one, other)| {
                    let both = one.into_iter().zip(other);
                    both.map(|(one, other)| agreed(one, other)).collect()
                }),
            "Loop" => {
                let mut given = vec![Some(Vec::new()), Some(Vec::new())];
                given.resize(node.inputs.len().max(2), None);
                let carried = given.len() - 2;
                let added = |(at, shape): (usize, KnownDimensions)| {
                    let mut shape = shape.filter(|_| at >= carried)?;
                    shape.insert(0, Dimension::Unknown);
                    Some(shape)
                };
                let results = run("body", &given).map(|results| results.into_iter().skip(1));
                results.map(|results| results.enumerate().map(added).collect())
            }
            "Scan" => self.scanned(node, run),
            _ => None,
        };
        inferred.unwrap_or_else(|| vec![None; node.outputs.len()])
    }

    fn scanned(
        &self,
        node: &Node,
        run: impl Fn(&str, &[KnownDimensions]) -> Option<Vec<KnownDimensions>>,
    ) -> Option<Vec<KnownDimensions>> {
        let scanned = usize::try_from(node.int("num_scan_inputs")?).ok()?;
        let carried = node.inputs.len().checked_sub(scanned)?;
        let axis = |name: &str, at: usize, rank: usize| {
            let axis = node.ints(name).and_then(|axes| axes.get(at)).copied();
            resolve_axis(axis.unwrap_or(0), rank)
        };
        let mut length = Dimension::Unknown;
        let mut given = Vec::new();
        for (at, &input) in node.inputs.iter().enumerate() {
            let mut shape = known(&self.shapes, input).cloned();
            if let (Some(at), Some(shape)) = (at.checked_sub(carried), &mut shape) {
                let found = shape.remove(axis("scan_input_axes", at, shape.len())?);
                length = of_both(length, found);
            }
            given.push(shape);
        }
        let results = run("body", &given)?.into_iter().enumerate();
        let results = results.map(|(at, shape)| {
            let Some(at) = at.checked_sub(carried) else {
                // What is carried on has the shape with which it begins.
                return merged(given.get(at).cloned().flatten(), shape);
            };
            let mut shape = shape?;
            let axis = axis("scan_output_axes", at, shape.len() + 1)?;
            shape.insert(axis, length.clone());
            Some(shape)
        });
        Some(results.collect())
    }

    /// The shapes of a subgraph's results; `given` are those of its inputs, as far as the file does not declare them.
    fn through_body(
        &self,
        around: &Graph,
        body: &Graph,
        given: &[KnownDimensions],
    ) -> Option<Vec<KnownDimensions>> {
        let mut inference = RuntimeInference {
            rules: self.rules,
            ..RuntimeInference::of(body)
        };
        for id in body.outer() {
            let outer = around.tensor_named(&body.tensor(id).name);
            inference.shapes[id.index()] = outer.and_then(|id| self.shapes[id.index()].clone());
            let is_constant = outer.is_some_and(|id| self.constants.is_constant(id));
            inference.constants.set_constant(id, is_constant);
        }
        for (&id, given) in body.inputs.iter().zip(given) {
            let declared = body.tensor(id).declared.clone();
            inference.shapes[id.index()] = merged(declared, given.clone());
        }
        for &id in body.order() {
            inference.node(body, id);
        }
        let results = body.outputs.iter();
        let results = results.map(|id| inference.shapes[id.index()].clone());
        Some(results.collect())
    }

    /// An Expand: to a shape of which only the rank is known, and not even that where nothing is known of what computes it, unless it is
    /// constant.
    fn expanded(&self, graph: &Graph, node: &Node, output: TensorId) -> KnownDimensions {
        let shapes = &self.shapes;
        let first = known(shapes, node.input(0))?;
        let to = node.input(1)?;
        let to: Vec<Dimension> = match &graph.tensor(to).constant {
            Some(Constant::Ints(sizes)) if self.has_contents(to) => sizes
                .iter()
                .map(|&size| u64::try_from(size).map_or(Dimension::Unknown, Dimension::Known))
                .collect(),
            _ => rank_of(graph, shapes, to, output)?,
        };
        Some(broadcast_all(&[first, &to]))
    }

    /// A Reshape to a constant shape: its numbers, what is copied, and what is left over where all else is a number. To any other
    /// shape: how many dimensions there are, if the runtime knows that; its rule for opsets before 14 looks at constant shapes alone
    /// (measured for the opsets 11 to 21).
    fn reshaped(&self, graph: &Graph, node: &Node, output: TensorId) -> KnownDimensions {
        let shapes = &self.shapes;
        let (from, to) = (known(shapes, node.input(0)), node.input(1)?);
        let concrete = graph.tensor(output).shape.as_ref()?;
        let sizes = match (&graph.tensor(to).constant, self.targets.get(&to)) {
            (_, Some(sizes)) => sizes,
            (Some(Constant::Ints(sizes)), _) if self.has_contents(to) => sizes,
            _ => {
                const RANKS_FROM_OPSET: i64 = 14;
                let opset = graph.opset().unwrap_or(i64::MAX);
                return (opset >= RANKS_FROM_OPSET)
                    .then(|| rank_of(graph, shapes, to, output))
                    .flatten();
            }
        };
        if sizes.len() != concrete.len() {
            return None;
        }
        let copies = node.int("allowzero").unwrap_or(0) == 0;
        // What is copied takes no part in what is left over.
        let numbers = from.is_some_and(|from| {
            let copied = |i: usize| copies && sizes.get(i) == Some(&0);
            let mut dimensions = from.iter().enumerate();
            dimensions.all(|(i, dimension)| copied(i) || dimension.is_number())
        });
        let dimensions = sizes.iter().zip(concrete).enumerate();
        let dimensions = dimensions.map(|(i, (&size, &concrete))| match size {
            1.. => Dimension::Known(concrete),
            0 if copies => {
                let copied = from.and_then(|from| from.get(i));
                copied.cloned().unwrap_or(Dimension::Unknown)
            }
            _ if numbers => Dimension::Known(concrete),
            _ => Dimension::Unknown,
        });
        Some(dimensions.collect())
    }

    fn by_rule(&self, graph: &Graph, node: &Node) -> Vec<KnownDimensions> {
        let inputs = node.inputs.iter().copied().flatten();
        let reads = inputs.map(|tensor| KnownInput {
            tensor,
            shape: known(&self.shapes, Some(tensor)).map(Vec::as_slice),
            is_constant: self.has_contents(tensor),
        });
        named_sizes::outputs(graph, node, reads.collect())
    }
}

/// What the file says; of what the caller owns, the sizes.
fn declared(graph: &Graph, id: TensorId) -> KnownDimensions {
    let tensor = graph.tensor(id);
    let owned = tensor.kind != TensorKind::Value;
    let concrete = tensor.shape.as_ref().filter(|_| owned);
    let numbers = concrete.map(|sizes| sizes.iter().map(|&size| Dimension::Known(size)));
    let said = tensor.stale.as_ref().or(tensor.declared.as_ref());
    said.cloned().or(numbers.map(Iterator::collect))
}

#[cfg(test)]
mod tests;
