//! The built binary from outside: what it prints, what it writes, how it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // helpers of tests

mod accuracy;
mod answers;
mod compare;
mod configs;
#[cfg(unix)]
mod course;
mod data_parallel;
mod diff;
mod drawable;
mod files;
mod fit;
mod from;
#[cfg(unix)] // the commands are those of a shell
mod guide;
mod help;
mod hostile;
mod list;
mod nodes;
#[cfg(unix)]
mod pages;
mod plan;
mod plot;
mod post_training;
mod ranks;
mod read;
mod read_hostile;
#[cfg(unix)]
mod readme;
mod reconcile;
mod replay;
mod report;
mod reserved;
mod search;
mod serve;
mod support;
mod times;
mod traced;
mod usage;

// the writer of snapshots, and own ones
#[path = "../../../measure/tests/it/own.rs"]
#[allow(dead_code)]
mod own;
#[path = "../../../measure/tests/it/writer.rs"]
mod writer;
