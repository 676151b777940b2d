//! Any bytes as a ledger, a model's config, a file of keys and values, and a log with an out-of-memory message: an answer or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use peakledger_input::{Fields, Source, Syntax, read_ledger};
use peakledger_measure::oom_message;
use peakledger_plan::config::Architecture;

fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = Source::from_bytes("x", bytes.to_vec()) else { return };
    let _ledger = read_ledger(&source);
    let _architecture = Architecture::read(&source);
    for syntax in [Syntax::Json, Syntax::Yaml, Syntax::Toml] {
        let _fields = Fields::read(source.clone(), syntax);
    }
    let _messages = oom_message::read(&source);
});
