//! The phases of `plan` as rows of a spreadsheet.

use super::PlanReport;
use crate::{Look, csv_table};
use peakledger_core::Category;
use peakledger_plan::{PlannedPhase, Step};
use std::io;

impl PlanReport<'_> {
    pub(super) fn write_csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let mut titles = vec![
            "step",
            "phase",
            "micro_batch",
            "peak_bytes",
            "end_bytes",
            "device_peak_bytes",
            "host_peak_bytes",
        ];
        titles.extend(Category::ALL.map(Category::as_str));
        titles.extend(["is_peak", "module", "op", "flops", "recomputed_flops", "bytes_moved"]);
        titles.extend(["to_host_bytes", "from_host_bytes"]);
        let peak = self.peak().phase;
        let own = self.plan.options.parallel.rank;
        let mut all: Vec<(u32, Step, &[PlannedPhase])> =
            self.steps().into_iter().map(|step| (own, step.step, step.phases.as_slice())).collect();
        titles.extend(self.ranks.iter().flat_map(|_| ["communicated_bytes", "rank"]));
        all.extend(self.phases_of_others());
        let rows = all.into_iter().flat_map(|(rank, step, phases)| {
            phases.iter().map(move |phase| {
                let mut row = vec![
                    step.as_str().to_owned(),
                    phase.phase.to_string(),
                    phase.micro_batch.map(|i| i.to_string()).unwrap_or_default(),
                    phase.peak.get().to_string(),
                    phase.end.get().to_string(),
                    phase.device_peak.get().to_string(),
                    phase.host_peak.get().to_string(),
                ];
                row.extend(Category::ALL.map(|c| phase.by_category.get(c).get().to_string()));
                let is_peak = std::ptr::eq(phase, peak);
                row.extend([is_peak.to_string(), phase.module.clone(), phase.op.to_owned()]);
                let costs = phase.costs;
                let counts = [costs.flops.total(), costs.recomputed.total(), costs.bytes_moved()];
                row.extend(
                    counts
                        .into_iter()
                        .chain([costs.host.to_host, costs.host.from_host])
                        .map(|n| n.to_string()),
                );
                let of_ranks = || [costs.communicated().to_string(), rank.to_string()];
                row.extend(self.ranks.iter().flat_map(|_| of_ranks()));
                row
            })
        });
        csv_table::write(out, look, &titles, rows)
    }
}
