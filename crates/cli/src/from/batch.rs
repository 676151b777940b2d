//! The equation of a step: samples = micro-batch size × accumulation × data parallel size.

use super::combine::{Combined, Said};
use super::found::{Ask, Setting};
use peakledger_core::counted;
use peakledger_input::Problem;

impl Combined {
    /// What is left open of it follows from the rest.
    pub(super) fn whole_batch(&mut self, said: &Said) -> Result<(), Problem> {
        let Some((samples, origin)) = self.samples.take() else { return Ok(()) };
        let stated = |option: &str| {
            let implied = self.settings.iter().any(|setting| setting.option == option && setting.implied);
            if implied { None } else { self.number(option, said) }
        };
        let (micro, steps) = (stated("--micro-batch-size"), stated("--gradient-accumulation-steps"));
        let sizes = ["--tp", "--pp", "--cp"].map(|option| self.number(option, said));
        let by_gpus = self.number("--gpus", said).zip(product(sizes));
        let by_gpus = by_gpus.and_then(|(gpus, model)| (gpus % model == 0).then_some(gpus / model));
        let dp = self.number("--dp", said).or(by_gpus);
        let on_line =
            ["--micro-batch-size", "--gradient-accumulation-steps", "--dp", "--gpus", "--tp", "--pp", "--cp"];
        let a_step = counted(samples, "sequence");
        let overridden = said.iter().any(|(option, _)| on_line.contains(&option.as_str()));
        let (option, known) = match (micro, steps, dp) {
            (Some(_), Some(_), Some(_)) if overridden => return Ok(()),
            (Some(micro), Some(steps), Some(dp)) => {
                if product([Some(micro), Some(steps), Some(dp)]) == Some(samples) {
                    return Ok(());
                }
                let cause = format!(
                    "{a_step} a step, but micro-batch size {micro} × accumulation {steps} × data parallel {dp} = {}",
                    micro.saturating_mul(steps).saturating_mul(dp)
                );
                return Err(origin.problem(cause).mend("change one of them, or say it on the command line"));
            }
            (Some(_), Some(_), None) => ("--dp", product([micro, steps, None])),
            (Some(_), None, Some(_)) => ("--gradient-accumulation-steps", product([micro, None, dp])),
            (None, Some(_), Some(_)) => ("--micro-batch-size", product([None, steps, dp])),
            // DeepSpeed then accumulates nothing (`_set_batch_related_parameters`)
            (None, None, Some(_)) => ("--micro-batch-size", product([None, None, dp])),
            (_, _, None) => {
                let cause = format!("{a_step} a step, of how many GPUs is not said");
                self.asks.push(Ask { option: "--gpus", origin, cause });
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

/// The product of what is known, where it is one.
fn product(factors: [Option<u64>; 3]) -> Option<u64> {
    factors.into_iter().flatten().try_fold(1, u64::checked_mul).filter(|product| *product > 0)
}
