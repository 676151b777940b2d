//! `…ForCausalLM`: embedding, decoder layers, norm, head; and the loss over it
//! (`transformers/models/llama/modeling_llama.py`, `transformers/loss/loss_utils.py`).

use super::decoder::{Attend, Context, DecoderLayer, Masks};
use crate::config::{Architecture, Window};
use crate::nn::{Builder, Embedding, Linear, RmsNorm, RotaryEmbedding};
use crate::torch::checkpoint::checkpoint;
use crate::torch::{Dtype, ModuleId, Tensor, ops};
use std::rc::Rc;

/// A causal language model.
pub(crate) struct CausalLm {
    model: ModuleId,
    embed_tokens: Embedding,
    layers: Vec<Rc<DecoderLayer>>,
    norm: RmsNorm,
    rotary_emb: RotaryEmbedding,
    lm_head: Linear,
    loss_function: ModuleId,
    attend: Attend,
    window: Option<Window>,
    checkpointed: bool,
}

impl CausalLm {
    pub(crate) fn new(
        build: &mut Builder,
        arch: &Architecture,
        attend: Attend,
        checkpointed: bool,
    ) -> CausalLm {
        let root = build.root();
        let model = build.module(root, "model");
        let embed_tokens = Embedding::new(build, model, "embed_tokens", [arch.vocab_size, arch.hidden_size]);
        let list = build.module(model, "layers");
        let layers = (0..arch.num_hidden_layers)
            .map(|index| Rc::new(DecoderLayer::new(build, list, index, arch, attend)))
            .collect();
        let norm = RmsNorm::new(build, model, "norm", arch.hidden_size);
        let rotary_emb = RotaryEmbedding::new(build, model, arch.head_dim);
        let lm_head = if arch.tie_word_embeddings {
            Linear::tied(build, root, "lm_head", &embed_tokens.weight)
        } else {
            Linear::new(build, root, "lm_head", (arch.hidden_size, arch.vocab_size), false)
        };
        let loss_function = build.module(root, "loss_function");
        CausalLm {
            model,
            embed_tokens,
            layers,
            norm,
            rotary_emb,
            lm_head,
            loss_function,
            attend,
            window: arch.window,
            checkpointed,
        }
    }

    /// Logits `[b, s, vocabulary]` of ids `[b, s]`.
    pub(crate) fn forward(&self, input_ids: &Tensor) -> Tensor {
        let hidden_states = self.decode(input_ids);
        let logits = self.lm_head.forward(&hidden_states);
        logits.relabel(|stored| stored.detail = Some(peakledger_core::Detail::Output));
        logits
    }

    fn decode(&self, input_ids: &Tensor) -> Tensor {
        let torch = input_ids.torch();
        torch.inside(self.model, || {
            let inputs_embeds = self.embed_tokens.forward(input_ids);
            let length = input_ids.size(1);
            let position_ids = ops::unsqueeze(ops::add_scalar(ops::arange(torch, length)), 0);
            let attention_mask = self.masks(input_ids, inputs_embeds.dtype());
            let position_embeddings = self.rotary_emb.forward(&position_ids, inputs_embeds.dtype());
            let context = Context { position_embeddings, attention_mask, _position_ids: position_ids };
            let mut hidden_states = inputs_embeds.clone();
            for layer in &self.layers {
                hidden_states = if self.checkpointed {
                    let (layer, context) = (layer.clone(), context.clone());
                    checkpoint(hidden_states.clone(), move |input| layer.forward(input, &context))
                } else {
                    layer.forward(&hidden_states, &context)
                };
            }
            self.norm.forward(&hidden_states)
        })
    }

    /// `ForCausalLMLoss`: logits in fp32, labels shifted by one, cross entropy; a share of it with several micro-batches.
    pub(crate) fn loss(&self, logits: &Tensor, labels: &Tensor, micro_batches: usize) -> Tensor {
        logits.torch().inside(self.loss_function, || {
            let mut loss = cross_entropy(logits, labels);
            if micro_batches > 1 {
                loss = ops::div_scalar(&loss);
            }
            loss
        })
    }

    /// The masks that the layers need (`transformers/masking_utils.py`). sdpa goes without one where `is_causal` says the
    /// same, which it does unless the sequence reaches the window.
    fn masks(&self, input_ids: &Tensor, dtype: Dtype) -> Masks {
        let torch = input_ids.torch();
        let (batch, length) = (input_ids.size(0), input_ids.size(1));
        let mask = |windowed| match self.attend {
            Attend::Eager => {
                let allowed = ops::causal_mask(torch, batch, length, windowed);
                Some(ops::additive_mask(&allowed, dtype, ["zeros", "scalar_tensor"]))
            }
            Attend::Sdpa { .. } => {
                let reached = self.window.is_some_and(|window| length >= window.size);
                (windowed && reached).then(|| ops::causal_mask(torch, batch, length, true))
            }
        };
        let full = if self.window.is_none_or(|window| window.beside_full) { mask(false) } else { None };
        let sliding = if self.window.is_some() { mask(true) } else { None };
        Masks { full, sliding }
    }
}

fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let logits = ops::to(logits, Dtype::F32);
    let rows = labels.layout().numel();
    let padded = ops::constant_pad_last(labels, 1);
    let shift_labels = ops::contiguous(ops::slice_last(&padded, labels.size(-1)));
    let flat = ops::reshape(&logits, &[rows, logits.size(-1)]);
    ops::nll_loss(ops::log_softmax(&flat), &shift_labels)
}
