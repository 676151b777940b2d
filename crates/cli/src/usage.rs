//! What is wrong with the arguments, in the form of every other problem: the option, the cause and the mend.

use crate::report;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use peakledger_input::{Problem, near, quoted};
use peakledger_plan::options::Recompute;
use std::error::Error;
use std::process::ExitCode;

/// Options of `plan` that are designed (`--help` lists those that are there) and not planned yet.
const NOT_YET: [&str; 17] = [
    "--attention-mask",
    "--experts",
    "--offload",
    "--gpus",
    "--dp",
    "--zero",
    "--fsdp",
    "--tp",
    "--sp",
    "--pp",
    "--schedule",
    "--virtual-stages",
    "--cp",
    "--ep",
    "--etp",
    "--rank",
    "--stack",
];

/// Answers arguments that are none, or a request for help.
pub(crate) fn answer(error: &clap::Error) -> ExitCode {
    let is_plan = std::env::args_os().nth(1).is_some_and(|verb| verb == "plan");
    match explained(error).filter(|_| is_plan || error.kind() != ErrorKind::UnknownArgument) {
        Some(problem) => report(&problem),
        None => {
            let _closed = error.print(); // nobody is left to tell where the stream is closed
        }
    }
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

/// What clap found, where this project has better words for it.
pub(crate) fn explained(error: &clap::Error) -> Option<Problem> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg)?;
    let option = argument.split([' ', '=', '[']).next().unwrap_or(argument);
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    if !option.starts_with('-') {
        return None; // clap's own words do where there is no option to name
    }
    match error.kind() {
        ErrorKind::UnknownArgument if NOT_YET.contains(&option) => {
            let problem = Problem::in_option(option, "not planned yet");
            Some(problem.mend("leave it out; `peakledger plan --help` lists the options that there are"))
        }
        ErrorKind::InvalidValue => {
            let Some(ContextValue::Strings(known)) = error.get(ContextKind::ValidValue) else { return None };
            let listed = known.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
            let cause = match value {
                "" => "its value is missing".to_owned(),
                value => format!("{} is none of its values", quoted(value)),
            };
            let mend = match near(value, known.iter().map(String::as_str)) {
                Some(meant) => format!("did you mean `{meant}`? They are {listed}"),
                None => format!("choose one of {listed}"),
            };
            Some(Problem::in_option(option, cause).mend(mend))
        }
        ErrorKind::ValueValidation => {
            let why = error.source()?;
            let problem = why.downcast_ref::<Problem>().cloned().unwrap_or_else(|| {
                let mend = format!("`--help` says how `{option}` is written");
                Problem::anywhere(format!("{} is not understood: {why}", quoted(value))).mend(mend)
            });
            Some(problem.at(peakledger_input::Place::Option(option.to_owned())))
        }
        _ => None,
    }
}

/// A number of sequences, tokens or the like; that it is not 0 is checked where it is known what it counts.
pub(crate) fn count<N: TryFrom<u64>>(text: &str) -> Result<N, Problem> {
    let wrong = |cause: &str, mend: &str| Problem::anywhere(format!("{} {cause}", quoted(text))).mend(mend);
    // more than this is beyond any use, and keeps products of two numbers far from 64 bits
    const MOST: u64 = 1 << 32;
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        let number = text.parse::<u64>().ok().filter(|number| *number <= MOST).map(N::try_from);
        return match number {
            Some(Ok(number)) => Ok(number),
            _ => Err(wrong("is more than 2^32", "check the number")),
        };
    }
    Err(wrong("is not a whole number", "it is a whole number of 1 or more, in plain digits"))
}

/// The momentum, a number; its range is checked with the step.
pub(crate) fn momentum(text: &str) -> Result<f64, Problem> {
    text.parse().map_err(|_| {
        Problem::anywhere(format!("{} is not a number", quoted(text))).mend("use a number from 0 to 1")
    })
}

/// What is computed again: none, full, or every:N.
pub(crate) fn recompute(text: &str) -> Result<Recompute, Problem> {
    let wrong = |cause: String| {
        Problem::anywhere(cause).mend("choose one of `none`, `full`, `every:N` (as in `every:4`)")
    };
    match text.split_once(':') {
        None if text == "none" => Ok(Recompute::None),
        None if text == "full" => Ok(Recompute::Full),
        Some(("every", layers)) => match layers.parse() {
            Ok(layers) => Ok(Recompute::Every(layers)),
            Err(_) => Err(wrong(format!("{} is no number of layers", quoted(layers)))),
        },
        _ => Err(wrong(format!("{} is none of its values", quoted(text)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_what_is_none() {
        assert_eq!((count::<u64>("4096").ok(), count::<u64>("0").ok()), (Some(4096), Some(0)));
        for (text, says) in [
            ("-1", "`-1` is not a whole number"),
            ("1e3", "`1e3` is not a whole number"),
            ("1.5", "not a whole number"),
            ("", "not a whole number"),
            ("1000000000000", "is more than 2^32"),
            ("99999999999999999999999", "is more than 2^32"),
        ] {
            let said = count::<u64>(text).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("\n  help: "), "{said}");
        }
        assert!(count::<u32>("4294967296").is_err(), "no room in 32 bits");
        assert!(momentum("a lot").is_err());
    }
}
