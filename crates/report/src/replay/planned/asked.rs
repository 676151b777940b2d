//! What a plan asks of the allocator, as a script, and where in the plan each of its asks is.

use crate::replay::script::Ask;
use peakledger_allocator::{Request, Stream as AllocatorStream};
use peakledger_core::Moment;
use peakledger_plan::{Asks, Block, Plan, Step, Traffic};

/// Where something is asked: the step, the phase by its place in the step, and the moment.
pub(super) type Place = (Step, usize, Moment);

/// What a plan asks, step by step.
pub(super) struct Asked {
    steps: Vec<(Step, Vec<Traffic>)>,
}

impl Asked {
    pub(super) fn of(plan: &Plan, steps: &[Step]) -> Asked {
        Asked { steps: steps.iter().map(|step| (*step, plan.traffic(*step))).collect() }
    }

    /// Each ask with its number.
    pub(super) fn asks(&self) -> impl Iterator<Item = (u32, Ask)> {
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
    pub(super) fn place(&self, at: u32) -> Option<Place> {
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
pub(super) fn put<T: Clone>(held: &mut Vec<Option<T>>, storage: u32, has: T) {
    let storage = storage as usize;
    if held.len() <= storage {
        held.resize(storage + 1, None);
    }
    if let Some(slot) = held.get_mut(storage) {
        *slot = Some(has);
    }
}

pub(super) fn request(Block { bytes, stream }: Block) -> Request {
    Request { stream: AllocatorStream(u64::from(stream.number())), ..Request::of(bytes) }
}
