//! What has to run again if a value is away between two uses of it.

use crate::search::problem::{Problem, Step, ValueId};

/// A value may be away between two consecutive original uses of it.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    /// Bytes that are gone while it is away.
    pub size: f64,
    /// The steps at which it may be away: `from..until`.
    pub from: Step,
    /// The second use: whatever the gap needs runs before a step in `first..=until`.
    pub until: Step,
    /// The first step before which it may run again.
    pub first: Step,
    /// The nodes that have to run again in the gap, each once; the value's producer is the first.
    pub runs: Vec<Step>,
}

/// The most runs that are looked for in one gap. Fewer make a weaker bound, not a wrong one.
const MOST_RUNS: usize = 24;

/// So many gaps may share one value that is kept for them. Fewer make a weaker bound, not a wrong one.
const MOST_SHARERS: usize = 256;

/// Every gap in which a value can be away to any use.
pub(crate) fn gaps(problem: &Problem) -> Vec<Gap> {
    let chains = chains(problem);
    let run = runs_again(problem, &chains);
    let chains = chains.iter().zip(&run);
    chains
        .filter_map(|(chain, run)| chain.gap(problem, run))
        .collect()
}

/// By chain and link: does keeping the link's value take what the chain's gap gives? Every value is shared out among the gaps
/// that it could be kept for, so that at no time they get more than it has; first to those that cost least for what they give.
fn runs_again(problem: &Problem, chains: &[GapChain]) -> Vec<Vec<bool>> {
    let size = |value: ValueId| problem.values[value as usize].size;
    let price = |value: ValueId| {
        let producer = problem.values[value as usize].producer;
        problem.steps[producer as usize].again as f64 / size(value)
    };
    let none = |chain: &GapChain| vec![false; chain.links.len()];
    let mut run: Vec<Vec<bool>> = chains.iter().map(none).collect();
    // By value: the gaps that have got a part of it.
    let mut shared: Vec<Vec<usize>> = vec![Vec::new(); problem.values.len()];
    // What brings back a value needs nothing if it need not run.
    let mut level: Vec<(usize, usize)> = Vec::new();
    for (at, chain) in chains.iter().enumerate() {
        let first = (0..chain.links.len()).filter(|&link| chain.links[link].parent.is_none());
        level.extend(first.map(|link| (at, link)));
    }
    while !level.is_empty() {
        level.sort_by(|one, other| {
            let [a, b] = [one, other].map(|at| price(chains[at.0].value));
            a.total_cmp(&b).then(one.cmp(other))
        });
        let mut next = Vec::new();
        for (at, position) in level {
            let (chain, link) = (&chains[at], &chains[at].links[position]);
            let sharers = &mut shared[link.value as usize];
            let beside = sharers.iter().filter(|&&of| of != at);
            let beside = beside.filter(|&&of| chains[of].overlaps(chain));
            let taken: f64 = beside.map(|&of| size(chains[of].value)).sum();
            if sharers.len() < MOST_SHARERS && taken + size(chain.value) <= size(link.value) {
                sharers.push(at);
                run[at][position] = true;
                let links = chain.links.iter().enumerate();
                let below = links.filter(|(_, link)| link.parent == Some(position));
                next.extend(below.map(|(link, _)| (at, link)));
            }
        }
        level = next;
    }
    run
}

/// A gap of a value, and the values without later uses that bringing it back may need.
struct GapChain {
    value: ValueId,
    after: Step,
    from: Step,
    until: Step,
    links: Vec<Link>,
}

/// A value that nothing reads in the gap but what brings back its parent.
struct Link {
    value: ValueId,
    /// A position in [`GapChain::links`]; `None` for the value that is away.
    parent: Option<usize>,
}

fn chains(problem: &Problem) -> Vec<GapChain> {
    let mut chains = Vec::new();
    for (id, value) in problem.values.iter().enumerate() {
        if !value.recomputed || value.kept || value.size == 0.0 {
            continue;
        }
        let mut after = value.producer;
        for &until in &value.readers {
            // Who reads it last before it is away may overwrite it.
            let overwritten = value.overwriters.contains(&after);
            let from = if overwritten { after } else { after + 1 };
            if from < until {
                let mut chain = GapChain {
                    value: id as ValueId,
                    after,
                    from,
                    until,
                    links: Vec::new(),
                };
                chain.find_links(problem);
                chains.push(chain);
            }
            after = until;
        }
    }
    chains
}

impl GapChain {
    fn overlaps(&self, other: &GapChain) -> bool {
        self.from < other.until && other.from < self.until
    }

    fn find_links(&mut self, problem: &Problem) {
        let away = &problem.values[self.value as usize];
        self.add_links(problem, away.producer, None);
        let mut next = 0;
        while next < self.links.len() && self.links.len() < MOST_RUNS {
            let value = &problem.values[self.links[next].value as usize];
            if value.recomputed {
                self.add_links(problem, value.producer, Some(next));
            }
            next += 1;
        }
    }

    /// What a copy of `node` reads and no original needs any more when the gap begins.
    fn add_links(&mut self, problem: &Problem, node: Step, parent: Option<usize>) {
        let away = &problem.values[self.value as usize];
        for &read in &problem.steps[node as usize].copy_reads {
            let value = &problem.values[read as usize];
            let ended = match value.readers.last() {
                Some(&last) => last < self.from,
                None => value.released,
            };
            let known = self.links.iter().any(|link| link.value == read);
            if ended && !value.kept && !known && value.size >= away.size {
                self.links.push(Link {
                    value: read,
                    parent,
                });
            }
        }
    }

    /// `None` if the value cannot be away to any use; `run` says by link whether its value is computed again.
    fn gap(&self, problem: &Problem, run: &[bool]) -> Option<Gap> {
        let away = &problem.values[self.value as usize];
        let mut runs = vec![away.producer];
        for (link, _) in self.links.iter().zip(run).filter(|(_, run)| **run) {
            let value = &problem.values[link.value as usize];
            if !value.recomputed {
                return None;
            }
            if !runs.contains(&value.producer) {
                runs.push(value.producer);
            }
        }
        Some(Gap {
            size: away.size,
            from: self.from,
            until: self.until,
            first: self.after + 1,
            runs,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bytes::Bytes;
    use crate::search::problem::{StepInfo, Value};

    /// A step for each entry: what its node reads, by producer. Every node takes 10 ns and writes
    /// one value of 100 bytes.
    fn problem(reads: &[&[Step]]) -> Problem {
        let readers = |of: usize| -> Vec<Step> {
            let reader = |step: &usize| reads[*step].contains(&(of as Step));
            let steps = (0..reads.len()).filter(reader);
            steps.map(|step| step as Step).collect()
        };
        let step = |at: usize| StepInfo {
            time: 10,
            again: 10,
            copy_time: 10,
            recomputable: true,
            writes: vec![at as ValueId],
            copy_reads: reads[at].to_vec(),
            ..StepInfo::default()
        };
        let value = |at: usize| Value {
            producer: at as Step,
            size: 100.0,
            recomputed: true,
            optional: false,
            released: true,
            kept: false,
            readers: readers(at),
            copy_readers: readers(at),
            overwriters: Vec::new(),
        };
        Problem {
            sites: Vec::new(),
            sites_of: Vec::new(),
            order: Vec::new(),
            steps: (0..reads.len()).map(step).collect(),
            values: (0..reads.len()).map(value).collect(),
            aliases_of: vec![Vec::new(); reads.len()],
            fixed: Bytes::ZERO,
            watch: Arc::default(),
        }
    }

    /// A chain 0 → 1 → 2 → 3 → 4 → 5, whose last node reads value 2 as well.
    fn chain() -> Problem {
        problem(&[&[], &[0], &[1], &[2], &[3], &[4, 2]])
    }

    fn runs(problem: &Problem, value: Step) -> Vec<Vec<Step>> {
        let gaps = gaps(problem).into_iter();
        let of_value = gaps.filter(|gap| gap.runs[0] == value);
        of_value.map(|gap| gap.runs).collect()
    }

    #[test]
    fn what_no_original_reads_any_more_runs_again_too() {
        assert_eq!(runs(&chain(), 2), [[2, 1, 0]]);
    }

    #[test]
    fn what_is_small_may_be_kept_instead() {
        let mut problem = chain();
        problem.values[1].size = 99.0;
        assert_eq!(runs(&problem, 2), [[2]]);
    }

    #[test]
    fn what_an_original_reads_later_is_there() {
        let mut problem = chain();
        problem.values[1].readers.push(4);
        assert_eq!(runs(&problem, 2), [[2]]);
    }

    #[test]
    fn what_cannot_be_brought_back_is_never_away() {
        let mut problem = chain();
        problem.values[0].recomputed = false;
        assert!(runs(&problem, 2).is_empty());
    }

    #[test]
    fn what_serves_two_values_may_be_kept_for_both() {
        // Values 1 and 2 are made of value 0 alone, and both are read again at the end.
        let mut problem = problem(&[&[], &[0], &[0], &[1, 2], &[3], &[4, 1, 2]]);
        // The first gap of value 1 is that at step 2, where value 0 is read. In the second one, 100 bytes
        // kept let 2 · 100 bytes go: one of them for nothing.
        assert_eq!(runs(&problem, 1), [vec![1], vec![1, 0]]);
        assert_eq!(runs(&problem, 2), [[2]]);
        // 200 bytes kept give nothing.
        problem.values[0].size = 200.0;
        assert_eq!(runs(&problem, 2), [[2, 0]]);
        // Of 150, the larger one takes more.
        problem.values[0].size = 150.0;
        problem.values[2].size = 149.0;
        assert_eq!(runs(&problem, 1), [vec![1], vec![1]]);
        assert_eq!(runs(&problem, 2), [[2, 0]]);
    }

    #[test]
    fn a_use_that_could_overwrite_belongs_to_the_gap_behind_it() {
        let mut problem = chain();
        // Value 2 is away at step 4; or at step 3 as well, whose result takes its place.
        assert_eq!(gaps(&problem)[0].from, 4);
        problem.values[2].overwriters.push(3);
        assert_eq!(gaps(&problem)[0].from, 3);
    }
}
