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
//! An *implementation* is a variant of one backward node, [`Choice`]: which forward results it
//! reads. One that reads an intermediate (a mask) adds a vertex that computes it. The product of
//! δ and s in (5) is a column that is at least either: the size of the union D ∪ S.
//!
//! In-place results (C.3): q(k, i) ≤ r(k, i) frees the memory of the one vertex that i overwrites,
//! which then is neither stored nor read by anybody behind.

use super::units::Units;
use super::{Aim, Model};
use crate::graph::NodeId;
use crate::operators::variants::Variant;
use crate::program::{Column, Program};

/// The implementations of one backward node. The first is the node as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub node: NodeId,
    /// Its unit.
    pub unit: usize,
    pub options: Vec<Implementation>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Implementation {
    /// `None` for the node as it is.
    pub variant: Option<&'static Variant>,
    /// The forward units whose results it reads.
    pub reads: Vec<usize>,
    /// An intermediate that it reads instead.
    pub intermediate: Option<Intermediate>,
    /// Nanoseconds more than the node takes as it is.
    pub time: f64,
}

/// Computed from the results of one forward unit, such as a mask of signs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Intermediate {
    pub from: usize,
    pub bytes: f64,
    /// Nanoseconds.
    pub time: f64,
}

/// What may be computed again: a forward unit, or an intermediate behind the unit it comes from.
#[derive(Clone, Debug)]
struct Vertex {
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
    choices: Vec<Choice>,
    vertices: Vec<Vertex>,
    /// By unit of the forward part: its vertex.
    vertex_of: Vec<usize>,
    /// By choice and option: the intermediate's vertex.
    intermediates: Vec<Vec<Option<usize>>>,
    /// By stage: vertices that it reads whatever is chosen.
    reads: Vec<Vec<usize>>,
    /// By stage: gradients that live while it runs, and what stands (L̂), without its results.
    live: Vec<f64>,
}

/// s, r and δ.
pub(super) struct Columns {
    stored: Vec<Vec<Option<Column>>>,
    run: Vec<Vec<Option<Column>>>,
    /// By choice and option.
    chosen: Vec<Vec<Column>>,
}

impl Monet {
    pub(super) fn new(units: Units, choices: Vec<Choice>) -> Monet {
        let forward = units.forward;
        let mut vertices: Vec<Vertex> = Vec::new();
        let mut vertex_of = Vec::new();
        let mut intermediates: Vec<Vec<Option<usize>>> = choices
            .iter()
            .map(|choice| vec![None; choice.options.len()])
            .collect();
        for (at, unit) in units.units[..forward].iter().enumerate() {
            vertex_of.push(vertices.len());
            vertices.push(Vertex {
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
                        vertices.push(Vertex {
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
            units,
            choices,
            vertices,
            vertex_of,
            intermediates,
        };
        for unit in stages {
            let stage = unit - forward;
            for from in monet.units.always_read(unit, &monet.choices) {
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
        columns: &Columns,
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

    fn columns(&self, program: &mut Program) -> Columns {
        let step = self.units.step;
        let holds = |vertex: &Vertex| vertex.bytes > 0.0;
        let mut columns = Columns {
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

    /// Stage by stage: the vertices that only some implementations read, each with the options
    /// that do.
    fn optional(&self, columns: &Columns, stage: usize) -> Vec<(usize, Vec<Column>)> {
        let mut all: Vec<(usize, Vec<Column>)> = Vec::new();
        for ((choice, options), places) in self
            .choices
            .iter()
            .zip(&columns.chosen)
            .zip(&self.intermediates)
        {
            if choice.unit != stage + self.units.forward {
                continue;
            }
            for ((option, &column), place) in choice.options.iter().zip(options).zip(places) {
                let reads = option.reads.iter().map(|&from| self.vertex_of[from]);
                for vertex in reads.chain(*place) {
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
    fn schedule(&self, program: &mut Program, columns: &Columns) {
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
            for (i, options) in self.optional(columns, k) {
                for option in options {
                    program.at_most(have(i, -1.0).chain([(option, 1.0)]).collect(), 0.0);
                }
            }
        }
    }

    /// (1): the forward pass.
    fn forward(&self, program: &mut Program, columns: &Columns, rows: &Rows) {
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
    fn stage(&self, program: &mut Program, columns: &Columns, rows: &Rows, k: usize) {
        let unit = &self.units.units[self.units.forward + k];
        let gradients = self.live[k];
        let size = |i: usize| self.vertices[i].bytes;
        // What is there behind the stage, or read by it: a size, or a column that says whether.
        let after: Vec<Presence> = {
            let mut after: Vec<Presence> = (0..self.vertices.len())
                .map(|i| {
                    let next = columns.stored.get(k + 1).and_then(|next| next[i]);
                    next.map_or(Presence::Never, Presence::If)
                })
                .collect();
            for &i in &self.reads[k] {
                after[i] = Presence::Always;
            }
            for (i, options) in self.optional(columns, k) {
                let there = program.add(0.0, false);
                let mut causes = options;
                causes.extend(columns.stored.get(k + 1).and_then(|next| next[i]));
                for cause in causes {
                    program.at_most(vec![(cause, 1.0), (there, -1.0)], 0.0);
                }
                after[i] = Presence::If(there);
            }
            after
        };
        let count = |terms: &mut Vec<(Column, f64)>, always: &mut f64, i: usize| match after[i] {
            Presence::Never => {}
            Presence::Always => *always += size(i),
            Presence::If(column) => terms.push((column, size(i))),
        };
        let (mut terms, mut always) = (Vec::new(), gradients + unit.bytes + unit.transient);
        for i in 0..self.vertices.len() {
            count(&mut terms, &mut always, i);
        }
        rows.limit(program, terms, always);
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
                count(&mut idle.0, &mut idle.1, j);
                match (j < i && local(j), presence) {
                    (_, Presence::Always) if j < i => happens.1 += size(j),
                    (true, _) => happens.0.push((run, size(j))),
                    (false, _) if j < i => count(&mut happens.0, &mut happens.1, j),
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

    /// q(k, i), and the memory that it saves.
    fn in_place(
        &self,
        program: &mut Program,
        columns: &Columns,
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
    type Columns = Columns;

    fn units(&self) -> &Units {
        &self.units
    }

    fn program(&self, aim: Aim) -> (Program, Columns) {
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

    fn run(&self, columns: &Columns, stage: usize, unit: usize) -> Option<Column> {
        let k = stage.checked_sub(self.units.forward)?;
        columns.run[k][*self.vertex_of.get(unit)?]
    }

    fn stored(&self, columns: &Columns, stage: usize, unit: usize) -> Option<Column> {
        let k = stage.checked_sub(self.units.forward)?;
        columns.stored[k][*self.vertex_of.get(unit)?]
    }

    fn settled(&self, columns: &Columns) -> Vec<Column> {
        columns.chosen.iter().map(|options| options[0]).collect()
    }
}
