//! `peakledger show`: phases, peak and contributors of a ledger or a measurement.

use super::drawable;
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::ShowReport;

/// Show the phases of a ledger or a measurement, where its peak is, and who forms it
#[derive(clap::Args)]
#[command(after_help = crate::examples::SHOW)]
pub(crate) struct Args {
    /// A ledger file, a memory snapshot, a profiler's trace or a memory timeline; `-` reads standard input
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
    let (name, file) = drawable::open(&args.ledger)?;
    output.write(&ShowReport { name: &name, file: &file })?;
    output.let_go(file);
    Ok(Answer::Given)
}
