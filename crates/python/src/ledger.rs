//! Ledgers: read from files and texts, shown and compared as the command line does.

use crate::away::away;
use crate::error::{From, raised};
use peakledger_core::compare;
use peakledger_core::document::{Document, LedgerFile};
use peakledger_input::{Input, Problem, Source, quoted};
use peakledger_report::{Candidate, CompareReport, Format, Look, Report, ShowReport, write};
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// A ledger that was read; it never changes.
#[pyclass(frozen, module = "peakledger._native")]
pub(crate) struct Ledger {
    loaded: Arc<Loaded>,
}

struct Loaded {
    name: String,
    file: LedgerFile,
}

#[pymethods]
impl Ledger {
    /// The ledger of a file.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Ledger> {
        let read = away(py, move || peakledger_input::open_ledger(&Input::File(path)))?;
        let (name, file) = read.map_err(|problem| raised(py, problem, From::Files))?;
        Ok(Ledger { loaded: Arc::new(Loaded { name, file }) })
    }

    /// The ledger of a JSON text.
    #[staticmethod]
    fn parse(py: Python<'_>, text: String) -> PyResult<Ledger> {
        let name = "ledger".to_owned();
        let read = away(py, move || peakledger_input::read_ledger(&Source::from_text("ledger", text)))?;
        let file = read.map_err(|problem| raised(py, problem, From::Object))?;
        Ok(Ledger { loaded: Arc::new(Loaded { name, file }) })
    }

    /// Phases, peak and contributors: the JSON and the table of `peakledger show`.
    fn show(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let loaded = Arc::clone(&self.loaded);
        away(py, move || written(&ShowReport { name: &loaded.name, file: &loaded.file }))?
    }

    /// Candidates against this ledger, those inside it first: the JSON and the table of `peakledger compare`.
    fn compare(
        &self,
        py: Python<'_>,
        candidates: Vec<(String, PyRef<'_, Ledger>)>,
    ) -> PyResult<(String, String)> {
        let baseline = Arc::clone(&self.loaded);
        let opened: Vec<(String, Arc<Loaded>)> =
            candidates.into_iter().map(|(name, ledger)| (name, Arc::clone(&ledger.loaded))).collect();
        let compared = away(py, move || {
            let inside = baseline.file.candidates.iter().map(|(name, ledger)| (&**name, ledger));
            let outside = opened.iter().map(|(name, other)| (&**name, &other.file.ledger));
            let pairs: Vec<_> = inside.chain(outside).collect();
            check_names(pairs.iter().map(|(name, _)| *name))?;
            let compared = |(name, ledger)| Candidate {
                name,
                ledger,
                comparison: compare(&baseline.file.ledger, ledger),
            };
            Ok(written(&CompareReport {
                baseline_name: &baseline.name,
                baseline: &baseline.file.ledger,
                baseline_op: baseline.file.peak_op(),
                candidates: pairs.into_iter().map(compared).collect(),
            }))
        })?;
        compared.map_err(|problem| raised(py, problem, From::Object))?
    }

    /// The ledger as JSON, in the document form.
    fn document(&self, py: Python<'_>) -> PyResult<String> {
        let loaded = Arc::clone(&self.loaded);
        let text = away(py, move || {
            let file = &loaded.file;
            let mut document =
                Document::from_ledger(&file.ledger).with_incomplete(file.incomplete.as_deref());
            if let Some(note) = &file.note {
                document = document.with_note(note.to_string());
            }
            if file.peak_ops.iter().any(Option::is_some) {
                document = document.with_peak_ops(file.peak_ops.iter().map(Option::as_deref));
            }
            for (name, ledger) in &file.candidates {
                document = document.with_candidate(&**name, ledger);
            }
            serde_json::to_string(&document)
        })?;
        text.map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))
    }

    /// How many states it has.
    fn __len__(&self) -> usize {
        self.loaded.file.ledger.states().len()
    }
}

/// Every candidate has a name of its own, and there is one.
fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(Problem::anywhere("a candidate with an empty name").mend("give it a name"));
        }
        if !seen.insert(name) {
            let cause = format!("two candidates are named {}", quoted(name));
            return Err(Problem::anywhere(cause).mend("give each candidate a name of its own"));
        }
    }
    if seen.is_empty() {
        let problem = Problem::anywhere("no candidates inside the ledger, and none given to compare it with");
        return Err(problem.mend("name one: `ledger.compare({\"name\": other})`"));
    }
    Ok(())
}

/// A report's JSON and table.
fn written(report: &dyn Report) -> PyResult<(String, String)> {
    let text = |format| -> PyResult<String> {
        let mut text = Vec::new();
        write(report, format, &Look::default(), &mut text)?;
        Ok(String::from_utf8(text)?)
    };
    Ok((text(Format::Json)?, text(Format::Table)?))
}
