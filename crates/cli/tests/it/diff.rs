//! `diff`: what grew.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::Value;

/// Steps in which a cache is kept one more each time.
fn leaking(steps: u64) -> String {
    let mut timeline = Vec::new();
    let mut states = Vec::new();
    for step in 0..steps {
        timeline.extend(
            ["forward", "update"].map(|phase| format!(r#"{{"phase": "{phase}", "micro_batch": {step}}}"#)),
        );
        let mut state = |name: String, mib: u64, end: String| {
            states.push(format!(
                r#"{{"name": "{name}", "category": "activation", "size_bytes": {}, "start_phase": "forward.{step}", "end_phase": "{end}", "device": "gpu", "persistent": false}}"#,
                mib << 20
            ));
        };
        let number = if step == 0 { String::new() } else { format!(" #{}", step + 1) };
        state(format!("cache.py:3:keep{number}"), 2, format!("update.{}", steps - 1));
        state(format!("model.py:9:forward{number}"), 10, format!("forward.{step}"));
    }
    format!(
        r#"{{"schema_version": 1, "timeline": [{}], "states": [{}]}}"#,
        timeline.join(", "),
        states.join(", ")
    )
}

#[test]
fn a_table() {
    let bench = Bench::new().file("three.json", leaking(3)).file("five.json", leaking(5));
    assert_snapshot!(bench.answer("diff three.json five.json"), @"
    peak 20.00 MiB, 4.00 MiB more (16.00 MiB before)
    from three.json to five.json; at the end 10.00 MiB, +4.00 MiB (6.00 MiB before)

    who              at the peak        now  at the end        now
    cache.py:3:keep    +4.00 MiB  10.00 MiB   +4.00 MiB  10.00 MiB
    grows with every step: cache.py:3:keep: 2.00 MiB, 4.00 MiB, 6.00 MiB, 8.00 MiB,
                           10.00 MiB after the last steps
    ");
}

#[test]
fn the_fields_of_json() {
    let bench = Bench::new().file("three.json", leaking(3)).file("five.json", leaking(5));
    let diff: Value = serde_json::from_str(&bench.answer("diff three.json five.json --format json")).unwrap();
    assert_eq!(diff["peak_growth_bytes"], 4 << 20);
    assert_eq!(diff["groups"].as_array().unwrap().len(), 1, "what did not grow is no group");
    assert_eq!(diff["groups"][0]["name"], "cache.py:3:keep");
    assert_eq!(diff["grows_with_every_step"][0]["after_steps_bytes"].as_array().unwrap().len(), 5);
    let none: Value =
        serde_json::from_str(&bench.answer("diff three.json three.json --format json")).unwrap();
    assert_eq!((&none["peak_growth_bytes"], none["groups"].as_array().unwrap().len()), (&0.into(), 0));
}

#[test]
fn csv_markdown_and_what_is_no_ledger() {
    let bench = Bench::with_sample().file("three.json", leaking(3));
    let csv = bench.answer("diff three.json ledger.json --format csv");
    assert!(csv.contains("\nparameters,0,838860800,838860800,0,838860800,838860800\n"), "{csv}");
    assert!(
        bench
            .answer("diff three.json ledger.json --format markdown")
            .contains("| parameters | +800.00 MiB |")
    );
    let said = bench.file("no.json", "{}").refusal("diff three.json no.json");
    assert!(said.starts_with("error: no.json"), "{said}");
}
