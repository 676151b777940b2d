//! What `fit` is asked to search: which values of which options, in every combination.

use crate::combinations::{Combinations, Varied};
use crate::from::{Given, Resolved};
use crate::usual_values::usual_values;
use crate::{among, parsers};
use clap::Args;
use peakledger_input::Problem;
use peakledger_plan::config::Architecture;
use peakledger_plan::options::Options;
use peakledger_report::Fixed;

/// Every combination of some values.
#[derive(Args)]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchArgs {
    /// Try every combination of the usual values of what is not said: parallel sizes, sharding, recompute, micro-batch and
    /// offload, at the same number of sequences in a step
    #[arg(long, conflicts_with = "candidates")]
    search: bool,
    /// Try these values of an option in every combination: "tp=1,2,4,8", or with | between them where values have commas; may
    /// be repeated. Without --search nothing else differs
    #[arg(long, value_name = "NAME=V,V,…", conflicts_with = "candidates")]
    among: Vec<String>,
    /// Sequences of a step, those of all ranks together, in every combination [default: as many as the step has as it is
    /// given]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parsers::count::<u64>)]
    global_batch_size: Option<u64>,
}

impl SearchArgs {
    /// Whether a search is asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.search || !self.among.is_empty()
    }

    /// Refuses what is said of a search that is not asked for, and a step of no sequences.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        match self.global_batch_size {
            Some(0) => Err(Problem::in_option("--global-batch-size", "a step has a sequence at least")
                .mend("use 1 or more")),
            Some(_) if !self.is_asked() => {
                let cause = "it holds for the combinations of a search, and none is asked for";
                Err(Problem::in_option("--global-batch-size", cause)
                    .mend("add --search, or use --gradient-accumulation-steps"))
            }
            _ => Ok(()),
        }
    }

    /// Sequences of a step.
    pub(crate) fn sequences(&self, given: &Options) -> Result<u64, Problem> {
        match self.global_batch_size.map_or_else(|| given.sequences(), Ok)? {
            0 => Err(Problem::in_option("--micro-batch-size", "a step has a sequence at least")
                .mend("use 1 or more, and as many --gradient-accumulation-steps")),
            sequences => Ok(sequences),
        }
    }

    /// What is tried of a step, and what of the usual is not, as it is said.
    ///
    /// # Errors
    /// What is wrong with a list of values.
    pub(crate) fn combinations(
        &self,
        (request, given): (&Resolved, &Given),
        options: &Options,
        model: &Architecture,
        sequences: u64,
    ) -> Result<(Combinations, Vec<Fixed>), Problem> {
        let (step, said, of_files) = (&request.step, given.options(), request.options_of_files());
        let mut asked: Vec<Varied> = Vec::with_capacity(self.among.len());
        for text in &self.among {
            let of_option = among::of(text, step, &of_files)?;
            if let Some(option) = of_option.options().iter().find(|option| said.contains(option)) {
                let cause =
                    format!("`--{option}` is said for every combination, and {} varies", of_option.name);
                return Err(Problem::in_option("--among", cause).mend("leave one of them out"));
            }
            asked.push(of_option);
        }
        let (mut varied, mut fixed) = (Vec::new(), Vec::new());
        for usual in usual_values(options, model, sequences).into_iter().filter(|_| self.search) {
            // what is asked for takes the place of what is usual
            let is_asked = |one: &Varied| {
                one.name == usual.name || one.options().iter().any(|it| usual.sets.contains(&it.as_str()))
            };
            if asked.iter().any(is_asked) {
                continue;
            }
            match step.says(usual.sets) {
                true => fixed.extend(request.fixed(usual.name, usual.sets, given)),
                false => varied.push(Varied::of(usual.name, usual.values)?),
            }
        }
        varied.extend(asked);
        Ok((Combinations::of(varied)?, fixed))
    }
}
