//! Pages with commands in them, the READMEs' and the guide's: every command of a `console` block is run and its output
//! compared with what the page shows.
//!
//! A line of `…` alone stands for any lines. Commands run in order, in a folder that shows the repository's
//! `examples` and `docs`, as a terminal of 80 columns without colours would. With `PEAKLEDGER_WRITE_PAGES=1` what has
//! changed is written into the page instead, to be looked at and committed; what `…` stands for stays left out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the commands of pages may look at.
const SHOWN: [&str; 2] = ["examples", "docs"];
/// The line that stands for any lines.
const CUT: &str = "…";

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The fenced blocks of a language: the line each begins in, and its lines.
pub(crate) fn blocks(text: &str, language: &str) -> Vec<(usize, Vec<String>)> {
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

/// A command of a page and what it is said to print.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Example {
    /// The line of the page, from 1.
    pub(crate) line: usize,
    pub(crate) command: String,
    pub(crate) shown: Vec<String>,
}

pub(crate) fn examples(text: &str) -> Vec<Example> {
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
pub(crate) fn run(folder: &Path, command: &str) -> (Option<i32>, String) {
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

pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in SHOWN {
        let target = std::fs::canonicalize(repository().join(name)).unwrap();
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    }
    folder
}

/// Whether lines are what is shown, in which `…` stands for any lines.
pub(crate) fn fits(shown: &[String], lines: &[&str]) -> bool {
    match (shown, lines) {
        ([], lines) => lines.is_empty(),
        ([cut, rest @ ..], _) if cut == CUT => (0..=lines.len()).any(|from| fits(rest, &lines[from..])),
        ([wanted, shown @ ..], [line, lines @ ..]) => wanted == line.trim_end() && fits(shown, lines),
        (_, []) => false,
    }
}

/// Runs the commands of a page in a folder and compares, or writes what has changed. Returns how many there are.
pub(crate) fn every_command_prints_what_is_shown(page: &str, folder: &Path) -> usize {
    let text = read(page);
    let examples = examples(&text);
    let mut changed = Vec::new();
    for Example { line, command, shown } in &examples {
        let (code, out) = run(folder, command);
        let lines: Vec<&str> = out.lines().collect();
        let there = format!("{page}:{line}: {command}");
        let refused = lines.iter().any(|line| line.starts_with("error: ")) && code == Some(2);
        assert!(code == Some(0) || refused, "{there}\nends with {code:?}\n{out}");
        if !fits(shown, &lines) {
            assert!(writes(), "{there}\nprints\n{out}\nand is shown as\n{}", shown.join("\n"));
            let placed = as_it_is_now(shown, &lines);
            changed.push((*line, shown.len(), placed.unwrap_or_else(|| panic!("{there}\nprints\n{out}"))));
        }
    }
    if !changed.is_empty() {
        std::fs::write(repository().join(page), rewritten(&text, changed)).unwrap();
    }
    examples.len()
}

fn writes() -> bool {
    std::env::var_os("PEAKLEDGER_WRITE_PAGES").is_some_and(|value| value == "1")
}

/// The page with other outputs: each after a line, in the place of so many lines.
fn rewritten(text: &str, changed: Vec<(usize, usize, Vec<String>)>) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (command, length, output) in changed.into_iter().rev() {
        lines.splice(command..command + length, output);
    }
    lines.join("\n") + "\n"
}

/// What is printed now, with as much of it left out as before: a part before the first cut is the beginning, one after the
/// last is the end, and one between two is found by the words that its first line begins with.
fn as_it_is_now(shown: &[String], lines: &[&str]) -> Option<Vec<String>> {
    let line = |line: &&str| line.trim_end().to_owned();
    let parts: Vec<&[String]> = shown.split(|line| line == CUT).collect();
    let [first, middle @ .., last] = parts.as_slice() else { return Some(lines.iter().map(line).collect()) };
    let mut now: Vec<String> = lines.get(..first.len())?.iter().map(line).collect();
    let mut from = first.len();
    for part in middle.iter().filter(|part| !part.is_empty()) {
        let wanted = words(&part[0]);
        from += lines.get(from..)?.iter().position(|line| words(line).starts_with(&wanted))?;
        now.push(CUT.to_owned());
        now.extend(lines.get(from..from + part.len())?.iter().map(line));
        from += part.len();
    }
    now.push(CUT.to_owned());
    let end = lines.len().checked_sub(last.len()).filter(|end| *end >= from)?;
    now.extend(lines[end..].iter().map(line));
    Some(now)
}

/// A line without its figures, units and bars, but with the axes of a plot.
fn words(line: &str) -> Vec<&str> {
    let is_unit = |word: &&str| !["B", "KiB", "MiB", "GiB", "TiB"].contains(word);
    line.split(|c: char| !c.is_alphabetic() && !['│', '└'].contains(&c))
        .filter(|word| !word.is_empty())
        .filter(is_unit)
        .collect()
}

/// What two pages in two languages have in common: commands and outputs, other blocks, sections, tables.
pub(crate) fn show_the_same(one: &str, other: &str) {
    let texts = [one, other].map(read);
    let [english, chinese] = texts.each_ref();
    let commands =
        |text: &str| -> Vec<_> { examples(text).into_iter().map(|e| (e.command, e.shown)).collect() };
    assert_eq!(commands(english), commands(chinese), "{one} and {other}");
    for language in ["sh", "json"] {
        let shown =
            |text: &str| -> Vec<_> { blocks(text, language).into_iter().map(|block| block.1).collect() };
        assert_eq!(shown(english), shown(chinese), "{one} and {other}");
    }
    let shape = |text: &str| -> Vec<usize> {
        headings(text).iter().map(|line| line.chars().take_while(|c| *c == '#').count()).collect()
    };
    assert_eq!(shape(english), shape(chinese), "{one} and {other}: the same sections");
    let rows = |text: &str| text.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(rows(english), rows(chinese), "{one} and {other}: the same tables");
}

/// Asserts that what a page links to is there: a file beside it, or a heading of its own.
pub(crate) fn links_lead_somewhere(page: &str) {
    let text = read(page);
    let anchors: Vec<String> = headings(&text).into_iter().map(anchor).collect();
    let beside = repository().join(page).parent().unwrap().to_owned();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(to, _)| to);
    for target in targets.filter(|to| !to.starts_with("https://")) {
        match target.split_once('#') {
            Some(("", heading)) => {
                assert!(anchors.iter().any(|a| a == heading), "{page}: no heading #{heading}");
            }
            Some((file, _)) => assert!(beside.join(file).exists(), "{page}: no file {target}"),
            None => assert!(beside.join(target).exists(), "{page}: no file {target}"),
        }
    }
}

/// The lines of a page outside of blocks, and those inside.
pub(crate) fn prose_and_blocks(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut prose, mut blocks, mut in_block) = (Vec::new(), Vec::new(), false);
    for line in text.lines() {
        match line.starts_with("```") {
            true => in_block = !in_block,
            false if in_block => blocks.push(line),
            false => prose.push(line),
        }
    }
    (prose, blocks)
}

/// The headings of a page; a line of a block is none.
fn headings(text: &str) -> Vec<&str> {
    prose_and_blocks(text).0.into_iter().filter(|line| line.starts_with('#')).collect()
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
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

#[test]
fn what_has_changed_is_written_with_the_same_parts_left_out() {
    let shown = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let now = ["peak 3 GiB", "a", "b", "weights 2 GiB ██", "c", "end 7"];
    assert_eq!(as_it_is_now(&[], &now), Some(shown(&now)));
    let before = shown(&["peak 1 GiB", "…", "weights 9 MiB █", "…", "end 5"]);
    let after = shown(&["peak 3 GiB", "…", "weights 2 GiB ██", "…", "end 7"]);
    assert_eq!(as_it_is_now(&before, &now), Some(after));
    assert_eq!(as_it_is_now(&shown(&["…", "gradients 1 GiB", "…"]), &now), None, "it is gone");
    let page = "```console\n$ one\nold\n$ two\n```\n";
    let changed = vec![(2, 1, shown(&["new", "lines"])), (4, 0, shown(&["more"]))];
    assert_eq!(rewritten(page, changed), "```console\n$ one\nnew\nlines\n$ two\nmore\n```\n");
}
