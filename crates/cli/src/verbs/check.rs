//! `peakledger check`: is a ledger valid.

use super::open_ledger;
use crate::Answer;
use crate::args::OutputArgs;
use peakledger_input::Problem;
use peakledger_report::CheckReport;
use std::path::PathBuf;

/// Check that a ledger is valid, and say in one line what is in it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The ledger file; `-` reads standard input
    ledger: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[&args.ledger])?;
    let ledger = open_ledger(&args.ledger)?;
    output.write(&CheckReport { name: &ledger.name, file: &ledger.file })?;
    Ok(Answer::Given)
}
