//! What ONNX Runtime knows of shapes before a step runs: where tensors may share memory, and what
//! lies in the memory pattern.
//!
//! The runtime compares declared shapes, dimension by dimension: numbers with numbers, names of
//! symbols with names (source: the allocation planner's SameShape). Two tensors with one concrete
//! shape and different names do not match. A tensor has a place in the memory pattern if all its
//! dimensions are numbers or symbols that a graph input has as well, which are known once the step
//! is fed (source: the training build's GeneratePatternGroupCache; measured).

use std::collections::{BTreeMap, BTreeSet};

use super::casting::{NO_TENSOR, are_there, halves};
use super::folding::Folding;
use super::inferred_shapes::{InferredBy, inferred_by_rules, newly_inferred_by};
use super::moving::{Added, KnownDimensions};
use super::named_sizes::{self, KnownInput};
use super::propagation::Propagation;
use super::release::{PatternOf, Release};
use super::transposes::{movable_casts, shapes_of_transposed};
use crate::graph::{
    Constant, Dimension, ElementType, Graph, Node, NodeId, ShapeRules, TensorId, TensorKind,
    in_sequence,
};
use crate::operators::{MICROSOFT, einsum_dimensions, resolve_axis};

/// See the module's documentation. By tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shapes {
    /// Equal numbers: equal shapes and element sizes. `None`: unknown, a scalar, or not a tensor.
    pub(crate) class: Vec<Option<u32>>,
    /// How many classes there are.
    pub(crate) classes: usize,
    /// Is the size known once the inputs are?
    pub(crate) resolved: Vec<bool>,
    /// The tensors that have another size than the runtime knows before a step, by a wrong declaration: the bytes of that.
    pub(crate) mistaken: BTreeMap<u32, u64>,
}

impl Shapes {
    /// Takes in one more tensor, which forwards what another has, and what casts make of it, which are [`wide`] by tensor.
    ///
    /// [`wide`]: crate::runtime::skeleton::Skeleton::wide
    pub(crate) fn forward(&mut self, tensor: u32, wide: &[u32]) {
        let mut all = vec![tensor];
        if let Some(&wide) = wide.get(tensor as usize).filter(|&&wide| wide != NO_TENSOR) {
            all.extend([wide, wide + 1]);
        }
        for tensor in all {
            self.class.push(self.class[tensor as usize]);
            self.resolved.push(self.resolved[tensor as usize]);
        }
    }

    /// The same for how a release makes patterns.
    pub(crate) fn for_pattern(mut self, pattern: PatternOf) -> Shapes {
        if pattern == PatternOf::FirstStep {
            self.resolved.fill(true);
            self.mistaken.clear();
        }
        self
    }

    /// Takes in one more tensor, of a size that is known and has no axes, or few numbers.
    pub(crate) fn add_scalar(&mut self) {
        self.class.push(None);
        self.resolved.push(true);
    }

    /// What the runtime knows of `graph`, of whose tensors it has these [`runtime_shapes`]; so many tensors, with what casts make
    /// of those in float16, and `added` behind these.
    pub(crate) fn of(
        graph: &Graph,
        shapes: &[KnownDimensions],
        tensors: usize,
        added: &[&Added],
    ) -> Shapes {
        let bound = bound_symbols(graph);
        let mut numbers: BTreeMap<(u64, &[Dimension]), u32> = BTreeMap::new();
        let mut known = Shapes::default();
        let moved = shapes
            .len()
            .saturating_sub(shapes_of_transposed(graph).len());
        let added_shapes = added.iter().map(|added| &added.shape);
        let all = shapes.iter().take(tensors).chain(added_shapes);
        for (tensor, shape) in all.enumerate() {
            let bytes = match tensor {
                _ if tensor < graph.tensor_count() => graph.tensor(TensorId(tensor as u32)).element,
                _ if tensor < moved => Some(ElementType::Float),
                _ => Some(ElementType::Int64),
            };
            let bytes = match tensor.checked_sub(tensors.min(shapes.len())) {
                Some(place) => Some(added[place].element),
                None => bytes.map(|element| element.bytes(1).0),
            };
            let (Some(shape), Some(bytes)) = (shape, bytes) else {
                known.class.push(None);
                known.resolved.push(false);
                continue;
            };
            known.resolved.push(are_bound(&bound, shape));
            if shape.is_empty() || shape.contains(&Dimension::Unknown) {
                known.class.push(None);
                continue;
            }
            let next = numbers.len() as u32;
            known
                .class
                .push(Some(*numbers.entry((bytes, shape)).or_insert(next)));
        }
        known.classes = numbers.len();
        if graph
            .tensor_ids()
            .any(|id| graph.tensor(id).stale.is_some())
        {
            known.mistaken = mistaken(graph, shapes, &known.resolved);
        }
        known
    }
}

/// The shape of a matrix with the rows of a tensor whose sizes are numbers.
pub(crate) fn flattened(shape: &[Dimension]) -> Option<Vec<Dimension>> {
    let (columns, axes) = shape.split_last()?;
    let size = |axis: &Dimension| match axis {
        Dimension::Known(size) => Some(*size),
        _ => None,
    };
    let mut rows = axes.iter().map(size);
    let rows = rows.try_fold(1u64, |rows, size| rows.checked_mul(size?))?;
    Some(vec![
        Dimension::Known(rows),
        Dimension::Known(size(columns)?),
    ])
}

/// Does the runtime know a tensor's size before a step, of which it knows these dimensions?
pub(super) fn is_resolved(graph: &Graph, shape: &[Dimension]) -> bool {
    are_bound(&bound_symbols(graph), shape)
}

fn are_bound(bound: &BTreeSet<&str>, shape: &[Dimension]) -> bool {
    let is_bound = |dimension: &Dimension| match dimension {
        Dimension::Known(size) => *size > 0,
        Dimension::Symbol(name) => bound.contains(name.as_str()),
        Dimension::Unknown => false,
    };
    shape.iter().all(is_bound)
}

/// The sizes of `resolved` tensors as the runtime has them by what is declared wrong, where they are others.
fn mistaken(graph: &Graph, shapes: &[KnownDimensions], resolved: &[bool]) -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    for id in graph.tensor_ids().filter(|id| resolved[id.index()]) {
        let tensor = graph.tensor(id);
        let (Some(shape), Some(sizes), Some(element)) =
            (&shapes[id.index()], &tensor.shape, tensor.element)
        else {
            continue;
        };
        let size = |(at, dimension): (usize, &Dimension)| match dimension {
            Dimension::Known(size) => *size,
            _ => sizes.get(at).copied().unwrap_or(1),
        };
        let all = shape.iter().enumerate().map(size);
        let bytes = element.bytes(all.fold(1, u64::saturating_mul));
        if tensor.bytes() != Some(bytes) {
            found.insert(id.0, bytes.0);
        }
    }
    found
}

/// The symbols that get a value when the inputs are fed.
pub(crate) fn bound_symbols(graph: &Graph) -> BTreeSet<&str> {
    let declared = graph
        .inputs
        .iter()
        .filter_map(|&id| graph.tensor(id).declared.as_ref());
    declared.flatten().filter_map(Dimension::name).collect()
}

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

/// Do some builds for inference know the node's shape, and others not? All know that of an Einsum.
fn is_newly_known(node: &Node) -> bool {
    newly_inferred_by(node).is_some() && !node.is("", "Einsum")
}

/// May there be any [`newly_known`] shapes?
pub(crate) fn has_newly_known(graph: &Graph) -> bool {
    let mut nodes = graph.order().iter().map(|&id| graph.node(id));
    nodes.any(|node| is_newly_known(node) || node.is("", "Shape"))
}

/// Says of `graph` who runs it. Shapes that not all builds for inference work out it declares, so that these share the same memory.
/// It needs concrete shapes.
pub fn infer_as(graph: &mut Graph, release: &Release) {
    if release.trains {
        return;
    }
    if has_newly_known(graph) {
        for (id, shape) in newly_known(graph) {
            graph.tensor_mut(id).declared = Some(shape);
        }
    }
    graph.shape_rules = ShapeRules::Newest;
}

/// The shapes that the newest builds for inference work out and others do not: what has no declaration shares its memory in the ones and not in the
/// others (measured: a mask of three comparisons, 49 KiB more in 1.20.1 than in 1.32.0). `graph` needs concrete shapes.
pub(crate) fn newly_known(graph: &Graph) -> Vec<(TensorId, Vec<Dimension>)> {
    let known = runtime_shapes(graph);
    let mut newest = RuntimeInference {
        rules: ShapeRules::Newest,
        ..RuntimeInference::of(graph)
    };
    for &id in in_sequence(graph).iter() {
        newest.node(graph, id);
    }
    let RuntimeInference {
        shapes, propagated, ..
    } = newest;
    let is_ruled =
        |node: &&Node| is_newly_known(node) || node.reads().any(|read| propagated.knows(read));
    let nodes = graph.order().iter().map(|&id| graph.node(id));
    let written = nodes.filter(is_ruled).flat_map(Node::writes);
    let differs = |id: &TensorId| shapes[id.index()] != known[id.index()];
    written
        .filter(differs)
        .filter_map(|id| Some((id, shapes[id.index()].clone()?)))
        .collect()
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
        let inferred = self.inferred(graph, id);
        for (output, inferred) in graph.node(id).outputs.iter().zip(inferred) {
            let Some(output) = *output else { continue };
            let declared = self.shapes[output.index()].take();
            let whole = known(&self.shapes, graph.tensor(output).like).cloned();
            self.shapes[output.index()] = merged(merged(declared, whole), inferred);
        }
        let node = graph.node(id);
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
        for &id in graph.order() {
            let node = graph.node(id);
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
                let opset = graph.opsets.get("").copied().unwrap_or(i64::MAX);
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

/// What two branches agree on.
fn agreed(one: KnownDimensions, other: KnownDimensions) -> KnownDimensions {
    let (one, other) = (one?, other?);
    let both = one.iter().zip(&other);
    let agreed = both.map(|(a, b)| match a == b {
        true => a.clone(),
        false => Dimension::Unknown,
    });
    (one.len() == other.len()).then(|| agreed.collect())
}

/// `shape`, but that a dimension that is no number in the `first` input is unknown, unless the rule `says`, by its position
/// and what it is.
fn by_numbers(
    first: &[Dimension],
    mut shape: Vec<Dimension>,
    says: impl Fn(usize, &Dimension) -> bool,
) -> Vec<Dimension> {
    for (at, (dimension, first)) in shape.iter_mut().zip(first).enumerate() {
        if !first.is_number() && !says(at, dimension) {
            *dimension = Dimension::Unknown;
        }
    }
    shape
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

fn known(shapes: &[KnownDimensions], input: Option<TensorId>) -> Option<&Vec<Dimension>> {
    shapes[input?.index()].as_ref()
}

/// What the runtime makes of a declaration and what it infers: numbers go before names.
fn merged(declared: KnownDimensions, inferred: KnownDimensions) -> KnownDimensions {
    let (declared, inferred) = match (declared, inferred) {
        (Some(declared), Some(inferred)) if declared.len() == inferred.len() => {
            (declared, inferred)
        }
        (declared, inferred) => return declared.or(inferred),
    };
    let both = declared.into_iter().zip(inferred);
    Some(both.map(|(one, other)| of_both(one, other)).collect())
}

/// What is known of a size of which both are known.
fn of_both(one: Dimension, other: Dimension) -> Dimension {
    match (&one, &other) {
        (Dimension::Known(_), _) | (_, Dimension::Unknown) => one,
        (Dimension::Symbol(_), Dimension::Symbol(_)) => one,
        _ => other,
    }
}

/// The standard's rule: a number other than one wins; a name stands if it is the only one.
fn broadcast(shapes: &[KnownDimensions], node: &Node) -> KnownDimensions {
    let inputs = node.inputs.iter();
    let inputs = inputs.map(|&input| known(shapes, input).map(Vec::as_slice));
    Some(broadcast_all(&inputs.collect::<Option<Vec<_>>>()?))
}

fn broadcast_all(inputs: &[&[Dimension]]) -> Vec<Dimension> {
    let rank = inputs.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let dimension = |position: usize| {
        let here = inputs.iter().filter_map(|shape| {
            let back = rank - position;
            shape.len().checked_sub(back).map(|at| &shape[at])
        });
        let (mut size, mut names): (u64, Vec<&Dimension>) = (1, Vec::new());
        for dimension in here {
            match dimension {
                Dimension::Known(1) => {}
                Dimension::Known(other) => size = *other,
                name if names.contains(&name) => {}
                name => names.push(name),
            }
        }
        match names.as_slice() {
            [] => Dimension::Known(size),
            _ if size != 1 => Dimension::Known(size),
            [name] => (*name).clone(),
            _ => Dimension::Unknown,
        }
    };
    (0..rank).map(dimension).collect()
}

/// How many dimensions a tensor has whose shape is computed in the step, if the runtime knows that.
fn rank_of(
    graph: &Graph,
    shapes: &[KnownDimensions],
    shape: TensorId,
    of: TensorId,
) -> KnownDimensions {
    let rank = graph.tensor(of).shape.as_ref()?.len();
    let is_known = known(shapes, Some(shape)).is_some_and(|shape| all_numbers(shape));
    is_known.then(|| vec![Dimension::Unknown; rank])
}

/// As many dimensions as the first input has, of which nothing is known.
fn nothing_but_rank(first: Option<&Vec<Dimension>>) -> KnownDimensions {
    first.map(|first| vec![Dimension::Unknown; first.len()])
}

fn has_statistics(node: &Node) -> bool {
    node.is("", "BatchNormalization") || node.is(MICROSOFT, "BatchNormInternal")
}

/// The statistics of a batch normalization of whose image nothing is known: one number for each that another input has.
fn channels(shapes: &[KnownDimensions], node: &Node) -> KnownDimensions {
    let others = node.inputs.iter().skip(1);
    let others = others.filter_map(|&input| known(shapes, input)?.first().cloned());
    others.reduce(of_both).map(|channels| vec![channels])
}

/// The runtime does not read how many classes there are.
fn one_hot(indices: &[Dimension], node: &Node) -> KnownDimensions {
    let mut shape = indices.to_vec();
    let axis = node.int("axis").unwrap_or(-1);
    let from_the_end = shape.len() as i64 + 1 + axis;
    let axis = usize::try_from(if axis < 0 { from_the_end } else { axis }).ok()?;
    (axis <= shape.len()).then(|| shape.insert(axis, Dimension::Unknown))?;
    Some(shape)
}

/// What the runtime says of recurrent layers for training and their gradients: nothing of the hidden size, though it is an
/// attribute and the weights have it.
fn recurrent(shapes: &[KnownDimensions], node: &Node, position: usize) -> KnownDimensions {
    node.int("hidden_size")?;
    let dimension = |input: usize, axis: usize| {
        let shape = known(shapes, node.input(input));
        let dimension = shape.and_then(|shape| shape.get(axis).cloned());
        dimension.unwrap_or(Dimension::Unknown)
    };
    let both = node.string("direction") == Some("bidirectional");
    let directions = || Dimension::Known(1 + u64::from(both));
    let (sequence, batch) = (|| dimension(0, 0), || dimension(0, 1));
    let (input, gates, hidden) = (
        || dimension(0, 2),
        || dimension(1, 1),
        || Dimension::Unknown,
    );
    let steps = |width| vec![sequence(), directions(), batch(), width];
    let state = || vec![directions(), batch(), hidden()];
    Some(match (node.op_type.as_str(), position) {
        ("GRUTraining", 0) | ("LSTMTraining", 0 | 3) => steps(hidden()),
        ("GRUTraining", 2) | ("LSTMTraining", 4) => steps(gates()),
        ("GRUTraining", _) | ("LSTMTraining", _) => state(),
        (_, 0) => vec![sequence(), batch(), input()],
        (_, 1) => vec![directions(), gates(), input()],
        (_, 2) => vec![directions(), gates(), hidden()],
        (_, 3 | 6) => vec![directions(), hidden()],
        ("GRUGrad", _) => return None,
        // It looks at this input, which is the cell state for the first hidden state.
        (_, position) => known(shapes, node.input(position + 1)).map(|_| state())?,
    })
}

/// Are both shapes known whole, and equal, number by number and name by name?
pub(crate) fn is_known_to_equal(
    shapes: &[KnownDimensions],
    one: TensorId,
    other: TensorId,
) -> bool {
    let (one, other) = (&shapes[one.index()], &shapes[other.index()]);
    let whole = |shape: &Vec<Dimension>| !shape.contains(&Dimension::Unknown);
    one.as_ref().is_some_and(whole) && one == other
}

fn all_numbers(shape: &[Dimension]) -> bool {
    shape.iter().all(Dimension::is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{AttributeValue, ElementType, Node, Tensor};
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;

    /// The runtime's shape of `tensor`.
    fn shape(text: &str, tensor: &str) -> String {
        described(&Graph::parse(text).unwrap(), tensor)
    }

    /// The same once symbolic dimensions have values.
    fn bound(text: &str, tensor: &str, bindings: &BTreeMap<String, u64>) -> String {
        let mut graph = Graph::parse(text).unwrap();
        let bindings = bindings.clone();
        InferShapes { bindings }.run(&mut graph).unwrap();
        described(&graph, tensor)
    }

    fn described(graph: &Graph, tensor: &str) -> String {
        let id = graph.tensor_named(tensor).unwrap();
        let dimension = |dimension: &Dimension| match dimension {
            Dimension::Known(size) => size.to_string(),
            Dimension::Symbol(name) => name.clone(),
            Dimension::Unknown => "?".to_owned(),
        };
        match &runtime_shapes(graph)[id.index()] {
            Some(shape) => shape.iter().map(dimension).collect::<Vec<_>>().join(" "),
            None => "unknown".to_owned(),
        }
    }

    // Measured with tools/measure_known_shapes.py in 1.19.2, 1.20.1 and 1.32.0.
    #[test]
    fn builds_for_inference_know_an_einsum_by_the_first_input_with_a_letter() {
        let text = r#"<ir_version: 8, opset_import: ["" : 17]>
            g (float[p,4,5] a, float[16,5,6] b, float[1,5,6] one) => () {
                ab = Einsum <equation = "bsd,bde->bse"> (a, b) ba = Einsum <equation = "bde,bsd->bse"> (b, a)
                ao = Einsum <equation = "bsd,bde->bse"> (a, one) oa = Einsum <equation = "bde,bsd->bse"> (one, a)
                late = GreaterOrEqual (a, a)
            }"#;
        let run_by = |release: &Release| {
            let mut graph = Graph::parse(text).unwrap();
            let bindings = [("p".to_owned(), 16)].into();
            InferShapes { bindings }.run(&mut graph).unwrap();
            infer_as(&mut graph, release);
            let known = ["ab", "ba", "ao", "oa"].map(|tensor| described(&graph, tensor));
            // What not all of these builds know is declared, and nothing else.
            let value = |id: &TensorId| graph.tensor(*id).kind == TensorKind::Value;
            let declared = graph
                .tensor_ids()
                .filter(value)
                .filter(|&id| graph.tensor(id).declared.is_some());
            let declared: Vec<_> = declared.map(|id| graph.tensor(id).name.clone()).collect();
            (known, declared)
        };
        let (known, declared) = run_by(&crate::runtime::STOCK);
        assert_eq!(known, ["p 4 6", "16 4 6", "p 4 6", "1 4 6"]);
        assert_eq!(declared, ["late"]);
        let (known, declared) = run_by(&crate::runtime::TRAINING);
        assert_eq!(known, ["? ? ?"; 4]);
        assert!(declared.is_empty(), "{declared:?}");
    }

    #[test]
    fn a_number_that_is_inferred_goes_before_a_name_that_is_declared() {
        let text = "g (float[4,1] x, int64[2] to) => () <float[n,8] y, float[n,8] z>
            { y = Expand(x, to) z = Relu(y) }";
        let bindings = [("n".to_owned(), 4)].into();
        assert_eq!(bound(text, "y", &bindings), "4 8");
        assert_eq!(bound(text, "z", &bindings), "4 8");
    }

    /// Measured on a transformer whose mask is expanded to what its products have.
    #[test]
    fn of_what_is_expanded_to_a_shape_of_something_unknown_nothing_is_known() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[batch,4,6,8] x, float[batch,1,1,8] mask) => () {
                product = MeanVarianceNormalization (x)
                of_product = Shape (product)
                of_x = Shape (x)
                unknown = Expand (mask, of_product)
                wide = Expand (mask, of_x)
            }"#;
        let bindings = [("batch".to_owned(), 2)].into();
        assert_eq!(bound(text, "unknown", &bindings), "unknown");
        assert_eq!(bound(text, "wide", &bindings), "? ? ? 8");
    }

    /// Measured on a transformer with as many words as sequences.
    #[test]
    fn sizes_that_are_equal_by_chance_are_no_numbers() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[batch,4,16,8] x, float[other,4,words,8] y) => () {
                joined = com.microsoft.ConcatTraining <axis = -1> (x, y)
            }"#;
        for size in [16, 12] {
            let sizes = ["batch", "other"].map(|name| (name.to_owned(), size));
            let mut bindings: BTreeMap<String, u64> = sizes.into();
            bindings.insert("words".to_owned(), 16);
            assert_eq!(bound(text, "joined", &bindings), "batch 4 16 16", "{size}");
        }
    }

    #[test]
    fn what_is_chosen_has_as_many_dimensions_and_what_is_gathered_the_shape_of_the_indices() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[batch,6] x, float[batch,9,4] data) => () <int64[1] k = {6}, int64[1] one = {1}> {
                chosen, at = TopK (x, k)
                first, of_all = TopK <axis = 0> (x, one)
                last = Constant <value_ints = [2]> ()
                wide = Unsqueeze (at, last)
                repeats = Constant <value = int64[3] {1, 1, 4}> ()
                indices = Tile (wide, repeats)
                ranked = Einsum <equation = "abc->abc"> (data)
                unknown = MeanVarianceNormalization (data)
                y = GatherElements <axis = 1> (unknown, indices)
            }"#;
        let bindings = [("batch".to_owned(), 2)].into();
        assert_eq!(bound(text, "chosen", &bindings), "batch 6");
        assert_eq!(bound(text, "first", &bindings), "? ?");
        assert_eq!(bound(text, "ranked", &bindings), "? ? ?");
        assert_eq!(bound(text, "unknown", &bindings), "unknown");
        assert_eq!(bound(text, "y", &bindings), "? 6 4");
    }

    // Measured in 1.19.2, 1.20.1 and 1.32.0, for the opsets 13, 14 and 18.
    #[test]
    fn what_is_cut_or_repeated_as_computed_has_as_many_dimensions_and_a_range_has_one() {
        let text = r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[n,6] x, float[m] y, float[m,1] z) => ()
            <int64 zero = {0}, int64 one = {1}, int64[1] begin = {0}, int64[2] none = {0, 0}> {
                count = Size (y)
                range = Range (zero, count, one)
                end = Shape (y)
                cut = Slice (x, begin, end, begin)
                twice = Shape (z)
                wide = Concat <axis = 0> (none, twice)
                padded = Pad (x, wide)
                repeated = Tile (x, twice)
                chosen, at = TopK (x, end)
            }"#;
        let bindings: BTreeMap<_, _> = [("n".to_owned(), 5), ("m".to_owned(), 3)].into();
        assert_eq!(bound(text, "range", &bindings), "?");
        for name in ["cut", "padded", "repeated", "chosen", "at"] {
            assert_eq!(bound(text, name, &bindings), "? ?", "{name}");
        }
    }

    // As the pieces of what the runtime takes apart are, which it lists last.
    #[test]
    fn what_is_listed_before_what_it_reads_is_known_like_others() {
        let text = "g (float[n,8] x) => () { z = Exp (y) y = Relu (x) }";
        assert_eq!(bound(text, "z", &[("n".to_owned(), 4)].into()), "n 8");
    }

    #[test]
    fn a_gradient_of_a_quotient_has_the_shapes_of_dividend_and_divisor() {
        let text = "g (float[k,8] dy, float[n,8] a, float[m,1] b) => () { da, db = com.microsoft.DivGrad (dy, a, b) }";
        let bindings = [("k", 4), ("n", 4), ("m", 4)].map(|(name, size)| (name.to_owned(), size));
        assert_eq!(bound(text, "da", &bindings.clone().into()), "n 8");
        assert_eq!(bound(text, "db", &bindings.into()), "m 1");
    }

    #[test]
    fn different_names_broadcast_to_something_unknown() {
        let text = "g (float[n,8] x, float[m,8] y) => () { z = Add(x, y) w = Mul(x, x) }";
        assert_eq!(shape(text, "z"), "? 8");
        assert_eq!(shape(text, "w"), "n 8");
    }

    #[test]
    fn gradients_have_the_shape_of_dy_and_that_of_a_layer_normalization_has_that_of_x() {
        // Measured, with a session's own words for each.
        let text = "g (float[n,8] dy, float[4,8] x, float[8] scale, float[4,1] mean, float[4,1] deviation) => ()
            <float[n,8] d>
            { a = com.microsoft.LayerNormalizationGrad(dy, x, scale, mean, deviation)
              b = com.microsoft.GeluGrad(dy, x) c = com.microsoft.ReluGrad(dy, x)
              d, e, f = com.microsoft.LayerNormalizationGrad(dy, x, scale, mean, deviation) }";
        let bindings = [("n".to_owned(), 4)].into();
        assert_eq!(bound(text, "a", &bindings), "4 8");
        assert_eq!(bound(text, "b", &bindings), "n 8");
        assert_eq!(bound(text, "c", &bindings), "n 8");
        assert_eq!(bound(text, "d", &bindings), "4 8");
        assert_eq!(bound(text, "e", &bindings), "8");
    }

    #[test]
    fn a_constant_shape_gives_its_numbers_whatever_is_declared() {
        let text = "g (float[4,6] x, float[n,6] y) => ()
            <float[n,3,8] a, float[n,3,8] b, float[n,6] c, float[m,2] d>
            { to = Constant <value_ints = [-1, 3, 8]> () a = Reshape(x, to) b = Relu(a)
              same = Constant <value_ints = [0, 6]> () c = Reshape(y, same)
              flat = Constant <value_ints = [0, -1]> () e = Reshape(y, flat)
              two = Constant <value_ints = [-1, 2]> () d = Reshape(y, two) }";
        let bindings = [("n".to_owned(), 1), ("m".to_owned(), 3)].into();
        assert_eq!(bound(text, "a", &bindings), "1 3 8");
        assert_eq!(bound(text, "b", &bindings), "1 3 8");
        assert_eq!(bound(text, "c", &bindings), "n 6");
        assert_eq!(bound(text, "d", &bindings), "m 2");
        assert_eq!(bound(text, "e", &bindings), "n 6");
    }

    // What sessions of 1.19.2 and 1.32.0 say of the lowered update of a weight, and of zeros of a computed size.
    #[test]
    fn a_shape_that_is_computed_gives_as_many_dimensions_as_it_has_numbers() {
        let text = "g (float[3,4] w, float[1] rate, int64[1] to, int64[m] of, float[n,4] x) => () <float[1] r, float[1] s>
            { zeros = Constant <value_ints = [0]> () least = Min(to, zeros) r = Reshape(rate, least)
              step = Mul(w, r) s = Reshape(rate, of)
              sizes = Shape(x) c = ConstantOfShape(sizes) d = Add(c, x) }";
        let bindings = [("m".to_owned(), 1), ("n".to_owned(), 5)].into();
        let undeclared = text.replace("<float[1] r, float[1] s>", "<float[k] r, float[k] s>");
        let bindings_too =
            [("m", 1), ("n", 5), ("k", 1)].map(|(name, size)| (name.to_owned(), size));
        assert_eq!(bound(text, "step", &bindings), "3 4");
        assert_eq!(bound(&undeclared, "step", &bindings_too.into()), "3 4");
        assert_eq!(bound(text, "c", &bindings), "? ?");
        assert_eq!(bound(text, "d", &bindings), "? 4");
    }

    // Measured: a session has `y` and `z` from opset 14 on, and the rest whatever the opset.
    #[test]
    fn before_opset_14_a_reshape_to_a_computed_shape_gives_nothing() {
        let of_opset = |opset: i64, tensor: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : {opset}]>
                g (float[n,4] x, float[3,4] w) => () <int64[2] to = {{4, -1}}>
                {{ sizes = Shape(x) y = Reshape(x, sizes) z = Add(y, w)
                  c = ConstantOfShape(sizes) e = Expand(x, sizes) f = Reshape(x, to) }}"#
            );
            bound(&text, tensor, &[("n".to_owned(), 3)].into())
        };
        assert_eq!(of_opset(14, "y"), "? ?");
        assert_eq!(of_opset(14, "z"), "3 4");
        for opset in [11, 13] {
            assert_eq!(of_opset(opset, "y"), "unknown");
            assert_eq!(of_opset(opset, "z"), "unknown");
            assert_eq!(of_opset(opset, "c"), "? ?");
            assert_eq!(of_opset(opset, "e"), "? 4");
            assert_eq!(of_opset(opset, "f"), "4 ?");
        }
    }

    // Likewise, with weights of 4 channels and an image that a Reshape hides.
    #[test]
    fn statistics_have_the_channels_of_the_weights_where_nothing_is_known_of_the_image() {
        let text = r#"<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
            g (float[n,4,2] x, float[c] s, float[4] b) => ()
            { sizes = Shape(x) h = Reshape(x, sizes)
              y, mean, var, m, v = com.microsoft.BatchNormInternal(h, s, s, b, b) of = Shape(y) }"#;
        let bindings = [("n".to_owned(), 3), ("c".to_owned(), 4)].into();
        assert_eq!(bound(text, "y", &bindings), "unknown");
        for statistic in ["mean", "var", "m", "v"] {
            assert_eq!(bound(text, statistic, &bindings), "4");
        }
        assert_eq!(bound(text, "of", &bindings), "?");
    }

    // Likewise of two names for one size of the batch.
    #[test]
    fn a_product_has_no_name_where_its_matrices_have_two() {
        let text =
            "g (float[n,8,1,4] x, float[m,8,4,1] y) => () { z = MatMul(x, y) w = MatMul(x, x2) }"
                .replace(
                    "w = MatMul(x, x2)",
                    "w = com.microsoft.FusedMatMul <transB = 1> (x, x)",
                );
        let bindings = [("n".to_owned(), 2), ("m".to_owned(), 2)].into();
        assert_eq!(bound(&text, "z", &bindings), "? 8 1 1");
        assert_eq!(bound(&text, "w", &bindings), "n 8 1 1");
        // However large that is.
        let bindings = [("n".to_owned(), 1), ("m".to_owned(), 1)].into();
        assert_eq!(bound(&text, "z", &bindings), "? 8 1 1");
        // What one of them has a number for has that number, though other names stand for as much.
        let text = "g (float[a,4,10,16] x, float[b,c,16,d] y) => () { z = MatMul(x, y) w = com.microsoft.FusedMatMul <transB = 1> (x, x) }";
        let bindings = [("a", 4), ("b", 4), ("c", 4), ("d", 10)];
        let bindings = bindings.map(|(name, size)| (name.to_owned(), size)).into();
        assert_eq!(bound(text, "z", &bindings), "? 4 10 d");
        assert_eq!(bound(text, "w", &bindings), "a 4 10 10");
    }

    // Likewise of a lowered LSTM layer.
    #[test]
    fn what_a_scan_carries_on_has_the_shape_with_which_it_begins_and_any_input_tells_how_often() {
        let shapes = |y: &str| {
            let text = format!(
                "g (float[n,4] begin, float[t,n,4] x, float[{y},4] y) => ()
                {{ last, all = Scan <body = ..., num_scan_inputs = 2> (begin, x, y) }}"
            );
            let mut graph = Graph::parse(&text).unwrap();
            let body = "b (float[k,4] s, float[k,4] a, float[4] b) => (float[k,4] r, float[k,4] o)
                { r = Add(s, a) o = Mul(r, b) }";
            let node = graph.order()[0];
            graph.node_mut(node).bodies.push(crate::graph::Body {
                attribute: "body".to_owned(),
                graph: std::sync::Arc::new(Graph::parse(body).unwrap()),
                shaped: None,
            });
            let bindings =
                [("n", 2), ("t", 6), ("u", 6)].map(|(name, size)| (name.to_owned(), size));
            let bindings = bindings
                .into_iter()
                .filter(|(name, _)| name != "u" || y == "u")
                .collect();
            InferShapes { bindings }.run(&mut graph).unwrap();
            [described(&graph, "last"), described(&graph, "all")]
        };
        assert_eq!(shapes("u"), ["n 4", "t k 4"]);
        assert_eq!(shapes("6"), ["n 4", "6 k 4"]);
    }

    #[test]
    fn permutations_and_reductions_take_their_dimensions_along_whatever_their_size() {
        let text = "g (float[n,4] x) => () <float[n,m] a>
            { a = Transpose <perm = [1, 0]> (x) b = Transpose(x)
              axes = Constant <value_ints = [0]> () c = ReduceSum(x, axes)
              last = Constant <value_ints = [-1]> () d = ReduceSum <keepdims = 0> (x, last) }";
        let bindings = [("n".to_owned(), 4), ("m".to_owned(), 4)].into();
        assert_eq!(bound(text, "a", &bindings), "4 m");
        assert_eq!(bound(text, "b", &bindings), "4 n");
        assert_eq!(bound(text, "c", &bindings), "1 4");
        assert_eq!(bound(text, "d", &bindings), "n");
    }

    #[test]
    fn numbers_make_numbers_where_no_value_is_unknown() {
        let text = "g (float[4,4] x, int64[1] axes) => () <float[n,m] a, float[n,1] b>
            { a = Gemm(x, x) b = ReduceSum(a, axes) }";
        let bindings = [("n".to_owned(), 4), ("m".to_owned(), 4)].into();
        assert_eq!(bound(text, "a", &bindings), "4 4");
        assert_eq!(bound(text, "b", &bindings), "n 1");
    }

    /// Work that grew with the square of the width would take minutes.
    #[test]
    fn the_widest_nodes_are_followed() {
        const WIDTH: usize = 50_000;
        let mut graph = Graph::new("wide");
        graph.opsets.insert(String::new(), 13);
        let mut tensor = |name: String, kind, size| {
            let mut tensor = Tensor::new(name, kind);
            tensor.element = Some(ElementType::Float);
            tensor.shape = Some(vec![size]);
            let symbol = (kind == TensorKind::Input).then(|| Dimension::Symbol("n".to_owned()));
            tensor.declared = symbol.map(|symbol| vec![symbol]);
            Some(graph.add_tensor(tensor))
        };
        let of = 0..WIDTH;
        let inputs = of
            .clone()
            .map(|i| tensor(format!("x{i}"), TensorKind::Input, 1));
        let inputs: Vec<_> = inputs.collect();
        let parts = of.map(|i| tensor(format!("y{i}"), TensorKind::Value, 1));
        let parts: Vec<_> = parts.collect();
        let whole = tensor("whole".to_owned(), TensorKind::Value, WIDTH as u64);
        graph.inputs = inputs.iter().copied().flatten().collect();
        let mut concat = Node::new("concat", "", "Concat", inputs, vec![whole]);
        concat.set_attribute("axis", AttributeValue::Int(0));
        graph.add_node(concat);
        graph.add_node(Node::new("split", "", "Split", vec![whole], parts));
        assert_eq!(described(&graph, "whole"), "?");
        assert_eq!(described(&graph, "y7"), "?");
    }
}
