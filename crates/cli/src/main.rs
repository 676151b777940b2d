//! The `peakledger` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(peakledger_cli::run(std::env::args_os()))
}
