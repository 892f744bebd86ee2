//! How much memory each step of an executed order needs.
//!
//! The model is ONNX Runtime's allocation planner. Every tensor has a buffer: its own, or for an
//! alias or an in-place result that of an input. A buffer's use count is the number of reads of
//! all tensors in it (a graph output counts as one read that never comes). The buffer is
//! allocated when its first tensor is written and freed right after the read that takes its count
//! to zero. A buffer that nobody reads is not freed before the end (measured: the mask of a MaxPool
//! that nobody reads stays). What the caller owns is there from the beginning to the end.

use super::cost::Cost;
use super::order::{ExecutionOrder, execution_order};
use super::skeleton::Skeleton;
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, TensorId, TensorKind};
use crate::operators::Provider;

/// The live memory at every step of one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// What the caller owns: graph inputs and initializers. Part of every other figure.
    pub fixed: Bytes,
    /// The most that any step needs.
    pub peak: Bytes,
    /// The first step that needs it, as a position in `order`; 0 for an empty graph.
    pub step: usize,
    /// What each step needs.
    pub profile: Vec<Bytes>,
    /// The nodes as they run.
    pub order: Vec<NodeId>,
    /// What is live at the peak besides what the caller owns, largest first.
    pub holders: Vec<Holder>,
}

/// Something that occupies memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A buffer, named after the tensor that was written to it first.
    Tensor(TensorId, Bytes),
    /// What the running node's kernel allocates.
    Workspace(NodeId, Bytes),
}

impl Holder {
    /// How much it occupies.
    pub fn size(self) -> Bytes {
        match self {
            Holder::Tensor(_, size) | Holder::Workspace(_, size) => size,
        }
    }
}

impl Liveness {
    /// Simulates `graph` as ONNX Runtime runs it in `order`. Tensors of unknown size count
    /// nothing: infer shapes first. `costs` are by node id.
    pub fn simulate(
        graph: &Graph,
        order: ExecutionOrder,
        provider: Provider,
        costs: &[Cost],
    ) -> Liveness {
        let skeleton = Skeleton::of(graph, provider, costs);
        let order = execution_order(&skeleton, order);
        Liveness::describe(graph, &skeleton, &order)
    }

    /// Simulates `graph` in its file order, whether or not the runtime would run that.
    pub fn in_file_order(graph: &Graph, provider: Provider, costs: &[Cost]) -> Liveness {
        let skeleton = Skeleton::of(graph, provider, costs);
        let order: Vec<u32> = (0..skeleton.len() as u32).collect();
        Liveness::describe(graph, &skeleton, &order)
    }

    fn describe(graph: &Graph, skeleton: &Skeleton, order: &[u32]) -> Liveness {
        let fixed = fixed_bytes(graph);
        let buffers = buffers(skeleton, order);
        let profile: Vec<Bytes> = profile(skeleton, order, &buffers)
            .into_iter()
            .map(|bytes| fixed + Bytes(bytes))
            .collect();
        let peak = profile.iter().copied().max().unwrap_or(fixed);
        let step = profile.iter().position(|&bytes| bytes == peak).unwrap_or(0);
        let order: Vec<NodeId> = order.iter().map(|&i| graph.order()[i as usize]).collect();
        let mut holders: Vec<Holder> = buffers
            .iter()
            .filter(|b| (b.first..=b.last).contains(&step))
            .map(|b| Holder::Tensor(TensorId(b.owner), Bytes(skeleton.size[b.owner as usize])))
            .collect();
        if let Some(&node) = order.get(step) {
            let position = graph.order().iter().position(|&id| id == node).unwrap_or(0);
            holders.push(Holder::Workspace(node, Bytes(skeleton.workspace[position])));
        }
        holders.retain(|holder| holder.size() > Bytes::ZERO);
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.size()));
        Liveness {
            fixed,
            peak,
            step,
            profile,
            order,
            holders,
        }
    }

    /// The node that runs at the peak; `None` for an empty graph.
    pub fn peak_node(&self) -> Option<NodeId> {
        self.order.get(self.step).copied()
    }
}

/// What the caller owns: graph inputs and initializers.
pub fn fixed_bytes(graph: &Graph) -> Bytes {
    graph
        .tensor_ids()
        .map(|id| graph.tensor(id))
        .filter(|tensor| tensor.kind != TensorKind::Value)
        .filter_map(|tensor| tensor.bytes())
        .sum()
}

/// The most that any step of `order` needs, without what the caller owns.
pub(crate) fn peak(skeleton: &Skeleton, order: &[u32]) -> u64 {
    profile(skeleton, order, &buffers(skeleton, order))
        .into_iter()
        .max()
        .unwrap_or(0)
}

/// The need of every step, without what the caller owns.
pub(crate) fn profile_of(skeleton: &Skeleton, order: &[u32]) -> Vec<u64> {
    profile(skeleton, order, &buffers(skeleton, order))
}

/// One buffer's life: the steps `first..=last`.
struct Buffer {
    owner: u32,
    first: usize,
    last: usize,
}

fn profile(skeleton: &Skeleton, order: &[u32], buffers: &[Buffer]) -> Vec<u64> {
    let mut change = vec![0i128; order.len() + 1];
    for buffer in buffers {
        let size = i128::from(skeleton.size[buffer.owner as usize]);
        change[buffer.first] += size;
        change[buffer.last + 1] -= size;
    }
    let mut live = 0i128;
    let needs = order.iter().zip(&change).map(|(&node, change)| {
        live += change;
        u64::try_from(live)
            .unwrap_or(u64::MAX)
            .saturating_add(skeleton.workspace[node as usize])
    });
    needs.collect()
}

const NONE: u32 = u32::MAX;

fn buffers(skeleton: &Skeleton, order: &[u32]) -> Vec<Buffer> {
    let tensors = skeleton.size.len();
    // Reads still to come, by tensor; for the owner of a buffer, of all tensors in it. Graph
    // outputs and what the caller owns have one more, which never comes.
    let mut uses: Vec<u32> = (0..tensors)
        .map(|t| u32::from(skeleton.output[t]) + u32::from(skeleton.owned[t]))
        .collect();
    for node in 0..skeleton.len() {
        for &tensor in skeleton.reads.get(node) {
            uses[tensor as usize] += 1;
        }
    }
    let mut owner: Vec<u32> = (0..tensors as u32).collect();
    let mut buffer_of = vec![NONE; tensors];
    let mut buffers: Vec<Buffer> = Vec::new();
    for (step, &node) in order.iter().enumerate() {
        let node = node as usize;
        let (reads, writes) = (skeleton.reads.get(node), skeleton.writes.get(node));
        for &tensor in writes {
            let lies_in = skeleton.shares.get(node).iter().find(|share| {
                // A graph output always gets memory of its own, even from Identity.
                share.written == tensor
                    && !skeleton.output[tensor as usize]
                    && (share.always || uses[owner[share.read as usize] as usize] == 1)
            });
            if let Some(share) = lies_in {
                let of = owner[share.read as usize];
                owner[tensor as usize] = of;
                uses[of as usize] += uses[tensor as usize];
            } else {
                buffer_of[tensor as usize] = buffers.len() as u32;
                buffers.push(Buffer {
                    owner: tensor,
                    first: step,
                    last: order.len() - 1,
                });
            }
        }
        for &tensor in reads {
            let of = owner[tensor as usize] as usize;
            uses[of] = uses[of].saturating_sub(1);
        }
        for &tensor in reads {
            let of = owner[tensor as usize] as usize;
            if uses[of] == 0 && buffer_of[of] != NONE {
                let last = &mut buffers[buffer_of[of] as usize].last;
                *last = (*last).min(step);
            }
        }
    }
    buffers
}
