//! How tables look on this terminal: its width, whether it has colours and more than ASCII, and how much is wanted.

use anstyle::{AnsiColor, Style};
use peakledger_core::{Category, printable};
use std::borrow::Cow;

/// What a table may use of the terminal, and how many rows of a long list it shows.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The columns of the terminal.
    pub width: usize,
    /// Whether colours are shown.
    pub color: bool,
    /// Whether only ASCII is written.
    pub ascii: bool,
    /// How many entries of a long list are shown; nothing for all of them.
    pub top: Option<usize>,
}

impl Default for Look {
    fn default() -> Self {
        Look { width: 80, color: false, ascii: false, top: Some(10) }
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
        Cow::Owned(text.chars().map(plain).collect())
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

    /// How many of a list of that length are shown.
    pub(crate) fn shown(&self, length: usize) -> usize {
        match self.top {
            // a list is not cut for a single entry: "and 1 more" takes the same line
            Some(top) if length > top.saturating_add(1) => top,
            _ => length,
        }
    }
}
