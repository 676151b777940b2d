//! `peakledger read`: what a run did hold, from the file that PyTorch wrote.

use super::drawable::of_model;
use super::traced;
use crate::Answer;
use crate::args::{ListArgs, OutputArgs, input, target};
use crate::output::{self, Target};
use crate::progress::Progress;
use peakledger_core::document::LedgerFile;
use peakledger_core::{Bytes, Phase};
use peakledger_input::{Binary, Input, MEASURED_LIMIT, Problem, quoted};
use peakledger_measure::snapshot::{self, Options, Snapshot};
use peakledger_measure::{
    Content, MeasuredLedger, Measurement, NoLedger, RangeNames, Scope, UNTOLD, content, live_after,
};
use peakledger_report::{At, ReadReport};
use std::ops::Range;

/// Read what a run did hold, from a memory snapshot, a profiler trace, a memory timeline or an error's text
#[derive(clap::Args)]
#[command(after_help = crate::examples::READ)]
pub(crate) struct Args {
    /// The file, gzipped or not; `-` reads standard input. Nothing in it is ever run
    #[arg(value_parser = input())]
    file: Input,
    /// The file is a text or a log with an out-of-memory message in it: explain that
    #[arg(long, conflicts_with_all = ["device", "at", "events", "salvage", "phases", "save", "plot"])]
    oom_message: bool,
    /// Show this device alone
    #[arg(long, value_name = "N", value_parser = crate::parsers::count::<u32>)]
    pub(super) device: Option<u32>,
    /// List the blocks in use just after this event, not those of the peak; -1 is before the first
    #[arg(long, value_name = "EVENT", allow_negative_numbers = true, value_parser = moment)]
    pub(super) at: Option<Moment>,
    /// Look for the peaks among these events alone, as in 1000..2000
    #[arg(long, value_name = "A..B", value_parser = range)]
    pub(super) events: Option<Range<u32>>,
    /// Answer from the sound part of a damaged file, marked as incomplete; the exit code is then 3
    #[arg(long)]
    pub(super) salvage: bool,
    /// A range of the program that is a phase of the ledger: as in "my pass=backward", with `*` for any text; may be
    /// repeated. Known are names with forward, loss, backward, optimizer or zero_grad in them, and torch's own
    #[arg(long = "phase", value_name = "NAME=PHASE", value_parser = phase)]
    pub(super) phases: Vec<(String, Phase)>,
    /// Save the ledger of the device (of that with the largest peak) for `show` and `compare`
    #[arg(long, value_name = "FILE", value_parser = target())]
    pub(super) save: Option<Target>,
    /// Draw what each device held, over its events, in the table
    #[arg(long, help_heading = "Output")]
    pub(super) plot: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl Args {
    /// Which ranges of the program are which phases.
    pub(super) fn range_names(&self) -> RangeNames {
        let own = self.phases.iter().cloned();
        own.fold(RangeNames::default(), |names, (name, phase)| names.with(name, phase))
    }
}

/// After an event, or before the first.
#[derive(Clone, Copy)]
pub(super) struct Moment(Option<u32>);

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[&args.file])?.listing(&args.list).plotting(args.plot);
    if args.oom_message {
        return traced::oom_message(&args.file, &output);
    }
    let saved = output::saved(args.save.as_ref(), &output, &[&args.file])?;
    let file = Binary::open(&args.file, MEASURED_LIMIT);
    let mut file = file.map_err(|problem| of_model(&args.file, problem))?;
    match content(&file)? {
        Content::Pickle => {}
        Content::Json => return traced::trace(file, &args, saved, &output),
        Content::Timeline => return traced::timeline(file, &args, saved, &output),
    }
    let name = file.name().to_owned();
    let snapshot = open(&mut file, args.salvage)?;
    let names = args.range_names();
    let scope = Scope { device: args.device, events: args.events, salvage: args.salvage };
    let measurement = Measurement::of(&name, &snapshot, &scope)?;
    let at = args.at.map(|moment| live_at(&name, &snapshot, &measurement, moment)).transpose()?;
    if let Some(path) = saved {
        output.save(path, &ledger_of(&name, &snapshot, &measurement, &names)?)?;
    }
    output.write(&ReadReport {
        name: &name,
        snapshot: &snapshot,
        measurement: &measurement,
        at,
        names: &names,
    })?;
    let answer = if measurement.incomplete(&snapshot).is_some() { Answer::Part } else { Answer::Given };
    output.let_go(snapshot);
    Ok(answer)
}

fn open(file: &mut Binary, salvage: bool) -> Result<Snapshot, Problem> {
    let mut progress = Progress::of(file);
    snapshot::read(file, Options { salvage }, &mut |bytes| progress.at(bytes))
}

fn live_at(name: &str, snapshot: &Snapshot, measured: &Measurement, moment: Moment) -> Result<At, Problem> {
    let Some(device) = measured.largest() else {
        return Ok(At { event: None, live: Vec::new() });
    };
    let Moment(event) = moment;
    if let Some(event) = event.filter(|event| *event >= device.events()) {
        let cause = format!("device {} has no event {event}", device.history.device);
        let mend = format!("{name} has {} events there, counted from 0", device.events());
        return Err(Problem::in_option("--at", cause).mend(mend));
    }
    match live_after(snapshot, device.history.device, event) {
        Ok(live) => Ok(At { event, live }),
        Err(too_large) => Err(too_large.problem(name, device.history.device)),
    }
}

/// The ledger of the device with the largest peak.
pub(super) fn ledger_of(
    name: &str,
    snapshot: &Snapshot,
    measurement: &Measurement,
    names: &RangeNames,
) -> Result<LedgerFile, Problem> {
    let Some(device) = measurement.largest().map(|device| device.history.device) else {
        return Err(
            Problem::in_file(name, "no device, so there is no ledger to save").mend("leave `--save` out")
        );
    };
    let measured = MeasuredLedger::of(snapshot, device, names).map_err(|none| match none {
        NoLedger::TooLarge(too_large) => too_large.problem(name, device),
        NoLedger::Rule(rule) => {
            Problem::in_file(name, format!("makes no ledger: {rule}")).mend(rule.kind.mend())
        }
    })?;
    let ([kept, all], [told, at_peak]) = (measured.blocks, measured.told);
    let left_out = match all - kept {
        0 => String::new(),
        left => format!("; {left} blocks that are at no phase's largest moment are left out"),
    };
    let note = format!(
        "peakledger read {name}, device {device}: block bytes, as torch.cuda.memory_allocated counts them; categories \
         are {UNTOLD} ({} of {} at the peak are told); phases by {}{left_out}",
        Bytes::new(told),
        Bytes::new(at_peak),
        measured.phases_by.as_str()
    );
    let peak_ops = measured.peak_lines.into_iter().map(|line| line.map(Into::into)).collect();
    Ok(LedgerFile::made(measured.ledger, note, peak_ops).incomplete(measurement.incomplete(snapshot)))
}

/// A name and the phase that it is.
fn phase(text: &str) -> Result<(String, Phase), Problem> {
    match text.rsplit_once('=') {
        Some((name, phase)) if !name.is_empty() && !phase.is_empty() => Ok((name.to_owned(), Phase::named(phase))),
        _ => Err(Problem::anywhere(format!("{} names no phase", quoted(text)))
            .mend("write it as `my pass=backward`: the range's name, and one of load, forward, loss, backward, update, zero_grad")),
    }
}

fn moment(text: &str) -> Result<Moment, Problem> {
    match text.parse::<i64>().map(u32::try_from) {
        Ok(Ok(event)) => Ok(Moment(Some(event))),
        Ok(Err(_)) if text == "-1" => Ok(Moment(None)),
        _ => Err(Problem::anywhere(format!("{} is no event", quoted(text)))
            .mend("events are counted from 0; -1 is before the first")),
    }
}

fn range(text: &str) -> Result<Range<u32>, Problem> {
    let ends = text.split_once("..");
    let ends = ends.and_then(|(from, to)| {
        let from = if from.is_empty() { Some(0) } else { from.parse().ok() };
        let to = if to.is_empty() { Some(u32::MAX) } else { to.parse().ok() };
        Some(from?..to?)
    });
    ends.filter(|range| range.start < range.end).ok_or_else(|| {
        Problem::anywhere(format!("{} is no range of events", quoted(text)))
            .mend("write it as `1000..2000`: from 1000 to 1999; either end may be left out")
    })
}
