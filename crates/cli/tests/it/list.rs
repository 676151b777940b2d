//! `list`: what is known by name, and that each name can be used.

use crate::support::Bench;
use insta::assert_snapshot;
use serde_json::Value;

fn rows(what: &str) -> Vec<Value> {
    serde_json::from_str(&Bench::new().answer(&format!("list {what} --format json"))).unwrap()
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

#[test]
fn families_in_every_format() {
    let bench = Bench::new();
    let table = bench.answer("list families");
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let lines: Vec<Vec<String>> = table.lines().map(words).collect();
    assert_eq!(lines[..2], [["model_type", "transformers_modules"], ["llama", "modeling_llama.py"]]);
    let csv = bench.answer("list families --format csv");
    assert!(csv.starts_with("model_type,transformers_modules\nllama,modeling_llama.py\n"), "{csv}");
    let markdown = bench.answer("list families --format markdown");
    assert!(markdown.starts_with("| model_type | transformers_modules |\n| --- | "), "{markdown}");
    let names = rows("families");
    assert!(
        ["llama", "mistral", "qwen2"].iter().all(|name| names.iter().any(|row| row["model_type"] == *name))
    );
}

#[test]
fn models_as_a_table() {
    let first = |out: &str| out.lines().take(3).map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_snapshot!(first(&Bench::new().answer("list models")), @"
    name                           parameters  family       max_tokens
    llama-2-7b                         6.73 B  llama              4096
    llama-2-13b                       13.01 B  llama              4096
    ");
    let narrow = Bench::new().env("COLUMNS", "20").answer("list models");
    assert!(narrow.lines().all(|line| line.chars().count() <= 20), "{narrow}");
    assert!(narrow.contains("llama-3.1-8b"), "the names stay");
}

#[test]
fn every_model_can_be_planned() {
    let bench = Bench::new();
    let families: Vec<String> =
        rows("families").iter().map(|row| text(row, "model_type").to_owned()).collect();
    let models = rows("models");
    assert!(models.len() >= 80);
    for model in models {
        let (name, id) = (text(&model, "name"), text(&model, "hugging_face_id"));
        assert!(families.iter().any(|family| family == text(&model, "family")), "{name}");
        assert!(id.contains('/') && model["max_tokens"].as_u64().unwrap() >= 1024, "{name}");
        for word in [name, id] {
            let out = bench.answer(&format!("plan {word} --seq-len 16 --format json"));
            let plan: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(plan["model"]["parameters"], model["parameters"], "{word}");
        }
    }
}

#[test]
fn every_card_can_be_fitted_on() {
    let bench = Bench::new();
    let cards = rows("gpus");
    assert!(cards.len() >= 30);
    for card in cards {
        let name = text(&card, "name");
        let out = bench.answer(&format!("plan smollm-135m --seq-len 16 --format json --gpu {name}"));
        let verdict = &serde_json::from_str::<Value>(&out).unwrap()["verdict"];
        assert_eq!(verdict["capacity_bytes"], card["total_bytes"], "{name}");
        assert!(
            !text(&card, "seen_in").is_empty() && text(&card, "architecture").starts_with("sm"),
            "{name}"
        );
    }
}

#[test]
fn machine_formats_carry_exact_numbers() {
    let csv = Bench::new().answer("list gpus --format csv");
    let h100 = csv.lines().find(|line| line.starts_with("h100-80gb,")).unwrap();
    let bytes = &rows("gpus").into_iter().find(|row| row["name"] == "h100-80gb").unwrap()["total_bytes"];
    assert_eq!(h100.split(',').nth(1).unwrap(), bytes.to_string());
}

#[test]
fn what_is_not_listed() {
    let said = Bench::new().refusal("list model");
    assert!(
        said.starts_with("error: `WHAT`: `model` is none") && said.contains("did you mean `models`?"),
        "{said}"
    );
    let said = Bench::new().refusal("list");
    assert!(said.contains("needs `WHAT`\n  help: choose one of `models`, "), "{said}");
}
