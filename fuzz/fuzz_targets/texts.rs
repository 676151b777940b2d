//! Any bytes as a ledger, a model's config, and a log with an out-of-memory message: an answer or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use peakledger_input::{Source, read_ledger};
use peakledger_measure::oom_message;
use peakledger_plan::config::Architecture;

fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = Source::from_bytes("x", bytes.to_vec()) else { return };
    let _ledger = read_ledger(&source);
    let _architecture = Architecture::read(&source);
    let _messages = oom_message::read(&source);
});
