//! Where the runtime puts casts on the CPU around nodes that have no kernel for float16, which of them it takes out again, and what that rounds.
//!
//! What is known of the runtime here is kept apart from what plans are made with, on purpose.

use std::collections::BTreeMap;

use crate::graph::{ElementType, Graph, Node, NodeId, TensorId, Uses};

/// What can compute in float16 on the CPU. Everything else is in float32 between casts.
pub(super) const IN_HALF: [&str; 40] = [
    ".Cast",
    ".Clip",
    ".Compress",
    ".Concat",
    ".Expand",
    ".Flatten",
    ".Gather",
    ".GatherElements",
    ".GatherND",
    ".Identity",
    ".If",
    ".IsNaN",
    ".Loop",
    ".Max",
    ".Min",
    ".Mod",
    ".RandomUniformLike",
    ".Reshape",
    ".ReverseSequence",
    ".Round",
    ".Scan",
    ".Scatter",
    ".ScatterElements",
    ".ScatterND",
    ".Shape",
    ".Shrink",
    ".Sign",
    ".Slice",
    ".Split",
    ".Squeeze",
    ".Transpose",
    ".Unsqueeze",
    "com.microsoft.ConcatTraining",
    "com.microsoft.Inverse",
    "com.microsoft.PassThrough",
    "com.microsoft.ShrunkenGather",
    "com.microsoft.SliceGrad",
    "com.microsoft.SplitTraining",
    "com.microsoft.View",
    "com.microsoft.YieldOp",
];

/// Of those, what takes, and what gives, any number of tensors, of which the runtime looks at the first alone.
const ANY_INPUTS: [&str; 6] = [
    ".Concat",
    ".Max",
    ".Min",
    "com.microsoft.ConcatTraining",
    "com.microsoft.PassThrough",
    "com.microsoft.YieldOp",
];
const ANY_OUTPUTS: [&str; 4] = [
    ".Split",
    "com.microsoft.PassThrough",
    "com.microsoft.SplitTraining",
    "com.microsoft.YieldOp",
];

/// Can the CPU compute the node in float16?
pub(super) fn in_half(node: &Node) -> bool {
    !node.captures.is_empty() || IN_HALF.contains(&full_name(node).as_str())
}

pub(super) fn full_name(node: &Node) -> String {
    format!("{}.{}", node.domain, node.op_type)
}

pub(super) fn is_cast(node: &Node) -> bool {
    node.is("", "Cast")
}

pub(super) fn is_half(graph: &Graph, tensor: TensorId) -> bool {
    graph.tensor(tensor).element == Some(ElementType::Float16)
}

/// A graph with the casts that it gets on the CPU. Places are numbers: a tensor's own, and behind all tensors those that only
/// casts make of one, and those that are only cast to one.
pub(super) struct WithCasts {
    /// By node id, but for casts.
    pub(super) nodes: Vec<Option<ComputedNode>>,
    /// Those of the graph in its order, then the runtime's; `None` for what it takes out.
    casts: Vec<Option<PlacedCast>>,
    /// By place: which cast makes it.
    made_by: BTreeMap<usize, usize>,
    /// By place: what lies at another is handed on there.
    forwarded: BTreeMap<usize, usize>,
    /// By place: who reads it.
    users: BTreeMap<usize, Vec<User>>,
}

pub(super) struct ComputedNode {
    pub(super) wide: bool,
    /// By input.
    pub(super) reads: Vec<Option<usize>>,
    /// Which output lies where.
    pub(super) writes: Vec<(usize, usize)>,
}

#[derive(Clone, Copy)]
struct PlacedCast {
    from: ElementType,
    to: ElementType,
    read: usize,
    written: usize,
    by_runtime: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum User {
    Cast(usize),
    /// A node's input; what its subgraphs read is none.
    Input(NodeId, usize),
    Other,
}

impl WithCasts {
    /// `forwards`: does the node hand on each input as the output at its position?
    pub(super) fn of(graph: &Graph, forwards: impl Fn(NodeId) -> bool) -> WithCasts {
        let wide = computed_wide(graph);
        let mut all = WithCasts {
            nodes: (0..graph.node_count()).map(|_| None).collect(),
            casts: Vec::new(),
            made_by: BTreeMap::new(),
            forwarded: BTreeMap::new(),
            users: BTreeMap::new(),
        };
        let mut inserted = Vec::new();
        for &id in graph.order() {
            match listed_cast(graph, graph.node(id)) {
                Some(cast) => all.add_cast(cast),
                None => inserted.extend(all.add_node(graph, id, wide[id.index()])),
            }
        }
        for cast in inserted {
            // Whoever reads a tensor wide reads the same.
            if !all.made_by.contains_key(&cast.written) {
                all.add_cast(cast);
            }
        }
        all.take_out(graph);
        for &id in graph.order().iter().filter(|&&id| forwards(id)) {
            all.forward(id);
        }
        all
    }

    /// Adds a node that is no cast, and says which casts the runtime inserts around it: where it is `wide`, around all that is in
    /// float16.
    fn add_node(&mut self, graph: &Graph, id: NodeId, wide: bool) -> Vec<PlacedCast> {
        let (node, tensors) = (graph.node(id), graph.tensor_count());
        let half = |tensor: TensorId| wide && is_half(graph, tensor);
        let mut inserted = Vec::new();
        let mut insert = |from, to, read, written| {
            inserted.push(PlacedCast {
                from,
                to,
                read,
                written,
                by_runtime: true,
            });
        };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (position, read) in node.inputs.iter().enumerate() {
            let place = read.map(|read| {
                let narrow = read.index();
                if !half(read) {
                    return narrow;
                }
                let place = tensors + narrow;
                insert(ElementType::Float16, ElementType::Float, narrow, place);
                place
            });
            if let Some(place) = place {
                self.add_user(place, User::Input(id, position));
            }
            reads.push(place);
        }
        for capture in &node.captures {
            self.add_user(capture.index(), User::Other);
        }
        for (position, written) in node.outputs.iter().enumerate() {
            let Some(written) = *written else { continue };
            let narrow = written.index();
            let mut place = narrow;
            if half(written) {
                place += 2 * tensors;
                insert(ElementType::Float, ElementType::Float16, place, narrow);
            }
            writes.push((position, place));
        }
        self.nodes[id.index()] = Some(ComputedNode {
            wide,
            reads,
            writes,
        });
        inserted
    }

    /// What lies at the places that the node writes is what lies at those that it reads.
    fn forward(&mut self, id: NodeId) {
        if let Some(node) = &self.nodes[id.index()] {
            for &(position, place) in &node.writes {
                if let Some(read) = self.place(id, position) {
                    self.forwarded.insert(place, read);
                }
            }
        }
    }

    fn add_user(&mut self, place: usize, user: User) {
        self.users.entry(place).or_default().push(user);
    }

    fn add_cast(&mut self, cast: PlacedCast) {
        let index = self.casts.len();
        self.add_user(cast.read, User::Cast(index));
        self.made_by.insert(cast.written, index);
        self.casts.push(Some(cast));
    }

    /// Takes out casts as the runtime does: those that undo the one before them, and those that only casts read.
    fn take_out(&mut self, graph: &Graph) {
        let is_output = |place: usize| graph.outputs.iter().any(|output| output.index() == place);
        for index in 0..self.casts.len() {
            let Some(cast) = self.casts[index] else {
                continue;
            };
            let users = self.users.get(&cast.written).cloned().unwrap_or_default();
            let next = |user: &User| match user {
                User::Cast(next) => self.casts[*next].map(|cast| (*next, cast)),
                _ => None,
            };
            let behind: Vec<(usize, PlacedCast)> = users.iter().filter_map(next).collect();
            // What the file rounds and widens again is meant to be rounded.
            let meant = |next: &PlacedCast| !is_free(next.to, next.from, next.by_runtime);
            if !is_free(cast.from, cast.to, cast.by_runtime)
                && behind.iter().any(|(_, next)| meant(next))
            {
                continue;
            }
            let only_casts = !users.is_empty() && behind.len() == users.len();
            for &(next, other) in &behind {
                let undoes = other.to == cast.from && other.from == cast.to;
                if undoes && !is_output(other.written) {
                    self.skip(next, cast.read);
                } else if only_casts
                    && !is_output(cast.written)
                    && let Some(stays) = &mut self.casts[next]
                {
                    stays.from = cast.from;
                }
            }
            if only_casts && !is_output(cast.written) {
                self.skip(index, cast.read);
            }
        }
    }

    /// Takes a cast out: whoever reads what it writes reads what lies at another place.
    fn skip(&mut self, index: usize, instead: usize) {
        let Some(cast) = self.casts[index].take() else {
            return;
        };
        let others = self.users.entry(cast.read).or_default();
        others.retain(|&user| user != User::Cast(index));
        for user in self.users.remove(&cast.written).unwrap_or_default() {
            match user {
                User::Cast(index) => {
                    if let Some(cast) = &mut self.casts[index] {
                        cast.read = instead;
                    }
                }
                User::Input(id, position) => {
                    if let Some(node) = &mut self.nodes[id.index()] {
                        node.reads[position] = Some(instead);
                    }
                }
                User::Other => {}
            }
            self.add_user(instead, user);
        }
    }

    pub(super) fn place(&self, id: NodeId, position: usize) -> Option<usize> {
        let node = self.nodes[id.index()].as_ref()?;
        node.reads.get(position).copied().flatten()
    }

    pub(super) fn is_wide(&self, id: NodeId) -> bool {
        let node = self.nodes[id.index()].as_ref();
        node.is_some_and(|node| node.wide)
    }

    /// From where what lies at a place comes, where a node computed it, and what casts rounded it to since.
    pub(super) fn path(&self, place: usize) -> (usize, Vec<ElementType>) {
        let (mut at, mut casts) = (place, Vec::new());
        loop {
            if let Some(&from) = self.forwarded.get(&at) {
                at = from;
                continue;
            }
            match self.made_by.get(&at).and_then(|&cast| self.casts[cast]) {
                Some(cast) => {
                    casts.push(cast);
                    at = cast.read;
                }
                None => break,
            }
        }
        let mut holds = casts.last().map(|cast| cast.from);
        let mut path = Vec::new();
        for cast in casts.iter().rev() {
            if holds.is_none_or(|holds| !keeps(holds, cast.to)) {
                // Between integers nothing is rounded, and a cast that loses bits stays: what it makes of a value is for `equivalence` to say.
                if !(holds.is_some_and(is_integer) && is_integer(cast.to)) {
                    path.push(cast.to);
                }
                holds = Some(cast.to);
            }
        }
        (at, path)
    }

    /// Does the node compute with 16 bits, or with what was rounded?
    pub(super) fn rounds_anything(&self, graph: &Graph, id: NodeId) -> bool {
        let node = graph.node(id);
        let mut all = node.reads().chain(node.writes());
        all.any(|tensor| is_half(graph, tensor))
            || (0..node.inputs.len()).any(|position| {
                let place = self.place(id, position);
                place.is_some_and(|place| !self.path(place).1.is_empty())
            })
    }
}

fn listed_cast(graph: &Graph, node: &Node) -> Option<PlacedCast> {
    let (read, written) = (node.input(0)?, node.output(0)?);
    let element = |tensor: TensorId| graph.tensor(tensor).element;
    is_cast(node).then_some(PlacedCast {
        from: element(read)?,
        to: element(written)?,
        read: read.index(),
        written: written.index(),
        by_runtime: false,
    })
}

/// By node id: does it read float16 and compute in float32? Without a kernel for float16, or with one between nodes without.
fn computed_wide(graph: &Graph) -> Vec<bool> {
    let uses = Uses::of(graph);
    let mut wide = vec![false; graph.node_count()];
    for (id, node) in graph.listed() {
        let reads_half = node.reads().any(|tensor| is_half(graph, tensor));
        wide[id.index()] = reads_half && !in_half(node) && !is_cast(node);
    }
    for (id, node) in graph.listed() {
        if !in_half(node) || is_cast(node) || !node.captures.is_empty() {
            continue;
        }
        let name = full_name(node);
        let halves = |all: &[Option<TensorId>], any: &[&str]| -> Vec<TensorId> {
            let number = if any.contains(&name.as_str()) {
                1
            } else {
                all.len()
            };
            let all = all.iter().take(number).copied().flatten();
            all.filter(|&tensor| is_half(graph, tensor)).collect()
        };
        let (read, written) = (
            halves(&node.inputs, &ANY_INPUTS),
            halves(&node.outputs, &ANY_OUTPUTS),
        );
        let gives_result = node.writes().any(|tensor| graph.outputs.contains(&tensor));
        let is_fed = node.reads().any(|tensor| uses.producer(tensor).is_some());
        let from_wide = read.iter().all(|&tensor| {
            let producer = uses.producer(tensor);
            producer.is_none_or(|producer| wide[producer.index()])
        });
        let to_wide = written.iter().all(|&tensor| {
            let mut readers = uses.readers(tensor).iter();
            readers.all(|reader| wide[reader.index()])
        });
        if is_fed
            && !gives_result
            && !read.is_empty()
            && !written.is_empty()
            && from_wide
            && to_wide
        {
            wide[id.index()] = true;
        }
    }
    wide
}

/// Does the runtime take a cast for one that changes no value? Its own are always.
fn is_free(from: ElementType, to: ElementType, by_runtime: bool) -> bool {
    let (Some((from_class, from_bits)), Some((to_class, to_bits))) = (class(from), class(to))
    else {
        return false;
    };
    match (from_class, to_class) {
        ('i' | 'f', 'u') | ('f', 'b' | 'i') => false,
        ('u', 'i') | ('i' | 'u', 'f') => to_bits > from_bits,
        ('f', 'f') if (from_bits, to_bits) == (16, 16) && from != to => false,
        _ => to_bits >= from_bits || by_runtime,
    }
}

fn is_integer(element: ElementType) -> bool {
    matches!(class(element), Some(('i' | 'u', _)))
}

/// Does every value of a type have one of another?
fn keeps(from: ElementType, to: ElementType) -> bool {
    from == to
        || match (class(from), class(to)) {
            (Some(('f', from)), Some(('f', to))) => to > from,
            (Some(('b', _)), Some(_)) => true,
            _ => false,
        }
}

fn class(element: ElementType) -> Option<(char, u32)> {
    Some(match element {
        ElementType::Bool => ('b', 1),
        ElementType::Int8 => ('i', 8),
        ElementType::Int16 => ('i', 16),
        ElementType::Int32 => ('i', 32),
        ElementType::Int64 => ('i', 64),
        ElementType::Uint8 => ('u', 8),
        ElementType::Uint16 => ('u', 16),
        ElementType::Uint32 => ('u', 32),
        ElementType::Uint64 => ('u', 64),
        ElementType::Float16 | ElementType::Bfloat16 => ('f', 16),
        ElementType::Float => ('f', 32),
        ElementType::Double => ('f', 64),
        _ => return None,
    })
}
