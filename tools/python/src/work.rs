//! Work beside the interpreter.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ckpt_opt::{Error, Event, Options, Warning};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::failed;

/// How often it is looked whether somebody pressed Ctrl-C.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Something that happened, to be told in Python: the name, and what belongs to it.
struct Told {
    event: &'static str,
    facts: Vec<(&'static str, Fact)>,
}

enum Fact {
    Text(String),
    Count(u64),
    Part(f64),
}

/// Does `work` in a thread of its own. Each event is a call `progress(event, **facts)`; an exception in it, or Ctrl-C,
/// cancels the work and is raised when that has ended.
pub(crate) fn working<T: Send>(
    py: Python<'_>,
    mut options: Options,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Options) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let (tell, told) = channel();
    if progress.is_some() {
        options.control.on_event = Some(Arc::new(move |event| hear(&tell, event)));
    }
    let cancel = options.control.cancel.clone();
    let mut raised = None;
    let (end, ended) = channel();
    // Who waits without the interpreter's lock may be another thread, as far as the compiler knows.
    let ended = Mutex::new(ended);
    let result = thread::scope(|scope| {
        scope.spawn(move || {
            let made = work(&options);
            // Ends `told`, which the options hold open.
            drop(options);
            let _ = end.send(made);
        });
        loop {
            let found = py.detach(|| {
                let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                ended.recv_timeout(BETWEEN_LOOKS)
            });
            let here = || -> PyResult<()> {
                while let (Some(progress), Ok(one)) = (&progress, told.try_recv()) {
                    call(py, progress, one)?;
                }
                py.check_signals()
            };
            if raised.is_none()
                && let Err(exception) = here()
            {
                cancel.cancel();
                raised = Some(exception);
            }
            match found {
                Ok(made) => return Some(made),
                Err(RecvTimeoutError::Timeout) => {}
                // It panicked, which the scope tells of.
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    });
    if let Some(exception) = raised {
        return Err(exception);
    }
    result
        .expect("a thread that panics ends the scope so")
        .map_err(failed)
}

fn call(py: Python<'_>, progress: &Py<PyAny>, told: Told) -> PyResult<()> {
    let facts = PyDict::new(py);
    for (name, fact) in told.facts {
        match fact {
            Fact::Text(text) => facts.set_item(name, text)?,
            Fact::Count(count) => facts.set_item(name, count)?,
            Fact::Part(part) => facts.set_item(name, part)?,
        }
    }
    progress.call(py, (told.event,), Some(&facts)).map(drop)
}

fn hear(tell: &Sender<Told>, event: &Event<'_>) {
    let text = |text: &dyn ToString| Fact::Text(text.to_string());
    let (event, facts) = match event {
        Event::Planning {
            nodes, strategy, ..
        } => {
            let nodes = Fact::Count(*nodes as u64);
            (
                "planning",
                vec![("nodes", nodes), ("strategy", text(strategy))],
            )
        }
        Event::Trying { dim, size } => (
            "trying",
            vec![("dim", text(dim)), ("size", Fact::Count(*size))],
        ),
        Event::Searching { evaluations, best } => {
            let mut facts = vec![("evaluations", Fact::Count(*evaluations))];
            if let Some(best) = best {
                let part = |time: u64| Fact::Part(time as f64 / best.step.max(1) as f64);
                facts.push(("overhead", part(best.added)));
                facts.push(("lower_bound_overhead", part(best.least)));
            }
            ("searching", facts)
        }
        Event::Writing { path } => ("writing", vec![("path", text(&path.display()))]),
        Event::Warning(warning) => {
            let kind = match warning {
                Warning::Doubt(_) => "doubt",
                Warning::GivenUp(_) => "given_up",
            };
            let facts = vec![("text", text(warning)), ("kind", text(&kind))];
            ("warning", facts)
        }
        _ => return,
    };
    // Who has ended does not want to know.
    let _ = tell.send(Told { event, facts });
}
