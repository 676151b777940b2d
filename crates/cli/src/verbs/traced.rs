//! What else `read` takes: a profiler's trace, a memory timeline, and the text of an out-of-memory error.

use super::drawable;
use super::read::Args;
use crate::Answer;
use crate::output::Output;
use crate::progress::Progress;
use peakledger_core::document::LedgerFile;
use peakledger_input::{Binary, Input, Problem, Source};
use peakledger_measure::oom_message::{self, OOM_TEXT_LIMIT};
use peakledger_measure::timeline::{self, MemoryTimeline};
use peakledger_measure::trace::{self, Options, Trace};
use peakledger_report::{OomReport, TimelineReport, TraceReport};
use std::path::Path;

/// Answers from a profiler's trace.
pub(super) fn trace(
    mut file: Binary,
    args: &Args,
    saved: Option<&Path>,
    output: &Output,
) -> Result<Answer, Problem> {
    drawable::check_measured(&file)?;
    refuse(args, &["--at", "--events"], "a profiler's trace")?;
    let mut progress = Progress::of(&file);
    let options = Options { names: args.range_names(), salvage: args.salvage };
    let mut trace = trace::read(&mut file, &options, &mut |bytes| progress.at(bytes))?;
    drop(progress);
    let name = file.name();
    if let Some(number) = args.device {
        choose(&mut trace, number, name)?;
    }
    if let Some(path) = saved {
        output.save(path, &ledger_of(name, &trace, None)?)?;
    }
    output.write(&TraceReport { name, trace: &trace })?;
    Ok(if trace.cut.is_some() { Answer::Part } else { Answer::Given })
}

/// Answers from a memory timeline.
pub(super) fn timeline(
    mut file: Binary,
    args: &Args,
    saved: Option<&Path>,
    output: &Output,
) -> Result<Answer, Problem> {
    refuse(args, &["--at", "--events", "--device", "--phase", "--salvage", "--plot"], "a memory timeline")?;
    let mut progress = Progress::of(&file);
    let timeline = timeline::read(&mut file, &mut |bytes| progress.at(bytes))?;
    drop(progress);
    if let Some(path) = saved {
        output.save(path, &timeline_ledger(file.name(), &timeline)?)?;
    }
    output.write(&TimelineReport { name: file.name(), timeline: &timeline })?;
    Ok(Answer::Given)
}

/// Explains the out-of-memory messages of a text.
pub(super) fn oom_message(input: &Input, output: &Output) -> Result<Answer, Problem> {
    let source = Source::read(input, OOM_TEXT_LIMIT)?;
    let messages = oom_message::read(&source)?;
    output.write(&OomReport { name: source.name(), messages: &messages })?;
    Ok(Answer::Given)
}

/// Options that say nothing to a file of this kind are refused, not passed over.
fn refuse(args: &Args, options: &[&str], what: &str) -> Result<(), Problem> {
    let given = [
        ("--at", args.at.is_some()),
        ("--events", args.events.is_some()),
        ("--device", args.device.is_some()),
        ("--phase", !args.phases.is_empty()),
        ("--save", args.save.is_some()),
        ("--salvage", args.salvage),
        ("--plot", args.plot),
    ];
    match given.into_iter().find(|(option, given)| *given && options.contains(option)) {
        None => Ok(()),
        Some((option, _)) => {
            let problem = Problem::in_option(option, format!("it means nothing for {what}"));
            Err(problem.mend("leave it out, or give a memory snapshot"))
        }
    }
}

/// Keeps one card.
fn choose(trace: &mut Trace, number: u32, name: &str) -> Result<(), Problem> {
    let cards = trace.devices.iter().filter(|device| !device.is_cpu());
    let known: Vec<String> = cards.map(|device| device.device.to_string()).collect();
    trace.devices.retain(|device| !device.is_cpu() && i64::from(device.device.id) == i64::from(number));
    if trace.devices.is_empty() {
        let problem = Problem::in_option("--device", format!("{name} has no card {number}"));
        return Err(problem.mend(match known.is_empty() {
            true => "it has the cpu's memory alone: leave `--device` out".to_owned(),
            false => format!("it has {}", known.join(", ")),
        }));
    }
    Ok(())
}

/// The ledger of a timeline's peak.
pub(super) fn timeline_ledger(name: &str, timeline: &MemoryTimeline) -> Result<LedgerFile, Problem> {
    let ledger = timeline
        .ledger()
        .map_err(|rule| Problem::in_file(name, format!("makes no ledger: {rule}")).mend(rule.kind.mend()))?;
    let note = format!(
        "peakledger read {name}: the peak of a memory timeline, by torch's categories; it names no tensors and no phases, \
         and what torch could not place counts as workspace"
    );
    Ok(LedgerFile::made(ledger, note, Vec::new()))
}

/// The ledger of a step, of the device with the largest peak; of the step in which that is, unless one is named.
pub(super) fn ledger_of(name: &str, trace: &Trace, step: Option<usize>) -> Result<LedgerFile, Problem> {
    let (device, largest) = trace.largest();
    let step = step.unwrap_or(largest);
    let problem = |cause: String| Problem::in_file(name, cause);
    let (Some(ledger), Some(of)) = (trace.ledger(step, device), trace.devices.get(device)) else {
        return Err(problem("no step, so there is no ledger to save".to_owned()).mend("leave `--save` out"));
    };
    let ledger = ledger.map_err(|rule| problem(format!("makes no ledger: {rule}")).mend(rule.kind.mend()))?;
    let note = format!(
        "peakledger read {name}, {}, step {step} of {}: allocated bytes; categories are concluded from when a block comes and goes",
        of.device,
        trace.steps.len()
    );
    Ok(LedgerFile::made(ledger, note, Vec::new()).incomplete(trace.incomplete()))
}
