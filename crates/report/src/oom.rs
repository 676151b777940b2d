//! The report of an out-of-memory message: what it says, and what it means.

use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_measure::oom_message::{Explanation, OomMessage, Rounded};
use serde::Serialize;
use std::io;

/// What the out-of-memory messages of a text say and mean.
#[derive(Clone, Copy, Debug)]
pub struct OomReport<'a> {
    /// What the user calls the text.
    pub name: &'a str,
    /// The messages in it.
    pub messages: &'a [OomMessage],
}

#[derive(Serialize)]
struct OomJson<'a> {
    kind: &'static str,
    messages: Vec<MessageJson<'a>>,
}

#[derive(Serialize)]
struct MessageJson<'a> {
    line: usize,
    times: usize,
    rank: Option<u32>,
    allocator: &'static str,
    device: Option<u32>,
    asked: Option<FigureJson>,
    capacity: Option<FigureJson>,
    free: Option<FigureJson>,
    allocated: Option<FigureJson>,
    private_pools: Option<FigureJson>,
    reserved_unallocated: Option<FigureJson>,
    this_process: Option<FigureJson>,
    limit: Option<FigureJson>,
    processes: Vec<ProcessJson>,
    cause: &'static str,
    certain: bool,
    fragmentation: bool,
    short_by: Option<FigureJson>,
    outside_allocator: Option<FigureJson>,
    outside_process: Option<FigureJson>,
    outside_pytorch: Option<FigureJson>,
    sentences: &'a [String],
    help: &'a str,
}

/// A figure of two digits: so many bytes, so many more or less.
#[derive(Clone, Copy, Serialize)]
struct FigureJson {
    bytes: u64,
    off_by_bytes: u64,
}

#[derive(Serialize)]
struct ProcessJson {
    pid: u64,
    memory: Option<FigureJson>,
}

impl From<Rounded> for FigureJson {
    fn from(figure: Rounded) -> FigureJson {
        FigureJson { bytes: figure.bytes.get(), off_by_bytes: figure.off_by.get() }
    }
}

impl<'a> MessageJson<'a> {
    fn of(message: &OomMessage, explanation: &'a Explanation) -> MessageJson<'a> {
        let figure = |figure: Option<Rounded>| figure.map(FigureJson::from);
        MessageJson {
            line: message.line,
            times: message.times,
            rank: message.rank,
            allocator: message.allocator.as_str(),
            device: message.device,
            asked: figure(message.asked),
            capacity: figure(message.capacity),
            free: figure(message.free),
            allocated: figure(message.allocated),
            private_pools: figure(message.private_pools),
            reserved_unallocated: figure(message.unallocated),
            this_process: figure(message.this_process),
            limit: figure(message.limit),
            processes: message
                .processes
                .iter()
                .map(|p| ProcessJson { pid: p.pid, memory: figure(p.bytes) })
                .collect(),
            cause: explanation.cause.as_str(),
            certain: explanation.certain,
            fragmentation: explanation.cause.is_fragmentation(),
            short_by: figure(explanation.short_by),
            outside_allocator: figure(explanation.outside_allocator),
            outside_process: figure(explanation.outside_process),
            outside_pytorch: figure(explanation.outside_pytorch),
            sentences: &explanation.sentences,
            help: &explanation.mend,
        }
    }
}

/// The figures of a message by what people call them, those first that it tells.
fn figures(message: &OomMessage) -> Vec<(String, Rounded)> {
    let named = [
        ("asked for", message.asked),
        ("the card", message.capacity),
        ("free on it", message.free),
        ("allocated by PyTorch", message.allocated),
        ("of that in private pools", message.private_pools),
        ("reserved and unallocated", message.unallocated),
        ("this process", message.this_process),
        ("allowed", message.limit),
    ];
    let named = named.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure?)));
    let processes = message.processes.iter().filter_map(|p| Some((format!("process {}", p.pid), p.bytes?)));
    named.chain(processes).collect()
}

fn heading(message: &OomMessage) -> String {
    let asked = message.asked.map_or_else(|| "more than 1 EB".to_owned(), |asked| asked.to_string());
    let device = message.device.map_or_else(String::new, |device| format!(" on GPU {device}"));
    let rank = message.rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
    let times = if message.times > 1 { format!(", told {} times", message.times) } else { String::new() };
    format!("out of memory{device}: {asked} asked for (line {}{rank}{times})", message.line)
}

const ROUNDED: &str = "a message has two digits after the point: each figure may be off by what is beside it";

impl Report for OomReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        for (number, message) in self.messages.iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            let explanation = message.explain();
            prose(out, look, look.bold(), &heading(message))?;
            for sentence in &explanation.sentences {
                prose(out, look, Style::new(), &look.text(sentence))?;
            }
            entry(out, look, Style::new(), "help: ", &explanation.mend)?;
            writeln!(out)?;
            let mut table = Table::new(vec![
                Column::left("").cut(),
                Column::right("size"),
                Column::right("off by").optional(),
            ]);
            for (name, figure) in figures(message) {
                table.row(vec![
                    Cell::plain(name),
                    Cell::plain(figure.to_string()),
                    Cell::styled(figure.off_by.to_string(), look.faint()),
                ]);
            }
            table.write(out, look)?;
        }
        prose(out, look, look.faint(), ROUNDED)
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let explanations: Vec<Explanation> = self.messages.iter().map(OomMessage::explain).collect();
        let messages = self
            .messages
            .iter()
            .zip(&explanations)
            .map(|(message, explanation)| MessageJson::of(message, explanation));
        write_json(out, &OomJson { kind: "oom_message", messages: messages.collect() })
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles = [
            "line",
            "times",
            "rank",
            "device",
            "cause",
            "short_by_bytes",
            "asked_bytes",
            "capacity_bytes",
            "free_bytes",
            "allocated_bytes",
            "reserved_unallocated_bytes",
            "this_process_bytes",
            "limit_bytes",
            "outside_allocator_bytes",
        ];
        let rows = self.messages.iter().map(|message| {
            let explanation = message.explain();
            let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
            let figure = |figure: Option<Rounded>| {
                figure.map(|figure| figure.bytes.get().to_string()).unwrap_or_default()
            };
            let mut row = vec![
                message.line.to_string(),
                message.times.to_string(),
                number(message.rank),
                number(message.device),
            ];
            row.push(explanation.cause.as_str().to_owned());
            let figures = [
                explanation.short_by,
                message.asked,
                message.capacity,
                message.free,
                message.allocated,
                message.unallocated,
                message.this_process,
                message.limit,
                explanation.outside_allocator,
            ];
            row.extend(figures.map(figure));
            row
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, _: &Look) -> io::Result<()> {
        for message in self.messages {
            let explanation = message.explain();
            writeln!(out, "**{}**\n", markdown::escaped(&heading(message)))?;
            for sentence in &explanation.sentences {
                writeln!(out, "- {}", markdown::escaped(sentence))?;
            }
            writeln!(out, "\nHelp: {}\n", markdown::escaped(&explanation.mend))?;
            let row =
                |(name, figure): (String, Rounded)| vec![name, figure.to_string(), figure.off_by.to_string()];
            let rows: Vec<Vec<String>> = figures(message).into_iter().map(row).collect();
            markdown::table(out, &[Text("figure"), Figures("size"), Figures("off by")], &rows)?;
            writeln!(out)?;
        }
        writeln!(out, "{ROUNDED}")
    }
}
