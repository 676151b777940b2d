//! The READMEs do what they say: every command of a `console` block is run and its output compared, every command of a
//! `sh` block that only needs the binary is run, every link and figure is looked up.
//!
//! A line of `…` alone stands for any lines. Commands run in order, in a folder of their own that shows the repository's
//! `examples` and `docs`, as a terminal of 80 columns without colours would.

#![cfg(unix)] // the commands are those of a shell

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const READMES: [&str; 2] = ["README.md", "README.zh-CN.md"];
/// What the commands of the READMEs may look at.
const SHOWN: [&str; 2] = ["examples", "docs"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).unwrap()
}

/// The fenced blocks of a language: the line each begins in, and its lines.
fn blocks(text: &str, language: &str) -> Vec<(usize, Vec<String>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, bool, Vec<String>)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        open = match (open, line.strip_prefix("```")) {
            (None, Some(said)) => Some((number, said == language, Vec::new())),
            (None, None) => None,
            (Some((begun, wanted, lines)), Some("")) => {
                blocks.extend(wanted.then_some((begun, lines)));
                None
            }
            (Some((begun, wanted, mut lines)), _) => {
                lines.push(line.to_owned());
                Some((begun, wanted, lines))
            }
        };
    }
    assert!(open.is_none(), "a block that does not end");
    blocks
}

/// A command of a README and what it is said to print.
struct Example {
    line: usize,
    command: String,
    shown: Vec<String>,
}

fn examples(text: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    for (begun, lines) in blocks(text, "console") {
        assert!(lines.first().is_some_and(|line| line.starts_with("$ ")), "line {begun}: no command");
        for (line, text) in (begun + 1..).zip(lines) {
            match (text.strip_prefix("$ "), examples.last_mut()) {
                (Some(command), _) => {
                    examples.push(Example { line, command: command.to_owned(), shown: Vec::new() });
                }
                (None, Some(example)) => example.shown.push(text),
                (None, None) => unreachable!("a block begins with a command"),
            }
        }
    }
    examples
}

/// Runs a command as a shell in the folder does, and returns its exit code with all that it prints.
fn run(folder: &Path, command: &str) -> (Option<i32>, String) {
    let binary = Path::new(env!("CARGO_BIN_EXE_peakledger")).parent().unwrap();
    let mut path = binary.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{{ {command}\n}} 2>&1")]).current_dir(folder).stdin(Stdio::null());
    shell.env("PATH", path).env("TERM", "dumb").env("COLUMNS", "80").env_remove("NO_COLOR");
    let ran = shell.output().unwrap();
    (ran.status.code(), String::from_utf8(ran.stdout).unwrap())
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in SHOWN {
        let target = std::fs::canonicalize(repository().join(name)).unwrap();
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    }
    folder
}

/// Whether lines are what is shown, in which `…` stands for any lines.
fn fits(shown: &[String], lines: &[&str]) -> bool {
    match (shown, lines) {
        ([], lines) => lines.is_empty(),
        ([cut, rest @ ..], _) if cut == "…" => (0..=lines.len()).any(|from| fits(rest, &lines[from..])),
        ([wanted, shown @ ..], [line, lines @ ..]) => wanted == line.trim_end() && fits(shown, lines),
        (_, []) => false,
    }
}

#[test]
fn every_command_prints_what_the_readmes_show() {
    for readme in READMES {
        let folder = folder();
        let examples = examples(&read(readme));
        assert!(examples.len() >= 8, "{readme}: only {} commands", examples.len());
        for Example { line, command, shown } in examples {
            let (code, out) = run(folder.path(), &command);
            let refused = shown.iter().any(|line| line.starts_with("error: "));
            let there = format!("{readme}:{line}: {command}");
            assert_eq!(code, Some(if refused { 2 } else { 0 }), "{there}\n{out}");
            let lines: Vec<&str> = out.lines().collect();
            assert!(fits(&shown, &lines), "{there}\nprints\n{out}\nand is shown as\n{}", shown.join("\n"));
        }
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
    let [english, chinese] = READMES.map(read);
    let commands =
        |text: &str| -> Vec<_> { examples(text).into_iter().map(|e| (e.command, e.shown)).collect() };
    assert_eq!(commands(&english), commands(&chinese));
    for language in ["sh", "json"] {
        let shown =
            |text: &str| -> Vec<_> { blocks(text, language).into_iter().map(|block| block.1).collect() };
        assert_eq!(shown(&english), shown(&chinese));
    }
    let shape = |text: &str| -> Vec<usize> {
        let headings = text.lines().filter(|line| line.starts_with('#'));
        headings.map(|line| line.chars().take_while(|c| *c == '#').count()).collect()
    };
    assert_eq!(shape(&english), shape(&chinese), "the same sections");
    let rows = |text: &str| text.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(rows(&english), rows(&chinese), "the same tables");
}

#[test]
fn what_is_cut_is_marked() {
    let shown = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(fits(&shown(&["a", "…", "c"]), &["a", "b", "b", "c"]));
    assert!(fits(&shown(&["a", "…"]), &["a"]));
    for wrong in [&["a", "c"][..], &["a", "b"], &["…", "b"], &["a", "b", "c", "d"], &[]] {
        assert!(!fits(&shown(wrong), &["a", "b", "c"]), "{wrong:?}");
    }
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
        let text = read(name);
        let headings: Vec<String> = text.lines().filter(|line| line.starts_with('#')).map(anchor).collect();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(to, _)| to);
        for target in targets.filter(|to| !to.starts_with("https://")) {
            match target.strip_prefix('#') {
                Some(heading) => {
                    assert!(headings.iter().any(|h| h == heading), "{name}: no heading {target}");
                }
                None => assert!(repository().join(target).exists(), "{name}: no file {target}"),
            }
        }
    }
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
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
