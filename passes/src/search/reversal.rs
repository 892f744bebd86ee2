//! Starts for very little memory: as Revolve reverses a chain (Griewank and Walther, Algorithm 799,
//! 2000), with the recomputable nodes up to the turn, in their order, as the chain. On a uniform
//! chain this is the optimum; elsewhere a start, for a node that runs again keeps alive whatever it
//! reads from outside.

use super::problem::{Problem, Step};
use super::state::{Copy, most_copies};
use crate::binomial::advance;

/// The forward part of a problem as a chain.
pub(crate) struct ForwardChain {
    nodes: Vec<Step>,
    /// By node of the chain: where an original behind the turn first reads of it.
    needed: Vec<Option<Step>>,
    /// More copies are too many.
    most: usize,
}

impl ForwardChain {
    /// The chain up to `turn`, the step after which what was kept is read again.
    pub(crate) fn of(problem: &Problem, turn: Step) -> ForwardChain {
        let steps = 0..turn.min(problem.steps.len() as Step);
        let nodes: Vec<Step> = steps
            .filter(|&step| {
                let info = &problem.steps[step as usize];
                info.recomputable && info.is_active_in(0)
            })
            .collect();
        let needed = |&node: &Step| {
            let written = problem.steps[node as usize].writes.iter();
            let readers = written.flat_map(|&value| &problem.values[value as usize].readers);
            let runs = |reader: &Step| problem.steps[*reader as usize].is_active_in(0);
            readers
                .copied()
                .filter(|reader| *reader > turn && runs(reader))
                .min()
        };
        ForwardChain {
            needed: nodes.iter().map(needed).collect(),
            most: most_copies(problem),
            nodes,
        }
    }

    /// How many nodes it has.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The copies with which Revolve reverses the chain with so many checkpoints, what is there at
    /// first among them; `None` if they are too many.
    pub(crate) fn copies(&self, checkpoints: usize) -> Option<Vec<Copy>> {
        let mut reversal = Reversal {
            chain: self,
            turned: false,
            copies: Vec::new(),
        };
        reversal.reverse(0, self.nodes.len(), checkpoints as u64);
        let mut copies = reversal.copies;
        if copies.len() > self.most {
            return None;
        }
        copies.retain(|copy| copy.node < copy.before);
        copies.sort_unstable();
        copies.dedup();
        Some(copies)
    }
}

/// A reversal under way. State `k` is the result of the chain's first `k` nodes, and reversing
/// step `k` needs it.
struct Reversal<'c> {
    chain: &'c ForwardChain,
    /// Has anything been reversed? Up to then the originals run.
    turned: bool,
    copies: Vec<Copy>,
}

impl Reversal<'_> {
    /// Reverses the steps in `from..until`, the last first, from state `from`.
    fn reverse(&mut self, from: usize, until: usize, checkpoints: u64) {
        // What is still to be reversed, the next last.
        let mut parts = vec![(from, until, checkpoints)];
        while let Some((from, until, checkpoints)) = parts.pop() {
            if self.copies.len() > self.chain.most {
                return;
            }
            if until <= from + 1 {
                self.turned = true;
            } else if checkpoints <= 1 {
                for state in (from + 1..until).rev() {
                    self.advance(from, state, state + 1);
                    self.turned = true;
                }
            } else {
                let middle = from + advance((until - from) as u64, checkpoints) as usize;
                self.advance(from, middle, until);
                parts.push((from, middle, checkpoints));
                parts.push((middle, until, checkpoints - 1));
            }
        }
    }

    /// Runs from state `from` to state `to` before what is reversed next: the last of the steps
    /// before `until` that needs anything.
    fn advance(&mut self, from: usize, to: usize, until: usize) {
        if !self.turned || self.copies.len() > self.chain.most {
            return;
        }
        let results = self.chain.needed[from..until - 1].iter().rev();
        if let Some(before) = results.copied().flatten().next() {
            let nodes = self.chain.nodes[from..to].iter();
            self.copies.extend(nodes.map(|&node| Copy { node, before }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chains_are_reversed_with_many_checkpoints() {
        const LENGTH: usize = 200_000;
        let chain = ForwardChain {
            nodes: (0..LENGTH as Step).collect(),
            // Every result is read once, in the opposite order.
            needed: (0..LENGTH)
                .map(|node| Some((2 * LENGTH - node) as Step))
                .collect(),
            most: LENGTH,
        };
        let copies = chain.copies(LENGTH / 2).expect("few enough");
        // With half of the results kept, no node runs more than once again.
        assert!(!copies.is_empty() && copies.len() <= LENGTH);
        assert!(copies.windows(2).all(|pair| pair[0].node < pair[1].node));
        assert_eq!(chain.copies(2), None);
    }
}
