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
        (["--lora", "r=x"], "error: `--lora`: `r=x` is not understood: `r` is a whole number".to_owned()),
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
fn options_that_are_designed_are_not_planned_yet() {
    for arguments in [
        &["--zero", "3"][..],
        &["--fsdp=full_shard"],
        &["--tp", "2"],
        &["--pp", "2"],
        &["--stack", "megatron"],
        &["--offload", "optimizer"],
    ] {
        let said = refused(arguments);
        let option = arguments[0].split('=').next().unwrap();
        assert!(
            said.starts_with(&format!("error: `{option}`: not planned yet\n  help: leave it out")),
            "{said}"
        );
    }
    assert!(
        refused(&["--zerro", "3"]).contains("unexpected argument"),
        "an option of nobody's is clap's to tell"
    );
    assert!(Bench::with_sample().refusal("show ledger.json --zero").contains("unexpected argument"));
}

#[test]
fn candidates_are_told_what_is_wrong_with_them() {
    for (candidate, says) in [
        ("", "`--candidate`: an empty candidate\n  help: write it as"),
        ("  ", "an empty candidate"),
        ("--recompute full", "has no name\n  help: write it as"),
        (
            "a: --help",
            "`a`: unexpected argument '--help' found\n  help: a candidate takes the options of a step",
        ),
        (
            "a: --recompute maybe",
            "`a`: `--recompute`: `maybe` is none of its values\n  help: choose one of `none`, `full`",
        ),
        (
            "a: --batch -1",
            "`a`: `--micro-batch-size`: `-1` is not a whole number\n  help: it is a whole number",
        ),
        ("a: --zero 3", "`a`: `--zero`: not planned yet\n  help: "),
        ("a: --gpu t4", "`a`: unexpected argument '--gpu' found\n  help: "),
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
