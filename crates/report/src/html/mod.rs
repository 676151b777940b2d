//! An answer as one self-contained page: pictures, their tables, and a summary that needs no script.
//!
//! Rust says what is on the page ([`Page`]); how it is drawn is in `web/`, whose build is `assets/page.html`. The document goes
//! into a hole of that file as JSON in which nothing can end the element around it. The page loads nothing, and its policy
//! (`Content-Security-Policy`) lets no script run but its own.

pub mod document;
mod of_compare;
mod of_ledger;
mod of_plan;
mod pyramid;
mod series;
mod states;
mod summary;

use crate::json::write_json_for_html;
pub use document::Page;
use std::io;

/// The page as `web/` builds it.
pub const PAGE: &str = include_str!("../../assets/page.html");

const TITLE: &str = "<!--peakledger:title-->";
const SUMMARY: &str = "<!--peakledger:summary-->";
const DOCUMENT: &str = "<!--peakledger:document-->";

/// Writes the page with the document, a title and a summary in their holes.
///
/// # Errors
/// What goes wrong with `out`.
pub fn write_page(page: &Page, out: &mut dyn io::Write) -> io::Result<()> {
    let (head, rest) = around(PAGE, TITLE)?;
    let (body, rest) = around(rest, SUMMARY)?;
    let (script, rest) = around(rest, DOCUMENT)?;
    write!(out, "{head}{} · peakledger{body}", summary::escaped(&page.title))?;
    summary::write(page, out)?;
    out.write_all(script.as_bytes())?;
    write_json_for_html(out, page)?;
    out.write_all(rest.as_bytes())
}

fn around<'a>(text: &'a str, hole: &str) -> io::Result<(&'a str, &'a str)> {
    text.split_once(hole).ok_or_else(|| io::Error::other(format!("the page of this build has no {hole}")))
}
