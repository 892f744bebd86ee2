//! The cheapest schedule within a budget: rounds of neighbourhood searches from the best starts, as long as the
//! gap to the bound is worth it.

use super::all_forms::FormNumber;
use super::neighbourhood;
use super::profile::Exponent;
use super::starts::Starts;
use super::state::State;
use super::tuning::SEARCH;
use super::{CHAINS, FoundSchedule, Missed, Search};
use crate::bytes::Bytes;
use crate::parallel;
use crate::plan::Plan;
use crate::watch::Best;

impl Search {
    /// The cheapest plan found whose every step stays within `budget`, what the caller owns
    /// included, if it adds less than `below` nanoseconds; given up when that is far off.
    pub fn cheaper(&mut self, budget: Bytes, below: u64) -> Result<Plan, Missed> {
        let within = self.improve_within(budget, below);
        let found = within.ok_or(Missed::TooLarge)?;
        match self.added(found.cost) < below {
            true => Ok(self.plan(&found.decisions)),
            false => Err(Missed::TooSlow),
        }
    }

    /// The best schedule found, not improved further when it is far from adding less than `below`.
    fn improve_within(&mut self, budget: Bytes, below: u64) -> Option<FoundSchedule> {
        let target = self.target(budget);
        let mut bounds = Vec::new();
        self.estimate(budget)?;
        let starts = self.starts.as_ref()?;
        let mut found = starts.found.clone();
        let rounds = match starts.improved {
            true => 0,
            false => SEARCH.most_rounds,
        };
        let effort = self.effort.evaluations / SEARCH.rounds;
        let mut given_up = false;
        let mut before: Option<u64> = None;
        let most_idle = match below {
            u64::MAX => SEARCH.idle_rounds,
            _ => SEARCH.idle_rounds_to_beat,
        };
        let mut idle = 0;
        for round in 0..rounds {
            let worth = if round < SEARCH.rounds {
                SEARCH.gap_not_worth_rounds
            } else {
                SEARCH.gap
            };
            let best = found.first()?;
            given_up = round > 0 && self.is_far(budget, best, below, &mut bounds);
            if given_up {
                break;
            }
            let gap = self.gap(budget, best, &mut bounds);
            let gained = before.replace(best.cost).map_or(f64::MAX, |before| {
                (before - best.cost) as f64 / self.problem.time()
            });
            idle = match gained < SEARCH.gain {
                true => idle + 1,
                false => 0,
            };
            if gap <= worth || idle >= most_idle || gap <= SEARCH.gap && idle > 0 {
                break;
            }
            let chains: Vec<u64> = (0..CHAINS).collect();
            let improved = parallel::map(&chains, |&chain| {
                let from = &found[chain as usize % found.len()];
                let mut state = State::new(&self.problem, target, Exponent::One);
                neighbourhood::restore(&mut state, &from.decisions);
                let seed = self.effort.seed.wrapping_mul(rounds).wrapping_add(round);
                let seed = seed.wrapping_mul(CHAINS).wrapping_add(chain);
                let noise = SEARCH.noise[chain as usize % SEARCH.noise.len()];
                neighbourhood::improve(&mut state, seed, noise, effort);
                self.problem.watch.count(state.evaluations());
                FoundSchedule::of(&state)
            });
            found.extend(improved);
            found.sort_by_key(|found| found.cost);
            found.truncate(1);
        }
        let best = found.first()?.clone();
        self.starts = Some(Starts {
            budget,
            found,
            improved: !given_up,
        });
        Some(best)
    }

    /// Would the search have to close more of the gap than is to be hoped for, to add less than `below`?
    fn is_far(
        &self,
        budget: Bytes,
        found: &FoundSchedule,
        below: u64,
        bounds: &mut Vec<(Vec<FormNumber>, u64)>,
    ) -> bool {
        let added = self.added(found.cost);
        if below == u64::MAX || added < below {
            return false;
        }
        let bound = self.bound_for(budget, found, bounds);
        (added - below) as f64 > SEARCH.hope * (added - bound) as f64
    }

    /// By how much a step with that schedule may be too long, as a part. Bounds for forms that were seen are
    /// looked up.
    fn gap(
        &self,
        budget: Bytes,
        found: &FoundSchedule,
        bounds: &mut Vec<(Vec<FormNumber>, u64)>,
    ) -> f64 {
        let once = self.problem.time();
        let added = self.added(found.cost);
        let bound = self.bound_for(budget, found, bounds);
        self.problem.watch.show(Best {
            added,
            least: bound,
            step: once as u64,
        });
        (once + added as f64) / (once + bound as f64).max(1.0) - 1.0
    }

    /// Nanoseconds that every schedule with the forms of `found` adds, at most what that does.
    fn bound_for(
        &self,
        budget: Bytes,
        found: &FoundSchedule,
        bounds: &mut Vec<(Vec<FormNumber>, u64)>,
    ) -> u64 {
        let added = self.added(found.cost);
        let forms = &found.decisions.forms;
        let known = bounds.iter().find(|(of, _)| of == forms);
        let bound = known.map(|&(_, bound)| bound.min(added));
        bound.unwrap_or_else(|| {
            let bound = self.bound_of(&found.decisions, budget, added).min(added);
            bounds.push((forms.clone(), bound));
            bound
        })
    }
}
