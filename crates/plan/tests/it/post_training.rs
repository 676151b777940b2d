//! Post-training: what each phase holds by pencil, who sleeps, and what cannot be.

use peakledger_core::{Category, Device, Ledger, Phase};
use peakledger_input::Source;
use peakledger_plan::Step;
use peakledger_plan::catalogue::{card, open_model};
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::post_training::*;
use serde_json::{Value, json};

/// Two layers, two heads of keys and values of width 16 beside four of queries.
pub(crate) fn tiny() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": false
    })
}

pub(crate) fn architecture(config: Value) -> Architecture {
    Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap()
}

pub(crate) fn bf16(micro_batch_size: u64) -> Options {
    Options { micro_batch_size, precision: Precision::Bf16, ..Options::default() }
}

/// 8 tokens of prompt and 5 of response.
pub(crate) fn short(algorithm: Algorithm) -> PostTraining {
    PostTraining { prompt_len: 8, response_len: 5, ..PostTraining::new(algorithm) }
}

pub(crate) fn planned(config: Value, options: Options, request: PostTraining) -> PostTrained {
    post_train(architecture(config), options, request, None).unwrap()
}

pub(crate) fn total(ledger: &Ledger, phase: &str, micro_batch: Option<u32>) -> u64 {
    let found = ledger
        .phases()
        .find(|(slot, _)| slot.phase == Phase::named(phase) && slot.micro_batch == micro_batch);
    found.unwrap_or_else(|| panic!("no {phase}")).1.total.get()
}

fn host(ledger: &Ledger, phase: &str, micro_batch: Option<u32>) -> u64 {
    let found = ledger
        .phases()
        .find(|(slot, _)| slot.phase == Phase::named(phase) && slot.micro_batch == micro_batch);
    found.unwrap_or_else(|| panic!("no {phase}")).1.cpu.get()
}

pub(crate) fn phases(ledger: &Ledger) -> Vec<String> {
    ledger.timeline().slots().iter().map(|slot| slot.id()).collect()
}

/// The bytes of a state of that name.
pub(crate) fn bytes(ledger: &Ledger, name: &str) -> u64 {
    let found = ledger.states().iter().find(|state| &*state.name == name);
    found.unwrap_or_else(|| panic!("no {name}")).bytes.get()
}

#[test]
fn the_cache_ends_a_token_short_of_the_sequence() {
    // 2 layers × keys and values × 8 sequences × 2 heads × 12 tokens × 16 × 2 B
    let step = planned(tiny(), bf16(8), short(Algorithm::Grpo));
    assert_eq!(step.kv_cache.get(), 2 * 2 * 8 * 2 * 12 * 16 * 2);
    // at the last step both of each layer are there, and an older one while it is copied
    let ledger = step.ledger();
    let last = ledger.timeline().slots()[0].last;
    let cache = |moment| -> u64 {
        let there = ledger.resident(Device::Gpu, moment).filter(|(_, state)| state.name.contains("KV cache"));
        there.map(|(_, state)| state.bytes.get()).sum()
    };
    let largest = (0..=last.0).map(|moment| cache(peakledger_core::Moment(moment))).max().unwrap();
    let (new, old) = (8 * 2 * 12 * 16 * 2, 8 * 2 * 11 * 16 * 2);
    assert_eq!(largest, 2 * 2 * new + old);
}

#[test]
fn a_window_caps_the_cache() {
    let mut config = tiny();
    config["model_type"] = json!("mistral");
    config["sliding_window"] = json!(4);
    let step = planned(config, bf16(8), short(Algorithm::Grpo));
    assert_eq!(
        step.kv_cache.get(),
        2 * 2 * 8 * 2 * 4 * 16 * 2,
        "3 tokens are kept, and the one that looks back"
    );
}

/// `DeepseekV3Attention` keeps the latent and the turned part of the keys, of one head.
#[test]
fn latents_are_kept_compressed() {
    let config = json!({
        "model_type": "deepseek_v3", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
        "moe_intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 128, "kv_lora_rank": 32, "q_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1
    });
    let step = planned(config, bf16(8), short(Algorithm::Grpo));
    assert_eq!(step.kv_cache.get(), 8 * 12 * 2 * (32 + 8));
}

#[test]
fn training_alone_is_the_step_of_the_actor_and_what_a_rollout_leaves() {
    let step = planned(tiny(), bf16(8), short(Algorithm::Grpo));
    let ledger = step.ledger();
    assert_eq!(phases(ledger), ["rollout", "forward.0", "loss.0", "backward.0", "update", "zero_grad"]);
    let alone = step.actor.ledger(Step::Steady).unwrap();
    let left = (8_u64 * 13 * 8).next_multiple_of(512); // ids of 8 B
    for (slot, sums) in alone.phases().filter(|(slot, _)| slot.phase != Phase::Load) {
        let here = total(ledger, slot.phase.as_str(), slot.micro_batch);
        assert_eq!(here, sums.total.get() + left, "{}", slot.id());
    }
}

#[test]
fn a_reference_that_sleeps_saves_its_weights_and_nothing_else() {
    let awake = PostTraining { reference: Some(true), ..short(Algorithm::Grpo) };
    let asleep = PostTraining {
        offload_between: OffloadBetween { reference: true, ..OffloadBetween::default() },
        ..awake
    };
    let [awake, asleep] = [awake, asleep].map(|request| planned(tiny(), bf16(8), request));
    let weights = awake.models.iter().find(|model| model.name == "reference").unwrap().weights.get();
    assert_eq!(phases(awake.ledger()), phases(asleep.ledger()));
    for (slot, sums) in awake.ledger().phases() {
        let (phase, micro_batch) = (slot.phase.as_str(), slot.micro_batch);
        let saved = sums.total.get() - total(asleep.ledger(), phase, micro_batch);
        let on_host = host(asleep.ledger(), phase, micro_batch);
        let expected = if phase == "score_reference" { 0 } else { weights };
        assert_eq!((saved, on_host), (expected, expected), "{}", slot.id());
    }
    assert_eq!(awake.ledger().cpu_peak().get(), 0);
}

#[test]
fn the_peak_moves_from_backward_to_the_rollout_as_responses_grow() {
    let peak = |response_len| {
        let model = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        let options =
            Options { recompute: Recompute::Full, optimizer_impl: Some(OptimizerImpl::Fused), ..bf16(1) };
        let request = PostTraining {
            prompt_len: 64,
            response_len,
            rollout_sequences: Some(64),
            ..PostTraining::new(Algorithm::Grpo)
        };
        let step = post_train(model, options, request, None).unwrap();
        step.ledger().peak().slot.id()
    };
    assert_eq!([peak(64), peak(16_384)], ["backward.0", "rollout"]);
}

#[test]
fn log_probabilities_are_made_in_tiles_and_their_gradients_in_fp32() {
    let step = planned(tiny(), bf16(8), short(Algorithm::Grpo));
    let ledger = step.ledger();
    let rows = 8 * 5;
    assert_eq!(bytes(ledger, "actor: log_probs: index.Tensor"), rows * 64 * 2);
    assert_eq!(bytes(ledger, "actor: log_probs: empty.memory_format"), rows * 32_768 * 2);
    assert_eq!(bytes(ledger, "actor: log_probs: empty.memory_format #2"), rows * 32_768 * 2, "made again");
    // five running sums are zeros too, of 4 B a row
    assert_eq!(bytes(ledger, "actor: log_probs: zeros #6"), rows * 64 * 4);
    assert_eq!(bytes(ledger, "actor: log_probs: zeros #7"), 1000 * 64 * 4);
    assert!(
        !ledger.states().iter().any(|state| state.name.starts_with("actor: lm_head: ")),
        "no whole logits"
    );
}

#[test]
fn vllm_holds_its_weights_and_blocks_and_sleeps() {
    let with = |vllm| PostTraining { engine: Engine::Vllm(vllm), ..short(Algorithm::Grpo) };
    let step = |sleep_level| planned(tiny(), bf16(8), with(Vllm { sleep_level, ..Vllm::default() }));
    let [awake, one, two] = [None, Some(1), Some(2)].map(step);
    // 12 tokens fill a block of 16; of 8 sequences, 2 layers, keys and values of 2 heads of 16 in bf16
    let (blocks, weights) = (8 * 16 * 2 * 2 * 2 * 16 * 2, 202_048 * 2);
    assert_eq!(bytes(awake.ledger(), "vllm: KV cache blocks"), blocks);
    assert_eq!(bytes(awake.ledger(), "vllm: weights, bf16"), weights);
    assert_eq!(awake.kv_cache.get(), blocks);
    let training = |step: &PostTrained| total(step.ledger(), "backward", Some(0));
    assert_eq!(training(&awake) - training(&one), blocks + weights);
    assert_eq!(training(&one), training(&two));
    assert_eq!([&one, &two].map(|step| host(step.ledger(), "backward", Some(0))), [weights, 0]);
    let rollout = |step: &PostTrained| total(step.ledger(), "rollout", None);
    assert_eq!([rollout(&one), rollout(&two)], [rollout(&awake); 2]);
    // what another engine sampled is scored by the actor itself
    assert!(phases(one.ledger()).contains(&"score_actor".to_owned()));
}

#[test]
fn vllm_takes_its_share_of_the_card() {
    let gpu = card("1GiB").unwrap();
    let plan = |millionths| {
        let vllm = Vllm { gpu_memory_utilization: Some(millionths), sleep_level: Some(2), ..Vllm::default() };
        let request = PostTraining { engine: Engine::Vllm(vllm), ..short(Algorithm::Grpo) };
        post_train(architecture(tiny()), bf16(8), request, Some(&gpu))
    };
    let half = plan(500_000).unwrap();
    let held =
        ["vllm: weights, bf16", "vllm: KV cache blocks and workspace"].map(|name| bytes(half.ledger(), name));
    assert_eq!(held.iter().sum::<u64>(), 1 << 29);
    let none = plan(1).unwrap_err().to_string();
    assert!(none.contains("no room for one sequence"), "{none}");
}

#[test]
fn ppo_trains_a_critic_beside_the_actor() {
    let step = planned(tiny(), bf16(2), short(Algorithm::Ppo));
    insta::assert_snapshot!(phases(step.ledger()).join(" "), @"rollout score_reward score_actor score_reference score_critic forward.0 loss.0 backward.0 update zero_grad critic_forward.0 critic_loss.0 critic_backward.0 critic_update critic_zero_grad");
    let models: Vec<(&str, u64, u64)> =
        step.models.iter().map(|m| (m.name, m.parameters, m.kept_to_train().get())).collect();
    // one output in place of the 1000 of the vocabulary
    let (actor, valued) = (202_048, 202_048 - 1000 * 64 + 64);
    let parameters: Vec<(&str, u64)> =
        models.iter().map(|(name, parameters, _)| (*name, *parameters)).collect();
    assert_eq!(parameters, [("actor", actor), ("reference", actor), ("reward", valued), ("critic", valued)]);
    assert_eq!(models.iter().filter(|(_, _, optimizer)| *optimizer > 0).count(), 2);
}

#[test]
fn dpo_asks_the_reference_while_the_actor_waits_for_its_backward() {
    let inside = planned(tiny(), bf16(2), short(Algorithm::Dpo));
    assert_eq!(
        phases(inside.ledger()),
        ["forward.0", "loss.0", "score_reference.0", "backward.0", "update", "zero_grad"]
    );
    assert_eq!(bytes(inside.ledger(), "actor: log_probs: index.Tensor"), 2 * 2 * 5 * 64 * 2, "pairs");
    let saved = |ledger: &Ledger| -> u64 {
        let slot = ledger.timeline().find(&Phase::named("score_reference"), Some(0)).unwrap();
        let there = ledger.resident(Device::Gpu, slot.first);
        let saved = there.filter(|(_, state)| {
            state.category == Category::Activation && state.name.starts_with("actor: model.layers.1.mlp")
        });
        saved.map(|(_, state)| state.bytes.get()).sum()
    };
    assert!(saved(inside.ledger()) > 0);
    let precomputed = PostTraining { reference: Some(false), ..short(Algorithm::Dpo) };
    let alone = planned(tiny(), bf16(2), precomputed);
    assert_eq!(phases(alone.ledger()), ["forward.0", "loss.0", "backward.0", "update", "zero_grad"]);
    let weights = inside.models[1].weights.get();
    let at = |step: &PostTrained| total(step.ledger(), "backward", Some(0));
    assert_eq!(at(&inside) - at(&alone), weights);
}

/// With adapters the reference is the actor without them: no weights of its own.
#[test]
fn adapters_need_no_reference() {
    let lora = Lora { rank: 4, ..Lora::default() };
    let options = Options { lora: Some(lora), ..bf16(2) };
    let step = planned(tiny(), options, short(Algorithm::Dpo));
    assert_eq!(step.models.len(), 1);
    assert!(phases(step.ledger()).contains(&"score_reference.0".to_owned()));
    let scored = step.ledger().states().iter().filter(|state| state.name.starts_with("score_reference.0: "));
    assert!(scored.clone().count() > 0 && !scored.clone().any(|state| state.name.contains("lora")));
}

#[test]
fn what_cannot_be_is_a_sentence() {
    let said = |options: Options, request: PostTraining| {
        let problem = post_train(architecture(tiny()), options, request, None).unwrap_err();
        problem.to_string().replace("\n  help: ", " | ")
    };
    let grpo = || short(Algorithm::Grpo);
    let (ppo, dpo) = (short(Algorithm::Ppo), short(Algorithm::Dpo));
    let sleeping = OffloadBetween { critic: true, ..OffloadBetween::default() };
    let world = peakledger_plan::parallel::Parallel { tp: 2, ..Default::default() };
    let lines = [
        said(bf16(1), PostTraining { response_len: 0, ..grpo() }),
        said(bf16(1), PostTraining { prompt_len: 0, ..grpo() }),
        said(bf16(1), PostTraining { group_size: Some(4), ..dpo.clone() }),
        said(bf16(1), PostTraining { group_size: Some(1), ..grpo() }),
        said(bf16(1), PostTraining { rollout_sequences: Some(12), ..grpo() }),
        said(bf16(3), PostTraining { rollout_sequences: Some(8), ..grpo() }),
        said(bf16(1), PostTraining { rollout_sequences: Some(0), ..ppo }),
        said(bf16(1), PostTraining { rollout_sequences: Some(8), ..dpo }),
        said(bf16(1), PostTraining { offload_between: sleeping, ..grpo() }),
        said(Options { seq_len: Some(64), ..bf16(1) }, grpo()),
        said(Options { fused_loss: true, ..bf16(1) }, grpo()),
        said(Options { parallel: world, ..bf16(1) }, grpo()),
        said(bf16(0), grpo()),
        said(Options { gradient_accumulation_steps: 0, ..bf16(1) }, grpo()),
        said(bf16(1 << 40), grpo()),
        said(bf16((1 << 26) + 1), grpo()),
        said(Options { gradient_accumulation_steps: 1 << 30, ..bf16(2) }, grpo()),
        said(bf16(3), PostTraining { group_size: Some(u64::MAX - 1), ..grpo() }),
        said(bf16(1), PostTraining { rollout_sequences: Some(1 << 40), ..grpo() }),
        said(bf16(1), PostTraining { prompt_len: 1 << 40, ..grpo() }),
    ];
    insta::assert_snapshot!(lines.join("\n"), @"
    `--response-len`: a response of 0 tokens | use 1 or more
    `--prompt-len`: a prompt of 0 tokens | use 1 or more
    `--group-size`: groups of responses are GRPO's; dpo has none | leave it out, or use `--post-training grpo`
    `--group-size`: a group of 1 has nothing to be compared with | use 2 or more
    `--rollout-sequences`: 12 sequences are no whole number of groups of 8 | use a multiple of 8, or another `--group-size`
    `--rollout-sequences`: 8 sequences are no whole number of steps of 3 | make it a multiple of micro-batch size × accumulation steps
    `--rollout-sequences`: a rollout of 0 sequences | use 1 or more
    `--rollout-sequences`: DPO samples nothing: its responses come with the data | leave it out
    `--offload-between`: there is no critic that could wait on the host | leave it out; PPO has one
    `--seq-len`: a sequence is a prompt and a response | say `--prompt-len` and `--response-len` instead
    `--fused-loss`: the trainer computes its own loss, without whole logits | leave it out
    `--tp`: post-training is planned over data parallel ranks alone | leave it out, and shard by --fsdp full_shard or --zero 3
    `--micro-batch-size`: a micro-batch of 0 sequences | use 1 or more
    `--gradient-accumulation-steps`: a step of 0 micro-batches | use 1 or more
    `--micro-batch-size`: 1099511627776 sequences × 13 tokens are more than 2^32 | use fewer or shorter ones
    `--micro-batch-size`: a rollout of whole steps of 67108865 sequences and whole groups of 8 has more than 2^32 tokens | train on a multiple of 8
    `--gradient-accumulation-steps`: 2147483648 sequences × 13 tokens are more than 2^32, which a step trains on | use fewer or shorter ones
    `--group-size`: a rollout of whole steps of 3 sequences and whole groups of 18446744073709551614 has more than 2^32 tokens | use a smaller one
    `--rollout-sequences`: 1099511627776 sequences × 13 tokens are more than 2^32 | use fewer or shorter ones
    `--prompt-len`: prompt and response are more than 2^32 tokens | shorten one of them
    ");
}
