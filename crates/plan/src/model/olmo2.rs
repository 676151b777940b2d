//! `olmo2`: norms after each part instead of before, queries and keys normed over all heads at once, rotary positions in fp32
//! (`transformers/models/olmo2/modeling_olmo2.py`).

use super::attention::{Attend, Scores, attend, heads, merge_heads};
use super::decoder::{Around, Context, Decoder, Layer};
use super::mlp::GatedMlp;
use super::{Blueprint, Model, Run};
use crate::config::reader::Defaults;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Linear, Norm, NormKind, apply_rotary};
use crate::torch::{Dtype, ModuleId, Tensor, ops};
use peakledger_input::Problem;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
struct Olmo2 {
    intermediate_size: u64,
    hidden_act: Activation,
    attention_bias: bool,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 2048,
        tie_word_embeddings: false,
        num_key_value_heads: None,
        head_dim: None,
    };
    let shape = reader.shape(&defaults)?;
    reader.rotary(&shape)?;
    let olmo2 = Olmo2 {
        intermediate_size: reader.size(&["intermediate_size"])?,
        hidden_act: reader.activation("hidden_act", Activation::Silu)?,
        attention_bias: reader.flag("attention_bias")?.unwrap_or(false),
    };
    Ok((shape, Arc::new(olmo2)))
}

impl Blueprint for Olmo2 {
    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model> {
        let layer = |build: &mut Builder, module, _| -> Rc<dyn Layer> {
            Rc::new(Olmo2Layer::new(build, module, shape, self, run.attend))
        };
        let norm = |build: &mut Builder, parent, name| {
            Norm::new(build, parent, name, NormKind::RmsScaledInFp32, shape.hidden_size)
        };
        let around = Around { rotary_dtype: Some(Dtype::F32), ..Around::usual(shape) };
        Box::new(Decoder::new(build, shape, run, around, layer, norm))
    }
}

struct Olmo2Layer {
    module: ModuleId,
    self_attn: Attention,
    mlp: GatedMlp,
    post_attention_layernorm: Norm,
    post_feedforward_layernorm: Norm,
}

impl Olmo2Layer {
    fn new(
        build: &mut Builder,
        module: ModuleId,
        shape: &Shape,
        olmo2: &Olmo2,
        attend: Attend,
    ) -> Olmo2Layer {
        let sizes = (shape.hidden_size, olmo2.intermediate_size);
        let norm = |build: &mut Builder, name| {
            Norm::new(build, module, name, NormKind::RmsScaledInFp32, shape.hidden_size)
        };
        Olmo2Layer {
            module,
            self_attn: Attention::new(build, module, shape, olmo2, attend),
            mlp: GatedMlp::new(build, module, sizes, olmo2.hidden_act, false),
            post_attention_layernorm: norm(build, "post_attention_layernorm"),
            post_feedforward_layernorm: norm(build, "post_feedforward_layernorm"),
        }
    }
}

impl Layer for Olmo2Layer {
    fn forward(&self, input: &Tensor, context: &Context) -> Tensor {
        input.torch().inside(self.module, || {
            let (mut hidden_states, _attention_weights) = self.self_attn.forward(input, context);
            hidden_states = self.post_attention_layernorm.forward(&hidden_states);
            hidden_states = ops::add(input, &hidden_states);

            let residual = hidden_states.clone();
            hidden_states = self.mlp.forward(&hidden_states);
            hidden_states = self.post_feedforward_layernorm.forward(&hidden_states);
            ops::add(&residual, &hidden_states)
        })
    }
}

struct Attention {
    module: ModuleId,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Norm,
    k_norm: Norm,
    head_dim: u64,
    scores: Scores,
    attend: Attend,
}

impl Attention {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, olmo2: &Olmo2, attend: Attend) -> Attention {
        let module = build.module(parent, "self_attn");
        let queries = shape.num_attention_heads.saturating_mul(shape.head_dim);
        let keys = shape.num_key_value_heads.saturating_mul(shape.head_dim);
        let (hidden, bias) = (shape.hidden_size, olmo2.attention_bias);
        let norm = |build: &mut Builder, name, width| {
            Norm::new(build, module, name, NormKind::RmsScaledInFp32, width)
        };
        Attention {
            module,
            q_proj: Linear::new(build, module, "q_proj", (hidden, queries), bias),
            k_proj: Linear::new(build, module, "k_proj", (hidden, keys), bias),
            v_proj: Linear::new(build, module, "v_proj", (hidden, keys), bias),
            o_proj: Linear::new(build, module, "o_proj", (queries, hidden), bias),
            q_norm: norm(build, "q_norm", queries),
            k_norm: norm(build, "k_norm", keys),
            head_dim: shape.head_dim,
            scores: Scores { dropout: shape.attention_dropout, softcap: false },
            attend,
        }
    }

    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        hidden_states.torch().inside(self.module, || {
            let mut query = self.q_norm.forward(&self.q_proj.forward(hidden_states));
            let mut key = self.k_norm.forward(&self.k_proj.forward(hidden_states));
            let mut value = self.v_proj.forward(hidden_states);
            query = heads(&query, self.head_dim);
            key = heads(&key, self.head_dim);
            value = heads(&value, self.head_dim);
            let dtype = query.dtype();
            let turned = apply_rotary(&query, &key, &context.position_embeddings);
            (query, key) = (ops::to(&turned.0, dtype), ops::to(&turned.1, dtype));
            drop(turned);
            let mask = context.attention_mask.as_ref();
            let (attended, weights) = attend(self.attend, [&query, &key, &value], mask, self.scores);
            let merged = merge_heads(attended);
            (self.o_proj.forward(&merged), weights)
        })
    }
}
