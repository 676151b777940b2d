//! What is known by name: models with their configs, and cards with the bytes that torch reports for them.
//!
//! Both are data (`models.json`, `gpus.json`); a new model or card is one entry there. Each figure has with it where it was
//! seen.

mod cards;
mod meant;
mod models;
mod speeds;

pub use cards::{CUDA_CONTEXT, Card, card, cards, several_cards};
pub use models::{Model, ModelFile, models, open_model};
pub use speeds::{HostLink, Network, Speeds};
