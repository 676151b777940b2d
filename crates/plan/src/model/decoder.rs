//! The decoder that `llama`, `mistral` and `qwen2` share (`transformers/models/llama/modeling_llama.py` and its copies):
//! grouped heads with rotary positions, a gated MLP, RMSNorm before each.

use crate::config::{Activation, Architecture};
use crate::nn::{Builder, Linear, RmsNorm, apply_rotary};
use crate::torch::ops::SdpaKernel;
use crate::torch::{ModuleId, Tensor, ops};

/// How attention is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attend {
    /// `eager_attention_forward`: matmul, softmax, matmul.
    Eager,
    /// `F.scaled_dot_product_attention` by that kernel, `k` and `v` repeated for all heads first where asked.
    Sdpa { kernel: SdpaKernel, expand_kv: bool },
}

/// The masks of a forward pass: for layers that look at everything before them, and for those that look through a window.
#[derive(Clone, Default)]
pub(crate) struct Masks {
    pub(crate) full: Option<Tensor>,
    pub(crate) sliding: Option<Tensor>,
}

/// What every layer of a forward pass is given beside the hidden states.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) position_embeddings: (Tensor, Tensor),
    pub(crate) attention_mask: Masks,
    /// Handed on to every layer, and so held by its checkpoint.
    pub(crate) _position_ids: Tensor,
}

pub(crate) struct DecoderLayer {
    module: ModuleId,
    self_attn: Attention,
    mlp: GatedMlp,
    input_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
}

impl DecoderLayer {
    pub(crate) fn new(
        build: &mut Builder,
        parent: ModuleId,
        index: u32,
        arch: &Architecture,
        attend: Attend,
    ) -> Self {
        let module = build.indexed(parent, index);
        DecoderLayer {
            module,
            self_attn: Attention::new(
                build,
                module,
                arch,
                attend,
                arch.window.is_some_and(|w| index >= w.first_layer),
            ),
            mlp: GatedMlp::new(build, module, arch),
            input_layernorm: RmsNorm::new(build, module, "input_layernorm", arch.hidden_size),
            post_attention_layernorm: RmsNorm::new(
                build,
                module,
                "post_attention_layernorm",
                arch.hidden_size,
            ),
        }
    }

    pub(crate) fn forward(&self, input: &Tensor, context: &Context) -> Tensor {
        input.torch().inside(self.module, || {
            let mut hidden_states = self.input_layernorm.forward(input);
            let _attention_weights;
            (hidden_states, _attention_weights) = self.self_attn.forward(&hidden_states, context);
            hidden_states = ops::add(input, &hidden_states);

            let residual = hidden_states.clone();
            hidden_states = self.post_attention_layernorm.forward(&hidden_states);
            hidden_states = self.mlp.forward(&hidden_states);
            ops::add(&residual, &hidden_states)
        })
    }
}

struct Attention {
    module: ModuleId,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    head_dim: u64,
    groups: u64,
    dropout: f64,
    attend: Attend,
    windowed: bool,
}

impl Attention {
    fn new(
        build: &mut Builder,
        parent: ModuleId,
        arch: &Architecture,
        attend: Attend,
        windowed: bool,
    ) -> Attention {
        let module = build.module(parent, "self_attn");
        let queries = arch.num_attention_heads.saturating_mul(arch.head_dim);
        let keys = arch.num_key_value_heads.saturating_mul(arch.head_dim);
        let hidden = arch.hidden_size;
        Attention {
            module,
            q_proj: Linear::new(build, module, "q_proj", (hidden, queries), arch.qkv_bias),
            k_proj: Linear::new(build, module, "k_proj", (hidden, keys), arch.qkv_bias),
            v_proj: Linear::new(build, module, "v_proj", (hidden, keys), arch.qkv_bias),
            o_proj: Linear::new(build, module, "o_proj", (queries, hidden), arch.o_bias),
            head_dim: arch.head_dim,
            groups: arch.num_attention_heads / arch.num_key_value_heads.max(1),
            dropout: arch.attention_dropout,
            attend,
            windowed,
        }
    }

    /// The attended states, and the attention weights where they are made.
    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        hidden_states.torch().inside(self.module, || {
            let mut query = self.heads(self.q_proj.forward(hidden_states));
            let mut key = self.heads(self.k_proj.forward(hidden_states));
            let value = self.heads(self.v_proj.forward(hidden_states));
            (query, key) = apply_rotary(&query, &key, &context.position_embeddings);

            let masks = &context.attention_mask;
            let mask = if self.windowed { &masks.sliding } else { &masks.full }.as_ref();
            let (attended, weights) = match self.attend {
                Attend::Eager => self.eager(&query, &key, &value, mask),
                Attend::Sdpa { kernel, expand_kv } => {
                    (self.sdpa(&query, &key, &value, mask, kernel, expand_kv), None)
                }
            };
            let merged = ops::reshape(attended, &merged_heads(hidden_states, self.head_dim, &query));
            (self.o_proj.forward(&merged), weights)
        })
    }

    /// `[b, s, h·d]` seen as `[b, h, s, d]`.
    fn heads(&self, projected: Tensor) -> Tensor {
        let (batch, length) = (projected.size(0), projected.size(1));
        let heads = projected.size(2) / self.head_dim.max(1);
        ops::transpose(ops::reshape(projected, &[batch, length, heads, self.head_dim]), 1, 2)
    }

    fn repeat_kv(&self, states: &Tensor) -> Tensor {
        if self.groups == 1 {
            return states.clone();
        }
        let [batch, heads, length, width] = [0, 1, 2, 3].map(|dim| states.size(dim));
        ops::reshape(
            ops::expand_heads(states, self.groups),
            &[batch, heads.saturating_mul(self.groups), length, width],
        )
    }

    fn eager(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let key_states = self.repeat_kv(k);
        let value_states = self.repeat_kv(v);
        let mut weights = ops::mul_scalar(ops::matmul(q, ops::transpose(&key_states, 2, 3)));
        if let Some(mask) = mask {
            weights = ops::add(&weights, mask);
        }
        weights = ops::to(ops::softmax_fp32(&weights), q.dtype());
        weights = ops::dropout(&weights, self.dropout);
        let attended = ops::matmul(&weights, &value_states);
        (ops::contiguous(ops::transpose(&attended, 1, 2)), Some(weights))
    }

    fn sdpa(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        kernel: SdpaKernel,
        expand_kv: bool,
    ) -> Tensor {
        let (k, v) = if expand_kv || mask.is_some() {
            (self.repeat_kv(k), self.repeat_kv(v))
        } else {
            (k.clone(), v.clone())
        };
        let attended = ops::scaled_dot_product_attention(q, &k, &v, mask, kernel, self.dropout);
        ops::contiguous(ops::transpose(&attended, 1, 2))
    }
}

fn merged_heads(hidden_states: &Tensor, head_dim: u64, query: &Tensor) -> [u64; 3] {
    [hidden_states.size(0), hidden_states.size(1), query.size(1).saturating_mul(head_dim)]
}

struct GatedMlp {
    module: ModuleId,
    act_fn: ModuleId,
    activation: Activation,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl GatedMlp {
    fn new(build: &mut Builder, parent: ModuleId, arch: &Architecture) -> GatedMlp {
        let module = build.module(parent, "mlp");
        let (hidden, inner, bias) = (arch.hidden_size, arch.intermediate_size, arch.mlp_bias);
        GatedMlp {
            module,
            act_fn: build.module(module, "act_fn"),
            activation: arch.hidden_act,
            gate_proj: Linear::new(build, module, "gate_proj", (hidden, inner), bias),
            up_proj: Linear::new(build, module, "up_proj", (hidden, inner), bias),
            down_proj: Linear::new(build, module, "down_proj", (inner, hidden), bias),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let torch = x.torch();
        torch.inside(self.module, || {
            let gate = self.gate_proj.forward(x);
            let gate = torch.inside(self.act_fn, move || self.activation.apply(gate));
            let up = self.up_proj.forward(x);
            self.down_proj.forward(ops::mul(gate, up))
        })
    }
}
