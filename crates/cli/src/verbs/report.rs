//! `peakledger report`: a ledger, or several side by side, as one page with pictures.

use super::{compare, open_ledger};
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::ShowReport;
use std::ffi::OsString;

/// Draw a ledger, or candidates beside it, as one page: the timeline, the peak, and who forms it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The ledger file, such as `plan --save` writes; `-` reads standard input
    #[arg(value_parser = input())]
    ledger: Input,
    /// Candidates to draw beside it, each with a name
    #[arg(value_name = "NAME=LEDGER")]
    candidates: Vec<OsString>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let named = args.candidates.iter().map(compare::Named::parse).collect::<Result<Vec<_>, _>>()?;
    let inputs = compare::inputs(&args.ledger, &named);
    let output = args.output.request_of_page(&inputs)?.listing(&args.list);
    let ledger = open_ledger(&args.ledger)?;
    if !named.is_empty() || !ledger.file.candidates.is_empty() {
        return compare::write(&ledger, &named, &output);
    }
    output.write(&ShowReport { name: &ledger.name, file: &ledger.file })?;
    Ok(Answer::Given)
}
