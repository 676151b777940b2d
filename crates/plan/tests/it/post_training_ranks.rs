//! Post-training on data parallel ranks, by pencil: who is whole where, what is gathered for whom, and which rank needs most.

use crate::post_training::{architecture, bf16, bytes, phases, planned, short, tiny, total};
use peakledger_core::{Category, Device, Ledger, Phase, Residency, State};
use peakledger_plan::options::*;
use peakledger_plan::parallel::{DataParallel, Parallel, Sharding};
use peakledger_plan::post_training::*;
use peakledger_plan::{Step, plan};

/// The small model's parameters in bf16, each storage rounded up to 512 B: embedding and head of 1000 × 64, in two layers q
/// and o of 64 × 64, k and v of 32 × 64, three of 64 × 128, and five norms of 64.
const WHOLE: u64 = 2 * 128_000 + 2 * (2 * 8192 + 2 * 4096 + 3 * 16_384) + 5 * 512;

/// The same shared out over four: rows of 250 × 64 are 62.5 blocks of 512 B, norms of 16 still one.
const QUARTER: u64 = 2 * 32_256 + 2 * (2 * 2048 + 2 * 1024 + 3 * 4096) + 5 * 512;

/// The rotary tables' two buffers, which nobody shares out.
const BUFFERS: u64 = 2 * 512;

/// Four ranks, and no parameter so small that ZeRO 3 keeps it whole.
fn over_four(sharding: Sharding) -> Parallel {
    let mut data = DataParallel::default();
    if sharding == Sharding::Zero3 {
        data.zero.param_persistence_threshold = 0;
    }
    Parallel { dp: Some(4), sharding, data, ..Parallel::default() }
}

fn on_four(sharding: Sharding) -> Options {
    Options { parallel: over_four(sharding), ..bf16(8) }
}

const ALL: [Sharding; 7] = [
    Sharding::Replicated,
    Sharding::Zero1,
    Sharding::Zero2,
    Sharding::Zero3,
    Sharding::FullShard,
    Sharding::ShardGradOp,
    Sharding::HybridShard,
];

fn with_reference() -> PostTraining {
    PostTraining { reference: Some(true), ..short(Algorithm::Grpo) }
}

fn weights(step: &PostTrained, model: &str) -> u64 {
    step.models.iter().find(|one| one.name == model).unwrap().weights.get()
}

/// The states on the device in a phase, of a micro-batch the first's, whose name has that in it.
fn in_phase<'a>(ledger: &'a Ledger, phase: &str, of: &'a str) -> impl Iterator<Item = &'a State> {
    let named = Phase::named(phase);
    let slot = ledger.timeline().slots().iter().find(|slot| slot.phase == named).unwrap();
    let (first, last) = (slot.first, slot.last);
    let is_there =
        move |stay: &Residency| stay.device == Device::Gpu && stay.start <= last && first <= stay.end;
    let states = ledger.states().iter().filter(move |state| state.name.contains(of));
    states.filter(move |state| state.residencies.as_slice().iter().any(is_there))
}

fn sum<'a>(states: impl Iterator<Item = &'a State>) -> u64 {
    states.map(|state| state.bytes.get()).sum()
}

#[test]
fn a_world_of_one_is_one_card() {
    let alone = Parallel { gpus: Some(1), dp: Some(1), ..Parallel::default() };
    for request in [with_reference(), short(Algorithm::Ppo), short(Algorithm::Dpo)] {
        let [here, there] = [bf16(8), Options { parallel: alone.clone(), ..bf16(8) }]
            .map(|o| planned(tiny(), o, request.clone()));
        assert_eq!(here.ledger().states(), there.ledger().states());
        assert_eq!(phases(here.ledger()), phases(there.ledger()));
        assert!(!here.ranks_differ);
    }
}

/// What `plan` says of the training step, and beside it what does not change while it runs.
#[test]
fn training_is_the_step_of_that_sharding_and_what_else_is_there() {
    let beside = ALL.map(|sharding| {
        let step = planned(tiny(), on_four(sharding), with_reference());
        let alone = plan(step.actor.architecture.clone(), step.actor.options.clone()).unwrap();
        let alone = alone.ledger(Step::Steady).unwrap();
        let more = |slot: &peakledger_core::Slot, of_it: u64| {
            total(step.ledger(), slot.phase.as_str(), slot.micro_batch) - of_it
        };
        let beside: Vec<u64> = alone
            .phases()
            .filter(|(slot, _)| slot.phase != Phase::Load)
            .map(|(slot, sums)| more(slot, sums.total.get()))
            .collect();
        assert!(beside.windows(2).all(|pair| pair[0] == pair[1]), "{sharding:?}: {beside:?}");
        beside[0]
    });
    // ids of 8 B and the reference's log-probabilities of 4 B
    let left = (8_u64 * 13 * 8).next_multiple_of(512) + 512;
    let (whole, part) = (WHOLE + BUFFERS + left, QUARTER + BUFFERS + left);
    let stays_whole = part + WHOLE;
    assert_eq!(beside, [whole, whole, whole, part, part, stays_whole, part]);
}

#[test]
fn a_reference_is_whole_below_stage_3_and_shared_out_in_it() {
    let of = |sharding| weights(&planned(tiny(), on_four(sharding), with_reference()), "reference");
    assert_eq!([Sharding::Zero1, Sharding::Zero2].map(of), [WHOLE + BUFFERS; 2]);
    assert_eq!([Sharding::Zero3, Sharding::FullShard].map(of), [QUARTER + BUFFERS; 2]);
}

/// Under bf16-mixed DeepSpeed's models are in bf16, FSDP2's shards and a whole copy of accelerate's in fp32.
#[test]
fn a_reward_model_is_whole_beside_fsdp() {
    let request = PostTraining { reward_model: Some(true), ..with_reference() };
    let of = |sharding| {
        let options = Options { precision: Precision::Bf16Mixed, ..on_four(sharding) };
        let step = planned(tiny(), options, request.clone());
        ["reward", "reference"].map(|model| weights(&step, model))
    };
    // one output in place of the 1000 of the vocabulary
    let valued = WHOLE - 128_000 + 512;
    assert_eq!(of(Sharding::Zero2), [valued + BUFFERS, WHOLE + BUFFERS]);
    let [reward, reference] = of(Sharding::FullShard);
    assert_eq!(reward, 2 * (valued - 6 * 512) + 6 * 512 + BUFFERS, "norms and the output stay a block");
    assert_eq!(reference, 2 * (QUARTER - 2 * 32_256 - 5 * 512) + 2 * 64_000 + 5 * 512 + BUFFERS);
}

#[test]
fn generate_runs_on_weights_that_zero_3_gathers_all_at_once() {
    let step = planned(tiny(), on_four(Sharding::Zero3), short(Algorithm::Grpo));
    assert_eq!(sum(in_phase(step.ledger(), "rollout", ".gathered")), WHOLE);
    // a threshold above the largest has them whole already
    let mut parallel = over_four(Sharding::Zero3);
    parallel.data.zero.param_persistence_threshold = 100_000;
    let kept = planned(tiny(), Options { parallel, ..bf16(8) }, short(Algorithm::Grpo));
    assert_eq!(sum(in_phase(kept.ledger(), "rollout", ".gathered")), 0);
    for whole in [Sharding::Replicated, Sharding::Zero2] {
        let step = planned(tiny(), on_four(whole), short(Algorithm::Grpo));
        assert_eq!(sum(in_phase(step.ledger(), "rollout", "gather")), 0);
    }
}

/// The last norm and the head come once and stay; embedding and layers come and go, in the prompt's pass and in the last token's.
#[test]
fn generate_gathers_layer_by_layer_under_fsdp() {
    let step = planned(tiny(), on_four(Sharding::FullShard), short(Algorithm::Grpo));
    let ledger = step.ledger();
    let (embedding, tail, layers) = (128_000, 128_000 + 512, WHOLE - 2 * 128_000 - 512);
    assert_eq!(sum(in_phase(ledger, "rollout", ".gathered")), tail + 2 * (embedding + layers));
    let slot = &ledger.timeline().slots()[0];
    let whole = |moment| -> u64 {
        let there = ledger.resident(Device::Gpu, peakledger_core::Moment(moment));
        there.filter(|(_, state)| state.name.contains(".gathered")).map(|(_, state)| state.bytes.get()).sum()
    };
    assert_eq!((0..=slot.last.0).map(whole).max(), Some(tail + embedding.max(layers / 2)));
    assert_eq!(whole(slot.last.0), tail, "until training lets go of it");
}

/// `prepare_fsdp` shards a reference as a whole: what is gathered, and what it is copied out of, are all of it.
#[test]
fn a_reference_comes_all_at_once_where_trl_shards_it() {
    let step = planned(tiny(), on_four(Sharding::FullShard), with_reference());
    let whole: u64 = in_phase(step.ledger(), "score_reference", ".gathered")
        .filter(|state| state.name.starts_with("score_reference"))
        .map(|state| state.bytes.get())
        .sum();
    assert_eq!(whole, WHOLE);
    let output = in_phase(step.ledger(), "score_reference", "score_reference: step: all-gather output");
    assert_eq!(sum(output), (202_048 * 2_u64).next_multiple_of(512));
    // verl shards by layers, and keeps the shards on the host
    let ppo = planned(tiny(), on_four(Sharding::FullShard), short(Algorithm::Ppo));
    let on_host = ppo.ledger().states().iter().filter(|state| {
        state.name.starts_with("reference: ")
            && state.residencies.as_slice().iter().all(|stay| stay.device == Device::Cpu)
    });
    assert_eq!(sum(on_host), QUARTER);
}

/// A pass that scores leaves what training would not share out again before its backward.
#[test]
fn what_a_pass_leaves_whole_is_there_until_the_model_runs_again() {
    let request = PostTraining { engine: Engine::Vllm(Vllm::default()), ..with_reference() };
    let step = planned(tiny(), on_four(Sharding::ShardGradOp), request);
    let ledger = step.ledger();
    assert_eq!(phases(ledger)[..4], ["sync_weights", "rollout", "score_actor", "score_reference"]);
    let of = |phase| {
        let states = in_phase(ledger, phase, ".gathered");
        sum(states.filter(|state| state.name.starts_with("score_actor")))
    };
    assert_eq!(
        [of("rollout"), of("score_actor"), of("score_reference"), of("forward")],
        [0, WHOLE, WHOLE, 0]
    );
}

#[test]
fn the_head_is_gathered_for_the_log_probabilities_alone() {
    let step = planned(tiny(), on_four(Sharding::Zero3), short(Algorithm::Grpo));
    let gathered = |phase| sum(in_phase(step.ledger(), phase, "lm_head.weight.gathered"));
    assert_eq!(["forward", "loss", "backward"].map(gathered), [0, 128_000, 128_000]);
}

/// Below the threshold parameters are whole on each rank, whatever runs; a part of each is there besides.
#[test]
fn what_zero_3_keeps_whole_is_there_in_every_phase() {
    let mut parallel = over_four(Sharding::Zero3);
    parallel.data.zero.param_persistence_threshold = 100_000;
    let step = planned(tiny(), Options { parallel, ..bf16(8) }, with_reference());
    let parts = (202_048 / 4 * 2_u64).next_multiple_of(512);
    for phase in ["rollout", "score_reference", "forward"] {
        let slot =
            step.ledger().timeline().slots().iter().find(|slot| slot.phase == Phase::named(phase)).unwrap();
        let of = |model: &str| -> u64 {
            let there = step.ledger().resident(Device::Gpu, slot.first).map(|(_, state)| state);
            sum(there.filter(|state| state.category == Category::Parameter && state.name.starts_with(model)))
        };
        assert_eq!(of("actor: "), parts + WHOLE + BUFFERS, "{phase}");
        assert_eq!(of("reference: "), QUARTER + WHOLE + BUFFERS, "{phase}");
    }
}

/// The actor without its adapters is the reference, between its own forward and backward: what it keeps whole serves both.
#[test]
fn a_reference_within_the_actor_gathers_what_is_not_whole() {
    let step = |sharding| {
        let options = Options { lora: Some(Lora::default()), ..on_four(sharding) };
        planned(tiny(), options, short(Algorithm::Dpo))
    };
    let gathered = |step: &PostTrained| {
        let states = step.ledger().states().iter().filter(|state| state.name.contains(".gathered"));
        sum(states.filter(|state| state.name.starts_with("score_reference")))
    };
    // the last norm, which accelerate does not find beside adapters, and the head are whole
    let that_come = WHOLE - 128_000 - 512;
    assert_eq!([Sharding::FullShard, Sharding::ShardGradOp].map(|s| gathered(&step(s))), [that_come, 0]);
}

#[test]
fn every_combination_adds_up_or_is_a_sentence() {
    let mut planned = 0;
    let sleeping = OffloadBetween { actor: true, optimizer: true, ..OffloadBetween::default() };
    for sharding in ALL {
        for algorithm in [Algorithm::Grpo, Algorithm::Ppo, Algorithm::Dpo] {
            for engine in [Engine::Hf, Engine::Vllm(Vllm { tensor_parallel_size: 2, ..Vllm::default() })] {
                for (precision, lora) in
                    [(Precision::Bf16Mixed, None), (Precision::Bf16, Some(Lora::default()))]
                {
                    let options =
                        Options { precision, lora, gradient_accumulation_steps: 2, ..on_four(sharding) };
                    let request = PostTraining {
                        engine,
                        reference: Some(true),
                        offload_between: sleeping,
                        ..short(algorithm)
                    };
                    match post_train(architecture(tiny()), options, request, None) {
                        Ok(step) => {
                            let peak = step.ledger().peak();
                            let grouped = step.contributors(peak.moment);
                            let of_all: u64 = grouped.iter().map(|group| group.bytes.get()).sum();
                            assert_eq!(of_all, peak.bytes.get(), "{sharding:?} {algorithm:?}");
                            planned += 1;
                        }
                        Err(problem) => {
                            let said = problem.to_string();
                            let expected = algorithm == Algorithm::Dpo
                                && (engine != Engine::Hf || sharding == Sharding::Zero3);
                            assert!(
                                expected && said.contains("help: "),
                                "{sharding:?} {algorithm:?}: {said}"
                            );
                        }
                    }
                }
            }
        }
    }
    assert_eq!(planned, 7 * 2 * 2 * 2 + 7 * 2 - 1);
}

#[test]
fn ranks_of_vllm_share_out_its_weights_and_sample_together() {
    let step = |tensor_parallel_size| {
        let vllm = Vllm { tensor_parallel_size, ..Vllm::default() };
        let request = PostTraining { engine: Engine::Vllm(vllm), ..short(Algorithm::Grpo) };
        planned(tiny(), on_four(Sharding::Replicated), request)
    };
    let [one, two, four] = [1, 2, 4].map(step);
    // five norms of 64 are whole on each
    let (norms, matrices) = (5 * 64 * 2, 2 * (202_048 - 5 * 64));
    let held = |step: &PostTrained| bytes(step.ledger(), "vllm: weights, bf16");
    assert_eq!([held(&one), held(&two)], [matrices + norms, matrices / 2 + norms]);
    // of two heads of keys and values four ranks have one each, and their matrices with it
    let kv = 2 * 2 * 32 * 64 * 2;
    assert_eq!(held(&four), (matrices - kv) / 4 + kv / 2 + norms);
    // twice the sequences, and half of each; from then on no less of each
    let blocks = |step: &PostTrained| bytes(step.ledger(), "vllm: KV cache blocks");
    assert_eq!([blocks(&two), blocks(&four)], [blocks(&one), 2 * blocks(&one)]);
    assert_eq!([&one, &two].map(|step| step.sequences), [8; 2], "of each rank");
}

#[test]
fn vllm_is_given_the_weights_a_parameter_at_a_time() {
    let with = |sharding, precision, lora| {
        let options = Options { precision, lora, ..on_four(sharding) };
        let vllm = Vllm { sleep_level: Some(2), ..Vllm::default() };
        planned(tiny(), options, PostTraining { engine: Engine::Vllm(vllm), ..short(Algorithm::Grpo) })
    };
    let gathered = |step: &PostTrained| bytes(step.ledger(), "sync_weights: gathered parameters");
    // the largest, in the type that shards are kept in
    let largest = 1000 * 64;
    assert_eq!(gathered(&with(Sharding::FullShard, Precision::Bf16Mixed, None)), largest * 4);
    assert_eq!(gathered(&with(Sharding::Zero3, Precision::Bf16Mixed, None)), largest * 2);
    // adapters are merged with all weights there: in a layer two of 8 × 64 for q and o, one and half a one for k and v, one and
    // one of twice its size for the others
    let lora = Some(Lora { rank: 8, ..Lora::default() });
    let all = WHOLE + 2 * (2 * 2048 + 2 * 1536 + 3 * 3072);
    assert_eq!(gathered(&with(Sharding::Zero3, Precision::Bf16, lora)), all);
    let whole = with(Sharding::Zero2, Precision::Bf16, None);
    assert_eq!(phases(whole.ledger())[0], "rollout", "nothing is gathered");
}

/// Of ranks whose parts are of other parameters the one that needs most is shown; by trying each.
#[test]
fn the_rank_that_needs_most_is_shown() {
    let mut parallel = over_four(Sharding::Zero2);
    parallel.data.zero.reduce_bucket_size = 20_000;
    for dp in [3, 4, 5] {
        let options = Options { parallel: Parallel { dp: Some(dp), ..parallel.clone() }, ..bf16(8) };
        for request in [with_reference(), short(Algorithm::Ppo)] {
            let peak = |rank| {
                let request = PostTraining { rank: Some(rank), ..request.clone() };
                planned(tiny(), options.clone(), request).ledger().peak().bytes
            };
            let each: Vec<_> = (0..dp).map(peak).collect();
            let shown = planned(tiny(), options.clone(), request.clone());
            assert!(shown.ranks_differ, "{dp}");
            assert_eq!(Some(&shown.ledger().peak().bytes), each.iter().max(), "{dp} {each:?}");
        }
    }
}

#[test]
fn groups_are_whole_over_all_ranks() {
    // two of each rank make one group of eight
    let step =
        planned(tiny(), Options { micro_batch_size: 2, ..on_four(Sharding::Replicated) }, with_reference());
    assert_eq!(step.sequences, 2);
    let alone = planned(tiny(), bf16(2), with_reference());
    assert_eq!(alone.sequences, 8);
}

#[test]
fn what_cannot_be_shared_out_is_a_sentence() {
    let said = |options: Options, request: PostTraining| {
        let problem = post_train(architecture(tiny()), options, request, None).unwrap_err();
        problem.to_string().replace("\n  help: ", " | ")
    };
    let vllm = |tensor_parallel_size| {
        let vllm = Vllm { tensor_parallel_size, ..Vllm::default() };
        PostTraining { engine: Engine::Vllm(vllm), ..short(Algorithm::Grpo) }
    };
    let of = |parallel| Options { parallel, ..bf16(8) };
    let lora = Some(Lora::default());
    let lines = [
        said(of(Parallel { pp: 2, ..Parallel::default() }), short(Algorithm::Grpo)),
        said(of(Parallel { cp: 2, ..Parallel::default() }), short(Algorithm::Dpo)),
        said(Options { lora, ..on_four(Sharding::Zero3) }, short(Algorithm::Dpo)),
        said(on_four(Sharding::Replicated), vllm(3)),
        said(of(Parallel { dp: Some(8), ..Parallel::default() }), vllm(8)),
        said(on_four(Sharding::Replicated), vllm(0)),
        said(
            Options { micro_batch_size: 3, ..on_four(Sharding::Replicated) },
            PostTraining { rollout_sequences: Some(3), ..short(Algorithm::Grpo) },
        ),
        said(on_four(Sharding::Zero2), PostTraining { rank: Some(4), ..short(Algorithm::Grpo) }),
    ];
    insta::assert_snapshot!(lines.join("\n"), @"
    `--pp`: post-training is planned over data parallel ranks alone | leave it out, and shard by --fsdp full_shard or --zero 3
    `--cp`: post-training is planned over data parallel ranks alone | leave it out, and shard by --fsdp full_shard or --zero 3
    `--zero`: the reference is the actor without its adapters, whose forward between forward and backward breaks the trace that ZeRO 3 fetches by | add --precompute-ref-log-probs, or use --zero 2
    `--vllm-tensor-parallel-size`: groups of 3 do not divide the 4 ranks | use a divisor of --gpus
    `--vllm-tensor-parallel-size`: 8 ranks do not divide 4 heads | use a divisor of the heads
    `--vllm-tensor-parallel-size`: groups of 0 do not divide the 4 ranks | use a divisor of --gpus
    `--rollout-sequences`: 3 sequences of each rank are no whole number of groups of 8 | use a multiple of 2, or another `--group-size`
    `--rank`: there is no rank 4 of 4 | use 0 to 3
    ");
}
