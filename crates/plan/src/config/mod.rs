//! From a Hugging Face `config.json` to an architecture: shapes, checked, with the family's defaults, and every fault named
//! by its place in the file. What a family's file says beyond the common shapes is read by the family ([`FAMILIES`]).

pub(crate) mod reader;

pub(crate) use reader::Reader;

use crate::Dtype;
use crate::model::Blueprint;
pub use crate::model::{FAMILIES, Family};
use peakledger_input::{Problem, Source};
use std::sync::Arc;

/// A model: its common shapes, and how its family builds it.
#[derive(Clone, Debug)]
pub struct Architecture {
    /// Its family.
    pub family: &'static Family,
    /// The shapes that every family has.
    pub shape: Shape,
    /// What the file left out and the family's default filled in.
    pub defaults: Vec<String>,
    /// What the file has that is left out of the plan: experts of a family without any, a vision tower.
    pub not_planned: Vec<String>,
    /// The type that the weights were saved in, where the file says it.
    pub dtype: Option<Dtype>,
    pub(crate) blueprint: Arc<dyn Blueprint>,
}

/// The shapes of a decoder-only model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Decoder layers.
    pub num_hidden_layers: u32,
    /// Query heads.
    pub num_attention_heads: u64,
    /// Key and value heads.
    pub num_key_value_heads: u64,
    /// Width of a head: of its queries and keys.
    pub head_dim: u64,
    /// Width of a head's values, where it is another.
    pub(crate) v_head_dim: Option<u64>,
    /// The longest sequence.
    pub max_position_embeddings: u64,
    /// Whether the head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// The chance that an attention weight is dropped in training.
    pub(crate) attention_dropout: f64,
    /// The attention window of some or all layers.
    pub(crate) window: Option<Window>,
    /// Whether the family's attention has no fused kernel (it caps the scores).
    pub(crate) eager_only: bool,
    /// Whether positions are learned, so that there are no more than `max_position_embeddings`.
    pub(crate) learned_positions: bool,
    /// The experts of layers that route their tokens to some; 0 where no layer does.
    pub num_experts: u64,
}

/// Attention that looks back a limited way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Window {
    /// How many tokens a query looks at.
    pub(crate) size: u64,
    /// Which layers have it.
    pub(crate) layers: Vec<bool>,
    /// Whether a mask for layers without it is made too, needed or not.
    pub(crate) beside_full: bool,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    /// Exact or by tanh: one kernel, the same memory.
    Gelu,
    /// By tanh and plain ops (`NewGELUActivation`).
    GeluNew,
    /// By tanh and plain ops in another order (`FastGELUActivation`).
    GeluFast,
    Relu,
}

impl Activation {
    /// By their names in `transformers/activations.py`.
    pub(crate) const NAMES: [(&'static str, Activation); 7] = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::Gelu),
        ("gelu_new", Activation::GeluNew),
        ("gelu_fast", Activation::GeluFast),
        ("relu", Activation::Relu),
    ];
}

impl Architecture {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// Names the file, the place, what is wrong and how to mend it.
    pub fn read(source: &Source) -> Result<Architecture, Problem> {
        let mut reader = Reader::new(source)?;
        reader.refuse_what_is_not_planned()?;
        let family = reader.family()?;
        let (shape, blueprint) = (family.read)(&mut reader)?;
        let not_planned = reader.not_planned(family, shape.num_experts > 0);
        let dtype = reader.dtype()?;
        reader.refuse_slips()?;
        Ok(Architecture { family, shape, defaults: reader.defaults, not_planned, dtype, blueprint })
    }
}
