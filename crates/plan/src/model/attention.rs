//! Attention as the transformers modules compute it, once queries, keys and values are there
//! (`eager_attention_forward` of each modeling file, `transformers/integrations/sdpa_attention.py`).

use super::decoder::Context;
use crate::config::Shape;
use crate::nn::{Builder, Linear};
use crate::options::{Attention, Options};
use crate::parallel::tensor::{Split, Style};
use crate::torch::ops::{Ring, SdpaKernel};
use crate::torch::{ModuleId, Tensor, ops};

/// How attention is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attend {
    /// `eager_attention_forward`: matmul, softmax, matmul.
    Eager,
    /// `F.scaled_dot_product_attention` by that kernel, `k` and `v` repeated for all heads first where asked; over a sequence
    /// that ranks share, without a mask.
    Sdpa { kernel: SdpaKernel, expand_kv: bool, ring: Option<Ring> },
}

impl Attend {
    /// What torch and transformers choose for a model without a mask: the first kernel that can. Keys and values are
    /// repeated for all heads where asked, and where no kernel takes grouped heads of that width
    /// (`use_gqa_in_sdpa` in `sdpa_attention.py`).
    pub(crate) fn choose(shape: &Shape, options: &Options) -> Attend {
        if options.attention == Attention::Eager || shape.eager_only {
            return Attend::Eager;
        }
        let half = options.compute().is_half();
        let grouped = shape.num_key_value_heads != shape.num_attention_heads;
        let expand_kv = grouped && (options.expand_kv || shape.head_dim > MOST_FLASH_WIDTH);
        let kernel = if half
            && options.capability.is_none_or(|capability| capability >= (8, 0))
            && shape.head_dim <= MOST_FLASH_WIDTH
            && shape.v_head_dim.is_none_or(|width| width == shape.head_dim)
        {
            SdpaKernel::Flash
        } else if !grouped || expand_kv {
            SdpaKernel::MemoryEfficient
        } else {
            SdpaKernel::Math
        };
        Attend::Sdpa { kernel, expand_kv, ring: options.ring(options.length(shape)) }
    }
}

/// The widest head that flash attention takes, and all of it alike: queries, keys and values
/// (`check_head_dim_size_flash`, `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`).
const MOST_FLASH_WIDTH: u64 = 256;

/// What a module's attention does beside the usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scores {
    /// The chance that a weight is dropped.
    pub(crate) dropout: f64,
    /// Whether scores go through `cap * tanh(scores / cap)`.
    pub(crate) softcap: bool,
}

/// The attended states `[b, s, h, d]`, and the attention weights where they are made. A model that decodes attends to the
/// tokens before too.
pub(crate) fn attend(
    attend: Attend,
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scores: Scores,
) -> (Tensor, Option<Tensor>) {
    let (k, v) = &q.torch().cached(k, v);
    attend_to(attend, [q, k, v], mask, scores)
}

/// The same over these keys and values alone.
pub(crate) fn attend_to(
    attend: Attend,
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scores: Scores,
) -> (Tensor, Option<Tensor>) {
    match attend {
        Attend::Eager => eager([q, k, v], mask, scores),
        Attend::Sdpa { kernel, expand_kv, ring } => {
            let mask = if ring.is_some() { None } else { mask };
            (sdpa([q, k, v], mask, scores, (kernel, ring), expand_kv), None)
        }
    }
}

/// `self_attn` of most families, but for what is done to queries and keys: four projections and the attention between.
pub(crate) struct SelfAttention {
    pub(crate) module: ModuleId,
    pub(crate) q_proj: Linear,
    pub(crate) k_proj: Linear,
    pub(crate) v_proj: Linear,
    o_proj: Linear,
    pub(crate) head_dim: u64,
    scores: Scores,
    attend: Attend,
    gathers: Option<Split>,
}

impl SelfAttention {
    /// With biases on queries, keys and values, and on the output, or without.
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        shape: &Shape,
        [qkv_bias, o_bias]: [bool; 2],
        softcap: bool,
        attend: Attend,
    ) -> SelfAttention {
        let module = build.module(parent, "self_attn");
        let (hidden, [queries, keys]) = (shape.hidden_size, widths(shape));
        SelfAttention {
            module,
            q_proj: Linear::new(build, module, "q_proj", (hidden, queries), qkv_bias),
            k_proj: Linear::new(build, module, "k_proj", (hidden, keys), qkv_bias),
            v_proj: Linear::new(build, module, "v_proj", (hidden, keys), qkv_bias),
            o_proj: Linear::new(build, module, "o_proj", (queries, hidden), o_bias),
            head_dim: shape.head_dim,
            scores: Scores { dropout: shape.attention_dropout, softcap },
            attend,
            gathers: gathers(build, module),
        }
    }

    /// What its modules are given of the hidden states.
    pub(crate) fn input(&self, hidden_states: &Tensor) -> Tensor {
        self.gathers.map_or_else(|| hidden_states.clone(), |split| split.gathered(hidden_states))
    }

    /// The attended states, projected, and the attention weights where they are made.
    pub(crate) fn attend(&self, qkv: [&Tensor; 3], context: &Context) -> (Tensor, Option<Tensor>) {
        let (attended, weights) = attend(self.attend, qkv, context.attention_mask.as_ref(), self.scores);
        let merged = merge_heads(attended);
        (self.o_proj.forward(&merged), weights)
    }
}

/// Whether a module is given the whole of what ranks have parts of, of the sequence.
pub(crate) fn gathers(build: &Builder, module: ModuleId) -> Option<Split> {
    build.split(module).filter(|split| split.style == Style::Gathered)
}

/// How wide all queries of a token are together, and all keys.
pub(crate) fn widths(shape: &Shape) -> [u64; 2] {
    [shape.num_attention_heads, shape.num_key_value_heads].map(|heads| heads.saturating_mul(shape.head_dim))
}

/// `[b, s, h·d]` seen as `[b, h, s, d]`.
pub(crate) fn heads(projected: &Tensor, head_dim: u64) -> Tensor {
    ops::transpose(split_heads(projected, head_dim), 1, 2)
}

/// `[b, s, h·d]` seen as `[b, s, h, d]`.
pub(crate) fn split_heads(projected: &Tensor, head_dim: u64) -> Tensor {
    let (batch, length) = (projected.size(0), projected.size(1));
    ops::reshape(projected, &[batch, length, projected.size(2) / head_dim.max(1), head_dim])
}

/// `[b, s, h, d]` as `[b, s, h·d]`.
pub(crate) fn merge_heads(attended: Tensor) -> Tensor {
    let (batch, length) = (attended.size(0), attended.size(1));
    let width = attended.size(2).saturating_mul(attended.size(3));
    ops::reshape(attended, &[batch, length, width])
}

/// How many query heads share a key head.
fn groups(q: &Tensor, k: &Tensor) -> u64 {
    q.size(1) / k.size(1).max(1)
}

fn repeat_kv(states: &Tensor, groups: u64) -> Tensor {
    if groups == 1 {
        return states.clone();
    }
    let [batch, heads, length, width] = [0, 1, 2, 3].map(|dim| states.size(dim));
    ops::reshape(ops::expand_heads(states, groups), &[batch, heads.saturating_mul(groups), length, width])
}

fn eager([q, k, v]: [&Tensor; 3], mask: Option<&Tensor>, scores: Scores) -> (Tensor, Option<Tensor>) {
    let key_states = repeat_kv(k, groups(q, k));
    let value_states = repeat_kv(v, groups(q, k));
    let mut weights = ops::mul_scalar(ops::matmul(q, ops::transpose(&key_states, 2, 3)));
    if scores.softcap {
        weights = ops::div_scalar(&weights);
        weights = ops::tanh(&weights);
        weights = ops::mul_scalar(&weights);
    }
    if let Some(mask) = mask {
        weights = ops::add(&weights, mask);
    }
    weights = ops::to(ops::softmax_fp32(&weights), q.dtype());
    weights = ops::dropout(&weights, scores.dropout);
    let attended = ops::matmul(&weights, &value_states);
    (ops::contiguous(ops::transpose(&attended, 1, 2)), Some(weights))
}

fn sdpa(
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scores: Scores,
    kernel: (SdpaKernel, Option<Ring>),
    expand_kv: bool,
) -> Tensor {
    let groups = if expand_kv || mask.is_some() { groups(q, k) } else { 1 };
    let (k, v) = (repeat_kv(k, groups), repeat_kv(v, groups));
    let attended = ops::scaled_dot_product_attention([q, &k, &v], mask, kernel, scores.dropout);
    ops::contiguous(ops::transpose(&attended, 1, 2))
}
