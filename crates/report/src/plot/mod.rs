//! A timeline on a terminal: a column of blocks for each stretch of it, as it is at its largest.
//!
//! Here is what all pictures share: the axes, the height of a column, the names under it.

mod ledger;
mod levels;

pub(crate) use ledger::ledger;
pub(crate) use levels::levels;

use crate::Look;
use anstyle::Style;
use peakledger_core::Bytes;
use std::io;
use unicode_width::UnicodeWidthStr;

const ROWS: usize = 10;
const WIDEST: usize = 120;
const NARROWEST: usize = 10;
const EIGHTHS: [&str; 9] = ["", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// The axes of a picture.
struct Axes {
    /// What the full height is.
    full: Bytes,
    /// How many columns there are.
    columns: usize,
}

/// A block and its colour.
type Cell = Option<(&'static str, Style)>;

impl Axes {
    /// As wide as there is room for, and none where there is nothing to draw or no room.
    fn of(full: Bytes, look: &Look) -> Option<Axes> {
        let columns = look.width.min(WIDEST).saturating_sub(full.to_string().width() + 2);
        (full > Bytes::ZERO && columns >= NARROWEST).then_some(Axes { full, columns })
    }

    /// How high so many bytes are, in eighths of a row; what is there is seen.
    fn eighths(&self, bytes: u128) -> usize {
        usize::try_from((bytes * 8 * ROWS as u128).div_ceil(u128::from(self.full.get()))).unwrap_or(0)
    }

    /// Draws the columns: what is in each row of each, counted from the ground, and the names under them.
    fn draw(
        &self,
        out: &mut dyn io::Write,
        look: &Look,
        names: &[(usize, String)],
        cell: impl Fn(usize, usize) -> Cell,
    ) -> io::Result<()> {
        let label = self.full.to_string();
        let width = label.width();
        let (axis, corner, line) = if look.ascii { ("|", "+", "-") } else { ("│", "└", "─") };
        for row in (0..ROWS).rev() {
            let title = if row + 1 == ROWS { label.as_str() } else { "" };
            write!(out, "{title:>width$} {axis}")?;
            let mut owed = 0; // no line ends in blanks
            for column in 0..self.columns {
                match cell(column, row) {
                    None => owed += 1,
                    Some((block, style)) => {
                        write!(out, "{:owed$}{style}{block}{style:#}", "")?;
                        owed = 0;
                    }
                }
            }
            writeln!(out)?;
        }
        writeln!(out, "{:>width$} {corner}{}", "0", line.repeat(self.columns))?;
        let (names, faint) = (self.names(names, look), look.faint());
        writeln!(out, "{:width$}  {faint}{names}{faint:#}", "")
    }

    /// Names, each where its column is or as near to it as the end lets it, as far as there is room.
    fn names(&self, names: &[(usize, String)], look: &Look) -> String {
        let (mut line, mut width) = (String::new(), 0);
        for (column, name) in names {
            let name = look.name(name);
            let start = (*column).min(self.columns.saturating_sub(name.width()));
            if (width == 0 || start > width) && start + name.width() <= self.columns {
                let blank = start.saturating_sub(width);
                line.push_str(&" ".repeat(blank));
                line.push_str(&name);
                width += blank + name.width();
            }
        }
        line
    }
}

/// The block of a cell that is filled so many eighths high.
fn block(eighths: usize, look: &Look) -> &'static str {
    if look.ascii { "#" } else { EIGHTHS.get(eighths).copied().unwrap_or("█") }
}
