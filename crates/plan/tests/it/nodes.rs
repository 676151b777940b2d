//! What goes over the network between nodes and what stays within one, by pencil: ranks lie on nodes of eight in their order.

use crate::models::model;
use peakledger_core::Phase;
use peakledger_plan::catalogue::card;
use peakledger_plan::options::{Options, Precision};
use peakledger_plan::parallel::{Parallel, RotateMethod, Sharding, Stack};
use peakledger_plan::{Dtype, Picoseconds, Plan, SentBytes, TheoreticalTime, plan};
use serde_json::{Value, json};

/// Hidden states of a micro-batch, in bf16: 2 sequences of 128 tokens that are 64 wide.
const HIDDEN_STATES: u128 = 2 * 128 * 64 * 2;
const LOGITS: u128 = 2 * 128 * 1024 * 2;
/// Embedding, head and last norm; four square matrices, three of the MLP and two norms in each of four layers.
const PARAMETERS: u128 = 2 * 1024 * 64 + 64 + 4 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64);

fn planned_as(more: &Value, options: Options) -> Plan {
    let config = json!({
        "model_type": "llama", "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
        "max_position_embeddings": 512, "tie_word_embeddings": false, "pad_token_id": 0,
    });
    plan(model(config, more), options).unwrap()
}

fn options(parallel: Parallel) -> Options {
    let (seq_len, precision) = (Some(128), Precision::Bf16);
    Options { micro_batch_size: 2, seq_len, precision, parallel, ..Options::default() }
}

fn planned(parallel: Parallel) -> Plan {
    planned_as(&json!({}), options(parallel))
}

fn sent(plan: &Plan) -> SentBytes {
    plan.steady.costs().sent
}

fn sent_in(plan: &Plan, phase: &Phase) -> SentBytes {
    plan.steady.phases.iter().find(|planned| planned.phase == *phase).unwrap().costs.sent
}

#[test]
fn tensor_parallel_within_a_node_leaves_it_in_peace() {
    let all = sent(&planned(Parallel { tp: 8, ..Parallel::default() }));
    assert_eq!(all, SentBytes { within_node: all.total(), ..SentBytes::default() });
    // forward sums the embedding's rows and two outputs of each layer, 2 x 7/8 of them, and gathers 7/8 of the logits
    let forward = sent_in(&planned(Parallel { tp: 8, ..Parallel::default() }), &Phase::Forward);
    assert_eq!(forward.within_node, 9 * HIDDEN_STATES * 2 * 7 / 8 + LOGITS * 7 / 8);
}

#[test]
fn tensor_parallel_over_two_nodes_has_eight_rings() {
    let forward = sent_in(&planned(Parallel { tp: 16, ..Parallel::default() }), &Phase::Forward);
    let all = 9 * HIDDEN_STATES * 2 * 15 / 16 + LOGITS * 15 / 16;
    assert_eq!(forward, SentBytes { within_node: 0, meanwhile: all * 7 / 8, between_nodes: all / 8 });
    // nodes of four: eight ranks have four rings, and a world of eight on nodes of eight none
    let of_four = Parallel { tp: 8, gpus_per_node: 4, ..Parallel::default() };
    let all = 9 * HIDDEN_STATES * 2 * 7 / 8 + LOGITS * 7 / 8;
    assert_eq!(sent_in(&planned(of_four), &Phase::Forward).between_nodes, all / 4);
}

/// Ranks 0 to 7 are one tensor parallel group; the data parallel one of rank 0 is 0 and 8, whose all-reduce sends
/// 2 x 1/2 of the gradients, all over the adapter of each.
#[test]
fn data_parallel_spans_nodes_where_tensor_parallel_does_not() {
    let alone = planned(Parallel { tp: 8, ..Parallel::default() });
    let both = planned(Parallel { tp: 8, dp: Some(2), ..Parallel::default() });
    // an eighth of each matrix, nine norms whole, in bf16: a bucket, which is whole blocks
    let norms = 9 * 64;
    let gradients = (2 * ((PARAMETERS - norms) / 8 + norms)).div_ceil(512) * 512;
    let expected = SentBytes { within_node: sent(&alone).total(), meanwhile: 0, between_nodes: gradients };
    assert_eq!(sent(&both), expected);
}

/// Four stages of four ranks: 0-3 and 4-7 on the first node, 8-11 and 12-15 on the second.
#[test]
fn a_pipeline_crosses_where_its_neighbour_is_on_another_node() {
    let between = |rank| {
        let parallel = Parallel { pp: 4, dp: Some(4), rank, ..Parallel::default() };
        let options = Options { gradient_accumulation_steps: 3, ..options(parallel) };
        let sent = sent(&planned_as(&json!({}), options));
        assert_eq!(sent.meanwhile, 0);
        sent.between_nodes
    };
    // stage 1 sends hidden states on to stage 2, which sends their gradients back; all else stays within
    assert_eq!([0, 4, 8, 12].map(between), [0, 3 * HIDDEN_STATES, 3 * HIDDEN_STATES, 0]);
}

#[test]
fn hybrid_shards_stay_within_a_node_and_their_sums_leave_it() {
    let sharded = |sharding, dp_shard_size| {
        let parallel = Parallel { dp: Some(16), sharding, dp_shard_size, ..Parallel::default() };
        sent(&planned(parallel))
    };
    // layers and the embedding are gathered for forward and backward, the last norm and the head once, gradients scattered:
    // 7/8 of each; then the two nodes sum 1/8 of the gradients, each sending 2 x 1/2
    let tail = 1024 * 64 + 64;
    let moved = 2 * (2 * PARAMETERS + PARAMETERS - tail);
    let hybrid = sharded(Sharding::HybridShard, None);
    let expected = SentBytes { within_node: moved * 7 / 8, meanwhile: 0, between_nodes: 2 * PARAMETERS / 8 };
    assert_eq!(hybrid, expected);
    // over all sixteen: eight rings
    let full = sharded(Sharding::FullShard, None);
    assert_eq!(
        (full.within_node, full.total(), full.between_nodes),
        (0, moved * 15 / 16, moved * 15 / 16 / 8)
    );
    assert_eq!(sharded(Sharding::HybridShard, Some(16)), full);
    // shards of four: two such groups on a node, whose ranks 0, 4, 8, 12 sum a quarter by two rings
    let of_four = sharded(Sharding::HybridShard, Some(4));
    let sums = 2 * PARAMETERS / 4 * 2 * 3 / 4;
    assert_eq!((of_four.within_node, of_four.total()), (moved * 3 / 4, moved * 3 / 4 + sums));
    assert_eq!(of_four.between_nodes, sums / 2);
}

/// Keys and values of each rank go round: a ring over two nodes crosses twice, and all wait for that.
#[test]
fn a_ring_of_context_parallel_waits_for_its_slowest_link() {
    let forward = |cp| {
        let parallel = Parallel { cp, cp_rotate: RotateMethod::AllToAll, ..Parallel::default() };
        // heads of 8, so that no kernel pads them
        let heads = json!({"num_attention_heads": 8, "num_key_value_heads": 8});
        sent_in(&planned_as(&heads, options(parallel)), &Phase::Forward)
    };
    let around = |ranks: u128| 4 * (ranks - 1) * 2 * HIDDEN_STATES / ranks;
    assert_eq!(forward(8), SentBytes { within_node: around(8), ..SentBytes::default() });
    assert_eq!(forward(16), SentBytes { between_nodes: around(16), ..SentBytes::default() });
}

/// Of what a rank sends to 16, it keeps 1/16, 7/16 stay on its node and 8/16 leave it.
#[test]
fn tokens_leave_the_node_for_the_experts_that_are_not_on_it() {
    let more = json!({"model_type": "mixtral", "num_local_experts": 16, "num_experts_per_tok": 2});
    let parallel = Parallel { dp: Some(16), ep: 16, ..Parallel::default() };
    let on_megatron = Options {
        stack: Stack::Megatron,
        grad_dtype: Some(Dtype::F32),
        master_weights: Some(Dtype::F32),
        ..options(parallel)
    };
    let forward = sent_in(&planned_as(&more, on_megatron), &Phase::Forward);
    // to the experts and back in each of four layers, two experts a token, and there the weight of each, in bf16
    let tokens = 4 * (2 * 2 * HIDDEN_STATES + 2 * 2 * 128 * 2);
    let expected = SentBytes { within_node: 0, meanwhile: tokens * 7 / 16, between_nodes: tokens * 8 / 16 };
    assert_eq!(forward, expected);
}

/// On H100s a rank of 16 in a node of 8 takes its 1/8 at 50 GB/s as long as the whole at 400 GB/s.
#[test]
fn the_network_is_priced_by_itself() {
    let speeds = card("h100-80gb").unwrap().speeds.unwrap();
    let plan = planned(Parallel { tp: 16, ..Parallel::default() });
    let time = |parallel: &Parallel| TheoreticalTime::of(&plan.steady.costs(), &speeds, parallel).unwrap();
    let between = sent(&plan).between_nodes;
    assert_eq!(time(&plan.options.parallel).sent, Picoseconds(between * 1000 / 50));
    let slow = Parallel { network_bits_per_second: Some(100_000_000_000), ..plan.options.parallel.clone() };
    assert_eq!(time(&slow).sent, Picoseconds(between * 1000 * 8 / 100));
}
