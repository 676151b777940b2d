//! `read` of a profiler's trace, of a memory timeline, and of an out-of-memory message.

use crate::support::Bench;

/// A step of two blocks on a card, its phases named.
const TRACE: &str = r#"{"schemaVersion": 1, "profile_memory": 1, "traceEvents": [
  {"ph": "X", "cat": "user_annotation", "name": "forward", "pid": 1, "tid": 1, "ts": 10, "dur": 10},
  {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 12, "args": {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": 2097152, "Total Allocated": 3145728, "Total Reserved": 4194304}},
  {"ph": "X", "cat": "user_annotation", "name": "my pass", "pid": 1, "tid": 1, "ts": 30, "dur": 10},
  {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 32, "args": {"Device Type": 1, "Device Id": 0, "Addr": 2, "Bytes": 1048576, "Total Allocated": 4194304, "Total Reserved": 4194304}},
  {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 38, "args": {"Device Type": 1, "Device Id": 0, "Addr": 1, "Bytes": -2097152, "Total Allocated": 2097152, "Total Reserved": 4194304}}
]}"#;

const MESSAGE: &str = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of \
    which 1.00 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 2.50 GiB is reserved by PyTorch but unallocated.";

fn bench() -> Bench {
    Bench::new()
        .file("trace.json", TRACE)
        .file("cut.json", &TRACE[..TRACE.len() - 150])
        .file("step.log", MESSAGE)
}

#[test]
fn a_trace_and_the_names_of_its_phases() {
    insta::assert_snapshot!(bench().answer("read trace.json"), @"
    peak 4.00 MiB allocated on cuda:0 in forward.0
    reserved by the allocator: up to 4.00 MiB, first after memory event 0
    the peak is after event 1 of its 3 memory events
    1.00 MiB before the first event, 2.00 MiB after the last

       phase          peak  at its end
    ▶  forward.0  4.00 MiB    2.00 MiB  ████████████████████████████████████████

    at the peak
    taken by                                              size   share  blocks
    forward                                           2.00 MiB  50.0 %       1
    my pass                                           1.00 MiB  25.0 %       1
    older than the trace, and never given back in it  1.00 MiB  25.0 %       1
    without room: in, line (COLUMNS=98 shows them)

    trace.json: 5 events, 1 step
    ");
    let bench = bench();
    let mut command = bench.command("read trace.json --device 0 --format csv --phase");
    let ran = command.arg("my pass=backward").output().unwrap();
    insta::assert_snapshot!(String::from_utf8(ran.stdout).unwrap(), @r#"
    device,step,phase,micro_batch,events,peak_bytes,end_bytes,is_peak
    cuda:0,0,forward,0,1,3145728,3145728,false
    cuda:0,0,backward,0,2,4194304,2097152,true
    "#);
}

#[test]
fn its_step_is_a_ledger() {
    let bench = bench();
    bench.answer("read trace.json --save ledger.json");
    insta::assert_snapshot!(bench.answer("show ledger.json"), @"
    peak 4.00 MiB in forward.0
    ledger.json: 3 states
    note: peakledger read trace.json, cuda:0, step 0 of 1: allocated bytes;
          categories are concluded from when a block comes and goes

       phase         total
    ▶  forward.0  4.00 MiB  ████████████████████████████████████████

    at the peak, by category
    parameter   1.00 MiB  25.0 %  ██████████
    activation  1.00 MiB  25.0 %  ██████████
    workspace   2.00 MiB  50.0 %  ████████████████████

    contributors
    state                                                 size   share
    forward #0                                        2.00 MiB  50.0 %
    my pass #1                                        1.00 MiB  25.0 %
    older than the trace, and never given back in it  1.00 MiB  25.0 %
    without room: category (COLUMNS=89 shows them)
    ");
}

#[test]
fn a_trace_that_is_cut_off() {
    insta::assert_snapshot!(bench().refusal("read cut.json"), @r#"
    error: cut.json:6:3: the file ends in the middle of a value; 2 memory events before it are sound
      help: copy or record it again, or keep the sound part: `peakledger read --salvage --save LEDGER`
    "#);
    let ran = bench().run("read cut.json --salvage");
    assert_eq!(ran.code, Some(3));
    let says = "incomplete: only a part of the file could be read: the file ends in the middle\n            of a value;";
    assert!(ran.out.starts_with(says), "{}", ran.out);
}

#[test]
fn a_timeline() {
    let timeline = "[[1, 2], [[0, 4096, 0, 0, 0, 0, 0, 0, 0], [0, 4096, 0, 0, 0, 8192, 0, 0, 0]]]";
    let bench = bench()
        .file("timeline.json", timeline)
        .file("timeline.html", "<html><img src='data:image/png;base64,iVBO'>");
    insta::assert_snapshot!(bench.answer("read timeline.json"), @r#"
    peak 12.00 KiB after 0.001 ms
    timeline.json: a memory timeline of 2 rows over 0.001 ms; 12.00 KiB at its end

    torch's category      size   share  here
    activation        8.00 KiB  66.7 %  activation  █████████████████████▍
    parameter         4.00 KiB  33.3 %  parameter   ██████████▋
    "#);
    insta::assert_snapshot!(bench.refusal("read timeline.html"), @r#"
    error: timeline.html: only a picture: the `.html` of a memory timeline has no figures in it
      help: export it again as `.json`: `prof.export_memory_timeline("timeline.json")`
    "#);
}

#[test]
fn an_out_of_memory_message() {
    insta::assert_snapshot!(bench().answer("read --oom-message step.log"), @r#"
    out of memory on GPU 0: 2.00 GiB asked for (line 1, rank 0)
    Fragmentation: PyTorch held 2.50 GiB that nobody used, enough for the 2.00 GiB,
    but in pieces that are each too small.
    512.00 MiB ± 20.48 MiB of the card are outside of PyTorch's allocator: CUDA
    contexts, libraries, other processes; the message does not tell them apart.
    help: set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF
          before 2.9), which lets pieces grow together; a memory snapshot shows who
          sits between them

                                   size    off by
    asked for                  2.00 GiB  5.12 MiB
    the card                  24.00 GiB  5.12 MiB
    free on it                 1.00 GiB  5.12 MiB
    allocated by PyTorch      20.00 GiB  5.12 MiB
    reserved and unallocated   2.50 GiB  5.12 MiB
    a message has two digits after the point: each figure may be off by what is
    beside it
    "#);
    let piped = bench().pipe("read --oom-message -", MESSAGE);
    assert_eq!(
        (piped.code, piped.out.lines().count()),
        (Some(0), bench().answer("read --oom-message step.log").lines().count())
    );
}

#[test]
fn what_means_nothing_for_a_file_is_refused() {
    let bench = bench().file("timeline.json", "[[1], [[0, 1, 0, 0, 0, 0, 0, 0, 0]]]");
    insta::assert_snapshot!(bench.refusal("read trace.json --at 3"), @r#"
    error: `--at`: it means nothing for a profiler's trace
      help: leave it out, or give a memory snapshot
    "#);
    insta::assert_snapshot!(bench.refusal("read timeline.json --at 3"), @r#"
    error: `--at`: it means nothing for a memory timeline
      help: leave it out, or give a memory snapshot
    "#);
    insta::assert_snapshot!(bench.refusal("read trace.json --device 4"), @r#"
    error: `--device`: trace.json has no card 4
      help: it has cuda:0
    "#);
    assert!(bench.refusal("read --oom-message step.log --salvage").contains("--salvage"));
}
