//! The table of published figures in `docs/accuracy.md`: each row is planned again.

use crate::support::Bench;
use serde_json::{Value, json};

const GIB: f64 = 1_073_741_824.0;

/// The shapes of the Qwen3 that transformers' offloaded checkpoints were measured with; of the rest nothing is in the
/// difference.
fn qwen3() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 40_960, "tie_word_embeddings": true
    })
}

#[test]
fn published_figures_are_planned_again() {
    let bench = Bench::new().file("qwen3-8-layers.json", qwen3().to_string());
    let plan = |options: &str| -> Value {
        serde_json::from_str(&bench.answer(&format!("plan {options} --format json"))).unwrap()
    };
    let docs = include_str!("../../../../docs/accuracy.md");
    let section = docs.split("## Device level: beside figures").nth(1).unwrap();
    let section = section.split("FSDP is FSDP1 there").next().unwrap();
    let mut compared = 0;
    for row in section.lines().skip_while(|line| !line.starts_with("| ---")).filter(|line| line.contains('`'))
    {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let options: Vec<&str> = cells[2].split('`').skip(1).step_by(2).collect();
        let number = |cell: &str| cell.parse::<f64>().unwrap();
        let planned = match options.as_slice() {
            [options] => plan(options)["device_peak"]["bytes"].as_f64().unwrap(),
            [options, offload] => {
                let after_forward = |options: &str| {
                    let plan = plan(options);
                    let phases = plan["first_step"]["phases"].as_array().unwrap().iter();
                    let mut forward = phases.filter(|phase| phase["phase"] == "forward");
                    forward.next().unwrap()["end_bytes"].as_f64().unwrap()
                };
                after_forward(options) - after_forward(&format!("{options} {offload}"))
            }
            other => panic!("{other:?}"),
        };
        let (planned, measured) = (planned / GIB, number(cells[4]));
        assert_eq!(format!("{planned:.3}"), cells[3], "{row}");
        assert_eq!(format!("{:+.2} %", (planned / measured - 1.0) * 100.0), cells[5], "{row}");
        assert!((planned / measured - 1.0).abs() < 0.05, "explain it: {row}");
        compared += 1;
    }
    assert_eq!(compared, 7);
}

/// Llama 3 with fewer layers, as SimuMax's release measured it.
fn llama3([hidden, heads, groups, inner, layers]: [u64; 5]) -> String {
    let config = json!({
        "model_type": "llama", "vocab_size": 128_257, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups,
        "max_position_embeddings": 131_072, "tie_word_embeddings": false
    });
    config.to_string()
}

/// What every run of that release has.
const MEGATRON: &str = "--stack megatron --zero 1 --gpus 8 --gradient-accumulation-steps 4 --fused-loss --clip-grad-norm --gpu b200";

#[test]
fn steps_of_megatron_on_eight_cards_are_planned_again() {
    let bench = Bench::new()
        .file("llama-3-70b-12.json", llama3([8192, 64, 8, 28_672, 12]))
        .file("llama-3-405b-4.json", llama3([16_384, 128, 16, 53_248, 4]));
    let docs = include_str!("../../../../docs/accuracy.md");
    let section = docs.split("### Megatron on eight B200").nth(1).unwrap();
    let section = section.split("Nothing is fitted").next().unwrap();
    assert!(section.replace('\n', " ").contains(MEGATRON), "the docs say with which options");
    let mut compared = 0;
    let mut wrong = Vec::new();
    for row in section.lines().filter(|line| line.contains(".json") && line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let options = cells[2].trim_matches('`');
        let plan = bench.answer(&format!("plan {options} {MEGATRON} --format json"));
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let (bytes, bound) = match cells[1].split(',').next().unwrap() {
            "allocated" => (&plan["allocator"]["max_allocated_bytes"], 0.001),
            "reserved" => (&plan["reserved_bytes"], 0.06),
            other => panic!("{other}"),
        };
        let (planned, measured) = (bytes.as_f64().unwrap() / GIB, cells[4].parse::<f64>().unwrap());
        let off = planned / measured - 1.0;
        let line =
            format!("| {} | {} | {planned:.3} | {} | {:+.2} % |", cells[1], cells[2], cells[4], off * 100.0);
        if line != row || off.abs() > bound {
            wrong.push(line);
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "as planned:\n{}", wrong.join("\n"));
    assert_eq!(compared, 22);
}
