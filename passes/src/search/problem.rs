//! The schedule problem in the search's terms: steps, values, sizes, times.
//!
//! A *step* is a node at its place in the order of first computations. A *value* is a buffer:
//! a tensor together with every alias of it. What the caller owns is no value: it is always there.

use std::sync::Arc;

use crate::analysis::cost::Cost;
use crate::analysis::recompute::{Recomputation, only_aliases};
use crate::bytes::Bytes;
use crate::graph::{Graph, NodeId, TensorId, TensorKind};
use crate::operators::{self, Provider, Recompute};
use crate::transform::release_unread::RELEASED_FROM;
use crate::watch::Watch;

/// A position in the order of first computations.
pub(crate) type Step = u32;

/// A position in [`Problem::values`].
pub(crate) type ValueId = u32;

/// A node at its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepInfo {
    /// Nanoseconds that the node takes.
    pub time: u64,
    /// Nanoseconds that one more computation takes.
    pub again: u64,
    /// The same with the aliases it has to renew.
    pub copy_time: u64,
    /// Bytes that the kernel allocates besides its outputs.
    pub workspace: f64,
    /// May it be computed again?
    pub recomputable: bool,
    /// Values it writes.
    pub writes: Vec<ValueId>,
    /// Values that a copy of it reads, each once.
    pub copy_reads: Vec<ValueId>,
}

/// A buffer.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// The step that first writes it.
    pub producer: Step,
    /// Its size in bytes. A whole number: sums stay exact below 2^53.
    pub size: f64,
    /// Does a copy of its producer write it again?
    pub recomputed: bool,
    /// May a copy of its producer leave it out when nobody reads it?
    pub optional: bool,
    /// If nobody reads it, is it freed at once?
    pub released: bool,
    /// Is it a graph output, which lives to the end?
    pub kept: bool,
    /// Steps whose originals read it (aliasing steps included), ascending, each once.
    pub readers: Vec<Step>,
    /// Steps whose copies read it.
    pub copy_readers: Vec<Step>,
    /// Readers that overwrite it with their result, if they are its last.
    pub overwriters: Vec<Step>,
}

/// What the search has to solve.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// The nodes by step.
    pub order: Vec<NodeId>,
    /// By step.
    pub steps: Vec<StepInfo>,
    /// By value id.
    pub values: Vec<Value>,
    /// Which steps only make an alias of a value (of its producer's, by step).
    pub aliases_of: Vec<Vec<Step>>,
    /// What the caller owns.
    pub fixed: Bytes,
    /// Who looks on, and may end the search.
    pub watch: Arc<Watch>,
}

impl Problem {
    /// With more steps than that, what is not near-linear is left out.
    pub(crate) const MANY: usize = 3000;

    /// Is it large? See [`Problem::MANY`].
    pub(crate) fn is_large(&self) -> bool {
        self.steps.len() > Problem::MANY
    }

    /// Translates `graph`, whose first computations run in `order`.
    pub(crate) fn new(
        graph: &Graph,
        order: &[NodeId],
        provider: Provider,
        costs: &[Cost],
        recomputation: &Recomputation,
    ) -> Problem {
        Builder::new(graph, order).build(provider, costs, recomputation)
    }

    /// Makes every value larger by `object` bytes, and as much again for each alias.
    pub(crate) fn count_objects(&mut self, object: Bytes) {
        for value in &mut self.values {
            let aliases = self.aliases_of[value.producer as usize].len();
            value.size += exact(object) * (1 + aliases) as f64;
        }
    }

    /// The most that any one step needs for what it reads, writes and works with.
    pub(crate) fn structural_bound(&self) -> f64 {
        let mut need: Vec<f64> = self.steps.iter().map(|step| step.workspace).collect();
        for value in &self.values {
            need[value.producer as usize] += value.size;
            for &reader in &value.readers {
                if !value.overwriters.contains(&reader) {
                    need[reader as usize] += value.size;
                }
            }
        }
        need.into_iter().fold(0.0, f64::max)
    }
}

struct Builder<'g> {
    graph: &'g Graph,
    order: &'g [NodeId],
    is_output: Vec<bool>,
    /// The value in which a tensor lies; `None` for what the caller owns.
    value_of: Vec<Option<ValueId>>,
    values: Vec<Value>,
    steps: Vec<StepInfo>,
    aliases_of: Vec<Vec<Step>>,
}

impl<'g> Builder<'g> {
    fn new(graph: &'g Graph, order: &'g [NodeId]) -> Builder<'g> {
        let mut is_output = vec![false; graph.tensor_count()];
        for output in &graph.outputs {
            is_output[output.index()] = true;
        }
        Builder {
            graph,
            order,
            is_output,
            value_of: vec![None; graph.tensor_count()],
            values: Vec::new(),
            steps: vec![StepInfo::default(); order.len()],
            aliases_of: vec![Vec::new(); order.len()],
        }
    }

    fn build(
        mut self,
        provider: Provider,
        costs: &[Cost],
        recomputation: &Recomputation,
    ) -> Problem {
        for (step, &id) in self.order.iter().enumerate() {
            self.add_step(step as Step, id, costs[id.index()], recomputation);
        }
        for (step, &id) in self.order.iter().enumerate() {
            self.add_reads(step as Step, id, provider, recomputation.rule(id));
        }
        for value in &mut self.values {
            value.readers.sort_unstable();
            value.readers.dedup();
            value.copy_readers.sort_unstable();
            value.copy_readers.dedup();
        }
        for info in &mut self.steps {
            // A user may say that a node takes for ever; sums of many copies have to stay exact.
            info.copy_time = info.copy_time.min(LONGEST);
            info.copy_reads.sort_unstable();
            info.copy_reads.dedup();
        }
        Problem {
            order: self.order.to_vec(),
            steps: self.steps,
            values: self.values,
            aliases_of: self.aliases_of,
            fixed: crate::analysis::liveness::fixed_bytes(self.graph),
            watch: Arc::default(),
        }
    }

    /// Creates the values that the node writes.
    fn add_step(&mut self, step: Step, id: NodeId, cost: Cost, recomputation: &Recomputation) {
        let node = self.graph.node(id);
        let aliases = operators::aliases(node);
        let mut aliased = Vec::new();
        for (position, output) in node.outputs.iter().enumerate() {
            let Some(output) = *output else { continue };
            let alias = aliases
                .iter()
                .find(|a| a.0 == position)
                .and_then(|a| node.input(a.1));
            if let (Some(input), false) = (alias, self.is_output[output.index()]) {
                self.value_of[output.index()] = self.value_of[input.index()];
                aliased.extend(self.value_of[input.index()]);
                continue;
            }
            self.value_of[output.index()] = Some(self.values.len() as ValueId);
            self.steps[step as usize]
                .writes
                .push(self.values.len() as ValueId);
            let kept = self.is_output[output.index()];
            self.values.push(Value {
                producer: step,
                size: exact(self.graph.tensor(output).bytes().unwrap_or(Bytes::ZERO)),
                recomputed: recomputation.supplies(id, position, output),
                released: self.graph.tensor(output).bytes() >= Some(RELEASED_FROM),
                optional: operators::may_omit_output(node, position),
                kept,
                readers: Vec::new(),
                copy_readers: Vec::new(),
                overwriters: Vec::new(),
            });
        }
        let info = &mut self.steps[step as usize];
        info.workspace = exact(cost.workspace);
        info.time = cost.time.0;
        info.again = recomputation.copy_cost(id).unwrap_or(cost).time.0;
        info.copy_time = info.copy_time.saturating_add(info.again);
        let only_aliases = only_aliases(self.graph, id);
        info.recomputable = !only_aliases && !matches!(recomputation.rule(id), Recompute::Never(_));
        if only_aliases {
            // A new computation of the value needs new aliases as well.
            for value in aliased {
                let producer = self.values[value as usize].producer as usize;
                if self.aliases_of[producer].last() != Some(&step) {
                    self.aliases_of[producer].push(step);
                    let time = &mut self.steps[producer].copy_time;
                    *time = time.saturating_add(cost.time.0);
                }
            }
        }
    }

    fn add_reads(&mut self, step: Step, id: NodeId, provider: Provider, recompute: Recompute) {
        let node = self.graph.node(id);
        for tensor in node.reads() {
            if let Some(value) = self.value_of[tensor.index()] {
                self.values[value as usize].readers.push(step);
                if self.steps[step as usize].recomputable {
                    self.add_copy_read(step, value);
                }
            }
        }
        if self.steps[step as usize].recomputable {
            for &position in recompute.reads_own_outputs() {
                let own = node.output(position).and_then(|t| self.value_of[t.index()]);
                if let Some(value) = own {
                    self.add_copy_read(step, value);
                }
            }
            for alias in self.aliases_of[step as usize].clone() {
                let written = self.steps[step as usize].writes.clone();
                let alias = self.graph.node(self.order[alias as usize]);
                let other: Vec<ValueId> = alias
                    .reads()
                    .filter_map(|tensor| self.value_of[tensor.index()])
                    .collect();
                for value in other {
                    if !written.contains(&value) {
                        self.add_copy_read(step, value);
                    }
                }
            }
        }
        for (output, input) in operators::in_place(node, provider) {
            if let (Some(output), Some(input)) = (node.output(output), node.input(input))
                && self.overwrites(node, output, input)
                && let Some(value) = self.value_of[input.index()]
            {
                self.values[value as usize].overwriters.push(step);
            }
        }
    }

    fn add_copy_read(&mut self, step: Step, value: ValueId) {
        self.steps[step as usize].copy_reads.push(value);
        self.values[value as usize].copy_readers.push(step);
    }

    fn overwrites(&self, node: &crate::graph::Node, output: TensorId, input: TensorId) -> bool {
        let (written, read) = (self.graph.tensor(output), self.graph.tensor(input));
        read.kind == TensorKind::Value
            && !self.is_output[output.index()]
            && read.shape.is_some()
            && read.shape == written.shape
            && read.element.map(|e| e.bytes(1)) == written.element.map(|e| e.bytes(1))
            && node
                .reads()
                .filter(|&t| self.value_of[t.index()] == self.value_of[input.index()])
                .count()
                == 1
    }
}

/// An hour and more: 2^42 nanoseconds.
const LONGEST: u64 = 1 << 42;

/// Sizes as floating point numbers whose sums are exact: capped at 2^42 bytes, 4 TiB.
fn exact(bytes: Bytes) -> f64 {
    bytes.0.min(1 << 42) as f64
}
