//! How long the stages of a pipeline wait for each other in a step, in theory: the bubble of its schedule.

use super::{Parallel, Schedule};
use crate::Picoseconds;

/// The bubble of a step, from what a micro-batch takes of a stage, forward and backward.
///
/// GPipe and 1F1B: `(p - 1) (F + B)`; interleaved: the same over the parts of a stage (Narayanan et al., Efficient Large-Scale
/// Language Model Training on GPU Clusters Using Megatron-LM, arXiv 2104.04473, section 2.2). Zero bubble, with backward halved
/// into that for inputs and that for weights: `(p - 1) (F + I - W)` for H1 and `(p - 1) (F + I - 2 W)` for H2 (Qi et al., arXiv
/// 2401.10241, table 2). DualPipe: `(p / 2 - 1) (F + B + B - 3 W)` (DeepSeek-V3, arXiv 2412.19437, table 2). Stages are taken to
/// be as long as the one that is passed.
pub(crate) fn bubble(parallel: &Parallel, forward: Picoseconds, backward: Picoseconds) -> Picoseconds {
    let (Picoseconds(forward), Picoseconds(backward)) = (forward, backward);
    let waits = u128::from(parallel.pp.saturating_sub(1));
    let weights = backward / 2;
    let inputs = backward - weights;
    Picoseconds(match parallel.schedule {
        Schedule::Gpipe | Schedule::OneFOneB => waits * (forward + backward),
        Schedule::Interleaved => waits * (forward + backward) / u128::from(parallel.virtual_stages.max(1)),
        Schedule::ZbH1 => waits * (forward + inputs - weights),
        Schedule::ZbH2 => waits * (forward + inputs).saturating_sub(2 * weights),
        Schedule::DualPipe => {
            let waits = u128::from((parallel.pp / 2).saturating_sub(1));
            waits * (forward + 2 * backward).saturating_sub(3 * weights)
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
            bubble(&parallel, Picoseconds(100), Picoseconds(200)).0
        };
        assert_eq!(of(Schedule::OneFOneB, 1, 1), 0);
        assert_eq!(of(Schedule::OneFOneB, 4, 1), 900);
        assert_eq!(of(Schedule::Gpipe, 8, 1), 2100);
        assert_eq!(of(Schedule::Interleaved, 4, 3), 300);
        assert_eq!((of(Schedule::ZbH1, 4, 1), of(Schedule::ZbH2, 4, 1)), (300, 0));
        assert_eq!((of(Schedule::DualPipe, 2, 1), of(Schedule::DualPipe, 8, 1)), (0, 600));
    }
}
