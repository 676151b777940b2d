//! What ranks of Megatron's modules send each other, by pencil. A ring of n ranks sends (n - 1) / n of what is gathered or
//! scattered, and twice that of what is summed in place.

use crate::models::{even_llama, on_megatron};
use peakledger_core::{Category, Phase};
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::parallel::{Parallel, Schedule, Sharding};
use peakledger_plan::{Plan, plan};
use serde_json::json;
use std::num::NonZeroU32;

fn planned(model: Architecture, parallel: Parallel, micro_batches: u32) -> Plan {
    let options = Options { gradient_accumulation_steps: micro_batches, ..on_megatron(parallel) };
    plan(model, options).unwrap()
}

fn sent(plan: &Plan) -> u128 {
    plan.steady.costs().communicated()
}

/// Of which in the update: gradients summed, parameters gathered.
fn sent_in_update(plan: &Plan) -> u128 {
    let updates = plan.steady.phases.iter().filter(|it| it.phase == Phase::Update);
    updates.map(|it| it.costs.communicated()).sum()
}

const KIB: u128 = 1024;
/// Embedding and head 1024 × 512 each, a layer (512 × 1024 + 512 × 512 + 3 × 512 × 1024) + 2 × 512, the last norm.
const NUMBERS: u128 = 2 * 1024 * 512 + 2 * (512 * 1024 + 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 512;

/// Once a step, however many micro-batches it has: four bytes a parameter, summed over two ranks.
#[test]
fn data_parallel_ranks_sum_gradients_once_a_step() {
    let parallel = |sharding| Parallel { dp: Some(2), sharding, ..Parallel::default() };
    for micro_batches in [1, 3] {
        let plan = planned(even_llama(2, &json!({})), parallel(Sharding::Replicated), micro_batches);
        assert_eq!(sent(&plan), 2 * (4 * NUMBERS / 2));
        // scattered instead, and two bytes a parameter gathered
        let plan = planned(even_llama(2, &json!({})), parallel(Sharding::Zero1), micro_batches);
        assert_eq!(sent(&plan), 4 * NUMBERS / 2 + 2 * NUMBERS / 2);
        assert_eq!(sent_in_update(&plan), sent(&plan));
    }
    let alone = planned(even_llama(2, &json!({})), Parallel::default(), 1);
    assert_eq!(sent(&alone), 0);
}

/// Context parallel ranks have the same parameters, and sum their gradients too.
#[test]
fn context_parallel_ranks_are_among_them() {
    let plan = planned(even_llama(2, &json!({})), Parallel { cp: 2, dp: Some(2), ..Parallel::default() }, 1);
    assert_eq!(sent_in_update(&plan), 2 * (4 * NUMBERS * 3 / 4));
}

/// Hidden states of 256 KiB, of which a rank sends half. Forward: gathered before the two column parallel matrices of a layer and
/// scattered after the two row parallel ones; backward: the same the other way, and what the column parallel ones gathered once more.
/// The embedding's output is scattered and its gradient gathered; the head's input is gathered twice, its gradient scattered. The
/// loss sums three numbers a token. Norms, which every rank has whole, are summed in fp32.
#[test]
fn sequence_parallel_ranks_gather_and_scatter() {
    let plan = planned(even_llama(2, &json!({})), Parallel { tp: 2, sp: true, ..Parallel::default() }, 1);
    let each = 128 * KIB;
    let norms = (2 * 2 + 1) * 512 * 4;
    assert_eq!(sent(&plan), (2 * (4 + 6) + 2 + 3) * each + 3 * KIB + norms);
    assert_eq!(sent_in_update(&plan), norms);
    // without it, what row parallel matrices put out and the gradients of column parallel ones are summed, and norms are alike
    let plan = planned(even_llama(2, &json!({})), Parallel { tp: 2, ..Parallel::default() }, 1);
    assert_eq!(sent(&plan), (2 * (2 + 2) + 1 + 1) * 2 * each + 3 * KIB);
    assert_eq!(sent_in_update(&plan), 0);
}

/// What is summed over tensor parallel ranks is copied side by side first: with latents, the matrices down to them are most of it.
#[test]
fn what_every_rank_has_whole_is_copied_to_be_summed() {
    let latent = json!({
        "model_type": "deepseek_v3", "moe_intermediate_size": 256, "num_key_value_heads": 4, "n_shared_experts": 1,
        "n_routed_experts": 8, "kv_lora_rank": 128, "q_lora_rank": 256, "qk_rope_head_dim": 32, "v_head_dim": 64,
        "qk_nope_head_dim": 64, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1
    });
    let plan = planned(even_llama(2, &latent), Parallel { tp: 2, sp: true, ..Parallel::default() }, 1);
    let of_layer = 2 * 512 + 256 + 128 + 512 * 256 + 512 * (128 + 32);
    let router = 8 * 512;
    let numbers = 2 * of_layer + router + 512;
    assert_eq!(sent_in_update(&plan), 4 * numbers);
    let update = plan.steady.phases.iter().find(|it| it.phase == Phase::Update).unwrap();
    let copies = update.by_category.get(Category::CommunicationBuffer).get();
    // at the phase's peak, which is there; beside the buffer for what the head gathers
    assert_eq!(u128::from(copies), 4 * numbers + 256 * KIB);
}

/// An expert is summed over the ranks that have it.
#[test]
fn experts_are_summed_over_ranks_of_their_own() {
    let experts = json!({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2});
    let of = |ep: u32| {
        let parallel = Parallel { dp: Some(4), ep, ..Parallel::default() };
        sent_in_update(&planned(even_llama(1, &experts), parallel, 1))
    };
    let others = 2 * 1024 * 512 + (512 * 1024 + 512 * 512 + 4 * 512) + 2 * 512 + 512;
    let experts = 4 * 3 * 512 * 1024;
    let summed = |numbers: u128, ranks: u128| 2 * (4 * numbers * (ranks - 1) / ranks);
    assert_eq!(of(1), summed(others, 4) + summed(experts, 4));
    assert_eq!(of(2), summed(others, 4) + summed(experts / 2, 2));
    assert_eq!(of(4), summed(others, 4));
}

/// A tied embedding is on the first and the last stage, which sum its gradient.
#[test]
fn a_tied_embedding_is_summed_over_two_stages() {
    let of = |rank, tied: bool| {
        let parallel = Parallel { pp: 4, rank, ..Parallel::default() };
        sent_in_update(&planned(even_llama(4, &json!({"tie_word_embeddings": tied})), parallel, 4))
    };
    let table = 4 * 1024 * 512;
    assert_eq!([0, 1, 2, 3].map(|rank| of(rank, true)), [table, 0, 0, table]);
    assert_eq!([0, 3].map(|rank| of(rank, false)), [0, 0]);
}

/// `--recompute-method block`: the first layers of each stage, and of each part of one, are checkpoints.
#[test]
fn the_first_layers_of_each_part_are_recomputed() {
    let model = || even_llama(8, &json!({}));
    let with = |recompute, parallel: &Parallel| {
        let options = Options { gradient_accumulation_steps: 4, recompute, ..on_megatron(parallel.clone()) };
        plan(model(), options).unwrap()
    };
    let block = |layers| Recompute::Block(NonZeroU32::new(layers).unwrap());
    let layers = |text: &str| Recompute::Layers(text.parse().unwrap());
    let stages = |rank| Parallel { pp: 2, rank, ..Parallel::default() };
    let parts = |rank| Parallel { virtual_stages: 2, schedule: Schedule::Interleaved, ..stages(rank) };
    for (block, named, parallel) in [
        (block(3), layers("0-2"), Parallel::default()),
        (block(99), Recompute::Full, Parallel::default()),
        (block(1), layers("0+4"), stages(0)),
        (block(1), layers("0+4"), stages(1)),
        (block(1), layers("0+2+4+6"), parts(0)),
        (block(1), layers("0+2+4+6"), parts(1)),
        (block(2), Recompute::Full, parts(1)),
    ] {
        let phases = |recompute| {
            let phases = with(recompute, &parallel).steady.phases.into_iter();
            phases.map(|it| (it.phase, it.peak, it.end, it.costs)).collect::<Vec<_>>()
        };
        assert_eq!(phases(block), phases(named), "{parallel:?}");
    }
    // of one card, a layer that is a checkpoint keeps its input alone
    let none = with(Recompute::None, &Parallel::default());
    let some = with(block(3), &Parallel::default());
    let end =
        |plan: &Plan| plan.steady.phases.iter().find(|it| it.phase == Phase::Forward).unwrap().end.get();
    let full = with(Recompute::Full, &Parallel::default());
    assert_eq!(end(&none) - end(&some), 3 * (end(&none) - end(&full)) / 8);
}
