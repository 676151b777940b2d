//! The answer: a step's phases with their peaks, where the peak is and what stands there; all of it read off the tape.

use crate::config::Architecture;
use crate::options::Options;
use crate::step;
use crate::torch::tape::{Ran, Stored, Tape};
use peakledger_core::sweep::{PhaseTotal, Stay, Totals, peak_phase, phase_totals};
use peakledger_core::{ByCategory, Bytes, Device, Moment, Phase, Timeline};
use peakledger_input::Problem;
use std::num::NonZeroU32;

/// A planned training step: the first one and the steady one, on one tape.
#[derive(Debug)]
pub struct Plan {
    /// What was planned.
    pub architecture: Architecture,
    /// How it is run.
    pub options: Options,
    /// Tokens in a sequence.
    pub seq_len: u64,
    /// Parameters of the model.
    pub parameters: u64,
    /// Those that are trained.
    pub trainable: u64,
    /// The first step, in which the optimizer state is made.
    pub first: StepPlan,
    /// Every later step.
    pub steady: StepPlan,
    pub(crate) tape: Tape,
}

/// One step of a plan.
#[derive(Debug)]
pub struct StepPlan {
    /// Which.
    pub step: Step,
    /// Its phases in order, at op level: what the dispatcher hands out, each storage rounded up to 512 B.
    pub phases: Vec<PlannedPhase>,
    pub(crate) timeline: Timeline,
    /// Where the step begins on the tape.
    pub(crate) offset: u32,
}

/// The first step or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The one that makes the optimizer state.
    First,
    /// Every later one.
    Steady,
}

impl Step {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Step::First => "first",
            Step::Steady => "steady",
        }
    }
}

/// A phase of a planned step.
#[derive(Clone, Debug)]
pub struct PlannedPhase {
    /// What happens.
    pub phase: Phase,
    /// Of which micro-batch.
    pub micro_batch: Option<u32>,
    /// The largest op-level total in the phase.
    pub peak: Bytes,
    /// The op-level total when it ends.
    pub end: Bytes,
    /// The peak by category.
    pub by_category: ByCategory,
    /// The largest device-level total: with the batch.
    pub device_peak: Bytes,
    /// The op at the peak, by torch's name.
    pub op: &'static str,
    /// The module that runs it.
    pub module: String,
    pub(crate) moment: Moment,
}

/// A phase of a step, where a peak stands.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The step.
    pub step: &'a StepPlan,
    /// The phase.
    pub phase: &'a PlannedPhase,
}

/// Plans the first and the steady step of a model.
///
/// # Errors
/// Names the option that cannot be, or the sum that does not fit into 64 bits.
pub fn plan(architecture: Architecture, options: Options) -> Result<Plan, Problem> {
    let seq_len = options.seq_len.unwrap_or_else(|| architecture.max_position_embeddings.min(2048));
    let (tape, parameters) = step::run(&architecture, &options, seq_len);
    let too_big = || {
        Problem::anywhere("the sizes of this step do not fit into 64 bits of bytes")
            .mend("check --micro-batch-size, --seq-len and the sizes in the config")
    };
    if tape.overflow {
        return Err(too_big());
    }
    let first = StepPlan::read(&tape, Step::First).ok_or_else(too_big)?;
    let steady = StepPlan::read(&tape, Step::Steady).ok_or_else(too_big)?;
    Ok(Plan { architecture, options, seq_len, parameters, trainable: parameters, first, steady, tape })
}

/// What a total counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// What torch's tracker sees.
    Op,
    /// What is on the device.
    Device,
}

impl Plan {
    /// Where the op-level peak stands: in the steady step unless the first is strictly larger.
    pub fn peak(&self) -> At<'_> {
        self.largest(|phase| phase.peak)
    }

    /// Where the device-level peak stands.
    pub fn device_peak(&self) -> At<'_> {
        self.largest(|phase| phase.device_peak)
    }

    fn largest(&self, of: impl Fn(&PlannedPhase) -> Bytes) -> At<'_> {
        let best = |step| StepPlan::largest(step, &of);
        match (best(&self.first), best(&self.steady)) {
            (Some(first), Some(steady)) if of(first.phase) > of(steady.phase) => first,
            (_, Some(steady)) => steady,
            (Some(first), None) => first,
            (None, None) => unreachable!("a step has phases"),
        }
    }
}

impl StepPlan {
    fn largest(&self, of: impl Fn(&PlannedPhase) -> Bytes) -> Option<At<'_>> {
        let mut best: Option<&PlannedPhase> = None;
        for phase in &self.phases {
            if best.is_none_or(|best| of(phase) > of(best)) {
                best = Some(phase);
            }
        }
        best.map(|phase| At { step: self, phase })
    }

    /// Cuts the step out of the tape and adds it up, at both levels.
    fn read(tape: &Tape, step: Step) -> Option<StepPlan> {
        let (timeline, offset) = timeline(tape, step)?;
        let sums = |level| -> Option<Vec<PhaseTotal>> {
            let stays = || stays(tape, &timeline, offset, level);
            let totals = Totals::of(timeline.moments(), stays()).ok()?;
            Some(phase_totals(&timeline, &totals, stays()))
        };
        let (op, device) = (sums(Level::Op)?, sums(Level::Device)?);
        peak_phase(&op)?;
        let phases = timeline
            .slots()
            .iter()
            .zip(op.iter().zip(&device))
            .map(|(slot, (op, device))| {
                let moment = Moment(op.moment.0 + offset);
                let ran = tape.ran.get(moment.index());
                PlannedPhase {
                    phase: slot.phase.clone(),
                    micro_batch: slot.micro_batch,
                    peak: op.total,
                    end: op.end,
                    by_category: op.by_category,
                    device_peak: device.total,
                    op: ran.map_or("", |ran: &Ran| ran.op),
                    module: ran.map(|ran| tape.path(ran.module)).unwrap_or_default(),
                    moment,
                }
            })
            .collect();
        Some(StepPlan { step, phases, timeline, offset })
    }
}

/// The step's phases and moments, and where they begin on the tape.
fn timeline(tape: &Tape, step: Step) -> Option<(Timeline, u32)> {
    let end = u32::try_from(tape.ran.len()).ok()?;
    let mine = |mark: &&crate::torch::tape::Mark| mark.step == step as u8;
    let offset = tape.marks.iter().find(mine)?.first.0;
    let ends = tape.marks.iter().skip(1).map(|mark| mark.first.0).chain([end]);
    let mut timeline = Timeline::empty();
    for (mark, end) in tape.marks.iter().zip(ends).filter(|(mark, _)| mine(mark)) {
        let moments = NonZeroU32::new(end.checked_sub(mark.first.0)?)?;
        timeline.try_push(mark.phase.clone(), mark.micro_batch, moments).then_some(())?;
    }
    Some((timeline, offset))
}

/// The storages of a step as stays on its timeline.
fn stays<'a>(
    tape: &'a Tape,
    timeline: &Timeline,
    offset: u32,
    level: Level,
) -> impl Iterator<Item = Stay> + 'a {
    let last = offset + u32::try_from(timeline.moments()).unwrap_or(u32::MAX).saturating_sub(1);
    tape.stored.iter().filter_map(move |stored| {
        let (start, end) = interval(stored, level)?;
        (start.0 <= last && end.0 >= offset).then(|| Stay {
            device: Device::Gpu,
            category: stored.category,
            bytes: Bytes::new(stored.bytes),
            start: Moment(start.0.max(offset) - offset),
            end: Moment(end.0.min(last) - offset),
        })
    })
}

/// When a storage is there, if it is at all.
pub(crate) fn interval(stored: &Stored, level: Level) -> Option<(Moment, Moment)> {
    let start = match level {
        Level::Op => stored.tracked.max(stored.birth),
        Level::Device => stored.birth,
    };
    // freed before anything ran: it was there at no moment
    (start <= stored.death && start.0 != u32::MAX).then_some((start, stored.death))
}

/// One op of a planned step and what the device held when it returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpTotal {
    /// The phase.
    pub phase: Phase,
    /// Of which micro-batch.
    pub micro_batch: Option<u32>,
    /// The module that runs the op.
    pub module: String,
    /// The op, by torch's name.
    pub op: &'static str,
    /// The op-level total with the op's outputs allocated.
    pub total: Bytes,
}

impl Plan {
    /// Every op of a step in order: the step's own log, as torch's tracker would write it.
    pub fn ops(&self, step: Step) -> Vec<OpTotal> {
        let step = if step == Step::First { &self.first } else { &self.steady };
        let stays = stays(&self.tape, &step.timeline, step.offset, Level::Op);
        let Ok(totals) = Totals::of(step.timeline.moments(), stays) else { return Vec::new() };
        let ran = self.tape.ran.iter().skip(step.offset as usize);
        (0u32..)
            .map(Moment)
            .zip(ran.zip(totals.gpu()))
            .filter_map(|(moment, (ran, total))| {
                let slot = step.timeline.slot_at(moment)?;
                Some(OpTotal {
                    phase: slot.phase.clone(),
                    micro_batch: slot.micro_batch,
                    module: self.tape.path(ran.module),
                    op: ran.op,
                    total: Bytes::new(*total),
                })
            })
            .collect()
    }
}
