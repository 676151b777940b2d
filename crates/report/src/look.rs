//! How tables look on this terminal: its width, whether it has colours and more than ASCII, and how much is wanted.

use anstyle::{AnsiColor, Style};
use peakledger_core::{Category, printable};
use std::borrow::Cow;

/// The longest table that is shown whole, unless all of it is asked for.
const MOST_ROWS: usize = 100;

/// What a table may use of the terminal, and how many rows of a long list it shows.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The columns of the terminal.
    pub width: usize,
    /// Whether colours are shown.
    pub color: bool,
    /// Whether it is written to a terminal, which acts on control characters.
    pub terminal: bool,
    /// Whether the width is that of a terminal or was said, and is not only a guess.
    pub known_width: bool,
    /// Whether only ASCII is written.
    pub ascii: bool,
    /// Whether the timeline is drawn.
    pub plot: bool,
    /// How many entries of a long list are shown; nothing for all of them.
    pub top: Option<usize>,
}

impl Default for Look {
    fn default() -> Self {
        Look {
            width: 80,
            color: false,
            terminal: false,
            known_width: false,
            ascii: false,
            plot: false,
            top: Some(10),
        }
    }
}

impl Look {
    pub(crate) fn style(&self, style: Style) -> Style {
        if self.color { style } else { Style::new() }
    }

    pub(crate) fn bold(&self) -> Style {
        self.style(Style::new().bold())
    }

    pub(crate) fn faint(&self) -> Style {
        self.style(Style::new().dimmed())
    }

    pub(crate) fn category(&self, category: Category) -> Style {
        let color = match category {
            Category::Parameter => AnsiColor::Blue,
            Category::MasterWeight => AnsiColor::BrightBlue,
            Category::Gradient => AnsiColor::Yellow,
            Category::OptimizerState => AnsiColor::Magenta,
            Category::Activation => AnsiColor::Green,
            Category::Workspace => AnsiColor::Red,
            Category::CommunicationBuffer => AnsiColor::Cyan,
        };
        self.style(color.on_default())
    }

    /// Green where memory is saved, red where more is needed.
    pub(crate) fn saving(&self, saving: i128) -> Style {
        match saving {
            0 => Style::new(),
            saving if saving < 0 => self.style(AnsiColor::Red.on_default()),
            _ => self.style(AnsiColor::Green.on_default()),
        }
    }

    /// Green where it fits, red where it does not.
    pub(crate) fn verdict(&self, fits: bool) -> Style {
        self.saving(if fits { 1 } else { -1 })
    }

    /// A name from a file, safe to print here.
    pub(crate) fn name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        if self.ascii && !name.is_ascii() {
            return Cow::Owned(name.escape_default().to_string());
        }
        printable(name)
    }

    /// Words of our own, in ASCII where that is asked for.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.ascii || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let plain = |c: char| match c {
            '·' => '/',
            '–' => '-',
            '×' => 'x',
            c => c,
        };
        Cow::Owned(text.replace('±', "+/-").chars().map(plain).collect())
    }

    /// The mark for the part of a name that is left out.
    pub(crate) fn ellipsis(&self) -> &'static str {
        if self.ascii { "..." } else { "…" }
    }

    pub(crate) fn arrow(&self) -> &'static str {
        if self.ascii { "->" } else { "→" }
    }

    /// The mark before the peak's row.
    pub(crate) fn marker(&self) -> &'static str {
        if self.ascii { ">" } else { "▶" }
    }

    /// A cell of CSV: as it is for a program, and safe to print on a terminal.
    pub(crate) fn cell(&self, text: String) -> String {
        match self.terminal {
            true => printable(&text).into_owned(),
            false => text,
        }
    }

    /// Which rows of a table of so many are shown: all of one that can be looked over; of a longer one the beginning, the
    /// end and what is around the peak, with nothing where rows are left out. And what is said of those.
    pub(crate) fn rows(
        &self,
        length: usize,
        peak: usize,
        what: &str,
    ) -> (Vec<Option<usize>>, Option<String>) {
        if self.top.is_none() || length <= MOST_ROWS {
            return ((0..length).map(Some).collect(), None);
        }
        let is_shown = |at: &usize| *at < 8 || *at + 7 >= length || at.abs_diff(peak) <= 2;
        let (mut rows, mut left_out) = (Vec::new(), 0usize);
        for at in 0..length {
            let row = Some(at).filter(is_shown);
            left_out += usize::from(row.is_none());
            if row.is_some() || rows.last() != Some(&None) {
                rows.push(row);
            }
        }
        (rows, Some(format!("and {left_out} more {what} (--all shows them)")))
    }

    /// How many of a list of that length are shown.
    pub(crate) fn shown(&self, length: usize) -> usize {
        match self.top {
            // a list is not cut for a single entry: "and 1 more" takes the same line
            Some(top) if length > top.saturating_add(1) => top,
            _ => length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_tables_show_their_ends_and_the_peak() {
        let rows = |length, peak| Look::default().rows(length, peak, "rows");
        let whole = |length| ((0..length).map(Some).collect::<Vec<_>>(), None);
        assert_eq!((rows(0, 0), rows(100, 99)), (whole(0), whole(100)));
        assert_eq!(Look { top: None, ..Look::default() }.rows(1000, 500, "rows"), whole(1000));
        let (shown, more) = rows(1000, 500);
        let parts: Vec<Vec<usize>> =
            shown.split(Option::is_none).map(|part| part.iter().flatten().copied().collect()).collect();
        assert_eq!(parts, [(0..8).collect(), (498..503).collect(), (993..1000).collect::<Vec<_>>()]);
        assert_eq!(more.as_deref(), Some("and 980 more rows (--all shows them)"));
        for peak in [0, 7, 9, 10, 990, 999] {
            assert!(rows(1000, peak).0.contains(&Some(peak)));
        }
    }
}
