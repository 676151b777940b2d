//! `peakledger reconcile`: a plan against a measurement.

use super::drawable::{self, Found, Kind};
use super::{read, traced};
use crate::Answer;
use crate::args::{OutputArgs, input};
use peakledger_core::Bytes;
use peakledger_core::document::LedgerFile;
use peakledger_input::{Input, Problem, quoted};
use peakledger_measure::snapshot::Snapshot;
use peakledger_measure::{DeviceMeasurement, Live, Measurement, RangeNames, Scope};
use peakledger_plan::catalogue::card;
use peakledger_report::{MeasuredFacts, ReconcileReport, Side, Tolerance};

/// Hold a plan against what a run did hold: by phase and category, and the rest by name
#[derive(clap::Args)]
#[command(after_help = crate::examples::RECONCILE)]
pub(crate) struct Args {
    /// The plan's ledger, as `plan --save` writes it
    #[arg(long, value_name = "LEDGER", value_parser = input())]
    plan: Input,
    /// What was measured: a memory snapshot, a profiler's trace, a memory timeline, or the ledger that `read --save` writes
    #[arg(long, value_name = "FILE", value_parser = input())]
    measured: Input,
    /// The step of the measurement, counted from 0 [default: the last; of a trace the last whole one]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = crate::parsers::count::<u32>)]
    measured_step: Option<u32>,
    /// Exit with 1 where a phase is further off than this: 1%, or 24MiB, or 1%,24MiB for whichever is more
    #[arg(long, value_name = "SHARE|SIZE", value_parser = tolerance)]
    tolerance: Option<Tolerance>,
    /// The card: with it, what a failed request says of the free memory gives what lies outside the allocator
    #[arg(long, value_name = "NAME|SIZE")]
    gpu: Option<String>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

pub(crate) fn run(args: Args) -> Result<Answer, Problem> {
    let output = args.output.request(&[&args.plan, &args.measured])?;
    let total = args.gpu.as_deref().map(card).transpose()?.map(|card| card.total);
    let step = args.measured_step.map(|step| step as usize);
    let (plan_name, plan) = drawable::open_ledger_alone(&args.plan)?;
    let (name, measured, facts) = open(&args.measured, step, total)?;
    let plan_side = Side { name: &plan_name, ledger: &plan.ledger, note: None, incomplete: None };
    let (note, incomplete) = (measured.note.as_deref(), measured.incomplete.as_deref());
    let side = Side { name: &name, ledger: &measured.ledger, note, incomplete };
    let inside = step.filter(|_| facts.step.is_none());
    let report = ReconcileReport::of(plan_side, side, facts, inside, args.tolerance);
    no_such_step(&name, step, report.steps())?;
    output.write(&report)?;
    let agrees = report.agrees();
    output.let_go((plan, measured));
    Ok(if args.tolerance.is_some() && !agrees { Answer::No } else { Answer::Given })
}

fn no_such_step(name: &str, step: Option<usize>, steps: usize) -> Result<(), Problem> {
    match step.filter(|step| *step >= steps) {
        None => Ok(()),
        Some(_) => {
            let cause = format!("{name} has {steps} of such steps, counted from 0");
            Err(Problem::in_option("--measured-step", cause).mend("name one of them"))
        }
    }
}

/// What was measured as a ledger, and what is known beyond that.
fn open(
    input: &Input,
    step: Option<usize>,
    total: Option<Bytes>,
) -> Result<(String, LedgerFile, MeasuredFacts), Problem> {
    let (kind, file) = match Found::at(input)? {
        Found::Ledger(name, ledger) => return Ok((name, ledger, MeasuredFacts::default())),
        Found::Measured(kind, file) => (kind, file),
    };
    let name = file.name().to_owned();
    match kind {
        Kind::Trace => {
            let trace = drawable::read_trace(file)?;
            let steps = trace.steps.len();
            no_such_step(&name, step, steps)?;
            let step = step.unwrap_or_else(|| trace.usual_step());
            let ledger = traced::ledger_of(&name, &trace, Some(step))?;
            Ok((name, ledger, MeasuredFacts { step: Some((step, steps)), ..MeasuredFacts::default() }))
        }
        Kind::Timeline => {
            let ledger = traced::timeline_ledger(&name, &drawable::read_timeline(file)?)?;
            Ok((name, ledger, MeasuredFacts::default()))
        }
        _ => {
            let snapshot = drawable::read_snapshot(file)?;
            let measurement = Measurement::of(&name, &snapshot, &Scope::default())?;
            let ledger = read::ledger_of(&name, &snapshot, &measurement, &RangeNames::default())?;
            let facts = measurement.largest().map(|device| of_device(device, &snapshot, total));
            Ok((name, ledger, facts.unwrap_or_default()))
        }
    }
}

fn of_device(device: &DeviceMeasurement, snapshot: &Snapshot, total: Option<Bytes>) -> MeasuredFacts {
    let rounding = snapshot.settings.rounding;
    let tail = |live: &Live| live.size.saturating_sub(rounding.round(live.requested).unwrap_or(live.size));
    let tails = device.at_peak.iter().map(tail).fold(0, u64::saturating_add);
    // the blocks are those of the requested peak, which mostly is the allocated one
    let at_one_event = device.requested.event == device.allocated.event;
    let outside = device.oom.iter().find_map(|oom| {
        let used = total?.get().checked_sub(oom.device_free?)?;
        used.checked_sub(oom.reserved)
    });
    MeasuredFacts {
        step: None,
        tails: at_one_event.then_some((device.allocated.peak, tails)),
        reserved: Some(device.reserved.peak),
        outside,
    }
}

/// `1%`, `24MiB`, or both.
fn tolerance(text: &str) -> Result<Tolerance, Problem> {
    let wrong = |part: &str| {
        Problem::anywhere(format!("{} is no share and no size", quoted(part)))
            .mend("write it as `1%`, `24MiB`, or `1%,24MiB` for whichever is more")
    };
    let mut tolerance = Tolerance::default();
    for part in text.split(',').map(str::trim) {
        match part.strip_suffix('%') {
            Some(share) => tolerance.per_myriad = Some(per_myriad(share.trim()).ok_or_else(|| wrong(part))?),
            None if part.bytes().any(|byte| byte.is_ascii_alphabetic()) => {
                tolerance.bytes = Some(Bytes::parse(part).map_err(|_| wrong(part))?);
            }
            None => return Err(wrong(part)),
        }
    }
    Ok(tolerance)
}

/// `0.25` percent as hundredths of a percent.
fn per_myriad(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 2 {
        return None;
    }
    let part: u64 = format!("{part:0<2}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(part).filter(|share| *share <= 10_000)
}
