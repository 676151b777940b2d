//! Micro-batches alone, by every option that has to do with them.

use super::*;
use crate::catalogue::open_model;
use crate::options::*;
use crate::parallel::{DataParallel, Parallel, Schedule, Sharding, Stack, ZeroSizes};
use crate::repeat::{Rounds, shares_within_passes};
use crate::step::hopes_for_layers;
use crate::torch::Dtype;
use std::collections::BTreeMap;

fn architectures() -> Vec<Architecture> {
    let config = |family: &str| {
        let text = format!(
            r#"{{"model_type": "{family}", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}}"#
        );
        Architecture::read(&Source::from_text("config.json", text)).unwrap()
    };
    let mut all: Vec<Architecture> = ["llama", "qwen3", "gemma2", "olmo2", "mixtral"].map(config).into();
    all.push(Architecture::read(&open_model("gpt2").unwrap().config).unwrap());
    all
}

/// Every option that has to do with micro-batches, alone.
fn variants() -> Vec<Options> {
    let plain = Options { micro_batch_size: 2, seq_len: Some(20), ..Options::default() };
    let lora = Lora { rank: 4, dropout: 0.1, ..Lora::default() };
    let offload = |activations, optimizer, parameters| Offload { activations, optimizer, parameters };
    vec![
        plain.clone(),
        Options { hold_outputs: HoldOutputs::Step, ..plain.clone() },
        Options { hold_outputs: HoldOutputs::Backward, loss_in_model: true, ..plain.clone() },
        Options { recompute: Recompute::Full, padded: true, clip_grad_norm: true, ..plain.clone() },
        Options { recompute: Recompute::Selective, attention: Attention::Eager, ..plain.clone() },
        Options { precision: Precision::Fp16Mixed, grad_scaler: true, ..plain.clone() },
        Options { precision: Precision::Bf16, optimizer_impl: Some(OptimizerImpl::Fused), ..plain.clone() },
        Options { lora: Some(lora.clone()), quantize: Some(Quantize::Nf4), ..plain.clone() },
        Options {
            lora: Some(lora),
            recompute: Recompute::Full,
            hold_outputs: HoldOutputs::Step,
            ..plain.clone()
        },
        Options { offload: offload(true, false, false), offload_prefetch: 1, ..plain.clone() },
        Options { offload: offload(false, true, false), ..plain.clone() },
        Options { offload: offload(true, false, true), offload_prefetch: 0, ..plain.clone() },
        Options { fused_loss: true, precision: Precision::Bf16, ..plain.clone() },
        Options {
            grad_dtype: Some(Dtype::F32),
            master_weights: Some(Dtype::F32),
            precision: Precision::Bf16,
            ..plain
        },
    ]
}

/// The tape is the one that running all micro-batches leaves, to the byte.
#[test]
fn a_repeated_tape_is_the_whole_one() {
    for architecture in architectures() {
        let family = architecture.family.model_type;
        // what is packed are the weights of `nn.Linear`
        let planned =
            |options: &Options| !["gpt2", "mixtral"].contains(&family) || options.quantize.is_none();
        for options in variants().into_iter().filter(planned) {
            for gradient_accumulation_steps in [4, 9] {
                let options = Options { gradient_accumulation_steps, ..options.clone() };
                let whole = run_all(&architecture, &options, LENGTH).unwrap();
                let alike = Few { layers: false, micro_batches: true };
                let repeated = run_alike(&architecture, &options, LENGTH, alike).unwrap();
                let repeated = repeated.unwrap_or_else(|| panic!("not repeated: {options:?}"));
                let said = difference(&architecture, &options, repeated, whole);
                assert_eq!(said, None, "{family}: {options:?}");
            }
        }
    }
}

/// What DeepSpeed's ranks share, by buckets of every size, on the card and on the host: what has come in a backward has gone
/// when it ends, so the next one is like it.
fn in_buckets() -> Vec<Options> {
    let plain = Options {
        precision: Precision::Bf16Mixed,
        seq_len: Some(LENGTH),
        gradient_accumulation_steps: 7,
        ..Options::default()
    };
    let mut all = Vec::new();
    for sharding in [Sharding::Zero1, Sharding::Zero2, Sharding::Zero3] {
        for (reduce_bucket_size, overlap_comm) in [(1_000, false), (7_000, true), (500_000_000, false)] {
            for (dp, rank) in [(2, 1), (5, 2)] {
                let zero = ZeroSizes { reduce_bucket_size, ..ZeroSizes::default() };
                let mut data = DataParallel { zero, ..DataParallel::default() };
                data.zero.overlap_comm = Some(overlap_comm);
                let parallel = Parallel { dp: Some(dp), rank, sharding, data, ..Parallel::default() };
                let shared = Options { parallel, ..plain.clone() };
                let on_host = Offload { optimizer: true, ..Offload::default() };
                let lora = Some(Lora { rank: 4, ..Lora::default() });
                all.push(Options { recompute: Recompute::Full, clip_grad_norm: true, ..shared.clone() });
                all.push(Options { lora, hold_outputs: HoldOutputs::Step, ..shared.clone() });
                all.push(Options { offload: on_host, ..shared.clone() });
                if sharding == Sharding::Zero3 {
                    let on_host = Offload { parameters: true, ..on_host };
                    all.push(Options { offload: on_host, ..shared.clone() });
                } else {
                    all.push(Options { grad_dtype: Some(Dtype::F32), ..shared.clone() });
                }
                all.push(shared);
            }
        }
    }
    all
}

#[test]
fn micro_batches_that_go_through_buckets_are_alike() {
    let alike = Few { layers: false, micro_batches: true };
    for architecture in ["llama", "mixtral"].map(|family| config(family, 3, "")) {
        for options in in_buckets() {
            let whole = run_all(&architecture, &options, LENGTH).unwrap();
            let few = run_alike(&architecture, &options, LENGTH, alike).unwrap();
            let few = few.unwrap_or_else(|| panic!("not repeated: {options:?}"));
            assert!(!few.folded.is_whole(), "all run: {options:?}");
            assert_eq!(difference(&architecture, &options, few, whole), None, "{options:?}");
        }
    }
}

/// Stages of every length of warm-up, through both stacks and all schedules.
fn stages() -> Vec<Options> {
    let bf16 = Options { precision: Precision::Bf16, seq_len: Some(LENGTH), ..Options::default() };
    let mut all = Vec::new();
    for (pp, rank) in (2..5).flat_map(|pp| (0..pp).map(move |rank| (pp, rank))) {
        let stage = |schedule| Parallel { pp, rank, schedule, ..Parallel::default() };
        let of = |schedule, options: &Options| Options { parallel: stage(schedule), ..options.clone() };
        let plain = of(Schedule::OneFOneB, &bf16);
        let full = |options: &Options| Options { recompute: Recompute::Full, ..options.clone() };
        all.extend([of(Schedule::Gpipe, &bf16), full(&plain), full(&on_megatron(&plain))]);
        all.extend([&plain, &on_megatron(&plain)].map(|options| shared(options, Sharding::Zero1)));
        all.extend(others(&plain));
        let shardings =
            [Sharding::Replicated, Sharding::FullShard, Sharding::ShardGradOp, Sharding::HybridShard];
        for sharding in shardings {
            let mut one = shared(&plain, sharding);
            one.parallel.gpus_per_node = 1; // a group of ranks that shard on each
            let in_rows = Parallel { schedule: Schedule::Gpipe, ..one.parallel.clone() };
            all.extend([full(&one), Options { parallel: in_rows, ..one.clone() }, one]);
        }
        all.extend([on_megatron(&plain), plain]);
    }
    all
}

fn on_megatron(options: &Options) -> Options {
    Options {
        stack: Stack::Megatron,
        grad_dtype: Some(Dtype::F32),
        master_weights: Some(Dtype::F32),
        ..options.clone()
    }
}

/// The same rank of two that share it out.
fn shared(options: &Options, sharding: Sharding) -> Options {
    let rank = options.parallel.rank * 2;
    Options {
        parallel: Parallel { dp: Some(2), rank, sharding, ..options.parallel.clone() },
        ..options.clone()
    }
}

/// The same stage by other options.
fn others(plain: &Options) -> [Options; 2] {
    [
        Options { grad_scaler: true, precision: Precision::Fp16Mixed, padded: true, ..plain.clone() },
        Options { offload: Offload { activations: true, ..Offload::default() }, ..plain.clone() },
    ]
}

/// Stages whose rounds are of more than a forward and a backward pass, and how many micro-batches they have.
fn longer_rounds() -> Vec<(Options, u32)> {
    let bf16 = Options { precision: Precision::Bf16, seq_len: Some(LENGTH), ..Options::default() };
    let schedules = [
        (Schedule::ZbH1, 1, 2),
        (Schedule::ZbH2, 1, 2),
        (Schedule::ZbH1, 1, 3),
        (Schedule::ZbH2, 1, 3),
        (Schedule::DualPipe, 1, 2),
        (Schedule::DualPipe, 1, 4),
        (Schedule::Interleaved, 2, 2),
        (Schedule::Interleaved, 3, 2),
        (Schedule::Interleaved, 2, 3),
    ];
    let mut all = Vec::new();
    for (schedule, virtual_stages, pp) in schedules {
        let several = |rank| match (schedule, pp, rank) {
            (Schedule::Interleaved, 3, 1) => 8, // in groups of four
            _ if rank % 2 == 0 => 8 * pp,
            _ => 12 * pp,
        };
        for (rank, micro_batches) in (0..pp).map(|rank| (rank, several(rank))) {
            let parallel = Parallel { pp, rank, schedule, virtual_stages, ..Parallel::default() };
            let plain = Options { parallel, ..bf16.clone() };
            let full = Options { recompute: Recompute::Full, ..plain.clone() };
            let selective = Options { recompute: Recompute::Selective, ..plain.clone() };
            let tensor = Parallel { tp: 2, rank: rank * 2, ..plain.parallel.clone() };
            let tensor = Options { parallel: tensor, precision: Precision::Bf16Mixed, ..plain.clone() };
            let mut options = vec![full, selective, tensor, shared(&plain, Sharding::Zero1)];
            options.extend(others(&plain));
            options.push(Options { clip_grad_norm: true, precision: Precision::Bf16Mixed, ..plain.clone() });
            options.extend(
                [Sharding::Replicated, Sharding::FullShard, Sharding::ShardGradOp]
                    .map(|it| shared(&plain, it)),
            );
            options.push(on_megatron(&plain));
            options.push(full_on_megatron(&plain));
            options.push(shared(&on_megatron(&plain), Sharding::Zero1));
            options.push(plain);
            all.extend(options.into_iter().map(|options| (options, micro_batches)));
        }
    }
    all
}

fn full_on_megatron(options: &Options) -> Options {
    Options { recompute: Recompute::Full, ..on_megatron(options) }
}

/// Of each schedule, how many steps were run with few micro-batches, and how many of them with few layers too.
type Met = BTreeMap<String, [usize; 2]>;

/// Whether of each schedule at least so many steps were run with few micro-batches, and with few layers.
fn is_met(met: &Met, least: &[(&str, [usize; 2])]) {
    for (schedule, least) in least {
        let found = met.get(*schedule).copied().unwrap_or_default();
        assert!(found.iter().zip(least).all(|(found, least)| found >= least), "{schedule}: {met:?}");
    }
}

/// Runs each with all micro-batches and with few, and says which have another tape.
fn compared(architecture: &Architecture, steps: impl Iterator<Item = Options>, met: &mut Met) -> Vec<String> {
    let mut wrong = Vec::new();
    for options in steps {
        if Rounds::of(&options, architecture.shape.num_experts > 0).is_none() {
            continue;
        }
        // a stack may not have the schedule
        if run_all(architecture, &options, LENGTH).is_err() {
            continue;
        }
        let Parallel { schedule, pp, virtual_stages, rank, .. } = options.parallel;
        let said = format!(
            "{schedule:?} {pp}×{virtual_stages}, rank {rank}, {} micro-batches, {:?}, {:?}, {:?}, {:?}",
            options.gradient_accumulation_steps,
            options.stack,
            options.recompute,
            options.precision,
            options.parallel.sharding,
        );
        let hopes = hopes_for_layers(architecture, &options);
        for layers in [false, true].into_iter().filter(|layers| !layers || hopes) {
            match run_alike(architecture, &options, LENGTH, Few { layers, micro_batches: true }).unwrap() {
                Some(few) => {
                    let [micro_batches, with_layers] = met.entry(format!("{schedule:?}")).or_default();
                    *micro_batches += usize::from(!layers);
                    *with_layers += usize::from(few.layers_left_out > 0);
                    let whole = run_all(architecture, &options, LENGTH).unwrap();
                    let other = difference(architecture, &options, few, whole);
                    wrong.extend(other.map(|other| format!("{other}: {said}")));
                }
                // the layers of a stage need not be alike: then all of them are run
                None if layers && (schedule != Schedule::OneFOneB || shares_within_passes(&options)) => {}
                None => wrong.push(format!("not repeated: {said}, layers {layers}")),
            }
        }
    }
    wrong
}

#[test]
fn a_stage_that_is_repeated_is_the_whole_one() {
    let (mut wrong, mut met) = (Vec::new(), Met::new());
    for architecture in ["llama", "qwen3_moe"].map(|family| config(family, 24, "")) {
        let stages = stages();
        let steps = stages.iter().flat_map(|it| [5, 9, 12].map(|n| (it, n)));
        let steps = steps.map(|(options, gradient_accumulation_steps)| Options {
            gradient_accumulation_steps,
            ..options.clone()
        });
        wrong.extend(compared(&architecture, steps, &mut met));
    }
    assert!(wrong.is_empty(), "{} of {met:?}: {wrong:#?}", wrong.len());
    is_met(&met, &[("Gpipe", [180, 180]), ("OneFOneB", [520, 480])]);
}

#[test]
fn so_is_one_whose_rounds_have_more_passes() {
    let architecture = config("llama", 24, "");
    let steps = longer_rounds().into_iter();
    let steps = steps
        .map(|(options, gradient_accumulation_steps)| Options { gradient_accumulation_steps, ..options });
    let mut met = Met::new();
    let wrong = compared(&architecture, steps, &mut met);
    assert!(wrong.is_empty(), "{} of {met:?}: {wrong:#?}", wrong.len());
    // a stage of several parts runs all of its layers
    is_met(&met, &[("DualPipe", [40, 0]), ("Interleaved", [80, 0]), ("ZbH1", [60, 25]), ("ZbH2", [60, 25])]);
}

/// Stages that warm up with more passes than are run of them.
#[test]
fn so_is_one_that_warms_up_with_many() {
    let bf16 = Options { precision: Precision::Bf16, seq_len: Some(LENGTH), ..Options::default() };
    let (mut wrong, mut met) = (Vec::new(), Met::new());
    for architecture in ["llama", "qwen3_moe"].map(|family| config(family, 48, "")) {
        for (pp, rank, gradient_accumulation_steps) in [(8, 0, 11), (8, 0, 17), (8, 2, 12), (6, 1, 9)] {
            let parallel = Parallel { pp, rank, ..Parallel::default() };
            let plain = Options { parallel, gradient_accumulation_steps, ..bf16.clone() };
            assert_eq!(Rounds::of(&plain, false).map(|rounds| rounds.micro_batches), Some(6));
            let mut steps = vec![plain.clone(), shared(&plain, Sharding::Zero1)];
            steps.push(Options { recompute: Recompute::Full, clip_grad_norm: true, ..plain.clone() });
            let tensor = Parallel { tp: 2, sp: true, rank: rank * 2, ..plain.parallel.clone() };
            steps.push(Options { recompute: Recompute::Selective, parallel: tensor, ..plain.clone() });
            let lora = Some(Lora { rank: 4, ..Lora::default() });
            for precision in [Precision::Bf16, Precision::Bf16Mixed] {
                steps.push(Options { lora: lora.clone(), precision, ..plain.clone() });
            }
            steps.extend(others(&plain));
            wrong.extend(compared(&architecture, steps.into_iter(), &mut met));
        }
    }
    assert!(wrong.is_empty(), "{} of {met:?}: {wrong:#?}", wrong.len());
    is_met(&met, &[("OneFOneB", [38, 30])]);
}
