//! `peakledger report`: a ledger or a measurement, or several side by side, as one page with pictures.

use super::{Ledger, compare, drawable};
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::ShowReport;
use std::ffi::OsString;
use std::mem::ManuallyDrop;

/// Draw a ledger or a measurement, or several side by side, as one page: the timeline, the peak, and who forms it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A ledger file, such as `plan --save` writes, a memory snapshot or a profiler's trace; `-` reads a ledger from standard
    /// input
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
    let ledger = Ledger { name, file: ManuallyDrop::new(file) };
    if !named.is_empty() || !ledger.file.candidates.is_empty() {
        return compare::write(&ledger, &named, &output, drawable::open);
    }
    output.write(&ShowReport { name: &ledger.name, file: &ledger.file })?;
    Ok(Answer::Given)
}
