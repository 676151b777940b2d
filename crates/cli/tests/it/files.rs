//! What is written where: whole or not at all, never over an input, never by surprise.

use crate::support::{Bench, SAMPLE};
use std::io::Read;
use std::process::Stdio;

#[test]
fn the_extension_names_the_format() {
    let bench = Bench::with_sample();
    for (name, format) in
        [("a.json", "json"), ("a.csv", "csv"), ("a.md", "markdown"), ("a.txt", "table"), ("a", "table")]
    {
        assert_eq!(bench.answer(&format!("show ledger.json -o {name}")), "", "data go to the file");
        assert_eq!(bench.read(name), bench.answer(&format!("show ledger.json --format {format}")));
    }
    bench.answer("show ledger.json -o b.txt --format csv");
    assert_eq!(bench.read("b.txt"), bench.read("a.csv"), "a format that is named wins");
    let said = bench.refusal("check ledger.json --format html");
    assert!(said.contains("choose `table`, `json`, `csv` or `markdown`"), "{said}");
}

/// A file that ends in `.pdf` and holds HTML helps nobody.
#[test]
fn no_extension_says_another_thing_than_the_content() {
    let bench = Bench::with_sample();
    for (arguments, says) in [
        (
            "report ledger.json -o r.pdf",
            "`--output`: no `.pdf` file is written here\n  help: name a file that ends in `.html`, `.json`, `.csv`, `.md` or `.txt`\n",
        ),
        // no page is offered of what has no pictures
        (
            "fit gpt2 --gpu t4 -o f.pdf",
            "here\n  help: name a file that ends in `.json`, `.csv`, `.md` or `.txt`\n",
        ),
        ("list gpus -o f.pdf", "here\n  help: name a file that ends in `.json`, `.csv`, `.md` or `.txt`\n"),
        (
            "report ledger.json -o r.txt",
            "the file ends in `.txt`, and its content would be `.html`\n  help: name a file that ends in `.html`",
        ),
        ("show ledger.json -o r.xlsx", "no `.xlsx` file is written here"),
        ("show ledger.json -o r.json.gz --format json", "no `.gz` file is written here"),
        (
            "show ledger.json -o r.json --format csv",
            "the file ends in `.json`, and its content would be `.csv`\n  help: name a file that ends in `.csv`",
        ),
        (
            "plan gpt2 --save plan.html",
            "`--save`: the file ends in `.html`, and a ledger is JSON\n  help: name a file that ends in `.json`; `--output` writes the page",
        ),
        ("plan gpt2 --save plan.pickle", "a ledger is JSON\n  help: name a file that ends in `.json`\n"),
    ] {
        let said = bench.refusal(arguments);
        assert!(said.contains(says), "{arguments}: {said}");
    }
    assert_eq!(bench.names(), ["ledger.json"], "nothing was written");
    bench.answer("show ledger.json -o llama-3.1-8b");
    bench.answer("report ledger.json -o page");
    assert!(bench.read("page").starts_with("<!doctype html>"));
}

#[test]
fn the_name_of_a_model_is_told_how_it_becomes_a_file() {
    let bench = Bench::with_sample();
    for verb in
        ["show", "report", "read", "replay", "check", "compare ledger.json a=gpt2", "diff ledger.json"]
    {
        let arguments = if verb.contains('=') { verb.to_owned() } else { format!("{verb} gpt2") };
        let said = bench.refusal(&arguments);
        let says = "gpt2: the name of a model, not a file\n  help: `peakledger plan gpt2 -o plan.html` draws its step, and `peakledger plan gpt2 --save ledger.json` makes a ledger of it\n";
        assert!(said.contains(says), "{arguments}: {said}");
    }
    assert!(bench.refusal("show nothing").contains("nothing: no such file"));
}

#[test]
fn nothing_is_overwritten_unasked() {
    let bench = Bench::with_sample().file("there.json", "mine");
    let said = bench.refusal("show ledger.json -o there.json");
    assert!(said.contains("there.json: the file exists") && said.contains("`--force`"), "{said}");
    assert_eq!(bench.read("there.json"), "mine");
    bench.answer("show ledger.json -o there.json --force");
    assert!(bench.read("there.json").starts_with('{'));
}

#[test]
fn an_input_is_never_the_output() {
    let bench = Bench::with_sample();
    for output in ["ledger.json", "./ledger.json"] {
        let said = bench.refusal(&format!("show ledger.json -o {output} --force"));
        assert!(said.contains("the output is one of the inputs"), "{said}");
    }
    let said = bench.refusal("compare ledger.json a=ledger.json -o ledger.json --force");
    assert!(said.contains("one of the inputs"), "{said}");
    assert_eq!(bench.read("ledger.json"), SAMPLE);
}

#[test]
fn the_config_that_a_model_was_read_from_is_never_the_output() {
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}"#;
    let bench = Bench::new();
    let cached = "hub/models--org--name/snapshots/0/config.json";
    for path in ["folder/config.json", cached] {
        std::fs::create_dir_all(bench.path(path).parent().unwrap()).unwrap();
        std::fs::write(bench.path(path), config).unwrap();
    }
    let bench = bench.env("HF_HUB_CACHE", "hub");
    for (model, read) in
        [("folder", "folder/config.json"), ("folder/config.json", "folder/config.json"), ("org/name", cached)]
    {
        for option in ["-o", "--save"] {
            let said = bench.refusal(&format!("plan {model} {option} {read} --force"));
            assert!(said.contains("config.json: the output is one of the inputs"), "{said}");
            assert_eq!(bench.read(read), config);
        }
        bench.answer(&format!("plan {model} -o plan.json --save saved.json --force"));
    }
}

#[test]
fn each_output_has_a_file_of_its_own() {
    let bench = Bench::new();
    for (output, save) in [("a.json", "./a.json"), ("none/../a.json", "a.json"), ("b.json", "b.json")] {
        std::fs::create_dir_all(bench.path("none")).unwrap();
        let said = bench.refusal(&format!("plan qwen2.5-0.5b -o {output} --save {save} --force"));
        assert!(said.contains("named by both `--output` and `--save`"), "{said}");
    }
    assert!(
        bench
            .refusal("plan qwen2.5-0.5b --save -")
            .contains("`--save`: standard output has the answer already")
    );
    assert_eq!(bench.names(), ["none"]);
}

#[test]
fn a_failure_leaves_no_file() {
    let bench = Bench::with_sample().file("bad.json", "[");
    bench.refusal("show bad.json -o out.json");
    let long = "x".repeat(300);
    for (target, says) in [
        ("none/out.json", "its folder does not exist"),
        ("new/", "the name of a folder, not of a file"),
        ("ledger.json/out.json", "a part of its path is a file, not a folder"),
        (&long, "nothing was written: its name is too long"),
    ] {
        let said = bench.refusal(&format!("show ledger.json -o {target}"));
        assert!(said.contains(says) && said.contains("\n  help: "), "{said}");
        assert!(!said.contains("peakledger-") && !said.contains("os error"), "{said}");
    }
    #[cfg(target_os = "linux")]
    {
        let said = bench.refusal("show ledger.json -o /proc/x.json");
        assert!(
            said.contains("no file can be made in its folder\n  help: ") || said.contains("permission"),
            "{said}"
        );
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ran = bench.command("show ledger.json").stdout(full).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(
            said.starts_with("error: standard output: cannot be written: the disk is full\n  help: "),
            "{said}"
        );
    }
    std::fs::create_dir(bench.path("folder.json")).unwrap();
    assert!(bench.refusal("show ledger.json -o folder.json --force").contains("a directory"));
    assert_eq!(bench.names(), ["bad.json", "folder.json", "ledger.json"]);
}

#[cfg(unix)]
#[test]
fn links_and_devices_stay_what_they_are() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::with_sample().file("target.json", "old");
    std::os::unix::fs::symlink(bench.path("target.json"), bench.path("link.json")).unwrap();
    bench.answer("show ledger.json -o link.json --force");
    assert!(bench.path("link.json").is_symlink());
    assert!(bench.read("target.json").starts_with('{'));
    let said = bench.refusal("show ledger.json -o /dev/null --force");
    assert!(said.contains("not a regular file") && said.contains("leave `--output` out"), "{said}");
    let said = bench.refusal("plan qwen2.5-0.5b --save /dev/full");
    assert!(said.contains("not a regular file") && said.contains("after `--save`"), "{said}");
    bench.answer("show ledger.json -o new.json");
    let mode = std::fs::metadata(bench.path("new.json")).unwrap().permissions().mode();
    let plain = std::fs::metadata(bench.path("ledger.json")).unwrap().permissions().mode();
    assert_eq!(mode, plain, "a new file has the mode of any new file");
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_that_is_not_there_yet_leads_to_it() {
    let bench = Bench::with_sample();
    for (link, target) in [("a.json", "b.json"), ("b.json", "c.json"), ("x.json", "none/y.json")] {
        std::os::unix::fs::symlink(target, bench.path(link)).unwrap();
    }
    bench.answer("show ledger.json -o a.json");
    assert!(bench.path("a.json").is_symlink() && bench.path("b.json").is_symlink());
    assert!(bench.read("c.json").starts_with('{'), "the file at the end of both");
    assert!(bench.refusal("show ledger.json -o a.json").contains("the file exists"));
    assert!(bench.refusal("show ledger.json -o x.json --force").contains("its folder does not exist"));
    assert!(bench.path("x.json").is_symlink());
    for link in ["loop.json", "pool.json"] {
        let other = if link == "loop.json" { "pool.json" } else { "loop.json" };
        std::os::unix::fs::symlink(other, bench.path(link)).unwrap();
    }
    assert!(bench.refusal("show loop.json").contains("its symbolic links lead in a circle\n  help: "));
    let said = bench.refusal("show ledger.json -o loop.json --force");
    assert!(said.contains("\n  help: "), "{said}");
    assert!(bench.path("loop.json").is_symlink(), "nothing takes its place");
}

#[cfg(unix)]
#[test]
fn what_standard_input_comes_from_is_an_input_too() {
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}"#;
    let bench = Bench::with_sample().file("config.json", config);
    std::os::unix::fs::symlink("ledger.json", bench.path("link.json")).unwrap();
    for (arguments, input) in [
        ("show - -o ledger.json --force", "ledger.json"),
        ("show - -o link.json --force", "ledger.json"),
        ("plan - -o config.json --force", "config.json"),
        ("plan - --save config.json --force", "config.json"),
    ] {
        let before = bench.read(input);
        let stdin = std::fs::File::open(bench.path(input)).unwrap();
        let ran = bench.command(arguments).stdin(stdin).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(said.contains("the output is one of the inputs"), "{arguments}: {said}");
        assert_eq!(bench.read(input), before);
    }
}

#[test]
fn a_pipe_that_closes_early_has_read_enough() {
    // more than any pipe holds
    let state = |i: usize| {
        format!(
            r#"{{"name": "{}{i}", "category": "activation", "size_mb": 1, "start_phase": "load", "end_phase": "zero_grad", "device": "gpu", "persistent": false}}"#,
            "long".repeat(20)
        )
    };
    let text = format!("[{}]", (0..2000).map(state).collect::<Vec<_>>().join(","));
    let bench = Bench::new().file("many.json", text);
    let mut child = bench
        .command("show many.json --format json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[test]
fn usage_errors_are_two_and_help_is_zero() {
    let bench = Bench::with_sample();
    for wrong in [
        "",
        "shwo ledger.json",
        "show",
        "show ledger.json --colour",
        "show ledger.json --top 3 --all",
        "show ledger.json --format xml",
    ] {
        assert_eq!(bench.run(wrong).code, Some(2), "{wrong}");
    }
    assert!(bench.run("shwo ledger.json").err.contains("did you mean `show`?"), "a near word is offered");
    for right in ["--help", "--version", "show --help"] {
        let ran = bench.run(right);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{right}");
    }
}
