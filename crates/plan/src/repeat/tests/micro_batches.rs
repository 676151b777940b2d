//! Micro-batches alone, by every option that has to do with them.

use super::*;
use crate::catalogue::open_model;
use crate::options::*;
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
    let lora = Lora { rank: 4, dropout: 0.1, dtype: Dtype::F32, targets: LoraTargets::AllLinear };
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
                let Outcome { tape, .. } = run_all(&architecture, &options, 20).unwrap();
                let alike = Alike { layers: false, micro_batches: true };
                let repeated = run_alike(&architecture, &options, 20, alike).unwrap();
                let repeated = repeated.unwrap_or_else(|| panic!("not repeated: {options:?}"));
                assert!(repeated.tape == tape, "{family}: another tape with {options:?}");
            }
        }
    }
}
