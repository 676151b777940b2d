//! On one card, by every option that has to do with layers.

use super::*;
use crate::options::*;
use crate::torch::Dtype;
use std::num::NonZeroU32;

/// Every option that has to do with layers, alone and with others.
fn variants() -> Vec<Options> {
    let plain = Options { micro_batch_size: 2, seq_len: Some(LENGTH), ..Options::default() };
    let lora = Lora { rank: 4, dropout: 0.1, ..Lora::default() };
    let offload = |activations, optimizer, parameters| Offload { activations, optimizer, parameters };
    let bf16 = Options { precision: Precision::Bf16, ..plain.clone() };
    vec![
        plain.clone(),
        Options { clip_grad_norm: true, hold_outputs: HoldOutputs::Step, ..bf16.clone() },
        Options { gradient_accumulation_steps: 2, attention: Attention::Eager, ..plain.clone() },
        Options { gradient_accumulation_steps: 5, hold_outputs: HoldOutputs::Step, ..plain.clone() },
        Options { recompute: Recompute::Full, padded: true, ..plain.clone() },
        Options { recompute: Recompute::Selective, ..plain.clone() },
        Options { recompute: Recompute::Layers((0..2).collect()), ..plain.clone() },
        Options {
            offload: offload(true, false, false),
            offload_layers: Some((0..2).collect()),
            ..plain.clone()
        },
        Options { recompute: Recompute::Every(NonZeroU32::new(2).unwrap()), ..plain.clone() },
        Options { precision: Precision::Fp16Mixed, grad_scaler: true, ..plain.clone() },
        Options { optimizer: OptimizerKind::Adafactor, ..bf16.clone() },
        Options { optimizer: OptimizerKind::AdamW8bit, ..bf16.clone() },
        Options { optimizer: OptimizerKind::Muon, ..bf16.clone() },
        Options { optimizer_impl: Some(OptimizerImpl::ForLoop), ..bf16.clone() },
        Options { lora: Some(lora.clone()), ..bf16.clone() },
        Options { lora: Some(lora.clone()), quantize: Some(Quantize::Nf4Double), ..plain.clone() },
        Options {
            lora: Some(lora.clone()),
            quantize: Some(Quantize::Int8),
            hold_outputs: HoldOutputs::Step,
            ..plain.clone()
        },
        Options { lora: Some(lora.clone()), recompute: Recompute::Full, ..bf16.clone() },
        Options { offload: offload(true, false, false), ..plain.clone() },
        Options {
            offload: offload(true, false, false),
            offload_prefetch: 2,
            recompute: Recompute::Full,
            ..bf16.clone()
        },
        Options { offload: offload(false, true, false), ..bf16.clone() },
        Options {
            offload: offload(true, false, true),
            offload_prefetch: 0,
            gradient_accumulation_steps: 2,
            ..bf16.clone()
        },
        Options { offload: offload(false, false, true), lora: Some(lora), ..bf16.clone() },
        Options { grad_dtype: Some(Dtype::F32), master_weights: Some(Dtype::F32), ..bf16.clone() },
        Options { master_weights: Some(Dtype::F32), ..bf16 },
    ]
}

/// However far copies run ahead, and wherever in the model the row begins.
#[test]
fn copies_that_run_ahead_are_those_of_the_whole_tape() {
    let (mut wrong, mut repeated) = (Vec::new(), 0);
    let architecture = |layers: u32| {
        let text = format!(
            r#"{{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": {layers},
                 "num_attention_heads": 4, "max_position_embeddings": 64}}"#
        );
        Architecture::read(&Source::from_text("config.json", text)).unwrap()
    };
    for layers in [12, 13, 14, 17, 24] {
        let architecture = architecture(layers);
        let offloads = [(true, false), (false, true), (true, true)];
        for ((activations, parameters), ahead, own, micro_batches) in offloads.iter().flat_map(|offload| {
            (0..6)
                .flat_map(move |ahead| (0..3).flat_map(move |own| [1, 2].map(|n| (*offload, ahead, own, n))))
        }) {
            let options = Options {
                seq_len: Some(LENGTH),
                gradient_accumulation_steps: micro_batches,
                recompute: if own == 0 { Recompute::None } else { Recompute::Layers((0..own).collect()) },
                offload: Offload { activations, parameters, ..Offload::default() },
                offload_prefetch: ahead,
                ..Options::default()
            };
            let whole = run_all(&architecture, &options, LENGTH).unwrap();
            match run_alike(&architecture, &options, LENGTH, FEW).unwrap() {
                Some(few) => {
                    repeated += usize::from(few.layers_left_out > 0);
                    let said = difference(&architecture, &options, few, whole);
                    wrong.extend(said.map(|said| format!("{said}: {layers} {options:?}")));
                }
                None => wrong.push(format!("not repeated: {layers} {options:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} beside {repeated}: {wrong:#?}", wrong.len());
    assert!(repeated > 200, "{repeated}");
}

/// The tape is the one that running all layers leaves, to the byte.
#[test]
fn a_tape_of_few_layers_is_the_whole_one() {
    let (mut wrong, mut all) = (Vec::new(), 0);
    for architecture in architectures() {
        let family = architecture.family.model_type;
        for options in variants() {
            let Ok(whole) = run_all(&architecture, &options, LENGTH) else { continue };
            all += 1;
            match run_alike(&architecture, &options, LENGTH, FEW).unwrap() {
                Some(few) if few.layers_left_out < 2 => {
                    wrong.push(format!("{family}: all run with {options:?}"));
                }
                Some(few) => {
                    let said = difference(&architecture, &options, few, whole);
                    wrong.extend(said.map(|said| format!("{family}: {said} with {options:?}")));
                }
                None => wrong.push(format!("{family}: not repeated with {options:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {all}: {wrong:#?}", wrong.len());
    assert!(all > 380, "{all} steps are not refused");
}
