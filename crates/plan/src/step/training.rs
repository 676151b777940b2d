//! The training loop: forward, loss and backward of each micro-batch, then the update.

use super::batch::load_part;
use crate::model::{
    Batch, Model, Targets, ValueHead, causal_lm_loss, fused_causal_lm_loss, policy_loss, response_log_probs,
    value_loss,
};
use crate::nn::Parameter;
use crate::optim::{GradScaler, Optimizer};
use crate::options::{HoldOutputs, Objective, Options};
use crate::parallel::context;
use crate::pipeline::Pipeline;
use crate::repeat::Repeat;
use crate::torch::autograd::{Leaf, backward};
use crate::torch::ops::mul_scalar;
use crate::torch::tape::ModuleId;
use crate::torch::{Tensor, Torch};
use crate::update::Update;
use peakledger_core::{Detail, Phase};
use std::rc::Rc;

/// What the graph of a forward pass holds beside its nodes: leaves that are no parameters, with their gradients, and the
/// contexts of Python functions.
pub(crate) struct Graph {
    _leaves: Vec<(Tensor, Rc<Leaf>)>,
    contexts: Rc<Vec<Tensor>>,
}

impl Graph {
    /// That of the forward pass that has just been run.
    pub(crate) fn take(torch: &Torch) -> Graph {
        Graph { _leaves: torch.leaves.take(), contexts: Rc::new(torch.contexts.take()) }
    }
}

/// What a loop that keeps the model's output keeps: the logits, and their graph.
struct Output {
    _logits: Option<Tensor>,
    _graph: Graph,
}

/// What is run of the model.
pub(super) enum Program {
    /// All of it, a micro-batch after the other.
    Whole { model: Box<dyn Model>, batches: Vec<Batch> },
    /// A stage of a pipeline.
    Stage(Pipeline),
}

/// The training loop.
pub(crate) struct Loop<'a> {
    pub(crate) torch: Rc<Torch>,
    pub(crate) options: &'a Options,
    pub(super) program: Program,
    pub(super) value_head: Option<ValueHead>,
    pub(super) loss_module: ModuleId,
    pub(super) optimizer_module: ModuleId,
    pub(super) scaler: Option<GradScaler>,
    pub(crate) update: Update<'a>,
    pub(crate) seq_len: u64,
    /// The layers that are not run, and the parameters that are trained.
    pub(super) left_out: Option<(&'a Repeat, Vec<Parameter>)>,
}

impl Loop<'_> {
    /// The step, which leaves its optimizers with the state that they made.
    pub(super) fn step(&self, micro_batches: u32, optimizers: &mut Vec<Optimizer>) {
        let torch = &self.torch;
        let mut held = None;
        let mut left = None;
        let hooks = torch.module_hooks.borrow().clone();
        match &self.program {
            Program::Whole { model, batches } => {
                if let Some(hooks) = hooks.iter().find(|hooks| hooks.asks_for_modules()) {
                    let (called, returned) = torch.calls(|| self.goes_through(&**model, batches.first()));
                    hooks.traced(called, returned);
                }
                for micro_batch in 0..micro_batches {
                    let is_last = micro_batch + 1 == micro_batches;
                    if let Some(hooks) = &hooks {
                        hooks.begin(is_last);
                    }
                    self.micro_batch(&**model, (micro_batch, is_last), batches, &mut held);
                }
            }
            Program::Stage(pipeline) => left = self.run_stage(pipeline),
        }
        torch.begin(Phase::Update, None);
        let update = || {
            let Some(hooks) = &hooks else { return self.update.run(None, self.scaler.as_ref(), optimizers) };
            for sub_group in 0..hooks.sub_groups() {
                hooks.before_step(sub_group);
                let alone = (hooks.sub_groups() > 1).then_some(sub_group);
                self.update.run(alone, self.scaler.as_ref(), optimizers);
                hooks.after_step(sub_group);
            }
        };
        torch.without_grad(|| torch.inside(self.optimizer_module, update));
        torch.end();
        torch.begin(Phase::ZeroGrad, None);
        self.update.zero_grad();
        if let Some(hooks) = &hooks {
            hooks.zero_grad();
        }
        torch.end();
        drop(left); // the next step begins by binding it anew
        if let Some(hooks) = &hooks {
            hooks.step_ends();
        }
    }

    fn micro_batch(
        &self,
        model: &dyn Model,
        (micro_batch, is_last): (u32, bool),
        batches: &[Batch],
        held: &mut Option<Output>,
    ) {
        let torch = &self.torch;
        let hooks = torch.module_hooks.borrow().clone();
        let begin = |phase| torch.begin(phase, Some(micro_batch));
        let leave = |output: Tensor| match &hooks {
            Some(hooks) => hooks.clone().leave(output),
            None => output,
        };
        let (loss, output, _contexts, _shards) = torch.autocast(self.options.autocast(), || {
            begin(Phase::Forward);
            let loaded =
                batches.is_empty().then(|| load_part(torch, self.options, self.seq_len, micro_batch));
            let batch = batches.get(micro_batch as usize).or(loaded.as_ref());
            let Some(batch) = batch else { unreachable!("a batch for each micro-batch") };
            let (batch, shards) = match self.options.ring(self.seq_len) {
                Some(ring) => context::shared_out(batch, ring),
                None => (batch.clone(), Vec::new()),
            };
            let batch = &batch;
            if let Some(hooks) = &hooks {
                hooks.enter();
            }
            let last_hidden_state = model.decode(batch);
            let is_next_token = self.options.objective == Objective::NextToken;
            let in_one_op = (self.options.fused_loss || !is_next_token) && model.head().is_some();
            let logits = if in_one_op { None } else { self.logits(model, &last_hidden_state) };
            let holds = self.options.loss_in_model || in_one_op;
            let logits = if holds { logits } else { logits.map(leave) };
            let last_hidden_state = holds.then_some(last_hidden_state);
            let graph = Graph::take(torch);
            let contexts = graph.contexts.clone();
            *held = None; // a loop that keeps its output overwrites it here
            torch.end();
            begin(Phase::Loss);
            let share = self.options.gradient_accumulation_steps;
            let loss = self.loss(model, (&logits, &last_hidden_state), batch, share);
            let loss = if holds { leave(loss) } else { loss };
            drop(last_hidden_state);
            let output = Output { _logits: logits, _graph: graph };
            let output = (self.options.hold_outputs != HoldOutputs::No).then_some(output);
            let loss = self.scaled(loss);
            torch.end();
            begin(Phase::Backward);
            torch.launch("backward"); // autocast's casts of the weights are still there
            (loss, output, contexts, shards)
        });
        // DeepSpeed's engine has a loss of its own until its epilogue has run (`scale_if_loss`, `runtime/base_optimizer.py`)
        let of_the_engine = self.options.is_deepspeed().then(|| mul_scalar(&loss));
        backward(of_the_engine.as_ref().unwrap_or(&loss));
        self.backward_ended(is_last);
        drop(of_the_engine);
        torch.end();
        if self.options.hold_outputs == HoldOutputs::Step {
            *held = output;
        }
    }

    /// A backward pass has ended, and all of them if it is the last.
    pub(crate) fn backward_ended(&self, is_last: bool) {
        if let Some((repeat, trained)) = self.left_out.as_ref().filter(|_| is_last) {
            repeat.stand_in(&self.torch, trained);
        }
        let hooks = self.torch.module_hooks.borrow().clone();
        hooks.iter().for_each(|hooks| hooks.end());
        self.update.backward_ended();
    }

    /// A forward pass of which nothing is wanted.
    fn goes_through(&self, model: &dyn Model, batch: Option<&Batch>) {
        let Some(batch) = batch else { return };
        let last_hidden_state = model.decode(batch);
        match (self.options.objective, &self.value_head) {
            (Objective::NextToken, _) => drop(self.logits(model, &last_hidden_state)),
            (_, Some(value_head)) => drop(value_head.forward(&last_hidden_state)),
            _ => {} // the head is not called: its weight is reached for
        }
        Graph::take(&self.torch);
    }

    /// What the head puts out, where the model has it.
    pub(crate) fn logits(&self, model: &dyn Model, last_hidden_state: &Tensor) -> Option<Tensor> {
        let logits = model.logits(last_hidden_state)?;
        logits.relabel(|stored| stored.detail = Some(Detail::Output));
        Some(logits)
    }

    /// The loss, which is one share of so many of the step's.
    pub(crate) fn loss(
        &self,
        model: &dyn Model,
        (logits, last_hidden_state): (&Option<Tensor>, &Option<Tensor>),
        batch: &Batch,
        shares: u32,
    ) -> Tensor {
        let own = |logits| self.torch.inside(self.loss_module, || model.own_loss(logits, batch));
        if let Some(loss) = logits.as_ref().and_then(own) {
            return loss;
        }
        let head = model.head().and_then(|head| head.plain_weight());
        let of = |targets| match (logits, last_hidden_state, head) {
            (None, Some(hidden), _) if self.options.objective == Objective::Values => {
                let values = self.value_head.as_ref().map(|head| head.forward(hidden));
                value_loss(values.as_ref().unwrap_or(hidden), shares)
            }
            (None, Some(hidden), Some(head)) => {
                if let (Objective::LogProbs { response }, Targets::Labels(labels)) =
                    (self.options.objective, targets)
                {
                    return policy_loss(&response_log_probs(hidden, head, labels, response), shares);
                }
                let is_recent = self.options.capability.is_none_or(|capability| capability >= (8, 0));
                fused_causal_lm_loss(hidden, head, targets, shares, is_recent)
            }
            (Some(logits), ..) => causal_lm_loss(logits, targets, self.options.logits_shared_by(), shares),
            _ => unreachable!("a head that the fused loss does not take is refused before"),
        };
        match batch.targets() {
            Some(targets) => self.torch.inside(self.loss_module, || of(targets)),
            None => unreachable!("where the head is, the labels are"),
        }
    }

    /// The loss as backward is called on it.
    pub(crate) fn scaled(&self, loss: Tensor) -> Tensor {
        match &self.scaler {
            Some(scaler) => self.torch.inside(self.optimizer_module, || scaler.scale(&loss)),
            None => loss,
        }
    }
}
