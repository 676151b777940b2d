//! The options of a plan: how the step is run. Names and defaults are those of the command line.

use crate::Layers;
use crate::config::Shape;
use crate::parallel::stage::Part;
use crate::parallel::{Mesh, Parallel, Stack};
use crate::torch::Dtype;
use peakledger_core::Bytes;
use peakledger_input::Problem;
use std::num::NonZeroU32;

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

/// Tokens of a micro-batch beyond any in use; keeps their product with a width far from 64 bits.
pub(crate) const MOST_TOKENS: u64 = 1 << 32;
/// Layers × micro-batches: those that are alike are run a few times, and written down for what asks for every storage, some
/// 200 of 56 B for each.
const MOST_BLOCKS: u64 = 1 << 16;
/// The same for all stages of a pipeline, each of which is planned.
const MOST_BLOCKS_OF_STAGES: u64 = 1 << 18;

/// Experts × layers × micro-batches that run one after the other: a plan records some 60 storages for each.
const MOST_EXPERT_RUNS: u64 = 1 << 16;

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
    pub(crate) fn length(&self, shape: &Shape) -> u64 {
        self.seq_len.unwrap_or_else(|| shape.max_position_embeddings.min(2048))
    }

    /// Checks what no type rules out.
    pub(crate) fn check(&self, seq_len: u64, layers: u32, experts: u64) -> Result<(), Problem> {
        let wrong =
            |option: &str, cause: String, mend: &str| Err(Problem::in_option(option, cause).mend(mend));
        if self.micro_batch_size == 0 {
            return wrong("--micro-batch-size", "a micro-batch of 0 sequences".to_owned(), "use 1 or more");
        }
        if seq_len == 0 {
            return wrong("--seq-len", "a sequence of 0 tokens".to_owned(), "use 1 or more");
        }
        if self.gradient_accumulation_steps == 0 {
            return wrong(
                "--gradient-accumulation-steps",
                "a step of 0 micro-batches".to_owned(),
                "use 1 or more",
            );
        }
        if self.micro_batch_size.saturating_mul(seq_len) > MOST_TOKENS {
            let cause = format!("{} × {seq_len} tokens are more than 2^32", self.micro_batch_size);
            return wrong("--micro-batch-size", cause, "check it and --seq-len");
        }
        let blocks = self.check_blocks(layers)?;
        let foreach = self.optimizer_impl.is_some_and(|kind| kind != OptimizerImpl::ForLoop);
        if self.optimizer == OptimizerKind::Adafactor && foreach {
            let cause = "Adafactor is planned a parameter at a time, as torch runs it unless told otherwise"
                .to_owned();
            return wrong("--optimizer-impl", cause, "leave it out, or use forloop");
        }
        let of_bitsandbytes = match self.optimizer {
            OptimizerKind::AdamW8bit => Some("AdamW8bit"),
            OptimizerKind::AdamW32bit => Some("AdamW32bit"),
            OptimizerKind::Lion => Some("Lion"),
            _ => None,
        };
        if let (Some(name), true) = (of_bitsandbytes, self.optimizer_impl.is_some()) {
            let cause = format!("bitsandbytes' {name} has one implementation");
            return wrong("--optimizer-impl", cause, "leave it out");
        }
        let trained_in = self.lora.as_ref().map_or(self.weights(), |lora| lora.dtype);
        // (DeepSpeed scales by itself)
        if self.grad_scaler && !self.is_deepspeed() && trained_in == Dtype::F16 {
            let cause = "fp16 weights have fp16 gradients, which GradScaler does not unscale".to_owned();
            return wrong("--weights-dtype", cause, "use fp32 or bf16");
        }
        if self.quantize.is_some() && self.lora.is_none() {
            let cause = "quantized weights are frozen, so nothing would be trained".to_owned();
            return wrong("--quantize", cause, "add adapters: --lora r=16");
        }
        if self.prepare_for_kbit && self.quantize.is_none() {
            let cause = "it prepares quantized models, and no weight is quantized".to_owned();
            return wrong("--prepare-for-kbit", cause, "add --quantize nf4, or leave it out");
        }
        self.check_update()?;
        self.check_saved()?;
        self.check_parallel()?;
        self.check_layers(layers)?;
        if self.fused_loss && self.hold_outputs != HoldOutputs::No {
            let cause = "a fused loss makes no logits that a loop could keep".to_owned();
            return wrong("--hold-outputs", cause, "leave it out, or --fused-loss");
        }
        if !self.freeze.is_empty() && self.lora.is_some() {
            let cause = "with adapters all else is frozen already".to_owned();
            return wrong("--freeze", cause, "leave it out, or --lora");
        }
        if let Experts::Eager { imbalance } = self.experts {
            if !(imbalance >= 1.0 && imbalance.is_finite()) {
                let cause = format!("the busiest expert cannot have {imbalance} times the mean");
                return wrong("--expert-imbalance", cause, "use 1 or more");
            }
            if experts == 0 {
                return wrong("--experts", "the model has no experts".to_owned(), "leave it out");
            }
            let runs = blocks.saturating_mul(experts);
            if runs > MOST_EXPERT_RUNS {
                let cause = format!(
                    "{experts} experts in {blocks} blocks are more than {MOST_EXPERT_RUNS} runs of one"
                );
                return wrong("--experts", cause, "use grouped_mm, or fewer micro-batches");
            }
        }
        self.check_expert_tensor(experts)?;
        if self.momentum && self.optimizer != OptimizerKind::Sgd {
            let cause = "only SGD has a momentum to set".to_owned();
            return wrong("--momentum", cause, "leave it out, or use --optimizer sgd");
        }
        Ok(())
    }
}

impl Options {
    /// Checks that what is planned stays within bounds, of a stage and of all stages. Says how many layers a stage runs, one
    /// micro-batch after the other.
    fn check_blocks(&self, layers: u32) -> Result<u64, Problem> {
        let parallel = &self.parallel;
        let (stages, steps) = (parallel.pp.max(1), self.gradient_accumulation_steps);
        let own = [parallel.first_stage_layers, parallel.last_stage_layers].into_iter().flatten();
        let of_stage = own.fold(layers.div_ceil(stages), u32::max).min(layers);
        let each = match stages {
            1 => format!("{layers} layers"),
            _ => format!("{of_stage} layers of a stage and its ends"),
        };
        // beside its layers a stage runs what it receives and what it sends
        let run = u64::from(of_stage) + u64::from(stages > 1);
        let blocks = run.saturating_mul(u64::from(steps));
        if blocks > MOST_BLOCKS {
            let cause = format!("{each} × {steps} micro-batches are more than {MOST_BLOCKS} blocks");
            let mend = "use fewer: from the second on, micro-batches are alike";
            return Err(Problem::in_option("--gradient-accumulation-steps", cause).mend(mend));
        }
        if blocks.saturating_mul(u64::from(stages)) > MOST_BLOCKS_OF_STAGES {
            let cause = format!(
                "{stages} stages × {each} × {steps} micro-batches are more than {MOST_BLOCKS_OF_STAGES} blocks"
            );
            return Err(Problem::in_option("--pp", cause).mend("use fewer stages or micro-batches"));
        }
        Ok(blocks)
    }

    /// Checks that the layers that are named are there, counted over the whole model.
    fn check_layers(&self, layers: u32) -> Result<(), Problem> {
        if matches!(self.recompute, Recompute::Block(_)) && layers > Layers::MOST {
            let cause = format!("of {layers} layers {} can be named", Layers::MOST);
            return Err(Problem::in_option("--recompute", cause).mend("use full, or every:N"));
        }
        let recomputed = match self.recompute {
            Recompute::Layers(set) => Some(("--recompute", set)),
            _ => None,
        };
        let offloaded = self.offload_layers.map(|set| ("--offload-layers", set));
        for (option, set) in recomputed.into_iter().chain(offloaded) {
            if let Some(last) = set.last().filter(|last| *last >= layers) {
                let cause = format!("there is no layer {last} of {layers}");
                return Err(Problem::in_option(option, cause).mend("layers count from 0"));
            }
        }
        if self.offload_layers.is_some() && !self.offload.activations {
            let cause = "it names layers whose activations are offloaded, and none are";
            return Err(Problem::in_option("--offload-layers", cause)
                .mend("add `--offload activations`, or leave it out"));
        }
        Ok(())
    }

    /// Checks modules of which a copy is trained.
    fn check_saved(&self) -> Result<(), Problem> {
        let Some(lora) = self.lora.as_ref().filter(|lora| !lora.save.is_empty()) else { return Ok(()) };
        let parallel = &self.parallel;
        let shared =
            [("--tp", parallel.tp > 1), ("--pp", parallel.pp > 1), ("--fsdp", parallel.sharding.is_fsdp())];
        if let Some((option, _)) = shared.iter().find(|(_, is)| *is) {
            let cause = format!(
                "a copy of {} that is trained is not planned with {option} yet",
                lora.save.join(", ")
            );
            return Err(Problem::in_option("--lora", cause).mend(format!("leave out `save` or {option}")));
        }
        if let LoraTargets::Named(names) = &lora.targets
            && let Some(both) = names.iter().find(|name| lora.save.contains(name))
        {
            let cause = format!("{both} is to have an adapter and to be saved, which peft refuses");
            return Err(Problem::in_option("--lora", cause).mend("name it in one of targets and save"));
        }
        Ok(())
    }

    /// Checks what the update cannot do.
    fn check_update(&self) -> Result<(), Problem> {
        let wrong = |option: &str, cause: &str, mend: &str| Err(Problem::in_option(option, cause).mend(mend));
        let weights = self.weights();
        if self.master_weights.is_some() && self.lora.is_some() && self.stack == Stack::Transformers {
            let cause = "adapters are stepped in their own type";
            return wrong(
                "--master-weights",
                cause,
                "leave it out: `--lora r=16,dtype=fp32` sets their type",
            );
        }
        if self.master_weights == Some(weights) {
            return wrong("--master-weights", "the weights have that type already", "leave it out");
        }
        let is_zero = self.is_deepspeed();
        let stepped = if is_zero { self.stepped_in() } else { self.master_weights.unwrap_or(weights) };
        if self.grad_dtype.is_some_and(|grads| grads != stepped) {
            let cause = "an optimizer steps what has the type of its gradients";
            return wrong("--grad-dtype", cause, "use the type of --master-weights, or leave it out");
        }
        let on_host = self.offload.has_optimizer();
        if on_host && (self.master_weights.is_some() || self.grad_dtype.is_some()) {
            let cause =
                "master weights and gradient buffers are planned with an optimizer on the device alone";
            return wrong("--offload", cause, "leave out --master-weights and --grad-dtype, or the offload");
        }
        let on_the_device = match self.optimizer {
            OptimizerKind::AdamW8bit => Some("bitsandbytes' AdamW8bit runs on the device alone"),
            OptimizerKind::AdamW32bit => Some("bitsandbytes' AdamW32bit is planned on the device alone"),
            _ => None,
        };
        if let Some(cause) = on_the_device.filter(|_| on_host) {
            return wrong("--offload", cause, "use --optimizer adamw");
        }
        // DeepSpeed takes the norm as it reduces, and clips on the host
        let copies_early = self.offload.optimizer && !self.offload.parameters && !self.is_deepspeed();
        if copies_early && self.clip_grad_norm {
            let cause =
                "gradients are copied to the host as they are made, before there is a norm to clip them by";
            return wrong("--clip-grad-norm", cause, "leave out one: it or `--offload optimizer`");
        }
        Ok(())
    }
}

impl Options {
    /// Whether it trains as the other does, on as many sequences with the same arithmetic: what differs is when and where
    /// things are computed and kept.
    pub fn trains_as(&self, other: &Options) -> bool {
        let sequences = |o: &Options| o.sequences().ok();
        let types = |o: &Options| (o.weights(), o.compute(), o.parallel.data.reduce_dtype);
        let (mine, theirs) = (self, other);
        let alike = Options {
            micro_batch_size: theirs.micro_batch_size,
            gradient_accumulation_steps: theirs.gradient_accumulation_steps,
            optimizer_impl: theirs.optimizer_impl,
            attention: theirs.attention,
            expand_kv: theirs.expand_kv,
            recompute: theirs.recompute,
            loss_in_model: theirs.loss_in_model,
            fused_loss: theirs.fused_loss,
            offload: theirs.offload,
            offload_layers: theirs.offload_layers,
            offload_prefetch: theirs.offload_prefetch,
            hold_outputs: theirs.hold_outputs,
            parallel: theirs.parallel.clone(),
            ..mine.clone()
        };
        alike == *theirs && sequences(mine) == sequences(theirs) && types(mine) == types(theirs)
    }

    /// Sequences of a step, those of all ranks together.
    ///
    /// # Errors
    /// Says which sizes make no world.
    pub fn sequences(&self) -> Result<u64, Problem> {
        let of_a_rank = self.micro_batch_size.saturating_mul(u64::from(self.gradient_accumulation_steps));
        Ok(of_a_rank.saturating_mul(u64::from(self.mesh()?.dp)))
    }

    /// The same with as many micro-batches as make up a step of so many sequences.
    ///
    /// # Errors
    /// Says which sizes make no world, or that the sequences cannot be dealt out evenly.
    pub fn of_sequences(self, sequences: u64) -> Result<Options, Problem> {
        let dp = u64::from(self.mesh()?.dp);
        let at_once = self.micro_batch_size.saturating_mul(dp);
        let steps = sequences.checked_div(at_once);
        let steps = steps.filter(|steps| *steps > 0 && steps.saturating_mul(at_once) == sequences);
        match steps.and_then(|steps| u32::try_from(steps).ok()) {
            Some(gradient_accumulation_steps) => Ok(Options { gradient_accumulation_steps, ..self }),
            None => {
                let micro_batch = self.micro_batch_size;
                let are = if sequences == 1 { "sequence in a step is" } else { "sequences in a step are" };
                let cause = format!(
                    "{sequences} {are} no multiple of micro-batch {micro_batch} × dp {dp} = {at_once}"
                );
                Err(Problem::in_option("--micro-batch-size", cause).mend("use another micro-batch or batch"))
            }
        }
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

    /// Checks that experts are split as transformers splits them; with `--ep` they are whole, and that is checked with it.
    fn check_expert_tensor(&self, experts: u64) -> Result<(), Problem> {
        let Parallel { etp: Some(etp), ep: 0 | 1, tp, .. } = self.parallel else { return Ok(()) };
        let cause = match experts {
            _ if self.stack != Stack::Transformers => return Ok(()),
            0 => "the model has no experts".to_owned(),
            _ if etp == tp => return Ok(()),
            _ => format!("transformers splits the matrices of experts as all others are: over tp {tp} ranks"),
        };
        Err(Problem::in_option("--etp", cause).mend("leave it out"))
    }

    /// Checks what a step that is spread over GPUs cannot be, and refuses what is not planned yet.
    fn check_parallel(&self) -> Result<(), Problem> {
        let parallel = &self.parallel;
        let mesh = self.mesh()?;
        let megatron = self.stack == Stack::Megatron;
        if !megatron {
            self.check_sharding()?;
        }
        self.check_pipeline()?;
        if parallel.sp && mesh.tp == 1 {
            let cause = "the sequence is split among the ranks of --tp, and there is one";
            return Err(Problem::in_option("--sp", cause).mend("add --tp, or leave it out"));
        }
        if parallel.loss_parallel && (megatron || mesh.tp == 1) {
            let (cause, mend) = match megatron {
                true => ("Megatron's loss takes the logits as they are shared out already", "leave it out"),
                false => (
                    "the logits are shared out among the ranks of --tp, and there is one",
                    "add --tp, or leave it out",
                ),
            };
            return Err(Problem::in_option("--loss-parallel", cause).mend(mend));
        }
        self.check_context_parallel(&mesh)?;
        if megatron { Ok(()) } else { self.check_data_parallel(&mesh) }
    }
}

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

    /// The same with the layers of these parts named, where they are told by their place in them.
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

/// A part of the model that is not trained: the modules and parameters of that name and below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// `model.embed_tokens`, `model.layers`.
    pub prefix: String,
    /// Of a list of modules, those from the first to the last.
    pub range: Option<(u32, u32)>,
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

/// How the weights of linear modules are packed (bitsandbytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantize {
    /// 4 bits a number, a scale in fp32 for 64.
    Nf4,
    /// The same with scales packed to 8 bits, 256 of them under a scale of their own.
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
