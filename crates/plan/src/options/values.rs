//! What options may be, each choice an enum: the types, the optimizer, how attention and experts run, what is computed again
//! or waits on the host, and what the model is for.

use crate::Layers;
use crate::parallel::stage::Part;
use crate::torch::Dtype;
use std::num::NonZeroU32;

/// Types of weights and compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Everything in fp32.
    Fp32,
    /// Weights, gradients and optimizer state in bf16.
    Bf16,
    /// Weights, gradients and optimizer state in fp16.
    Fp16,
    /// fp32 weights under autocast to bf16.
    Bf16Mixed,
    /// fp32 weights under autocast to fp16.
    Fp16Mixed,
}

impl Precision {
    /// As the command line has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
            Precision::Bf16Mixed => "bf16-mixed",
            Precision::Fp16Mixed => "fp16-mixed",
        }
    }

    /// The type that weights, gradients and optimizer state are kept in.
    pub const fn weights(self) -> Dtype {
        match self {
            Precision::Fp32 | Precision::Bf16Mixed | Precision::Fp16Mixed => Dtype::F32,
            Precision::Bf16 => Dtype::Bf16,
            Precision::Fp16 => Dtype::F16,
        }
    }

    /// The type that autocast computes in.
    pub const fn autocast(self) -> Option<Dtype> {
        match self {
            Precision::Bf16Mixed => Some(Dtype::Bf16),
            Precision::Fp16Mixed => Some(Dtype::F16),
            _ => None,
        }
    }
}

/// Which optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerKind {
    /// `torch.optim.AdamW`
    AdamW,
    /// `bitsandbytes.optim.AdamW8bit`
    AdamW8bit,
    /// `bitsandbytes.optim.AdamW32bit`, with moments of 32 bits.
    AdamW32bit,
    /// `torch.optim.SGD`
    Sgd,
    /// `torch.optim.Adafactor`, a parameter at a time.
    Adafactor,
    /// `bitsandbytes.optim.Lion`, with a moment of 32 bits.
    Lion,
    /// `torch.optim.Muon` for the matrices of hidden layers, AdamW for the rest.
    Muon,
}

/// How torch computes an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerImpl {
    /// One kernel over lists of tensors.
    Foreach,
    /// One kernel for everything.
    Fused,
    /// A parameter at a time.
    ForLoop,
    /// One kernel over lists of tensors that makes none (`FusedAdam` of apex and Transformer Engine, which Megatron takes).
    MultiTensor,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// `F.scaled_dot_product_attention`; torch picks the kernel.
    Sdpa,
    /// Matmul, softmax, matmul.
    Eager,
}

/// How the experts of a layer are run (`experts_implementation` of transformers).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Experts {
    /// One grouped product over all of them, which allocates the same however the tokens are spread.
    GroupedMm,
    /// One after the other.
    Eager {
        /// The rows of the busiest expert over the mean; 1 is evenly spread.
        imbalance: f64,
    },
}

/// What is computed again in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    None,
    /// Every decoder layer is a checkpoint.
    Full,
    /// Every so many decoder layers in a row are one checkpoint.
    Every(NonZeroU32),
    /// Each of these decoder layers is a checkpoint.
    Layers(Layers),
    /// Each of the first so many decoder layers of a pipeline stage, or of a part of it, is a checkpoint, the rest is not
    /// (`--recompute-method block` of Megatron-LM).
    Block(NonZeroU32),
    /// Every decoder layer is a checkpoint that keeps the products of linear modules and what fused attention puts out.
    Selective,
}

impl Recompute {
    /// How many layers are a checkpoint together, where any are.
    pub(crate) fn layers(self) -> Option<NonZeroU32> {
        match self {
            Recompute::None => None,
            Recompute::Full | Recompute::Selective | Recompute::Layers(_) | Recompute::Block(_) => {
                Some(NonZeroU32::MIN)
            }
            Recompute::Every(layers) => Some(layers),
        }
    }

    /// What is recomputed, with the layers of these parts named where they are told by their place in them.
    pub(crate) fn within(self, parts: &[Part]) -> Recompute {
        let Recompute::Block(first) = self else { return self };
        let of_part = |part: &Part| part.layers().take(first.get() as usize);
        Recompute::Layers(parts.iter().flat_map(of_part).collect())
    }
}

/// What waits on the host while the device does not need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// What decoder layers save for backward.
    pub activations: bool,
    /// The optimizer with its state and a copy of what it steps; it runs there.
    pub optimizer: bool,
    /// Parameters, gradients and the optimizer: those of a decoder layer are on the device while it runs.
    pub parameters: bool,
}

impl Offload {
    /// Whether the optimizer runs on the host.
    pub fn has_optimizer(self) -> bool {
        self.optimizer || self.parameters
    }
}

/// How long the loop keeps the model's output (logits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOutputs {
    /// Until the loss is computed.
    No,
    /// Until backward ends.
    Backward,
    /// Until the step ends.
    Step,
}

/// What a model is trained on, or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The next token, as a causal language model is.
    NextToken,
    /// The log-probabilities of a response: so many tokens at the end of each row.
    LogProbs {
        /// Tokens of a response.
        response: u64,
    },
    /// A number for each token: what a critic or a reward model gives.
    Values,
}

impl Objective {
    /// The module that its ops are said to be of.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Objective::NextToken => "loss_function",
            Objective::LogProbs { .. } => "log_probs",
            Objective::Values => "values",
        }
    }
}
