//! `reconcile`: a plan against what was measured.

use crate::own::step;
use crate::support::Bench;
use crate::writer::pickle;
use insta::assert_snapshot;
use serde_json::Value;

/// A step by hand, as a plan would save it, and what two steps of it took.
const PLAN: &str = r#"[
  {"name": "weights", "category": "parameter", "size_mb": 100, "start_phase": "load", "end_phase": "zero_grad", "device": "gpu", "persistent": true},
  {"name": "activations", "category": "activation", "size_mb": 50, "start_phase": "forward", "end_phase": "backward", "device": "gpu", "persistent": false},
  {"name": "gradients", "category": "gradient", "size_mb": 100, "start_phase": "backward", "end_phase": "update", "device": "gpu", "persistent": false}
]"#;

fn measured(more: u64) -> String {
    let phases =
        ["load", "forward", "backward", "update", "zero_grad", "forward", "backward", "update", "zero_grad"];
    let phase = |(at, phase): (usize, &&str)| match (at, *phase) {
        (0, _) => r#"{"phase": "load"}"#.to_owned(),
        (at, phase) => format!(r#"{{"phase": "{phase}", "micro_batch": {}}}"#, usize::from(at > 4)),
    };
    let timeline: Vec<String> = phases.iter().enumerate().map(phase).collect();
    let state = |name: &str, category: &str, mib: u64, start: &str, end: &str| {
        format!(
            r#"{{"name": "{name}", "category": "{category}", "size_bytes": {}, "start_phase": "{start}", "end_phase": "{end}", "device": "gpu", "persistent": false}}"#,
            mib << 20
        )
    };
    let states = [
        state("before the recording", "parameter", 100, "load", "zero_grad.1"),
        state("train.py:5:step", "activation", 50, "forward.0", "backward.0"),
        state("train.py:5:step #2", "activation", 50 + more, "forward.1", "backward.1"),
        state("train.py:6:step", "gradient", 100, "backward.0", "update.0"),
        state("train.py:6:step #2", "gradient", 100, "backward.1", "update.1"),
    ];
    format!(
        r#"{{"schema_version": 1, "timeline": [{}], "states": [{}]}}"#,
        timeline.join(", "),
        states.join(", ")
    )
}

fn bench() -> Bench {
    Bench::new().file("plan.json", PLAN).file("same.json", measured(0)).file("more.json", measured(3))
}

#[test]
fn a_table() {
    assert_snapshot!(bench().answer("reconcile --plan plan.json --measured more.json"), @"
    measured 253.00 MiB in backward, predicted 250.00 MiB: +3.00 MiB (1.2 %)
    plan.json against more.json, step 1 of 2

    phase                   predicted      measured         difference
    load                   100.00 MiB  not measured
    forward with the loss  150.00 MiB    153.00 MiB  +3.00 MiB (2.0 %)
    backward               250.00 MiB    253.00 MiB  +3.00 MiB (1.2 %)
    update                 200.00 MiB    200.00 MiB        0 B (0.0 %)
    zero_grad              100.00 MiB    100.00 MiB        0 B (0.0 %)

    at the peak, in backward
    category     predicted    measured  difference
    parameter   100.00 MiB  100.00 MiB         0 B
    gradient    100.00 MiB  100.00 MiB         0 B
    activation   50.00 MiB   53.00 MiB   +3.00 MiB

    predicted    250.00 MiB  the plan, at device level
    unexplained   +3.00 MiB  what the plan does not know of, or has too much of
    allocated    253.00 MiB  measured in use

    holds: every phase of the plan is measured
    holds: the phases are in the plan's order
    holds: every phase holds at least the parameters that the plan has there
    ");
}

#[test]
fn a_step_is_the_last_unless_one_is_named() {
    let bench = bench();
    let json = |options: &str| -> Value {
        let command = format!("reconcile --plan plan.json --measured more.json --format json {options}");
        serde_json::from_str(&bench.answer(&command)).unwrap()
    };
    let off = |report: &Value| {
        let phases = report["phases"].as_array().unwrap();
        phases.iter().map(|phase| phase["difference_bytes"].as_i64().unwrap_or(-1) >> 20).collect::<Vec<_>>()
    };
    let (last, first) = (json(""), json("--measured-step 0"));
    assert_eq!((&last["steps"], &last["step"], &first["step"]), (&2.into(), &1.into(), &0.into()));
    assert_eq!(off(&last), [-1, 3, 3, 0, 0], "no load in the second step; the loss is in forward");
    assert_eq!(off(&first), [0; 5]);
    assert_eq!(last["agrees"], Value::Null, "no tolerance is asked for");
    let parts = last["remainder"].as_array().unwrap();
    let bytes =
        |name: &str| parts.iter().find(|part| part["name"] == name).unwrap()["bytes"].as_i64().unwrap();
    assert_eq!(bytes("predicted") + bytes("unexplained"), bytes("allocated"));
    let said = bench.refusal("reconcile --plan plan.json --measured more.json --measured-step 2");
    assert!(said.contains("has 2 of such steps"), "{said}");
}

#[test]
fn no_is_one_where_a_tolerance_is_asked_for() {
    let bench = bench();
    for (options, measured, code) in [
        ("", "more.json", 0),
        ("--tolerance 1%", "same.json", 0),
        ("--tolerance 1%", "more.json", 1),
        ("--tolerance 1.50%", "more.json", 1),
        ("--tolerance 2%", "more.json", 0),
        ("--tolerance 1%,3MiB", "more.json", 0),
        ("--tolerance 2MiB", "more.json", 1),
    ] {
        let ran = bench.run(&format!("reconcile --plan plan.json --measured {measured} {options}"));
        assert_eq!(ran.code, Some(code), "{options} {measured}: {}", ran.err);
    }
    for wrong in ["1", "x%", "1%%", "1.555%", "101%", "MiB", ""] {
        let said =
            bench.refusal(&format!("reconcile --plan plan.json --measured same.json --tolerance={wrong}"));
        assert!(said.starts_with("error: `--tolerance`: ") && said.contains("help: "), "{wrong}: {said}");
    }
}

#[test]
fn phases_that_nobody_named_are_asked_for() {
    let recording = r#"{"schema_version": 1, "timeline": [{"phase": "recording"}], "states": [
        {"name": "no stack", "category": "activation", "size_bytes": 1048576, "start_phase": "recording", "end_phase": "recording", "device": "gpu", "persistent": false}]}"#;
    let bench = bench().file("recording.json", recording);
    let out = bench.answer("reconcile --plan plan.json --measured recording.json");
    assert!(out.contains("the whole recording") && out.contains("record_function"), "{out}");
    let ran = bench.run("reconcile --plan plan.json --measured recording.json --tolerance 100%");
    assert_eq!(ran.code, Some(1), "the phases are not there");
}

#[test]
fn a_snapshot_says_more_than_a_ledger() {
    let bench = bench().file("step.pickle", pickle(&step(), 4));
    let report: Value = serde_json::from_str(
        &bench.answer("reconcile --plan plan.json --measured step.pickle --format json"),
    )
    .unwrap();
    let parts = report["remainder"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"reserved") && names.contains(&"reserved beyond"), "{names:?}");
    let bytes = |name: &str| {
        parts.iter().find(|part| part["name"] == name).map_or(0, |part| part["bytes"].as_i64().unwrap())
    };
    assert_eq!(bytes("predicted") + bytes("unsplit tails") + bytes("unexplained"), bytes("allocated"));
    assert_eq!(bytes("allocated") + bytes("reserved beyond"), bytes("reserved"));
    let read: Value = serde_json::from_str(&bench.answer("read step.pickle --format json")).unwrap();
    let device = &read["devices"][0];
    assert_eq!(bytes("reserved"), device["peak_reserved_bytes"].as_i64().unwrap());
    assert!(report["notes"][0].as_str().unwrap().contains("categories are"), "{}", report["notes"]);
}

#[test]
fn csv_and_markdown() {
    let csv = bench().answer("reconcile --plan plan.json --measured more.json --format csv");
    assert!(csv.contains("backward,,262144000,265289728,3145728\n"), "{csv}");
    assert!(csv.contains("backward,activation,52428800,55574528,3145728\n"), "{csv}");
    let markdown = bench().answer("reconcile --plan plan.json --measured more.json --format markdown");
    assert!(markdown.contains("| backward | 250.00 MiB | 253.00 MiB | +3.00 MiB (1.2 %) |"), "{markdown}");
}

#[test]
fn a_plan_agrees_with_itself() {
    let bench = Bench::new();
    bench.answer("plan gpt2 --seq-len 64 --save plan.json");
    let ran = bench.run("reconcile --plan plan.json --measured plan.json --tolerance 0.01%");
    assert_eq!(ran.code, Some(0), "{}", ran.out);
}
