//! A naive sum of the same events, which the reader must agree with: on traces made at random, and on real ones.

use crate::made::Made;
use crate::shared;
use peakledger_core::{Bytes, Device, Moment, Phase};
use peakledger_input::{Binary, Input, MEASURED_LIMIT};
use peakledger_measure::trace::{DeviceTrace, Options, Trace, read};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;

/// What the events of a device say, added up as a person would: time by time, each block by its address.
#[derive(Debug, Default, PartialEq)]
struct Naive {
    events: usize,
    opening: i128,
    peak: i128,
    end: i128,
    peak_reserved: i128,
    standing: Vec<i128>,
}

fn naive(events: &[Value]) -> BTreeMap<(i64, i64), Naive> {
    let mut by_device: BTreeMap<(i64, i64), Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["name"] == "[memory]") {
        let args = &event["args"];
        by_device
            .entry((args["Device Type"].as_i64().unwrap(), args["Device Id"].as_i64().unwrap()))
            .or_default()
            .push(event);
    }
    by_device
        .into_iter()
        .map(|(device, mut events)| {
            events.sort_by(|a, b| a["ts"].as_f64().unwrap().total_cmp(&b["ts"].as_f64().unwrap()));
            let bytes = |event: &Value| i128::from(event["args"]["Bytes"].as_i64().unwrap());
            let key = |event: &Value| {
                event["args"]["Addr"].as_u64().unwrap_or(u64::try_from(bytes(event).unsigned_abs()).unwrap())
            };
            let mut live: Vec<(u64, i128)> = Vec::new();
            let mut older = Vec::new();
            for (number, event) in events.iter().enumerate() {
                match live.iter().rposition(|(at, _)| *at == key(event)) {
                    _ if bytes(event) >= 0 => live.push((key(event), bytes(event))),
                    Some(at) => {
                        live.remove(at);
                    }
                    None => older.push((number, -bytes(event))),
                }
            }
            let told = events[0]["args"]["Total Allocated"]
                .as_i64()
                .map(|total| i128::from(total) - bytes(events[0]));
            let known: i128 = older.iter().map(|(_, bytes)| bytes).sum();
            let opening = told.unwrap_or(known);
            let (mut level, mut peak, mut peak_at) = (opening, opening, 0);
            for (number, event) in events.iter().enumerate() {
                level += bytes(event);
                if level > peak {
                    (peak, peak_at) = (level, number + 1);
                }
            }
            let mut standing: Vec<(u64, i128)> = Vec::new();
            let mut before: Vec<i128> =
                older.iter().filter(|(freed, _)| *freed >= peak_at).map(|(_, bytes)| *bytes).collect();
            before.extend((opening > known).then_some(opening - known));
            for event in &events[..peak_at] {
                match standing.iter().rposition(|(at, _)| *at == key(event)) {
                    _ if bytes(event) >= 0 => standing.push((key(event), bytes(event))),
                    Some(at) => {
                        standing.remove(at);
                    }
                    None => {}
                }
            }
            before.extend(standing.iter().map(|(_, bytes)| *bytes));
            before.sort_unstable_by(|a, b| b.cmp(a));
            let reserved =
                events.iter().filter_map(|event| event["args"]["Total Reserved"].as_i64()).max().unwrap_or(0);
            (
                device,
                Naive {
                    events: events.len(),
                    opening,
                    peak,
                    end: level,
                    peak_reserved: reserved.into(),
                    standing: before,
                },
            )
        })
        .collect()
}

fn of_device(device: &DeviceTrace) -> Naive {
    let size = |bytes: Bytes| i128::from(bytes.get());
    Naive {
        events: device.events,
        opening: size(device.opening),
        peak: size(device.peak.bytes),
        end: size(device.end),
        peak_reserved: device.peak_reserved.map_or(0, |(_, bytes)| size(bytes)),
        standing: device.contributors.iter().map(|contributor| size(contributor.bytes)).collect(),
    }
}

fn compare(trace: &Trace, events: &[Value]) {
    let naive = naive(events);
    assert_eq!(trace.devices.len(), naive.len());
    for device in &trace.devices {
        let key = (if device.is_cpu() { 0 } else { 1 }, i64::from(device.device.id));
        assert_eq!(of_device(device), naive[&key], "{}", device.device);
        assert_eq!(
            device.contributors.iter().map(|c| i128::from(c.bytes.get())).sum::<i128>() + device.unexplained,
            naive[&key].peak
        );
    }
    // the ledger of every step agrees with the figures of its phases
    for (number, step) in trace.steps.iter().enumerate() {
        for (at, device) in trace.devices.iter().enumerate() {
            let ledger = trace.ledger(number, at).unwrap().unwrap();
            for (((slot, sums), span), figures) in
                ledger.phases().zip(&step.spans).zip(&device.phases[number])
            {
                assert_eq!(slot.phase, span.phase);
                let (total, end) = match device.is_cpu() {
                    false => (sums.total, sums.end),
                    // on the cpu, phase totals are not summed: the largest and the last moment are
                    true => {
                        let most =
                            (slot.first.0..=slot.last.0).map(|m| ledger.totals().at(Device::Cpu, Moment(m)));
                        (most.max().unwrap(), ledger.totals().at(Device::Cpu, slot.last))
                    }
                };
                assert_eq!(
                    (total, end),
                    (figures.peak, figures.end),
                    "step {number} {} {}",
                    slot.id(),
                    device.device
                );
            }
        }
    }
}

#[test]
fn real_traces_are_read_as_a_naive_sum_reads_them() {
    let Some(folder) = shared::data("traces") else { return };
    let mut summary = String::new();
    for name in [
        "01_macos_cpu_trace.json",
        "02_kineto2021_v100_resnet50.pt.trace.json.gz",
        "05_own_cpu_torch215.pt.trace.json",
        "08_own_cpu_torch215_nostack.pt.trace.json",
    ] {
        let open = || Binary::open(&Input::of(folder.join(name)), MEASURED_LIMIT).unwrap();
        let trace =
            read(&mut open(), &Options::default(), &mut |_| {}).unwrap_or_else(|problem| panic!("{problem}"));
        let mut text = String::new();
        open().read_to_string(&mut text).unwrap();
        let whole: Value = serde_json::from_str(&text).unwrap();
        compare(&trace, whole["traceEvents"].as_array().unwrap());
        for device in &trace.devices {
            writeln!(
                summary,
                "{name} {} peak {} in {} steps",
                device.device,
                device.peak.bytes.get(),
                trace.steps.len()
            )
            .unwrap();
            assert!(device.taken >= device.peak.bytes.minus(device.opening).unsigned_abs());
        }
        if let Some(last) = trace.steps.get(trace.usual_step()) {
            let spans = last.spans.iter().map(|span| span.phase.to_string());
            writeln!(summary, "  {}", spans.collect::<Vec<_>>().join(" ")).unwrap();
        }
        // the seed's rules: both phases are there, forward before backward
        let first = |phase: Phase| {
            trace
                .steps
                .iter()
                .flat_map(|step| &step.spans)
                .find(|span| span.phase == phase)
                .map(|span| span.start)
        };
        assert!(first(Phase::Forward).unwrap() < first(Phase::Backward).unwrap());
    }
    insta::assert_snapshot!(summary, @r#"
    01_macos_cpu_trace.json cpu peak 434184 in 1 steps
      forward loss backward
    02_kineto2021_v100_resnet50.pt.trace.json.gz cuda:0 peak 2791636480 in 6 steps
    02_kineto2021_v100_resnet50.pt.trace.json.gz cpu peak 57803264 in 6 steps
      forward loss zero_grad backward update
    05_own_cpu_torch215.pt.trace.json cpu peak 375968 in 3 steps
      load forward loss backward update zero_grad
    08_own_cpu_torch215_nostack.pt.trace.json cpu peak 375968 in 2 steps
      forward loss backward update zero_grad
    "#);
}

proptest! {
    #[test]
    fn made_traces_are_read_as_a_naive_sum_reads_them(
        opening in 0i64..4096,
        bare in any::<bool>(),
        events in prop::collection::vec((0u32..100, 0u64..6, 1i64..5, any::<bool>(), 0u8..8), 1..60),
    ) {
        let mut made = if bare { Made::bare() } else { Made::opening(opening * 512) };
        let mut live: Vec<(u64, i64)> = Vec::new();
        let names = ["forward", "loss", "backward", "update", "zero_grad", "aten::mm", "aten::empty", "ProfilerStep#1"];
        let mut time = 0;
        for (took, address, size, on_cpu, name) in events {
            time += took + 1;
            made = made.range("user_annotation", names[usize::from(name)], time - 1, time + took);
            if on_cpu {
                made = made.cpu(time, u64::from(time), size * 8);
                continue;
            }
            match live.iter().position(|(at, _)| *at == address) {
                Some(at) => {
                    let (_, bytes) = live.remove(at);
                    made = made.cuda(time, address, -bytes);
                }
                None => {
                    live.push((address, size * 512));
                    made = made.cuda(time, address, size * 512);
                }
            }
        }
        let whole: Value = serde_json::from_str(&made.text()).unwrap();
        compare(&made.read(), whole["traceEvents"].as_array().unwrap());
    }
}
