//! The planner against torch's own op-level tracker.

mod ops;
mod shared;
mod truth;
