//! A trace of one step on a card and on the machine.

use super::{holds_on_any_terminal, said};
use peakledger_input::Binary;
use peakledger_measure::trace::{Options, Trace, read};
use peakledger_report::{Format, TraceReport};

fn trace() -> Trace {
    let range = |cat: &str, name: &str, from: u32, to: u32| {
        format!(
            r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 7, "tid": 7, "ts": {from}, "dur": {}}}"#,
            to - from
        )
    };
    let mut total = 1 << 30;
    let mut card = |ts: u32, address: u32, mib: i64| {
        total += mib << 20;
        format!(
            r#"{{"ph": "i", "name": "[memory]", "pid": 7, "tid": 7, "ts": {ts}, "args": {{"Device Type": 1, "Device Id": 0, "Addr": {address}, "Bytes": {}, "Total Allocated": {total}, "Total Reserved": {}}}}}"#,
            mib << 20,
            total + (64 << 20)
        )
    };
    let events = [
        range("user_annotation", "forward", 10, 30),
        range("python_function", "train.py(12): step", 5, 60),
        range("python_function", "nn.Module: Linear_0", 11, 29),
        range("cpu_op", "aten::addmm", 12, 28),
        card(13, 1, 256),
        card(14, 2, 256),
        card(15, 3, 128),
        card(16, 3, -128),
        range("user_annotation", "backward", 40, 50),
        range("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 41, 49),
        range("cpu_op", "aten::mm", 42, 48),
        card(43, 4, 512),
        r#"{"ph": "i", "name": "[OutOfMemory]", "pid": 7, "tid": 7, "ts": 44, "args": {"Device Type": 1, "Device Id": 0, "Bytes": 1073741824, "Total Allocated": 2147483648, "Total Reserved": 2214592512}}"#.to_owned(),
        card(45, 1, -256),
        card(46, 2, -256),
        range("user_annotation", "Optimizer.step#AdamW.step", 52, 58),
        card(53, 5, 64),
        card(54, 5, -64),
        r#"{"ph": "i", "name": "[memory]", "pid": 7, "tid": 7, "ts": 55, "args": {"Device Type": 0, "Device Id": -1, "Addr": 9, "Bytes": 4096, "Total Allocated": 4096, "Total Reserved": 0}}"#.to_owned(),
    ];
    let text = format!(
        r#"{{"deviceProperties": [{{"id": 0, "name": "Tesla T4", "totalGlobalMem": 15828320256}}], "traceEvents": [{}]}}"#,
        events.join(",")
    );
    read(&mut Binary::from_bytes("step.json", text).unwrap(), &Options::default(), &mut |_| {}).unwrap()
}

#[test]
fn each_format() {
    let trace = trace();
    let report = TraceReport { name: "step.json", trace: &trace };
    insta::assert_snapshot!(said(&report, Format::Table), @"
    peak 2.00 GiB allocated on cuda:0 in backward.0
    Tesla T4, 14.74 GiB
    reserved by the allocator: up to 2.06 GiB, first after memory event 4
    the peak is after event 4 of its 9 memory events
    1.00 GiB before the first event, 1.50 GiB after the last
    out of memory after event 4: 1.00 GiB asked for, 2.00 GiB allocated, 2.06 GiB reserved

       phase           peak  at its end
       forward.0   1.63 GiB    1.50 GiB  ████████████████████████████████▌
    ▶  backward.0  2.00 GiB    1.50 GiB  ████████████████████████████████████████
       update      1.56 GiB    1.50 GiB  ███████████████████████████████▎

    at the peak
    taken by                                                size   share  blocks  in
    older than the trace, and never given back in it    1.00 GiB  50.0 %       1  before the trace
    AddmmBackward0: aten::mm                          512.00 MiB  25.0 %       1  backward.0
    Linear_0: aten::addmm                             512.00 MiB  25.0 %       2  forward.0
    without room: line (COLUMNS=114 shows them)

    beside them, up to 4.00 KiB on the cpu, which no peak of a card counts

    step.json: 19 events, 1 step
    ");
    insta::assert_snapshot!(said(&report, Format::Csv), @r#"
    device,step,phase,micro_batch,events,peak_bytes,end_bytes,is_peak
    cuda:0,0,forward,0,4,1744830464,1610612736,false
    cuda:0,0,backward,0,3,2147483648,1610612736,true
    cuda:0,0,update,,2,1677721600,1610612736,false
    cpu,0,forward,0,0,0,0,false
    cpu,0,backward,0,0,0,0,false
    cpu,0,update,,1,4096,4096,true
    "#);
    insta::assert_snapshot!(said(&report, Format::Markdown), @r#"
    **peak 2.00 GiB allocated on cuda:0 in backward.0**

    - Tesla T4, 14.74 GiB
    - reserved by the allocator: up to 2.06 GiB, first after memory event 4
    - the peak is after event 4 of its 9 memory events
    - 1.00 GiB before the first event, 1.50 GiB after the last
    - out of memory after event 4: 1.00 GiB asked for, 2.00 GiB allocated, 2.06 GiB reserved

    | phase | peak | at its end |
    | --- | ---: | ---: |
    | forward.0 | 1.63 GiB | 1.50 GiB |
    | **backward.0** | **2.00 GiB** | 1.50 GiB |
    | update | 1.56 GiB | 1.50 GiB |

    At the peak:

    | taken by | in | blocks | size |
    | --- | --- | ---: | ---: |
    | older than the trace, and never given back in it | before the trace | 1 | 1.00 GiB |
    | AddmmBackward0: aten::mm | backward.0 | 1 | 512.00 MiB |
    | Linear_0: aten::addmm | forward.0 | 2 | 512.00 MiB |

    step.json: 19 events, 1 step

    beside them, up to 4.00 KiB on the cpu, which no peak of a card counts
    "#);
    let json: serde_json::Value = serde_json::from_str(&said(&report, Format::Json)).unwrap();
    let card = &json["devices"][0];
    insta::assert_snapshot!(card["peak"].to_string(), @r#"{"after_us":30.0,"allocated_bytes":2147483648,"event":4,"micro_batch":0,"phase":"backward","step":0}"#);
    insta::assert_snapshot!(card["contributors"][1].to_string(), @r#"{"alloc_event":4,"allocated_bytes":536870912,"annotation":"backward","name":"AddmmBackward0: aten::mm","op":"aten::mm","phase":"backward","step":0,"user_frame":"train.py(12): step","within":"AddmmBackward0"}"#);
    insta::assert_snapshot!(card["oom"].to_string(), @r#"[{"allocated_bytes":2147483648,"event":4,"reserved_bytes":2214592512,"rounded_bytes":1073741824}]"#);
    insta::assert_snapshot!(card["steps"][0]["phases"][2].to_string(), @r#"{"end_bytes":1610612736,"events":2,"micro_batch":null,"peak_bytes":1677721600,"phase":"update"}"#);
    assert_eq!((&card["complete"], &card["opening_allocated_bytes"]), (&true.into(), &(1u64 << 30).into()));
    holds_on_any_terminal(&report);
}
