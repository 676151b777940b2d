//! Plans the memory of a training step.
#![forbid(unsafe_code)]

pub mod config;
mod model;
mod nn;
mod optim;
pub mod options;
mod plan;
mod step;
mod torch;

pub use plan::{At, OpTotal, Plan, PlannedPhase, Step, StepPlan, plan};
pub use torch::Dtype;
