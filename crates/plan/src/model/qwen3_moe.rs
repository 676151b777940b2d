//! qwen3_moe: qwen3 with experts for an MLP in some or all layers
//! (`transformers/models/qwen3_moe/modeling_qwen3_moe.py`).

use super::Blueprint;
use super::llama::{self, Llama};
use super::moe::{Moe, Router};
use crate::config::reader::Defaults;
use crate::config::{Reader, Shape};
use peakledger_input::Problem;
use std::sync::Arc;

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 32_768,
        tie_word_embeddings: false,
        num_key_value_heads: Some(4),
        head_dim: None,
    };
    let (mut shape, llama) = llama::read(reader, &defaults)?;
    if reader.flag("use_sliding_window")? == Some(true) {
        shape.window = reader.window(&shape, 4096, false, |_| true)?;
    }
    let normalised = reader.flag("norm_topk_prob")?.unwrap_or(false);
    let router = Router { normalised, in_fp32: false, after_experts: true };
    let intermediate_size = reader.number_or(&["moe_intermediate_size"], 768)?;
    let moe = Moe::read(reader, &mut shape, intermediate_size, router, [128, 8])?;
    let every = reader.optional_number(&["decoder_sparse_step"], u64::from(u32::MAX))?.unwrap_or(1);
    let dense = reader.layers("mlp_only_layers")?;
    let is_sparse = |layer: u32| !dense.contains(&layer) && (u64::from(layer) + 1).is_multiple_of(every);
    let sparse_layers = (0..shape.num_hidden_layers).map(is_sparse).collect();
    let llama = Llama { mlp_bias: false, qk_norm: true, experts: Some((moe, sparse_layers)), ..llama };
    Ok((shape, Arc::new(llama)))
}
