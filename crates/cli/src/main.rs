//! The `peakledger` binary: arguments in, an answer out, an exit code. One small file for each verb.
//!
//! Exit codes: 0 answered, 1 answered "no" (only where that was asked), 2 bad input or usage, 3 answered from a part of a
//! damaged file (only where that was asked). A reader that closes the
//! pipe early (`| head`) has what it wanted, so that is 0.

#![forbid(unsafe_code)]

mod args;
mod output;
mod progress;
mod server;
mod step_args;
mod usage;
mod usual;
mod verbs;

use clap::{CommandFactory, Parser};
use peakledger_input::Problem;
use std::io::{self, Write};
use std::process::ExitCode;

/// One ledger for training memory: where the peak is, who forms it, and what would change it.
#[derive(Parser)]
#[command(name = "peakledger", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: verbs::Verb,
}

/// What a verb found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It answered.
    Given,
    /// It answered no, and was asked to say so by its exit code.
    No,
    /// It answered from a part of a damaged file, as it was asked to.
    Part,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error, &Cli::command()),
    };
    match verbs::run(cli.verb) {
        Ok(Answer::Given) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Ok(Answer::Part) => ExitCode::from(3),
        Err(problem) => {
            report(&problem);
            ExitCode::from(2)
        }
    }
}

fn report(problem: &Problem) {
    // nobody is left to tell where standard error is closed
    let _closed = writeln!(io::stderr(), "error: {problem}");
}
