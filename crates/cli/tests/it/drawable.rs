//! What `read` takes, the other verbs take too, where their question makes sense; else they say what it is.

use crate::own::step;
use crate::support::Bench;
use crate::writer::pickle;
use insta::assert_snapshot;
use serde_json::Value;

const TIMELINE: &str = "[[1, 2], [[0, 4096, 0, 0, 0, 0, 0, 0, 0], [0, 4096, 0, 0, 0, 8192, 0, 0, 512]]]";
const TRACE: &str = r#"{"schemaVersion": 1, "traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "forward", "pid": 1, "tid": 1, "ts": 10, "dur": 10},
  {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 12, "args": {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": 2048, "Total Allocated": 2048, "Total Reserved": 4096}}
]}"#;
const LEDGER: &str = r#"[{"name": "weights", "category": "parameter", "size_mb": 1, "start_phase": "load", "end_phase": "zero_grad", "device": "gpu", "persistent": true}]"#;

const MEASURED: [(&str, &str); 3] = [
    ("snapshot.pickle", "a Python pickle, as memory snapshots are"),
    ("trace.json", "a profiler's trace"),
    ("timeline.json", "a memory timeline"),
];

fn bench() -> Bench {
    let bench =
        Bench::new().file("ledger.json", LEDGER).file("timeline.json", TIMELINE).file("trace.json", TRACE);
    std::fs::write(bench.path("snapshot.pickle"), pickle(&step(), 4)).unwrap();
    bench
}

#[test]
fn every_verb_that_draws_takes_every_measurement() {
    let bench = bench();
    let peak = |file: &str| -> u64 {
        let answer: Value =
            serde_json::from_str(&bench.answer(&format!("show {file} --format json"))).unwrap();
        answer["peak"]["peak_bytes"].as_u64().unwrap()
    };
    assert_eq!(MEASURED.map(|(file, _)| peak(file)), [6144, 2048, 4096 + 8192 + 512]);
    for (file, _) in MEASURED {
        for words in [
            format!("compare ledger.json a={file}"),
            format!("compare {file} a=ledger.json"),
            format!("diff ledger.json {file}"),
            format!("report {file} --format json"),
            format!("reconcile --plan ledger.json --measured {file}"),
            format!("read {file} --save saved-{file}.json"),
            format!("check saved-{file}.json"),
        ] {
            assert!(!bench.answer(&words).is_empty(), "{words}");
        }
    }
}

#[test]
fn a_pipe_is_looked_at_too() {
    let bench = bench();
    let peak = |answer: &str| serde_json::from_str::<Value>(answer).unwrap()["peak"].clone();
    for (file, content) in [("timeline.json", TIMELINE), ("trace.json", TRACE), ("ledger.json", LEDGER)] {
        let shown = bench.answer(&format!("show {file} --format json"));
        assert_eq!(peak(&bench.pipe("show - --format json", content).out), peak(&shown), "{file}");
    }
    assert_eq!(bench.pipe("diff - ledger.json", TRACE).code, Some(0));
}

#[test]
fn a_timeline_is_its_peak_by_category() {
    assert_snapshot!(bench().answer("show timeline.json"), @"
    peak 12.50 KiB in recording
    timeline.json: 3 states
    note: peakledger read timeline.json: the peak of a memory timeline, by torch's
          categories; it names no tensors and no phases, and what torch could not
          place counts as workspace

       phase          total
    ▶  recording  12.50 KiB  ████████████████████████████████████████

    at the peak, by category
    parameter   4.00 KiB  32.0 %  ████████████▊
    activation  8.00 KiB  64.0 %  █████████████████████████▋
    workspace      512 B   4.0 %  █▋

    contributors
    state           size   share  category
    activation  8.00 KiB  64.0 %  activation
    parameter   4.00 KiB  32.0 %  parameter
    unknown        512 B   4.0 %  workspace
    ");
}

#[test]
fn where_a_ledger_alone_will_do_the_others_are_named() {
    let bench = bench();
    for (file, what) in MEASURED {
        for words in [format!("check {file}"), format!("reconcile --plan {file} --measured ledger.json")] {
            let said = bench.refusal(&words);
            let whole = said
                .starts_with(&format!("error: {file}: {what}, not a ledger\n  help: `peakledger read FILE`"));
            assert!(whole, "{words}: {said}");
        }
    }
    assert_snapshot!(bench.refusal("read ledger.json"), @"
    error: ledger.json: a ledger, not a measurement
      help: `peakledger show FILE` tells its phases, its peak and who forms it
    ");
    let said = bench.file("config.json", r#"{"model_type": "gpt2"}"#).refusal("read config.json");
    assert!(
        said.contains("the config of a model, not a measurement\n  help: `peakledger plan FILE`"),
        "{said}"
    );
    let bench = self::bench();
    for (file, what) in &MEASURED[1..] {
        let said = bench.refusal(&format!("replay {file}"));
        assert!(
            said.starts_with(&format!("error: {file}: {what}, which has no segments and no requests")),
            "{said}"
        );
    }
}
