//! Under ZeRO 3, whose buckets and queues know nothing of layers.

use super::*;
use crate::catalogue::open_model;
use crate::options::{Lora, Precision, Recompute};
use crate::parallel::{DataParallel, Parallel, Sharding, ZeroSizes};

/// A large model of few layers.
fn large(layers: u32) -> Architecture {
    let mut config: serde_json::Value =
        serde_json::from_str(open_model("llama-3.1-70b").unwrap().config.text()).unwrap();
    config["num_hidden_layers"] = layers.into();
    Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap()
}

fn zero3(dp: u32, zero: ZeroSizes) -> Options {
    let data = DataParallel { zero, ..DataParallel::default() };
    Options {
        precision: Precision::Bf16Mixed,
        seq_len: Some(LENGTH),
        parallel: Parallel { dp: Some(dp), sharding: Sharding::Zero3, data, ..Parallel::default() },
        ..Options::default()
    }
}

/// Sizes of buckets and queues, and whether layers are alike under them: most are.
fn sizes() -> Vec<(ZeroSizes, bool)> {
    let plain = ZeroSizes::default();
    vec![
        (plain, true),
        (ZeroSizes { reduce_bucket_size: 1_000, ..plain }, true),
        (ZeroSizes { reduce_bucket_size: 300_000_000, overlap_comm: Some(true), ..plain }, true),
        (ZeroSizes { prefetch_bucket_size: 0, ..plain }, true),
        (ZeroSizes { prefetch_bucket_size: 1_500_000_000, ..plain }, true),
        (ZeroSizes { max_live_parameters: 400_000_000, ..plain }, true),
        (ZeroSizes { max_live_parameters: 4_000_000_000, ..plain }, true),
        (ZeroSizes { param_persistence_threshold: 10_000_000, ..plain }, true),
        (ZeroSizes { sub_group_size: 1_000_000_000, ..plain }, true),
        (ZeroSizes { reduce_bucket_size: 850_000_000, ..plain }, false),
        (ZeroSizes { reduce_bucket_size: 2_000_000_000, ..plain }, false),
    ]
}

#[test]
fn layers_larger_than_a_bucket_are_alike() {
    let architecture = large(30);
    let mut wrong = Vec::new();
    for (dp, (sizes, are_alike)) in
        [2, 64].into_iter().flat_map(|dp| sizes().into_iter().map(move |it| (dp, it)))
    {
        let plain = zero3(dp, sizes);
        let full = Options { recompute: Recompute::Full, clip_grad_norm: true, ..plain.clone() };
        let several = Options { gradient_accumulation_steps: 6, ..plain.clone() };
        let lora = Options { lora: Some(Lora { rank: 4, ..Lora::default() }), ..plain.clone() };
        for (options, are_alike) in
            [(plain, are_alike), (full, are_alike), (several, are_alike), (lora, false)]
        {
            let few = run_alike(&architecture, &options, LENGTH, FEW).unwrap();
            let left_out = few.as_ref().map(|few| few.layers_left_out);
            let said = match few {
                Some(few) if (few.layers_left_out > 0) == are_alike => difference(
                    &architecture,
                    &options,
                    few,
                    run_all(&architecture, &options, LENGTH).unwrap(),
                ),
                None if !are_alike => None,
                _ => Some(format!("alike {are_alike} was expected")),
            };
            wrong.extend(said.map(|said| format!("{said}, {left_out:?}: {options:?}")));
        }
    }
    assert!(wrong.is_empty(), "{}: {wrong:#?}", wrong.len());
}
