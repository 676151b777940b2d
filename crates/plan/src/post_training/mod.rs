//! Post-training: several models on one timeline. A GRPO, PPO or DPO step is a rollout, passes that score it, and the
//! training step, one after the other on a card; each model sits on the device while it is needed, on the host while it
//! sleeps, or nowhere.
//!
//! Nothing here is a formula where the interpreter can run: the training step is [`crate::plan()`]'s with the trainer's
//! own loss, the passes that score run the same modules under `no_grad` (`score`), a rollout by `generate()` runs prefill
//! and the last step over its KV cache (`rollout`). `compose` puts their tapes on one timeline with phases of its own.
//! The answer is an ordinary ledger. On many GPUs it is that of the data parallel rank that needs most (`sharding`).
//!
//! Sources: TRL 1.16 (`trainer/grpo_trainer.py`, `trainer/dpo_trainer.py`, `generation/vllm_generation.py`) for GRPO and DPO;
//! verl 0.9.1 (`trainer/ppo/ray_trainer.py`, `workers/engine_workers.py`) and OpenRLHF 0.11.2 (`trainer/ppo_trainer.py`) for
//! PPO's order, its critic and what is offloaded between phases.

mod beside;
mod check;
mod compose;
mod composed;
mod models;
mod pass;
mod rollout;
mod score;
mod sharding;
mod vllm;
mod words;

pub use models::ModelInMemory;

use crate::catalogue::Card;
use crate::config::Architecture;
use crate::multiples::lcm;
use crate::notes::Assumption;
use crate::options::{Objective, Options};
use crate::torch::Dtype;
use crate::{Contributor, Plan, Verdict};
use compose::Composer;
use composed::Composed;
use models::{Models, of_critic, with_values};
use peakledger_core::{Bytes, Ledger, Moment};
use peakledger_input::Problem;
use sharding::{Ranks, on_rank};

/// How a model is trained after it was trained on text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Groups of responses to a prompt are compared with one another; no critic.
    Grpo,
    /// A critic tells the value of each token.
    Ppo,
    /// Pairs of a chosen and a rejected response that come with the data; nothing is sampled.
    Dpo,
}

impl Algorithm {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Algorithm::Grpo => "grpo",
            Algorithm::Ppo => "ppo",
            Algorithm::Dpo => "dpo",
        }
    }
}

/// Who samples the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `generate()` of transformers, with the weights that are trained.
    Hf,
    /// vLLM in the same process (`vllm_mode="colocate"`), with weights of its own in bf16.
    Vllm(Vllm),
}

/// How vLLM shares the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vllm {
    /// `gpu_memory_utilization` in millionths of the card; without one, as many blocks as the sequences fill.
    pub gpu_memory_utilization: Option<u32>,
    /// The level at which it sleeps while models score and train: 1 keeps its weights on the host, 2 keeps nothing.
    pub sleep_level: Option<u8>,
    /// Ranks that share out its weights and its cache, and sample the prompts of all of them (`vllm_tensor_parallel_size`).
    pub tensor_parallel_size: u32,
}

impl Default for Vllm {
    fn default() -> Vllm {
        Vllm { gpu_memory_utilization: None, sleep_level: None, tensor_parallel_size: 1 }
    }
}

/// What is on the host between the phases that need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadBetween {
    /// The actor's weights (verl's `actor.fsdp_config.param_offload`).
    pub actor: bool,
    /// Optimizer state and master weights of what is trained (verl's `optimizer_offload`).
    pub optimizer: bool,
    /// The reference's weights (verl's `ref.fsdp_config.param_offload`, OpenRLHF's `--ref.offload`).
    pub reference: bool,
    /// The reward model's weights (OpenRLHF's `--reward.offload`).
    pub reward: bool,
    /// The critic's weights (verl's `critic.fsdp_config.param_offload`).
    pub critic: bool,
}

/// What post-training is asked for, beside the options of the training step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostTraining {
    /// How.
    pub algorithm: Algorithm,
    /// Tokens of a prompt.
    pub prompt_len: u64,
    /// Tokens of a response.
    pub response_len: u64,
    /// Responses to a prompt that are compared (`num_generations`); without one 8.
    pub group_size: Option<u64>,
    /// Sequences of a rollout on this card, of each rank its own; without one the fewest that are whole steps of training and,
    /// with those of all other ranks, whole groups.
    pub rollout_sequences: Option<u64>,
    /// Who samples.
    pub engine: Engine,
    /// Whether there is a reference: GRPO without `beta` has none, DPO with precomputed log-probabilities needs none.
    pub reference: Option<bool>,
    /// The type of the reference's weights, and of the reward model's; without one that of the actor's.
    pub reference_dtype: Option<Dtype>,
    /// Whether a reward model is on the card; without an answer PPO has one.
    pub reward_model: Option<bool>,
    /// What sleeps on the host.
    pub offload_between: OffloadBetween,
    /// The rank that is planned; without one that which needs most.
    pub rank: Option<u32>,
}

impl PostTraining {
    /// The usual lengths: TRL's `max_completion_length` behind a prompt as long.
    pub fn new(algorithm: Algorithm) -> PostTraining {
        PostTraining {
            algorithm,
            prompt_len: 512,
            response_len: 512,
            group_size: None,
            rollout_sequences: None,
            engine: Engine::Hf,
            reference: None,
            reference_dtype: None,
            reward_model: None,
            offload_between: OffloadBetween::default(),
            rank: None,
        }
    }

    fn has_reference(&self) -> bool {
        self.reference.unwrap_or(self.algorithm != Algorithm::Grpo)
    }

    fn has_reward_model(&self) -> bool {
        self.reward_model.unwrap_or(self.algorithm == Algorithm::Ppo)
    }

    fn has_critic(&self) -> bool {
        self.algorithm == Algorithm::Ppo
    }

    /// Tokens of a whole sequence.
    fn tokens(&self) -> u64 {
        self.prompt_len.saturating_add(self.response_len)
    }

    /// Rows of a micro-batch.
    fn rows(&self, options: &Options) -> u64 {
        options.micro_batch_size.saturating_mul(self.algorithm.rows())
    }

    /// Sequences that one optimizer step trains on; of DPO pairs.
    fn sequences_of_a_step(options: &Options) -> u64 {
        options.micro_batch_size.saturating_mul(u64::from(options.gradient_accumulation_steps))
    }

    /// Responses in a group.
    fn group(&self) -> u64 {
        match self.algorithm {
            Algorithm::Grpo => self.group_size.unwrap_or(8),
            _ => 1,
        }
    }

    /// Sequences of a rollout for a rank: whole steps of training, and with those of all other ranks whole groups.
    fn sequences(&self, options: &Options) -> u64 {
        let fewest = || lcm(Self::sequences_of_a_step(options), sharding::of_a_rank(self.group(), options));
        self.rollout_sequences.or_else(fewest).unwrap_or(u64::MAX) // more than any rollout may have
    }

    /// Whether the actor's log-probabilities of its own responses are computed before it is trained: where several steps
    /// train on a rollout, where another engine sampled, and always for PPO (`_generate_and_score_completions`,
    /// `trl/trainer/grpo_trainer.py`; `_compute_old_log_prob`, `verl/trainer/ppo/ray_trainer.py`).
    fn scores_itself(&self, options: &Options) -> bool {
        match self.algorithm {
            Algorithm::Grpo => {
                self.engine != Engine::Hf || self.sequences(options) > Self::sequences_of_a_step(options)
            }
            Algorithm::Ppo => true,
            Algorithm::Dpo => false,
        }
    }
}

/// Post-training that is planned.
#[derive(Debug)]
pub struct PostTrained {
    /// What was asked for.
    pub request: PostTraining,
    /// Whether other ranks need less than the one that is here; never where it was asked for.
    pub ranks_differ: bool,
    /// The training step of the actor by itself, of the rank that needs most.
    pub actor: Plan,
    /// Sequences of a rollout for a rank; 0 where nothing is sampled.
    pub sequences: u64,
    /// The models on the card, and what each keeps there.
    pub models: Vec<ModelInMemory>,
    /// The largest KV cache; 0 where nothing is sampled.
    pub kv_cache: Bytes,
    /// What is taken for granted, first of post-training, then of the training step.
    pub assumptions: Vec<Assumption>,
    /// What the figures leave out.
    pub not_counted: Vec<&'static str>,
    composed: Composed,
}

impl PostTrained {
    /// All of it on one timeline, at device level.
    pub fn ledger(&self) -> &Ledger {
        &self.composed.ledger
    }

    /// What runs at each phase's peak, where that is known.
    pub fn peak_ops(&self) -> &[Option<Box<str>>] {
        &self.composed.peak_ops
    }

    /// Who stands on the device at a moment, grouped, largest first, then by name.
    pub fn contributors(&self, moment: Moment) -> Vec<Contributor> {
        self.composed.contributors(moment)
    }

    /// Whether it fits a card: the device-level peak and the CUDA context. What the caching allocator reserves beyond that is
    /// not predicted.
    pub fn verdict(&self, card: &Card) -> Verdict {
        let needed = self.ledger().peak().bytes.checked_add(self.actor.outside(Some(card)));
        Verdict { needed: needed.unwrap_or(Bytes::new(u64::MAX)), capacity: card.total }
    }
}

/// Plans a step of post-training: one rollout, what scores it, and one optimizer step on it.
///
/// # Errors
/// Names the option that cannot be, or the sum that does not fit into 64 bits.
pub fn post_train(
    architecture: Architecture,
    options: Options,
    request: PostTraining,
    card: Option<&Card>,
) -> Result<PostTrained, Problem> {
    check::check(&request, &options, &architecture)?;
    let mut options = options;
    options.parallel.data.wrap = sharding::wrapped(&request, &options);
    let training = Options {
        micro_batch_size: request.rows(&options),
        seq_len: Some(request.tokens()),
        objective: Objective::LogProbs { response: request.response_len },
        ..options.clone()
    };
    let sampled = match request.algorithm {
        Algorithm::Dpo => None,
        _ => Some(rollout::plan(&architecture, &options, &request, card)?),
    };
    let critic = request.has_critic().then(|| with_values(&architecture));
    let trained = critic.iter().map(|critic| (critic, of_critic(&training, &architecture)));
    let trained: Vec<_> = trained.chain([(&architecture, training.clone())]).collect();
    let ranks = Ranks::of(&trained, request.rank)?;
    let mut worst: Option<(Models, Composed)> = None;
    for rank in ranks.planned() {
        let models = Models::plan(&architecture, &on_rank(&training, *rank), &request, &options)?;
        let mut composer = Composer::new(&request, &models, sampled.as_ref());
        composer.lay_out();
        let composed = composer.compose(request.sequences(&options))?;
        let peak = |composed: &Composed| composed.ledger.peak().bytes;
        if worst.as_ref().is_none_or(|(_, other)| peak(&composed) > peak(other)) {
            worst = Some((models, composed));
        }
    }
    let Some((models, composed)) = worst else { unreachable!("a rank is planned") };
    let sequences = sampled.as_ref().map_or(0, |sampled| sampled.sequences);
    let kv_cache = sampled.as_ref().map_or(Bytes::ZERO, |sampled| sampled.kv_cache);
    let mut assumptions = words::assumptions(&request, &options, &models, sampled.as_ref());
    // what its loop does with logits is said of the loss
    assumptions.extend(models.actor.assumptions().into_iter().filter(|it| it.topic != "loop"));
    Ok(PostTrained {
        sequences,
        ranks_differ: matches!(ranks, Ranks::Differ(_)),
        models: models.in_memory(&composed.ledger),
        kv_cache,
        assumptions,
        not_counted: words::not_counted(&request, &options, sampled.as_ref()),
        actor: models.actor,
        composed,
        request,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::open_model;
    use crate::parallel::Parallel;

    /// Whatever the batch and the group are, a rollout of which nothing was said is one that can be.
    #[test]
    fn a_rollout_of_which_nothing_is_said_goes_with_any_batch_and_group() {
        let model = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        let said = |option: Option<u64>, options: &Options| {
            let request = PostTraining { group_size: option, ..PostTraining::new(Algorithm::Grpo) };
            let fewest = request.sequences(options);
            assert_eq!(
                check::check(&request, options, &model).map_err(|problem| problem.to_string()),
                Ok(())
            );
            let told = PostTraining { rollout_sequences: Some(fewest), ..request };
            assert_eq!(check::check(&told, options, &model).map_err(|problem| problem.to_string()), Ok(()));
            fewest
        };
        for (micro_batch_size, steps, dp) in (1..=13).flat_map(|it| [(it, 1, 1), (it, 3, 2), (it, 2, 12)]) {
            let options = Options {
                micro_batch_size,
                gradient_accumulation_steps: steps,
                parallel: Parallel { dp: Some(dp), ..Parallel::default() },
                ..Options::default()
            };
            for group in [None, Some(2), Some(6), Some(8), Some(9)] {
                let sequences = said(group, &options);
                assert_eq!(sequences % (micro_batch_size * u64::from(steps)), 0);
                assert_eq!(sequences * u64::from(dp) % group.unwrap_or(8), 0);
            }
        }
        assert_eq!(
            [12, 3, 16].map(|it| said(None, &Options { micro_batch_size: it, ..Options::default() })),
            [24, 24, 16]
        );
    }
}
