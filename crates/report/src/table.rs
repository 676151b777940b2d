//! The table kit: columns that line up by display width, that give way on a narrow terminal, and bars.

use crate::Look;
use anstyle::Style;
use peakledger_core::ByCategory;
use std::borrow::Cow;
use std::io;
use unicode_width::UnicodeWidthStr;

/// A table of one terminal width.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A column: its title, its side, and what becomes of it where there is no room.
pub(crate) struct Column {
    title: Cow<'static, str>,
    right: bool,
    fit: Fit,
}

enum Fit {
    /// Is always shown whole.
    Whole,
    /// Is cut where there is no room.
    Cut,
    /// Is left out where there is no room, the last of several first.
    Optional,
    /// Takes what room is left; a bar of `full` fills it.
    Bar { full: u64 },
}

/// What is in a table.
pub(crate) enum Cell {
    Text(String, Style),
    /// Lengths one after the other.
    Bar(Vec<(u64, Style)>),
}

impl Column {
    pub(crate) fn left(title: impl Into<Cow<'static, str>>) -> Column {
        Column { title: title.into(), right: false, fit: Fit::Whole }
    }

    pub(crate) fn right(title: impl Into<Cow<'static, str>>) -> Column {
        Column { title: title.into(), right: true, fit: Fit::Whole }
    }

    pub(crate) fn bar(full: u64) -> Column {
        Column { title: Cow::Borrowed(""), right: false, fit: Fit::Bar { full } }
    }

    pub(crate) fn cut(self) -> Column {
        Column { fit: Fit::Cut, ..self }
    }

    pub(crate) fn optional(self) -> Column {
        Column { fit: Fit::Optional, ..self }
    }
}

impl Cell {
    pub(crate) fn plain(text: impl Into<String>) -> Cell {
        Cell::Text(text.into(), Style::new())
    }

    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Cell {
        Cell::Text(text.into(), style)
    }

    /// A bar of the categories, each in its colour.
    pub(crate) fn categories(by_category: &ByCategory, look: &Look) -> Cell {
        Cell::Bar(by_category.iter().map(|(c, bytes)| (bytes.get(), look.category(c))).collect())
    }

    fn width(&self) -> usize {
        match self {
            Cell::Text(text, _) => text.width(),
            Cell::Bar(_) => 0,
        }
    }
}

const WIDEST_BAR: usize = 40;
const NARROWEST_BAR: usize = 5;
const NARROWEST_CUT: usize = 5;

impl Table {
    pub(crate) fn new(columns: Vec<Column>) -> Table {
        Table { columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Writes the table; with a line of titles above it where a column has one and there is room, and below it which columns have
    /// none.
    pub(crate) fn write(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let gap = if look.width < 60 { 1 } else { 2 };
        let widths = self.widths(look.width, gap);
        if self.columns.iter().any(|column| !column.title.is_empty()) && look.width >= 40 {
            let titles = self.columns.iter().map(|column| Cell::styled(column.title.as_ref(), look.faint()));
            self.line(out, look, &titles.collect::<Vec<_>>(), &widths, gap)?;
        }
        self.rows.iter().try_for_each(|row| self.line(out, look, row, &widths, gap))?;
        let left_out = self.columns.iter().zip(&widths).filter(|(_, width)| width.is_none());
        let titles: Vec<&str> =
            left_out.map(|(column, _)| column.title.as_ref()).filter(|title| !title.is_empty()).collect();
        // on a phone there is no room for that either
        if titles.is_empty() || look.width < 60 {
            return Ok(());
        }
        let whole = self.widths(usize::MAX, gap);
        let whole =
            whole.iter().flatten().sum::<usize>() + gap * whole.iter().flatten().count().saturating_sub(1);
        let line = format!("without room: {} (COLUMNS={whole} shows them)", titles.join(", "));
        prose(out, look, look.faint(), &line)
    }

    /// The width of each column; nothing for those that are left out.
    fn widths(&self, room: usize, gap: usize) -> Vec<Option<usize>> {
        let natural = |(at, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(at)).map(Cell::width);
            Some(cells.chain([column.title.width()]).max().unwrap_or(0))
        };
        let mut widths: Vec<Option<usize>> = self.columns.iter().enumerate().map(natural).collect();
        let taken = |widths: &[Option<usize>]| -> usize {
            let shown = widths.iter().flatten();
            shown.clone().sum::<usize>() + gap * shown.count().saturating_sub(1)
        };
        let fits: Vec<&Fit> = self.columns.iter().map(|column| &column.fit).collect();
        for (width, fit) in widths.iter_mut().zip(&fits) {
            if matches!(fit, Fit::Bar { .. }) {
                *width = None;
            }
        }
        while taken(&widths) > room {
            let shown = widths.iter_mut().zip(&fits).rev();
            match shown.filter(|(width, _)| width.is_some()).find(|(_, fit)| matches!(fit, Fit::Optional)) {
                Some((width, _)) => *width = None,
                None => break,
            }
        }
        let over = taken(&widths).saturating_sub(room);
        if let Some((Some(width), _)) = widths.iter_mut().zip(&fits).find(|(_, fit)| matches!(fit, Fit::Cut))
        {
            *width = width.saturating_sub(over).max(NARROWEST_CUT.min(*width));
        }
        let left = room.saturating_sub(taken(&widths) + gap);
        if left >= NARROWEST_BAR {
            let bar = widths.iter_mut().zip(&fits).find(|(_, fit)| matches!(fit, Fit::Bar { .. }));
            if let Some((width, _)) = bar {
                *width = Some(left.min(WIDEST_BAR));
            }
        }
        widths
    }

    fn line(
        &self,
        out: &mut dyn io::Write,
        look: &Look,
        cells: &[Cell],
        widths: &[Option<usize>],
        gap: usize,
    ) -> io::Result<()> {
        let mut owed = 0; // spaces that are written only if something follows: no line ends in blanks
        let mut first = true;
        for ((cell, column), width) in cells.iter().zip(&self.columns).zip(widths) {
            let Some(width) = *width else { continue };
            if !first {
                owed += gap;
            }
            first = false;
            let (text, used) = match (cell, &column.fit) {
                (Cell::Bar(parts), Fit::Bar { full }) => bar(parts, *full, width, look),
                (Cell::Bar(_), _) => (String::new(), 0),
                (Cell::Text(text, style), _) => {
                    let text = clip(text, width, look);
                    let used = text.width();
                    (if text.is_empty() { text } else { format!("{style}{text}{style:#}") }, used)
                }
            };
            let blank = width.saturating_sub(used);
            if column.right {
                owed += blank;
            }
            if used > 0 {
                write!(out, "{:owed$}{text}", "")?;
                owed = 0;
            }
            if !column.right {
                owed += blank;
            }
        }
        writeln!(out)
    }
}

/// The text cut to a display width, with an ellipsis in the middle: the ends of names tell most.
pub(crate) fn clip(text: &str, width: usize, look: &Look) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let ellipsis = look.ellipsis();
    let room = width.saturating_sub(ellipsis.width());
    let fits = |part: &str, room: usize| part.width() <= room;
    let starts = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let head = starts.filter_map(|end| text.get(..end)).take_while(|head| fits(head, room / 2)).last();
    let head = head.unwrap_or_default();
    let tails = text.char_indices().rev().filter_map(|(at, _)| text.get(at..));
    let tail =
        tails.take_while(|tail| fits(tail, room.saturating_sub(head.width()))).last().unwrap_or_default();
    format!("{head}{ellipsis}{tail}")
}

/// Writes a sentence over as many lines as it takes.
pub(crate) fn prose(out: &mut dyn io::Write, look: &Look, style: Style, text: &str) -> io::Result<()> {
    entry(out, look, style, "", text)
}

/// Writes a sentence after a label; further lines begin under the sentence where there is room.
pub(crate) fn entry(
    out: &mut dyn io::Write,
    look: &Look,
    style: Style,
    label: &str,
    text: &str,
) -> io::Result<()> {
    let narrow = look.width < 40;
    let indent = if narrow { 0 } else { label.width() };
    // on a narrow terminal the label is a word like the others
    let words = label.trim().split(' ').filter(|word| narrow && !word.is_empty());
    let mut line = if narrow { String::new() } else { label.to_owned() };
    let mut fresh = true;
    for word in words.chain(text.split(' ')) {
        if !fresh && line.width() + 1 + word.width() > look.width {
            writeln!(out, "{style}{line}{style:#}")?;
            line = " ".repeat(indent);
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line.push_str(&clip(word, look.width.saturating_sub(indent), look));
        fresh = false;
    }
    writeln!(out, "{style}{line}{style:#}")
}

const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A bar of several parts that is `width` cells long at `full`, and the cells that it takes.
fn bar(parts: &[(u64, Style)], full: u64, width: usize, look: &Look) -> (String, usize) {
    let total: u128 = parts.iter().map(|(length, _)| u128::from(*length)).sum();
    let cells = |length: u128, per_cell: u128| -> usize {
        let (scaled, full) = (length * width as u128 * per_cell, u128::from(full));
        let rounded = (scaled + full / 2).checked_div(full).unwrap_or(0);
        usize::try_from(rounded).unwrap_or(0).min(width * 8)
    };
    // what is not nothing is seen
    let eighths = if look.ascii { 8 * cells(total, 1).max(1) } else { cells(total, 8).max(1) };
    if total == 0 {
        return (String::new(), 0);
    }
    let (whole, rest) = (eighths / 8, EIGHTHS.get(eighths % 8).copied().unwrap_or_default());
    let block = if look.ascii { "#" } else { "█" };
    let (mut text, mut drawn, mut sum) = (String::new(), 0, 0);
    let mut last = Style::new();
    for (length, style) in parts.iter().filter(|(length, _)| *length > 0) {
        sum += u128::from(*length);
        let end = if sum == total { whole } else { cells(sum, 1).min(whole) };
        if end > drawn {
            text.push_str(&format!("{style}{}{style:#}", block.repeat(end - drawn)));
            drawn = end;
        }
        last = *style;
    }
    if rest.is_empty() {
        return (text, whole);
    }
    text.push_str(&format!("{last}{rest}{last:#}"));
    (text, whole + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(parts: &[u64], full: u64, width: usize, ascii: bool) -> String {
        let parts: Vec<(u64, Style)> = parts.iter().map(|length| (*length, Style::new())).collect();
        bar(&parts, full, width, &Look { ascii, ..Look::default() }).0
    }

    #[test]
    fn bars_are_exact_to_an_eighth() {
        assert_eq!(plain(&[100], 100, 4, false), "████");
        assert_eq!(plain(&[30, 20], 100, 4, false), "██");
        assert_eq!(plain(&[40], 100, 4, false), "█▋"); // 1.6 cells: 12.8 eighths
        assert_eq!(plain(&[1], 1_000_000, 4, false), "▏", "what is not nothing is seen");
        assert_eq!(plain(&[0], 100, 4, false), "");
        assert_eq!(plain(&[0], 0, 4, false), "");
        assert_eq!(plain(&[40], 100, 4, true), "##");
        assert_eq!(plain(&[u64::MAX], u64::MAX, 40, false).chars().count(), 40);
    }

    /// The categories are drawn at their running sums, so no rounding of theirs shortens the bar.
    #[test]
    fn a_full_bar_of_many_categories_is_full_and_any_bar_is_as_long_as_its_sum() {
        for parts in [&[1, 1, 1][..], &[7; 7], &[1, 1_000_000, 1], &[5, 0, 5, 90, 3], &[u64::MAX / 3; 3]] {
            let total: u64 = parts.iter().sum();
            for ascii in [false, true] {
                for width in [5, 18, 38, 40] {
                    let cells = plain(parts, total, width, ascii).chars().count();
                    assert_eq!(cells, width, "{parts:?}, ascii: {ascii}");
                    let (many, one) =
                        [parts, &[total]].map(|parts| plain(parts, u64::MAX, width, ascii)).into();
                    assert_eq!(many, one, "{parts:?} in {width} cells, ascii: {ascii}");
                }
            }
        }
    }

    #[test]
    fn colours_are_there_only_where_they_are_wanted() {
        let draw = |color: bool| {
            let look = Look { color, width: 30, ..Look::default() };
            let mut table =
                Table::new(vec![Column::left("").cut(), Column::bar(4), Column::right("").optional()]);
            let green = look.saving(1);
            table.row(vec![
                Cell::styled("name", green),
                Cell::Bar(vec![(1, green), (1, look.bold())]),
                Cell::plain("7"),
            ]);
            let mut out = Vec::new();
            table.write(&mut out, &look).unwrap();
            String::from_utf8(out).unwrap()
        };
        let (plain, color) = (draw(false), draw(true));
        assert_eq!(plain, "name ███████████▌            7\n");
        assert!(color.contains("\u{1b}[32mname\u{1b}[0m"), "{color:?}");
        let stripped = color.replace("\u{1b}[32m", "").replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_eq!(stripped, plain, "colours change no column");
    }

    #[test]
    fn no_line_is_wider_than_a_narrow_terminal() {
        let look = Look { width: 20, ..Look::default() };
        for label in ["", "  ", "not counted: ", "model      "] {
            let mut out = Vec::new();
            let text = "transformers 5.24 modules (modeling_llama_and_more.py) on torch";
            entry(&mut out, &look, Style::new(), label, text).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.lines().all(|line| line.width() <= 20 && line == line.trim()), "{text}");
        }
    }

    #[test]
    fn names_are_cut_in_the_middle_by_display_width() {
        let look = Look::default();
        assert_eq!(clip("model.layers.0.mlp", 9, &look), "mode….mlp");
        assert_eq!(clip("层层层层层", 7, &look), "层…层层");
        assert_eq!(clip("abcdefgh", 6, &Look { ascii: true, ..look }), "a...gh");
        assert_eq!(clip("short", 5, &look), "short");
        assert_eq!(clip("abcdef", 1, &look), "…");
    }
}
