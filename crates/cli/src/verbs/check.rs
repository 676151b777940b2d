//! `peakledger check`: is a ledger valid.

use super::drawable::open_ledger_alone;
use crate::Answer;
use crate::args::{OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::CheckReport;

/// Check that a ledger is valid, and say in one line what is in it
#[derive(clap::Args)]
#[command(after_help = crate::examples::CHECK)]
pub(crate) struct Args {
    /// The ledger file; `-` reads standard input
    #[arg(value_parser = input())]
    ledger: Input,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[&args.ledger])?;
    let (name, file) = open_ledger_alone(&args.ledger)?;
    output.write(&CheckReport { name: &name, file: &file })?;
    output.let_go(file);
    Ok(Answer::Given)
}
