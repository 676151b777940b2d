//! `olmo2`: norms after each part instead of before, queries and keys normed over all heads at once, rotary positions in fp32
//! (`transformers/models/olmo2/modeling_olmo2.py`).

use super::attention::{Attend, SelfAttention, heads, widths};
use super::decoder::{Around, Context, Decoder, Layer};
use super::mlp::GatedMlp;
use super::{Blueprint, Model, Run};
use crate::config::reader::Defaults;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Norm, NormKind, apply_rotary};
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
        let around = Around {
            norm: NormKind::RmsScaledInFp32,
            rotary_dtype: Some(Dtype::F32),
            ..Around::usual(shape)
        };
        Box::new(Decoder::new(build, shape, run, around, layer))
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
    base: SelfAttention,
    q_norm: Norm,
    k_norm: Norm,
}

impl Attention {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, olmo2: &Olmo2, attend: Attend) -> Attention {
        let base = SelfAttention::new(build, parent, shape, [olmo2.attention_bias; 2], false, attend);
        let [queries, keys] = widths(shape);
        let mut norm = |name, width| Norm::new(build, base.module, name, NormKind::RmsScaledInFp32, width);
        let (q_norm, k_norm) = (norm("q_norm", queries), norm("k_norm", keys));
        Attention { base, q_norm, k_norm }
    }

    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        let base = &self.base;
        hidden_states.torch().inside(base.module, || {
            let mut query = self.q_norm.forward(&base.q_proj.forward(hidden_states));
            let mut key = self.k_norm.forward(&base.k_proj.forward(hidden_states));
            let mut value = base.v_proj.forward(hidden_states);
            query = heads(&query, base.head_dim);
            key = heads(&key, base.head_dim);
            value = heads(&value, base.head_dim);
            let dtype = query.dtype();
            let turned = apply_rotary(&query, &key, &context.position_embeddings);
            (query, key) = (ops::to(&turned.0, dtype), ops::to(&turned.1, dtype));
            drop(turned);
            base.attend([&query, &key, &value], context)
        })
    }
}
