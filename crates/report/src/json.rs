//! JSON, in which no name acts on a terminal: what would is written as an escape, which reads back as the same name.

use peakledger_core::is_unprintable;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};
use std::io;

/// Pretty JSON and a newline after it.
pub(crate) fn write_json(out: &mut dyn io::Write, value: &impl Serialize) -> io::Result<()> {
    let formatter = Escaping(PrettyFormatter::new(), is_unprintable);
    value.serialize(&mut Serializer::with_formatter(&mut *out, formatter))?;
    writeln!(out)
}

/// JSON on one line, for the inside of an element of HTML: no name ends the element, begins a comment or is an entity.
pub(crate) fn write_json_for_html(out: &mut dyn io::Write, value: &impl Serialize) -> io::Result<()> {
    let formatter = Escaping(CompactFormatter, acts_in_html);
    Ok(value.serialize(&mut Serializer::with_formatter(&mut *out, formatter))?)
}

fn acts_in_html(c: char) -> bool {
    matches!(c, '<' | '>' | '&') || is_unprintable(c)
}

/// How many bytes a text takes in the JSON of [`write_json_for_html`], without its quotes.
pub(crate) fn length_in_html(text: &str) -> usize {
    if is_plain(text) {
        return text.len();
    }
    let length = |c: char| match c {
        '"' | '\\' => 2,
        c if c.is_control() || acts_in_html(c) => 6 * c.len_utf16(),
        c => c.len_utf8(),
    };
    text.chars().map(length).sum()
}

/// Whether a text is written as it is, which nearly every name is.
fn is_plain(text: &str) -> bool {
    let is_plain =
        |byte| matches!(byte, b' ' | b'!' | b'#'..=b'%' | b'\''..=b';' | b'=' | b'?'..=b'[' | b']'..=b'~');
    text.bytes().all(is_plain)
}

/// serde_json escapes the control characters of ASCII; this one all that a test names.
struct Escaping<F>(F, fn(char) -> bool);

/// Passes what brackets and keys look like to the formatter inside.
macro_rules! as_inside {
    ($($method:ident($($argument:ident: $kind:ty)?)),* $(,)?) => {
        $(fn $method<W: ?Sized + io::Write>(&mut self, out: &mut W $(, $argument: $kind)?) -> io::Result<()> {
            self.0.$method(out $(, $argument)?)
        })*
    };
}

impl<F: Formatter> Formatter for Escaping<F> {
    as_inside!(
        begin_array(),
        end_array(),
        begin_array_value(first: bool),
        end_array_value(),
        begin_object(),
        end_object(),
        begin_object_key(first: bool),
        begin_object_value(),
        end_object_value(),
    );

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        if is_plain(text) {
            return out.write_all(text.as_bytes());
        }
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| self.1(*c)) {
            let (before, after) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = after.get(c.len_utf8()..).unwrap_or_default();
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped_and_reads_back() {
        let names = ["plain", "\u{9b}31m", "a\u{202e}b", "\u{7f}", "层 é", "\u{feff}x\u{2028}", "\"\\\u{1b}"];
        let mut out = Vec::new();
        write_json(&mut out, &names).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(r"\u009b31m") && text.contains(r"a\u202eb") && text.contains("层 é"), "{text}");
        assert!(!text.chars().any(|c| c != '\n' && is_unprintable(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), names);
        assert_eq!(text.lines().count(), names.len() + 2, "it is pretty");
    }

    #[test]
    fn nothing_in_a_name_acts_on_html() {
        let names =
            ["</script><script>alert(1)</script>", "<!--", "&lt;", "a\u{2028}b", "层", "\"\\\u{1b}\u{e0001}"];
        let mut out = Vec::new();
        write_json_for_html(&mut out, &names).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains(['<', '>', '&']) && !text.chars().any(is_unprintable), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), names);
        let lengths: usize = names.iter().map(|name| length_in_html(name) + 3).sum();
        assert_eq!(lengths + 1, text.len());
    }
}
