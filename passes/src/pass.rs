//! What a pass is, and how it is run: by name, seen from outside, and with its result checked.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::graph::Graph;
use crate::verify;

/// Whether a pass altered the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The graph is what it was.
    No,
    /// Something was altered.
    Yes,
}

impl From<bool> for Changed {
    fn from(changed: bool) -> Changed {
        if changed { Changed::Yes } else { Changed::No }
    }
}

/// One rewriting of a graph. What a pass needs to know is in its fields;
/// its documentation says what it **does**, **needs** and **keeps**.
pub trait Pass {
    /// The pass's name, in kebab case: one of [`NAMES`].
    const NAME: &'static str;

    /// Why the pass can fail.
    type Error: std::error::Error;

    /// Rewrites `graph`, or says why not; after an error the graph must not be used.
    fn run(&self, graph: &mut Graph) -> Result<Changed, Self::Error>;
}

/// The passes, in the sequence in which they run on what is written. Barriers are put in by what looks for them.
pub const NAMES: [&str; 14] = [
    "take-apart",
    "infer-shapes",
    "apply-variants",
    "insert-mirrors",
    "unmark-fused",
    "add-apart",
    "keep-apart",
    "forward-summands",
    "release-unread",
    "keep-layout",
    "overwrite-last",
    "hide-sizes",
    INSERT_BARRIERS,
    "colour-shapes",
];

pub(crate) const INSERT_BARRIERS: &str = "insert-barriers";

/// One run of a pass, over.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'g> {
    /// Its name.
    pub pass: &'static str,
    /// Did it alter the graph?
    pub changed: Changed,
    /// How long it took.
    pub took: Duration,
    /// What it left.
    pub graph: &'g Graph,
}

/// Runs passes. Many graphs are tried before one is written, several of them at once: whoever looks on is told of all.
#[derive(Clone, Default)]
pub struct Runner {
    on_pass: Option<Arc<OnPass>>,
}

/// Is called after each run of a pass, from whichever thread it ran in.
pub type OnPass = dyn Fn(&Ran<'_>) + Send + Sync;

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_seen = self.on_pass.is_some();
        f.debug_struct("Runner").field("is_seen", &is_seen).finish()
    }
}

impl Runner {
    /// One that tells of each run.
    pub fn telling(on_pass: Arc<OnPass>) -> Runner {
        Runner {
            on_pass: Some(on_pass),
        }
    }

    /// Rewrites `graph`.
    pub fn run<P: Pass>(&self, pass: &P, graph: &mut Graph) -> Result<Changed, P::Error> {
        let started = Instant::now();
        // Some are given graphs that nobody looked at yet.
        let was_sound = cfg!(debug_assertions) && verify::structure(graph).is_ok();
        let changed = pass.run(graph)?;
        if was_sound && let Err(violation) = verify::structure(graph) {
            debug_assert!(false, "{} left a broken graph: {violation}", P::NAME);
        }
        self.tell(P::NAME, changed, started, graph);
        Ok(changed)
    }

    /// Says that something like a pass is over.
    pub(crate) fn tell(
        &self,
        pass: &'static str,
        changed: Changed,
        started: Instant,
        graph: &Graph,
    ) {
        if let Some(on_pass) = &self.on_pass {
            on_pass(&Ran {
                pass,
                changed,
                took: started.elapsed(),
                graph,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::sync::Mutex;

    use super::*;
    use crate::operators::variants::Group;
    use crate::optimize::{BudgetRequest, PlanOptions, optimize};
    use crate::runtime::Runtime;
    use crate::strategy::Strategy;
    use crate::strategy::tests::options;
    use crate::testing::random_training_graph;

    /// The passes that are told of while graphs are rewritten, and which of them altered one.
    fn seen(variants: BTreeSet<Group>) -> [BTreeSet<&'static str>; 2] {
        let seen = Arc::new(Mutex::new([BTreeSet::new(), BTreeSet::new()]));
        let noted = seen.clone();
        let on_pass = move |ran: &Ran<'_>| {
            let mut seen = noted.lock().expect("nobody panicked");
            seen[0].insert(ran.pass);
            if ran.changed == Changed::Yes {
                seen[1].insert(ran.pass);
            }
        };
        let options = PlanOptions {
            variants,
            runtime: Runtime::DEFAULT,
            runner: Runner::telling(Arc::new(on_pass)),
            ..options(Strategy::Auto, BudgetRequest::Smallest)
        };
        for seed in 0..4 {
            optimize(&random_training_graph(seed, 40), &options).expect("a smallest peak");
        }
        Mutex::lock(&seen).expect("nobody panicked").clone()
    }

    #[test]
    fn every_pass_that_runs_has_its_name_in_the_list_and_each_of_the_list_runs() {
        let [ran, changed] = seen(Group::ALL.into());
        assert_eq!(ran, BTreeSet::from(NAMES));
        for pass in ["insert-mirrors", "insert-barriers", "hide-sizes"] {
            assert!(changed.contains(pass), "{pass}: {changed:?}");
        }
    }

    struct Breaks;

    impl Pass for Breaks {
        const NAME: &str = "breaks";
        type Error = Infallible;

        fn run(&self, graph: &mut Graph) -> Result<Changed, Infallible> {
            let mut order = graph.order().to_vec();
            order.reverse();
            graph.set_order(order);
            Ok(Changed::Yes)
        }
    }

    #[test]
    #[should_panic(expected = "breaks left a broken graph")]
    fn a_pass_that_breaks_a_graph_is_named() {
        let mut graph = random_training_graph(1, 20);
        let Ok(_) = Runner::default().run(&Breaks, &mut graph);
    }
}
