//! What the page says without its script: the peak, the verdict, phases, contributors, candidates, what is not counted.

use super::document::{Page, Series};
use peakledger_core::{Bytes, printable};
use std::borrow::Cow;
use std::io;

/// Rows of a table of the summary; the page has them all.
const MOST_ROWS: usize = 40;

/// A text without effect on the HTML around it.
pub(super) fn escaped(text: &str) -> Cow<'_, str> {
    let text = printable(text);
    if !text.contains(['<', '>', '&', '"', '\'']) {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

pub(super) fn write(page: &Page, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "<h1>{}</h1>", escaped(&page.title))?;
    if let Some(subtitle) = &page.subtitle {
        writeln!(out, "<p>{}</p>", escaped(subtitle))?;
    }
    let Some(subject) = page.series.first() else { return Ok(()) };
    let peak = &subject.peak;
    let at = peak.op.as_deref().map(|op| format!(", at {}", escaped(op))).unwrap_or_default();
    let size = Bytes::new(peak.bytes.0);
    writeln!(out, "<p><strong>Peak {size}</strong> in {}{at}.</p>", escaped(&peak.phase))?;
    if let Some(verdict) = &page.verdict {
        let (answer, card) = (if verdict.fits { "Fits" } else { "Does not fit" }, escaped(&verdict.gpu));
        let [needed, capacity] = [verdict.needed, verdict.capacity].map(|exact| Bytes::new(exact.0));
        writeln!(out, "<p>{answer} {card}: it needs {needed} of {capacity}.</p>")?;
    }
    phases(subject, out)?;
    contributors(subject, out)?;
    let others = page.series.get(1..).unwrap_or_default();
    table(
        out,
        "Beside it",
        &["", "peak", "in"],
        others.iter().map(|series| {
            let peak = &series.peak;
            vec![series.name.clone(), Bytes::new(peak.bytes.0).to_string(), peak.phase.clone()]
        }),
    )?;
    for line in &page.not_counted {
        writeln!(out, "<p>Not counted: {}</p>", escaped(line))?;
    }
    Ok(())
}

fn phases(series: &Series, out: &mut dyn io::Write) -> io::Result<()> {
    let rows = series.phases.iter().map(|phase| {
        let mark = if phase.moment == series.peak.moment { "peak" } else { "" };
        vec![phase.id.clone(), Bytes::new(phase.total.0).to_string(), mark.to_owned()]
    });
    table(out, "Phases", &["phase", "largest total", ""], rows)
}

fn contributors(series: &Series, out: &mut dyn io::Write) -> io::Result<()> {
    let rows = series.contributors.iter().map(|contributor| {
        let size = Bytes::new(contributor.bytes.0).to_string();
        vec![contributor.name.clone(), size, contributor.category.to_owned()]
    });
    table(out, "At the peak", &["who", "size", "category"], rows)
}

/// A table, if it has a row.
fn table(
    out: &mut dyn io::Write,
    caption: &str,
    titles: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    let titles: String = titles.iter().map(|title| format!("<th>{title}</th>")).collect();
    writeln!(out, "<table><caption>{caption}</caption><tr>{titles}</tr>")?;
    for row in rows.by_ref().take(MOST_ROWS) {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        writeln!(out, "<tr>{cells}</tr>")?;
    }
    let more = rows.count();
    if more > 0 {
        writeln!(out, "<tr><td>and {more} more</td></tr>")?;
    }
    writeln!(out, "</table>")
}
