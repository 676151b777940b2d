//! Markdown tables, in which no name can break out of its cell.

use peakledger_core::printable;
use std::io;

/// A table whose first column is text and whose others are figures.
pub(crate) fn table(out: &mut dyn io::Write, titles: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    writeln!(out, "| {} |", titles.join(" | "))?;
    let figures = " ---: |".repeat(titles.len().saturating_sub(1));
    writeln!(out, "| --- |{figures}")?;
    rows.iter().try_for_each(|row| writeln!(out, "| {} |", row.join(" | ")))
}

/// A name from a file, without effect on the markdown around it.
pub(crate) fn escaped(name: &str) -> String {
    let name = printable(name);
    let mut text = String::with_capacity(name.len());
    let mut before = ' ';
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let after = rest.peek().copied().unwrap_or(' ');
        let emphasis = c == '_' && !(before.is_alphanumeric() && after.is_alphanumeric());
        if emphasis || matches!(c, '\\' | '`' | '*' | '[' | ']' | '|' | '~' | '<' | '>' | '&' | '$') {
            text.push('\\');
        }
        text.push(c);
        before = c;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn names_stay_in_their_cell() {
        assert_eq!(escaped("a|b\n| c"), r"a\|b\\n\| c");
        assert_eq!(escaped("optimizer_state"), "optimizer_state");
        assert_eq!(escaped("__init__"), r"\_\_init\_\_");
        assert_eq!(escaped("</script>"), r"\</script\>");
    }
}
