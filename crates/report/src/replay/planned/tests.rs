//! What is reserved for plans: bounds, tight cards, the quick word against the whole replay, and segments by pencil.

use super::*;
use crate::replay::script::Ask;
use peakledger_allocator::{Allocator, Request};
use peakledger_core::block::MIB;
use peakledger_input::Source;
use peakledger_plan::catalogue::{card, open_model};
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Attention, HoldOutputs, OptimizerKind, Options, Precision, Recompute};
use peakledger_plan::parallel::{Parallel, Schedule, Sharding};
use peakledger_plan::{Stream, plan, try_out};

fn planned() -> Plan {
    let architecture = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
    plan(architecture, Options { seq_len: Some(512), ..Options::default() }).unwrap()
}

#[test]
fn reserves_at_least_what_is_planned() {
    let plan = planned();
    let reservation = Reservation::of(&plan, Settings::default(), None, None).unwrap();
    let device_peak = plan.device_peak().phase.device_peak.get();
    assert!(device_peak <= reservation.allocated);
    assert!(reservation.allocated <= reservation.reserved().get());
    assert_eq!(reservation.reserved().get() % (2 * MIB), 0);
    let most = reservation.over_time.iter().map(|(.., bytes)| *bytes).max();
    assert_eq!(most, Some(reservation.reserved().get()));
    let moments = |step| plan.ledger(step).unwrap().timeline().moments();
    assert!(reservation.over_time.iter().all(|(step, moment, _)| moment.index() < moments(*step)));
    let first = Reservation::of(&plan, Settings::default(), None, Some(Step::First)).unwrap();
    assert!(first.reserved() <= reservation.reserved());
}

#[test]
fn a_card_that_is_too_small_runs_out_and_one_that_is_tight_gives_back() {
    let plan = planned();
    let free = Reservation::of(&plan, Settings::default(), None, None).unwrap();
    let mut card = card("80GiB").unwrap();
    let outside = plan.outside(Some(&card)).get();
    let on = |card: &Card| Reservation::of(&plan, Settings::default(), Some(card), None).unwrap();
    let exactly = free.reserved().get() + outside;
    card.total = Bytes::new(exactly);
    let fits = on(&card);
    assert_eq!((fits.verdict(&plan, &card).headroom(), fits.retries, fits.oom.is_none()), (0, 0, true));
    card.total = Bytes::new(exactly - 2 * MIB);
    let tight = on(&card);
    assert!(tight.oom.is_none() && tight.retries > 0, "cached blocks make room: {tight:?}");
    assert!(tight.verdict(&plan, &card).fits());
    card.total = Bytes::new(plan.device_peak().phase.device_peak.get() + outside - 1);
    let short = on(&card);
    assert!(!short.verdict(&plan, &card).fits());
    assert_eq!(short.reserved(), free.reserved());
    let oom = short.oom.unwrap();
    assert!(oom.oom.segment > oom.oom.unused.unwrap());
    assert!(oom.phase(&plan).is_some());
}

/// What is said of a plan with nothing kept of its replay is what the whole replay says, on cards where it has room to
/// spare, gives back what is cached, and runs out; and nothing is said of it exactly where that takes more than it may.
#[test]
fn a_quick_word_is_that_of_the_whole_replay() {
    let config = r#"{"model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 8, "num_attention_heads": 8, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;
    let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
    let schedules = [Schedule::OneFOneB, Schedule::Gpipe, Schedule::ZbH1, Schedule::ZbH2, Schedule::DualPipe];
    let pipelines = schedules.into_iter().map(|schedule| Options {
        gradient_accumulation_steps: 12,
        parallel: Parallel { pp: 4, rank: 1, schedule, ..Parallel::default() },
        ..Options::default()
    });
    let parallel =
        Parallel { pp: 2, schedule: Schedule::Interleaved, virtual_stages: 2, ..Parallel::default() };
    let interleaved = Options { gradient_accumulation_steps: 8, parallel, ..Options::default() };
    let held =
        Options { hold_outputs: HoldOutputs::Step, gradient_accumulation_steps: 4, ..Options::default() };
    let sharded = Parallel { dp: Some(8), sharding: Sharding::FullShard, ..Parallel::default() };
    let sharded =
        Options { parallel: sharded, recompute: Recompute::Full, clip_grad_norm: true, ..Options::default() };
    let parts = Parallel { dp: Some(4), rank: 3, sharding: Sharding::Zero2, ..Parallel::default() };
    let parts = Options { parallel: parts, gradient_accumulation_steps: 3, ..Options::default() };
    let (mut given_back, mut ran_out) = (0, 0);
    for options in pipelines.chain([interleaved, held, sharded, parts]) {
        let options = Options { seq_len: Some(384), precision: Precision::Bf16, ..options };
        let plan = plan(architecture.clone(), options).unwrap();
        for settings in ["", "expandable_segments:True", "max_split_size_mb:24", MOST_SETTINGS] {
            let settings: Settings = settings.parse().unwrap();
            let free = Reservation::of(&plan, settings, None, None).unwrap();
            let mut card = card("80GiB").unwrap();
            let outside = plan.outside(Some(&card)).get();
            let (least, most) = (plan.device_peak().phase.device_peak.get(), free.reserved().get());
            for room in [2 * most, most, most - 2 * MIB, least + 2 * MIB, least - MIB] {
                card.total = Bytes::new(room + outside);
                let whole = Reservation::of(&plan, settings, Some(&card), None).unwrap();
                let fits = Reservation::fits(&plan, settings, &card);
                let Fits { verdict, retries, is_of_whole } = fits;
                assert!(is_of_whole && whole.is_of_whole(&plan));
                assert_eq!(verdict.capacity, whole.verdict(&plan, &card).capacity);
                assert_eq!(verdict.fits(), whole.oom.is_none());
                given_back += u32::from(whole.retries > 0 && verdict.fits());
                if whole.oom.is_some() {
                    ran_out += 1;
                    continue;
                }
                assert_eq!((verdict, retries), (whole.verdict(&plan, &card), whole.retries));
                let within = |most: u64| Reservation::fits_within(&plan, settings, &card, Bytes::new(most));
                assert_eq!(within(verdict.needed.get()), Some(fits));
                assert_eq!(within(verdict.needed.get() - 1), None);
                assert_eq!(within(0), None);
            }
        }
    }
    assert!(given_back > 10 && ran_out > 10, "{given_back} {ran_out}");
}

/// Few micro-batches that run out before the last of them begins run out as the whole step does. Where they run out later, or do
/// not, that is not known: outputs that are held are made beside others by turns, and the whole step may find other blocks free.
#[test]
fn what_few_micro_batches_say_of_all() {
    let config = r#"{"model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;
    let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
    let settings: Settings = "expandable_segments:True".parse().unwrap();
    let large = card("80GiB").unwrap();
    let held = Options {
        seq_len: Some(777),
        micro_batch_size: 3,
        gradient_accumulation_steps: 8,
        precision: Precision::Bf16,
        optimizer: OptimizerKind::AdamW8bit,
        attention: Attention::Eager,
        hold_outputs: HoldOutputs::Step,
        ..Options::default()
    };
    let sharded = Parallel { dp: Some(4), sharding: Sharding::FullShard, ..Parallel::default() };
    let (mut sure, mut wrong) = (0, 0);
    for options in [
        held.clone(),
        Options { parallel: sharded, optimizer: OptimizerKind::AdamW, ..held.clone() },
        Options { hold_outputs: HoldOutputs::No, optimizer: OptimizerKind::Sgd, ..held },
    ] {
        let whole = plan(architecture.clone(), options.clone()).unwrap();
        let look = |few: &Plan| {
            let (least, most) = (Verdict::of(few, &large, None), Reservation::fits(few, settings, &large));
            assert!(most.verdict.fits() && !most.is_of_whole);
            for total in (least.needed.get()..most.verdict.needed.get()).step_by(4 << 20) {
                let card = Card { total: Bytes::new(total - 200 * MIB), ..large.clone() };
                let [of_few, of_all] = [few, &whole].map(|plan| Reservation::fits(plan, settings, &card));
                if of_few.is_of_whole {
                    sure += 1;
                    assert!(!of_few.verdict.fits() && !of_all.verdict.fits(), "{card:?}");
                }
                let card = Card { total: Bytes::new(total), ..large.clone() };
                let [of_few, of_all] = [few, &whole].map(|plan| Reservation::fits(plan, settings, &card));
                assert!(of_all.is_of_whole);
                if !of_few.verdict.fits() && of_all.verdict.fits() {
                    wrong += 1;
                    assert!(!of_few.is_of_whole, "{card:?}");
                }
            }
            least
        };
        try_out(&architecture, options, &large, look).unwrap();
    }
    assert!(sure > 10 && wrong > 3, "{sure} {wrong}");
}

const MOST_SETTINGS: &str =
    "roundup_power2_divisions:4,garbage_collection_threshold:0.6,per_process_memory_fraction:0.9";

/// A stream's blocks are its own, so a plan reserves what its streams reserve one by one.
fn reserved_by_stream(plan: &Plan) -> Vec<(u64, u64)> {
    let asks: Vec<Ask> = Asked::of(plan, &[Step::First, Step::Steady]).asks().map(|(_, ask)| ask).collect();
    let request = |ask: &Ask| match ask {
        Ask::Alloc(request) => Some(*request),
        _ => None,
    };
    let all: Vec<Request> = asks.iter().filter_map(request).collect();
    let streams: std::collections::BTreeSet<u64> = all.iter().map(|request| request.stream.0).collect();
    let reserved = |stream: u64| {
        let mut alone = Allocator::new(Settings::default(), Device::unlimited());
        let (mut next, mut live) = (0, std::collections::BTreeMap::new());
        for ask in &asks {
            match ask {
                Ask::Alloc(request) => {
                    if request.stream.0 == stream {
                        live.insert(next, alone.alloc(Request::of(request.bytes)).unwrap());
                    }
                    next += 1;
                }
                Ask::FreeCompleted(block) => live.remove(block).into_iter().for_each(|it| alone.free(it)),
                other => panic!("{other:?}"),
            }
        }
        alone.totals().reserved
    };
    streams.into_iter().map(|stream| (stream, reserved(stream))).collect()
}

fn of_three_layers() -> Architecture {
    let config = r#"{"model_type": "llama", "vocab_size": 16384, "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": false,
        "max_position_embeddings": 4096}"#;
    Architecture::read(&Source::from_text("config.json", config)).unwrap()
}

/// By pencil, in bf16 over 8 ranks. A layer has 16 Mi numbers and its two norms: 32 MiB and 4 KiB gathered. Embedding, head
/// and norm are 64 MiB and 2 KiB. In forward what was gathered last stays until the next has come: the root's, in a
/// segment of 66 MiB, and the first layer's, in one of 34; the second layer takes the root's place, the third the first
/// layer's. In backward one comes at a time. Reduced gradients stay until the step has ended: three layers of 4 MiB and
/// 512 B fill a first segment of 20 MiB so far that 8 MiB and 512 B of the root's need another.
#[test]
fn what_fsdp2_gathers_and_reduces_has_segments_of_its_own() {
    let architecture = of_three_layers();
    let parallel = Parallel { dp: Some(8), sharding: Sharding::FullShard, ..Parallel::default() };
    let options = Options { precision: Precision::Bf16, seq_len: Some(256), parallel, ..Options::default() };
    let plan = plan(architecture, options).unwrap();
    let reserved = reserved_by_stream(&plan);
    let of = |stream: Stream| {
        reserved.iter().find(|(number, _)| *number == u64::from(stream.number())).map(|(_, bytes)| *bytes)
    };
    assert_eq!(of(Stream::AllGather), Some((66 + 34) * MIB));
    assert_eq!(of(Stream::Reduce), Some((20 + 20) * MIB));
    assert_eq!(reserved.len(), 3, "and the model's own");
    let all: u64 = reserved.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(Reservation::of(&plan, Settings::default(), None, None).unwrap().reserved().get(), all);
}

/// A card without room for both: DeepSpeed moves the parameters to the host and empties the cache, where the segment of the
/// rotary tables stays, before the flat buffer comes in one piece: three layers of 16 Mi numbers, 32 Mi of embedding and
/// head, and seven norms, in bf16.
#[test]
fn what_waits_on_the_host_while_it_is_flattened_leaves_nothing_cached() {
    let architecture = of_three_layers();
    let parallel = Parallel { dp: Some(8), sharding: Sharding::Zero2, ..Parallel::default() };
    let device_memory = Some(Bytes::new(900 * MIB)); // 688 of them the communicator's
    let options = Options { seq_len: Some(256), parallel, device_memory, ..Options::default() };
    let plan = plan(architecture, options).unwrap();
    let reservation = Reservation::of(&plan, Settings::default(), None, Some(Step::First)).unwrap();
    let reserved: Vec<u64> = reservation.over_time.iter().map(|(.., bytes)| *bytes).collect();
    let falls = reserved.windows(2).position(|pair| pair[1] < pair[0]).unwrap();
    assert_eq!(reserved[falls + 1..falls + 3], [2 * MIB, 2 * MIB + (3 * 32 + 64 + 2) * MIB]);
}
