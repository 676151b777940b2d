//! `peakledger show`: phases, peak and contributors of a ledger.

use super::open_ledger;
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::ShowReport;

/// Show the phases of a ledger, where its peak is, and who forms it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The ledger file; `-` reads standard input
    #[arg(value_parser = input())]
    ledger: Input,
    /// Draw the timeline in the table
    #[arg(long, help_heading = "Output")]
    plot: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request_with_pictures(&[&args.ledger])?.listing(&args.list).plotting(args.plot);
    let ledger = open_ledger(&args.ledger)?;
    output.write(&ShowReport { name: &ledger.name, file: &ledger.file })?;
    Ok(Answer::Given)
}
