//! The ranks of a world, of which some are looked at closely.

use super::{holds_on_any_terminal, said};
use peakledger_allocator::Settings;
use peakledger_input::Source;
use peakledger_plan::Plan;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::Options;
use peakledger_plan::parallel::{Parallel, Ranks, Sharding, Shown, plan_ranks};
use peakledger_report::{Format, PlanReport, RankFigures, RanksReport, Reservation};

const TINY: &str = r#"{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}"#;

/// What is reserved is a figure of those alone whose allocator was run, and it is said which these are.
#[test]
fn what_is_reserved_is_said_of_those_that_were_replayed() {
    let architecture = Architecture::read(&Source::from_text("config.json", TINY.to_owned())).unwrap();
    let parallel = Parallel { dp: Some(4), sharding: Sharding::Zero1, ..Parallel::default() };
    let options = Options { seq_len: Some(16), parallel, ..Options::default() };
    let look = |plan: &Plan| {
        let is_an_end = [0, 3].contains(&plan.options.parallel.rank);
        let reservation = is_an_end.then(|| Reservation::of(plan, Settings::default(), None, None));
        let figures = RankFigures::of(plan, None, None, reservation.flatten());
        (plan.needs(figures.needed(), None), figures)
    };
    let Ranks { plan, shown, worst, each } =
        plan_ranks(&architecture, &options, Shown::Rank(0), look).unwrap();
    let reservations: Vec<Reservation> = each[shown].1.reservation.clone().into_iter().collect();
    let report = PlanReport {
        name: "tiny",
        plan: &plan,
        step: None,
        card: None,
        candidates: &[],
        left_out: &[],
        ranks: Some(RanksReport { each: &each, shown, worst, all: false, asked: true }),
        slowest: &[each[shown].1.costs],
        reservations: &reservations,
        origins: None,
    };
    let table = said(&report, Format::Table);
    let ranks: Vec<&str> = table.lines().skip_while(|line| *line != "ranks").take(7).collect();
    insta::assert_snapshot!(ranks.join("\n"), @"
    ranks
       ranks  layers  parameters        peak  in                    device    reserved
    ▶  0      0–1          7,248  953.75 MiB  backward, steady  970.02 MiB  976.00 MiB
       1–2    0–1          7,248  953.75 MiB  backward, steady  970.02 MiB
       3      0–1          7,248  953.75 MiB  backward, steady  970.02 MiB  976.00 MiB
    ranks whose figures read the same share a row; JSON has each; reserved is looked at for the 2 of 4
    kinds of ranks that need most on the device
    ");
    let json = said(&report, Format::Json);
    assert_eq!(json.matches(r#""reserved_bytes": null"#).count(), 2, "{json}");
    holds_on_any_terminal(&report);
}
