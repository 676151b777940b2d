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
    let section = section.split("The lengths of the first two").next().unwrap();
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
