//! Which sizes are hidden from the runtime.

use super::super::aim::Between;
use super::super::tuning::TUNING;
use super::Pipeline;
use crate::analysis::cost::time_of_all;
use crate::bytes::Bytes;
use crate::enforce::barriers::Enforceable;
use crate::enforce::colour_shapes::COLOURED_FROM;
use crate::enforce::hide_sizes::HideSizes;
use crate::graph::Graph;

impl Pipeline<'_> {
    /// The graph without the sizes that the memory pattern would hold, as far as the nodes for it take no time to speak of.
    pub(super) fn hidden(&self, graph: Graph) -> Enforceable<'_> {
        let plain = self.enforceable(graph);
        if !self.options.runtime.settings.pattern || !TUNING.hidden || self.is_late() {
            return plain;
        }
        let (planned, lean) = (plain.planned_peak(), plain.lean_peak());
        if planned - lean <= Bytes((lean - self.original.liveness.fixed).0 / TUNING.unused_part) {
            return plain;
        }
        // Half hidden, a chain of results is known again behind what is left, and the block has to be there besides.
        let less = |hidden: &Enforceable<'_>| hidden.planned_peak() < planned;
        self.most_hidden(&plain).filter(less).unwrap_or(plain)
    }

    /// With all sizes hidden, or else with as many as it is tried for whose nodes take no longer than they may.
    pub(super) fn most_hidden(&self, plain: &Enforceable<'_>) -> Option<Enforceable<'_>> {
        let most = self.original.time() / TUNING.hiding;
        let before = time_of_all(plain.graph(), plain.costs());
        // What is too small for a name is too small to be hidden.
        let from = COLOURED_FROM;
        let (provider, runtime) = (self.options.device.provider, self.options.runtime);
        let sources = HideSizes::worth(plain.graph(), from, provider, runtime);
        let hidden = |few: usize| {
            let only = sources[..few].iter().map(|&(source, _)| source).collect();
            let mut hidden = plain.graph().clone();
            let hide = HideSizes {
                from,
                only: Some(&only),
                provider,
                runtime,
            };
            let Ok(_) = self.options.passes.run(&hide, &mut hidden);
            let hidden = self.enforceable(hidden);
            let added = time_of_all(hidden.graph(), hidden.costs()).saturating_sub(before);
            (hidden, added)
        };
        let (all, mut takes) = hidden(sources.len());
        if takes <= most {
            return Some(all);
        }
        // Each takes about as long as the others.
        let mut range = Between::new(0, sources.len() as u64, TUNING.hidings);
        let (mut took, mut best) = (0, None);
        while let Some(between) = range.part_of_way(most - took, takes - took) {
            if between == range.fits && best.is_some() {
                break;
            }
            let (graph, added) = hidden(between as usize);
            range.is(between, added <= most);
            match added <= most {
                true => (took, best) = (added, Some(graph)),
                false => takes = added,
            }
        }
        best
    }
}
