//! Does the runtime round what the rewritten graph computes where it rounds what the original computes?
//!
//! On the CPU, most operators have no kernel for float16. The runtime lets such a node compute in float32: it casts what the node reads and
//! what it writes, then takes out casts that another one undoes, and the rounding with them. Which casts go depends on who reads and who
//! writes a value, so that a graph which computes the same by its operators can round elsewhere. Here both graphs get their
//! casts (`casts`), and every node is compared: does it compute in float32, which casts did what it reads go through, and the same of whatever computed that?

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::casts::{WithCasts, full_name, is_cast, is_half};
use super::violation::label;
use super::{Correspondence, Role, Violation};
use crate::graph::{
    Dimension, ElementType, Graph, Node, NodeId, TensorId, TensorKind, Uses, all_numbers,
};

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
        shape.filter(|sizes| all_numbers(sizes))
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

#[cfg(test)]
mod tests;
