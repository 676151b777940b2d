//! What the caching allocator makes of a plan: its load, its first and its steady step, one after the other.

use super::script::{Ask, Outcome, run};
use crate::plan::id;
use peakledger_allocator::{
    Card as Device, OutOfMemory, Request, Settings, Stream as AllocatorStream, Totals,
};
use peakledger_core::{Bytes, Moment};
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Block, Plan, PlannedPhase, Step, Traffic, Verdict};

/// What the allocator reserves for a plan.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// The settings that it runs under.
    pub settings: Settings,
    /// What is held where most is reserved. On a card that runs out, what the steps would take on a larger one.
    pub peak: Totals,
    /// Where that is: the step and its phase, by place. Nothing where nothing is reserved.
    pub at: Option<(Step, usize)>,
    /// The most bytes allocated: what `torch.cuda.max_memory_allocated` shows, with what the allocator adds to requests.
    pub allocated: u64,
    /// How often everything cached is given back to the card to make room; the step waits for it each time.
    pub retries: u64,
    /// The request that the card has no room for, and where it is made.
    pub oom: Option<PlannedOom>,
    /// The reserved bytes from a moment of a step on, at each change; on a card that runs out, as on a larger one.
    pub over_time: Vec<(Step, Moment, u64)>,
}

/// A planned step runs out of memory.
#[derive(Clone, Copy, Debug)]
pub struct PlannedOom {
    /// In which step.
    pub step: Step,
    /// In which of its phases, by place.
    pub phase: usize,
    /// What was asked for, and what there was.
    pub oom: OutOfMemory,
}

impl Reservation {
    /// Runs the load and the steps of a plan through the allocator: the first step where only that is looked at, else both.
    /// Nothing comes of sums that pass 64 bits.
    pub fn of(
        plan: &Plan,
        settings: Settings,
        card: Option<&Card>,
        step: Option<Step>,
    ) -> Option<Reservation> {
        let steps: &[Step] =
            if step == Some(Step::First) { &[Step::First] } else { &[Step::First, Step::Steady] };
        let asked = Asked::of(plan, steps);
        let outcome = run(asked.asks(), settings, limited(plan, card));
        let Some((at, oom)) = outcome.oom else { return Some(Reservation::from(&outcome, &asked, None)) };
        let (step, phase, _) = asked.place(at)?;
        let unlimited = Settings { memory_fraction: 1.0, ..settings };
        let outcome = run(asked.asks(), unlimited, Device::unlimited());
        let reservation = Reservation::from(&outcome, &asked, Some(PlannedOom { step, phase, oom }));
        Some(Reservation { settings, ..reservation })
    }

    /// Whether the load and both steps of a plan fit a card, and how often all that is cached is given back for it; what a step
    /// that does not fit would take is not looked at.
    pub fn fits(plan: &Plan, settings: Settings, card: &Card) -> Option<(Verdict, u64)> {
        let asked = Asked::of(plan, &[Step::First, Step::Steady]);
        let outcome = run(asked.asks(), settings, limited(plan, Some(card)));
        let oom = match outcome.oom {
            None => None,
            Some((at, oom)) => {
                let (step, phase, _) = asked.place(at)?;
                Some(PlannedOom { step, phase, oom })
            }
        };
        let retries = outcome.retries;
        Some((Reservation::from(&outcome, &asked, oom).verdict(plan, card), retries))
    }

    fn from(outcome: &Outcome, asked: &Asked, oom: Option<PlannedOom>) -> Reservation {
        let over_time = outcome.reserved.iter().filter_map(|point| {
            let (step, _, moment) = asked.place(point.at?)?;
            Some((step, moment, point.totals.reserved))
        });
        Reservation {
            settings: outcome.settings,
            peak: outcome.peak.totals,
            at: outcome.peak.at.and_then(|at| asked.place(at)).map(|(step, phase, _)| (step, phase)),
            allocated: outcome.allocated_peak.totals.allocated,
            retries: outcome.retries,
            oom,
            over_time: over_time.collect(),
        }
    }

    /// The most bytes reserved.
    pub fn reserved(&self) -> Bytes {
        Bytes::new(self.peak.reserved)
    }

    /// Whether the process fits a card: what is reserved and what lies outside the allocator, or the request that was not
    /// served.
    pub fn verdict(&self, plan: &Plan, card: &Card) -> Verdict {
        let outside = plan.outside(Some(card)).get();
        let limit = self.settings.limit_on(Some(card.total.get())).map(|limit| limit.saturating_add(outside));
        let capacity = limit.unwrap_or(u64::MAX).min(card.total.get());
        let needed = self.peak.reserved.saturating_add(outside);
        let needed = match self.oom {
            None => needed,
            Some(out) => {
                let then = out.oom.totals.reserved.saturating_add(out.oom.segment).saturating_add(outside);
                needed.max(then).max(capacity.saturating_add(1))
            }
        };
        Verdict { needed: Bytes::new(needed), capacity: Bytes::new(capacity) }
    }

    /// `reserved 18.21 GiB by the caching allocator: …`, and what that is made of.
    pub(crate) fn sentence(&self, plan: &Plan) -> String {
        let tails = match self.peak.tails {
            0 => String::new(),
            tails => format!(" ({} of it the unsplit ends of blocks)", Bytes::new(tails)),
        };
        let mut parts = vec![format!("{} allocated{tails}", Bytes::new(self.peak.allocated))];
        let others = [
            (self.peak.returnable, "free in whole segments"),
            (self.peak.stuck(), "free in segments that are partly in use"),
        ];
        let others = others.iter().filter(|(size, _)| *size > 0);
        parts.extend(others.map(|(size, what)| format!("{} {what}", Bytes::new(*size))));
        let settings = match self.settings.to_string() {
            text if text == "default" => String::new(),
            text => format!(" under {text}"),
        };
        let place = self.at.and_then(|(step, phase)| Some((step, plan.step(step).phases.get(phase)?)));
        let place = place.map_or_else(String::new, |(step, phase)| {
            let several = plan.options.gradient_accumulation_steps > 1;
            format!(" in {} of the {} step", id(phase, several), step.as_str())
        });
        let (reserved, parts) = (self.reserved(), parts.join(", "));
        format!("reserved {reserved} by the caching allocator{settings}, most of all{place}: there {parts}")
    }
}

impl PlannedOom {
    /// The phase that runs out.
    pub fn phase<'a>(&self, plan: &'a Plan) -> Option<&'a PlannedPhase> {
        plan.step(self.step).phases.get(self.phase)
    }
}

/// What a plan asks, step by step.
struct Asked {
    steps: Vec<(Step, Vec<Traffic>)>,
}

impl Asked {
    fn of(plan: &Plan, steps: &[Step]) -> Asked {
        Asked { steps: steps.iter().map(|step| (*step, plan.traffic(*step))).collect() }
    }

    /// Each ask with its number.
    fn asks(&self) -> impl Iterator<Item = (u32, Ask)> {
        let traffic = self.steps.iter().flat_map(|(_, traffic)| traffic);
        let (mut blocks, mut next): (Vec<Option<u32>>, _) = (Vec::new(), 0);
        (0u32..).zip(traffic).filter_map(move |(at, Traffic { storage, allocates, .. })| {
            let storage = *storage as usize;
            if blocks.len() <= storage {
                blocks.resize(storage + 1, None);
            }
            let block = blocks.get_mut(storage)?;
            let Some(Block { bytes, stream }) = allocates else {
                return Some((at, Ask::FreeCompleted(block.take()?)));
            };
            *block = Some(next);
            next += 1;
            let stream = AllocatorStream(u64::from(stream.number()));
            Some((at, Ask::Alloc(Request { stream, ..Request::of(*bytes) })))
        })
    }

    /// Where that number is asked.
    fn place(&self, at: u32) -> Option<Place> {
        let mut at = at as usize;
        for (step, traffic) in &self.steps {
            if let Some(Traffic { phase, moment, .. }) = traffic.get(at) {
                return Some((*step, *phase, *moment));
            }
            at -= traffic.len();
        }
        None
    }
}

/// A card, or one that never runs out.
fn limited(plan: &Plan, card: Option<&Card>) -> Device {
    match card {
        None => Device::unlimited(),
        Some(card) => Device::of(card.total.get(), plan.outside(Some(card)).get()),
    }
}

/// Where something is asked: the step, the phase by its place in the step, and the moment.
type Place = (Step, usize, Moment);

#[cfg(test)]
mod tests {
    use super::*;
    use peakledger_allocator::Allocator;
    use peakledger_core::block::MIB;
    use peakledger_input::Source;
    use peakledger_plan::catalogue::{card, open_model};
    use peakledger_plan::config::Architecture;
    use peakledger_plan::options::{Options, Precision};
    use peakledger_plan::parallel::{Parallel, Sharding};
    use peakledger_plan::{Stream, plan};

    fn planned() -> Plan {
        let architecture = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        plan(architecture, Options { seq_len: Some(512), ..Options::default() }).unwrap()
    }

    #[test]
    fn reserves_at_least_what_is_planned() {
        let plan = planned();
        let reservation = Reservation::of(&plan, Settings::default(), None, None).unwrap();
        let device_peak = plan.device_peak().phase.device_peak.get();
        assert!(device_peak <= reservation.allocated);
        assert!(reservation.allocated <= reservation.reserved().get());
        assert_eq!(reservation.reserved().get() % (2 * MIB), 0);
        let most = reservation.over_time.iter().map(|(.., bytes)| *bytes).max();
        assert_eq!(most, Some(reservation.reserved().get()));
        let moments = |step| plan.ledger(step).unwrap().timeline().moments();
        assert!(reservation.over_time.iter().all(|(step, moment, _)| moment.index() < moments(*step)));
        let first = Reservation::of(&plan, Settings::default(), None, Some(Step::First)).unwrap();
        assert!(first.reserved() <= reservation.reserved());
    }

    #[test]
    fn a_card_that_is_too_small_runs_out_and_one_that_is_tight_gives_back() {
        let plan = planned();
        let free = Reservation::of(&plan, Settings::default(), None, None).unwrap();
        let mut card = card("80GiB").unwrap();
        let outside = plan.outside(Some(&card)).get();
        let on = |card: &Card| Reservation::of(&plan, Settings::default(), Some(card), None).unwrap();
        let exactly = free.reserved().get() + outside;
        card.total = Bytes::new(exactly);
        let fits = on(&card);
        assert_eq!((fits.verdict(&plan, &card).headroom(), fits.retries, fits.oom.is_none()), (0, 0, true));
        card.total = Bytes::new(exactly - 2 * MIB);
        let tight = on(&card);
        assert!(tight.oom.is_none() && tight.retries > 0, "cached blocks make room: {tight:?}");
        assert!(tight.verdict(&plan, &card).fits());
        card.total = Bytes::new(plan.device_peak().phase.device_peak.get() + outside - 1);
        let short = on(&card);
        assert!(!short.verdict(&plan, &card).fits());
        assert_eq!(short.reserved(), free.reserved());
        let oom = short.oom.unwrap();
        assert!(oom.oom.segment > oom.oom.unused.unwrap());
        assert!(oom.phase(&plan).is_some());
    }

    /// A stream's blocks are its own, so a plan reserves what its streams reserve one by one.
    fn reserved_by_stream(plan: &Plan) -> Vec<(u64, u64)> {
        let asks: Vec<Ask> =
            Asked::of(plan, &[Step::First, Step::Steady]).asks().map(|(_, ask)| ask).collect();
        let request = |ask: &Ask| match ask {
            Ask::Alloc(request) => Some(*request),
            _ => None,
        };
        let all: Vec<Request> = asks.iter().filter_map(request).collect();
        let streams: std::collections::BTreeSet<u64> = all.iter().map(|request| request.stream.0).collect();
        let reserved = |stream: u64| {
            let mut alone = Allocator::new(Settings::default(), Device::unlimited());
            let (mut next, mut live) = (0, std::collections::BTreeMap::new());
            for ask in &asks {
                match ask {
                    Ask::Alloc(request) => {
                        if request.stream.0 == stream {
                            live.insert(next, alone.alloc(Request::of(request.bytes)).unwrap());
                        }
                        next += 1;
                    }
                    Ask::FreeCompleted(block) => live.remove(block).into_iter().for_each(|it| alone.free(it)),
                    other => panic!("{other:?}"),
                }
            }
            alone.totals().reserved
        };
        streams.into_iter().map(|stream| (stream, reserved(stream))).collect()
    }

    /// By pencil, in bf16 over 8 ranks. A layer has 16 Mi numbers and its two norms: 32 MiB and 4 KiB gathered. Embedding, head
    /// and norm are 64 MiB and 2 KiB. In forward what was gathered last stays until the next has come: the root's, in a
    /// segment of 66 MiB, and the first layer's, in one of 34; the second layer takes the root's place, the third the first
    /// layer's. In backward one comes at a time. Reduced gradients stay until the step has ended: three layers of 4 MiB and
    /// 512 B fill a first segment of 20 MiB so far that 8 MiB and 512 B of the root's need another.
    #[test]
    fn what_fsdp2_gathers_and_reduces_has_segments_of_its_own() {
        let config = r#"{"model_type": "llama", "vocab_size": 16384, "hidden_size": 1024, "intermediate_size": 4096,
            "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": false,
            "max_position_embeddings": 4096}"#;
        let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
        let parallel = Parallel { dp: Some(8), sharding: Sharding::FullShard, ..Parallel::default() };
        let options =
            Options { precision: Precision::Bf16, seq_len: Some(256), parallel, ..Options::default() };
        let plan = plan(architecture, options).unwrap();
        let reserved = reserved_by_stream(&plan);
        let of = |stream: Stream| {
            reserved.iter().find(|(number, _)| *number == u64::from(stream.number())).map(|(_, bytes)| *bytes)
        };
        assert_eq!(of(Stream::AllGather), Some((66 + 34) * MIB));
        assert_eq!(of(Stream::Reduce), Some((20 + 20) * MIB));
        assert_eq!(reserved.len(), 3, "and the model's own");
        let all: u64 = reserved.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(Reservation::of(&plan, Settings::default(), None, None).unwrap().reserved().get(), all);
    }
}
