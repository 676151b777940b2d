//! Any bytes as a memory snapshot: an answer or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use peakledger_input::Binary;
use peakledger_measure::snapshot::{Options, read};
use peakledger_measure::{MeasuredLedger, Measurement, RangeNames, Scope};

fuzz_target!(|bytes: &[u8]| {
    for salvage in [false, true] {
        let Ok(mut file) = Binary::from_bytes("x.pickle", bytes) else { return };
        let Ok(snapshot) = read(&mut file, Options { salvage }, &mut |_| ()) else { continue };
        let scope = Scope { salvage, ..Scope::default() };
        if let Ok(measurement) = Measurement::of("x.pickle", &snapshot, &scope) {
            for device in 0..u32::try_from(measurement.devices.len()).unwrap_or(0) {
                let _ledger = MeasuredLedger::of(&snapshot, device, &RangeNames::default());
            }
        }
    }
});
