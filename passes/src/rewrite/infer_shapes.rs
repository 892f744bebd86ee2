//! Gives every tensor a concrete type and shape.
//!
//! **Does**: binds the symbolic dimensions of the graph's inputs, then follows the nodes in
//! topological order with the rules of [`crate::operators`], contents of small integer tensors
//! included (shapes that are computed in the graph). Where an operator has no rule, or cannot
//! say, the file's `value_info` has to, or whoever gave the tensor a type and a shape before (a profile).
//!
//! **Needs**: declared types and shapes of the graph's inputs.
//!
//! **Keeps**: nodes, order, and the declarations of inputs and outputs. [`Tensor::element`], [`Tensor::shape`] and
//! [`Tensor::constant`] are filled in, and numbers that a value's declaration says otherwise than its node's inputs
//! are forgotten ([`stale`] finds them): the runtime would plan memory by them.
//!
//! [`Tensor::element`]: crate::graph::Tensor::element
//! [`Tensor::shape`]: crate::graph::Tensor::shape
//! [`Tensor::constant`]: crate::graph::Tensor::constant

mod advice;
mod bodies;
mod deduce;
mod expression;
mod rules;

use std::borrow::Cow;
use std::cell::{Cell, LazyCell};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) use advice::advised;
use bodies::Followed;
pub use bodies::uncounted;
pub(crate) use deduce::primes;
pub use deduce::sizes_of_inputs;
pub(crate) use rules::follows_from_rules;

use thiserror::Error;

use crate::analysis::mirrors::original_tensor;
use crate::graph::{
    Constant, Cycle, Dimension, ElementType, Graph, Node, NodeId, Tensor, TensorId, TensorKind,
    Uses, checked_count, topological,
};
use crate::operators::{self, Contents, Fault, Known, Shape};
use crate::pass::{Changed, Pass};

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferShapes {
    /// The size of each symbolic dimension of the graph's inputs, by name.
    pub bindings: BTreeMap<String, u64>,
}

/// Why shapes could not be inferred.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)]
pub enum InferShapesError {
    #[error("dimension {name:?} is bound to 0; expected a size from 1 up")]
    Zero { name: String },
    #[error("there is no dimension {name:?}; {}", dimensions(existing))]
    NoSuchDimension { name: String, existing: Vec<String> },
    #[error(
        "the size of {} is not given: {}{}",
        plural(names.len(), "dimension"),
        listed(names),
        from_these(follow)
    )]
    Unbound {
        names: Vec<String>,
        /// Others, which follow from these.
        follow: Vec<String>,
    },
    #[error(
        "{error}; dimension {name:?} is bound to {given}, and {follows} follows from the other sizes"
    )]
    AtOdds {
        name: String,
        given: u64,
        follows: u64,
        error: Box<InferShapesError>,
    },
    #[error("graph input {tensor:?} is not declared as a tensor of known type and rank")]
    Undeclared { tensor: String },
    #[error("{circle}")]
    Cycle { circle: String },
    #[error("{node}, in its {body}: {error}")]
    Inside {
        node: String,
        body: String,
        error: Box<InferShapesError>,
    },
    #[error("{node}: {fault}")]
    Node { node: String, fault: Fault },
    #[error(
        "{node}: its gradient has shape {gradient}, and what it is of has {expected}: a step would read or write behind their memory"
    )]
    Gradient {
        node: String,
        gradient: Shape,
        expected: Shape,
    },
    #[error(
        "{node}: its output {tensor:?} is declared as {declared}, but its inputs make it {inferred}"
    )]
    Contradiction {
        node: String,
        tensor: String,
        declared: String,
        inferred: String,
    },
    #[error(
        "{node}: nothing says {what} of its output {tensor:?}{}; expected it in the file's \
         value_info (onnx.shape_inference.infer_shapes adds it for standard operators){}",
        declared(declaration),
        ask(names)
    )]
    Unknown {
        node: String,
        tensor: String,
        what: &'static str,
        declaration: Option<String>,
        names: Vec<String>,
    },
    #[error("tensor {tensor:?} of shape {shape} does not fit into any memory")]
    TooLarge { tensor: String, shape: Shape },
}

impl InferShapesError {
    /// The dimensions of which a size would help.
    pub fn names(&self) -> &[String] {
        match self {
            InferShapesError::Unknown { names, .. } => names,
            InferShapesError::Inside { error, .. } => error.names(),
            _ => &[],
        }
    }

    fn names_mut(&mut self) -> Option<&mut Vec<String>> {
        match self {
            InferShapesError::Unknown { names, .. } => Some(names),
            InferShapesError::Inside { error, .. } => error.names_mut(),
            _ => None,
        }
    }
}

/// The error that a circle is.
fn cycle(graph: &Graph, uses: &Uses, found: &Cycle) -> InferShapesError {
    let circle = found.show(graph, uses, |id| describe(graph.node(id)));
    InferShapesError::Cycle { circle }
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

/// So many dimensions are named in a message.
pub const MOST_NAMES: usize = 20;

/// The first of them, and how many more there are.
fn listed(names: &[String]) -> String {
    let shown = &names[..names.len().min(MOST_NAMES)];
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn from_these(follow: &[String]) -> String {
    match follow {
        [] => String::new(),
        [one] => format!(", from which {one} follows"),
        more => format!(", from which {} follow", listed(more)),
    }
}

fn dimensions(existing: &[String]) -> String {
    match existing {
        [] => "the graph has no symbolic dimensions".to_owned(),
        names => format!("the graph has {}", listed(names)),
    }
}

fn declared(declaration: &Option<String>) -> String {
    declaration
        .as_ref()
        .map_or(String::new(), |d| format!(", declared as {d}"))
}

fn ask(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(", or a size for {}", listed(names))
}

impl Pass for InferShapes {
    const NAME: &str = "infer-shapes";
    type Error = InferShapesError;

    fn run(&self, graph: &mut Graph) -> Result<Changed, InferShapesError> {
        self.check_bindings(graph)?;
        let patterns = patterns(&self.bindings);
        let mut inference = Inference::new(self.bindings.clone(), patterns, Uses::of(graph));
        let order = topological(graph, &inference.uses)
            .map_err(|found| cycle(graph, &inference.uses, &found))?;
        if !open_dimensions(graph, &inference).is_empty() {
            let deduced = deduce::deduce(graph, &order, &inference);
            inference.sizes.extend(deduced);
        }
        inference.bind_inputs(graph)?;
        for &id in &order {
            inference.visit(graph, id)?;
        }
        inference.check_gradients(graph, &order)?;
        if let Some(missing) = all_missing(inference.missing) {
            return Err(missing);
        }
        for id in graph.tensor_ids() {
            forget_stale(graph, id);
        }
        Ok(inference.changed)
    }
}

impl InferShapes {
    /// Are all sizes from 1 up, and of dimensions that the graph has?
    pub(crate) fn check_bindings(&self, graph: &Graph) -> Result<(), InferShapesError> {
        if let Some((name, _)) = self.bindings.iter().find(|(_, size)| **size == 0) {
            return Err(InferShapesError::Zero { name: name.clone() });
        }
        match self.bindings.keys().find(absent(graph)) {
            None => Ok(()),
            Some(name) => Err(InferShapesError::NoSuchDimension {
                name: name.clone(),
                existing: dimensions_of_inputs(graph).into_iter().collect(),
            }),
        }
    }
}

/// Forgets the sizes of dimensions that the graph does not have: a declaration that nobody reads may have gone.
pub(crate) fn retain_existing(bindings: &mut BTreeMap<String, u64>, graph: &Graph) {
    let is_absent = absent(graph);
    bindings.retain(|name, _| !is_absent(&name));
}

/// Does the graph have no dimension of that name, or none that the pattern matches?
fn absent(graph: &Graph) -> impl Fn(&&String) -> bool {
    let declared = LazyCell::new(|| all_dimensions(graph, declared_dimensions));
    // There are many, and few are named by anybody.
    let open = LazyCell::new(|| all_dimensions(graph, open_dimensions_of_results));
    move |name| {
        let is_one = |existing: &BTreeSet<String>| {
            existing.contains(*name)
                || is_pattern(name) && existing.iter().any(|one| matches(name, one))
        };
        !is_one(&declared) && !is_one(&open)
    }
}

/// Has the file to say how large this input is?
fn needs_sizes(input: &Tensor) -> bool {
    let is_known = input.kind == TensorKind::Initializer && input.shape.is_some();
    !is_known && input.other.is_none()
}

/// An input without which nothing can be inferred: nothing says of which type it is, or how many dimensions it has.
pub(crate) fn undeclared_input(graph: &Graph) -> Option<TensorId> {
    let is_undeclared = |&&id: &&TensorId| {
        let tensor = graph.tensor(id);
        needs_sizes(tensor) && (tensor.element.is_none() || tensor.declared.is_none())
    };
    graph.inputs.iter().find(is_undeclared).copied()
}

/// The dimensions of inputs of which `inference` does not know the size, by name or place.
fn open_dimensions(graph: &Graph, inference: &Inference) -> BTreeSet<String> {
    let mut open = BTreeSet::new();
    for &id in &graph.inputs {
        let tensor = graph.tensor(id);
        if !needs_sizes(tensor) {
            continue;
        }
        for (position, dimension) in tensor.declared.iter().flatten().enumerate() {
            if inference.size(tensor, position).is_none() {
                open.insert(called(tensor, position, dimension));
            }
        }
    }
    open
}

/// What has to be given of `open`: the size of an expression follows from those of the names in it.
fn to_be_given(graph: &Graph, open: BTreeSet<String>) -> Vec<String> {
    let there = dimensions_of_inputs(graph);
    let follows = |text: &String| {
        let names = expression::names(text);
        names.is_some_and(|names| !names.contains(text) && names.is_subset(&there))
    };
    open.into_iter().filter(|text| !follows(text)).collect()
}

/// What the dimensions that a tensor declares without a number are called.
fn dimensions_of(tensor: &Tensor) -> impl Iterator<Item = String> + '_ {
    let declared = tensor.declared.iter().flatten().enumerate();
    let open = declared.filter(|(_, dimension)| !dimension.is_number());
    open.map(|(position, dimension)| called(tensor, position, dimension))
}

fn dimensions_of_inputs(graph: &Graph) -> BTreeSet<String> {
    let inputs = graph.inputs.iter();
    inputs
        .flat_map(|&id| dimensions_of(graph.tensor(id)))
        .collect()
}

/// Of a result that is not declared, so many dimensions may be open.
const MOST_OPEN: usize = 8;

/// What `of` says of the graph and of all subgraphs in it.
fn all_dimensions(graph: &Graph, of: fn(&Graph) -> Vec<String>) -> BTreeSet<String> {
    let mut names = BTreeSet::from_iter(of(graph));
    for id in graph.node_ids() {
        for body in &graph.node(id).bodies {
            names.extend(all_dimensions(&body.graph, of));
        }
    }
    names
}

/// What all dimensions without a number are called.
fn declared_dimensions(graph: &Graph) -> Vec<String> {
    let tensors = graph.tensor_ids().map(|id| graph.tensor(id));
    tensors.flat_map(dimensions_of).collect()
}

/// What dimensions of results that are not declared are called, if somebody has to say how large they are.
fn open_dimensions_of_results(graph: &Graph) -> Vec<String> {
    let nodes = graph.node_ids().map(|id| graph.node(id));
    let results = nodes
        .filter(|node| operators::may_be_open(node))
        .flat_map(Node::writes);
    let undeclared = results
        .map(|id| graph.tensor(id))
        .filter(|tensor| tensor.declared.is_none());
    undeclared
        .flat_map(|tensor| (0..MOST_OPEN).map(|at| open(tensor, at)))
        .collect()
}

/// A dimension without a number: by its name, or where it has none by the tensor's and its place (`x:0`).
pub(crate) fn called(tensor: &Tensor, position: usize, dimension: &Dimension) -> String {
    match dimension {
        Dimension::Symbol(name) => name.clone(),
        _ => format!("{}:{position}", tensor.name),
    }
}

/// A dimension of a result that is not declared; copies of a result are as large as it is.
fn open(tensor: &Tensor, position: usize) -> String {
    format!("{}:{position}", original_tensor(&tensor.name))
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// The patterns among the names, the one to be tried first in front: more letters tell more; of equals, the later in the
/// alphabet.
fn patterns(bindings: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let patterns = bindings.iter().filter(|(name, _)| is_pattern(name));
    let mut patterns: Vec<(String, u64)> = patterns.map(|(n, &size)| (n.clone(), size)).collect();
    let letters = |name: &str| name.chars().filter(|c| !matches!(c, '*' | '?')).count();
    patterns.sort_by(|(a, _), (b, _)| (letters(b), b).cmp(&(letters(a), a)));
    patterns
}

/// Does `pattern` stand for all of `name`? `*` is any text, `?` one letter. O(pattern · name).
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on if what follows the last star does not match: there, and one letter later in the name.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((behind, from)) = star else {
                    return false;
                };
                star = Some((behind, from + 1));
                (p, n) = (behind, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// A declaration that the node's inputs contradict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Whose declaration.
    pub tensor: String,
    /// Who writes it.
    pub node: String,
    /// What the file says.
    pub declared: String,
    /// What it is.
    pub inferred: String,
}

/// What `graph` declares of its values, in file order, otherwise than `shaped`, the same graph with shapes, has it.
pub fn stale(graph: &Graph, shaped: &Graph) -> Vec<Stale> {
    let mut found = Vec::new();
    for &id in graph.order() {
        for output in graph.node(id).writes() {
            let (tensor, shape) = (graph.tensor(output), &shaped.tensor(output).shape);
            if let (Some(declared), Some(shape)) = (&tensor.declared, shape)
                && !agrees(declared, shape)
            {
                found.push(Stale {
                    tensor: tensor.name.clone(),
                    node: describe(graph.node(id)),
                    declared: declaration(declared),
                    inferred: Shape(shape.clone()).to_string(),
                });
            }
        }
    }
    found
}

/// Numbers must agree; names may be wrong, since exporters unify dimensions that only happened to be equal.
fn agrees(declared: &[Dimension], shape: &[u64]) -> bool {
    let agrees = |(dimension, size): (&Dimension, &u64)| match dimension {
        Dimension::Known(declared) => declared == size,
        _ => true,
    };
    declared.len() == shape.len() && declared.iter().zip(shape).all(agrees)
}

/// Of values alone: what the caller sees of inputs and outputs stays.
fn forget_stale(graph: &mut Graph, id: TensorId) {
    let tensor = graph.tensor(id);
    let (Some(declared), Some(shape)) = (&tensor.declared, &tensor.shape) else {
        return;
    };
    if tensor.kind != TensorKind::Value || graph.outputs.contains(&id) || agrees(declared, shape) {
        return;
    }
    let kept = shape
        .iter()
        .enumerate()
        .map(|(at, size)| match declared.get(at) {
            Some(Dimension::Known(number)) if number != size => Dimension::Unknown,
            Some(dimension) if declared.len() == shape.len() => dimension.clone(),
            _ => Dimension::Unknown,
        });
    let kept = kept.collect();
    let tensor = graph.tensor_mut(id);
    tensor.stale = tensor.declared.replace(kept);
}

/// The graph as it is written: without declarations that are wrong. Needs concrete shapes.
pub(crate) fn without_stale(graph: &Graph) -> Cow<'_, Graph> {
    let stale = |id: &TensorId| graph.tensor(*id).stale.is_some();
    let stale: Vec<TensorId> = graph.tensor_ids().filter(stale).collect();
    if stale.is_empty() {
        return Cow::Borrowed(graph);
    }
    let mut right = graph.clone();
    for id in stale {
        right.tensor_mut(id).stale = None;
    }
    Cow::Owned(right)
}

/// One error for all that is missing.
fn all_missing(missing: Vec<InferShapesError>) -> Option<InferShapesError> {
    let all: BTreeSet<String> = missing
        .iter()
        .flat_map(|one| one.names().iter().cloned())
        .collect();
    // A value that nothing but value_info can help comes before those that sizes can.
    let hopeless = |one: &InferShapesError| one.names().is_empty();
    let place = missing.iter().position(hopeless).unwrap_or(0);
    let mut first = missing.into_iter().nth(place)?;
    if let Some(names) = first.names_mut() {
        *names = all.into_iter().collect();
    }
    Some(first)
}

#[derive(Clone)]
struct Inference {
    /// The size of each dimension name: what the user bound, and names in `value_info` whose
    /// size has turned out.
    sizes: BTreeMap<String, u64>,
    /// What names that fit a pattern are at most.
    patterns: Vec<(String, u64)>,
    uses: Uses,
    /// Tensors that may be smaller in a step than is said, or hold smaller numbers.
    at_most: BTreeSet<TensorId>,
    /// What is in sequences and optional values, as far as that is known.
    contents: BTreeMap<TensorId, Contents>,
    /// Is something smaller in the subgraphs that were followed last?
    inside_is_bounded: Cell<bool>,
    /// The results of which nothing is known; nor is anything, then, of what follows from them alone.
    missing: Vec<InferShapesError>,
    changed: Changed,
}

impl Inference {
    /// Before any node.
    fn new(sizes: BTreeMap<String, u64>, patterns: Vec<(String, u64)>, uses: Uses) -> Inference {
        Inference {
            sizes,
            patterns,
            uses,
            at_most: BTreeSet::new(),
            contents: BTreeMap::new(),
            inside_is_bounded: Cell::new(false),
            missing: Vec::new(),
            changed: Changed::No,
        }
    }

    fn bind_inputs(&mut self, graph: &mut Graph) -> Result<(), InferShapesError> {
        let names = open_dimensions(graph, self);
        for id in graph.inputs.clone() {
            self.bind_input(graph, id)?;
        }
        match names.is_empty() {
            true => Ok(()),
            false => Err(InferShapesError::Unbound {
                names: to_be_given(graph, names),
                follow: Vec::new(),
            }),
        }
    }

    /// Gives an input its shape, if all its sizes are known.
    fn bind_input(&mut self, graph: &mut Graph, id: TensorId) -> Result<(), InferShapesError> {
        let tensor = graph.tensor(id);
        if !needs_sizes(tensor) {
            return Ok(());
        }
        let (Some(element), Some(declared)) = (tensor.element, &tensor.declared) else {
            return Err(InferShapesError::Undeclared {
                tensor: tensor.name.clone(),
            });
        };
        let sizes = (0..declared.len()).map(|position| self.size(tensor, position));
        let Some(shape) = sizes.collect::<Option<Vec<u64>>>() else {
            return Ok(());
        };
        check_fits(tensor, element, &shape)?;
        self.set(graph, id, element, shape);
        Ok(())
    }

    /// Do gradients go with what they are of? Where something may be smaller than is said, nothing says so.
    fn check_gradients(&self, graph: &Graph, order: &[NodeId]) -> Result<(), InferShapesError> {
        for node in order.iter().map(|&id| graph.node(id)) {
            if node.reads().any(|id| self.at_most.contains(&id)) {
                continue;
            }
            if let Some(unlike) = operators::unlike(graph, node) {
                return Err(InferShapesError::Gradient {
                    node: describe(node),
                    gradient: unlike.gradient,
                    expected: unlike.expected,
                });
            }
        }
        Ok(())
    }

    /// The size of the dimension that `tensor` declares at `position`, where it is known.
    fn size(&self, tensor: &Tensor, position: usize) -> Option<u64> {
        match tensor.declared.as_ref()?.get(position)? {
            Dimension::Known(size) => Some(*size),
            unnamed @ Dimension::Unknown => self.named(&called(tensor, position, unnamed)),
            Dimension::Symbol(name) => self
                .sizes
                .get(name)
                .copied()
                .or_else(|| expression::evaluate(name, |name| self.named(name)))
                .or_else(|| self.named(name)),
        }
    }

    /// The size of what has this name, or at most has: exact names go before patterns.
    fn named(&self, name: &str) -> Option<u64> {
        let by_pattern = || {
            let mut patterns = self.patterns.iter();
            patterns.find(|(pattern, _)| matches(pattern, name))
        };
        let exact = self.sizes.get(name).copied();
        exact.or_else(|| by_pattern().map(|&(_, size)| size))
    }

    fn visit(&mut self, graph: &mut Graph, id: NodeId) -> Result<(), InferShapesError> {
        let node = graph.node(id);
        let is_bounded = node.reads().any(|id| self.at_most.contains(&id));
        // Numbers that may be smaller are nothing to go by where smaller ones make larger results.
        let inputs = node.inputs.iter().enumerate();
        let hidden: Vec<TensorId> = inputs
            .filter_map(|(at, &id)| Some((at, id?)))
            .filter(|(at, id)| self.at_most.contains(id) && !operators::takes_bounds(node, *at))
            .map(|(_, id)| id)
            .collect();
        let contents = hidden.into_iter().filter_map(|id| {
            graph.tensor(id).constant.as_ref()?;
            Some((id, graph.tensor_mut(id).constant.take()))
        });
        let contents: Vec<(TensorId, Option<Constant>)> = contents.collect();
        self.inside_is_bounded.set(false);
        let visited = self.visit_as_is(graph, id);
        for (id, constant) in contents {
            graph.tensor_mut(id).constant = constant;
        }
        if is_bounded || self.inside_is_bounded.get() {
            self.bound_results(graph, id);
        }
        visited
    }

    /// What is made of something that may be smaller may be smaller.
    fn bound_results(&mut self, graph: &mut Graph, id: NodeId) {
        for output in graph.node(id).writes().collect::<Vec<_>>() {
            let tensor = graph.tensor(output);
            // Of less than nothing, less is more.
            let is_negative = |numbers: &[i64]| numbers.iter().any(|&number| number < 0);
            if tensor.ints().is_some_and(is_negative) {
                graph.tensor_mut(output).constant = None;
            }
            let tensor = graph.tensor(output);
            let is_scalar = tensor.shape.as_ref().is_some_and(Vec::is_empty);
            if !is_scalar || tensor.constant.is_some() {
                self.at_most.insert(output);
            }
        }
    }

    fn visit_as_is(&mut self, graph: &mut Graph, id: NodeId) -> Result<(), InferShapesError> {
        let node = graph.node(id);
        let followed = match node.bodies.is_empty() || self.reads_missing(graph, node) {
            true => None,
            false => Some(self.through_bodies(graph, node)?),
        };
        let inferred = self.inferred(graph, node, followed.as_ref())?;
        let outputs = node.outputs.iter().zip(inferred).enumerate();
        let outputs: Vec<(usize, TensorId, Option<Known>)> = outputs
            .filter_map(|(position, (&output, known))| Some((position, output?, known)))
            .collect();
        let mut bounds = None;
        for (position, output, known) in outputs {
            let (node, tensor) = (graph.node(id), graph.tensor(output));
            let from_inside = followed
                .as_ref()
                .and_then(|followed| followed.other(position));
            if from_inside.is_some() || tensor.other.is_some() || operators::makes_no_tensor(node) {
                // What is put into it is copied (or shared: then less).
                let reads = node.inputs.iter().flatten();
                let held = reads.filter_map(|&read| graph.tensor(read).memory()).sum();
                let contents = match from_inside {
                    Some((_, contents)) => contents.clone(),
                    None => self.put_in(graph, node),
                };
                self.contents
                    .extend(contents.map(|contents| (output, contents)));
                let held = from_inside.map_or(held, |(held, _)| *held);
                graph.tensor_mut(output).other = Some(held);
                continue;
            }
            let missing = match known.map_or_else(|| self.as_declared(node, tensor), Ok) {
                Ok(known) => {
                    self.set_result(graph, id, output, known)?;
                    continue;
                }
                Err(missing) => missing,
            };
            let bounds =
                bounds.get_or_insert_with(|| operators::at_most(graph, node).unwrap_or_default());
            let bound = match bounds.get_mut(position).and_then(Option::take) {
                Some(bound) => Ok(bound),
                None => self.bounded(graph, node, position, followed.as_ref(), missing),
            };
            match bound {
                Ok(mut bound) => {
                    bound.constant = None;
                    self.set_result(graph, id, output, bound)?;
                    self.at_most.insert(output);
                }
                Err(_) if self.reads_missing(graph, node) => {}
                Err(missing) => self.missing.push(missing),
            }
        }
        if let Some(followed) = followed
            && bodies::record(graph, id, followed)
        {
            self.changed = Changed::Yes;
        }
        Ok(())
    }

    /// What the operator's rule says of each output; where it says nothing, what following the node's subgraphs has shown.
    fn inferred(
        &self,
        graph: &Graph,
        node: &Node,
        followed: Option<&Followed>,
    ) -> Result<Vec<Option<Known>>, InferShapesError> {
        let mut inferred = match operators::infer(graph, &self.uses, node) {
            None => Vec::new(),
            Some(Ok(outputs)) => outputs,
            // It cannot say, as long as nothing says what it reads.
            Some(Err(_)) if self.reads_missing(graph, node) => Vec::new(),
            Some(Err(fault)) => {
                return Err(InferShapesError::Node {
                    node: describe(node),
                    fault,
                });
            }
        };
        if let Some(followed) = followed
            && inferred.is_empty()
        {
            inferred.clone_from(&followed.outputs);
        }
        inferred.resize(node.outputs.len(), None);
        Ok(inferred)
    }

    /// Does it read a result of which nothing is known?
    fn reads_missing(&self, graph: &Graph, node: &Node) -> bool {
        let unknown = |id: TensorId| {
            let tensor = graph.tensor(id);
            tensor.shape.is_none() && tensor.other.is_none()
        };
        !self.missing.is_empty() && node.reads().any(unknown)
    }

    /// What the file says of an output that no rule knows.
    fn as_declared(&self, node: &Node, tensor: &Tensor) -> Result<Known, InferShapesError> {
        let dims = tensor.declared.as_deref();
        let sizes = dims.map(|dims| (0..dims.len()).map(|at| self.size(tensor, at)));
        let shape = sizes.and_then(Iterator::collect::<Option<Vec<u64>>>);
        let what = match (tensor.element, shape.or_else(|| tensor.shape.clone())) {
            (Some(element), Some(shape)) => {
                return Ok(Known {
                    element,
                    shape,
                    constant: None,
                });
            }
            (None, Some(_)) => "the type",
            (_, None) => "the shape",
        };
        let open = dims.into_iter().flatten().enumerate();
        let open = open.filter(|&(at, _)| self.size(tensor, at).is_none());
        let names: BTreeSet<String> = open
            .map(|(at, dimension)| called(tensor, at, dimension))
            .collect();
        Err(InferShapesError::Unknown {
            node: describe(node),
            tensor: tensor.name.clone(),
            what,
            declaration: dims.map(declaration),
            names: names.into_iter().collect(),
        })
    }

    /// What the node puts into what it writes.
    fn put_in(&self, graph: &Graph, node: &Node) -> Option<Contents> {
        let tensor = |at: usize| bodies::value(graph, node.input(at));
        operators::put_in(node, tensor, |at| {
            self.contents.get(&node.input(at)?).cloned()
        })
    }

    /// What the user says of the sizes of an output of which nothing but their number is known; else what is `missing`.
    fn bounded(
        &self,
        graph: &Graph,
        node: &Node,
        position: usize,
        followed: Option<&Followed>,
        missing: InferShapesError,
    ) -> Result<Known, InferShapesError> {
        if let Some(inside) = followed.and_then(|followed| followed.missing.clone()) {
            return Err(inside);
        }
        let tensor = node.output(position).map(|id| graph.tensor(id));
        let Some(tensor) = tensor.filter(|tensor| tensor.declared.is_none()) else {
            return Err(missing);
        };
        let of_bounds = node.reads().any(|id| self.at_most.contains(&id));
        let known = match followed {
            Some(followed) => followed.open.get(position).cloned().flatten(),
            None => match node.input(0).and_then(|id| self.contents.get(&id)) {
                Some(held) => operators::taken_out(node, held),
                None => operators::open(graph, node, of_bounds),
            },
        };
        let Some(known) = known.filter(|known| known.sizes.len() <= MOST_OPEN) else {
            return Err(missing);
        };
        let mut open = BTreeSet::new();
        let mut shape = Vec::new();
        for (at, size) in known.sizes.iter().enumerate() {
            let name = self::open(tensor, at);
            match size.or_else(|| self.named(&name)) {
                Some(size) => shape.push(size),
                None => drop(open.insert(name)),
            }
        }
        match missing {
            _ if open.is_empty() => Ok(Known {
                element: known.element,
                shape,
                constant: None,
            }),
            InferShapesError::Unknown {
                node,
                tensor,
                what,
                declaration,
                ..
            } => Err(InferShapesError::Unknown {
                node,
                tensor,
                what,
                declaration,
                names: open.into_iter().collect(),
            }),
            other => Err(other),
        }
    }

    /// Gives an output what is known of it. The type that the file declares must be the same: the runtime refuses another. What it
    /// says of sizes is a hint.
    fn set_result(
        &mut self,
        graph: &mut Graph,
        id: NodeId,
        output: TensorId,
        known: Known,
    ) -> Result<(), InferShapesError> {
        let tensor = graph.tensor(output);
        if let Some(declared) = tensor.element.filter(|&declared| declared != known.element) {
            return Err(InferShapesError::Contradiction {
                node: describe(graph.node(id)),
                tensor: tensor.name.clone(),
                declared: declared.name().to_owned(),
                inferred: known.element.name().to_owned(),
            });
        }
        check_fits(tensor, known.element, &known.shape)?;
        self.learn(tensor, &known.shape);
        self.set(graph, output, known.element, known.shape);
        if known.constant.is_some() {
            graph.tensor_mut(output).constant = known.constant;
        }
        Ok(())
    }

    /// Names that stand for one dimension of `tensor` are known from here on.
    fn learn(&mut self, tensor: &Tensor, shape: &[u64]) {
        let declared = tensor
            .declared
            .iter()
            .filter(|declared| agrees(declared, shape));
        for (dimension, &size) in declared.flatten().zip(shape) {
            if let Dimension::Symbol(name) = dimension {
                self.sizes.entry(name.clone()).or_insert(size);
            }
        }
    }

    fn set(&mut self, graph: &mut Graph, id: TensorId, element: ElementType, shape: Vec<u64>) {
        let tensor = graph.tensor_mut(id);
        if tensor.element != Some(element) || tensor.shape.as_ref() != Some(&shape) {
            self.changed = Changed::Yes;
            tensor.element = Some(element);
            tensor.shape = Some(shape);
        }
    }
}

/// It must not have more bytes than a signed 64-bit number can hold.
fn check_fits(
    tensor: &Tensor,
    element: ElementType,
    shape: &[u64],
) -> Result<(), InferShapesError> {
    let fits = |count: &u64| element.bytes(*count).0 <= i64::MAX as u64;
    match checked_count(shape).filter(fits) {
        Some(_) => Ok(()),
        None => Err(InferShapesError::TooLarge {
            tensor: tensor.name.clone(),
            shape: Shape(shape.to_vec()),
        }),
    }
}

/// `[batch, 64, ?]`
fn declaration(dims: &[Dimension]) -> String {
    let dims = dims.iter().map(Dimension::to_string);
    format!("[{}]", dims.collect::<Vec<String>>().join(", "))
}

fn describe(node: &Node) -> String {
    let domain = if node.domain.is_empty() { "" } else { "::" };
    format!(
        "node {:?} ({}{domain}{})",
        node.name, node.domain, node.op_type
    )
}

#[cfg(test)]
mod tests;
