//! What is known by name: models with their configs, and cards with the bytes that torch reports for them.
//!
//! Both are data (`models.json`, `gpus.json`); a new model or card is one entry there. Where each figure was seen stands
//! beside it.

mod cards;
mod models;

pub use cards::{CUDA_CONTEXT, Card, card, cards};
pub use models::{Model, ModelFile, models, open_model};
