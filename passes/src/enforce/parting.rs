//! Between which nodes something may stand that hands a tensor on.

use crate::graph::{Graph, Node, NodeId, TensorId, Uses};
use crate::operators::{self, Provider};
use crate::runtime::Release;
use crate::runtime::barrier::{keep_barriers_off, out_of_reshapes};
use crate::runtime::fused_pairs::{normalized_at_once, read_once};
use crate::runtime::fusing::{Adding, Fusing, drops_for_nobody};
use crate::runtime::rounding::Rounding;
use crate::runtime::skeleton::Skeleton;

/// What is known of that for one graph.
pub(super) struct Parting {
    release: &'static Release,
    /// By tensor: is it between nodes that the runtime makes one of, which rounds otherwise? In builds without training, bits are the same
    /// at every level, so that what becomes one node there is not parted.
    parted: Vec<bool>,
    /// By node id: is it computed before the first step? It would not be if it waited or read what is handed on.
    folded: Vec<bool>,
    /// By tensor: the same of what writes it.
    constant: Vec<bool>,
    /// By node id: is it a product of rows, of whose first input the runtime makes a matrix? The Reshape that it puts there and a barrier become one,
    /// without the barrier (measured: 1.26.0 makes no session at all).
    by_rows: Vec<bool>,
    /// By node id: see [`keep_barriers_off`].
    kept_off: Vec<bool>,
    /// By tensor: does it come out of what a Reshape may be made one with?
    pub(super) reshaped: Vec<bool>,
    pub(super) rounding: Rounding,
}

/// Is it nothing that ever waits?
fn is_nowhere(node: &Node) -> bool {
    // What a YieldOp hands over has memory of its own, which PassThrough refuses (measured).
    operators::reads_only_shape(node) || node.is("", "Constant") || operators::hands_over(node)
}

impl Parting {
    /// `base` is the graph's skeleton, run by the release that matters.
    pub(super) fn of(graph: &Graph, uses: &Uses, base: &Skeleton, provider: Provider) -> Parting {
        let release = base.release;
        let mut folded = vec![false; graph.node_count()];
        let mut by_rows = vec![false; graph.node_count()];
        let mut constant = vec![false; graph.tensor_count()];
        let mut reshaped = out_of_reshapes(graph);
        let mut kept_off = keep_barriers_off(graph, release.barrier);
        let adds = Adding::ToRows;
        for (&fusing, &id) in base.fusing.iter().zip(graph.order()) {
            let written = graph.node(id).writes();
            if fusing == Fusing::Folded {
                folded[id.index()] = true;
                for written in written {
                    constant[written.index()] = true;
                }
            } else if !release.trains && fusing == (Fusing::Product { adds }) {
                by_rows[id.index()] = true;
                for &addition in written.flat_map(|t| uses.readers(t)) {
                    for sum in graph.node(addition).writes() {
                        reshaped[sum.index()] = true;
                    }
                }
            } else if fusing == Fusing::No && drops_for_nobody(release, graph, uses, id) {
                // It would go, as it does where a node computes what it reads, and drop nothing.
                kept_off[id.index()] = true;
            }
        }
        Parting {
            release,
            parted: match release.trains {
                true => vec![false; base.size.len()],
                false => parted(graph, uses, base),
            },
            folded,
            constant,
            by_rows,
            kept_off,
            reshaped,
            rounding: Rounding::of(graph, provider, release),
        }
    }

    /// May the node read anything from what hands it on?
    pub(super) fn may_wait(&self, graph: &Graph, id: NodeId) -> bool {
        let is_possible = self.release.barrier.is_possible(graph);
        let is_nowhere = is_nowhere(graph.node(id));
        is_possible && !is_nowhere && !self.folded[id.index()] && !self.kept_off[id.index()]
    }

    /// May it read this input so, if it may any? What it updates in place it has to read itself.
    pub(super) fn may_read(&self, graph: &Graph, id: NodeId, tensor: TensorId) -> bool {
        let node = graph.node(id);
        let is_matrix = self.by_rows[id.index()] && node.input(0) == Some(tensor);
        let is_updated = |&input: &usize| node.input(input) == Some(tensor);
        !operators::updated_inputs(node).iter().any(is_updated)
            && !self.constant[tensor.index()]
            && graph.tensor(tensor).other.is_none()
            && !self.is_between(tensor)
            && !is_matrix
            && self.release.may_hand_on(graph.tensor(tensor))
            && self.rounding.may_pass(tensor, id)
    }

    /// Is it between nodes that the runtime makes one of, which rounds otherwise?
    pub(super) fn is_between(&self, tensor: TensorId) -> bool {
        self.parted[tensor.index()]
    }

    /// Is the node computed before the first step?
    pub(super) fn is_folded(&self, id: NodeId) -> bool {
        self.folded[id.index()]
    }
}

/// What a node hands on that goes from ORT_ENABLE_BASIC on.
fn handed_on(base: &Skeleton, node: usize) -> Option<u32> {
    let input = match base.fusing[node] {
        Fusing::Forwards => 0,
        Fusing::Idles { input } => input,
        _ => return None,
    };
    base.reads.get(node).get(input).copied()
}

/// By tensor: is it between nodes that the runtime makes one of, which rounds otherwise? Nodes that only forward are gone by then.
fn parted(graph: &Graph, uses: &Uses, base: &Skeleton) -> Vec<bool> {
    let mut writer = vec![Fusing::No; base.size.len()];
    // A product reads past a Transpose through a Cast, too: by what the Cast writes, the Transpose.
    let mut transposed = vec![Fusing::No; base.size.len()];
    for node in 0..base.len() {
        if let (Fusing::Casts, &[read], &[written]) = (
            base.fusing[node],
            base.reads.get(node),
            base.writes.get(node),
        ) && base.moved(written).is_some()
        {
            transposed[written as usize] = writer[read as usize];
        }
        let kind = match handed_on(base, node) {
            Some(read) => writer[read as usize],
            None => base.fusing[node],
        };
        for &written in base.writes.get(node) {
            writer[written as usize] = kind;
        }
    }
    let mut parted = vec![false; base.size.len()];
    for &id in graph.order() {
        if normalized_at_once(graph, uses, id).is_some() {
            for sum in graph.node(id).writes() {
                parted[sum.index()] = true;
            }
        }
    }
    // What a convolution takes in has to be constant, and so have its weights.
    for node in 0..base.len() {
        let constants = match base.fusing[node] {
            Fusing::Convolution { constant: true } => 1,
            Fusing::Channels { .. } => 0,
            _ => continue,
        };
        for &read in base.reads.get(node).iter().skip(constants) {
            parted[read as usize] |= base.owned[read as usize];
        }
    }
    // A product reads past a Transpose first, and multiplies by the number before it then.
    let mut scaled = vec![false; base.size.len()];
    for node in 0..base.len() {
        let scales = match (base.fusing[node], base.reads.get(node)) {
            (Fusing::Scales { .. }, _) => true,
            (Fusing::Transposes(_), &[read]) => scaled[read as usize],
            _ => handed_on(base, node).is_some_and(|read| scaled[read as usize]),
        };
        for &written in base.writes.get(node) {
            scaled[written as usize] = scales;
        }
    }
    // A Dropout stays where somebody reads its mask, and drops.
    for node in (0..base.len()).filter(|&node| handed_on(base, node).is_some()) {
        for &mask in base.writes.get(node).iter().skip(1) {
            parted[mask as usize] = true;
        }
    }
    for node in (0..base.len()).rev() {
        let reader = base.fusing[node];
        let mut written = base.writes.get(node).iter();
        let leads_on = written.any(|&written| parted[written as usize]);
        for (place, &read) in base.reads.get(node).iter().enumerate() {
            let read = read as usize;
            parted[read] |= match reader {
                Fusing::Forwards => leads_on,
                Fusing::Idles { input } => leads_on && place == input,
                Fusing::Transposes(_) => leads_on && scaled[read],
                Fusing::Casts => leads_on && matches!(writer[read], Fusing::Transposes(_)),
                Fusing::Product { .. } => {
                    scaled[read] || transposed[read].rounds_with(reader, place)
                }
                _ => false,
            };
            parted[read] |= writer[read].rounds_with(reader, place);
        }
    }
    for written in read_once(graph, uses) {
        parted[written.index()] = true;
    }
    parted
}
