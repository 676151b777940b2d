//! The seed's algorithm, written down a second time with its floats and its lists, is the oracle: on any ledger in the
//! seed's form both give the same phases, the same peak, the same contributors and the same savings.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_precision_loss)] // helpers of tests

use peakledger_core::document::{LedgerFile, StateRecord};
use peakledger_core::{Category, Ledger, compare};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

const PHASES: [&str; 6] = ["load", "forward", "loss", "backward", "update", "zero_grad"];

mod oracle {
    //! As the seed does it: a list of states for each phase, sums of floats, names in a mapping.

    use super::PHASES;
    use serde_json::Value;
    use std::collections::BTreeMap;

    pub(crate) struct Record {
        pub(crate) phase: &'static str,
        pub(crate) total_mb: f64,
        pub(crate) active: Vec<String>,
        sizes: BTreeMap<String, f64>,
    }

    fn place(phase: &Value) -> usize {
        PHASES.iter().position(|known| phase == known).unwrap()
    }

    pub(crate) fn summarize(states: &[Value]) -> Vec<Record> {
        let record = |(index, phase): (usize, &'static str)| {
            let resident = |state: &&Value| {
                state["device"] == "gpu"
                    && place(&state["start_phase"]) <= index
                    && index <= place(&state["end_phase"])
            };
            let active: Vec<&Value> = states.iter().filter(resident).collect();
            let name = |state: &Value| state["name"].as_str().unwrap().to_owned();
            let size = |state: &Value| state["size_mb"].as_f64().unwrap();
            Record {
                phase,
                total_mb: active.iter().map(|state| size(state)).sum(),
                active: active.iter().map(|state| name(state)).collect(),
                sizes: active.iter().map(|state| (name(state), size(state))).collect(),
            }
        };
        PHASES.into_iter().enumerate().map(record).collect()
    }

    pub(crate) fn peak(records: &[Record]) -> (&'static str, f64, Vec<String>) {
        let mut peak = &records[0];
        for record in records {
            if record.total_mb > peak.total_mb {
                peak = record;
            }
        }
        let mut names: Vec<String> = peak.sizes.keys().cloned().collect();
        names.sort_by(|a, b| peak.sizes[b].total_cmp(&peak.sizes[a]).then_with(|| a.cmp(b)));
        (peak.phase, peak.total_mb, names)
    }
}

/// Random states; sizes are multiples of 2^-20 MiB, so that sums of floats are exact too.
fn lists() -> impl Strategy<Value = Vec<Value>> {
    let state = (0u32..3, 0u32..1 << 24, 0usize..6, 0usize..6, any::<bool>(), 0usize..7);
    vec(state, 0..20).prop_map(|drafts| {
        let state =
            |(index, (kind, size, a, b, gpu, category)): (usize, (u32, u32, usize, usize, bool, usize))| {
                let size_mb = match kind {
                    0 => f64::from(size) / 1_048_576.0,
                    _ => f64::from(size % 4), // equal sizes and zeros
                };
                json!({
                    "name": format!("state {index}"),
                    "category": Category::ALL[category],
                    "size_mb": size_mb,
                    "start_phase": PHASES[a.min(b)],
                    "end_phase": PHASES[a.max(b)],
                    "device": if gpu { "gpu" } else { "cpu" },
                    "persistent": false,
                })
            };
        drafts.into_iter().enumerate().map(state).collect()
    })
}

fn ledger(list: &[Value]) -> Ledger {
    let text = serde_json::to_string(list).unwrap();
    let records: Vec<StateRecord<'_>> = serde_json::from_str(&text).unwrap();
    LedgerFile::from_states(&records).unwrap().ledger
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_ledgers_are_as_the_seed_says(list in lists(), other in lists()) {
        let records = oracle::summarize(&list);
        let ledger = ledger(&list);
        let mut active = ledger.active_by_phase();
        for (record, (slot, sums)) in records.iter().zip(ledger.phases()) {
            let active: Vec<String> = active.next_phase().unwrap().map(|(_, s)| s.name.to_string()).collect();
            prop_assert_eq!(slot.phase.as_str(), record.phase);
            prop_assert_eq!(sums.total.mib(), record.total_mb);
            prop_assert_eq!(&active, &record.active);
        }
        let (phase, peak_mb, contributors) = oracle::peak(&records);
        let peak = ledger.peak();
        prop_assert_eq!(peak.slot.phase.as_str(), phase);
        prop_assert_eq!(peak.bytes.mib(), peak_mb);
        let found: Vec<String> = ledger.contributors(peak.moment).iter().map(|c| c.state.name.to_string()).collect();
        prop_assert_eq!(found, contributors);

        let (candidate_phase, candidate_mb, _) = oracle::peak(&oracle::summarize(&other));
        let candidate = self::ledger(&other);
        let comparison = compare(&ledger, &candidate);
        prop_assert_eq!(comparison.peak.slot.phase.as_str(), candidate_phase);
        prop_assert_eq!(comparison.peak.bytes.mib(), candidate_mb);
        let saving = comparison.saving as f64 / 1_048_576.0;
        prop_assert_eq!(saving, peak_mb - candidate_mb);
    }
}

/// The seed's own sample and what its tests say of it.
#[test]
fn the_sample_of_the_seed() {
    let state = |name: &str, category: &str, size_mb: f64, start: &str, end: &str, device: &str| {
        json!({"name": name, "category": category, "size_mb": size_mb, "start_phase": start, "end_phase": end,
               "device": device, "persistent": false})
    };
    let sample = |activations_end: &str, activations_on: &str| {
        ledger(&[
            state("parameters", "parameter", 800.0, "load", "zero_grad", "gpu"),
            state("optimizer_state", "optimizer_state", 600.0, "load", "zero_grad", "gpu"),
            state("activations", "activation", 300.0, "forward", activations_end, activations_on),
            state("gradients", "gradient", 400.0, "backward", "update", "gpu"),
            state("forward_workspace", "workspace", 200.0, "forward", "forward", "gpu"),
            state("collective_buffer", "communication_buffer", 100.0, "backward", "backward", "gpu"),
            state("offloaded_activation", "activation", 250.0, "forward", "backward", "cpu"),
        ])
    };
    let baseline = sample("backward", "gpu");
    let totals: Vec<f64> = baseline.phases().map(|(_, sums)| sums.total.mib()).collect();
    assert_eq!(totals, [1400.0, 1900.0, 1700.0, 2200.0, 1800.0, 1400.0]);
    let peak = baseline.peak();
    assert_eq!(peak.slot.phase.as_str(), "backward");
    let contributors = baseline.contributors(peak.moment);
    let names: Vec<&str> = contributors.iter().map(|c| &*c.state.name).collect();
    assert_eq!(names, ["parameters", "optimizer_state", "gradients", "activations", "collective_buffer"]);

    for (candidate, phase, change) in [
        (sample("forward", "gpu"), "forward", "not resident then"),
        (sample("backward", "cpu"), "backward", "on the cpu then"),
    ] {
        let comparison = compare(&baseline, &candidate);
        assert_eq!(comparison.peak.slot.phase.as_str(), phase);
        assert_eq!((comparison.peak.bytes.mib(), comparison.saving), (1900.0, 300 << 20));
        let moved: Vec<(&str, &str)> = comparison.moved.iter().map(|m| (m.name, m.change.as_str())).collect();
        assert_eq!(moved, [("activations", change)]);
    }
}
