//! `gpt_neox` (Pythia): attention and MLP side by side, LayerNorm, one matrix for queries, keys and values
//! (`transformers/models/gpt_neox/modeling_gpt_neox.py`).

use super::attention::{Attend, Scores, attend, merge_heads};
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
struct GptNeoX {
    intermediate_size: u64,
    hidden_act: Activation,
    attention_bias: bool,
    hidden_dropout: f64,
    parallel_residual: bool,
    rotary_width: u64,
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
    let share = reader.fraction("partial_rotary_factor", reader.fraction("rotary_pct", 0.25)?)?;
    let neox = GptNeoX {
        intermediate_size: reader.size(&["intermediate_size"])?,
        hidden_act: reader.activation("hidden_act", Activation::Gelu)?,
        attention_bias: reader.flag("attention_bias")?.unwrap_or(true),
        hidden_dropout: reader.probability("hidden_dropout", 0.0)?,
        parallel_residual: reader.flag("use_parallel_residual")?.unwrap_or(true),
        rotary_width: partial_width(shape.head_dim, share),
    };
    Ok((shape, Arc::new(neox)))
}

impl Blueprint for GptNeoX {
    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model> {
        let layer = |build: &mut Builder, module, _| -> Rc<dyn Layer> {
            Rc::new(NeoXLayer::new(build, module, shape, self, run.attend))
        };
        let around = Around {
            norm: NormKind::Layer,
            names: ["gpt_neox", "embed_in", "final_layer_norm"],
            embedding_dropout: self.hidden_dropout,
            rotary_width: self.rotary_width,
            ..Around::usual(shape)
        };
        Box::new(Decoder::new(build, shape, run, around, layer))
    }
}

struct NeoXLayer {
    module: ModuleId,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
    attention: Attention,
    mlp: Mlp,
    dropout: f64,
    parallel_residual: bool,
}

impl NeoXLayer {
    fn new(
        build: &mut Builder,
        module: ModuleId,
        shape: &Shape,
        neox: &GptNeoX,
        attend: Attend,
    ) -> NeoXLayer {
        let norm =
            |build: &mut Builder, name| Norm::new(build, module, name, NormKind::Layer, shape.hidden_size);
        NeoXLayer {
            module,
            input_layernorm: norm(build, "input_layernorm"),
            post_attention_layernorm: norm(build, "post_attention_layernorm"),
            attention: Attention::new(build, module, shape, neox, attend),
            mlp: Mlp::new(build, module, shape.hidden_size, neox),
            dropout: neox.hidden_dropout,
            parallel_residual: neox.parallel_residual,
        }
    }
}

impl Layer for NeoXLayer {
    fn forward(&self, input: &Tensor, context: &Context) -> Tensor {
        input.torch().inside(self.module, || {
            let normed = self.input_layernorm.forward(input);
            let (mut attn_output, _attention_weights) = self.attention.forward(&normed, context);
            drop(normed);
            attn_output = ops::dropout(&attn_output, self.dropout);
            if self.parallel_residual {
                let mut mlp_output = self.mlp.forward(self.post_attention_layernorm.forward(input));
                mlp_output = ops::dropout(&mlp_output, self.dropout);
                ops::add(ops::add(&mlp_output, &attn_output), input)
            } else {
                attn_output = ops::add(&attn_output, input);
                let mut mlp_output = self.mlp.forward(self.post_attention_layernorm.forward(&attn_output));
                mlp_output = ops::dropout(&mlp_output, self.dropout);
                ops::add(&mlp_output, &attn_output)
            }
        })
    }
}

struct Attention {
    module: ModuleId,
    query_key_value: Linear,
    dense: Linear,
    head_dim: u64,
    scores: Scores,
    attend: Attend,
}

impl Attention {
    fn new(
        build: &mut Builder,
        parent: ModuleId,
        shape: &Shape,
        neox: &GptNeoX,
        attend: Attend,
    ) -> Attention {
        let module = build.module(parent, "attention");
        let (hidden, bias) = (shape.hidden_size, neox.attention_bias);
        Attention {
            module,
            query_key_value: Linear::new(
                build,
                module,
                "query_key_value",
                (hidden, hidden.saturating_mul(3)),
                bias,
            ),
            dense: Linear::new(build, module, "dense", (hidden, hidden), bias),
            head_dim: shape.head_dim,
            scores: Scores { dropout: shape.attention_dropout, softcap: false },
            attend,
        }
    }

    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        hidden_states.torch().inside(self.module, || {
            let width = self.head_dim.saturating_mul(3);
            let qkv = super::attention::heads(&self.query_key_value.forward(hidden_states), width);
            let [mut query, mut key, value] = ops::split_last(&qkv, [self.head_dim; 3]);
            (query, key) =
                apply_partial_rotary(&query, &key, &context.position_embeddings, Rejoin::AfterBoth);
            let mask = context.attention_mask.as_ref();
            let (attended, weights) = attend(self.attend, [&query, &key, &value], mask, self.scores);
            let merged = merge_heads(attended);
            (self.dense.forward(&merged), weights)
        })
    }
}

struct Mlp {
    module: ModuleId,
    act: ModuleId,
    activation: Activation,
    dense_h_to_4h: Linear,
    dense_4h_to_h: Linear,
}

impl Mlp {
    fn new(build: &mut Builder, parent: ModuleId, hidden: u64, neox: &GptNeoX) -> Mlp {
        let module = build.module(parent, "mlp");
        let inner = neox.intermediate_size;
        Mlp {
            module,
            dense_h_to_4h: Linear::new(build, module, "dense_h_to_4h", (hidden, inner), true),
            dense_4h_to_h: Linear::new(build, module, "dense_4h_to_h", (inner, hidden), true),
            act: build.module(module, "act"),
            activation: neox.hidden_act,
        }
    }

    fn forward(&self, normed: Tensor) -> Tensor {
        let torch = normed.torch().clone();
        torch.inside(self.module, || {
            let mut hidden_states = self.dense_h_to_4h.forward(&normed);
            hidden_states = torch.inside(self.act, || activate(self.activation, hidden_states.clone()));
            self.dense_4h_to_h.forward(&hidden_states)
        })
    }
}
