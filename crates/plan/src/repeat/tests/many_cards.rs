//! On many cards, by every way of sharing a step out.

use super::*;
use crate::options::*;
use crate::parallel::{
    CpComm, DataParallel, FsdpWrap, Parallel, RotateMethod, Schedule, Sharding, Stack, megatron,
};
use crate::torch::Dtype;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Ways of sharing out, each alone and with what changes it.
fn variants() -> Vec<(&'static str, Options)> {
    let mixed = Options { micro_batch_size: 2, seq_len: Some(LENGTH), ..Options::default() };
    let bf16 = Options { precision: Precision::Bf16, ..mixed.clone() };
    let of = |dp, tp| Parallel { dp: Some(dp), tp, ..Parallel::default() };
    let with =
        |parallel: &Parallel, options: &Options| Options { parallel: parallel.clone(), ..options.clone() };
    let several = |options: &Options| Options { gradient_accumulation_steps: 5, ..options.clone() };
    let full = |options: &Options| Options { recompute: Recompute::Full, ..options.clone() };
    let lora = Lora { rank: 4, dropout: 0.1, ..Lora::default() };
    let on_host = Offload { parameters: true, optimizer: true, ..Offload::default() };
    let sharded = |sharding, dp| Parallel { sharding, ..of(dp, 1) };
    let sync = DataParallel { sync_each_batch: true, ..DataParallel::default() };
    let view = DataParallel { ddp_bucket_view: true, ..DataParallel::default() };
    let mut all = Vec::new();
    let tensor = of(1, 2);
    let sequence = Parallel { sp: true, ..tensor.clone() };
    for (name, parallel) in [("tp", &tensor), ("sp", &sequence)] {
        all.extend([(name, with(parallel, &bf16)), (name, with(parallel, &several(&mixed)))]);
        all.push((name, with(parallel, &full(&mixed))));
        all.push((name, Options { recompute: Recompute::Selective, ..with(parallel, &bf16) }));
    }
    all.push(("tp", Options { clip_grad_norm: true, ..with(&tensor, &bf16) }));
    all.push(("tp", with(&Parallel { loss_parallel: true, ..tensor.clone() }, &several(&bf16))));
    let experts = Parallel { ep: 2, ..tensor.clone() };
    all.push(("ep", with(&experts, &bf16)));
    for (sharding, tp) in [(Sharding::FullShard, 1), (Sharding::HybridShard, 2)] {
        let parallel = Parallel { sharding, gpus_per_node: 4, ep: 2, ..of(4, tp) };
        all.extend(
            [&bf16, &mixed, &full(&mixed), &several(&mixed)].map(|options| ("ep", with(&parallel, options))),
        );
        all.push(("ep", Options { clip_grad_norm: true, ..with(&parallel, &bf16) }));
    }
    for sharding in [Sharding::FullShard, Sharding::ShardGradOp, Sharding::HybridShard] {
        let parallel = Parallel { gpus_per_node: 2, ..sharded(sharding, 4) };
        all.extend(
            [&bf16, &mixed, &full(&mixed), &several(&mixed)]
                .map(|options| ("fsdp", with(&parallel, options))),
        );
        let synced = Parallel { data: sync.clone(), ..parallel.clone() };
        all.push(("fsdp", with(&synced, &several(&mixed))));
        all.push(("fsdp", Options { offload: on_host, ..with(&parallel, &mixed) }));
        all.push(("fsdp", Options { offload: on_host, ..with(&parallel, &several(&bf16)) }));
        all.push(("fsdp", Options { lora: Some(lora.clone()), ..with(&parallel, &mixed) }));
        all.push(("fsdp", Options { clip_grad_norm: true, ..with(&parallel, &mixed) }));
        all.push(("fsdp", with(&Parallel { tp: 2, ..parallel }, &mixed)));
    }
    for (rank, cp_rotate) in [(0, RotateMethod::AllGather), (1, RotateMethod::AllToAll)] {
        for sharding in [Sharding::FullShard, Sharding::Replicated] {
            let parallel = Parallel { cp: 2, cp_rotate, rank, ..sharded(sharding, 1) };
            all.extend(
                [&bf16, &full(&mixed), &several(&mixed)].map(|options| ("cp", with(&parallel, options))),
            );
        }
    }
    for wrap in [FsdpWrap::Accelerate113, FsdpWrap::Verl, FsdpWrap::Layers] {
        let data = DataParallel { wrap: Some(wrap), ..DataParallel::default() };
        let parallel = Parallel { data, ..sharded(Sharding::FullShard, 4) };
        all.extend(
            [&bf16, &full(&mixed), &several(&mixed)].map(|options| ("fsdp", with(&parallel, options))),
        );
    }
    let reduced = DataParallel { reduce_dtype: Some(Dtype::F32), ..DataParallel::default() };
    let reduced = Parallel { data: reduced, ..sharded(Sharding::FullShard, 4) };
    all.push(("fsdp", with(&reduced, &several(&bf16))));
    all.push(("fsdp", with(&sharded(Sharding::FullShard, 1), &mixed)));
    for data in [DataParallel::default(), sync, view] {
        let parallel = Parallel { data, ..of(4, 1) };
        all.extend(
            [&bf16, &mixed, &full(&mixed), &several(&mixed)].map(|options| ("ddp", with(&parallel, options))),
        );
        all.push(("ddp", with(&Parallel { tp: 2, ..parallel.clone() }, &bf16)));
        all.push(("ddp", Options { lora: Some(lora.clone()), ..with(&parallel, &bf16) }));
        all.push(("ddp", Options { clip_grad_norm: true, ..with(&parallel, &bf16) }));
    }
    let zero1 = sharded(Sharding::Zero1, 4);
    all.extend(
        [&bf16, &mixed, &full(&mixed), &several(&mixed)].map(|options| ("zero 1", with(&zero1, options))),
    );
    all.push(("zero 1", Options { lora: Some(lora.clone()), ..with(&zero1, &mixed) }));
    let megatron = |parallel: &Parallel| Options {
        stack: Stack::Megatron,
        grad_dtype: Some(Dtype::F32),
        master_weights: Some(Dtype::F32),
        ..with(parallel, &bf16)
    };
    let (whole, split) = (of(2, 1), Parallel { sp: true, ..of(2, 2) });
    for parallel in [&whole, &split, &Parallel { sharding: Sharding::Zero1, ..split.clone() }] {
        let plain = megatron(parallel);
        all.extend([&plain, &full(&plain), &several(&plain)].map(|options| ("megatron", options.clone())));
        all.push(("megatron", Options { recompute: Recompute::Selective, ..plain.clone() }));
        all.push((
            "megatron",
            Options { recompute: Recompute::Every(NonZeroU32::new(2).unwrap()), ..plain.clone() },
        ));
        all.push(("megatron", Options { recompute: Recompute::Layers((0..3).collect()), ..plain }));
    }
    for cp_comm in [CpComm::P2p, CpComm::AllToAll] {
        all.push(("megatron", megatron(&Parallel { cp: 2, cp_comm, ..of(1, 1) })));
    }
    all.push(("megatron", megatron(&Parallel { ep: 2, ..of(2, 1) })));
    let by_rank =
        [Schedule::OneFOneB, Schedule::Gpipe].map(|schedule| (0..3).map(move |rank| (rank, schedule)));
    for (rank, schedule) in by_rank.into_iter().flatten() {
        let parallel = Parallel { pp: 3, schedule, rank, ..of(1, 1) };
        let steps = Options { gradient_accumulation_steps: 9, ..bf16.clone() };
        all.extend([&steps, &full(&steps)].map(|options| ("pp", with(&parallel, options))));
        // the first stage's forward pass ends in a layer, and what was cast for a layer whose inputs are not trained goes with it
        let adapted = Options { lora: Some(lora.clone()), ..mixed.clone() };
        all.extend(
            [&adapted, &several(&adapted), &full(&several(&adapted))].map(|o| ("pp", with(&parallel, o))),
        );
        if schedule == Schedule::OneFOneB {
            all.push(("megatron pp", Options { gradient_accumulation_steps: 9, ..megatron(&parallel) }));
            let zero1 = Parallel { sharding: Sharding::Zero1, dp: Some(2), ..parallel };
            all.push(("megatron pp", Options { gradient_accumulation_steps: 9, ..full(&megatron(&zero1)) }));
        }
    }
    all
}

/// On the first of these, what a layer puts out goes an op later than what the layer before it does where the two are compared;
/// Megatron's layers with latent attention make tables in the first step. All is run.
fn is_known(family: &str, options: &Options) -> bool {
    options.stack == Stack::Megatron && family == "deepseek_v3"
        || ["gpt2", "gpt_neox"].contains(&family) && options.lora.is_some() && options.is_deepspeed()
}

#[test]
fn a_tape_of_few_layers_is_the_whole_one() {
    let (mut wrong, mut met) = (Vec::new(), BTreeMap::new());
    let stages = ["llama", "qwen3_moe", "gpt2"].map(|family| config(family, 24, ""));
    for architecture in architectures().into_iter().chain(stages) {
        let (family, shape) = (architecture.family.model_type, &architecture.shape);
        for (kind, options) in variants() {
            // a stage of few layers runs all of them
            let is_short = options.parallel.pp > 1 && shape.num_hidden_layers != 24;
            let refused = is_short
                || options.check(LENGTH, shape.num_hidden_layers, shape.num_experts).is_err()
                || options.stack == Stack::Megatron
                    && megatron::check(&options, &architecture, LENGTH).is_err();
            if refused {
                continue;
            }
            let Ok(whole) = run_all(&architecture, &options, LENGTH) else { continue };
            *met.entry(kind).or_insert(0) += 1;
            let said = match run_alike(&architecture, &options, LENGTH, FEW).unwrap() {
                Some(few) if few.layers_left_out < 2 => "all run".to_owned(),
                Some(few) => match difference(&architecture, &options, few, whole) {
                    Some(said) => said,
                    None => continue,
                },
                None if is_known(family, &options) => continue,
                None => "not repeated".to_owned(),
            };
            wrong.push(format!("{kind}, {family}: {said} with {options:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {met:?}: {wrong:#?}", wrong.len());
    let least = [
        ("cp", 100),
        ("ddp", 390),
        ("ep", 50),
        ("fsdp", 590),
        ("megatron", 180),
        ("megatron pp", 12),
        ("pp", 90),
        ("sp", 12),
        ("tp", 100),
        ("zero 1", 90),
    ];
    assert_eq!(met.keys().copied().collect::<Vec<_>>(), least.map(|(kind, _)| kind));
    assert!(least.iter().all(|(kind, least)| met[kind] >= *least), "{met:?}");
}

/// What the dispatchers of Megatron's experts keep of a micro-batch goes in the next: micro-batches are alike all the same.
#[test]
fn micro_batches_of_experts_are_alike() {
    for family in ["qwen3_moe", "deepseek_v3"] {
        let architecture = config(family, 4, "");
        for gradient_accumulation_steps in [5, 9] {
            let options = Options {
                seq_len: Some(LENGTH),
                precision: Precision::Bf16,
                grad_dtype: Some(Dtype::F32),
                master_weights: Some(Dtype::F32),
                stack: Stack::Megatron,
                gradient_accumulation_steps,
                ..Options::default()
            };
            let whole = run_all(&architecture, &options, LENGTH).unwrap();
            let alike = Few { layers: false, micro_batches: true };
            let repeated = run_alike(&architecture, &options, LENGTH, alike).unwrap();
            let repeated = repeated.unwrap_or_else(|| panic!("{family}: not repeated"));
            assert_eq!(difference(&architecture, &options, repeated, whole), None, "{family}");
        }
    }
}
