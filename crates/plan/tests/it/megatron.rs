//! Megatron's modules by pencil: what a layer keeps for backward, what ranks share out, what stays for good.

use crate::models::{even_llama, on_megatron};
use peakledger_core::Category;
use peakledger_input::Source;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::parallel::{CpComm, Mesh, Parallel, Schedule, Sharding};
use peakledger_plan::{Plan, PlannedPhase, plan};
use serde_json::json;

fn planned(layers: u32, options: Options) -> Plan {
    plan(even_llama(layers, &json!({})), options).unwrap()
}

/// What one more layer keeps from forward to backward: the difference of activations at the end of forward.
fn kept_by_a_layer(options: &Options) -> u64 {
    let at_end = |layers: u32| {
        let plan = planned(layers, options.clone());
        let end = |phase| plan.steady.phases.iter().find(|it| it.phase == phase).unwrap().end.get();
        end(peakledger_core::Phase::Forward) - static_bytes(&plan)
    };
    at_end(3) - at_end(2)
}

/// What is there before the first micro-batch.
fn static_bytes(plan: &Plan) -> u64 {
    let load = plan.steady.phases.first().unwrap();
    load.end.get()
}

const KIB: u64 = 1024;

/// Of 256 tokens, in KiB: norm's input and output 256 each and its factors 1; queries 256, keys and values 128 each, the
/// attended 256, log-sums 4, the generator's state half a KiB; the second norm as the first; gate and up 1024, their
/// product 512.
const ALONE: u64 = (256 + 256 + 1) + (256 + 128 + 128 + 256 + 4) + (256 + 256 + 1) + (1024 + 512);

#[test]
fn a_layer_keeps_what_its_functions_save() {
    assert_eq!(kept_by_a_layer(&on_megatron(Parallel::default())), ALONE * KIB + 512);
}

/// Korthikanti et al. (arXiv 2205.05198) §4.2: with sequence parallelism all of it is divided.
#[test]
fn with_sequence_parallel_all_of_it_is_divided() {
    let parallel = Parallel { tp: 2, sp: true, ..Parallel::default() };
    assert_eq!(kept_by_a_layer(&on_megatron(parallel)), ALONE * KIB / 2 + 512);
}

/// §4.1: without it the norms are not.
#[test]
fn without_it_the_norms_are_whole_on_every_rank() {
    let parallel = Parallel { tp: 2, ..Parallel::default() };
    let norms = 2 * (256 + 256 + 1);
    assert_eq!(kept_by_a_layer(&on_megatron(parallel)), (norms + (ALONE - norms) / 2) * KIB + 512);
}

/// By all-to-all a rank saves the heads that it attends with, and the attended states a second time, in the order of its
/// part of the sequence, for the projection (Transformer Engine from 2.8 on).
#[test]
fn context_parallel_keeps_the_attended_states_twice() {
    let parallel = Parallel { cp: 2, cp_comm: CpComm::AllToAll, ..Parallel::default() };
    assert_eq!(kept_by_a_layer(&on_megatron(parallel)), (ALONE / 2 + 128) * KIB + 512);
}

/// Around a ring, what a rank saves of attention is as much as alone, of its tokens, and the generator's state of each step.
#[test]
fn around_a_ring_a_rank_keeps_its_tokens_share() {
    for rank in [0, 1] {
        let parallel = Parallel { cp: 2, rank, ..Parallel::default() };
        assert_eq!(kept_by_a_layer(&on_megatron(parallel)), ALONE / 2 * KIB + 2 * 512, "rank {rank}");
    }
}

/// 34 · tokens · h for llama-8b, whose heads are as wide as the model and f = 3.5 h: `reference/planner-facts.md` has the
/// same of another planner of this stack. Beside them, 4 bytes a token for each norm and head.
#[test]
fn llama_8b_keeps_34_bytes_a_token_and_width() {
    let (hidden, heads, tokens) = (4096, 32, 256);
    let config = |layers: u32| {
        let config = json!({
            "model_type": "llama", "vocab_size": 1024, "hidden_size": hidden, "intermediate_size": 14336,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
            "max_position_embeddings": 4096, "tie_word_embeddings": false
        });
        Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap()
    };
    let kept = |layers: u32| {
        let plan = plan(config(layers), on_megatron(Parallel::default())).unwrap();
        let end =
            plan.steady.phases.iter().find(|it| it.phase == peakledger_core::Phase::Forward).unwrap().end;
        end.get() - static_bytes(&plan)
    };
    assert_eq!(kept(2) - kept(1), 34 * tokens * hidden + tokens * 4 * (2 + heads) + 512);
}

/// A full checkpoint keeps the layer's input alone: two bytes a number.
#[test]
fn a_full_checkpoint_keeps_the_input() {
    let options = Options { recompute: Recompute::Full, ..on_megatron(Parallel::default()) };
    assert_eq!(kept_by_a_layer(&options), 256 * KIB);
    let parallel = Parallel { tp: 2, sp: true, ..Parallel::default() };
    let options = Options { recompute: Recompute::Full, ..on_megatron(parallel) };
    assert_eq!(kept_by_a_layer(&options), 128 * KIB);
}

/// The attention computed again keeps its inputs, not its log-sums. The values among them are a view of queries, keys and
/// values as the projection put them out, 512 KiB, all of which so stay.
#[test]
fn selective_recompute_keeps_no_log_sums() {
    let options = Options { recompute: Recompute::Selective, ..on_megatron(Parallel::default()) };
    assert_eq!(kept_by_a_layer(&options), (ALONE - 4 - 128 + 512) * KIB);
}

/// 6 bytes a parameter, and 12 that data parallel ranks share out.
#[test]
fn the_distributed_optimizer_shares_out_twelve_bytes() {
    let of = |parallel: Parallel| {
        let plan = planned(2, on_megatron(parallel));
        let phase = plan.steady.phases.first().unwrap();
        let bytes = |category| phase.by_category.get(category).get();
        [Category::Parameter, Category::Gradient, Category::MasterWeight, Category::OptimizerState].map(bytes)
    };
    // embedding and head 1024 × 512 each, a layer (512 × 1024 + 512 × 512 + 3 × 512 × 1024) + 2 × 512, the last norm
    let numbers = 2 * 1024 * 512 + 2 * (512 * 1024 + 512 * 512 + 3 * 512 * 1024 + 2 * 512) + 512;
    let inv_freq = 512; // 64 angles in fp32, rounded up
    let sharded = |dp| Parallel { dp: Some(dp), sharding: Sharding::Zero1, ..Parallel::default() };
    assert_eq!(of(sharded(1)), [2 * numbers + inv_freq, 4 * numbers, 4 * numbers, 8 * numbers]);
    assert_eq!(of(sharded(2)), [2 * numbers + inv_freq, 4 * numbers, 2 * numbers, 4 * numbers]);
    let replicated = Parallel { dp: Some(2), ..Parallel::default() };
    assert_eq!(of(replicated), [2 * numbers + inv_freq, 4 * numbers, 4 * numbers, 8 * numbers]);
}

/// A dummy gradient for each shape of weight, whatever the number of layers, a workspace of Transformer Engine (that of cards
/// before sm90, since none is named), rotary angles: what a step leaves behind.
#[test]
fn what_stays_does_not_grow_with_layers() {
    let stays = |layers: u32| {
        let plan = planned(layers, on_megatron(Parallel::default()));
        let phase = plan.steady.phases.first().unwrap();
        let bytes = |category| phase.by_category.get(category).get();
        (bytes(Category::Workspace), bytes(Category::Activation))
    };
    let (h, f, v) = (512, 1024, 1024);
    let dummies = 2 * (1024 * h + h * h + 2 * f * h + f * h);
    let head = 2 * v * h; // of the shape of another: qkv's
    assert_eq!(head, 2 * 1024 * h);
    let workspace = 4 << 20;
    let angles = 256 * 128 * 4;
    assert_eq!(stays(1), (dummies + workspace, angles));
    assert_eq!(stays(4), stays(1));
}

/// With the fused loss the logits become their gradient; without it, their copy in fp32 does, and goes back to bf16 beside it.
#[test]
fn logits_of_the_fused_loss_are_there_once() {
    let peak = |fused_loss| {
        let options = Options { fused_loss, seq_len: Some(4096), ..on_megatron(Parallel::default()) };
        let plan = planned(1, options);
        let loss = plan.steady.phases.iter().find(|it| it.phase == peakledger_core::Phase::Loss).unwrap();
        loss.peak.get()
    };
    let logits = 4096 * 1024;
    let difference = peak(false) - peak(true);
    // fp32 beside bf16, less what the fused kernel's statistics take, and some numbers a token
    assert!(difference.abs_diff(4 * logits) < 64 * 4096, "{difference}");
}

/// The same with 4 experts in place of an MLP, 2 for each token.
fn experts(layers: u32) -> Architecture {
    let config = json!({
        "model_type": "mixtral", "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 4096,
        "tie_word_embeddings": false
    });
    Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap()
}

/// However experts are spread, a rank has 512 rows of 256 tokens: sorted 512 KiB, gate and up 2048, their product 1024, a
/// weight each 1. The norm before them keeps its input, its factors and its output, which the router reads; the router what it
/// chose (4) and its probabilities (2), the permutation a mask (1) and the weights turned (2). The dispatcher keeps the places
/// from step to step.
#[test]
fn a_layer_of_experts_keeps_the_same_however_they_are_spread() {
    let attention = (256 + 256 + 1) + (256 + 128 + 128 + 256 + 4);
    let kept = attention + (256 + 1 + 256) + (4 + 2 + 1 + 2) + (512 + 2048 + 1024 + 1);
    for ep in [1, 2, 4] {
        let options = on_megatron(Parallel { dp: Some(4), ep, ..Parallel::default() });
        let at_end = |layers: u32| {
            let plan = plan(experts(layers), options.clone()).unwrap();
            let end = |phase| plan.steady.phases.iter().find(|it| it.phase == phase).unwrap().end.get();
            end(peakledger_core::Phase::Forward) - static_bytes(&plan)
        };
        assert_eq!(at_end(3) - at_end(2), kept * KIB + 512, "ep {ep}");
    }
}

/// The experts of 4 ranks: those of a rank are shared out among the ranks that have the same.
#[test]
fn experts_are_shared_out_among_ranks_of_their_own() {
    let of = |ep: u32| {
        let parallel = Parallel { dp: Some(4), ep, sharding: Sharding::Zero1, ..Parallel::default() };
        let plan = plan(experts(1), on_megatron(parallel)).unwrap();
        let phase = plan.steady.phases.first().unwrap();
        let bytes = |category| phase.by_category.get(category).get();
        [Category::Parameter, Category::Gradient, Category::MasterWeight].map(bytes)
    };
    let others = 2 * 1024 * 512 + (512 * 1024 + 512 * 512 + 4 * 512) + 2 * 512 + 512;
    let experts = 4 * 3 * 512 * 1024;
    let inv_freq = 512;
    assert_eq!(of(1), [2 * (others + experts) + inv_freq, 4 * (others + experts), others + experts]);
    // two of four experts, shared out between two ranks: a quarter all the same
    let half = experts / 2;
    assert_eq!(of(2), [2 * (others + half) + inv_freq, 4 * (others + half), others + experts]);
}

#[test]
fn what_cannot_be_is_said_with_its_numbers() {
    let refused = |options: Options| plan(even_llama(1, &json!({})), options).unwrap_err().to_string();
    let said = refused(on_megatron(Parallel { tp: 3, ..Parallel::default() }));
    assert!(said.contains("4 query heads are no multiple of tp 3"), "{said}");
    let said = refused(on_megatron(Parallel { tp: 4, ..Parallel::default() }));
    assert!(said.contains("2 key and value heads are no multiple of tp 4"), "{said}");
    let said = refused(on_megatron(Parallel { sharding: Sharding::Zero3, ..Parallel::default() }));
    assert!(said.contains("its distributed optimizer is stage 1"), "{said}");
    let said = refused(Options { precision: Precision::Bf16Mixed, ..on_megatron(Parallel::default()) });
    assert!(said.contains("Megatron's weights are planned in bf16 or fp16"), "{said}");
    let plain = Options { grad_dtype: None, master_weights: None, ..on_megatron(Parallel::default()) };
    assert!(refused(plain.clone()).contains("main_grad is planned in fp32"));
    let said = refused(Options { precision: Precision::Fp32, ..plain });
    assert!(said.contains("bf16 or fp16"), "{said}");
    let said = refused(on_megatron(Parallel { sp: true, ..Parallel::default() }));
    assert!(said.contains("there is one"), "{said}");
    let said =
        plan(experts(1), on_megatron(Parallel { tp: 2, ..Parallel::default() })).unwrap_err().to_string();
    assert!(said.contains("sequence parallel alone"), "{said}");
    let said = refused(on_megatron(Parallel { dp: Some(2), ep: 2, ..Parallel::default() }));
    assert!(said.contains("no experts to spread"), "{said}");
    let odd = Parallel { cp: 3, cp_comm: CpComm::AllToAll, ..Parallel::default() };
    assert!(refused(on_megatron(odd)).contains("256 tokens are no multiple of 2 × cp 3 = 6"));
}

/// Hidden states of 256 tokens, as they go from stage to stage.
const BETWEEN: u64 = 256 * KIB;

/// The plans of all stages of a model of 8 layers.
fn stages(model: &Architecture, parallel: &Parallel, micro_batches: u32) -> Vec<Plan> {
    let first = |stage| stage * parallel.tp * parallel.dp.unwrap_or(1);
    let stage = |stage| {
        let options = on_megatron(Parallel { rank: first(stage), ..parallel.clone() });
        plan(model.clone(), Options { gradient_accumulation_steps: micro_batches, ..options }).unwrap()
    };
    (0..parallel.pp).map(stage).collect()
}

fn interleaved() -> Parallel {
    Parallel { pp: 2, virtual_stages: 2, schedule: Schedule::Interleaved, ..Parallel::default() }
}

/// Phases of that name in order, with their micro-batch.
fn of_phase<'a>(plan: &'a Plan, name: &'a str) -> impl Iterator<Item = &'a PlannedPhase> {
    plan.steady.phases.iter().filter(move |phase| phase.phase.as_str() == name)
}

#[test]
fn the_stages_hold_the_model_between_them() {
    for parallel in [Parallel { pp: 4, ..Parallel::default() }, interleaved()] {
        let stages = stages(&even_llama(8, &json!({})), &parallel, 4);
        let held: u64 = stages.iter().map(|plan| plan.rank_parameters).sum();
        assert!(stages.iter().all(|plan| plan.parameters == held), "{held}");
        let one = planned(8, on_megatron(Parallel::default()));
        assert_eq!(held, one.parameters);
    }
    // gradients and the distributed optimizer are of what a stage holds: 2 + 4 bytes a parameter, and 4 of a half
    let parallel = Parallel { pp: 2, dp: Some(2), sharding: Sharding::Zero1, ..Parallel::default() };
    for plan in stages(&even_llama(8, &json!({})), &parallel, 2) {
        let bytes = |category| plan.steady.phases.first().unwrap().by_category.get(category).get();
        assert_eq!(bytes(Category::Parameter), 2 * plan.rank_parameters + 512, "and a block of inv_freq");
        assert_eq!(bytes(Category::Gradient), 4 * plan.rank_parameters);
        assert_eq!(bytes(Category::MasterWeight), 2 * plan.rank_parameters);
    }
}

/// Whatever the order, the stages compute what one card does, and send hidden states and their gradients once each.
#[test]
fn the_stages_compute_and_send_what_they_must() {
    let model = even_llama(8, &json!({}));
    let costs = |parallel: &Parallel| {
        let stages = stages(&model, parallel, 4);
        let all = stages.iter().map(|plan| plan.steady.costs());
        all.fold((0, 0), |(flops, sent), costs| (flops + costs.flops.total(), sent + costs.communicated()))
    };
    let (flops, nothing) = costs(&Parallel::default());
    assert_eq!(nothing, 0);
    let both_ways = u128::from(2 * 4 * BETWEEN);
    assert_eq!(costs(&Parallel { pp: 4, ..Parallel::default() }), (flops, 3 * both_ways));
    assert_eq!(costs(&interleaved()), (flops, 3 * both_ways));
    // split by sequence: a rank sends its half, beside what tensor parallel ranks send anyway
    let split = Parallel { tp: 2, sp: true, ..Parallel::default() };
    let (of_rank, within) = costs(&split);
    assert_eq!(costs(&Parallel { pp: 2, ..split }), (of_rank, within + both_ways / 2));
}

/// What a layer keeps, its input being what was received, and one number in the place of what was sent: `min(m, p - i)`
/// times. The first stage keeps the tokens too, for the embedding.
#[test]
fn micro_batches_in_flight_keep_what_a_layer_does() {
    let parallel = Parallel { pp: 4, ..Parallel::default() };
    let stages = stages(&even_llama(4, &json!({})), &parallel, 8);
    let ends = |plan: &Plan| -> Vec<u64> { of_phase(plan, "forward").map(|it| it.end.get()).collect() };
    for (stage, plan) in stages[..3].iter().enumerate() {
        let (ends, tokens) = (ends(plan), if stage == 0 { 2 * KIB } else { 0 });
        let each = ALONE * KIB + 512 + 512 + tokens;
        for at in 1..4 - stage {
            assert_eq!(ends[at] - ends[at - 1], each, "stage {stage}: {ends:?}");
        }
        // then one goes as one comes; the names of the gradient received, and of the one sent, hold theirs
        let names = if stage == 0 { BETWEEN } else { 2 * BETWEEN };
        assert_eq!(ends[4 - stage] - ends[3 - stage], names, "stage {stage}: {ends:?}");
        assert_eq!(ends.last(), ends.get(4 - stage), "stage {stage}: {ends:?}");
    }
    let last = ends(&stages[3]);
    // the schedule keeps each loss
    assert_eq!(last[1] - last[0], BETWEEN + 512, "the gradient that was sent last");
}

/// `TransformerBlock.input_tensor` is not cleared: each part's last input stays through the update, and its gradient.
#[test]
fn the_last_input_of_each_part_stays_with_its_gradient() {
    let held = |parallel: &Parallel| -> Vec<u64> {
        let update = |plan: &Plan| {
            let phase = of_phase(plan, "update").next().unwrap();
            phase.by_category.get(Category::CommunicationBuffer).get() / BETWEEN
        };
        stages(&even_llama(8, &json!({})), parallel, 4).iter().map(update).collect()
    };
    assert_eq!(held(&Parallel { pp: 4, ..Parallel::default() }), [0, 2, 2, 2]);
    assert_eq!(held(&interleaved()), [2, 4]);
}

/// The first of two interleaved stages: F0 F1 F0' F1' F2 B0' … The parts beyond the embedding receive, and the gradient for
/// B0' is asked for when F1' has ended.
#[test]
fn interleaved_stages_ask_before_they_need() {
    let stages = stages(&even_llama(8, &json!({})), &interleaved(), 4);
    let buffers = |plan: &Plan, name: &str, micro_batch| {
        let phase = of_phase(plan, name).find(|it| it.micro_batch == Some(micro_batch)).unwrap();
        phase.by_category.get(Category::CommunicationBuffer).get() / BETWEEN
    };
    let [first, second] = stages.as_slice() else { panic!("two stages") };
    // at the peak of a phase, which is before what is asked for at its end
    assert_eq!(buffers(first, "forward", 0), 0);
    assert_eq!(buffers(first, "forward", 1), 0, "asked for at its end");
    assert_eq!(buffers(first, "forward_part_1", 0), 1);
    assert_eq!(buffers(first, "forward_part_1", 1), 2);
    assert_eq!(buffers(first, "forward", 2), 3, "two inputs, and the gradient that B0' takes");
    assert_eq!(buffers(second, "forward", 0), 1);
    assert_eq!(buffers(second, "forward", 1), 2);
}

#[test]
fn stages_go_together_with_what_megatron_does() {
    let of = |parallel: Parallel| Options { gradient_accumulation_steps: 4, ..on_megatron(parallel) };
    for parallel in [Parallel { pp: 2, ..Parallel::default() }, interleaved()] {
        let shared = Parallel { tp: 2, sp: true, dp: Some(2), sharding: Sharding::Zero1, ..parallel.clone() };
        for options in [
            Options { recompute: Recompute::Full, fused_loss: true, ..of(parallel.clone()) },
            Options { recompute: Recompute::Selective, clip_grad_norm: true, ..of(parallel.clone()) },
            of(Parallel { cp: 2, ..parallel.clone() }),
            of(shared),
        ] {
            for rank in [0, Mesh::of(&options.parallel).unwrap().world - 1] {
                let parallel = Parallel { rank, ..options.parallel.clone() };
                let plan = planned(8, Options { parallel, ..options.clone() });
                let ledger = plan.ledger(peakledger_plan::Step::Steady);
                assert!(ledger.is_ok(), "no name appears twice: {:?}", ledger.err());
            }
        }
    }
    let gpipe = Parallel { pp: 2, schedule: Schedule::Gpipe, ..Parallel::default() };
    let said = plan(even_llama(2, &json!({})), of(gpipe)).unwrap_err().to_string();
    assert!(said.contains("Megatron-LM's, 1f1b and interleaved"), "{said}");
}
