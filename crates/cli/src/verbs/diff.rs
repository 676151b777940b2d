//! `peakledger diff`: what grew between two measurements or ledgers.

use super::drawable;
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input};
use peakledger_input::{Input, Problem};
use peakledger_report::DiffReport;

/// Tell what grew from one measurement or ledger to another, by who asked for it, and what grows with every step
#[derive(clap::Args)]
#[command(after_help = crate::examples::DIFF)]
pub(crate) struct Args {
    /// The first: a memory snapshot, a profiler's trace, a memory timeline, or a ledger file
    #[arg(value_parser = input())]
    before: Input,
    /// The second
    #[arg(value_parser = input())]
    after: Input,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[&args.before, &args.after])?.listing(&args.list);
    let [(before, old), (after, new)] = [drawable::open(&args.before)?, drawable::open(&args.after)?];
    output.write(&DiffReport::of((&before, &old), (&after, &new)))?;
    output.let_go((old, new));
    Ok(Answer::Given)
}
