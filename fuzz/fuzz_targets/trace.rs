//! Any bytes as a profiler's trace and as a memory timeline: an answer or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use peakledger_input::Binary;
use peakledger_measure::{timeline, trace};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(mut file) = Binary::from_bytes("x.json", bytes) {
        let _trace = trace::read(&mut file, &trace::Options::default(), &mut |_| ());
    }
    if let Ok(mut file) = Binary::from_bytes("x.json", bytes) {
        let _timeline = timeline::read(&mut file, &mut |_| ());
    }
});
