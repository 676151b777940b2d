//! The report of a profiler's trace: for each device the peak, the phases of a step and who stands at the peak.

mod json;

use crate::figures::{INCOMPLETE, and_more, count, percent};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, plot, write_json};
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_measure::trace::{Contributor, DeviceTrace, PhaseFigures, Span, Trace};
use std::collections::BTreeMap;
use std::io;

/// What a trace tells of its devices and steps.
#[derive(Clone, Copy, Debug)]
pub struct TraceReport<'a> {
    /// What the user calls the file.
    pub name: &'a str,
    /// What it tells.
    pub trace: &'a Trace,
}

/// Blocks that one place took, together.
struct Group<'a> {
    name: &'a str,
    /// The phase in which they were taken.
    born: String,
    bytes: u64,
    blocks: usize,
    /// The most telling line of the user's own.
    user_frame: Option<&'a str>,
}

impl<'a> TraceReport<'a> {
    /// The step whose phases are shown for a device: that of its peak.
    fn step(&self, device: &DeviceTrace) -> usize {
        device.peak.at.map_or_else(|| self.trace.usual_step(), |(step, _)| step)
    }

    /// The phases of a step with the figures of a device, and whether the peak is in it.
    fn phases(
        &self,
        device: &'a DeviceTrace,
        step: usize,
    ) -> impl Iterator<Item = (&'a Span, &'a PhaseFigures, bool)> {
        let spans = self.trace.steps.get(step).map_or(&[][..], |step| &step.spans);
        let figures = device.phases.get(step).map_or(&[][..], Vec::as_slice);
        let peak = device.peak.at;
        let numbered = spans.iter().zip(figures).enumerate();
        numbered.map(move |(at, (span, figures))| (span, figures, peak == Some((step, at))))
    }

    /// `backward of step 2`, or nothing where the trace does not tell.
    fn place(&self, at: Option<(usize, usize)>) -> Option<String> {
        let (step, span) = at?;
        let span = self.trace.steps.get(step)?.spans.get(span)?;
        Some(match self.trace.steps.len() {
            1 => id(span),
            _ => format!("{} of step {step}", id(span)),
        })
    }

    /// Who stands at the peak, by the place that took it, largest first.
    fn groups(&self, device: &'a DeviceTrace) -> Vec<Group<'a>> {
        let mut groups = BTreeMap::new();
        for Contributor { bytes, name, born, user_frame, .. } in &device.contributors {
            let group: &mut Group<'a> = groups.entry((name, *born)).or_insert_with(|| Group {
                name,
                born: self.place(*born).unwrap_or_else(|| "before the trace".to_owned()),
                bytes: 0,
                blocks: 0,
                user_frame: user_frame.as_deref(),
            });
            group.bytes = group.bytes.saturating_add(bytes.get());
            group.blocks += 1;
        }
        let mut groups: Vec<Group<'a>> = groups.into_values().collect();
        groups.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(b.name)));
        groups
    }

    fn heading(&self, device: &DeviceTrace) -> String {
        let place = self
            .place(device.peak.at)
            .map_or_else(|| " before the first event".to_owned(), |place| format!(" in {place}"));
        format!("peak {} allocated on {}{place}", device.peak.bytes, device.device)
    }

    /// What is said of a device in lines under its heading.
    fn lines(&self, device: &DeviceTrace) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(card) = &device.card {
            lines.push(format!("{}, {}", card.name, card.total));
        }
        if let Some((event, bytes)) = device.peak_reserved {
            lines.push(format!("reserved by the allocator: up to {bytes}, first after memory event {event}"));
        }
        let event =
            device.peak.event.map_or_else(|| "before".to_owned(), |event| format!("after event {event} of"));
        lines.push(format!(
            "the peak is {event} its {}",
            count(device.events, "memory event", "memory events")
        ));
        let least = if device.opening_is_told { "" } else { "at least " };
        lines
            .push(format!("{least}{} before the first event, {} after the last", device.opening, device.end));
        for oom in &device.out_of_memory {
            let after = oom
                .after_event
                .map_or_else(|| "before the first event".to_owned(), |event| format!("after event {event}"));
            let held = |what: &str, bytes: Option<Bytes>| {
                bytes.map_or_else(String::new, |bytes| format!(", {bytes} {what}"))
            };
            let (allocated, reserved) = (held("allocated", oom.allocated), held("reserved", oom.reserved));
            lines.push(format!("out of memory {after}: {} asked for{allocated}{reserved}", oom.asked));
        }
        if device.unexplained != 0 {
            lines.push(format!(
                "{} of the peak are in torch's total and in no event",
                crate::figures::signed(device.unexplained)
            ));
        }
        lines
    }

    fn summary(&self) -> String {
        let events = count(self.trace.events, "event", "events");
        format!("{events}, {}", count(self.trace.steps.len(), "step", "steps"))
    }

    /// What a reader must know beside the figures.
    fn notes(&self) -> impl Iterator<Item = String> + '_ {
        self.trace.notes.iter().cloned()
    }

    /// The devices that get a section: the machine's memory has one only where no card is.
    fn shown(&self) -> impl Iterator<Item = &'a DeviceTrace> {
        let only_cpu = self.trace.devices.iter().all(DeviceTrace::is_cpu);
        self.trace.devices.iter().filter(move |device| only_cpu || !device.is_cpu())
    }

    fn beside(&self) -> Option<String> {
        let cpu = self.trace.devices.iter().find(|device| device.is_cpu())?;
        let has_card = self.trace.devices.iter().any(|device| !device.is_cpu());
        has_card.then(|| {
            format!("beside them, up to {} on the cpu, which no peak of a card counts", cpu.peak.bytes)
        })
    }
}

/// `forward.0`; the number only where there is one.
fn id(span: &Span) -> String {
    match span.micro_batch {
        Some(number) => format!("{}.{number}", span.phase),
        None => span.phase.to_string(),
    }
}

impl Report for TraceReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        if let Some(why) = self.trace.incomplete() {
            entry(out, look, look.verdict(false), INCOMPLETE, &look.name(&why))?;
        }
        for (number, device) in self.shown().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            self.device_table(out, look, device)?;
        }
        if let Some(beside) = self.beside() {
            writeln!(out)?;
            prose(out, look, Style::new(), &beside)?;
        }
        writeln!(out)?;
        prose(out, look, look.faint(), &format!("{}: {}", look.name(self.name), self.summary()))?;
        self.notes().try_for_each(|note| entry(out, look, look.faint(), "note: ", &look.name(&note)))
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &json::TraceJson::of(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles =
            ["device", "step", "phase", "micro_batch", "events", "peak_bytes", "end_bytes", "is_peak"];
        let steps = |device| (0..self.trace.steps.len()).map(move |step| (device, step));
        let rows = self.trace.devices.iter().flat_map(steps).flat_map(|(device, step)| {
            self.phases(device, step).map(move |(span, figures, is_peak)| {
                vec![
                    device.device.to_string(),
                    step.to_string(),
                    span.phase.to_string(),
                    span.micro_batch.map(|number| number.to_string()).unwrap_or_default(),
                    figures.events.to_string(),
                    figures.peak.get().to_string(),
                    figures.end.get().to_string(),
                    is_peak.to_string(),
                ]
            })
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        if let Some(why) = self.trace.incomplete() {
            writeln!(out, "{INCOMPLETE}{}\n", markdown::escaped(&why))?;
        }
        for device in self.shown() {
            writeln!(out, "**{}**\n", markdown::escaped(&self.heading(device)))?;
            for line in self.lines(device) {
                writeln!(out, "- {}", markdown::escaped(&line))?;
            }
            writeln!(out)?;
            let phase = |(span, figures, is_peak): (&Span, &PhaseFigures, bool)| {
                let mark = if is_peak { "**" } else { "" };
                vec![
                    format!("{mark}{}{mark}", markdown::escaped(&id(span))),
                    format!("{mark}{}{mark}", figures.peak),
                    figures.end.to_string(),
                ]
            };
            let rows: Vec<Vec<String>> = self.phases(device, self.step(device)).map(phase).collect();
            markdown::table(out, &[Text("phase"), Figures("peak"), Figures("at its end")], &rows)?;
            writeln!(out, "\nAt the peak:\n")?;
            let groups = self.groups(device);
            let (shown, rest) = groups.split_at(look.shown(groups.len()));
            let row = |group: &Group<'_>| {
                vec![
                    markdown::escaped(group.name),
                    markdown::escaped(&group.born),
                    group.blocks.to_string(),
                    Bytes::new(group.bytes).to_string(),
                ]
            };
            let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
            markdown::table(out, &[Text("taken by"), Text("in"), Figures("blocks"), Figures("size")], &rows)?;
            if let Some(more) = and_more(rest.len(), together(rest)) {
                writeln!(out, "\n{more}")?;
            }
            writeln!(out)?;
        }
        writeln!(out, "{}: {}", markdown::escaped(self.name), self.summary())?;
        for note in self.beside().into_iter().chain(self.notes()) {
            writeln!(out, "\n{}", markdown::escaped(&note))?;
        }
        Ok(())
    }
}

impl TraceReport<'_> {
    fn device_table(&self, out: &mut dyn io::Write, look: &Look, device: &DeviceTrace) -> io::Result<()> {
        prose(out, look, look.bold(), &look.name(&self.heading(device)))?;
        self.lines(device).iter().try_for_each(|line| prose(out, look, Style::new(), &look.name(line)))?;
        let step = self.step(device);
        writeln!(out)?;
        if self.trace.steps.len() > 1 {
            prose(out, look, look.bold(), &format!("step {step} of 0 to {}", self.trace.steps.len() - 1))?;
        }
        let (phases, more) = self.phase_table(look, device, step);
        phases.write(out, look)?;
        if let Some(more) = more {
            prose(out, look, look.faint(), &more)?;
        }
        if look.plot {
            writeln!(out)?;
            plot::levels(&device.levels, &self.moments(device), out, look)?;
        }
        writeln!(out)?;
        prose(out, look, look.bold(), "at the peak")?;
        let groups = self.groups(device);
        let (shown, rest) = groups.split_at(look.shown(groups.len()));
        let mut table = Table::new(vec![
            Column::left("taken by").cut(),
            Column::right("size"),
            Column::right("share").optional(),
            Column::right("blocks").optional(),
            Column::left("in").optional(),
            Column::left("line").optional(),
        ]);
        for group in shown {
            table.row(vec![
                Cell::plain(look.name(group.name)),
                Cell::plain(Bytes::new(group.bytes).to_string()),
                Cell::plain(percent(Bytes::new(group.bytes), device.peak.bytes)),
                Cell::plain(group.blocks.to_string()),
                Cell::plain(look.name(&group.born)),
                Cell::styled(look.name(group.user_frame.unwrap_or_default()), look.faint()),
            ]);
        }
        table.write(out, look)?;
        match and_more(rest.len(), together(rest)) {
            Some(more) => prose(out, look, Style::new(), &more),
            None => Ok(()),
        }
    }

    /// What is written under a picture of a device, each with its moment: the steps, or the phases of a single one.
    fn moments(&self, device: &DeviceTrace) -> Vec<(u32, String)> {
        let begins = |span: &Span| u32::try_from(device.events_before(span.start)).unwrap_or(u32::MAX);
        match self.trace.steps.as_slice() {
            [step] => step.spans.iter().map(|span| (begins(span), span.phase.to_string())).collect(),
            steps => {
                let firsts =
                    steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.spans.first()?)));
                firsts.map(|(at, span)| (begins(span), format!("step {at}"))).collect()
            }
        }
    }

    fn phase_table(&self, look: &Look, device: &DeviceTrace, step: usize) -> (Table, Option<String>) {
        let full = device.peak.bytes.get();
        let mut table = Table::new(vec![
            Column::left(""),
            Column::left("phase").cut(),
            Column::right("peak"),
            Column::right("at its end").optional(),
            Column::bar(full),
        ]);
        let phases: Vec<_> = self.phases(device, step).collect();
        let peak = phases.iter().position(|(.., is_peak)| *is_peak).unwrap_or(0);
        let (shown, more) = look.rows(phases.len(), peak, "phases");
        for at in shown {
            let Some((span, figures, is_peak)) = at.and_then(|at| phases.get(at)) else {
                table.row(vec![Cell::plain(""), Cell::plain(look.ellipsis())]);
                continue;
            };
            let (style, marker) = if *is_peak { (look.bold(), look.marker()) } else { (Style::new(), "") };
            table.row(vec![
                Cell::styled(marker, style),
                Cell::styled(look.name(&id(span)), style),
                Cell::styled(figures.peak.to_string(), style),
                Cell::styled(figures.end.to_string(), look.faint()),
                Cell::Bar(vec![(figures.peak.get(), style)]),
            ]);
        }
        (table, more)
    }
}

fn together(groups: &[Group<'_>]) -> Bytes {
    Bytes::new(groups.iter().fold(0, |sum, group| sum.saturating_add(group.bytes)))
}
