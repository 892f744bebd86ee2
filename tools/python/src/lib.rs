//! The native half of the Python package `ckpt_opt`: arguments in, JSON and bytes out. What people call is in
//! `python/ckpt_opt/__init__.py`.
//!
//! Work is done without the interpreter's lock, in a thread of its own. Meanwhile the caller's thread hands on progress
//! and looks for Ctrl-C, which cancels the work.

mod arguments;
mod work;

use pyo3::prelude::*;

#[pymodule]
mod _ckpt_opt {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::path::PathBuf;
    use std::sync::Mutex;

    use ckpt_opt::inputs::Optimizer;
    use ckpt_opt::{Budget, cli, usual_budgets};
    use pyo3::exceptions::PyRuntimeError;
    use pyo3::prelude::*;
    use pyo3::types::PyBytes;

    use super::arguments::{Settings, Source, failed, find_optimizer};
    use super::work::working;

    #[pymodule_export]
    use super::arguments::{CkptOptError, InfeasibleError, UsageError};

    /// A graph that fits, and what is known of it; not written yet.
    #[pyclass]
    struct Rewritten(Mutex<Option<ckpt_opt::Rewritten>>);

    impl Rewritten {
        fn new(rewritten: ckpt_opt::Rewritten) -> Rewritten {
            Rewritten(Mutex::new(Some(rewritten)))
        }

        fn with<T>(&self, look: impl FnOnce(&ckpt_opt::Rewritten) -> T) -> PyResult<T> {
            let rewritten = self.0.lock().ok();
            let look = rewritten.as_ref().and_then(|one| one.as_ref()).map(look);
            look.ok_or_else(|| {
                PyRuntimeError::new_err("it is being written, or could not be written")
            })
        }

        /// Does something that makes another of it.
        fn done<T: Send>(
            &self,
            py: Python<'_>,
            work: impl FnOnce(ckpt_opt::Rewritten) -> Result<(T, ckpt_opt::Rewritten), ckpt_opt::Error>
            + Send,
        ) -> PyResult<T> {
            let taken = self.0.lock().ok().and_then(|mut one| one.take());
            let rewritten = taken.ok_or_else(|| {
                PyRuntimeError::new_err("it is being written, or could not be written")
            })?;
            let (made, rewritten) = py.detach(|| work(rewritten)).map_err(failed)?;
            if let Ok(mut place) = self.0.lock() {
                *place = Some(rewritten);
            }
            Ok(made)
        }
    }

    #[pymethods]
    impl Rewritten {
        /// What `--report` writes.
        fn report(&self) -> PyResult<String> {
            self.with(ckpt_opt::Rewritten::report)
        }

        /// What `ckpt-opt` prints.
        fn table(&self, output: Option<PathBuf>) -> PyResult<String> {
            self.with(|one| one.table(output.as_deref()))
        }

        /// Memory over one step, as an SVG image.
        fn plot(&self) -> PyResult<String> {
            self.with(ckpt_opt::Rewritten::plot)
        }

        /// The same, as a PNG file.
        fn png<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
            let bytes = self.with(ckpt_opt::Rewritten::png)?.map_err(failed)?;
            Ok(PyBytes::new(py, &bytes))
        }

        fn page(&self) -> PyResult<String> {
            self.with(|rewritten| rewritten.page(None))
        }

        fn trace(&self) -> PyResult<String> {
            self.with(ckpt_opt::Rewritten::trace)
        }

        /// What `--session-options` writes.
        fn session(&self) -> PyResult<String> {
            self.with(|one| one.session().json())
        }

        /// What the user should look at.
        fn warnings(&self) -> PyResult<Vec<String>> {
            self.with(|one| one.warnings().iter().map(ToString::to_string).collect())
        }

        /// Writes the file, whole and proved, or not at all.
        fn write(&self, py: Python<'_>, output: PathBuf) -> PyResult<()> {
            self.done(py, |one| Ok(((), one.write(&output)?)))
        }

        /// The file as bytes.
        fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
            let bytes = self.done(py, ckpt_opt::Rewritten::to_bytes)?;
            Ok(PyBytes::new(py, &bytes))
        }
    }

    #[pyfunction]
    fn optimize(
        py: Python<'_>,
        model: Source,
        budget: &str,
        settings: Settings,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Rewritten> {
        let budget = parsed(budget)?;
        let options = settings.options()?;
        let rewritten = working(py, options, progress, |options| {
            ckpt_opt::optimize(&model.open()?, &budget, options)
        })?;
        Ok(Rewritten::new(rewritten))
    }

    /// Writes the model in standard operators, whole or not at all.
    #[pyfunction]
    fn lower(
        py: Python<'_>,
        model: Source,
        output: PathBuf,
        dims: BTreeMap<String, u64>,
        optimizer: Option<Source>,
    ) -> PyResult<()> {
        let done = py.detach(|| {
            let found = optimizer.as_ref().map(find_optimizer).transpose()?;
            let update = found.map(Optimizer::update).transpose()?;
            ckpt_opt::lower(&model.open()?, &dims, update)?.write(&output)
        });
        done.map_err(failed)
    }

    #[pyfunction]
    fn inspect(
        py: Python<'_>,
        model: Source,
        settings: Settings,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(String, String)> {
        let options = settings.options()?;
        let found = working(py, options, progress, |options| {
            ckpt_opt::inspect(&model.open()?, options)
        })?;
        Ok((found.json(), found.table()))
    }

    #[pyfunction]
    fn verify(
        py: Python<'_>,
        original: Source,
        rewritten: Source,
        settings: Settings,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let options = settings.options()?;
        let found = working(py, options, progress, |options| {
            ckpt_opt::verify(&original.open()?, &rewritten.open()?, options)
        })?;
        Ok(found.json())
    }

    #[pyfunction]
    fn sweep(
        py: Python<'_>,
        model: Source,
        budgets: Option<Vec<String>>,
        settings: Settings,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(String, String)> {
        let budgets = match budgets {
            None => usual_budgets(),
            Some(texts) => texts
                .iter()
                .map(|text| parsed(text))
                .collect::<PyResult<_>>()?,
        };
        let options = settings.options()?;
        let strategy = [options.strategy];
        let found = working(py, options, progress, |options| {
            ckpt_opt::sweep(&model.open()?, &budgets, &strategy, options)
        })?;
        Ok((found.json(), found.sweep()))
    }

    #[pyfunction]
    fn largest(
        py: Python<'_>,
        model: Source,
        dim: &str,
        budget: &str,
        at_most: Option<f64>,
        settings: Settings,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(String, Option<Rewritten>)> {
        let budget = parsed(budget)?;
        let options = settings.options()?;
        let mut found = working(py, options, progress, |options| {
            ckpt_opt::largest(&model.open()?, dim, &budget, at_most, options)
        })?;
        let json = found.json(dim);
        Ok((json, found.rewritten.take().map(Rewritten::new)))
    }

    /// The command line; gives the exit status.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| cli::main_with(arguments))
    }

    fn parsed(budget: &str) -> PyResult<Budget> {
        budget
            .parse::<Budget>()
            .map_err(|problem| UsageError::new_err(format!("budget {budget:?}: {problem}")))
    }
}
