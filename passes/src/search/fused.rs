//! The schedule problem of a graph as the runtime optimizes it, for the lower bound.
//!
//! It is that of the fused nodes in the order in which they run, with the copies left out: what a fused node reads and writes is a
//! value, what it passes on inside is none. Every plan with the same fused nodes in this order of first computations solves it.
//!
//! **What brings a value back.** A copy of the node of the graph that writes it, and of the nodes that are fused with that one: their
//! results are not there, and a copy that read the original's would keep it from being fused. So such a result is a value here, which
//! is never there but as a copy. That goes for nodes that are fused only with the one reader that they have; others may be read past.
//!
//! All that is not certain is left out, which makes the bound weaker and never wrong: tensors that the runtime makes itself, what is
//! merged with an equal node, results that may be written over what is read.

use std::collections::HashMap;
use std::sync::Arc;

use super::problem::{Problem, Step, StepInfo, Value, ValueId, exact};
use crate::analysis::mirrors::mirrored;
use crate::analysis::recompute::Recomputation;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId, TensorId};
use crate::operators::{self, Provider};
use crate::plan::RELEASED_FROM;
use crate::runtime::executions::FusedRun;
use crate::runtime::fusing::Fusing;
use crate::runtime::known_shapes::runtime_shapes;
use crate::runtime::liveness::fixed_bytes;
use crate::runtime::skeleton::Skeleton;

/// A plan's graph as it runs, beside the graph that it was planned for.
#[derive(Clone, Copy)]
pub(crate) struct RewrittenRun<'a> {
    /// With the same nodes and tensors as `planned`, and new ones behind them.
    pub rewritten: &'a Graph,
    /// How the runtime runs it.
    pub run: FusedRun<'a>,
    /// What was planned for: no copies, no barriers.
    pub planned: &'a Graph,
    /// Who runs it.
    pub provider: Provider,
    /// By node of `planned`.
    pub costs: &'a [Cost],
    /// What of `planned` may run again.
    pub recomputation: &'a Recomputation,
}

/// So many nodes are looked past, one behind the other. Fewer make a weaker bound, not a wrong one.
const MOST_PASSED: usize = 24;

impl Problem {
    /// See the module's documentation.
    pub(crate) fn fused(plan: RewrittenRun<'_>) -> Problem {
        let mut builder = FusedBuilder::new(plan);
        for &node in plan.run.executed {
            builder.add_fused(node as usize);
        }
        // What copies read may be written inside of fused nodes, which is added behind.
        let mut step = 0;
        while step < builder.steps.len() {
            builder.add_copy_reads(step);
            step += 1;
        }
        builder.finish()
    }
}

struct FusedBuilder<'a> {
    plan: RewrittenRun<'a>,
    /// By tensor of the rewritten graph, if an original writes it: who, as which output, and the tensor that this is as planned.
    written: Vec<Option<(NodeId, usize, TensorId)>>,
    /// By tensor of the rewritten graph: what its readers read as planned, where that is known.
    read: Vec<Option<TensorId>>,
    /// By tensor of the planned graph: which node writes it as which output.
    writer: Vec<Option<(NodeId, usize)>>,
    /// By tensor of the planned graph: how many nodes of the rewritten one read it.
    readers: Vec<usize>,
    /// By tensor that runs: the one of the rewritten graph that it is, or of which the runtime makes it.
    names: Vec<u32>,
    /// By node of the planned graph.
    kinds: Vec<Absorbed>,
    /// By tensor of the planned graph, if it is there outside of fused nodes.
    value_of: Vec<Option<ValueId>>,
    /// By tensor of the planned graph, for copies of what is passed on inside of fused nodes.
    inside_of: Vec<Option<ValueId>>,
    /// By node of the planned graph.
    step_of: Vec<Option<Step>>,
    order: Vec<NodeId>,
    steps: Vec<StepInfo>,
    values: Vec<Value>,
    /// By value: is it read at steps that are not known, so that it may be there for longer?
    read_besides: Vec<bool>,
    /// Is that so of all?
    is_all_read: bool,
}

/// What becomes of a node that is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Absorbed {
    /// Nothing is known.
    #[default]
    Unknown,
    /// It is fused with the one reader that it has.
    WithItsReader,
    /// Its readers do what it does, or need not: they read what it reads.
    ByReaders,
}

impl<'a> FusedBuilder<'a> {
    fn new(plan: RewrittenRun<'a>) -> FusedBuilder<'a> {
        let RewrittenRun {
            rewritten, planned, ..
        } = plan;
        let mut builder = FusedBuilder {
            plan,
            written: vec![None; rewritten.tensor_count()],
            read: vec![None; rewritten.tensor_count()],
            writer: vec![None; planned.tensor_count()],
            readers: vec![0; planned.tensor_count()],
            names: plan.run.nodes.names(),
            kinds: kinds(plan),
            value_of: vec![None; planned.tensor_count()],
            inside_of: vec![None; planned.tensor_count()],
            step_of: vec![None; planned.node_count()],
            order: Vec::new(),
            steps: Vec::new(),
            values: Vec::new(),
            read_besides: Vec::new(),
            is_all_read: false,
        };
        for id in planned.tensor_ids() {
            builder.read[id.index()] = Some(id);
        }
        let names = planned
            .order()
            .iter()
            .map(|&id| (&*planned.node(id).name, id));
        let names: HashMap<&str, NodeId> = names.collect();
        for (id, node) in rewritten.listed() {
            for read in node.reads() {
                if let Some(count) = builder.readers.get_mut(read.index()) {
                    *count += 1;
                }
            }
            if id.index() >= planned.node_count() {
                let original = mirrored(node).and_then(|name| names.get(name));
                let original = original.map_or(&[][..], |&id| &planned.node(id).outputs);
                for (written, planned) in node.outputs.iter().zip(original) {
                    if let Some(written) = written {
                        builder.read[written.index()] = *planned;
                    }
                }
                continue;
            }
            let as_planned = planned.node(id);
            for (read, planned) in node.inputs.iter().zip(&as_planned.inputs) {
                if let (Some(read), Some(_)) = (read, planned) {
                    builder.read[read.index()] = *planned;
                }
            }
            let outputs = node.outputs.iter().zip(&as_planned.outputs).enumerate();
            for (position, (written, planned)) in outputs {
                if let (Some(written), Some(planned)) = (written, planned) {
                    builder.written[written.index()] = Some((id, position, *planned));
                    builder.writer[planned.index()] = Some((id, position));
                }
            }
        }
        builder
    }

    /// Takes in a node that runs, if it is not a copy or a barrier.
    fn add_fused(&mut self, node: usize) {
        let run = self.plan.run.nodes;
        let own = |&tensor: &u32| {
            let (id, position, planned) = (*self.written.get(tensor as usize)?)?;
            let is_new = self.step_of[id.index()].is_none();
            is_new.then_some((tensor, id, position, planned))
        };
        let writes: Vec<_> = run.writes.get(node).iter().filter_map(own).collect();
        let at = (!writes.is_empty()).then_some(self.steps.len() as Step);
        if at.is_some() || self.is_of_original(node) {
            for &tensor in run.reads.get(node) {
                self.add_reader(tensor, at);
            }
        }
        let Some(at) = at else { return };
        self.add_overwriting(node, writes[0].1, at);
        for (tensor, id, position, planned) in writes {
            let step = match self.step_of[id.index()] {
                Some(step) => step,
                None => self.add_step(id, false),
            };
            let mut shares = run.shares.get(node).iter();
            let alias = shares.find(|share| share.always && share.written == tensor);
            let is_output = run.output[tensor as usize];
            if let Some(alias) = alias.filter(|_| !is_output) {
                self.value_of[planned.index()] = self.value_read(alias.read);
                continue;
            }
            let size = Bytes(run.size[tensor as usize]);
            let value = self.add_value(step, (id, position, planned), size);
            self.values[value as usize].kept = is_output;
            self.steps[step as usize].writes.push(value);
            self.value_of[planned.index()] = Some(value);
        }
        self.steps[at as usize].workspace = exact(Bytes(run.workspace[node]));
    }

    /// Does the node write something that the runtime makes of what an original writes?
    fn is_of_original(&self, node: usize) -> bool {
        let mut writes = self.plan.run.nodes.writes.get(node).iter();
        let original = |name: u32| self.written.get(name as usize).copied().flatten();
        writes.any(|&tensor| original(self.names[tensor as usize]).is_some())
    }

    /// A node of the originals reads the tensor, at that step if it is one.
    fn add_reader(&mut self, tensor: u32, at: Option<Step>) {
        let name = self.names[tensor as usize];
        let Some(planned) = self.read.get(name as usize).copied().flatten() else {
            // It may be any.
            self.is_all_read = true;
            return;
        };
        let Some(value) = self.value_of[planned.index()] else {
            return;
        };
        match at.filter(|_| name == tensor) {
            Some(at) => self.values[value as usize].readers.push(at),
            None => self.read_besides[value as usize] = true,
        }
    }

    /// The value in which a tensor of the rewritten graph lies, for its readers.
    fn value_read(&self, tensor: u32) -> Option<ValueId> {
        let planned = (*self.read.get(tensor as usize)?)?;
        self.value_of[planned.index()]
    }

    /// Of what the node reads, all that it may write over.
    fn add_overwriting(&mut self, node: usize, first: NodeId, at: Step) {
        let RewrittenRun {
            planned, provider, ..
        } = self.plan;
        let as_run = self.plan.run.nodes.shares.get(node).iter();
        let as_run = as_run.filter_map(|share| self.value_read(share.read));
        let original = planned.node(first);
        let in_place = operators::in_place(planned, original, provider).into_iter();
        let as_planned = in_place.filter_map(|(_, input)| {
            let read = original.input(input)?;
            self.value_of[read.index()]
        });
        let all: Vec<ValueId> = as_run.chain(as_planned).collect();
        for value in all {
            self.values[value as usize].overwriters.push(at);
        }
    }

    fn add_step(&mut self, id: NodeId, fused: bool) -> Step {
        let step = self.steps.len() as Step;
        let cost = self.plan.costs[id.index()];
        let again = self.plan.recomputation.copy_cost(id).unwrap_or(cost);
        self.steps.push(StepInfo {
            time: cost.time.0,
            again: again.time.0,
            copy_time: again.time.0,
            fused,
            ..StepInfo::default()
        });
        self.order.push(id);
        self.step_of[id.index()] = Some(step);
        step
    }

    fn add_value(
        &mut self,
        producer: Step,
        (id, position, tensor): (NodeId, usize, TensorId),
        size: Bytes,
    ) -> ValueId {
        let value = self.values.len() as ValueId;
        self.values.push(Value {
            producer,
            size: exact(size),
            recomputed: self.plan.recomputation.supplies(id, position, tensor),
            optional: false,
            released: true,
            kept: false,
            readers: Vec::new(),
            copy_readers: Vec::new(),
            overwriters: Vec::new(),
        });
        self.read_besides.push(false);
        value
    }

    /// What a copy of the step's node reads.
    fn add_copy_reads(&mut self, step: usize) {
        let id = self.order[step];
        let RewrittenRun {
            planned,
            recomputation,
            ..
        } = self.plan;
        for tensor in recomputation.copy_reads(planned, id) {
            let value = self.source(tensor);
            self.steps[step].copy_reads.extend(value);
        }
    }

    /// The value without which there is no copy that reads this tensor, which is kept in no fewer bytes than it has. Nothing if that is not
    /// certain.
    fn source(&mut self, mut tensor: TensorId) -> Option<ValueId> {
        let planned = self.plan.planned;
        // What is kept of it may be any of those that are looked past.
        let mut least = f64::MAX;
        for _ in 0..MOST_PASSED {
            if let Some(value) = self.value_of[tensor.index()] {
                let size = self.values[value as usize].size;
                let is_certain = !self.is_left(value) && self.is_read_by_known(value);
                return (is_certain && size <= least).then_some(value);
            }
            let (id, position) = self.writer[tensor.index()]?;
            let size = planned.tensor(tensor).memory()?;
            match self.kinds[id.index()] {
                Absorbed::ByReaders => {
                    least = least.min(exact(size));
                    tensor = planned.node(id).input(0)?;
                }
                Absorbed::WithItsReader if self.readers[tensor.index()] == 1 => {
                    let is_certain = exact(size) <= least;
                    return is_certain.then(|| self.inside((id, position, tensor), size))?;
                }
                _ => return None,
            }
        }
        None
    }

    /// The value that a copy writes of what is passed on inside of a fused node.
    fn inside(&mut self, written: (NodeId, usize, TensorId), size: Bytes) -> Option<ValueId> {
        let (id, _, tensor) = written;
        if self.inside_of[tensor.index()].is_none() && self.step_of[id.index()].is_none() {
            let step = self.add_step(id, true);
            let value = self.add_value(step, written, size);
            self.steps[step as usize].writes.push(value);
            self.inside_of[tensor.index()] = Some(value);
        }
        self.inside_of[tensor.index()]
    }

    fn is_read_by_known(&self, value: ValueId) -> bool {
        !self.is_all_read && !self.read_besides[value as usize]
    }

    /// Does nobody read it, so that it stays to the end?
    fn is_left(&self, value: ValueId) -> bool {
        let value = &self.values[value as usize];
        let is_inside = self.steps[value.producer as usize].fused;
        value.readers.is_empty() && !is_inside && value.size < exact(RELEASED_FROM)
    }

    fn finish(mut self) -> Problem {
        let values = 0..self.values.len();
        let is_left = |value| self.is_left(value) && self.is_read_by_known(value);
        let left: Vec<bool> = values.map(|value| is_left(value as ValueId)).collect();
        for (value, left) in self.values.iter_mut().zip(left) {
            value.released = !left;
            value.readers.sort_unstable();
            value.readers.dedup();
        }
        for step in &mut self.steps {
            step.copy_reads.sort_unstable();
            step.copy_reads.dedup();
        }
        Problem {
            aliases_of: vec![Vec::new(); self.steps.len()],
            order: self.order,
            steps: self.steps,
            sites: Vec::new(),
            sites_of: vec![Vec::new(); self.values.len()],
            values: self.values,
            fixed: fixed_bytes(self.plan.planned),
            watch: Arc::default(),
        }
    }
}

/// By node of the planned graph: what becomes of it where it is gone.
fn kinds(plan: RewrittenRun<'_>) -> Vec<Absorbed> {
    let RewrittenRun {
        planned, provider, ..
    } = plan;
    let skeleton = Skeleton::without_costs(planned, &runtime_shapes(planned), provider);
    let skeleton = skeleton.run_by(plan.run.nodes.release);
    let mut kinds = vec![Absorbed::Unknown; planned.node_count()];
    for (position, &id) in planned.order().iter().enumerate() {
        // The readers of one that is merged with another read what that one writes.
        if skeleton.equal[position] != 0 {
            continue;
        }
        kinds[id.index()] = match skeleton.fusing[position] {
            Fusing::Forwards | Fusing::Transposes(_) | Fusing::Reshapes { .. } => {
                Absorbed::ByReaders
            }
            Fusing::Product { .. }
            | Fusing::Gemm
            | Fusing::Convolution { .. }
            | Fusing::Sum
            | Fusing::Bias { .. }
            | Fusing::AddsImages
            | Fusing::AddsTokens
            | Fusing::Adds => Absorbed::WithItsReader,
            _ => Absorbed::Unknown,
        };
    }
    kinds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::runtime::TRAINING;
    use crate::runtime::casting::are_there;
    use crate::runtime::executions::Executions;
    use crate::runtime::level::Level;
    use crate::runtime::order::ExecutionOrder;
    use crate::search::{Effort, Search};
    use crate::testing::{random_mixed_graph, random_training_graph};

    const CPU: Provider = Provider::Cpu;

    const EFFORT: Effort = Effort {
        seed: 1,
        evaluations: 5_000,
    };

    fn costs(graph: &Graph) -> Vec<Cost> {
        let cost = |id: u64| Cost {
            time: crate::cost::Nanos(100 + id * 70 % 900),
            workspace: Bytes(id * 64 % 256),
        };
        (0..graph.node_count() as u64).map(cost).collect()
    }

    /// By node that runs again: what it reads, by the nodes that write it; in brackets those that never run but as copies.
    fn copies(nodes: &str) -> Vec<String> {
        copies_of("", nodes)
    }

    /// The same with further tensors that are declared.
    fn copies_of(declared: &str, nodes: &str) -> Vec<String> {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
            g (float[16,8] x, float[16,4] w, float[4] b) => (float[8,4] z)
            <float[16,8] y, float[8,16] t, float[8,16] u, float[8,16] a, float[8,16] c, float[8,16] d, float[8,4] p, float[8,4] s{declared}>
            {{ {nodes} }}"#
        );
        let graph = Graph::parse(&text).unwrap();
        let costs = costs(&graph);
        let executions = Executions::of(&graph, &TRAINING, CPU, &costs);
        let problem = Problem::fused(RewrittenRun {
            rewritten: &graph,
            run: executions
                .run_in(ExecutionOrder::Default, Level::EnableAll)
                .unwrap(),
            planned: &graph,
            provider: CPU,
            costs: &costs,
            recomputation: &Recomputation::of(&graph, &BTreeMap::new()),
        });
        let name = |step: usize| {
            let name = graph.node(problem.order[step]).op_type.clone();
            match problem.steps[step].fused {
                true => format!("[{name}]"),
                false => name,
            }
        };
        let reads = |step: usize| {
            let reads = problem.steps[step].copy_reads.iter();
            let reads = reads.map(|&value| name(problem.values[value as usize].producer as usize));
            let reads: Vec<String> = reads.collect();
            format!("{}: {}", name(step), reads.join(", "))
        };
        (0..problem.steps.len()).map(reads).collect()
    }

    #[test]
    fn what_is_fused_with_its_reader_runs_again_with_it() {
        let gemm = "y = Exp (x) t = Transpose <perm = [1, 0]> (y) p = MatMul (t, w) s = Add (p, b) z = Neg (s)";
        assert_eq!(
            copies(gemm),
            ["Exp: ", "Add: [MatMul]", "Neg: Add", "[MatMul]: Exp"]
        );
    }

    #[test]
    fn a_chain_of_what_is_looked_past_is_left_where_it_is_long() {
        let product = |length: usize| {
            let link = |at: usize| format!("i{} = Identity (i{at})", at + 1);
            let chain: Vec<String> = (0..length).map(link).collect();
            let declared = (0..=length).map(|at| format!(", float[16,8] i{at}"));
            let nodes = format!(
                "i0 = Exp (x) {} t = Transpose <perm = [1, 0]> (i{length}) p = MatMul (t, w) z = Neg (p)",
                chain.join(" ")
            );
            copies_of(&declared.collect::<String>(), &nodes)
        };
        assert_eq!(product(2), ["Exp: ", "MatMul: Exp", "Neg: MatMul"]);
        assert_eq!(product(20_000), ["Exp: ", "MatMul: ", "Neg: MatMul"]);
    }

    #[test]
    fn what_a_reader_does_by_the_way_may_be_there_anyway() {
        // The product reads the Transpose's input, and so does a copy of the product.
        let product = "y = Exp (x) t = Transpose <perm = [1, 0]> (y) p = MatMul (t, w) z = Neg (p)";
        assert_eq!(copies(product), ["Exp: ", "MatMul: Exp", "Neg: MatMul"]);
        // Two that compute the same are one, which is there if the other's reader runs again.
        let equal = "y = Exp (x) t = Transpose <perm = [1, 0]> (y) u = Transpose <perm = [1, 0]> (y) a = Abs (t) c = Abs (u) \
                     d = Add (a, c) z = MatMul (d, w)";
        assert_eq!(
            copies(equal),
            [
                "Exp: ",
                "Transpose: Exp",
                "Abs: Transpose",
                "Add: Abs",
                "MatMul: Add"
            ]
        );
    }

    #[test]
    fn where_nothing_is_fused_the_bound_is_that_of_the_graph() {
        let (mut equal, mut weaker) = (0, 0);
        for seed in 0..40 {
            let graph = match seed % 2 {
                0 => random_training_graph(seed, 40),
                _ => random_mixed_graph(seed, 40),
            };
            // Positions are those of the graph's own nodes where the runtime inserts no casts.
            if are_there(&graph) {
                continue;
            }
            let costs = costs(&graph);
            let recomputation = &Recomputation::of(&graph, &BTreeMap::new());
            let executions = Executions::of(&graph, &TRAINING, CPU, &costs);
            let way = (ExecutionOrder::Default, Level::DisableAll);
            let run = executions.run_in(way.0, way.1).unwrap();
            let order: Vec<NodeId> = run
                .executed
                .iter()
                .map(|&position| graph.order()[position as usize])
                .collect();
            let plain = Search::new(&graph, &order, CPU, &costs, recomputation, EFFORT);
            let fused = Search::fused(
                RewrittenRun {
                    rewritten: &graph,
                    run,
                    planned: &graph,
                    provider: CPU,
                    costs: &costs,
                    recomputation,
                },
                EFFORT,
            );
            let most = plain.without_copies().predicted_peak;
            for part in 5..10 {
                let budget = Bytes(most.0 * part / 10);
                let [one, other] =
                    [&plain, &fused].map(|search| search.lower_bound(budget, 1 << 30));
                // Where nothing fits, both are beyond what is known.
                if one < 1 << 29 {
                    assert!(other <= one, "seed {seed}, {budget}: {other}, not {one}");
                    equal += usize::from(one > 0 && one == other);
                    weaker += usize::from(other < one);
                }
            }
        }
        assert!(equal > 20 && weaker < 3, "{equal}, {weaker}");
    }
}
