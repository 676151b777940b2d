//! What fits: how large a micro-batch, and how long a sequence, a card takes of a step.
//!
//! Nothing is solved for. A plan takes less than a millisecond, so the boundary is looked for by planning steps on both sides
//! of it, and an answer stands on two of them: the plan of the answer fits, and the plan of one more does not. What the
//! caching allocator reserves takes longer to know, and is never less than what is planned: it is asked for only below the
//! boundary that the plans have.

mod boundary;
mod short;

use crate::catalogue::Card;
use crate::config::Architecture;
use crate::options::Options;
use crate::{Plan, RankCosts, Verdict};
use boundary::{Boundary, Next, boundary};
use peakledger_core::Bytes;
use peakledger_input::Problem;
use short::device_peak;
pub(crate) use short::{Extent, Short, Worst};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A planned step on a card, and how much of it there may be.
#[derive(Clone, Debug)]
pub struct Fit {
    /// How it is run.
    pub options: Options,
    /// Tokens in a sequence.
    pub seq_len: u64,
    /// The rank that needs most; of several the first.
    pub rank: u32,
    /// Its device-level peak.
    pub device_peak: Bytes,
    /// What a steady step costs the rank that takes longest, and how long the step takes.
    pub slowest: RankCosts,
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
    /// What one more is: ranks share a sequence evenly, so lengths are looked at in such steps.
    pub step: u64,
}

/// What stands against one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// It does not fit the card, and neither does what is larger.
    Card,
    /// It does not fit by what the caching allocator reserves, which does not grow evenly: of what is larger some may again.
    Reserved {
        /// Beyond this nothing fits, whatever is reserved.
        up_to: u64,
    },
    /// The model has no more positions.
    Model,
    /// It is not looked for, or cannot be planned.
    Search,
}

impl Limit {
    /// In a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Limit::Card | Limit::Reserved { .. } => "card",
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
    /// Of a plan that lacks micro-batches, a verdict that it does not fit is taken for one on the whole step, so it has to be one
    /// ([`Plan::is_whole_until`]); the quick word may be wrong there.
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
        let planned =
            |extent| Short::of_worst(architecture, options.clone(), extent, verdict, card.speeds.as_ref());
        // what may need most of the ranks is enough to say that it does not fit; a pipeline is replayed whole
        let few = (options.parallel.pp == 1).then(|| planned(Extent::Peak)).transpose()?;
        let Worst { short, verdict, slowest } = match few {
            Some(few) if !few.verdict.fits() || Extent::Peak.is_whole(architecture, &options)? => few,
            _ => planned(Extent::Replay)?,
        };
        Ok(Fit::around(architecture, options, card, (short.plan(), verdict, slowest), quick))
    }

    /// The same of a step that is planned already: with the plan of the rank that needs most, what that takes, and what the step
    /// costs the rank that takes longest.
    pub fn around(
        architecture: &Architecture,
        options: Options,
        card: &Card,
        (plan, verdict, slowest): (&Plan, Verdict, RankCosts),
        quick: &(dyn Fn(&Plan) -> Verdict + Sync),
    ) -> Fit {
        let seq_len = plan.seq_len;
        let options = Options { seq_len: Some(seq_len), ..options };
        let boundaries = Boundaries { architecture, options: &options, card, quick, fits: verdict.fits() };
        let limit = architecture.shape.max_position_embeddings;
        Fit {
            seq_len,
            rank: plan.options.parallel.rank,
            device_peak: device_peak(plan),
            slowest,
            verdict,
            micro_batch: boundaries.largest(Axis {
                set: |options, amount| options.micro_batch_size = amount,
                unit: 1,
                given: options.micro_batch_size,
                most: LARGEST_MICRO_BATCH.max(options.micro_batch_size),
                most_is: Limit::Search,
            }),
            length: boundaries.largest(Axis {
                set: |options, amount| options.seq_len = Some(amount),
                unit: Some(options.length_unit(&architecture.shape))
                    .filter(|unit| seq_len % unit == 0)
                    .unwrap_or(1),
                given: seq_len,
                most: limit,
                most_is: Limit::Model,
            }),
            options,
        }
    }

    /// Whether it trains as the other does, on as many sequences with the same arithmetic: what differs is when and where
    /// things are computed and kept.
    pub fn trains_as(&self, other: &Fit) -> bool {
        self.options.trains_as(&other.options)
    }
}

/// One way in which a step grows.
#[derive(Clone, Copy)]
struct Axis {
    set: fn(&mut Options, u64),
    /// What amounts are multiples of: ranks share a sequence evenly.
    unit: u64,
    given: u64,
    /// Where the search ends, and why there.
    most: u64,
    most_is: Limit,
}

/// How large steps of a model may become on a card.
struct Boundaries<'a> {
    architecture: &'a Architecture,
    options: &'a Options,
    card: &'a Card,
    quick: &'a (dyn Fn(&Plan) -> Verdict + Sync),
    /// Whether the step fits as it is given.
    fits: bool,
}

impl Boundaries<'_> {
    fn largest(&self, axis: Axis) -> Largest {
        if axis.most < axis.unit {
            return Largest { amount: None, limit: axis.most_is, step: axis.unit };
        }
        let in_units = Axis { given: axis.given / axis.unit, most: axis.most / axis.unit, ..axis };
        let found = self.boundary(in_units);
        let limit = match found.next {
            Next::TooLarge => Limit::Card,
            Next::Unplanned => Limit::Search,
            Next::TooMuchReserved { up_to } => Limit::Reserved { up_to: up_to * axis.unit },
            Next::BeyondMost => axis.most_is,
        };
        Largest { amount: found.amount.map(|units| units * axis.unit), limit, step: axis.unit }
    }

    /// The boundary in units, by what is planned, and from there on down by what is taken. What is reserved does not grow
    /// evenly, so there may be several; the one that is looked for is on the side of the given amount that the verdict on it
    /// says.
    fn boundary(&self, axis: Axis) -> Boundary {
        let capacity = self.card.total;
        let needed = |plan: &Plan| Verdict::of(plan, self.card, None);
        let planned = |amount| {
            let options = self.options_with(axis, amount);
            let worst = Short::of_worst(self.architecture, options, Extent::Peak, &needed, None).ok()?;
            Some(worst.verdict.needed)
        };
        let by_plan = boundary(axis.given, axis.given, axis.most, capacity, planned);
        let Some(by_plan_most) = by_plan.amount else { return by_plan };
        // what is on the other side of the given amount is not looked at
        let (below, most) = match self.fits {
            true => (axis.given.min(by_plan_most) - 1, by_plan_most),
            false => (0, by_plan_most.min(axis.given)),
        };
        let is_refuted = most == axis.given && !self.fits;
        // few micro-batches of few ranks mostly say what all say, so these are asked near what they say, and on both sides of it
        let taken = |extent, expected| self.taken(axis, extent, (below, most), is_refuted, expected);
        let few = (self.options.parallel.pp == 1).then(|| taken(Extent::Peak, None));
        let amount = match few {
            Some(few) if Extent::Peak.is_whole(self.architecture, self.options).unwrap_or(false) => few,
            Some(few) => taken(Extent::Replay, Some(few.unwrap_or(below + 1))),
            None => taken(Extent::Replay, None),
        };
        let next = match amount {
            Some(amount) if amount == by_plan_most => by_plan.next,
            Some(amount) if amount + 1 < by_plan_most => Next::TooMuchReserved { up_to: by_plan_most },
            _ => Next::TooLarge,
        };
        Boundary { amount, next }
    }

    /// The largest amount above the one and up to the other that fits by what is taken of so much of the step, looked for from
    /// where it is expected.
    fn taken(
        &self,
        axis: Axis,
        extent: Extent,
        (below, most): (u64, u64),
        is_refuted: bool,
        expected: Option<u64>,
    ) -> Option<u64> {
        let taken = |amount: u64| {
            let options = self.options_with(axis, amount);
            needed_where_it_fits(self.architecture, options, extent, self.quick)
        };
        let expected = expected.filter(|expected| *expected < most);
        if expected.is_none() && !is_refuted && taken(most).is_some() {
            return Some(most);
        }
        // what the allocator takes beyond the plan is mostly a few per cent
        let less = most / 64 + 1;
        let (start, stride) = match expected {
            Some(expected) => (expected, 1),
            None => (most.saturating_sub(less).max(below + 1), less),
        };
        let is_open = expected.is_some() && !is_refuted;
        let room = Some(most - below - u64::from(!is_open)).filter(|room| *room > 0)?;
        let found = boundary(start - below, stride, room, self.card.total, |more| taken(below + more));
        found.amount.map(|more| below + more)
    }

    /// A step with that many units.
    fn options_with(&self, axis: Axis, units: u64) -> Options {
        let mut options = self.options.clone();
        (axis.set)(&mut options, units.saturating_mul(axis.unit));
        options
    }
}

/// What the rank that needs most takes, if every rank fits. Where whole steps are planned, the allocator is asked of none after
/// one that does not fit.
pub(crate) fn needed_where_it_fits(
    architecture: &Architecture,
    options: Options,
    extent: Extent,
    verdict: &(dyn Fn(&Plan) -> Verdict + Sync),
) -> Option<Bytes> {
    if extent == Extent::Peak {
        // the batches of micro-batches that are not run are in the plan that comes of all ranks
        let Worst { verdict, .. } = Short::of_worst(architecture, options, extent, verdict, None).ok()?;
        return verdict.fits().then_some(verdict.needed);
    }
    let misfit: OnceLock<Verdict> = OnceLock::new();
    let most = AtomicU64::new(0);
    let look = |plan: &Plan| {
        let verdict = misfit.get().copied().unwrap_or_else(|| verdict(plan));
        if !verdict.fits() {
            misfit.get_or_init(|| verdict);
        }
        most.fetch_max(verdict.needed.get(), Ordering::Relaxed);
        verdict
    };
    Short::of_worst(architecture, options, extent, &look, None).ok()?;
    misfit.get().is_none().then(|| Bytes::new(most.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{CUDA_CONTEXT, card};
    use crate::options::{Attention, HoldOutputs, Precision, Recompute};
    use crate::parallel::{Parallel, Sharding};
    use crate::plan;
    use peakledger_input::Source;

    const POSITIONS: u64 = 48;

    pub(super) fn tiny() -> Architecture {
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
                assert_eq!(
                    fit.length,
                    Largest { amount: wanted, limit, step: 1 },
                    "{capacity} B, {options:?}"
                );
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

    /// Answers are limited by the card, by the model, or by what is looked for.
    #[test]
    fn what_stands_against_one_more_is_said() {
        let fit = |options: Options, capacity| fit_on(&with(capacity), options);
        let roomy = fit(Options::default(), 1 << 50);
        assert_eq!(
            roomy.micro_batch,
            Largest { amount: Some(LARGEST_MICRO_BATCH), limit: Limit::Search, step: 1 }
        );
        assert_eq!(roomy.length, Largest { amount: Some(POSITIONS), limit: Limit::Model, step: 1 });
        let none = fit(Options::default(), 0);
        let nothing = Largest { amount: None, limit: Limit::Card, step: 1 };
        assert_eq!((none.micro_batch, none.length), (nothing, nothing));
        // 2^32 tokens are the most that is planned
        let wide =
            fit(Options { micro_batch_size: 1 << 30, seq_len: Some(1), ..Options::default() }, 1 << 62);
        assert_eq!(wide.micro_batch, Largest { amount: Some(1 << 30), limit: Limit::Search, step: 1 });
        assert_eq!(wide.length, Largest { amount: Some(4), limit: Limit::Search, step: 1 });
        let long = fit(Options { seq_len: Some(POSITIONS * 2), ..Options::default() }, 1 << 50);
        assert_eq!((long.seq_len, long.length.amount), (POSITIONS * 2, Some(POSITIONS)));
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
