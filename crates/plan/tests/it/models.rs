//! Models and options that several tests take, with what each changes.

use peakledger_input::Source;
use peakledger_plan::Dtype;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::{Options, Precision};
use peakledger_plan::parallel::{Parallel, Stack};
use serde_json::{Value, json};

/// The model of a config, some of whose keys are others.
pub(crate) fn model(mut config: Value, more: &Value) -> Architecture {
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    Architecture::read(&Source::from_text("config.json", config.to_string())).unwrap()
}

/// A llama whose sizes no allocation has to be rounded up for: h 512, 4 heads and 2 key heads of 128, f 1024.
pub(crate) fn even_llama(layers: u32, more: &Value) -> Architecture {
    let config = json!({
        "model_type": "llama", "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 4096, "tie_word_embeddings": false
    });
    model(config, more)
}

/// 256 tokens as Megatron-LM's launch scripts run them: bf16, gradients and master weights in fp32.
pub(crate) fn on_megatron(parallel: Parallel) -> Options {
    Options {
        seq_len: Some(256),
        precision: Precision::Bf16,
        grad_dtype: Some(Dtype::F32),
        master_weights: Some(Dtype::F32),
        stack: Stack::Megatron,
        parallel,
        ..Options::default()
    }
}
