//! The bar that large files show while they are read, and searches while they run: on a terminal alone.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use peakledger_input::Binary;
use std::io::IsTerminal;

/// Files of less than this are read before a bar could be looked at.
const LARGE: u64 = 50 << 20;

/// How far a file is read.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of a file; what is unpacked on the way has no known end, and no bar.
    pub(crate) fn of(file: &Binary) -> Progress {
        let size = file.size().filter(|size| *size > LARGE && !file.is_packed());
        Progress { bar: size.and_then(|size| bar(size, "reading {bar:40} {bytes} of {total_bytes}")) }
    }

    /// Of so many combinations, where the answer is for people.
    pub(crate) fn of_combinations(many: u64, is_for_people: bool) -> Progress {
        let template = "planning {bar:40} {human_pos} of {human_len}, {eta} left";
        Progress { bar: if is_for_people { bar(many, template) } else { None } }
    }

    /// One more is done.
    pub(crate) fn one_more(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// So many bytes are read.
    pub(crate) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }
}

/// A bar, if there is a terminal to draw it on.
fn bar(length: u64, template: &str) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template(template);
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    })
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
