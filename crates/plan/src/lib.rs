//! Plans the memory of a training step: a model's `config.json` and training options in, a tape of allocations out.
//!
//! Nothing is estimated by a formula. The step is run as PyTorch would run it, without the data: modules that read like the
//! modules they mirror call ops that allocate, save and free as torch's do, and the tape of births and deaths is the plan.
//!
//! ```
//! use peakledger_plan::catalogue::open_model;
//! use peakledger_plan::config::Architecture;
//! use peakledger_plan::options::{Options, Precision};
//! use peakledger_plan::plan;
//!
//! let model = open_model("llama-3.2-1b")?;
//! let architecture = Architecture::read(&model.config)?;
//! let options = Options { precision: Precision::Bf16, seq_len: Some(4096), ..Options::default() };
//! let plan = plan(architecture, options)?;
//! assert_eq!(plan.parameters, 1_235_814_400);
//! let peak = plan.peak();
//! assert_eq!((peak.phase.module.as_str(), peak.phase.op), ("loss_function", "_log_softmax_backward_data"));
//! assert!(plan.contributors().iter().any(|c| c.name == "gradients of the logits, fp32"));
//! # Ok::<(), peakledger_input::Problem>(())
//! ```
//!
//! The way of the data: [`config`] (what the file says) → `model` (modules over `nn`) → `torch` (tensors, autograd, tape)
//! driven by `step` → [`Plan`] (phases, peak), [`Contributor`]s and [`Plan::ledger`].

#![forbid(unsafe_code)]
#![allow(clippy::redundant_clone)] // a handle's life is a tensor's life: when it is let go of is what is planned

mod budget;
pub mod catalogue;
mod caveats;
pub mod config;
mod contributors;
mod costs;
mod explain;
mod fewest;
mod fit;
mod layers;
mod ledger;
mod model;
mod multiples;
mod nn;
mod notes;
mod optim;
pub mod options;
pub mod parallel;
mod pipeline;
mod plan;
pub mod post_training;
mod repeat;
mod step;
mod step_time;
mod torch;
mod traffic;
mod try_out;
mod update;
mod verdict;

pub use budget::{Choice, Choices};
pub use contributors::Contributor;
pub use costs::{Picoseconds, TheoreticalTime, Unknown};
pub use explain::{Explained, Explanation, When};
pub use fewest::{FewestGpus, fewest_gpus};
pub use fit::{Fit, Largest, Limit};
pub use layers::Layers;
pub use notes::Assumption;
pub use plan::{At, OpTotal, Plan, PlannedPhase, Step, StepPlan, plan};
pub use step_time::{RankCosts, StepTime};
pub use torch::{Costs, Dtype, Flops, HostBytes, SentBytes, Stream};
pub use traffic::{Asks, Block, Traffic};
pub use try_out::{Tried, try_out, try_out_replayed};
pub use verdict::Verdict;
