//! What the caching allocator makes of a plan: its load, its first and its steady step, one after the other.

use super::script::{Ask, Outcome, run};
use crate::plan::id;
use peakledger_allocator::{
    Allocation, Allocator, Card as Device, OutOfMemory, Request, Settings, Stream as AllocatorStream, Totals,
};
use peakledger_core::{Bytes, Moment};
use peakledger_plan::catalogue::Card;
use peakledger_plan::{Asks, Block, Plan, PlannedPhase, Step, Traffic, Verdict};
use std::ops::ControlFlow;

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
    pub fn fits(plan: &Plan, settings: Settings, card: &Card) -> (Verdict, u64) {
        match Reservation::fits_within(plan, settings, card, Bytes::new(u64::MAX)) {
            Some(fits) => fits,
            None => unreachable!("no sum of 64 bits is more than that"),
        }
    }

    /// The same of a plan that takes no more than that; nothing of one that takes more, however much that be: what is reserved
    /// once is taken, so that nothing has to be looked at from there on.
    pub fn fits_within(plan: &Plan, settings: Settings, card: &Card, most: Bytes) -> Option<(Verdict, u64)> {
        let most = most.get().saturating_sub(plan.outside(Some(card)).get());
        let mut allocator = Allocator::new(settings, limited(plan, Some(card)));
        let mut held: Vec<Option<Allocation>> = Vec::new();
        let mut reserved = 0;
        let asked = plan.each_ask(&[Step::First, Step::Steady], |_, Traffic { asks, .. }| {
            match asks {
                Asks::EmptiesCache => allocator.empty_cache(),
                Asks::Frees(storage) => {
                    let allocation = held.get_mut(storage as usize).and_then(Option::take);
                    allocation.into_iter().for_each(|allocation| allocator.free(allocation));
                }
                Asks::Allocates(storage, block) => match allocator.alloc(request(block)) {
                    Ok(allocation) => put(&mut held, storage, allocation),
                    Err(oom) => return ControlFlow::Break(Some(oom)),
                },
            }
            reserved = reserved.max(allocator.totals().reserved);
            if reserved > most { ControlFlow::Break(None) } else { ControlFlow::Continue(()) }
        });
        let oom = match asked {
            ControlFlow::Break(None) => return None,
            ControlFlow::Break(Some(oom)) => Some(oom),
            ControlFlow::Continue(()) => None,
        };
        Some((taken(plan, card, settings, (reserved, oom.as_ref())), allocator.retries()))
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
        let oom = self.oom.as_ref().map(|planned| &planned.oom);
        taken(plan, card, self.settings, (self.peak.reserved, oom))
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

/// What a process takes of a card where so much is reserved, or a request was not served.
fn taken(
    plan: &Plan,
    card: &Card,
    settings: Settings,
    (reserved, oom): (u64, Option<&OutOfMemory>),
) -> Verdict {
    let outside = plan.outside(Some(card)).get();
    let limit = settings.limit_on(Some(card.total.get())).map(|limit| limit.saturating_add(outside));
    let capacity = limit.unwrap_or(u64::MAX).min(card.total.get());
    let needed = reserved.saturating_add(outside);
    let needed = match oom {
        None => needed,
        Some(oom) => {
            let then = oom.totals.reserved.saturating_add(oom.segment).saturating_add(outside);
            needed.max(then).max(capacity.saturating_add(1))
        }
    };
    Verdict { needed: Bytes::new(needed), capacity: Bytes::new(capacity) }
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
        (0u32..).zip(traffic).filter_map(move |(at, Traffic { asks, .. })| {
            let ask = match *asks {
                Asks::EmptiesCache => Ask::EmptyCache,
                Asks::Frees(storage) => Ask::FreeCompleted(blocks.get_mut(storage as usize)?.take()?),
                Asks::Allocates(storage, block) => {
                    put(&mut blocks, storage, next);
                    next += 1;
                    Ask::Alloc(request(block))
                }
            };
            Some((at, ask))
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

/// Puts down what a storage has.
fn put<T: Clone>(held: &mut Vec<Option<T>>, storage: u32, has: T) {
    let storage = storage as usize;
    if held.len() <= storage {
        held.resize(storage + 1, None);
    }
    if let Some(slot) = held.get_mut(storage) {
        *slot = Some(has);
    }
}

fn request(Block { bytes, stream }: Block) -> Request {
    Request { stream: AllocatorStream(u64::from(stream.number())), ..Request::of(bytes) }
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
    use peakledger_core::block::MIB;
    use peakledger_input::Source;
    use peakledger_plan::catalogue::{card, open_model};
    use peakledger_plan::config::Architecture;
    use peakledger_plan::options::{HoldOutputs, Options, Precision, Recompute};
    use peakledger_plan::parallel::{Parallel, Schedule, Sharding};
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

    /// What is said of a plan with nothing kept of its replay is what the whole replay says, on cards where it has room to
    /// spare, gives back what is cached, and runs out; and nothing is said of it exactly where that takes more than it may.
    #[test]
    fn a_quick_word_is_that_of_the_whole_replay() {
        let config = r#"{"model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536,
            "num_hidden_layers": 8, "num_attention_heads": 8, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;
        let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
        let schedules =
            [Schedule::OneFOneB, Schedule::Gpipe, Schedule::ZbH1, Schedule::ZbH2, Schedule::DualPipe];
        let pipelines = schedules.into_iter().map(|schedule| Options {
            gradient_accumulation_steps: 12,
            parallel: Parallel { pp: 4, rank: 1, schedule, ..Parallel::default() },
            ..Options::default()
        });
        let parallel =
            Parallel { pp: 2, schedule: Schedule::Interleaved, virtual_stages: 2, ..Parallel::default() };
        let interleaved = Options { gradient_accumulation_steps: 8, parallel, ..Options::default() };
        let held =
            Options { hold_outputs: HoldOutputs::Step, gradient_accumulation_steps: 4, ..Options::default() };
        let sharded = Parallel { dp: Some(8), sharding: Sharding::FullShard, ..Parallel::default() };
        let sharded = Options {
            parallel: sharded,
            recompute: Recompute::Full,
            clip_grad_norm: true,
            ..Options::default()
        };
        let parts = Parallel { dp: Some(4), rank: 3, sharding: Sharding::Zero2, ..Parallel::default() };
        let parts = Options { parallel: parts, gradient_accumulation_steps: 3, ..Options::default() };
        let (mut given_back, mut ran_out) = (0, 0);
        for options in pipelines.chain([interleaved, held, sharded, parts]) {
            let options = Options { seq_len: Some(384), precision: Precision::Bf16, ..options };
            let plan = plan(architecture.clone(), options).unwrap();
            for settings in ["", "expandable_segments:True", "max_split_size_mb:24", MOST_SETTINGS] {
                let settings: Settings = settings.parse().unwrap();
                let free = Reservation::of(&plan, settings, None, None).unwrap();
                let mut card = card("80GiB").unwrap();
                let outside = plan.outside(Some(&card)).get();
                let (least, most) = (plan.device_peak().phase.device_peak.get(), free.reserved().get());
                for room in [2 * most, most, most - 2 * MIB, least + 2 * MIB, least - MIB] {
                    card.total = Bytes::new(room + outside);
                    let whole = Reservation::of(&plan, settings, Some(&card), None).unwrap();
                    let (verdict, retries) = Reservation::fits(&plan, settings, &card);
                    assert_eq!(verdict.capacity, whole.verdict(&plan, &card).capacity);
                    assert_eq!(verdict.fits(), whole.oom.is_none());
                    given_back += u32::from(whole.retries > 0 && verdict.fits());
                    if whole.oom.is_some() {
                        ran_out += 1;
                        continue;
                    }
                    assert_eq!((verdict, retries), (whole.verdict(&plan, &card), whole.retries));
                    let within =
                        |most: u64| Reservation::fits_within(&plan, settings, &card, Bytes::new(most));
                    assert_eq!(within(verdict.needed.get()), Some((verdict, retries)));
                    assert_eq!(within(verdict.needed.get() - 1), None);
                    assert_eq!(within(0), None);
                }
            }
        }
        assert!(given_back > 10 && ran_out > 10, "{given_back} {ran_out}");
    }

    const MOST_SETTINGS: &str =
        "roundup_power2_divisions:4,garbage_collection_threshold:0.6,per_process_memory_fraction:0.9";

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

    /// A card without room for both: DeepSpeed moves the parameters to the host and empties the cache, where the segment of the
    /// rotary tables stays, before the flat buffer comes in one piece: three layers of 16 Mi numbers, 32 Mi of embedding and
    /// head, and seven norms, in bf16.
    #[test]
    fn what_waits_on_the_host_while_it_is_flattened_leaves_nothing_cached() {
        let config = r#"{"model_type": "llama", "vocab_size": 16384, "hidden_size": 1024, "intermediate_size": 4096,
            "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": false,
            "max_position_embeddings": 4096}"#;
        let architecture = Architecture::read(&Source::from_text("config.json", config)).unwrap();
        let parallel = Parallel { dp: Some(8), sharding: Sharding::Zero2, ..Parallel::default() };
        let device_memory = Some(Bytes::new(900 * MIB)); // 688 of them the communicator's
        let options = Options { seq_len: Some(256), parallel, device_memory, ..Options::default() };
        let plan = plan(architecture, options).unwrap();
        let reservation = Reservation::of(&plan, Settings::default(), None, Some(Step::First)).unwrap();
        let reserved: Vec<u64> = reservation.over_time.iter().map(|(.., bytes)| *bytes).collect();
        let falls = reserved.windows(2).position(|pair| pair[1] < pair[0]).unwrap();
        assert_eq!(reserved[falls + 1..falls + 3], [2 * MIB, 2 * MIB + (3 * 32 + 64 + 2) * MIB]);
    }
}
