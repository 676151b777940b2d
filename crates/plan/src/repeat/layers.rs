//! Decoder layers of one kind are alike: of a long row a few are run, and one of them is written down again for those that
//! are not.
//!
//! The model is loaded and updated with all its layers; what is left out are forward and backward of some. A layer that is
//! written down again stands in the same places to the layers around it, so moments, modules and storages in other layers
//! are as many layers away as where it was run, and what lies outside the layers is where it is. The copy that would come
//! where the next layer was run has to be that layer, or nothing is repeated.

use super::alike::Alike;
use super::outline::{Loaded, Outline};
use super::stretches::{Piece, Stretch, Stretches};
use crate::nn::Parameter;
use crate::torch::Costs;
use crate::torch::tape::{CopiedFor, Mark, ModuleId, NEVER, Once, Ran, Role, StorageId, Stored, Tape};
use crate::torch::trail::{Part, Trail};
use peakledger_core::{Category, Device, Moment};
use std::ops::Range;

/// Layers that need not be run.
pub(crate) struct Repeat {
    outline: Outline,
    alike: Alike,
    /// How many layers the model has.
    layers: usize,
    /// What a unit has of the loaded model.
    in_unit: [usize; 3],
}

impl Repeat {
    /// The layers that need not be run of a model that was just loaded, if it has such. So many are a checkpoint
    /// `together`, and copies run so many `ahead`; layers are alike only if they are run in the same `way`.
    pub(crate) fn of<W: PartialEq>(
        tape: &Tape,
        parameters: &[Parameter],
        way: impl Fn(usize) -> W,
        together: usize,
        ahead: usize,
    ) -> Option<Repeat> {
        let outline = Outline::of(tape)?;
        let kinds = outline.kinds(tape, parameters, way);
        let alike = Alike::of(&kinds, together, ahead)?;
        let unit = |layer| outline.layer(layer).zip(outline.layer(layer + alike.unit));
        let (a, b) = unit(alike.first)?;
        let between = |of: fn(&Loaded) -> &Range<usize>| of(b).start - of(a).start;
        let in_unit = [between(|l| &l.modules), between(|l| &l.parameters), between(|l| &l.stored)];
        Some(Repeat { outline, alike, layers: kinds.len(), in_unit })
    }

    /// The layers that are not run, as the model numbers them.
    pub(crate) fn left_out(&self) -> Range<usize> {
        self.alike.left_out()
    }

    /// The parameter that a parameter of a layer that is not run is like.
    pub(super) fn written_from(&self, parameter: u32) -> Option<u32> {
        let layer = self.outline.of_parameter(parameter)?;
        if !self.left_out().contains(&layer) {
            return None;
        }
        let units = (layer - self.alike.first) / self.alike.unit;
        let [_, parameters, _] = self.in_unit;
        parameter.checked_sub(u32::try_from(units * parameters).ok()?)
    }

    /// The tape of the whole model, of one on which layers are left out; nothing where what would be written down again is
    /// not alike.
    pub(crate) fn whole(&self, tape: Tape, trail: &Trail) -> Option<Tape> {
        let stretches = Stretches::of(&tape, trail, &self.alike, self.layers)?;
        let mut whole =
            Whole { repeat: self, tape: &tape, stretches, when: Vec::new(), gradients: Vec::new() };
        whole.when = whole.moments_of_death()?;
        whole.gradients = whole.gradients_of_stand_ins()?;
        whole.is_alike()?;
        let (stored, ran) = (whole.stored()?, whole.ran()?);
        let (marks, once) = (whole.marks()?, whole.once()?);
        Some(Tape { stored, ran, marks, once, ..tape })
    }
}

/// When a storage goes, as seen from where it was made.
#[derive(Clone, Copy, Debug)]
enum When {
    Never,
    /// At a moment of the whole tape.
    At(u32),
    /// In the layer so many later (or earlier), at that moment of it.
    In {
        pass: usize,
        from: usize,
        to: usize,
        offset: u32,
    },
}

/// The whole tape in the making.
struct Whole<'a> {
    repeat: &'a Repeat,
    tape: &'a Tape,
    stretches: Stretches,
    /// When each storage goes.
    when: Vec<When>,
    /// When what stands for a gradient goes: by parameter and device.
    gradients: Vec<((u32, Device), Moment)>,
}

impl Whole<'_> {
    fn moments_of_death(&self) -> Option<Vec<When>> {
        let mut all = Vec::with_capacity(self.tape.stored.len());
        for stretch in self.stretches.iter() {
            let stored = self.tape.stored.get(stretch.stored.clone())?;
            for stored in stored {
                all.push(self.when(stretch, stored.death)?);
            }
        }
        Some(all)
    }

    fn gradients_of_stand_ins(&self) -> Option<Vec<((u32, Device), Moment)>> {
        let mut gradients = Vec::new();
        for stretch in self.stretches.iter().filter(|stretch| stretch.part == Part::StandIns) {
            let of_stretch = |column: &mut Vec<_>, stored: &Stored, when: &When| {
                let (Role::Of { parameter, .. }, When::At(_) | When::Never) = (stored.role, when) else {
                    return None;
                };
                column.push(((parameter, stored.device), self.moment(*when, 0)?));
                Some(())
            };
            let (stored, when) =
                (self.tape.stored.get(stretch.stored.clone())?, self.when.get(stretch.stored.clone())?);
            stored
                .iter()
                .zip(when)
                .try_for_each(|(stored, when)| of_stretch(&mut gradients, stored, when))?;
        }
        gradients.sort_by_key(|(key, _)| *key);
        Some(gradients)
    }

    /// A moment as seen from a stretch.
    fn when(&self, from: &Stretch, moment: Moment) -> Option<When> {
        if moment == NEVER {
            return Some(When::Never);
        }
        let at = self.stretches.at(moment)?;
        let to = self.stretches.get(at)?;
        let offset = moment.0 - to.moments.start;
        Some(match (from.part, to.part) {
            (Part::Layer(from), Part::Layer(to_layer)) => {
                When::In { pass: to.pass, from, to: to_layer, offset }
            }
            (_, Part::Layer(layer)) => {
                // what is made outside and goes in a layer goes in that layer alone
                let layer = Some(layer).filter(|layer| !self.repeat.alike.is_compared(*layer))?;
                When::At(self.stretches.place(to.pass, self.repeat.alike.in_model(layer))?.moment + offset)
            }
            _ => When::At(self.stretches.between(at)?.moment + offset),
        })
    }

    /// The moment on the whole tape, for what is made in a layer.
    fn moment(&self, when: When, layer: usize) -> Option<Moment> {
        match when {
            When::Never => Some(NEVER),
            When::At(moment) => Some(Moment(moment)),
            When::In { pass, from, to, offset } => {
                self.stretches.moment(pass, (layer + to).checked_sub(from)?, offset)
            }
        }
    }

    /// Something of a loaded layer, as a piece means it: in a layer as far away as from the layer that was run.
    fn meant(&self, piece: &Piece, run: Part, id: u32, layer: Option<usize>, in_unit: usize) -> Option<u32> {
        let (Part::Layer(from), Some(in_model)) = (run, layer) else { return Some(id) };
        let alike = &self.repeat.alike;
        let by = |units: usize| u32::try_from(units * in_unit).ok();
        let already = |layer| if alike.is_after(layer) { alike.copies } else { 0 };
        if in_model == alike.in_model(from) {
            return id.checked_add(by(piece.units.checked_sub(already(from))?)?);
        }
        let to = alike.among_run(in_model)?;
        if piece.units == already(to) {
            return Some(id);
        }
        if from.abs_diff(to) > alike.reach {
            return None;
        }
        match piece.units.checked_sub(already(to)) {
            Some(later) => id.checked_add(by(later)?),
            None => id.checked_sub(by(already(to) - piece.units)?),
        }
    }

    /// Modules as a piece means them: many in a row are the same.
    fn modules(&self, piece: &Piece, run: Part) -> impl FnMut(ModuleId) -> Option<ModuleId> {
        let [modules, ..] = self.repeat.in_unit;
        let mut last = None;
        move |module| match last {
            Some((known, meant)) if known == module => Some(meant),
            _ => {
                let layer = self.repeat.outline.of_module(module);
                let meant = self.meant(piece, run, module.0, layer, modules).map(ModuleId)?;
                last = Some((module, meant));
                Some(meant)
            }
        }
    }

    fn storage(&self, piece: &Piece, run: Part, storage: StorageId) -> Option<StorageId> {
        let [.., stored] = self.repeat.in_unit;
        if let Some(layer) = self.repeat.outline.of_loaded(storage) {
            return self.meant(piece, run, storage.0, layer, stored).map(StorageId);
        }
        let at = self.stretches.making(storage)?;
        let made = self.stretches.get(at)?;
        let there = match (run, made.part) {
            (Part::Layer(from), Part::Layer(to)) => {
                self.stretches.place(made.pass, (piece.layer? + to).checked_sub(from)?)?
            }
            (_, Part::Layer(layer)) => {
                let layer = Some(layer).filter(|layer| !self.repeat.alike.is_compared(*layer))?;
                self.stretches.place(made.pass, self.repeat.alike.in_model(layer))?
            }
            _ => self.stretches.between(at)?,
        };
        let offset = storage.0 as usize - made.stored.start;
        u32::try_from(there.stored + offset).ok().map(StorageId)
    }

    /// A storage as a piece means it, but for its module.
    fn stored_of(&self, piece: &Piece, stretch: &Stretch, stored: &Stored, when: When) -> Option<Stored> {
        let run = stretch.part;
        let [_, parameters, _] = self.repeat.in_unit;
        let birth = Moment(piece.moment + stored.birth.0.checked_sub(stretch.moments.start)?);
        let tracked = match stored.tracked {
            NEVER => NEVER,
            tracked if tracked == stored.birth => birth,
            _ if matches!(run, Part::Layer(_)) => return None,
            tracked => self.moment(self.when(stretch, tracked)?, 0)?,
        };
        let role = match stored.role {
            Role::Of { parameter, state } => {
                let layer = self.repeat.outline.of_parameter(parameter);
                Role::Of { parameter: self.meant(piece, run, parameter, layer, parameters)?, state }
            }
            other => other,
        };
        let death = match (role, when) {
            (Role::Of { parameter, .. }, When::At(_) | When::Never) if piece.is_copy => {
                let key = (parameter, stored.device);
                let at = self.gradients.binary_search_by_key(&key, |(key, _)| *key).ok()?;
                self.gradients.get(at)?.1
            }
            _ => self.moment(when, piece.layer.unwrap_or(0))?,
        };
        let copied_for = match stored.copied_for {
            Some(CopiedFor::Offload(storage)) => Some(CopiedFor::Offload(self.storage(piece, run, storage)?)),
            other => other,
        };
        Some(Stored { birth, tracked, death, role, copied_for, ..*stored })
    }

    /// Whether the copy that would come where the next unit was run is that unit, and what runs between the passes leaves
    /// both alone.
    fn is_alike(&self) -> Option<()> {
        let alike = &self.repeat.alike;
        let inside = |stretch: &Stretch| matches!(stretch.part, Part::Layer(_));
        let (from, to) = (self.stretches.iter().position(inside)?, self.stretches.iter().rposition(inside)?);
        let between =
            self.stretches.iter().enumerate().filter(|(at, s)| (from..to).contains(at) && !inside(s));
        for (_, stretch) in between {
            self.leaves_layers_alone(stretch)?;
        }
        for pass in self.stretches.passes() {
            for layer in alike.again() {
                let (a, b) =
                    (self.stretches.in_pass(pass, layer), self.stretches.in_pass(pass, layer + alike.unit));
                let (Some(a), Some(b)) = (a, b) else {
                    (a == b).then_some(())?; // a layer in the middle of a checkpoint
                    continue;
                };
                let there = *self.stretches.place(pass, alike.in_model(layer + alike.unit))?;
                let copy = Piece { stretch: a, units: alike.copies + 1, ..there };
                let (a, b) = (self.stretches.get(a)?, self.stretches.get(b)?);
                (self.are_same([(&copy, a), (&there, b)])?).then_some(())?;
            }
        }
        Some(())
    }

    fn leaves_layers_alone(&self, stretch: &Stretch) -> Option<()> {
        let Range { start, end } = stretch.moments;
        let ran = self.tape.ran.get(start as usize..end as usize)?.iter().map(|ran| ran.module);
        let stored = self.tape.stored.get(stretch.stored.clone())?.iter().map(|stored| stored.module);
        let is_compared = |module| {
            let layer = self.repeat.outline.of_module(module);
            layer
                .and_then(|layer| self.repeat.alike.among_run(layer))
                .is_some_and(|l| self.repeat.alike.is_compared(l))
        };
        (!ran.chain(stored).any(is_compared)).then_some(())
    }

    fn are_same(&self, [a, b]: [(&Piece, &Stretch); 2]) -> Option<bool> {
        let of = |(piece, stretch): (&Piece, &Stretch)| -> Option<(Vec<Ran>, Vec<Stored>)> {
            let mut all = (Vec::new(), Vec::new());
            self.write_ran(piece, stretch, &mut all.0)?;
            self.write_stored(piece, stretch, &mut all.1)?;
            // when a gradient goes after backward is known of each by itself
            let gradients =
                all.1.iter_mut().zip(self.when.get(stretch.stored.clone())?).filter(|(stored, when)| {
                    stored.category == Category::Gradient && matches!(when, When::At(_) | When::Never)
                });
            gradients.for_each(|(stored, _)| stored.death = NEVER);
            Some(all)
        };
        Some(a.1.costs == b.1.costs && of(a)? == of(b)?)
    }

    fn write_stored(&self, piece: &Piece, stretch: &Stretch, to: &mut Vec<Stored>) -> Option<()> {
        let range = stretch.stored.clone();
        let stored = self.tape.stored.get(range.clone())?.iter().zip(self.when.get(range)?);
        let mut module = self.modules(piece, stretch.part);
        for (stored, when) in stored {
            let module = module(stored.module)?;
            to.push(Stored { module, ..self.stored_of(piece, stretch, stored, *when)? });
        }
        Some(())
    }

    fn write_ran(&self, piece: &Piece, stretch: &Stretch, to: &mut Vec<Ran>) -> Option<()> {
        let range = stretch.moments.start as usize..stretch.moments.end as usize;
        let mut module = self.modules(piece, stretch.part);
        for ran in self.tape.ran.get(range)? {
            to.push(Ran { module: module(ran.module)?, ..*ran });
        }
        Some(())
    }

    fn stored(&self) -> Option<Vec<Stored>> {
        let (last, first) = (self.stretches.pieces.last()?, self.stretches.iter().last()?);
        let mut all = Vec::with_capacity(last.stored + first.stored.len());
        for piece in &self.stretches.pieces {
            self.write_stored(piece, self.stretches.get(piece.stretch)?, &mut all)?;
        }
        Some(all)
    }

    fn ran(&self) -> Option<Vec<Ran>> {
        let (last, first) = (self.stretches.pieces.last()?, self.stretches.iter().last()?);
        let mut all = Vec::with_capacity((last.moment + (first.moments.end - first.moments.start)) as usize);
        for piece in &self.stretches.pieces {
            self.write_ran(piece, self.stretches.get(piece.stretch)?, &mut all)?;
        }
        Some(all)
    }

    /// A moment outside the layers, or the one that comes after all.
    fn outside(&self, moment: u32) -> Option<u32> {
        let at = self.stretches.at(Moment(moment))?;
        let piece = self.stretches.between(at)?;
        Some(piece.moment + (moment - self.stretches.get(at)?.moments.start))
    }

    fn marks(&self) -> Option<Vec<Mark>> {
        let ends = self.tape.marks.iter().skip(1).map(|mark| mark.first).chain([self.tape.next()]);
        let again = self.repeat.alike.again();
        let is_again =
            |stretch: &&Stretch| matches!(stretch.part, Part::Layer(layer) if again.contains(&layer));
        let moved = |(mark, end): (&Mark, Moment)| {
            let here = mark.first.0..end.0;
            let unit = self.stretches.iter().filter(is_again).filter(|s| here.contains(&s.moments.start));
            let unit: Costs = unit.map(|stretch| stretch.costs).sum();
            let more = unit.times(u32::try_from(self.repeat.alike.copies).ok()?);
            Some(Mark {
                first: Moment(self.outside(mark.first.0)?),
                costs: mark.costs + more,
                ..mark.clone()
            })
        };
        self.tape.marks.iter().zip(ends).map(moved).collect()
    }

    fn once(&self) -> Option<Vec<Once>> {
        let moved = |once: &Once| {
            let Once { moments, costs } = once;
            Some(Once { moments: self.outside(moments.start)?..self.outside(moments.end)?, costs: *costs })
        };
        self.tape.once.iter().map(moved).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Architecture;
    use crate::model::FAMILIES;
    use crate::options::*;
    use crate::step::{Alike, Outcome, run_alike, run_all};
    use crate::torch::Dtype;
    use peakledger_input::Source;
    use std::num::NonZeroU32;

    const LENGTH: u64 = 20;
    const FEW: Alike = Alike { layers: true, micro_batches: true };

    /// Each family, with layers of several kinds where it has such.
    fn architectures() -> Vec<Architecture> {
        let config = |family: &str, layers: u32, more: &str| {
            let keys = if family == "deepseek_v3" { 4 } else { 2 };
            let text = format!(
                r#"{{"model_type": "{family}", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": {layers},
                     "num_attention_heads": 4, "num_key_value_heads": {keys}, "head_dim": 8, "max_position_embeddings": 64,
                     "sliding_window": 8 {more}}}"#
            );
            Architecture::read(&Source::from_text("config.json", text)).unwrap()
        };
        let plain = FAMILIES.iter().map(|family| match family.model_type {
            family @ "gemma2" => config(family, 27, ""),
            family @ "gemma3_text" => config(family, 43, r#", "sliding_window_pattern": 3"#),
            family @ "deepseek_v3" => config(family, 18, r#", "first_k_dense_replace": 3"#),
            family => config(family, 15, ""),
        });
        let own = [
            config("qwen2", 21, r#", "use_sliding_window": true, "max_window_layers": 6"#),
            config("qwen3_moe", 27, r#", "decoder_sparse_step": 2"#),
            config("qwen3_moe", 17, r#", "mlp_only_layers": [0, 1]"#),
        ];
        plain.chain(own).collect()
    }

    /// Every option that has to do with layers, alone and with others.
    fn variants() -> Vec<Options> {
        let plain = Options { micro_batch_size: 2, seq_len: Some(LENGTH), ..Options::default() };
        let lora = Lora { rank: 4, dropout: 0.1, dtype: Dtype::F32, targets: LoraTargets::AllLinear };
        let offload = |activations, optimizer, parameters| Offload { activations, optimizer, parameters };
        let bf16 = Options { precision: Precision::Bf16, ..plain.clone() };
        vec![
            plain.clone(),
            Options { clip_grad_norm: true, hold_outputs: HoldOutputs::Step, ..bf16.clone() },
            Options { gradient_accumulation_steps: 2, attention: Attention::Eager, ..plain.clone() },
            Options { gradient_accumulation_steps: 5, hold_outputs: HoldOutputs::Step, ..plain.clone() },
            Options { recompute: Recompute::Full, padded: true, ..plain.clone() },
            Options { recompute: Recompute::Selective, ..plain.clone() },
            Options { recompute: Recompute::Layers((0..2).collect()), ..plain.clone() },
            Options {
                offload: offload(true, false, false),
                offload_layers: Some((0..2).collect()),
                ..plain.clone()
            },
            Options { recompute: Recompute::Every(NonZeroU32::new(2).unwrap()), ..plain.clone() },
            Options { precision: Precision::Fp16Mixed, grad_scaler: true, ..plain.clone() },
            Options { optimizer: OptimizerKind::Adafactor, ..bf16.clone() },
            Options { optimizer: OptimizerKind::AdamW8bit, ..bf16.clone() },
            Options { optimizer: OptimizerKind::Muon, ..bf16.clone() },
            Options { optimizer_impl: Some(OptimizerImpl::ForLoop), ..bf16.clone() },
            Options { lora: Some(lora.clone()), ..bf16.clone() },
            Options { lora: Some(lora.clone()), quantize: Some(Quantize::Nf4Double), ..plain.clone() },
            Options {
                lora: Some(lora.clone()),
                quantize: Some(Quantize::Int8),
                hold_outputs: HoldOutputs::Step,
                ..plain.clone()
            },
            Options { lora: Some(lora.clone()), recompute: Recompute::Full, ..bf16.clone() },
            Options { offload: offload(true, false, false), ..plain.clone() },
            Options {
                offload: offload(true, false, false),
                offload_prefetch: 2,
                recompute: Recompute::Full,
                ..bf16.clone()
            },
            Options { offload: offload(false, true, false), ..bf16.clone() },
            Options {
                offload: offload(true, false, true),
                offload_prefetch: 0,
                gradient_accumulation_steps: 2,
                ..bf16.clone()
            },
            Options { offload: offload(false, false, true), lora: Some(lora), ..bf16.clone() },
            Options { grad_dtype: Some(Dtype::F32), master_weights: Some(Dtype::F32), ..bf16.clone() },
            Options { master_weights: Some(Dtype::F32), ..bf16 },
        ]
    }

    /// However far copies run ahead, and wherever in the model the row begins.
    #[test]
    fn copies_that_run_ahead_are_those_of_the_whole_tape() {
        let (mut wrong, mut repeated) = (Vec::new(), 0);
        let architecture = |layers: u32| {
            let text = format!(
                r#"{{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": {layers},
                     "num_attention_heads": 4, "max_position_embeddings": 64}}"#
            );
            Architecture::read(&Source::from_text("config.json", text)).unwrap()
        };
        for layers in [12, 13, 14, 17, 24] {
            let architecture = architecture(layers);
            let offloads = [(true, false), (false, true), (true, true)];
            for ((activations, parameters), ahead, own, micro_batches) in
                offloads.iter().flat_map(|offload| {
                    (0..6).flat_map(move |ahead| {
                        (0..3).flat_map(move |own| [1, 2].map(|n| (*offload, ahead, own, n)))
                    })
                })
            {
                let options = Options {
                    seq_len: Some(LENGTH),
                    gradient_accumulation_steps: micro_batches,
                    recompute: if own == 0 { Recompute::None } else { Recompute::Layers((0..own).collect()) },
                    offload: Offload { activations, parameters, ..Offload::default() },
                    offload_prefetch: ahead,
                    ..Options::default()
                };
                let whole = run_all(&architecture, &options, LENGTH).unwrap();
                match run_alike(&architecture, &options, LENGTH, FEW).unwrap() {
                    Some(few) if few.tape != whole.tape => {
                        wrong.push(format!("another tape: {layers} {options:?}"));
                    }
                    Some(few) => repeated += usize::from(few.layers_left_out > 0),
                    None => wrong.push(format!("not repeated: {layers} {options:?}")),
                }
            }
        }
        assert!(wrong.is_empty(), "{} beside {repeated}: {wrong:#?}", wrong.len());
        assert!(repeated > 200, "{repeated}");
    }

    /// The tape is the one that running all layers leaves, to the byte.
    #[test]
    fn a_tape_of_few_layers_is_the_whole_one() {
        let (mut wrong, mut all) = (Vec::new(), 0);
        for architecture in architectures() {
            let family = architecture.family.model_type;
            for options in variants() {
                let Ok(Outcome { tape, .. }) = run_all(&architecture, &options, LENGTH) else { continue };
                all += 1;
                match run_alike(&architecture, &options, LENGTH, FEW).unwrap() {
                    Some(few) if few.layers_left_out < 2 => {
                        wrong.push(format!("{family}: all run with {options:?}"));
                    }
                    Some(few) if few.tape == tape => {}
                    Some(_) => wrong.push(format!("{family}: another tape with {options:?}")),
                    None => wrong.push(format!("{family}: not repeated with {options:?}")),
                }
            }
        }
        assert!(wrong.is_empty(), "{} of {all}: {wrong:#?}", wrong.len());
    }
}
