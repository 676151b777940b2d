//! How long the stages of a pipeline wait for each other in a step, in theory: the bubble of its schedule.

use super::{Parallel, Schedule};
use crate::Picoseconds;

/// What a micro-batch takes of a stage, of all its parts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passes {
    pub(crate) forward: Picoseconds,
    /// Backward: for inputs, and for weights where those do not wait.
    pub(crate) backward: Picoseconds,
    /// What of backward waits: for weights.
    pub(crate) weights: Picoseconds,
}

/// The bubble of a step, from what a micro-batch takes of a stage.
///
/// GPipe and 1F1B: `(p - 1) (F + B)`; interleaved: the same over the parts of a stage (Narayanan et al., Efficient Large-Scale
/// Language Model Training on GPU Clusters Using Megatron-LM, arXiv 2104.04473, section 2.2). Zero bubble, whose backward is one
/// for inputs and one for weights: `(p - 1) (F + I - W)` for H1 and `(p - 1) (F + I - 2 W)` for H2 (Qi et al., arXiv 2401.10241,
/// table 2). DualPipe: `(p / 2 - 1) (F + B + B - 3 W)` (DeepSeek-V3, arXiv 2412.19437, table 2), where weights, which wait in some
/// passes alone, are taken to be half of backward. Stages are taken to be as long as the one that is passed.
pub(crate) fn bubble(parallel: &Parallel, passes: Passes) -> Picoseconds {
    let [forward, backward, weights] =
        [passes.forward, passes.backward, passes.weights].map(|Picoseconds(time)| time);
    let whole = backward.saturating_add(weights);
    let both = forward.saturating_add(whole);
    let inputs_alone = forward.saturating_add(backward);
    let waits = u128::from(parallel.pp.saturating_sub(1));
    Picoseconds(match parallel.schedule {
        Schedule::Gpipe | Schedule::OneFOneB => waits.saturating_mul(both),
        Schedule::Interleaved => waits.saturating_mul(both) / u128::from(parallel.virtual_stages.max(1)),
        Schedule::ZbH1 => waits.saturating_mul(inputs_alone.saturating_sub(weights)),
        Schedule::ZbH2 => waits.saturating_mul(inputs_alone.saturating_sub(weights.saturating_mul(2))),
        Schedule::DualPipe => {
            let waits = u128::from((parallel.pp / 2).saturating_sub(1));
            waits.saturating_mul(both.saturating_add(whole).saturating_sub(whole / 2 * 3))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_schedule_waits_as_its_paper_says() {
        let of = |schedule, pp, virtual_stages| {
            let parallel = Parallel { pp, schedule, virtual_stages, ..Parallel::default() };
            // zero bubble alone has weights that wait in every pass
            let weights = if matches!(schedule, Schedule::ZbH1 | Schedule::ZbH2) { 90 } else { 0 };
            let [forward, backward, weights] = [100, 200 - weights, weights].map(Picoseconds);
            bubble(&parallel, Passes { forward, backward, weights }).0
        };
        assert_eq!(of(Schedule::OneFOneB, 1, 1), 0);
        assert_eq!(of(Schedule::OneFOneB, 4, 1), 900);
        assert_eq!(of(Schedule::Gpipe, 8, 1), 2100);
        assert_eq!(of(Schedule::Interleaved, 4, 3), 300);
        assert_eq!((of(Schedule::ZbH1, 4, 1), of(Schedule::ZbH2, 4, 1)), (360, 90));
        assert_eq!((of(Schedule::DualPipe, 2, 1), of(Schedule::DualPipe, 8, 1)), (0, 600));
    }

    /// Weights that take as long as all before them fill the bubble, and no more than that.
    #[test]
    fn a_bubble_is_never_negative() {
        let time = Picoseconds(100);
        // DualPipe's weights are half of the 1100 of backward, whatever waits
        let dual_pipe = 100 + 1100 + 1100 - 3 * 550;
        for (schedule, waits) in [(Schedule::ZbH1, 0), (Schedule::ZbH2, 0), (Schedule::DualPipe, dual_pipe)] {
            let parallel = Parallel { pp: 4, schedule, ..Parallel::default() };
            let passes = Passes { weights: Picoseconds(1000), forward: time, backward: time };
            assert_eq!(bubble(&parallel, passes).0, waits, "{schedule:?}");
        }
    }
}
