//! The graph with some barriers, as the runtime may run it, and one such run.

use std::sync::OnceLock;

use super::placement::{Barrier, Placement};
use crate::runtime::fused_graph::{GraphsOfLevels, OptimizedGraph};
use crate::runtime::known_shapes::Shapes;
use crate::runtime::level::Level;
use crate::runtime::order::ExecutionOrder;
use crate::runtime::skeleton::Skeleton;

/// One way in which the runtime executes the graph with barriers.
pub(super) struct TrialRun {
    pub(super) way: TrialWay,
    /// By step: the position in the file that the node belongs to; a barrier has its reader's.
    pub(super) wanted: Vec<u32>,
    /// The most that it needs.
    pub(super) need: u64,
    /// By step: would it have to need less for the run to keep to the budget? Nowhere if that does.
    pub(super) exceeds: Vec<bool>,
    /// The second node of a pair that runs in the wrong sequence.
    pub(super) broken: Option<u32>,
}

/// A form of the graph (0 as it is, then as the runtime optimizes it), and the order it runs in.
pub(super) type TrialWay = (usize, ExecutionOrder);

/// The graph with barriers in it, in all its forms.
pub(super) struct Built {
    /// As the file has it, where the runtime inserts casts or takes some out; else it is `plain`.
    listed: Option<(Skeleton, Vec<u32>)>,
    /// As it runs without optimizations, with the positions of its nodes in the file.
    pub(super) plain: (Skeleton, Vec<u32>),
    pub(super) shapes: Option<Shapes>,
    /// By position in the file: how many tensors the barrier there writes that last.
    outputs: Vec<u32>,
    optimized: OnceLock<(Vec<OptimizedGraph>, GraphsOfLevels)>,
}

/// The positions in the file of nodes that have these in a graph of which those in the file are known.
fn in_file(kept: &[u32], position: &[u32]) -> Vec<u32> {
    kept.iter().map(|&node| position[node as usize]).collect()
}

impl Built {
    pub(super) fn of(placement: &Placement, barriers: &[Barrier]) -> Built {
        let mut outputs = vec![0; placement.len()];
        for barrier in barriers {
            outputs[barrier.before as usize] = placement.lasting(barrier);
        }
        let (skeleton, position, shapes) = placement.with_barriers(barriers);
        let listed = (skeleton, position);
        let (plain, listed) = match listed.0.with_casts() {
            None => (listed, None),
            Some((run, kept)) => ((run, in_file(&kept, &listed.1)), Some(listed)),
        };
        Built {
            listed,
            plain,
            shapes,
            outputs,
            optimized: OnceLock::new(),
        }
    }

    pub(super) fn forms(&self) -> &[(Skeleton, Vec<u32>)] {
        &self.by_level().0
    }

    fn by_level(&self) -> &(Vec<OptimizedGraph>, GraphsOfLevels) {
        let (skeleton, position) = self.listed.as_ref().unwrap_or(&self.plain);
        let optimize = || {
            let (forms, levels) = skeleton.optimized_by_level();
            let in_file = |(form, kept): (Skeleton, Vec<u32>)| (form, in_file(&kept, position));
            (forms.into_iter().map(in_file).collect(), levels)
        };
        self.optimized.get_or_init(optimize)
    }

    /// Does the form of that number run at that level in any release?
    pub(super) fn runs_at(&self, level: Level, number: usize) -> bool {
        match level {
            Level::DisableAll => number == 0,
            level => self.by_level().1.run_at(level, number.checked_sub(1)),
        }
    }

    /// The form of that number, in whichever order it runs.
    pub(super) fn form(&self, way: TrialWay) -> &(Skeleton, Vec<u32>) {
        match way.0.checked_sub(1) {
            None => &self.plain,
            Some(number) => &self.forms()[number],
        }
    }

    /// By step: how many outputs barriers have up to there, all of which the runtime keeps to the end.
    pub(super) fn outputs_of_barriers(&self, wanted: &[u32]) -> Vec<u64> {
        let mut outputs = self.outputs.clone();
        let mut all = 0;
        let step = |&position: &u32| {
            // A barrier runs before its reader, which has the same position.
            all += u64::from(std::mem::take(&mut outputs[position as usize]));
            all
        };
        wanted.iter().map(step).collect()
    }

    pub(super) fn orders(&self) -> impl Iterator<Item = ExecutionOrder> {
        ExecutionOrder::of(&self.plain.0).iter().copied()
    }

    pub(super) fn has(&self, way: TrialWay) -> bool {
        way.0 == 0 || way.0 <= self.forms().len()
    }

    pub(super) fn plain(&self) -> Vec<TrialWay> {
        self.orders().map(|order| (0, order)).collect()
    }

    pub(super) fn optimized(&self) -> Vec<TrialWay> {
        let forms = 1..=self.forms().len();
        forms
            .flat_map(|form| self.orders().map(move |order| (form, order)))
            .collect()
    }
}
