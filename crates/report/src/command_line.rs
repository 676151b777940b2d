//! A command that is to be pasted into a shell, on lines that fit the terminal.

use crate::Look;
use std::io;
use unicode_width::UnicodeWidthStr;

/// Writes it under an indent; a line that is broken ends as a shell has it continued. Lines that it has already, a file that
/// is written first, stay as they are.
pub(crate) fn write(out: &mut dyn io::Write, look: &Look, command: &str) -> io::Result<()> {
    let (before, last) = command.rsplit_once('\n').unwrap_or(("", command));
    for line in before.lines() {
        writeln!(out, "{}", look.name(line))?;
    }
    let mut line = String::new();
    for word in with_values(words(last)) {
        let word = look.name(&word);
        if !line.is_empty() && line.width() + word.width() + 5 > look.width {
            writeln!(out, "{line} \\")?;
            line = "   ".to_owned();
        }
        line += if line.is_empty() { "  " } else { " " };
        line += &word;
    }
    writeln!(out, "{line}")
}

/// The words with each option's value beside it.
fn with_values(words: Vec<&str>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::with_capacity(words.len());
    for word in words {
        let of_option = |last: &&mut String| last.starts_with("--") && !last.contains(['=', ' ']);
        match joined.last_mut().filter(of_option).filter(|_| !word.starts_with("--")) {
            Some(option) => *option = format!("{option} {word}"),
            None => joined.push(word.to_owned()),
        }
    }
    joined
}

/// The words of a line as a shell parts it: a space between quotes parts nothing.
fn words(line: &str) -> Vec<&str> {
    let (mut words, mut from) = (Vec::new(), 0);
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if !quoted => escaped = true,
            '\'' => quoted = !quoted,
            ' ' if !quoted => {
                words.extend(line.get(from..at).filter(|word| !word.is_empty()));
                from = at + 1;
            }
            _ => {}
        }
    }
    words.extend(line.get(from..).filter(|word| !word.is_empty()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_has_it_as_one_command() {
        let written = |command: &str, width| {
            let mut out = Vec::new();
            write(&mut out, &Look { width, ..Look::default() }, command).unwrap();
            String::from_utf8(out).unwrap()
        };
        let command = r"peakledger plan 'a folder/it'\''s one' --gpu t4 '--freeze=model.*' --batch=1";
        assert_eq!(words(command).len(), 7);
        assert!(written(command, 40).contains(" --gpu t4"));
        assert_eq!(written(command, 200), format!("  {command}\n"));
        for width in [20, 30, 40, 60] {
            let lines = written(command, width);
            assert!(lines.lines().count() > 1, "{lines}");
            let whole: Vec<&str> = lines.lines().map(|line| line.trim_end_matches('\\').trim()).collect();
            assert_eq!(whole.join(" "), command);
            assert!(lines.trim_end().lines().rev().skip(1).all(|line| line.ends_with(" \\")), "{lines}");
        }
        assert_eq!(
            written("cat > a <<'END'\n{}\nEND\npeakledger plan a", 80),
            "cat > a <<'END'\n{}\nEND\n  peakledger plan a\n"
        );
    }
}
