//! The training step as a user writes it: micro-batches of forward, loss and backward, then clip, update and zero_grad.
//!
//! It is run once, as the first step. Later steps differ only in what outlives the first: the optimizer state, which it
//! makes in its update and they begin with.

use crate::config::Architecture;
use crate::model::{Attend, Batch, Model, ModelOutput, Run, causal_lm_loss};
use crate::nn::{Builder, Parameter, count};
use crate::optim::{GradScaler, Optimizer, clip_grad_norm};
use crate::options::{HoldOutputs, OptimizerImpl, Options};
use crate::torch::autograd::{Leaf, backward};
use crate::torch::facts::Facts;
use crate::torch::tape::{ModuleId, NEVER, Role, Tape};
use crate::torch::{Dtype, Layout, Tensor, Torch};
use peakledger_core::{Category, Detail, Phase};
use peakledger_input::Problem;
use std::rc::Rc;

/// What a run leaves.
pub(crate) struct Outcome {
    pub(crate) tape: Tape,
    /// Parameters of the model, adapters among them.
    pub(crate) parameters: u64,
    /// Those that are trained.
    pub(crate) trainable: u64,
}

/// Runs the first step of a model.
///
/// # Errors
/// Names the target of an adapter that the model does not have.
pub(crate) fn run(arch: &Architecture, options: &Options, seq_len: u64) -> Result<Outcome, Problem> {
    run_recording(arch, options, seq_len, None).map(|(outcome, _)| outcome)
}

/// The same, with more facts than a plan needs where a place for them is given.
pub(crate) fn run_recording(
    arch: &Architecture,
    options: &Options,
    seq_len: u64,
    facts: Option<Facts>,
) -> Result<(Outcome, Option<Facts>), Problem> {
    let blocks = u64::from(arch.shape.num_hidden_layers) * u64::from(options.gradient_accumulation_steps);
    let ops = usize::try_from(blocks.saturating_mul(192)).unwrap_or(0).min(1 << 20);
    let torch = Torch::new(ops, options.capability);
    torch.facts.replace(facts);
    let mut build = Builder::new(torch.clone(), options);
    let checkpointed = options.recompute.layers();
    // a checkpoint needs something to ask its input for a gradient (`enable_input_require_grads`)
    let run = Run {
        attend: Attend::choose(&arch.shape, options),
        checkpointed,
        input_grads: checkpointed.is_some() && options.lora.is_some(),
    };
    let model = arch.blueprint.build(&mut build, &arch.shape, run);
    build.check()?;
    let [loss_module, optimizer_module] =
        ["loss_function", "optimizer"].map(|name| build.module(build.root(), name));
    let parameters = count(&build.parameters);
    let trained: Vec<Parameter> = build.parameters.into_iter().filter(|p| p.leaf.is_some()).collect();
    let trainable = count(&trained);
    let loop_ = Loop {
        torch: torch.clone(),
        options,
        model,
        loss_module,
        optimizer_module,
        scaler: options.grad_scaler.then(|| GradScaler::new(&torch)),
        batches: (0..options.gradient_accumulation_steps)
            .map(|i| load(&torch, options, seq_len, i))
            .collect(),
        trained,
    };
    let implementation = options.optimizer_impl.unwrap_or(OptimizerImpl::Foreach);
    let mut optimizer = Optimizer::new(options.optimizer, implementation, options.momentum);
    loop_.step(&mut optimizer);
    let tape = std::mem::take(&mut *torch.tape.borrow_mut());
    let facts = torch.facts.take();
    Ok((Outcome { tape, parameters, trainable }, facts))
}

/// Places a micro-batch on the device.
fn load(torch: &Rc<Torch>, options: &Options, seq_len: u64, micro_batch: u32) -> Batch {
    let input = |name| {
        let layout = Layout::contiguous(&[options.micro_batch_size, seq_len]);
        let kind = (Category::Activation, Some(Detail::Input));
        let tensor = torch.place(layout, Dtype::Int64, kind, ModuleId(0), Role::Input { name, micro_batch });
        tensor.relabel(|stored| stored.tracked = NEVER);
        tensor
    };
    let attention_mask = options.padded.then(|| input("attention_mask"));
    Batch { input_ids: input("input_ids"), attention_mask, labels: input("labels") }
}

/// What a loop that keeps the model's output keeps: the logits, and by their graph the leaves with their gradients.
struct Output {
    _logits: Tensor,
    _leaves: Vec<(Tensor, Rc<Leaf>)>,
}

/// The training loop.
struct Loop<'a> {
    torch: Rc<Torch>,
    options: &'a Options,
    model: Box<dyn Model>,
    loss_module: ModuleId,
    optimizer_module: ModuleId,
    scaler: Option<GradScaler>,
    /// The parameters that are trained.
    trained: Vec<Parameter>,
    batches: Vec<Batch>,
}

impl Loop<'_> {
    fn step(&self, optimizer: &mut Optimizer) {
        let torch = &self.torch;
        torch.begin(Phase::Load, None);
        torch.end();
        let mut held = None;
        for (micro_batch, batch) in (0u32..).zip(&self.batches) {
            self.micro_batch(micro_batch, batch, &mut held);
        }
        torch.begin(Phase::Update, None);
        torch.without_grad(|| torch.inside(self.optimizer_module, || self.update(optimizer)));
        torch.end();
        torch.begin(Phase::ZeroGrad, None);
        torch.launch("zero_grad");
        for leaf in self.trained.iter().filter_map(|parameter| parameter.leaf.as_ref()) {
            leaf.grad.borrow_mut().take();
        }
        torch.end();
    }

    fn update(&self, optimizer: &mut Optimizer) {
        let _found_inf = self.scaler.as_ref().map(|scaler| scaler.unscale(&self.trained));
        if self.options.clip_grad_norm {
            clip_grad_norm(&self.trained);
        }
        let next = || self.torch.tape.borrow().next().0;
        let (before, costs) = (next(), self.torch.costs_so_far());
        optimizer.make_state(&self.trained);
        let after = next();
        let mut tape = self.torch.tape.borrow_mut();
        tape.making_state = before..after;
        tape.state_costs = self.torch.costs_so_far() - costs;
        drop(tape);
        optimizer.step(&self.trained);
    }

    fn micro_batch(&self, micro_batch: u32, batch: &Batch, held: &mut Option<Output>) {
        let torch = &self.torch;
        let begin = |phase| torch.begin(phase, Some(micro_batch));
        let (loss, output) = torch.autocast(self.options.precision.autocast(), || {
            begin(Phase::Forward);
            let ModelOutput { logits, last_hidden_state } = self.model.forward(batch);
            let held_in_forward = self.options.loss_in_model.then_some(last_hidden_state);
            let leaves = torch.leaves.take();
            *held = None; // a loop that keeps its output overwrites it here
            torch.end();
            begin(Phase::Loss);
            let loss =
                torch.inside(self.loss_module, || causal_lm_loss(&logits, &batch.labels, self.batches.len()));
            drop(held_in_forward);
            let output = Output { _logits: logits, _leaves: leaves };
            let output = (self.options.hold_outputs != HoldOutputs::No).then_some(output);
            let loss = match &self.scaler {
                Some(scaler) => torch.inside(self.optimizer_module, || scaler.scale(&loss)),
                None => loss,
            };
            torch.end();
            begin(Phase::Backward);
            torch.launch("backward"); // autocast's casts of the weights are still there
            (loss, output)
        });
        backward(&loss);
        torch.end();
        if self.options.hold_outputs == HoldOutputs::Step {
            *held = output;
        }
    }
}
