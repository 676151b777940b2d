//! `MLASelfAttention` (`megatron/core/transformer/multi_latent_attention.py`): queries, and keys and values of a rank's heads, each
//! from a narrow latent; one head's worth of keys is turned by position and shared by all heads.
//!
//! The matrices down to the latents are whole on every tensor parallel rank (`parallel_mode="duplicated"`) and run over its
//! part of the sequence; those up from them are split by heads, with the norm of the latent inside (`--qk-layernorm`). Positions
//! are YaRN's, Megatron's default for these layers, turned by its fused kernels: each layer keeps tables of its own.

use super::recompute_core;
use crate::config::Shape;
use crate::nn::Builder;
use crate::nn::te::{
    ANGLES, DotProductAttention, LayerNormLinear, Linear, Mode, Shared, rope_for_kv, rope_for_q,
};
use crate::torch::autograd::record;
use crate::torch::{Dtype, Layout, ModuleId, Tensor, ops};
use peakledger_core::Category;
use smallvec::smallvec;
use std::cell::RefCell;
use std::rc::Rc;

/// The widths of latent attention, by Megatron's names (`MLATransformerConfig`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latent {
    /// The latent of queries, if they come from one.
    pub(crate) q_lora_rank: Option<u64>,
    /// The latent of keys and values.
    pub(crate) kv_lora_rank: u64,
    /// The part of a head's queries and keys that has no position.
    pub(crate) qk_head_dim: u64,
    /// The part that is turned.
    pub(crate) qk_pos_emb_head_dim: u64,
    /// A head's values.
    pub(crate) v_head_dim: u64,
}

/// Attention over latents, without the norm before it.
pub(super) struct MlaSelfAttention {
    module: ModuleId,
    queries: Queries,
    linear_kv_down_proj: Linear,
    linear_kv_up_proj: LayerNormLinear,
    rotary_pos_emb: YarnRotaryEmbedding,
    core: Rc<DotProductAttention>,
    recomputes_core: bool,
    linear_proj: Linear,
    shared: Rc<Shared>,
    /// Heads of this rank.
    heads: u64,
    latent: Latent,
}

/// Where queries come from.
enum Queries {
    HiddenStates { linear_q_proj: Linear },
    Latent { linear_q_down_proj: Linear, linear_q_up_proj: LayerNormLinear },
}

impl MlaSelfAttention {
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        (shape, latent): (&Shape, &Latent),
        recomputes_core: bool,
        shared: &Rc<Shared>,
    ) -> MlaSelfAttention {
        let module = build.module(parent, "self_attention");
        let (heads, hidden) = (shape.num_attention_heads, shape.hidden_size);
        let of_heads = |width: u64| heads.saturating_mul(width);
        let q_head_dim = latent.qk_head_dim.saturating_add(latent.qk_pos_emb_head_dim);
        let keys_and_values = latent.qk_head_dim.saturating_add(latent.v_head_dim);
        let linear = |build: &mut Builder, name, sizes, mode| {
            Linear::new(build, module, name, sizes, false, (mode, shared))
        };
        let linear_proj = linear(build, "linear_proj", (of_heads(latent.v_head_dim), hidden), Mode::Row);
        let queries = match latent.q_lora_rank {
            None => Queries::HiddenStates {
                linear_q_proj: linear(build, "linear_q_proj", (hidden, of_heads(q_head_dim)), Mode::Column),
            },
            Some(rank) => {
                let up = (rank, of_heads(q_head_dim));
                Queries::Latent {
                    linear_q_down_proj: linear(build, "linear_q_down_proj", (hidden, rank), Mode::Duplicated),
                    linear_q_up_proj: LayerNormLinear::new(
                        build,
                        module,
                        "linear_q_up_proj",
                        up,
                        false,
                        shared,
                    ),
                }
            }
        };
        let down = (hidden, latent.kv_lora_rank.saturating_add(latent.qk_pos_emb_head_dim));
        let up = (latent.kv_lora_rank, of_heads(keys_and_values));
        MlaSelfAttention {
            module,
            queries,
            linear_kv_down_proj: linear(build, "linear_kv_down_proj", down, Mode::Duplicated),
            linear_kv_up_proj: LayerNormLinear::new(build, module, "linear_kv_up_proj", up, false, shared),
            rotary_pos_emb: YarnRotaryEmbedding::new(build, module, latent.qk_pos_emb_head_dim, shared),
            core: Rc::new(DotProductAttention::new(shared)),
            recomputes_core,
            linear_proj,
            shared: shared.clone(),
            heads: heads / u64::from(shared.tp),
            latent: *latent,
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        x.torch().inside(self.module, || {
            // `q_compressed` and `kv_compressed` are names until the function returns
            let ([query, key, value], _compressed) = self.queries_keys_values(x);
            let attended = match self.recomputes_core {
                false => self.core.forward([&query, &key, &value]),
                true => recompute_core(&self.core, [&query, &key, &value]),
            };
            self.linear_proj.forward(&attended)
        })
    }

    /// `get_query_key_value_tensors`: queries, keys and values, and the two latents.
    fn queries_keys_values(&self, x: &Tensor) -> ([Tensor; 3], [Tensor; 2]) {
        let (latent, shared) = (&self.latent, &self.shared);
        let tables = self.rotary_pos_emb.tables(x);
        let q_compressed = match &self.queries {
            Queries::HiddenStates { .. } => x.clone(),
            Queries::Latent { linear_q_down_proj, .. } => linear_q_down_proj.forward(x),
        };
        let kv_combined = self.linear_kv_down_proj.forward(x);
        let widths = [latent.kv_lora_rank, latent.qk_pos_emb_head_dim];
        let [kv_compressed, mut k_pos_emb] = ops::split_last(&kv_combined, widths);
        if shared.sequence_parallel {
            k_pos_emb = gathered(&k_pos_emb, shared);
        }
        // the norms are inside the matrices that follow
        let q = match &self.queries {
            Queries::HiddenStates { linear_q_proj } => linear_q_proj.forward(&q_compressed),
            Queries::Latent { linear_q_up_proj, .. } => linear_q_up_proj.forward(&q_compressed),
        };
        let by_heads = |x: &Tensor| {
            let width = x.size(-1) / self.heads.max(1);
            ops::reshape(x, &[x.size(0), x.size(1), self.heads, width])
        };
        let q = by_heads(&q);
        let kv = by_heads(&self.linear_kv_up_proj.forward(&kv_compressed));
        let query = rope_for_q(&q, &tables);
        let [key, value] = rope_for_kv(&kv, &ops::unsqueeze(&k_pos_emb, 2), &tables, latent.v_head_dim);
        ([query, key, value], [q_compressed, kv_compressed])
    }
}

/// `gather_from_sequence_parallel_region` (`tensor_parallel/mappings.py`): its gradient is summed and scattered.
fn gathered(x: &Tensor, shared: &Rc<Shared>) -> Tensor {
    let whole = x.torch().without_grad(|| shared.all_gather(&ops::contiguous(x)));
    let shared = shared.clone();
    record(whole, &[x], move |grad| smallvec![Some(shared.reduce_scatter(&ops::contiguous(grad)))])
}

/// `YarnRotaryEmbedding` (`core/models/common/embeddings/yarn_rotary_pos_embedding.py`), one for each layer: cosines and sines in
/// the type of the hidden states, made in its first forward and kept (`get_cached_cos_sin`). The tables of
/// `original_max_position_embeddings` that it is built with are theirs no longer then, and are left out.
struct YarnRotaryEmbedding {
    module: ModuleId,
    width: u64,
    frequencies: [Tensor; 3],
    shared: Rc<Shared>,
    cached: RefCell<Option<[Tensor; 2]>>,
}

impl YarnRotaryEmbedding {
    fn new(build: &Builder, parent: ModuleId, width: u64, shared: &Rc<Shared>) -> YarnRotaryEmbedding {
        let module = build.module(parent, "rotary_pos_emb");
        let names = ["inv_freq_extra", "inv_freq_inter", "inv_freq"];
        let frequencies = names.map(|name| build.buffer(module, name, &[width / 2], Dtype::F32));
        YarnRotaryEmbedding { module, width, frequencies, shared: shared.clone(), cached: RefCell::new(None) }
    }

    /// Cosines and sines of this rank's positions, `[s / cp, 1, 1, width]` each.
    fn tables(&self, x: &Tensor) -> [Tensor; 2] {
        let mut cached = self.cached.borrow_mut();
        if let Some(tables) = &*cached {
            return tables.clone();
        }
        let (torch, shared) = (x.torch(), &self.shared);
        let tokens = if shared.sequence_parallel { x.size(0) * u64::from(shared.tp) } else { x.size(0) };
        let make = |op, positions: u64, width: u64, dtype| {
            torch.launch(op);
            torch.empty(Layout::contiguous(&[positions, 1, 1, width]), dtype)
        };
        let (width, dtype) = (self.width, x.dtype());
        let tables = torch.once(|| {
            torch.inside(self.module, || {
                torch.reads(&self.frequencies.each_ref());
                let all = tokens.saturating_mul(u64::from(shared.cp));
                let positions = make("arange", all, 1, Dtype::F32);
                let seq = make("add.Tensor", all, 1, Dtype::F32);
                drop(positions);
                let freqs = make("outer", all, width / 2, Dtype::F32);
                let mut angles = make("cat", all, width, Dtype::F32);
                drop((freqs, seq));
                if shared.cp > 1 {
                    angles = make("index_select", tokens, width, Dtype::F32);
                }
                angles.rename(Category::Activation, ANGLES);
                shared.keep_angles(angles);
                ["cos", "sin"].map(|op| {
                    let table = make(op, tokens, width, Dtype::F32);
                    let scaled = make("mul.Tensor", tokens, width, Dtype::F32);
                    drop(table);
                    let table = make("_to_copy", tokens, width, dtype);
                    drop(scaled);
                    table.rename(Category::Activation, ANGLES);
                    table
                })
            })
        });
        cached.insert(tables).clone()
    }
}
