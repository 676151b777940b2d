//! Models: what the modules of a model family do, written as the modules they mirror.
//!
//! A family is one file with a constructor and a forward pass, and one entry in [`build`].

mod causal_lm;
pub(crate) mod decoder;

pub(crate) use causal_lm::CausalLm;
