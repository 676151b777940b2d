//! `peakledger replay`: what the caching allocator makes of a snapshot's requests, or a ledger's.

use super::drawable::Kind;
use crate::Answer;
use crate::args::{OutputArgs, alloc_conf, input};
use crate::progress::Progress;
use peakledger_input::{
    Binary, Input, LEDGER_LIMIT, MEASURED_LIMIT, Problem, Source, open_ledger, read_ledger,
};
use peakledger_measure::snapshot::{self, Options};
use peakledger_measure::{Content, content};
use peakledger_plan::catalogue::card;
use peakledger_report::{Asked, ReplayReport, Replays};
use std::io::Read as _;

/// Replay a snapshot or a ledger through PyTorch's caching allocator: what it reserves, and what other settings would change
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A PyTorch memory snapshot, or a ledger such as `plan --save` writes; `-` reads standard input
    #[arg(value_parser = input())]
    file: Input,
    /// The settings to try, as PYTORCH_CUDA_ALLOC_CONF has them: expandable_segments:True,max_split_size_mb:128, say
    /// [default: several usual ones]
    #[arg(long, value_name = "KEY:VALUE,…")]
    alloc_conf: Option<String>,
    /// The card to run on: a name of `peakledger list gpus`, or an amount such as 80GiB [default: the snapshot's, as far as a
    /// failed request shows it]
    #[arg(long, value_name = "NAME|SIZE")]
    gpu: Option<String>,
    /// The device of the snapshot [default: that with the most reserved bytes]
    #[arg(long, value_name = "N", value_parser = crate::usage::count::<u32>)]
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
    let mut file = Binary::open(&args.file, MEASURED_LIMIT)?;
    let name = file.name().to_owned();
    let replays = match content(&file)? {
        Content::Pickle => {
            let mut progress = Progress::of(&file);
            let snapshot = snapshot::read(&mut file, Options::default(), &mut |bytes| progress.at(bytes))?;
            Replays::of_snapshot(&name, &snapshot, &asked)?
        }
        // a ledger is JSON, as a trace is
        Content::Trace | Content::Timeline if Kind::of(&file) == Kind::Trace => {
            let problem = file.problem("a profiler's trace, which has no segments and no requests");
            return Err(problem
                .mend("replay a snapshot of the same step: `torch.cuda.memory._dump_snapshot` writes one"));
        }
        Content::Trace | Content::Timeline => {
            let ledger = match &args.file {
                Input::File(_) if !file.is_packed() => open_ledger(&args.file)?.1,
                _ => read_ledger(&text(&name, file)?)?,
            };
            Replays::of_ledger(&name, &ledger.ledger, &asked)?
        }
    };
    output.write(&ReplayReport { name: &name, replays: &replays })?;
    let ran_out = args.exit_code && replays.runs_out(settings.is_some());
    Ok(if ran_out { Answer::No } else { Answer::Given })
}

/// The whole of a ledger that can be read only once.
fn text(name: &str, mut file: Binary) -> Result<Source, Problem> {
    let mut bytes = Vec::new();
    let most = LEDGER_LIMIT.bytes.get();
    let read = (&mut file).take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| file.explain(&error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > most) {
        return Err(file.problem(format!("larger than a ledger may be ({})", LEDGER_LIMIT.bytes)));
    }
    Source::from_bytes(name, bytes)
}
