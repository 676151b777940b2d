//! A problem as Python's `PeakledgerError`: options are called as Python calls them, and what was passed as an object has
//! no lines.

use peakledger_cli::is_flag;
use peakledger_input::{Place, Problem};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// Where what was asked about is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// Files: places are lines and columns.
    Files,
    /// An object of the program: places are JSON pointers.
    Object,
}

/// The exception for a problem.
pub(crate) fn raised(py: Python<'_>, problem: Problem, from: From) -> PyErr {
    match exception(py, in_python(problem), from) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

fn exception<'py>(py: Python<'py>, mut problem: Problem, from: From) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "peakledger._errors", "PeakledgerError")?;
    let fields = PyDict::new(py);
    fields.set_item("file", &problem.file)?;
    let place = match &problem.place {
        Some(Place::Text { pointer, .. }) if from == From::Object => Some(pointer.clone()),
        place => place.as_ref().map(Place::to_string),
    };
    fields.set_item("place", &place)?;
    fields.set_item("cause", &problem.cause)?;
    fields.set_item("mend", &problem.mend)?;
    if let (From::Object, Some(Place::Text { pointer, .. }), Some(file)) =
        (from, problem.place.clone(), problem.file.as_mut())
    {
        problem.place = None;
        if !pointer.is_empty() {
            file.push_str(&format!(" ({pointer})"));
        }
    }
    class.call((problem.to_string(),), Some(&fields))
}

/// The same problem in Python's words.
fn in_python(problem: Problem) -> Problem {
    let place = match problem.place {
        Some(Place::Option(option)) if option.starts_with("--") => Some(Place::Option(name(&option))),
        place => place,
    };
    let (cause, mend) = (words(&problem.cause), problem.mend.as_deref().map(words));
    Problem { place, cause, mend, ..problem }
}

/// `--seq-len` is `seq_len`, and `--from`, a word of Python's own, is `from_`.
fn name(option: &str) -> String {
    match option.trim_start_matches('-') {
        "from" => "from_".to_owned(),
        name => name.replace('-', "_"),
    }
}

/// A sentence in which what stands in backticks is Python's.
fn words(sentence: &str) -> String {
    let mut text = String::with_capacity(sentence.len());
    for (at, part) in sentence.split('`').enumerate() {
        if at % 2 == 0 {
            text.push_str(&part.replace("the command line", "the call"));
            continue;
        }
        let is_written = ["add ", "write "].iter().any(|verb| text.ends_with(verb));
        text.push('`');
        text.push_str(literal(part, is_written).as_deref().unwrap_or(part));
        text.push('`');
    }
    text
}

/// What the command line calls so, in Python, where it is to be written or is only named; nothing for what is called the
/// same.
fn literal(text: &str, is_written: bool) -> Option<String> {
    if let Some(what) = text.strip_prefix("peakledger list ") {
        return Some(format!("peakledger.list_{what}()"));
    }
    if let Some(verb) = text.strip_prefix("peakledger ").and_then(|text| text.strip_suffix(" --help")) {
        return Some(format!("help(peakledger.{verb})"));
    }
    if let Some((verb, rest)) = text.strip_prefix("peakledger ").and_then(|text| text.split_once(" MODEL")) {
        return match rest {
            "" => Some(format!("peakledger.{verb}(model)")),
            " --from FILE" => Some(format!("peakledger.{verb}(model, from_=\"FILE\")")),
            _ => None,
        };
    }
    if let Some(verb) = text.strip_prefix("peakledger ").filter(|verb| !verb.contains(' ')) {
        return Some(format!("peakledger.{verb}"));
    }
    let options = text.strip_prefix("--")?;
    // a value in quotes may have options in it
    let options: Vec<&str> = match options.contains('"') {
        true => vec![options],
        false => options.split(" --").collect(),
    };
    let is_alone = options.len() == 1;
    let options = options.into_iter().map(|option| match option.split_once([' ', '=']) {
        Some((option, value_)) => format!("{}={}", name(option), value(option, value_)),
        None if is_flag(option) && (is_written || !is_alone) => format!("{}=True", name(option)),
        None => name(option),
    });
    Some(options.collect::<Vec<_>>().join(", "))
}

/// The value of an option, as Python writes it.
fn value(option: &str, text: &str) -> String {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text {
        "N" => text.to_owned(),
        "true" => "True".to_owned(),
        "false" => "False".to_owned(),
        _ if is_number => text.to_owned(),
        _ if option == "lora" => {
            let parts = text.split(',').filter_map(|part| part.split_once('='));
            let parts: Vec<String> =
                parts.map(|(key, part)| format!("\"{key}\": {}", value(key, part))).collect();
            format!("{{{}}}", parts.join(", "))
        }
        _ => format!("\"{}\"", text.trim_matches('"')),
    }
}
