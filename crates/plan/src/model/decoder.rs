//! `…ForCausalLM` with rotary positions: embedding, decoder layers, norm, head. The layers are the family's.

use super::{Attend, Batch, Block, Model, Run, run_blocks, through_head};
use crate::config::{Shape, Window};
use crate::nn::{Builder, Embedding, Linear, Norm, NormKind, RotaryEmbedding};
use crate::torch::ops::Ring;
use crate::torch::{Dtype, ModuleId, Tensor, ops};
use std::rc::Rc;

/// A decoder layer of a family.
pub(crate) trait Layer {
    /// Hidden states in, hidden states out.
    fn forward(&self, hidden_states: &Tensor, context: &Context) -> Tensor;
}

/// What a layer is given beside the hidden states, and what its checkpoint holds on to.
#[derive(Clone)]
pub(crate) struct Context {
    /// Cosines and sines.
    pub(crate) position_embeddings: (Tensor, Tensor),
    pub(crate) attention_mask: Option<Tensor>,
    /// Handed on to every layer though none uses them.
    pub(crate) _position_ids: Tensor,
}

/// What differs between families around the layers.
pub(crate) struct Around {
    /// The names of the base model, its embedding and its last norm.
    pub(crate) names: [&'static str; 3],
    /// How the last norm is written.
    pub(crate) norm: NormKind,
    /// Whether the embedding is multiplied by a scale that lies on the device.
    pub(crate) scaled_embedding: bool,
    /// The chance that an element of the embedding is dropped.
    pub(crate) embedding_dropout: f64,
    /// The width of a head that is turned.
    pub(crate) rotary_width: u64,
    /// The type of the rotary tables; nothing for that of the hidden states.
    pub(crate) rotary_dtype: Option<Dtype>,
    /// Whether layers with a window turn by tables of their own.
    pub(crate) own_sliding_tables: bool,
    /// Whether logits go through `cap * tanh(logits / cap)`.
    pub(crate) logit_softcap: bool,
}

impl Around {
    /// As llama has it.
    pub(crate) fn usual(shape: &Shape) -> Around {
        Around {
            names: ["model", "embed_tokens", "norm"],
            norm: NormKind::Rms,
            scaled_embedding: false,
            embedding_dropout: 0.0,
            rotary_width: shape.head_dim,
            rotary_dtype: None,
            own_sliding_tables: false,
            logit_softcap: false,
        }
    }
}

/// The model.
pub(crate) struct Decoder {
    model: ModuleId,
    embed_tokens: Option<Embedding>,
    embed_scale: Option<Tensor>,
    layers: Vec<Rc<dyn Layer>>,
    norm: Option<Norm>,
    rotary: Option<RotaryEmbedding>,
    sliding_rotary: Option<RotaryEmbedding>,
    lm_head: Option<Linear>,
    around: Around,
    run: Run,
    window: Option<Window>,
}

/// Whether a layer looks through a window.
fn is_sliding(window: Option<&Window>, layer: usize) -> bool {
    window.is_some_and(|window| window.layers.get(layer) == Some(&true))
}

impl Decoder {
    /// Builds the part of the model that is run; `layer` builds one of its layers.
    pub(crate) fn new(
        build: &mut Builder,
        shape: &Shape,
        run: Run,
        around: Around,
        layer: impl Fn(&mut Builder, ModuleId, u32) -> Rc<dyn Layer>,
    ) -> Decoder {
        let root = build.root();
        let [base, embedding, last_norm] = around.names;
        let model = build.module(root, base);
        let part = run.part;
        let embed_tokens = part
            .embeds
            .then(|| Embedding::new(build, model, embedding, [shape.vocab_size, shape.hidden_size]));
        let embed_scale = embed_tokens
            .as_ref()
            .filter(|_| around.scaled_embedding)
            .map(|embedding| build.buffer(embedding.module, "embed_scale", &[], build.dtype));
        let list = build.module(model, "layers");
        let layers = part.layers().map(|index| {
            let module = build.indexed(list, index);
            layer(build, module, index)
        });
        let layers = layers.collect();
        let norm = part.ends.then(|| Norm::new(build, model, last_norm, around.norm, shape.hidden_size));
        let own_tables = around.own_sliding_tables && shape.window.is_some();
        let all_sliding = shape.window.as_ref().is_some_and(|window| !window.layers.contains(&false));
        let rotary_emb = build.module(model, "rotary_emb");
        let tables =
            |build: &mut Builder, names| RotaryEmbedding::new(build, rotary_emb, names, around.rotary_width);
        let rotary = (!own_tables || !all_sliding).then(|| tables(build, ["inv_freq", "original_inv_freq"]));
        let sliding_names = ["sliding_attention_inv_freq", "sliding_attention_original_inv_freq"];
        let sliding_rotary = own_tables.then(|| tables(build, sliding_names));
        let lm_head = part.ends.then(|| match &embed_tokens {
            Some(embedding) if shape.tie_word_embeddings => {
                Linear::tied(build, root, "lm_head", &embedding.weight, [shape.vocab_size, shape.hidden_size])
            }
            _ => Linear::new(build, root, "lm_head", (shape.hidden_size, shape.vocab_size), false),
        });
        let window = shape.window.clone();
        Decoder {
            model,
            embed_tokens,
            embed_scale,
            layers,
            norm,
            rotary,
            sliding_rotary,
            lm_head,
            around,
            run,
            window,
        }
    }

    /// The hidden states that go into the first layer: those that the part before put out, where it has no embedding.
    fn embed(&self, input: &Tensor) -> Tensor {
        let Some(embed_tokens) = &self.embed_tokens else { return input.clone() };
        let module = embed_tokens.module;
        let scaled = |embedded: Tensor| match &self.embed_scale {
            None => embedded,
            Some(scale) => ops::mul(&embedded, ops::to(scale, embed_tokens.weight.dtype())),
        };
        let embedded = embed_tokens.forward_then(input, scaled);
        self.run.input(embedded, module)
    }
}

impl Model for Decoder {
    fn decode(&self, batch: &Batch) -> Tensor {
        let torch = batch.input.torch();
        torch.inside(self.model, || {
            let inputs_embeds = self.embed(&batch.input);
            let position_ids = match &batch.position_ids {
                Some(passed) => passed.clone(),
                None => ops::unsqueeze(ops::add_scalar(ops::arange(torch, batch.input.size(1))), 0),
            };
            let masks = match self.run.attend {
                Attend::Sdpa { ring: Some(ring), .. } => Masks::of_shared(ring, &position_ids),
                attend => Masks::new(attend, self.window.as_ref(), batch, inputs_embeds.dtype()),
            };
            let hidden_states = match self.embed_tokens {
                Some(_) => ops::dropout(&inputs_embeds, self.around.embedding_dropout),
                None => inputs_embeds.clone(),
            };
            let dtype = self.around.rotary_dtype.unwrap_or(hidden_states.dtype());
            let tables = |rotary: &RotaryEmbedding| rotary.forward(&position_ids, dtype);
            let [sliding, full] =
                [&self.sliding_rotary, &self.rotary].map(|rotary| rotary.as_ref().map(tables));
            let mut blocks: Vec<Block> = Vec::with_capacity(self.layers.len());
            for (index, layer) in self.run.part.layers().zip(&self.layers) {
                let is_sliding = is_sliding(self.window.as_ref(), index as usize);
                let own = sliding.as_ref().filter(|_| is_sliding || full.is_none());
                let Some(position_embeddings) = own.or(full.as_ref()).cloned() else { continue };
                let context = Context {
                    position_embeddings,
                    attention_mask: masks.of(is_sliding).cloned(),
                    _position_ids: position_ids.clone(),
                };
                let layer = layer.clone();
                blocks.push(Box::new(move |hidden_states| layer.forward(hidden_states, &context)));
            }
            let hidden_states = run_blocks(hidden_states, blocks, self.run);
            match &self.norm {
                Some(norm) => norm.forward(&hidden_states),
                None => hidden_states,
            }
        })
    }

    fn head(&self) -> Option<&Linear> {
        self.lm_head.as_ref()
    }

    fn logits(&self, last_hidden_state: &Tensor) -> Option<Tensor> {
        let mut logits = through_head(self.lm_head.as_ref()?, last_hidden_state);
        if self.around.logit_softcap {
            logits = ops::div_scalar(&logits);
            logits = ops::tanh(&logits);
            logits = ops::mul_scalar(&logits);
        }
        Some(logits)
    }
}

/// The masks of a forward pass (`transformers/masking_utils.py`): for layers that look at everything before them, and for
/// those that look through a window.
pub(crate) struct Masks {
    full: Option<Tensor>,
    sliding: Option<Tensor>,
}

impl Masks {
    /// Makes the masks that are needed. sdpa goes without one where `is_causal` says the same, which it does unless there is
    /// padding or the sequence reaches the window.
    pub(crate) fn new(attend: Attend, window: Option<&Window>, batch: &Batch, dtype: Dtype) -> Masks {
        let (torch, padding) = (batch.input.torch(), batch.attention_mask.as_ref());
        let (rows, length) = (batch.input.size(0), batch.input.size(1));
        let mask = |windowed| {
            let reached = window.is_some_and(|window| length >= window.size);
            let padding = padding.map(|mask| ops::to_copy(mask, Dtype::Bool));
            let allowed = || ops::causal_mask(torch, [rows, length], windowed, padding.as_ref());
            match attend {
                Attend::Eager => Some(ops::additive_mask(&allowed(), dtype, ["zeros", "scalar_tensor"])),
                Attend::Sdpa { .. } => (padding.is_some() || (windowed && reached)).then(allowed),
            }
        };
        let full = if window.is_none_or(|window| window.beside_full) { mask(false) } else { None };
        let sliding = if window.is_some() { mask(true) } else { None };
        Masks { full, sliding }
    }

    /// Of a sequence that ranks share: where a rank's two parts of it do not meet, they are taken for packed sequences and a
    /// mask keeps them apart. No layer uses it, but it is there until the last has run.
    fn of_shared(ring: Ring, position_ids: &Tensor) -> Masks {
        let sequences = ops::packed_sequences(position_ids);
        let full = ring.has_a_gap().then(|| ops::packed_mask(&sequences, position_ids));
        Masks { full, sliding: None }
    }

    /// The mask of a layer.
    pub(crate) fn of(&self, is_sliding: bool) -> Option<&Tensor> {
        if is_sliding { self.sliding.as_ref() } else { self.full.as_ref() }
    }
}
