//! What a search has no values of, where nothing fits of what it has: which of it helps, and what to type.

use super::{SearchReport, SearchRow};
use crate::figures::grouped;
use crate::table::{Cell, Column, Table, prose};
use crate::times::TimeJson;
use crate::verdict::{headroom, short_answer};
use crate::{Look, command_line, markdown};
use peakledger_core::Bytes;
use serde::Serialize;
use std::io;

/// A combination with more options than the search varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// What it has beside the options of the combination.
    pub with: String,
    /// Whether the step then computes something else: in other types, with another optimizer, of fewer parameters.
    pub trains_otherwise: bool,
    /// Followed by the options of the combination and by what it has beside them, it plans it.
    pub command: String,
    /// The combination, what it takes and costs so.
    pub row: SearchRow,
}

/// What is decided already of what a search would vary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// What a search calls it.
    pub name: String,
    /// As options of the command line.
    pub options: String,
    /// The file that says it; nothing where the command line does.
    pub by: Option<String>,
}

#[derive(Serialize)]
pub(super) struct BeyondJson<'a> {
    /// What it has beside the options of a combination.
    with: &'a str,
    name: String,
    /// All options, which follow its command.
    options: String,
    command: &'a str,
    fits: bool,
    headroom_bytes: i128,
    /// How much less it takes than the closest combination.
    saved_bytes: u64,
    /// The theoretical times of its step, where the card's rates are known.
    theoretical: Option<TimeJson>,
    trains_otherwise: bool,
}

#[derive(Serialize)]
pub(super) struct FixedJson<'a> {
    name: &'a str,
    options: &'a str,
    by: Option<&'a str>,
}

/// What is said of the levers that are shown.
const LEVERS: &str =
    "what the search does not vary, each on the combination near the closest that it helps most";

/// Who is told that nothing else helps.
const NO_LEVER: &str = "nothing else that is planned makes a combination near the closest take less";

impl SearchReport<'_> {
    /// All options of one.
    fn options_beyond(&self, beyond: &Beyond) -> String {
        let options = self.options_of(&beyond.row);
        format!("{} {options}", beyond.with)
    }

    /// How much less it takes than the closest combination.
    fn saved(&self, beyond: &Beyond) -> Bytes {
        let closest = self.closest().map_or(0, |row| row.tried.verdict.needed.get());
        Bytes::new(closest.saturating_sub(beyond.row.tried.verdict.needed.get()))
    }

    /// `with --cp 2 it fits: tp 8, batch 1: 1.92 s in theory, 3.20 GiB to spare`
    pub(super) fn beyond_line(&self) -> Option<String> {
        let best = self.beyond.first()?;
        let fits = if best.row.tried.verdict.fits() { "it fits" } else { "it comes closer" };
        let time = best.row.time().map(|time| format!("{time} in theory, ")).unwrap_or_default();
        let otherwise = if best.trains_otherwise { ", and trains otherwise" } else { "" };
        let spare = headroom(best.row.tried.verdict);
        Some(format!("with {} {fits}{otherwise}: {}: {time}{spare}", best.with, self.name_of(&best.row)))
    }

    /// The whole command of the first.
    pub(super) fn beyond_command(&self) -> Option<String> {
        let best = self.beyond.first()?;
        Some(format!("{} {}", best.command, self.options_beyond(best)))
    }

    pub(super) fn write_beyond(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        if self.closest().is_none() {
            return Ok(());
        }
        writeln!(out)?;
        if self.beyond.is_empty() {
            return prose(out, look, look.faint(), NO_LEVER);
        }
        prose(out, look, look.bold(), LEVERS)?;
        let columns =
            [Column::left("with"), Column::left("fits"), Column::right("takes"), Column::right("saves")];
        let columns = columns.into_iter().chain([Column::right("in theory").optional()]);
        let shown = look.shown(self.beyond.len());
        let rows = self.beyond.iter().take(shown).map(|beyond| self.cells_beyond(beyond));
        let rows: Vec<[String; 7]> = rows.collect();
        let elsewhere = rows.iter().any(|[.., on]| !on.is_empty());
        let on = elsewhere.then(|| Column::left("where not on the closest, on").optional());
        let columns = columns.chain([Column::left("trains")]).chain(on);
        let mut table = Table::new(columns.collect());
        for row in rows {
            let cells = row.into_iter().take(if elsewhere { 7 } else { 6 });
            table.row(cells.map(|cell| Cell::plain(look.name(&cell))).collect());
        }
        table.write(out, look)?;
        match self.beyond.len() - shown {
            0 => Ok(()),
            more => prose(
                out,
                look,
                look.faint(),
                &format!("and {} more (--all shows them)", grouped(more as u64)),
            ),
        }
    }

    fn cells_beyond(&self, beyond: &Beyond) -> [String; 7] {
        let is_closest = self.closest().is_some_and(|row| row.number == beyond.row.number);
        [
            beyond.with.clone(),
            short_answer(beyond.row.tried.verdict).to_owned(),
            beyond.row.tried.verdict.needed.to_string(),
            self.saved(beyond).to_string(),
            beyond.row.time().map(|time| time.to_string()).unwrap_or_default(),
            if beyond.trains_otherwise { "otherwise" } else { "alike" }.to_owned(),
            if is_closest { String::new() } else { self.name_of(&beyond.row) },
        ]
    }

    pub(super) fn beyond_in_markdown(&self, out: &mut dyn io::Write) -> io::Result<()> {
        use markdown::Column::{Figures, Text};
        if self.closest().is_none() {
            return Ok(());
        }
        if self.beyond.is_empty() {
            return writeln!(out, "{NO_LEVER}\n");
        }
        writeln!(out, "{LEVERS}\n")?;
        let columns = [
            Text("with"),
            Text("fits"),
            Figures("takes"),
            Figures("saves"),
            Figures("in theory"),
            Text("trains"),
            Text("on"),
        ];
        let row = |beyond: &Beyond| self.cells_beyond(beyond).map(|cell| markdown::escaped(&cell)).to_vec();
        markdown::table(out, &columns, &self.beyond.iter().map(row).collect::<Vec<_>>())?;
        writeln!(out)
    }

    pub(super) fn beyond_json(&self) -> Vec<BeyondJson<'_>> {
        let all = self.beyond.iter().map(|beyond| BeyondJson {
            with: &beyond.with,
            name: self.name_of(&beyond.row),
            options: self.options_beyond(beyond),
            command: &beyond.command,
            fits: beyond.row.tried.verdict.fits(),
            headroom_bytes: beyond.row.tried.verdict.headroom(),
            saved_bytes: self.saved(beyond).get(),
            theoretical: beyond.row.tried.slowest.time.ok().map(TimeJson::from),
            trains_otherwise: beyond.trains_otherwise,
        });
        all.collect()
    }

    /// `searched: recompute, batch; fixed by run.sh: --tp 4, --pp 2; by the command line: --zero 3`, where something is.
    pub(super) fn fixed_line(&self) -> Option<String> {
        let first = self.fixed.first()?;
        let searched: Vec<&str> = self.dimensions.iter().map(|of| of.name.as_str()).collect();
        let searched = if searched.is_empty() { "nothing".to_owned() } else { searched.join(", ") };
        let mut line = format!("searched: {searched}");
        let mut by_whom: Vec<&Option<String>> = vec![&first.by];
        for fixed in self.fixed {
            if !by_whom.contains(&&fixed.by) {
                by_whom.push(&fixed.by);
            }
        }
        for by in by_whom {
            let all = self.fixed.iter().filter(|fixed| fixed.by == *by);
            let all: Vec<&str> = all.map(|fixed| fixed.options.as_str()).collect();
            let by = by.as_deref().unwrap_or("the command line");
            line += &format!("; fixed by {by}: {}", all.join(", "));
        }
        Some(line)
    }

    pub(super) fn fixed_json(&self) -> Vec<FixedJson<'_>> {
        let all = self.fixed.iter().map(|fixed| FixedJson {
            name: &fixed.name,
            options: &fixed.options,
            by: fixed.by.as_deref(),
        });
        all.collect()
    }

    /// Writes the line of what fits with more than is varied, and its command.
    pub(super) fn write_beyond_command(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        if let Some((line, command)) = self.beyond_line().zip(self.beyond_command()) {
            let fits = self.beyond.first().is_some_and(|best| best.row.tried.verdict.fits());
            prose(out, look, look.verdict(fits), &look.text(&look.name(&line)))?;
            command_line::write(out, look, &command)?;
        }
        Ok(())
    }
}
