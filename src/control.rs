//! What a caller sees while it waits, and how it ends the wait.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ckpt_passes::pass::{Ran, Runner};
use ckpt_passes::strategy::Strategy;
use ckpt_passes::watch::{Best, Watch};

/// How often a search is looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Something that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A search begins.
    Planning {
        /// Of a graph with so many nodes,
        nodes: usize,
        /// in this way,
        strategy: Strategy,
        /// for this budget, as it was written; `None` for a row of them.
        budget: Option<&'a str>,
    },
    /// A size of a dimension is tried.
    Trying {
        /// The dimension,
        dim: &'a str,
        /// and its size.
        size: u64,
    },
    /// A search goes on; told ten times a second, from another thread.
    Searching {
        /// The work done: lives of values that were worked out.
        evaluations: u64,
        /// The best schedule so far.
        best: Option<Best>,
    },
    /// A file is being written beside its place, to be verified there.
    Writing {
        /// Its place.
        path: &'a Path,
    },
    /// One of a GPU's measurements begins.
    Measuring {
        /// How many there were, with this one.
        done: usize,
        /// How many there will be.
        all: usize,
        /// What is measured.
        what: &'a str,
    },
    /// A pass ran, on one of the graphs that are tried before one is written; several run at once.
    Ran(Ran<'a>),
    /// Something the user should look at.
    Warning(&'a Warning),
}

/// Something the user should look at: a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The model, the options and the files that they name do not quite go together.
    Doubt(String),
    /// A plan could not be proved to be right, and was given up for another: what it was. A fault of this program,
    /// which harms nothing and should be reported.
    GivenUp(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Doubt(text) => f.write_str(text),
            Warning::GivenUp(fault) => write!(
                f,
                "a plan could not be proved to be right, and was given up for another: {fault}; what is written is \
                 proved. Please report this with the file"
            ),
        }
    }
}

/// Is called with everything that happens.
pub type OnEvent = dyn Fn(&Event<'_>) + Send + Sync;

/// Whom to tell, and who may say that it is enough.
#[derive(Clone, Default)]
pub struct Control {
    /// Called for everything that happens; from several threads, one at a time for each.
    pub on_event: Option<Arc<OnEvent>>,
    /// Ends the work, which then fails with [`crate::Error::Cancelled`].
    pub cancel: Cancel,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_told = self.on_event.is_some();
        f.debug_struct("Control")
            .field("on_event", &is_told)
            .field("cancel", &self.cancel)
            .finish()
    }
}

impl Control {
    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Some(on_event) = &self.on_event {
            on_event(event);
        }
    }

    /// What runs passes, and tells of each.
    pub(crate) fn passes(&self) -> Runner {
        let Some(on_event) = self.on_event.clone() else {
            return Runner::default();
        };
        Runner::telling(Arc::new(move |ran| on_event(&Event::Ran(*ran))))
    }

    /// What ends a search: this, or the time limit.
    pub(crate) fn watch(&self, limit: Option<Duration>) -> Arc<Watch> {
        let watch = Arc::new(Watch::stopped_by(self.cancel.0.clone()));
        if let Some(limit) = limit {
            end_after(limit, &watch);
        }
        watch
    }

    /// Does the work, and tells how far it is.
    pub(crate) fn watching<T>(&self, watch: &Watch, work: impl FnOnce() -> T) -> T {
        if self.on_event.is_none() {
            return work();
        }
        let (working, done) = channel::<()>();
        thread::scope(|scope| {
            let look = move || {
                while let Err(RecvTimeoutError::Timeout) = done.recv_timeout(BETWEEN_LOOKS) {
                    self.tell(&Event::Searching {
                        evaluations: watch.evaluations(),
                        best: watch.best(),
                    });
                }
            };
            // Without a thread to spare, nothing is told.
            let _ = thread::Builder::new().spawn_scoped(scope, look);
            // Dropped when the work is done or panics, so that whoever looks ends at once.
            let _working = working;
            work()
        })
    }
}

/// Ends what it watches when the time is over. The thread ends with the program.
fn end_after(limit: Duration, watch: &Arc<Watch>) {
    let watched = watch.clone();
    let wait = move || {
        thread::sleep(limit);
        watched.stop();
    };
    if thread::Builder::new().spawn(wait).is_err()
        && let Some(end) = Instant::now().checked_add(limit)
    {
        // No thread is to be had: whoever searches looks at the clock.
        watch.stop_at(end);
    }
}

/// Ends work from another thread; clones end the same work.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the work as soon as that can be. Nothing is written that was not in its place already.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Was that said?
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
