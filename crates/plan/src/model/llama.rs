//! `llama`, `mistral`, `qwen2` and `qwen3`: grouped heads with rotary positions, a gated MLP, RMSNorm before each
//! (`transformers/models/llama/modeling_llama.py` and its copies).

use super::attention::{Attend, SelfAttention, heads, split_heads};
use super::decoder::{Around, Context, Decoder, Layer};
use super::megatron::Gpt;
use super::mlp::GatedMlp;
use super::moe::{Moe, SparseMoeBlock};
use super::{Blueprint, Model, Run};
use crate::config::reader::Defaults;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Norm, NormKind, apply_rotary};
use crate::torch::{ModuleId, Tensor, ops};
use peakledger_input::Problem;
use std::rc::Rc;
use std::sync::Arc;

/// What sets these families apart.
#[derive(Clone, Debug)]
pub(super) struct Llama {
    pub(super) intermediate_size: u64,
    pub(super) hidden_act: Activation,
    pub(super) qkv_bias: bool,
    pub(super) o_bias: bool,
    pub(super) mlp_bias: bool,
    /// Whether queries and keys are normed, head by head.
    pub(super) qk_norm: bool,
    /// The experts, and which layers have them.
    pub(super) experts: Option<(Moe, Vec<bool>)>,
}

impl Llama {
    /// The experts of a layer that has them.
    fn experts_of(&self, layer: u32) -> Option<&Moe> {
        let (moe, sparse_layers) = self.experts.as_ref()?;
        (sparse_layers.get(layer as usize) == Some(&true)).then_some(moe)
    }
}

pub(super) fn read(reader: &mut Reader<'_>, defaults: &Defaults) -> Result<(Shape, Llama), Problem> {
    let shape = reader.shape(defaults)?;
    reader.rotary(&shape)?;
    let bias = reader.flag("attention_bias")?.unwrap_or(false);
    let llama = Llama {
        intermediate_size: reader.size(&["intermediate_size"])?,
        hidden_act: reader.activation("hidden_act", Activation::Silu)?,
        qkv_bias: bias,
        o_bias: bias,
        mlp_bias: reader.flag("mlp_bias")?.unwrap_or(false),
        qk_norm: false,
        experts: None,
    };
    Ok((shape, llama))
}

pub(super) fn read_llama(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 2048,
        tie_word_embeddings: false,
        num_key_value_heads: None,
        head_dim: None,
    };
    let (shape, llama) = read(reader, &defaults)?;
    Ok((shape, Arc::new(llama)))
}

pub(super) fn read_mistral(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 131_072,
        tie_word_embeddings: false,
        num_key_value_heads: Some(8),
        head_dim: None,
    };
    let (mut shape, llama) = read(reader, &defaults)?;
    shape.window = reader.window(&shape, 4096, false, |_| true)?;
    Ok((shape, Arc::new(Llama { qkv_bias: false, o_bias: false, mlp_bias: false, ..llama })))
}

pub(super) fn read_qwen2(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 32_768,
        tie_word_embeddings: false,
        num_key_value_heads: Some(32),
        head_dim: None,
    };
    let (mut shape, llama) = read(reader, &defaults)?;
    read_upper_window(reader, &mut shape)?;
    Ok((shape, Arc::new(Llama { qkv_bias: true, o_bias: false, mlp_bias: false, ..llama })))
}

pub(super) fn read_qwen3(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 32_768,
        tie_word_embeddings: false,
        num_key_value_heads: Some(32),
        head_dim: Some(128),
    };
    let (mut shape, llama) = read(reader, &defaults)?;
    read_upper_window(reader, &mut shape)?;
    Ok((shape, Arc::new(Llama { mlp_bias: false, qk_norm: true, ..llama })))
}

/// With `use_sliding_window`, the layers from `max_window_layers` on look through a window.
fn read_upper_window(reader: &mut Reader<'_>, shape: &mut Shape) -> Result<(), Problem> {
    if reader.flag("use_sliding_window")? == Some(true) {
        let first = match reader.layer("max_window_layers")? {
            Some(first) => first,
            None => reader.defaulted("max_window_layers", 28),
        };
        shape.window = reader.window(shape, 4096, true, |layer| u64::from(layer) >= first)?;
    }
    Ok(())
}

impl Blueprint for Llama {
    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model> {
        let layer = |build: &mut Builder, module, index| -> Rc<dyn Layer> {
            Rc::new(LlamaLayer::new(build, (module, index), shape, self, run.attend))
        };
        Box::new(Decoder::new(build, shape, run, Around::usual(shape), layer))
    }

    fn megatron(&self, _: &Shape) -> Option<Gpt> {
        let is_plain = self.hidden_act == Activation::Silu && !self.o_bias && !self.mlp_bias;
        is_plain.then(|| Gpt {
            qkv_bias: self.qkv_bias,
            qk_norm: self.qk_norm,
            latent: None,
            ffn_hidden_size: self.intermediate_size,
            experts: self.experts.as_ref().map(|(moe, layers)| moe.megatron(layers)),
        })
    }
}

struct LlamaLayer {
    module: ModuleId,
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
}

impl LlamaLayer {
    fn new(
        build: &mut Builder,
        (module, index): (ModuleId, u32),
        shape: &Shape,
        llama: &Llama,
        attend: Attend,
    ) -> LlamaLayer {
        let norm =
            |build: &mut Builder, name| Norm::new(build, module, name, NormKind::Rms, shape.hidden_size);
        LlamaLayer {
            module,
            self_attn: Attention::new(build, module, shape, llama, attend),
            mlp: Mlp::new(build, module, shape, llama, llama.experts_of(index)),
            input_layernorm: norm(build, "input_layernorm"),
            post_attention_layernorm: norm(build, "post_attention_layernorm"),
        }
    }
}

impl Layer for LlamaLayer {
    fn forward(&self, input: &Tensor, context: &Context) -> Tensor {
        input.torch().inside(self.module, || {
            let mut hidden_states = self.input_layernorm.forward(input);
            let _attention_weights;
            (hidden_states, _attention_weights) = self.self_attn.forward(&hidden_states, context);
            hidden_states = ops::add(input, &hidden_states);

            let residual = hidden_states.clone();
            hidden_states = self.post_attention_layernorm.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            ops::add(&residual, &hidden_states)
        })
    }
}

/// The MLP of a layer: one, or experts.
enum Mlp {
    Gated(Box<GatedMlp>),
    Sparse(Box<SparseMoeBlock>),
}

impl Mlp {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, llama: &Llama, moe: Option<&Moe>) -> Mlp {
        let sizes = (shape.hidden_size, llama.intermediate_size);
        match moe {
            None => {
                Mlp::Gated(Box::new(GatedMlp::new(build, parent, sizes, llama.hidden_act, llama.mlp_bias)))
            }
            Some(moe) => Mlp::Sparse(Box::new(SparseMoeBlock::new(build, parent, shape, moe))),
        }
    }

    fn forward(&self, hidden_states: &Tensor) -> Tensor {
        match self {
            Mlp::Gated(mlp) => mlp.forward(hidden_states),
            Mlp::Sparse(block) => block.forward(hidden_states),
        }
    }
}

struct Attention {
    base: SelfAttention,
    qk_norm: Option<[Norm; 2]>,
}

impl Attention {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, llama: &Llama, attend: Attend) -> Attention {
        let biases = [llama.qkv_bias, llama.o_bias];
        let base = SelfAttention::new(build, parent, shape, biases, false, attend);
        let norm = |name| Norm::new(build, base.module, name, NormKind::Rms, shape.head_dim);
        let qk_norm = llama.qk_norm.then(|| ["q_norm", "k_norm"].map(norm));
        Attention { base, qk_norm }
    }

    /// The attended states, and the attention weights where they are made.
    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        let base = &self.base;
        hidden_states.torch().inside(base.module, || {
            let hidden_states = &base.input(hidden_states);
            let (mut query, mut key);
            match &self.qk_norm {
                None => {
                    query = heads(&base.q_proj.forward(hidden_states), base.head_dim);
                    key = heads(&base.k_proj.forward(hidden_states), base.head_dim);
                }
                Some([q_norm, k_norm]) => {
                    let normed = |projected: Tensor, norm: &Norm| {
                        ops::transpose(norm.forward(&split_heads(&projected, base.head_dim)), 1, 2)
                    };
                    query = normed(base.q_proj.forward(hidden_states), q_norm);
                    key = normed(base.k_proj.forward(hidden_states), k_norm);
                }
            }
            let value = heads(&base.v_proj.forward(hidden_states), base.head_dim);
            (query, key) = apply_rotary(&query, &key, &context.position_embeddings);
            base.attend([&query, &key, &value], context)
        })
    }
}
