//! Traces, timelines and messages, against files made here and, where they are, against real ones.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used)]

mod made;
mod naive;
mod oom_message;
mod shared;
mod timeline;
mod trace;
