//! The READMEs do what they say: every command of a `console` block is run and its output compared, every command of a
//! `sh` block that only needs the binary is run, every link and figure is looked up.

use crate::pages::{
    blocks, every_command_prints_what_is_shown, folder, links_lead_somewhere, read, run, show_the_same,
};

const READMES: [&str; 2] = ["README.md", "README.zh-CN.md"];

#[test]
fn every_command_prints_what_the_readmes_show() {
    for readme in READMES {
        let commands = every_command_prints_what_is_shown(readme, folder().path());
        assert!(commands >= 8, "{readme}: only {commands} commands");
    }
}

#[test]
fn commands_without_output_run_too() {
    for readme in READMES {
        let folder = folder();
        let blocks = blocks(&read(readme), "sh");
        let lines = blocks.iter().flat_map(|(_, lines)| lines);
        let commands: Vec<&str> =
            lines.filter_map(|line| line.strip_prefix("cargo run --release -- ")).collect();
        assert!(!commands.is_empty(), "{readme}: no command that runs without installing");
        for command in commands {
            let (code, out) = run(folder.path(), &format!("peakledger {command}"));
            assert_eq!(code, Some(0), "{readme}: {command}\n{out}");
        }
    }
}

#[test]
fn both_readmes_show_the_same() {
    show_the_same(READMES[0], READMES[1]);
}

/// The document that the READMEs show is one.
#[test]
fn the_ledger_that_is_shown_is_valid() {
    for readme in READMES {
        let blocks = blocks(&read(readme), "json");
        assert!(!blocks.is_empty());
        for (line, lines) in blocks {
            let folder = folder();
            std::fs::write(folder.path().join("shown.json"), lines.join("\n")).unwrap();
            let (code, out) = run(folder.path(), "peakledger check shown.json");
            assert_eq!(code, Some(0), "{readme}:{line}: {out}");
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    for name in ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        links_lead_somewhere(name);
    }
}

/// Figures that a change of the data would make untrue.
#[test]
fn the_counts_are_those_of_the_data() {
    let entries = |file: &str| -> usize {
        let path = format!("crates/plan/src/catalogue/{file}");
        serde_json::from_str::<Vec<serde_json::Value>>(&read(&path)).unwrap().len()
    };
    let (models, cards) = (entries("models.json"), entries("gpus.json"));
    let listed = run(folder().path(), "peakledger list families --format json").1;
    let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    let families = listed.len();
    let english = format!("{models} models, {cards} cards, {families} families");
    let chinese = format!("{models} 个模型，{cards} 张卡，{families} 个模型族");
    for (readme, said) in READMES.into_iter().zip([english, chinese]) {
        let text = read(readme);
        for family in &listed {
            let family = family["model_type"].as_str().unwrap();
            assert!(text.contains(&format!("`{family}`")), "{readme} does not name {family}");
        }
        assert!(text.contains(&said), "{readme} should say `{said}`");
    }
}

/// Every option of `plan` has its row.
#[test]
fn every_option_of_plan_is_explained() {
    let (_, help) = run(folder().path(), "peakledger plan --help");
    let words = help.split(|c: char| c != '-' && !c.is_ascii_alphanumeric());
    let options: Vec<&str> = words.filter(|word| word.starts_with("--") && word.len() > 2).collect();
    assert!(options.len() > 20, "{options:?}");
    for readme in READMES {
        let text = read(readme);
        for option in options.iter().filter(|option| !["--help", "--version"].contains(option)) {
            assert!(text.contains(option), "{readme} says nothing about {option}");
        }
    }
}
