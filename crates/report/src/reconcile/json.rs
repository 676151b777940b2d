//! The fields of `reconcile` for programs.

use super::bridge::Part;
use super::pairs::{Row, by_category};
use super::{ReconcileReport, Rule, Tolerance};
use peakledger_core::{Bytes, Category};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct ReconcileJson<'a> {
    plan: &'a str,
    measured: &'a str,
    steps: usize,
    step: usize,
    phases: Vec<PhaseJson<'a>>,
    remainder: Vec<Part>,
    rules: &'a [Rule],
    notes: Vec<String>,
    incomplete: Option<&'a str>,
    agrees: Option<bool>,
}

#[derive(Serialize)]
struct PhaseJson<'a> {
    phase: &'a str,
    predicted_bytes: u64,
    measured_bytes: Option<u64>,
    difference_bytes: Option<i128>,
    within_tolerance: Option<bool>,
    by_category: Vec<CategoryJson>,
}

#[derive(Serialize)]
struct CategoryJson {
    category: &'static str,
    predicted_bytes: u64,
    measured_bytes: u64,
    difference_bytes: i128,
}

impl<'a> ReconcileJson<'a> {
    pub(super) fn of(report: &'a ReconcileReport<'a>) -> ReconcileJson<'a> {
        let category = |(category, [predicted, measured]): (Category, [Bytes; 2])| CategoryJson {
            category: category.as_str(),
            predicted_bytes: predicted.get(),
            measured_bytes: measured.get(),
            difference_bytes: measured.minus(predicted),
        };
        let phase = |row: &'a Row<'a>| {
            let measured = row.measured.map(|total| total.total);
            let within = |tolerance: Tolerance| Some(tolerance.holds(row.predicted.total, measured?));
            PhaseJson {
                phase: &row.name,
                predicted_bytes: row.predicted.total.get(),
                measured_bytes: measured.map(Bytes::get),
                difference_bytes: measured.map(|bytes| bytes.minus(row.predicted.total)),
                within_tolerance: report.tolerance.and_then(within),
                by_category: row
                    .measured
                    .into_iter()
                    .flat_map(|measured| by_category(row.predicted, measured))
                    .map(category)
                    .collect(),
            }
        };
        ReconcileJson {
            plan: report.plan.name,
            measured: report.measured.name,
            steps: report.steps,
            step: report.step,
            phases: report.rows.iter().map(phase).collect(),
            remainder: report.bridge(),
            rules: &report.rules,
            notes: report.notes(),
            incomplete: report.measured.incomplete,
            agrees: report.tolerance.map(|_| report.agrees()),
        }
    }
}
