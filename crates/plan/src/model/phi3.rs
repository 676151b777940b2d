//! `phi3`: queries, keys and values from one matrix, gate and up from another, some of a head turned
//! (`transformers/models/phi3/modeling_phi3.py`).

use super::attention::{Attend, Scores, attend, heads, merge_heads};
use super::decoder::{Around, Context, Decoder, Layer};
use super::mlp::activate;
use super::{Blueprint, Model, Run};
use crate::config::reader::Defaults;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Linear, Norm, NormKind, Rejoin, apply_partial_rotary, partial_width};
use crate::torch::{ModuleId, Tensor, ops};
use peakledger_input::Problem;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
struct Phi3 {
    intermediate_size: u64,
    hidden_act: Activation,
    resid_pdrop: f64,
    rotary_width: u64,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 4096,
        tie_word_embeddings: false,
        num_key_value_heads: None,
        head_dim: None,
    };
    let mut shape = reader.shape(&defaults)?;
    reader.rotary(&shape)?;
    if reader.is_set("sliding_window") == Some(true) {
        shape.window = reader.window(&shape, 0, false, |_| true)?;
    }
    let phi3 = Phi3 {
        intermediate_size: reader.size(&["intermediate_size"])?,
        hidden_act: reader.activation("hidden_act", Activation::Silu)?,
        resid_pdrop: reader.probability("resid_pdrop", 0.0)?,
        rotary_width: partial_width(shape.head_dim, reader.fraction("partial_rotary_factor", 1.0)?),
    };
    Ok((shape, Arc::new(phi3)))
}

impl Blueprint for Phi3 {
    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model> {
        let layer = |build: &mut Builder, module, _| -> Rc<dyn Layer> {
            Rc::new(Phi3Layer::new(build, module, shape, self, run.attend))
        };
        let around = Around { rotary_width: self.rotary_width, ..Around::usual(shape) };
        Box::new(Decoder::new(build, shape, run, around, layer))
    }
}

struct Phi3Layer {
    module: ModuleId,
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
    resid_pdrop: f64,
}

impl Phi3Layer {
    fn new(build: &mut Builder, module: ModuleId, shape: &Shape, phi3: &Phi3, attend: Attend) -> Phi3Layer {
        let norm =
            |build: &mut Builder, name| Norm::new(build, module, name, NormKind::Rms, shape.hidden_size);
        Phi3Layer {
            module,
            self_attn: Attention::new(build, module, shape, attend),
            mlp: Mlp::new(build, module, shape.hidden_size, phi3),
            input_layernorm: norm(build, "input_layernorm"),
            post_attention_layernorm: norm(build, "post_attention_layernorm"),
            resid_pdrop: phi3.resid_pdrop,
        }
    }
}

impl Layer for Phi3Layer {
    fn forward(&self, input: &Tensor, context: &Context) -> Tensor {
        input.torch().inside(self.module, || {
            let mut hidden_states = self.input_layernorm.forward(input);
            let _attention_weights;
            (hidden_states, _attention_weights) = self.self_attn.forward(&hidden_states, context);
            hidden_states = ops::add(input, ops::dropout(&hidden_states, self.resid_pdrop));

            let residual = hidden_states.clone();
            hidden_states = self.post_attention_layernorm.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            ops::add(&residual, ops::dropout(&hidden_states, self.resid_pdrop))
        })
    }
}

struct Attention {
    module: ModuleId,
    qkv_proj: Linear,
    o_proj: Linear,
    queries: u64,
    keys: u64,
    head_dim: u64,
    scores: Scores,
    attend: Attend,
}

impl Attention {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, attend: Attend) -> Attention {
        let module = build.module(parent, "self_attn");
        let queries = shape.num_attention_heads.saturating_mul(shape.head_dim);
        let keys = shape.num_key_value_heads.saturating_mul(shape.head_dim);
        let all = queries.saturating_add(keys.saturating_mul(2));
        Attention {
            module,
            o_proj: Linear::new(build, module, "o_proj", (queries, shape.hidden_size), false),
            qkv_proj: Linear::new(build, module, "qkv_proj", (shape.hidden_size, all), false),
            queries,
            keys,
            head_dim: shape.head_dim,
            scores: Scores { dropout: shape.attention_dropout, softcap: false },
            attend,
        }
    }

    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        hidden_states.torch().inside(self.module, || {
            let qkv = self.qkv_proj.forward(hidden_states);
            let [mut query, mut key, value] =
                [self.queries, self.keys, self.keys].map(|width| ops::slice_last(&qkv, width));
            query = heads(&query, self.head_dim);
            key = heads(&key, self.head_dim);
            let value = heads(&value, self.head_dim);
            (query, key) =
                apply_partial_rotary(&query, &key, &context.position_embeddings, Rejoin::EachAtOnce);
            let mask = context.attention_mask.as_ref();
            let (attended, weights) = attend(self.attend, [&query, &key, &value], mask, self.scores);
            let merged = merge_heads(attended);
            (self.o_proj.forward(&merged), weights)
        })
    }
}

struct Mlp {
    module: ModuleId,
    activation_fn: ModuleId,
    activation: Activation,
    gate_up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn new(build: &mut Builder, parent: ModuleId, hidden: u64, phi3: &Phi3) -> Mlp {
        let module = build.module(parent, "mlp");
        let inner = phi3.intermediate_size;
        Mlp {
            module,
            gate_up_proj: Linear::new(
                build,
                module,
                "gate_up_proj",
                (hidden, inner.saturating_mul(2)),
                false,
            ),
            down_proj: Linear::new(build, module, "down_proj", (inner, hidden), false),
            activation_fn: build.module(module, "activation_fn"),
            activation: phi3.hidden_act,
        }
    }

    fn forward(&self, hidden_states: &Tensor) -> Tensor {
        let torch = hidden_states.torch();
        torch.inside(self.module, || {
            let states = self.gate_up_proj.forward(hidden_states);
            let half = states.size(-1) / 2;
            let [gate, mut up] = ops::split_last(&states, [half, half]);
            drop(states);
            up = ops::mul(&up, torch.inside(self.activation_fn, || activate(self.activation, gate.clone())));
            self.down_proj.forward(&up)
        })
    }
}
