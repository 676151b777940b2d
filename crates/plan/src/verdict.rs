//! Does it fit: a plan against a card. And what that and every report of a plan ask of it: its peak in the steps that are
//! looked at, and where a phase peaks, in words.

use crate::catalogue::{CUDA_CONTEXT, Card};
use crate::parallel::{Communicator, communicators};
use crate::{At, Plan, PlannedPhase, Step};
use peakledger_core::Bytes;

/// Whether a plan fits a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What the process takes: the device-level peak and what lies outside the allocator.
    pub needed: Bytes,
    /// What torch reports as the card's memory.
    pub capacity: Bytes,
}

impl Verdict {
    /// The verdict on one step of a plan, or on both, for a card.
    pub fn of(plan: &Plan, card: &Card, step: Option<Step>) -> Verdict {
        let device_peak = plan.device_peak_of_all(step);
        let needed = device_peak.and_then(|bytes| bytes.checked_add(plan.outside(Some(card))));
        // a sum past 64 bits fits no card
        Verdict { needed: needed.unwrap_or(Bytes::new(u64::MAX)), capacity: card.total }
    }

    /// What the CUDA context of a process takes, as it was measured on the card, if it was.
    pub fn context(card: Option<&Card>) -> Bytes {
        card.map_or(CUDA_CONTEXT, Card::context)
    }

    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.needed <= self.capacity
    }

    /// Whether it fits by less than what is taken for the CUDA context where that was not measured: by what depends on the driver
    /// and the libraries.
    pub fn is_on_the_edge(&self) -> bool {
        (0..CUDA_CONTEXT.minus(Bytes::ZERO)).contains(&self.headroom())
    }

    /// What is left, negative where it does not fit.
    pub fn headroom(&self) -> i128 {
        self.capacity.minus(self.needed)
    }
}

impl Plan {
    /// What a process takes outside the allocator: the CUDA context, and the communicators of its process groups.
    pub fn outside(&self, card: Option<&Card>) -> Bytes {
        let all = self.communicators().into_iter().map(|group| group.bytes).chain([Verdict::context(card)]);
        Bytes::new(all.fold(0, |sum, bytes| sum.saturating_add(bytes.get())))
    }

    /// The process groups of the rank, with what their communicators take of its card.
    pub fn communicators(&self) -> Vec<Communicator> {
        let (parallel, shape) = (&self.options.parallel, &self.architecture.shape);
        let stage = self.mesh.place(parallel.rank).pp;
        communicators(parallel, &self.mesh, stage, shape.tie_word_embeddings, shape.num_experts > 0)
    }

    /// Where the op-level peak of one step is, or of the plan.
    pub fn peak_in(&self, step: Option<Step>) -> At<'_> {
        step.map_or_else(|| self.peak(), |step| self.step(step).peak())
    }

    /// What says which of several ranks is the worst: what it needs by a verdict, and of those that need the same the one that has
    /// most on the device, and then the one that peaks highest.
    pub fn needs(&self, needed: Bytes, step: Option<Step>) -> [Bytes; 3] {
        [needed, self.device_peak_in(step).phase.device_peak, self.peak_in(step).phase.peak]
    }

    /// What it needs by its device peak alone, without the context.
    pub(crate) fn device_needs(&self) -> Bytes {
        let outside = self.outside(None).get();
        Bytes::new(self.device_peak_in(None).phase.device_peak.get().saturating_add(outside))
    }

    /// Where the device-level peak of one step is, or of the plan.
    pub fn device_peak_in(&self, step: Option<Step>) -> At<'_> {
        step.map_or_else(|| self.device_peak(), |step| self.step(step).device_peak())
    }
}

impl PlannedPhase {
    /// What runs at the phase's peak: `lm_head: mm`, or the op alone where no module runs it.
    pub fn place(&self) -> String {
        match self.module.as_str() {
            "" => self.op.to_owned(),
            module => format!("{module}: {}", self.op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{card, open_model};
    use crate::config::Architecture;
    use crate::options::Options;
    use crate::plan;

    #[test]
    fn a_plan_fits_to_the_byte() {
        let architecture = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        let plan = plan(architecture, Options::default()).unwrap();
        let (first, steady) =
            (plan.device_peak_in(Some(Step::First)), plan.device_peak_in(Some(Step::Steady)));
        let both = plan.device_peak_in(None).phase.device_peak;
        assert_eq!(both, first.phase.device_peak.max(steady.phase.device_peak));
        let mut card = card("80GiB").unwrap();
        card.total = both.checked_add(CUDA_CONTEXT).unwrap();
        let verdict = Verdict::of(&plan, &card, None);
        assert_eq!((verdict.fits(), verdict.headroom()), (true, 0));
        let spare =
            |bytes: u64| Verdict { needed: Bytes::new(1 << 30), capacity: Bytes::new((1 << 30) + bytes) };
        assert!(verdict.is_on_the_edge() && spare(CUDA_CONTEXT.get() - 1).is_on_the_edge());
        assert!(!spare(CUDA_CONTEXT.get()).is_on_the_edge());
        card.context = Some(Bytes::new(CUDA_CONTEXT.get() + 1));
        let verdict = Verdict::of(&plan, &card, None);
        assert_eq!((verdict.fits(), verdict.headroom()), (false, -1));
        assert!(!verdict.is_on_the_edge());
    }

    #[test]
    fn a_place_is_a_module_and_its_op() {
        let architecture = Architecture::read(&open_model("qwen2.5-0.5b").unwrap().config).unwrap();
        let plan = plan(architecture, Options::default()).unwrap();
        let mut phase = plan.peak_in(None).phase.clone();
        assert_eq!(phase.place(), format!("{}: {}", phase.module, phase.op));
        phase.module.clear();
        assert_eq!(phase.place(), phase.op);
    }
}
