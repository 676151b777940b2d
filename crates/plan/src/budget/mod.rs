//! Which layers to recompute, and whose activations to offload, so that a step stays under a budget for the least time.
//!
//! A layer is kept, recomputed or offloaded. What that does to the step adds up: while layer `j` runs, forward or backward,
//! the device holds what it holds in the step that keeps everything, less what the layers before `j` do not store, plus what
//! `j` itself takes more in that stretch. These figures are read off plans: one that keeps all, and for each kind of layer one
//! in which a layer of it is recomputed and one in which it is offloaded. The best choice is found exactly, by dynamic
//! programming over the layers, and then planned as any other step is; the plan has the last word.

mod profile;
mod stretches;

use crate::catalogue::Card;
use crate::config::Architecture;
use crate::options::{Offload, Options, Recompute};
use crate::{Layers, Plan, TheoreticalTime, Unknown, Verdict, plan};
use peakledger_input::Problem;
use profile::{Figures, Layer, Profile};
use stretches::Stretches;

/// What is done with what a layer saves for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It stays on the device.
    Keep,
    /// It is computed again.
    Recompute,
    /// It waits on the host.
    Offload,
}

impl Choice {
    const ALL: [Choice; 3] = [Choice::Keep, Choice::Recompute, Choice::Offload];
}

/// A choice for each layer of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices(Vec<Choice>);

/// Plans that are tried before the search gives up.
const MOST_TRIES: usize = 12;

impl Choices {
    /// The layers to recompute and those to offload with which a step fits a card for the least theoretical time; nothing
    /// where none do. On a card whose rates are not known nothing is offloaded, and what counts are FLOPs. The step itself
    /// neither recomputes nor offloads activations.
    ///
    /// # Errors
    /// What stands against planning the step.
    pub fn cheapest(
        architecture: &Architecture,
        options: &Options,
        card: &Card,
        verdict: &dyn Fn(&Plan) -> Verdict,
    ) -> Result<Option<Choices>, Problem> {
        let Some(profile) = measured(architecture, options, card)? else { return Ok(None) };
        let mut budget = card.total.get();
        for _ in 0..MOST_TRIES {
            let Some(choices) = profile.cheapest(budget).map(Choices) else { return Ok(None) };
            let planned = plan(architecture.clone(), choices.applied_to(options))?;
            let verdict = verdict(&planned);
            if verdict.fits() {
                return Ok(Some(choices));
            }
            // the same choice cannot come again: what it takes by its figures is beyond the next budget
            let over = u64::try_from(-verdict.headroom()).unwrap_or(u64::MAX);
            let Some(peak) = profile.peak(&choices.0) else { return Ok(None) };
            budget = peak.saturating_sub(over.max(1));
        }
        Ok(None)
    }

    /// The layers for which that is chosen.
    pub fn layers(&self, choice: Choice) -> Layers {
        let chosen = (0..).zip(&self.0).filter(|(_, chosen)| **chosen == choice);
        chosen.map(|(layer, _)| layer).collect()
    }

    /// A step's options with these choices.
    pub fn applied_to(&self, options: &Options) -> Options {
        let [recompute, offload] = [Choice::Recompute, Choice::Offload].map(|choice| self.layers(choice));
        let recompute = if recompute.is_empty() { Recompute::None } else { Recompute::Layers(recompute) };
        let offload_layers = (!offload.is_empty()).then_some(offload);
        let offload = Offload { activations: offload_layers.is_some(), ..options.offload };
        Options { recompute, offload, offload_layers, ..options.clone() }
    }

    /// These choices as options of the command line.
    pub fn written(&self) -> String {
        let [recompute, offload] = [Choice::Recompute, Choice::Offload].map(|choice| self.layers(choice));
        let recompute = (!recompute.is_empty()).then(|| format!("--recompute layers:{recompute}"));
        let offload =
            (!offload.is_empty()).then(|| format!("--offload activations --offload-layers {offload}"));
        recompute.into_iter().chain(offload).collect::<Vec<_>>().join(" ")
    }
}

/// The figures of every choice, read off plans; nothing where layers cannot be told apart.
fn measured(architecture: &Architecture, options: &Options, card: &Card) -> Result<Option<Profile>, Problem> {
    let layers = architecture.shape.num_hidden_layers;
    if layers == 0 || layers > Layers::MOST {
        return Ok(None);
    }
    let time = |plan: &Plan| match &card.speeds {
        Some(speeds) => {
            let costs = plan.steady.costs();
            let of = |costs| TheoreticalTime::of(costs, speeds, &options.parallel);
            let time = match of(&costs) {
                // what goes between nodes is left out of all choices
                Err(Unknown::Network) => of(&costs.within_node()),
                time => time,
            };
            time.ok().map(|time| time.step.0)
        }
        None => Some(plan.steady.costs().flops.total()),
    };
    let run = |choices: Choices| plan(architecture.clone(), choices.applied_to(options));
    let all = |choice| vec![choice; layers as usize];
    let keep = run(Choices(all(Choice::Keep)))?;
    let (Some(kept), Some(kept_time)) = (Stretches::of(&keep, layers, 0), time(&keep)) else {
        return Ok(None);
    };
    let kinds = kept.kinds(&keep);
    let figures = |layer: usize, choice| {
        let ahead = if choice == Choice::Offload { options.offload_prefetch } else { 0 };
        let mut choices = all(Choice::Keep);
        choices.iter_mut().skip(layer).take(1).for_each(|slot| *slot = choice);
        // what is offloaded further ahead is on the device in stretches that are not told apart
        let is_comparable = choice != Choice::Offload || card.speeds.is_some();
        let planned = run(Choices(choices)).ok().filter(|_| ahead <= 1 && is_comparable)?;
        let time = time(&planned)?.saturating_sub(kept_time);
        Some(Stretches::of(&planned, layers, ahead)?.figures(&kept, layer, time))
    };
    let mut profile = Profile { layers: Vec::new(), between: kept.between, elsewhere: kept.elsewhere };
    let mut known: Vec<(usize, [Option<Figures>; 3])> = Vec::new();
    for (kind, peak) in kinds.iter().zip(&kept.peaks) {
        let of_kind = match known.iter().find(|(known, _)| known == kind) {
            Some((_, figures)) => *figures,
            None => {
                let figures = Choice::ALL.map(|choice| match choice {
                    Choice::Keep => Some(Figures::default()),
                    choice => figures(*kind, choice),
                });
                known.push((*kind, figures));
                figures
            }
        };
        profile.layers.push(Layer { peak: *peak, choices: of_kind });
    }
    Ok(Some(profile))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{card, open_model};
    use crate::options::{Attention, Lora, Precision};
    use peakledger_core::Bytes;
    use peakledger_input::Source;

    const LAYERS: u32 = 6;

    fn tiny(family: &str) -> Architecture {
        let text = format!(
            r#"{{"model_type": "{family}", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": {LAYERS},
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}}"#
        );
        Architecture::read(&Source::from_text("config.json", text)).unwrap()
    }

    fn variants() -> Vec<Options> {
        let plain = Options { micro_batch_size: 2, seq_len: Some(200), ..Options::default() };
        let lora = Lora { rank: 4, dropout: 0.1, ..Lora::default() };
        vec![
            plain.clone(),
            Options { precision: Precision::Bf16, ..plain.clone() },
            Options { precision: Precision::Fp32, attention: Attention::Eager, ..plain.clone() },
            Options { gradient_accumulation_steps: 3, offload_prefetch: 0, ..plain.clone() },
            Options { lora: Some(lora), precision: Precision::Bf16, ..plain },
        ]
    }

    /// Every choice for every layer.
    fn every() -> impl Iterator<Item = Choices> {
        (0..3_usize.pow(LAYERS)).map(|number| {
            let digit = |layer| Choice::ALL[number / 3_usize.pow(layer) % 3];
            Choices((0..LAYERS).map(digit).collect())
        })
    }

    /// What layers share (positions, rotary tables) is counted for each that does not keep it.
    const SHARED: u64 = 64 << 10;

    /// Of all choices that fit by their own plan, none is faster than the one that is found; but for what layers share.
    #[test]
    fn no_choice_that_fits_is_faster() {
        let mut card = card("a100-80gb").unwrap();
        for (family, options) in ["llama", "qwen3", "gemma2"].into_iter().zip(variants()) {
            let architecture = tiny(family);
            let plans: Vec<(u64, u128)> = every()
                .map(|choices| {
                    let plan = plan(architecture.clone(), choices.applied_to(&options)).unwrap();
                    let time = TheoreticalTime::of(
                        &plan.steady.costs(),
                        card.speeds.as_ref().unwrap(),
                        &plan.options.parallel,
                    );
                    (plan.device_peak_in(None).phase.device_peak.get(), time.unwrap().step.0)
                })
                .collect();
            let fastest =
                |budget: u64| plans.iter().filter(|(peak, _)| *peak <= budget).map(|(_, time)| *time).min();
            let (least, most) = (plans.iter().map(|p| p.0).min().unwrap(), plans[0].0);
            assert!(most - least > 8 * SHARED, "{family}: there is something to choose");
            for budget in (0..=16).map(|sixteenth| least + (most - least) / 16 * sixteenth) {
                card.total = Bytes::new(budget);
                let verdict = |plan: &Plan| Verdict {
                    needed: plan.device_peak_in(None).phase.device_peak,
                    capacity: Bytes::new(budget),
                };
                let found = Choices::cheapest(&architecture, &options, &card, &verdict).unwrap();
                let time = found.map(|choices| {
                    let plan = plan(architecture.clone(), choices.applied_to(&options)).unwrap();
                    assert!(plan.device_peak_in(None).phase.device_peak.get() <= budget);
                    TheoreticalTime::of(
                        &plan.steady.costs(),
                        card.speeds.as_ref().unwrap(),
                        &plan.options.parallel,
                    )
                    .unwrap()
                    .step
                    .0
                });
                if let Some(best) = fastest(budget - SHARED) {
                    assert!(time.is_some_and(|time| time <= best), "{family}, {budget} B: {time:?}, {best}");
                }
            }
        }
    }

    /// On a real model the figures of few plans are those of any choice's own plan, but for what layers share.
    #[test]
    fn choices_add_up() {
        let card = card("a100-80gb").unwrap();
        let architecture = Architecture::read(&open_model("llama-3.1-8b").unwrap().config).unwrap();
        let options = Options { precision: Precision::Bf16, seq_len: Some(4096), ..Options::default() };
        let profile = measured(&architecture, &options, &card).unwrap().unwrap();
        for written in ["0-31", "0-11", "20-31", "0+3+8-9+31"] {
            let layers: Layers = written.parse().unwrap();
            let choice = |layer| if layers.contains(layer) { Choice::Recompute } else { Choice::Keep };
            let choices = Choices((0..32).map(choice).collect());
            assert_eq!(choices.written(), format!("--recompute layers:{written}"));
            let plan = plan(architecture.clone(), choices.applied_to(&options)).unwrap();
            let peak = plan.device_peak_in(None).phase.device_peak.get();
            let said = profile.peak(&choices.0).unwrap();
            assert!(said.abs_diff(peak) <= 2 << 20, "{written}: {said} and {peak}");
        }
    }
}
