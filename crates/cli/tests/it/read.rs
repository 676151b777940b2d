//! `read`: a small step of the tests' own writer, in each format, and its options.

use crate::own::{open_value, step};
use crate::support::Bench;
use crate::writer::pickle;
use insta::assert_snapshot;

fn bench() -> Bench {
    assert!(open_value(&step()).is_ok());
    Bench::new().file("step.pickle", pickle(&step(), 4))
}

#[test]
fn as_a_table() {
    assert_snapshot!(bench().answer("read step.pickle"), @r#"
    peak 6.00 KiB allocated on device 0, after event 1 of 4
    step.pickle: 1 device, 4 events

       peak on        requested  allocated    active  reserved  events
    ▶  device 0        5.86 KiB   6.00 KiB  6.00 KiB  2.00 MiB       4
         after event          1          1         1     start

    at the requested peak, after event 1 of 4: 5.86 KiB in 3 blocks, by line
    line                   requested   share  blocks
    /proj/train.py:1:step   2.93 KiB  50.0 %       1
    /proj/train.py:2:step   1.95 KiB  33.3 %       1
    <preexisting>             1000 B  16.7 %       1

    reserved at the end: 2.00 MiB in 1 segment
    requested, in use                    2.93 KiB   0.1 %  ▏
    rounding and tails of blocks in use      72 B   0.0 %  ▏
    stuck inside segments partly in use  2.00 MiB  99.9 %  █████████████████████████
    the largest free block is 1.99 MiB

    note: device 0: history starts at event 0: 1000 B in 1 block was already live
    "#);
}

#[test]
fn as_csv_and_markdown() {
    assert_snapshot!(bench().answer("read step.pickle --format csv"), @r#"
    device,requested_bytes,size_bytes,address,alloc_event,user_frame,stack_depth
    0,3000,3072,139637976728576,0,/proj/train.py:1:step,2
    0,2000,2048,139637976731648,1,/proj/train.py:2:step,2
    0,1000,1024,139637976727552,-1,,0
    "#);
    assert_snapshot!(bench().answer("read step.pickle --format markdown"), @r#"
    **peak 6.00 KiB allocated on device 0, after event 1 of 4**

    | device | events | requested | allocated | active | reserved |
    | --- | ---: | ---: | ---: | ---: | ---: |
    | 0 | 4 | 5.86 KiB | 6.00 KiB | 6.00 KiB | 2.00 MiB |

    Device 0, at the requested peak, after event 1 of 4:

    | line | requested | share | blocks |
    | --- | ---: | ---: | ---: |
    | /proj/train.py:1:step | 2.93 KiB | 50.0 % | 1 |
    | /proj/train.py:2:step | 1.95 KiB | 33.3 % | 1 |
    | \<preexisting\> | 1000 B | 16.7 % | 1 |

    Reserved at the end:

    | use | size |
    | --- | ---: |
    | requested, in use | 2.93 KiB |
    | rounding and tails of blocks in use | 72 B |
    | stuck inside segments partly in use | 2.00 MiB |

    Note: device 0: history starts at event 0: 1000 B in 1 block was already live
    "#);
}

#[test]
fn for_programs() {
    let json: serde_json::Value =
        serde_json::from_str(&bench().answer("read step.pickle --format json")).unwrap();
    let device = &json["devices"][0];
    for (field, bytes) in [
        ("reserved_end_bytes", 2 << 20),
        ("allocated_end_bytes", 3072),
        ("active_end_bytes", 3072),
        ("peak_reserved_bytes", 2 << 20),
        ("peak_reserved_event", -1),
        ("opening_requested_bytes", 1000),
        ("rounding_waste_end_bytes", 72),
        ("largest_free_block_end_bytes", (2 << 20) - 6144),
    ] {
        assert_eq!(device[field], bytes, "{field}");
    }
    assert_eq!(device["peak"]["requested_bytes"], 6000);
    assert_eq!(device["peak"]["allocated_bytes"], 6144);
    assert_eq!(device["contributors"][0]["user_frame"], "/proj/train.py:1:step");
    assert_eq!((&device["complete"], &device["oom"]), (&true.into(), &serde_json::json!([])));
    let categories = (&device["by_category"], &device["unknown_category_bytes"]);
    assert_eq!(categories, (&serde_json::json!({}), &6000.into()), "no stack there says anything");
}

#[test]
fn the_live_set_at_an_event() {
    let bench = bench();
    let at = |event: &str| {
        bench.answer(&format!("read step.pickle --format csv --at {event}")).lines().count() - 1
    };
    assert_eq!([at("-1"), at("0"), at("1"), at("3")], [1, 2, 3, 2]);
    let said = bench.refusal("read step.pickle --at 4");
    assert!(said.contains("`--at`: device 0 has no event 4"), "{said}");
    assert!(bench.refusal("read step.pickle --at -2").contains("`-2` is no event"));
    assert!(bench.refusal("read step.pickle --device 3").contains("there is no device 3"));
    assert!(bench.refusal("read step.pickle --events 9..1").contains("no range of events"));
    assert!(bench.refusal("read step.pickle --events 4..").contains("event 4 is after the last"));
    assert!(bench.answer("read step.pickle --events 2..4").contains("before the first event"));
}

#[test]
fn the_ledger_that_is_saved_has_the_same_peak() {
    let bench = bench();
    bench.answer("read step.pickle --save ledger.json");
    assert_snapshot!(bench.answer("show ledger.json"), @r#"
    peak 6.00 KiB in backward
    at /proj/train.py:2:step
    ledger.json: 3 states
    note: peakledger read step.pickle, device 0: block bytes, as
          torch.cuda.memory_allocated counts them; categories are told by the user's
          words on blocks (metadata), and by the frames of modules, autograd and
          optimizers and what outlives them; else blocks from before the recording
          count as parameter, later ones as activation (0 B of 6.00 KiB at the peak
          are told); phases by the ranges that the program named

       phase        total
       forward   4.00 KiB  ██████████████████████████▋
    ▶  backward  6.00 KiB  ████████████████████████████████████████

    at the peak, by category
    parameter   1.00 KiB  16.7 %  ██████▋
    activation  5.00 KiB  83.3 %  █████████████████████████████████▍

    contributors
    state                      size   share  category
    /proj/train.py:1:step  3.00 KiB  50.0 %  activation
    /proj/train.py:2:step  2.00 KiB  33.3 %  activation
    before the recording   1.00 KiB  16.7 %  parameter
    "#);
    assert!(bench.refusal("read step.pickle --save ledger.json").contains("the file exists"));
    let own = ["--phase", "## forward ##=loss"];
    let mut command = bench.command("read step.pickle --save own.json");
    assert!(command.args(own).output().unwrap().status.success());
    assert!(bench.answer("show own.json").contains("loss"));
    assert!(bench.refusal("read step.pickle --phase forward").contains("names no phase"));
}

/// The recording of the examples without its last events: the optimizer's states, which are there at the end, came with these.
fn cut_off() -> Bench {
    let whole = include_bytes!("../../../../examples/step.pickle");
    Bench::new().file("cut.pickle", &whole[..3000]).file("step.pickle", whole)
}

#[test]
fn a_damaged_file_is_answered_from_its_sound_part() {
    let bench = cut_off();
    let ran = bench.run("read cut.pickle --salvage --save part.json");
    assert_eq!((ran.code, ran.err.as_str()), (Some(3), ""));
    assert_snapshot!(ran.out, @"
    peak 496.00 MiB allocated on device 0, after event 11 of 17
    incomplete: only a part of the file could be read, up to byte 2_997: truncated
                in the middle of an integer; 17 events before it are sound; device
                0: the events after the 17 that are left are lost, so at least this
                much was handed out; reserved bytes are of the segments at the end
                that these come to; 384.00 MiB in 4 blocks that are there at the end
                and that none of these handed out are not counted: they came later,
                or were there before them
    cut.pickle: 1 device, 17 events

       peak on         requested   allocated      active    reserved  events
    ▶  device 0       496.00 MiB  496.00 MiB  496.00 MiB  672.00 MiB      17
         after event          11          11          11          16

    at the requested peak, after event 11 of 17: 496.00 MiB in 6 blocks, by line
    line                   requested   share  blocks
    train.py:34:<module>  192.00 MiB  38.7 %       2
    <preexisting>         192.00 MiB  38.7 %       2
    model.py:12:forward    64.00 MiB  12.9 %       1
    model.py:14:forward    48.00 MiB   9.7 %       1

    by category, as far as stacks and the user's words tell it
    gradient  192.00 MiB  38.7 %  ███████████████▌
    not told  304.00 MiB  61.3 %  ████████████████████████▌

    reserved at the end: 1.13 GiB in 13 segments
    requested, in use                                   768.00 MiB  66.7 %  █████▍
    rounding and tails of blocks in use                      200 B   0.0 %  ▏
    in wholly free segments (empty_cache returns them)  384.00 MiB  33.3 %  ██▋
    the largest free block is 96.00 MiB

    note: device 0: history starts at event 0: 192.00 MiB in 2 blocks were already
          live
    ");
    let peak = |arguments: &str| {
        let answer: serde_json::Value = serde_json::from_str(&bench.run(arguments).out).unwrap();
        answer["devices"][0]["contributors"].as_array().unwrap().len()
    };
    assert_eq!(peak("read cut.pickle --salvage --format json"), 6, "as after event 11 of the whole");
    let markdown = bench.run("read cut.pickle --salvage --format markdown").out;
    assert!(markdown.contains("\n\nincomplete: only a part of the file"), "{markdown}");
}

#[test]
fn the_ledger_of_a_part_is_marked_and_whoever_reads_it_says_so() {
    let bench = cut_off();
    bench.run("read cut.pickle --salvage --save part.json");
    let ledger: serde_json::Value = serde_json::from_str(&bench.read("part.json")).unwrap();
    let why = ledger["incomplete"].as_str().unwrap();
    assert!(why.starts_with("only a part of the file could be read, up to byte 2_997"), "{why}");
    assert_snapshot!(bench.answer("show part.json").lines().take(12).collect::<Vec<_>>().join("\n"), @"
    peak 496.00 MiB in backward
    at train.py:34:<module>
    incomplete: only a part of the file could be read, up to byte 2_997: truncated
                in the middle of an integer; 17 events before it are sound; device
                0: the events after the 17 that are left are lost, so at least this
                much was handed out; reserved bytes are of the segments at the end
                that these come to; 384.00 MiB in 4 blocks that are there at the end
                and that none of these handed out are not counted: they came later,
                or were there before them
    part.json: 7 states
    note: peakledger read cut.pickle, device 0: block bytes, as
          torch.cuda.memory_allocated counts them; categories are told by the user's
    ");
    let shown: serde_json::Value =
        serde_json::from_str(&bench.answer("show part.json --format json")).unwrap();
    assert_eq!(shown["incomplete"], why);
    assert_snapshot!(bench.answer("diff part.json step.pickle --top 1"), @"
    peak 960.00 MiB, 464.00 MiB more (496.00 MiB before)
    incomplete: part.json: only a part of the file could be read, up to byte 2_997:
                truncated in the middle of an integer; 17 events before it are
                sound; device 0: the events after the 17 that are left are lost, so
                at least this much was handed out; reserved bytes are of the
                segments at the end that these come to; 384.00 MiB in 4 blocks that
                are there at the end and that none of these handed out are not
                counted: they came later, or were there before them
    from part.json to step.pickle; at the end 768.00 MiB, +384.00 MiB (384.00 MiB
    before)

    who                   at the peak         now   at the end         now
    train.py:35:<module>  +576.00 MiB  576.00 MiB  +384.00 MiB  384.00 MiB
    and 2 more, -112.00 MiB
    ");
    let compared = bench.run("compare step.pickle part=part.json");
    assert!(compared.err.starts_with("note: part.json is incomplete: only a part"), "{}", compared.err);
    assert!(bench.answer("report part.json --format html").contains("incomplete"));
    let plan = bench.run("plan gpt2 --save plan.json");
    assert_eq!(plan.code, Some(0));
    let reconciled = bench.answer("reconcile --plan plan.json --measured part.json");
    assert!(reconciled.contains("\nincomplete: only a part of the file"), "{reconciled}");
    // what was read whole has no such mark
    bench.answer("read step.pickle --save whole.json");
    assert!(
        !bench.read("whole.json").contains("incomplete")
            && !bench.answer("show whole.json").contains("incomplete")
    );
}
