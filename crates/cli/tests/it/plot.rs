//! `--plot`: the timeline in blocks, on a terminal.

use crate::own::{annotation, event, segment, stack};
use crate::support::Bench;
use crate::writer::{Py, dict, pickle};
use insta::assert_snapshot;

/// The lines of the plot alone.
fn plot(answer: &str) -> String {
    let is_plot = |line: &&str| line.contains(['│', '└', '|', '+']);
    let mut lines = answer.lines().skip_while(|line| !is_plot(line)).take_while(|line| !line.is_empty());
    let plot: Vec<&str> = lines.by_ref().collect();
    plot.join("\n")
}

#[test]
fn each_column_is_as_high_as_its_largest_moment() {
    let bench = Bench::with_sample().env("COLUMNS", "50");
    assert_snapshot!(plot(&bench.answer("show ledger.json --plot")), @"
    2.15 GiB │                    ██████
             │      ▆▆▆▆▆▆▆       ██████▂▂▂▂▂▂▂
             │      ███████▆▆▆▆▆▆▆█████████████
             │▃▃▃▃▃▃███████████████████████████▃▃▃▃▃▃▃
             │████████████████████████████████████████
             │████████████████████████████████████████
             │████████████████████████████████████████
             │████████████████████████████████████████
             │████████████████████████████████████████
             │████████████████████████████████████████
           0 └────────────────────────────────────────
              load  forward       backward   zero_grad
    ");
    assert_snapshot!(plot(&bench.answer("show ledger.json --plot --ascii")), @"
    2.15 GiB |                    ######
             |      #######       #############
             |      ###########################
             |########################################
             |########################################
             |########################################
             |########################################
             |########################################
             |########################################
             |########################################
           0 +----------------------------------------
              load  forward       backward   zero_grad
    ");
}

#[test]
fn a_plan_is_drawn_with_all_its_ops() {
    let bench = Bench::new().env("COLUMNS", "60");
    assert_snapshot!(plot(&bench.answer("plan gpt2 --seq-len 512 --plot")), @"
    2.32 GiB │                 ▃▃▆▆▁█               ▂████
             │               ▂▇█████████▇▆▆▆▅▅▄▄▃▃▂▂█████▁▁▁▁
             │         ▁▂▄▅▇█████████████████████████████████
             │▁▁▁▁▁▂▄▆▇██████████████████████████████████████▁▁▁
             │██████████████████████████████████████████████████
             │██████████████████████████████████████████████████
             │██████████████████████████████████████████████████
             │██████████████████████████████████████████████████
             │██████████████████████████████████████████████████
             │██████████████████████████████████████████████████
           0 └──────────────────────────────────────────────────
              load forward     loss backward         update
    ");
}

#[test]
fn it_keeps_to_the_table_and_to_the_room_that_there_is() {
    let bench = Bench::with_sample().file("empty.json", "[]");
    assert_eq!(plot(&bench.answer("show empty.json --plot")), "");
    let narrow = Bench::with_sample().env("COLUMNS", "20");
    let drawn = plot(&narrow.answer("show ledger.json --plot"));
    assert!(drawn.lines().count() == 12 && drawn.lines().all(|line| line.chars().count() <= 20), "{drawn}");
    let (with, without) = ("show ledger.json --format json --plot", "show ledger.json --format json");
    assert_eq!(bench.answer(with), bench.answer(without), "it is of the table alone");
}

/// A card whose blocks of 20 MiB come and go in two phases, and one on which nothing happens.
fn snapshot() -> Vec<u8> {
    const MIB: i64 = 1 << 20;
    let (one, two) = (0x7f00_0000_0000, 0x7f10_0000_0000);
    let of = |action: &str, addr: i64, mib: i64, time: i64| event(action, addr, mib * MIB, time, stack(1));
    let events = vec![
        of("segment_alloc", one, 40, 10),
        of("alloc", one, 20, 11),
        of("alloc", one + 20 * MIB, 20, 12),
        of("segment_alloc", two, 20, 30),
        of("alloc", two, 20, 31),
        of("free_requested", one, 20, 32),
        of("free_completed", one, 20, 33),
    ];
    let ranges = [("START", "forward", 9), ("END", "forward", 20), ("START", "backward", 25)];
    let ranges = ranges.map(|(stage, name, time)| annotation(stage, name, time)).to_vec();
    let segments = [(one, 40), (two, 20)].map(|(at, mib)| segment(0, at, mib * MIB, Vec::new())).to_vec();
    let traces = Py::List(vec![Py::List(events), Py::List(Vec::new())]);
    pickle(
        &dict([
            ("segments", Py::List(segments)),
            ("device_traces", traces),
            ("external_annotations", Py::List(ranges)),
        ]),
        4,
    )
}

#[test]
fn a_measurement_is_drawn_over_its_events() {
    let bench = Bench::new().file("run.pickle", snapshot()).env("COLUMNS", "50");
    assert_snapshot!(plot(&bench.answer("read run.pickle --plot")), @r"
    60.00 MiB │                    ░░░░░█████░░░░░░░░░
              │                    ░░░░░█████░░░░░░░░░
              │                    ░░░░░█████░░░░░░░░░
              │     ░░░░░░░░░░▆▆▆▆▆▆▆▆▆▆█████▆▆▆▆▆▆▆▆▆
              │     ░░░░░░░░░░████████████████████████
              │     ░░░░░░░░░░████████████████████████
              │     ░░░░░▃▃▃▃▃████████████████████████
              │     ░░░░░█████████████████████████████
              │     ░░░░░█████████████████████████████
              │     ░░░░░█████████████████████████████
            0 └───────────────────────────────────────
                   forward        backward
    █ allocated, up to 60.00 MiB; ░ reserved, up to
    60.00 MiB
    ");
    assert_snapshot!(plot(&bench.answer("read run.pickle --plot --ascii --events 3..6")), @"
    60.00 MiB |          ..........##########.........
              |          ..........##########.........
              |          ..........##########.........
              |#######################################
              |#######################################
              |#######################################
              |#######################################
              |#######################################
              |#######################################
              |#######################################
            0 +---------------------------------------
                        backward
    # allocated, up to 60.00 MiB; . reserved, up to
    60.00 MiB
    ");
    let (with, without) = ("read run.pickle --format json --plot", "read run.pickle --format json");
    assert_eq!(bench.answer(with), bench.answer(without), "it is of the table alone");
}

#[test]
fn what_has_no_events_to_draw_refuses() {
    let bench = Bench::new()
        .file("times.json", "[[1, 2], [[0, 1, 0, 0, 0, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0, 0, 0, 0]]]");
    assert_snapshot!(bench.refusal("read times.json --plot"), @"
    error: `--plot`: it means nothing for a memory timeline
      help: leave it out, or give a memory snapshot
    ");
    assert_snapshot!(bench.refusal("read times.json --oom-message --plot"), @"
    error: `--oom-message`: it does not go with `--plot`
      help: keep one of the two
    ");
}
