//! `TransformerLayer` (`megatron/core/transformer/transformer_layer.py`) without dropout: attention and MLP, each added to what
//! went into it. The norms are inside the matrices that follow them, but for that before experts.

use super::Gpt;
use super::attention::SelfAttention;
use super::mlp::Mlp;
use super::moe::MoeLayer;
use crate::config::Shape;
use crate::nn::Builder;
use crate::nn::te::{RmsNorm, Shared};
use crate::options::Recompute;
use crate::torch::{ModuleId, Tensor, ops};
use std::rc::Rc;

/// A layer.
pub(super) struct TransformerLayer {
    module: ModuleId,
    self_attention: SelfAttention,
    mlp: Feed,
}

/// What follows attention.
enum Feed {
    Dense(Mlp),
    Experts { pre_mlp_layernorm: RmsNorm, moe: Box<MoeLayer> },
}

impl TransformerLayer {
    pub(super) fn new(
        build: &mut Builder,
        (module, index): (ModuleId, u32),
        (shape, gpt): (&Shape, &Gpt),
        recompute: Recompute,
        shared: &Rc<Shared>,
    ) -> TransformerLayer {
        let recomputes_core = recompute == Recompute::Selective;
        let sizes = (shape.hidden_size, gpt.ffn_hidden_size);
        let self_attention = SelfAttention::new(build, module, (shape, gpt), recomputes_core, shared);
        let experts = gpt.experts.as_ref().filter(|it| it.layers.get(index as usize) == Some(&true));
        let mlp = match experts {
            None => Feed::Dense(Mlp::new(build, module, sizes, shared)),
            Some(experts) => Feed::Experts {
                pre_mlp_layernorm: RmsNorm::new(build, module, "pre_mlp_layernorm", shape.hidden_size),
                moe: Box::new(MoeLayer::new(build, module, shape, experts, shared)),
            },
        };
        TransformerLayer { module, self_attention, mlp }
    }

    pub(super) fn forward(&self, input: &Tensor, angles: &Tensor) -> Tensor {
        input.torch().inside(self.module, || {
            let attended = self.self_attention.forward(input, angles);
            let hidden_states = ops::add(input, &attended);
            drop(attended);
            let output = match &self.mlp {
                Feed::Dense(mlp) => mlp.forward(&hidden_states),
                Feed::Experts { pre_mlp_layernorm, moe } => {
                    moe.forward(&pre_mlp_layernorm.forward(&hidden_states))
                }
            };
            ops::add(&hidden_states, &output)
        })
    }
}
