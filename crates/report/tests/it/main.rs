//! What people and programs read of a measured step, format by format.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used)]

mod oom;
mod ranks;
mod replay;
mod timeline;
mod trace;

use peakledger_report::{Format, Look, Report, write};

/// The report in a format, as a narrow terminal without colours shows it.
fn said(report: &dyn Report, format: Format) -> String {
    let mut out = Vec::new();
    write(report, format, &Look { width: 100, ..Look::default() }, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// No line of a table is wider than the terminal, and in ASCII there is nothing else.
fn holds_on_any_terminal(report: &dyn Report) {
    for (width, ascii) in [(20, false), (40, true), (60, true), (200, false)] {
        let mut out = Vec::new();
        write(report, Format::Table, &Look { width, ascii, ..Look::default() }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
        assert!(!ascii || text.is_ascii(), "{text}");
    }
}
