//! What post-training takes for granted and leaves out, in words.

use super::models::Models;
use super::rollout::{Sampled, Sampler};
use super::{Algorithm, OffloadBetween, PostTraining, sharding};
use crate::notes::Assumption;
use crate::options::{Options, Recompute};
use crate::parallel::Sharding;
use peakledger_core::{Bytes, counted};

/// Everything that is assumed of what is around the training step.
pub(super) fn assumptions(
    request: &PostTraining,
    options: &Options,
    models: &Models,
    sampled: Option<&Sampled>,
) -> Vec<Assumption> {
    let mut list = vec![("step", step(request, options, models.actor.mesh.world))];
    list.extend(sharding::said(request, options, &models.actor.mesh).map(|said| ("models", said)));
    if let Some(sampled) = sampled {
        list.push(("rollout", rollout(sampled, options)));
    }
    list.push(("scoring", scoring(request, options, models)));
    if models.critic.is_some() {
        list.push(("critic", critic()));
    }
    list.push(("loss", loss()));
    list.push(("between", between(request, sampled)));
    list.into_iter().map(|(topic, value)| Assumption { topic, value }).collect()
}

fn step(request: &PostTraining, options: &Options, world: u32) -> String {
    let (prompt, response) = (request.prompt_len, request.response_len);
    let lengths = format!("{prompt} tokens of prompt and {response} of response, every row at full length");
    let trained = PostTraining::sequences_of_a_step(options);
    if request.algorithm == Algorithm::Dpo {
        return format!(
            "DPO, as TRL 1.16 runs it: {} a step{}, chosen and rejected in one batch; {lengths}",
            counted(trained, "pair"),
            if world > 1 { " on each rank" } else { "" }
        );
    }
    let sequences = request.sequences(options);
    let rollout = counted(sequences, "sequence") + if world > 1 { " on each rank" } else { "" };
    let steps = match sequences.checked_div(trained).unwrap_or(1) {
        1 => "one optimizer step on a rollout".to_owned(),
        steps => format!("{steps} optimizer steps on a rollout, of which one is here"),
    };
    match request.algorithm {
        Algorithm::Grpo => {
            let group = request.group();
            let all = match world {
                1 => String::new(),
                world => format!(", {} together", sequences.saturating_mul(u64::from(world))),
            };
            format!("GRPO, as TRL 1.16 runs it: {rollout}{all} in groups of {group}, {steps}; {lengths}")
        }
        _ => format!("PPO, as verl and OpenRLHF run it: {rollout}, {steps}; {lengths}"),
    }
}

fn rollout(sampled: &Sampled, options: &Options) -> String {
    let (all, kv_cache) = (counted(sampled.sequences, "sequence"), sampled.kv_cache);
    match &sampled.by {
        Sampler::Generate(_) => format!(
            "generate() of transformers with the weights that are trained{}, all {all} at once at temperature 1; a \
             DynamicCache that grows to {kv_cache}, a layer copied at each step",
            sharding::in_generate(options.parallel.sharding)
        ),
        Sampler::Pool(pool) => {
            let (at_once, all) = (sampled.at_once, counted(pool.sequences, "sequence"));
            let of_group = match pool.vllm.tensor_parallel_size {
                1 => String::new(),
                ranks => format!(" divided over {ranks} ranks, which sample together"),
            };
            let blocks = match pool.vllm.gpu_memory_utilization {
                None => format!("blocks of 16 tokens for {all}, though vLLM takes its share of the card"),
                Some(_) => {
                    format!("{} beside them, enough for {at_once} of {all} at once", pool.blocks)
                }
            };
            let sleeps = match pool.vllm.sleep_level {
                None => "it does not sleep, so both stay",
                Some(1) => "asleep its weights are on the host and its cache is gone (level 1)",
                Some(_) => "asleep it holds nothing (level 2)",
            };
            let synced = match pool.gathered {
                Bytes::ZERO => String::new(),
                gathered => {
                    format!("; {gathered} gathered at once while it is given the weights that were trained")
                }
            };
            let weights = pool.weights;
            format!(
                "vLLM on the same card, its own weights in bf16{of_group} ({weights}), {blocks}; {sleeps}{synced}"
            )
        }
    }
}

fn scoring(request: &PostTraining, options: &Options, models: &Models) -> String {
    let passes: Vec<&str> = models.scorers.iter().map(|scorer| scorer.model.as_str()).collect();
    let rows = request.rows(options);
    let adapters = match models.scorers.iter().any(|scorer| !scorer.owns_weights) && options.lora.is_some() {
        true if request.has_reference() => ", the reference being the actor without its adapters",
        _ => "",
    };
    match passes.as_slice() {
        [] if request.algorithm == Algorithm::Dpo => {
            "none: the reference's log-probabilities come with the data".to_owned()
        }
        [] => "none: the rollout is on policy, there is no reference, and rewards are functions on the host"
            .to_owned(),
        [_] if request.algorithm == Algorithm::Dpo => format!(
            "the reference under no_grad in each micro-batch of {rows} rows, while what the actor saved is there{adapters}"
        ),
        passes => format!(
            "under no_grad in micro-batches of {rows}, of which one is here, by the weights of: {}{adapters}",
            passes.join(", ")
        ),
    }
}

fn critic() -> String {
    "the actor's architecture with one output in place of the vocabulary (AutoModelForTokenClassification), trained by the same \
     options after the actor; in which order they are trained changes no byte"
        .to_owned()
}

fn loss() -> String {
    "TRL's fused head and log-probabilities: logits in tiles of 4096 × 32768, made again in backward, both gradients summed in \
     fp32"
    .to_owned()
}

fn between(request: &PostTraining, sampled: Option<&Sampled>) -> String {
    let OffloadBetween { actor, optimizer, reference, reward, critic } = request.offload_between;
    let words = [
        ("the actor's weights", actor),
        ("optimizer state", optimizer),
        ("the reference", reference),
        ("the reward model", reward),
        ("the critic's weights", critic),
    ];
    let waits: Vec<&str> = words.iter().filter(|(_, waits)| *waits).map(|(word, _)| *word).collect();
    let engine = matches!(sampled.map(|sampled| &sampled.by), Some(Sampler::Pool(_)));
    match (waits.as_slice(), engine) {
        ([], false) => "every model stays on the device".to_owned(),
        ([], true) => "every model but vLLM's stays on the device".to_owned(),
        (waits, _) => format!("on the host while no phase needs them: {}", waits.join(", ")),
    }
}

/// What the figures leave out.
pub(super) fn not_counted(
    request: &PostTraining,
    options: &Options,
    sampled: Option<&Sampled>,
) -> Vec<&'static str> {
    let mut list = vec![
        "what the caching allocator reserves beyond what is allocated: between phases it is as a rule given back \
         (empty_cache), within one it is fragmentation; `--save FILE` and `peakledger replay FILE` show it without that",
        "the few tensors of 4 bytes a token that the loss and the advantages take",
    ];
    if let Some(Sampled { by: Sampler::Pool(pool), .. }) = sampled
        && pool.vllm.gpu_memory_utilization.is_none()
    {
        list.push("the activations of vLLM's own modules and its CUDA graphs; with --vllm-gpu-memory-utilization they are in its share");
    }
    if let Some(Sampled { by: Sampler::Pool(pool), .. }) = sampled
        && pool.vllm.tensor_parallel_size > 1
    {
        list.push("what the communicator of vLLM's tensor parallel group takes outside the allocator");
    }
    if options.lora.is_some()
        && options.parallel.sharding == Sharding::Zero3
        && options.recompute != Recompute::None
    {
        list.push("that TRL recomputes reentrantly beside adapters under ZeRO 3 (use_reentrant=True)");
    }
    if sampled.is_some() && request.has_reward_model() {
        list.push("text that a reward model of another tokenizer is given anew");
    }
    list
}
