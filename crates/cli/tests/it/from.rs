//! `plan --from` and `fit --from`: what the answer says of where its options came from, and what is refused.

use crate::support::Bench;

const ARGS: &str = r#"{
  "model_name_or_path": "gpt2",
  "output_dir": "out",
  "per_device_train_batch_size": 2,
  "max_length": 512,
  "bf16": true,
  "gradient_checkpointing": true,
  "my_key": 3,
  "torch_compile": true
}"#;

fn bench() -> Bench {
    Bench::new().file("args.json", ARGS)
}

#[test]
fn the_answer_says_where_its_options_came_from() {
    let ran = bench().run("plan --from args.json --seq 256 --step steady");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let said: Vec<&str> = ran
        .out
        .lines()
        .skip_while(|line| !line.starts_with("from "))
        .take_while(|line| !line.is_empty())
        .collect();
    insta::assert_snapshot!(said.join("\n"), @"");
}

#[test]
fn programs_get_the_same() {
    let ran = bench().run("plan --from args.json --seq 256 --format json");
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let from = &answer["from"];
    assert_eq!(from["files"], serde_json::json!([{"file": "args.json", "kind": "TrainingArguments"}]));
    assert_eq!(from["not_read"], serde_json::json!([{"file": "args.json", "line": 8, "key": "my_key"}]));
    let batch = serde_json::json!({
        "option": "--micro-batch-size", "value": "2", "file": "args.json", "line": 4, "key": "per_device_train_batch_size"
    });
    assert!(from["options"].as_array().unwrap().contains(&batch), "{from}");
    // the command line that it gives says the same
    let command = from["command"].as_str().unwrap().strip_prefix("peakledger ").unwrap().to_owned();
    assert!(command.ends_with(" --seq-len 256 --format json"), "{command}");
    let again = bench().run(&command);
    let mut said: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    let mut answer = answer.clone();
    answer.as_object_mut().unwrap().remove("from");
    assert!(said.as_object_mut().unwrap().remove("from").is_none());
    assert_eq!(said, answer);
}

#[test]
fn print_options_is_that_command_line_alone() {
    let ran = bench().run("plan --from args.json --print-options --gpu a100-80gb --exit-code");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.out, @"");
    let piped = bench().pipe("fit --from - --print-options", ARGS);
    assert!(piped.out.starts_with("peakledger fit gpt2 --seq-len 512"), "{}", piped.out);
}

#[test]
fn fit_begins_with_it_too() {
    let ran = bench().run("fit --from args.json --gpu 8GiB --format markdown");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert!(ran.out.contains("| from | args.json (TrainingArguments): --seq-len 512 "), "{}", ran.out);
}

#[test]
fn a_config_that_is_named_by_its_path_is_read() {
    let accelerate = "distributed_type: DEEPSPEED\nnum_processes: 1\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n";
    let ds = r#"{"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 0}}"#;
    let bench = Bench::new().file("acc.yaml", accelerate).file("ds.json", ds);
    let ran = bench.run("plan gpt2 --from acc.yaml --print-options");
    insta::assert_snapshot!(ran.out + &ran.err, @"");
    let missing = Bench::new().file("acc.yaml", accelerate).run("plan gpt2 --from acc.yaml");
    insta::assert_snapshot!(missing.out + &missing.err, @"");
}

#[test]
fn what_cannot_be_is_said_of_the_file() {
    let say = |name: &str, text: &str, words: &str| {
        let ran = Bench::new().file(name, text).run(&format!("plan --from {name} {words}"));
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{}", ran.err);
        ran.err
    };
    insta::assert_snapshot!(say("a.yaml", "base_model: gpt2\nmicro_batch_size: 0\n", ""), @"");
    insta::assert_snapshot!(say("a.yaml", "base_model: gpt2\nload_in_4bit: true\nadapter:\nmicro_batch_size: 1\n", "--quantize nf4"), @"");
    insta::assert_snapshot!(say("a.yaml", "a: &a [1]\nb: *a\n", ""), @"");
    insta::assert_snapshot!(say("a.json", "{\"optim\": \"sgd\", \"optim\": \"sgd\"}", "gpt2"), @"");
    insta::assert_snapshot!(say("none.json", "{\"optim\": \"sgd\"}", ""), @"");
    insta::assert_snapshot!(say("x.json", "{\"optim\": \"sgd\"}", "gpt2 --from-kind yaml"), @"");
    insta::assert_snapshot!(say("x.json", "{\"optim\": \"sgd\"}", "gpt2 --from nowhere.yaml"), @"");
    let large = format!("a: {}\n", "x".repeat(1 << 20));
    insta::assert_snapshot!(say("large.yaml", &large, "gpt2"), @"");
    let ran = Bench::new().run("plan --print-options gpt2");
    insta::assert_snapshot!(ran.err, @"");
    let ran = bench().pipe("plan - --from -", ARGS);
    insta::assert_snapshot!(ran.err, @"");
    let bench = bench();
    let ran = bench.run("plan --from args.json -o args.json --force");
    insta::assert_snapshot!(ran.err, @"");
    assert_eq!(bench.read("args.json"), ARGS);
}
