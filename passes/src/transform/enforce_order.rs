//! Makes ONNX Runtime run the nodes in an order that fits the budget, whatever order it is set to.
//!
//! Left alone, the DEFAULT order hoists mirrors to the front and puts accumulators off to the
//! end. `PassThrough(x, t…) -> (x', t'…)` forwards its inputs without a copy, so a reader of x'
//! runs after the producers of every t. A barrier before node i waits for every *open* node:
//! earlier in the file, and read by nobody up to i. With it, all earlier nodes run before i.
//!
//! A barrier at every node makes any order a chain. Most are not needed: barriers are added where
//! the simulated order exceeds the budget, then taken out again in ever smaller groups while both
//! simulated orders still fit.

use crate::analysis::cost::Cost;
use crate::analysis::liveness;
use crate::analysis::order::{ExecutionOrder, execution_order};
use crate::analysis::skeleton::{Share, Skeleton};
use crate::bytes::Bytes;
use crate::graph::{Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses};
use crate::operators::Provider;
use crate::pass::{Changed, Pass};

/// **Does**: inserts as few PassThrough barriers as it can so that the peak stays within the
/// budget, and the sequences are kept, in every execution order.
/// **Needs**: nodes listed in a topological order that fits the budget itself; concrete shapes.
/// **Keeps**: every node's computation; graph inputs, outputs, initializers; all names.
pub struct EnforceOrder<'c> {
    /// What a step may take, what the caller owns included.
    pub budget: Bytes,
    /// Who runs the graph.
    pub provider: Provider,
    /// By node id.
    pub costs: &'c [Cost],
    /// Pairs of nodes of which the first has to run before the second in every order.
    pub sequences: &'c [(NodeId, NodeId)],
}

/// No set of barriers keeps the peak within the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peak is {reached} in the runtime's order, above the budget of {budget}")]
pub struct NotEnforceable {
    /// The smallest peak that barriers reached.
    pub reached: Bytes,
    /// What it should have been.
    pub budget: Bytes,
}

/// How many visits of nodes the thinning out may take: about two seconds.
const THINNING_WORK: usize = 40_000_000;

impl Pass for EnforceOrder<'_> {
    type Error = NotEnforceable;

    fn name(&self) -> &'static str {
        "enforce-order"
    }

    fn run(&self, graph: &mut Graph) -> Result<Changed, NotEnforceable> {
        let fixed = liveness::fixed_bytes(graph);
        let plan = Planner::new(graph, self, (self.budget - fixed).0);
        let chosen = match plan.choose() {
            Ok(chosen) => chosen,
            Err(reached) => {
                let reached = fixed + Bytes(reached);
                return Err(NotEnforceable {
                    reached,
                    budget: self.budget,
                });
            }
        };
        let barriers = plan.barriers(&chosen);
        insert(graph, &barriers);
        Ok(if barriers.is_empty() {
            Changed::No
        } else {
            Changed::Yes
        })
    }
}

impl EnforceOrder<'_> {
    /// The peak with a barrier before every node: what the file's order itself needs,
    /// as far as barriers can enforce it.
    pub fn smallest_peak(&self, graph: &Graph) -> Bytes {
        let plan = Planner::new(graph, self, 0);
        liveness::fixed_bytes(graph) + Bytes(plan.peak(&vec![true; graph.order().len()]))
    }
}

/// A PassThrough to be inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Barrier {
    /// The position of the node that waits.
    before: u32,
    /// The tensor that is passed through to it.
    passed: u32,
    /// One tensor of every node that it waits for.
    waits: Vec<u32>,
}

struct Planner {
    base: Skeleton,
    /// By tensor: the position of its producer.
    producer: Vec<Option<u32>>,
    /// By node: the tensor that a barrier before it would pass through.
    passed: Vec<Option<u32>>,
    /// By node: the tensor by which others wait for it.
    signal: Vec<Option<u32>>,
    /// By node: may others wait for it?
    waitable: Vec<bool>,
    /// Positions of which the first has to run before the second.
    sequences: Vec<(u32, u32)>,
    budget: u64,
}

/// By position: is there a barrier before this node?
type Chosen = Vec<bool>;

impl Planner {
    fn new(graph: &Graph, pass: &EnforceOrder<'_>, budget: u64) -> Planner {
        let base = Skeleton::of(graph, pass.provider, pass.costs);
        let positions = graph.positions();
        let place = |id: NodeId| positions[id.index()];
        let pairs = pass.sequences.iter();
        let uses = Uses::of(graph);
        let read = |id: NodeId| graph.node(id).writes().any(|t| !uses.readers(t).is_empty());
        let waitable = graph.order().iter().enumerate();
        let waitable = waitable
            .map(|(i, &id)| !base.reads_only_shape[i] || read(id))
            .collect();
        let mut producer = vec![None; base.size.len()];
        for node in 0..base.len() {
            for &tensor in base.writes.get(node) {
                producer[tensor as usize] = Some(node as u32);
            }
        }
        let passed = |id: &NodeId| {
            let node = graph.node(*id);
            if node.is("", "Shape") || node.is("", "Size") || node.is("", "Constant") {
                return None;
            }
            let mut inputs = node.inputs.iter().flatten();
            let computed = inputs
                .clone()
                .find(|t| graph.tensor(**t).kind == TensorKind::Value);
            computed.or_else(|| inputs.next()).map(|tensor| tensor.0)
        };
        let signal = |node: usize| {
            // What lies in the caller's memory is updated in place and not to be passed around.
            let is_caller_s = |tensor: u32| {
                let mut shares = base.shares.get(node).iter();
                shares.any(|share| share.written == tensor && base.owned[share.read as usize])
            };
            let written = base.writes.get(node).iter().copied();
            written.min_by_key(|&t| (is_caller_s(t), base.size[t as usize]))
        };
        Planner {
            passed: graph.order().iter().map(passed).collect(),
            signal: (0..base.len()).map(signal).collect(),
            sequences: pairs
                .map(|&(first, second)| (place(first), place(second)))
                .collect(),
            waitable,
            producer,
            base,
            budget,
        }
    }

    /// Where barriers are needed; or the peak, if they do not help.
    fn choose(&self) -> Result<Chosen, u64> {
        let mut chosen = vec![false; self.base.len()];
        if self.fits(&chosen) {
            return Ok(chosen);
        }
        while self.add_where_exceeded(&mut chosen) {
            if self.fits(&chosen) {
                return Ok(self.thin_out(chosen));
            }
        }
        let chosen = vec![true; self.base.len()];
        if self.fits(&chosen) {
            return Ok(self.thin_out(chosen));
        }
        Err(self.peak(&chosen))
    }

    fn fits(&self, chosen: &Chosen) -> bool {
        let (skeleton, position) = self.with_barriers(&self.barriers(chosen));
        ExecutionOrder::ALL.into_iter().all(|order| {
            let order = execution_order(&skeleton, order);
            self.broken_sequence(&order, &position).is_none()
                && liveness::peak(&skeleton, &order) <= self.budget
        })
    }

    fn peak(&self, chosen: &Chosen) -> u64 {
        let skeleton = self.with_barriers(&self.barriers(chosen)).0;
        let peak = |order| liveness::peak(&skeleton, &execution_order(&skeleton, order));
        ExecutionOrder::ALL.into_iter().map(peak).max().unwrap_or(0)
    }

    /// The second node of a pair that runs in the wrong sequence.
    fn broken_sequence(&self, order: &[u32], position: &[u32]) -> Option<u32> {
        if self.sequences.is_empty() {
            return None;
        }
        // A barrier has its reader's position, and runs before it.
        let mut time = vec![0; self.base.len()];
        for (step, &node) in order.iter().enumerate() {
            time[position[node as usize] as usize] = step;
        }
        let broken = |&&(first, second): &&(u32, u32)| time[first as usize] > time[second as usize];
        self.sequences
            .iter()
            .find(broken)
            .map(|&(_, second)| second)
    }

    /// Adds barriers where the simulated DEFAULT order exceeds the budget: before the node that
    /// runs there, and before every node that ran too early. False if all of them exist.
    fn add_where_exceeded(&self, chosen: &mut Chosen) -> bool {
        let (skeleton, position) = self.with_barriers(&self.barriers(chosen));
        let order = execution_order(&skeleton, ExecutionOrder::Default);
        let profile = liveness::profile_of(&skeleton, &order);
        let mut added = false;
        for order in ExecutionOrder::ALL {
            let order = execution_order(&skeleton, order);
            if let Some(second) = self.broken_sequence(&order, &position) {
                added |= !std::mem::replace(&mut chosen[second as usize], true);
            }
        }
        // From the end: the furthest wanted position that ran before each step is known then.
        let wanted: Vec<u32> = order.iter().map(|&node| position[node as usize]).collect();
        for (step, _) in profile
            .iter()
            .enumerate()
            .filter(|&(_, &need)| need > self.budget)
        {
            let here = wanted[step];
            added |= !std::mem::replace(&mut chosen[here as usize], true);
        }
        let Some(first) = profile.iter().position(|&need| need > self.budget) else {
            return added;
        };
        let last = profile
            .iter()
            .rposition(|&need| need > self.budget)
            .unwrap_or(first);
        // What ran up to there although it belongs behind everything that exceeds.
        let mut latest = vec![0; order.len()];
        let mut least = u32::MAX;
        for step in (first..=last).rev() {
            least = least.min(wanted[step]);
            latest[step] = least;
        }
        for step in 0..=last {
            let bound = latest[step.max(first)];
            if wanted[step] > bound {
                added |= !std::mem::replace(&mut chosen[wanted[step] as usize], true);
            }
        }
        added
    }

    /// Takes barriers out while everything fits, in groups that halve.
    fn thin_out(&self, mut chosen: Chosen) -> Chosen {
        let mut kept: Vec<u32> = self.barriers(&chosen).iter().map(|b| b.before).collect();
        chosen.fill(false);
        for &before in &kept {
            chosen[before as usize] = true;
        }
        let mut work = 0;
        let mut group = kept.len().div_ceil(2);
        while group > 0 {
            let mut start = 0;
            while start < kept.len() {
                let end = (start + group).min(kept.len());
                for &before in &kept[start..end] {
                    chosen[before as usize] = false;
                }
                work += self.base.len();
                if work > THINNING_WORK {
                    for &before in &kept[start..end] {
                        chosen[before as usize] = true;
                    }
                    return chosen;
                }
                if self.fits(&chosen) {
                    kept.drain(start..end);
                } else {
                    for &before in &kept[start..end] {
                        chosen[before as usize] = true;
                    }
                    start = end;
                }
            }
            group = if group == 1 { 0 } else { group.div_ceil(2) };
        }
        chosen
    }

    /// The barriers that the choice amounts to; where nothing is open there is none.
    fn barriers(&self, chosen: &Chosen) -> Vec<Barrier> {
        let mut open: Vec<u32> = Vec::new();
        let mut is_open = vec![false; self.base.len()];
        let mut barriers = Vec::new();
        for node in 0..self.base.len() {
            for &tensor in self.base.reads.get(node) {
                if let Some(producer) = self.producer[tensor as usize] {
                    is_open[producer as usize] = false;
                }
            }
            if let (true, Some(passed)) = (chosen[node], self.passed[node]) {
                open.retain(|&n| is_open[n as usize]);
                let waits: Vec<u32> = open
                    .iter()
                    .filter_map(|&n| self.signal[n as usize])
                    .collect();
                for n in open.drain(..) {
                    is_open[n as usize] = false;
                }
                if !waits.is_empty() {
                    barriers.push(Barrier {
                        before: node as u32,
                        passed,
                        waits,
                    });
                }
            }
            // A Size that only releases its input runs directly behind the producer anyway.
            if self.waitable[node] {
                is_open[node] = true;
                open.push(node as u32);
            }
        }
        barriers
    }

    /// The skeleton with the barriers in it, and for each of its nodes the position in the file
    /// that it belongs to (a barrier's is its reader's).
    fn with_barriers(&self, barriers: &[Barrier]) -> (Skeleton, Vec<u32>) {
        let mut skeleton = Skeleton {
            size: self.base.size.clone(),
            owned: self.base.owned.clone(),
            output: self.base.output.clone(),
            ..Skeleton::default()
        };
        let mut position = Vec::with_capacity(self.base.len() + barriers.len());
        let mut next = barriers.iter().peekable();
        for node in 0..self.base.len() {
            let barrier = next.next_if(|barrier| barrier.before as usize == node);
            let mut replaced = None;
            if let Some(barrier) = barrier {
                let reads = || std::iter::once(barrier.passed).chain(barrier.waits.iter().copied());
                let first = skeleton.size.len() as u32;
                let writes: Vec<u32> = reads().zip(first..).map(|(_, new)| new).collect();
                for tensor in reads() {
                    skeleton.size.push(self.base.size[tensor as usize]);
                    skeleton.owned.push(false);
                    skeleton.output.push(false);
                }
                skeleton.reads.push(reads());
                skeleton.writes.push(writes);
                let shares = reads().zip(first..);
                skeleton.shares.push(shares.map(|(read, written)| Share {
                    written,
                    read,
                    always: true,
                }));
                skeleton.workspace.push(0);
                skeleton.reads_only_shape.push(false);
                position.push(node as u32);
                replaced = Some((barrier.passed, first));
            }
            let mut once = replaced;
            skeleton
                .reads
                .push(self.base.reads.get(node).iter().map(|&tensor| match once {
                    Some((old, new)) if old == tensor => {
                        once = None;
                        new
                    }
                    _ => tensor,
                }));
            skeleton
                .writes
                .push(self.base.writes.get(node).iter().copied());
            skeleton.shares.push(
                self.base
                    .shares
                    .get(node)
                    .iter()
                    .map(|&share| match replaced {
                        Some((old, new)) if old == share.read => Share { read: new, ..share },
                        _ => share,
                    }),
            );
            skeleton.workspace.push(self.base.workspace[node]);
            skeleton
                .reads_only_shape
                .push(self.base.reads_only_shape[node]);
            position.push(node as u32);
        }
        (skeleton, position)
    }
}

/// Adds the barriers to the graph.
fn insert(graph: &mut Graph, barriers: &[Barrier]) {
    let old = graph.order().to_vec();
    let mut order = Vec::with_capacity(old.len() + barriers.len());
    let mut next = barriers.iter().enumerate().peekable();
    for (position, &id) in old.iter().enumerate() {
        if let Some((number, barrier)) = next.next_if(|(_, b)| b.before as usize == position) {
            let inputs: Vec<TensorId> = std::iter::once(barrier.passed)
                .chain(barrier.waits.iter().copied())
                .map(TensorId)
                .collect();
            // Every output has to be named: the kernel writes as many as it has inputs.
            let outputs: Vec<TensorId> = inputs
                .iter()
                .map(|&input| {
                    let of = graph.tensor(input).clone();
                    let name = graph.free_tensor_name(&format!("{}/barrier_{number}", of.name));
                    graph.add_tensor(Tensor {
                        name,
                        kind: TensorKind::Value,
                        ..of
                    })
                })
                .collect();
            let name = format!("ckpt-opt/barrier_{number}");
            let present = |ids: &[TensorId]| ids.iter().copied().map(Some).collect();
            let (read, written) = (present(&inputs), present(&outputs));
            order.push(graph.add_node(Node::new(
                name,
                "com.microsoft",
                "PassThrough",
                read,
                written,
            )));
            let reads = &mut graph.node_mut(id).inputs;
            if let Some(input) = reads.iter_mut().find(|input| **input == Some(inputs[0])) {
                *input = Some(outputs[0]);
            }
        }
        order.push(id);
    }
    graph.set_order(order);
}

#[cfg(test)]
mod tests;
