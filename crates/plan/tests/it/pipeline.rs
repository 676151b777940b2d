//! Pipelines worked out by hand: what a stage holds, what is in flight, what is sent.

use peakledger_core::Category;
use peakledger_input::Source;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Lora, LoraTargets, Offload, Options, Precision, Recompute};
use peakledger_plan::parallel::{DataParallel, Parallel, Schedule, Sharding};
use peakledger_plan::{Dtype, Plan, PlannedPhase, plan};

const LAYERS: u64 = 8;
const HIDDEN: u64 = 64;
const INNER: u64 = 128;
const VOCABULARY: u64 = 512;
const TOKENS: u64 = 32;

/// A layer: four square matrices, three of the MLP, two norms.
const LAYER: u64 = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER + 2 * HIDDEN;
const EMBEDDING: u64 = VOCABULARY * HIDDEN;
/// The hidden states of a micro-batch in fp32.
const BETWEEN: u64 = TOKENS * HIDDEN * 4;

fn architecture(tied: bool) -> Architecture {
    let config = format!(
        r#"{{"model_type": "llama", "vocab_size": {VOCABULARY}, "hidden_size": {HIDDEN}, "intermediate_size": {INNER},
             "num_hidden_layers": {LAYERS}, "num_attention_heads": 4, "max_position_embeddings": {TOKENS},
             "tie_word_embeddings": {tied}}}"#
    );
    Architecture::read(&Source::from_text("config.json", config)).unwrap()
}

fn options(pp: u32, schedule: Schedule, micro_batches: u32) -> Options {
    let virtual_stages = if schedule == Schedule::Interleaved { 2 } else { 1 };
    Options {
        precision: Precision::Fp32,
        gradient_accumulation_steps: micro_batches,
        parallel: Parallel { pp, schedule, virtual_stages, ..Parallel::default() },
        ..Options::default()
    }
}

/// The plans of all stages.
fn stages(options: &Options, tied: bool) -> Vec<Plan> {
    let stage = |rank| {
        // the first rank of each stage
        let rank = rank * options.parallel.dp.unwrap_or(1);
        let parallel = Parallel { rank, ..options.parallel.clone() };
        plan(architecture(tied), Options { parallel, ..options.clone() }).unwrap()
    };
    (0..options.parallel.pp).map(stage).collect()
}

fn phases<'a>(plan: &'a Plan, name: &'a str) -> impl Iterator<Item = &'a PlannedPhase> {
    plan.steady.phases.iter().filter(move |phase| phase.phase.as_str().starts_with(name))
}

/// Layers that options name are counted over the whole model, whichever stage has them.
#[test]
fn layers_that_are_named_are_those_of_the_model() {
    let recomputing = |layers: &str| {
        let recompute = Recompute::Layers(layers.parse().unwrap());
        Options { recompute, ..options(2, Schedule::Gpipe, 4) }
    };
    let peaks = |options: &Options| -> Vec<_> {
        stages(options, false).iter().map(|plan| plan.steady.peak().phase.peak).collect()
    };
    let kept = peaks(&options(2, Schedule::Gpipe, 4));
    let of_last = peaks(&recomputing("4-7"));
    assert_eq!(of_last[0], kept[0], "the first stage has none of them");
    assert!(of_last[1] < kept[1], "{of_last:?}, {kept:?}");
    let refused = plan(architecture(false), recomputing("4-8")).unwrap_err().to_string();
    assert!(refused.contains("there is no layer 8 of 8"), "{refused}");
}

#[test]
fn a_stage_holds_its_layers_and_what_stands_around_them() {
    let held = |pp, schedule, tied| -> Vec<u64> {
        let stages = stages(&options(pp, schedule, 8), tied);
        assert!(stages.iter().all(|plan| plan.parameters == stages[0].parameters));
        stages.iter().map(|plan| plan.rank_parameters).collect()
    };
    let (two, four) = (2 * LAYER, 4 * LAYER);
    let last = EMBEDDING + HIDDEN;
    assert_eq!(held(4, Schedule::OneFOneB, false), [two + EMBEDDING, two, two, two + last]);
    assert_eq!(held(2, Schedule::Interleaved, false), [four + EMBEDDING, four + last]);
    let both_ways = held(4, Schedule::DualPipe, false);
    assert_eq!(both_ways, [four + EMBEDDING + last, four, four, four + EMBEDDING + last]);
    // a tied head has a copy on the last stage, which is no parameter more of the model
    assert_eq!(held(2, Schedule::Gpipe, true), [four + EMBEDDING, four + last]);
    assert_eq!(stages(&options(2, Schedule::Gpipe, 2), true)[0].parameters, 8 * LAYER + last);
}

/// Whatever the order: the stages together compute what the model computes on one card, and every weight has its gradient.
#[test]
fn the_stages_together_do_what_one_card_does() {
    for recompute in [Recompute::None, Recompute::Full] {
        let one = Options { recompute, ..options(1, Schedule::OneFOneB, 8) };
        let flops = plan(architecture(false), one).unwrap().steady.costs().flops;
        for schedule in Schedule::ALL {
            let options = Options { recompute, ..options(4, schedule, 8) };
            let stages = stages(&options, false);
            let all: u128 = stages.iter().map(|plan| plan.steady.costs().flops.total()).sum();
            // each of DualPipe's two copies sees half of the micro-batches
            assert_eq!(all, flops.total(), "{schedule:?}");
            let parts = if schedule == Schedule::Interleaved { 8 } else { 4 };
            let sent: u128 = stages.iter().map(|plan| plan.steady.costs().communicated()).sum();
            let once_each_way = u128::from(2 * 8 * (parts - 1) * BETWEEN);
            assert_eq!(sent, once_each_way, "{schedule:?}");
            for plan in &stages {
                let update = phases(plan, "update").next().unwrap();
                let gradients = update.by_category.get(Category::Gradient).get();
                assert_eq!(gradients, update.by_category.get(Category::Parameter).get() - buffers(plan));
            }
        }
    }
}

/// Two rotary tables for each part of a stage, of 32 B each: a block of 512 B.
fn buffers(plan: &Plan) -> u64 {
    let parts = match plan.options.parallel.schedule {
        Schedule::Interleaved | Schedule::DualPipe => 2,
        _ => 1,
    };
    parts * 2 * 512
}

/// Each micro-batch in flight keeps as much as the one before; there are `min(m, p - i)` of them under 1F1B, all under GPipe.
#[test]
fn what_is_in_flight_is_there_as_often() {
    let micro_batches = 6;
    let ends = |plan: &Plan, name| -> Vec<u64> { phases(plan, name).map(|p| p.end.get()).collect() };
    let loaded = |plan: &Plan| phases(plan, "load").next().unwrap().end.get();
    let gpipe = stages(&options(4, Schedule::Gpipe, micro_batches), false);
    let mut kept = Vec::new();
    for plan in &gpipe[..3] {
        let ends = ends(plan, "forward");
        let each = ends[1] - ends[0];
        assert!(ends.windows(2).all(|pair| pair[1] - pair[0] == each), "{ends:?}");
        kept.push(each);
    }
    let in_order = stages(&options(4, Schedule::OneFOneB, micro_batches), false);
    for (stage, plan) in in_order[..3].iter().enumerate() {
        let ends = ends(plan, "forward");
        // GPipe's sent hidden states wait for all forwards, 1F1B's for one; both are in each end
        let each = kept[stage] - BETWEEN;
        let warm_up = 4 - stage;
        for (at, end) in ends[..warm_up].iter().enumerate() {
            assert_eq!(end - ends[0], at as u64 * each, "stage {stage}: {ends:?}");
        }
        assert!(ends[0] > loaded(plan));
        let most = ends.iter().max().unwrap();
        let grads_and_sent = ends[warm_up] - ends[warm_up - 1];
        assert_eq!(most - ends[warm_up - 1], grads_and_sent, "no more are in flight: {ends:?}");
    }
}

/// What is received and sent, by hand, on the second stage of four under 1F1B with 4 micro-batches.
#[test]
fn buffers_are_there_while_they_are_needed() {
    let middle = Options {
        parallel: Parallel { pp: 4, rank: 1, ..Parallel::default() },
        ..options(4, Schedule::OneFOneB, 4)
    };
    let plan = plan(architecture(false), middle).unwrap();
    // F0 F1 F2 B0 F3 B1 B2 B3
    let at_end = |name: &str, micro_batch| -> u64 {
        let phase = phases(&plan, name).find(|phase| phase.micro_batch == Some(micro_batch)).unwrap();
        phase.by_category.get(Category::CommunicationBuffer).get() / BETWEEN
    };
    assert_eq!(at_end("forward", 0), 1, "what was received");
    assert_eq!(at_end("forward", 2), 3, "what three micro-batches received");
    assert_eq!(at_end("forward", 3), 4, "three in flight, and the gradient that was sent back");
    let contributors = plan.contributors();
    let named = |what: &str| contributors.iter().find(|c| c.name == what).map(|c| c.bytes.get() / BETWEEN);
    assert_eq!(named("communication · hidden states received"), Some(3));
    assert_eq!(named("communication · output gradient received"), Some(1));
}

/// Weights that wait keep their inputs and the gradients of their outputs: 7 products a layer.
#[test]
fn zero_bubble_keeps_what_weights_wait_for() {
    let of = |schedule| stages(&options(4, schedule, 8), false);
    let peaks =
        |plans: &[Plan]| -> Vec<u64> { plans.iter().map(|plan| plan.peak().phase.peak.get()).collect() };
    let (plain, h1, h2) = (of(Schedule::OneFOneB), of(Schedule::ZbH1), of(Schedule::ZbH2));
    assert!(peaks(&h1).iter().zip(peaks(&plain)).all(|(h1, plain)| *h1 >= plain));
    assert!(peaks(&h2).iter().zip(peaks(&h1)).all(|(h2, h1)| *h2 > h1));
    // on the second stage the weights of one micro-batch wait when the next backward begins
    let backward = phases(&h1[1], "backward").next().unwrap();
    let products = [HIDDEN, HIDDEN, HIDDEN, HIDDEN, INNER, INNER, HIDDEN];
    let gradients: u64 = products.iter().map(|width| TOKENS * width * 4).sum();
    // of the inputs, those of q, k and v are one tensor, and those of gate and up
    let inputs = TOKENS * 4 * (HIDDEN + HIDDEN + HIDDEN + INNER);
    let waiting = 2 * (gradients + inputs);
    let kept = backward.end.get() - without_weights(&plain[1]);
    assert_eq!(kept, waiting, "two layers");
}

/// What is there after the first backward, but for the gradients of the linear weights, which have not been made yet.
fn without_weights(plan: &Plan) -> u64 {
    let linear = 2 * 4 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER);
    phases(plan, "backward").next().unwrap().end.get() - linear
}

/// The same over data parallel ranks.
fn spread(options: &Options, dp: u32, sharding: Sharding, schedule: Schedule) -> Options {
    let parallel = Parallel { dp: Some(dp), sharding, schedule, ..options.parallel.clone() };
    Options { parallel, precision: Precision::Bf16, ..options.clone() }
}

#[test]
fn stages_go_together_with_what_a_step_may_be() {
    let lora = Lora {
        rank: 4,
        dropout: 0.0,
        dtype: Dtype::F32,
        targets: LoraTargets::Named(vec!["q_proj".into()]),
        ..Lora::default()
    };
    let plain = options(2, Schedule::OneFOneB, 4);
    for options in [
        Options { precision: Precision::Bf16Mixed, recompute: Recompute::Full, ..plain.clone() },
        Options { precision: Precision::Fp16Mixed, grad_scaler: true, clip_grad_norm: true, ..plain.clone() },
        Options { lora: Some(lora), precision: Precision::Bf16, recompute: Recompute::Full, ..plain.clone() },
        Options { offload: Offload { activations: true, ..Offload::default() }, ..plain.clone() },
        Options { offload: Offload { parameters: true, ..Offload::default() }, ..plain.clone() },
        Options {
            grad_dtype: Some(Dtype::F32),
            master_weights: Some(Dtype::F32),
            precision: Precision::Bf16,
            ..plain.clone()
        },
        Options { padded: true, ..plain.clone() },
        spread(&plain, 2, Sharding::Replicated, Schedule::OneFOneB),
        spread(&plain, 2, Sharding::Replicated, Schedule::ZbH1),
        spread(&plain, 2, Sharding::Zero1, Schedule::OneFOneB),
        spread(&plain, 2, Sharding::FullShard, Schedule::Gpipe),
        spread(&plain, 2, Sharding::ShardGradOp, Schedule::OneFOneB),
    ] {
        for plan in stages(&options, false) {
            assert!(plan.peak().phase.peak.get() > 0);
            assert!(plan.ledger(peakledger_plan::Step::Steady).is_ok(), "no phase appears twice");
            let end = plan.steady.phases.last().unwrap();
            assert_eq!(end.end, plan.steady.phases.first().unwrap().end, "nothing is left over: {options:?}");
        }
    }
}

/// Numbers of a layer's parameters, one by one.
fn of_a_layer() -> [u64; 9] {
    let (square, inner) = (HIDDEN * HIDDEN, HIDDEN * INNER);
    [square, square, square, square, inner, inner, inner, HIDDEN, HIDDEN]
}

/// A layer's parameters in numbers of so many bytes, each in blocks of 512 B.
fn blocks_of_a_layer(width: u64) -> u64 {
    of_a_layer().iter().map(|numbers| (numbers * width).div_ceil(512) * 512).sum()
}

fn ends(plan: &Plan, name: &str) -> Vec<u64> {
    phases(plan, name).map(|phase| phase.end.get()).collect()
}

/// The second of four stages, two layers, over two ranks that share them out in bf16 and sum gradients in fp32.
fn sharded_stage(schedule: Schedule, sharding: Sharding) -> Plan {
    let data = DataParallel { reduce_dtype: Some(Dtype::F32), ..DataParallel::default() };
    let plain = options(4, schedule, 3);
    let parallel = Parallel { dp: Some(2), rank: 2, sharding, data, virtual_stages: 1, ..plain.parallel };
    let options = Options { precision: Precision::Bf16, seq_len: Some(8), parallel, ..plain };
    plan(architecture(false), options).unwrap()
}

/// After the first backward both layers are whole, and so are their gradients, in the type that they are summed in: no backward
/// takes them away. When all are done, one layer after the other is reduced.
#[test]
fn layers_of_a_stage_are_whole_from_the_first_backward_to_the_last() {
    let plan = sharded_stage(Schedule::Gpipe, Sharding::FullShard);
    let (forward, backward) = (ends(&plan, "forward"), ends(&plan, "backward"));
    let start = ends(&plan, "load")[0];
    let sent = 8 * HIDDEN * 2;
    // what is sent stays until all forward passes are done, what is sent back until all backward passes are
    let kept = forward[1] - forward[0] - sent;
    assert_eq!(forward, [1, 2, 3].map(|passes| start + passes * (kept + sent)));
    let (whole, gradients) = (2 * blocks_of_a_layer(2), 2 * blocks_of_a_layer(4));
    assert_eq!(backward[0], start + 2 * kept + whole + gradients + sent);
    assert_eq!(backward[1], start + kept + whole + gradients + 2 * sent);
    // a rank's half of them in bf16, a buffer for each layer; the last gradient that was sent has a name still
    let shards = LAYER;
    assert_eq!(backward[2], start + 2 * shards.div_ceil(512) * 512 + sent);
    // the last layer's gradients are copied side by side while those of both are there, and its parameters are not
    let last = phases(&plan, "backward").last().unwrap();
    let side_by_side = (LAYER * 4).div_ceil(512) * 512;
    assert_eq!(last.peak.get(), start + whole / 2 + gradients + side_by_side + sent);
}

/// What ranks gather and reduce for it: every forward gathers, since the one before it took the layers away, and so does the
/// first backward; of 1F1B a forward that comes after a backward does not. Each rank sends half of the whole.
#[test]
fn what_is_whole_is_not_gathered_again() {
    let gathers = |schedule, sharding| {
        let plan = sharded_stage(schedule, sharding);
        let sent = u128::from(2 * 3 * 8 * HIDDEN * 2);
        let reduced = u128::from(2 * LAYER * 4 / 2);
        let gathered = plan.steady.costs().communicated() - sent - reduced;
        assert_eq!(gathered % u128::from(2 * LAYER), 0);
        gathered / u128::from(2 * LAYER)
    };
    assert_eq!(gathers(Schedule::Gpipe, Sharding::FullShard), 3 + 1);
    assert_eq!(gathers(Schedule::Gpipe, Sharding::ShardGradOp), 1);
    // F F F B B B on this stage
    assert_eq!(gathers(Schedule::OneFOneB, Sharding::FullShard), 3 + 1);
    assert_eq!(gathers(Schedule::OneFOneB, Sharding::ShardGradOp), 1);
}

/// DDP's reducer asks for the outputs of a stage, so each stays until its backward; its parts have buckets each, of as many bytes
/// as they have gradients.
#[test]
fn under_ddp_what_was_sent_stays() {
    let alone = options(2, Schedule::Gpipe, 6);
    let after_one = |dp| {
        let parallel = Parallel { dp: Some(dp), ..alone.parallel.clone() };
        let plan = plan(architecture(false), Options { parallel, ..alone.clone() }).unwrap();
        ends(&plan, "backward")[0] - ends(&plan, "load")[0]
    };
    assert_eq!(after_one(2), after_one(1) + 5 * BETWEEN);
    for schedule in [Schedule::OneFOneB, Schedule::Interleaved] {
        let alone = options(2, schedule, 4);
        let spread = Parallel { dp: Some(2), ..alone.parallel.clone() };
        let plan = plan(architecture(false), Options { parallel: spread, ..alone }).unwrap();
        let update = phases(&plan, "update").next().unwrap().by_category;
        let buckets = update.get(Category::CommunicationBuffer).get();
        let gradients = plan.rank_parameters * 4;
        assert!((gradients..gradients + 4 * 512).contains(&buckets), "{schedule:?}: {buckets}, {gradients}");
    }
}
