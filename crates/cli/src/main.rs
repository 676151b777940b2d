//! The `peakledger` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(peakledger_cli::run(std::env::args_os()))
}
