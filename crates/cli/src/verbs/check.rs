//! `peakledger check`: is a ledger valid.

use super::open_ledger;
use crate::Answer;
use crate::args::{OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::CheckReport;

/// Check that a ledger is valid, and say in one line what is in it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The ledger file; `-` reads standard input
    #[arg(value_parser = input())]
    ledger: Input,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[&args.ledger])?;
    let ledger = open_ledger(&args.ledger)?;
    output.write(&CheckReport { name: &ledger.name, file: &ledger.file })?;
    Ok(Answer::Given)
}
