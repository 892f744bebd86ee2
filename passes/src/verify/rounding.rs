//! Does the runtime round what the rewritten graph computes where it rounds what the original computes?
//!
//! On the CPU, most operators have no kernel for float16. The runtime lets such a node compute in float32: it casts what the node reads and
//! what it writes, then takes out casts that another one undoes, and the rounding with them. Which casts go depends on who reads and who
//! writes a value, so that a graph which computes the same by its operators can round elsewhere. Here both graphs get their
//! casts, and every node is compared: does it compute in float32, which casts did what it reads go through, and the same of whatever computed that?
//!
//! What is known of the runtime here is kept apart from what plans are made with, on purpose.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::violation::label;
use super::{Correspondence, Role, Violation};
use crate::graph::{Dimension, ElementType, Graph, Node, NodeId, TensorId, TensorKind, Uses};

/// Checks that on the CPU the runtime rounds values to 16 bits in `rewritten` where it does in `original`. `correspondence` is what
/// [`super::equivalence()`] found for the two graphs: what a node reads holds the value that its original reads.
pub fn rounding(
    original: &Graph,
    rewritten: &Graph,
    correspondence: &Correspondence,
) -> Result<(), Violation> {
    let reshapes = BTreeSet::new();
    rounding_around(
        (original, &reshapes),
        (rewritten, &reshapes),
        correspondence,
    )
}

/// The same of graphs in which these nodes are Reshapes that only hand on.
fn rounding_around(
    (original, original_reshapes): (&Graph, &BTreeSet<NodeId>),
    (rewritten, reshapes): (&Graph, &BTreeSet<NodeId>),
    correspondence: &Correspondence,
) -> Result<(), Violation> {
    if !rounds(original) {
        return Ok(());
    }
    // A PassThrough hands each input on.
    let passes = |graph: &Graph, id: NodeId| graph.node(id).is("com.microsoft", "PassThrough");
    let before = WithCasts::of(original, |id| {
        passes(original, id) || original_reshapes.contains(&id)
    });
    let after = WithCasts::of(rewritten, |id| {
        let is_barrier = correspondence.known_role(id) == Some(Role::Barrier);
        passes(rewritten, id) || reshapes.contains(&id) || is_barrier
    });
    let mut known = HashMap::new();
    let expected = Histories::of(original, &before, &mut known, |_| None);
    let found = Histories::of(rewritten, &after, &mut known, |id| {
        let role = correspondence.known_role(id)?;
        let (Role::Copy(of) | Role::Variant(of)) = role else {
            return None;
        };
        let same = same_kind(rewritten.node(id), original.node(of)) && role == Role::Copy(of);
        let other_form = !same && !after.rounds_anything(rewritten, id);
        other_form.then(|| expected.of_node[of.index()]).flatten()
    });
    for &id in rewritten.order() {
        let Some(Role::Original(of)) = correspondence.known_role(id) else {
            continue;
        };
        if expected.of_node[of.index()] != found.of_node[id.index()] {
            let (expected, found) = difference(
                (original, &before, &expected, of),
                (rewritten, &after, &found, id),
            );
            return Err(Violation::RoundedOtherwise {
                node: label(rewritten, id),
                expected,
                found,
            });
        }
    }
    for (&was, &is) in original.outputs.iter().zip(&rewritten.outputs) {
        if expected.of_place(&before, was.index()) != found.of_place(&after, is.index()) {
            let name = &rewritten.tensor(is).name;
            return Err(Violation::RoundedOtherwise {
                node: "the caller".to_owned(),
                expected: format!("get it {}", described(&before.path(was.index()).1)),
                found: format!("get \"{name}\" {}", described(&after.path(is.index()).1)),
            });
        }
    }
    Ok(())
}

/// The same once the runtime has optimized both graphs: without Identities, which have a kernel for float16; and in later releases with Reshapes
/// around products of rows, which have one, too. `shapes`: what the runtime knows of a graph's shapes then, by tensor.
pub fn rounding_optimized(
    original: &Graph,
    rewritten: &Graph,
    correspondence: &Correspondence,
    shapes: impl Fn(&Graph) -> Vec<Option<Vec<Dimension>>>,
) -> Result<(), Violation> {
    let (before, after) = (
        original.without_identities(),
        rewritten.without_identities(),
    );
    let goes = before.is_some() || after.is_some();
    let before = before.as_ref().map_or(original, |without| &without.graph);
    let after = after.as_ref().map_or(rewritten, |without| &without.graph);
    if goes {
        rounding(before, after, correspondence)?;
    }
    if !rounds(before) {
        return Ok(());
    }
    let [before, after] = [before, after].map(|graph| by_rows(graph, &shapes(graph)));
    if before.1.is_empty() && after.1.is_empty() {
        return Ok(());
    }
    rounding_around((&before.0, &before.1), (&after.0, &after.1), correspondence)
}

/// The graph with Reshapes around each product of a tensor in float16 with a matrix, and the addition of a vector behind it, and these: of both nodes a
/// session that optimizes makes a Gemm between them (`MatMulAddFusion` in builds after 1.20.1; measured in 1.26.0 and 1.32.0).
fn by_rows(graph: &Graph, shapes: &[Option<Vec<Dimension>>]) -> (Graph, BTreeSet<NodeId>) {
    let uses = Uses::of(graph);
    let numbers = |tensor: TensorId| {
        let shape = shapes[tensor.index()].as_deref();
        shape.filter(|sizes| sizes.iter().all(Dimension::is_number))
    };
    // Who adds to which product?
    let addition = |id: NodeId| -> Option<NodeId> {
        let product = graph.node(id);
        let written = product.output(0)?;
        let &[addition] = uses.readers(written) else {
            return None;
        };
        let mut added = graph.node(addition).reads();
        let vector = added.find(|&read| read != written)?;
        let (rows, matrix) = (numbers(product.input(0)?)?, numbers(product.input(1)?)?);
        let fits = product.is("", "MatMul")
            && graph.node(addition).is("", "Add")
            && is_half(graph, written)
            && !graph.outputs.contains(&written)
            && !matches!(rows.len(), 0 | 2)
            && matrix.len() == 2
            && numbers(vector)? == &matrix[1..];
        fits.then_some(addition)
    };
    let products = graph.order().iter();
    let products = products.filter_map(|&id| addition(id).map(|addition| (id, addition)));
    match graph.multiplying_rows(&products.collect()) {
        Some(rows) => {
            let before = rows.before.into_values().map(|(_, reshape)| reshape);
            let reshapes = before.chain(rows.behind.into_values()).collect();
            (rows.graph, reshapes)
        }
        None => (graph.clone(), BTreeSet::new()),
    }
}

/// In which way a node is computed: by what, in float32 or not, from results that are computed in which ways and were cast how.
#[derive(PartialEq, Eq, Hash)]
enum History {
    /// The caller's, by name.
    Given(String),
    Node(String, bool, Vec<Option<Arrival>>),
}

/// The history of the node that computed it, which output it is, and what it was rounded to since.
type Arrival = (u32, usize, Vec<ElementType>);

/// The histories of a graph's nodes, as numbers; equal ones are equal.
struct Histories {
    /// By node id, but for casts.
    of_node: Vec<Option<u32>>,
    /// By place: the history of what lies there, and which output of its node it is.
    origin: BTreeMap<usize, (u32, usize)>,
}

impl Histories {
    /// `other_form`: the history of the node for which a node stands that computes it in another way.
    fn of(
        graph: &Graph,
        with_casts: &WithCasts,
        known: &mut HashMap<History, u32>,
        other_form: impl Fn(NodeId) -> Option<u32>,
    ) -> Histories {
        let mut number = |history: History| {
            let next = known.len() as u32;
            *known.entry(history).or_insert(next)
        };
        let mut histories = Histories {
            of_node: vec![None; graph.node_count()],
            origin: BTreeMap::new(),
        };
        for tensor in graph.tensor_ids() {
            if graph.tensor(tensor).kind != TensorKind::Value {
                let given = number(History::Given(graph.tensor(tensor).name.clone()));
                histories.origin.insert(tensor.index(), (given, 0));
            }
        }
        for &id in graph.order() {
            let Some(node) = &with_casts.nodes[id.index()] else {
                continue;
            };
            let arrives = |place: &Option<usize>| histories.of_place(with_casts, (*place)?);
            let history = other_form(id).unwrap_or_else(|| {
                let reads = node.reads.iter().map(arrives).collect();
                number(History::Node(full_name(graph.node(id)), node.wide, reads))
            });
            histories.of_node[id.index()] = Some(history);
            for &(position, place) in &node.writes {
                histories.origin.insert(place, (history, position));
            }
        }
        histories
    }

    fn of_place(&self, with_casts: &WithCasts, place: usize) -> Option<Arrival> {
        let (origin, path) = with_casts.path(place);
        let &(history, output) = self.origin.get(&origin)?;
        Some((history, output, path))
    }
}

/// What the node of the original does, and what that of the rewritten graph does instead.
fn difference(
    (original, before, expected, of): (&Graph, &WithCasts, &Histories, NodeId),
    (rewritten, after, found, id): (&Graph, &WithCasts, &Histories, NodeId),
) -> (String, String) {
    let computes = |wide: bool| {
        let element = if wide { "float32" } else { "float16" };
        format!("compute in {element}")
    };
    let wide = (before.is_wide(of), after.is_wide(id));
    if wide.0 != wide.1 {
        return (computes(wide.0), computes(wide.1));
    }
    let arrivals = |graph: &Graph, with_casts: &WithCasts, histories: &Histories, id: NodeId| {
        let positions = 0..graph.node(id).inputs.len();
        let arrival = |position| histories.of_place(with_casts, with_casts.place(id, position)?);
        positions.map(arrival).collect::<Vec<_>>()
    };
    let were = arrivals(original, before, expected, of);
    let are = arrivals(rewritten, after, found, id);
    for (position, (was, is)) in were.iter().zip(&are).enumerate() {
        let (Some(was), Some(is)) = (was, is) else {
            continue;
        };
        let read = rewritten.node(id).input(position);
        let name = read.map_or("", |read| &rewritten.tensor(read).name);
        if was.2 != is.2 {
            return (
                format!("read it {}", described(&was.2)),
                format!("read \"{name}\" {}", described(&is.2)),
            );
        }
        if was != is {
            return (
                "read it so".to_owned(),
                format!("not read \"{name}\" as the same nodes compute it"),
            );
        }
    }
    ("read the same".to_owned(), "read something else".to_owned())
}

fn described(path: &[ElementType]) -> String {
    match path {
        [] => "as it was computed".to_owned(),
        path => {
            let names: Vec<_> = path.iter().map(|element| element.name()).collect();
            format!("rounded to {}", names.join(" and "))
        }
    }
}

/// Is there anything to be compared: a node that reads float16, or a cast behind a cast?
fn rounds(graph: &Graph) -> bool {
    let mut from_cast = vec![false; graph.tensor_count()];
    graph.order().iter().any(|&id| {
        let node = graph.node(id);
        if !is_cast(node) {
            return node.reads().any(|tensor| is_half(graph, tensor));
        }
        for tensor in node.writes() {
            from_cast[tensor.index()] = true;
        }
        node.reads().any(|tensor| from_cast[tensor.index()])
    })
}

fn same_kind(node: &Node, original: &Node) -> bool {
    node.is(&original.domain, &original.op_type) && node.inputs.len() == original.inputs.len()
}

fn is_cast(node: &Node) -> bool {
    node.is("", "Cast")
}

fn is_half(graph: &Graph, tensor: TensorId) -> bool {
    graph.tensor(tensor).element == Some(ElementType::Float16)
}

/// What can compute in float16 on the CPU. Everything else is in float32 between casts.
const IN_HALF: [&str; 40] = [
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

fn full_name(node: &Node) -> String {
    format!("{}.{}", node.domain, node.op_type)
}

/// A graph with the casts that it gets on the CPU. Places are numbers: a tensor's own, and behind all tensors those that only
/// casts make of one, and those that are only cast to one.
struct WithCasts {
    /// By node id, but for casts.
    nodes: Vec<Option<ComputedNode>>,
    /// Those of the graph in its order, then the runtime's; `None` for what it takes out.
    casts: Vec<Option<PlacedCast>>,
    /// By place: which cast makes it.
    made_by: BTreeMap<usize, usize>,
    /// By place: what lies at another is handed on there.
    forwarded: BTreeMap<usize, usize>,
    /// By place: who reads it.
    users: BTreeMap<usize, Vec<User>>,
}

struct ComputedNode {
    wide: bool,
    /// By input.
    reads: Vec<Option<usize>>,
    /// Which output lies where.
    writes: Vec<(usize, usize)>,
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
    fn of(graph: &Graph, forwards: impl Fn(NodeId) -> bool) -> WithCasts {
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

    fn place(&self, id: NodeId, position: usize) -> Option<usize> {
        let node = self.nodes[id.index()].as_ref()?;
        node.reads.get(position).copied().flatten()
    }

    fn is_wide(&self, id: NodeId) -> bool {
        let node = self.nodes[id.index()].as_ref();
        node.is_some_and(|node| node.wide)
    }

    /// From where what lies at a place comes, where a node computed it, and what casts rounded it to since.
    fn path(&self, place: usize) -> (usize, Vec<ElementType>) {
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
                path.push(cast.to);
                holds = Some(cast.to);
            }
        }
        (at, path)
    }

    /// Does the node compute with 16 bits, or with what was rounded?
    fn rounds_anything(&self, graph: &Graph, id: NodeId) -> bool {
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
    for &id in graph.order() {
        let node = graph.node(id);
        let reads_half = node.reads().any(|tensor| is_half(graph, tensor));
        wide[id.index()] = reads_half && !in_half(node) && !is_cast(node);
    }
    for &id in graph.order() {
        let node = graph.node(id);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::runtime::rounds_in_half;
    use crate::verify::equivalence;

    const HEAD: &str = "g (float[4,4] x, float16[4,4] w) => (float[4,4] y, float[4,4] z)
        <float16[4,4] h, float16[4,4] a, float16[4,4] b, float[4,4] f, float16[4,4] t, float16[4,4] u, float16[4,4] v, float[4,4] g,
         float16[4,4] r, float[4,4] k, float16[4,4] s, float[4,4] n>";

    /// Rounded, then three nodes without kernels, one with a kernel between two others; what is widened, and rounded on purpose.
    const ORIGINAL: &str = "
        [round] h = Cast <to = 10> (x)
        [exp] a = Exp(h)
        [log] b = Log(a)
        [widen] f = Cast <to = 1> (b)
        [turn] t = Transpose <perm = [1, 0]> (b)
        [add] u = Add(t, w)
        [kept] v = Transpose <perm = [1, 0]> (u)
        [out] g = Cast <to = 1> (v)
        [neg] n = Neg(x)
        [again] r = Cast <to = 10> (n)
        [back] k = Cast <to = 1> (r)
        [mul] s = Mul(r, r)
        [first] y = Sum(f, k, g)
        [second] z = Cast <to = 1> (s)";

    /// And what rewritten graphs have besides.
    const NEW: &str = ", float16[4,4] h_late, float16[4,4] a_late, float16[4,4] a_later, float16[4,4] b_late, float16[4,4] t_late,
         float16[4,4] a2, float16[4,4] b2, float16[4,4] v2, float16[4,4] r2, float[4,4] x_late, float[4,4] f_late>";

    fn graph(nodes: &str) -> Graph {
        Graph::parse(&format!("{HEAD} {{ {nodes} }}")).unwrap()
    }

    fn rewritten(nodes: &str) -> Graph {
        let head = HEAD
            .replace('>', NEW)
            .replacen(&format!(") ={NEW}"), ") =>", 1);
        Graph::parse(&format!("{head} {{ {nodes} }}")).unwrap()
    }

    /// What is wrong with the original once one line of it is replaced by others, and readers behind it read otherwise.
    fn refused(line: &str, by: &str, readers: &[(&str, &str)]) -> Option<String> {
        let mut nodes = ORIGINAL.replace(line, by);
        for (old, new) in readers {
            assert!(nodes.contains(old), "{old}");
            nodes = nodes.replace(old, new);
        }
        assert_ne!(nodes, ORIGINAL);
        let (original, rewritten) = (graph(ORIGINAL), rewritten(&nodes));
        let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
        let said = rounding(&original, &rewritten, &found).err();
        said.map(|violation| violation.to_string())
    }

    #[test]
    fn what_is_as_it_was_is_accepted() {
        let (original, rewritten) = (graph(ORIGINAL), graph(ORIGINAL));
        let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
        assert_eq!(rounding(&original, &rewritten, &found), Ok(()));
    }

    #[test]
    fn copies_of_nodes_without_kernels_and_barriers_between_them_are_accepted() {
        let log = "[log] b = Log(a)";
        let barrier = "[bar] a_late, h_late = com.microsoft.PassThrough(a, h)
            [log] b = Log(a_late)";
        assert_eq!(refused(log, barrier, &[]), None);
        let copy = "[log] b = Log(a)
            [exp2] a2 = Exp <__recompute = 1> (h)
            [log2] b2 = Log <__recompute = 1> (a2)";
        let read = [(
            "Transpose <perm = [1, 0]> (b)",
            "Transpose <perm = [1, 0]> (b2)",
        )];
        assert_eq!(refused(log, copy, &read), None);
        let widened = [(
            "[widen] f = Cast <to = 1> (b)",
            "[widen] f = Cast <to = 1> (b2)",
        )];
        assert_eq!(refused(log, copy, &widened), None);
    }

    #[test]
    fn a_barrier_before_a_cast_that_went_rounds() {
        let widen = "[widen] f = Cast <to = 1> (b)";
        let late = "[bar] b_late, a_late = com.microsoft.PassThrough(b, a)
            [widen] f = Cast <to = 1> (b_late)";
        insta::assert_snapshot!(refused(widen, late, &[]).unwrap(), @r#"on the CPU Sum "first" would read "f" rounded to float16, and in the original it would read it as it was computed"#);
    }

    #[test]
    fn a_barrier_behind_a_cast_that_went_rounds() {
        let exp = "[exp] a = Exp(h)";
        let late = "[bar] h_late, x_late = com.microsoft.PassThrough(h, x)
            [exp] a = Exp(h_late)";
        insta::assert_snapshot!(refused(exp, late, &[]).unwrap(), @r#"on the CPU Exp "exp" would read "h_late" rounded to float16, and in the original it would read it as it was computed"#);
    }

    #[test]
    fn two_barriers_behind_each_other_round() {
        let log = "[log] b = Log(a)";
        let late = "[bar] a_late, h_late = com.microsoft.PassThrough(a, h)
            [bar2] a_later, x_late = com.microsoft.PassThrough(a_late, x)
            [log] b = Log(a_later)";
        insta::assert_snapshot!(refused(log, late, &[]).unwrap(), @r#"on the CPU Log "log" would read "a_later" rounded to float16, and in the original it would read it as it was computed"#);
    }

    #[test]
    fn a_kernel_that_was_not_used_rounds_once_a_barrier_waits_for_it() {
        let first = "[first] y = Sum(f, k, g)";
        let waits = "[bar] f_late, t_late = com.microsoft.PassThrough(f, t)
            [first] y = Sum(f_late, k, g)";
        insta::assert_snapshot!(refused(first, waits, &[]).unwrap(), @r#"on the CPU Transpose "turn" would compute in float16, and in the original it would compute in float32"#);
    }

    #[test]
    fn a_copy_of_a_kernel_that_is_used_is_not_once_only_wide_nodes_read_it() {
        // Of `kept`, which the cast behind it keeps in float16.
        let nodes = ORIGINAL.replace("[mul] s = Mul(r, r)", "[mul] s = Mul(v, r)");
        let copied = nodes.replace(
            "[mul] s = Mul(v, r)",
            "[kept2] v2 = Transpose <perm = [1, 0], __recompute = 1> (u)
             [mul] s = Mul(v2, r)",
        );
        let (original, rewritten) = (graph(&nodes), rewritten(&copied));
        let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
        let said = rounding(&original, &rewritten, &found).unwrap_err();
        insta::assert_snapshot!(said, @r#"on the CPU Mul "mul" would not read "v2" as the same nodes compute it, and in the original it would read it so"#);
    }

    #[test]
    fn a_copy_of_a_rounding_cast_without_the_one_that_undoes_it_does_not_round() {
        let again = "[mul] s = Mul(r, r)";
        let copied = "[again2] r2 = Cast <to = 10, __recompute = 1> (n)
            [mul] s = Mul(r2, r2)";
        insta::assert_snapshot!(refused(again, copied, &[]).unwrap(), @r#"on the CPU Mul "mul" would read "r2" as it was computed, and in the original it would read it rounded to float16"#);
    }

    #[test]
    fn a_copy_of_a_sum_of_rows_for_the_only_cast_leaves_the_original_without_rounding() {
        let graph = |new: &str, nodes: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 17]> g (float16[2,3,4] x, float16[4,5] w, float16[5] v) => (float16[2,3,5] y, float[2,3,5] z)
                <float16[2,3,5] m, float16[2,3,5] s{new}> {{ {nodes} }}"#
            );
            Graph::parse(&text).unwrap()
        };
        let sum = "[product] m = MatMul(x, w) [sum] s = Add(m, v)";
        let again =
            "[product2] m2 = MatMul<__recompute = 1>(x, w) [sum2] s2 = Add<__recompute = 1>(m2, v)";
        let original = graph(
            "",
            &format!("{sum} [soft] y = Softplus(s) [cast] z = Cast<to = 1>(s)"),
        );
        let known = |graph: &Graph| {
            let shape = |tensor: TensorId| graph.tensor(tensor).declared.clone();
            graph.tensor_ids().map(shape).collect::<Vec<_>>()
        };
        let said = |readers: &str| {
            let new = ", float16[2,3,5] m2, float16[2,3,5] s2";
            let rewritten = graph(new, &format!("{sum} {again} {readers}"));
            let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
            (
                rounding(&original, &rewritten, &found),
                rounding_optimized(&original, &rewritten, &found, known).unwrap_err(),
            )
        };
        // As the file has it, there is no Reshape.
        let (written, said) = said("[soft] y = Softplus(s2) [cast] z = Cast<to = 1>(s)");
        assert_eq!(written, Ok(()));
        insta::assert_snapshot!(said, @r#"on the CPU Softplus "soft" would read "s2" as it was computed, and in the original it would read it rounded to float16"#);
    }

    #[test]
    fn both_opinions_on_kernels_are_one() {
        let known =
            crate::operators::all().map(|(domain, name)| (domain.to_owned(), name.to_owned()));
        let listed = IN_HALF.iter().map(|name| {
            let (domain, name) = name.rsplit_once('.').unwrap();
            (domain.to_owned(), name.to_owned())
        });
        let mut graph = Graph::new("g");
        graph.opsets.insert(String::new(), 17);
        for (domain, name) in known.chain(listed) {
            let node = Node::new("n", domain.as_str(), name.as_str(), Vec::new(), Vec::new());
            assert_eq!(in_half(&node), rounds_in_half(&graph, &node), "{name}");
        }
    }
}
