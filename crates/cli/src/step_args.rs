//! The options of a training step: what `plan` takes, and what each of its candidates may change.

use crate::lora_arg::LoraArg;
use crate::parallel_args::ParallelArgs;
use crate::parsers;
use crate::usage::{self, Asker};
use crate::values::values;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use peakledger_input::{Place, Problem, quoted};
use peakledger_plan::catalogue::Card;
use peakledger_plan::options::{
    Attention, Experts, Frozen, HoldOutputs, Offload, OptimizerImpl, OptimizerKind, Options, Precision,
    Quantize, Recompute,
};
use peakledger_plan::parallel::Stack;
use peakledger_plan::{Dtype, Layers};

/// How the step is run. Nothing here has a default of clap's, so that a candidate changes only what it names.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Step")]
pub(crate) struct StepArgs {
    /// Sequences in a micro-batch [default: 1]
    #[arg(long, visible_alias = "batch", value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u64>)]
    micro_batch_size: Option<u64>,
    /// Tokens in a sequence [default: 2048, or the model's limit if smaller]
    #[arg(long, visible_alias = "seq", value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u64>)]
    seq_len: Option<u64>,
    /// Micro-batches in a step [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    gradient_accumulation_steps: Option<u32>,
    /// Types of weights and compute; *-mixed is fp32 weights under autocast [default: bf16-mixed]
    #[arg(long, value_enum, value_name = "TYPE")]
    precision: Option<PrecisionArg>,
    /// Another type of weights than --precision has: bf16 weights under autocast, say; none for no other
    #[arg(long, value_enum, value_name = "TYPE")]
    weights_dtype: Option<OwnDtypeArg>,
    /// The optimizer [default: adamw]
    #[arg(long, value_enum, value_name = "NAME")]
    optimizer: Option<OptimizerArg>,
    /// How torch computes the optimizer step [default: foreach, as torch picks on CUDA; forloop for adafactor]
    #[arg(long, value_enum, value_name = "KIND")]
    optimizer_impl: Option<OptimizerImplArg>,
    /// The momentum of SGD; 0 keeps no buffer [default: 0]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = parsers::momentum)]
    momentum: Option<f64>,
    /// How attention is computed [default: sdpa]
    #[arg(long, value_enum, value_name = "KIND")]
    attention: Option<AttentionArg>,
    /// Whether rows are padded, so that the model is passed an attention mask [default: none]
    #[arg(long, value_enum, value_name = "KIND")]
    attention_mask: Option<AttentionMaskArg>,
    /// Repeat keys and values for all heads before the attention kernel is called
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    expand_kv: Option<bool>,
    /// How the experts of a layer are run: by one grouped product, or one after the other [default: grouped_mm]
    #[arg(long, value_enum, value_name = "KIND")]
    experts: Option<ExpertsArg>,
    /// The load of the busiest expert over the mean, as eager experts feel it (1 + MaxVio); with --ep, the rows that the
    /// rank's experts receive over those that it sends [default: 1]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = parsers::imbalance)]
    expert_imbalance: Option<f64>,
    /// What is computed again in backward instead of kept: none, full, every:N for a checkpoint per N layers, layers:SET for
    /// a checkpoint each for some layers (layers:0-11+20) or for the first N of each stage (block:N), or selective for all but the products of linear modules and fused attention [default: none]
    #[arg(long, value_name = "KIND", value_parser = parsers::recompute)]
    recompute: Option<Recompute>,
    /// The same as --recompute full
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag(), conflicts_with = "recompute")]
    gradient_checkpointing: Option<bool>,
    /// What waits on the host while the device does not need it: activations, optimizer or parameters, or several with commas
    /// between; none for nothing [default: none]
    #[arg(long, value_name = "WHAT,…", value_parser = parsers::offload)]
    offload: Option<Offload>,
    /// The layers whose activations wait on the host, as in 0-11+20 [default: all, with --offload activations]
    #[arg(long, value_name = "SET")]
    offload_layers: Option<Layers>,
    /// How many layers ahead of the computation copies to and from the host run [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u32>)]
    offload_prefetch: Option<u32>,
    /// Sum gradients in a persistent buffer of that type (Megatron's main_grad); none for no buffer
    #[arg(long, value_enum, value_name = "TYPE")]
    grad_dtype: Option<OwnDtypeArg>,
    /// Let the optimizer step copies of the weights in that type; none for no copies
    #[arg(long, value_enum, value_name = "TYPE")]
    master_weights: Option<OwnDtypeArg>,
    /// Do not train these parts of the model: names of modules with + between, of a list of layers some with a range, as in
    /// model.embed_tokens+model.layers.0-15; none trains all [default: none]
    #[arg(long, value_name = "NAME+…", value_parser = parsers::freeze)]
    freeze: Option<Parts>,
    /// Train adapters, the model frozen: r=16, with dropout=0, dtype=fp32 and targets=all-linear where they are left
    /// out, as in r=16,dropout=0.05,dtype=bf16,targets=q_proj+v_proj; save=embed_tokens+lm_head trains copies of these in their
    /// place (modules_to_save), in the type of the weights or of save_dtype; alpha is taken and changes no byte; none trains none
    #[arg(long, value_name = "r=R,…")]
    lora: Option<LoraArg>,
    /// Pack the frozen weights of linear modules (bitsandbytes); nf4-double packs their scales too, int8 is load_in_8bit [default:
    /// none]
    #[arg(long, value_enum, value_name = "KIND")]
    quantize: Option<QuantizeArg>,
    /// What stays unquantized becomes fp32 (peft's prepare_model_for_kbit_training)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    prepare_for_kbit: Option<bool>,
    /// Clip gradients by their norm
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    clip_grad_norm: Option<bool>,
    /// The model is passed the labels and computes the loss itself, still holding its last hidden states
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    loss_in_model: Option<bool>,
    /// Head and loss as one op that makes logits in pieces (Liger's fused linear cross entropy)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = parsers::flag())]
    fused_loss: Option<bool>,
    /// The loop keeps the model's output until backward ends, or until the step does
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "backward", value_name = "UNTIL")]
    hold_outputs: Option<HoldOutputsArg>,
    #[command(flatten)]
    parallel: ParallelArgs,
}

values!(PrecisionArg for Precision {
    Fp32 = "fp32" => Precision::Fp32,
    Bf16 = "bf16" => Precision::Bf16,
    Fp16 = "fp16" => Precision::Fp16,
    Bf16Mixed = "bf16-mixed" => Precision::Bf16Mixed,
    Fp16Mixed = "fp16-mixed" => Precision::Fp16Mixed,
});
values!(DtypeArg for Dtype {
    Fp32 = "fp32" => Dtype::F32,
    Bf16 = "bf16" => Dtype::Bf16,
    Fp16 = "fp16" => Dtype::F16,
});
values!(OwnDtypeArg for Option<Dtype> {
    Fp32 = "fp32" => Some(Dtype::F32),
    Bf16 = "bf16" => Some(Dtype::Bf16),
    Fp16 = "fp16" => Some(Dtype::F16),
    None = "none" | "off" => None,
});
values!(OptimizerArg for OptimizerKind {
    AdamW = "adamw" => OptimizerKind::AdamW,
    AdamW8bit = "adamw-8bit" => OptimizerKind::AdamW8bit,
    AdamW32bit = "adamw-32bit" => OptimizerKind::AdamW32bit,
    Sgd = "sgd" => OptimizerKind::Sgd,
    Adafactor = "adafactor" => OptimizerKind::Adafactor,
    Lion = "lion" => OptimizerKind::Lion,
    Muon = "muon" => OptimizerKind::Muon,
});
values!(OptimizerImplArg for OptimizerImpl {
    Foreach = "foreach" => OptimizerImpl::Foreach,
    Fused = "fused" => OptimizerImpl::Fused,
    ForLoop = "forloop" => OptimizerImpl::ForLoop,
});
values!(AttentionMaskArg for bool {
    None = "none" | "off" => false,
    Padded = "padded" => true,
});
values!(QuantizeArg for Option<Quantize> {
    Nf4 = "nf4" => Some(Quantize::Nf4),
    Nf4Double = "nf4-double" => Some(Quantize::Nf4Double),
    Int8 = "int8" => Some(Quantize::Int8),
    None = "none" | "off" => None,
});
values!(AttentionArg for Attention {
    Sdpa = "sdpa" => Attention::Sdpa,
    Eager = "eager" => Attention::Eager,
});
values!(ExpertsArg for bool {
    GroupedMm = "grouped_mm" => false,
    Eager = "eager" => true,
});
values!(HoldOutputsArg for HoldOutputs {
    No = "no" | "none" | "off" | "false" => HoldOutputs::No,
    Backward = "backward" => HoldOutputs::Backward,
    Step = "step" => HoldOutputs::Step,
});

impl StepArgs {
    /// The plain request, for a card.
    pub(crate) fn options(&self, card: Option<&Card>) -> Result<Options, Problem> {
        let default = Options::default();
        let momentum = self.momentum.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&momentum) {
            let problem = Problem::in_option("--momentum", format!("{momentum} is no momentum"));
            return Err(problem.mend("use a number from 0 to 1"));
        }
        let offload = self.offload.unwrap_or(default.offload);
        if self.offload_prefetch.is_some() && !(offload.activations || offload.parameters) {
            let problem =
                Problem::in_option("--offload-prefetch", "nothing is copied ahead of the computation");
            return Err(problem.mend("leave it out, or add `--offload activations`"));
        }
        let eager_experts = self.experts.is_some_and(Into::into);
        let spread_experts = self.parallel.parallel()?.ep > 1;
        if self.expert_imbalance.is_some() && !eager_experts && !spread_experts {
            let problem = Problem::in_option(
                "--expert-imbalance",
                "a grouped product is the same however rows are spread",
            );
            return Err(problem.mend("leave it out, or add `--experts eager`"));
        }
        let recompute = match self.gradient_checkpointing {
            Some(true) => Recompute::Full,
            Some(false) => Recompute::None,
            None => self.recompute.unwrap_or(default.recompute),
        };
        let stack = self.parallel.stack();
        let usual = usual_types(stack);
        let precision = self.precision.map_or(usual.precision, Into::into);
        Ok(Options {
            micro_batch_size: self.micro_batch_size.unwrap_or(default.micro_batch_size),
            seq_len: self.seq_len,
            gradient_accumulation_steps: self
                .gradient_accumulation_steps
                .unwrap_or(default.gradient_accumulation_steps),
            precision,
            weights_dtype: self.weights_dtype.and_then(Into::into),
            optimizer: self.optimizer.map_or(default.optimizer, Into::into),
            optimizer_impl: self.optimizer_impl.map(Into::into),
            momentum: momentum > 0.0,
            attention: self.attention.map_or(default.attention, Into::into),
            padded: self.attention_mask.map_or(default.padded, Into::into),
            expand_kv: self.expand_kv.unwrap_or(default.expand_kv),
            experts: match eager_experts {
                true => Experts::Eager { imbalance: self.expert_imbalance.unwrap_or(1.0) },
                false => default.experts,
            },
            rank_imbalance: self
                .expert_imbalance
                .filter(|_| spread_experts)
                .unwrap_or(default.rank_imbalance),
            recompute,
            offload,
            offload_layers: self.offload_layers,
            offload_prefetch: self.offload_prefetch.unwrap_or(default.offload_prefetch),
            grad_dtype: self.grad_dtype.map_or(usual.grad_dtype, Into::into),
            master_weights: self.master_weights.map_or(usual.master_weights, Into::into),
            freeze: self.freeze.clone().map(|parts| parts.0).unwrap_or_default(),
            lora: self.lora.clone().and_then(|lora| lora.0),
            quantize: self.quantize.and_then(Into::into),
            prepare_for_kbit: self.prepare_for_kbit.unwrap_or(default.prepare_for_kbit),
            grad_scaler: precision == Precision::Fp16Mixed,
            clip_grad_norm: self.clip_grad_norm.unwrap_or(default.clip_grad_norm),
            loss_in_model: self.loss_in_model.unwrap_or(default.loss_in_model),
            fused_loss: self.fused_loss.unwrap_or(default.fused_loss),
            hold_outputs: self.hold_outputs.map_or(default.hold_outputs, Into::into),
            objective: default.objective,
            capability: card.and_then(|card| card.capability),
            device_memory: card.map(Card::beside_the_context),
            stack,
            parallel: self.parallel.parallel()?,
        })
    }
}

/// The types that a stack has where none are given: Megatron's are those of `--bf16 --accumulate-allreduce-grads-in-fp32`.
fn usual_types(stack: Stack) -> Options {
    match stack {
        Stack::Transformers => Options::default(),
        Stack::Megatron => Options {
            precision: Precision::Bf16,
            grad_dtype: Some(Dtype::F32),
            master_weights: Some(Dtype::F32),
            ..Options::default()
        },
    }
}

/// Parts of a model.
#[derive(Clone)]
pub(crate) struct Parts(pub(crate) Vec<Frozen>);

/// Another way to run the step.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    /// What it changes, as it was given.
    pub(crate) options: String,
    pub(crate) step: StepArgs,
}

/// Each candidate is planned and shown.
const MOST_CANDIDATES: usize = 64;

/// Candidates, each `NAME: OPTIONS`: the baseline's options with those changed.
pub(crate) fn candidates(texts: &[String], baseline: &StepArgs) -> Result<Vec<Candidate>, Problem> {
    let wrong = |cause: String, mend: &str| Err(Problem::in_option("--candidate", cause).mend(mend));
    if texts.len() > MOST_CANDIDATES {
        let cause = format!("{} candidates are more than {MOST_CANDIDATES}", texts.len());
        return wrong(cause, "compare them in several runs");
    }
    let example = "write it as `--candidate \"recompute: --recompute full\"`";
    let mut candidates: Vec<Candidate> = Vec::with_capacity(texts.len());
    for text in texts {
        if text.trim().is_empty() {
            return wrong("an empty candidate".to_owned(), example);
        }
        let Some((name, options)) = text.split_once(':').map(|(name, options)| (name.trim(), options)) else {
            return wrong(format!("{} has no name", quoted(text)), example);
        };
        if name.is_empty() {
            return wrong("a candidate without a name".to_owned(), example);
        }
        if candidates.iter().any(|other| other.name == name) {
            let cause = format!("two candidates are named {}", quoted(name));
            return wrong(cause, "give each a name of its own");
        }
        candidates.push(Candidate::of(name, options, baseline)?);
    }
    Ok(candidates)
}

impl Candidate {
    /// The baseline's step with these options changed.
    pub(crate) fn of(name: &str, options: &str, baseline: &StepArgs) -> Result<Candidate, Problem> {
        let mut step = baseline.clone();
        match step.change(options.split_whitespace().map(str::to_owned)) {
            Ok(()) => Ok(Candidate { name: name.to_owned(), options: options.trim().to_owned(), step }),
            Err(problem) => Err(of_candidate(name, baseline, problem)),
        }
    }
}

/// What the words of a command line say of a step, to be said of any.
#[derive(Clone)]
pub(crate) struct Said(ArgMatches);

impl Said {
    /// What these words say.
    pub(crate) fn of(words: impl IntoIterator<Item = String>, asker: Asker<'_>) -> Result<Said, Problem> {
        let command = Command::new("--candidate").no_binary_name(true).disable_help_flag(true);
        let mut command = StepArgs::augment_args_for_update(command);
        let parsed = command.try_get_matches_from_mut(words);
        parsed.map(Said).map_err(|error| usage::explained(&error, &command, asker))
    }

    /// The options that are said, by their own names whichever were used.
    pub(crate) fn options(&self) -> Vec<String> {
        options_said(&self.0)
    }
}

/// The options that are said in words, not left to their defaults. Two that say one thing are one.
pub(crate) fn options_said(matches: &ArgMatches) -> Vec<String> {
    let of_step = StepArgs::augment_args(Command::new("step"));
    let options = of_step.get_arguments().filter(|arg| {
        let id = arg.get_id().as_str();
        matches.try_contains_id(id).unwrap_or(false)
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    });
    let name = |arg: &clap::Arg| match arg.get_long() {
        Some("gradient-checkpointing") => Some("recompute".to_owned()),
        long => long.map(str::to_owned),
    };
    options.filter_map(name).collect()
}

impl StepArgs {
    /// Changes it by what the words of a command line say.
    pub(crate) fn change(&mut self, words: impl IntoIterator<Item = String>) -> Result<(), Problem> {
        self.take(&Said::of(words, Asker::Step("a candidate"))?)
    }

    /// Changes it by what is said.
    pub(crate) fn take(&mut self, Said(matches): &Said) -> Result<(), Problem> {
        if matches.contains_id("recompute") {
            self.gradient_checkpointing = None; // the word that is said now holds
        }
        self.update_from_arg_matches(matches).map_err(|error| Problem::anywhere(error.to_string()))
    }

    /// Whether one of these options is said: those that a search has usual values of.
    pub(crate) fn says(&self, options: &[&str]) -> bool {
        options.iter().any(|option| match *option {
            "micro-batch-size" => self.micro_batch_size.is_some(),
            "recompute" => self.recompute.is_some() || self.gradient_checkpointing.is_some(),
            "offload" => self.offload.is_some(),
            of_many_gpus => self.parallel.says(of_many_gpus),
        })
    }

    /// The type that FSDP is told to reduce gradients in.
    pub(crate) fn reduce_dtype(&self) -> Option<Dtype> {
        self.parallel.reduce_dtype()
    }

    /// Whether it is said who wraps the model by FSDP.
    pub(crate) fn says_wrap(&self) -> bool {
        self.parallel.says_wrap()
    }
}

/// What is wrong with the step of a candidate, said of the candidate.
pub(crate) fn of_candidate(name: &str, baseline: &StepArgs, mut problem: Problem) -> Problem {
    let mend = match (problem.mend.take(), &problem.place) {
        // a candidate cannot leave out what it has from the baseline
        (Some(_), Some(Place::Option(option))) if option == "--momentum" && baseline.momentum.is_some() => {
            "the baseline's momentum holds for it too: add `--momentum 0` to the candidate".to_owned()
        }
        (mend, _) => mend.unwrap_or_else(|| "check its options".to_owned()),
    };
    Problem::in_option("--candidate", format!("{}: {problem}", quoted(name))).mend(mend)
}
