//! The page of a ledger file.

use super::document::{Measure, Page, Role};
use super::series::{Room, series};
use super::states::short;
use crate::ShowReport;
use crate::figures::grouped;
use peakledger_core::Bytes;

impl ShowReport<'_> {
    /// Its page.
    pub(crate) fn html_page(&self) -> Page {
        let ledger = &self.file.ledger;
        let ops = self.file.peak_ops.iter().map(Option::as_deref);
        let mut facts = Vec::new();
        facts.extend(self.file.incomplete.as_deref().map(|why| ("incomplete".to_owned(), why.to_owned())));
        facts.extend(self.file.note.as_deref().map(|note| ("note".to_owned(), note.to_owned())));
        if ledger.cpu_peak() > Bytes::ZERO {
            facts.push(("host".to_owned(), format!("beside it, up to {} on the cpu", ledger.cpu_peak())));
        }
        Page {
            version: env!("CARGO_PKG_VERSION"),
            title: short(self.name).into_owned(),
            subtitle: Some(match ledger.states().len() {
                1 => "1 state".to_owned(),
                several => format!("{} states", grouped(several as u64)),
            }),
            measure: Measure::Ledger,
            series: vec![series(self.name, Role::Subject, ledger, ops, Room::SUBJECT)],
            facts,
            ..Page::default()
        }
    }
}
