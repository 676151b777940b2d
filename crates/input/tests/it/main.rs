//! The doors from outside: ledger files of both forms, the quick and the careful way, and the published schema.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)] // helpers of tests

mod configs;
mod ledgers;
mod quick;
mod schema;
