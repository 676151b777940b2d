//! `replay` from outside: a small step of the tests' own writer and a saved plan, in each format, and what is refused.

use crate::own::{self, BASE, block, event, stack, step};
use crate::support::Bench;
use crate::writer::{Py, dict, pickle};
use insta::assert_snapshot;
use serde_json::Value;

fn bench() -> Bench {
    Bench::new().file("step.pickle", pickle(&step(), 4)).file("ledger.json", LEDGER)
}

/// 30 MiB of weights, then 25 MiB of activations in the place of which 24 MiB of gradients come.
const LEDGER: &str = r#"[
    {"name": "weights", "category": "parameter", "size_mb": 30, "start_phase": "load", "end_phase": "zero_grad",
     "device": "gpu", "persistent": true},
    {"name": "activations", "category": "activation", "size_mb": 25, "start_phase": "forward", "end_phase": "loss",
     "device": "gpu", "persistent": false},
    {"name": "gradients", "category": "gradient", "size_mb": 24, "start_phase": "backward", "end_phase": "update",
     "device": "gpu", "persistent": false},
    {"name": "sums", "category": "workspace", "size_mb": 2, "start_phase": "backward", "end_phase": "backward",
     "device": "gpu", "persistent": false}
]"#;

#[test]
fn a_snapshot_as_a_table() {
    assert_snapshot!(bench().answer("replay step.pickle"), @"
    reserved 2.00 MiB at most on device 0, at event 1 of 4
    step.pickle: the replay puts each of 2 blocks where the trace has it

                                    at that peak
    requested                           5.86 KiB  ▏
    rounding                               144 B  ▏
    free in segments partly in use      1.99 MiB  █████████████████████████████████▉

             reserved  allocated
    event 0  2.00 MiB   4.00 KiB  ████████████████████████████████████████
    event 1  2.00 MiB   6.00 KiB  ████████████████████████████████████████
    event 2  2.00 MiB   6.00 KiB  ████████████████████████████████████████
    event 3  2.00 MiB   3.00 KiB  ████████████████████████████████████████

    settings                    reserved  saves  free at the peak
    as recorded                 2.00 MiB                 1.99 MiB
    expandable_segments:True    2.00 MiB    0 B          1.99 MiB
    max_split_size_mb:128       2.00 MiB    0 B          1.99 MiB
    roundup_power2_divisions:8  2.00 MiB    0 B          1.99 MiB

    note: blocks from before the first event stay where they are under other
          settings too: a trace that starts from an empty device says more
    note: a card that never runs out; --gpu names another
    ");
}

#[test]
fn a_ledger_as_a_table() {
    assert_snapshot!(bench().answer("replay ledger.json --alloc-conf expandable_segments:True --gpu 344MiB"), @"
    reserved 56.00 MiB at most, in forward
    ledger.json

                            at that peak
    requested                  55.00 MiB  ███████████████████████████████████████▎
    unsplit ends of blocks      1.00 MiB  ▊

                reserved  allocated
    load       30.00 MiB  30.00 MiB  █████████████████████▍
    forward    56.00 MiB  56.00 MiB  ████████████████████████████████████████
    loss       56.00 MiB  56.00 MiB  ████████████████████████████████████████
    backward   56.00 MiB  56.00 MiB  ████████████████████████████████████████
    update     56.00 MiB  54.00 MiB  ████████████████████████████████████████
    zero_grad  56.00 MiB  30.00 MiB  ████████████████████████████████████████

    settings                   reserved  saves  free at the peak
    torch's defaults          56.00 MiB                      0 B
    expandable_segments:True  40.00 MiB                10.00 MiB  runs out
    expandable_segments:True: runs out in forward: 26.00 MiB asked for with 17.90
    MiB left, 10.00 MiB reserved and free

    note: one step from an empty cache: whether a step fits `plan` says, which
          replays the first and the next, and counts what NCCL keeps outside the
          allocator
    note: 57.90 MiB for the caching allocator on the card
    ");
}

#[test]
fn a_ledger_as_csv_and_markdown() {
    assert_snapshot!(bench().answer("replay ledger.json --format csv --alloc-conf max_split_size_mb:24"), @"
    settings,phase,reserved_bytes,allocated_bytes,active_bytes,returnable_bytes
    torch's defaults,-1,0,0,0,0
    torch's defaults,load,31457280,31457280,31457280,0
    torch's defaults,forward,58720256,58720256,58720256,0
    max_split_size_mb:24,-1,0,0,0,0
    max_split_size_mb:24,load,31457280,31457280,31457280,0
    max_split_size_mb:24,forward,58720256,58720256,58720256,0
    max_split_size_mb:24,backward,79691776,60817408,60817408,0
    ");
    assert_snapshot!(bench().answer("replay ledger.json --format markdown"), @r"
    **reserved 56.00 MiB at most, in forward**

    | at that peak | size |
    | --- | ---: |
    | requested | 55.00 MiB |
    | rounding | 0 B |
    | unsplit ends of blocks | 1.00 MiB |
    | waiting for other streams | 0 B |
    | free in whole segments | 0 B |
    | free in segments partly in use | 0 B |

    | settings | reserved | saves | free at the peak | ends |
    | --- | ---: | ---: | ---: | --- |
    | torch's defaults | 56.00 MiB |  | 0 B |  |
    | expandable_segments:True | 60.00 MiB | -4.00 MiB | 4.00 MiB |  |
    | max_split_size_mb:128 | 56.00 MiB | 0 B | 0 B |  |
    | roundup_power2_divisions:8 | 56.00 MiB | 0 B | 0 B |  |

    Note: one step from an empty cache: whether a step fits \`plan\` says, which replays the first and the next, and counts what NCCL keeps outside the allocator

    Note: a card that never runs out; --gpu names another
    ");
}

/// The fields of JSON, by the simpler ones among them.
#[test]
fn json_adds_up() {
    for file in ["step.pickle", "ledger.json"] {
        let json: Value =
            serde_json::from_str(&bench().answer(&format!("replay {file} --format json"))).unwrap();
        assert_eq!(json["followed"].is_null(), file == "ledger.json");
        let runs = json["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 4, "as it is and three usual settings");
        for run in runs {
            let of = |at: &Value, key: &str| at[key].as_u64().unwrap();
            for at in [&run["peak"], &run["end"]] {
                let parts = ["requested_bytes", "rounding_bytes", "tails_bytes"].map(|part| of(at, part));
                assert_eq!(parts.iter().sum::<u64>(), of(at, "allocated_bytes"));
                let parts = ["allocated_bytes", "pending_bytes", "returnable_bytes", "stuck_bytes"];
                assert_eq!(parts.map(|part| of(at, part)).iter().sum::<u64>(), of(at, "reserved_bytes"));
            }
            let over_time = run["over_time"].as_array().unwrap();
            let most = over_time.iter().map(|point| of(point, "reserved_bytes")).max();
            assert_eq!(most, Some(of(run, "reserved_bytes")));
        }
    }
}

/// A plan and its replay are one: the steady step of a saved plan reserves what `plan` says of it, but for the order of load.
#[test]
fn a_saved_plan_reserves_what_the_plan_says() {
    let bench = Bench::new();
    let plan: Value = serde_json::from_str(
        &bench.answer("plan smollm2-135m --seq-len 64 --step first --save first.json --format json"),
    )
    .unwrap();
    let replay: Value = serde_json::from_str(&bench.answer("replay first.json --format json")).unwrap();
    assert_eq!(plan["reserved_bytes"], replay["runs"][0]["reserved_bytes"]);
    assert_eq!(plan["allocator"]["max_allocated_bytes"], replay["runs"][0]["max_allocated_bytes"]);
}

#[test]
fn a_card_that_runs_out_is_a_no_where_that_is_asked() {
    let bench = bench();
    let code = |arguments: &str| bench.run(&format!("replay ledger.json {arguments}")).code;
    assert_eq!(code("--gpu 344MiB"), Some(0));
    assert_eq!(code("--gpu 344MiB --exit-code"), Some(0));
    assert_eq!(code("--gpu 330MiB --exit-code"), Some(1));
    assert_eq!(code("--gpu 330MiB"), Some(0));
    let out = bench.answer("replay ledger.json --gpu 330MiB");
    assert!(out.contains("runs out in forward: 26.00 MiB asked for with 13.90 MiB left"), "{out}");
}

#[test]
fn what_cannot_be_replayed_is_told() {
    let bench = bench()
        .file("trace.json", r#"{"schemaVersion": 1, "traceEvents": []}"#)
        .file("config.json", r#"{"model_type": "llama"}"#);
    for (arguments, says) in [
        ("replay none.pickle", "error: none.pickle: no such file"),
        (
            "replay trace.json",
            "error: trace.json: a profiler's trace, which has no segments and no requests\n  help: replay",
        ),
        ("replay config.json", "error: config.json:1:1: the config of a model, not a ledger"),
        ("replay step.pickle --device 3", "error: `--device`: there is no device 3 in step.pickle\n  help: "),
        (
            "replay ledger.json --device 1",
            "error: `--device`: ledger.json is a ledger, and a ledger is of one device",
        ),
        (
            "replay step.pickle --alloc-conf backend:cudaMallocAsync",
            "error: `--alloc-conf`: `cudaMallocAsync` is an",
        ),
        (
            "replay step.pickle --alloc-conf max_split:128",
            "error: `--alloc-conf`: torch knows no setting `max_split`",
        ),
        (
            "plan smollm2-135m --alloc-conf expandable_segments:yes",
            "error: `--alloc-conf`: `expandable_segments` is True",
        ),
        (
            "fit smollm2-135m --gpu t4 --alloc-conf expandable_segments",
            "error: `--alloc-conf`: `expandable_segments` is not",
        ),
        ("replay step.pickle --gpu tpu", "error: `--gpu`: "),
    ] {
        let run = bench.run(arguments);
        assert_eq!(run.code, Some(2), "{arguments}");
        assert!(run.err.starts_with(says) && run.err.contains("help: "), "{arguments}\n{}", run.err);
    }
}

/// A segment of 200 MiB for 150 MiB is none that the allocator asks for: what was recorded is not what the replay has.
#[test]
fn a_trace_that_is_not_followed_keeps_its_own_figure() {
    let (segment, size) = (200 << 20, 150 << 20);
    let events =
        vec![event("segment_alloc", BASE, segment, 10, stack(1)), event("alloc", BASE, size, 20, stack(1))];
    let blocks = vec![
        block(BASE, size, size, "active_allocated", stack(1)),
        block(BASE + size, segment - size, 0, "inactive", stack(1)),
    ];
    let step = dict([
        ("segments", Py::List(vec![own::segment(0, BASE, segment, blocks)])),
        ("device_traces", Py::List(vec![Py::List(events)])),
    ]);
    let out = Bench::new().file("hand.pickle", pickle(&step, 4)).answer("replay hand.pickle");
    assert!(!out.contains("as recorded") && out.contains("its own settings"), "{out}");
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("reserved 150.00 MiB at most")
            && words.contains("the trace itself has 200.00 MiB reserved at most"),
        "{out}"
    );
}
