//! The trace as JSON: the fields of `read`, and the phases of every step.

use super::TraceReport;
use peakledger_measure::trace::{Contributor, DeviceTrace};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct TraceJson<'a> {
    kind: &'static str,
    events: usize,
    devices: Vec<DeviceJson<'a>>,
    notes: Vec<String>,
    incomplete: Option<String>,
    salvaged: bool,
}

#[derive(Serialize)]
struct DeviceJson<'a> {
    device: i32,
    name: String,
    card: Option<&'a str>,
    capacity_bytes: Option<u64>,
    events: usize,
    allocated_end_bytes: u64,
    peak: PeakJson<'a>,
    peak_reserved_bytes: Option<u64>,
    peak_reserved_event: Option<u32>,
    opening_allocated_bytes: u64,
    opening_is_exact: bool,
    allocated_in_all_bytes: u128,
    unexplained_bytes: i128,
    oom: Vec<OomJson>,
    contributors: Vec<ContributorJson<'a>>,
    steps: Vec<StepJson<'a>>,
    complete: bool,
}

#[derive(Serialize)]
struct PeakJson<'a> {
    event: i64,
    after_us: f64,
    allocated_bytes: u64,
    step: Option<usize>,
    phase: Option<&'a str>,
    micro_batch: Option<u32>,
}

#[derive(Serialize)]
struct OomJson {
    event: i64,
    rounded_bytes: u64,
    allocated_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
}

#[derive(Serialize)]
struct ContributorJson<'a> {
    allocated_bytes: u64,
    alloc_event: i64,
    name: &'a str,
    op: Option<&'a str>,
    within: Option<&'a str>,
    user_frame: Option<&'a str>,
    annotation: Option<&'a str>,
    step: Option<usize>,
    phase: Option<&'a str>,
}

#[derive(Serialize)]
struct StepJson<'a> {
    whole: bool,
    phases: Vec<PhaseJson<'a>>,
}

#[derive(Serialize)]
struct PhaseJson<'a> {
    phase: &'a str,
    micro_batch: Option<u32>,
    events: u32,
    peak_bytes: u64,
    end_bytes: u64,
}

/// An event, or −1 for before the first.
fn event(number: Option<u32>) -> i64 {
    number.map_or(-1, i64::from)
}

impl<'a> TraceJson<'a> {
    pub(super) fn of(report: &TraceReport<'a>) -> TraceJson<'a> {
        TraceJson {
            kind: "trace",
            events: report.trace.events,
            devices: report.trace.devices.iter().map(|device| device_json(report, device)).collect(),
            notes: report.notes().collect(),
            incomplete: report.trace.incomplete(),
            salvaged: report.trace.cut.is_some(),
        }
    }
}

fn device_json<'a>(report: &TraceReport<'a>, device: &'a DeviceTrace) -> DeviceJson<'a> {
    let span = |at: Option<(usize, usize)>| {
        at.and_then(|(step, span)| report.trace.steps.get(step)?.spans.get(span))
    };
    let at_peak = span(device.peak.at);
    let contributor = |contributor: &'a Contributor| ContributorJson {
        allocated_bytes: contributor.bytes.get(),
        alloc_event: event(contributor.event),
        name: &contributor.name,
        op: contributor.op.as_deref(),
        within: contributor.within.as_deref(),
        user_frame: contributor.user_frame.as_deref(),
        annotation: contributor.annotation.as_deref(),
        step: contributor.born.map(|(step, _)| step),
        phase: span(contributor.born).map(|span| span.phase.as_str()),
    };
    let step = |number: usize| StepJson {
        whole: report.trace.steps.get(number).is_some_and(|step| step.is_whole()),
        phases: report
            .phases(device, number)
            .map(|(span, figures, _)| PhaseJson {
                phase: span.phase.as_str(),
                micro_batch: span.micro_batch,
                events: figures.events,
                peak_bytes: figures.peak.get(),
                end_bytes: figures.end.get(),
            })
            .collect(),
    };
    #[allow(clippy::cast_precision_loss)] // a time for reading
    let after_us = device.peak.after as f64 / 1000.0;
    DeviceJson {
        device: device.device.id,
        name: device.device.to_string(),
        card: device.card.as_ref().map(|card| &*card.name),
        capacity_bytes: device.card.as_ref().map(|card| card.total.get()),
        events: device.events,
        allocated_end_bytes: device.end.get(),
        peak: PeakJson {
            event: event(device.peak.event),
            after_us,
            allocated_bytes: device.peak.bytes.get(),
            step: device.peak.at.map(|(step, _)| step),
            phase: at_peak.map(|span| span.phase.as_str()),
            micro_batch: at_peak.and_then(|span| span.micro_batch),
        },
        peak_reserved_bytes: device.peak_reserved.map(|(_, bytes)| bytes.get()),
        peak_reserved_event: device.peak_reserved.map(|(event, _)| event),
        opening_allocated_bytes: device.opening.get(),
        opening_is_exact: device.opening_is_told,
        allocated_in_all_bytes: device.taken,
        unexplained_bytes: device.unexplained,
        oom: device
            .out_of_memory
            .iter()
            .map(|oom| OomJson {
                event: event(oom.after_event),
                rounded_bytes: oom.asked.get(),
                allocated_bytes: oom.allocated.map(|bytes| bytes.get()),
                reserved_bytes: oom.reserved.map(|bytes| bytes.get()),
            })
            .collect(),
        contributors: device.contributors.iter().map(contributor).collect(),
        steps: (0..report.trace.steps.len()).map(step).collect(),
        complete: device.opening_is_told && device.unexplained == 0,
    }
}
