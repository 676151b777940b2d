//! ZeRO as DeepSpeed runs it, on a model small enough to add up: what each figure is made of is said beside it. The rules are
//! those of `deepspeed/runtime/zero/stage_1_and_2.py` (0.19); `deepspeed.rs` holds whole steps against DeepSpeed itself.

use peakledger_core::{Bytes, Category, Phase};
use peakledger_input::Source;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::parallel::{DataParallel, Parallel, Sharding, ZeroSizes};
use peakledger_plan::{Costs, Dtype, Plan, PlannedPhase, Step, plan};

const HIDDEN: u64 = 256;
const VOCABULARY: u64 = 1024;
/// Four square projections, three of the MLP and two norms, in two layers; embedding, head and the last norm.
const NUMBERS: u64 =
    2 * (4 * HIDDEN * HIDDEN + 3 * 512 * HIDDEN + 2 * HIDDEN) + 2 * VOCABULARY * HIDDEN + HIDDEN;
/// A quarter of them, to a multiple of 2.
const PART: u64 = NUMBERS.div_ceil(8) * 2;
/// Two rotary tables of a block each.
const TABLES: u64 = 1024;
/// The norm of all gradients, which the engine is asked for after a step: a scalar.
const NORM: u64 = 512;

fn planned(sharding: Sharding, zero: ZeroSizes, options: Options) -> Plan {
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": {HIDDEN}, "intermediate_size": 512, "num_hidden_layers": 2,
            "num_attention_heads": 8, "vocab_size": {VOCABULARY}, "tie_word_embeddings": false}}"#
    );
    let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
    let data = DataParallel { zero, ..DataParallel::default() };
    let parallel = Parallel { dp: Some(4), sharding, data, ..Parallel::default() };
    let plan = plan(architecture, Options { seq_len: Some(64), parallel, ..options }).unwrap();
    assert_eq!(plan.parameters, NUMBERS);
    plan
}

fn bucket(reduce_bucket_size: u64) -> ZeroSizes {
    ZeroSizes { reduce_bucket_size, ..ZeroSizes::default() }
}

fn phase(plan: &Plan, phase: Phase) -> &PlannedPhase {
    plan.steady.phases.iter().find(|planned| planned.phase == phase).unwrap()
}

fn held(plan: &Plan, of: Phase, category: Category) -> u64 {
    phase(plan, of).by_category.get(category).get()
}

/// To whole blocks.
fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(512) * 512
}

/// Numbers of the parameters that rank 0 has some of: the embedding and what follows it, up to a quarter of all.
fn touching() -> u64 {
    let in_order = [VOCABULARY * HIDDEN].into_iter().chain([HIDDEN * HIDDEN; 4]).chain([512 * HIDDEN; 3]);
    let mut before = 0;
    let touching = in_order.take_while(|numbers| {
        let touches = before < PART;
        before += numbers;
        touches
    });
    touching.sum()
}

#[test]
fn between_steps_a_rank_has_all_parameters_and_its_part_of_the_rest() {
    for sharding in [Sharding::Zero1, Sharding::Zero2] {
        let plan = planned(sharding, bucket(200_000), Options::default());
        let flat = blocks(2 * 4 * PART);
        assert_eq!(held(&plan, Phase::ZeroGrad, Category::Parameter), flat + TABLES);
        assert_eq!(held(&plan, Phase::ZeroGrad, Category::MasterWeight), blocks(4 * PART));
        assert_eq!(held(&plan, Phase::ZeroGrad, Category::OptimizerState), 2 * blocks(4 * PART));
        assert_eq!(held(&plan, Phase::ZeroGrad, Category::Gradient), NORM);
        assert_eq!(held(&plan, Phase::Forward, Category::CommunicationBuffer), 0);
        // what touches the part, the part of it in one piece, and that in fp32 (with the square root of foreach it is less)
        let gradients = blocks(2 * touching()) + blocks(2 * PART) + blocks(4 * PART);
        // and the norm of this step beside that of the one before
        assert_eq!(held(&plan, Phase::Update, Category::Gradient), gradients + 2 * NORM);
    }
}

#[test]
fn parameters_and_the_flat_buffer_are_both_there_once_at_the_start() {
    for sharding in [Sharding::Zero1, Sharding::Zero2] {
        let plan = planned(sharding, bucket(200_000), Options::default());
        let flat = blocks(2 * 4 * PART);
        let at_load = |plan: &Plan, step: Step| {
            let load = plan.step(step).phases.iter().find(|planned| planned.phase == Phase::Load);
            load.unwrap().by_category.get(Category::Parameter).get()
        };
        assert_eq!(at_load(&plan, Step::First), blocks(2 * NUMBERS) + flat + TABLES);
        assert_eq!(at_load(&plan, Step::Steady), flat + TABLES);
        assert_eq!(phase(&plan, Phase::Load).peak, phase(&plan, Phase::Load).end);
    }
}

#[test]
fn without_room_for_both_the_flat_buffer_is_made_on_the_host() {
    let flat = blocks(2 * 4 * PART);
    let parameters = blocks(2 * NUMBERS) + TABLES;
    let communicator = 688 << 20;
    let with = |device_memory: u64| {
        let options = Options { device_memory: Some(Bytes::new(device_memory)), ..Options::default() };
        planned(Sharding::Zero2, bucket(200_000), options)
    };
    let load = |plan: &Plan| {
        let load = plan.first.phases.iter().find(|planned| planned.phase == Phase::Load).unwrap();
        [load.peak.get(), load.host_peak.get()]
    };
    // the buffer's numbers, which are no whole blocks
    let enough = with(communicator + parameters + 2 * 4 * PART);
    assert_eq!(load(&enough), [parameters + flat, 0]);
    let less = with(communicator + parameters + 2 * 4 * PART - 1);
    // first the parameters are on the card, then the buffer and the part in fp32; on the host they are beside the buffer
    let then = flat + TABLES + blocks(4 * PART);
    assert_eq!(load(&less), [parameters.max(then), 2 * NUMBERS + 2 * 4 * PART]);
    let peaks = |plan: &Plan| plan.steady.phases.iter().map(|phase| phase.device_peak).collect::<Vec<_>>();
    assert_eq!(peaks(&less), peaks(&enough));
    let sent = |plan: &Plan| plan.first.costs().host;
    assert_eq!(sent(&less).to_host - sent(&enough).to_host, u128::from(2 * NUMBERS));
    assert_eq!(sent(&less).from_host - sent(&enough).from_host, u128::from(2 * 4 * PART));
}

#[test]
fn stage_2_keeps_gradients_of_what_touches_its_part() {
    let plan = planned(Sharding::Zero2, bucket(200_000), Options::default());
    let end = phase(&plan, Phase::Backward).end.get();
    let rest = phase(&plan, Phase::ZeroGrad).end.get();
    assert_eq!(end - rest, blocks(2 * touching()) + 512, "and the loss");
}

#[test]
fn stage_1_keeps_all_gradients_until_the_last_backward_has_ended() {
    let two = Options { gradient_accumulation_steps: 2, ..Options::default() };
    let [one, two] =
        [Sharding::Zero1, Sharding::Zero2].map(|stage| planned(stage, bucket(200_000), two.clone()));
    let second = |plan: &Plan| {
        let forward = plan.steady.phases.iter().filter(|planned| planned.phase == Phase::Forward);
        let held = forward.map(|planned| planned.by_category.get(Category::Gradient).get());
        held.collect::<Vec<_>>().pop().unwrap()
    };
    assert!(second(&one) >= 2 * NUMBERS, "whole gradients between micro-batches");
    assert!(second(&two) < NUMBERS, "those of a part");
}

#[test]
fn a_bucket_is_there_in_backward_whatever_fills_it() {
    let buffers = |zero| {
        let plan = planned(Sharding::Zero2, zero, Options::default());
        held(&plan, Phase::Backward, Category::CommunicationBuffer)
    };
    let whole = 500_000_000 * 2;
    assert!(buffers(ZeroSizes::default()) >= whole, "1 GB of half numbers");
    let overlapped = ZeroSizes { overlap_comm: Some(true), ..ZeroSizes::default() };
    assert!(buffers(overlapped) >= 2 * whole, "one is filled while another is reduced");
}

#[test]
fn an_optimizer_on_the_host_leaves_room_for_one_gradient_on_the_card() {
    let offload = Offload { optimizer: true, ..Offload::default() };
    let plan = planned(Sharding::Zero2, bucket(200_000), Options { offload, ..Options::default() });
    for of in [Phase::Load, Phase::ZeroGrad] {
        assert_eq!(held(&plan, of.clone(), Category::MasterWeight), 0, "{of}");
        assert_eq!(held(&plan, of.clone(), Category::OptimizerState), 0, "{of}");
        assert_eq!(held(&plan, of, Category::CommunicationBuffer), 2 * VOCABULARY * HIDDEN);
    }
    // master weights, gradient, two moments and their step count; the part in half numbers; the largest gradient
    let on_host = 4 * blocks(4 * PART) + 512 + blocks(2 * PART) + 2 * VOCABULARY * HIDDEN;
    assert_eq!(phase(&plan, Phase::ZeroGrad).host_peak.get(), on_host);
    let host = plan.steady.phases.iter().map(|phase| phase.costs).sum::<Costs>().host;
    assert_eq!(host.to_host, u128::from(4 * PART), "its gradient in fp32");
    assert_eq!(host.from_host, u128::from(2 * PART), "its parameters in half numbers");
}

#[test]
fn what_ranks_send() {
    let plan = planned(Sharding::Zero2, bucket(200_000), Options::default());
    let sent = plan.steady.phases.iter().map(|phase| phase.costs).sum::<Costs>().communicated();
    // all gradients are summed (each byte goes out 2 × 3/4 times), all parameters gathered (3/4 times)
    let all = u128::from(2 * NUMBERS);
    let least = all * 9 / 4;
    assert!((least..least + 64).contains(&sent), "{sent} for {least}");
}

#[test]
fn gradients_summed_in_fp32_lie_in_the_part() {
    let options =
        Options { grad_dtype: Some(Dtype::F32), gradient_accumulation_steps: 3, ..Options::default() };
    let plan = planned(Sharding::Zero2, bucket(200_000), options);
    let forward = plan.steady.phases.iter().filter(|planned| planned.phase == Phase::Forward);
    let between: Vec<u64> =
        forward.map(|planned| planned.by_category.get(Category::Gradient).get()).collect();
    assert_eq!(between, [NORM, blocks(4 * PART) + NORM, blocks(4 * PART) + NORM]);
}

/// Numbers of a rank's part of every parameter, all of which four ranks share out evenly.
const THIRD_STAGE_PART: u64 = NUMBERS / 4;
/// Five norms, below the threshold.
const NORMS: u64 = 5 * HIDDEN;

#[test]
fn stage_3_has_its_part_of_everything_and_whole_norms() {
    let sizes =
        ZeroSizes { reduce_bucket_size: 200_000, param_persistence_threshold: 1000, ..ZeroSizes::default() };
    let plan = planned(Sharding::Zero3, sizes, Options::default());
    let of = |category| held(&plan, Phase::ZeroGrad, category);
    assert_eq!(of(Category::Parameter), blocks(2 * THIRD_STAGE_PART) + 2 * NORMS + TABLES);
    assert_eq!(of(Category::MasterWeight), blocks(4 * THIRD_STAGE_PART));
    assert_eq!(of(Category::OptimizerState), 2 * blocks(4 * THIRD_STAGE_PART));
    let kept = blocks(2 * THIRD_STAGE_PART) + NORM + 512;
    assert_eq!(of(Category::Gradient), kept, "the parts stay, and whether something was not finite");
    assert_eq!(of(Category::CommunicationBuffer), blocks(2 * 200_000), "the bucket stays");
}

#[test]
fn stage_3_fetches_ahead_until_so_many_parameters_are_there() {
    let whole = |max_live_parameters| {
        let sizes = ZeroSizes {
            max_live_parameters,
            param_persistence_threshold: 1000,
            prefetch_bucket_size: 1000,
            ..ZeroSizes::default()
        };
        let plan = planned(
            Sharding::Zero3,
            sizes,
            Options { precision: Precision::Bf16Mixed, ..Options::default() },
        );
        let ledger = plan.ledger(peakledger_plan::Step::Steady).unwrap();
        let gathered = ledger.states().iter().filter(|state| state.name.ends_with(".gathered"));
        gathered.map(|state| state.bytes.get()).max().unwrap()
    };
    assert_eq!(whole(1), 2 * VOCABULARY * HIDDEN, "each comes, the largest too");
    let end_of_forward = |max_live_parameters| {
        let sizes =
            ZeroSizes { max_live_parameters, param_persistence_threshold: 1000, ..ZeroSizes::default() };
        phase(&planned(Sharding::Zero3, sizes, Options::default()), Phase::Forward).end.get()
    };
    // backward is near, so nothing goes in between, whatever there is room for
    assert_eq!(end_of_forward(1), end_of_forward(1_000_000_000));
}

#[test]
fn stage_3_steps_a_sub_group_after_the_other() {
    let update = |sub_group_size| {
        let sizes = ZeroSizes { reduce_bucket_size: 1000, sub_group_size, ..ZeroSizes::default() };
        let plan = planned(Sharding::Zero3, sizes, Options::default());
        let states = plan.ledger(peakledger_plan::Step::Steady).unwrap();
        let masters =
            states.states().iter().filter(|state| state.name.contains("master weights of a sub-group"));
        (phase(&plan, Phase::Update).peak.get(), masters.count())
    };
    let ((all, one), (by_groups, several)) = (update(1_000_000_000), update(100_000));
    assert_eq!(one, 1);
    assert!(several > 3, "{several}");
    assert!(by_groups < all, "{by_groups} {all}");
}

#[test]
fn stage_3_offloaded_leaves_the_bucket_and_norms() {
    let offload = Offload { parameters: true, ..Offload::default() };
    let sizes =
        ZeroSizes { reduce_bucket_size: 200_000, param_persistence_threshold: 1000, ..ZeroSizes::default() };
    let plan = planned(Sharding::Zero3, sizes, Options { offload, ..Options::default() });
    let rest = phase(&plan, Phase::ZeroGrad);
    assert_eq!(rest.end.get(), blocks(2 * 200_000) + 2 * NORMS + TABLES);
    // parameters and gradients in half numbers; master weights, gradient and two moments in fp32, with a step count; whether
    // something was not finite
    assert_eq!(
        rest.host_peak.get(),
        2 * blocks(2 * THIRD_STAGE_PART) + 4 * blocks(4 * THIRD_STAGE_PART) + 2 * 512
    );
}
