//! The report of `list`: a table of what is known.

use crate::markdown::Column::{Figures, Text};
use crate::table::{Cell, Column, Table};
use crate::{Look, Report, csv_table, markdown, write_json};
use serde_json::{Map, Value};
use std::io;

/// Rows of a catalogue under titles.
#[derive(Clone, Debug)]
pub struct ListReport {
    /// What the columns hold, as JSON and CSV name it.
    pub titles: Vec<&'static str>,
    /// The rows, each with a value for every title.
    pub rows: Vec<Vec<Entry>>,
}

/// A value of a row.
#[derive(Clone, Debug)]
pub enum Entry {
    /// Words.
    Text(String),
    /// A number, and how people read it.
    Number(u64, String),
}

impl Entry {
    fn read(&self) -> &str {
        match self {
            Entry::Text(text) | Entry::Number(_, text) => text,
        }
    }

    fn exact(&self) -> String {
        match self {
            Entry::Text(text) => text.clone(),
            Entry::Number(number, _) => number.to_string(),
        }
    }

    fn value(&self) -> Value {
        match self {
            Entry::Text(text) => text.as_str().into(),
            Entry::Number(number, _) => (*number).into(),
        }
    }
}

impl ListReport {
    /// Whether a column has numbers.
    fn is_number(&self, at: usize) -> bool {
        matches!(self.rows.first().and_then(|row| row.get(at)), Some(Entry::Number(..)))
    }
}

impl Report for ListReport {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let column = |(at, title): (usize, &&'static str)| match (at, self.is_number(at)) {
            (0, _) => Column::left(*title).cut(),
            (_, true) => Column::right(*title).optional(),
            (_, false) => Column::left(*title).optional(),
        };
        let mut table = Table::new(self.titles.iter().enumerate().map(column).collect());
        for row in &self.rows {
            table.row(row.iter().map(|entry| Cell::plain(look.text(entry.read()))).collect());
        }
        table.write(out, look)
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let object = |row: &Vec<Entry>| -> Map<String, Value> {
            self.titles.iter().zip(row).map(|(title, entry)| ((*title).to_owned(), entry.value())).collect()
        };
        write_json(out, &self.rows.iter().map(object).collect::<Vec<_>>())
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        csv_table::write(
            out,
            look,
            &self.titles,
            self.rows.iter().map(|row| row.iter().map(Entry::exact).collect()),
        )
    }

    fn markdown(&self, out: &mut dyn io::Write, _look: &Look) -> io::Result<()> {
        let column = |(at, title): (usize, &&'static str)| {
            if self.is_number(at) { Figures(title) } else { Text(title) }
        };
        let columns: Vec<_> = self.titles.iter().enumerate().map(column).collect();
        let row = |row: &Vec<Entry>| row.iter().map(|entry| markdown::escaped(entry.read())).collect();
        markdown::table(out, &columns, &self.rows.iter().map(row).collect::<Vec<_>>())
    }
}
