//! The answer: a step's phases with their peaks, where the peak is and what stands there; all of it read off the tape.

mod below;
mod growth;
mod steps;

use crate::config::Architecture;
use crate::options::{Options, refused};
use crate::parallel::{Mesh, Stack, megatron};
use crate::repeat::Folded;
use crate::step::{self, Outcome};
use crate::torch::Costs;
use crate::torch::tape::{Role, Stored, Tape};
use peakledger_core::block::BLOCK;
use peakledger_core::sweep::{Stay, Totals};
use peakledger_core::{ByCategory, Bytes, Moment, Phase, Timeline};
use peakledger_input::Problem;
use std::sync::OnceLock;
use steps::stay;

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
    /// What was run.
    pub(crate) folded: Folded,
    /// All of the step, once it is asked for.
    pub(crate) whole: OnceLock<Tape>,
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
    /// Where the peak is on the step's timeline.
    pub(crate) moment: Moment,
    /// Where it is on the step as it was run, if it was.
    pub(crate) run: Option<Moment>,
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

/// Plans one of the stages of a pipeline; others share what is `counted`.
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
        return refused("--seq-len", cause, format!("use {positions} or fewer tokens"));
    }
    Ok(seq_len)
}

/// All of a step of which little was run; where it cannot be written down, all of it is run.
fn whole(folded: &Folded, architecture: &Architecture, options: &Options, seq_len: u64) -> Tape {
    folded.unfolded().unwrap_or_else(|| match step::run_all(architecture, options, seq_len) {
        Ok(outcome) => outcome.folded.run,
        Err(problem) => unreachable!("a step that was run is refused: {problem}"),
    })
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
        outcome: Outcome,
    ) -> Result<Plan, Problem> {
        let Outcome { mut folded, parameters, trainable, .. } = outcome;
        let mesh = options.mesh()?;
        let too_big = || {
            Problem::anywhere("the sizes of this step do not fit into 64 bits of bytes")
                .mend("check --micro-batch-size, --seq-len and the sizes in the config")
        };
        if folded.run.overflow {
            return Err(too_big());
        }
        let mut both = StepPlan::both(&folded);
        if both.is_none() && !folded.is_whole() {
            folded = Folded::of(whole(&folded, &architecture, &options, seq_len));
            both = StepPlan::both(&folded);
        }
        let [first, steady] = both.ok_or_else(too_big)?;
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
            folded,
            whole: OnceLock::new(),
        })
    }

    /// Every storage of the step. Where not all of it was run, what was is written down for the rest when this is first asked
    /// for: sums do not need it.
    pub(crate) fn tape(&self) -> &Tape {
        if self.folded.is_whole() {
            return &self.folded.run;
        }
        self.whole.get_or_init(|| whole(&self.folded, &self.architecture, &self.options, self.seq_len))
    }

    /// How many storages the step makes.
    pub fn storages(&self) -> usize {
        self.tape().stored.len()
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
        self.folded.run.stored.iter().filter(is_first).map(|stored| stored.bytes)
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
}

impl Plan {
    /// What a step holds at op level, as [`op_ledger`](Plan::op_ledger) has it, but nothing has a name: enough for sums and
    /// pictures, and made in a fraction of the time.
    pub fn stays(&self, step: Step) -> Vec<Stay> {
        let tape = self.tape();
        tape.stored.iter().filter_map(|stored| stay(tape, step, stored, Level::Op)).collect()
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
        let (planned, tape) = (self.step(step), self.tape());
        let stays = self.stays(step).into_iter();
        let Ok(totals) = Totals::of(planned.timeline.moments(), stays) else { return Vec::new() };
        (0u32..)
            .map(Moment)
            .zip(totals.gpu())
            .filter_map(|(moment, total)| {
                let slot = planned.timeline.slot_at(moment)?;
                let ran = tape.ran.get(step.on_tape(tape, moment).index())?;
                Some(OpTotal {
                    phase: slot.phase.clone(),
                    micro_batch: slot.micro_batch,
                    module: tape.path(ran.module),
                    op: ran.op,
                    total: Bytes::new(*total),
                })
            })
            .collect()
    }
}
