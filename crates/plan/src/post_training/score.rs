//! A model that only runs forward: one micro-batch under `no_grad`, by the same modules as training, on a tape of its own. Where
//! ranks share out its parameters, they come and go as in training.

use super::models;
use super::pass::Pass;
use crate::Plan;
use crate::config::Architecture;
use crate::model::{Attend, Batch, Model, Run, ValueHead, response_log_probs};
use crate::nn::{Builder, count};
use crate::options::{Lora, LoraTargets, Objective, Options, Recompute};
use crate::parallel::data::{ForwardOnly, Way};
use crate::repeat::Folded;
use crate::step::{Outcome, load};
use crate::torch::{Dtype, ModuleId, Tensor, Torch};
use peakledger_core::Phase;
use peakledger_input::Problem;
use std::rc::Rc;

/// What runs forward, with the session that it runs in.
pub(super) struct Inference {
    pub(super) torch: Rc<Torch>,
    pub(super) model: Box<dyn Model>,
    value_head: Option<ValueHead>,
    module: ModuleId,
    parameters: u64,
    /// What brings whole parameters, where ranks share them out.
    pub(super) shared_out: Option<ForwardOnly>,
}

impl Inference {
    /// Loads a model, which ranks share out in that way, if they do. What training does to what is saved is left out: nothing is.
    pub(super) fn load(
        architecture: &Architecture,
        options: &Options,
        way: Option<Way>,
    ) -> Result<Inference, Problem> {
        let torch = Torch::new(1 << 12, options.capability);
        let mut build = Builder::new(torch.clone(), options);
        let shape = &architecture.shape;
        let run = Run { attend: Attend::choose(shape, options), ..Run::none(shape) };
        torch.begin(Phase::Load, None);
        let (model, value_head) = torch.once(|| {
            let model = architecture.blueprint.build(&mut build, shape, run);
            let value_head = ValueHead::of(&mut build, shape, options.objective);
            build.cast_loaded();
            (model, value_head)
        });
        build.check()?;
        let module = build.module(build.root(), options.objective.module());
        let built = std::mem::take(&mut build.parameters);
        let parameters = count(&built);
        let shared_out = match way {
            Some(way) => ForwardOnly::new(&torch, options, built, way)?,
            None => None,
        };
        torch.end();
        Ok(Inference { torch, model, value_head, module, parameters, shared_out })
    }

    /// Has the modules bring what they use, as a forward pass over that batch does.
    pub(super) fn hook(&self, batch: &Batch) {
        let Some(shared_out) = &self.shared_out else { return };
        let hooks = shared_out.hooks();
        if hooks.asks_for_modules() {
            let decode = || {
                let last_hidden_state = self.model.decode(batch);
                self.value_head.iter().for_each(|head| drop(head.forward(&last_hidden_state)));
            };
            let (called, returned) = self.torch.calls(decode);
            hooks.traced(called, returned);
        }
        *self.torch.module_hooks.borrow_mut() = Some(hooks);
    }

    /// Makes the model ready for `generate()`, with whole weights as long as they are held (`unwrap_model_for_generation`,
    /// `trl/models/utils.py`).
    pub(super) fn unwrap_for_generation(&self) -> Vec<Tensor> {
        match &self.shared_out {
            Some(fsdp @ ForwardOnly::Fsdp(_)) => {
                *self.torch.module_hooks.borrow_mut() = Some(fsdp.hooks());
                Vec::new()
            }
            Some(zero) => zero.gathered(),
            None => Vec::new(),
        }
    }

    /// The forward of the model as a whole, which has other modules run.
    pub(super) fn forward(&self, run: impl FnOnce() -> Tensor) -> Tensor {
        let hooks = self.torch.module_hooks.borrow().clone();
        hooks.iter().for_each(|hooks| hooks.enter());
        let output = run();
        match hooks {
            Some(hooks) => hooks.leave(output),
            None => output,
        }
    }

    /// Ends the phase that runs, at whose last moment what stays whole is still there.
    pub(super) fn end(&self) {
        self.torch.end();
        self.torch.module_hooks.borrow_mut().take();
        self.shared_out.iter().for_each(ForwardOnly::end);
    }

    /// The tape as a plan.
    pub(super) fn finish(self, architecture: &Architecture, options: Options) -> Result<Plan, Problem> {
        let tape = std::mem::take(&mut *self.torch.tape.borrow_mut());
        let seq_len = options.length(&architecture.shape);
        let outcome = Outcome {
            folded: Folded::of(tape),
            parameters: self.parameters,
            trainable: 0,
            #[cfg(test)]
            layers_left_out: 0,
        };
        Plan::of(architecture.clone(), options, seq_len, outcome)
    }
}

/// The options of a training step for a pass that scores: the same model, run once, with nothing kept for backward.
pub(super) fn scoring(training: &Options, objective: Objective) -> Options {
    Options {
        objective,
        gradient_accumulation_steps: 1,
        recompute: Recompute::None,
        offload: Default::default(),
        offload_layers: None,
        grad_dtype: None,
        master_weights: None,
        ..training.clone()
    }
}

/// The options of a training step for a pass of a model that is not trained: as the framework loads it, so its parameters ask for gradients, and autocast
/// keeps copies of them while it runs. The actor without its adapters stays as frozen as it is.
pub(super) fn untrained(training: &Options, objective: Objective, dtype: Option<Dtype>) -> Options {
    let scoring = scoring(training, objective);
    let none = LoraTargets::Named(Vec::new());
    let lora = training.lora.clone().filter(|_| dtype.is_none());
    Options {
        lora: lora.map(|lora| Lora { targets: none, ..lora }),
        weights_dtype: dtype.or(scoring.weights_dtype),
        freeze: Vec::new(),
        quantize: scoring.quantize.filter(|_| dtype.is_none()),
        prepare_for_kbit: scoring.prepare_for_kbit && dtype.is_none(),
        ..scoring
    }
}

/// Plans one micro-batch of a pass that scores, as that model does.
///
/// # Errors
/// Where a size does not fit into 64 bits, or the model cannot be built.
pub(super) fn score(
    architecture: &Architecture,
    options: Options,
    scores_as: models::Model,
    way: Option<Way>,
) -> Result<Plan, Problem> {
    let seq_len = options.length(&architecture.shape);
    let run = Inference::load(architecture, &options, way)?;
    let torch = &run.torch;
    torch.begin(Phase::named(Pass::Score(scores_as).as_str()), None);
    let batch = load(torch, &options, seq_len, 0);
    let scores = |last_hidden_state: &Tensor| {
        let head = run.model.head().and_then(|head| head.plain_weight());
        torch.inside(run.module, || match (options.objective, head, &batch.labels) {
            (Objective::LogProbs { response }, Some(head), Some(labels)) => {
                response_log_probs(last_hidden_state, head, labels, response)
            }
            _ => run
                .value_head
                .as_ref()
                .map_or(last_hidden_state.clone(), |head| head.forward(last_hidden_state)),
        })
    };
    let scored = torch.without_grad(|| {
        run.hook(&batch);
        torch.autocast(options.autocast(), || run.forward(|| scores(&run.model.decode(&batch))))
    });
    drop((scored, batch));
    run.end();
    run.finish(architecture, options)
}
