//! What post-training cannot be, each in a sentence with its mend.

use super::{Algorithm, Engine, PostTraining, sharding, vllm};
use crate::config::Architecture;
use crate::options::{HoldOutputs, MOST_TOKENS, Options, refused};
use crate::parallel::{Sharding, Stack};
use peakledger_input::Problem;

/// Checks a request against the step that it trains with.
pub(super) fn check(
    request: &PostTraining,
    options: &Options,
    architecture: &Architecture,
) -> Result<(), Problem> {
    for (option, tokens, what) in
        [("--prompt-len", request.prompt_len, "prompt"), ("--response-len", request.response_len, "response")]
    {
        if tokens == 0 {
            return refused(option, format!("a {what} of 0 tokens"), "use 1 or more");
        }
    }
    let (tokens, positions) = (request.tokens(), architecture.shape.max_position_embeddings);
    if architecture.shape.learned_positions && tokens > positions {
        let cause =
            format!("prompt and response are {tokens} tokens, and the model has {positions} positions");
        return refused("--response-len", cause, "shorten one of them");
    }
    let rows = if request.algorithm == Algorithm::Dpo { 2 } else { 1 };
    for (option, sequences) in [
        ("--micro-batch-size", options.micro_batch_size.saturating_mul(rows)),
        ("--rollout-sequences", if rows == 1 { request.sequences(options) } else { 0 }),
    ] {
        if sequences.saturating_mul(tokens) > MOST_TOKENS {
            let cause = format!("{sequences} sequences × {tokens} tokens are more than 2^32");
            return refused(option, cause, "use fewer or shorter ones");
        }
    }
    check_step(options)?;
    check_sharing(request, options)?;
    if let Engine::Vllm(vllm) = request.engine {
        vllm::check(architecture, options, vllm)?;
    }
    check_models(request)?;
    match request.algorithm {
        Algorithm::Dpo => check_pairs(request),
        _ => check_rollout(request, options),
    }
}

/// What the training step cannot be beside other models.
fn check_step(options: &Options) -> Result<(), Problem> {
    if options.seq_len.is_some() {
        let cause = "a sequence is a prompt and a response";
        return refused("--seq-len", cause, "say `--prompt-len` and `--response-len` instead");
    }
    let mesh = options.mesh()?;
    let spread = [("--tp", mesh.tp), ("--pp", mesh.pp), ("--cp", mesh.cp), ("--ep", mesh.ep)];
    if let Some((option, _)) = spread.iter().find(|(_, ranks)| *ranks > 1) {
        let cause = "post-training is planned over data parallel ranks alone";
        return refused(option, cause, "leave it out, and shard by --fsdp full_shard or --zero 3");
    }
    if options.stack != Stack::Transformers {
        let cause = "post-training is planned on transformers' modules alone";
        return refused("--stack", cause, "leave it out");
    }
    let of_the_loss = [
        ("--fused-loss", options.fused_loss),
        ("--loss-in-model", options.loss_in_model),
        ("--hold-outputs", options.hold_outputs != HoldOutputs::No),
    ];
    if let Some((option, _)) = of_the_loss.iter().find(|(_, asked)| *asked) {
        return refused(option, "the trainer computes its own loss, without whole logits", "leave it out");
    }
    if options.offload.parameters {
        let cause = "parameters that come a layer at a time are not planned beside other models";
        return refused("--offload", cause, "`--offload-between actor` moves them between phases");
    }
    Ok(())
}

/// What is not planned of ranks that share parameters out.
fn check_sharing(request: &PostTraining, options: &Options) -> Result<(), Problem> {
    let sharding = options.parallel.sharding;
    let asks_itself = options.lora.is_some() && request.has_reference();
    if request.algorithm == Algorithm::Dpo && asks_itself && sharding == Sharding::Zero3 {
        let cause = "the reference is the actor without its adapters, whose forward between forward and backward breaks the trace that ZeRO 3 fetches by";
        return refused("--zero", cause, "add --precompute-ref-log-probs, or use --zero 2");
    }
    Ok(())
}

/// What asks for a model that is not there.
fn check_models(request: &PostTraining) -> Result<(), Problem> {
    let between = request.offload_between;
    let absent = [
        ("reference", between.reference && !request.has_reference(), "`--beta 0.04` adds one to GRPO"),
        ("reward", between.reward && !request.has_reward_model(), "`--reward-model` adds one"),
        ("critic", between.critic && !request.has_critic(), "PPO has one"),
    ];
    if let Some((name, _, mend)) = absent.iter().find(|(_, asked, _)| *asked) {
        let cause = format!("there is no {name} that could wait on the host");
        return refused("--offload-between", cause, format!("leave it out; {mend}"));
    }
    if request.algorithm != Algorithm::Grpo && request.group_size.is_some() {
        let cause = format!("groups of responses are GRPO's; {} has none", request.algorithm.as_str());
        return refused("--group-size", cause, "leave it out, or use `--post-training grpo`");
    }
    Ok(())
}

/// What asks for a rollout where there is none.
fn check_pairs(request: &PostTraining) -> Result<(), Problem> {
    let asked = [
        ("--rollout-sequences", request.rollout_sequences.is_some()),
        ("--rollout-engine", request.engine != Engine::Hf),
        ("--reward-model", request.has_reward_model()),
    ];
    match asked.iter().find(|(_, asked)| *asked) {
        Some((option, _)) => {
            refused(option, "DPO samples nothing: its responses come with the data", "leave it out")
        }
        None => Ok(()),
    }
}

fn check_rollout(request: &PostTraining, options: &Options) -> Result<(), Problem> {
    let (group, trained) = (request.group(), PostTraining::sequences_of_a_step(options));
    if request.algorithm == Algorithm::Grpo && group < 2 {
        let cause = format!("a group of {group} has nothing to be compared with");
        return refused("--group-size", cause, "use 2 or more");
    }
    let sequences = request.sequences(options);
    if sequences == 0 {
        return refused("--rollout-sequences", "a rollout of 0 sequences", "use 1 or more");
    }
    if !sequences.is_multiple_of(sharding::of_a_rank(group, options).max(1)) {
        let of_each = if options.mesh()?.world > 1 { " of each rank" } else { "" };
        let cause = format!("{sequences} sequences{of_each} are no whole number of groups of {group}");
        return refused("--group-size", cause, "use a divisor, or another `--rollout-sequences`");
    }
    if !sequences.is_multiple_of(trained.max(1)) {
        let cause = format!("{sequences} sequences are no whole number of steps of {trained}");
        return refused(
            "--rollout-sequences",
            cause,
            "make it a multiple of micro-batch size × accumulation steps",
        );
    }
    Ok(())
}
