//! The rollout: responses sampled from the actor, by `generate()` or by vLLM.
//!
//! `generate()` runs the trained weights: prefill over the prompts, then a step a token over the KV cache, each of which
//! copies a layer's keys and values into longer ones. Prefill and the last step are run by the interpreter; the steps between
//! only make the cache longer. The token that is sampled last is never fed, so the cache ends a token short of the sequence.
//!
//! vLLM runs modules of its own, so what it takes is arithmetic: its weights in bf16 and its pool of blocks of 16 tokens.

use super::score::{Inference, scoring};
use super::{Engine, PostTraining, Vllm};
use crate::Plan;
use crate::catalogue::Card;
use crate::config::{Architecture, Shape};
use crate::options::{Objective, Options};
use crate::step::load;
use crate::torch::kv_cache::{KV_CACHE, KvCache};
use crate::torch::tape::{Role, Stored, Tape};
use crate::torch::{Dtype, Layout, Tensor, Torch, ops};
use peakledger_core::{Bytes, Phase};
use peakledger_input::Problem;
use std::rc::Rc;

/// The phase.
pub(super) const ROLLOUT: &str = "rollout";

/// Tokens of a block of vLLM's cache (`--block-size`, by default on CUDA).
const BLOCK: u64 = 16;

/// A rollout that is planned.
pub(super) struct Sampled {
    /// Sequences that are sampled on this card.
    pub(super) sequences: u64,
    /// Of these, how many are in flight at once.
    pub(super) at_once: u64,
    /// The largest KV cache.
    pub(super) kv_cache: Bytes,
    pub(super) by: Sampler,
}

/// Who samples.
pub(super) enum Sampler {
    /// `generate()`, on a tape.
    Generate(Box<Plan>),
    /// vLLM.
    Pool(Pool),
}

/// What vLLM holds.
pub(super) struct Pool {
    /// Its own weights.
    pub(super) weights: Bytes,
    /// Its blocks, and with `gpu_memory_utilization` all else that it keeps.
    pub(super) blocks: Bytes,
    /// The logits of a step in fp32, where they are not in what it keeps.
    pub(super) logits: Bytes,
    pub(super) vllm: Vllm,
}

/// Plans the rollout.
///
/// # Errors
/// Where a size does not fit into 64 bits, or the blocks of vLLM do not hold one sequence.
pub(super) fn plan(
    architecture: &Architecture,
    options: &Options,
    request: &PostTraining,
    card: Option<&Card>,
) -> Result<Sampled, Problem> {
    let sequences = request.sequences(options);
    match request.engine {
        Engine::Hf => generate(architecture, options, request, sequences),
        Engine::Vllm(vllm) => pool(architecture, request, vllm, (sequences, card)),
    }
}

/// How many tokens have keys and values when the last is sampled.
fn cached_tokens(request: &PostTraining) -> u64 {
    request.tokens().saturating_sub(1)
}

fn generate(
    architecture: &Architecture,
    options: &Options,
    request: &PostTraining,
    sequences: u64,
) -> Result<Sampled, Problem> {
    let options = Options {
        micro_batch_size: sequences,
        seq_len: Some(request.prompt_len),
        ..scoring(options, Objective::NextToken)
    };
    let layers = architecture.shape.num_hidden_layers;
    options.check(request.tokens(), layers, architecture.shape.num_experts)?;
    let run = Inference::load(architecture, &options)?;
    let torch = &run.torch;
    torch.begin(Phase::named(ROLLOUT), None);
    torch.kv_cache.replace(Some(KvCache::new(windows(&architecture.shape))));
    let forward = |tokens: u64, pass: u32| -> Option<Tensor> {
        let batch = load(torch, &options, tokens, pass);
        torch.autocast(options.autocast(), || {
            let last_hidden_state = run.model.decode(&batch);
            let last =
                last_hidden_state.alias(Layout::contiguous(&[sequences, 1, last_hidden_state.size(2)]));
            run.model.logits(&last)
        })
    };
    torch.without_grad(|| {
        forward(request.prompt_len, 0).iter().for_each(|logits| sample(torch, logits));
        if request.response_len > 1 {
            torch.grow_cache(cached_tokens(request).saturating_sub(1));
            let ids = Layout::contiguous(&[sequences, request.tokens()]);
            torch.launch("cat");
            let _so_far = torch.empty(ids, Dtype::Int64);
            forward(1, 1).iter().for_each(|logits| sample(torch, logits));
        }
    });
    torch.kv_cache.replace(None);
    torch.end();
    let plan = run.finish(architecture, options)?;
    let kv_cache = Bytes::new(kept_to_the_end(plan.tape()));
    let by = Sampler::Generate(Box::new(plan));
    Ok(Sampled { sequences, at_once: sequences, kv_cache, by })
}

/// What the cache takes when the last token is sampled.
fn kept_to_the_end(tape: &Tape) -> u64 {
    let is_cache = |stored: &&Stored| matches!(stored.role, Role::Named { name: KV_CACHE });
    let cache = || tape.stored.iter().filter(is_cache);
    let end = cache().map(|stored| stored.death).max();
    let kept = cache().filter(|stored| Some(stored.death) == end);
    kept.fold(0, |sum: u64, stored| sum.saturating_add(stored.bytes))
}

/// A token of each row: the logits copied to fp32, made probabilities, and raced against exponential numbers
/// (`GenerationMixin._sample`, transformers; `multinomial`, `aten/src/ATen/native/Distributions.cpp`). TRL samples at
/// temperature 1 from all tokens, so nothing else is made.
fn sample(torch: &Rc<Torch>, logits: &Tensor) {
    let scores = ops::to_copy(logits, Dtype::F32);
    let probabilities = ops::softmax(&scores);
    torch.launch("multinomial");
    let _exponential = torch.empty(probabilities.layout().packed(), Dtype::F32);
}

/// The window of each layer, if it has one.
fn windows(shape: &Shape) -> Vec<Option<u64>> {
    let has_window = |layer: usize| {
        let window = shape.window.as_ref()?;
        window.layers.get(layer).copied().unwrap_or(false).then_some(window.size)
    };
    (0..shape.num_hidden_layers as usize).map(has_window).collect()
}

/// The blocks that a sequence fills, in bytes of bf16; of layers with a window those that reach into it.
fn bytes_of_a_sequence(architecture: &Architecture, tokens: u64) -> u64 {
    let shape = &architecture.shape;
    let a_token = architecture.blueprint.kv_width(shape).saturating_mul(2);
    let tokens = windows(shape).into_iter().map(|window| window.map_or(tokens, |window| tokens.min(window)));
    tokens.fold(0, |sum: u64, tokens| {
        sum.saturating_add(tokens.div_ceil(BLOCK).saturating_mul(BLOCK).saturating_mul(a_token))
    })
}

fn pool(
    architecture: &Architecture,
    request: &PostTraining,
    vllm: Vllm,
    (sequences, card): (u64, Option<&Card>),
) -> Result<Sampled, Problem> {
    let option = "--vllm-gpu-memory-utilization";
    let weights = architecture.parameters().saturating_mul(2);
    let a_sequence = bytes_of_a_sequence(architecture, cached_tokens(request));
    let needed = a_sequence.saturating_mul(sequences);
    let logits = sequences.saturating_mul(architecture.shape.vocab_size).saturating_mul(4);
    let (blocks, logits, at_once) = match vllm.gpu_memory_utilization {
        None => (needed, logits, sequences),
        Some(millionths) => {
            let Some(card) = card else {
                let problem = Problem::in_option(option, "it is a part of a card, and none is named");
                return Err(problem.mend("add `--gpu`, or leave it out"));
            };
            let share = u128::from(card.total.get()) * u128::from(millionths) / 1_000_000;
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            let blocks = share.saturating_sub(weights);
            if blocks < a_sequence {
                let cause = format!(
                    "{} of it leave no room for one sequence of {} beside weights of {}",
                    Bytes::new(share),
                    Bytes::new(a_sequence),
                    Bytes::new(weights)
                );
                return Err(Problem::in_option(option, cause).mend("make it larger"));
            }
            (blocks, 0, blocks.checked_div(a_sequence).unwrap_or(sequences).min(sequences))
        }
    };
    if [weights, blocks, logits].iter().any(|bytes| *bytes > u64::MAX / 8) {
        let problem = Problem::anywhere("the sizes of this rollout do not fit into 64 bits of bytes");
        return Err(problem.mend("check --rollout-sequences, --prompt-len and --response-len"));
    }
    let kv_cache = Bytes::new(needed.min(blocks));
    let [weights, blocks, logits] = [weights, blocks, logits].map(Bytes::new);
    Ok(Sampled { sequences, at_once, kv_cache, by: Sampler::Pool(Pool { weights, blocks, logits, vllm }) })
}
