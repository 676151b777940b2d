//! The equation of a step: samples = micro-batch size × accumulation × data parallel size.

use super::combine::{Combined, Said};
use super::found::{Ask, Setting};
use peakledger_core::counted;
use peakledger_input::Problem;

/// The key of DeepSpeed's samples.
const TRAIN_BATCH_SIZE: &str = "train_batch_size";

impl Combined {
    /// What is left open of it follows from the rest.
    pub(super) fn whole_batch(&mut self, said: &Said) -> Result<(), Problem> {
        let Some((samples, origin)) = self.samples.take() else { return Ok(()) };
        let stated = |option: &str| {
            let implied = self.settings.iter().any(|setting| setting.option == option && setting.implied);
            if implied { None } else { self.number(option, said) }
        };
        let (micro, steps) = (stated("--micro-batch-size"), stated("--gradient-accumulation-steps"));
        let dp = self.data_parallel(said);
        // who says another micro-batch or accumulation means another batch; DeepSpeed alone refuses other GPUs than the three
        // come out at (`_batch_assertion` in `runtime/config.py`)
        let is_deepspeeds = origin.key == TRAIN_BATCH_SIZE;
        let of_a_rank = ["--micro-batch-size", "--gradient-accumulation-steps"];
        let of_ranks = ["--dp", "--gpus", "--tp", "--pp", "--cp"];
        let a_step = counted(samples, "sequence");
        let overridden = said.iter().any(|(option, _)| {
            of_a_rank.contains(&option.as_str()) || !is_deepspeeds && of_ranks.contains(&option.as_str())
        });
        let (option, known) = match (micro, steps, dp) {
            (Some(_), Some(_), Some(_)) if overridden => return Ok(()),
            (Some(micro), Some(steps), Some(dp)) => {
                if product([Some(micro), Some(steps), Some(dp)]) == Some(samples) {
                    return Ok(());
                }
                let product = micro.saturating_mul(steps).saturating_mul(dp);
                let refuses = if is_deepspeeds { "; DeepSpeed refuses that" } else { "" };
                let cause = format!(
                    "{a_step} a step, but micro-batch size {micro} × accumulation {steps} × data parallel {dp} = {product}{refuses}"
                );
                let mend = "change one of them, or say `--gradient-accumulation-steps` on the command line";
                return Err(origin.problem(cause).mend(mend));
            }
            (Some(_), Some(_), None) => ("--dp", product([micro, steps, None])),
            (Some(_), None, Some(_)) => ("--gradient-accumulation-steps", product([micro, None, dp])),
            (None, Some(_), Some(_)) => ("--micro-batch-size", product([None, steps, dp])),
            // DeepSpeed then accumulates nothing (`_set_batch_related_parameters`)
            (None, None, Some(_)) => ("--micro-batch-size", product([None, None, dp])),
            (_, _, None) => {
                let cause = format!("{a_step} a step, of how many GPUs is not said");
                self.asks.push(Ask { option: "--gpus", origin, cause, of_you: false });
                return Ok(());
            }
        };
        let value = known
            .and_then(|known| (samples % known == 0).then(|| samples / known))
            .filter(|value| *value > 0);
        let Some(value) = value else {
            let cause = format!("{a_step} a step are no multiple of {}", known.unwrap_or(0));
            return Err(origin.problem(cause).mend("change the batch, or the number of GPUs"));
        };
        self.settings.retain(|setting| setting.option != option);
        self.settings.push(Setting {
            option,
            value: value.to_string(),
            origin,
            implied: false,
            by_model: None,
        });
        Ok(())
    }
}

impl Combined {
    /// How many ranks share out a batch, as far as that is said.
    pub(super) fn data_parallel(&self, said: &Said) -> Option<u64> {
        let sizes = ["--tp", "--pp", "--cp"].map(|option| self.number(option, said));
        let by_gpus = self.number("--gpus", said).zip(product(sizes));
        let by_gpus = by_gpus.and_then(|(gpus, model)| (gpus % model == 0).then_some(gpus / model));
        self.number("--dp", said).or(by_gpus)
    }
}

/// The product of what is known, where it is one.
fn product(factors: [Option<u64>; 3]) -> Option<u64> {
    factors.into_iter().flatten().try_fold(1, u64::checked_mul).filter(|product| *product > 0)
}
