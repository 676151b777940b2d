//! Every class is planned once, and what is said of the worst is so.

use super::*;
use crate::options::{Offload, Precision};
use crate::parallel::Sharding;
use crate::torch::Dtype;
use peakledger_core::Bytes;
use peakledger_input::Source;

/// The first and the last stage hold embedding and head; which is worse is found, each class is planned once, and any
/// rank can be shown in its place.
#[test]
fn the_worst_rank_is_kept_or_the_one_that_is_asked_for() {
    let model = crate::catalogue::open_model("qwen2.5-0.5b").unwrap();
    let architecture = Architecture::read(&model.config).unwrap();
    let parallel = Parallel { gpus: Some(16), pp: 4, ..Parallel::default() };
    let options = Options {
        seq_len: Some(64),
        gradient_accumulation_steps: 4,
        parallel: Parallel { dp: Some(1), gpus: None, ..parallel },
        ..Options::default()
    };
    let planned = AtomicUsize::new(0);
    let look = |plan: &Plan| {
        planned.fetch_add(1, Ordering::Relaxed);
        let peak = plan.device_peak().phase.device_peak;
        (peak, peak)
    };
    let ranks = plan_ranks(&architecture, &options, Shown::Worst, look).unwrap();
    let peaks: Vec<Bytes> = ranks.each.iter().map(|(_, peak)| *peak).collect();
    assert_eq!((planned.into_inner(), peaks.len()), (4, 4));
    let most = *peaks.iter().max().unwrap();
    assert_eq!((peaks[ranks.worst], ranks.shown), (most, ranks.worst));
    assert_eq!(ranks.plan.device_peak().phase.device_peak, most);
    let look = |plan: &Plan| (plan.device_peak().phase.device_peak, ());
    let ranks = plan_ranks(&architecture, &options, Shown::Rank(2), look).unwrap();
    assert_eq!((ranks.shown, ranks.plan.options.parallel.rank), (2, 2));
    assert_eq!(ranks.plan.device_peak().phase.device_peak, peaks[2]);
    let refused = plan_ranks(&architecture, &options, Shown::Rank(4), look).unwrap_err();
    assert!(refused.to_string().contains("there is no rank 4 of 4"));
}

/// Of ranks that need the same, the next amount decides, for the plan that is kept and for the place that is named.
#[test]
fn a_tie_is_decided_alike_everywhere() {
    let model = crate::catalogue::open_model("qwen2.5-0.5b").unwrap();
    let architecture = Architecture::read(&model.config).unwrap();
    let parallel = Parallel { pp: 4, ..Parallel::default() };
    let options =
        Options { seq_len: Some(64), gradient_accumulation_steps: 4, parallel, ..Options::default() };
    let tied = |plan: &Plan| {
        let peak = plan.device_peak().phase.device_peak;
        ((0, peak), peak)
    };
    let ranks = plan_ranks(&architecture, &options, Shown::Worst, tied).unwrap();
    let most = ranks.each.iter().map(|(_, peak)| *peak).max().unwrap();
    assert_ne!(ranks.each[0].1, most);
    assert_eq!((ranks.each[ranks.worst].1, ranks.shown), (most, ranks.worst));
    assert_eq!(ranks.plan.device_peak().phase.device_peak, most);
}

/// Of a model cut into four parts each rank is planned by itself, and is as its class says; the worst is the worst of all,
/// and among those that may need most at the device.
#[test]
fn ranks_with_parts_of_other_parameters_are_told_apart() {
    let config = r#"{"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256,
        "tie_word_embeddings": TIED}"#;
    let device_peak = |plan: &Plan| plan.device_peak().phase.device_peak;
    let (mut told_apart, mut left_out) = (0, [0; 2]);
    for (tied, sharding, dp, bucket, micro_batches) in [
        ("false", Sharding::Zero2, 4, 500_000_000, 1),
        ("false", Sharding::Zero2, 4, 5_000, 2),
        ("true", Sharding::Zero2, 16, 20_000, 1),
        ("false", Sharding::Zero1, 4, 500_000_000, 2),
        ("true", Sharding::Zero1, 16, 5_000, 1),
        ("false", Sharding::FullShard, 3, 1, 2),
        ("true", Sharding::FullShard, 48, 1, 1),
        ("true", Sharding::ShardGradOp, 7, 1, 1),
    ] {
        for (grad_dtype, offload, pp, precision) in [
            (None, false, 1, Precision::Bf16Mixed),
            (Some(Dtype::F32), false, 1, Precision::Bf16Mixed),
            (None, true, 1, Precision::Bf16Mixed),
            (None, true, 1, Precision::Bf16),
            (None, false, 3, Precision::Bf16Mixed),
        ] {
            let is_refused = match sharding {
                Sharding::Zero2 => pp > 1,
                Sharding::Zero1 => grad_dtype.is_some(),
                _ => grad_dtype.is_some() || precision == Precision::Bf16Mixed && pp > 1,
            };
            if is_refused {
                continue;
            }
            let text = config.replace("TIED", if pp > 1 { "false" } else { tied });
            let architecture = Architecture::read(&Source::from_text("config.json", text)).unwrap();
            let mut parallel = Parallel { dp: Some(dp), pp, sharding, ..Parallel::default() };
            if sharding.is_zero() {
                parallel.data.zero.reduce_bucket_size = bucket;
            }
            let options = Options {
                seq_len: Some(64),
                precision,
                gradient_accumulation_steps: micro_batches,
                grad_dtype,
                offload: Offload { optimizer: offload, ..Offload::default() },
                parallel,
                ..Options::default()
            };
            let look = |plan: &Plan| (device_peak(plan), device_peak(plan));
            let ranks = plan_ranks(&architecture, &options, Shown::Worst, look).unwrap();
            told_apart += usize::from(ranks.each.len() > pp as usize);
            let mut most = Bytes::ZERO;
            for rank in 0..dp * pp {
                let parallel = Parallel { rank, ..options.parallel.clone() };
                let alone = crate::plan(architecture.clone(), Options { parallel, ..options.clone() });
                let peak = device_peak(&alone.unwrap());
                let (_, of_class) = ranks.each.iter().find(|(class, _)| class.has(rank)).unwrap();
                assert_eq!(peak, *of_class, "rank {rank} of {options:?}");
                most = most.max(peak);
            }
            assert_eq!(device_peak(&ranks.plan), most);
            let few = classes_that_may_need_most(&architecture, &options).unwrap();
            left_out[usize::from(offload)] += ranks.each.len() - few.len();
            let of_few = plan_classes(&architecture, &options, few, Shown::Worst, look).unwrap();
            assert_eq!(device_peak(&of_few.plan), most, "{options:?}");
        }
    }
    assert!(told_apart > 10 && left_out[0] > 10 && left_out[1] > 10, "{told_apart} {left_out:?}");
}
