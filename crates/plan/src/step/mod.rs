//! The training step as a user writes it: micro-batches of forward, loss and backward, then clip, update and zero_grad.
//!
//! It is run once, as the first step. Later steps differ only in what outlives the first: the optimizer state, which it
//! makes in its update and they begin with.

mod batch;
mod training;

pub(crate) use batch::{load, load_part, place_input};
pub(crate) use training::{Graph, Loop};

use crate::config::Architecture;
use crate::model::megatron::{Gpt, GptModel};
use crate::model::{Attend, Model, Run, ValueHead};
use crate::nn::te::Shared;
use crate::nn::{Builder, Parameter, count};
use crate::optim::GradScaler;
use crate::options::{Objective, Options, Recompute, refused};
use crate::parallel::context;
use crate::parallel::data::{layers_ahead, shared_out};
use crate::parallel::experts::ExpertParallel;
use crate::parallel::schedule::{Action, actions};
use crate::parallel::stage::{Part, parts};
use crate::parallel::tensor::TensorParallel;
use crate::parallel::{Schedule, Sharding, Stack};
use crate::pipeline::Pipeline;
use crate::repeat::{Folded, Repeat, Rounds, shares_within_passes};
use crate::torch::facts::Facts;
use crate::torch::kernel;
use crate::torch::offload::{HostParameter, ParameterOffload};
use crate::torch::{Layout, Torch};
use crate::update::Update;
use peakledger_core::Phase;
use peakledger_input::Problem;
use std::rc::Rc;
use training::Program;

/// What a run leaves.
pub(crate) struct Outcome {
    pub(crate) folded: Folded,
    /// Parameters of the model, adapters among them.
    pub(crate) parameters: u64,
    /// Those that are trained.
    pub(crate) trainable: u64,
    /// Layers that were not run.
    #[cfg(test)]
    pub(crate) layers_left_out: usize,
}

/// Runs the first step of a model, and what is alike in it once.
///
/// # Errors
/// Names the target of an adapter, or the frozen part, that the model does not have.
pub(crate) fn run(arch: &Architecture, options: &Options, seq_len: u64) -> Result<Outcome, Problem> {
    let attempts = [Few { layers: true, micro_batches: true }, Few { layers: false, micro_batches: true }];
    for few in attempts.into_iter().filter(|few| !few.layers || hopes_for_layers(arch, options)) {
        if let Some(outcome) = run_alike(arch, options, seq_len, few)? {
            return Ok(outcome);
        }
    }
    run_all(arch, options, seq_len)
}

/// Runs the first step with every layer and every micro-batch.
pub(crate) fn run_all(arch: &Architecture, options: &Options, seq_len: u64) -> Result<Outcome, Problem> {
    let (outcome, _) = run_recording(arch, options, seq_len, options.gradient_accumulation_steps, None)?;
    Ok(outcome)
}

/// Of what only a few are run, and the others taken to be like them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Few {
    pub(crate) layers: bool,
    pub(crate) micro_batches: bool,
}

/// Runs the first step with few of what is alike; nothing where they are not alike.
pub(crate) fn run_alike(
    arch: &Architecture,
    options: &Options,
    seq_len: u64,
    few: Few,
) -> Result<Option<Outcome>, Problem> {
    let rounds = if few.micro_batches { Rounds::of(options, arch.shape.num_experts > 0) } else { None };
    let micro_batches = rounds.as_ref().map_or(options.gradient_accumulation_steps, |it| it.micro_batches);
    let order = rounds.as_ref().map(|it| it.run.as_slice());
    let way = Way { micro_batches, order, few_layers: few.layers, facts: None };
    let Some((outcome, _)) = run_so(arch, options, seq_len, way)? else { return Ok(None) };
    let Some(rounds) = rounds else { return Ok(Some(outcome)) };
    let folded = outcome.folded.without_micro_batches(rounds);
    Ok(folded.map(|folded| Outcome { folded, ..outcome }))
}

/// Runs the first step with every layer and so many micro-batches, and notes more facts than a plan needs where a place for them
/// is given.
pub(crate) fn run_recording(
    arch: &Architecture,
    options: &Options,
    seq_len: u64,
    micro_batches: u32,
    facts: Option<Facts>,
) -> Result<(Outcome, Option<Facts>), Problem> {
    match run_so(arch, options, seq_len, Way { micro_batches, order: None, few_layers: false, facts })? {
        Some(run) => Ok(run),
        None => unreachable!("nothing is written down where every layer is run"),
    }
}

/// How a step is run.
struct Way<'a> {
    micro_batches: u32,
    /// In which order a stage runs them, if not as its schedule has it.
    order: Option<&'a [Action]>,
    /// Whether layers are left out that are like others, and written down afterwards.
    few_layers: bool,
    facts: Option<Facts>,
}

/// Runs the first step; nothing where layers were left out and those that were run are not alike.
fn run_so(
    arch: &Architecture,
    options: &Options,
    seq_len: u64,
    Way { micro_batches, order, few_layers, facts }: Way<'_>,
) -> Result<Option<(Outcome, Option<Facts>)>, Problem> {
    let parallel = &options.parallel;
    let stage = options.mesh()?.place(parallel.rank).pp;
    let parts = parts(parallel, arch.shape.num_hidden_layers, stage)?;
    let parallel_parts = parts.len();
    let recompute = options.recompute.within(&parts);
    let named = (recompute != options.recompute).then(|| Options { recompute, ..options.clone() });
    let options = named.as_ref().unwrap_or(options);
    let layers = parts.iter().map(|part| u64::from(part.end - part.first)).sum::<u64>();
    let blocks = layers * u64::from(micro_batches);
    let ops = usize::try_from(blocks.saturating_mul(192)).unwrap_or(0).min(1 << 20);
    let torch = Torch::new(ops, options.capability);
    torch.facts.replace(facts);
    if options.stack == Stack::Megatron {
        torch.cublas_workspace.set(kernel::cublas_workspace_of_torch_2_10(options.capability));
    }
    let mut build = Builder::new(torch.clone(), options);
    if options.stack == Stack::Transformers {
        context::check(arch, options)?;
        build.tensor = TensorParallel::of(arch, options)?;
        build.expert_parallel = ExpertParallel::of(arch, options)?;
    }
    let weights = build.dtype;
    let run = |part| Run {
        part,
        attend: Attend::choose(&arch.shape, options),
        recompute: options.recompute,
        offload_activations: options.offload.activations.then_some(options.offload_prefetch as usize),
        offload_layers: options.offload_layers,
        // a checkpoint needs something to ask its input for a gradient (`gradient_checkpointing_enable`, transformers)
        input_grads: options.recompute != Recompute::None,
    };
    torch.begin(Phase::Load, None);
    let gpt = gpt(&torch, arch, options)?;
    let (mut models, value_head): (Vec<(Part, Box<dyn Model>)>, _) = torch.once(|| {
        let mut number = 0;
        let model = |part: Part| {
            build.part_of_stage = number;
            number += 1;
            (part, built(&mut build, arch, options, (gpt.as_ref(), run(part))))
        };
        let models = parts.into_iter().map(model).collect();
        let value_head = ValueHead::of(&mut build, &arch.shape, options.objective);
        build.cast_loaded();
        (models, value_head)
    });
    if parallel.pp == 1 {
        build.check()?; // a stage may lack what is named, which was looked for in the whole model
    }
    let has_adapter = |model: &dyn Model| model.head().is_some_and(|head| head.plain_weight().is_none());
    if options.fused_loss && models.iter().any(|(_, model)| has_adapter(&**model)) {
        let problem =
            Problem::in_option("--fused-loss", "the head has an adapter, which the op does not take");
        return Err(problem.mend("take `lm_head` out of the targets, or leave it out"));
    }
    let asks_head = matches!(options.objective, Objective::LogProbs { .. });
    if asks_head && models.iter().any(|(_, model)| has_adapter(&**model)) {
        let cause = "the head has an adapter, beside which the trainer's log-probabilities are not planned";
        return refused("--lora", cause, "take `lm_head` out of the targets");
    }
    let [loss_module, optimizer_module] =
        [options.objective.module(), "optimizer"].map(|name| build.module(build.root(), name));
    let parameters = count(&build.parameters);
    let repeat = if few_layers && parallel_parts == 1 {
        alike_layers(arch, options, &torch, &build.parameters)
    } else {
        None
    };
    torch.trail.replace(repeat.as_ref().map(Repeat::trail));
    let built = std::mem::take(&mut build.parameters);
    let is_trained = |parameter: &Parameter| parameter.leaf.is_some();
    let trained: Vec<Parameter> = built.iter().filter(|parameter| is_trained(parameter)).cloned().collect();
    let trainable = count(&trained);
    let stepped = match shared_out(&torch, options, &built)? {
        Some((hooks, stepped)) => {
            *torch.module_hooks.borrow_mut() = Some(hooks);
            stepped.into_iter().filter(is_trained).collect()
        }
        None => trained.clone(),
    };
    if options.offload.parameters && torch.module_hooks.borrow().is_none() {
        let on_host = host_parameters(&torch, &built);
        let offload = ParameterOffload::new(torch.clone(), options.offload_prefetch as usize, on_host);
        *torch.module_hooks.borrow_mut() = Some(offload);
    }
    let program = match models.pop() {
        Some((_, model)) if parallel.pp == 1 && models.is_empty() => {
            let loaded = 0..options.gradient_accumulation_steps;
            let batches = match options.stack {
                Stack::Transformers => loaded.map(|i| load(&torch, options, seq_len, i)).collect(),
                Stack::Megatron => Vec::new(),
            };
            Program::Whole { model, batches }
        }
        last => {
            models.extend(last);
            let shares = if parallel.sp { u64::from(parallel.tp) } else { 1 } * u64::from(parallel.cp);
            let [rows, tokens, width] = [options.micro_batch_size, seq_len / shares, arch.shape.hidden_size];
            let hidden_states = match options.stack {
                Stack::Transformers => [rows, tokens, width],
                Stack::Megatron => [tokens, rows, width],
            };
            // who gathers weights in another type computes in it
            let between = (Layout::contiguous(&hidden_states), options.gathered().unwrap_or(weights));
            let order = match order {
                Some(order) => order.to_vec(),
                None => actions(parallel, stage, micro_batches, options.gradient_accumulation_steps),
            };
            Program::Stage(Pipeline::new(&torch, options, (seq_len, order), models, between))
        }
    };
    let loop_ = Loop {
        torch: torch.clone(),
        options,
        program,
        value_head,
        loss_module,
        optimizer_module,
        scaler: (options.grad_scaler && !options.is_deepspeed()).then(|| GradScaler::new(&torch)),
        seq_len,
        update: Update::new(&torch, options, stepped),
        left_out: repeat.as_ref().map(|repeat| (repeat, trained)),
    };
    torch.end();
    let mut optimizers = Vec::new();
    loop_.step(micro_batches, &mut optimizers);
    let tape = std::mem::take(&mut *torch.tape.borrow_mut());
    torch.module_hooks.borrow_mut().take(); // they hold tensors, and these the session
    let facts = torch.facts.take();
    #[cfg(test)]
    let layers_left_out = torch.left_out().len();
    drop(loop_);
    let folded = match repeat.zip(torch.trail.take()) {
        Some((repeat, trail)) => {
            let was_postponed = trail.was_postponed();
            let folded = Folded::without_layers(tape, repeat, trail);
            if was_postponed { folded.and_then(Folded::with_postponed) } else { folded }
        }
        None => Some(Folded::of(tape)),
    };
    let outcome = |folded| Outcome {
        folded,
        parameters,
        trainable,
        #[cfg(test)]
        layers_left_out,
    };
    Ok(folded.map(|folded| (outcome(folded), facts)))
}

/// Whether layers that are alike may leave stretches of the tape that are. Where they surely do not, running few of them would be
/// for nothing, as all have to be run afterwards:
/// - ZeRO 3 with the optimizer on the host: gradients leave for it a bucket at a time, and a bucket ends within some other layer
///   each time (else buckets are postponed, or [`layers_ahead`] knows them);
/// - DDP and FSDP2 in a pipeline whose gradients of weights wait: what ranks send each other waits for them;
/// - Megatron's latent attention: a layer makes its table of positions in the first step, and a cache keeps some of these.
pub(crate) fn hopes_for_layers(arch: &Architecture, options: &Options) -> bool {
    let has_tables = options.stack == Stack::Megatron && arch.shape.v_head_dim.is_some();
    let waits = !matches!(options.parallel.schedule, Schedule::OneFOneB | Schedule::Gpipe);
    let in_own_parts = options.parallel.sharding == Sharding::Zero3 && options.offload.has_optimizer();
    !(has_tables || in_own_parts || waits && shares_within_passes(options))
}

/// The layers that need not be run, if there are such.
fn alike_layers(
    arch: &Architecture,
    options: &Options,
    torch: &Torch,
    parameters: &[Parameter],
) -> Option<Repeat> {
    let way = |layer: usize| {
        let index = u32::try_from(layer).unwrap_or(u32::MAX);
        let slides = arch.shape.window.as_ref().is_some_and(|window| window.layers.get(layer) == Some(&true));
        let recomputed = matches!(options.recompute, Recompute::Layers(layers) if layers.contains(index));
        (slides, recomputed, options.offload_layers.map(|layers| layers.contains(index)))
    };
    let together = options.recompute.layers().map_or(1, |layers| layers.get() as usize);
    let offloads = options.offload.activations || options.offload.parameters;
    let tape = torch.tape.borrow();
    let ahead = match options.parallel.sharding {
        Sharding::Zero3 => layers_ahead(&tape, parameters, &options.parallel.data.zero)?,
        _ if offloads => options.offload_prefetch as usize,
        _ => 0,
    };
    Repeat::of(&tape, parameters, way, together, ahead)
}

/// How many parameters the whole model has, and how many of them are trained: it is built, but not run.
///
/// # Errors
/// Names the target of an adapter, or the frozen part, that the model does not have.
pub(crate) fn count_all(arch: &Architecture, options: &Options) -> Result<(u64, u64), Problem> {
    let mut build = Builder::new(Torch::new(0, options.capability), options);
    let gpt = gpt(&build.torch, arch, options)?;
    let _model = built(&mut build, arch, options, (gpt.as_ref(), Run::none(&arch.shape)));
    build.check()?;
    let all = count(&build.parameters);
    build.parameters.retain(|parameter| parameter.leaf.is_some());
    Ok((all, count(&build.parameters)))
}

/// The numbers of each trained parameter that a rank holds, in order, found without running anything.
///
/// # Errors
/// Names the option that the model does not take.
pub(crate) fn trained_numbers(arch: &Architecture, options: &Options) -> Result<Vec<u64>, Problem> {
    let all = held_parameters(arch, options)?;
    let trained = all.iter().filter(|parameter| parameter.leaf.is_some());
    Ok(trained.map(|parameter| parameter.tensor.layout().numel()).collect())
}

/// The parameters that a rank holds, in order, found without running anything.
///
/// # Errors
/// Names the option that the model does not take.
pub(crate) fn held_parameters(arch: &Architecture, options: &Options) -> Result<Vec<Parameter>, Problem> {
    let parallel = &options.parallel;
    let stage = options.mesh()?.place(parallel.rank).pp;
    let mut build = Builder::new(Torch::new(0, options.capability), options);
    build.tensor = TensorParallel::of(arch, options)?;
    for part in parts(parallel, arch.shape.num_hidden_layers, stage)? {
        let run = Run { part, ..Run::none(&arch.shape) };
        let _model = built(&mut build, arch, options, (None, run));
        build.part_of_stage += 1;
    }
    let _value_head = ValueHead::of(&mut build, &arch.shape, options.objective);
    Ok(std::mem::take(&mut build.parameters))
}

/// Every parameter as one that lies on the host.
fn host_parameters(torch: &Torch, parameters: &[Parameter]) -> Vec<HostParameter> {
    let tape = torch.tape.borrow();
    let on_host = |parameter: &Parameter| HostParameter {
        layer: tape.layer(parameter.module).map(|layer| layer as usize),
        tensor: parameter.tensor.clone(),
        leaf: parameter.leaf.clone(),
        module: parameter.module,
        id: parameter.id,
    };
    parameters.iter().map(on_host).collect()
}

/// The model as Megatron has it, where its modules are asked for, and what all parts of a rank share.
fn gpt(
    torch: &Rc<Torch>,
    arch: &Architecture,
    options: &Options,
) -> Result<Option<(Gpt, Rc<Shared>)>, Problem> {
    let gpt = (options.stack == Stack::Megatron).then(|| arch.blueprint.megatron(&arch.shape)).flatten();
    let Some(gpt) = gpt else { return Ok(None) };
    let experts = gpt.experts.as_ref().map_or(1, |experts| experts.number);
    let shared = Shared::new(torch, options, &options.mesh()?, experts);
    Ok(Some((gpt, shared)))
}

/// The part of the model by the modules that are asked for.
fn built(
    build: &mut Builder,
    arch: &Architecture,
    options: &Options,
    (gpt, run): (Option<&(Gpt, Rc<Shared>)>, Run),
) -> Box<dyn Model> {
    match gpt {
        Some((gpt, shared)) => Box::new(GptModel::new(build, (&arch.shape, gpt), run, (options, shared))),
        None => arch.blueprint.build(build, &arch.shape, run),
    }
}
