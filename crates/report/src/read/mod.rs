//! The report of `read`: what each device did hold, who formed its peak, and what became of the rest.

mod json;
mod rows;

use crate::figures::{INCOMPLETE, and_more, count, percent};
use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table, entry, prose};
use crate::{Look, Report, csv_table, markdown, plot, write_json};
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_measure::snapshot::Snapshot;
use peakledger_measure::{DeviceMeasurement, Live, Measurement, RangeNames, UserLines};
use rows::{Row, event_name, peaks, uses};
use std::io;

/// What a snapshot says.
pub struct ReadReport<'a> {
    /// What the user calls the file.
    pub name: &'a str,
    /// What it holds.
    pub snapshot: &'a Snapshot,
    /// The figures.
    pub measurement: &'a Measurement,
    /// The live set that was asked for, if one was.
    pub at: Option<At>,
    /// Which ranges are which phases, in the picture.
    pub names: &'a RangeNames,
}

/// The blocks in use just after an event.
#[derive(Clone, Debug)]
pub struct At {
    /// The event; nothing for before the first.
    pub event: Option<u32>,
    /// The blocks, largest first.
    pub live: Vec<Live>,
}

impl<'a> ReadReport<'a> {
    fn lines(&self) -> UserLines<'a> {
        UserLines::of(self.snapshot)
    }

    fn incomplete(&self) -> Option<String> {
        self.measurement.incomplete(self.snapshot)
    }

    fn heading(&self) -> String {
        match self.measurement.largest() {
            None => "no device".to_owned(),
            Some(device) => {
                let peak = Bytes::new(device.allocated.peak);
                let event = event_name(device.allocated.event, device.events());
                format!("peak {peak} allocated on device {}, {event}", device.history.device)
            }
        }
    }

    /// The blocks that are listed: those asked for, or those of the requested peak.
    fn listed(&self, device: &'a DeviceMeasurement) -> (&[Live], String) {
        match &self.at {
            Some(at) => (&at.live, format!("in use {}", event_name(at.event, device.events()))),
            None => (
                &device.at_peak,
                format!("at the requested peak, {}", event_name(device.requested.event, device.events())),
            ),
        }
    }
}

impl Report for ReadReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        prose(out, look, look.bold(), &self.heading())?;
        if let Some(why) = self.incomplete() {
            entry(out, look, look.verdict(false), INCOMPLETE, &look.name(&why))?;
        }
        let devices = count(self.measurement.devices.len(), "device", "devices");
        let events: u64 = self.measurement.devices.iter().map(|device| u64::from(device.events())).sum();
        let events = count(usize::try_from(events).unwrap_or(usize::MAX), "event", "events");
        prose(out, look, look.faint(), &format!("{}: {devices}, {events}", look.name(self.name)))?;
        writeln!(out)?;
        self.device_table(look).write(out, look)?;
        if look.plot {
            self.plots(out, look)?;
        }
        if let Some(device) = self.measurement.largest() {
            if self.measurement.devices.len() > 1 {
                writeln!(out)?;
                let text = format!(
                    "device {}, whose peak is the largest (--device chooses another)",
                    device.history.device
                );
                prose(out, look, look.bold(), &text)?;
            }
            self.contributors(out, look, device)?;
            self.end(out, look, device)?;
            for oom in &device.oom {
                writeln!(out)?;
                let event = event_name(Some(oom.event), device.events());
                entry(out, look, look.bold(), "out of memory  ", &format!("{event}: {}", oom.sentence()))?;
                if let Some(line) = self.lines().text(oom.stack) {
                    entry(out, look, look.faint(), "  asked for by ", &look.name(&line))?;
                }
            }
        }
        let notes = self.measurement.notes(self.snapshot);
        if !notes.is_empty() {
            writeln!(out)?;
        }
        notes.iter().try_for_each(|note| entry(out, look, look.faint(), "note: ", &look.name(note)))
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &json::ReadJson::of(self))
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles = [
            "device",
            "requested_bytes",
            "size_bytes",
            "address",
            "alloc_event",
            "user_frame",
            "stack_depth",
        ];
        let lines = self.lines();
        let at = self.at.as_ref().and(self.measurement.largest());
        let devices = self
            .measurement
            .devices
            .iter()
            .filter(|device| at.is_none_or(|at| at.history.device == device.history.device));
        let rows = devices.flat_map(|device| {
            let number = device.history.device.to_string();
            let row = |live: &Live| {
                vec![
                    number.clone(),
                    live.requested.to_string(),
                    live.size.to_string(),
                    live.address.to_string(),
                    live.event.map_or_else(|| "-1".to_owned(), |event| event.to_string()),
                    lines.text(live.stack).unwrap_or_default(),
                    self.snapshot.stacks.frames(live.stack).len().to_string(),
                ]
            };
            self.listed(device).0.iter().map(row).collect::<Vec<_>>()
        });
        csv_table::write(out, look, &titles, rows)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        writeln!(out, "**{}**\n", markdown::escaped(&self.heading()))?;
        if let Some(why) = self.incomplete() {
            writeln!(out, "{INCOMPLETE}{}\n", markdown::escaped(&why))?;
        }
        let columns = [
            Text("device"),
            Figures("events"),
            Figures("requested"),
            Figures("allocated"),
            Figures("active"),
            Figures("reserved"),
        ];
        let row = |device: &DeviceMeasurement| {
            let mut row = vec![device.history.device.to_string(), device.events().to_string()];
            row.extend(peaks(device).map(|(_, curve)| Bytes::new(curve.peak).to_string()));
            row
        };
        markdown::table(out, &columns, &self.measurement.devices.iter().map(row).collect::<Vec<_>>())?;
        let Some(device) = self.measurement.largest() else { return Ok(()) };
        let (live, when) = self.listed(device);
        writeln!(out, "\nDevice {}, {when}:\n", device.history.device)?;
        let groups = rows::makers(live, &self.lines());
        let total: u64 = live.iter().map(|live| live.requested).sum();
        let shown = look.shown(groups.len());
        let row = |row: &Row| {
            let share = percent(Bytes::new(row.bytes), Bytes::new(total));
            vec![
                markdown::escaped(&row.name),
                Bytes::new(row.bytes).to_string(),
                share,
                row.blocks.to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = groups.iter().take(shown).map(row).collect();
        markdown::table(
            out,
            &[Text("line"), Figures("requested"), Figures("share"), Figures("blocks")],
            &rows,
        )?;
        writeln!(out, "\nReserved at the end:\n")?;
        let uses = uses(&device.end).into_iter().filter(|(_, bytes)| *bytes > 0);
        let uses: Vec<Vec<String>> =
            uses.map(|(name, bytes)| vec![name.to_owned(), Bytes::new(bytes).to_string()]).collect();
        markdown::table(out, &[Text("use"), Figures("size")], &uses)?;
        for oom in &device.oom {
            writeln!(out, "\nOut of memory at event {}: {}", oom.event, oom.sentence())?;
        }
        let notes = self.measurement.notes(self.snapshot);
        notes.iter().try_for_each(|note| writeln!(out, "\nNote: {}", markdown::escaped(note)))
    }
}

impl ReadReport<'_> {
    /// What each device did hold, over its events.
    fn plots(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        for device in self.measurement.devices.iter().filter(|device| !device.window.is_empty()) {
            writeln!(out)?;
            if self.measurement.devices.len() > 1 {
                prose(out, look, look.bold(), &format!("device {}", device.history.device))?;
            }
            plot::levels(&device.levels, &rows::moments(self.snapshot, device, self.names), out, look)?;
        }
        Ok(())
    }

    fn device_table(&self, look: &Look) -> Table {
        let titles = ["requested", "allocated", "active", "reserved"];
        let mut columns = vec![Column::left(""), Column::left("peak on")];
        columns.extend(titles.map(Column::right));
        columns.push(Column::right("events").optional());
        let mut table = Table::new(columns);
        for (at, device) in self.measurement.devices.iter().enumerate() {
            let largest = at == self.measurement.largest;
            let style = if largest { look.bold() } else { Style::new() };
            let marker = if largest { look.marker() } else { "" };
            let mut row = vec![
                Cell::styled(marker, style),
                Cell::styled(format!("device {}", device.history.device), style),
            ];
            row.extend(
                peaks(device).map(|(_, curve)| Cell::styled(Bytes::new(curve.peak).to_string(), style)),
            );
            row.push(Cell::styled(device.events().to_string(), look.faint()));
            table.row(row);
            if largest {
                let mut row = vec![Cell::plain(""), Cell::styled("  after event", look.faint())];
                row.extend(peaks(device).map(|(_, curve)| {
                    Cell::styled(
                        curve.event.map_or_else(|| "start".to_owned(), |event| event.to_string()),
                        look.faint(),
                    )
                }));
                table.row(row);
            }
        }
        table
    }

    fn contributors(
        &self,
        out: &mut dyn io::Write,
        look: &Look,
        device: &DeviceMeasurement,
    ) -> io::Result<()> {
        let (live, when) = match &self.at {
            Some(at) => (at.live.as_slice(), format!("in use {}", event_name(at.event, device.events()))),
            None => (
                device.at_peak.as_slice(),
                format!("at the requested peak, {}", event_name(device.requested.event, device.events())),
            ),
        };
        let total: u64 = live.iter().map(|live| live.requested).sum(); // a total that fits
        let groups = rows::makers(live, &self.lines());
        writeln!(out)?;
        let blocks = count(live.len(), "block", "blocks");
        prose(out, look, look.bold(), &format!("{when}: {} in {blocks}, by line", Bytes::new(total)))?;
        let mut table = Table::new(vec![
            Column::left("line").cut(),
            Column::right("requested"),
            Column::right("share").optional(),
            Column::right("blocks").optional(),
        ]);
        let shown = look.shown(groups.len());
        for row in groups.iter().take(shown) {
            table.row(vec![
                Cell::plain(look.name(&row.name)),
                Cell::plain(Bytes::new(row.bytes).to_string()),
                Cell::plain(percent(Bytes::new(row.bytes), Bytes::new(total))),
                Cell::styled(row.blocks.to_string(), look.faint()),
            ]);
        }
        table.write(out, look)?;
        let rest: u64 = groups.iter().skip(shown).map(|row| row.bytes).sum();
        if let Some(more) = and_more(groups.len() - shown, Bytes::new(rest)) {
            prose(out, look, Style::new(), &more)?;
        }
        self.categories(out, look, device)
    }

    /// The listed blocks by category, if that of any is told.
    fn categories(&self, out: &mut dyn io::Write, look: &Look, device: &DeviceMeasurement) -> io::Result<()> {
        let (live, event) = match &self.at {
            Some(at) => (&at.live, at.event),
            None => (&device.at_peak, device.requested.event),
        };
        let categories = rows::by_category(self.snapshot, device.history.device, live, event);
        if categories.iter().all(|(category, _)| category.is_none()) {
            return Ok(());
        }
        writeln!(out)?;
        prose(out, look, look.bold(), "by category, as far as stacks and the user's words tell it")?;
        let total = categories.iter().map(|(_, bytes)| bytes).sum();
        let mut table = Table::new(vec![
            Column::left("").cut(),
            Column::right(""),
            Column::right("").optional(),
            Column::bar(total),
        ]);
        for (category, bytes) in categories {
            let style = category.map_or(Style::new(), |category| look.category(category));
            table.row(vec![
                Cell::styled(
                    category.map_or_else(|| "not told".to_owned(), |known| known.to_string()),
                    style,
                ),
                Cell::plain(Bytes::new(bytes).to_string()),
                Cell::plain(percent(Bytes::new(bytes), Bytes::new(total))),
                Cell::Bar(vec![(bytes, style)]),
            ]);
        }
        table.write(out, look)
    }

    /// What is reserved at the end, by what becomes of it.
    fn end(&self, out: &mut dyn io::Write, look: &Look, device: &DeviceMeasurement) -> io::Result<()> {
        let end = &device.end;
        if end.segments == 0 {
            return Ok(());
        }
        writeln!(out)?;
        let segments = count(usize::try_from(end.segments).unwrap_or(usize::MAX), "segment", "segments");
        let reserved = Bytes::new(end.reserved);
        prose(out, look, look.bold(), &format!("reserved at the end: {reserved} in {segments}"))?;
        let mut table = Table::new(vec![
            Column::left("").cut(),
            Column::right(""),
            Column::right("").optional(),
            Column::bar(end.reserved),
        ]);
        for (name, bytes) in uses(end).into_iter().filter(|(_, bytes)| *bytes > 0) {
            table.row(vec![
                Cell::plain(name),
                Cell::plain(Bytes::new(bytes).to_string()),
                Cell::plain(percent(Bytes::new(bytes), reserved)),
                Cell::Bar(vec![(bytes, Style::new())]),
            ]);
        }
        table.write(out, look)?;
        if end.largest_free > 0 {
            let text = format!("the largest free block is {}", Bytes::new(end.largest_free));
            prose(out, look, look.faint(), &text)?;
        }
        if end.streams > 1 || end.pools > 1 {
            writeln!(out)?;
            prose(out, look, look.bold(), "by pool and stream")?;
            rows::holdings(self.snapshot, end, look).write(out, look)?;
        }
        Ok(())
    }
}
