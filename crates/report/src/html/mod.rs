//! An answer as one self-contained page: pictures, their tables, and a summary that needs no script.
//!
//! Rust says what is on the page ([`Page`]); how it is drawn is in `web/`, whose build is `assets/page.html`. The document goes
//! into a hole of that file as JSON in which nothing can end the element around it. The page loads nothing, and its policy
//! (`Content-Security-Policy`) lets no script run but its own.

pub mod document;
mod of_compare;
mod of_ledger;
mod of_plan;
mod picture;
mod pyramid;
mod series;
mod states;
mod summary;

use crate::json::write_json_for_html;
pub use document::Page;
use serde::Serialize;
use std::io;

/// The page as `web/` builds it.
pub const PAGE: &str = include_str!("../../assets/page.html");

const TITLE: &str = "<!--peakledger:title-->";
const SUMMARY: &str = "<!--peakledger:summary-->";
const DOCUMENT: &str = "<!--peakledger:document-->";
const SERVER: &str = "<!--peakledger:server-->";

/// Writes the page with the document, a title and a summary in their holes.
///
/// # Errors
/// What goes wrong with `out`.
pub fn write_page(page: &Page, out: &mut dyn io::Write) -> io::Result<()> {
    fill(PAGE, Some(page), None::<&()>, out)
}

/// Writes the page as a server hands it out: with what the server can do, with or without a document, and allowed to ask that
/// server, and no other.
///
/// # Errors
/// What goes wrong with `out`.
pub fn write_served_page(
    page: Option<&Page>,
    server: &impl Serialize,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let (before, after) = around(PAGE, "connect-src 'none'")?;
    fill(&format!("{before}connect-src 'self'{after}"), page, Some(server), out)
}

/// Writes the document alone, as a page asks a server for it.
///
/// # Errors
/// What goes wrong with `out`.
pub fn write_document(page: &Page, out: &mut dyn io::Write) -> io::Result<()> {
    write_json_for_html(out, page)
}

fn fill(
    template: &str,
    page: Option<&Page>,
    server: Option<&impl Serialize>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let (head, rest) = around(template, TITLE)?;
    let (body, rest) = around(rest, SUMMARY)?;
    let (script, rest) = around(rest, DOCUMENT)?;
    let (between, rest) = around(rest, SERVER)?;
    out.write_all(head.as_bytes())?;
    match page {
        Some(page) => write!(out, "{} · peakledger", summary::escaped(&page.title))?,
        None => write!(out, "peakledger")?,
    }
    out.write_all(body.as_bytes())?;
    page.map_or(Ok(()), |page| summary::write(page, out))?;
    out.write_all(script.as_bytes())?;
    page.map_or(Ok(()), |page| write_json_for_html(out, page))?;
    out.write_all(between.as_bytes())?;
    server.map_or(Ok(()), |server| write_json_for_html(out, server))?;
    out.write_all(rest.as_bytes())
}

fn around<'a>(text: &'a str, hole: &str) -> io::Result<(&'a str, &'a str)> {
    text.split_once(hole).ok_or_else(|| io::Error::other(format!("the page of this build has no {hole}")))
}
