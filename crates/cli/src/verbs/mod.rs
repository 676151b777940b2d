//! The verbs, each in its file: arguments, what they ask for, and the answer.

mod beyond;
mod check;
mod compare;
mod diff;
pub(crate) mod drawable;
mod fit;
mod list;
pub(crate) mod plan;
mod post_training;
mod read;
mod reconcile;
mod replay;
mod report;
mod search;
mod serve;
mod show;
mod traced;

use crate::Answer;
use crate::args::{Model, OutputArgs};
use clap::Subcommand;
use peakledger_input::Problem;

/// What can be asked.
#[derive(Subcommand)]
pub(crate) enum Verb {
    Check(check::Args),
    Show(show::Args),
    Compare(compare::Args),
    Plan(Box<plan::Args>),
    Fit(Box<fit::Args>),
    Read(Box<read::Args>),
    Replay(Box<replay::Args>),
    Reconcile(reconcile::Args),
    Diff(diff::Args),
    Report(report::Args),
    Serve(serve::Args),
    List(list::Args),
}

impl Verb {
    /// Where its answer goes; nothing of what stays and answers a browser.
    pub(crate) fn output(&mut self) -> Option<&mut OutputArgs> {
        Some(match self {
            Verb::Check(args) => &mut args.output,
            Verb::Show(args) => &mut args.output,
            Verb::Compare(args) => &mut args.output,
            Verb::Plan(args) => &mut args.output,
            Verb::Fit(args) => &mut args.output,
            Verb::Replay(args) => &mut args.output,
            Verb::Read(args) => &mut args.output,
            Verb::Reconcile(args) => &mut args.output,
            Verb::Diff(args) => &mut args.output,
            Verb::Report(args) => &mut args.output,
            Verb::Serve(_) => return None,
            Verb::List(args) => &mut args.output,
        })
    }

    /// The model that it is about.
    pub(crate) fn model(&mut self) -> Option<&mut Model> {
        match self {
            Verb::Plan(args) => args.model.as_mut(),
            Verb::Fit(args) => args.model.as_mut(),
            _ => None,
        }
    }
}

/// Asks it.
pub(crate) fn run(verb: Verb) -> Result<Answer, Problem> {
    match verb {
        Verb::Check(args) => check::run(args),
        Verb::Show(args) => show::run(args),
        Verb::Compare(args) => compare::run(args),
        Verb::Plan(args) => plan::run(*args),
        Verb::Fit(args) => fit::run(*args),
        Verb::Read(args) => read::run(*args),
        Verb::Reconcile(args) => reconcile::run(args),
        Verb::Replay(args) => replay::run(*args),
        Verb::Diff(args) => diff::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Serve(args) => serve::run(args),
        Verb::List(args) => list::run(args),
    }
}
