//! Greedy eviction: the move with the least added time per removed excess, again and again.
//!
//! A lazy priority queue stands in for scoring every candidate each time. A candidate's last
//! score is a good guess, since Φ falls as evictions are made and with it what a candidate can
//! still gain; the best guess is scored afresh and accepted if it stays the best.
//! What a move may have made cheaper is queued anew. In a large graph many candidates are worth much
//! the same, and a little less than the best is as good: that saves nine tenths of the scoring.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::all_forms::FormNumber;
use super::moves::{Excess, Supply, Use, earlier, evict, hoist, with_siblings};
use super::problem::{Problem, SiteId, Step, ValueId};
use super::state::{Copy, Move, State, spared_time};
use super::tuning::SEARCH;

/// Multiplies scores by something in 1.0..=1.0+amount, so that repeated runs differ.
pub(crate) struct Noise {
    pub(crate) random: crate::random::Random,
    pub(crate) amount: f64,
}

/// A score that can be sorted. Never NaN.
#[derive(Clone, Copy, Debug)]
struct Score(f64);

impl PartialEq for Score {
    fn eq(&self, other: &Score) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CandidateMove {
    /// The node runs again there, in whichever way is best.
    Copy(Copy),
    /// The site takes that form.
    Switch(SiteId, FormNumber),
}

/// A candidate with its score and the number of accepted moves when it was scored.
type QueuedMove = Reverse<(Score, CandidateMove, u64)>;

/// In place of that number: the score is only a bound.
const NEVER: u64 = u64::MAX;

/// What one run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// Every group fits.
    Budget,
    /// No candidate lowers Φ.
    Stuck,
    /// The allowance of evaluations is used up.
    Limit,
}

/// Evicts until everything fits, nothing helps, or its work passes `limit`.
pub(crate) fn greedy(state: &mut State<'_>, noise: &mut Option<Noise>, limit: u64) -> Reached {
    let steps = state.problem.steps.len();
    let tolerance = if steps > Problem::MOST_STEPS_IN_FULL {
        SEARCH.as_good_if_large
    } else {
        SEARCH.as_good
    };
    let mut run = GreedyRun {
        excess: Excess::of(state),
        stale_after: 1 + steps as u64 / Problem::MOST_STEPS_IN_FULL as u64,
        queue: BinaryHeap::new(),
        ceiling: f64::MAX,
        patience: SEARCH.ceiling,
        accepted: 0,
    };
    run.queue_all(state);
    let mut retried = false;
    while !state.fits() {
        if state.is_spent(limit) {
            return Reached::Limit;
        }
        let Some(Reverse((_, candidate, scored_at))) = run.queue.pop() else {
            // Candidates that did not help once, or cost too much, may help now.
            if retried && run.ceiling == f64::MAX {
                return Reached::Stuck;
            }
            run.excess = Excess::of(state);
            if retried {
                run.ceiling = f64::MAX;
                run.patience *= SEARCH.more_patience;
            }
            retried = true;
            run.queue_all(state);
            continue;
        };
        let Some((mut fresh, found)) = run.best(state, candidate) else {
            continue;
        };
        if let Some(noise) = noise {
            fresh *= 1.0 + noise.amount * noise.random.unit();
        }
        // What was scored in this very state keeps its place.
        let still_best = scored_at == run.accepted
            || run
                .queue
                .peek()
                .is_none_or(|Reverse((next, ..))| fresh <= next.0 * tolerance);
        if still_best {
            state.make(&found);
            run.accept(state, &found);
            run.ceiling = fresh * run.patience;
            retried = false;
        } else {
            let entry = (Score(fresh), candidate, run.accepted);
            run.queue.push(Reverse(entry));
        }
    }
    Reached::Budget
}

struct GreedyRun {
    excess: Excess,
    /// Brought up to date every so many moves: it falls as they are made, and what it says is a bound.
    stale_after: u64,
    queue: BinaryHeap<QueuedMove>,
    /// Ways that cost more per unit of Φ are not worth looking at yet.
    ceiling: f64,
    /// What it is, as a multiple of what the last accepted move cost.
    patience: f64,
    accepted: u64,
}

impl GreedyRun {
    fn queue_all(&mut self, state: &State<'_>) {
        for node in 0..state.problem.steps.len() as Step {
            self.queue_node(state, node);
        }
        for site in 0..state.problem.sites.len() as SiteId {
            self.queue_site(state, site);
        }
    }

    /// Queues every other form of the site that might help, with a score that is at most what it
    /// can reach.
    fn queue_site(&mut self, state: &State<'_>, site: SiteId) {
        if state.is_frozen() {
            return;
        }
        let problem = state.problem;
        let info = &problem.sites[site as usize];
        let now = state.form(site);
        let mut gain = 0.0;
        for &step in &info.forms[now as usize] {
            // It may need less itself.
            gain += state.weight(state.memory(step));
            for &value in &problem.steps[step as usize].reads {
                gain += self.gain_without(state, value, step);
            }
            for &value in &problem.steps[step as usize].writes {
                // Another form may write it later, and keep something smaller until then.
                let until = state.lives_until(value, (step + 1, 0)).0;
                let until = until.min(problem.steps.len() as Step);
                let size = problem.values[value as usize].size;
                let written = Use::original(step);
                gain += self.excess.largest_gain(state, size, written, until);
            }
        }
        if gain == 0.0 {
            return;
        }
        for (form, &time) in info.times.iter().enumerate() {
            let form = form as FormNumber;
            if form != now {
                let longer = time.saturating_sub(info.times[now as usize]);
                let bound = Score(longer.max(1) as f64 / gain);
                let entry = (bound, CandidateMove::Switch(site, form), NEVER);
                self.queue.push(Reverse(entry));
            }
        }
    }

    /// The most that Φ can fall if `reader` no longer reads the value.
    fn gain_without(&self, state: &State<'_>, value: ValueId, reader: Step) -> f64 {
        let info = &state.problem.values[value as usize];
        if !state.is_active(info.producer) || state.lives_until(value, (reader, reader)).0 > reader
        {
            return 0.0;
        }
        let before = info.readers.partition_point(|&other| other < reader);
        let mut before = info.readers[..before].iter();
        let before = before.rfind(|&&other| state.is_active(other));
        let before = Use::original(*before.unwrap_or(&info.producer));
        self.excess.largest_gain(state, info.size, before, reader)
    }

    /// Queues every use of the node's values before which the node could be computed again,
    /// with a score that is at most what it can reach.
    fn queue_node(&mut self, state: &State<'_>, node: Step) {
        let problem = state.problem;
        let info = &problem.steps[node as usize];
        if !info.recomputable || !state.is_active(node) {
            return;
        }
        let mut uses: Vec<Use> = Vec::new();
        let mut size = 0.0;
        for &value in &info.writes {
            let value = &problem.values[value as usize];
            if !value.recomputed || value.size == 0.0 {
                continue;
            }
            size += value.size;
            let reads = |reader: &&Step| **reader > node && state.is_active(**reader);
            let readers = value.readers.iter().filter(reads);
            uses.extend(readers.map(|&reader| Use::original(reader)));
            for &reader in &value.copy_readers {
                uses.extend(
                    state
                        .copies_of(reader)
                        .iter()
                        .map(|&before| Use::copy(before)),
                );
            }
        }
        if size == 0.0 {
            return;
        }
        let mut previous = Use::original(node);
        for use_ in Use::sorted(uses) {
            let before = use_.group;
            let copy = Copy { node, before };
            let groups = self.excess.behind(previous, before);
            let before_it = std::mem::replace(&mut previous, use_);
            if groups == 0 || state.has(copy) {
                continue;
            }
            let gain = self.excess.largest_gain(state, size, before_it, before);
            // Behind the original itself that may not be read any more.
            let spared = match info.whole && before_it == Use::original(node) {
                true => spared_time(info),
                false => 0,
            };
            let bound = (info.copy_time - spared).max(1) as f64 / gain.max(f64::MIN_POSITIVE);
            let entry = (Score(bound), CandidateMove::Copy(copy), NEVER);
            self.queue.push(Reverse(entry));
        }
    }

    fn accept(&mut self, state: &State<'_>, made: &Move) {
        self.accepted += 1;
        if self.accepted.is_multiple_of(self.stale_after) {
            self.excess = Excess::of(state);
        }
        let problem = state.problem;
        let mut nodes: Vec<Step> = Vec::new();
        let mut values: Vec<ValueId> = Vec::new();
        match made {
            Move::Toggle(copies) => {
                for copy in copies {
                    let info = &problem.steps[copy.node as usize];
                    nodes.push(copy.node);
                    values.extend(info.copy_reads.iter().chain(&info.writes));
                    for &value in &info.copy_reads {
                        nodes.push(problem.values[value as usize].producer);
                    }
                    for &value in &info.writes {
                        nodes.extend(&problem.values[value as usize].copy_readers);
                    }
                }
            }
            Move::Switch(site, _) => {
                for &step in problem.sites[*site as usize].forms.iter().flatten() {
                    let info = &problem.steps[step as usize];
                    nodes.push(step);
                    values.extend(info.reads.iter().chain(&info.writes));
                    let read = info.reads.iter();
                    nodes.extend(read.map(|&value| problem.values[value as usize].producer));
                }
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            self.queue_node(state, node);
        }
        let sites = values
            .iter()
            .flat_map(|&value| &problem.sites_of[value as usize]);
        let mut sites: Vec<SiteId> = sites.copied().collect();
        sites.sort_unstable();
        sites.dedup();
        for site in sites {
            self.queue_site(state, site);
        }
    }

    /// The best way to do it, if it lowers Φ at all.
    fn best(&self, state: &mut State<'_>, candidate: CandidateMove) -> Option<(f64, Move)> {
        match candidate {
            CandidateMove::Copy(copy) if state.has(copy) || !state.is_active(copy.node) => None,
            CandidateMove::Copy(copy) => {
                let (score, copies) = self.best_copies(state, copy)?;
                Some((score, Move::Toggle(copies)))
            }
            CandidateMove::Switch(site, form) if state.form(site) == form => None,
            CandidateMove::Switch(site, form) => {
                let switch = Move::Switch(site, form);
                Some((score(state, &switch)?, switch))
            }
        }
    }

    /// The best way to compute `copy`, if it lowers Φ at all.
    fn best_copies(&self, state: &mut State<'_>, copy: Copy) -> Option<(f64, Vec<Copy>)> {
        let problem = state.problem;
        let mut best: Option<(f64, Vec<Copy>)> = None;
        if let Some(extend) = evict(state, &self.excess, copy, Supply::Extend, f64::MAX) {
            consider(state, extend, &mut best);
        }
        if SEARCH.earlier
            && let Some(earlier) = earlier(state, copy)
        {
            consider(state, vec![earlier], &mut best);
        }
        if SEARCH.siblings
            && let Some(siblings) = with_siblings(state, &self.excess, copy)
        {
            consider(state, siblings, &mut best);
        }
        let written = problem.steps[copy.node as usize].writes.iter();
        let size = written
            .map(|&value| problem.values[value as usize].size)
            .sum();
        let gain = self
            .excess
            .largest_gain(state, size, Use::original(copy.node), copy.before);
        // What costs more than this cannot be better.
        let most = |best: &Option<(f64, Vec<Copy>)>| {
            best.as_ref().map_or(self.ceiling, |(score, _)| *score) * gain
        };
        let all = evict(state, &self.excess, copy, Supply::Recompute, most(&best));
        let all = all.filter(|toggles| toggles.len() > 1);
        let copies = all.as_ref().map_or(0, Vec::len);
        if let Some(all) = all {
            consider(state, all, &mut best);
        }
        if SEARCH.mixed && copies != 1 {
            let price = best.as_ref().map_or(f64::MAX, |(score, _)| *score);
            let supply = Supply::Cheaper(price);
            let mixed = evict(state, &self.excess, copy, supply, most(&best));
            if let Some(mixed) = mixed.filter(|mixed| mixed.len() > 1 && mixed.len() != copies) {
                consider(state, mixed, &mut best);
            }
        }
        if SEARCH.hoisted
            && let Some((score, toggles)) = &best
            && let Some(hoisted) = hoist(state, &self.excess, toggles, *score)
        {
            consider(state, hoisted, &mut best);
        }
        best
    }
}

/// Scores the toggles and keeps the better.
fn consider(state: &mut State<'_>, toggles: Vec<Copy>, best: &mut Option<(f64, Vec<Copy>)>) {
    let toggles = Move::Toggle(toggles);
    let score = score(state, &toggles);
    if let (Some(score), Move::Toggle(toggles)) = (score, toggles)
        && best.as_ref().is_none_or(|(least, _)| score < *least)
    {
        *best = Some((score, toggles));
    }
}

/// Nanoseconds for each unit of Φ that the move saves; `None` if it saves nothing.
fn score(state: &mut State<'_>, wanted: &Move) -> Option<f64> {
    let (phi, cost) = (state.phi(), state.cost());
    let undo = state.make(wanted);
    let (gain, added) = (phi - state.phi(), state.cost().saturating_sub(cost));
    state.undo(undo);
    // Φ is a sum of roundings; less than this is none.
    (gain > phi * 1e-12).then(|| added.max(1) as f64 / gain)
}
