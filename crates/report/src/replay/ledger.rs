//! What a ledger says its program asked: each stay on the GPU is a block, in the order of the file where several begin at
//! one moment, and what begins comes before what ends there.

use super::script::{Ask, Script};
use peakledger_allocator::Request;
use peakledger_core::{Device, Ledger, Moment};

impl Script {
    /// The script of a ledger, each ask with the number of its phase.
    pub(crate) fn of_ledger(ledger: &Ledger) -> Script {
        // at a moment, begins (in the order of the file) come before ends
        let mut events: Vec<(Moment, bool, u32)> = Vec::new();
        let mut sizes: Vec<u64> = Vec::new();
        for state in ledger.states() {
            let stays = state.residencies.as_slice().iter().filter(|stay| stay.device == Device::Gpu);
            for stay in stays.filter(|_| state.bytes.get() > 0) {
                let stay_number = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
                sizes.push(state.bytes.get());
                events.push((stay.start, false, stay_number));
                events.push((stay.end, true, stay_number));
            }
        }
        events.sort_unstable();
        let slots = ledger.timeline().slots();
        let mut script =
            Script { spans: (0u32..).zip(slots).map(|(at, _)| at).collect(), ..Script::default() };
        let mut blocks: Vec<Option<u32>> = vec![None; sizes.len()];
        let (mut next, mut phase) = (0, 0u32);
        for (moment, ends, stay) in events {
            while slots.get(phase as usize + 1).is_some_and(|slot| slot.first <= moment) {
                phase += 1;
            }
            let (Some(block), Some(size)) = (blocks.get_mut(stay as usize), sizes.get(stay as usize)) else {
                continue;
            };
            if ends {
                script.asks.extend(block.take().map(|block| (phase, Ask::FreeCompleted(block))));
            } else {
                script.asks.push((phase, Ask::Alloc(Request::of(*size))));
                *block = Some(next);
                next += 1;
            }
        }
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peakledger_core::{Bytes, Category, Residencies, Residency, State, Timeline};

    #[test]
    fn stays_on_the_gpu_are_blocks() {
        let stay = |device, start, end| Residency { device, start: Moment(start), end: Moment(end) };
        let state = |name: &str, bytes, residencies| State {
            name: name.into(),
            category: Category::Activation,
            detail: None,
            bytes: Bytes::new(bytes),
            persistent: false,
            residencies,
        };
        let (gpu, cpu) = (Device::Gpu, Device::Cpu);
        let stays = vec![stay(gpu, 1, 1), stay(cpu, 2, 2), stay(gpu, 3, 3)];
        let states = vec![
            state("offloaded", 5, Residencies::Many(stays)),
            state("kept", 7, Residencies::One(stay(gpu, 0, 3))),
            state("nothing", 0, Residencies::One(stay(gpu, 0, 3))),
        ];
        let script = Script::of_ledger(&Ledger::new(Timeline::standard(), states).unwrap());
        let alloc = |bytes| Ask::Alloc(Request::of(bytes));
        assert_eq!(
            script.asks,
            [
                (0, alloc(7)),
                (1, alloc(5)),
                (1, Ask::FreeCompleted(1)),
                (3, alloc(5)),
                (3, Ask::FreeCompleted(2)),
                (3, Ask::FreeCompleted(0)),
            ]
        );
        assert_eq!(script.spans.len(), 6);
    }
}
