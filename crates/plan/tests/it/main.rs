//! The planner against torch's own op-level tracker.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)] // helpers of tests

mod context;
mod deepspeed;
mod experts;
mod flops;
mod measured;
mod megatron;
mod megatron_mla;
mod megatron_sent;
mod mesh_2d;
mod models;
mod nodes;
mod offload;
mod ops;
mod pipeline;
mod post_training;
mod post_training_ranks;
mod sharded;
mod shared;
mod states;
mod tensor;
mod truth;
mod zero;
