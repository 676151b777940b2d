//! `SelfAttention` (`megatron/core/transformer/attention.py`): queries, keys and values of a rank's heads as one matrix behind
//! the norm, turned by the fused kernel, attended, projected.

use super::{Gpt, recompute_core};
use crate::config::Shape;
use crate::nn::Builder;
use crate::nn::te::{DotProductAttention, LayerNormLinear, Linear, Mode, RmsNorm, Shared, fused_rope};
use crate::torch::{ModuleId, Tensor, ops};
use std::rc::Rc;

/// Attention with its norm.
pub(super) struct SelfAttention {
    module: ModuleId,
    linear_qkv: LayerNormLinear,
    qk_norm: Option<[RmsNorm; 2]>,
    core: Rc<DotProductAttention>,
    /// Whether the attention itself is computed again in backward (`--recompute-granularity selective`, `core_attn`).
    recomputes_core: bool,
    linear_proj: Linear,
    /// Key heads of this rank, and how many query heads each has.
    groups: u64,
    in_group: u64,
    head_dim: u64,
}

impl SelfAttention {
    pub(super) fn new(
        build: &mut Builder,
        parent: ModuleId,
        (shape, gpt): (&Shape, &Gpt),
        recomputes_core: bool,
        shared: &Rc<Shared>,
    ) -> SelfAttention {
        let module = build.module(parent, "self_attention");
        let (heads, groups) = (shape.num_attention_heads, shape.num_key_value_heads);
        let (hidden, queries) = (shape.hidden_size, heads.saturating_mul(shape.head_dim));
        let all = queries.saturating_add(groups.saturating_mul(shape.head_dim).saturating_mul(2));
        let out = (queries, hidden);
        let linear_proj = Linear::new(build, module, "linear_proj", out, false, (Mode::Row, shared));
        let linear_qkv =
            LayerNormLinear::new(build, module, "linear_qkv", (hidden, all), gpt.qkv_bias, shared);
        let norm = |name| RmsNorm::new(build, module, name, shape.head_dim);
        let qk_norm = gpt.qk_norm.then(|| ["q_layernorm", "k_layernorm"].map(norm));
        SelfAttention {
            module,
            linear_qkv,
            qk_norm,
            core: Rc::new(DotProductAttention::new(shared)),
            recomputes_core,
            linear_proj,
            groups: groups / u64::from(shared.tp),
            in_group: heads / groups.max(1),
            head_dim: shape.head_dim,
        }
    }

    pub(super) fn forward(&self, x: &Tensor, angles: &Tensor) -> Tensor {
        x.torch().inside(self.module, || {
            // `qkv_output` holds all three until the function returns
            let qkv_output = self.queries_keys_values(x);
            let [query, key, value] = &qkv_output;
            let query = fused_rope(query, angles);
            let key = fused_rope(key, angles);
            let attended = match self.recomputes_core {
                false => self.core.forward([&query, &key, value]),
                true => recompute_core(&self.core, [&query, &key, value]),
            };
            self.linear_proj.forward(&attended)
        })
    }

    /// `get_query_key_value_tensors`: a group of queries lies beside its key and value, so queries of several groups are copied
    /// together.
    fn queries_keys_values(&self, x: &Tensor) -> [Tensor; 3] {
        let mixed = self.linear_qkv.forward(x);
        let (length, batch, width) = (mixed.size(0), mixed.size(1), self.head_dim);
        let of_group = self.in_group.saturating_add(2).saturating_mul(width);
        let mixed = ops::reshape(&mixed, &[length, batch, self.groups, of_group]);
        let widths = [self.in_group.saturating_mul(width), width, width];
        let [query, key, value] = ops::split_last(&mixed, widths);
        let heads = self.groups.saturating_mul(self.in_group);
        let query = ops::reshape(&query, &[length, batch, heads, width]);
        match &self.qk_norm {
            None => [query, key, value],
            Some([q_norm, k_norm]) => [q_norm.forward(&query), k_norm.forward(&key), value],
        }
    }
}
