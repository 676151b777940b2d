//! What holds whatever the kind: how it is told, what is wrong or not known, and that what is printed can be typed.

use super::*;

#[test]
fn a_kind_is_said_or_told_by_the_keys() {
    let source = || Source::from_text("x.yaml", "mixed_precision: bf16\nnum_processes: 2\n");
    assert!(read(source(), None, true).is_err());
    let (kind, found) = read(source(), Some(Kind::Accelerate), true).unwrap();
    assert_eq!((kind, found.settings.len()), (Kind::Accelerate, 2));
    let named = Source::from_text(AXOLOTL.0, AXOLOTL.1);
    assert_eq!(read(named.clone(), Some(Kind::Accelerate), false).unwrap().0, Kind::Axolotl);
    assert_eq!(read(named, Some(Kind::Accelerate), true).unwrap().0, Kind::Accelerate);
}

#[test]
fn what_is_none_of_them() {
    insta::assert_snapshot!(becomes(&[("x.yaml", "a: 1\n")], "gpt2"), @r"
    x.yaml: its keys are of no training config that is known
      help: known are peft, Megatron, torchtitan, LLaMA-Factory, Axolotl, accelerate, DeepSpeed, TrainingArguments; `--from-kind` says which it is: `deepspeed`, `training-arguments`, `accelerate`, `axolotl`, `llama-factory`, `torchtitan`, `megatron`, `peft`
    ");
    insta::assert_snapshot!(becomes(&[("config.json", r#"{"model_type": "llama", "hidden_size": 1}"#)], "gpt2"), @r"
    config.json: a model's config, not that of a training run
      help: name it as the MODEL, without --from
    ");
}

#[test]
fn a_run_is_sharded_in_one_way() {
    insta::assert_snapshot!(becomes(&[ACCELERATE, DEEPSPEED], "gpt2"), @r"
    deepspeed-zero2.json:8:14 (/zero_optimization/stage): it asks for `--zero 2`, and accelerate-fsdp2.yaml for `--fsdp full_shard`
      help: a run is sharded by one of the two: leave one file out
    ");
    // the command line decides
    insta::assert_snapshot!(becomes(&[ACCELERATE], "gpt2 --zero 1 --dp 4"), @"
    peakledger plan gpt2
      --gpus-per-node 8
      --precision bf16-mixed
      --recompute full
      --dp 4
      --zero 1
    ");
}

#[test]
fn modules_that_are_saved_are_trained() {
    let lora = |text: &str| {
        let said = becomes(&[("run.yaml", text)], "gpt2");
        let lines = said.lines().filter(|line| line.contains("--lora") || line.contains("unplanned"));
        lines.map(str::trim).collect::<Vec<_>>().join("\n")
    };
    let axolotl = "base_model: gpt2\nmicro_batch_size: 1\nadapter: lora\nlora_r: 4\nlora_target_linear: true\n\
                   lora_modules_to_save: [embed_tokens, lm_head]\n";
    insta::assert_snapshot!(lora(axolotl), @"
    --lora r=4,targets=all-linear,save=embed_tokens+lm_head
    unplanned: run.yaml:3 adapter: Axolotl's kernels of LoRA, which it runs unless lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel are false: peft's modules are planned
    ");
    let factory =
        "finetuning_type: lora\nlora_rank: 4\nbf16: true\nadditional_target: embed_tokens,lm_head\n";
    insta::assert_snapshot!(lora(factory), @"--lora r=4,targets=all-linear,save=embed_tokens+lm_head,save_dtype=fp32");
    insta::assert_snapshot!(lora(&format!("{factory}pure_bf16: true\n")), @"--lora r=4,targets=all-linear,save=embed_tokens+lm_head");
}

/// Whatever is printed of a file can be typed: each option by itself, and all of them as one line.
#[test]
fn what_is_printed_of_files_can_be_typed() {
    let deepspeed = r#"{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "gradient_clipping": 0,
        "zero_optimization": {"stage": 3, "overlap_comm": false}}"#;
    let files: [(&[(&str, &str)], &str); 8] = [
        (&[DEEPSPEED, TRAINING_ARGUMENTS], "--gpus 8"),
        (&[("ds.json", deepspeed)], "gpt2 --gpus 8 --hold-outputs=step --sp=off --offload=off"),
        (&[ACCELERATE, TRAINING_ARGUMENTS], "--gpus 8"),
        (&[AXOLOTL], "--clip-grad-norm=on"),
        (&[LLAMA_FACTORY], ""),
        (&[TORCHTITAN], "--gpus 64"),
        (&[MEGATRON], "--gpus 64"),
        (&[DEEPSEEK], "--gpus 2048"),
    ];
    let parsed = |words: Vec<&str>| <Line as clap::Parser>::try_parse_from(words);
    let mut flags = 0;
    for (files, words) in files {
        let line = parsed(words.split_whitespace().collect()).unwrap();
        let resolved = resolved(files, &line).unwrap_or_else(|problem| panic!("{files:?}: {problem}"));
        let wanted = resolved.step.options(None).unwrap();
        let origins = resolved.origins.unwrap();
        for option in &origins.options {
            let (name, value) = (option.option, &option.value);
            let typed = parsed(option.written.split(' ').collect());
            let typed = typed.unwrap_or_else(|error| panic!("{}: {error}", option.written)).given.step;
            let mut meant = StepArgs::default();
            meant.change([format!("{name}={value}")]).unwrap();
            let options =
                |step: StepArgs| format!("{:?}", step.options(None).map_err(|problem| problem.cause));
            assert_eq!(options(typed), options(meant), "{}", option.written);
            flags += usize::from(value == "true" || value == "false");
        }
        // what a file spells out as the model is written before the line
        let command = origins.command.lines().last().unwrap_or_default();
        let words: Vec<&str> = command.split(' ').skip(2).collect();
        let again = parsed(words).unwrap_or_else(|error| panic!("{command}: {error}"));
        assert_eq!(again.given.step.options(None).unwrap(), wanted, "{command}");
    }
    assert!(flags > 5, "{flags}");
}

/// What is wrong with a file is said at once, from above, what is asked beside it among it.
#[test]
fn all_that_is_wrong_is_said_at_once() {
    let text =
        "base_model: gpt2\nrl: kto\nadapter: ia3\nmicro_batch_size: x\nbf16: maybe\nflash_attention: 3\n";
    insta::assert_snapshot!(becomes(&[("many.yaml", text)], ""), @"
    many.yaml:2:5 (/rl): `kto` trains on more than one model or on what is generated, and configs are planned for supervised training alone; 3:10 (/adapter): the adapter `ia3` is not planned; 4:19 (/micro_batch_size): `x` is not a whole number; 5:7 (/bf16): `maybe` is not true or false; 6:18 (/flash_attention): `3` is not true or false
      help: `rl`: the nearest is `peakledger plan MODEL --post-training dpo`, which trains on pairs, without the file; or remove it to plan a step of supervised training; `adapter`: say it: add `--lora` to the command line; `micro_batch_size`: write a whole number; `bf16`: write true or false; `flash_attention`: write true or false
    ");
    let of_two = [
        ("ds.json", r#"{"zero_optimization": {"stage": "three"}}"#),
        ("more.json", r#"{"max_grad_norm": "x", "optim": "rmsprop"}"#),
    ];
    insta::assert_snapshot!(becomes(&of_two, "gpt2 --gpus 2"), @"
    ds.json:1:33 (/zero_optimization/stage): `three` is not a whole number; more.json:1:19 (/max_grad_norm): not a number; more.json:1:33 (/optim): the optimizer `rmsprop` is not planned
      help: `zero_optimization.stage`: write a whole number; `max_grad_norm`: write a number; `optim`: say it: add `--optimizer` to the command line
    ");
}

#[test]
fn a_value_that_is_none_is_named_by_its_place() {
    let text = "base_model: gpt2\nmicro_batch_size: -1\n";
    insta::assert_snapshot!(becomes(&[("a.yaml", text)], ""), @r"
    a.yaml:2:19 (/micro_batch_size): `-1` is not a whole number
      help: write a whole number
    ");
    let text = "base_model: gpt2\nmicro_batch_size: 1\nadapter: lora\nlora_r: 0\nlora_target_linear: true\n";
    insta::assert_snapshot!(becomes(&[("a.yaml", text)], ""), @"
    a.yaml:3:10 (/adapter): as `--lora r=0,targets=all-linear`: `r` is a whole number from 1 to 65536, not `0`
      help: write it as `r=16`; left out are `dropout=0`, `dtype=fp32` and `targets=all-linear`, as in `r=16,dropout=0.05,dtype=bf16,targets=q_proj+v_proj`; `save=embed_tokens+lm_head` trains these too (`alpha` is taken and changes no byte); `none` trains none; an option on the command line wins over the file
    ");
    insta::assert_snapshot!(becomes(&[("a.yaml", "base_model: not/there\nmicro_batch_size: 1\n")], ""), @"
    a.yaml:1:13 (/base_model): the model `not/there` is not known
      help: it is not in the catalogue nor in the local Hugging Face cache, and nothing is downloaded; name its config.json in place of it; `peakledger plan MODEL --from FILE` takes another model
    ");
}

/// A slip is said with what it may be a slip for, where that is not there too.
#[test]
fn a_key_that_nobody_knows_may_be_a_slip() {
    let meant = |text: &str| {
        let line = <Line as clap::Parser>::try_parse_from(["gpt2", "--gpus", "8"]).unwrap();
        let origins = resolved(&[("ds.json", text)], &line).unwrap().origins.unwrap();
        let said = origins.not_read.into_iter().map(|not| (not.origin.key, not.meant));
        said.map(|(key, meant)| format!("{key}: {meant:?}")).collect::<Vec<_>>().join(", ")
    };
    let bf16 = r#""bf16": {"enabled": true}"#;
    let said = meant(&format!(
        r#"{{{bf16}, "train_micro_batch_size_per_gpu": 1, "gradient_acumulation_steps": 4, "zero_optimization": {{"stge": 3}}, "x": 1}}"#
    ));
    insta::assert_snapshot!(said, @r#"gradient_acumulation_steps: Some("gradient_accumulation_steps"), x: None, zero_optimization.stge: Some("stage")"#);
    let said = meant(&format!(
        r#"{{{bf16}, "train_micro_batch_size_per_gpu": 1, "train_micro_batch_size_per_gpus": 2}}"#
    ));
    assert_eq!(said, "train_micro_batch_size_per_gpus: None");
}

#[test]
fn of_many_keys_that_are_not_known_some_are_listed() {
    let keys: String = (0..5000).map(|key| format!("key_{key}: 1\n")).collect();
    let said = becomes(&[("a.yaml", &format!("optim: sgd\n{keys}"))], "gpt2");
    assert_eq!(said.matches("not read: ").count(), 21);
    assert!(said.contains("not read: a.yaml 4980 more"), "{said}");
}

#[test]
fn what_a_file_says_never_reaches_the_terminal_raw() {
    let text = "use_peft: true\noutput_dir: x\nlora_target_modules: [\"\\e[31mq\"]\n";
    let said = becomes(&[("a.yaml", text)], "gpt2");
    assert!(said.contains(r"`\u{1b}[31mq`"), "{said}");
}

/// Whatever a file says, it is read or refused.
#[test]
fn no_text_makes_it_panic() {
    for (name, text) in
        [DEEPSPEED, TRAINING_ARGUMENTS, ACCELERATE, AXOLOTL, LLAMA_FACTORY, TORCHTITAN, MEGATRON, DEEPSEEK]
    {
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)).step_by(7) {
            let _cut = becomes(&[(name, &text[..end])], "gpt2");
            let turned = format!("{}{}", &text[end..], &text[..end]);
            let _turned = becomes(&[(name, &turned)], "gpt2");
        }
    }
}

/// What a file asks for and no plan has is no default of another key, or of another file: the command line alone answers.
#[test]
fn what_is_not_planned_is_no_other_keys_to_say() {
    let run =
        "model_name_or_path: gpt2\nstage: pt\nfinetuning_type: full\npure_bf16: true\ncutoff_len: 512\n";
    let fp8 = ("acc.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: fp8\n");
    let trained = (
        "run.json",
        r#"{"output_dir": "out", "learning_rate": 1e-5, "bf16": true, "per_device_train_batch_size": 1}"#,
    );
    for (files, said) in [
        (vec![("run.yaml", format!("{run}use_galore: true\n"))], "`--optimizer`"),
        (vec![("run.yaml", format!("{run}fp8: true\n"))], "`--precision`"),
        (
            vec![("run.args", "--num-layers 2 --micro-batch-size 1 --bf16 --fp8-format hybrid".to_owned())],
            "`--precision`",
        ),
        (vec![(fp8.0, fp8.1.to_owned()), (trained.0, trained.1.to_owned())], "`--precision`"),
    ] {
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let refused = becomes(&files, "gpt2 --seq-len 512");
        assert!(
            refused.contains("not planned") && refused.contains(&format!("add {said}")),
            "{files:?}: {refused}"
        );
        let option = said.trim_matches('`');
        let value = if option == "--precision" { "bf16" } else { "adamw" };
        let planned = becomes(&files, &format!("gpt2 --seq-len 512 {option} {value}"));
        assert!(!planned.contains(&format!("add {said}")), "{files:?}: {planned}");
    }
}
