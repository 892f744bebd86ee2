//! How much memory each step of an executed order needs.
//!
//! The model is ONNX Runtime's: its allocation planner, in `allocation`, and, where the settings
//! ask for it, its memory pattern, in `memory_pattern`. What the caller owns is there from the
//! beginning to the end.

use super::allocation::{self, Allocation, Buffer};
use super::known_shapes::Shapes;
use super::order::{ExecutionOrder, execution_order, in_sequence};
use super::settings::RuntimeSettings;
use super::skeleton::Skeleton;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, Node, NodeId, TensorId, TensorKind};
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
    /// How many tensor objects there are at each step, without those of the caller. Results in place and aliases have
    /// theirs to the end.
    pub objects: Vec<u64>,
    /// The memory pattern's block, if the runtime makes one. Part of every step's need.
    pub pattern: Option<Bytes>,
    /// What the runtime keeps beside that block to find things in it. Not part of any step's need.
    pub pattern_tables: Bytes,
    /// Which other tensors there are once the runtime has optimized the graph.
    pub optimized: OtherTensors,
    /// What runs at each step: the node, or that for which the runtime inserts a cast there.
    pub order: Vec<NodeId>,
    /// By step: is it such a cast?
    pub inserted: Vec<bool>,
    /// What is live at the peak besides what the caller owns, largest first.
    pub holders: Vec<Holder>,
    /// Every buffer, those in the memory pattern's block too.
    pub buffers: Vec<LiveBuffer>,
}

/// A buffer, and when it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBuffer {
    /// The tensor that was written to it first.
    pub tensor: TensorId,
    /// How large it is.
    pub size: Bytes,
    /// The first step at which it is there, as a position in [`Liveness::order`].
    pub first: usize,
    /// The last one.
    pub last: usize,
    /// Does it lie in the memory pattern's block?
    pub in_pattern: bool,
}

/// What an optimized graph has of tensors, beside the graph itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherTensors {
    /// How many fewer are known.
    pub absent: u64,
    /// How many more alias others to the end of the step: of a tensor that is split into rows, a Squeeze hands each on.
    pub squeezed: u64,
}

/// Something that occupies memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A buffer, named after the tensor that was written to it first.
    Tensor(TensorId, Bytes),
    /// What the running node's kernel allocates.
    Workspace(NodeId, Bytes),
    /// The block in which the runtime places whatever has a known size before the step begins.
    Pattern(Bytes),
}

impl Holder {
    /// How much it occupies.
    pub fn size(self) -> Bytes {
        match self {
            Holder::Tensor(_, size) | Holder::Workspace(_, size) | Holder::Pattern(size) => size,
        }
    }
}

impl Liveness {
    /// Simulates `graph` as ONNX Runtime runs it in `order`, lean. Tensors of unknown size count
    /// nothing: infer shapes first. `costs` are by node id.
    pub fn simulate(
        graph: &Graph,
        order: ExecutionOrder,
        provider: Provider,
        costs: &[Cost],
    ) -> Liveness {
        let (skeleton, positions) = Skeleton::of(graph, provider, costs).into_run();
        let order = execution_order(&skeleton, order);
        Liveness::lean(graph, &skeleton, &positions, &order)
    }

    /// Simulates `graph` in its file order, whether or not the runtime would run that.
    pub fn in_file_order(graph: &Graph, provider: Provider, costs: &[Cost]) -> Liveness {
        let (skeleton, positions) = Skeleton::of(graph, provider, costs).into_run();
        let order = in_sequence(&skeleton, &positions);
        Liveness::lean(graph, &skeleton, &positions, &order)
    }

    fn lean(graph: &Graph, skeleton: &Skeleton, positions: &[u32], order: &[u32]) -> Liveness {
        let allocation = allocation::lean(skeleton, order);
        let known = WorkedOut {
            allocation: &allocation,
            needs: profile(skeleton, order, &allocation),
            optimized: OtherTensors::default(),
        };
        let inserted = skeleton.inserted_in(order);
        let order = order.iter().map(|&node| positions[node as usize]);
        Liveness::describe(graph, skeleton, &order.collect::<Vec<_>>(), inserted, known)
    }

    /// `order` has positions in the graph's order.
    pub(super) fn describe(
        graph: &Graph,
        skeleton: &Skeleton,
        order: &[u32],
        inserted: Vec<bool>,
        known: WorkedOut<'_>,
    ) -> Liveness {
        let fixed = fixed_bytes(graph);
        let WorkedOut {
            allocation,
            needs,
            optimized,
        } = known;
        let profile: Vec<Bytes> = needs.into_iter().map(|n| fixed + Bytes(n)).collect();
        let peak = profile.iter().copied().max().unwrap_or(fixed);
        let step = profile.iter().position(|&bytes| bytes == peak).unwrap_or(0);
        let order: Vec<NodeId> = order.iter().map(|&i| graph.order()[i as usize]).collect();
        let names = skeleton.names();
        let mut holders: Vec<Holder> = allocation
            .buffers
            .iter()
            .filter(|b| (b.first..=b.last).contains(&step))
            .map(|b| {
                let tensor = TensorId(names[b.owner as usize]);
                Holder::Tensor(tensor, Bytes(skeleton.size[b.owner as usize]))
            })
            .collect();
        holders.push(Holder::Pattern(Bytes(allocation.pattern.unwrap_or(0))));
        if let Some(&node) = order.get(step) {
            let held: Bytes = holders.iter().map(|holder| holder.size()).sum();
            holders.push(Holder::Workspace(node, peak - fixed - held));
        }
        let live = |buffer: &Buffer, in_pattern| LiveBuffer {
            tensor: TensorId(names[buffer.owner as usize]),
            size: Bytes(skeleton.size[buffer.owner as usize]),
            first: buffer.first,
            last: buffer.last,
            in_pattern,
        };
        let beside = allocation.buffers.iter().map(|buffer| live(buffer, false));
        let inside = allocation.inside.iter().map(|buffer| live(buffer, true));
        holders.retain(|holder| holder.size() > Bytes::ZERO);
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.size()));
        Liveness {
            fixed,
            peak,
            step,
            profile,
            objects: allocation.objects.clone(),
            pattern: allocation.pattern.map(Bytes),
            pattern_tables: Bytes(allocation.tables),
            optimized,
            order,
            inserted,
            holders,
            buffers: beside.chain(inside).collect(),
        }
    }

    /// The graph's own nodes as they run.
    pub fn nodes(&self) -> Vec<NodeId> {
        let steps = self.order.iter().zip(&self.inserted);
        let own = steps.filter(|(_, inserted)| !**inserted);
        own.map(|(&id, _)| id).collect()
    }

    /// The most that any step needs, with the runtime's objects for tensors ([`TENSOR`]).
    pub fn peak_with_objects(&self) -> Bytes {
        self.needs().max().unwrap_or(self.fixed)
    }

    /// What each step needs, with those objects.
    pub fn needs(&self) -> impl Iterator<Item = Bytes> {
        let steps = self.profile.iter().zip(&self.objects);
        steps.map(|(&bytes, &objects)| bytes + Bytes(TENSOR.0.saturating_mul(objects)))
    }

    /// What each step needs besides buffers, the memory pattern's block and what the caller owns.
    pub fn workspaces(&self) -> Vec<Bytes> {
        let always = self.fixed + self.pattern.unwrap_or(Bytes::ZERO);
        let (mut made, mut gone) = (
            vec![Bytes::ZERO; self.order.len()],
            vec![Bytes::ZERO; self.order.len() + 1],
        );
        for buffer in self.buffers.iter().filter(|buffer| !buffer.in_pattern) {
            made[buffer.first] += buffer.size;
            gone[buffer.last + 1] += buffer.size;
        }
        let mut live = always;
        let steps = self.profile.iter().zip(made.iter().zip(&gone));
        let workspaces = steps.map(|(&need, (&made, &gone))| {
            live = live - gone + made;
            need - live
        });
        workspaces.collect()
    }

    /// The node that runs at the peak; `None` for an empty graph.
    pub fn peak_node(&self) -> Option<NodeId> {
        self.order.get(self.step).copied()
    }
}

/// What the runtime allocates for a tensor that lives, besides its elements: an object with its shape and a reference
/// count. Runtime fact, from the blocks that live at the peaks of chains and of rewritten graphs.
pub const TENSOR: Bytes = Bytes(224);

/// What was worked out of one run.
pub(super) struct WorkedOut<'a> {
    pub(super) allocation: &'a Allocation,
    /// By step, without what the caller owns.
    pub(super) needs: Vec<u64>,
    /// See [`Liveness::optimized`].
    pub(super) optimized: OtherTensors,
}

/// What the caller owns: graph inputs, initializers, and what Constant nodes say, if it is much, as a session turns them into
/// initializers; those of subgraphs too.
pub fn fixed_bytes(graph: &Graph) -> Bytes {
    let owned = graph
        .tensor_ids()
        .filter(|&id| graph.tensor(id).kind != TensorKind::Value);
    let nodes = || graph.nodes();
    let holds_tensor = |node: &&Node| {
        let attributes = ["value", "sparse_value"];
        node.is("", "Constant") && attributes.iter().any(|name| node.attribute(name).is_some())
    };
    // Of which the numbers are not even read.
    let much = nodes()
        .filter(holds_tensor)
        .flat_map(Node::writes)
        .filter(|&id| graph.tensor(id).constant.is_none());
    let inside = nodes().map(|node| node.held.owned);
    owned
        .chain(much)
        .filter_map(|id| graph.tensor(id).bytes())
        .chain(inside)
        .sum()
}

/// The need of every step, without what the caller owns.
pub(crate) fn profile_of(skeleton: &Skeleton, order: &[u32]) -> Vec<u64> {
    profile(skeleton, order, &allocation::lean(skeleton, order))
}

/// What one run needs, without what the caller owns: what lies beside the memory pattern's block and what lies in it.
pub(crate) struct Needs {
    /// By step: beside the block, tensors' objects included.
    pub(crate) beside: Vec<u64>,
    /// By step: how large the block has to be for what gets a place in it there; nothing without a block.
    pub(crate) inside: Vec<u64>,
    /// The block, which is there at every step, and what is kept to find things in it.
    pub(crate) block: u64,
    /// What has a place in it.
    pub(crate) placed: Vec<Buffer>,
}

impl Needs {
    /// Lean, or with these settings in a graph of which the runtime knows these shapes; `object` is for each tensor's
    /// object.
    pub(crate) fn of(
        skeleton: &Skeleton,
        order: &[u32],
        settings: Option<(RuntimeSettings, &Shapes)>,
        object: u64,
    ) -> Needs {
        let allocation = match settings {
            Some((settings, shapes)) => allocation::allocate(skeleton, shapes, order, settings),
            None => allocation::lean(skeleton, order),
        };
        let beside = beside_block(skeleton, order, &allocation, 0).zip(&allocation.objects);
        let beside =
            beside.map(|(need, &objects)| need.saturating_add(object.saturating_mul(objects)));
        Needs {
            beside: beside.collect(),
            block: allocation
                .pattern
                .unwrap_or(0)
                .saturating_add(allocation.tables),
            inside: allocation.ends,
            placed: allocation.inside,
        }
    }

    /// The most that any step needs.
    pub(crate) fn most(&self) -> u64 {
        let beside = self.beside.iter().copied().max().unwrap_or(0);
        self.block.saturating_add(beside)
    }
}

pub(super) fn profile(skeleton: &Skeleton, order: &[u32], allocation: &Allocation) -> Vec<u64> {
    let block = allocation.pattern.unwrap_or(0);
    beside_block(skeleton, order, allocation, block).collect()
}

/// By step: what is needed beside the memory pattern's block, and `block` bytes.
fn beside_block(
    skeleton: &Skeleton,
    order: &[u32],
    allocation: &Allocation,
    block: u64,
) -> impl Iterator<Item = u64> {
    let mut allocated = vec![0i128; order.len() + 1];
    let mut freed = allocated.clone();
    for buffer in &allocation.buffers {
        let size = i128::from(skeleton.size[buffer.owner as usize]);
        allocated[buffer.first] += size;
        freed[buffer.last + 1] += size;
    }
    let mut live = i128::from(block);
    let steps = order.iter().zip(allocated.into_iter().zip(freed));
    steps.map(move |(&node, (allocated, freed))| {
        let node = node as usize;
        live -= freed;
        let early = live + i128::from(skeleton.early[node]);
        live += allocated;
        let most = early.max(live + i128::from(skeleton.workspace[node]));
        u64::try_from(most).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulated(text: &str, workspace: &[u64]) -> (Graph, Liveness) {
        let graph = Graph::parse(text).unwrap();
        let mut costs = vec![Cost::default(); graph.node_count()];
        for (cost, &bytes) in costs.iter_mut().zip(workspace) {
            cost.workspace = Bytes(bytes);
        }
        let liveness = Liveness::in_file_order(&graph, Provider::Cpu, &costs);
        (graph, liveness)
    }

    fn profile(text: &str) -> Vec<u64> {
        let (_, liveness) = simulated(text, &[]);
        liveness.profile.iter().map(|bytes| bytes.0).collect()
    }

    #[test]
    fn a_result_lives_from_its_node_to_its_last_reader() {
        // x: 40. a is read for the last time by c, so: a; a b; a b c; c d and b no more.
        let text = "g (float[10] x) => () <float[10] a, float[10] b, float[10] c, float[10] d> {
            a = Exp(x) b = Exp(a) c = Add(a, b) d = Exp(c)
        }";
        assert_eq!(profile(text), [80, 120, 160, 120]);
    }

    #[test]
    fn an_in_place_result_takes_over_its_input_if_it_is_the_last_reader() {
        // a; b in place of a; b c.
        let text = "g (float[10] x) => () <float[10] a, float[10] b, float[10] c> {
            a = Exp(x) b = Relu(a) c = Exp(b)
        }";
        assert_eq!(profile(text), [80, 80, 120]);
        // Once more read later, a stays: a; a b; a b c.
        let text = "g (float[10] x) => () <float[10] a, float[10] b, float[10] c> {
            a = Exp(x) b = Relu(a) c = Add(a, b)
        }";
        assert_eq!(profile(text), [80, 120, 160]);
        // What the caller owns is not overwritten.
        let text = "g (float[10] x) => () <float[10] b, float[10] c> { b = Relu(x) c = Exp(b) }";
        assert_eq!(profile(text), [80, 120]);
    }

    #[test]
    fn an_alias_keeps_its_memory_until_the_last_reader_of_either() {
        // x and to: 40 + 8. a; a with flat; the same and b; a with flat, and c, not b.
        let text = "g (float[2,5] x) => ()
            <int64[1] to = {10}, float[2,5] a, float[10] flat, float[2,5] b, float[10] c>
            { a = Exp(x) flat = Reshape(a, to) b = Exp(a) c = Exp(flat) }";
        // b is read by nobody and stays to the end: a b c.
        assert_eq!(profile(text), [88, 88, 128, 168]);
    }

    #[test]
    fn a_graph_output_has_memory_of_its_own_even_from_identity() {
        let text = "g (float[10] x) => (float[10] y) <float[10] a> { a = Exp(x) y = Identity(a) }";
        assert_eq!(profile(text), [80, 120]);
    }

    #[test]
    fn a_graph_output_lives_to_the_end() {
        let text = "g (float[10] x) => (float[10] a) <float[10] b, float[10] c> {
            a = Exp(x) b = Exp(a) c = Exp(b)
        }";
        // a; a b; a b c.
        assert_eq!(profile(text), [80, 120, 160]);
    }

    #[test]
    fn a_result_that_nobody_reads_lives_to_the_end() {
        // unread; unread b; unread b c; unread c d.
        let text = "g (float[10] x) => ()
            <float[10] unread, float[10] b, float[10] c, float[10] d>
            { unread = Exp(x) b = Exp(x) c = Exp(b) d = Exp(c) }";
        assert_eq!(profile(text), [80, 120, 160, 160]);
    }

    #[test]
    fn objects_of_aliases_stay_to_the_end() {
        // a; a and flat; the same and b, whose node frees a; flat, b and c.
        let text = "g (float[2,5] x) => ()
            <int64[1] to = {10}, float[2,5] a, float[10] flat, float[10] b, float[10] c>
            { a = Exp(x) flat = Reshape(a, to) b = Exp(flat) c = Exp(b) }";
        let (_, liveness) = simulated(text, &[]);
        assert_eq!(liveness.objects, [1, 2, 3, 3]);
    }

    #[test]
    fn a_sum_of_four_takes_twice_as_much_where_its_result_has_memory_already() {
        let text = "g (float[1024] x) => (float y) <float[1024] a, float[1024] b>
            { a = Exp(x) b = Sum(x, x, x, x) y = ReduceSum<keepdims = 0>(b) }";
        // Beside a, which nobody reads, in a buffer of its own: b and one intermediate sum.
        let (graph, liveness) = simulated(text, &[0, 4096, 0]);
        assert_eq!(liveness.profile[1], liveness.fixed + Bytes(12288));
        // In that of a: two intermediate sums beside it.
        let costs = [0, 4096, 0].map(|workspace| Cost {
            workspace: Bytes(workspace),
            ..Cost::default()
        });
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let mut allocation = allocation::lean(&skeleton, &[0, 1, 2]);
        let b = graph.tensor_named("b").unwrap().0;
        allocation.buffers.retain(|buffer| buffer.owner != b);
        allocation.buffers[0].last = 2;
        assert_eq!(
            super::profile(&skeleton, &[0, 1, 2], &allocation),
            [4096, 12288, 4100]
        );
    }

    #[test]
    fn workspace_is_there_while_its_node_runs() {
        let text = "g (float[10] x) => (float[10] c) <float[10] a, float[10] b> {
            a = Exp(x) b = Exp(a) c = Exp(b)
        }";
        let (graph, liveness) = simulated(text, &[0, 7, 0]);
        assert_eq!(liveness.profile, [80, 127, 120].map(Bytes));
        assert_eq!((liveness.fixed, liveness.peak), (Bytes(40), Bytes(127)));
        assert_eq!(liveness.step, 1);
        assert_eq!(liveness.peak_node(), Some(graph.order()[1]));
    }

    #[test]
    fn holders_are_what_is_live_at_the_peak_the_largest_first() {
        let text = "g (float[10] x) => () <float[10] a, float[10] r, float[20] b, float[5] c> {
            a = Exp(x) r = Relu(a) b = Foo(r) c = Foo(b, r)
        }";
        // a is overwritten by r and gives its name; c needs b: 80, a: 40, c: 20, and 9.
        let (graph, liveness) = simulated(text, &[0, 0, 0, 9]);
        let names: Vec<String> = liveness
            .holders
            .iter()
            .map(|holder| match *holder {
                Holder::Tensor(id, size) => format!("{} {size}", graph.tensor(id).name),
                Holder::Pattern(size) => format!("pattern {size}"),
                Holder::Workspace(id, size) => format!("{} {size}", graph.node(id).op_type),
            })
            .collect();
        assert_eq!(names, ["b 80 B", "a 40 B", "c 20 B", "Foo 9 B"]);
        let held: Bytes = liveness.holders.iter().map(|holder| holder.size()).sum();
        assert_eq!(liveness.fixed + held, liveness.peak);
    }

    #[test]
    fn a_constant_belongs_to_the_session() {
        let text = "g (float[10] x) => (float[10] y) <float[10] c> {
            c = Constant <value_float = 1.0> () y = Add(x, c)
        }";
        assert_eq!(profile(text), [40, 80]);
        // What holds much is told of.
        let text = text.replace("value_float = 1.0", "value = float[10] {...}");
        assert_eq!(profile(&text), [80, 120]);
    }

    #[test]
    fn an_empty_graph_needs_what_the_caller_owns() {
        let (_, liveness) = simulated("g (float[10] x) => () { }", &[]);
        assert_eq!((liveness.peak, liveness.peak_node()), (Bytes(40), None));
    }

    #[test]
    fn sizes_beyond_all_bounds_saturate() {
        // Nine tensors of the largest size, 2^61 bytes each: more than 2^64.
        let names: Vec<String> = (0..9).map(|i| format!("t{i}")).collect();
        let typed: Vec<String> = names
            .iter()
            .map(|name| format!("float[{}] {name}", 1u64 << 62))
            .collect();
        let text = format!(
            "g () => () <{}> {{ {} = Foo() }}",
            typed.join(", "),
            names.join(", ")
        );
        assert_eq!(profile(&text), [u64::MAX]);
    }
}
