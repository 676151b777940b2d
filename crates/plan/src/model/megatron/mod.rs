//! Megatron-Core's GPT with Transformer Engine's modules (`megatron/core/models/gpt/gpt_model.py`, 0.16; layers by
//! `get_gpt_layer_with_transformer_engine_spec`), as one rank holds it: its part of every matrix, its tokens of every sequence,
//! its layers.
//!
//! Hidden states lie as `[s, b, h]`; between the matrices they are split by sequence where sequence parallelism is on. A
//! Python name holds its tensor until it is bound again or its function returns, here as in the other models.

mod attention;
mod embedding;
mod head;
mod layer;
mod loss;
mod mla;
mod mlp;
mod moe;
mod router;

use super::{Batch, Model, Run};
use crate::config::Shape;
use crate::nn::te::{ANGLES, DotProductAttention, RmsNorm, Shared};
use crate::nn::{Builder, Linear};
use crate::options::{Options, Recompute};
use crate::torch::reentrant::reentrant_checkpoint;
use crate::torch::trail::Part;
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use embedding::VocabParallelEmbedding;
use head::ColumnParallelHead;
use layer::TransformerLayer;
pub(crate) use mla::Latent;
pub(crate) use moe::Experts;
use peakledger_core::Category;
pub(crate) use router::Score;
use std::cell::RefCell;
use std::rc::Rc;

/// What a family is to Megatron, beside its shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpt {
    /// Whether queries, keys and values have a bias (`--add-qkv-bias`).
    pub(crate) qkv_bias: bool,
    /// Whether queries and keys are normed, head by head (`--qk-layernorm`).
    pub(crate) qk_norm: bool,
    /// The widths of latent attention, where that is what layers have (`--multi-latent-attention`).
    pub(crate) latent: Option<Latent>,
    /// The width inside an MLP (`--ffn-hidden-size`).
    pub(crate) ffn_hidden_size: u64,
    /// The experts of layers that have them in its place.
    pub(crate) experts: Option<Experts>,
}

/// Rows of the embedding on all ranks together: a multiple of 128 for each rank of the tensor parallel group
/// (`--make-vocab-size-divisible-by`; `vocab_size_with_padding` in `megatron/training/tokenizer/tokenizer.py`).
pub(crate) fn padded_vocabulary(vocab_size: u64, tp: u32) -> u64 {
    vocab_size.next_multiple_of(128 * u64::from(tp.max(1)))
}

/// The part of the model that a rank runs.
pub(crate) struct GptModel {
    root: ModuleId,
    decoder: ModuleId,
    shared: Rc<Shared>,
    embedding: Option<VocabParallelEmbedding>,
    layers: Vec<Rc<TransformerLayer>>,
    first_layer: u32,
    final_layernorm: Option<RmsNorm>,
    output_layer: Option<ColumnParallelHead>,
    /// Latent attention turns by tables of its own.
    rotary: Option<Rotary>,
    recompute: Recompute,
    fused_loss: bool,
}

impl GptModel {
    pub(crate) fn new(
        build: &mut Builder,
        (shape, gpt): (&Shape, &Gpt),
        run: Run,
        (options, shared): (&Options, &Rc<Shared>),
    ) -> GptModel {
        let part = run.part;
        let root = build.root();
        let vocabulary = padded_vocabulary(shape.vocab_size, shared.tp) / u64::from(shared.tp);
        let rows = [vocabulary, shape.hidden_size];
        let embedding = part.embeds.then(|| VocabParallelEmbedding::new(build, root, rows, shared));
        let is_tied_over_stages = shape.tie_word_embeddings && part.embeds != part.ends;
        if part.embeds && is_tied_over_stages {
            build.is_on_two_stages();
        }
        let rotary = gpt.latent.is_none().then(|| Rotary::new(build, root, shape.head_dim, shared));
        let decoder = build.module(root, "decoder");
        let list = build.module(decoder, "layers");
        let layers = part.layers().map(|index| {
            let module = build.indexed(list, index);
            Rc::new(TransformerLayer::new(build, (module, index), (shape, gpt), run.recompute, shared))
        });
        let layers = layers.collect();
        let final_layernorm =
            part.ends.then(|| RmsNorm::new(build, decoder, "final_layernorm", shape.hidden_size));
        let tied = embedding.as_ref().filter(|_| shape.tie_word_embeddings).map(|it| it.weight.clone());
        let output_layer = part.ends.then(|| ColumnParallelHead::new(build, root, rows, tied, shared));
        if part.ends && is_tied_over_stages {
            build.is_on_two_stages();
        }
        GptModel {
            root,
            decoder,
            shared: shared.clone(),
            embedding,
            layers,
            first_layer: part.first,
            final_layernorm,
            output_layer,
            rotary,
            recompute: run.recompute,
            fused_loss: options.fused_loss,
        }
    }

    /// `TransformerBlock._checkpointed_forward`: with `recompute_method="uniform"` so many layers are in a checkpoint, with
    /// `"block"` some layers are one each.
    fn run_layers(&self, mut hidden_states: Tensor, angles: Option<&Tensor>) -> Tensor {
        let through =
            |layers: &[Rc<TransformerLayer>], mut hidden_states: Tensor, angles: Option<&Tensor>| {
                for layer in layers {
                    hidden_states = layer.forward(&hidden_states, angles);
                }
                hidden_states
            };
        let together = self.recompute.layers().map_or(1, |layers| layers.get() as usize);
        let torch = self.shared.torch();
        let (left_out, first) = (torch.left_out(), self.first_layer as usize);
        let run_now = |(layer, _): &(usize, &Rc<TransformerLayer>)| !left_out.contains(layer);
        let run: Vec<Rc<TransformerLayer>> =
            (first..).zip(&self.layers).filter(run_now).map(|(_, layer)| layer.clone()).collect();
        for (layers, at) in run.chunks(together).zip((first..).step_by(together)) {
            let index = u32::try_from(torch.in_model(at)).unwrap_or(u32::MAX);
            torch.enters(Part::Layer(at));
            let checkpoints = match self.recompute {
                Recompute::Full | Recompute::Every(_) => true,
                Recompute::Layers(some) => some.contains(index),
                Recompute::None | Recompute::Selective | Recompute::Block(_) => false, // whose layers are named by now
            };
            if !checkpoints {
                hidden_states = through(layers, hidden_states, angles);
                continue;
            }
            let layers = layers.to_vec();
            let inputs: Vec<&Tensor> = [&hidden_states].into_iter().chain(angles).collect();
            hidden_states = reentrant_checkpoint(&inputs, move |inputs| {
                let [input, angles @ ..] = inputs else { unreachable!("as many as were given") };
                through(&layers, input.clone(), angles.first())
            });
        }
        torch.enters(Part::Between);
        hidden_states
    }
}

impl Model for GptModel {
    fn decode(&self, batch: &Batch) -> Tensor {
        let torch = self.shared.torch();
        torch.inside(self.root, || {
            let decoder_input = match &self.embedding {
                Some(embedding) => embedding.forward(&batch.input),
                None => batch.input.clone(),
            };
            let tokens = match &self.embedding {
                Some(_) => batch.input.size(1),
                None if self.shared.sequence_parallel => batch.input.size(0) * u64::from(self.shared.tp),
                None => batch.input.size(0),
            };
            let angles = self.rotary.as_ref().map(|rotary| rotary.forward(tokens));
            torch.inside(self.decoder, || {
                let hidden_states = self.run_layers(decoder_input.clone(), angles.as_ref());
                match &self.final_layernorm {
                    Some(norm) => norm.forward(&hidden_states),
                    None => hidden_states,
                }
            })
        })
    }

    fn head(&self) -> Option<&Linear> {
        None
    }

    fn logits(&self, last_hidden_state: &Tensor) -> Option<Tensor> {
        Some(self.output_layer.as_ref()?.forward(last_hidden_state))
    }

    fn own_loss(&self, logits: &Tensor, batch: &Batch) -> Option<Tensor> {
        Some(loss::loss(logits, batch, self.fused_loss, &self.shared))
    }
}

/// `_checkpointed_attention_forward`: the attention itself, computed again in backward.
fn recompute_core(core: &Rc<DotProductAttention>, qkv: [&Tensor; 3]) -> Tensor {
    let core = core.clone();
    reentrant_checkpoint(&qkv, move |inputs| {
        let [query, key, value] = inputs else { unreachable!("as many as were given") };
        core.forward([query, key, value])
    })
}

/// `RotaryEmbedding` (`core/models/common/embeddings/rotary_pos_embedding.py`): the angles of all positions, made once and kept
/// by an `lru_cache`; a context parallel rank keeps those of its positions.
struct Rotary {
    module: ModuleId,
    inv_freq: Tensor,
    width: u64,
    shared: Rc<Shared>,
    angles: RefCell<Option<Tensor>>,
}

impl Rotary {
    fn new(build: &mut Builder, parent: ModuleId, width: u64, shared: &Rc<Shared>) -> Rotary {
        let module = build.module(parent, "rotary_pos_emb");
        let inv_freq = build.buffer(module, "inv_freq", &[width / 2], Dtype::F32);
        Rotary { module, inv_freq, width, shared: shared.clone(), angles: RefCell::new(None) }
    }

    /// The angles of this rank's positions, `[s / cp, 1, 1, width]`.
    fn forward(&self, tokens: u64) -> Tensor {
        let mut cached = self.angles.borrow_mut();
        if let Some(angles) = &*cached {
            return angles.clone();
        }
        let torch = self.shared.torch();
        let make = |op, positions: u64, width: u64| {
            torch.launch(op);
            torch.empty(Layout::contiguous(&[positions, 1, 1, width]), Dtype::F32)
        };
        let angles = torch.once(|| {
            torch.inside(self.module, || {
                torch.reads(&[&self.inv_freq]);
                let all = tokens.saturating_mul(u64::from(self.shared.cp));
                let positions = make("arange", all, 1);
                let freqs = make("outer", all, self.width / 2);
                drop(positions);
                let angles = make("cat", all, self.width);
                drop(freqs);
                match self.shared.cp {
                    1 => angles,
                    _ => make("index_select", tokens, self.width),
                }
            })
        });
        angles.rename(Category::Activation, ANGLES);
        cached.insert(ops::contiguous(angles)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::open_model;
    use crate::config::Architecture;
    use crate::nn::count;
    use crate::parallel::{Mesh, Parallel, Stack};
    use crate::torch::Torch;

    /// Ranks have all of a model between them, norms each whole, and rows of padding beyond.
    #[test]
    fn the_parts_of_all_ranks_are_the_model() {
        for (name, tp) in [("llama-3.1-8b", 1), ("llama-3.1-8b", 2), ("llama-3.1-8b", 8), ("qwen3-0.6b", 4)] {
            let architecture = Architecture::read(&open_model(name).unwrap().config).unwrap();
            let shape = &architecture.shape;
            let parallel = Parallel { tp, ..Parallel::default() };
            let options = Options { stack: Stack::Megatron, parallel, ..Options::default() };
            let mesh = Mesh::of(&options.parallel).unwrap();
            let mut build = Builder::new(Torch::new(0, None), &options);
            let run = Run::none(shape);
            let gpt = architecture.blueprint.megatron(shape).unwrap();
            let shared = Shared::new(&build.torch, &options, &mesh, 1);
            let _model = GptModel::new(&mut build, (shape, &gpt), run, (&options, &shared));
            let tables = if shape.tie_word_embeddings { 1 } else { 2 };
            let padding = padded_vocabulary(shape.vocab_size, tp) - shape.vocab_size;
            let padding = padding * shape.hidden_size * tables;
            assert_eq!(count(&build.parameters), architecture.parameters() + padding, "{name}");
            let numbers = |p: &crate::nn::Parameter| p.tensor.layout().numel();
            let of_rank: u64 = build.parameters.iter().map(numbers).sum();
            let norms = build.parameters.iter().filter(|p| p.tensor.sizes().len() == 1).map(numbers);
            let norms: u64 = norms.sum();
            let all = (of_rank - norms) * u64::from(tp) + norms;
            assert_eq!(all, architecture.parameters() + padding, "{name} on {tp} ranks");
        }
    }

    #[test]
    fn the_vocabulary_is_padded_for_every_rank() {
        assert_eq!(padded_vocabulary(128_256, 1), 128_256);
        assert_eq!(padded_vocabulary(128_257, 1), 128_384);
        assert_eq!(padded_vocabulary(128_257, 8), 129_024);
        assert_eq!(padded_vocabulary(50_257, 2), 50_432);
    }
}
