//! What fits: how large a micro-batch, and how long a sequence, a card takes of a step.
//!
//! Nothing is solved for. A plan takes less than a millisecond, so the boundary is looked for by planning steps on both sides
//! of it, and an answer stands on two of them: the plan of the answer fits, and the plan of one more does not. What the
//! caching allocator reserves takes longer to know, and is never less than what is planned: it is asked for only below the
//! boundary that the plans have.

use crate::catalogue::Card;
use crate::config::Architecture;
use crate::options::Options;
use crate::parallel::schedule::enough;
use crate::parallel::{Shown, plan_ranks};
use crate::{Costs, Plan, Verdict};
use peakledger_core::Bytes;
use peakledger_input::Problem;

/// A planned step on a card, and how much of it there may be.
#[derive(Clone, Debug)]
pub struct Fit {
    /// How it is run.
    pub options: Options,
    /// Tokens in a sequence.
    pub seq_len: u64,
    /// The device-level peak.
    pub device_peak: Bytes,
    /// What a steady step costs apart from memory.
    pub costs: Costs,
    /// Whether it fits.
    pub verdict: Verdict,
    /// The largest micro-batch of sequences as long as these.
    pub micro_batch: Largest,
    /// The longest sequence in a micro-batch as large as this one.
    pub length: Largest,
}

/// The largest amount that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// How much; nothing where not even 1 fits.
    pub amount: Option<u64>,
    /// What stands against one more.
    pub limit: Limit,
}

/// What stands against one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// It does not fit the card.
    Card,
    /// The model has no more positions.
    Model,
    /// It is not looked for, or cannot be planned.
    Search,
}

impl Limit {
    /// In a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Limit::Card => "card",
            Limit::Model => "model",
            Limit::Search => "search",
        }
    }
}

/// Micro-batches beyond this are not looked for, unless one is asked for.
const LARGEST_MICRO_BATCH: u64 = 1 << 16;

impl Fit {
    /// Looks for what fits of a step. What a plan takes of the card is the caller's word: by its device peak
    /// ([`Verdict::of`]), or by what the caching allocator makes of its traffic. Where all that is asked is whether a plan
    /// fits, the `quick` word is taken, which says of a misfit nothing more.
    ///
    /// # Errors
    /// Names the option that cannot be, or the sum that does not fit into 64 bits.
    pub fn of(
        architecture: &Architecture,
        options: Options,
        card: &Card,
        verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
        quick: &(dyn Fn(&Plan) -> Verdict + Sync),
    ) -> Result<Fit, Problem> {
        let planned = Short::of(architecture, options.clone(), verdict)?;
        let taken = match options.parallel.pp {
            1 => verdict(&planned.0),
            _ => verdict(&Short::as_replayed(architecture, options.clone(), verdict)?.0),
        };
        let options = Options { seq_len: Some(planned.0.seq_len), ..options };
        let search = Search { architecture, options: &options, card, quick };
        let limit = architecture.shape.max_position_embeddings;
        Ok(Fit {
            seq_len: planned.0.seq_len,
            device_peak: planned.device_peak(),
            costs: planned.costs(),
            verdict: taken,
            micro_batch: search.largest(Axis {
                set: |options, amount| options.micro_batch_size = amount,
                given: options.micro_batch_size,
                most: LARGEST_MICRO_BATCH.max(options.micro_batch_size),
                most_is: Limit::Search,
            }),
            length: search.largest(Axis {
                set: |options, amount| options.seq_len = Some(amount),
                given: planned.0.seq_len,
                most: limit,
                most_is: Limit::Model,
            }),
            options,
        })
    }

    /// Whether it trains as the other does, on as many sequences with the same arithmetic: what differs is when and where
    /// things are computed and kept.
    pub fn trains_as(&self, other: &Fit) -> bool {
        let sequences = |o: &Options| {
            let of_a_rank = o.micro_batch_size.saturating_mul(u64::from(o.gradient_accumulation_steps));
            of_a_rank.saturating_mul(o.mesh().map_or(1, |mesh| u64::from(mesh.dp)))
        };
        let types = |o: &Options| (o.weights(), o.compute(), o.parallel.data.reduce_dtype);
        let (mine, theirs) = (&self.options, &other.options);
        let alike = Options {
            micro_batch_size: theirs.micro_batch_size,
            gradient_accumulation_steps: theirs.gradient_accumulation_steps,
            optimizer_impl: theirs.optimizer_impl,
            attention: theirs.attention,
            expand_kv: theirs.expand_kv,
            recompute: theirs.recompute,
            loss_in_model: theirs.loss_in_model,
            fused_loss: theirs.fused_loss,
            offload: theirs.offload,
            offload_layers: theirs.offload_layers,
            offload_prefetch: theirs.offload_prefetch,
            hold_outputs: theirs.hold_outputs,
            parallel: theirs.parallel.clone(),
            ..mine.clone()
        };
        alike == *theirs && sequences(mine) == sequences(theirs) && types(mine) == types(theirs)
    }
}

/// One way in which a step grows.
#[derive(Clone, Copy)]
struct Axis {
    set: fn(&mut Options, u64),
    given: u64,
    /// Where the search ends, and why there.
    most: u64,
    most_is: Limit,
}

/// Steps of a model on a card.
struct Search<'a> {
    architecture: &'a Architecture,
    options: &'a Options,
    card: &'a Card,
    quick: &'a (dyn Fn(&Plan) -> Verdict + Sync),
}

impl Search<'_> {
    fn largest(&self, axis: Axis) -> Largest {
        let found = self.boundary(axis);
        let limit = match found.next {
            Next::TooLarge => Limit::Card,
            Next::Unplanned => Limit::Search,
            Next::BeyondMost => axis.most_is,
        };
        Largest { amount: found.amount, limit }
    }

    /// The boundary by what is planned, and from there on down by what is taken.
    fn boundary(&self, axis: Axis) -> Boundary {
        let capacity = self.card.total;
        let needed = |plan: &Plan| Verdict::of(plan, self.card, None);
        let planned = |amount| {
            let short = Short::of(self.architecture, self.options_with(axis, amount), &needed).ok()?;
            Some(needed(&short.0).needed)
        };
        let by_plan = boundary(axis.given, axis.given, axis.most, capacity, planned);
        let Some(most) = by_plan.amount else { return by_plan };
        let taken = |amount| {
            let options = self.options_with(axis, amount);
            let verdict = (self.quick)(&Short::as_replayed(self.architecture, options, self.quick).ok()?.0);
            verdict.fits().then_some(verdict.needed)
        };
        if taken(most).is_some() {
            return by_plan;
        }
        // what the allocator takes beyond the plan is mostly a few per cent
        let less = most / 64 + 1;
        let found = match most.checked_sub(less).filter(|start| *start > 0) {
            Some(start) => boundary(start, less, most - 1, capacity, taken),
            None => Boundary { amount: None, next: Next::TooLarge },
        };
        Boundary { next: Next::TooLarge, ..found }
    }

    /// A step with that amount.
    fn options_with(&self, axis: Axis, amount: u64) -> Options {
        let mut options = self.options.clone();
        (axis.set)(&mut options, amount);
        options
    }
}

/// Micro-batches that are planned: the first; the second, which those after it are like; and the last.
const PLANNED: u32 = 3;

/// A step of the rank that needs most, planned with few of its micro-batches. What the others add is known: their batches,
/// which are on the device all the time, and what the second costs.
pub(crate) struct Short(Plan);

impl Short {
    /// The plan of those micro-batches.
    pub(crate) fn plan(&self) -> &Plan {
        &self.0
    }

    /// As much of a step as its device peak and its costs stand on.
    fn of(
        architecture: &Architecture,
        options: Options,
        verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
    ) -> Result<Short, Problem> {
        let steps = options.gradient_accumulation_steps;
        let most = if options.parallel.pp > 1 { enough(&options.parallel).unwrap_or(steps) } else { PLANNED };
        Short::planned(architecture, options, most, verdict)
    }

    /// As much of a step as the allocator is asked: all of a pipeline, since what it reserves depends on every micro-batch
    /// that is in flight beside others.
    pub(crate) fn as_replayed(
        architecture: &Architecture,
        options: Options,
        verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
    ) -> Result<Short, Problem> {
        let most = if options.parallel.pp > 1 { options.gradient_accumulation_steps } else { PLANNED };
        Short::planned(architecture, options, most, verdict)
    }

    fn planned(
        architecture: &Architecture,
        options: Options,
        most: u32,
        verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
    ) -> Result<Short, Problem> {
        // what cannot be planned is refused as it is asked for
        let shape = &architecture.shape;
        options.check(options.length(shape), shape.num_hidden_layers, shape.num_experts)?;
        let steps = options.gradient_accumulation_steps;
        let gradient_accumulation_steps = steps.min(most);
        let options = Options { gradient_accumulation_steps, ..options };
        let ranks = plan_ranks(architecture, &options, Shown::Worst, |plan| (verdict(plan).needed, ()))?;
        let plan = ranks.plan;
        Ok(Short(Plan { left_out: steps - gradient_accumulation_steps, ..plan }))
    }

    /// The device-level peak of the whole step; a size past 64 bits saturates, which no card has.
    fn device_peak(&self) -> Bytes {
        let planned = self.0.device_peak_in(None).phase.device_peak;
        planned.checked_add(Bytes::new(self.0.bytes_left_out())).unwrap_or(Bytes::new(u64::MAX))
    }

    /// What the whole steady step costs.
    fn costs(&self) -> Costs {
        let phases = self.0.steady.phases.iter();
        let again: Costs = phases.filter(|phase| phase.micro_batch == Some(1)).map(|phase| phase.costs).sum();
        self.0.steady.costs() + again.times(self.0.left_out)
    }
}

/// The last amount that fits, and what one more would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Boundary {
    amount: Option<u64>,
    next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    TooLarge,
    Unplanned,
    BeyondMost,
}

/// An amount that was tried, and what it takes: nothing where it cannot be planned.
#[derive(Clone, Copy)]
struct Tried {
    amount: u64,
    needed: Option<Bytes>,
}

/// Looks for an amount from 1 to `most` that fits where one more does not. It steps away from `start` by `stride` and twice
/// as far each time until it has tried both sides, and then between them.
///
/// Amounts are expected to take the more the larger they are. Should they not, what is found still fits and one more still
/// does not.
fn boundary(
    start: u64,
    mut stride: u64,
    most: u64,
    capacity: Bytes,
    needed: impl Fn(u64) -> Option<Bytes>,
) -> Boundary {
    let most = most.max(1);
    let (mut below, mut above): (Option<Tried>, Option<Tried>) = (None, None);
    let (mut amount, mut turn) = (start.clamp(1, most), 0);
    loop {
        let tried = Tried { amount, needed: needed(amount) };
        let fits = tried.needed.is_some_and(|needed| needed <= capacity);
        *(if fits { &mut below } else { &mut above }) = Some(tried);
        amount = match (below, above) {
            (Some(below), Some(above)) => {
                if above.amount - below.amount <= 1 {
                    return Boundary { amount: Some(below.amount), next: above.next() };
                }
                turn += 1;
                between(below, above, capacity, fits, turn)
            }
            (Some(below), None) if below.amount >= most => {
                return Boundary { amount: Some(below.amount), next: Next::BeyondMost };
            }
            (None, Some(above)) if above.amount <= 1 => {
                return Boundary { amount: None, next: above.next() };
            }
            (Some(below), None) => below.amount.saturating_add(stride).min(most),
            (None, above) => above.map_or(1, |above| above.amount.saturating_sub(stride).max(1)),
        };
        stride = stride.saturating_mul(2).max(1);
    }
}

impl Tried {
    /// What it is to the amount before it, which fits.
    fn next(&self) -> Next {
        if self.needed.is_some() { Next::TooLarge } else { Next::Unplanned }
    }
}

/// Where to try next between an amount that fits and one that does not: where the line through both meets the capacity, as
/// totals mostly grow in proportion; then a little beyond that, seen from the side that was just moved, to get hold of it
/// from the other one too; and each third time in the middle, so that no shape makes it slow.
fn between(below: Tried, above: Tried, capacity: Bytes, moved_below: bool, turn: u32) -> u64 {
    let gap = above.amount - below.amount;
    let middle = below.amount + gap / 2;
    let (Some(from), Some(to)) = (below.needed, above.needed) else { return middle };
    if turn.is_multiple_of(3) {
        return middle;
    }
    let (room, rise) = (u128::from(capacity.get() - from.get()), u128::from(to.get() - from.get()));
    // `room < rise`, as the upper one does not fit: less than the gap
    let up = u64::try_from(u128::from(gap) * room / rise.max(1)).unwrap_or(gap);
    let beyond = |distance: u64| if turn == 1 { 0 } else { distance / 8 + 1 };
    let offset = match moved_below {
        true => up.saturating_add(beyond(up)),
        false => up.saturating_sub(beyond(gap - up)),
    };
    below.amount + offset.clamp(1, gap - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{CUDA_CONTEXT, card};
    use crate::options::{Attention, HoldOutputs, Offload, Precision, Recompute};
    use crate::parallel::{Parallel, Schedule, Sharding};
    use crate::{Dtype, plan};
    use peakledger_input::Source;
    use std::cell::Cell;

    const POSITIONS: u64 = 48;

    fn tiny() -> Architecture {
        let config = format!(
            r#"{{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "max_position_embeddings": {POSITIONS}, "tie_word_embeddings": false}}"#
        );
        Architecture::read(&Source::from_text("config.json", config)).unwrap()
    }

    fn with(capacity: u64) -> Card {
        Card { total: Bytes::new(capacity + CUDA_CONTEXT.get()), ..card("1GiB").unwrap() }
    }

    /// What fits by the device peak.
    fn fit_on(card: &Card, options: Options) -> Fit {
        let verdict = |plan: &Plan| Verdict::of(plan, card, None);
        Fit::of(&tiny(), options, card, &verdict, &verdict).unwrap()
    }

    fn device_peak(options: &Options) -> u64 {
        plan(tiny(), options.clone()).unwrap().device_peak_in(None).phase.device_peak.get()
    }

    /// The search finds what trying one after the other finds, for capacities at boundaries and a byte under them.
    #[test]
    fn it_finds_what_a_scan_finds() {
        let plain = Options { micro_batch_size: 3, seq_len: Some(20), ..Options::default() };
        for options in [
            plain.clone(),
            Options { recompute: Recompute::Full, precision: Precision::Bf16, ..plain.clone() },
            Options { attention: Attention::Eager, precision: Precision::Fp32, ..plain.clone() },
            Options {
                gradient_accumulation_steps: 5,
                hold_outputs: HoldOutputs::Step,
                clip_grad_norm: true,
                ..plain
            },
        ] {
            let of_length = |length| device_peak(&Options { seq_len: Some(length), ..options.clone() });
            let of_batch = |batch| device_peak(&Options { micro_batch_size: batch, ..options.clone() });
            let lengths: Vec<u64> = (1..=POSITIONS).map(of_length).collect();
            let batches: Vec<u64> = (1..=24).map(of_batch).collect();
            let scan = |sizes: &[u64], capacity| {
                sizes.iter().zip(1..).take_while(|(size, _)| **size <= capacity).last().map(|(_, at)| at)
            };
            let sizes = lengths.iter().step_by(5).chain(batches.iter().step_by(4));
            for capacity in sizes.flat_map(|size| [size - 1, *size]) {
                let fit = fit_on(&with(capacity), options.clone());
                let wanted = scan(&lengths, capacity);
                let limit = if wanted == Some(POSITIONS) { Limit::Model } else { Limit::Card };
                assert_eq!(fit.length, Largest { amount: wanted, limit }, "{capacity} B, {options:?}");
                let found = fit.micro_batch.amount;
                match found {
                    Some(beyond @ 25..) => assert!(batches[23] <= capacity && of_batch(beyond) <= capacity),
                    found => assert_eq!(found, scan(&batches, capacity), "{capacity} B, {options:?}"),
                }
                let more = found.map_or(1, |found| found + 1);
                assert!(of_batch(more) > capacity, "one more than {found:?} fits {capacity} B too");
                assert_eq!(fit.verdict.fits(), of_batch(3) <= capacity);
            }
        }
    }

    /// So does a pipeline of few, whichever stage needs most, and whatever is in flight.
    #[test]
    fn a_short_pipeline_stands_for_a_long_one() {
        let schedules = [Schedule::OneFOneB, Schedule::ZbH1, Schedule::ZbH2, Schedule::Interleaved];
        for (schedule, pp) in schedules.into_iter().flat_map(|schedule| [(schedule, 2), (schedule, 4)]) {
            let virtual_stages = if schedule == Schedule::Interleaved { 2 } else { 1 };
            let parallel = Parallel { pp, schedule, virtual_stages, ..Parallel::default() };
            let options = Options {
                seq_len: Some(20),
                gradient_accumulation_steps: 32,
                precision: Precision::Fp32,
                parallel,
                ..Options::default()
            };
            let config = r#"{"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
                "num_hidden_layers": 8, "num_attention_heads": 4, "max_position_embeddings": 48}"#;
            let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
            let card = card("80GiB").unwrap();
            let short =
                Short::of(&architecture, options.clone(), &|plan| Verdict::of(plan, &card, None)).unwrap();
            let device_peak = |plan: &Plan| (plan.device_peak_in(None).phase.device_peak, ());
            let whole = plan_ranks(&architecture, &options, Shown::Worst, device_peak).unwrap().plan;
            assert!(short.0.steady.phases.len() < whole.steady.phases.len());
            assert_eq!(
                short.device_peak(),
                whole.device_peak_in(None).phase.device_peak,
                "{schedule:?}, {pp}"
            );
            assert_eq!(short.costs(), whole.steady.costs(), "{schedule:?}, {pp}");
        }
    }

    /// A step of many micro-batches peaks where the same step with all of them planned does, and costs as much.
    #[test]
    fn a_short_plan_stands_for_the_whole_step() {
        let plain = Options { micro_batch_size: 3, seq_len: Some(20), ..Options::default() };
        let held = Options { hold_outputs: HoldOutputs::Step, ..plain.clone() };
        let offload = Offload { activations: true, ..Offload::default() };
        for options in [
            plain.clone(),
            held.clone(),
            Options { recompute: Recompute::Full, padded: true, ..held },
            Options {
                precision: Precision::Fp16Mixed,
                grad_scaler: true,
                clip_grad_norm: true,
                ..plain.clone()
            },
            Options { attention: Attention::Eager, fused_loss: true, ..plain.clone() },
            Options { offload, offload_prefetch: 1, ..plain.clone() },
            Options { offload: Offload { parameters: true, ..Offload::default() }, ..plain.clone() },
            Options { offload: Offload { optimizer: true, ..Offload::default() }, ..plain.clone() },
            Options {
                grad_dtype: Some(Dtype::F32),
                master_weights: Some(Dtype::F32),
                precision: Precision::Bf16,
                ..plain.clone()
            },
        ] {
            for gradient_accumulation_steps in [1, 2, 3, 4, 9, 33] {
                let options = Options { gradient_accumulation_steps, ..options.clone() };
                let by_device_peak = |plan: &Plan| Verdict::of(plan, &card("80GiB").unwrap(), None);
                let short = Short::of(&tiny(), options.clone(), &by_device_peak).unwrap();
                let whole = plan(tiny(), options.clone()).unwrap();
                assert_eq!(short.device_peak(), whole.device_peak_in(None).phase.device_peak, "{options:?}");
                assert_eq!(short.costs(), whole.steady.costs(), "{options:?}");
            }
        }
    }

    /// Answers are limited by the card, by the model, or by what is looked for.
    #[test]
    fn what_stands_against_one_more_is_said() {
        let fit = |options: Options, capacity| fit_on(&with(capacity), options);
        let roomy = fit(Options::default(), 1 << 50);
        assert_eq!(roomy.micro_batch, Largest { amount: Some(LARGEST_MICRO_BATCH), limit: Limit::Search });
        assert_eq!(roomy.length, Largest { amount: Some(POSITIONS), limit: Limit::Model });
        let none = fit(Options::default(), 0);
        let nothing = Largest { amount: None, limit: Limit::Card };
        assert_eq!((none.micro_batch, none.length), (nothing, nothing));
        // 2^32 tokens are the most that is planned
        let wide =
            fit(Options { micro_batch_size: 1 << 30, seq_len: Some(1), ..Options::default() }, 1 << 62);
        assert_eq!(wide.micro_batch, Largest { amount: Some(1 << 30), limit: Limit::Search });
        assert_eq!(wide.length, Largest { amount: Some(4), limit: Limit::Search });
        let long = fit(Options { seq_len: Some(POSITIONS * 2), ..Options::default() }, 1 << 50);
        assert_eq!((long.seq_len, long.length.amount), (POSITIONS * 2, Some(POSITIONS)));
    }

    /// Whatever the shape, the answer fits and one more does not, and it takes few tries.
    #[test]
    fn any_shape_is_searched_in_few_tries() {
        type Shape = (&'static str, fn(u64) -> Option<u64>);
        let shapes: [Shape; 6] = [
            ("a line", |at| Some(1_000 + at * 77)),
            ("flat, then steep", |at| Some(900_000.max(at * 1_000))),
            ("steps", |at| Some(at * 100 / 512 * 512)),
            ("a parabola", |at| Some(at * at)),
            ("a jump", |at| Some(if at < 70_000 { 1 } else { 1 << 60 })),
            ("an end", |at| (at < 5_000).then_some(at)),
        ];
        for (name, shape) in shapes {
            for capacity in [0, 1, 1_000, 1_000_000, 999_999_999] {
                for start in [1, 2_048, 100_000] {
                    let tries = Cell::new(0);
                    let needed = |at| {
                        tries.set(tries.get() + 1);
                        shape(at).map(Bytes::new)
                    };
                    let found = boundary(start, start, 131_072, Bytes::new(capacity), needed);
                    let fits = |at| shape(at).is_some_and(|needed| needed <= capacity);
                    assert!(found.amount.is_none_or(fits), "{name}, {capacity}: {found:?}");
                    let more = found.amount.unwrap_or(0) + 1;
                    assert!(more > 131_072 || !fits(more), "{name}, {capacity}: {found:?}");
                    assert!(tries.get() <= 55, "{name}, {capacity}, from {start}: {} tries", tries.get());
                    if name == "a line" {
                        assert!(tries.get() <= 20, "{capacity}, from {start}: {} tries", tries.get());
                    }
                }
            }
        }
    }

    #[test]
    fn what_changes_the_training_and_what_does_not() {
        let fit = |options: Options| fit_on(&with(0), options);
        let given = || Options { micro_batch_size: 4, ..Options::default() };
        let base = fit(given());
        for same in [
            Options { recompute: Recompute::Full, ..given() },
            Options { micro_batch_size: 2, gradient_accumulation_steps: 2, ..given() },
            Options { seq_len: Some(POSITIONS), attention: Attention::Eager, ..given() },
        ] {
            assert!(fit(same.clone()).trains_as(&base), "{same:?}");
        }
        for another in [
            Options { precision: Precision::Bf16, ..given() },
            Options { micro_batch_size: 2, ..given() },
            Options { seq_len: Some(8), ..given() },
            Options { clip_grad_norm: true, ..given() },
        ] {
            assert!(!fit(another.clone()).trains_as(&base), "{another:?}");
        }
    }

    #[test]
    fn who_shares_what_out_does_not_change_the_training() {
        let on_4 = |precision, steps, parallel| {
            let parallel = Parallel { gpus: Some(4), ..parallel };
            let options = Options {
                micro_batch_size: 4,
                gradient_accumulation_steps: steps,
                precision,
                parallel,
                ..Options::default()
            };
            fit_on(&with(0), options)
        };
        let (mixed, replicated) = (Precision::Bf16Mixed, Parallel::default());
        let sharing = |sharding| Parallel { sharding, ..Parallel::default() };
        let base = on_4(mixed, 1, replicated.clone());
        assert!(on_4(mixed, 1, sharing(Sharding::FullShard)).trains_as(&base));
        let split = Parallel { tp: 2, ..Parallel::default() };
        assert!(on_4(mixed, 2, split.clone()).trains_as(&base));
        assert!(!on_4(mixed, 1, split).trains_as(&base), "half the sequences");
        assert!(!on_4(mixed, 1, sharing(Sharding::Zero2)).trains_as(&base), "gradients in bf16");
        let base = on_4(Precision::Fp32, 1, replicated);
        assert!(on_4(Precision::Fp32, 1, sharing(Sharding::Zero2)).trains_as(&base));
    }
}
