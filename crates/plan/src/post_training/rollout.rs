//! The rollout: responses sampled from the actor, by `generate()` or by vLLM.
//!
//! `generate()` runs the trained weights: prefill over the prompts, then a step a token over the KV cache, each of which
//! copies a layer's keys and values into longer ones. Prefill and the last step are run by the interpreter; the steps between
//! only make the cache longer. The token that is sampled last is never fed, so the cache ends a token short of the sequence.

use super::pass::Pass;
use super::score::{Inference, scoring};
use super::vllm::{self, Pool};
use super::{Engine, PostTraining, sharding};
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

/// A rollout that is planned.
pub(super) struct Sampled {
    /// Sequences that are sampled for this rank.
    pub(super) sequences: u64,
    /// How many are in flight at once, of these or of those of its tensor parallel group.
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
        Engine::Vllm(vllm) => vllm::plan(architecture, options, request, vllm, (sequences, card)),
    }
}

/// How many tokens have keys and values when the last is sampled.
pub(super) fn cached_tokens(request: &PostTraining) -> u64 {
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
    let run = Inference::load(architecture, &options, Some(sharding::of_trained(request)))?;
    let torch = &run.torch;
    torch.begin(Phase::named(Pass::Rollout.as_str()), None);
    torch.kv_cache.replace(Some(KvCache::new(windows(&architecture.shape))));
    let forward = |tokens: u64, pass: u32| -> Tensor {
        let batch = load(torch, &options, tokens, pass);
        torch.autocast(options.autocast(), || {
            run.forward(|| {
                let last_hidden_state = run.model.decode(&batch);
                let width = last_hidden_state.size(2);
                let last = last_hidden_state.alias(Layout::contiguous(&[sequences, 1, width]));
                run.model.logits(&last).unwrap_or(last)
            })
        })
    };
    let gathered = run.unwrap_for_generation();
    torch.without_grad(|| {
        sample(torch, &forward(request.prompt_len, 0));
        if request.response_len > 1 {
            torch.grow_cache(cached_tokens(request).saturating_sub(1));
            let ids = Layout::contiguous(&[sequences, request.tokens()]);
            torch.launch("cat");
            let _so_far = torch.empty(ids, Dtype::Int64);
            sample(torch, &forward(1, 1));
        }
    });
    torch.kv_cache.replace(None);
    drop(gathered);
    run.end();
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
pub(super) fn windows(shape: &Shape) -> Vec<Option<u64>> {
    let has_window = |layer: usize| {
        let window = shape.window.as_ref()?;
        window.layers.get(layer).copied().unwrap_or(false).then_some(window.size)
    };
    (0..shape.num_hidden_layers as usize).map(has_window).collect()
}
