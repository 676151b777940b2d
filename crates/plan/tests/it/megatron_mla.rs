//! deepseek_v3 on Megatron's modules by pencil: what attention over latents and experts with a sigmoid router keep for
//! backward, what ranks hold, what they send.

use crate::models::{model, on_megatron};
use peakledger_core::{Category, Phase};
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::parallel::{CpComm, Parallel, Sharding};
use peakledger_plan::{Plan, plan};
use serde_json::{Value, json};

/// h 512, 4 heads of 64 + 32 and values of 64, latents of 256 and 128, f 1024; 8 experts of 256 in 4 groups, 2 for each of 256
/// tokens, and one that all go to. The first `dense` layers have none.
fn tiny(layers: u32, dense: u32, more: &Value) -> Architecture {
    let config = json!({
        "model_type": "deepseek_v3", "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024,
        "moe_intermediate_size": 256, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8, "kv_lora_rank": 128,
        "q_lora_rank": 256, "qk_rope_head_dim": 32, "v_head_dim": 64, "qk_nope_head_dim": 64,
        "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2, "first_k_dense_replace": dense,
        "max_position_embeddings": 4096, "tie_word_embeddings": false
    });
    model(config, more)
}

fn there_before(plan: &Plan) -> u64 {
    plan.steady.phases.first().unwrap().end.get()
}

/// What one more layer keeps from forward to backward, beside what stays from step to step.
fn kept_by_a_layer(dense: u32, options: &Options, more: &Value) -> u64 {
    let at_end = |layers| {
        let plan = plan(tiny(layers, dense, more), options.clone()).unwrap();
        let forward = plan.steady.phases.iter().find(|it| it.phase == Phase::Forward).unwrap();
        forward.end.get() - there_before(&plan)
    };
    at_end(3) - at_end(2)
}

const KIB: u64 = 1024;
const ALL_DENSE: u32 = 99;

/// The norm's input, factors and output, in KiB of 256 tokens.
const NORM: u64 = 256 + 1 + 256;
/// Each latent, normed, with its factors: that of queries 128 + 128 + 1; that of keys and values, a copy out of what lies beside
/// the turned part, 64 + 64 + 1.
const LATENTS: u64 = (128 + 128 + 1) + (64 + 64 + 1);
/// Queries and keys of 4 × 96 each, values and what is attended of 4 × 64, log-sums; half a KiB of generator's state goes beside.
const CORE: u64 = 192 + 192 + 128 + 128 + 4;
/// The second norm, gate and up, their product.
const MLP: u64 = NORM + 1024 + 512;

#[test]
fn a_layer_keeps_latents_and_heads() {
    let kept = kept_by_a_layer(ALL_DENSE, &on_megatron(Parallel::default()), &json!({}));
    assert_eq!(kept, (NORM + LATENTS + CORE + MLP) * KIB + 512);
}

/// Queries straight from the hidden states have no latent.
#[test]
fn queries_may_have_no_latent() {
    let kept = kept_by_a_layer(ALL_DENSE, &on_megatron(Parallel::default()), &json!({"q_lora_rank": null}));
    assert_eq!(kept, (NORM + (64 + 64 + 1) + CORE + MLP) * KIB + 512);
}

/// All of it is split by sequence or by heads.
#[test]
fn with_sequence_parallel_all_of_it_is_divided() {
    let parallel = Parallel { tp: 2, sp: true, ..Parallel::default() };
    // factors of 128 rows are half a KiB
    let kept = (NORM + LATENTS + CORE + MLP) * KIB / 2 + 512;
    assert_eq!(kept_by_a_layer(ALL_DENSE, &on_megatron(parallel), &json!({})), kept);
}

/// Around a ring, keys and values of their own widths go together.
#[test]
fn around_a_ring_a_rank_keeps_its_tokens_share() {
    let parallel = Parallel { cp: 2, ..Parallel::default() };
    let kept = (NORM + LATENTS + CORE + MLP) * KIB / 2 + 2 * 512;
    assert_eq!(kept_by_a_layer(ALL_DENSE, &on_megatron(parallel), &json!({})), kept);
    let parallel = Parallel { cp: 2, cp_comm: CpComm::AllToAll, ..Parallel::default() };
    let said = plan(tiny(1, 1, &json!({})), on_megatron(parallel)).unwrap_err().to_string();
    assert!(said.contains("keys and values of one width"), "{said}");
}

/// The attention computed again keeps the same inputs, each a tensor of its own, and neither log-sums nor generator's state.
#[test]
fn selective_recompute_keeps_no_log_sums() {
    let options = Options { recompute: Recompute::Selective, ..on_megatron(Parallel::default()) };
    let kept = (NORM + LATENTS + CORE - 4 + MLP) * KIB;
    assert_eq!(kept_by_a_layer(ALL_DENSE, &options, &json!({})), kept);
}

/// Of 8 experts and 2 for each token: sigmoids in fp32 (8) and bf16 (4), what was chosen of them (1) and its sum (½), where
/// (4); the permutation a mask (2) and the weights turned (4). Rows of 512 tokens: 512, gate and up 512, their product 256, a
/// weight each 1. The shared expert's gate and up 256, their product 128. The dispatcher holds its places (4) from step to step.
#[test]
fn experts_keep_what_their_router_does() {
    let router = 2 * (8 + 4 + 1 + 4 + 2 + 4) + 1; // in half KiB
    let kept = NORM + LATENTS + CORE + NORM + (512 + 512 + 256 + 1) + (256 + 128);
    let of = |more: Value| kept_by_a_layer(0, &on_megatron(Parallel::default()), &more);
    assert_eq!(of(json!({})), kept * KIB + router * KIB / 2 + 512);
    // what chooses groups is not kept
    assert_eq!(of(json!({"n_group": 1, "topk_group": 1})), of(json!({})));
}

/// The dispatcher of each layer keeps the weights spread over all experts (4), the choice (2) and the places (4) for good; each
/// layer its angles in fp32 (32), and their cosines and sines (16 each).
#[test]
fn what_stays_with_each_layer() {
    let stays = |layers, dense| {
        let plan = plan(tiny(layers, dense, &json!({})), on_megatron(Parallel::default())).unwrap();
        plan.steady.phases.first().unwrap().by_category.get(Category::Activation).get()
    };
    assert_eq!(stays(3, ALL_DENSE) - stays(2, ALL_DENSE), (32 + 16 + 16) * KIB);
    assert_eq!(stays(3, 0) - stays(2, 0), (32 + 16 + 16 + 4 + 2 + 4) * KIB);
    // angles of at most 32 layers are cached
    assert_eq!(stays(34, ALL_DENSE) - stays(32, ALL_DENSE), 2 * (16 + 16) * KIB);
}

/// The matrices down to the latents are whole on every rank of the tensor parallel group.
#[test]
fn ranks_hold_the_way_down_whole() {
    let of = |parallel: Parallel| {
        let plan = plan(tiny(2, ALL_DENSE, &json!({})), on_megatron(parallel)).unwrap();
        let gradients = plan.steady.phases.first().unwrap().by_category.get(Category::Gradient).get();
        (gradients / 4, plan.parameters)
    };
    let norms = 2 * 512 + 256 + 128;
    let down = 512 * 256 + 512 * (128 + 32);
    let split = 256 * 4 * 96 + 128 * 4 * (64 + 64) + 4 * 64 * 512 + 3 * 512 * 1024;
    let ends = 2 * 1024 * 512;
    let all = 2 * (norms + down + split) + ends + 512;
    assert_eq!(of(Parallel::default()), (all, all));
    let parallel = Parallel { tp: 2, sp: true, ..Parallel::default() };
    assert_eq!(of(parallel), (2 * (norms + down + split / 2) + ends / 2 + 512, all));
}

/// Experts, stages and the distributed optimizer go together with it, and no state has the name of another.
#[test]
fn it_goes_together_with_what_megatron_does() {
    let model = tiny(4, 1, &json!({}));
    let zero = |parallel| Parallel { sharding: Sharding::Zero1, ..parallel };
    for parallel in [
        zero(Parallel { dp: Some(4), ep: 4, ..Parallel::default() }),
        zero(Parallel { tp: 2, sp: true, ep: 2, etp: Some(1), dp: Some(2), ..Parallel::default() }),
        zero(Parallel { pp: 2, ep: 2, dp: Some(2), ..Parallel::default() }),
        Parallel { tp: 2, sp: true, etp: Some(2), ..Parallel::default() },
    ] {
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            let options = Options {
                recompute,
                fused_loss: true,
                clip_grad_norm: true,
                gradient_accumulation_steps: 4,
                ..on_megatron(parallel.clone())
            };
            let plan = plan(model.clone(), options).unwrap();
            let ledger = plan.ledger(peakledger_plan::Step::Steady);
            assert!(ledger.is_ok(), "{:?}", ledger.err());
        }
    }
}
