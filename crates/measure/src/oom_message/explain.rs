//! What a message means: who holds the card, and why the request found no place.

use super::figures::{Holds, Rounded, Sum};
use super::{Allocator, OomMessage, Process};
use peakledger_core::Bytes;
use peakledger_core::block::{LARGE_SEGMENT, SMALL_SEGMENT};

/// Why a request found no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No machine has so much: a size that was computed wrongly.
    Absurd,
    /// More than the whole card.
    LargerThanTheCard,
    /// The process may not take more, whatever the card has.
    Limit,
    /// The device had room and yet refused.
    FreeYetRefused,
    /// What the allocator holds unused would be enough, but it lies in pieces.
    Fragmented,
    /// What it holds unused and what is free would be enough together.
    FragmentedWithFree,
    /// Without what others hold on the card it would fit.
    HeldByOthers,
    /// Too much even on a card of one's own without a gap.
    TooMuch,
    /// The message does not say enough.
    Untold,
}

impl Cause {
    /// The name in machine formats.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Absurd => "absurd",
            Cause::LargerThanTheCard => "larger_than_the_card",
            Cause::Limit => "limit",
            Cause::FreeYetRefused => "free_yet_refused",
            Cause::Fragmented => "fragmented",
            Cause::FragmentedWithFree => "fragmented_with_free",
            Cause::HeldByOthers => "held_by_others",
            Cause::TooMuch => "too_much",
            Cause::Untold => "untold",
        }
    }

    /// Whether gaps between blocks are to blame, so that `expandable_segments:True` may help.
    pub const fn is_fragmentation(self) -> bool {
        matches!(self, Cause::Fragmented | Cause::FragmentedWithFree)
    }
}

/// The message in other words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Why.
    pub cause: Cause,
    /// Whether the cause holds for every size that is written so, not only for the figures as written.
    pub certain: bool,
    /// What was missing: what must be freed, or not be needed, at that moment.
    pub short_by: Option<Rounded>,
    /// What is on the card outside of PyTorch's allocator: contexts, libraries, other processes.
    pub outside_allocator: Option<Rounded>,
    /// The part of it that is of other processes.
    pub outside_process: Option<Rounded>,
    /// The part of it that is of this process: the CUDA context, NCCL, cuBLAS, extensions.
    pub outside_pytorch: Option<Rounded>,
    /// All of it in plain sentences, the most important first.
    pub sentences: Vec<String>,
    /// What to do about it.
    pub mend: String,
}

impl OomMessage {
    /// What it means.
    pub fn explain(&self) -> Explanation {
        let held = Held::of(self);
        let (cause, decided) = self.cause(&held);
        let room = Sum::default().plus(self.free).plus(self.unallocated);
        let short_by = match (cause, self.asked) {
            (Cause::TooMuch | Cause::HeldByOthers, Some(_)) => {
                Sum::default().plus(self.asked).minus_sum(room).figure()
            }
            (Cause::LargerThanTheCard, Some(_)) => {
                Sum::default().plus(self.asked).minus(self.capacity).figure()
            }
            (Cause::Limit, Some(_)) => {
                let needed = Sum::default().plus(self.asked).plus(self.allocated).plus(self.unallocated);
                needed.minus(self.limit).figure()
            }
            _ => None,
        };
        let mut sentences = vec![self.why(cause, short_by)];
        if !decided.is_certain() {
            sentences.push(
                "The figures are so near to each other that their rounding decides: it may be otherwise."
                    .to_owned(),
            );
        }
        sentences.extend(self.segment());
        sentences.extend(held.sentences(self));
        Explanation {
            cause,
            certain: decided.is_certain(),
            short_by,
            outside_allocator: held.allocator,
            outside_process: held.process,
            outside_pytorch: held.pytorch,
            sentences,
            mend: self.mend(cause),
        }
    }

    fn cause(&self, held: &Held) -> (Cause, Holds) {
        let Some(asked) = self.asked else { return (Cause::Absurd, Holds::Yes) };
        let none = Sum::default();
        if let Some(capacity) = self.capacity {
            let fits = none.plus(Some(capacity)).holds(asked);
            if !fits.yes() {
                return (Cause::LargerThanTheCard, fits);
            }
        }
        let Some(free) = self.free else { return (Cause::Untold, Holds::Yes) };
        let in_free = none.plus(Some(free)).holds(asked);
        if let Some(limit) = self.limit {
            let taken = none.plus(Some(limit)).minus(self.allocated).minus(self.unallocated);
            let allowed = taken.holds(asked);
            // what lies unused within the limit comes first: no card has to give anything for it
            if !allowed.yes() && !none.plus(self.unallocated).holds(asked).yes() {
                return (Cause::Limit, allowed);
            }
        }
        if in_free.yes() {
            return (Cause::FreeYetRefused, in_free);
        }
        let Some(unallocated) = self.unallocated else {
            let beside = none.plus(held.allocator).plus(self.free).holds(asked);
            let cause =
                if held.allocator.is_some() && beside.yes() { Cause::HeldByOthers } else { Cause::Untold };
            return (cause, beside);
        };
        let in_gaps = none.plus(Some(unallocated)).holds(asked);
        if in_gaps.yes() {
            return (Cause::Fragmented, in_gaps);
        }
        let in_both = none.plus(Some(unallocated)).plus(Some(free)).holds(asked);
        if in_both.yes() {
            return (Cause::FragmentedWithFree, in_both);
        }
        let others = held.process.or(held.allocator.filter(|_| self.this_process.is_none()));
        let with_others = none.plus(Some(unallocated)).plus(Some(free)).plus(others).holds(asked);
        if others.is_some() && with_others.yes() {
            return (Cause::HeldByOthers, with_others);
        }
        (Cause::TooMuch, in_both)
    }

    fn why(&self, cause: Cause, short_by: Option<Rounded>) -> String {
        let asked = said(self.asked);
        let short = derived(short_by);
        let (free, unallocated) = (said(self.free), said(self.unallocated));
        match cause {
            Cause::Absurd => "More than 1 EB was asked for: no memory is short, a size was computed wrongly (a negative number, a broken shape).".to_owned(),
            Cause::LargerThanTheCard => {
                format!("{asked} were asked for at once, {short} more than the whole card has: it never fits there, even alone.")
            }
            Cause::Limit => format!(
                "The process may hold {} (set_per_process_memory_fraction): {asked} more pass that by {short}, while the card has {free} free.",
                said(self.limit)
            ),
            Cause::FreeYetRefused => format!(
                "The device had {free} free and still refused {asked}: what it calls free was not to be had."
            ),
            Cause::Fragmented => format!(
                "Fragmentation: PyTorch held {unallocated} that nobody used, enough for the {asked}, but in pieces that are each too small."
            ),
            Cause::FragmentedWithFree => format!(
                "Fragmentation: {unallocated} unused in PyTorch's pieces and {free} free on the device are enough together for the {asked}, but neither is alone."
            ),
            Cause::HeldByOthers => format!(
                "{asked} were asked for, {short} more than is free or unused: what is outside of PyTorch's allocator on this card is in the way."
            ),
            Cause::TooMuch => format!(
                "Too much: {asked} were asked for, and all that is free ({free}) and all that PyTorch held unused ({unallocated}) are {short} too little."
            ),
            Cause::Untold => format!("{asked} were asked for; the message does not say what was free."),
        }
    }

    /// What the figure after `Tried to allocate` stands for, where it is a segment's size.
    fn segment(&self) -> Option<String> {
        let asked = self.asked.filter(|_| self.allocator == Allocator::Caching)?.bytes.get();
        let stands_for = match asked {
            SMALL_SEGMENT => "for any request of up to 1 MiB",
            LARGE_SEGMENT => "for any request of 1 MiB to 10 MiB",
            _ => return None,
        };
        Some(format!("PyTorch asks the device for whole segments: {} stand {stands_for}.", Bytes::new(asked)))
    }

    fn mend(&self, cause: Cause) -> String {
        match cause {
            Cause::Absurd => "look at the shape in the line of the traceback",
            Cause::LargerThanTheCard => {
                "no batch of that size fits: halve the largest tensor (micro-batch, sequence length, logits), or use a larger card"
            }
            Cause::Limit => "raise the fraction, or lower the peak by what is missing here, and more where the step goes higher later",
            Cause::FreeYetRefused => {
                "look for a limit outside of PyTorch (a share of a card, a container, Windows), a process that took it just then, or a driver that holds it back"
            }
            Cause::Fragmented | Cause::FragmentedWithFree if self.allocator == Allocator::Caching => {
                "set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before 2.9), which lets pieces grow together; a memory snapshot shows who sits between them"
            }
            Cause::HeldByOthers if self.allocator == Allocator::CudaMallocAsync => {
                "the message does not tell the driver's pool, other processes and the context apart: see `nvidia-smi`"
            }
            Cause::HeldByOthers => "end the other processes (`nvidia-smi` names them), or use a card of your own",
            _ => "lower the peak by what is missing here, and more where the step goes higher later: a smaller micro-batch or sequence, --recompute full, offloading, a larger card; `peakledger plan` and `fit` say what each buys",
        }
        .to_owned()
    }
}

/// Who holds what of the card beside PyTorch's allocator.
struct Held {
    allocator: Option<Rounded>,
    process: Option<Rounded>,
    pytorch: Option<Rounded>,
    /// Whether a process is taken for this one because it is the only one, as in a container.
    presumed: Option<u64>,
}

impl Held {
    fn of(message: &OomMessage) -> Held {
        let taken = Sum::default().plus(message.capacity).minus(message.free);
        let known = message.capacity.is_some() && message.free.is_some();
        let allocator = match (message.allocated, known) {
            (Some(allocated), true) => taken.minus(Some(allocated)).minus(message.unallocated).figure(),
            _ => None,
        };
        let reserved = Sum::default().plus(message.allocated).plus(message.unallocated);
        let alone = match (&*message.processes, message.this_process, message.unallocated) {
            ([Process { pid, bytes: Some(bytes) }], None, Some(_)) => {
                let off = Sum::default().plus(Some(*bytes)).minus_sum(reserved).figure();
                off.map(|_| (*pid, *bytes))
            }
            _ => None,
        };
        let own = message.this_process.or(alone.map(|(_, bytes)| bytes));
        let of_own = |sum: Sum| own.and_then(|own| sum.minus(Some(own)).figure());
        Held {
            allocator,
            process: if known { of_own(taken) } else { None },
            pytorch: own
                .and_then(|own| Sum::default().plus(Some(own)).minus_sum(reserved).figure())
                .filter(|_| message.unallocated.is_some()),
            presumed: alone.map(|(pid, _)| pid),
        }
    }

    fn sentences(&self, message: &OomMessage) -> Vec<String> {
        let mut list = Vec::new();
        if let Some(pid) = self.presumed {
            list.push(format!("Process {pid} is taken for this one: it is the only one, and in a container PyTorch does not know its own number."));
        }
        match (self.process, self.allocator) {
            (Some(others), _) if others.bytes > others.off_by => {
                list.push(format!("{} of the card are outside of this process: other processes, the driver.", derived(Some(others))));
            }
            (Some(_), _) => list.push("Nothing that counts is outside of this process.".to_owned()),
            (None, Some(outside)) if outside.bytes > outside.off_by => list.push(format!(
                "{} of the card are outside of PyTorch's allocator: CUDA contexts, libraries, other processes{}; the message does not tell them apart.",
                derived(Some(outside)),
                if message.allocator == Allocator::CudaMallocAsync { ", and what the driver's pool keeps" } else { "" },
            )),
            (None, Some(_)) => list.push("Nothing that counts is outside of PyTorch's allocator.".to_owned()),
            (None, None) if message.allocated.is_some_and(|a| message.capacity.is_some_and(|c| a.bytes > c.bytes)) => {
                list.push("PyTorch holds more than the card has: the Windows driver has moved part of it into the machine's memory.".to_owned());
            }
            (None, None) => {}
        }
        if let Some(own) = self.pytorch.filter(|own| own.bytes > own.off_by) {
            list.push(format!(
                "{} of this process are outside of PyTorch's allocator: the CUDA context, libraries, NCCL.",
                derived(Some(own))
            ));
        }
        if let Some(pools) = message.private_pools {
            list.push(format!(
                "{pools} of what counts as allocated lie unused in private pools (CUDA graphs, memory pools)."
            ));
        }
        list
    }
}

/// A figure that is a sum of others says how far off it may be.
fn derived(figure: Option<Rounded>) -> String {
    figure.map_or_else(|| said(None), |figure| format!("{figure:#}"))
}

fn said(figure: Option<Rounded>) -> String {
    figure.map_or_else(|| "an untold size".to_owned(), |figure| figure.to_string())
}
