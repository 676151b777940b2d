//! Arguments that are none: each names its option, the cause and the mend.

use crate::support::Bench;
use std::process::Stdio;

/// What is said against these arguments after `plan qwen2.5-0.5b`.
fn refused(arguments: &[&str]) -> String {
    let bench = Bench::new();
    let mut command = bench.command("plan qwen2.5-0.5b");
    let ran = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "{arguments:?}");
    assert!(ran.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(ran.stderr).unwrap()
}

#[test]
fn numbers_that_are_none_are_told_what_they_are() {
    let whole = "is not a whole number\n  help: it is a whole number of 1 or more, in plain digits\n";
    for (arguments, says) in [
        (["--batch", "-1"], format!("error: `--micro-batch-size`: `-1` {whole}")),
        (["--batch", "1e3"], format!("error: `--micro-batch-size`: `1e3` {whole}")),
        (["--seq", "2k"], format!("error: `--seq-len`: `2k` {whole}")),
        (
            ["--seq", "1000000000000"],
            "error: `--seq-len`: `1000000000000` is more than 2^32\n  help: check".to_owned(),
        ),
        (["--gradient-accumulation-steps", "-2"], format!("`-2` {whole}")),
        (["--top", "-2"], format!("error: `--top`: `-2` {whole}")),
        (
            ["--momentum", "much"],
            "error: `--momentum`: `much` is not a number\n  help: use a number".to_owned(),
        ),
        (["--momentum", "-0.5"], "error: `--momentum`: -0.5 is no momentum\n  help: use a number".to_owned()),
        (
            ["--gpus", "8xh100-80gb"],
            "error: `--gpus`: `8xh100-80gb` is not a whole number\n  help: write `--gpu h100-80gb --gpus 8`"
                .to_owned(),
        ),
        (
            ["--lora", "r=8,targets=q_proj,v_proj,dropout=0.1"],
            "error: `--lora`: `v_proj` is not KEY=VALUE\n  help: join names by `+`: `targets=q_proj+v_proj`"
                .to_owned(),
        ),
        (["--lora", "r=x"], "error: `--lora`: `r` is a whole number from 1 to 65536, not `x`".to_owned()),
    ] {
        let said = refused(&arguments);
        assert!(said.contains(&says) && said.contains("\n  help: "), "{arguments:?}: {said}");
    }
}

#[test]
fn words_that_are_none_are_told_which_there_are() {
    let said = refused(&["--optimizer", "adamx"]);
    assert!(said.starts_with("error: `--optimizer`: `adamx` is none of its values\n  help: did you mean `adamw`? They are `adamw`, "), "{said}");
    assert!(
        refused(&["--optimizer", ""])
            .contains("`--optimizer`: its value is missing\n  help: choose one of `adamw`")
    );
}

#[test]
fn options_that_another_stack_plans_say_so() {
    let said = refused(&["--cp-comm-type", "a2a"]);
    assert!(
        said.contains("help: use --cp-rotate-method, or add `--stack megatron`")
            && said.starts_with("error: `--cp-comm-type`: it is of Transformer Engine's attention"),
        "{said}"
    );
    for arguments in [&["--cp-rotate-method", "alltoall"][..], &["--cp-load-balance"]] {
        let said = refused(arguments);
        let option = arguments[0];
        assert!(
            said.contains(&format!(
                "`{option}`: nothing of this step reads it\n  help: leave it out, or add `--cp 2`"
            )),
            "{said}"
        );
    }
    let said = refused(&["--loss-parallel"]);
    assert!(said.contains("the logits are shared out among the ranks of --tp, and there is one"), "{said}");
    assert!(refused(&["--zerro", "3"]).starts_with("error: `--zerro`: `peakledger plan` has no such option"));
    let said = Bench::with_sample().refusal("show ledger.json --zero");
    assert!(said.starts_with("error: `--zero`: `peakledger show` has no such option"), "{said}");
}

#[test]
fn candidates_are_told_what_is_wrong_with_them() {
    for (candidate, says) in [
        ("", "`--candidate`: an empty candidate\n  help: write it as"),
        ("  ", "an empty candidate"),
        ("--recompute full", "has no name\n  help: write it as"),
        (
            "a: --help",
            "`a`: `--help`: a candidate has no such option\n  help: a candidate takes the options of a step",
        ),
        (
            "a: --recompute maybe",
            "`a`: `--recompute`: `maybe` is none of its values\n  help: choose one of `none`, `full`",
        ),
        (
            "a: --batch -1",
            "`a`: `--micro-batch-size`: `-1` is not a whole number\n  help: it is a whole number",
        ),
        ("a: --rank 3", "`a`: `--rank`: a candidate has no such option\n  help: "),
        ("a: --gpu t4", "`a`: `--gpu`: a candidate has no such option\n  help: "),
    ] {
        let said = refused(&["--candidate", candidate]);
        assert!(said.starts_with("error: `--candidate`: ") && said.contains(says), "{candidate}: {said}");
    }
    let said = refused(&["--optimizer", "sgd", "--momentum", "0.9", "--candidate", "a: --optimizer adamw"]);
    assert!(
        said.contains("\n  help: the baseline's momentum holds for it too: add `--momentum 0`"),
        "{said}"
    );
}

#[test]
fn lora_is_told_how_it_is_written() {
    for (arguments, says) in [
        (&["--lora"][..], "its value is missing"),
        (&["--lora", ""], "its value is missing"),
        (&["--lora", "16"], "`16` is not KEY=VALUE"),
        (&["--lora", "dropout=0.1"], "`r`, the rank, is missing"),
        (&["--lora", "r=16,r=8"], "`r` is given twice"),
        (&["--lora", "r=16,alpha=x"], "`alpha` is a number, not `x`"),
        (&["--candidate", "a: --lora"], "its value is missing"),
    ] {
        let said = refused(arguments);
        let help =
            "\n  help: write it as `r=16`; left out are `dropout=0`, `dtype=fp32` and `targets=all-linear`, ";
        assert!(said.contains(&format!("`--lora`: {says}{help}")), "{arguments:?}: {said}");
    }
    let bench = Bench::new();
    let peak = |lora: &str| bench.answer(&format!("plan gpt2 --lora {lora} --format json"));
    assert_eq!(peak("r=16"), peak("r=16,alpha=32,dropout=0,dtype=fp32,targets=all-linear"));
}

#[test]
fn whatever_is_wrong_has_its_mend() {
    let bench = Bench::with_sample();
    for (arguments, says) in [
        (
            "plna gpt2",
            "`plna`: not a command of `peakledger`\n  help: did you mean `plan`? They are `check`, `show`, ",
        ),
        (
            "estimate a.pickle",
            "`estimate`: not a command of `peakledger`\n  help: `peakledger plan MODEL` says what a step holds; the commands are `check`, `show`, ",
        ),
        ("foo plan", "`foo`: not a command of `peakledger`\n  help: choose one of `check`, "),
        (
            "--exit-code plan gpt2",
            "`--exit-code`: `peakledger` has no such option\n  help: `peakledger --help`",
        ),
        ("plan gpt2 --recompute", "its value is missing\n  help: choose one of `none`, `full`, `every:N`"),
        ("plan", "`peakledger plan` needs `MODEL`\n  help: it is written `peakledger plan MODEL`\n"),
        ("show a b", "`b`: `peakledger show` takes no such argument\n  help: `peakledger show --help` lists"),
        (
            "plan gpt2 --colour blue",
            "has no such option\n  help: `peakledger plan --help` lists what there is\n",
        ),
        (
            "plan gpt2 --micro-batch-sizes 4",
            "has no such option\n  help: did you mean `--micro-batch-size`? ",
        ),
        ("plan gpt2 --gradient-acc 4", "did you mean `--gradient-accumulation-steps`? "),
        ("plan gpt2 --recomp full", "did you mean `--recompute`? "),
        ("plan gpt2 --seq-len", "`--seq-len`: its value is missing\n  help: write it as `--seq-len N`\n"),
        (
            "plan gpt2 --exit-code",
            "`--exit-code`: it asks whether the step fits, and no card is named\n  help: name one: ",
        ),
        ("plan gpt2 --optimizer paged_adamw", "is none of its values\n  help: choose one of `adamw`, "),
        (
            "plan gpt2 --format xml",
            "is none of its values\n  help: choose one of `table`, `json`, `csv`, `markdown`, `html`\n",
        ),
        ("plan gpt2 --all=3", "`--all`: it takes no value, and `3` is one\n  help: leave the value out\n"),
        ("plan gpt2 --all --top 3", "`--all`: it does not go with `--top`\n  help: keep one of the two\n"),
        ("plan gpt2 --gpu t4 --gpu t4", "`--gpu`: given twice\n  help: keep one of the two\n"),
    ] {
        let said = bench.refusal(arguments);
        assert!(said.starts_with("error: ") && said.contains(says), "{arguments}: {said}");
        assert_eq!(said.lines().count(), 2, "{arguments}: {said}");
    }
}

#[test]
fn words_of_other_tools_are_told_in_ours() {
    for (arguments, mend) in [
        ("--bs 4", "write `--micro-batch-size N`"),
        ("--bsz=4", "write `--micro-batch-size N`"),
        ("--per_device_train_batch_size 4", "write `--micro-batch-size N`"),
        ("--max-length 512", "write `--seq-len N`"),
        ("--load-in-4bit", "write `--quantize nf4`"),
        (
            "--bf16",
            "write `--precision bf16-mixed` (fp32 weights under autocast, which is the default; with `--precision bf16` the weights are bf16 too)",
        ),
        ("--fp16", "write `--precision fp16-mixed` ("),
        ("--dtype bf16", "write `--weights-dtype bf16` ("),
        ("--deepspeed ds.json", "write `--from FILE` ("),
        ("--config run.yaml", "write `--from FILE` ("),
        ("--liger", "write `--fused-loss` ("),
        ("--qlora", "write `--lora r=16 --quantize nf4` ("),
        ("--lora-r 16", "write `--lora r=N`"),
        ("--model gpt2", "name the model without an option: `peakledger plan MODEL`"),
        ("--learning-rate 1e-4", "leave it out: no byte depends on it"),
        ("--torch-compile", "leave it out: what it does to memory is not planned yet"),
        ("--attention flash_attention_2", "write `--attention sdpa`; its values are `sdpa`, `eager`"),
        (
            "--optimizer adamw_torch_fused",
            "write `--optimizer adamw --optimizer-impl fused`; its values are `adamw`, ",
        ),
        (
            "--optimizer paged_adamw_8bit",
            "write `--optimizer adamw-8bit` (not planned: pages of the optimizer state ",
        ),
        ("--quantize 4bit", "write `--quantize nf4`; its values are `nf4`, "),
        ("--weights-dtype torch.bfloat16", "write `--weights-dtype bf16`; its values are `fp32`, "),
        ("--recompute true", "write `--recompute full`"),
        ("--offload cpu", "write `--offload optimizer`"),
        ("--zero stage3", "write `--zero 3`; its values are `0`, "),
    ] {
        let said = refused(&arguments.split(' ').collect::<Vec<_>>());
        let option = arguments.split([' ', '=']).next().unwrap();
        assert!(said.starts_with(&format!("error: `{option}`: ")), "{arguments}: {said}");
        assert!(said.contains(&format!("\n  help: {mend}")), "{arguments}: {said}");
    }
    let said = refused(&["--candidate", "a: --gradient_checkpointing_enable"]);
    assert!(
        said.contains("`a`: `--gradient_checkpointing_enable`: a candidate has no such option"),
        "{said}"
    );
    let said = Bench::with_sample().refusal("show ledger.json --bf16");
    assert!(said.contains("help: `peakledger show --help` lists what there is"), "{said}");
}

#[test]
fn who_looks_for_another_command_is_told_it() {
    let bench = Bench::new();
    let said = |words: &str, says: &str| {
        let said = bench.refusal(words);
        assert!(said.contains(says), "{words}: {said}");
    };
    said("explain llama-3.1-8b", "help: `peakledger plan MODEL --explain NAME` says how a figure came about");
    said("list cards", "help: write `peakledger list gpus`; its values are `models`, `gpus`, `families`");
    said(
        "plan gpt2 --nodes 8",
        "help: write `--gpus N` (all of them; those of a node are `--gpus-per-node`)",
    );
    said(
        "plan gpt2 --gpu 24GB,48GB",
        "`24GB,48GB` are several cards\n  help: name one: a plan is of one kind of card",
    );
}

#[test]
fn what_is_given_to_the_wrong_verb_is_told_the_right_one() {
    let log = "{'loss': 1.5}\n{'loss': 1.4}\n".repeat(5000)
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
    let bench = Bench::new().file("train.log", log).file("step.pickle", [0x80, 4, b'}', b'.']);
    let said = bench.refusal("read train.log");
    assert!(
        said.contains("a text, neither a pickle nor JSON") && said.contains("add `--oom-message`"),
        "{said}"
    );
    let said = bench.refusal("plan step.pickle");
    assert!(said.contains("a Python pickle, not JSON") && said.contains("`peakledger read FILE`"), "{said}");
    bench.answer("plan gpt2 --seq-len 64 -o plan.json");
    let said = bench.refusal("read plan.json");
    assert!(said.contains("plan.json: a report of `plan`, not a measurement"), "{said}");
    let said = bench.refusal("plan plan.json");
    assert!(said.contains("a report, not the config of a model"), "{said}");
}
