//! `peakledger report`: a ledger or a measurement, or several side by side, as one page with pictures.

use super::{compare, drawable};
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::ShowReport;
use std::ffi::OsString;

/// Draw a ledger or a measurement, or several side by side, as one page: the timeline, the peak, and who forms it
#[derive(clap::Args)]
#[command(after_help = crate::examples::REPORT)]
pub(crate) struct Args {
    /// A ledger file, such as `plan --save` writes, a memory snapshot, a profiler's trace or a memory timeline; `-` reads
    /// standard input
    #[arg(value_parser = input())]
    ledger: Input,
    /// Others to draw beside it, each with a name
    #[arg(value_name = "NAME=LEDGER")]
    candidates: Vec<OsString>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let named = args.candidates.iter().map(compare::Named::parse).collect::<Result<Vec<_>, _>>()?;
    let inputs = compare::inputs(&args.ledger, &named);
    let output = args.output.request_of_page(&inputs)?.listing(&args.list);
    let (name, file) = drawable::open(&args.ledger)?;
    if !named.is_empty() || !file.candidates.is_empty() {
        return compare::write(&name, file, &named, &output);
    }
    output.write(&ShowReport { name: &name, file: &file })?;
    output.let_go(file);
    Ok(Answer::Given)
}
