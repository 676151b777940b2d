//! `peakledger replay`: what the caching allocator makes of a snapshot's requests, or a ledger's.

use super::drawable::{self, Found, Kind};
use crate::Answer;
use crate::args::{OutputArgs, alloc_conf, input};
use peakledger_input::{Input, Problem};
use peakledger_plan::catalogue::card;
use peakledger_report::{Asked, ReplayReport, Replays};

/// Replay a snapshot or a ledger through PyTorch's caching allocator: what it reserves, and what other settings would change
#[derive(clap::Args)]
#[command(after_help = crate::examples::REPLAY)]
pub(crate) struct Args {
    /// A PyTorch memory snapshot, or a ledger such as `plan --save` writes; `-` reads standard input
    #[arg(value_parser = input())]
    file: Input,
    /// The settings to try, as PYTORCH_CUDA_ALLOC_CONF has them: expandable_segments:True,max_split_size_mb:128, say
    /// [default: several usual ones]
    #[arg(long, value_name = "KEY:VALUE,…")]
    alloc_conf: Option<String>,
    /// The card to run on: a name of `peakledger list gpus`, or an amount with its unit, as in 24GiB [default: the snapshot's, as far as a
    /// failed request shows it]
    #[arg(long, value_name = "NAME|SIZE")]
    gpu: Option<String>,
    /// The device of the snapshot [default: that with the most reserved bytes]
    #[arg(long, value_name = "N", value_parser = crate::parsers::count::<u32>)]
    device: Option<u32>,
    /// Exit with 1 if it runs out of memory: under the settings of --alloc-conf, else under those of the file
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[&args.file])?;
    let settings = args.alloc_conf.as_deref().map(|text| alloc_conf(Some(text))).transpose()?;
    let gpu = args.gpu.as_deref().map(card).transpose()?;
    let asked = Asked { settings, card: gpu.as_ref(), device: args.device };
    let (name, replays) = match Found::at(&args.file)? {
        Found::Ledger(name, ledger) => {
            let replays = Replays::of_ledger(&name, &ledger.ledger, &asked)?;
            (name, replays)
        }
        Found::Measured(Kind::Snapshot, file) => {
            let name = file.name().to_owned();
            let replays = Replays::of_snapshot(&name, &drawable::read_snapshot(file)?, &asked)?;
            (name, replays)
        }
        Found::Measured(kind, file) => {
            let what = kind.measured().unwrap_or_default();
            let problem = file.problem(format!("{what}, which has no segments and no requests"));
            return Err(problem
                .mend("replay a snapshot of the same step: `torch.cuda.memory._dump_snapshot` writes one"));
        }
    };
    output.write(&ReplayReport { name: &name, replays: &replays })?;
    let ran_out = args.exit_code && replays.runs_out(settings.is_some());
    Ok(if ran_out { Answer::No } else { Answer::Given })
}
