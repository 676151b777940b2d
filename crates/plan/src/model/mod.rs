//! Models: what the modules of a model family do, written as the modules they mirror.
//!
//! A family is one file with a `read` (what its config.json says) and a [`Blueprint`] (how it is built), and one entry in
//! [`FAMILIES`]. What families share is in [`attention`], [`mlp`] and [`decoder`].

pub(crate) mod attention;
pub(crate) mod decoder;
mod deepseek_moe;
mod deepseek_v3;
mod dispatch;
mod experts;
mod gemma;
mod gpt2;
mod gpt_neox;
mod llama;
mod loss;
pub(crate) mod megatron;
mod mixtral;
mod mlp;
mod moe;
mod objective;
mod olmo2;
mod phi3;
mod qwen3_moe;

pub(crate) use attention::Attend;
pub(crate) use loss::{Targets, causal_lm_loss, fused_causal_lm_loss};
pub(crate) use objective::{ValueHead, policy_loss, response_log_probs, value_loss};

use crate::Layers;
use crate::config::{Architecture, Reader, Shape};
use crate::nn::{Builder, Linear, count};
use crate::options::{Options, Recompute};
use crate::parallel::stage::Part;
use crate::parallel::tensor::{self, TpPlan};
use crate::torch::autograd::{Edge, Leaf};
use crate::torch::checkpoint::checkpoint;
use crate::torch::offload::ActivationOffload;
use crate::torch::trail;
use crate::torch::{ModuleId, Tensor, Torch};
use peakledger_input::Problem;
use std::fmt::Debug;
use std::sync::Arc;

/// A model family that can be planned.
#[derive(Debug)]
pub struct Family {
    /// `model_type` in config.json.
    pub model_type: &'static str,
    /// The transformers file whose modules are mirrored.
    pub modules: &'static str,
    pub(crate) read: Read,
    /// How its modules are split among tensor parallel ranks; nothing where transformers has no plan for it.
    pub(crate) tp_plan: Option<TpPlan>,
}

/// What a family makes of its config.json.
type Read = fn(&mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem>;

/// The model families known.
pub const FAMILIES: [Family; 13] = [
    Family {
        model_type: "llama",
        modules: "modeling_llama.py",
        read: llama::read_llama,
        tp_plan: Some(tensor::LLAMA),
    },
    Family {
        model_type: "mistral",
        modules: "modeling_mistral.py",
        read: llama::read_mistral,
        tp_plan: Some(tensor::LLAMA),
    },
    Family {
        model_type: "qwen2",
        modules: "modeling_qwen2.py",
        read: llama::read_qwen2,
        tp_plan: Some(tensor::LLAMA),
    },
    Family {
        model_type: "qwen3",
        modules: "modeling_qwen3.py",
        read: llama::read_qwen3,
        tp_plan: Some(tensor::QWEN3),
    },
    Family {
        model_type: "gemma2",
        modules: "modeling_gemma2.py",
        read: gemma::read_gemma2,
        tp_plan: Some(tensor::LLAMA),
    },
    Family {
        model_type: "gemma3_text",
        modules: "modeling_gemma3.py",
        read: gemma::read_gemma3,
        tp_plan: Some(tensor::QWEN3),
    },
    Family { model_type: "phi3", modules: "modeling_phi3.py", read: phi3::read, tp_plan: Some(tensor::PHI3) },
    Family {
        model_type: "olmo2",
        modules: "modeling_olmo2.py",
        read: olmo2::read,
        tp_plan: Some(tensor::OLMO2),
    },
    Family {
        model_type: "gpt_neox",
        modules: "modeling_gpt_neox.py",
        read: gpt_neox::read,
        tp_plan: Some(tensor::GPT_NEOX),
    },
    Family { model_type: "gpt2", modules: "modeling_gpt2.py", read: gpt2::read, tp_plan: None },
    Family {
        model_type: "mixtral",
        modules: "modeling_mixtral.py",
        read: mixtral::read,
        tp_plan: Some(tensor::MIXTRAL),
    },
    Family {
        model_type: "qwen3_moe",
        modules: "modeling_qwen3_moe.py",
        read: qwen3_moe::read,
        tp_plan: Some(tensor::QWEN3_MOE),
    },
    Family {
        model_type: "deepseek_v3",
        modules: "modeling_deepseek_v3.py",
        read: deepseek_v3::read,
        tp_plan: Some(tensor::DEEPSEEK_V3),
    },
];

/// How a family builds its model.
pub(crate) trait Blueprint: Debug + Send + Sync {
    /// Places the parameters and wires the modules.
    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model>;

    /// The same model as Megatron has it, if it has it.
    fn megatron(&self, _shape: &Shape) -> Option<megatron::Gpt> {
        None
    }

    /// How many numbers a layer keeps of a token while the model decodes: its keys and values.
    fn kv_width(&self, shape: &Shape) -> u64 {
        let widths = shape.head_dim.saturating_add(shape.v_head_dim.unwrap_or(shape.head_dim));
        shape.num_key_value_heads.saturating_mul(widths)
    }

    /// The heads that these are of.
    fn cached_heads(&self, shape: &Shape) -> u64 {
        shape.num_key_value_heads
    }
}

/// How a model is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Which part of it.
    pub(crate) part: Part,
    pub(crate) attend: Attend,
    /// What is computed again in backward.
    pub(crate) recompute: Recompute,
    /// Whether what decoder layers save goes to the host, and how many layers ahead the copies run.
    pub(crate) offload_activations: Option<usize>,
    /// The layers that this is done for, where it is not all of them.
    pub(crate) offload_layers: Option<Layers>,
    /// Whether the embedding's output asks for its gradient though nothing before it is trained.
    pub(crate) input_grads: bool,
}

impl Run {
    /// For a whole model that is built to be counted, and not run.
    pub(crate) fn none(shape: &Shape) -> Run {
        Run {
            part: Part::whole(shape.num_hidden_layers),
            attend: Attend::Eager,
            recompute: Recompute::None,
            offload_activations: None,
            offload_layers: None,
            input_grads: false,
        }
    }

    /// What the embedding put out, as the layers take it.
    pub(crate) fn input(self, embedded: Tensor, module: ModuleId) -> Tensor {
        let embedded = match self.input_grads && !embedded.requires_grad() {
            true => {
                let leaf = Leaf::new(None, false);
                embedded.torch().leaves.borrow_mut().push((embedded.detach(), leaf.clone()));
                embedded.with_edge(Some(Edge::leaf(leaf, module)))
            }
            false => embedded,
        };
        let hooks = embedded.torch().module_hooks.borrow().clone();
        match hooks {
            Some(hooks) => hooks.after_embedding(embedded),
            None => embedded,
        }
    }
}

/// A decoder layer with what it is given beside the hidden states.
pub(crate) type Block = Box<dyn Fn(&Tensor) -> Tensor>;

/// Runs the layers one after the other; with checkpoints, so many of them in each. What is offloaded comes and goes around
/// them.
pub(crate) fn run_blocks(mut hidden_states: Tensor, blocks: Vec<Block>, run: Run) -> Tensor {
    let hooks = hidden_states.torch().module_hooks.borrow().clone();
    let activations = run.offload_activations.map(ActivationOffload::new);
    let together = run.recompute.layers().map_or(1, |layers| layers.get() as usize);
    let torch = hidden_states.torch().clone();
    let left_out = torch.left_out();
    let mut first = run.part.first as usize;
    let run_now = |(layer, _): &(usize, Block)| !left_out.contains(layer);
    let mut blocks = (first..).zip(blocks).filter(run_now).map(|(_, block)| block).peekable();
    while blocks.peek().is_some() {
        let group: Vec<Block> = blocks.by_ref().take(together).collect();
        let layers = first..first + group.len();
        let index = u32::try_from(torch.in_model(first)).unwrap_or(u32::MAX);
        first = layers.end;
        torch.enters(trail::Part::Layer(layers.start));
        let through = move |input: &Tensor| {
            let mut hidden_states = input.clone();
            for block in &group {
                hidden_states = block(&hidden_states);
            }
            hidden_states
        };
        let checkpointed = |input: &Tensor| match run.recompute {
            Recompute::None => through(input),
            Recompute::Layers(layers) if !layers.contains(index) => through(input),
            recompute => checkpoint(input, recompute == Recompute::Selective, through),
        };
        let saving = |input: &Tensor| match &activations {
            None => checkpointed(input),
            Some(offload) => {
                let goes = run.offload_layers.is_none_or(|layers| layers.contains(index));
                offload.around(input, goes, checkpointed)
            }
        };
        hidden_states = match &hooks {
            None => saving(&hidden_states),
            Some(hooks) => hooks.clone().around(layers, &hidden_states, Box::new(saving)),
        };
    }
    torch.enters(trail::Part::Between);
    match hooks {
        Some(hooks) => hooks.before_head(hidden_states),
        None => hidden_states,
    }
}

/// What the head puts out, before anything else is done with it.
pub(crate) fn through_head(head: &Linear, last_hidden_state: &Tensor) -> Tensor {
    let logits = head.forward(last_hidden_state);
    let hooks = logits.torch().module_hooks.borrow().clone();
    match hooks {
        Some(hooks) => hooks.after_head(logits),
        None => logits,
    }
}

/// A causal language model, or a part of one.
pub(crate) trait Model {
    /// Runs a batch through the layers: the last hidden states, `[b, s, h]`.
    fn decode(&self, batch: &Batch) -> Tensor;

    /// The head, where the part has it and it is a linear module.
    fn head(&self) -> Option<&Linear>;

    /// The last hidden states through the head, where the part has it: `[b, s, vocabulary]`.
    fn logits(&self, last_hidden_state: &Tensor) -> Option<Tensor> {
        Some(through_head(self.head()?, last_hidden_state))
    }

    /// The loss of a micro-batch, where the model computes it its own way.
    fn own_loss(&self, _logits: &Tensor, _batch: &Batch) -> Option<Tensor> {
        None
    }
}

/// A micro-batch on the device.
#[derive(Clone)]
pub(crate) struct Batch {
    /// Token ids, `[b, s]`; hidden states, `[b, s, h]` (Megatron's `[s, b, h]`), for a part of the model that has no
    /// embedding.
    pub(crate) input: Tensor,
    /// `[b, s]`, where rows are padded.
    pub(crate) attention_mask: Option<Tensor>,
    /// `[1, s]`, where the model is passed the positions; `[b, s]` where each row has its own.
    pub(crate) position_ids: Option<Tensor>,
    /// `[b, s]`, for the part that has the head.
    pub(crate) labels: Option<Tensor>,
    /// The same shifted by one already, where ranks share the sequence.
    pub(crate) shift_labels: Option<Tensor>,
    /// Which tokens count, `[b, s]`, where the loop makes it (Megatron's).
    pub(crate) loss_mask: Option<Tensor>,
}

impl Batch {
    /// What its loss is compared with.
    pub(crate) fn targets(&self) -> Option<Targets<'_>> {
        let shifted = self.shift_labels.as_ref().map(Targets::Shifted);
        shifted.or(self.labels.as_ref().map(Targets::Labels))
    }

    /// One of that input alone.
    pub(crate) fn of(input: Tensor) -> Batch {
        Batch {
            input,
            attention_mask: None,
            position_ids: None,
            labels: None,
            shift_labels: None,
            loss_mask: None,
        }
    }
}

impl Architecture {
    /// How many parameters the model has: it is built, but not run.
    pub fn parameters(&self) -> u64 {
        let mut build = Builder::new(Torch::new(0, None), &Options::default());
        let _model = self.blueprint.build(&mut build, &self.shape, Run::none(&self.shape));
        count(&build.parameters)
    }
}
