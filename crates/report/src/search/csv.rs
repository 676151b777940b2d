//! The search as a table for other tools, a line for each combination that can be.

use super::SearchReport;
use crate::{Look, csv_table};
use peakledger_plan::{RankCosts, Tried};
use std::io;

impl SearchReport<'_> {
    pub(super) fn write_csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let dimensions = self.dimensions.iter().map(|dimension| dimension.name.as_str());
        let titles: Vec<&str> = dimensions
            .chain([
                "options",
                "fits",
                "on_the_edge",
                "headroom_bytes",
                "device_peak_bytes",
                "reserved_bytes",
                "cache_flushes",
                "theoretical_seconds",
                "recomputed_flops",
                "to_host_bytes",
                "from_host_bytes",
                "communicated_bytes",
                "between_nodes_bytes",
                "pareto",
                "worst_rank",
            ])
            .collect();
        let rows = self.rows.iter().enumerate().map(|(at, row)| {
            let Tried { device_peak, verdict, slowest: RankCosts { costs, .. }, .. } = row.tried;
            let values = self.values(row).into_iter().map(|value| value.name.clone());
            let figures = [
                self.options_of(row),
                row.is_known_to_fit().map(|fits| fits.to_string()).unwrap_or_default(),
                row.is_known_on_the_edge().to_string(),
                verdict.headroom().to_string(),
                device_peak.get().to_string(),
                row.reserved().map(|bytes| bytes.get().to_string()).unwrap_or_default(),
                row.flushes().map(|times| times.to_string()).unwrap_or_default(),
                row.time().map(|time| crate::figures::seconds(time).to_string()).unwrap_or_default(),
                costs.recomputed.total().to_string(),
                costs.host.to_host.to_string(),
                costs.host.from_host.to_string(),
                costs.communicated().to_string(),
                costs.sent.between_nodes.to_string(),
                self.front.contains(&at).to_string(),
                row.tried.rank.to_string(),
            ];
            values.chain(figures).collect()
        });
        csv_table::write(out, look, &titles, rows)
    }
}
