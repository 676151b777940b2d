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
    insta::assert_snapshot!(said.join("\n"), @"
    from       args.json (TrainingArguments): --micro-batch-size 2
               (per_device_train_batch_size, line 4), --gradient-accumulation-steps
               1 (gradient_accumulation_steps left out), --optimizer adamw (optim
               left out), --optimizer-impl fused (optim left out), --clip-grad-norm
               (max_grad_norm left out), --recompute full (gradient_checkpointing,
               line 7), --loss-in-model (Trainer passes the labels to the model),
               --precision bf16-mixed (bf16, line 6), --weights-dtype fp32 (dtype
               left out: TRL then loads the model in float32), --fused-loss (TRL's
               loss makes no whole logits since 1.7)
    not read   args.json: my_key, line 8
    unplanned  args.json (torch_compile, line 9): torch.compile
    unplanned  args.json (loss_type): TRL's head and loss in tiles of 4096 tokens by
               32768 words: Liger's fused loss, which comes nearest, is planned; TRL
               before 1.7 has whole logits (`--fused-loss=off`)
    ");
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
    // what the file asks for and is not planned, or not understood, is said beside the verdict
    let left_out =
        "`torch_compile`, `loss_type` are not planned, or otherwise than asked for: see `unplanned`";
    let not_read = "`my_key` is not understood, and may change memory: see `not read`";
    let caveats = answer.as_object_mut().unwrap().remove("caveats");
    assert_eq!(caveats, Some(serde_json::json!([left_out, not_read])));
    assert_eq!(said.as_object_mut().unwrap().remove("caveats"), Some(serde_json::json!([])));
    assert!(said.as_object_mut().unwrap().remove("from").is_none());
    assert_eq!(said, answer);
}

#[test]
fn print_options_is_that_command_line_alone() {
    let ran = bench().run("plan --from args.json --print-options --gpu a100-80gb --exit-code");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.out, @"peakledger plan gpt2 --seq-len 512 --micro-batch-size 2 --gradient-accumulation-steps 1 --optimizer adamw --optimizer-impl fused --clip-grad-norm --recompute full --loss-in-model --precision bf16-mixed --weights-dtype fp32 --fused-loss --gpu a100-80gb --exit-code");
    let piped = bench().pipe("fit --from - --print-options", ARGS);
    assert!(piped.out.starts_with("peakledger fit gpt2 --seq-len 512"), "{}", piped.out);
}

/// What Megatron's arguments become is a step that its modules take.
#[test]
fn megatrons_arguments_are_planned_on_its_modules() {
    let text = "--num-layers 4 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 4 --seq-length 128 \
        --max-position-embeddings 128 --vocab-size 1000 --swiglu --normalization RMSNorm --disable-bias-linear \
        --position-embedding-type rope --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
        --micro-batch-size 1 --bf16 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer \
        --cross-entropy-loss-fusion --cross-entropy-fusion-impl te";
    let bench = Bench::new().file("args.txt", text);
    let json = bench.answer("plan --from args.txt --gpus 2 --format json");
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(answer["world"]["tp"], 2);
    let command = answer["from"]["command"].as_str().unwrap();
    assert!(command.contains(" --stack megatron ") && command.contains(" --fused-loss "), "{command}");
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
    insta::assert_snapshot!(ran.out + &ran.err, @"peakledger plan gpt2 --micro-batch-size 3 --precision fp32 --clip-grad-norm --zero 0 --gpus 1");
    let missing = Bench::new().file("acc.yaml", accelerate).run("plan gpt2 --from acc.yaml");
    insta::assert_snapshot!(missing.out + &missing.err, @r"
    error: acc.yaml:4:26 (/deepspeed_config/deepspeed_config_file): there is no file `ds.json`
      help: give that file with `--from FILE` too, or only its stage; say it: add `--zero STAGE` to the command line
    ");
}

/// The stage alone would be planned on one GPU.
#[test]
fn a_config_that_is_not_there_leaves_the_number_of_gpus_open_too() {
    let axolotl = "base_model: gpt2\nmicro_batch_size: 1\ndeepspeed: configs/zero3.json\n";
    let bench = Bench::new().file("a.yaml", axolotl);
    insta::assert_snapshot!(bench.refusal("plan --from a.yaml"), @"
    error: a.yaml:3:12 (/deepspeed): there is no file `configs/zero3.json`; `--zero`, over how many GPUs is not said
      help: give that file with `--from FILE` too, or only its stage; say them: add `--zero STAGE` and `--gpus N` to the command line
    ");
    insta::assert_snapshot!(bench.refusal("plan --from a.yaml --zero 3"), @"
    error: a.yaml:3:12 (/deepspeed): `--zero`, over how many GPUs is not said
      help: say it: add `--gpus N` to the command line
    ");
    for answer in ["--zero 3 --gpus 8", "--zero 3 --dp 8", "--zero 0"] {
        bench.answer(&format!("plan --from a.yaml {answer} --print-options"));
    }
}

#[test]
fn what_cannot_be_is_said_of_the_file() {
    let say = |name: &str, text: &str, words: &str| {
        let ran = Bench::new().file(name, text).run(&format!("plan --from {name} {words}"));
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{}", ran.err);
        ran.err
    };
    insta::assert_snapshot!(say("a.yaml", "base_model: gpt2\nmicro_batch_size: 0\n", ""), @r"
    error: a.yaml:2:19 (/micro_batch_size): as `--micro-batch-size 0`: a micro-batch of 0 sequences
      help: use 1 or more; an option on the command line wins over the file
    ");
    insta::assert_snapshot!(say("a.yaml", "base_model: gpt2\nload_in_4bit: true\nadapter:\nmicro_batch_size: 1\n", "--quantize nf4"), @r"
    error: a.yaml:2:15 (/load_in_4bit): quantized weights are frozen, and no adapter is asked for
      help: say it: add `--lora` to the command line
    ");
    insta::assert_snapshot!(say("a.yaml", "a: &a [1]\nb: *a\n", ""), @r"
    error: a.yaml:2:4 (/b): an alias of another value
      help: write the value out: aliases are not followed
    ");
    insta::assert_snapshot!(say("a.json", "{\"optim\": \"sgd\", \"optim\": \"sgd\"}", "gpt2"), @r"
    error: a.json:1:18 (/optim): the key `optim` appears twice (first in line 1, column 2)
      help: keep one of the two
    ");
    insta::assert_snapshot!(say("none.json", "{\"optim\": \"sgd\"}", ""), @r"
    error: none.json: no model is named
      help: name one: `peakledger plan MODEL --from FILE`
    ");
    insta::assert_snapshot!(say("x.json", "{\"optim\": \"sgd\"}", "gpt2 --from-kind yaml"), @r"
    error: `--from-kind`: `yaml` is none of its values
      help: choose one of `deepspeed`, `training-arguments`, `accelerate`, `axolotl`, `llama-factory`, `torchtitan`, `megatron`, `peft`
    ");
    insta::assert_snapshot!(say("x.json", "{\"optim\": \"sgd\"}", "gpt2 --from nowhere.yaml"), @r"
    error: nowhere.yaml: no such file
      help: check the path; it is relative to the current folder
    ");
    let large = format!("a: {}\n", "x".repeat(1 << 20));
    insta::assert_snapshot!(say("large.yaml", &large, "gpt2"), @r"
    error: large.yaml: larger than a training config may be (1 MiB)
      help: check that this is the right file
    ");
    let ran = Bench::new().run("plan --print-options gpt2");
    insta::assert_snapshot!(ran.err, @r"
    error: `peakledger plan` needs `--from FILE`
      help: it is written `peakledger plan --from FILE --print-options MODEL`
    ");
    let ran = bench().pipe("plan - --from -", ARGS);
    insta::assert_snapshot!(ran.err, @r"
    error: `-`: standard input can only be read once
      help: name a file for all but one of the inputs
    ");
    let bench = bench();
    let ran = bench.run("plan --from args.json -o args.json --force");
    insta::assert_snapshot!(ran.err, @r"
    error: args.json: the output is one of the inputs
      help: write to another file; inputs are never changed
    ");
    assert_eq!(bench.read("args.json"), ARGS);
}

/// A file that another one names is read once, wherever it is given.
#[test]
fn a_file_that_is_named_and_given_is_read_once() {
    let args =
        r#"{"output_dir": "out", "per_device_train_batch_size": 1, "bf16": true, "deepspeed": "ds.json"}"#;
    let ds = r#"{"bf16": {"enabled": true}, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}, "mine": 1}"#;
    let bench = Bench::new().file("args.json", args).file("ds.json", ds);
    for files in ["--from args.json --from ds.json", "--from ds.json --from ./args.json", "--from args.json"]
    {
        let out = bench.answer(&format!("plan gpt2 --seq 64 --gpus 2 {files}"));
        assert_eq!(out.matches("mine, line 1").count(), 1, "{files}: {out}");
    }
}

/// What is not planned stands beside the verdict too.
#[test]
fn what_is_left_out_is_said_beside_the_verdict() {
    let out = bench().answer("plan --from args.json --seq 256 --step steady --gpu rtx-4090");
    let head: Vec<&str> = out.lines().take_while(|line| !line.is_empty()).collect();
    insta::assert_snapshot!(head.join("\n"), @"
    peak 2.14 GiB in backward of the steady step
    at transformer.wte: add.Tensor
    fits: 20.74 GiB to spare on NVIDIA GeForce RTX 4090 (2.49 GiB reserved and
    286.10 MiB of CUDA context, of 23.51 GiB)
    note: `torch_compile`, `loss_type` are not planned, or otherwise than asked for:
          see `unplanned`
    note: `my_key` is not understood, and may change memory: see `not read`
    gpt2: 124,439,808 parameters
    ");
}

/// What Megatron's options are called in YAML is no file of Axolotl, though some keys are its own.
#[test]
fn options_of_megatron_in_yaml_are_told_how_to_be_written() {
    let keys = "tensor_model_parallel_size: 4\nmicro_batch_size: 1\nsequence_parallel: true\nbf16: true\n";
    let bench = Bench::new().file("mg.yaml", keys);
    let said = bench.refusal("plan llama-3.2-1b --from mg.yaml --gpus 8");
    assert!(said.starts_with("error: mg.yaml:1:"), "{said}");
    assert!(said.contains("help: write them as arguments: `--tensor-model-parallel-size 4"), "{said}");
}

/// Who wrote a file reads by which of its keys the options came that an error names.
#[test]
fn an_error_names_the_keys_of_the_file() {
    let text = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 0,
 "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"},
 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}"#;
    let ran = Bench::new().file("ds.json", text).run("plan gpt2 --gpus 2 --from ds.json");
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("leave out --master-weights and --grad-dtype, or the offload"), "{}", ran.err);
    let key = "`--grad-dtype fp32` is `data_types.grad_accum_dtype` in ds.json:2";
    assert!(ran.err.contains(key), "{}", ran.err);
}
