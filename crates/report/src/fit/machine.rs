//! What fits, for programs: JSON and CSV.

use super::{FitReport, Line};
use crate::figures::signed_seconds;
use crate::trade::Judgement;
use crate::{Look, Origins, csv_table, write_json};
use serde::Serialize;
use std::io;

impl FitReport<'_> {
    pub(super) fn write_json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        write_json(out, &FitJson::of(self))
    }

    pub(super) fn write_csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles = [
            "name",
            "options",
            "same_training",
            "device_peak_bytes",
            "fits",
            "on_the_edge",
            "headroom_bytes",
            "largest_micro_batch",
            "micro_batch_limited_by",
            "largest_seq_len",
            "seq_len_limited_by",
            "added_theoretical_seconds",
            "pareto",
            "offload",
            "worst_rank",
        ];
        let number = |amount: Option<u64>| amount.map(|amount| amount.to_string()).unwrap_or_default();
        let row = |line: Line<'_>| {
            let fit = line.fit;
            vec![
                line.name.to_owned(),
                line.options.to_owned(),
                line.same_training.to_string(),
                fit.device_peak.get().to_string(),
                fit.verdict.fits().to_string(),
                fit.verdict.is_on_the_edge().to_string(),
                fit.verdict.headroom().to_string(),
                number(fit.micro_batch.amount),
                fit.micro_batch.limit.as_str().to_owned(),
                number(fit.length.amount),
                fit.length.limit.as_str().to_owned(),
                line.added.map(|added| signed_seconds(added).to_string()).unwrap_or_default(),
                line.is_on_front.to_string(),
                line.offload.map(|offload| offload.judgement.as_str().to_owned()).unwrap_or_default(),
                fit.rank.to_string(),
            ]
        };
        csv_table::write(out, look, &titles, self.lines().map(row))
    }
}

#[derive(Serialize)]
struct FitJson<'a> {
    model: &'a str,
    parameters: u64,
    gpu: &'a str,
    capacity_bytes: u64,
    outside_bytes: u64,
    micro_batch_size: u64,
    seq_len: u64,
    gradient_accumulation_steps: u32,
    /// The fewest GPUs that share the step out so that it fits; null where it is not shared out, or where none do.
    fewest_gpus: Option<u32>,
    /// The fewest GPUs that do so and fill whole nodes; null where one node is enough.
    fewest_gpus_in_whole_nodes: Option<u32>,
    rows: Vec<RowJson<'a>>,
    left_out: Vec<LeftOutJson<'a>>,
    /// What must be known beside the verdict.
    caveats: Vec<String>,
    not_counted: Vec<&'static str>,
    /// Where the options came from, if configs were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a Origins>,
}

#[derive(Serialize)]
struct RowJson<'a> {
    name: &'a str,
    options: &'a str,
    /// The whole command that plans it.
    command: &'a str,
    same_training: bool,
    /// The rank that needs most, whose bytes these are; of several the first.
    worst_rank: u32,
    device_peak_bytes: u64,
    fits: bool,
    /// It fits with less to spare than a CUDA context is taken for.
    on_the_edge: bool,
    headroom_bytes: i128,
    largest_micro_batch: Option<u64>,
    micro_batch_limited_by: &'static str,
    largest_seq_len: Option<u64>,
    seq_len_limited_by: &'static str,
    /// In steps of so many tokens lengths were looked at: ranks share a sequence evenly.
    seq_len_step: u64,
    /// How much longer a step takes than as given, by the card's peak rates; null where they are not known.
    added_theoretical_seconds: Option<f64>,
    /// Whether no other row takes no more memory and no more time.
    pareto: bool,
    /// What the rule says of an offload beside the same step without it; null where there is no such row, or nothing more goes to the
    /// host.
    offload: Option<Judgement>,
}

#[derive(Serialize)]
struct LeftOutJson<'a> {
    name: &'a str,
    cause: &'a str,
}

impl<'a> FitJson<'a> {
    fn of(report: &'a FitReport<'_>) -> FitJson<'a> {
        let row = |line: Line<'a>| RowJson {
            name: line.name,
            options: line.options,
            command: line.command,
            same_training: line.same_training,
            worst_rank: line.fit.rank,
            device_peak_bytes: line.fit.device_peak.get(),
            fits: line.fit.verdict.fits(),
            on_the_edge: line.fit.verdict.is_on_the_edge(),
            headroom_bytes: line.fit.verdict.headroom(),
            largest_micro_batch: line.fit.micro_batch.amount,
            micro_batch_limited_by: line.fit.micro_batch.limit.as_str(),
            largest_seq_len: line.fit.length.amount,
            seq_len_limited_by: line.fit.length.limit.as_str(),
            seq_len_step: line.fit.length.step,
            added_theoretical_seconds: line.added.map(signed_seconds),
            pareto: line.is_on_front,
            offload: line.offload.map(|offload| offload.judgement),
        };
        FitJson {
            model: report.name,
            parameters: report.plan.parameters,
            gpu: &report.card.name,
            capacity_bytes: report.card.total.get(),
            outside_bytes: report.plan.outside(Some(report.card)).get(),
            micro_batch_size: report.fit.options.micro_batch_size,
            seq_len: report.fit.seq_len,
            gradient_accumulation_steps: report.fit.options.gradient_accumulation_steps,
            fewest_gpus: report.fewest_gpus.map(|fewest| fewest.gpus),
            fewest_gpus_in_whole_nodes: report.fewest_gpus.and_then(|fewest| fewest.in_whole_nodes),
            rows: report.lines().map(row).collect(),
            left_out: report.left_out.iter().map(|(name, cause)| LeftOutJson { name, cause }).collect(),
            caveats: report.caveats(),
            not_counted: report.plan.not_counted(report.reservation.is_some()),
            from: report.origins,
        }
    }
}
