//! What ONNX Runtime's optimizations do with Transposes.
//!
//! Source: `TransposeOptimizer`, `MatmulTransposeFusion`; compared with what sessions of 1.19.2 and 1.32.0 saved.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::moving::Moving;
use crate::graph::{Dimension, ElementType, Graph, Node, NodeId, TensorId, Uses};
use crate::operators::MICROSOFT;

/// How a Transpose moves the axes of a tensor that has at most eight, as its attribute says. One without the attribute is left
/// alone by the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transposition {
    /// By axis of the result, the axis of what is read; of these `rank`.
    axes: [u8; MOST_AXES],
    rank: u8,
    /// Have the products that read the result two matrices of as many axes?
    alike: bool,
    /// Can all that read the result read what the Transpose reads, with another Transpose behind them? See
    /// [`Transposition::is_past_shapes`].
    passes: bool,
}

const MOST_AXES: usize = 8;

impl Transposition {
    pub(super) fn of<'g>(
        graph: &Graph,
        uses: &Uses,
        node: &Node,
        shape: &impl Fn(TensorId) -> Option<&'g [Dimension]>,
    ) -> Option<Transposition> {
        let permutation = node.ints("perm")?;
        let rank = permutation.len();
        let mut axes = [0; MOST_AXES];
        for (axis, place) in axes.iter_mut().zip(0..rank) {
            // Each once.
            let from = usize::try_from(permutation[place]).ok()?;
            if from >= rank || permutation[..place].contains(&permutation[place]) {
                return None;
            }
            *axis = from as u8;
        }
        (rank <= MOST_AXES).then_some(Transposition {
            axes,
            rank: rank as u8,
            alike: multiplies_alike(graph, uses, node, shape, rank),
            passes: can_be_behind_all(graph, uses, node),
        })
    }

    /// That moves axes so. `None` for more than there can be.
    pub(super) fn by(moved: impl IntoIterator<Item = u8>) -> Option<Transposition> {
        let mut axes = [0; MOST_AXES];
        let mut rank = 0;
        for axis in moved {
            *axes.get_mut(rank)? = axis;
            rank += 1;
        }
        Some(Transposition {
            axes,
            rank: rank as u8,
            alike: false,
            passes: false,
        })
    }

    /// By axis of the result, the axis of what is read.
    pub(super) fn axes(&self) -> &[u8] {
        &self.axes[..usize::from(self.rank)]
    }

    /// The one that undoes it.
    pub(super) fn inverse(self) -> Transposition {
        let mut axes = [0; MOST_AXES];
        for (place, &axis) in (0..).zip(self.axes()) {
            axes[usize::from(axis)] = place;
        }
        Transposition { axes, ..self }
    }

    /// What it does with what is left where these axes of what it reads are gone.
    pub(super) fn without(self, gone: &[bool]) -> Option<Transposition> {
        let before = |axis: u8| {
            gone[..usize::from(axis)]
                .iter()
                .filter(|gone| **gone)
                .count()
        };
        let left = self.axes().iter().filter(|&&axis| !gone[usize::from(axis)]);
        Transposition::by(left.map(|&axis| axis - before(axis) as u8))
    }

    /// The same with more axes, which are these and stay where they are.
    pub(super) fn with(self, more: &[bool]) -> Option<Transposition> {
        let places = (0..).zip(more).filter(|(_, more)| !**more);
        let kept: Vec<u8> = places.map(|(place, _)| place).collect();
        let mut moved = self.axes().iter();
        let all = (0..).zip(more).map(|(place, &more)| match more {
            true => Some(place),
            false => kept.get(usize::from(*moved.next()?)).copied(),
        });
        Transposition::by(all.collect::<Option<Vec<u8>>>()?)
    }

    /// Of something by axis of what is read: the same by axis of the result.
    pub(super) fn moved<T: Clone>(&self, by_axis: &[T]) -> Option<Vec<T>> {
        let axis = |&axis: &u8| by_axis.get(usize::from(axis)).cloned();
        let moved = self.axes().iter().map(axis);
        moved
            .collect::<Option<Vec<T>>>()
            .filter(|_| by_axis.len() == self.axes().len())
    }

    /// The same, where the products that read the result have two matrices of as many axes, or not.
    pub(super) fn of_products(self, alike: bool) -> Transposition {
        Transposition { alike, ..self }
    }

    /// What `next`, which reads what this one writes, does with what this one reads. `None` for different numbers of axes.
    pub(super) fn then(self, next: Transposition) -> Option<Transposition> {
        let mut axes = next.axes;
        for axis in &mut axes[..usize::from(next.rank)] {
            *axis = self.axes[usize::from(*axis)];
        }
        (self.rank == next.rank).then_some(Transposition { axes, ..next })
    }

    /// Is all where it was?
    pub(super) fn is_none(self) -> bool {
        (0..).zip(self.axes()).all(|(place, &axis)| place == axis)
    }

    /// Does a Shape of the result become one of what the Transpose reads, with a Gather behind it that moves the sizes? It does where the
    /// Transpose may go, which the runtime takes it to where it has a way to move it behind each of its readers, and the result is no graph output (measured).
    pub(super) fn is_past_shapes(self) -> bool {
        self.passes
    }

    /// Is the other the same but for that?
    pub(crate) fn is_but_for_shapes(self, other: Transposition) -> bool {
        let passes = self.passes;
        self == Transposition { passes, ..other }
    }

    /// Can a matrix product that reads the result do it by the way? It can where the last two axes are swapped or nothing is moved, or the
    /// first of three or more comes behind the second last or the last. Where the first axis is moved it reads two matrices of as many
    /// axes (measured with all permutations of up to five axes, in 1.19.2, 1.20.1 and 1.32.0).
    pub(super) fn is_done_by_a_product(self) -> bool {
        let axes = self.axes();
        let stays = axes.len() == 2 || axes.first() == Some(&0);
        (stays || self.alike) && keeps_rows(axes)
    }

    /// Can a Gemm? It reads two axes, and swaps them.
    pub(super) fn is_done_by_a_gemm(self) -> bool {
        self.axes() == [1, 0]
    }
}

/// Have the products that read what the Transpose writes two matrices of `rank` axes?
fn multiplies_alike<'g>(
    graph: &Graph,
    uses: &Uses,
    node: &Node,
    shape: &impl Fn(TensorId) -> Option<&'g [Dimension]>,
    rank: usize,
) -> bool {
    let has_rank = |tensor| shape(tensor).is_some_and(|shape| shape.len() == rank);
    // What an Identity hands on is the same to the runtime.
    let mut written: Vec<TensorId> = node.writes().collect();
    while let Some(tensor) = written.pop() {
        for reader in uses.readers(tensor).iter().map(|&id| graph.node(id)) {
            if reader.is("", "Identity") {
                written.extend(reader.writes());
            }
            let is_product = reader.is("", "MatMul") || reader.is(MICROSOFT, "FusedMatMul");
            if is_product && !reader.reads().all(has_rank) {
                return false;
            }
        }
    }
    true
}

/// See [`Transposition::is_past_shapes`].
fn can_be_behind_all(graph: &Graph, uses: &Uses, node: &Node) -> bool {
    let mut written: Vec<TensorId> = node.writes().collect();
    while let Some(tensor) = written.pop() {
        if graph.outputs.contains(&tensor) {
            return false;
        }
        for reader in uses.readers(tensor).iter().map(|&id| graph.node(id)) {
            if reader.is("", "Identity") {
                written.extend(reader.writes());
            } else if Moving::of_any(graph, reader) == Moving::No {
                return false;
            }
        }
    }
    true
}

/// The Shapes of what a Transpose writes, by result, each with what the Transpose reads and how many axes that has.
pub(crate) fn shapes_of_transposed(graph: &Graph) -> BTreeMap<TensorId, (TensorId, usize)> {
    let mut axes: HashMap<TensorId, (TensorId, usize)> = HashMap::new();
    let mut found = BTreeMap::new();
    for node in graph.nodes() {
        let (Some(read), Some(written), true) =
            (node.input(0), node.output(0), node.domain.is_empty())
        else {
            continue;
        };
        match node.op_type.as_str() {
            "Transpose" => {
                let permutation = node.ints("perm");
                axes.extend(permutation.map(|moved| (written, (read, moved.len()))));
            }
            // They may go.
            "Cast" | "Identity" => {
                if let Some(&of) = axes.get(&read) {
                    axes.insert(written, of);
                }
            }
            "Shape" => {
                found.extend(axes.get(&read).map(|&of| (written, of)));
            }
            _ => {}
        }
    }
    found
}

/// Are the last two axes swapped or all where they were, or is the first of three or more behind the second last or the last?
fn keeps_rows<A: Copy + Into<i64>>(axes: &[A]) -> bool {
    let rank = axes.len() as i64;
    let is = |wanted: &dyn Fn(i64) -> i64| (0..rank).all(|i| axes[i as usize].into() == wanted(i));
    let swapped = |i: i64| match rank - i {
        2 => rank - 1,
        1 => rank - 2,
        _ => i,
    };
    let rows_last = |i: i64| match rank - i {
        2 => 0,
        1 => rank - 1,
        _ => i + 1,
    };
    let batch_last = |i: i64| if i == rank - 1 { 0 } else { i + 1 };
    rank > 1 && (is(&swapped) || is(&|i| i) || rank > 2 && (is(&rows_last) || is(&batch_last)))
}

/// Casts to float32 that the runtime may move in front of the Transpose whose result they read, since a matrix product reads
/// theirs: by result, the tensor that the Transpose reads.
pub(crate) fn movable_casts(graph: &Graph) -> BTreeMap<TensorId, TensorId> {
    let nodes = || graph.nodes();
    if !nodes().any(|node| node.is("", "Cast")) {
        return BTreeMap::new();
    }
    // By tensor: what is transposed to it; for what follows, what the Identity nodes on the way are gone for.
    let mut transposed = HashMap::new();
    let mut cast = HashMap::new();
    let mut movable = BTreeMap::new();
    let mut used: HashSet<TensorId> = HashSet::new();
    for node in nodes() {
        let (Some(read), Some(written)) = (node.input(0), node.output(0)) else {
            continue;
        };
        let swaps = || node.ints("perm").is_some_and(keeps_rows);
        if node.is("", "Transpose") && swaps() {
            transposed.insert(written, read);
        } else if node.is("", "Identity") {
            for known in [&mut transposed, &mut cast] {
                if let Some(&from) = known.get(&read) {
                    known.insert(written, from);
                }
            }
        } else if node.is("", "Cast") && graph.tensor(written).element == Some(ElementType::Float) {
            if transposed.contains_key(&read) {
                cast.insert(written, written);
                movable.insert(written, transposed[&read]);
            }
        } else if node.is("", "MatMul") || node.is(MICROSOFT, "FusedMatMul") {
            let multiplied = node.reads().filter_map(|read| cast.get(&read));
            used.extend(multiplied);
        }
    }
    movable.retain(|cast, _| used.contains(cast));
    movable
}

/// Does the runtime move this Transpose behind its readers, since another Transpose comes after them? From ORT_ENABLE_BASIC on it
/// does where nobody else reads its result, and what it moves runs at another time. A Transpose that reads it directly reads past
/// it, whoever else reads it.
pub(crate) fn is_moved_behind(graph: &Graph, uses: &Uses, id: NodeId) -> bool {
    const LOOKED_AT: usize = 100;
    let node = graph.node(id);
    let Some(written) = node.output(0).filter(|_| node.is("", "Transpose")) else {
        return false;
    };
    if graph.tensor(written).element == Some(ElementType::Float16) {
        return false;
    }
    let mut readers = uses.readers(written).iter().map(|&id| graph.node(id));
    if readers.all(|reader| reader.is("", "Transpose") || reader.is("", "Shape")) {
        return false;
    }
    let mut open = vec![(written, true)];
    let mut seen = HashSet::new();
    while let Some((tensor, first)) = open.pop() {
        if !seen.insert(tensor) || seen.len() > LOOKED_AT {
            continue;
        }
        for &reader in uses.readers(tensor) {
            let reader = graph.node(reader);
            let transposes = reader.is("", "Transpose") && !first;
            if transposes || first && reader.is("", "Shape") {
                return true;
            }
            if is_transposed_through(graph, reader) {
                open.extend(reader.writes().map(|tensor| (tensor, false)));
            }
        }
    }
    false
}

/// Operators that compute the same of what is transposed before as behind; Elu in current builds alone.
fn is_transposed_through(graph: &Graph, node: &Node) -> bool {
    Moving::of_any(graph, node).transposes_results() || node.is("", "Elu")
}
