//! Micro-batches from the second on are alike: three of them are run, and the second is written down again for those between
//! it and the last. Nothing is assumed of a tape: where it is not of that form, all micro-batches are run.

use crate::torch::tape::{CopiedFor, Mark, NEVER, Once, Ran, Role, StorageId, Stored, Tape};
use peakledger_core::{Moment, Phase};

/// How many micro-batches are run in place of many: the first, which makes the gradients; the second, which finds them and
/// what the loop held of the first; and the last.
pub(crate) const RUN: u32 = 3;

/// The tape of so many micro-batches, of one on which all their batches were loaded and [`RUN`] of them run; nothing where
/// the second is not like the third.
pub(crate) fn repeated(tape: Tape, micro_batches: u32) -> Option<Tape> {
    let copies = micro_batches.checked_sub(RUN)?;
    let repeat = Repeat::of(&tape, copies)?;
    Some(Tape {
        stored: repeat.stored(&tape.stored)?,
        ran: repeat.ran(&tape.ran)?,
        marks: repeat.marks(&tape.marks, micro_batches),
        once: tape.once.iter().map(|once| repeat.once(once)).collect(),
        ..tape
    })
}

/// Where the second micro-batch begins, the third, and what comes after it.
struct Repeat {
    second: u32,
    third: u32,
    rest: u32,
    /// How often the second is written down again.
    copies: u32,
    /// Storages made before the second, before the third, and before the rest.
    made: [usize; 3],
    tracked: Vec<(&'static str, Moment)>,
}

impl Repeat {
    fn of(tape: &Tape, copies: u32) -> Option<Repeat> {
        let begins = |i| tape.marks.iter().find(|mark| mark.micro_batch == Some(i)).map(|mark| mark.first.0);
        let rest = tape.marks.iter().find(|mark| mark.phase == Phase::Update)?.first.0;
        let (second, third) = (begins(1)?, begins(2)?);
        let in_order = tape.stored.is_sorted_by_key(|stored| stored.birth);
        let made = [second, third, rest].map(|at| tape.stored.partition_point(|stored| stored.birth.0 < at));
        let [before, two, all] = made;
        let like_the_third = |from: u32, to: u32| tape.ran.get(from as usize..to as usize);
        let same_ops = like_the_third(second, third)? == like_the_third(third, rest)?;
        let sizes = |from: usize, to: usize| {
            tape.stored.get(from..to).unwrap_or_default().iter().map(|s| (s.bytes, s.category, s.device))
        };
        if !in_order || !same_ops || !sizes(before, two).eq(sizes(two, all)) {
            return None;
        }
        let of_second = |stored: &Stored| match stored.role {
            Role::Input { name, micro_batch: 1 } => Some((name, stored.tracked)),
            _ => None,
        };
        let tracked = tape.stored.iter().filter_map(of_second).collect();
        Some(Repeat { second, third, rest, copies, made, tracked })
    }

    fn length(&self) -> u32 {
        self.third - self.second
    }

    /// A moment after the second micro-batch, once it is written down again.
    fn after(&self, moment: u32) -> u32 {
        if moment < self.third { moment } else { moment + self.copies * self.length() }
    }

    fn once(&self, once: &Once) -> Once {
        let Once { moments, costs } = once;
        Once { moments: self.after(moments.start)..self.after(moments.end), costs: *costs }
    }

    fn ran(&self, ran: &[Ran]) -> Option<Vec<Ran>> {
        let (until_third, rest) = ran.split_at_checked(self.third as usize)?;
        let second = ran.get(self.second as usize..self.third as usize)?;
        let copies = (0..self.copies).flat_map(|_| second);
        Some(until_third.iter().chain(copies).chain(rest).copied().collect())
    }

    fn marks(&self, marks: &[Mark], micro_batches: u32) -> Vec<Mark> {
        let of = |i| marks.iter().filter(move |mark| mark.micro_batch == Some(i));
        let moved = |mark: &Mark, by: u32, micro_batch| Mark {
            micro_batch,
            first: Moment(mark.first.0 + by),
            ..mark.clone()
        };
        let shift = self.copies * self.length();
        let mut all: Vec<Mark> = marks.iter().filter(|mark| mark.first.0 < self.third).cloned().collect();
        for copy in 1..=self.copies {
            all.extend(of(1).map(|mark| moved(mark, copy * self.length(), Some(1 + copy))));
        }
        all.extend(of(2).map(|mark| moved(mark, shift, Some(micro_batches - 1))));
        let rest = marks.iter().filter(|mark| mark.first.0 >= self.rest);
        all.extend(rest.map(|mark| moved(mark, shift, mark.micro_batch)));
        all
    }

    fn stored(&self, stored: &[Stored]) -> Option<Vec<Stored>> {
        let [before, two, _] = self.made;
        let (first, second, rest) = (stored.get(..before)?, stored.get(before..two)?, stored.get(two..)?);
        let mut all = Vec::with_capacity(stored.len() + second.len() * self.copies as usize);
        for stored in first {
            // what the third lets go of would be gone in the second of three already
            let ambiguous = (self.third..self.rest).contains(&stored.death.0);
            let death = if stored.death == NEVER { NEVER } else { Moment(self.after(stored.death.0)) };
            all.push(Stored { death, tracked: self.tracked(stored), ..*stored });
            if ambiguous {
                return None;
            }
        }
        for copy in 0..=self.copies {
            for stored in second {
                if stored.death.0 >= self.rest {
                    return None; // every copy would have to stay, and it cannot be told from what the last does
                }
                all.push(self.moved(stored, copy)?);
            }
        }
        for stored in rest {
            all.push(self.moved(stored, self.copies)?);
        }
        Some(all)
    }

    /// A storage so many lengths later.
    fn moved(&self, stored: &Stored, lengths: u32) -> Option<Stored> {
        let later = |moment: Moment| match moment {
            NEVER => NEVER,
            moment => Moment(moment.0 + lengths * self.length()),
        };
        let (birth, tracked, death) = (later(stored.birth), later(stored.tracked), later(stored.death));
        let copied_for = match stored.copied_for {
            Some(CopiedFor::Offload(id)) => Some(CopiedFor::Offload(self.id(id, lengths)?)),
            other => other,
        };
        let role = match stored.role {
            Role::Input { name, micro_batch } => Role::Input { name, micro_batch: micro_batch + lengths },
            role => role,
        };
        Some(Stored { birth, tracked, death, copied_for, role, ..*stored })
    }

    /// What a storage that many lengths later means by this storage.
    fn id(&self, id: StorageId, lengths: u32) -> Option<StorageId> {
        let [before, two, _] = self.made;
        if (id.0 as usize) < before {
            return Some(id);
        }
        let made = u32::try_from(two - before).ok()?;
        Some(StorageId(id.0 + lengths * made))
    }

    /// When torch's tracker first sees a storage that is there before the second micro-batch: a batch in its own.
    fn tracked(&self, stored: &Stored) -> Moment {
        let Role::Input { name, micro_batch: micro_batch @ 2.. } = stored.role else { return stored.tracked };
        match self.tracked.iter().find(|(known, _)| *known == name) {
            Some((_, tracked)) if *tracked != NEVER => Moment(tracked.0 + (micro_batch - 1) * self.length()),
            _ => stored.tracked,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::open_model;
    use crate::config::Architecture;
    use crate::options::*;
    use crate::step::{Alike, Outcome, run_alike, run_all};
    use crate::torch::Dtype;
    use peakledger_input::Source;

    fn architectures() -> Vec<Architecture> {
        let config = |family: &str| {
            let text = format!(
                r#"{{"model_type": "{family}", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}}"#
            );
            Architecture::read(&Source::from_text("config.json", text)).unwrap()
        };
        let mut all: Vec<Architecture> = ["llama", "qwen3", "gemma2", "olmo2", "mixtral"].map(config).into();
        all.push(Architecture::read(&open_model("gpt2").unwrap().config).unwrap());
        all
    }

    /// Every option that has to do with micro-batches, alone.
    fn variants() -> Vec<Options> {
        let plain = Options { micro_batch_size: 2, seq_len: Some(20), ..Options::default() };
        let lora = Lora { rank: 4, dropout: 0.1, dtype: Dtype::F32, targets: LoraTargets::AllLinear };
        let offload = |activations, optimizer, parameters| Offload { activations, optimizer, parameters };
        vec![
            plain.clone(),
            Options { hold_outputs: HoldOutputs::Step, ..plain.clone() },
            Options { hold_outputs: HoldOutputs::Backward, loss_in_model: true, ..plain.clone() },
            Options { recompute: Recompute::Full, padded: true, clip_grad_norm: true, ..plain.clone() },
            Options { recompute: Recompute::Selective, attention: Attention::Eager, ..plain.clone() },
            Options { precision: Precision::Fp16Mixed, grad_scaler: true, ..plain.clone() },
            Options {
                precision: Precision::Bf16,
                optimizer_impl: Some(OptimizerImpl::Fused),
                ..plain.clone()
            },
            Options { lora: Some(lora.clone()), quantize: Some(Quantize::Nf4), ..plain.clone() },
            Options {
                lora: Some(lora),
                recompute: Recompute::Full,
                hold_outputs: HoldOutputs::Step,
                ..plain.clone()
            },
            Options { offload: offload(true, false, false), offload_prefetch: 1, ..plain.clone() },
            Options { offload: offload(false, true, false), ..plain.clone() },
            Options { offload: offload(true, false, true), offload_prefetch: 0, ..plain.clone() },
            Options { fused_loss: true, precision: Precision::Bf16, ..plain.clone() },
            Options {
                grad_dtype: Some(Dtype::F32),
                master_weights: Some(Dtype::F32),
                precision: Precision::Bf16,
                ..plain
            },
        ]
    }

    /// The tape is the one that running all micro-batches leaves, to the byte.
    #[test]
    fn a_repeated_tape_is_the_whole_one() {
        for architecture in architectures() {
            let family = architecture.family.model_type;
            // what is packed are the weights of `nn.Linear`
            let planned =
                |options: &Options| !["gpt2", "mixtral"].contains(&family) || options.quantize.is_none();
            for options in variants().into_iter().filter(planned) {
                for gradient_accumulation_steps in [4, 9] {
                    let options = Options { gradient_accumulation_steps, ..options.clone() };
                    let Outcome { tape, .. } = run_all(&architecture, &options, 20).unwrap();
                    let alike = Alike { layers: false, micro_batches: true };
                    let repeated = run_alike(&architecture, &options, 20, alike).unwrap();
                    let repeated = repeated.unwrap_or_else(|| panic!("not repeated: {options:?}"));
                    assert!(repeated.tape == tape, "{family}: another tape with {options:?}");
                }
            }
        }
    }
}
