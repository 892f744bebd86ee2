//! Which sizes are hidden from the runtime.

use super::super::aim::Between;
use super::super::simulation::frame;
use super::super::tuning::STAGES;
use super::Pipeline;
use crate::analysis::cost::time_of_all;
use crate::bytes::Bytes;
use crate::enforce::barriers::Enforceable;
use crate::enforce::colour_shapes::COLOURED_FROM;
use crate::enforce::hide_sizes::{ByBarriers, HideSizes};
use crate::graph::{Graph, TensorId};

/// A graph without sizes.
struct Hidden<'p> {
    graph: Enforceable<'p>,
    /// Nanoseconds that the nodes for it take.
    takes: u64,
    /// Is there no more to hide?
    is_all: bool,
}

impl Pipeline<'_> {
    /// The graph without the sizes that the memory pattern would hold, or by which dead buffers are kept for others, as far as the nodes for it take no time to speak of, or
    /// little for what they save, should it not fit the budget otherwise.
    pub(super) fn hidden(&self, graph: Graph, budget: Option<Bytes>) -> Enforceable<'_> {
        let plain = self.enforceable(graph);
        if !self.options.runtime.settings.reuse || !STAGES.hidden || self.is_late() {
            return plain;
        }
        let (planned, lean) = (plain.planned_peak(), plain.lean_peak());
        if planned - lean <= Bytes((lean - self.original.liveness.fixed).0 / STAGES.unused_part) {
            return plain;
        }
        if !self.options.runtime.release.trains {
            return self.hidden_by_barriers(plain, budget);
        }
        // Half hidden, a chain of results is known again behind what is left, and the block has to be there besides.
        let less = |hidden: &Hidden<'_>| hidden.graph.planned_peak() < planned;
        let time = self.original.time();
        let few = self.most_hidden(&plain, time / STAGES.hiding);
        let is_all = few.as_ref().is_some_and(|few| few.is_all);
        let few = few.filter(less);
        let fits = |graph: &Enforceable<'_>| {
            let needs = graph.planned_peak() + frame(graph.graph());
            budget.is_some_and(|budget| needs <= budget)
        };
        let many = match is_all || fits(few.as_ref().map_or(&plain, |few| &few.graph)) {
            true => None,
            false => self.most_hidden(&plain, time / STAGES.more_hiding),
        };
        let many = many.filter(less);
        let is_worth_it = |many: &Hidden<'_>| {
            let (needs, takes) = match &few {
                Some(few) => (few.graph.planned_peak(), few.takes),
                None => (planned, 0),
            };
            let saved = needs.0.saturating_sub(many.graph.planned_peak().0);
            let (more, rest) = (
                many.takes.saturating_sub(takes),
                needs - self.original.liveness.fixed,
            );
            let asked = u128::from(more) * u128::from(STAGES.hiding_saves) * u128::from(rest.0);
            u128::from(saved) * u128::from(time) >= asked && saved > 0
        };
        many.filter(is_worth_it)
            .or(few)
            .map_or(plain, |hidden| hidden.graph)
    }

    /// Does it matter to [`Pipeline::hidden`] what the budget is?
    pub(super) fn hides_for_budget(&self) -> bool {
        let runtime = self.options.runtime;
        runtime.settings.reuse && STAGES.hidden && !runtime.release.trains
    }

    fn hide_sizes(&self) -> HideSizes<'static> {
        HideSizes {
            // What is too small for a name is too small to be hidden.
            from: COLOURED_FROM,
            only: None,
            provider: self.options.device.provider,
            runtime: self.options.runtime,
            by_barriers: None,
        }
    }

    /// With the sizes hidden that come from these.
    fn hide_few(
        &self,
        hide: &HideSizes<'_>,
        sources: &[(TensorId, Bytes)],
        plain: &Graph,
    ) -> Enforceable<'_> {
        let only = sources.iter().map(|&(source, _)| source).collect();
        let hide = HideSizes {
            only: Some(&only),
            ..*hide
        };
        let mut hidden = plain.clone();
        let Ok(_) = self.options.runner.run(&hide, &mut hidden);
        self.enforceable(hidden)
    }

    /// The same where barriers hide sizes, each of which is a node more, and what they do not reach keeps its numbers: as few of them as
    /// the budget needs.
    fn hidden_by_barriers<'p>(
        &'p self,
        plain: Enforceable<'p>,
        budget: Option<Bytes>,
    ) -> Enforceable<'p> {
        let fixed = self.original.liveness.fixed;
        let needs = |graph: &Enforceable<'_>| graph.planned_peak() + frame(graph.graph());
        let fits = |graph: &Enforceable<'_>| budget.is_some_and(|budget| needs(graph) <= budget);
        if fits(&plain) {
            return plain;
        }
        let hide = self.hide_sizes();
        let Some(known) = ByBarriers::of(plain.graph(), &hide) else {
            return plain;
        };
        let hide = HideSizes {
            by_barriers: Some(&known),
            ..hide
        };
        let sources = hide.worth(plain.graph());
        let hidden = |few: u64| self.hide_few(&hide, &sources[..few as usize], plain.graph());
        let mut best = hidden(sources.len() as u64);
        if fits(&best) {
            let mut range = Between::new(sources.len() as u64, 0, STAGES.hidings);
            while let Some(few) = range.middle().filter(|&few| few > range.misses) {
                let graph = hidden(few);
                let does = fits(&graph);
                range.is(few, does);
                if does {
                    best = graph;
                }
            }
        }
        let saved = plain.planned_peak().0.saturating_sub(best.planned_peak().0);
        let takes = |graph: &Enforceable<'_>| time_of_all(graph.graph(), graph.costs());
        let more = takes(&best).saturating_sub(takes(&plain));
        let rest = plain.planned_peak() - fixed;
        let asked = u128::from(more) * u128::from(STAGES.barriers_save) * u128::from(rest.0);
        let is_worth_it =
            budget.is_none() || u128::from(saved) * u128::from(self.original.time()) >= asked;
        match saved > 0 && is_worth_it {
            true => best,
            false => plain,
        }
    }

    /// With all sizes hidden, or else with as many as it is tried for whose nodes take at most so many nanoseconds.
    fn most_hidden(&self, plain: &Enforceable<'_>, most: u64) -> Option<Hidden<'_>> {
        let before = time_of_all(plain.graph(), plain.costs());
        let hide = self.hide_sizes();
        let sources = hide.worth(plain.graph());
        let hidden = |few: usize| {
            let graph = self.hide_few(&hide, &sources[..few], plain.graph());
            let added = time_of_all(graph.graph(), graph.costs()).saturating_sub(before);
            (graph, added)
        };
        let (graph, mut takes) = hidden(sources.len());
        if takes <= most {
            return Some(Hidden {
                graph,
                takes,
                is_all: true,
            });
        }
        // Each takes about as long as the others.
        let mut range = Between::new(0, sources.len() as u64, STAGES.hidings);
        let (mut took, mut best) = (0, None);
        while let Some(between) = range.part_of_way(most - took, takes - took) {
            if between == range.fits && best.is_some() {
                break;
            }
            let (graph, added) = hidden(between as usize);
            range.is(between, added <= most);
            match added <= most {
                true => {
                    took = added;
                    best = Some(Hidden {
                        graph,
                        takes: added,
                        is_all: false,
                    });
                }
                false => takes = added,
            }
        }
        best
    }
}
