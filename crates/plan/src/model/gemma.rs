//! `gemma2` and `gemma3_text`: a scaled embedding, a norm before and one after each part, every other layer through a window
//! (`transformers/models/gemma2/modeling_gemma2.py`, `…/gemma3/modeling_gemma3.py`).

use super::attention::{Attend, SelfAttention, heads};
use super::decoder::{Around, Context, Decoder, Layer};
use super::mlp::GatedMlp;
use super::{Blueprint, Model, Run};
use crate::config::reader::Defaults;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Norm, NormKind, apply_rotary};
use crate::torch::{ModuleId, Tensor, ops};
use peakledger_input::Problem;
use std::rc::Rc;
use std::sync::Arc;

/// What sets the two apart.
#[derive(Clone, Copy, Debug)]
struct Gemma {
    intermediate_size: u64,
    hidden_activation: Activation,
    attention_bias: bool,
    /// gemma2 caps its scores.
    attention_softcap: bool,
    logit_softcap: bool,
    /// gemma3 norms queries and keys, head by head.
    qk_norm: bool,
    /// gemma3 turns windowed layers by tables of their own.
    own_sliding_tables: bool,
}

fn read(reader: &mut Reader<'_>, limit: u64) -> Result<(Shape, Gemma), Problem> {
    let defaults = Defaults {
        max_position_embeddings: limit,
        tie_word_embeddings: true,
        num_key_value_heads: Some(4),
        head_dim: Some(256),
    };
    let shape = reader.shape(&defaults)?;
    reader.rotary(&shape)?;
    let gemma = Gemma {
        intermediate_size: reader.size(&["intermediate_size"])?,
        hidden_activation: reader.activation("hidden_activation", Activation::Gelu)?,
        attention_bias: reader.flag("attention_bias")?.unwrap_or(false),
        attention_softcap: false,
        logit_softcap: false,
        qk_norm: false,
        own_sliding_tables: false,
    };
    Ok((shape, gemma))
}

pub(super) fn read_gemma2(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let (mut shape, gemma) = read(reader, 8192)?;
    shape.window = reader.window(&shape, 4096, true, |layer| layer % 2 == 0)?;
    shape.eager_only = true; // `_supports_sdpa = False`
    let attention_softcap = reader.is_set("attn_logit_softcapping").unwrap_or(true);
    let logit_softcap = reader.is_set("final_logit_softcapping").unwrap_or(true);
    Ok((shape, Arc::new(Gemma { attention_softcap, logit_softcap, ..gemma })))
}

/// What `Gemma3TextConfig` has where a file says nothing (`configuration_gemma3.py`, transformers 5): files of models that see
/// have in their `text_config` only what differs from it.
const OF_GEMMA3: &[(&str, u64)] = &[
    ("vocab_size", 262_208),
    ("hidden_size", 2304),
    ("intermediate_size", 9216),
    ("num_hidden_layers", 26),
    ("num_attention_heads", 8),
];

pub(super) fn read_gemma3(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    reader.leaving_out(OF_GEMMA3);
    let (mut shape, gemma) = read(reader, 131_072)?;
    let pattern = reader.layer("sliding_window_pattern")?.filter(|n| *n > 0).unwrap_or(6);
    shape.window = reader.window(&shape, 4096, true, |layer| (u64::from(layer) + 1) % pattern != 0)?;
    let logit_softcap = reader.is_set("final_logit_softcapping").unwrap_or(false);
    let own_sliding_tables = shape.window.is_some();
    Ok((shape, Arc::new(Gemma { logit_softcap, qk_norm: true, own_sliding_tables, ..gemma })))
}

impl Blueprint for Gemma {
    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model> {
        let layer = |build: &mut Builder, module, _| -> Rc<dyn Layer> {
            Rc::new(GemmaLayer::new(build, module, shape, self, run.attend))
        };
        let around = Around {
            norm: NormKind::Gemma,
            scaled_embedding: true,
            own_sliding_tables: self.own_sliding_tables,
            logit_softcap: self.logit_softcap,
            ..Around::usual(shape)
        };
        Box::new(Decoder::new(build, shape, run, around, layer))
    }
}

struct GemmaLayer {
    module: ModuleId,
    self_attn: Attention,
    mlp: GatedMlp,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
    pre_feedforward_layernorm: Norm,
    post_feedforward_layernorm: Norm,
}

impl GemmaLayer {
    fn new(
        build: &mut Builder,
        module: ModuleId,
        shape: &Shape,
        gemma: &Gemma,
        attend: Attend,
    ) -> GemmaLayer {
        let sizes = (shape.hidden_size, gemma.intermediate_size);
        let norm =
            |build: &mut Builder, name| Norm::new(build, module, name, NormKind::Gemma, shape.hidden_size);
        GemmaLayer {
            module,
            self_attn: Attention::new(build, module, shape, gemma, attend),
            mlp: GatedMlp::new(build, module, sizes, gemma.hidden_activation, false),
            input_layernorm: norm(build, "input_layernorm"),
            post_attention_layernorm: norm(build, "post_attention_layernorm"),
            pre_feedforward_layernorm: norm(build, "pre_feedforward_layernorm"),
            post_feedforward_layernorm: norm(build, "post_feedforward_layernorm"),
        }
    }
}

impl Layer for GemmaLayer {
    fn forward(&self, input: &Tensor, context: &Context) -> Tensor {
        input.torch().inside(self.module, || {
            let mut hidden_states = self.input_layernorm.forward(input);
            let _attention_weights;
            (hidden_states, _attention_weights) = self.self_attn.forward(&hidden_states, context);
            hidden_states = self.post_attention_layernorm.forward(&hidden_states);
            hidden_states = ops::add(input, &hidden_states);

            let residual = hidden_states.clone();
            hidden_states = self.pre_feedforward_layernorm.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            hidden_states = self.post_feedforward_layernorm.forward(&hidden_states);
            ops::add(&residual, &hidden_states)
        })
    }
}

struct Attention {
    base: SelfAttention,
    qk_norm: Option<[Norm; 2]>,
}

impl Attention {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, gemma: &Gemma, attend: Attend) -> Attention {
        let biases = [gemma.attention_bias; 2];
        let base = SelfAttention::new(build, parent, shape, biases, gemma.attention_softcap, attend);
        let norm = |name| Norm::new(build, base.module, name, NormKind::Gemma, shape.head_dim);
        let qk_norm = gemma.qk_norm.then(|| ["q_norm", "k_norm"].map(norm));
        Attention { base, qk_norm }
    }

    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        let base = &self.base;
        hidden_states.torch().inside(base.module, || {
            let mut query = heads(&base.q_proj.forward(hidden_states), base.head_dim);
            let mut key = heads(&base.k_proj.forward(hidden_states), base.head_dim);
            let value = heads(&base.v_proj.forward(hidden_states), base.head_dim);
            if let Some([q_norm, k_norm]) = &self.qk_norm {
                query = q_norm.forward(&query);
                key = k_norm.forward(&key);
            }
            (query, key) = apply_rotary(&query, &key, &context.position_embeddings);
            base.attend([&query, &key, &value], context)
        })
    }
}
