//! The command line: arguments in, an answer out, an exit code. One small file for each verb.
//!
//! Exit codes: 0 answered, 1 answered "no" (only where that was asked), 2 bad input or usage, 3 answered from a part of a
//! damaged file (only where that was asked). A reader that closes the pipe early (`| head`) has what it wanted, so that is 0.
//!
//! It has two doors: [`run`], which the binary calls, and [`Question`], by which a program asks what the command line
//! answers, with the same words, and hears it.

#![forbid(unsafe_code)]

mod among;
mod args;
mod combinations;
mod data_parallel_args;
mod examples;
mod extension;
mod from;
mod http;
mod levers;
mod lora_arg;
mod other_words;
mod output;
mod parallel_args;
mod parsers;
mod post_training_args;
mod progress;
mod question;
mod search_args;
mod server;
mod step_args;
mod usage;
mod usual;
mod usual_values;
mod values;
mod verbs;

pub use question::{Heard, Question, is_flag};

use clap::{CommandFactory, Parser};
use peakledger_input::Problem;
use std::ffi::OsString;
use std::io::{self, Write};

/// One ledger for training memory: where the peak is, who forms it, and what would change it.
#[derive(Parser)]
#[command(name = "peakledger", version, propagate_version = true, max_term_width = 100, after_help = examples::ALL)]
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

/// Does what the arguments say, the first of which is the name of the program, and returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return usage::answer(&error, &Cli::command(), arguments.get(1)),
    };
    match verbs::run(cli.verb) {
        Ok(Answer::Given) => 0,
        Ok(Answer::No) => 1,
        Ok(Answer::Part) => 3,
        Err(problem) => {
            report(&problem);
            2
        }
    }
}

fn report(problem: &Problem) {
    // nobody is left to tell where standard error is closed
    let _closed = writeln!(io::stderr(), "error: {problem}");
}
