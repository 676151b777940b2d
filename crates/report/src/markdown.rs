//! Markdown tables, in which no name can break out of its cell.

use peakledger_core::printable;
use std::io;

/// A column by its title: text reads from the left, figures line up on the right.
#[derive(Clone, Copy)]
pub(crate) enum Column<'a> {
    Text(&'a str),
    Figures(&'a str),
}

/// A table of these columns.
pub(crate) fn table(out: &mut dyn io::Write, columns: &[Column<'_>], rows: &[Vec<String>]) -> io::Result<()> {
    let heads = columns.iter().map(|column| match *column {
        Column::Text(title) => (title, "---"),
        Column::Figures(title) => (title, "---:"),
    });
    let (titles, rules): (Vec<&str>, Vec<&str>) = heads.unzip();
    writeln!(out, "| {} |", titles.join(" | "))?;
    writeln!(out, "| {} |", rules.join(" | "))?;
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
    use super::{Column, escaped, table};

    #[test]
    fn text_is_on_the_left_and_figures_are_on_the_right() {
        let mut out = Vec::new();
        let row = ["a", "1.00 GiB", "backward"].map(str::to_owned).to_vec();
        table(&mut out, &[Column::Text("state"), Column::Figures("size"), Column::Text("in")], &[row])
            .unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "| state | size | in |\n| --- | ---: | --- |\n| a | 1.00 GiB | backward |\n"
        );
    }

    #[test]
    fn names_stay_in_their_cell() {
        assert_eq!(escaped("a|b\n| c"), r"a\|b\\n\| c");
        assert_eq!(escaped("optimizer_state"), "optimizer_state");
        assert_eq!(escaped("__init__"), r"\_\_init\_\_");
        assert_eq!(escaped("</script>"), r"\</script\>");
    }
}
