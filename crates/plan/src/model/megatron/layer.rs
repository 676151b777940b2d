//! `TransformerLayer` (`megatron/core/transformer/transformer_layer.py`) without dropout: attention and MLP, each added to what
//! went into it. The norms are inside the matrices that follow them, but for those before experts and before latent attention.

use super::Gpt;
use super::attention::SelfAttention;
use super::mla::MlaSelfAttention;
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
    self_attention: Attention,
    mlp: Feed,
}

/// Attention, with its norm inside or before it.
enum Attention {
    Plain(Box<SelfAttention>),
    Latent { input_layernorm: RmsNorm, attention: Box<MlaSelfAttention> },
}

/// What follows attention.
enum Feed {
    Dense(Box<Mlp>),
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
        let self_attention = match &gpt.latent {
            None => Attention::Plain(Box::new(SelfAttention::new(
                build,
                module,
                (shape, gpt),
                recomputes_core,
                shared,
            ))),
            Some(latent) => Attention::Latent {
                input_layernorm: RmsNorm::new(build, module, "input_layernorm", shape.hidden_size),
                attention: Box::new(MlaSelfAttention::new(
                    build,
                    module,
                    (shape, latent),
                    recomputes_core,
                    shared,
                )),
            },
        };
        let experts = gpt.experts.as_ref().filter(|it| it.layers.get(index as usize) == Some(&true));
        let mlp = match experts {
            None => Feed::Dense(Box::new(Mlp::new(build, module, sizes, shared))),
            Some(experts) => Feed::Experts {
                pre_mlp_layernorm: RmsNorm::new(build, module, "pre_mlp_layernorm", shape.hidden_size),
                moe: Box::new(MoeLayer::new(build, module, shape, experts, shared)),
            },
        };
        TransformerLayer { module, self_attention, mlp }
    }

    /// `angles` are those of all layers, where attention does not keep its own.
    pub(super) fn forward(&self, input: &Tensor, angles: Option<&Tensor>) -> Tensor {
        input.torch().inside(self.module, || {
            let attended = match (&self.self_attention, angles) {
                (Attention::Plain(attention), Some(angles)) => attention.forward(input, angles),
                (Attention::Plain(_), None) => unreachable!("the model makes them for these layers"),
                (Attention::Latent { input_layernorm, attention }, _) => {
                    attention.forward(&input_layernorm.forward(input))
                }
            };
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
