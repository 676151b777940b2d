//! The bar that large files show while they are read, on a terminal alone.

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
        let bar = size.filter(|_| std::io::stderr().is_terminal()).map(|size| {
            let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("reading {bar:40} {bytes} of {total_bytes}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Progress { bar }
    }

    /// So many bytes are read.
    pub(crate) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
