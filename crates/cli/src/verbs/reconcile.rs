//! `peakledger reconcile`: a plan against a measurement.

use super::drawable;
use crate::Answer;
use crate::args::{OutputArgs, input};
use peakledger_core::Bytes;
use peakledger_core::block::Rounding;
use peakledger_core::document::LedgerFile;
use peakledger_input::{Binary, Input, MEASURED_LIMIT, Problem, quoted};
use peakledger_measure::snapshot::{self, Options};
use peakledger_measure::{DeviceMeasurement, Measurement, Scope};
use peakledger_plan::catalogue::card;
use peakledger_report::{MeasuredFacts, ReconcileReport, Tolerance};
use std::mem::ManuallyDrop;

/// Hold a plan against what a run did hold: by phase and category, and the rest by name
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The plan's ledger, as `plan --save` writes it
    #[arg(long, value_name = "LEDGER", value_parser = input())]
    plan: Input,
    /// What was measured: a memory snapshot, a profiler's trace, or the ledger that `read --save` writes
    #[arg(long, value_name = "FILE", value_parser = input())]
    measured: Input,
    /// The step of the measurement, counted from 0 [default: the last]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = crate::usage::count::<u32>)]
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
    let (plan_name, plan) = peakledger_input::open_ledger(&args.plan)?;
    let (name, measured) = drawable::open(&args.measured)?;
    let facts = facts(&args.measured, total)?;
    // they live until the process ends, so their states need no freeing
    let [plan, measured] = [plan, measured].map(ManuallyDrop::<LedgerFile>::new);
    let step = args.measured_step.map(|step| step as usize);
    let sides = ((&*plan_name, &plan.ledger), (&*name, &measured.ledger));
    let report = ReconcileReport::of(sides.0, sides.1, facts, step, args.tolerance);
    if step.is_some_and(|step| step >= report.steps()) {
        let cause = format!("{name} has {} of such steps, counted from 0", report.steps());
        return Err(Problem::in_option("--measured-step", cause).mend("name one of them"));
    }
    output.write(&report)?;
    Ok(if args.tolerance.is_some() && !report.agrees() { Answer::No } else { Answer::Given })
}

/// What a snapshot says beyond the ledger that is made of it.
fn facts(input: &Input, total: Option<Bytes>) -> Result<MeasuredFacts, Problem> {
    let Input::File(_) = input else { return Ok(MeasuredFacts::default()) };
    let mut file = Binary::open(input, MEASURED_LIMIT)?;
    if drawable::Kind::of(&file) != drawable::Kind::Snapshot {
        return Ok(MeasuredFacts::default());
    }
    let name = file.name().to_owned();
    let snapshot = ManuallyDrop::new(snapshot::read(&mut file, Options { salvage: false }, &mut |_| ())?);
    let measurement = Measurement::of(&name, &snapshot, &Scope::default())?;
    Ok(measurement.largest().map(|device| of_device(device, total)).unwrap_or_default())
}

fn of_device(device: &DeviceMeasurement, total: Option<Bytes>) -> MeasuredFacts {
    let rounding = Rounding::default();
    let tail = |requested: u64, size: u64| size.saturating_sub(rounding.round(requested).unwrap_or(size));
    let tails =
        device.at_peak.iter().fold(0, |sum: u64, live| sum.saturating_add(tail(live.requested, live.size)));
    let outside = device.oom.iter().find_map(|oom| {
        let used = total?.get().checked_sub(oom.device_free?)?;
        used.checked_sub(oom.reserved)
    });
    MeasuredFacts { tails: Some(tails), reserved: Some(device.reserved.peak), outside }
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
