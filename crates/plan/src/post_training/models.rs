//! The models of a step of post-training: what is trained, and the passes that score.

use super::composed::of_model;
use super::score::{score, scoring, untrained};
use super::sharding::{Untrained, of_trained, of_untrained};
use super::{Algorithm, PostTraining};
use crate::Plan;
use crate::config::{Architecture, Shape};
use crate::options::{Objective, Options};
use crate::parallel::FsdpWrap;
use crate::plan as plan_step;
use peakledger_core::{Bytes, Category, Ledger};
use peakledger_input::Problem;

/// Whose weights they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Model {
    Actor,
    Reference,
    Reward,
    Critic,
}

impl Model {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Model::Actor => "actor",
            Model::Reference => "reference",
            Model::Reward => "reward",
            Model::Critic => "critic",
        }
    }
}

/// A pass that scores: one micro-batch, like all others of it.
pub(super) struct Scorer {
    /// What its scores are of.
    pub(super) scores_as: Model,
    pub(super) plan: Plan,
    /// Whose weights it runs: the reference may be the actor without its adapters.
    pub(super) model: Model,
    /// Whether they are there for it alone.
    pub(super) owns_weights: bool,
}

/// What is trained, and what scores.
pub(super) struct Models {
    pub(super) actor: Plan,
    pub(super) critic: Option<Plan>,
    pub(super) scorers: Vec<Scorer>,
}

impl Models {
    /// Plans each by itself, on the rank that `training` names. `given` are the options before the algorithm changed them.
    pub(super) fn plan(
        architecture: &Architecture,
        training: &Options,
        request: &PostTraining,
        given: &Options,
    ) -> Result<Models, Problem> {
        let with_values = with_values(architecture);
        let dtype = request.reference_dtype.unwrap_or(training.loaded());
        let has_adapters = training.lora.is_some();
        let (log_probs, values) = (training.objective, Objective::Values);
        let with_a_value = of_critic(training, architecture);
        let as_trained = Some(of_trained(request));
        let mut scorers = Vec::new();
        if request.has_reward_model() {
            let options = untrained(&with_a_value, values, Some(dtype));
            let (options, way) = of_untrained(request, Untrained::Reward, options);
            let plan = score(&with_values, options, Model::Reward, way)?;
            let model = Model::Reward;
            scorers.push(Scorer { scores_as: model, plan, model, owns_weights: true });
        }
        if request.scores_itself(given) {
            let plan = score(architecture, scoring(training, log_probs), Model::Actor, as_trained)?;
            let model = Model::Actor;
            scorers.push(Scorer { scores_as: model, plan, model, owns_weights: false });
        }
        if request.has_reference() {
            // adapters are switched off to get the reference
            let options = untrained(training, log_probs, (!has_adapters).then_some(dtype));
            let (options, way) = match has_adapters {
                true => (options, as_trained),
                false => of_untrained(request, Untrained::Reference, options),
            };
            let plan = score(architecture, options, Model::Reference, way)?;
            let model = if has_adapters { Model::Actor } else { Model::Reference };
            scorers.push(Scorer { scores_as: Model::Reference, plan, model, owns_weights: !has_adapters });
        }
        let mut critic = None;
        if request.has_critic() {
            let plan = score(&with_values, scoring(&with_a_value, values), Model::Critic, as_trained)?;
            let model = Model::Critic;
            scorers.push(Scorer { scores_as: model, plan, model, owns_weights: false });
            critic = Some(plan_step(with_values, with_a_value)?);
        }
        Ok(Models { actor: plan_step(architecture.clone(), training.clone())?, critic, scorers })
    }

    /// What each model keeps from step to step.
    pub(super) fn in_memory(&self, ledger: &Ledger) -> Vec<ModelInMemory> {
        let own = self.scorers.iter().filter(|scorer| scorer.owns_weights);
        let own = own.map(|scorer| (scorer.model, &scorer.plan));
        let trained = [(Model::Actor, Some(&self.actor)), (Model::Critic, self.critic.as_ref())];
        let trained = trained.into_iter().filter_map(|(model, plan)| Some((model, plan?)));
        let mut models: Vec<(Model, &Plan)> = trained.chain(own).collect();
        models.sort_by_key(|(model, _)| *model);
        let kept = |model: Model, category: Category| {
            let states =
                ledger.states().iter().filter(|state| state.persistent && state.category == category);
            let own = states.filter(|state| of_model(&state.name) == Some(model.as_str()));
            Bytes::new(own.map(|state| state.bytes.get()).sum()) // part of a total that fits
        };
        let in_memory = |(model, plan): (Model, &Plan)| ModelInMemory {
            name: model.as_str(),
            parameters: plan.parameters,
            weights: kept(model, Category::Parameter),
            optimizer_state: kept(model, Category::OptimizerState),
            master_weights: kept(model, Category::MasterWeight),
            gradients: kept(model, Category::Gradient),
        };
        models.into_iter().map(in_memory).collect()
    }
}

/// A model as one that gives values: a head for the vocabulary would be a parameter more, so it is left tied.
pub(super) fn with_values(architecture: &Architecture) -> Architecture {
    let shape = Shape { tie_word_embeddings: true, ..architecture.shape.clone() };
    Architecture { shape, ..architecture.clone() }
}

/// The options of the critic's training step, by those of the actor's. verl goes by what the config says, though there is no head
/// that the embedding could be tied to.
pub(super) fn of_critic(training: &Options, architecture: &Architecture) -> Options {
    let mut critic = Options { objective: Objective::Values, ..training.clone() };
    let wrap = &mut critic.parallel.data.wrap;
    if architecture.shape.tie_word_embeddings && *wrap == Some(FsdpWrap::Verl) {
        *wrap = Some(FsdpWrap::Accelerate113);
    }
    critic
}

/// A model on the card and what it keeps from step to step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInMemory {
    /// `actor`, `reference`, `reward` or `critic`.
    pub name: &'static str,
    /// Its parameters.
    pub parameters: u64,
    /// Its weights and buffers.
    pub weights: Bytes,
    /// Of the optimizer, where it is trained.
    pub optimizer_state: Bytes,
    /// Its weights as the optimizer has them, where that is another type.
    pub master_weights: Bytes,
    /// Buffers of gradients that outlive a step.
    pub gradients: Bytes,
}

impl ModelInMemory {
    /// All that is kept beside its weights to train it.
    pub fn kept_to_train(&self) -> Bytes {
        let kept = [self.optimizer_state, self.master_weights, self.gradients];
        Bytes::new(kept.iter().map(|bytes| bytes.get()).sum()) // part of a total that fits
    }
}

impl Algorithm {
    /// Whether the reference runs inside each micro-batch, after the actor's forward pass and before its backward
    /// (`_compute_loss`, `trl/trainer/dpo_trainer.py`).
    pub(super) fn scores_inside(self) -> bool {
        self == Algorithm::Dpo
    }

    /// Rows of a batch that each of its samples makes: of a pair the chosen and the rejected response.
    pub(super) fn rows(self) -> u64 {
        if self == Algorithm::Dpo { 2 } else { 1 }
    }
}
