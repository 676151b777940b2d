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
    options.check_not_empty()?;
    check_tokens(request, options, architecture)?;
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

/// How long and how many sequences cannot be, said of what made them so: either length has a default, and so has the number of
/// a rollout, which goes by the batch and the group.
fn check_tokens(
    request: &PostTraining,
    options: &Options,
    architecture: &Architecture,
) -> Result<(), Problem> {
    let (tokens, positions) = (request.tokens(), architecture.shape.max_position_embeddings);
    let longer = if request.prompt_len > request.response_len { "--prompt-len" } else { "--response-len" };
    if architecture.shape.learned_positions && tokens > positions {
        let cause =
            format!("prompt and response are {tokens} tokens, and the model has {positions} positions");
        return refused(longer, cause, "shorten one of them");
    }
    if tokens > MOST_TOKENS {
        return refused(longer, "prompt and response are more than 2^32 tokens", "shorten one of them");
    }
    let is_too_many = |sequences: u64| sequences.saturating_mul(tokens) > MOST_TOKENS;
    let too_many = |sequences| format!("{sequences} sequences × {tokens} tokens are more than 2^32");
    let (rows, trained) = (request.rows(options), PostTraining::sequences_of_a_step(options));
    if is_too_many(rows) {
        return refused("--micro-batch-size", too_many(rows), "use fewer or shorter ones");
    }
    if request.algorithm == Algorithm::Dpo || !is_too_many(request.sequences(options)) {
        return Ok(());
    }
    if let Some(sequences) = request.rollout_sequences {
        return refused("--rollout-sequences", too_many(sequences), "use fewer or shorter ones");
    }
    let of_a_step = match u64::from(options.gradient_accumulation_steps) > options.micro_batch_size {
        true => "--gradient-accumulation-steps",
        false => "--micro-batch-size",
    };
    if is_too_many(trained) {
        let cause = format!("{}, which a step trains on", too_many(trained));
        return refused(of_a_step, cause, "use fewer or shorter ones");
    }
    let group = request.group();
    let cause = format!(
        "a rollout of whole steps of {trained} sequences and whole groups of {group} has more than 2^32 tokens"
    );
    match request.group_size {
        None if is_too_many(group) => {
            refused(longer, too_many(group), "shorten one of them, or say a smaller --group-size")
        }
        Some(_) => refused("--group-size", cause, "use a smaller one"),
        None => {
            let of_a_rank = sharding::of_a_rank(group, options);
            refused(of_a_step, cause, format!("train on a multiple of {of_a_rank}"))
        }
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
    // else there are as many as both make
    let Some(sequences) = request.rollout_sequences else { return Ok(()) };
    let option = "--rollout-sequences";
    if sequences == 0 {
        return refused(option, "a rollout of 0 sequences", "use 1 or more");
    }
    let of_a_rank = sharding::of_a_rank(group, options).max(1);
    if !sequences.is_multiple_of(of_a_rank) {
        let of_each = if options.mesh()?.world > 1 { " of each rank" } else { "" };
        let cause = format!("{sequences} sequences{of_each} are no whole number of groups of {group}");
        let mend = format!("use a multiple of {of_a_rank}, or another `--group-size`");
        return refused(option, cause, mend);
    }
    if !sequences.is_multiple_of(trained.max(1)) {
        let cause = format!("{sequences} sequences are no whole number of steps of {trained}");
        return refused(option, cause, "make it a multiple of micro-batch size × accumulation steps");
    }
    Ok(())
}
