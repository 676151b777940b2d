//! On a real card: device peaks of forward, backward and update beside `torch.cuda.max_memory_allocated` of the same step.

use crate::shared;
use peakledger_core::Phase;
use peakledger_input::Source;
use peakledger_plan::catalogue::models;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::*;
use peakledger_plan::{Dtype, Plan, StepPlan, plan};
use serde_json::Value;

const MIB: f64 = 1_048_576.0;

/// Fine-tuning steps on a Tesla T4. What is left looks like blocks that the caching allocator does not split, which nothing
/// plans yet: much of it is there when the model is loaded. Where that alone passes the limit, the test says so and holds
/// the step without it; the load itself must keep the limit, and no more figures than those known may need this.
#[test]
#[allow(clippy::cast_precision_loss)] // bytes in MiB, to compare with figures in MiB
fn every_measured_step_within_a_hundredth_or_24_mib() {
    let Some(folder) = shared::folder() else { return };
    let text = std::fs::read_to_string(folder.join("measured.jsonl")).unwrap();
    let (mut compared, mut beyond, mut wrong) = (0, Vec::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        let row: Value = serde_json::from_str(line).unwrap();
        compared += 1;
        let config = Source::from_text("config.json", row["model_config"].to_string());
        let plan = planned(config, &row["run"]);
        let peak = |step: &StepPlan, phases: &[Phase]| {
            let of = step.phases.iter().filter(|phase| phases.contains(&phase.phase));
            of.map(|phase| phase.device_peak.get()).max().unwrap() as f64 / MIB
        };
        let measured = |key: &str| row["measured"][key].as_f64().unwrap();
        let loaded = plan.first.phases.iter().find(|phase| phase.phase == Phase::Load).unwrap().end;
        let at_load = measured("resident_before_step_mib") - loaded.get() as f64 / MIB;
        if at_load.abs() > 24.0 {
            wrong.push(format!("{}: {at_load:.1} MiB are there at load and not planned", row["id"]));
        }
        let mut line = label(&row);
        for (key, phases) in PHASES {
            let (planned, measured) = (peak(&plan.steady, phases), measured(key));
            let off = planned - measured;
            line += &format!(" {planned:.1} | {measured:.1} | {off:+.1} |");
            let is_near = |off: f64| off.abs() <= 24.0 || off.abs() <= measured / 100.0;
            let told = format!("{} {key}: planned {planned:.1}, measured {measured:.1}", row["id"]);
            match (is_near(off), is_near(off + at_load)) {
                (true, _) => {}
                (false, true) => {
                    beyond.push(format!("{told}: {at_load:.1} MiB of it are there when the model is loaded"));
                }
                (false, false) => wrong.push(told),
            }
        }
        if std::env::var_os("PEAKLEDGER_TABLE").is_some() {
            shared::say(&line);
        }
    }
    beyond.iter().for_each(|line| shared::say(line));
    assert!(compared >= 40, "only {compared} rows");
    assert!(beyond.len() <= 3, "{} figures are beyond 1 % and 24 MiB", beyond.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is measured, and the planned phases that it covers: the model computes the loss in its forward.
const PHASES: [(&str, &[Phase]); 3] = [
    ("peak_forward_mib", &[Phase::Forward, Phase::Loss]),
    ("peak_backward_mib", &[Phase::Backward]),
    ("peak_optimizer_mib", &[Phase::Update]),
];

/// The first columns of the table in `docs/accuracy.md`.
fn label(row: &Value) -> String {
    let (id, run) = (row["id"].as_str().unwrap(), &row["run"]);
    let model = models().iter().rev().find(|model| {
        let name = model.id.rsplit('/').next().unwrap();
        id.trim_start_matches("t4-").starts_with(name)
    });
    let attention = if run["attention"] == "eager" { "eager" } else { "sdpa" };
    let weights = if run["quantization"] == "none" { "fp16" } else { "nf4" };
    let (batch, length) = (&run["micro_batch"], &run["seq"]);
    format!("| {} | {attention} | {weights} | {batch} × {length} |", model.unwrap().name)
}

/// The same steps from the catalogue: the docs show what is planned.
#[test]
#[allow(clippy::cast_precision_loss)] // bytes in MiB, to compare with figures in MiB
fn the_table_of_the_docs_is_what_is_planned() {
    let docs = include_str!("../../../../docs/accuracy.md");
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = docs.lines().map(cells).filter(|cells| cells.len() == 15 && cells[2] != "attention");
    let mut compared = 0;
    for row in rows.filter(|cells| !cells[1].starts_with('-')) {
        let model = models().iter().find(|model| model.name == row[1]).unwrap();
        let (batch, length) = row[4].split_once(" × ").unwrap();
        let run = serde_json::json!({
            "micro_batch": batch.parse::<u64>().unwrap(),
            "seq": length.parse::<u64>().unwrap(),
            "attention": row[2],
            "quantization": row[3].replace("fp16", "none"),
            "prepare_for_kbit": row[3] == "nf4",
            "lora": {"r": 32, "dropout": 0.0, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]},
        });
        let plan = planned(model.config(), &run);
        for ((_, phases), shown) in PHASES.iter().zip([&row[5], &row[8], &row[11]]) {
            let of = plan.steady.phases.iter().filter(|phase| phases.contains(&phase.phase));
            let peak = of.map(|phase| phase.device_peak.get()).max().unwrap() as f64 / MIB;
            assert_eq!(format!("{peak:.1}"), **shown, "{row:?} {phases:?}");
        }
        compared += 1;
    }
    assert_eq!(compared, 40);
}

fn planned(config: Source, run: &Value) -> Plan {
    let number = |value: &Value| value.as_u64().unwrap();
    let lora = &run["lora"];
    let targets = lora["targets"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    let eager = run["attention"] == "eager";
    let options = Options {
        micro_batch_size: number(&run["micro_batch"]),
        seq_len: Some(number(&run["seq"])),
        precision: Precision::Fp16,
        attention: if eager { Attention::Eager } else { Attention::Sdpa },
        expand_kv: !eager,
        recompute: Recompute::Full,
        loss_in_model: true,
        hold_outputs: HoldOutputs::Step,
        lora: Some(Lora {
            rank: number(&lora["r"]),
            dropout: lora["dropout"].as_f64().unwrap(),
            dtype: Dtype::F32,
            targets: LoraTargets::Named(targets.collect()),
            ..Lora::default()
        }),
        quantize: match run["quantization"].as_str().unwrap() {
            "none" => None,
            "nf4" => Some(Quantize::Nf4),
            other => panic!("{other}"),
        },
        prepare_for_kbit: run["prepare_for_kbit"] == true,
        capability: Some((7, 5)),
        ..Options::default()
    };
    plan(Architecture::read(&config).unwrap(), options).unwrap()
}
