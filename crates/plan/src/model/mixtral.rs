//! mixtral: llama with experts for an MLP in every layer (`transformers/models/mixtral/modeling_mixtral.py`).

use super::Blueprint;
use super::llama::{self, Llama};
use super::moe::{Moe, Router};
use crate::config::reader::Defaults;
use crate::config::{Reader, Shape};
use peakledger_input::Problem;
use std::sync::Arc;

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 131_072,
        tie_word_embeddings: false,
        num_key_value_heads: Some(8),
        head_dim: None,
    };
    let (mut shape, llama) = llama::read(reader, &defaults)?;
    if reader.is_set("sliding_window") == Some(true) {
        shape.window = reader.window(&shape, 4096, false, |_| true)?;
    }
    if reader.probability("router_jitter_noise", 0.0)? > 0.0 {
        let cause = "noise on the routers' inputs is not planned yet";
        return Err(reader.at("router_jitter_noise", cause, "set it to 0"));
    }
    let router = Router { normalised: true, in_fp32: true, after_experts: false };
    let moe = Moe::read(reader, &mut shape, llama.intermediate_size, router, [8, 2])?;
    let sparse_layers = vec![true; shape.num_hidden_layers as usize];
    let llama = Llama {
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        experts: Some((moe, sparse_layers)),
        ..llama
    };
    Ok((shape, Arc::new(llama)))
}
