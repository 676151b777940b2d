//! `compare` in every format, and the candidates that it takes.

use crate::support::{Bench, SAMPLE};
use insta::assert_snapshot;
use serde_json::{Value, json};

/// The sample with its two candidates beside it.
fn bench() -> Bench {
    let mut checkpoint: Value = serde_json::from_str(SAMPLE).unwrap();
    let mut offload = checkpoint.clone();
    checkpoint[2]["end_phase"] = json!("forward");
    offload[2]["device"] = json!("cpu");
    Bench::with_sample()
        .file("checkpoint.json", checkpoint.to_string())
        .file("offload.json", offload.to_string())
}

const BOTH: &str = "compare ledger.json checkpoint=checkpoint.json offload=offload.json";

#[test]
fn as_a_table() {
    assert_snapshot!(bench().answer(BOTH), @"
                    peak                                             saves  in
    baseline    2.15 GiB  ████████████████████████████████████              backward
    checkpoint  1.86 GiB  ███████████████████████████████▏      300.00 MiB  forward
    offload     1.86 GiB  ███████████████████████████████▏      300.00 MiB  backward

    checkpoint: saves 300.00 MiB (13.6 %)
      activations  300.00 MiB  → 0 B  not resident then

    offload: saves 300.00 MiB (13.6 %)
      activations  300.00 MiB  → 0 B  on the cpu then
    ");
}

#[test]
fn on_twenty_columns() {
    let out = bench().env("COLUMNS", "20").answer(BOTH);
    assert!(out.lines().all(|line| line.chars().count() <= 20), "{out}");
    assert_snapshot!(out, @"
    baseline   2.15 GiB
    checkpoint 1.86 GiB
    offload    1.86 GiB

    checkpoint: saves
    300.00 MiB (13.6 %)
      ac…ions 300.00 MiB

    offload: saves
    300.00 MiB (13.6 %)
      ac…ions 300.00 MiB
    ");
}

#[test]
fn as_csv() {
    assert_snapshot!(bench().answer(&format!("{BOTH} --format csv")), @"
    kind,name,peak_phase,micro_batch,peak_bytes,peak_mb,memory_saving_bytes,memory_saving_mb
    baseline,,backward,,2306867200,2200.0,0,0.0
    candidate,checkpoint,forward,,1992294400,1900.0,314572800,300.0
    candidate,offload,backward,,1992294400,1900.0,314572800,300.0
    ");
}

#[test]
fn as_markdown() {
    assert_snapshot!(bench().answer(&format!("{BOTH} --format markdown")), @"
    | ledger | peak | in | saves |
    | --- | ---: | --- | ---: |
    | baseline | 2.15 GiB | backward |  |
    | checkpoint | 1.86 GiB | forward | 300.00 MiB |
    | offload | 1.86 GiB | backward | 300.00 MiB |

    What moves with checkpoint:

    | state | before | after | change |
    | --- | ---: | ---: | --- |
    | activations | 300.00 MiB | 0 B | not resident then |

    What moves with offload:

    | state | before | after | change |
    | --- | ---: | ---: | --- |
    | activations | 300.00 MiB | 0 B | on the cpu then |
    ");
}

#[test]
fn as_json() {
    let json: Value = serde_json::from_str(&bench().answer(&format!("{BOTH} --format json"))).unwrap();
    assert_eq!(json["baseline"]["peak_mb"], 2200.0);
    let checkpoint = json!({
        "peak_phase": "forward", "micro_batch": null, "peak_bytes": 1_992_294_400u64, "peak_mb": 1900.0,
        "memory_saving_bytes": 314_572_800, "memory_saving_mb": 300.0,
        "moved": [{"name": "activations", "before_bytes": 314_572_800, "after_bytes": 0, "change": "not resident then"}],
        "unaligned": []
    });
    assert_eq!(json["candidates"]["checkpoint"], checkpoint);
    assert_eq!(json["candidates"]["offload"]["peak_phase"], "backward");
    assert_eq!(json["candidates"]["offload"]["memory_saving_mb"], 300.0);
}

#[test]
fn a_candidate_may_need_more() {
    let json: Value =
        serde_json::from_str(&bench().answer("compare checkpoint.json whole=ledger.json --format json"))
            .unwrap();
    assert_eq!(json["candidates"]["whole"]["memory_saving_bytes"], -314_572_800);
    let table = bench().answer("compare checkpoint.json whole=ledger.json");
    assert!(table.contains("whole: needs 300.00 MiB more (15.8 %)"), "{table}");
}

#[test]
fn states_that_are_not_listed_are_summed_with_their_sign() {
    let states = |bytes: u64| {
        let state = |i: u64| {
            json!({"name": format!("s{i:02}"), "category": "activation", "size_bytes": bytes + i, "start_phase": "load",
                   "end_phase": "load", "device": "gpu", "persistent": false})
        };
        Value::from((0..5).map(state).collect::<Vec<_>>()).to_string()
    };
    let bench = Bench::new().file("small.json", states(1024)).file("large.json", states(2048));
    for (arguments, says) in [
        ("compare small.json l=large.json --top 2", "\n  and 3 more, 3.00 KiB more in all\n"),
        ("compare large.json s=small.json --top 2", "\n  and 3 more, 3.00 KiB less in all\n"),
        ("compare large.json s=small.json --top 2 --format markdown", "\nand 3 more, 3.00 KiB less in all\n"),
    ] {
        let out = bench.answer(arguments);
        assert!(out.contains(says), "{arguments}: {out}");
    }
}

#[test]
fn candidates_inside_the_file_take_part() {
    let states: Value = serde_json::from_str(SAMPLE).unwrap();
    let document =
        json!({"schema_version": 1, "states": states, "candidates": {"z first": [], "a second": states}});
    let bench = bench().file("document.json", document.to_string());
    let json: Value = serde_json::from_str(&bench.answer("compare document.json --format json")).unwrap();
    assert_eq!(json["candidates"]["z first"]["memory_saving_mb"], 2200.0);
    assert_eq!(json["candidates"]["a second"]["memory_saving_mb"], 0.0);
    let csv = bench.answer("compare document.json more=offload.json --format csv");
    let names: Vec<&str> = csv.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
    assert_eq!(names[0], "");
    assert_eq!(names.last(), Some(&"more"), "those of the command line come after those of the file");
}

#[test]
fn candidates_inside_a_candidate_are_left_out_aloud() {
    let document = json!({"schema_version": 1, "states": [], "candidates": {"inner": []}});
    let ran = bench()
        .file("document.json", document.to_string())
        .run("compare ledger.json none=document.json --format csv");
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.err, "note: document.json: the candidates inside this candidate are left out\n");
    assert!(!ran.out.contains("inner"));
}

#[test]
fn another_timeline_is_no_error() {
    let micro = r#"{"schema_version": 1, "timeline": [{"phase": "forward", "micro_batch": 0}, {"phase": "backward", "micro_batch": 0}, {"phase": "rollout"}],
        "states": [{"name": "w", "category": "parameter", "size_mb": 100, "device": "gpu", "start_phase": "forward", "end_phase": "backward", "persistent": true}]}"#;
    let out = bench().file("micro.json", micro).answer("compare ledger.json micro=micro.json");
    assert!(
        out.contains("only in one of the two timelines: load, loss, update, zero_grad, rollout"),
        "{out}"
    );
}

#[test]
fn candidates_need_names_and_differ_in_them() {
    let bench = bench();
    assert_snapshot!(bench.refusal("compare ledger.json checkpoint.json"), @"
    error: `checkpoint.json`: a candidate without a name
      help: write `NAME=LEDGER`, such as `checkpoint=checkpoint.json`
    ");
    assert_snapshot!(bench.refusal("compare ledger.json =checkpoint.json"), @"
    error: `=checkpoint.json`: a candidate with an empty name
      help: write `NAME=LEDGER`, such as `checkpoint=checkpoint.json`
    ");
    assert_snapshot!(bench.refusal("compare ledger.json checkpoint="), @"
    error: `checkpoint=`: a candidate without a ledger
      help: write `NAME=LEDGER`, such as `checkpoint=checkpoint.json`
    ");
    assert_snapshot!(bench.refusal("compare ledger.json"), @"
    error: ledger.json: no candidates inside, and none given to compare it with
      help: name one: `peakledger compare BASELINE NAME=LEDGER`
    ");
    assert_snapshot!(bench.refusal("compare ledger.json a=checkpoint.json a=offload.json"), @"
    error: two candidates are named `a`
      help: give each candidate a name of its own
    ");
}

#[test]
fn standard_input_is_read_once() {
    let ran = bench().pipe("compare - again=-", SAMPLE);
    assert_eq!(ran.code, Some(2));
    assert_snapshot!(ran.err, @"
    error: `-`: standard input can only be read once
      help: name a file for all but one of the inputs
    ");
    assert_eq!(bench().pipe("compare - offload=offload.json", SAMPLE).code, Some(0));
}
