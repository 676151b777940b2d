//! Micro-batches alone, by every option that has to do with them.

use super::*;
use crate::catalogue::open_model;
use crate::options::*;
use crate::parallel::{Parallel, Schedule, Sharding, Stack};
use crate::repeat::Rounds;
use crate::torch::Dtype;

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
    let lora =
        Lora { rank: 4, dropout: 0.1, dtype: Dtype::F32, targets: LoraTargets::AllLinear, ..Lora::default() };
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
                let alike = Alike { layers: false, micro_batches: true };
                let repeated = run_alike(&architecture, &options, LENGTH, alike).unwrap();
                let repeated = repeated.unwrap_or_else(|| panic!("not repeated: {options:?}"));
                let said = difference(&architecture, &options, repeated, whole);
                assert_eq!(said, None, "{family}: {options:?}");
            }
        }
    }
}

/// Stages of every length of warm-up, through both stacks.
fn stages() -> Vec<Options> {
    let bf16 = Options { precision: Precision::Bf16, seq_len: Some(LENGTH), ..Options::default() };
    let mut all = Vec::new();
    for (pp, rank) in (2..5).flat_map(|pp| (0..pp).map(move |rank| (pp, rank))) {
        let stage = |schedule| Parallel { pp, rank, schedule, ..Parallel::default() };
        let of = |schedule, options: &Options| Options { parallel: stage(schedule), ..options.clone() };
        let plain = of(Schedule::OneFOneB, &bf16);
        let megatron = Options {
            stack: Stack::Megatron,
            grad_dtype: Some(Dtype::F32),
            master_weights: Some(Dtype::F32),
            ..plain.clone()
        };
        let full = |options: &Options| Options { recompute: Recompute::Full, ..options.clone() };
        let shared = |options: &Options, sharding| Options {
            parallel: Parallel { dp: Some(2), rank: rank * 2, sharding, ..options.parallel.clone() },
            ..options.clone()
        };
        all.extend([of(Schedule::Gpipe, &bf16), full(&plain), full(&megatron)]);
        all.extend([&plain, &megatron].map(|options| shared(options, Sharding::Zero1)));
        all.push(Options {
            grad_scaler: true,
            precision: Precision::Fp16Mixed,
            padded: true,
            ..plain.clone()
        });
        all.push(Options { offload: Offload { activations: true, ..Offload::default() }, ..plain.clone() });
        all.extend([plain, megatron]);
    }
    all
}

#[test]
fn a_stage_that_is_repeated_is_the_whole_one() {
    let (mut wrong, mut met) = (Vec::new(), 0);
    for architecture in ["llama", "qwen3_moe"].map(|family| config(family, 24, "")) {
        for (options, gradient_accumulation_steps) in
            stages().iter().flat_map(|it| [5, 9, 12].map(|n| (it, n)))
        {
            let options = Options { gradient_accumulation_steps, ..options.clone() };
            if Rounds::of(&options, architecture.shape.num_experts > 0).is_none() {
                continue;
            }
            met += 1;
            let whole = run_all(&architecture, &options, LENGTH).unwrap();
            let alike = Alike { layers: true, micro_batches: true };
            match run_alike(&architecture, &options, LENGTH, alike).unwrap() {
                Some(few) => {
                    let said = difference(&architecture, &options, few, whole);
                    wrong.extend(said.map(|said| format!("{said}: {options:?}")));
                }
                None => wrong.push(format!("not repeated: {options:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {met}: {wrong:#?}", wrong.len());
    assert!(met > 200, "{met}");
}
