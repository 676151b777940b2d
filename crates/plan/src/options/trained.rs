//! What of a model is trained: all but the parts that are frozen, or adapters beside weights that may be packed.

use crate::torch::Dtype;

/// A part of the model that is not trained: the modules and parameters of that name and below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// `model.embed_tokens`, `model.layers`.
    pub prefix: String,
    /// Of a list of modules, those from the first to the last.
    pub range: Option<(u32, u32)>,
}

/// How the weights of linear modules are packed (bitsandbytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantize {
    /// 4 bits a number, a scale in fp32 for 64.
    Nf4,
    /// 4 bits a number, as [`Nf4`](Quantize::Nf4), with scales packed to 8 bits, 256 of them under a scale of their own.
    Nf4Double,
    /// 8 bits a number, a scale in fp32 for a row: `load_in_8bit` of transformers.
    Int8,
}

/// LoRA adapters (peft).
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// The width between the two matrices.
    pub rank: u64,
    /// The chance that an element of an adapter's input is dropped.
    pub dropout: f64,
    /// The type of the adapters.
    pub dtype: Dtype,
    /// Which modules get one.
    pub targets: LoraTargets,
    /// Modules of which a copy is trained in their place (`modules_to_save`): the embedding, the head.
    pub save: Vec<String>,
    /// The type of these copies, where it is another than the weights'.
    pub save_dtype: Option<Dtype>,
}

impl Default for Lora {
    /// As peft's `LoraConfig`, but on every linear module.
    fn default() -> Lora {
        Lora {
            rank: 8,
            dropout: 0.0,
            dtype: Dtype::F32,
            targets: LoraTargets::AllLinear,
            save: Vec::new(),
            save_dtype: None,
        }
    }
}

/// Which modules get an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoraTargets {
    /// Every linear module but the output head.
    AllLinear,
    /// Those of these names: `q_proj`, `v_proj`.
    Named(Vec<String>),
}
