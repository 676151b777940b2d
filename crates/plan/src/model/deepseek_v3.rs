//! `deepseek_v3`: attention over latents (MLA), dense layers first and experts after them, some of which every token goes to
//! (`transformers/models/deepseek_v3/modeling_deepseek_v3.py`).

use super::attention::{Attend, Scores, attend_to, merge_heads};
use super::decoder::{Around, Context, Decoder, Layer};
use super::deepseek_moe::SharedMoe;
use super::experts::Routed;
use super::megatron::{self, Gpt, Latent, Score};
use super::mlp::GatedMlp;
use super::{Blueprint, Model, Run};
use crate::config::reader::Defaults;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Linear, Norm, NormKind, apply_interleaved_rotary, apply_rotary};
use crate::torch::{ModuleId, Tensor, ops};
use peakledger_input::Problem;
use std::rc::Rc;
use std::sync::Arc;

/// What config.json says of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeepseekV3 {
    intermediate_size: u64,
    pub(super) hidden_act: Activation,
    attention_bias: bool,
    /// The width of the latent that queries come from, if they come from one.
    q_lora_rank: Option<u64>,
    kv_lora_rank: u64,
    qk_nope_head_dim: u64,
    qk_rope_head_dim: u64,
    v_head_dim: u64,
    rope_interleave: bool,
    pub(super) routed: Routed,
    first_k_dense_replace: u64,
    pub(super) n_shared_experts: u64,
    pub(super) n_group: u64,
    pub(super) topk_group: u64,
    pub(super) norm_topk_prob: bool,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let qk_nope_head_dim = reader.number_or(&["qk_nope_head_dim"], 128)?;
    let qk_rope_head_dim = reader.number_or(&["qk_rope_head_dim"], 64)?;
    let v_head_dim = reader.number_or(&["v_head_dim"], 128)?;
    let defaults = Defaults {
        max_position_embeddings: 4096,
        tie_word_embeddings: false,
        num_key_value_heads: Some(128),
        head_dim: Some(qk_nope_head_dim.saturating_add(qk_rope_head_dim)),
    };
    let mut shape = reader.shape(&defaults)?;
    shape.head_dim = qk_nope_head_dim.saturating_add(qk_rope_head_dim);
    shape.v_head_dim = Some(v_head_dim);
    if !qk_rope_head_dim.is_multiple_of(2) {
        let cause = format!("`qk_rope_head_dim` is {qk_rope_head_dim}, and rotary positions turn pairs");
        return Err(reader.at("qk_rope_head_dim", &cause, "use an even width"));
    }
    if shape.num_key_value_heads != shape.num_attention_heads {
        let cause = "keys and values are made for every head, so there are as many of them as queries";
        return Err(reader.at("num_key_value_heads", cause, "make it the same as `num_attention_heads`"));
    }
    let moe_intermediate_size = reader.number_or(&["moe_intermediate_size"], 2048)?;
    let names = ["n_routed_experts", "num_local_experts"];
    let routed = Routed::read(reader, &mut shape, &names, moe_intermediate_size, [256, 8])?;
    let n_group = reader.number_or(&["n_group"], 8)?;
    let topk_group = reader.number_or(&["topk_group"], 4)?;
    if !routed.num_experts.is_multiple_of(n_group) || routed.num_experts / n_group < 2 {
        let cause =
            format!("{} experts do not part into {n_group} groups of two or more", routed.num_experts);
        return Err(reader.at("n_group", &cause, "use a divisor of the number of experts"));
    }
    if topk_group > n_group
        || topk_group.saturating_mul(routed.num_experts / n_group) < routed.num_experts_per_tok
    {
        let cause = format!(
            "a token goes to {} experts of {topk_group} groups of {n_group}",
            routed.num_experts_per_tok
        );
        return Err(reader.at(
            "topk_group",
            &cause,
            "choose among enough groups, and no more than there are",
        ));
    }
    let q_lora_rank = match reader.is_set("q_lora_rank") {
        Some(false) => None,
        _ => Some(reader.number_or(&["q_lora_rank"], 1536)?),
    };
    let deepseek = DeepseekV3 {
        intermediate_size: reader.size(&["intermediate_size"])?,
        hidden_act: routed.hidden_act,
        attention_bias: reader.flag("attention_bias")?.unwrap_or(false),
        q_lora_rank,
        kv_lora_rank: reader.number_or(&["kv_lora_rank"], 512)?,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        rope_interleave: reader.flag("rope_interleave")?.unwrap_or(true),
        routed,
        first_k_dense_replace: match reader.layer("first_k_dense_replace")? {
            Some(first) => first,
            None => reader.defaulted("first_k_dense_replace", 3),
        },
        n_shared_experts: reader.number_or(&["n_shared_experts"], 1)?,
        n_group,
        topk_group,
        norm_topk_prob: reader.flag("norm_topk_prob")?.unwrap_or(true),
    };
    Ok((shape, Arc::new(deepseek)))
}

impl Blueprint for DeepseekV3 {
    fn kv_width(&self, _: &Shape) -> u64 {
        self.kv_lora_rank.saturating_add(self.qk_rope_head_dim)
    }

    fn cached_heads(&self, _: &Shape) -> u64 {
        1
    }

    /// Megatron has no biases on its way down to the latents and up from them, and its sigmoid router makes the weights of a
    /// token sum to 1.
    fn megatron(&self, shape: &Shape) -> Option<Gpt> {
        let is_plain = self.hidden_act == Activation::Silu && !self.attention_bias && self.norm_topk_prob;
        let Routed { num_experts, num_experts_per_tok, intermediate_size, .. } = self.routed;
        let first_sparse = self.first_k_dense_replace;
        is_plain.then(|| Gpt {
            qkv_bias: false,
            qk_norm: false,
            latent: Some(Latent {
                q_lora_rank: self.q_lora_rank,
                kv_lora_rank: self.kv_lora_rank,
                qk_head_dim: self.qk_nope_head_dim,
                qk_pos_emb_head_dim: self.qk_rope_head_dim,
                v_head_dim: self.v_head_dim,
            }),
            ffn_hidden_size: self.intermediate_size,
            experts: Some(megatron::Experts {
                number: num_experts,
                chosen: num_experts_per_tok,
                width: intermediate_size,
                shared_width: Some(intermediate_size.saturating_mul(self.n_shared_experts)),
                score: Score::Sigmoid {
                    groups: (self.n_group > 1).then_some([self.n_group, self.topk_group]),
                },
                layers: (0..shape.num_hidden_layers).map(|layer| u64::from(layer) >= first_sparse).collect(),
            }),
        })
    }

    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model> {
        let layer = |build: &mut Builder, module, index| -> Rc<dyn Layer> {
            Rc::new(DeepseekV3Layer::new(build, (module, index), shape, self, run.attend))
        };
        let around = Around { rotary_width: self.qk_rope_head_dim, ..Around::usual(shape) };
        Box::new(Decoder::new(build, shape, run, around, layer))
    }
}

struct DeepseekV3Layer {
    module: ModuleId,
    self_attn: Attention,
    mlp: Mlp,
    input_layernorm: Norm,
    post_attention_layernorm: Norm,
}

impl DeepseekV3Layer {
    fn new(
        build: &mut Builder,
        (module, index): (ModuleId, u32),
        shape: &Shape,
        deepseek: &DeepseekV3,
        attend: Attend,
    ) -> DeepseekV3Layer {
        let norm =
            |build: &mut Builder, name| Norm::new(build, module, name, NormKind::Rms, shape.hidden_size);
        DeepseekV3Layer {
            module,
            self_attn: Attention::new(build, module, shape, deepseek, attend),
            mlp: Mlp::new(build, (module, index), shape, deepseek),
            input_layernorm: norm(build, "input_layernorm"),
            post_attention_layernorm: norm(build, "post_attention_layernorm"),
        }
    }
}

impl Layer for DeepseekV3Layer {
    fn forward(&self, input: &Tensor, context: &Context) -> Tensor {
        input.torch().inside(self.module, || {
            let mut hidden_states = self.input_layernorm.forward(input);
            let _attention_weights;
            (hidden_states, _attention_weights) = self.self_attn.forward(&hidden_states, context);
            hidden_states = ops::add(input, &hidden_states);

            let residual = hidden_states.clone();
            hidden_states = self.post_attention_layernorm.forward(&hidden_states);
            hidden_states = match &self.mlp {
                Mlp::Dense(mlp) => mlp.forward(&hidden_states),
                Mlp::Sparse(moe) => moe.forward(&hidden_states),
            };
            ops::add(&residual, &hidden_states)
        })
    }
}

/// `DeepseekV3Attention`: queries, and keys and values for all heads, each from a narrow latent; one head's worth of keys is
/// turned by position and shared by all heads.
struct Attention {
    module: ModuleId,
    /// The latent that queries come from, if they come from one.
    q_latent: Option<(Linear, Norm)>,
    q_proj: Linear,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: Norm,
    kv_b_proj: Linear,
    o_proj: Linear,
    deepseek: DeepseekV3,
    scores: Scores,
    attend: Attend,
}

impl Attention {
    fn new(
        build: &mut Builder,
        parent: ModuleId,
        shape: &Shape,
        deepseek: &DeepseekV3,
        attend: Attend,
    ) -> Attention {
        let module = build.module(parent, "self_attn");
        let (hidden, bias) = (shape.hidden_size, deepseek.attention_bias);
        let of_heads = |width: u64| shape.num_attention_heads.saturating_mul(width);
        let rank = deepseek.kv_lora_rank;
        let keys_and_values = deepseek.qk_nope_head_dim.saturating_add(deepseek.v_head_dim);
        let q_latent = deepseek.q_lora_rank.map(|rank| {
            let q_a_proj = Linear::new(build, module, "q_a_proj", (hidden, rank), bias);
            (q_a_proj, Norm::new(build, module, "q_a_layernorm", NormKind::Rms, rank))
        });
        let (q_name, q_from) = deepseek.q_lora_rank.map_or(("q_proj", hidden), |rank| ("q_b_proj", rank));
        let queries = of_heads(shape.head_dim);
        let latent = (hidden, rank.saturating_add(deepseek.qk_rope_head_dim));
        Attention {
            module,
            q_latent,
            q_proj: Linear::new(build, module, q_name, (q_from, queries), false),
            kv_a_proj_with_mqa: Linear::new(build, module, "kv_a_proj_with_mqa", latent, bias),
            kv_a_layernorm: Norm::new(build, module, "kv_a_layernorm", NormKind::Rms, rank),
            kv_b_proj: Linear::new(build, module, "kv_b_proj", (rank, of_heads(keys_and_values)), false),
            o_proj: Linear::new(build, module, "o_proj", (of_heads(deepseek.v_head_dim), hidden), bias),
            deepseek: *deepseek,
            scores: Scores { dropout: shape.attention_dropout, softcap: false },
            attend,
        }
    }

    /// The attended states, and the attention weights where they are made.
    fn forward(&self, hidden_states: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        let deepseek = &self.deepseek;
        hidden_states.torch().inside(self.module, || {
            let [batch, length] = [0, 1].map(|dim| hidden_states.size(dim));
            let q_states = self.q_states(hidden_states);
            let [q_pass, mut q_rot] =
                ops::split_last(&q_states, [deepseek.qk_nope_head_dim, deepseek.qk_rope_head_dim]);

            let compressed_kv = self.kv_a_proj_with_mqa.forward(hidden_states);
            let [mut kv_nope, mut k_rot] =
                ops::split_last(&compressed_kv, [deepseek.kv_lora_rank, deepseek.qk_rope_head_dim]);
            kv_nope = self.kv_a_layernorm.forward(&kv_nope);
            kv_nope = ops::reshape(kv_nope, &[batch, 1, length, deepseek.kv_lora_rank]);
            k_rot = ops::reshape(k_rot, &[batch, 1, length, deepseek.qk_rope_head_dim]);

            let apply = if deepseek.rope_interleave { apply_interleaved_rotary } else { apply_rotary };
            (q_rot, k_rot) = apply(&q_rot, &k_rot, &context.position_embeddings);
            // the latents are what is kept of the tokens before
            (kv_nope, k_rot) = hidden_states.torch().cached(&kv_nope, &k_rot);
            let query_states = ops::cat_last(&q_pass, &q_rot);
            let (key_states, value_states) = self.expand_kv(&kv_nope, &k_rot);

            let qkv = [&query_states, &key_states, &value_states];
            let (attended, weights) =
                attend_to(self.attend, qkv, context.attention_mask.as_ref(), self.scores);
            let merged = merge_heads(attended);
            (self.o_proj.forward(&merged), weights)
        })
    }

    /// `[b, h, s, d]`
    fn q_states(&self, hidden_states: &Tensor) -> Tensor {
        let projected = match &self.q_latent {
            None => self.q_proj.forward(hidden_states),
            Some((q_a_proj, q_a_layernorm)) => {
                let latent = q_a_proj.forward(hidden_states);
                let normed = q_a_layernorm.forward(&latent);
                drop(latent);
                self.q_proj.forward(normed)
            }
        };
        let width = self.deepseek.qk_nope_head_dim.saturating_add(self.deepseek.qk_rope_head_dim);
        super::attention::heads(&projected, width)
    }

    /// Keys and values of all heads, from the latent `[b, 1, s, rank]` and the turned keys `[b, 1, s, d]`.
    fn expand_kv(&self, kv_nope: &Tensor, k_rot: &Tensor) -> (Tensor, Tensor) {
        let deepseek = &self.deepseek;
        let [batch, length] = [0, 2].map(|dim| kv_nope.size(dim));
        let width = deepseek.qk_nope_head_dim.saturating_add(deepseek.v_head_dim);
        let projected = self.kv_b_proj.forward(kv_nope);
        let heads = projected.size(-1) / width.max(1);
        let kv_nope = ops::transpose(ops::reshape(projected, &[batch, length, heads, width]), 1, 2);
        let [k_nope, value_states] =
            ops::split_last(&kv_nope, [deepseek.qk_nope_head_dim, deepseek.v_head_dim]);
        let k_rot = ops::expand(k_rot, &[batch, heads, length, deepseek.qk_rope_head_dim]);
        (ops::copied_side_by_side(&k_nope, &k_rot), value_states)
    }
}

enum Mlp {
    Dense(Box<GatedMlp>),
    Sparse(Box<SharedMoe>),
}

impl Mlp {
    fn new(
        build: &mut Builder,
        (parent, index): (ModuleId, u32),
        shape: &Shape,
        deepseek: &DeepseekV3,
    ) -> Mlp {
        if u64::from(index) >= deepseek.first_k_dense_replace {
            return Mlp::Sparse(Box::new(SharedMoe::new(build, parent, shape, deepseek)));
        }
        let sizes = (shape.hidden_size, deepseek.intermediate_size);
        Mlp::Dense(Box::new(GatedMlp::new(build, parent, sizes, deepseek.hidden_act, false)))
    }
}
