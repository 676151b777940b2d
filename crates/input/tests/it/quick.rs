//! The quick way through long lists gives what the careful way gives: the same ledger, or the same error.

use peakledger_core::document::LedgerFile;
use peakledger_input::{Input, Problem, Source, open_ledger, read_ledger};
use std::fmt::Write as _;
use std::path::PathBuf;

/// A list of so many states; every seventh has a comma, braces and the key itself in its name.
fn list(states: usize, pretty: bool) -> String {
    let phases = ["load", "forward", "loss", "backward", "update", "zero_grad"];
    let (gap, line) = if pretty { (" ", "\n ") } else { ("", "") };
    let mut text = String::from("[");
    for i in 0..states {
        let name = if i % 7 == 0 { format!("层 }},{{\\\"name\\\": {i}") } else { format!("tensor {i}") };
        let (start, end) = (phases[i % 4], phases[i % 4 + i % 3]);
        let device = if i % 5 == 0 { "cpu" } else { "gpu" };
        let comma = if i == 0 { "" } else { "," };
        write!(
            text,
            "{comma}{line}{{\"name\":{gap}\"{name}\",{gap}\"category\":{gap}\"activation\",{gap}\"size_bytes\":{gap}{i},\
             {gap}\"start_phase\":{gap}\"{start}\",{gap}\"end_phase\":{gap}\"{end}\",{gap}\"device\":{gap}\"{device}\",\
             {gap}\"persistent\":{gap}false}}"
        )
        .unwrap();
    }
    text + "]\n"
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, text: &str) -> PathBuf {
        let path = self.0.path().join("ledger.json");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// By the way that the command line goes, and by the careful way.
    fn both(&self, text: &str) -> [Result<LedgerFile, String>; 2] {
        let path = self.write(text);
        let name = path.to_str().unwrap();
        let told = |problem: Problem| problem.to_string();
        let opened = open_ledger(&Input::of(&path)).map(|(_, file)| file).map_err(told);
        [opened, read_ledger(&Source::from_text(name, text)).map_err(told)]
    }
}

#[test]
fn long_lists_are_the_same_either_way() {
    let files = Files::new();
    for pretty in [false, true] {
        let [quick, careful] = files.both(&list(30_000, pretty)); // several blocks
        let (quick, careful) = (quick.unwrap(), careful.unwrap());
        assert_eq!(quick.ledger.states(), careful.ledger.states());
        assert_eq!(quick.ledger.totals(), careful.ledger.totals());
        assert_eq!(quick.form, careful.form);
    }
}

#[test]
fn errors_in_long_lists_have_their_place() {
    let files = Files::new();
    let text = list(30_000, true);
    for (from, to, says) in [
        ("\"size_bytes\": 29999", "\"size_bytes\": -1", "(/29999/size_bytes): `size_bytes` is negative (-1)"),
        ("tensor 20001\"", "tensor 20002\"", "two states are named `tensor 20002`"),
        ("tensor 25003\",", "tensor 25003\";", "goes on without a comma"),
        ("]\n", "", "the file ends in the middle"),
        ("]\n", "] x", "more text after the end"),
    ] {
        let [quick, careful] = files.both(&text.replace(from, to));
        let quick = quick.unwrap_err();
        assert!(quick.contains(says), "{quick}");
        assert_eq!(quick, careful.unwrap_err());
    }
}

#[test]
fn every_cut_of_a_short_list_is_the_same_either_way() {
    let files = Files::new();
    let text = list(3, false);
    for end in (1..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let states = |file: LedgerFile| file.ledger.states().to_vec();
        let [quick, careful] = files.both(&text[..end]).map(|read| read.map(states));
        assert_eq!(quick, careful, "{end} bytes");
    }
}
