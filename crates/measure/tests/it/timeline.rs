//! Memory timelines of both forms, against naive sums.

use crate::shared;
use peakledger_core::Category;
use peakledger_input::{Binary, Input, MEASURED_LIMIT, Problem};
use peakledger_measure::timeline::{MemoryTimeline, TimelineForm, is_timeline, read};
use proptest::prelude::*;
use serde_json::Value;

fn of(text: impl Into<Vec<u8>>) -> Result<MemoryTimeline, Problem> {
    read(&mut Binary::from_bytes("timeline.json", text.into())?, &mut |_| {})
}

const TOTALS: &str = "[[10, 10, 25, 30], [[0, 800, 0, 8, 0, 0, 0, 0, 0], [0, 800, 0, 8, 100, 50, 0, 0, 7],
    [0, 800, 300, 8, 0, 50, 400, 2, 7], [0, 800, 300, 8, 0, 0, 0, 0, 0]]]";
const EVENTS: &str = "[[-1, 1, 800, 0], [-1, 1, 64, 7], [1000, 2, 100, 4], [1500, 3, -100, 4], [1500, 3, 100, 5], [2000, 2, 300, 5], [3000, 4, -300, 5]]";

#[test]
fn the_form_json_has_a_row_for_each_time() {
    let timeline = of(TOTALS).unwrap();
    assert_eq!(
        (timeline.form, timeline.rows, timeline.lasts, timeline.opening),
        (TimelineForm::Totals, 4, 20_000, None)
    );
    assert_eq!((timeline.peak.row, timeline.peak.after), (2, 15_000));
    assert_eq!(timeline.peak.totals.sum().unwrap().get(), 1567);
    let (by_category, unknown) = timeline.peak.totals.by_category();
    let of = |category| by_category.iter().find(|(c, _)| *c == category).unwrap().1.get();
    assert_eq!([Category::Parameter, Category::OptimizerState, Category::Gradient].map(of), [800, 300, 400]);
    assert_eq!([Category::Activation, Category::Workspace].map(of), [58, 2], "input is an activation");
    assert_eq!((unknown.get(), timeline.end.sum().unwrap().get()), (7, 1108));
}

#[test]
fn the_raw_form_has_a_row_for_each_event() {
    let timeline = of(EVENTS).unwrap();
    assert_eq!((timeline.form, timeline.rows, timeline.lasts), (TimelineForm::Events, 7, 2000));
    assert_eq!(timeline.opening.unwrap().sum().unwrap().get(), 864);
    assert_eq!(
        (timeline.peak.row, timeline.peak.after, timeline.peak.totals.sum().unwrap().get()),
        (5, 1000, 1264)
    );
    assert_eq!(timeline.end.sum().unwrap().get(), 964);
    let one = of("[[5, 2, 100, 3]]").unwrap();
    assert_eq!((one.rows, one.peak.totals.0[3]), (1, 100));
    let odd = of("[[5, 2, 100, 3], [4, 9, 50, 12], [6, 4, -200, 3]]").unwrap();
    insta::assert_snapshot!(odd.notes.join("\n"), @r#"
    a category falls below nothing, which is taken for nothing, in 1 of 3 rows
    the clock runs backwards; the order of the rows is kept in 1 of 3 rows
    an action or a category that torch does not have in 1 of 3 rows
    "#);
}

#[test]
fn each_fault_has_its_sentence() {
    let said = |text: &str| of(text).unwrap_err().to_string();
    insta::assert_snapshot!(said("<!DOCTYPE html>\n<html><img src=\"data:image/png;base64,…\">"), @r#"
    timeline.json: only a picture: the `.html` of a memory timeline has no figures in it
      help: export it again as `.json`: `prof.export_memory_timeline("timeline.json")`
    "#);
    insta::assert_snapshot!(said("{\"traceEvents\": []}"), @r#"
    timeline.json:1:1: not the shape of a memory timeline, which is `[times, sizes]` or rows of four numbers
      help: write one with `prof.export_memory_timeline("timeline.json")`
    "#);
    insta::assert_snapshot!(said("[[1, 2], [[0,0,0,0,0,0,0,0,0]]]"), @r#"
    timeline.json:1:32: not as many rows of sizes as times (2)
      help: the file is damaged: export it again
    "#);
    insta::assert_snapshot!(said("[[1], [[0,0,0]]]"), @r#"
    timeline.json:1:8: a row of sizes that is not nine whole numbers
      help: this is no memory timeline, or one of another version of torch: export it again as `.json`
    "#);
    insta::assert_snapshot!(said("[[], []]"), @r#"
    timeline.json: a memory timeline without a row
      help: record a whole step with `profile_memory=True, record_shapes=True, with_stack=True`
    "#);
    insta::assert_snapshot!(said("[[1, 2, 3, 4.5], [1]]"), @r#"
    timeline.json:1:12: no whole number where the timeline has one (not the value that belongs here)
      help: write the file again, or check it with `python -m json.tool`
    "#);
    insta::assert_snapshot!(said(&TOTALS[..60]), @r#"
    timeline.json:1:52: the file ends in the middle of a value
      help: it may be cut off: copy or write it again
    "#);
    insta::assert_snapshot!(said(
        &EVENTS
            .replace("800", "9223372036854775807")
            .replace("64", "9223372036854775807")
            .replace("100, 4]", "9223372036854775807, 0]")
    ), @r#"
    timeline.json:1:101: the bytes of row 2 pass 64 bits
      help: no machine holds so much: the file is damaged, export it again
    "#);
    assert!(
        is_timeline(TOTALS.as_bytes())
            && is_timeline(b" <html><img src=\"data:image/png;base64,\"")
            && !is_timeline(b"<html>")
            && !is_timeline(b"[{\"ph\"")
            && !is_timeline(b"{")
    );
}

#[test]
fn damage_ends_in_an_answer_or_an_error() {
    for text in [TOTALS, EVENTS] {
        for end in 1..text.len() {
            assert!(of(&text.as_bytes()[..end]).is_err(), "{end}");
        }
        for at in 0..text.len() {
            for byte in 0..=255 {
                let mut changed = text.as_bytes().to_vec();
                changed[at] = byte;
                let _ = of(changed);
            }
        }
    }
}

#[test]
fn a_real_timeline_is_read_as_a_naive_sum_reads_it() {
    let Some(path) = shared::data("traces/06_own_cpu_torch215_memtl.json") else { return };
    let whole: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let rows: Vec<Vec<u64>> = serde_json::from_value(whole[1].clone()).unwrap();
    let mut file = Binary::open(&Input::of(path), MEASURED_LIMIT).unwrap();
    assert!(is_timeline(file.head()));
    let mut bytes = 0;
    let timeline = read(&mut file, &mut |read| bytes = read).unwrap();
    assert_eq!(Some(bytes), file.size(), "the reader tells how far it is");
    let sums: Vec<u64> = rows.iter().map(|row| row.iter().sum()).collect();
    let peak = sums.iter().position(|sum| sum == sums.iter().max().unwrap()).unwrap();
    assert_eq!((timeline.rows, timeline.peak.row), (rows.len(), peak));
    assert_eq!(timeline.peak.totals.0.to_vec(), rows[peak][1..]);
    assert_eq!(timeline.end.0.to_vec(), rows[rows.len() - 1][1..]);
    assert_eq!(timeline.notes, Vec::<String>::new());
}

proptest! {
    #[test]
    fn both_forms_of_the_same_events_have_the_same_peak(events in prop::collection::vec((1i64..1000, 0usize..8), 1..50)) {
        let (mut rows, mut times, mut sizes, mut totals) = (Vec::new(), Vec::new(), Vec::new(), [0i64; 8]);
        for (at, (bytes, category)) in events.iter().enumerate() {
            let bytes = if at % 3 == 2 { -totals[*category] } else { *bytes };
            totals[*category] += bytes;
            rows.push(format!("[{}, 2, {bytes}, {category}]", (at + 1) * 1000));
            times.push((at + 1).to_string());
            let row: Vec<String> = totals.iter().map(i64::to_string).collect();
            sizes.push(format!("[0, {}]", row.join(", ")));
        }
        let raw = of(format!("[{}]", rows.join(", "))).unwrap();
        let whole = of(format!("[[{}], [{}]]", times.join(", "), sizes.join(", "))).unwrap();
        prop_assert_eq!((raw.peak, raw.end, raw.lasts), (whole.peak, whole.end, whole.lasts));
    }
}
