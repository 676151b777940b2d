//! Inputs that are none: every kind ends with code 2, its own sentence, and nothing on standard output.

use crate::support::Bench;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What each file says, by all three verbs.
const FILES: &[(&str, &[u8], &str)] = &[
    ("empty.json", b"", "an empty file"),
    ("html.json", b"<!DOCTYPE html>\n<html>", "an HTML page"),
    ("lfs.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "a git-lfs pointer"),
    ("zip.json", b"PK\x03\x04\x14", "a zip archive"),
    ("gzip.json", b"\x1f\x8b\x08\x00", "a gzip archive"),
    ("utf16.json", b"\xff\xfe[\x00]\x00", "UTF-16"),
    ("latin1.json", b"[\"caf\xe9\"]", "not UTF-8 text (byte 5)"),
    ("cut.json", b"[{\"name\": ", "ends in the middle"),
    ("null.json", b"null", "not a ledger"),
    ("sum.json", include_bytes!("sum_past_64_bits.json"), "passes 64 bits"),
];

#[test]
fn every_kind_of_file_has_its_sentence() {
    let bench =
        FILES.iter().fold(Bench::with_sample(), |bench, (name, content, _)| bench.file(name, content));
    for (name, _, says) in FILES {
        for arguments in [
            format!("check {name}"),
            format!("show {name}"),
            format!("show {name} --format json"),
            format!("compare {name} a=ledger.json"),
            format!("compare ledger.json a={name}"),
        ] {
            let said = bench.refusal(&arguments);
            let mended = said.contains("\n  help: ");
            assert!(
                said.starts_with(&format!("error: {name}")) && said.contains(says) && mended,
                "{arguments}: {said}"
            );
        }
    }
}

#[test]
fn a_byte_order_mark_is_no_fault() {
    assert!(Bench::new().file("bom.json", "\u{feff}[]").answer("check bom.json").contains("0 states"));
}

#[test]
fn paths_that_cannot_be_read_have_their_sentences() {
    let bench = Bench::with_sample();
    assert!(bench.refusal("show nowhere.json").contains("nowhere.json: no such file"));
    assert!(bench.refusal("show .").contains("a directory"));
    assert!(bench.refusal("show ledger.json/x").contains("a part of its path is a file"));
    assert!(bench.refusal("show -").contains("standard input: nothing came\n  help: pipe a file into it"));
}

#[cfg(unix)]
#[test]
fn what_is_neither_a_file_nor_a_pipe_is_refused_at_once() {
    let bench = Bench::with_sample();
    let fifo = bench.path("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let started = Instant::now();
    for verb in ["show", "report", "check", "read", "replay", "plan", "plan gpt2 --from", "diff ledger.json"]
    {
        let said = bench.refusal(&format!("{verb} /dev/zero"));
        assert!(said.contains("neither a file nor a pipe"), "{verb}: {said}");
        let said = bench.refusal(&format!("{verb} /dev/null"));
        assert!(said.contains("an empty file"), "{verb}: {said}");
    }
    assert!(bench.refusal("show fifo").contains("a pipe that nobody writes to"));
    assert!(started.elapsed() < Duration::from_secs(20), "nobody writes into the FIFO");
    std::os::unix::fs::symlink(bench.path("gone"), bench.path("link")).unwrap();
    assert!(bench.refusal("show link").contains("a symbolic link to a file that does not exist"));
}

/// `<(…)` of a shell is a pipe under a name: what it brings is what the file would have brought.
#[cfg(unix)]
#[test]
fn a_pipe_is_read_wherever_a_file_is() {
    let config = r#"{"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}"#;
    let bench =
        Bench::with_sample().file("config.json", config).file("ds.json", "{\"bf16\": {\"enabled\": true}}");
    bench.answer("plan config.json --seq-len 64 --save plan.json");
    let piped = |verb: &str, file: &str| {
        let mut command = bench.command(&format!("{verb} /dev/stdin"));
        let mut from =
            std::process::Command::new("cat").arg(bench.path(file)).stdout(Stdio::piped()).spawn().unwrap();
        let ran = command.stdin(from.stdout.take().unwrap()).output().unwrap();
        from.wait().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!((ran.status.code(), said.as_str()), (Some(0), ""), "{verb}");
        String::from_utf8(ran.stdout).unwrap()
    };
    for (verb, file) in [
        ("show", "ledger.json"),
        ("check", "ledger.json"),
        ("diff plan.json", "ledger.json"),
        ("replay", "plan.json"),
        ("report", "ledger.json"),
        ("plan", "config.json"),
        ("fit --gpu 24GB --seq-len 64", "config.json"),
        ("plan config.json --seq-len 64 --from", "ds.json"),
    ] {
        let of_file = bench.answer(&format!("{verb} {file}"));
        assert_eq!(piped(verb, file).replace("/dev/stdin", file), of_file, "{verb}");
    }
}

/// Only a ledger's beginning is waited for: what is none may go on for ever.
#[cfg(unix)]
#[test]
fn what_begins_like_no_ledger_is_not_read_to_its_end() {
    let bench = Bench::new();
    for verb in ["show", "replay", "check"] {
        let endless = std::fs::File::open("/dev/zero").unwrap();
        let started = Instant::now();
        let ran = bench.command(&format!("{verb} -")).stdin(endless).output().unwrap();
        assert_eq!(ran.status.code(), Some(2));
        assert!(started.elapsed() < Duration::from_secs(2), "{verb}");
    }
}

#[cfg(unix)]
#[test]
fn names_of_files_are_shown_escaped() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    for (name, shown) in
        [(b"a\nb".as_slice(), r"a\nb"), (b"\x1b[31m", r"\u{1b}[31m"), (b"caf\xe9", "caf\u{fffd}")]
    {
        let name = OsStr::from_bytes(name);
        std::fs::write(bench.path("").join(name), "[]").unwrap();
        let ran = bench.command("check").arg(name).stdin(Stdio::null()).output().unwrap();
        let out = String::from_utf8(ran.stdout).unwrap();
        assert!(out.starts_with(&format!("{shown}: valid")), "{out}");
    }
}

/// A model's name is the path of a file too, of whatever bytes.
#[cfg(unix)]
#[test]
fn a_path_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let config = r#"{"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}"#;
    let bench = Bench::new().file("config.json", config);
    let name = OsStr::from_bytes(b"caf\xe9.json");
    std::fs::write(bench.path("").join(name), config).unwrap();
    let of_file = bench.answer("plan config.json --seq-len 64");
    let ran = bench.command("plan --seq-len 64").arg(name).stdin(Stdio::null()).output().unwrap();
    let out = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(out.replace("caf\u{fffd}.json", "config.json"), of_file);
    for argument in [b"gone\xe9".as_slice(), b"gone\xe9/x", b"gone\xe9.json"] {
        let ran =
            bench.command("plan").arg(OsStr::from_bytes(argument)).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(said.starts_with("error: ") && said.contains("gone\u{fffd}"), "{said}");
    }
    let ran = bench.command("compare plan.json").arg(name).stdin(Stdio::null()).output().unwrap();
    assert!(String::from_utf8(ran.stderr).unwrap().contains("a candidate without a name"));
}

#[test]
fn more_candidates_than_are_kept_are_refused() {
    let said = refusal_of_candidates(65);
    assert!(said.starts_with("error: `--candidate`: 65 candidates are more than 64\n  help: "), "{said}");
    assert!(refusal_of_candidates(64).is_empty());
}

/// What is said against so many candidates.
fn refusal_of_candidates(count: usize) -> String {
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}"#;
    let bench = Bench::new().file("config.json", config);
    let mut command = bench.command("plan config.json");
    for i in 0..count {
        command.arg("--candidate").arg(format!("{i}: --batch {}", i + 1));
    }
    String::from_utf8(command.stdin(Stdio::null()).output().unwrap().stderr).unwrap()
}

#[test]
fn many_names_of_one_beginning_are_no_trouble() {
    let state = |i: usize| {
        format!(
            r#"{{"name": "{}{i:06}", "category": "activation", "size_bytes": 1, "start_phase": "load", "end_phase": "load", "device": "gpu", "persistent": false}}"#,
            "x".repeat(32)
        )
    };
    let text = format!("[{}]", (0..20_000).map(state).collect::<Vec<_>>().join(","));
    let out = Bench::new().file("many.json", text).answer("check many.json");
    assert!(out.contains("20000 states") && out.contains("peak 19.53 KiB"), "{out}");
}

#[test]
fn many_phases_are_compared_soon() {
    let phases = |word: &str| -> String {
        let phases =
            (0..50_000).map(|i| format!(r#"{{"phase": "{word}{i}"}}"#)).collect::<Vec<_>>().join(",");
        format!(r#"{{"schema_version": 1, "timeline": [{phases}], "states": []}}"#)
    };
    let bench = Bench::new().file("a.json", phases("a")).file("b.json", phases("b"));
    let started = Instant::now();
    let out = bench.answer("compare a.json b=b.json --format json");
    assert!(out.contains("\"a0\"") && out.contains("\"b49999\""));
    assert!(started.elapsed() < Duration::from_secs(20), "each phase was looked for among all others");
}

/// Micro-batches that are alike are run a few times, so a step may have many; what is written out one by one may not.
#[test]
fn many_micro_batches_are_planned_and_more_are_refused_at_once() {
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 80, "num_attention_heads": 2, "max_position_embeddings": 32}"#;
    let bench =
        Bench::new().file("config.json", config).file("deep.json", config.replace("80", "1000000000"));
    bench.answer("plan config.json --gradient-accumulation-steps 512");
    let said = bench.refusal("plan config.json --gradient-accumulation-steps 512 --save ledger.json");
    assert!(said.contains("`--save`: the step makes") && said.contains("fewer micro-batches"), "{said}");
    assert!(!bench.path("ledger.json").exists());
    let started = Instant::now();
    for arguments in [
        "plan config.json --gradient-accumulation-steps 4294967295",
        "plan config.json --gradient-accumulation-steps 820 --gpus 2 --zero 2",
        "plan deep.json",
    ] {
        let said = bench.refusal(arguments);
        assert!(said.contains("more than") || said.contains("num_hidden_layers"), "{arguments}: {said}");
    }
    assert!(started.elapsed() < Duration::from_secs(2));
}
