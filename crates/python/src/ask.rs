//! What the command line answers, asked from Python: the same words in, the same JSON out.

use crate::away::away;
use crate::error::{From, raised};
use peakledger_cli::{Heard, Question};
use peakledger_input::Source;
use pyo3::prelude::*;
use std::ffi::OsString;

/// Asks a verb, with its arguments and options as the command line has them; with a config, about the model of that
/// config. Returns the JSON and the table.
#[pyfunction]
#[pyo3(signature = (words, config=None))]
pub(crate) fn ask(py: Python<'_>, words: Vec<String>, config: Option<String>) -> PyResult<(String, String)> {
    let from = if config.is_some() { From::Object } else { From::Files };
    let answer = away(py, move || {
        let question = Question::of(&words)?;
        let question = match config {
            Some(text) => question.about(Source::from_text("config", text)),
            None => question,
        };
        question.ask()
    })?;
    match answer {
        Ok(Heard { json, table }) => Ok((json, table)),
        Err(problem) => Err(raised(py, problem, from)),
    }
}

/// The command line itself: the program's name and its arguments in, the exit code out.
#[pyfunction]
pub(crate) fn run(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| peakledger_cli::run(arguments))
}
