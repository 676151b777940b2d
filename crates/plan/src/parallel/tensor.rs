//! Tensor parallel as transformers runs it on DTensors: which module of a family is split, and how.
//!
//! A family says it in one table here, as its config says it in `base_model_tp_plan`; a module looks its style up by its
//! name when it is built. The styles are those of `transformers/distributed/tensor_parallel.py` (5.24); what a change of
//! placement allocates is in `torch/ops/collectives.rs`. With `--sp` the styles are torch's own, combined as torchtitan's
//! `parallelize_llama` does (`torch/distributed/tensor/parallel/style.py`), since transformers has no plan with
//! sequence-parallel norms.

use crate::config::Architecture;
use crate::options::{Attention, Objective, OptimizerKind, Options, refused};
use crate::torch::ops::Group;
use crate::torch::{Tensor, ops};
use peakledger_input::Problem;

/// How a module is split (`ALL_PARALLEL_STYLES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `colwise`: outputs are shared out; of the input's gradient each rank has a part of the sum.
    Colwise,
    /// `colwise_gather_output`: the same, and the outputs are gathered.
    ColwiseGathered,
    /// A head whose outputs stay shared out, for a loss that takes them so.
    ColwiseSharded,
    /// `rowwise`: inputs are shared out; each rank has a part of the output's sum.
    Rowwise,
    /// `rowwise_split_input`: the same for an input that all ranks have whole.
    RowwiseSplit,
    /// `embedding_rowwise`: the vocabulary is shared out.
    Vocabulary,
    /// `replicated_with_grad_allreduce`: every rank has it whole, and a part of its gradient.
    GradientReduced,
    /// `SequenceParallel` of a norm: every rank has it whole and runs it over its part of the sequence, so that of its
    /// gradient each has a part of the sum.
    SequenceNorm,
    /// `PrepareModuleInput`: the parts of the sequence are gathered for the modules within.
    Gathered,
    /// `moe_tp_experts`: every rank has a part of every expert (`packed_colwise`, `rowwise`).
    Experts,
}

/// The styles of a family's modules, by the end of their names.
pub(crate) type TpPlan = &'static [(&'static str, Style)];

const HEAD_NAME: &str = "lm_head";
const HEAD: (&str, Style) = (HEAD_NAME, Style::ColwiseGathered);
/// `init_parallel_plans` adds it wherever a model has an `embed_tokens`.
const EMBEDDING: (&str, Style) = ("embed_tokens", Style::Vocabulary);

macro_rules! plan {
    ($($entry:expr),* $(,)?) => { &[HEAD, EMBEDDING, $($entry),*] };
}

use Style::{
    Colwise, ColwiseGathered, ColwiseSharded, Experts, Gathered, GradientReduced, Rowwise, RowwiseSplit,
    SequenceNorm,
};

/// llama, mistral, qwen2, gemma2.
pub(crate) const LLAMA: TpPlan = plan![
    ("self_attn.q_proj", Colwise),
    ("self_attn.k_proj", Colwise),
    ("self_attn.v_proj", Colwise),
    ("self_attn.o_proj", Rowwise),
    ("mlp.gate_proj", Colwise),
    ("mlp.up_proj", Colwise),
    ("mlp.down_proj", Rowwise),
];

/// The same with what lies between the matrices split by sequence.
const LLAMA_SEQUENCE: TpPlan = plan![
    ("norm", SequenceNorm),
    ("input_layernorm", SequenceNorm),
    ("self_attn", Gathered),
    ("self_attn.q_proj", Colwise),
    ("self_attn.k_proj", Colwise),
    ("self_attn.v_proj", Colwise),
    ("self_attn.o_proj", Rowwise),
    ("post_attention_layernorm", SequenceNorm),
    ("mlp", Gathered),
    ("mlp.gate_proj", Colwise),
    ("mlp.up_proj", Colwise),
    ("mlp.down_proj", Rowwise),
];

/// The plan of a family with `--sp`, where there is one.
fn sequence_plan(family: &str) -> Option<TpPlan> {
    ["llama", "mistral", "qwen2"].contains(&family).then_some(LLAMA_SEQUENCE)
}

/// qwen3, gemma3: queries and keys are normed head by head.
pub(crate) const QWEN3: TpPlan = plan![
    ("self_attn.q_proj", Colwise),
    ("self_attn.k_proj", Colwise),
    ("self_attn.v_proj", Colwise),
    ("self_attn.q_norm", GradientReduced),
    ("self_attn.k_norm", GradientReduced),
    ("self_attn.o_proj", Rowwise),
    ("mlp.gate_proj", Colwise),
    ("mlp.up_proj", Colwise),
    ("mlp.down_proj", Rowwise),
];

/// mixtral.
pub(crate) const MIXTRAL: TpPlan = plan![
    ("self_attn.q_proj", Colwise),
    ("self_attn.k_proj", Colwise),
    ("self_attn.v_proj", Colwise),
    ("self_attn.o_proj", Rowwise),
    ("mlp.experts", Experts),
];

/// qwen3_moe.
pub(crate) const QWEN3_MOE: TpPlan = plan![
    ("self_attn.q_proj", Colwise),
    ("self_attn.k_proj", Colwise),
    ("self_attn.v_proj", Colwise),
    ("self_attn.q_norm", GradientReduced),
    ("self_attn.k_norm", GradientReduced),
    ("self_attn.o_proj", Rowwise),
    ("mlp.experts", Experts),
    ("mlp.gate_proj", Colwise),
    ("mlp.up_proj", Colwise),
    ("mlp.down_proj", Rowwise),
];

/// deepseek_v3: attention is not split.
pub(crate) const DEEPSEEK_V3: TpPlan = plan![
    ("mlp.experts", Experts),
    ("mlp.shared_experts.gate_proj", Colwise),
    ("mlp.shared_experts.up_proj", Colwise),
    ("mlp.shared_experts.down_proj", Rowwise),
    ("mlp.gate_proj", Colwise),
    ("mlp.up_proj", Colwise),
    ("mlp.down_proj", Rowwise),
];

/// phi3: what is fused is gathered, for it is cut into unequal parts.
pub(crate) const PHI3: TpPlan = plan![
    ("self_attn.qkv_proj", ColwiseGathered),
    ("self_attn.o_proj", RowwiseSplit),
    ("mlp.gate_up_proj", ColwiseGathered),
    ("mlp.down_proj", RowwiseSplit),
];

/// olmo2: queries and keys are normed whole.
pub(crate) const OLMO2: TpPlan = plan![
    ("self_attn.q_proj", ColwiseGathered),
    ("self_attn.k_proj", ColwiseGathered),
    ("self_attn.v_proj", ColwiseGathered),
    ("self_attn.o_proj", RowwiseSplit),
    ("mlp.gate_proj", Colwise),
    ("mlp.up_proj", Colwise),
    ("mlp.down_proj", Rowwise),
];

/// gpt_neox.
pub(crate) const GPT_NEOX: TpPlan = plan![
    ("embed_in", Style::Vocabulary),
    ("attention.query_key_value", Colwise),
    ("attention.dense", Rowwise),
    ("mlp.dense_h_to_4h", Colwise),
    ("mlp.dense_4h_to_h", Rowwise),
];

/// The tensor parallel group of a rank, and the plan by which its modules are split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorParallel {
    pub(crate) group: Group,
    plan: TpPlan,
    /// Whether what lies between the matrices is split by sequence.
    pub(crate) sequence: bool,
    /// Whether the head's outputs stay shared out.
    shares_logits: bool,
}

impl Options {
    /// The ranks that share the vocabulary of the logits, where the loss takes them so.
    pub(crate) fn logits_shared_by(&self) -> Option<Group> {
        let mesh = self.mesh().ok().filter(|_| self.parallel.loss_parallel)?;
        Some(Group::new(mesh.tensor_peers(), mesh.place(self.parallel.rank).tp))
    }
}

impl TensorParallel {
    /// Nothing where there is one rank.
    ///
    /// # Errors
    /// Names what does not divide, with the equation, and what transformers cannot do with a model that is split.
    pub(crate) fn of(arch: &Architecture, options: &Options) -> Result<Option<TensorParallel>, Problem> {
        let mesh = options.mesh()?;
        let group = Group::new(mesh.tensor_peers(), mesh.place(options.parallel.rank).tp);
        if group.ranks <= 1 {
            return Ok(None);
        }
        let sequence = options.parallel.sp;
        if sequence {
            check_sequence(arch, options, group)?;
        }
        let plan = if sequence { sequence_plan(arch.family.model_type) } else { arch.family.tp_plan };
        let Some(plan) = plan else {
            let cause = format!("transformers has no tensor parallel plan for {}", arch.family.model_type);
            return refused("--tp", cause, "leave it out for this model, or shard it: --fsdp full_shard");
        };
        let splits_heads = plan.iter().any(|(name, style)| {
            *style == Colwise && name.contains("attention") | name.contains("self_attn")
        });
        let shape = &arch.shape;
        let heads =
            [("attention heads", shape.num_attention_heads), ("key-value heads", shape.num_key_value_heads)];
        for (what, heads) in heads {
            let ranks = u64::from(group.ranks);
            if splits_heads && heads % ranks != 0 {
                let cause = format!(
                    "{heads} {what} / tp {ranks} = {} and {} over: a rank has whole heads",
                    heads / ranks,
                    heads % ranks
                );
                let (all, grouped) = (shape.num_attention_heads, shape.num_key_value_heads);
                return refused("--tp", cause, format!("use a size that divides {all} and {grouped}"));
            }
        }
        check_combination(options)?;
        let shares_logits = options.parallel.loss_parallel;
        if shares_logits && options.objective != Objective::NextToken {
            let cause = "torch has the loss of the next token alone over logits that ranks share";
            return refused("--loss-parallel", cause, "leave it out: the logits are gathered then");
        }
        Ok(Some(TensorParallel { group, plan, sequence, shares_logits }))
    }

    /// How the module of that full name is split, if it is.
    pub(crate) fn split(&self, path: &str) -> Option<Split> {
        let named =
            |end: &str| path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let style = self.plan.iter().find(|(end, _)| named(end)).map(|(_, style)| *style)?;
        let style = if self.shares_logits && named(HEAD_NAME) { ColwiseSharded } else { style };
        Some(Split { style, group: self.group, sequence: self.sequence })
    }
}

/// Refuses what cannot be split by sequence, or is not planned so.
fn check_sequence(arch: &Architecture, options: &Options, group: Group) -> Result<(), Problem> {
    let (length, ranks) = (options.length(&arch.shape), u64::from(group.ranks));
    if length % ranks != 0 {
        let cause = format!("{length} tokens / tp {ranks} = {} and {} over", length / ranks, length % ranks);
        return refused("--sp", cause, "use a --seq-len that --tp divides");
    }
    if sequence_plan(arch.family.model_type).is_none() {
        let cause = format!(
            "sequence parallel is planned for llama, mistral and qwen2, not for {}",
            arch.family.model_type
        );
        return refused("--sp", cause, "leave it out for this model");
    }
    let windowed = arch.shape.window.as_ref().is_some_and(|window| length >= window.size);
    if options.padded || windowed || options.attention == Attention::Eager {
        let cause = "transformers would make a mask as long as the rank's part of the sequence";
        return refused(
            "--sp",
            cause,
            "use --attention sdpa without padding or a window that the sequence reaches",
        );
    }
    if options.lora.is_some() {
        let cause = "adapters are planned with transformers' own styles, which have no --sp";
        return refused("--sp", cause, "leave it out");
    }
    Ok(())
}

/// Refuses what does not run with DTensors, or is not planned with them.
fn check_combination(options: &Options) -> Result<(), Problem> {
    let optimizer = !matches!(options.optimizer, OptimizerKind::AdamW | OptimizerKind::Sgd);
    let cases = [
        (
            options.quantize.is_some(),
            "--quantize",
            "the weights of bitsandbytes' modules are no DTensors",
            "leave it out, or --tp",
        ),
        (
            optimizer,
            "--optimizer",
            "with tensor parallel parameters AdamW and SGD are planned",
            "use adamw or sgd",
        ),
        (
            options.fused_loss,
            "--fused-loss",
            "Liger's loss takes the whole weight of the head",
            "leave it out, or --tp",
        ),
        (
            options.grad_scaler,
            "--grad-scaler",
            "GradScaler puts DTensors and plain tensors into one list, which torch refuses",
            "use bf16",
        ),
        (
            options.master_weights.is_some() || options.grad_dtype.is_some(),
            "--master-weights",
            "master weights and main gradients beside tensor parallel are Megatron's",
            "use --stack megatron",
        ),
        (
            options.offload.has_optimizer(),
            "--offload",
            "an optimizer or parameters on the host are not planned with tensor parallel",
            "leave it out, or --tp",
        ),
    ];
    match cases.iter().find(|(asked, ..)| *asked) {
        Some((_, option, cause, mend)) => refused(option, *cause, *mend),
        None => Ok(()),
    }
}

/// How a module is split, and among whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub(crate) style: Style,
    pub(crate) group: Group,
    /// Whether what lies around it is split by sequence.
    sequence: bool,
}

/// The dimension of the sequence.
const SEQUENCE: usize = 1;

impl Split {
    /// This rank's part of a linear module's inputs and outputs.
    pub(crate) fn sizes(self, (inputs, outputs): (u64, u64)) -> (u64, u64) {
        match self.style {
            Colwise | ColwiseGathered | ColwiseSharded => (inputs, self.group.part(outputs)),
            Rowwise | RowwiseSplit => (self.group.part(inputs), outputs),
            _ => (inputs, outputs),
        }
    }

    /// Whether each rank makes a part of the sum that the outputs are.
    pub(crate) fn sums(self) -> bool {
        matches!(self.style, Rowwise | RowwiseSplit)
    }

    /// Runs a linear module of so many outputs over this rank's part of its weight (`tp_forward`).
    pub(crate) fn around(self, x: &Tensor, outputs: u64, product: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        let last = x.sizes().len().saturating_sub(1);
        match self.style {
            Colwise if self.sequence => product(x), // its input is gathered for all of them
            Colwise => product(&ops::all_reduced_gradient(x, self.group)),
            ColwiseGathered | ColwiseSharded => {
                let x =
                    if self.sequence { self.gathered(x) } else { ops::all_reduced_gradient(x, self.group) };
                let part = product(&x);
                match self.style {
                    ColwiseSharded => part,
                    _ => ops::all_gather(part, last, outputs, self.group),
                }
            }
            Rowwise => self.summed(product(x)),
            RowwiseSplit => self.summed(product(&ops::chunk(x, last, self.group))),
            _ => product(x),
        }
    }

    /// What ranks have parts of, of the sequence, whole (`PrepareModuleInput`).
    pub(crate) fn gathered(self, x: &Tensor) -> Tensor {
        let whole = x.size(1).saturating_mul(u64::from(self.group.ranks));
        ops::all_gather_for_parts(x, SEQUENCE, whole, self.group)
    }

    /// The sum of what ranks have parts of: all of it, or this rank's part of the sequence.
    pub(crate) fn summed(self, part: Tensor) -> Tensor {
        match self.sequence {
            true => ops::reduce_scatter(part, SEQUENCE, self.group),
            false => ops::all_reduce(part, self.group),
        }
    }
}
