//! MONeT's 0-1 program (Shah et al. 2021, "Memory Optimization for Deep Networks", section 4 and
//! appendix C).
//!
//! The backward part runs in one sequence of stages k. Before stage k, forward vertices may be
//! computed again: r(k, i) = 1. s(k, i) = 1 if the results of vertex i are there when stage k
//! begins, s(0, ·) being what the forward pass stores. (The paper counts k down; here it goes up.)
//! Subject to
//!
//! - r(k, i) ≤ s(k, j) + r(k, j) for every j that i reads; s(k+1, i) ≤ s(k, i) + r(k, i) (7);
//! - s(k, i) + r(k, i) ≥ δ(k, l) for every i that implementation l of stage k reads (8);
//! - the memory of every forward computation (1), of every backward stage (5), and of every
//!   recomputation when it happens (12, with the bound of appendix B on local tensors) and when it
//!   does not (13), within the budget. All of them count workspace.
//!
//! An *implementation* is a variant of one backward node, [`ImplementationChoice`]: which forward results it
//! reads, and when, what it takes and what it needs. One that reads an intermediate (a mask) adds a
//! vertex that computes it. The product of δ and s in (5) is a column that is at least either: the
//! size of the union D ∪ S. Workspace and results are linear in δ, as in the paper: (5) is a row for
//! each *moment* of a node with a choice, and one for all other nodes of its stage. What these read
//! counts as there at every moment, which is an upper bound where a stage has several nodes.
//!
//! In-place results (C.3): q(k, i) ≤ r(k, i) frees the memory of the one vertex that i overwrites,
//! which then is neither stored nor read by anybody behind.

use std::collections::BTreeMap;

use super::units::{Unit, Units};
use super::{Aim, Model};
use crate::graph::NodeId;
use crate::operators::variants::Variant;
use crate::program::{Column, Program};

/// The implementations of one backward node. The first is the node as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ImplementationChoice {
    pub node: NodeId,
    /// Its unit.
    pub unit: usize,
    /// Bytes of the unit that are there while it runs, besides its own.
    pub around: f64,
    pub options: Vec<Implementation>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Implementation {
    /// `None` for the node as it is.
    pub variant: Option<&'static Variant>,
    /// An intermediate that it reads instead.
    pub intermediate: Option<Intermediate>,
    /// Nanoseconds more than the node takes as it is, which may be less than none.
    pub time: f64,
    /// Its parts that run in the stage, in their order.
    pub sequence: Vec<usize>,
    /// One for each of these that computes.
    pub moments: Vec<Moment>,
}

impl Implementation {
    /// Moment `at`, or the last.
    fn moment(&self, at: usize) -> Option<&Moment> {
        self.moments.get(at).or(self.moments.last())
    }
}

/// While one part of an implementation runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moment {
    /// The forward units whose results it or a later part reads.
    pub reads: Vec<usize>,
    /// Does it or a later part read the intermediate?
    pub reads_intermediate: bool,
    /// Workspace, and what the parts have written that is still there.
    pub bytes: f64,
}

/// Computed from the results of one forward unit, such as a mask of signs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Intermediate {
    /// The part that computes it.
    pub part: usize,
    pub from: usize,
    pub bytes: f64,
    /// Nanoseconds.
    pub time: f64,
}

/// What may be computed again: a forward unit, or an intermediate behind the unit it comes from.
#[derive(Clone, Debug)]
struct KeptVertex {
    unit: Option<usize>,
    reads: Vec<usize>,
    bytes: f64,
    transient: f64,
    time: f64,
    recomputable: bool,
    /// The vertex whose memory it takes over if nobody else wants that.
    overwrites: Option<usize>,
}

pub(super) struct Monet {
    units: Units,
    choices: Vec<ImplementationChoice>,
    vertices: Vec<KeptVertex>,
    /// By unit of the forward part: its vertex.
    vertex_of: Vec<usize>,
    /// By choice and option: the intermediate's vertex.
    intermediates: Vec<Vec<Option<usize>>>,
    /// By stage: vertices that it reads whatever is chosen.
    reads: Vec<Vec<usize>>,
    /// By stage: gradients that live while it runs, and what stands (L̂), without its results.
    live: Vec<f64>,
    /// By stage: its results and what its nodes without a choice need; `None` if it has no such.
    others: Vec<Option<f64>>,
}

/// s, r and δ.
pub(super) struct MonetColumns {
    stored: Vec<Vec<Option<Column>>>,
    run: Vec<Vec<Option<Column>>>,
    /// By choice and option.
    chosen: Vec<Vec<Column>>,
}

impl Monet {
    pub(super) fn new(units: Units, choices: Vec<ImplementationChoice>) -> Monet {
        let forward = units.forward;
        let mut vertices: Vec<KeptVertex> = Vec::new();
        let mut vertex_of = Vec::new();
        let mut intermediates: Vec<Vec<Option<usize>>> = choices
            .iter()
            .map(|choice| vec![None; choice.options.len()])
            .collect();
        for (at, unit) in units.units[..forward].iter().enumerate() {
            vertex_of.push(vertices.len());
            vertices.push(KeptVertex {
                unit: Some(at),
                reads: unit.reads.iter().map(|&from| vertex_of[from]).collect(),
                bytes: unit.bytes,
                transient: unit.transient,
                time: unit.time,
                recomputable: unit.recomputable && unit.bytes > 0.0,
                overwrites: unit.overwrites.map(|from| vertex_of[from]),
            });
            for (choice, places) in choices.iter().zip(&mut intermediates) {
                for (option, place) in choice.options.iter().zip(places) {
                    if let Some(one) = option.intermediate.filter(|one| one.from == at) {
                        *place = Some(vertices.len());
                        vertices.push(KeptVertex {
                            unit: None,
                            reads: vec![vertex_of[at]],
                            bytes: one.bytes,
                            transient: 0.0,
                            time: one.time,
                            recomputable: true,
                            overwrites: None,
                        });
                    }
                }
            }
        }
        let stages = forward..units.units.len();
        let mut monet = Monet {
            reads: stages.clone().map(|_| Vec::new()).collect(),
            live: units.standing[forward..].to_vec(),
            others: stages
                .clone()
                .map(|unit| others(&units.units[unit], &choices))
                .collect(),
            units,
            choices,
            vertices,
            vertex_of,
            intermediates,
        };
        for unit in stages {
            let stage = unit - forward;
            let chooses = |id| monet.choices.iter().any(|choice| choice.node == id);
            for from in monet.units.always_read(unit, chooses) {
                monet.reads[stage].push(monet.vertex_of[from]);
            }
            for &from in monet.units.units[unit]
                .reads
                .iter()
                .filter(|&&from| from >= forward)
            {
                // It lives from behind its own stage up to the last that reads it.
                let bytes = monet.units.units[from].bytes;
                let last = (from + 1..monet.units.units.len())
                    .rfind(|&reader| monet.units.units[reader].reads.contains(&from));
                if last == Some(unit) {
                    for live in &mut monet.live[from + 1 - forward..=stage] {
                        *live += bytes;
                    }
                }
            }
        }
        monet
    }

    fn stages(&self) -> usize {
        self.units.units.len() - self.units.forward
    }

    /// What the program chose.
    pub(super) fn chosen(
        &self,
        columns: &MonetColumns,
        values: &[f64],
    ) -> Vec<(NodeId, &'static Variant)> {
        let mut chosen = Vec::new();
        for (choice, options) in self.choices.iter().zip(&columns.chosen) {
            for (option, &column) in choice.options.iter().zip(options) {
                if let (Some(variant), true) = (option.variant, values[column] > 0.5) {
                    chosen.push((choice.node, variant));
                }
            }
        }
        chosen
    }

    /// The nodes that run, in their order, in the graph where `parts` stand for the nodes that are
    /// replaced.
    pub(super) fn sequence(
        &self,
        columns: &MonetColumns,
        values: &[f64],
        parts: &BTreeMap<NodeId, Vec<NodeId>>,
    ) -> Vec<NodeId> {
        let is_set = |column: Option<Column>| column.is_some_and(|column| values[column] > 0.5);
        let mut option_of: BTreeMap<NodeId, &Implementation> = BTreeMap::new();
        // By vertex: the part that computes an intermediate which is chosen.
        let mut masks: BTreeMap<usize, NodeId> = BTreeMap::new();
        for (at, choice) in self.choices.iter().enumerate() {
            for (number, option) in choice.options.iter().enumerate() {
                let Some(nodes) = parts.get(&choice.node) else {
                    continue;
                };
                if !is_set(Some(columns.chosen[at][number])) {
                    continue;
                }
                option_of.insert(choice.node, option);
                let mask = self.intermediates[at][number].zip(option.intermediate);
                if let Some((vertex, one)) = mask {
                    masks.insert(vertex, nodes[one.part]);
                }
            }
        }
        let of_vertex = |vertex: usize| match self.vertices[vertex].unit {
            Some(unit) => self.units.units[unit].nodes.clone(),
            None => masks.get(&vertex).copied().into_iter().collect(),
        };
        let mut sequence = Vec::new();
        for (vertex, of) in self.vertices.iter().enumerate() {
            if of.unit.is_some() || is_set(columns.stored[0][vertex]) {
                sequence.extend(of_vertex(vertex));
            }
        }
        for k in 0..self.stages() {
            let again = (0..self.vertices.len()).filter(|&i| is_set(columns.run[k][i]));
            sequence.extend(again.flat_map(of_vertex));
            for &node in &self.units.units[self.units.forward + k].nodes {
                match (option_of.get(&node), parts.get(&node)) {
                    (Some(option), Some(nodes)) => {
                        sequence.extend(option.sequence.iter().map(|&at| nodes[at]));
                    }
                    _ => sequence.push(node),
                }
            }
        }
        sequence
    }

    fn columns(&self, program: &mut Program) -> MonetColumns {
        let step = self.units.step;
        let holds = |vertex: &KeptVertex| vertex.bytes > 0.0;
        let mut columns = MonetColumns {
            stored: Vec::new(),
            run: Vec::new(),
            chosen: Vec::new(),
        };
        for k in 0..self.stages() {
            let stored = self.vertices.iter().map(|vertex| {
                // What an intermediate takes in the forward pass.
                let time = if k == 0 && vertex.unit.is_none() {
                    vertex.time
                } else {
                    0.0
                };
                holds(vertex).then(|| program.add(time / step, true))
            });
            columns.stored.push(stored.collect());
            let run = self.vertices.iter().map(|vertex| {
                vertex
                    .recomputable
                    .then(|| program.add(vertex.time / step, true))
            });
            columns.run.push(run.collect());
        }
        for choice in &self.choices {
            let options = choice.options.iter();
            let options: Vec<Column> = options
                .map(|option| program.add(option.time / step, true))
                .collect();
            // Σ δ = 1.
            let terms = |factor: f64| options.iter().map(move |&column| (column, factor));
            program.at_most(terms(1.0).collect(), 1.0);
            program.at_most(terms(-1.0).collect(), -1.0);
            columns.chosen.push(options);
        }
        columns
    }

    /// The choices of a stage, by number.
    fn choices_of(&self, stage: usize) -> impl Iterator<Item = usize> + '_ {
        let unit = stage + self.units.forward;
        (0..self.choices.len()).filter(move |&choice| self.choices[choice].unit == unit)
    }

    /// The vertices that only some implementations in a stage read, each with the options that do: at
    /// the moment of that choice, or at any.
    fn optional(
        &self,
        columns: &MonetColumns,
        stage: usize,
        at: Option<(usize, usize)>,
    ) -> Vec<(usize, Vec<Column>)> {
        let mut all: Vec<(usize, Vec<Column>)> = Vec::new();
        for choice in self.choices_of(stage) {
            let moment = at.filter(|at| at.0 == choice).map_or(0, |at| at.1);
            let options = self.choices[choice].options.iter();
            for (number, option) in options.enumerate() {
                let Some(moment) = option.moment(moment) else {
                    continue;
                };
                let reads = moment.reads.iter().map(|&from| self.vertex_of[from]);
                let mask = self.intermediates[choice][number].filter(|_| moment.reads_intermediate);
                let column = columns.chosen[choice][number];
                for vertex in reads.chain(mask) {
                    if self.reads[stage].contains(&vertex) {
                        continue;
                    }
                    match all.iter_mut().find(|known| known.0 == vertex) {
                        Some(known) => known.1.push(column),
                        None => all.push((vertex, vec![column])),
                    }
                }
            }
        }
        all
    }

    /// (7) and (8).
    fn schedule(&self, program: &mut Program, columns: &MonetColumns) {
        for k in 0..self.stages() {
            let have = |vertex: usize, factor: f64| {
                let both = [columns.stored[k][vertex], columns.run[k][vertex]];
                both.into_iter()
                    .flatten()
                    .map(move |column| (column, factor))
            };
            for (i, vertex) in self.vertices.iter().enumerate() {
                if let Some(run) = columns.run[k][i] {
                    for &j in vertex
                        .reads
                        .iter()
                        .filter(|&&j| self.vertices[j].bytes > 0.0)
                    {
                        program.at_most(have(j, -1.0).chain([(run, 1.0)]).collect(), 0.0);
                    }
                }
                let next = columns.stored.get(k + 1).and_then(|next| next[i]);
                if let Some(next) = next {
                    program.at_most(have(i, -1.0).chain([(next, 1.0)]).collect(), 0.0);
                }
            }
            for &i in self.reads[k]
                .iter()
                .filter(|&&i| self.vertices[i].bytes > 0.0)
            {
                program.at_most(have(i, -1.0).collect(), -1.0);
            }
            for (i, options) in self.optional(columns, k, None) {
                for option in options {
                    program.at_most(have(i, -1.0).chain([(option, 1.0)]).collect(), 0.0);
                }
            }
        }
    }

    /// (1): the forward pass.
    fn forward(&self, program: &mut Program, columns: &MonetColumns, rows: &Rows) {
        let readers = |j: usize, i: usize| {
            let behind = self.vertices.iter().enumerate().skip(i);
            behind
                .filter(|(_, vertex)| vertex.unit.is_some())
                .any(|(_, vertex)| vertex.reads.contains(&j))
        };
        for (i, vertex) in self.vertices.iter().enumerate() {
            let mut always = vertex.transient + vertex.unit.map_or(0.0, |u| self.units.standing[u]);
            let mut terms = Vec::new();
            match (vertex.unit, columns.stored[0][i]) {
                (None, Some(stored)) => terms.push((stored, vertex.bytes)),
                _ => always += vertex.bytes,
            }
            for (j, earlier) in self.vertices[..i].iter().enumerate() {
                if readers(j, i) {
                    always += earlier.bytes;
                } else if let Some(stored) = columns.stored[0][j] {
                    terms.push((stored, earlier.bytes));
                }
            }
            if let Some(j) = vertex.overwrites
                && !readers(j, i + 1)
                && let Some(stored) = columns.stored[0][j]
            {
                let in_place = program.add(0.0, true);
                program.at_most(vec![(in_place, 1.0), (stored, 1.0)], 1.0);
                terms.push((in_place, -vertex.bytes.min(self.vertices[j].bytes)));
            }
            rows.limit(program, terms, always);
        }
    }

    /// (5), (12) and (13): stage `k` and what is computed again before it.
    fn stage(&self, program: &mut Program, columns: &MonetColumns, rows: &Rows, k: usize) {
        let gradients = self.live[k];
        let size = |i: usize| self.vertices[i].bytes;
        let count = |presence: Presence, terms: &mut Vec<(Column, f64)>, always: &mut f64, i| {
            match presence {
                Presence::Never => {}
                Presence::Always => *always += size(i),
                Presence::If(column) => terms.push((column, size(i))),
            }
        };
        let after = self.present(program, columns, k, None);
        if let Some(others) = self.others[k] {
            let (mut terms, mut always) = (Vec::new(), gradients + others);
            for (i, &presence) in after.iter().enumerate() {
                count(presence, &mut terms, &mut always, i);
            }
            rows.limit(program, terms, always);
        }
        for choice in self.choices_of(k) {
            let ImplementationChoice {
                options, around, ..
            } = &self.choices[choice];
            let moments = options.iter().map(|option| option.moments.len()).max();
            for at in 0..moments.unwrap_or(0) {
                let (mut terms, mut always) = (Vec::new(), gradients + around);
                let there = match at {
                    0 if self.choices_of(k).count() == 1 => after.clone(),
                    _ => self.present(program, columns, k, Some((choice, at))),
                };
                for (i, presence) in there.into_iter().enumerate() {
                    count(presence, &mut terms, &mut always, i);
                }
                for (option, &column) in options.iter().zip(&columns.chosen[choice]) {
                    if let Some(moment) = option.moment(at) {
                        terms.push((column, moment.bytes));
                    }
                }
                rows.limit(program, terms, always);
            }
        }
        for (i, vertex) in self.vertices.iter().enumerate() {
            let Some(run) = columns.run[k][i] else {
                continue;
            };
            // Local to recomputations from i on (appendix B): an upper bound.
            let local = |j: usize| {
                let behind = self.vertices.iter().skip(i);
                behind
                    .filter(|vertex| vertex.recomputable)
                    .any(|vertex| vertex.reads.contains(&j))
            };
            let mut happens = (vec![(run, vertex.bytes + vertex.transient)], gradients);
            let mut idle = (Vec::new(), gradients);
            for (j, presence) in after.iter().enumerate() {
                if j > i {
                    if let Some(stored) = columns.stored[k][j] {
                        happens.0.push((stored, size(j)));
                        idle.0.push((stored, size(j)));
                    }
                    continue;
                }
                count(*presence, &mut idle.0, &mut idle.1, j);
                match (j < i && local(j), presence) {
                    (_, Presence::Always) if j < i => happens.1 += size(j),
                    (true, _) => happens.0.push((run, size(j))),
                    (false, _) if j < i => count(*presence, &mut happens.0, &mut happens.1, j),
                    _ => {}
                }
            }
            if let Some(in_place) = self.in_place(program, columns, &after, k, i) {
                happens.0.push(in_place);
            }
            rows.limit(program, happens.0, happens.1);
            rows.limit(program, idle.0, idle.1);
        }
    }

    /// By vertex: is it there behind the stage, or read by it from this moment of a choice on?
    fn present(
        &self,
        program: &mut Program,
        columns: &MonetColumns,
        k: usize,
        at: Option<(usize, usize)>,
    ) -> Vec<Presence> {
        let next = |i: usize| columns.stored.get(k + 1).and_then(|next| next[i]);
        let mut present: Vec<Presence> = (0..self.vertices.len())
            .map(|i| next(i).map_or(Presence::Never, Presence::If))
            .collect();
        for &i in &self.reads[k] {
            present[i] = Presence::Always;
        }
        for (i, mut causes) in self.optional(columns, k, at) {
            let there = program.add(0.0, false);
            causes.extend(next(i));
            for cause in causes {
                program.at_most(vec![(cause, 1.0), (there, -1.0)], 0.0);
            }
            present[i] = Presence::If(there);
        }
        present
    }

    /// q(k, i), and the memory that it saves.
    fn in_place(
        &self,
        program: &mut Program,
        columns: &MonetColumns,
        after: &[Presence],
        k: usize,
        i: usize,
    ) -> Option<(Column, f64)> {
        let (run, j) = (columns.run[k][i]?, self.vertices[i].overwrites?);
        if matches!(after[j], Presence::Always) {
            return None;
        }
        let column = program.add(0.0, true);
        program.at_most(vec![(column, 1.0), (run, -1.0)], 0.0);
        if let Presence::If(there) = after[j] {
            program.at_most(vec![(column, 1.0), (there, 1.0)], 1.0);
        }
        for (t, later) in self.vertices.iter().enumerate().skip(i + 1) {
            if let Some(run) = columns.run[k][t].filter(|_| later.reads.contains(&j)) {
                program.at_most(vec![(column, 1.0), (run, 1.0)], 1.0);
            }
        }
        let saved = self.vertices[i].bytes.min(self.vertices[j].bytes);
        Some((column, -saved))
    }
}

/// The unit's results and what its nodes without a choice need; `None` if it has no such.
fn others(unit: &Unit, choices: &[ImplementationChoice]) -> Option<f64> {
    let choosing = |id: NodeId| choices.iter().any(|choice| choice.node == id);
    let needs = unit.nodes.iter().zip(&unit.needs);
    let needs = needs.filter(|(id, _)| !choosing(**id)).map(|need| *need.1);
    needs.reduce(f64::max).map(|most| most.max(unit.bytes))
}

#[derive(Clone, Copy)]
enum Presence {
    Never,
    Always,
    If(Column),
}

/// What all memory is to stay within.
struct Rows {
    scale: f64,
    /// The peak, if that is what is minimised.
    peak: Option<Column>,
}

impl Rows {
    fn limit(&self, program: &mut Program, mut terms: Vec<(Column, f64)>, always: f64) {
        for term in &mut terms {
            term.1 /= self.scale;
        }
        let room = -always / self.scale;
        match self.peak {
            Some(peak) => {
                terms.push((peak, -1.0));
                program.at_most(terms, room);
            }
            None => program.at_most(terms, 1.0 + room),
        }
    }
}

impl Model for Monet {
    type Columns = MonetColumns;

    fn units(&self) -> &Units {
        &self.units
    }

    fn program(&self, aim: Aim) -> (Program, MonetColumns) {
        let mut program = Program::default();
        let columns = self.columns(&mut program);
        self.schedule(&mut program, &columns);
        let rows = match aim {
            Aim::Within(room) => Rows {
                scale: room,
                peak: None,
            },
            Aim::Least(most) => {
                for cost in &mut program.costs {
                    *cost *= 1e-4;
                }
                Rows {
                    scale: most,
                    peak: Some(program.add(1.0, false)),
                }
            }
        };
        self.forward(&mut program, &columns, &rows);
        for k in 0..self.stages() {
            self.stage(&mut program, &columns, &rows, k);
        }
        (program, columns)
    }

    fn first_choice(&self) -> usize {
        self.units.forward
    }

    fn run(&self, columns: &MonetColumns, stage: usize, unit: usize) -> Option<Column> {
        let k = stage.checked_sub(self.units.forward)?;
        columns.run[k][*self.vertex_of.get(unit)?]
    }

    fn stored(&self, columns: &MonetColumns, stage: usize, unit: usize) -> Option<Column> {
        let k = stage.checked_sub(self.units.forward)?;
        columns.stored[k][*self.vertex_of.get(unit)?]
    }

    fn settled(&self, columns: &MonetColumns) -> Vec<Column> {
        columns.chosen.iter().map(|options| options[0]).collect()
    }
}
