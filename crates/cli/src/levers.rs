//! What a search has no values of and what may make fit a step that nothing of it does: each lever as options.

use crate::usual::changes;
use peakledger_plan::Dtype;
use peakledger_plan::options::Options;
use peakledger_plan::parallel::{Schedule, Stack};

/// Context parallel sizes that are tried.
const CONTEXT: [u32; 3] = [2, 4, 8];

/// The levers of a step, those that set what a search varies among them. How many micro-batches there are follows from the
/// sequences in a step, so none says it.
pub(crate) fn levers(options: &Options, saved_in: Option<Dtype>) -> Vec<String> {
    let parallel = &options.parallel;
    let transformers = options.stack == Stack::Transformers;
    let mut levers: Vec<String> =
        changes(options, saved_in).into_iter().map(|change| without_steps(&change.options)).collect();
    if parallel.cp == 1 {
        levers.extend(CONTEXT.map(|size| format!("--cp {size}")));
    }
    if parallel.tp > 1 && !parallel.sp {
        levers.push("--sp".to_owned());
    }
    if parallel.tp > 1 && transformers && !parallel.loss_parallel {
        levers.push("--loss-parallel".to_owned());
    }
    if parallel.pp > 1 {
        let schedules = [(Schedule::OneFOneB, "--schedule 1f1b"), (Schedule::ZbH1, "--schedule zb-h1")];
        let others = schedules.into_iter().filter(|(schedule, _)| *schedule != parallel.schedule);
        levers.extend(others.map(|(_, schedule)| schedule.to_owned()));
    }
    levers
}

/// Options without the number of micro-batches.
fn without_steps(options: &str) -> String {
    let mut words = options.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "--gradient-accumulation-steps" => drop(words.next()),
            word => kept.push(word),
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use peakledger_plan::parallel::{Parallel, Sharding};

    #[test]
    fn the_levers_of_a_step_are_those_that_it_has_not_taken() {
        let of = |parallel: Parallel| {
            let options =
                Options { micro_batch_size: 2, gradient_accumulation_steps: 2, ..Options::default() };
            levers(&Options { parallel, ..options }, Some(Dtype::Bf16)).join(", ")
        };
        let sharded = Parallel { gpus: Some(8), sharding: Sharding::FullShard, ..Parallel::default() };
        let said = of(sharded.clone());
        for lever in
            ["--fused-loss", "--sync-each-batch", "--cp 4", "--weights-dtype bf16", "--micro-batch-size 1"]
        {
            assert!(said.split(", ").any(|it| it == lever), "{lever}: {said}");
        }
        assert!(!said.contains("--sp") && !said.contains("--schedule"), "{said}");
        assert!(!said.contains("--gradient-accumulation-steps"), "{said}");
        let split = of(Parallel { tp: 2, pp: 2, cp: 2, schedule: Schedule::Gpipe, ..sharded });
        assert!(split.contains("--sp, --loss-parallel, --schedule 1f1b, --schedule zb-h1"), "{split}");
        assert!(!split.contains("--cp "), "{split}");
    }
}
