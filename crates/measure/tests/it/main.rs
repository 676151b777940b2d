//! Snapshots, traces, timelines and messages read from outside: the truth of real ones where it lies beside the repository,
//! and own ones always.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // helpers of tests
#![allow(clippy::cast_possible_truncation, clippy::cast_lossless)] // own small numbers
#![recursion_limit = "256"] // a row of the truth is one long `json!`

mod cut;
mod made;
mod model;
mod naive;
mod oom_message;
mod own;
mod plain;
mod shared;
mod timeline;
mod told;
mod trace;
mod truth;
#[allow(dead_code)] // raw opcodes are for the tests of the command line
mod writer;
