//! Shapes that are known without what they are shapes of.
//!
//! Gradients ask for the shapes of what the forward part computed, and a tensor stays until its shape was asked for. In builds without
//! training nothing asks early: such a tensor is kept through the step for a few integers, which follow from the shapes of the graph's inputs.
//!
//! **Does**: what is the same for all sizes of symbolic dimensions becomes a constant; `Shape` and `Size` of what a node computes are put
//! together from the shapes of inputs; sums over no axes and changes of a shape to itself go, and so does what nothing reads any more.
//!
//! **Keeps**: results, and all that waits for others on purpose.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::operation::{NewNode, op, op_of};
use super::probe::{Multiple, Probes};
use super::site::Shared;
use crate::graph::{Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses};
use crate::rewrite::infer_shapes::called;

/// What new nodes and tensors are called.
const PREFIX: &str = "ckpt-opt/sizes";

/// What is read in the place of a tensor.
enum Instead {
    /// Integers, and whether they are a list.
    Numbers(Vec<Multiple>, bool),
    /// The same by another name.
    Tensor(TensorId),
}

/// See the [module](self). `graph` is what `original` was lowered to; what waits for others is [kept](Shared::keep).
pub(super) fn settle(graph: &mut Graph, original: &Graph, shared: &mut Shared) {
    let Some(probes) = Probes::of(graph, original) else {
        return;
    };
    let uses = Uses::of(graph);
    let sources = sources(graph);
    let instead = replaced(graph, &uses, &probes, &sources, shared);
    if instead.is_empty() {
        return;
    }
    let gone = unread(graph, &uses, &probes, &instead);
    let mut lists = SizeLists {
        sources,
        made: Vec::new(),
        known: BTreeMap::new(),
        shapes: HashMap::new(),
    };
    let is_constant: BTreeSet<NodeId> = shared.constants().into_iter().collect();
    let mut order = Vec::with_capacity(graph.order().len());
    for id in graph.order().to_vec() {
        if gone.contains(&id) || is_constant.contains(&id) {
            continue;
        }
        order.push(id);
        for place in 0..graph.node(id).inputs.len() {
            let Some(read) = graph.node(id).input(place) else {
                continue;
            };
            let now = match instead.get(&read) {
                Some(Instead::Tensor(_)) => forwarded(&instead, read),
                Some(Instead::Numbers(numbers, is_list)) => {
                    lists.numbers(graph, shared, numbers, *is_list)
                }
                None => continue,
            };
            graph.node_mut(id).inputs[place] = Some(now);
        }
    }
    let order: Vec<NodeId> = lists.made.into_iter().chain(order).collect();
    let read: BTreeSet<TensorId> = order
        .iter()
        .flat_map(|&id| graph.node(id).reads())
        .collect();
    let is_read = |id: &NodeId| {
        graph
            .node(*id)
            .writes()
            .any(|output| read.contains(&output))
    };
    let constants = shared.constants().into_iter().filter(is_read);
    let order = constants.chain(order).collect();
    graph.keep_nodes(order);
}

/// By name, the input and the place where a symbolic dimension can be read.
fn sources(graph: &Graph) -> BTreeMap<String, (TensorId, usize)> {
    let mut sources = BTreeMap::new();
    for &input in &graph.inputs {
        let tensor = graph.tensor(input);
        if tensor.kind != TensorKind::Input || tensor.other.is_some() {
            continue;
        }
        for (axis, dimension) in tensor.declared.iter().flatten().enumerate() {
            if !dimension.is_number() {
                let name = called(tensor, axis, dimension);
                sources.entry(name).or_insert((input, axis));
            }
        }
    }
    sources
}

fn replaced(
    graph: &Graph,
    uses: &Uses,
    probes: &Probes,
    sources: &BTreeMap<String, (TensorId, usize)>,
    shared: &Shared,
) -> BTreeMap<TensorId, Instead> {
    let nodes = || graph.nodes();
    let captured: BTreeSet<TensorId> = nodes().flat_map(|n| n.captures.clone()).collect();
    let mut instead = BTreeMap::new();
    for node in nodes() {
        let mut writes = node.writes();
        let (Some(output), None) = (writes.next(), writes.next()) else {
            continue;
        };
        let stays =
            graph.outputs.contains(&output) || captured.contains(&output) || shared.is_kept(output);
        if stays || node.op_type == "Constant" {
            continue;
        }
        let of_node = node.input(0).filter(|&read| uses.producer(read).is_some());
        if let Some((numbers, is_list)) = probes.contents(output) {
            let is_constant = numbers.iter().all(|number| number.of.is_empty());
            let is_size = node.is("", "Shape") || node.is("", "Size");
            let mut names = numbers.iter().flat_map(|number| &number.of);
            let can_be_read = names.all(|name| sources.contains_key(name));
            if is_constant || (is_size && of_node.is_some() && can_be_read) {
                instead.insert(output, Instead::Numbers(numbers, is_list));
            }
        } else if let Some(read) = of_node.filter(|_| changes_nothing(node, probes)) {
            instead.insert(output, Instead::Tensor(read));
        }
    }
    instead
}

/// Is the output the first input, number by number?
fn changes_nothing(node: &Node, probes: &Probes) -> bool {
    let (Some(read), Some(output)) = (node.input(0), node.output(0)) else {
        return false;
    };
    let is_empty = |axes: TensorId| {
        probes
            .contents(axes)
            .is_some_and(|(axes, _)| axes.is_empty())
    };
    let sums_nothing = node.is("", "ReduceSum")
        && node.int("noop_with_empty_axes") == Some(1)
        && node.input(1).is_some_and(is_empty);
    sums_nothing
        || (node.is("", "Reshape") || node.is("", "Expand")) && probes.same_shape(read, output)
}

fn forwarded(instead: &BTreeMap<TensorId, Instead>, mut id: TensorId) -> TensorId {
    while let Some(Instead::Tensor(before)) = instead.get(&id) {
        id = *before;
    }
    id
}

/// The nodes that nothing reads once others are read instead: those that are replaced, and what only worked out integers for them.
fn unread(
    graph: &Graph,
    uses: &Uses,
    probes: &Probes,
    instead: &BTreeMap<TensorId, Instead>,
) -> BTreeSet<NodeId> {
    let mut readers: Vec<usize> = graph
        .tensor_ids()
        .map(|id| uses.readers(id).len() + usize::from(graph.outputs.contains(&id)))
        .collect();
    for &output in instead.keys() {
        readers[output.index()] = 0;
    }
    let mut open: Vec<TensorId> = instead.keys().copied().collect();
    let mut gone = BTreeSet::new();
    while let Some(output) = open.pop() {
        let Some(id) = uses.producer(output) else {
            continue;
        };
        let node = graph.node(id);
        let is_unread = node.writes().all(|output| readers[output.index()] == 0);
        if !is_unread || !gone.insert(id) {
            continue;
        }
        // What is read in the place of what it wrote has other readers now.
        let forwards = node.writes().next().and_then(|output| instead.get(&output));
        for read in node.reads() {
            let is_forwarded = matches!(forwards, Some(Instead::Tensor(before)) if *before == read);
            if is_forwarded || instead.contains_key(&read) {
                continue;
            }
            readers[read.index()] -= 1;
            if readers[read.index()] == 0 && is_of_integers(graph, probes, uses, read) {
                open.push(read);
            }
        }
    }
    gone
}

/// Does its node compute integers that are known, or what is between such (a comparison)?
fn is_of_integers(graph: &Graph, probes: &Probes, uses: &Uses, id: TensorId) -> bool {
    let Some(producer) = uses.producer(id) else {
        return false;
    };
    const BETWEEN: [&str; 8] = [
        "Equal", "Not", "And", "Or", "Cast", "NonZero", "Less", "Greater",
    ];
    let node = graph.node(producer);
    probes.contents(id).is_some()
        || node.domain.is_empty() && BETWEEN.contains(&node.op_type.as_str())
}

/// Lists that are put together from the shapes of inputs.
struct SizeLists {
    sources: BTreeMap<String, (TensorId, usize)>,
    made: Vec<NodeId>,
    known: BTreeMap<(Vec<Multiple>, bool), TensorId>,
    shapes: HashMap<TensorId, TensorId>,
}

impl SizeLists {
    fn numbers(
        &mut self,
        graph: &mut Graph,
        shared: &mut Shared,
        numbers: &[Multiple],
        is_list: bool,
    ) -> TensorId {
        let times: Vec<i64> = numbers.iter().map(|number| number.times).collect();
        if numbers.iter().all(|number| number.of.is_empty()) {
            let shape = if is_list {
                vec![times.len() as u64]
            } else {
                Vec::new()
            };
            return shared.integers(graph, shape, &times);
        }
        let key = (numbers.to_vec(), is_list);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let mut pieces = Vec::new();
        let mut known = Vec::new();
        for number in numbers {
            if number.of.is_empty() {
                known.push(number.times);
                continue;
            }
            if !known.is_empty() {
                pieces.push(list(graph, shared, &std::mem::take(&mut known)));
            }
            pieces.push(self.product(graph, shared, number));
        }
        if !known.is_empty() {
            pieces.push(list(graph, shared, &known));
        }
        let mut whole = match pieces.as_slice() {
            [only] => *only,
            _ => {
                let all = pieces.into_iter().map(Some).collect();
                self.add(graph, shared, op_of("Concat", all).int("axis", 0))
            }
        };
        if !is_list {
            let scalar = list(graph, shared, &[]);
            whole = self.add(graph, shared, op("Reshape", [whole, scalar]));
        }
        self.known.insert(key, whole);
        whole
    }

    /// A list of one number.
    fn product(&mut self, graph: &mut Graph, shared: &mut Shared, number: &Multiple) -> TensorId {
        let key = (vec![number.clone()], true);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let mut product = None;
        for name in &number.of {
            let (input, axis) = self.sources[name];
            let shape = match self.shapes.get(&input) {
                Some(&known) => known,
                None => {
                    let made = self.add(graph, shared, op("Shape", [input]));
                    self.shapes.insert(input, made);
                    made
                }
            };
            let axis = list(graph, shared, &[axis as i64]);
            let gather = op("Gather", [shape, axis]).int("axis", 0);
            let size = self.add(graph, shared, gather);
            product = Some(match product {
                None => size,
                Some(before) => self.add(graph, shared, op("Mul", [before, size])),
            });
        }
        let times = list(graph, shared, &[number.times]);
        let product = match product {
            Some(product) if number.times != 1 => {
                self.add(graph, shared, op("Mul", [product, times]))
            }
            Some(product) => product,
            None => times,
        };
        self.known.insert(key, product);
        product
    }

    fn add(&mut self, graph: &mut Graph, shared: &mut Shared, new: NewNode) -> TensorId {
        let wish = format!("{PREFIX}/{}", new.op_type);
        let output = graph.free_tensor_name(&wish);
        let output = graph.add_tensor(Tensor::new(output, TensorKind::Value));
        let name = shared.free_name(&wish);
        let node = graph.add_node(new.named(name, vec![Some(output)]));
        self.made.push(node);
        output
    }
}

fn list(graph: &mut Graph, shared: &mut Shared, numbers: &[i64]) -> TensorId {
    shared.integers(graph, vec![numbers.len() as u64], numbers)
}
