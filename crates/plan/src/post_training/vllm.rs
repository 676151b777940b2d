//! A rollout by vLLM on the same card. It runs modules of its own, so what it takes is arithmetic: its weights in bf16 and its
//! pool of blocks of 16 tokens.
//!
//! Ranks of a tensor parallel group (`vllm_tensor_parallel_size`) share out its weights and its heads of keys and values, and
//! sample the prompts of all of them (`generate`, `trl/generation/vllm_generation.py`). Before it samples, it is given the
//! weights that were trained, a parameter at a time; where ranks share these out, each is gathered for that (`_iter_named_params`:
//! `full_tensor()` of FSDP2 in the type that shards are kept in, `GatheredParameters` of ZeRO 3), and with adapters under ZeRO 3
//! all at once, to be merged.

use super::rollout::{Sampled, Sampler, cached_tokens, windows};
use super::{PostTraining, Vllm};
use crate::catalogue::Card;
use crate::config::Architecture;
use crate::model::Run;
use crate::nn::{Builder, Parameter};
use crate::options::{Options, refused};
use crate::parallel::{Mesh, Sharding};
use crate::torch::Torch;
use crate::torch::tape::rounded;
use peakledger_core::Bytes;
use peakledger_input::Problem;

/// Tokens of a block of vLLM's cache (`--block-size`, by default on CUDA).
const BLOCK: u64 = 16;

/// What vLLM holds.
pub(super) struct Pool {
    /// Its own weights.
    pub(super) weights: Bytes,
    /// Its blocks, and with `gpu_memory_utilization` all else that it keeps.
    pub(super) blocks: Bytes,
    /// The logits of a step in fp32, where they are not in what it keeps.
    pub(super) logits: Bytes,
    /// What is gathered at once of the weights that were trained, where ranks share them out.
    pub(super) gathered: Bytes,
    /// Sequences that the ranks of a tensor parallel group sample together.
    pub(super) sequences: u64,
    pub(super) vllm: Vllm,
}

/// Plans what vLLM takes to sample so many sequences for each rank.
///
/// # Errors
/// Where a size does not fit into 64 bits, or the blocks do not hold one sequence.
pub(super) fn plan(
    architecture: &Architecture,
    options: &Options,
    request: &PostTraining,
    vllm: Vllm,
    (own, card): (u64, Option<&Card>),
) -> Result<Sampled, Problem> {
    let option = "--vllm-gpu-memory-utilization";
    let ranks = u64::from(vllm.tensor_parallel_size);
    let sequences = own.saturating_mul(ranks);
    let weights = numbers_of_a_rank(architecture, options, ranks).saturating_mul(2);
    let a_sequence = bytes_of_a_sequence(architecture, cached_tokens(request), ranks);
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
                return refused(option, cause, "make it larger");
            }
            (blocks, 0, blocks.checked_div(a_sequence).unwrap_or(sequences).min(sequences))
        }
    };
    let gathered = gathered(architecture, options, &options.mesh()?);
    if [weights, blocks, logits, gathered].iter().any(|bytes| *bytes > u64::MAX / 8) {
        let problem = Problem::anywhere("the sizes of this rollout do not fit into 64 bits of bytes");
        return Err(problem.mend("check --rollout-sequences, --prompt-len and --response-len"));
    }
    let kv_cache = Bytes::new(needed.min(blocks));
    let [weights, blocks, logits, gathered] = [weights, blocks, logits, gathered].map(Bytes::new);
    let pool = Pool { weights, blocks, logits, gathered, sequences, vllm };
    Ok(Sampled { sequences: own, at_once, kv_cache, by: Sampler::Pool(pool) })
}

/// Checks how many ranks share vLLM's weights out.
///
/// # Errors
/// Says what does not divide, as vLLM and TRL do.
pub(super) fn check(architecture: &Architecture, options: &Options, vllm: Vllm) -> Result<(), Problem> {
    let option = "--vllm-tensor-parallel-size";
    let (ranks, world) = (vllm.tensor_parallel_size, options.mesh()?.world);
    if ranks == 0 || !world.is_multiple_of(ranks) {
        let cause = format!("groups of {ranks} do not divide the {world} ranks");
        return refused(option, cause, "use a divisor of --gpus");
    }
    let shape = &architecture.shape;
    let (heads, ranks) = (shape.num_attention_heads, u64::from(ranks));
    if !heads.is_multiple_of(ranks) {
        return refused(
            option,
            format!("{ranks} ranks do not divide {heads} heads"),
            "use a divisor of the heads",
        );
    }
    let cached = architecture.blueprint.cached_heads(shape).max(1);
    if !cached.is_multiple_of(ranks) && !ranks.is_multiple_of(cached) {
        let cause = format!("{ranks} ranks do not divide {cached} heads of keys and values, nor these them");
        return refused(option, cause, "use a divisor of the heads, or a multiple");
    }
    Ok(())
}

/// Every parameter of the model, which is built, but not run; with the names of its module and its own.
fn parameters(architecture: &Architecture, options: &Options) -> Vec<(String, Parameter)> {
    let mut build = Builder::new(Torch::new(0, options.capability), options);
    let _model =
        architecture.blueprint.build(&mut build, &architecture.shape, Run::none(&architecture.shape));
    let parameters = std::mem::take(&mut build.parameters);
    let tape = build.torch.tape.borrow();
    parameters.into_iter().map(|parameter| (tape.path(parameter.module), parameter)).collect()
}

/// Numbers of vLLM's weights on each of so many ranks: matrices are divided, those of keys and values into their heads at
/// most; norms, routers and the way down to latents are whole on all.
fn numbers_of_a_rank(architecture: &Architecture, options: &Options, ranks: u64) -> u64 {
    if ranks == 1 {
        return architecture.parameters();
    }
    let heads = architecture.shape.num_key_value_heads.max(1);
    let plain = Options { lora: None, quantize: None, ..options.clone() };
    let of_a_rank = |(path, parameter): (String, Parameter)| {
        let numbers = parameter.tensor.layout().numel();
        let name = path.rsplit('.').next().unwrap_or_default();
        let is_whole = name.contains("norm")
            || name.starts_with("ln_")
            || matches!(name, "gate" | "router" | "q_a_proj" | "kv_a_proj_with_mqa");
        match name {
            _ if is_whole => numbers,
            "k_proj" | "v_proj" => numbers.div_ceil(ranks.min(heads)),
            _ => numbers.div_ceil(ranks),
        }
    };
    parameters(architecture, &plain).into_iter().map(of_a_rank).fold(0, u64::saturating_add)
}

/// The blocks that a sequence fills on each of so many ranks, in bytes of bf16; of layers with a window those that reach into
/// it. A rank has a head of keys and values at least.
fn bytes_of_a_sequence(architecture: &Architecture, tokens: u64, ranks: u64) -> u64 {
    let (shape, blueprint) = (&architecture.shape, &architecture.blueprint);
    let heads = blueprint.cached_heads(shape).max(1);
    let own = heads.div_ceil(ranks.max(1));
    let a_token = (blueprint.kv_width(shape) / heads).saturating_mul(own).saturating_mul(2);
    let tokens = windows(shape).into_iter().map(|window| window.map_or(tokens, |window| tokens.min(window)));
    tokens.fold(0, |sum: u64, tokens| {
        sum.saturating_add(tokens.div_ceil(BLOCK).saturating_mul(BLOCK).saturating_mul(a_token))
    })
}

/// What is gathered at once while vLLM is given the weights.
fn gathered(architecture: &Architecture, options: &Options, mesh: &Mesh) -> u64 {
    let sharding = options.parallel.sharding;
    let (is_fsdp, is_zero3) = (sharding.is_fsdp(), sharding == Sharding::Zero3);
    let ranks = u64::from(mesh.shards(&options.parallel));
    if ranks == 1 || !(is_fsdp || is_zero3) {
        return 0;
    }
    let whole = |(_, parameter): (String, Parameter)| {
        let layout = parameter.tensor.layout();
        let numbers = match layout.sizes().first() {
            // a shard has whole rows
            Some(rows) if is_fsdp && *rows > 0 => {
                (layout.numel() / rows).saturating_mul(rows.next_multiple_of(ranks))
            }
            _ => layout.numel().next_multiple_of(ranks),
        };
        let dtype = if is_fsdp { parameter.kept } else { parameter.tensor.dtype() };
        rounded(numbers.saturating_mul(dtype.width()))
    };
    let each = parameters(architecture, options).into_iter().map(whole);
    match options.lora.is_some() && is_zero3 {
        true => each.fold(0, u64::saturating_add),
        false => each.max().unwrap_or(0),
    }
}
