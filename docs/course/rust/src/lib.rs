//! A ledger of training memory, written by you in four exercises.
//!
//! What you write is in `src/exercises`. The words of a ledger, and one to try them on, are here.

#[cfg(not(feature = "solutions"))]
pub mod exercises;
#[cfg(feature = "solutions")]
#[path = "../solutions/mod.rs"]
pub mod exercises;
pub mod tool;

/// The phases, in the order of a step.
pub const PHASES: [&str; 6] = ["load", "forward", "loss", "backward", "update", "zero_grad"];

/// What a state can be.
pub const CATEGORIES: [&str; 7] = [
    "parameter",
    "master_weight",
    "activation",
    "gradient",
    "optimizer_state",
    "workspace",
    "communication_buffer",
];

/// Where a state can lie.
pub const DEVICES: [&str; 2] = ["gpu", "cpu"];

/// A piece of memory, as someone wrote it down: whether it makes sense is exercise 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub name: String,
    pub category: String,
    /// In MiB.
    pub size_mb: i64,
    pub device: String,
    pub start_phase: String,
    /// The last phase that it is there in: both ends count.
    pub end_phase: String,
    pub persistent: bool,
}

/// A phase, and who is on the GPU in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseTotal {
    pub phase: &'static str,
    pub total_mb: i64,
    /// In the order of the ledger.
    pub states: Vec<String>,
}

/// The highest phase, and who forms it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    pub phase: &'static str,
    pub total_mb: i64,
    /// The largest first, and those of one size by name.
    pub contributors: Vec<String>,
}

/// What another ledger would save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saving {
    pub name: String,
    pub phase: &'static str,
    pub total_mb: i64,
    /// Negative where it needs more.
    pub saves_mb: i64,
}

/// The step of `examples/step.json`.
pub fn step() -> Vec<State> {
    let state = |name: &str, category: &str, size_mb, device: &str, start: &str, end: &str| State {
        name: name.to_owned(),
        category: category.to_owned(),
        size_mb,
        device: device.to_owned(),
        start_phase: start.to_owned(),
        end_phase: end.to_owned(),
        persistent: end == "zero_grad",
    };
    vec![
        state("parameters", "parameter", 800, "gpu", "load", "zero_grad"),
        state("optimizer_state", "optimizer_state", 600, "gpu", "load", "zero_grad"),
        state("activations", "activation", 300, "gpu", "forward", "backward"),
        state("gradients", "gradient", 400, "gpu", "backward", "update"),
        state("forward_workspace", "workspace", 200, "gpu", "forward", "forward"),
        state("collective_buffer", "communication_buffer", 100, "gpu", "backward", "backward"),
        state("offloaded_activation", "activation", 250, "cpu", "forward", "backward"),
    ]
}
