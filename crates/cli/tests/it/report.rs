//! `report`, and `--format html` of the verbs that have pictures: the document on the page is the answer, and the page stays
//! small, whatever it is of. How it looks and behaves is tested in a browser (`web/tests`).

use crate::own::step;
use crate::support::Bench;
use crate::writer::pickle;
use serde_json::{Value, json};

const CATEGORIES: [&str; 7] = [
    "parameter",
    "master_weight",
    "gradient",
    "optimizer_state",
    "activation",
    "workspace",
    "communication_buffer",
];

/// The document inside a page.
fn document(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"<script type="application/json" id="document">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn json(bench: &Bench, arguments: &str) -> Value {
    serde_json::from_str(&bench.answer(&format!("{arguments} --format json"))).unwrap()
}

/// The largest totals of a series, bucket by bucket, from the columns of a level.
fn totals(level: &Value) -> Vec<u64> {
    let count = level["count"].as_u64().unwrap();
    let mut totals = vec![0; usize::try_from(count).unwrap()];
    for column in level["by_category"].as_array().unwrap() {
        let mut sum = 0;
        for (total, difference) in totals.iter_mut().zip(column.as_array().unwrap()) {
            sum += difference.as_i64().unwrap();
            *total += u64::try_from(sum).unwrap();
        }
    }
    totals
}

#[test]
fn the_page_of_a_ledger_has_its_phases_peak_and_states() {
    let bench = Bench::with_sample();
    let page = bench.answer("report ledger.json");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
    let (series, answer) = (&document(&page)["series"][0], json(&bench, "show ledger.json"));
    assert_eq!(series["peak"]["bytes"], answer["peak"]["peak_bytes"]);
    assert_eq!(series["peak"]["phase"], answer["peak"]["peak_phase"]);
    let by_phase: Vec<u64> =
        answer["phases"].as_array().unwrap().iter().map(|p| p["total_bytes"].as_u64().unwrap()).collect();
    assert_eq!(totals(&series["levels"][0]), by_phase);
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&series["contributors"]), names(&answer["peak"]["contributors"]));
    assert_eq!(series["states"]["names"].as_array().unwrap().len(), 7);
    assert!(page.contains("<strong>Peak 2.15 GiB</strong> in backward"), "what is read without scripts");
}

#[test]
fn the_page_of_a_plan_is_at_op_level_as_the_answer_is() {
    let bench = Bench::new();
    let plan = r"plan gpt2 --gpu t4 --seq-len 64 --gradient-accumulation-steps 2";
    let run = |more: &[&str]| {
        let output = bench.command(plan).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let candidate = ["--candidate", "recompute: --recompute full"];
    let page = document(&run(&[&candidate[..], &["--format", "html"]].concat()));
    let answer: Value =
        serde_json::from_str(&run(&[&candidate[..], &["--format", "json"]].concat())).unwrap();
    assert_eq!(page["measure"], "op_level");
    assert_eq!(page["verdict"]["headroom"], answer["verdict"]["headroom_bytes"]);
    assert_eq!(page["device_peak"], answer["device_peak"]["bytes"]);
    assert_eq!(page["not_counted"], answer["not_counted"]);
    let [subject, other, recompute] = page["series"].as_array().unwrap().as_slice() else { panic!("three") };
    assert_eq!(subject["name"], answer["peak"]["step"]);
    for (series, step) in [(subject, "steady_step"), (other, "first_step")] {
        let (phases, planned) =
            (series["phases"].as_array().unwrap(), answer[step]["phases"].as_array().unwrap());
        assert_eq!(phases.len(), planned.len());
        for (phase, planned) in phases.iter().zip(planned) {
            assert_eq!(phase["total"], planned["peak_bytes"], "{step} {}", phase["id"]);
            assert_eq!(phase["end"], planned["end_bytes"]);
            assert_eq!(phase["device"], planned["device_peak_bytes"]);
            for (bytes, category) in phase["by_category"].as_array().unwrap().iter().zip(CATEGORIES) {
                assert_eq!(bytes.as_u64(), planned["by_category"][category].as_u64().or(Some(0)));
            }
        }
    }
    let largest = totals(&subject["levels"][0]).into_iter().max();
    assert_eq!(largest, answer["peak"]["bytes"].as_u64(), "the picture's top is the peak");
    let reserved = |series: &Value| {
        let changes = series["reserved"].as_array().unwrap();
        assert!(changes.windows(2).all(|pair| pair[0][0].as_u64() <= pair[1][0].as_u64()), "in order");
        changes.iter().map(|change| change[1].as_u64().unwrap()).max()
    };
    assert_eq!(reserved(subject).max(reserved(other)), answer["reserved_bytes"].as_u64());
    let who = |list: &Value| list.as_array().unwrap().iter().map(|c| c["name"].clone()).collect::<Vec<_>>();
    assert_eq!(who(&subject["contributors"]), who(&answer["peak"]["contributors"]));
    assert_eq!(recompute["saving"], answer["candidates"]["recompute"]["memory_saving_bytes"]);
}

#[test]
fn candidates_are_series_of_their_own() {
    let other = json!([{
        "name": "parameters", "category": "parameter", "size_mb": 100, "start_phase": "load",
        "end_phase": "zero_grad", "device": "gpu", "persistent": true,
    }]);
    let bench = Bench::with_sample().file("other.json", other.to_string());
    let page = document(&bench.answer("report ledger.json small=other.json"));
    let answer = json(&bench, "compare ledger.json small=other.json");
    let small = &page["series"][1];
    assert_eq!((&small["name"], &small["role"]), (&json!("small"), &json!("candidate")));
    assert_eq!(small["saving"], answer["candidates"]["small"]["memory_saving_bytes"]);
    let moved = answer["candidates"]["small"]["moved"].as_array().unwrap().len();
    assert_eq!(small["moved"].as_array().unwrap().len(), moved);
    assert_eq!(document(&bench.answer("compare ledger.json small=other.json --format html")), page);
}

#[test]
fn a_snapshot_is_drawn_as_its_ledger_is_and_beside_others() {
    let bench = Bench::with_sample().file("step.pickle", pickle(&step(), 4));
    let drawn = document(&bench.answer("report step.pickle"));
    bench.answer("read step.pickle --save saved.json --format json");
    let saved = document(&bench.answer("report saved.json"));
    assert_eq!(drawn["title"], "step.pickle");
    assert_eq!(
        (&drawn["series"][0]["levels"], &drawn["facts"]),
        (&saved["series"][0]["levels"], &saved["facts"])
    );
    let beside = document(&bench.answer("report ledger.json measured=step.pickle"));
    assert_eq!(beside["series"][1]["levels"], drawn["series"][0]["levels"]);
    assert_eq!(beside["series"][1]["name"], "measured");
}

#[test]
fn a_page_goes_where_it_is_asked_to() {
    let bench = Bench::with_sample();
    let page = bench.answer("report ledger.json");
    bench.answer("report ledger.json -o a.html");
    bench.answer("show ledger.json -o b.html");
    assert_eq!(
        (bench.read("a.html"), bench.read("b.html")),
        (page.clone(), page),
        "the same bytes each time"
    );
    assert!(bench.answer("report ledger.json --format json").starts_with('{'), "a format that is named wins");
    assert!(bench.refusal("report ledger.json -o a.html").contains("the file exists"));
    assert!(bench.refusal("report nothing.json").contains("no such file"));
    for verb in ["check ledger.json", "list gpus"] {
        let said = bench.refusal(&format!("{verb} -o c.html"));
        assert!(said.contains("`--output`: there is no `html` report") && said.contains("`.csv`"), "{said}");
    }
}

/// The worst of everything at once: names that grow sixfold, sizes of many digits, phases and candidates without number.
#[test]
fn a_page_is_small_whatever_the_ledger_holds() {
    let timeline: Vec<Value> =
        (0..1500).map(|i| json!({"phase": format!("{}{i}", "<".repeat(200)), "moments": 97})).collect();
    let states = |seed: u64, count: usize| -> Vec<Value> {
        let mut seed = seed;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let state = |i: usize| {
            let (phase, moment) = (random(1400), random(97));
            let id = |phase: u64| timeline[usize::try_from(phase).unwrap()]["phase"].clone();
            json!({
                "name": format!("{}{i}", "<&>\u{1}".repeat(100)),
                "category": CATEGORIES[i % 7],
                "size_bytes": (random(1 << 30) << 21) + random(1 << 21),
                "persistent": false,
                "residencies": [
                    {"device": "gpu", "start_phase": id(phase), "start_moment": moment, "end_phase": id(phase + random(100))},
                ],
            })
        };
        (0..count).map(state).collect()
    };
    let candidates: serde_json::Map<String, Value> =
        (1..80).map(|i| (format!("{}{i}", ">".repeat(400)), json!(states(i, 250)))).collect();
    let ledger = json!({"schema_version": 1, "timeline": timeline, "states": states(0, 3000), "candidates": candidates});
    let page = Bench::new().file("ledger.json", ledger.to_string()).answer("report ledger.json");
    assert!(page.len() <= 8 << 20, "{} bytes", page.len());
    let document = document(&page);
    assert_eq!(document["series_left_out"], 79 - (document["series"].as_array().unwrap().len() - 1));
    let subject = &document["series"][0];
    let (shown, left) = (subject["phases"].as_array().unwrap().len(), subject["phases_left_out"].as_u64());
    assert_eq!(left, Some(1500 - shown as u64), "what is left out is said");
    let shown = subject["states"]["names"].as_array().unwrap().len();
    assert_eq!(subject["states"]["left_out"], json!(3000 - shown));
    let peak =
        subject["phases"].as_array().unwrap().iter().find(|p| p["moment"] == subject["peak"]["moment"]);
    assert_eq!(peak.unwrap()["total"], subject["peak"]["bytes"], "the peak's phase is never left out");
    let largest = subject["levels"].as_array().unwrap().iter().map(|l| totals(l).into_iter().max().unwrap());
    assert!(largest.collect::<Vec<_>>().windows(2).all(|pair| pair[0] == pair[1]), "no level loses the peak");
}
