//! `--plot`: the timeline in blocks, on a terminal.

use crate::support::Bench;
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
