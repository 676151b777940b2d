//! Optimizer states that torch's tracker cannot run: their sizes by pencil.

use peakledger_core::Category;
use peakledger_input::Source;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::{Step, plan};
use std::collections::BTreeMap;

/// A model of one layer under an optimizer: its optimizer states by name.
fn states_under(optimizer: OptimizerKind) -> BTreeMap<String, u64> {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true, "max_position_embeddings": 64,
    });
    let architecture = Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap();
    let options = Options { optimizer, precision: Precision::Bf16, ..Options::default() };
    let ledger = plan(architecture, options).unwrap().ledger(Step::Steady).unwrap();
    let states = ledger.states().iter().filter(|state| state.category == Category::OptimizerState);
    states.map(|state| (state.name.to_string(), state.bytes.get())).collect()
}

/// `Linear8bitLt`: a byte a number and four a row; while a weight is packed it is there as it was loaded and in fp16 too.
#[test]
fn weights_of_eight_bits() {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true, "max_position_embeddings": 64,
    });
    let architecture = Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap();
    let options = Options {
        quantize: Some(Quantize::Int8),
        lora: Some(Lora { rank: 4, ..Lora::default() }),
        precision: Precision::Bf16,
        ..Options::default()
    };
    let plan = plan(architecture, options).unwrap();
    let ledger = plan.ledger(Step::Steady).unwrap();
    let bytes = |name: &str| {
        ledger.states().iter().find(|state| state.name.as_ref() == name).map(|state| state.bytes.get())
    };
    assert_eq!(bytes("model.layers.0.mlp.down_proj.weight"), Some(64 * 96));
    assert_eq!(bytes("model.layers.0.mlp.down_proj.SCB"), Some(512));
    assert_eq!(bytes("model.embed_tokens.weight"), Some(1000 * 64 * 2));
    let load = &plan.first.phases[0];
    assert!(load.peak.get() >= load.end.get(), "{load:?}");
}

/// `bitsandbytes.optim.Lion`: four bytes a number, though the numbers have two.
#[test]
fn one_moment_of_lion() {
    let states = states_under(OptimizerKind::Lion);
    assert_eq!(states.len(), 11);
    assert_eq!(states["model.embed_tokens.weight.state1"], 256_000);
    assert_eq!(states["model.norm.weight.state1"], 512);
}

/// `bitsandbytes.optim.AdamW32bit`: eight bytes a number, though the numbers have two.
#[test]
fn two_moments_of_32_bits() {
    let states = states_under(OptimizerKind::AdamW32bit);
    assert_eq!(states.len(), 22);
    assert_eq!(states["model.embed_tokens.weight.state1"], 256_000);
    assert_eq!(states["model.embed_tokens.weight.state2"], 256_000);
}

/// Of Muon for the matrices of the layer, of AdamW for the embedding and the norms.
#[test]
fn muon_takes_the_matrices_of_layers() {
    let states = states_under(OptimizerKind::Muon);
    assert_eq!(states["model.layers.0.mlp.down_proj.weight.momentum_buffer"], 64 * 96 * 2);
    let of = |name: &str| states.keys().filter(|state| state.ends_with(name)).count();
    assert_eq!((of("momentum_buffer"), of("exp_avg"), of("exp_avg_sq")), (7, 4, 4));
    assert!(states.contains_key("model.embed_tokens.weight.exp_avg"));
}

/// `bitsandbytes.optim.AdamW8bit` on a model of one layer: two bytes a number and two scales in fp32 for 256, and fp32
/// where a parameter has fewer than 4096 numbers; two tables of 256 fp32 numbers for all.
#[test]
fn moments_of_eight_bits() {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true, "max_position_embeddings": 64,
    });
    let architecture = Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap();
    let options = Options { optimizer: OptimizerKind::AdamW8bit, ..Options::default() };
    let plan = plan(architecture, options).unwrap();
    let ledger = plan.ledger(Step::Steady).unwrap();
    let states: BTreeMap<&str, u64> = ledger
        .states()
        .iter()
        .map(|state| (state.name.as_ref(), state.bytes.get()))
        .filter(|(name, _)| ["state", "qmap", "absmax"].iter().any(|word| name.contains(word)))
        .collect();
    let rounded = |bytes: u64| bytes.div_ceil(512) * 512;
    let expected = |name: &str| states.get(name).copied();
    assert_eq!(expected("model.embed_tokens.weight.state1"), Some(rounded(64_000)));
    assert_eq!(expected("model.embed_tokens.weight.absmax2"), Some(rounded(64_000 / 256 * 4)));
    assert_eq!(expected("model.embed_tokens.weight.qmap1"), Some(1024));
    assert_eq!(expected("model.layers.0.self_attn.k_proj.weight.state1"), Some(rounded(64 * 32 * 4)), "fp32");
    assert_eq!(expected("model.layers.0.mlp.down_proj.weight.state2"), Some(64 * 96), "8 bits");
    assert_eq!(expected("model.norm.weight.state2"), Some(512));
    assert_eq!(states.keys().filter(|name| name.contains("qmap")).count(), 2, "once for all");
    // embedding, q, k, v, o, gate, up, down, three norms; absmax for embedding, q, o, gate, up, down
    assert_eq!(states.len(), 2 + 11 * 2 + 6 * 2);
}
