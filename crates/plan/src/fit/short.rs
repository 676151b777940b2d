//! A step planned with few of its micro-batches, which stand for all of them.

use crate::catalogue::Speeds;
use crate::config::Architecture;
use crate::options::{Lora, LoraTargets, Offload, Options, Recompute};
use crate::parallel::schedule::enough;
use crate::parallel::{
    Look, Mesh, Parallel, Schedule, Shown, classes, classes_closely, classes_that_may_need_most,
    plan_classes, plan_ranks_closely,
};
use crate::plan::{Counted, plan_stage};
use crate::{Plan, PlannedPhase, RankCosts, Step, Verdict};
use peakledger_core::{Bytes, Phase};
use peakledger_input::Problem;
use std::ops::ControlFlow;

/// Micro-batches that are planned: the first; the second, which those after it are like; and the last.
const PLANNED: u32 = 3;

/// A step of a rank, planned with few of its micro-batches. What the others add is known: their batches, which are on the
/// device all the time, and what the second costs.
pub(crate) struct Short(Plan);

/// The rank that needs most of those that were looked at.
pub(crate) struct Worst {
    pub(crate) short: Short,
    /// What it takes.
    pub(crate) verdict: Verdict,
    /// What the whole steady step costs the rank that takes longest.
    pub(crate) slowest: RankCosts,
}

/// How much of a step is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// As much as its device peak and its costs stand on.
    Peak,
    /// As much as `plan` asks the allocator: every micro-batch, since what it reserves may still grow with the last of them, and
    /// every class of ranks that is looked at closely.
    Replay,
}

impl Extent {
    /// Micro-batches that are planned at most.
    fn micro_batches(self, options: &Options) -> u32 {
        let all = options.gradient_accumulation_steps;
        match self {
            Extent::Replay => all,
            Extent::Peak if options.parallel.pp <= 1 => PLANNED,
            Extent::Peak => enough(&options.parallel, all).unwrap_or(all),
        }
    }

    /// Whether that is all micro-batches and every class of ranks.
    ///
    /// # Errors
    /// Names the option that cannot be.
    pub(crate) fn is_whole(self, architecture: &Architecture, options: &Options) -> Result<bool, Problem> {
        let are_all = self.micro_batches(options) >= options.gradient_accumulation_steps;
        Ok(are_all && classes(architecture, options)?.len() == 1)
    }

    /// The options of the short step, and how many micro-batches it lacks. What cannot be planned is refused as it is asked
    /// for.
    fn shortened(self, architecture: &Architecture, options: Options) -> Result<(Options, u32), Problem> {
        let shape = &architecture.shape;
        options.check(options.length(shape), shape.num_hidden_layers, shape.num_experts)?;
        let all = options.gradient_accumulation_steps;
        let gradient_accumulation_steps = all.min(self.micro_batches(&options));
        Ok((Options { gradient_accumulation_steps, ..options }, all - gradient_accumulation_steps))
    }
}

impl Short {
    /// The plan of those micro-batches.
    pub(crate) fn plan(&self) -> &Plan {
        &self.0
    }

    /// That of the rank that needs most by a verdict.
    ///
    /// # Errors
    /// Names the option that cannot be, or the sum that does not fit into 64 bits.
    pub(crate) fn of_worst(
        architecture: &Architecture,
        options: Options,
        extent: Extent,
        verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
        speeds: Option<&Speeds>,
    ) -> Result<Worst, Problem> {
        let (options, left_out) = extent.shortened(architecture, options)?;
        let look = |plan: &Plan, look| {
            let verdict = (look == Look::Close).then(|| verdict(plan));
            let needed = verdict.map_or_else(|| plan.device_needs(), |verdict| verdict.needed);
            let costs = RankCosts::of_all(plan, Step::Steady, speeds, left_out);
            (plan.needs(needed, None), (verdict, costs))
        };
        let ranks = match extent {
            Extent::Replay => plan_ranks_closely(architecture, &options, Shown::Worst, look)?,
            Extent::Peak => {
                let classes = classes_that_may_need_most(architecture, &options)?;
                plan_classes(architecture, &options, classes, Shown::Worst, |plan| look(plan, Look::Close))?
            }
        };
        let slowest = ranks.each.iter().map(|(_, (_, costs))| *costs).reduce(RankCosts::or_slower);
        let asked = ranks.each.get(ranks.shown).and_then(|(_, (verdict, _))| *verdict);
        let short = Short(Plan { left_out, ..ranks.plan });
        // a plan that is looked at does not have the batches of what is left out
        let verdict = asked.filter(|_| left_out == 0).unwrap_or_else(|| verdict(short.plan()));
        match slowest {
            Some(slowest) => Ok(Worst { short, verdict, slowest }),
            None => unreachable!("a world has a rank"),
        }
    }

    /// Looks at those of every class of ranks, one after the other and each as closely as `plan` does, until it is told to stop;
    /// each is let go of before the next is planned. Classes that cost as much as another and surely need no more at their device peak are left out. What they say
    /// of the whole model's parameters is not counted.
    ///
    /// # Errors
    /// The first problem of any class.
    pub(crate) fn of_each(
        architecture: &Architecture,
        options: Options,
        extent: Extent,
        mut look: impl FnMut(&Short, Look) -> ControlFlow<()>,
    ) -> Result<(), Problem> {
        let (options, left_out) = extent.shortened(architecture, options)?;
        // names that options have may be those of modules of another stage, which counting finds out
        let has_names = matches!(&options.lora, Some(Lora { targets: LoraTargets::Named(_), .. }))
            || !options.freeze.is_empty();
        let counted = if has_names { Counted::new() } else { Counted::from(Ok((0, 0))) };
        let classes = match extent {
            Extent::Replay => classes_closely(architecture, &options)?,
            Extent::Peak => {
                let mut classes = classes_that_may_need_most(architecture, &options)?;
                if second_stage_needs_most(architecture, &options) {
                    let stages = stages_that_differ(&options.mesh()?);
                    classes.retain(|class| stages.contains(&class.class.stage));
                }
                classes.into_iter().map(|class| (class, Look::Close)).collect()
            }
        };
        for (class, how) in classes {
            let parallel = Parallel { rank: class.first(), ..options.parallel.clone() };
            let plan = plan_stage(architecture.clone(), Options { parallel, ..options.clone() }, &counted)?;
            if look(&Short(Plan { left_out, ..plan }), how).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The device-level peak of the whole step; a size past 64 bits saturates, which no card has.
    pub(crate) fn device_peak(&self) -> Bytes {
        device_peak(&self.0)
    }
}

impl Plan {
    /// Whether all that a step does until the end of a phase is what the whole step does too, where micro-batches of it are left
    /// out: that is so of the first step until its last micro-batch begins, as those that are left out come before that one.
    /// Whatever happens in those phases happens to the whole step, and nothing that happens later says anything for sure: the
    /// caching allocator may come to the last micro-batch with other blocks free.
    pub fn is_whole_until(&self, step: Step, phase: usize) -> bool {
        let last = self.options.gradient_accumulation_steps.saturating_sub(1);
        let is_before_the_last = |phase: &PlannedPhase| match phase.micro_batch {
            Some(micro_batch) => micro_batch < last,
            None => phase.phase == Phase::Load,
        };
        let begins_so = || self.first.phases.get(phase).is_some_and(is_before_the_last);
        // stages of a pipeline begin a micro-batch before the one before it has ended
        self.left_out == 0 || self.mesh.pp == 1 && step == Step::First && begins_so()
    }
}

/// The device-level peak of a plan that may be short.
pub(super) fn device_peak(plan: &Plan) -> Bytes {
    plan.device_peak_of_all(None).unwrap_or(Bytes::new(u64::MAX))
}

/// Whether the second stage of a pipeline peaks as high as those between it and the last, and costs as much but for the way to
/// its neighbours. They run the same layers on the same micro-batches, and whenever a later one runs a pass, the second runs it
/// too with no fewer micro-batches in flight: it has warmed up with as many or more. That is said where all layers are alike, and
/// nothing but the schedule decides what is there when a pass begins. FSDP's groups leave something too, by what the pass before
/// was: then the second has to run each kind of pass after each that a later one does, and with a micro-batch a stage it does.
fn second_stage_needs_most(architecture: &Architecture, options: &Options) -> bool {
    let (shape, parallel) = (&architecture.shape, &options.parallel);
    let has_every_turn = match parallel.schedule {
        Schedule::Gpipe => true,
        Schedule::OneFOneB => options.gradient_accumulation_steps >= parallel.pp,
        _ => false,
    };
    let warms_up = matches!(parallel.schedule, Schedule::OneFOneB | Schedule::Gpipe | Schedule::Interleaved);
    let alike_layers = shape.window.is_none()
        && shape.num_experts == 0
        && options.freeze.is_empty()
        && matches!(options.recompute, Recompute::None | Recompute::Full | Recompute::Selective);
    // what saved tensors leave on the device when they go to the host is of their own pass; other offloads keep what runs between
    // passes
    let offload = Offload { activations: false, ..options.offload };
    warms_up
        && alike_layers
        && offload == Offload::default()
        && (has_every_turn || !parallel.sharding.is_fsdp())
}

/// The first stage and the last; and of those between, which run the same layers, the first of those that reach as many of
/// their neighbours over the network.
fn stages_that_differ(mesh: &Mesh) -> Vec<u32> {
    let last = mesh.pp.saturating_sub(1);
    let neighbours = |stage| [mesh.stage_peers(stage - 1, stage), mesh.stage_peers(stage, stage + 1)];
    let far = |stage| neighbours(stage).into_iter().filter(|peers| peers.on_a_node < peers.ranks).count();
    let mut between: Vec<u32> = Vec::new();
    for stage in 1..last {
        if between.iter().all(|other| far(*other) != far(stage)) {
            between.push(stage);
        }
    }
    [0, last].into_iter().chain(between).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tiny;
    use super::*;
    use crate::catalogue::card;
    use crate::options::{Attention, HoldOutputs, Precision};
    use crate::parallel::{Sharding, plan_ranks};
    use crate::{Dtype, plan};
    use peakledger_input::Source;

    /// So does a pipeline of few, whichever stage needs most, and whatever is in flight.
    #[test]
    fn a_short_pipeline_stands_for_a_long_one() {
        let schedules = [Schedule::OneFOneB, Schedule::ZbH1, Schedule::ZbH2, Schedule::Interleaved];
        let steps = schedules.into_iter().flat_map(|schedule| [(schedule, 2, 32), (schedule, 4, 32)]);
        // two groups of five
        for (schedule, pp, gradient_accumulation_steps) in steps.chain([(Schedule::Interleaved, 4, 10)]) {
            let virtual_stages = if schedule == Schedule::Interleaved { 2 } else { 1 };
            let parallel = Parallel { pp, schedule, virtual_stages, ..Parallel::default() };
            let options = Options {
                seq_len: Some(20),
                gradient_accumulation_steps,
                precision: Precision::Fp32,
                parallel,
                ..Options::default()
            };
            let config = r#"{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
                "num_hidden_layers": 8, "num_attention_heads": 4, "max_position_embeddings": 48}"#;
            let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
            let card = card("80GiB").unwrap();
            let verdict = |plan: &Plan| Verdict::of(plan, &card, None);
            let worst = Short::of_worst(&architecture, options.clone(), Extent::Peak, &verdict, None);
            let Worst { short, .. } = worst.unwrap();
            let device_peak = |plan: &Plan| (plan.device_peak_in(None).phase.device_peak, ());
            let whole = plan_ranks(&architecture, &options, Shown::Worst, device_peak).unwrap().plan;
            let in_groups_of_more = !options.gradient_accumulation_steps.is_multiple_of(pp);
            assert!(in_groups_of_more || short.0.steady.phases.len() < whole.steady.phases.len());
            assert_eq!(
                short.device_peak(),
                whole.device_peak_in(None).phase.device_peak,
                "{schedule:?}, {pp}"
            );
            assert_eq!(
                RankCosts::of(&short.0, Step::Steady, None).costs,
                whole.steady.costs(),
                "{schedule:?}, {pp}"
            );
        }
    }

    /// What each stage costs that is looked at, not the slowest alone: in the warm-up FSDP gathers other groups than later on.
    #[test]
    fn each_stage_of_a_short_pipeline_costs_what_it_does() {
        let config = r#"{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 8, "num_attention_heads": 4, "max_position_embeddings": 48}"#;
        let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
        let schedules = [Schedule::OneFOneB, Schedule::ZbH1, Schedule::ZbH2, Schedule::Interleaved];
        let shardings = [Sharding::Replicated, Sharding::Zero1, Sharding::FullShard, Sharding::ShardGradOp];
        let (mut looked_at, mut refused) = (0, 0);
        for (schedule, sharding) in schedules.into_iter().flat_map(|it| shardings.map(|other| (it, other))) {
            let virtual_stages = if schedule == Schedule::Interleaved { 2 } else { 1 };
            let parallel =
                Parallel { pp: 4, dp: Some(2), schedule, virtual_stages, sharding, ..Parallel::default() };
            let options = Options {
                seq_len: Some(20),
                gradient_accumulation_steps: 24,
                precision: Precision::Bf16,
                parallel,
                ..Options::default()
            };
            let look = |short: &Short, _| {
                let rank = short.plan().options.parallel.rank;
                let parallel = Parallel { rank, ..options.parallel.clone() };
                let whole = plan(architecture.clone(), Options { parallel, ..options.clone() }).unwrap();
                let costs = RankCosts::of(short.plan(), Step::Steady, None).costs;
                assert_eq!(costs, whole.steady.costs(), "{schedule:?}, {sharding:?}, rank {rank}");
                looked_at += 1;
                ControlFlow::Continue(())
            };
            refused += u32::from(Short::of_each(&architecture, options.clone(), Extent::Peak, look).is_err());
        }
        // FSDP runs beside no schedule in which weights wait
        assert!(looked_at > 40 && refused == 4, "{looked_at} stages, {refused} refused");
    }

    /// A step of many micro-batches peaks where the same step with all of them planned does, and costs as much.
    #[test]
    fn a_short_plan_stands_for_the_whole_step() {
        let plain = Options { micro_batch_size: 3, seq_len: Some(20), ..Options::default() };
        let held = Options { hold_outputs: HoldOutputs::Step, ..plain.clone() };
        let offload = Offload { activations: true, ..Offload::default() };
        for options in [
            plain.clone(),
            held.clone(),
            Options { recompute: Recompute::Full, padded: true, ..held },
            Options {
                precision: Precision::Fp16Mixed,
                grad_scaler: true,
                clip_grad_norm: true,
                ..plain.clone()
            },
            Options { attention: Attention::Eager, fused_loss: true, ..plain.clone() },
            Options { offload, offload_prefetch: 1, ..plain.clone() },
            Options { offload: Offload { parameters: true, ..Offload::default() }, ..plain.clone() },
            Options { offload: Offload { optimizer: true, ..Offload::default() }, ..plain.clone() },
            Options {
                grad_dtype: Some(Dtype::F32),
                master_weights: Some(Dtype::F32),
                precision: Precision::Bf16,
                ..plain.clone()
            },
        ] {
            for gradient_accumulation_steps in [1, 2, 3, 4, 9, 33] {
                let options = Options { gradient_accumulation_steps, ..options.clone() };
                let by_device_peak = |plan: &Plan| Verdict::of(plan, &card("80GiB").unwrap(), None);
                let worst = Short::of_worst(&tiny(), options.clone(), Extent::Peak, &by_device_peak, None);
                let Worst { short, .. } = worst.unwrap();
                let whole = plan(tiny(), options.clone()).unwrap();
                assert_eq!(short.device_peak(), whole.device_peak_in(None).phase.device_peak, "{options:?}");
                assert_eq!(
                    RankCosts::of(&short.0, Step::Steady, None).costs,
                    whole.steady.costs(),
                    "{options:?}"
                );
            }
        }
    }
}
