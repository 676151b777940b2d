//! The options of a plan: how the step is run. Names and defaults are those of the command line.

mod batch;
mod bounds;
mod check;
mod trained;
mod values;

pub use trained::{Frozen, Lora, LoraTargets, Quantize};
pub use values::{
    Attention, Experts, HoldOutputs, Objective, Offload, OptimizerImpl, OptimizerKind, Precision, Recompute,
};

pub(crate) use bounds::MOST_TOKENS;
pub(crate) use check::refused;

use crate::Layers;
use crate::config::Shape;
use crate::parallel::{Mesh, Parallel, Stack};
use crate::torch::Dtype;
use peakledger_core::Bytes;
use peakledger_input::Problem;

/// How a training step is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Sequences in a micro-batch.
    pub micro_batch_size: u64,
    /// Tokens in a sequence; without one, 2048 or the model's limit if that is smaller.
    pub seq_len: Option<u64>,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: u32,
    /// Types of weights and compute.
    pub precision: Precision,
    /// Another type of weights than `precision` has: bf16 weights under autocast, say.
    pub weights_dtype: Option<Dtype>,
    /// Which optimizer.
    pub optimizer: OptimizerKind,
    /// How it is computed; without one, as torch picks on CUDA: foreach.
    pub optimizer_impl: Option<OptimizerImpl>,
    /// Whether SGD keeps a momentum buffer.
    pub momentum: bool,
    /// How attention is computed.
    pub attention: Attention,
    /// Whether rows are padded, so that the model is passed an attention mask.
    pub padded: bool,
    /// Whether keys and values are repeated for all heads before the attention kernel is called.
    pub expand_kv: bool,
    /// How the experts of a layer are run.
    pub experts: Experts,
    /// With expert parallel, the rows that this rank's experts receive over those that it sends; 1 is evenly spread.
    pub rank_imbalance: f64,
    /// What is computed again in backward.
    pub recompute: Recompute,
    /// What waits on the host while the device does not need it.
    pub offload: Offload,
    /// The layers whose activations wait on the host, where it is not all of them.
    pub offload_layers: Option<Layers>,
    /// How many layers ahead of the computation copies to and from the host run.
    pub offload_prefetch: u32,
    /// The type of a persistent buffer in which gradients are summed (Megatron's `main_grad`), if it is another than the
    /// weights'.
    pub grad_dtype: Option<Dtype>,
    /// The type of copies of the weights that the optimizer steps, if it is another than the weights'.
    pub master_weights: Option<Dtype>,
    /// Parts of the model that are not trained.
    pub freeze: Vec<Frozen>,
    /// Adapters that are trained in place of the model's own parameters.
    pub lora: Option<Lora>,
    /// How the frozen weights of linear modules are packed.
    pub quantize: Option<Quantize>,
    /// Whether what stays unquantized becomes fp32 (peft's `prepare_model_for_kbit_training`).
    pub prepare_for_kbit: bool,
    /// Whether the loss is scaled by a `GradScaler`, as fp16 under autocast needs it.
    pub grad_scaler: bool,
    /// Whether gradients are clipped by their norm.
    pub clip_grad_norm: bool,
    /// Whether the model is passed the labels and computes the loss in its own `forward`, where it still holds what the head
    /// was given.
    pub loss_in_model: bool,
    /// Whether head and loss are one op that makes the logits in pieces and their gradients at once (Liger).
    pub fused_loss: bool,
    /// How long the loop keeps the model's output.
    pub hold_outputs: HoldOutputs,
    /// What the model is trained on, or asked for.
    pub objective: Objective,
    /// The card's compute capability; without one, sm80 is assumed.
    pub capability: Option<(u8, u8)>,
    /// What the card has beside the process's CUDA context; without it, room enough for what is held for a moment only where
    /// there is room.
    pub device_memory: Option<Bytes>,
    /// Which modules run the step.
    pub stack: Stack,
    /// How the step is spread over GPUs.
    pub parallel: Parallel,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            micro_batch_size: 1,
            seq_len: None,
            gradient_accumulation_steps: 1,
            precision: Precision::Bf16Mixed,
            weights_dtype: None,
            optimizer: OptimizerKind::AdamW,
            optimizer_impl: None,
            momentum: false,
            attention: Attention::Sdpa,
            padded: false,
            expand_kv: false,
            experts: Experts::GroupedMm,
            rank_imbalance: 1.0,
            recompute: Recompute::None,
            offload: Offload::default(),
            offload_layers: None,
            offload_prefetch: 1,
            grad_dtype: None,
            master_weights: None,
            freeze: Vec::new(),
            lora: None,
            quantize: None,
            prepare_for_kbit: false,
            grad_scaler: false,
            clip_grad_norm: false,
            loss_in_model: false,
            fused_loss: false,
            hold_outputs: HoldOutputs::No,
            objective: Objective::NextToken,
            capability: None,
            device_memory: None,
            stack: Stack::default(),
            parallel: Parallel::default(),
        }
    }
}

impl Options {
    /// The type that weights are kept in, but for those that are packed.
    pub(crate) fn weights(&self) -> Dtype {
        if self.prepare_for_kbit {
            return Dtype::F32;
        }
        self.loaded()
    }

    /// The type that weights are loaded in.
    pub(crate) fn loaded(&self) -> Dtype {
        self.weights_dtype.unwrap_or(self.implied())
    }

    /// The type that products are computed in.
    pub(crate) fn compute(&self) -> Dtype {
        self.precision.autocast().or(self.weights_dtype).unwrap_or(self.precision.weights())
    }

    /// Tokens in a sequence of a model.
    pub fn length(&self, shape: &Shape) -> u64 {
        self.seq_len.unwrap_or_else(|| shape.max_position_embeddings.min(2048))
    }

    /// The world. Transformers splits the matrices of experts as all others are, or not at all where whole experts are
    /// spread (`TransformersDeviceMesh`, `transformers/distributed/utils.py`).
    ///
    /// # Errors
    /// Names the size that is none, or fills in the equation that does not hold.
    pub fn mesh(&self) -> Result<Mesh, Problem> {
        let whole_experts = self.stack == Stack::Transformers && self.parallel.ep > 1;
        let etp = self.parallel.etp.or(whole_experts.then_some(1));
        Mesh::of(&Parallel { etp, ..self.parallel.clone() })
    }
}
