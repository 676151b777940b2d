//! Traces: those made here, and real ones against a naive sum.

use crate::made::{Made, read_text, read_with, step};
use peakledger_core::Bytes;
use peakledger_measure::RangeNames;
use peakledger_measure::trace::{Options, Trace};
use std::fmt::Write as _;

fn salvage() -> Options {
    Options { salvage: true, ..Options::default() }
}

/// A trace as a person would tell it.
fn told(trace: &Trace) -> String {
    let mut text = String::new();
    for device in &trace.devices {
        let peak = device.peak;
        writeln!(
            text,
            "{}: {} events, opening {}, peak {} after {:?}, end {}, reserved {:?}",
            device.device,
            device.events,
            device.opening,
            peak.bytes,
            peak.event,
            device.end,
            device.peak_reserved.map(|(_, bytes)| bytes.get())
        )
        .unwrap();
        for contributor in &device.contributors {
            writeln!(text, "  {} {}", contributor.bytes, contributor.name).unwrap();
        }
        for (step, phases) in trace.steps.iter().zip(&device.phases) {
            for (span, figures) in step.spans.iter().zip(phases) {
                let micro_batch = span.micro_batch.map(|n| format!(".{n}")).unwrap_or_default();
                writeln!(
                    text,
                    "  {}{micro_batch}: {} events, peak {}, end {}",
                    span.phase, figures.events, figures.peak, figures.end
                )
                .unwrap();
            }
        }
    }
    trace.notes.iter().for_each(|note| writeln!(text, "note: {note}").unwrap());
    text
}

#[test]
fn a_step_has_the_phases_of_a_planned_one() {
    insta::assert_snapshot!(told(&step().read()), @r#"
    cuda:0: 13 events, opening 4.00 KiB, peak 18.00 KiB after Some(8), end 12.00 KiB, reserved Some(18944)
      8.00 KiB Optimizer.step#AdamW.step
      4.00 KiB older than the trace, and never given back in it
      4.00 KiB AddmmBackward0: aten::mm
      1.00 KiB Optimizer.step#AdamW.step
      512 B outside of every op
      512 B aten::cross_entropy_loss
      load: 1 events, peak 4.50 KiB, end 4.50 KiB
      forward.0: 3 events, peak 7.50 KiB, end 6.50 KiB
      loss.0: 1 events, peak 7.00 KiB, end 7.00 KiB
      backward.0: 2 events, peak 11.00 KiB, end 9.00 KiB
      update: 3 events, peak 18.00 KiB, end 17.00 KiB
      zero_grad: 3 events, peak 17.00 KiB, end 12.00 KiB
    cpu: 1 events, opening 0 B, peak 256 B after Some(0), end 256 B, reserved None
      256 B outside of every op
      load: 1 events, peak 256 B, end 256 B
      forward.0: 0 events, peak 256 B, end 256 B
      loss.0: 0 events, peak 256 B, end 256 B
      backward.0: 0 events, peak 256 B, end 256 B
      update: 0 events, peak 256 B, end 256 B
      zero_grad: 0 events, peak 256 B, end 256 B
    note: cpu: no totals (torch 1.x), so what never moves in the trace is not counted
    "#);
}

#[test]
fn a_trace_of_2021_has_neither_addresses_nor_totals() {
    let trace = Made::bare()
        .cuda(1, 0, -512)
        .cuda(2, 0, 1024)
        .cuda(3, 0, 1024)
        .cuda(4, 0, -1024)
        .cuda(5, 0, -256)
        .read();
    insta::assert_snapshot!(told(&trace), @r#"
    cuda:0: 5 events, opening 768 B, peak 2.25 KiB after Some(2), end 1.00 KiB, reserved None
      1.00 KiB outside of every op
      1.00 KiB outside of every op
      256 B older than the trace
      trace: 5 events, peak 2.25 KiB, end 1.00 KiB
    note: no range in it is named after a phase, so all of it is one; `--phase NAME=forward` says which names are
    note: cuda:0: no addresses (torch 1.x), so a free gives back the latest block of its size
    note: cuda:0: no totals (torch 1.x), so what never moves in the trace is not counted
    "#);
}

#[test]
fn a_step_is_a_ledger_in_which_the_machines_memory_counts_for_nothing() {
    let trace = step().read();
    assert_eq!(trace.usual_step(), 0);
    let ledger = trace.ledger(0, 0).unwrap().unwrap();
    let phases: Vec<String> = ledger
        .phases()
        .map(|(slot, sums)| format!("{} {} {}", slot.id(), sums.total.get(), sums.end.get()))
        .collect();
    assert_eq!(
        phases,
        [
            "load 4608 4608",
            "forward.0 7680 6656",
            "loss.0 7168 7168",
            "backward.0 11264 9216",
            "update 18432 17408",
            "zero_grad 17408 12288"
        ]
    );
    assert_eq!((ledger.peak().bytes, ledger.cpu_peak()), (trace.devices[0].peak.bytes, Bytes::new(256)));
    let mut states: Vec<String> = ledger
        .states()
        .iter()
        .map(|s| format!("{} {:?} {} {}", s.name, s.category, s.bytes.get(), s.persistent))
        .collect();
    states.sort();
    insta::assert_snapshot!(states.join("\n"), @r#"
    AddmmBackward0: aten::mm #5 Gradient 4096 false
    Linear_0: aten::addmm #1 Activation 2048 false
    Linear_0: aten::addmm #2 Workspace 1024 false
    Optimizer.step#AdamW.step #7 OptimizerState 8192 true
    Optimizer.step#AdamW.step #8 Workspace 1024 false
    aten::cross_entropy_loss #4 Activation 512 false
    cpu: outside of every op #0 Parameter 256 true
    older than the trace, and never given back in it Parameter 4096 true
    outside of every op #0 Activation 512 false
    "#);
    // a trace of the CPU alone leaves every phase of the card at nothing
    let cpu = Made::default()
        .range("user_annotation", "forward", 1, 5)
        .range("user_annotation", "backward", 6, 9)
        .cpu(2, 1, 64)
        .cpu(7, 2, 64)
        .read();
    let ledger = cpu.ledger(0, 0).unwrap().unwrap();
    assert!(ledger.phases().all(|(_, sums)| sums.total == Bytes::ZERO));
    assert_eq!(ledger.cpu_peak().get(), 128);
}

/// The seed's check against the framework: both phases are there and in order, memory was taken, at least the tensor's
/// bytes, and none of the machine's counts on the card.
#[test]
fn the_seeds_rules_hold_for_its_own_computation() {
    let tensor = 128 * 128 * 4;
    let trace = Made::default()
        .range("user_annotation", "forward_phase", 10, 20)
        .cpu(12, 1, tensor)
        .cpu(14, 2, 4)
        .range("user_annotation", "backward_phase", 21, 30)
        .cpu(25, 3, tensor)
        .read();
    let phases: Vec<&str> = trace.steps[0].spans.iter().map(|span| span.phase.as_str()).collect();
    assert_eq!(phases, ["forward", "backward"]);
    assert!(trace.devices[0].taken >= u128::from(tensor.unsigned_abs()) && trace.devices[0].is_cpu());
    let ledger = trace.ledger(0, 0).unwrap().unwrap();
    assert!(ledger.phases().all(|(_, sums)| sums.total == Bytes::ZERO));
}

#[test]
fn micro_batches_and_steps_are_counted() {
    let mut made = Made::default();
    let mut time = 0;
    for _ in 0..2 {
        for name in ["forward", "loss", "backward", "forward", "loss", "backward", "update", "zero_grad"] {
            made = made.range("user_annotation", name, time, time + 8).cuda(time + 2, u64::from(time), 512);
            time += 10;
        }
    }
    let steps: Vec<String> = made
        .read()
        .steps
        .iter()
        .map(|step| {
            let names = step.spans.iter().map(|span| {
                format!("{}{}", span.phase, span.micro_batch.map(|n| format!(".{n}")).unwrap_or_default())
            });
            names.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(
        steps,
        [
            "forward.0 loss.0 backward.0 forward.1 loss.1 backward.1 update zero_grad",
            "load forward.0 loss.0 backward.0 forward.1 loss.1 backward.1 update zero_grad",
        ]
    );
}

/// zero_grad stands where the loop has it, and a step is still one.
#[test]
fn zero_grad_may_come_first_or_before_backward() {
    let steps = |order: [&str; 5]| {
        let names = order.iter().cycle().take(10).enumerate();
        let made = names.fold(Made::default(), |made, (at, name)| {
            let time = u32::try_from(at).unwrap() * 10;
            made.range("user_annotation", name, time, time + 8).cuda(time + 2, u64::from(time), 512)
        });
        let trace = made.read();
        let told = |step: &peakledger_measure::trace::Step| {
            step.spans.iter().map(|span| span.phase.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert!(trace.ledger(1, 0).unwrap().is_ok());
        trace.steps.iter().map(told).collect::<Vec<_>>()
    };
    let first = steps(["zero_grad", "forward", "loss", "backward", "update"]);
    assert_eq!(first, ["zero_grad load forward loss backward update"; 2]);
    let between = steps(["forward", "loss", "zero_grad", "backward", "update"]);
    assert_eq!(
        between,
        ["forward loss zero_grad backward update", "load forward loss zero_grad backward update"]
    );
}

fn phases(made: Made) -> Vec<String> {
    let trace = made.read();
    let spans = trace.steps.iter().flat_map(|step| step.spans.iter());
    spans.map(|span| span.phase.to_string()).collect()
}

#[test]
fn phases_are_told_where_ranges_overlap_or_lack() {
    let mem = |made: Made| made.cuda(1, 1, 512).cuda(99, 2, 512);
    let recomputing = Made::default()
        .range("user_annotation", "forward", 10, 20)
        .range("cpu_op", "aten::mse_loss", 15, 17)
        .range("user_annotation", "backward", 30, 60)
        .range("python_function", "nn.Module: Linear_0", 35, 40)
        .range("cpu_op", "torch::step", 70, 80)
        .range("python_function", "torch/nn/utils/clip_grad.py(12): clip_grad_norm_", 62, 64)
        .range("user_annotation", "Optimizer.step#SGD.step", 70, 80);
    assert_eq!(phases(mem(recomputing)), ["load", "forward", "loss", "backward", "update"]);
    let unnamed = Made::default()
        .range("cpu_op", "aten::cross_entropy_loss", 20, 22)
        .range("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 30, 32)
        .range("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 34, 36)
        .range("cpu_op", "aten::cross_entropy_loss", 50, 52)
        .range("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 60, 62)
        .range("user_annotation", "Optimizer.step#SGD.step", 70, 80);
    let trace = mem(unnamed).read();
    let found: Vec<&str> = trace.steps[0].spans.iter().map(|span| span.phase.as_str()).collect();
    assert_eq!(found, ["forward", "loss", "backward", "forward", "loss", "backward", "update"]);
    assert!(trace.notes.iter().any(|note| note.contains("no range is named forward")));
    assert_eq!(phases(mem(Made::default())), ["trace"]);
    let silent = Made::default().cuda(1, 1, 512).range("user_annotation", "forward", 10, 20).range(
        "user_annotation",
        "backward",
        30,
        40,
    );
    let trace = silent.read();
    assert_eq!(
        trace.ledger(0, 0).unwrap().unwrap().peak().bytes.get(),
        512,
        "ranges go on after the last memory event"
    );
    let own = Made::default()
        .range("user_annotation", "rollout", 10, 20)
        .range("user_annotation", "forward", 30, 40)
        .range("user_annotation", "rollout", 50, 60)
        .range("user_annotation", "backward", 70, 80);
    let names = RangeNames::default().with("rollout", peakledger_core::Phase::named("rollout"));
    let trace = read_with(mem(own).text(), Options { names, ..Options::default() }).unwrap();
    let ids: Vec<String> =
        trace.ledger(0, 0).unwrap().unwrap().timeline().slots().iter().map(|slot| slot.id()).collect();
    assert_eq!(ids, ["load", "rollout", "forward.0", "rollout.1", "backward.0"]);
    let inference = Made::default()
        .range("user_annotation", "ProfilerStep#1", 10, 30)
        .range("user_annotation", "forward", 12, 20)
        .range("user_annotation", "ProfilerStep#2", 40, 60)
        .range("user_annotation", "forward", 42, 50);
    assert_eq!(phases(mem(inference)), ["load", "forward", "load", "forward"]);
}

#[test]
fn out_of_memory_and_odd_events_are_told() {
    let oom = r#"{"ph": "i", "name": "[OutOfMemory]", "pid": 7, "tid": 7, "ts": 9, "args": {"Device Type": 1, "Device Id": 0, "Bytes": 1048576, "Total Allocated": 512, "Total Reserved": 2048}}"#;
    let made = Made::default()
        .cuda(5, 1, 512)
        .event(oom)
        .memory(6, 1, 0, 64, r#", "Addr": 9, "Total Allocated": 5000"#)
        .event(r#"{"ph": "i", "name": "[memory]", "ts": 1, "args": {"Device Type": 1, "Device Id": 0, "Bytes": 0.5}}"#)
        .event(r#"{"ph": "i", "name": "[memory]", "ts": "x", "args": []}"#)
        .event("17")
        .memory(7, 99, 3, 64, "");
    let trace = made.read();
    let card = &trace.devices[0];
    assert_eq!((card.out_of_memory[0].asked.get(), card.out_of_memory[0].after_event), (1 << 20, Some(1)));
    assert_eq!((card.peak.bytes.get(), card.unexplained), (5000, 5000 - 576));
    assert_eq!(card.card.as_ref().unwrap().name, "Tesla V100");
    insta::assert_snapshot!(trace.notes.join("\n"), @r#"
    no range in it is named after a phase, so all of it is one; `--phase NAME=forward` says which names are
    device type 99:3: no addresses (torch 1.x), so a free gives back the latest block of its size
    device type 99:3: no totals (torch 1.x), so what never moves in the trace is not counted
    cuda:0: torch's own total moves otherwise than the events 1 times; its total is taken
    memory events whose `Bytes` is no whole number of 64 bits: 1, first at /traceEvents/3
    memory events without a time or a device: 1, first at /traceEvents/4
    events that are no objects, or say a thing twice: 1, first at /traceEvents/5
    "#);
    assert_eq!(trace.devices[1].device.to_string(), "device type 99:3");
}

#[test]
fn each_fault_of_a_file_has_its_sentence() {
    let said = |text: &str| read_text(text).unwrap_err().to_string();
    insta::assert_snapshot!(said(r#"{"profile_memory": 1, "traceEvents": []}"#), @r#"
    trace.json: recorded with `profile_memory`, yet without a single memory event
      help: record steps that allocate, on the thread that the profiler was started on
    "#);
    insta::assert_snapshot!(said(r#"{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}]}"#), @r#"
    trace.json: no memory events in it: it was recorded without `profile_memory=True`
      help: record again with `torch.profiler.profile(profile_memory=True, …)`
    "#);
    insta::assert_snapshot!(said(r#"{"model_type": "llama"}"#), @r#"
    trace.json: no list `traceEvents` in it: not a profiler trace
      help: write one with `torch.profiler.profile(profile_memory=True)` and `export_chrome_trace`
    "#);
    let text = step().text();
    let cut = &text[..text.len() / 2];
    insta::assert_snapshot!(said(cut), @r#"
    trace.json:15:3: the file ends in the middle of a value; 6 memory events before it are sound
      help: copy or record it again, or keep the sound part: `peakledger read --salvage --save LEDGER`
    "#);
    let kept = read_with(cut, salvage()).unwrap();
    assert!(kept.cut.is_some() && kept.devices[0].events > 3);
    insta::assert_snapshot!(said(&text.replacen("\"dur\": 10}", "\"dur\": 10", 1)), @r#"
    trace.json:6:3 (/traceEvents/2): a key without quotes
      help: put keys into double quotes
    "#);
    let huge = (1..4).fold(Made::default(), |made, time| made.memory(time, 1, 0, i64::MAX, ""));
    insta::assert_snapshot!(said(&huge.text()), @r#"
    trace.json: the bytes on cuda:0 pass 64 bits at its memory event 2
      help: no machine holds so much: the file is damaged, record it again
    "#);
    assert!(said(&format!("{{\"traceEvents\": [{}", "[".repeat(1 << 20))).contains("ends in the middle"));
    assert!(said(&format!("[{}1{}]", "[".repeat(200), "]".repeat(200))).contains("no memory events"));
}

#[test]
fn events_may_stand_in_any_order() {
    let made = step();
    let text = made.text();
    let (head, rest) = text.split_once("[\n").unwrap();
    let (events, tail) = rest.split_once("\n]").unwrap();
    let mut lines: Vec<&str> = events.split(",\n").collect();
    lines.reverse();
    let turned = read_text(format!("{head}[\n{}\n]{tail}", lines.join(",\n"))).unwrap();
    assert_eq!(told(&turned), told(&made.read()));
}

/// Every prefix, and every byte changed: an answer or an error, and a prefix with `--salvage` no more than the whole.
#[test]
fn damage_ends_in_an_answer_or_an_error() {
    let text = Made::opening(64)
        .range("cpu_op", "aten::é", 1, 9)
        .cuda(2, 0x1000, 512)
        .cpu(3, 1, 8)
        .cuda(4, 0x1000, -512)
        .text()
        .into_bytes();
    let mut salvaged = [0; 4];
    for end in 1..text.len() - 2 {
        let prefix = &text[..end];
        assert!(read_text(prefix).is_err(), "{end}");
        if let Ok(trace) = read_with(prefix, salvage()) {
            salvaged[trace.devices.iter().map(|device| device.events).sum::<usize>()] += 1;
        }
    }
    assert!(
        salvaged[1..].iter().all(|prefixes| *prefixes > 0),
        "by events, of which there are 3: {salvaged:?}"
    );
    for at in 0..text.len() {
        for byte in [0, b'"', b'\\', b'{', b'}', b'[', b']', b',', b'9', b'-', b'e', 0xff, b'\n'] {
            let mut changed = text.clone();
            changed[at] = byte;
            if let Ok(trace) = read_text(changed) {
                let _ = trace.ledger(0, 0);
            }
        }
    }
}
