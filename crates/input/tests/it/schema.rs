//! The published JSON Schema: current, and of one mind with the reader.

use crate::ledgers::{INVALID, VALID};
use peakledger_core::document::schema;
use serde_json::Value;
use std::path::Path;

/// Set to write the schema anew.
const WRITE: &str = "PEAKLEDGER_WRITE_SCHEMA";

#[test]
fn the_published_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ledger.schema.json");
    let current = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let published = std::fs::read_to_string(&path).unwrap();
    assert!(published == current, "docs/ledger.schema.json is out of date: run this test with {WRITE}=1");
}

#[test]
fn what_the_reader_takes_is_valid() {
    let validator = jsonschema::validator_for(schema().as_value()).unwrap();
    for (name, text) in VALID {
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(
            validator.is_valid(&value),
            "{name}: {:?}",
            validator.validate(&value).unwrap_err().to_string()
        );
    }
}

#[test]
fn what_the_reader_refuses_is_invalid_where_a_schema_can_tell() {
    let validator = jsonschema::validator_for(schema().as_value()).unwrap();
    // what a schema cannot say: order, sums, names that refer to others
    let beyond = [
        "a name twice",
        "a candidate's name twice",
        "end before start",
        "unknown phase",
        "unknown phase of a residency",
        "overlapping residencies",
        "a moment outside its phase",
        "a phase twice",
        "a sum past 64 bits",
        "an endless timeline",
        "candidates on a long timeline",
        "a size past 64 bits in MiB",
        "a size past 64 bits",
        "no size but null",
    ];
    let mut compared = 0;
    for case in INVALID {
        // what is no JSON has no validity
        let Ok(value) = serde_json::from_str::<Value>(case.text) else { continue };
        compared += 1;
        assert_eq!(validator.is_valid(&value), beyond.contains(&case.name), "{}", case.name);
    }
    assert!(compared > 2 * beyond.len(), "{compared}");
}
