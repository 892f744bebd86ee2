//! Which sizes are hidden from the runtime.

use super::{Pipeline, UNUSED_PART};
use crate::analysis::cost::time_of_all;
use crate::bytes::Bytes;
use crate::enforce::barriers::Enforceable;
use crate::enforce::colour_shapes::COLOURED_FROM;
use crate::enforce::hide_sizes::HideSizes;
use crate::graph::Graph;

/// Hiding sizes may take this part of a step.
const HIDING: u64 = 200;

/// How often it is tried how many that are.
const HIDING_TRIALS: usize = 4;

impl Pipeline<'_> {
    /// The graph without the sizes that the memory pattern would hold, as far as the nodes for it take no time to speak of.
    pub(super) fn hidden(&self, graph: Graph) -> Enforceable<'_> {
        let plain = self.enforceable(graph);
        if !self.options.runtime.settings.pattern {
            return plain;
        }
        let (planned, lean) = (plain.planned_peak(), plain.lean_peak());
        if planned - lean <= Bytes((lean - self.original.liveness.fixed).0 / UNUSED_PART) {
            return plain;
        }
        // Half hidden, a chain of results is known again behind what is left, and the block has to be there besides.
        let less = |hidden: &Enforceable<'_>| hidden.planned_peak() < planned;
        self.most_hidden(&plain).filter(less).unwrap_or(plain)
    }

    /// With all sizes hidden, or else with as many as it is tried for whose nodes take no longer than they may.
    pub(super) fn most_hidden(&self, plain: &Enforceable<'_>) -> Option<Enforceable<'_>> {
        let most = self.original.time() / HIDING;
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
        let (mut few, mut many, mut took, mut best) = (0, sources.len(), 0, None);
        for _ in 0..HIDING_TRIALS {
            let part = (many - few) as u128 * u128::from(most - took) / u128::from(takes - took);
            let between = few + part as usize;
            if between == few && best.is_some() {
                break;
            }
            let (graph, added) = hidden(between);
            match added <= most {
                true => (few, took, best) = (between, added, Some(graph)),
                false => (many, takes) = (between, added),
            }
        }
        best
    }
}
