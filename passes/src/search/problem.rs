//! The schedule problem in the search's terms: steps, values, sizes, times.
//!
//! A *step* is a node at its place in the order of first computations. A *value* is a buffer:
//! a tensor together with every alias of it. What the caller owns is no value: it is always there.

use std::sync::Arc;

use super::all_forms::{AllForms, FormNumber};
use crate::analysis::recompute::{Recomputation, only_aliases};
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId, TensorId, TensorKind};
use crate::operators::{self, Provider, Recompute};
use crate::plan::RELEASED_FROM;
use crate::runtime::casts::as_computed;
use crate::runtime::known_shapes::runtime_shapes;
use crate::runtime::moving::KnownDimensions;
use crate::runtime::skeleton::same_size;
use crate::watch::Watch;

/// A position in the order of first computations.
pub(crate) type Step = u32;

/// A position in [`Problem::values`].
pub(crate) type ValueId = u32;

/// A position in [`Problem::sites`].
pub(crate) type SiteId = u32;

/// A node that may be replaced, by its forms. A node is a step for each of its forms' parts, of
/// which those of one form are active.
#[derive(Clone, Debug)]
pub(crate) struct SiteInfo {
    /// The steps of each form.
    pub forms: Vec<Vec<Step>>,
    /// Nanoseconds of each form.
    pub times: Vec<u64>,
}

/// Of which forms of a site a step is a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Membership {
    pub site: SiteId,
    /// One bit for each form.
    pub forms: u32,
}

impl Membership {
    pub(crate) fn has(self, form: FormNumber) -> bool {
        self.forms >> form & 1 == 1
    }
}

/// A node at its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepInfo {
    /// Active in some forms of a site only; `None` if always.
    pub member: Option<Membership>,
    /// Nanoseconds that the node takes.
    pub time: u64,
    /// Nanoseconds that one more computation takes.
    pub again: u64,
    /// The same with the aliases it has to renew.
    pub copy_time: u64,
    /// Bytes that the kernel allocates besides its outputs.
    pub workspace: f64,
    /// The same of a copy, with what its parts hand on.
    pub workspace_again: f64,
    /// May it be computed again?
    pub recomputable: bool,
    /// Does a copy do all that the node does?
    pub whole: bool,
    /// Does it run as a copy alone, since its original is a part of a fused node?
    pub fused: bool,
    /// Values it writes.
    pub writes: Vec<ValueId>,
    /// Values that it reads, if it belongs to a site; else empty.
    pub reads: Vec<ValueId>,
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
    /// Readers that overwrite it with their result, if they are its last: where the runtime knows before a step that both have the
    /// same size.
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
    /// The nodes that may be replaced.
    pub sites: Vec<SiteInfo>,
    /// By value: the sites with steps that read it or write it, each once.
    pub sites_of: Vec<Vec<SiteId>>,
    /// What the caller owns.
    pub fixed: Bytes,
    /// Who looks on, and may end the search.
    pub watch: Arc<Watch>,
}

impl Problem {
    /// With more steps than that, what is not near-linear is left out.
    pub(crate) const MOST_STEPS_IN_FULL: usize = 3000;

    /// Is it large? See [`Problem::MOST_STEPS_IN_FULL`].
    pub(crate) fn is_large(&self) -> bool {
        self.steps.len() > Problem::MOST_STEPS_IN_FULL
    }

    /// Translates `graph`, whose first computations run in `order`.
    pub(crate) fn new(
        graph: &Graph,
        order: &[NodeId],
        provider: Provider,
        costs: &[Cost],
        recomputation: &Recomputation,
    ) -> Problem {
        let graph = as_computed(graph, provider);
        Builder::new(&graph, order).build(provider, costs, recomputation)
    }

    /// Translates a graph in all its forms; costs and rules are by its nodes, `base` is the
    /// original's order of first computations.
    pub(crate) fn joint(
        all_forms: &AllForms,
        base: &[NodeId],
        provider: Provider,
        costs: &[Cost],
        recomputation: &Recomputation,
    ) -> Problem {
        let order = all_forms.order(base);
        let graph = &as_computed(&all_forms.graph, provider);
        let mut problem = Builder::new(graph, &order).build(provider, costs, recomputation);
        let mut step_of = vec![0; graph.node_count()];
        for (step, id) in order.iter().enumerate() {
            step_of[id.index()] = step as Step;
        }
        for site in &all_forms.sites {
            let as_it_is = [site.node];
            let parts = site.forms.iter().map(|form| form.parts.as_slice());
            let forms = [as_it_is.as_slice()].into_iter().chain(parts);
            let steps = |parts: &[NodeId]| parts.iter().map(|id| step_of[id.index()]).collect();
            problem.add_site(forms.map(steps).collect());
        }
        for (value, info) in problem.values.iter().enumerate() {
            for &reader in &info.readers {
                let step = &mut problem.steps[reader as usize];
                if step.member.is_some() {
                    step.reads.push(value as ValueId);
                }
            }
        }
        let site = |step: &Step| Some(problem.steps[*step as usize].member?.site);
        let sites_of = problem.values.iter().map(|value| {
            let uses = value.readers.iter().chain([&value.producer]);
            let mut sites: Vec<SiteId> = uses.filter_map(site).collect();
            sites.sort_unstable();
            sites.dedup();
            sites
        });
        problem.sites_of = sites_of.collect();
        problem
    }

    fn add_site(&mut self, forms: Vec<Vec<Step>>) {
        let site = self.sites.len() as SiteId;
        for (form, steps) in forms.iter().enumerate() {
            for &step in steps {
                let info = &mut self.steps[step as usize];
                let member = info.member.get_or_insert(Membership { site, forms: 0 });
                member.forms |= 1 << form;
            }
        }
        let time = |steps: &Vec<Step>| -> u64 {
            let times = steps.iter().map(|&step| self.steps[step as usize].time);
            times.fold(0, u64::saturating_add).min(LONGEST)
        };
        let times = forms.iter().map(time).collect();
        self.sites.push(SiteInfo { forms, times });
    }

    /// Nanoseconds by which the quickest forms are quicker than the nodes as they are: costs count
    /// from there.
    pub(crate) fn head_start(&self) -> u64 {
        let spared = self.sites.iter().map(|site| {
            let least = site.times.iter().min().copied().unwrap_or(0);
            site.times[0] - least
        });
        spared.sum()
    }

    /// Nanoseconds of a step without copies and variants.
    pub(crate) fn time(&self) -> f64 {
        let active = self.steps.iter().filter(|step| step.is_active_in(0));
        active.map(|step| step.time as f64).sum()
    }

    /// The problem that is left when the form of every site is decided: no sites, and only the
    /// steps that are active.
    pub(crate) fn decided(&self, forms: &[FormNumber]) -> Problem {
        if self.sites.is_empty() {
            return self.clone();
        }
        let active = |info: &StepInfo| info.member.is_none_or(|m| m.has(forms[m.site as usize]));
        let mut renumbered: Vec<Option<Step>> = Vec::with_capacity(self.steps.len());
        let mut steps = 0;
        for info in &self.steps {
            renumbered.push(active(info).then_some(steps));
            steps += Step::from(active(info));
        }
        let new = |step: &Step| renumbered[*step as usize];
        let list = |steps: &Vec<Step>| -> Vec<Step> { steps.iter().filter_map(new).collect() };
        let mut values = Vec::new();
        let mut value_of: Vec<Option<ValueId>> = Vec::with_capacity(self.values.len());
        for value in &self.values {
            let Some(producer) = new(&value.producer) else {
                value_of.push(None);
                continue;
            };
            value_of.push(Some(values.len() as ValueId));
            values.push(Value {
                producer,
                readers: list(&value.readers),
                copy_readers: list(&value.copy_readers),
                overwriters: list(&value.overwriters),
                ..*value
            });
        }
        let kept = |list: &Vec<ValueId>| -> Vec<ValueId> {
            list.iter().filter_map(|&v| value_of[v as usize]).collect()
        };
        let infos = self.steps.iter().filter(|info| active(info));
        let infos = infos.map(|info| StepInfo {
            member: None,
            writes: kept(&info.writes),
            reads: Vec::new(),
            copy_reads: kept(&info.copy_reads),
            ..*info
        });
        let kept_steps = |step: &usize| renumbered[*step].is_some();
        Problem {
            order: (0..self.order.len())
                .filter(kept_steps)
                .map(|step| self.order[step])
                .collect(),
            steps: infos.collect(),
            sites_of: vec![Vec::new(); values.len()],
            values,
            aliases_of: (0..self.aliases_of.len())
                .filter(kept_steps)
                .map(|step| list(&self.aliases_of[step]))
                .collect(),
            sites: Vec::new(),
            fixed: self.fixed,
            watch: self.watch.clone(),
        }
    }

    /// Makes every value larger by `object` bytes, and as much again for each alias.
    pub(crate) fn count_objects(&mut self, object: Bytes) {
        for value in &mut self.values {
            let aliases = self.aliases_of[value.producer as usize].len();
            value.size += exact(object) * (1 + aliases) as f64;
        }
    }

    /// Takes the graph's outputs for the caller's, as they are all there at the end beside a block that is there to the end as well.
    pub(crate) fn set_outputs_apart(&mut self) {
        for value in self.values.iter_mut().filter(|value| value.kept) {
            self.fixed += Bytes(std::mem::take(&mut value.size) as u64);
        }
    }

    /// The least that the worst step needs for what it reads, writes and works with, in whichever
    /// forms.
    pub(crate) fn structural_bound(&self) -> f64 {
        self.neediest().0
    }

    /// The same, with a step of the node that needs so much: of one that may be replaced, the node as it is.
    pub(crate) fn neediest(&self) -> (f64, Option<Step>) {
        let mut need: Vec<f64> = self.steps.iter().map(|step| step.workspace).collect();
        for value in &self.values {
            need[value.producer as usize] += value.size;
            // Of the values that forms write in place of each other one is there.
            if !self.steps[value.producer as usize].is_active_in(0) {
                continue;
            }
            for &reader in &value.readers {
                if !value.overwriters.contains(&reader) {
                    need[reader as usize] += value.size;
                }
            }
        }
        let always = self.steps.iter().zip(&need).enumerate();
        let always = always.filter(|(_, (step, _))| step.member.is_none());
        let always = always.map(|(step, (_, &need))| (need, Some(step as Step)));
        let of_site = |site: &SiteInfo| {
            let of_form = |steps: &Vec<Step>| {
                let needs = steps.iter().map(|&step| need[step as usize]);
                needs.fold(0.0, f64::max)
            };
            let least = site.forms.iter().map(of_form).fold(f64::MAX, f64::min);
            (least, site.forms[0].first().copied())
        };
        let all = always.chain(self.sites.iter().map(of_site));
        all.fold(
            (0.0, None),
            |most, one| if one.0 > most.0 { one } else { most },
        )
    }
}

impl StepInfo {
    /// Is it a part of that form, or of the node's every form?
    pub(crate) fn is_active_in(&self, form: FormNumber) -> bool {
        self.member.is_none_or(|member| member.has(form))
    }
}

struct Builder<'g> {
    graph: &'g Graph,
    /// What the runtime knows of shapes before a step, by tensor.
    shapes: Vec<KnownDimensions>,
    order: &'g [NodeId],
    /// The values in which a tensor lies, one for each form of its producer; none for what the
    /// caller owns.
    values_of: Vec<Vec<ValueId>>,
    values: Vec<Value>,
    steps: Vec<StepInfo>,
    aliases_of: Vec<Vec<Step>>,
}

impl<'g> Builder<'g> {
    fn new(graph: &'g Graph, order: &'g [NodeId]) -> Builder<'g> {
        Builder {
            graph,
            shapes: runtime_shapes(graph),
            order,
            values_of: vec![Vec::new(); graph.tensor_count()],
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
            self.add_reads(step as Step, id, provider, recomputation);
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
            sites_of: vec![Vec::new(); self.values.len()],
            values: self.values,
            aliases_of: self.aliases_of,
            sites: Vec::new(),
            fixed: crate::runtime::liveness::fixed_bytes(self.graph),
            watch: Arc::default(),
        }
    }

    /// Creates the values that the node writes.
    fn add_step(&mut self, step: Step, id: NodeId, cost: Cost, recomputation: &Recomputation) {
        let node = self.graph.node(id);
        let aliases = operators::aliases(node);
        let mut aliased: Vec<ValueId> = Vec::new();
        for (position, output) in node.outputs.iter().enumerate() {
            let Some(output) = *output else { continue };
            let alias = aliases
                .iter()
                .find(|a| a.0 == position)
                .and_then(|a| node.input(a.1));
            if let (Some(input), false) = (alias, self.graph.outputs.contains(&output)) {
                let lies_in = self.values_of[input.index()].clone();
                aliased.extend(&lies_in);
                self.values_of[output.index()].extend(lies_in);
                continue;
            }
            self.values_of[output.index()].push(self.values.len() as ValueId);
            self.steps[step as usize]
                .writes
                .push(self.values.len() as ValueId);
            let kept = self.graph.outputs.contains(&output);
            self.values.push(Value {
                producer: step,
                size: exact(self.graph.tensor(output).memory().unwrap_or(Bytes::ZERO)),
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
        let again = recomputation.copy_cost(id).unwrap_or(cost);
        info.workspace_again = exact(again.workspace);
        info.again = again.time.0;
        info.copy_time = info.copy_time.saturating_add(info.again);
        let only_aliases = only_aliases(self.graph, id);
        info.recomputable = !only_aliases && !matches!(recomputation.rule(id), Recompute::Never(_));
        info.whole = info.recomputable && recomputation.is_whole(self.graph, id);
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

    fn add_reads(
        &mut self,
        step: Step,
        id: NodeId,
        provider: Provider,
        recomputation: &Recomputation,
    ) {
        let node = self.graph.node(id);
        for tensor in node.reads() {
            for &value in &self.values_of[tensor.index()] {
                self.values[value as usize].readers.push(step);
            }
        }
        if self.steps[step as usize].recomputable {
            for tensor in recomputation.copy_reads(self.graph, id) {
                for value in self.values_of[tensor.index()].clone() {
                    self.add_copy_read(step, value);
                }
            }
            for alias in self.aliases_of[step as usize].clone() {
                let written = self.steps[step as usize].writes.clone();
                let alias = self.graph.node(self.order[alias as usize]);
                let other: Vec<ValueId> = alias
                    .reads()
                    .flat_map(|tensor| self.values_of[tensor.index()].clone())
                    .collect();
                for value in other {
                    if !written.contains(&value) {
                        self.add_copy_read(step, value);
                    }
                }
            }
        }
        for (output, input) in operators::in_place(self.graph, node, provider) {
            if let (Some(output), Some(input)) = (node.output(output), node.input(input))
                && self.overwrites(node, output, input)
            {
                for &value in &self.values_of[input.index()] {
                    self.values[value as usize].overwriters.push(step);
                }
            }
        }
    }

    fn add_copy_read(&mut self, step: Step, value: ValueId) {
        self.steps[step as usize].copy_reads.push(value);
        self.values[value as usize].copy_readers.push(step);
    }

    fn overwrites(&self, node: &crate::graph::Node, output: TensorId, input: TensorId) -> bool {
        self.graph.tensor(input).kind == TensorKind::Value
            && !self.graph.outputs.contains(&output)
            && same_size(self.graph, &self.shapes, output, input)
            && node
                .reads()
                .filter(|&t| self.values_of[t.index()] == self.values_of[input.index()])
                .count()
                == 1
    }
}

/// An hour and more: 2^42 nanoseconds.
const LONGEST: u64 = 1 << 42;

/// Sizes as floating point numbers whose sums are exact: capped at 2^42 bytes, 4 TiB.
pub(crate) fn exact(bytes: Bytes) -> f64 {
    bytes.0.min(1 << 42) as f64
}
