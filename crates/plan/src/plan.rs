//! The answer: a step's phases with their peaks, where the peak is and what stands there; all of it read off the tape.

use crate::config::Architecture;
use crate::options::Options;
use crate::parallel::{Mesh, Stack, megatron};
use crate::step::{self, Outcome};
use crate::torch::Costs;
use crate::torch::tape::{Mark, NEVER, Once, Ran, Role, Stored, Tape};
use peakledger_core::block::BLOCK;
use peakledger_core::sweep::{PhaseTotal, Stay, Totals, by_category_at, phase_peaks};
use peakledger_core::{ByCategory, Bytes, Moment, Phase, Timeline};
use peakledger_input::Problem;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::OnceLock;

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
    /// Parameters that the rank holds: those of its stage.
    pub rank_parameters: u64,
    /// The world that the rank is in.
    pub mesh: Mesh,
    /// The first step, in which the optimizer state is made.
    pub first: StepPlan,
    /// Every later step.
    pub steady: StepPlan,
    /// Micro-batches that are not run, being like those before them; what their batches take is added where it is asked for.
    pub(crate) left_out: u32,
    pub(crate) tape: Tape,
}

/// One step of a plan.
#[derive(Debug)]
pub struct StepPlan {
    /// Which.
    pub step: Step,
    /// Its phases in order, at op level: what the dispatcher hands out, each storage rounded up to 512 B.
    pub phases: Vec<PlannedPhase>,
    /// Its time axis, a moment for each op.
    pub timeline: Timeline,
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
    /// The largest device-level total: with the batch and the memory inside kernels.
    pub device_peak: Bytes,
    /// The largest total on the host: what is offloaded.
    pub host_peak: Bytes,
    /// The op at the peak, by torch's name.
    pub op: &'static str,
    /// The module that runs it.
    pub module: String,
    /// What the phase costs apart from memory.
    pub costs: Costs,
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
    plan_stage(architecture, options, &OnceLock::new())
}

/// The parameters of a whole model and those that are trained, counted for the first of its stages that is planned.
pub(crate) type Counted = OnceLock<Result<(u64, u64), Problem>>;

/// The same for one of the stages of a pipeline; others share what is `counted`.
pub(crate) fn plan_stage(
    architecture: Architecture,
    options: Options,
    counted: &Counted,
) -> Result<Plan, Problem> {
    let seq_len = checked(&architecture, &options)?;
    let mesh = options.mesh()?;
    // a stage is a part of the model, and what options name may be in another
    let count = || counted.get_or_init(|| step::count_all(&architecture, &options)).clone();
    let whole = (mesh.pp > 1).then(count).transpose()?;
    let outcome = step::run(&architecture, &options, seq_len)?;
    let (parameters, trainable) = whole.unwrap_or((outcome.parameters, outcome.trainable));
    let plan = Plan::of(architecture, options, seq_len, outcome)?;
    Ok(Plan { parameters, trainable, ..plan })
}

/// The length of a sequence, where a step can be run so.
pub(crate) fn checked(architecture: &Architecture, options: &Options) -> Result<u64, Problem> {
    let shape = &architecture.shape;
    let seq_len = options.length(shape);
    options.check(seq_len, shape.num_hidden_layers, shape.num_experts)?;
    if options.stack == Stack::Megatron {
        megatron::check(options, architecture, seq_len)?;
    }
    let positions = shape.max_position_embeddings;
    if shape.learned_positions && seq_len > positions {
        let cause = format!("the model has {positions} learned positions, and none beyond");
        return Err(Problem::in_option("--seq-len", cause).mend(format!("use {positions} or fewer tokens")));
    }
    Ok(seq_len)
}

/// What a total counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// What torch's tracker sees.
    Op,
    /// What is on the device before the tracker sees it, if it ever does.
    Untracked,
}

impl Plan {
    /// What a run left, read off its tape.
    pub(crate) fn of(
        architecture: Architecture,
        options: Options,
        seq_len: u64,
        Outcome { tape, parameters, trainable, .. }: Outcome,
    ) -> Result<Plan, Problem> {
        let mesh = options.mesh()?;
        let too_big = || {
            Problem::anywhere("the sizes of this step do not fit into 64 bits of bytes")
                .mend("check --micro-batch-size, --seq-len and the sizes in the config")
        };
        if tape.overflow {
            return Err(too_big());
        }
        let [first, steady] = StepPlan::both(&tape).ok_or_else(too_big)?;
        Ok(Plan {
            architecture,
            options,
            seq_len,
            parameters,
            trainable,
            rank_parameters: parameters,
            mesh,
            first,
            steady,
            left_out: 0,
            tape,
        })
    }

    /// One of the steps.
    pub fn step(&self, step: Step) -> &StepPlan {
        match step {
            Step::First => &self.first,
            Step::Steady => &self.steady,
        }
    }

    /// The tensors of a micro-batch, in bytes.
    pub(crate) fn batch_bytes(&self) -> impl Iterator<Item = u64> {
        let is_first = |stored: &&Stored| matches!(stored.role, Role::Input { micro_batch: 0, .. });
        self.tape.stored.iter().filter(is_first).map(|stored| stored.bytes)
    }

    /// The device-level peak of one step or of the plan, with what the micro-batches that are left out take: their batches,
    /// where those are there from the start, and the loss of each, which the last stage of a pipeline keeps until its passes
    /// are done. Nothing where the sum does not fit into 64 bits.
    pub(crate) fn device_peak_of_all(&self, step: Option<Step>) -> Option<Bytes> {
        let batch = match self.options.stack {
            Stack::Transformers => self.batch_bytes().fold(0, u64::saturating_add),
            Stack::Megatron => 0, // it is there while its micro-batch runs
        };
        let is_last = self.mesh.place(self.options.parallel.rank).pp + 1 == self.mesh.pp;
        let loss = if self.mesh.pp > 1 && is_last { BLOCK } else { 0 };
        let with_all = |phase: &PlannedPhase| {
            // those that are left out come after the first
            let kept = if phase.micro_batch.is_some_and(|at| at > 0) { loss } else { 0 };
            let of_one = batch.checked_add(kept)?;
            phase.device_peak.checked_add(Bytes::new(of_one.checked_mul(u64::from(self.left_out))?))
        };
        let steps = step.map_or_else(|| vec![&self.first, &self.steady], |step| vec![self.step(step)]);
        let phases = steps.into_iter().flat_map(|step| &step.phases);
        phases.map(with_all).try_fold(Bytes::new(0), |most, bytes| Some(most.max(bytes?)))
    }

    /// Where the op-level peak stands: in the steady step unless the first is strictly larger.
    pub fn peak(&self) -> At<'_> {
        self.larger(StepPlan::peak, |phase| phase.peak)
    }

    /// Where the device-level peak stands.
    pub fn device_peak(&self) -> At<'_> {
        self.larger(StepPlan::device_peak, |phase| phase.device_peak)
    }

    fn larger<'a>(
        &'a self,
        peak: impl Fn(&'a StepPlan) -> At<'a>,
        of: impl Fn(&PlannedPhase) -> Bytes,
    ) -> At<'a> {
        let (first, steady) = (peak(&self.first), peak(&self.steady));
        if of(first.phase) > of(steady.phase) { first } else { steady }
    }
}

impl StepPlan {
    /// Where the step's op-level peak stands; ties go to the earliest phase.
    pub fn peak(&self) -> At<'_> {
        self.largest(|phase| phase.peak)
    }

    /// Where the step's device-level peak stands.
    pub fn device_peak(&self) -> At<'_> {
        self.largest(|phase| phase.device_peak)
    }

    /// What the step costs apart from memory.
    pub fn costs(&self) -> Costs {
        self.phases.iter().map(|phase| phase.costs).sum()
    }

    fn largest(&self, of: impl Fn(&PlannedPhase) -> Bytes) -> At<'_> {
        let mut best: Option<&PlannedPhase> = None;
        for phase in &self.phases {
            if best.is_none_or(|best| of(phase) > of(best)) {
                best = Some(phase);
            }
        }
        match best {
            Some(phase) => At { step: self, phase },
            None => unreachable!("a step has phases"),
        }
    }

    /// Reads both steps off the tape and adds them up, at both levels. The steady step is the first without what is done once
    /// and with the little that it holds otherwise, so most storages are added up but once.
    fn both(tape: &Tape) -> Option<[StepPlan; 2]> {
        let Stays { op, otherwise, untracked } = Stays::of(tape);
        let timelines = [timeline(tape, Step::First)?, timeline(tape, Step::Steady)?];
        let [first, steady] = &timelines;
        let once: Vec<Range<u32>> = tape.once.iter().map(|once| once.moments.clone()).collect();
        let of_first = Totals::of(first.moments(), op.iter().copied()).ok()?;
        let more = Totals::of(steady.moments(), otherwise.iter().copied()).ok()?;
        let of_steady = of_first.without(&once).joined(&more).ok()?;
        let mut phases = [phase_peaks(first, &of_first), phase_peaks(steady, &of_steady)];
        // by category at the peaks of both, in the order in which they are on the tape
        let [in_first, in_steady] = &mut phases;
        let more = by_category_at(steady.moments(), &moments_of(in_steady), otherwise.into_iter());
        let mut peaks: Vec<(Moment, ByCategory, &mut PhaseTotal)> = Vec::new();
        peaks.extend(in_first.iter_mut().map(|phase| (phase.moment, ByCategory::default(), phase)));
        let on_tape = |phase: &PhaseTotal| Step::Steady.on_tape(tape, phase.moment);
        peaks.extend(in_steady.iter_mut().zip(more).map(|(phase, more)| (on_tape(phase), more, phase)));
        peaks.sort_by_key(|(moment, ..)| *moment);
        let moments: Vec<Moment> = peaks.iter().map(|(moment, ..)| *moment).collect();
        for ((_, more, phase), there) in
            peaks.into_iter().zip(by_category_at(first.moments(), &moments, op.into_iter()))
        {
            phase.by_category = there.plus(&more);
        }
        let steps = [Step::First, Step::Steady].into_iter().zip(timelines).zip([of_first, of_steady]);
        let steps = steps.zip(phases).zip(untracked);
        let mut steps = steps.map(|((((step, timeline), totals), phases), untracked)| {
            let untracked = Totals::of(timeline.moments(), untracked.into_iter()).ok()?;
            StepPlan::read(tape, step, timeline, &totals.plus(&untracked).ok()?, &phases)
        });
        Some([steps.next()??, steps.next()??])
    }

    /// A step whose sums are known, at device level and of its phases.
    fn read(
        tape: &Tape,
        step: Step,
        timeline: Timeline,
        device: &Totals,
        phases: &[PhaseTotal],
    ) -> Option<StepPlan> {
        let phases = timeline
            .slots()
            .iter()
            .zip(phases)
            .zip(tape.marks.iter().zip(ends(tape)))
            .map(|((slot, op), (mark, next)): ((_, &PhaseTotal), (&Mark, Moment))| {
                let ran = tape.ran.get(step.on_tape(tape, op.moment).index());
                PlannedPhase {
                    phase: slot.phase.clone(),
                    micro_batch: slot.micro_batch,
                    peak: op.total,
                    end: op.end,
                    by_category: op.by_category,
                    device_peak: device.peak_between(slot.first, slot.last).1,
                    host_peak: op.cpu,
                    op: ran.map_or("", |ran: &Ran| ran.op),
                    module: ran.map(|ran| tape.path(ran.module)).unwrap_or_default(),
                    costs: step.costs(tape, mark, next),
                    moment: op.moment,
                }
            })
            .collect();
        Some(StepPlan { step, phases, timeline })
    }
}

fn moments_of(phases: &[PhaseTotal]) -> Vec<Moment> {
    phases.iter().map(|phase| phase.moment).collect()
}

impl Step {
    /// The moment of this step that a moment of the tape is. The tape is the first step's; later ones do not do what is done
    /// once.
    pub(crate) fn within(self, tape: &Tape, moment: Moment) -> Moment {
        if self == Step::First {
            return moment;
        }
        Moment(moment.0 - tape.once.iter().map(|once| cut(moment, &once.moments)).sum::<u32>())
    }

    /// What a phase of the tape costs in this step.
    fn costs(self, tape: &Tape, mark: &Mark, next: Moment) -> Costs {
        if self == Step::First {
            return mark.costs;
        }
        let phase = mark.first.0..next.0;
        let once = tape.once.iter().filter(|once| phase.contains(&once.moments.start));
        mark.costs - once.map(|once| once.costs).sum()
    }

    /// The moment of the tape that a moment of this step is.
    pub(crate) fn on_tape(self, tape: &Tape, moment: Moment) -> Moment {
        if self == Step::First {
            return moment;
        }
        let put_back = |moment: u32, Once { moments, .. }: &Once| {
            if moment >= moments.start { moment + (moments.end - moments.start) } else { moment }
        };
        Moment(tape.once.iter().fold(moment.0, put_back))
    }

    /// When a storage is there in this step, if it is at all. What outlives the first step is there from the beginning of
    /// every later one.
    pub(crate) fn interval(self, tape: &Tape, stored: &Stored, level: Level) -> Option<(Moment, Moment)> {
        let outlives = self == Step::Steady && stored.outlives_the_step();
        let last = stored.death.min(tape.now());
        let tracked = if outlives && stored.tracked != NEVER { Moment(0) } else { stored.tracked };
        let birth = if outlives { Moment(0) } else { stored.birth };
        let (from, to) = match level {
            Level::Op => (tracked, last),
            Level::Untracked => (birth, Moment(tracked.0.checked_sub(1)?.min(last.0))),
        };
        if from > to {
            return None;
        }
        if self == Step::First {
            return Some((from, to));
        }
        // what is done once has passed, where stretches of it touch too
        let after =
            |moment: u32, once: &Once| if once.moments.contains(&moment) { once.moments.end } else { moment };
        if !outlives && to.0 < tape.once.iter().fold(from.0, after) {
            return None;
        }
        let (mut start, mut end) = (from.0, to.0);
        for Once { moments, .. } in &tape.once {
            start -= cut(from, moments);
            end -= cut(to, moments);
        }
        Some((Moment(start), Moment(end)))
    }
}

/// How many of some moments lie before a moment.
fn cut(moment: Moment, moments: &Range<u32>) -> u32 {
    moment.0.min(moments.end).saturating_sub(moments.start)
}

/// The step's phases, each with its moments.
fn timeline(tape: &Tape, step: Step) -> Option<Timeline> {
    let mut timeline = Timeline::empty();
    for (mark, end) in tape.marks.iter().zip(ends(tape)) {
        let [first, end] = [mark.first, end].map(|moment| step.within(tape, moment).0);
        let moments = NonZeroU32::new(end.checked_sub(first)?)?;
        timeline.try_push(mark.phase.clone(), mark.micro_batch, moments).then_some(())?;
    }
    Some(timeline)
}

/// The moment after each phase of the tape.
fn ends(tape: &Tape) -> impl Iterator<Item = Moment> {
    tape.marks.iter().skip(1).map(|mark| mark.first).chain([tape.next()])
}

/// The storages of both steps as stays.
struct Stays {
    /// Those of the first step, at op level.
    op: Vec<Stay>,
    /// What a steady step holds at op level in moments in which the first did not hold it, on its own timeline.
    otherwise: Vec<Stay>,
    /// What is on the device before the tracker sees it, in each step.
    untracked: [Vec<Stay>; 2],
}

impl Stays {
    fn of(tape: &Tape) -> Stays {
        let mut stays = Stays {
            op: Vec::with_capacity(tape.stored.len()),
            otherwise: Vec::new(),
            untracked: [Vec::new(), Vec::new()],
        };
        for stored in &tape.stored {
            stays.op.extend(stay(tape, Step::First, stored, Level::Op));
            stays.otherwise.extend(otherwise_in_steady(tape, stored));
            if stored.tracked != stored.birth {
                for (step, untracked) in [Step::First, Step::Steady].into_iter().zip(&mut stays.untracked) {
                    untracked.extend(stay(tape, step, stored, Level::Untracked));
                }
            }
        }
        stays
    }
}

/// A storage in a step.
fn stay(tape: &Tape, step: Step, stored: &Stored, level: Level) -> Option<Stay> {
    let (start, end) = step.interval(tape, stored, level)?;
    let Stored { device, category, bytes, .. } = *stored;
    Some(Stay { device, category, bytes: Bytes::new(bytes), start, end })
}

/// What of a storage is in the steady step alone. One that outlives the first step is there before the moment that made it.
/// One that went in what is done once, and was made before that, goes in the moment after it.
fn otherwise_in_steady(tape: &Tape, stored: &Stored) -> Option<Stay> {
    let goes_once = || tape.once.iter().any(|once| once.moments.contains(&stored.death.0));
    if !stored.outlives_the_step() && !goes_once() {
        return None;
    }
    let steady = stay(tape, Step::Steady, stored, Level::Op)?;
    if !stored.outlives_the_step() {
        return Some(Stay { start: steady.end, ..steady });
    }
    let end = Step::Steady.within(tape, stored.tracked).0.checked_sub(1)?;
    Some(Stay { end: Moment(end.min(steady.end.0)), ..steady })
}

impl Plan {
    /// What a step holds at op level, as [`op_ledger`](Plan::op_ledger) has it, but nothing has a name: enough for sums and
    /// pictures, and made in a fraction of the time.
    pub fn stays(&self, step: Step) -> Vec<Stay> {
        self.tape.stored.iter().filter_map(|stored| stay(&self.tape, step, stored, Level::Op)).collect()
    }
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
        let planned = self.step(step);
        let stays = self.stays(step).into_iter();
        let Ok(totals) = Totals::of(planned.timeline.moments(), stays) else { return Vec::new() };
        (0u32..)
            .map(Moment)
            .zip(totals.gpu())
            .filter_map(|(moment, total)| {
                let slot = planned.timeline.slot_at(moment)?;
                let ran = self.tape.ran.get(step.on_tape(&self.tape, moment).index())?;
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
