//! `read`: a small step of the tests' own writer, in each format, and its options.

use crate::own::{open_value, step};
use crate::support::Bench;
use crate::writer::pickle;
use insta::assert_snapshot;

fn bench() -> Bench {
    assert!(open_value(&step()).is_ok());
    Bench::new().file("step.pickle", pickle(&step(), 4))
}

#[test]
fn as_a_table() {
    assert_snapshot!(bench().answer("read step.pickle"), @"");
}

#[test]
fn as_csv_and_markdown() {
    assert_snapshot!(bench().answer("read step.pickle --format csv"), @"");
    assert_snapshot!(bench().answer("read step.pickle --format markdown"), @"");
}

#[test]
fn for_programs() {
    let json: serde_json::Value =
        serde_json::from_str(&bench().answer("read step.pickle --format json")).unwrap();
    let device = &json["devices"][0];
    for (field, bytes) in [
        ("reserved_end_bytes", 2 << 20),
        ("allocated_end_bytes", 3072),
        ("active_end_bytes", 3072),
        ("peak_reserved_bytes", 2 << 20),
        ("peak_reserved_event", -1),
        ("opening_requested_bytes", 1000),
        ("rounding_waste_end_bytes", 72),
        ("largest_free_block_end_bytes", (2 << 20) - 6144),
    ] {
        assert_eq!(device[field], bytes, "{field}");
    }
    assert_eq!(device["peak"]["requested_bytes"], 6000);
    assert_eq!(device["peak"]["allocated_bytes"], 6144);
    assert_eq!(device["contributors"][0]["user_frame"], "/proj/train.py:1:step");
    assert_eq!((&device["complete"], &device["oom"]), (&true.into(), &serde_json::json!([])));
}

#[test]
fn the_live_set_at_an_event() {
    let bench = bench();
    let at = |event: &str| bench.answer(&format!("read step.pickle --format csv --at {event}")).lines().count() - 1;
    assert_eq!([at("-1"), at("0"), at("1"), at("3")], [1, 2, 3, 2]);
    let said = bench.refusal("read step.pickle --at 4");
    assert!(said.contains("`--at`: device 0 has no event 4"), "{said}");
    assert!(bench.refusal("read step.pickle --at -2").contains("`-2` is no event"));
    assert!(bench.refusal("read step.pickle --device 3").contains("there is no device 3"));
    assert!(bench.refusal("read step.pickle --events 9..1").contains("no range of events"));
    assert!(bench.refusal("read step.pickle --events 4..").contains("event 4 is after the last"));
    assert!(bench.answer("read step.pickle --events 2..4").contains("before the first event"));
}

#[test]
fn the_ledger_that_is_saved_has_the_same_peak() {
    let bench = bench();
    bench.answer("read step.pickle --save ledger.json");
    assert_snapshot!(bench.answer("show ledger.json"), @"");
    assert!(bench.refusal("read step.pickle --save ledger.json").contains("the file exists"));
    let own = ["--phase", "## forward ##=loss"];
    let mut command = bench.command("read step.pickle --save own.json");
    assert!(command.args(own).output().unwrap().status.success());
    assert!(bench.answer("show own.json").contains("loss"));
    assert!(bench.refusal("read step.pickle --phase forward").contains("names no phase"));
}

#[test]
fn json_is_told_what_it_is() {
    let said = Bench::new().file("t.json", "{\"traceEvents\": []}").refusal("read t.json");
    assert!(said.contains("t.json: JSON"), "{said}");
}
