//! Ranks that share a sequence, and ranks that share the logits: what is sent, by pencil, and what is refused. That a rank's step
//! is what torch runs is held in `sharded.rs`.

use crate::models::model;
use peakledger_core::Category;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Attention, Options, Precision};
use peakledger_plan::parallel::{CpComm, Parallel, RotateMethod, Sharding};
use peakledger_plan::{Plan, Step, plan};
use serde_json::{Value, json};

const LAYERS: u128 = 3;
const TOKENS: u128 = 2 * 128;
const WIDTH: u128 = 64;

fn architecture(family: &str, more: &Value) -> Architecture {
    let config = json!({
        "model_type": family, "vocab_size": 1000, "hidden_size": u64::try_from(WIDTH).unwrap(), "intermediate_size": 96,
        "num_hidden_layers": u64::try_from(LAYERS).unwrap(), "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 512, "tie_word_embeddings": false, "sliding_window": null, "pad_token_id": 0,
    });
    model(config, more)
}

fn options(parallel: Parallel) -> Options {
    Options {
        micro_batch_size: 2,
        seq_len: Some(128),
        precision: Precision::Bf16,
        parallel,
        ..Options::default()
    }
}

fn planned(parallel: Parallel) -> Plan {
    plan(architecture("llama", &json!({})), options(parallel)).unwrap()
}

fn refusal(family: &str, more: &Value, options: Options) -> String {
    plan(architecture(family, more), options).unwrap_err().to_string()
}

/// Bytes sent in load, forward, loss and backward.
fn sent(plan: &Plan) -> [u128; 4] {
    [0, 1, 2, 3].map(|phase: usize| plan.steady.phases[phase].costs.communicated())
}

fn cp(cp: u32, cp_rotate: RotateMethod) -> Parallel {
    Parallel { cp, cp_rotate, ..Parallel::default() }
}

/// Keys and values of a rank, in bf16, go to each of the others in forward and again in backward, gathered or passed on; their
/// gradients in fp32 go once round. What DDP sums is what it sums over as many data parallel ranks.
#[test]
fn keys_and_values_go_to_every_other_rank_and_their_gradients_once_round() {
    for ranks in [2u32, 4] {
        let alone = planned(Parallel { dp: Some(ranks), ..Parallel::default() });
        let of_rank = 2 * TOKENS / u128::from(ranks) * WIDTH;
        let (others, all) = (u128::from(ranks - 1), u128::from(ranks));
        for method in [RotateMethod::AllGather, RotateMethod::AllToAll] {
            let shared = planned(cp(ranks, method));
            let [load, forward, loss, backward] = sent(&shared);
            let [_, forward_alone, _, backward_alone] = sent(&alone);
            assert_eq!((load, loss), (0, 0));
            assert_eq!(forward - forward_alone, LAYERS * others * of_rank * 2, "cp {ranks} {method:?}");
            let back = LAYERS * (others * of_rank * 2 + all * of_rank * 4);
            assert_eq!(backward - backward_alone, back, "cp {ranks} {method:?}");
        }
    }
}

/// While keys and values come, a rank holds its own as they are sent, and all that were gathered, or two of those that are passed
/// on; in backward their gradients go round in fp32.
#[test]
fn buffers_of_other_ranks_are_named() {
    let largest = |method, name: &str| {
        let plan = planned(Parallel { rank: 1, ..cp(4, method) });
        let ledger = plan.ledger(Step::Steady).unwrap();
        let named = ledger.states().iter().filter(|state| state.category == Category::CommunicationBuffer);
        named
            .filter(|state| state.name.contains(name))
            .map(|state| u128::from(state.bytes.get()))
            .max()
            .unwrap()
    };
    let of_rank = 2 * TOKENS / 4 * WIDTH;
    assert_eq!(largest(RotateMethod::AllGather, "keys and values of other ranks"), 4 * of_rank * 2);
    assert_eq!(largest(RotateMethod::AllToAll, "keys and values of other ranks"), of_rank * 2);
    assert_eq!(largest(RotateMethod::AllToAll, "their gradients on the way back"), of_rank * 4);
}

/// A layer sends and gathers in forward, where NCCL holds what is sent until the other ranks' has come, and in backward, where a
/// name holds it: five buffers. That of NCCL no tracker sees.
#[test]
fn what_nccl_holds_is_there_on_the_device_alone() {
    let plan = planned(cp(2, RotateMethod::AllGather));
    let ledger = plan.ledger(Step::Steady).unwrap();
    let named = ledger.states().iter().filter(|state| state.name.contains("keys and values of other ranks"));
    assert_eq!(named.count() as u128, 5 * LAYERS);
}

/// A rank whose two parts of the sequence do not meet has a mask of its tokens squared for each row; the last rank has none.
#[test]
fn all_but_the_last_rank_hold_a_mask() {
    let at_peak =
        |rank| planned(Parallel { rank, ..cp(4, RotateMethod::AllGather) }).steady.phases[1].peak.get();
    let mask = 2 * 32 * 32;
    let more = [0, 1, 2].map(|rank| at_peak(rank) - at_peak(3));
    assert!(more == [more[0]; 3] && more[0] >= mask, "{more:?}"); // what it is made of is there beside it
}

/// Three sums of a number a token in fp32, the largest logit, the sum of their powers and the target's: `2 (n − 1) / n` of each.
/// The logits themselves are not gathered.
#[test]
fn a_loss_over_shared_logits_sums_three_numbers_a_token() {
    let tp = |loss_parallel| planned(Parallel { tp: 2, loss_parallel, ..Parallel::default() });
    let (whole, shared) = (sent(&tp(false)), sent(&tp(true)));
    assert_eq!(whole[1] - shared[1], TOKENS * 1000 * 2 / 2);
    assert_eq!((whole[2], shared[2]), (0, 3 * TOKENS * 4));
    assert_eq!(whole[3], shared[3]);
}

#[test]
fn what_cannot_share_a_sequence_is_refused_in_a_sentence() {
    let two = || cp(2, RotateMethod::AllGather);
    let with = |change: fn(&mut Options)| {
        let mut options = options(two());
        change(&mut options);
        refusal("llama", &json!({}), options)
    };
    let refusals = [
        with(|options| options.seq_len = Some(127)),
        with(|options| {
            options.seq_len = Some(126);
            options.parallel.cp_load_balance = Some(true);
        }),
        with(|options| options.attention = Attention::Eager),
        with(|options| options.padded = true),
        with(|options| options.parallel.pp = 2),
        with(|options| options.parallel.sharding = Sharding::Zero2),
        with(|options| options.parallel.ep = 2),
        with(|options| {
            options.parallel.tp = 2;
            options.parallel.sp = true;
        }),
        with(|options| options.parallel.cp_comm = CpComm::AllToAll),
        with(|options| {
            options.precision = Precision::Fp32;
            options.seq_len = Some(160);
        }),
        refusal(
            "llama",
            &json!({"num_key_value_heads": 2}),
            Options { precision: Precision::Fp32, ..options(two()) },
        ),
        refusal("mistral", &json!({"sliding_window": 4096}), options(two())),
        refusal("gemma2", &json!({"head_dim": 16}), options(two())),
        refusal("gpt2", &json!({}), options(two())),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @"
    `--cp`: 127 tokens / cp 2 = 63 and 1 over
      help: use a --seq-len that --cp divides
    `--cp-load-balance`: a rank has two parts, and 126 tokens / (2 × cp 2) leave 2 over
      help: use a --seq-len that 2 × --cp divides, or leave it out
    `--attention`: ranks share a sequence through sdpa alone, as `Trainer` checks
      help: use sdpa, or leave out --cp
    `--attention-mask`: attention over a shared sequence takes no mask, so padding would be attended to
      help: use none with packed sequences, or leave out --cp
    `--cp`: accelerate has no pipeline, and torch's is not planned over a shared sequence
      help: leave out one of --cp and --pp, or add `--stack megatron`
    `--cp`: accelerate's context parallel runs with FSDP2, not with DeepSpeed
      help: use --fsdp full_shard in place of --zero
    `--cp`: transformers spreads experts by a mesh that has no context parallel ranks
      help: leave out one of --cp and --ep
    `--cp`: norms split by sequence are torchtitan's own, not planned over a shared sequence
      help: leave out one of --cp and --sp
    `--cp-comm-type`: it is of Transformer Engine's attention; torch goes round, or gathers
      help: use --cp-rotate-method, or add `--stack megatron`
    `--cp`: the memory-efficient kernel pads log-sums to a multiple of 32, and 160 / 4 = 40 is none, so torch could not merge them
      help: use a --seq-len that 128 divides
    `--cp`: no fused kernel takes grouped heads in this type, and torch goes round with fused kernels alone
      help: use a half type on sm80 or later, or --expand-kv
    `--cp`: accelerate refuses layers that look through a window, for it drops their masks
      help: leave it out, or set `sliding_window` to null in config.json
    `--cp`: its scores are capped, which sdpa does not, and ranks share a sequence through sdpa alone
      help: leave it out for this model
    `--cp`: accelerate drops the masks of modules called self_attn, those of gpt2 have another name, and attention over a shared sequence takes no mask
      help: leave it out for this model
    ");
}
