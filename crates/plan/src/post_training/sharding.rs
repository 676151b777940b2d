//! What data parallel ranks change of post-training: how the models that are not trained lie on them, what `generate()`
//! gathers, and which rank is planned.
//!
//! The training step is as `plan` has it. DDP and ZeRO 1 and 2 have whole weights on every rank, so what scores or samples
//! gathers nothing. FSDP2 gathers whenever a module runs, under `no_grad` too, and what its forward does not share out again
//! stays whole until a backward does (`FSDPState._post_forward`, `torch/distributed/fsdp/_fully_shard`); verl reshards the root
//! when it has scored (`EngineEvalModeCtx`, `verl/workers/engine/fsdp/transformer_impl.py`). ZeRO 3 fetches and releases by the
//! trace of a whole micro-batch, of which a pass that scores is the beginning: what backward would use soon stays.
//!
//! A reference under DeepSpeed is sharded in stage 3 and whole in the others (`prepare_deepspeed`, `trl/models/utils.py`;
//! `get_ds_eval_config`, OpenRLHF), and so is a reward model. Under FSDP2 TRL shards the reference as one group
//! (`prepare_fsdp`: `fully_shard(model)` alone) and leaves reward models whole (`prepare_model(evaluation_mode=True)`); verl shards
//! by layers and keeps the reference's shards on the host (`CPUOffloadPolicy` where the engine is `forward_only`).
//!
//! `generate()` runs under ZeRO 3 on all parameters gathered at once, without hooks (`unwrap_model_for_generation` with
//! `ds3_gather_for_generation`), and under FSDP2 with its hooks: `summon_full_params` does nothing there
//! (`DistributedBackend`, `trl/distributed.py`).

use super::{Algorithm, Engine, PostTraining};
use crate::Plan;
use crate::config::Architecture;
use crate::multiples::gcd;
use crate::options::Options;
use crate::parallel::data::Way;
use crate::parallel::{
    FsdpWrap, Mesh, Parallel, Sharding, Shown, classes, classes_that_may_need_most, plan_classes,
};
use peakledger_input::Problem;

/// A model that is not trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Untrained {
    Reference,
    Reward,
}

/// Who wraps the models of that algorithm, where nobody else is named: OpenRLHF has no FSDP, so PPO is verl's.
pub(super) fn wrapped(request: &PostTraining, options: &Options) -> Option<FsdpWrap> {
    let is_fsdp = options.parallel.sharding.is_fsdp() && options.parallel.ep == 1;
    let verl = (is_fsdp && request.algorithm == Algorithm::Ppo).then_some(FsdpWrap::Verl);
    options.parallel.data.wrap.or(verl)
}

/// How the weights that are trained are shared out in a pass that scores.
pub(super) fn of_trained(request: &PostTraining) -> Way {
    Way {
        is_trained: true,
        within_training: request.algorithm.scores_inside(),
        reshards_root: request.algorithm == Algorithm::Ppo,
        ..Way::default()
    }
}

/// The options of a model that is not trained, and how it is shared out, if it is.
pub(super) fn of_untrained(
    request: &PostTraining,
    model: Untrained,
    options: Options,
) -> (Options, Option<Way>) {
    let sharding = options.parallel.sharding;
    if !sharding.is_fsdp() {
        return (options, Some(Way::default()));
    }
    match (request.algorithm, model) {
        (Algorithm::Ppo, _) => {
            let mut offload = options.offload;
            offload.parameters = model == Untrained::Reference;
            (Options { offload, ..options }, Some(Way { reshards_root: true, ..Way::default() }))
        }
        (_, Untrained::Reference) => {
            let reshards_root = sharding != Sharding::ShardGradOp;
            (options, Some(Way { in_one_group: true, reshards_root, ..Way::default() }))
        }
        (_, Untrained::Reward) => (Options { parallel: Parallel::default(), ..options }, None),
    }
}

/// Which ranks run the same: whether all do, and else which of them may need most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ranks {
    Alike,
    Differ(Vec<u32>),
    /// One was asked for.
    Asked(u32),
}

impl Ranks {
    /// Ranks differ in their training steps alone, and there in what passes: so where the actor's needs most or where the
    /// critic's does, all together need most.
    ///
    /// # Errors
    /// As the plans of the training steps, or where there is no such rank.
    pub(super) fn of(steps: &[(&Architecture, Options)], asked: Option<u32>) -> Result<Ranks, Problem> {
        if let Some(rank) = asked {
            for (_, options) in steps {
                on_rank(options, rank).mesh()?;
            }
            return Ok(Ranks::Asked(rank));
        }
        let mut worst = Vec::new();
        for (architecture, options) in steps {
            if classes(architecture, options)?.len() == 1 {
                continue;
            }
            let most = classes_that_may_need_most(architecture, options)?;
            let peak = |plan: &Plan| (plan.steady.device_peak().phase.device_peak, ());
            let ranks = plan_classes(architecture, options, most, Shown::Worst, peak)?;
            worst.push(ranks.plan.options.parallel.rank);
        }
        worst.sort_unstable();
        worst.dedup();
        Ok(if worst.is_empty() { Ranks::Alike } else { Ranks::Differ(worst) })
    }

    /// Those that are planned.
    pub(super) fn planned(&self) -> &[u32] {
        match self {
            Ranks::Alike => &[0],
            Ranks::Differ(worst) => worst,
            Ranks::Asked(rank) => std::slice::from_ref(rank),
        }
    }
}

/// What a rank's sequences are a multiple of, so that all ranks together have whole groups: the responses of one may be on
/// several ranks, since rewards are gathered from all (`_calculate_rewards`, `trl/trainer/grpo_trainer.py`).
pub(super) fn of_a_rank(group: u64, options: &Options) -> u64 {
    let world = options.mesh().map_or(1, |mesh| u64::from(mesh.world));
    group.checked_div(gcd(group, world)).unwrap_or(0)
}

/// The options of a step, on that rank.
pub(super) fn on_rank(options: &Options, rank: u32) -> Options {
    Options { parallel: Parallel { rank, ..options.parallel.clone() }, ..options.clone() }
}

/// What is taken for granted of how the models lie on ranks, where there are several.
pub(super) fn said(request: &PostTraining, options: &Options, mesh: &Mesh) -> Option<String> {
    if mesh.world == 1 {
        return None;
    }
    let (has_reference, has_reward) =
        (request.has_reference() && options.lora.is_none(), request.has_reward_model());
    let others = match (has_reference, has_reward) {
        (false, false) => None,
        (true, false) => Some("the reference is"),
        (false, true) => Some("the reward model is"),
        (true, true) => Some("the reference and the reward model are"),
    };
    let sharding = options.parallel.sharding;
    let mut said = vec!["each rolls out, scores and trains on sequences of its own".to_owned()];
    match sharding {
        Sharding::Replicated => said.push("all weights are whole on each".to_owned()),
        Sharding::Zero1 | Sharding::Zero2 => {
            said.push("weights are whole on each".to_owned());
            said.extend(others.map(|others| {
                format!(
                    "{others} too, which DeepSpeed shares out in stage 3 alone (`prepare_deepspeed`, TRL)"
                )
            }));
        }
        Sharding::Zero3 => {
            said.push("passes that score fetch by the trace of a whole micro-batch, and what backward would use soon stays".to_owned());
            said.extend(others.map(|others| format!("{others} shared out, each parameter by itself")));
            if request.algorithm != Algorithm::Dpo && request.engine == Engine::Hf {
                said.push("DeepSpeed records that trace anew after each generate(), which holds less until it has it".to_owned());
            }
        }
        _ if request.algorithm == Algorithm::Ppo => {
            said.push(
                "passes that score gather as training does, and reshard the root afterwards, as verl has it"
                    .to_owned(),
            );
            if has_reference {
                said.push("the reference's shards are on the host (CPUOffloadPolicy)".to_owned());
            }
            if has_reward {
                said.push("the reward model is sharded by layers".to_owned());
            }
        }
        _ => {
            said.push("passes under no_grad gather as training does, and what they do not reshard stays whole until backward".to_owned());
            if has_reference {
                said.push("the reference is sharded as one group (`prepare_fsdp`, TRL)".to_owned());
            }
            if has_reward {
                said.push("the reward model is whole on each (`prepare_model`, accelerate)".to_owned());
            }
        }
    }
    Some(format!("{}: {}", mesh.world, said.join("; ")))
}

/// With which weights `generate()` runs.
pub(super) fn in_generate(sharding: Sharding) -> &'static str {
    match sharding {
        Sharding::Zero3 => ", all gathered at once for it (ds3_gather_for_generation)",
        _ if sharding.is_fsdp() => ", gathered layer by layer in each pass",
        _ => "",
    }
}
