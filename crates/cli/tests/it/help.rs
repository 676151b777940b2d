//! The examples at the end of each `--help`: every line is run, but for those of what stays.

use crate::pages::{folder, repository, run};
use std::fs;

const VERBS: [&str; 13] = [
    "",
    "plan",
    "fit",
    "read",
    "replay",
    "show",
    "compare",
    "reconcile",
    "diff",
    "report",
    "serve",
    "check",
    "list",
];

const OUT_OF_MEMORY: &str = "step 3 of 100\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a \
    total capacity of 23.64 GiB of which 1.12 GiB is free. Process 7 has 22.51 GiB memory in use. Of the allocated memory \
    21.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n";

#[test]
fn the_examples_of_every_help_run() {
    let files = folder();
    let place = |from: &str, name: &str| {
        fs::copy(repository().join(from), files.path().join(name)).unwrap();
    };
    for name in ["snapshot.pickle", "before.pickle", "after.pickle"] {
        place("examples/step.pickle", name);
    }
    place("docs/guide/claim.json", "ledger.json");
    place("examples/configs/axolotl-qlora.yaml", "axolotl.yaml");
    fs::write(files.path().join("train.log"), OUT_OF_MEMORY).unwrap();
    let config = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 1024}"#;
    fs::write(files.path().join("config.json"), config).unwrap();
    for verb in VERBS {
        let (code, help) = run(files.path(), &format!("peakledger {verb} --help"));
        assert_eq!(code, Some(0), "{help}");
        let (_, examples) =
            help.split_once("\nExample").unwrap_or_else(|| panic!("{verb}: no examples in\n{help}"));
        let commands: Vec<&str> =
            examples.lines().filter(|line| line.starts_with("  peakledger ")).map(str::trim).collect();
        assert!(!commands.is_empty(), "{verb}: {examples}");
        for command in commands {
            assert!(
                command.starts_with(&format!("peakledger {verb}")) || verb == "compare",
                "{command}: of {verb}"
            );
            // a page that stays: its words alone are looked at
            let stays = command.starts_with("peakledger serve");
            let command = if stays { format!("{command} --help") } else { command.to_owned() };
            let (code, out) = run(files.path(), &command);
            // with a tolerance the answer may be no
            let is_answer = code == Some(0) || code == Some(1) && command.contains("--tolerance");
            assert!(is_answer, "{command}\n{out}");
        }
    }
}

/// What a verb has of its own is listed first, not under the heading of what a step has.
#[test]
fn a_verbs_own_options_come_first() {
    for (verb, own) in [
        ("plan", &["--gpu <", "--exit-code", "--rank <", "--save <"][..]),
        ("fit", &["--gpu <", "--exit-code"]),
    ] {
        let (_, help) = run(folder().path(), &format!("peakledger {verb} -h"));
        let (before, _) = help.split_once("\nStep:").unwrap();
        for option in own {
            assert!(before.contains(option), "{option} of {verb}: {help}");
        }
    }
}
