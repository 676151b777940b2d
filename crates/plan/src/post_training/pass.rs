//! What runs before training and in it, each with its name and what it leaves for training.

use super::PostTraining;
use super::models::Model;

/// What runs in a part of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// vLLM is given weights that are gathered for that.
    Sync,
    /// Responses are sampled.
    Rollout,
    /// They are scored, as that model does; the weights may be another's ([`super::models::Scorer`]).
    Score(Model),
    /// That model is trained.
    Train(Model),
}

impl Pass {
    /// The name of its phase; of training, which has several, that of the model.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Pass::Sync => "sync_weights",
            Pass::Rollout => "rollout",
            Pass::Score(Model::Actor) => "score_actor",
            Pass::Score(Model::Reference) => "score_reference",
            Pass::Score(Model::Reward) => "score_reward",
            Pass::Score(Model::Critic) => "score_critic",
            Pass::Train(model) => model.as_str(),
        }
    }

    pub(super) const fn trains(self) -> bool {
        matches!(self, Pass::Train(_))
    }

    /// What it leaves until training has ended, and how many numbers of it for each sequence: ids, and of each score one for
    /// every token of the response, but of rewards one in all.
    pub(super) fn leaves(self, request: &PostTraining) -> Option<(&'static str, u64)> {
        match self {
            Pass::Sync | Pass::Train(_) => None,
            Pass::Rollout => Some(("ids of prompts and responses", request.tokens().saturating_mul(2))),
            Pass::Score(Model::Actor) => Some(("old log-probabilities", request.response_len)),
            Pass::Score(Model::Reference) => Some(("reference log-probabilities", request.response_len)),
            Pass::Score(Model::Critic) => Some(("values", request.response_len)),
            Pass::Score(Model::Reward) => Some(("rewards", 1)),
        }
    }
}
