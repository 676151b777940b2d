//! How far a long work is: a bar on a terminal, for large files while they are read and for searches while they run. A search
//! whose standard error goes elsewhere, into a log, say, writes a line there now and then.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use peakledger_input::Binary;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Files of less than this are read before a bar could be looked at.
const LARGE: u64 = 50 << 20;

/// How often a log is told: often enough to see that it goes on, and never of what is done at once.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// How far it is.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    log: Option<Log>,
}

impl Progress {
    /// Of a file; what is unpacked on the way has no known end, and no bar.
    pub(crate) fn of(file: &Binary) -> Progress {
        let size = file.size().filter(|size| *size > LARGE && !file.is_packed());
        let bar = size.and_then(|size| bar(size, "reading {bar:40} {bytes} of {total_bytes}"));
        Progress { bar, log: None }
    }

    /// Of so many of these that are planned; a program that asks is told nothing.
    pub(crate) fn of_plans(many: u64, these: &'static str, output: &Output) -> Progress {
        let template = "planning {bar:40} {human_pos} of {human_len}, {eta} left";
        let is_log = !output.is_heard() && !io::stderr().is_terminal();
        Progress {
            bar: if output.is_for_people() { bar(many, template) } else { None },
            log: is_log.then(|| Log::of(many, these, BETWEEN_LINES)),
        }
    }

    /// One more is done.
    pub(crate) fn one_more(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        if let Some(line) = self.log.as_ref().and_then(|log| log.one_more(Instant::now())) {
            // nobody is left to tell where standard error is closed
            let _closed = writeln!(io::stderr(), "{line}");
        }
    }

    /// So many bytes are read.
    pub(crate) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }
}

/// What a log is told of so many things that are done one after the other.
struct Log {
    many: u64,
    these: &'static str,
    started: Instant,
    between: Duration,
    done: AtomicU64,
    /// How many lines there were.
    said: AtomicU64,
}

impl Log {
    fn of(many: u64, these: &'static str, between: Duration) -> Log {
        Log {
            many,
            these,
            started: Instant::now(),
            between,
            done: AtomicU64::new(0),
            said: AtomicU64::new(0),
        }
    }

    /// One more is done, and it is then: a line where it is time for one.
    fn one_more(&self, now: Instant) -> Option<String> {
        let done = self.done.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let passed = now.saturating_duration_since(self.started);
        let (seconds, between) = (passed.as_secs(), self.between.as_secs().max(1));
        let (due, said) = (seconds / between, self.said.load(Ordering::Relaxed));
        let is_mine = due > said
            && done < self.many
            && self.said.compare_exchange(said, due, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let left = u128::from(seconds) * u128::from(self.many.saturating_sub(done)) / u128::from(done.max(1));
        is_mine.then(|| format!("planned {done} of {} {}, about {left} s left", self.many, self.these))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_a_line_now_and_then() {
        let log = Log::of(100, "combinations", Duration::from_secs(10));
        let at = |seconds| log.one_more(log.started + Duration::from_secs(seconds));
        assert_eq!((at(0), at(9)), (None, None));
        assert_eq!(at(10).as_deref(), Some("planned 3 of 100 combinations, about 323 s left"));
        assert_eq!((at(10), at(19)), (None, None));
        assert_eq!(at(45).as_deref(), Some("planned 6 of 100 combinations, about 705 s left"));
        assert_eq!(at(49), None, "what was missed is not made up for");
    }
}
