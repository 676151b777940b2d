//! In which order a pipeline stage runs its micro-batches. Pure functions: a stage and its micro-batches in, actions out; which
//! micro-batches are in flight at a time follows from the order alone.

use super::{Parallel, Schedule};
use std::collections::VecDeque;

/// What is done with a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pass {
    /// Forward, and the loss where the part ends the model.
    Forward,
    /// Backward, for inputs and weights.
    Backward,
    /// Backward for inputs alone; what weights need waits.
    InputGrad,
    /// What waited.
    WeightGrad,
}

impl Pass {
    /// Whether it leaves all gradients of weights that its micro-batch has in the part.
    pub(crate) fn makes_weight_grads(self) -> bool {
        matches!(self, Pass::Backward | Pass::WeightGrad)
    }
}

/// One thing that a stage does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Action {
    pub(crate) pass: Pass,
    /// The micro-batch.
    pub(crate) micro_batch: u32,
    /// Which part of the stage runs it.
    pub(crate) part: u32,
}

/// All that a stage does in a step of which so many micro-batches are run, in order. They have the numbers that they have among
/// `all`: in DualPipe the second half of those counts from the middle.
pub(crate) fn actions(parallel: &Parallel, stage: u32, micro_batches: u32, all: u32) -> Vec<Action> {
    let stages = parallel.pp;
    match parallel.schedule {
        Schedule::Gpipe => gpipe(micro_batches),
        Schedule::OneFOneB => one_f_one_b(stages, stage, micro_batches),
        Schedule::Interleaved => {
            let group = all.checked_div(rounds(stages, all)).unwrap_or(all).max(1);
            interleaved((stages, group), stage, micro_batches, parallel.virtual_stages)
        }
        Schedule::ZbH1 => zero_bubble(stages - 1 - stage, stage, micro_batches),
        Schedule::ZbH2 => zero_bubble(2 * (stages - 1 - stage), 2 * stage, micro_batches),
        Schedule::DualPipe => dual_pipe(stages, stage, micro_batches / 2, all / 2),
    }
}

/// Whether a part of a stage runs that micro-batch: in DualPipe each way has its half of them.
pub(crate) fn runs(parallel: &Parallel, part: u32, micro_batch: u32, micro_batches: u32) -> bool {
    parallel.schedule != Schedule::DualPipe || part == u32::from(micro_batch >= micro_batches / 2)
}

/// How many micro-batches have everything in their schedule that `all` have: the warm-up, all that waits, and after that once
/// more the same. Nothing where it depends on how many there are, as torch's groups do that have more than one of each stage.
pub(crate) fn enough(parallel: &Parallel, all: u32) -> Option<u32> {
    let stages = parallel.pp;
    match parallel.schedule {
        Schedule::OneFOneB | Schedule::ZbH1 => Some(stages + 3),
        Schedule::ZbH2 => Some(2 * stages + 3),
        Schedule::Interleaved => all.is_multiple_of(stages).then_some(4 * stages),
        Schedule::Gpipe | Schedule::DualPipe => None,
    }
}

/// What micro-batches come in multiples of.
pub(crate) fn in_steps_of(parallel: &Parallel) -> u32 {
    match parallel.schedule {
        Schedule::Interleaved => parallel.pp,
        Schedule::DualPipe => 2,
        _ => 1,
    }
}

fn action(pass: Pass, micro_batch: u32) -> Action {
    Action { pass, micro_batch, part: 0 }
}

/// All forward, then all backward, first in, first out (`ScheduleGPipe`, torch's `distributed/pipelining/schedules.py`).
fn gpipe(micro_batches: u32) -> Vec<Action> {
    let all = |pass| (0..micro_batches).map(move |i| action(pass, i));
    all(Pass::Forward).chain(all(Pass::Backward)).collect()
}

/// As many forward passes as there are stages after this one; then one forward, one backward in turn
/// (`forward_backward_pipelining_without_interleaving`, Megatron-LM's `core/pipeline_parallel/schedules.py`).
pub(crate) fn one_f_one_b(stages: u32, stage: u32, micro_batches: u32) -> Vec<Action> {
    let warm_up = (stages - 1 - stage).min(micro_batches);
    let forward = |i| action(Pass::Forward, i);
    let backward = |i| action(Pass::Backward, i);
    let mut actions: Vec<Action> = (0..warm_up).map(forward).collect();
    for i in warm_up..micro_batches {
        actions.extend([forward(i), backward(i - warm_up)]);
    }
    actions.extend((micro_batches - warm_up..micro_batches).map(backward));
    actions
}

/// Into how many groups interleaved stages part the micro-batches of a step: of as many as there are stages or a few more, or
/// one of all where they are fewer (`ScheduleInterleaved1F1B`, `torch/distributed/pipelining/schedules.py`); Megatron takes no others than the first.
pub(crate) fn rounds(stages: u32, micro_batches: u32) -> u32 {
    micro_batches.checked_div(stages).unwrap_or(1).max(1)
}

/// 1F1B over several parts of a stage: a group of micro-batches goes through one part, then the next
/// (`forward_backward_pipelining_with_interleaving`, `get_schedule_table` and `get_pp_rank_microbatches`, Megatron-LM's
/// `core/pipeline_parallel/schedules.py`).
fn interleaved((stages, group): (u32, u32), stage: u32, micro_batches: u32, parts: u32) -> Vec<Action> {
    let groups = (0..micro_batches).step_by(group as usize);
    let order: Vec<(u32, u32)> = groups
        .flat_map(|first| {
            let group = first..micro_batches.min(first + group);
            (0..parts).flat_map(move |part| group.clone().map(move |i| (i, part)))
        })
        .collect();
    let forward = |&(micro_batch, part): &(u32, u32)| Action { pass: Pass::Forward, micro_batch, part };
    let backward = |&(micro_batch, part): &(u32, u32)| Action {
        pass: Pass::Backward,
        micro_batch,
        part: parts - 1 - part,
    };
    let warm_up = ((stages - 1 - stage) * 2 + (parts - 1) * group) as usize;
    let (warm, steady) = order.split_at(warm_up.min(order.len()));
    let mut actions: Vec<Action> = warm.iter().map(forward).collect();
    let mut backwards = order.iter().map(backward);
    for pair in steady.iter().map(forward) {
        actions.push(pair);
        actions.extend(backwards.next());
    }
    actions.extend(backwards);
    actions
}

/// Forward passes to warm up, then forward, backward for inputs, and backward for weights so many micro-batches later (Qi et
/// al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2 and figure 3). H1 warms up as 1F1B does, and stage `i` lags
/// by `i` micro-batches; H2 warms up with twice as many and lags by twice as many: the last stages hold as much as the first.
fn zero_bubble(warm_up: u32, lag: u32, micro_batches: u32) -> Vec<Action> {
    let warm_up = warm_up.min(micro_batches);
    let mut actions: Vec<Action> = (0..warm_up).map(|i| action(Pass::Forward, i)).collect();
    let mut waiting = VecDeque::new();
    for i in 0..micro_batches {
        if warm_up + i < micro_batches {
            actions.push(action(Pass::Forward, warm_up + i));
        }
        actions.push(action(Pass::InputGrad, i));
        waiting.push_back(i);
        if waiting.len() > lag as usize {
            actions.extend(waiting.pop_front().map(|i| action(Pass::WeightGrad, i)));
        }
    }
    actions.extend(waiting.into_iter().map(|i| action(Pass::WeightGrad, i)));
    actions
}

/// Micro-batches in both directions at once: the first half of them goes down the stages, the second half up
/// (`DualPipe.step`, deepseek-ai/DualPipe's `dualpipe/dualpipe.py`; DeepSeek-V3, arXiv 2412.19437, section 3.2.1). Where a
/// forward and a backward pass overlap, the forward is written first.
fn dual_pipe(stages: u32, stage: u32, half: u32, middle: u32) -> Vec<Action> {
    let from_end = stage.min(stages - 1 - stage);
    let to_middle = (stages / 2).saturating_sub(from_end + 1);
    // part 0 goes down, part 1 up; what is near for the first half of the stages is far for the second
    let [near, far] = if stage >= stages / 2 { [1, 0] } else { [0, 1] };
    let mut both = BothWays { middle, ..BothWays::default() };
    both.times(2 * to_middle, &[(Pass::Forward, near)]);
    both.times(from_end + 1, &[(Pass::Forward, near), (Pass::Forward, far)]);
    let apart = [(Pass::InputGrad, far), (Pass::WeightGrad, far), (Pass::Forward, far)];
    both.times(to_middle, &apart);
    let overlapped =
        [(Pass::Forward, near), (Pass::Backward, far), (Pass::Forward, far), (Pass::Backward, near)];
    both.times((half + from_end + 1).saturating_sub(stages), &overlapped);
    both.times(to_middle, &[(Pass::Backward, far), (Pass::Forward, far), (Pass::Backward, near)]);
    // the second half of these leaves the weights for the bubble at the end
    let (turns, odd) = (from_end + 1, from_end % 2 == 1);
    for turn in 0..turns {
        let apart = |is_first: bool| turn > turns / 2 || (turn == turns / 2 && (odd || !is_first));
        for (part, is_first) in [(far, true), (near, false)] {
            both.times(1, &[(if apart(is_first) { Pass::InputGrad } else { Pass::Backward }, part)]);
        }
    }
    both.times(to_middle, &[(Pass::WeightGrad, near), (Pass::InputGrad, near)]);
    both.times(turns, &[(Pass::WeightGrad, near)]);
    both.actions
}

/// Actions in both directions, each of which counts its own micro-batches.
#[derive(Default)]
struct BothWays {
    /// The first micro-batch of the second half.
    middle: u32,
    forward: [u32; 2],
    backward: [u32; 2],
    /// Whose weights wait, in order.
    waiting: VecDeque<(u32, u32)>,
    actions: Vec<Action>,
}

impl BothWays {
    fn times(&mut self, times: u32, passes: &[(Pass, u32)]) {
        for (pass, part) in (0..times).flat_map(|_| passes) {
            self.push(*pass, *part);
        }
    }

    fn push(&mut self, pass: Pass, part: u32) {
        let counts = if pass == Pass::Forward { &mut self.forward } else { &mut self.backward };
        let (micro_batch, part) = match pass {
            // first in, first out, whichever direction it is of
            Pass::WeightGrad => match self.waiting.pop_front() {
                Some(waiting) => waiting,
                None => return,
            },
            _ => {
                let Some(count) = counts.get_mut(part as usize) else { return };
                let micro_batch = *count + part * self.middle;
                *count += 1;
                (micro_batch, part)
            }
        };
        if pass == Pass::InputGrad {
            self.waiting.push_back((micro_batch, part));
        }
        self.actions.push(Action { pass, micro_batch, part });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every schedule with sizes that it takes: stages, micro-batches, parts of a stage.
    fn cases() -> Vec<(Parallel, u32)> {
        let mut cases = Vec::new();
        for schedule in Schedule::ALL {
            for (pp, rounds) in [1, 2, 3, 4, 5, 8].into_iter().flat_map(|pp| (1..7).map(move |m| (pp, m))) {
                let virtual_stages = if schedule == Schedule::Interleaved { 1 + rounds % 3 } else { 1 };
                let micro_batches = match schedule {
                    Schedule::DualPipe if pp % 2 == 1 => continue,
                    Schedule::DualPipe => 2 * pp + 2 * (rounds - 1),
                    Schedule::Interleaved => pp * rounds,
                    _ => 2 * rounds - 1,
                };
                cases.push((Parallel { pp, schedule, virtual_stages, ..Parallel::default() }, micro_batches));
            }
        }
        cases
    }

    /// Most micro-batches in flight: those whose forward has run and `done` has not.
    fn most_in_flight(actions: &[Action], done: &[Pass]) -> u32 {
        let (mut now, mut most) = (0, 0);
        for action in actions {
            match action.pass {
                Pass::Forward => now += 1,
                pass if done.contains(&pass) => now -= 1,
                _ => {}
            }
            most = most.max(now);
        }
        most
    }

    const INPUT_DONE: [Pass; 2] = [Pass::Backward, Pass::InputGrad];
    const ALL_DONE: [Pass; 2] = [Pass::Backward, Pass::WeightGrad];

    #[test]
    fn everything_is_done_once_and_in_a_legal_order() {
        for (parallel, micro_batches) in cases() {
            for stage in 0..parallel.pp {
                let actions = actions(&parallel, stage, micro_batches, micro_batches);
                let said =
                    format!("{:?}, stage {stage} of {}, {micro_batches}", parallel.schedule, parallel.pp);
                let both_ways = parallel.schedule == Schedule::DualPipe;
                let mut done = BTreeSet::new();
                for Action { pass, micro_batch, part } in &actions {
                    let is_done = |pass| done.contains(&(pass, *micro_batch, *part));
                    let legal = match pass {
                        Pass::Forward => true,
                        Pass::Backward | Pass::InputGrad => is_done(Pass::Forward),
                        Pass::WeightGrad => is_done(Pass::InputGrad),
                    };
                    assert!(legal, "{said}: {pass:?} {micro_batch}.{part} is too early");
                    assert!(done.insert((*pass, *micro_batch, *part)), "{said}: {pass:?} twice");
                }
                let wanted: BTreeSet<(u32, u32)> = match both_ways {
                    true => (0..micro_batches).map(|i| (i, u32::from(i >= micro_batches / 2))).collect(),
                    false => (0..micro_batches)
                        .flat_map(|i| (0..parallel.virtual_stages).map(move |part| (i, part)))
                        .collect(),
                };
                let of = |passes: &[Pass]| -> BTreeSet<(u32, u32)> {
                    let of_those = actions.iter().filter(|action| passes.contains(&action.pass));
                    of_those.map(|action| (action.micro_batch, action.part)).collect()
                };
                assert_eq!(of(&[Pass::Forward]), wanted, "{said}");
                assert_eq!(of(&INPUT_DONE), wanted, "{said}");
                assert_eq!(of(&ALL_DONE), wanted, "{said}");
            }
        }
    }

    /// No stage waits for another that waits for it: run side by side, all come to their end.
    #[test]
    fn the_stages_together_come_to_an_end() {
        for (parallel, micro_batches) in cases() {
            let (stages, rounds) = (parallel.pp, parallel.virtual_stages);
            let both_ways = parallel.schedule == Schedule::DualPipe;
            let mut left: Vec<VecDeque<Action>> = (0..stages)
                .map(|stage| actions(&parallel, stage, micro_batches, micro_batches).into())
                .collect();
            // a part by its number in the model, and the way that it is gone through
            let position = |stage: u32, part: u32| match both_ways {
                true if part == 1 => stages - 1 - stage,
                true => stage,
                false => part * stages + stage,
            };
            let last = if both_ways { stages } else { stages * rounds } - 1;
            let mut done = BTreeSet::new();
            loop {
                let mut moved = false;
                for stage in 0..stages {
                    while let Some(next) = left[stage as usize].front().copied() {
                        let at = position(stage, next.part);
                        let is_done = |forward, at| done.contains(&(forward, next.micro_batch, at));
                        let ready = match next.pass {
                            Pass::Forward => at == 0 || is_done(true, at - 1),
                            Pass::WeightGrad => true,
                            _ => at == last || is_done(false, at + 1),
                        };
                        if !ready {
                            break;
                        }
                        if next.pass != Pass::WeightGrad {
                            done.insert((next.pass == Pass::Forward, next.micro_batch, at));
                        }
                        left[stage as usize].pop_front();
                        moved = true;
                    }
                }
                if !moved {
                    break;
                }
            }
            assert!(left.iter().all(VecDeque::is_empty), "{:?}: {left:?}", parallel.schedule);
        }
    }

    /// The known counts: GPipe has all in flight; 1F1B `min(m, p - i)`; interleaved `2 (p - i - 1) + (v - 1) p + 1` parts
    /// (Megatron-LM); H1 what 1F1B has, H2 `2 (p - i) - 1`, and with the weights that wait `p` and `2p - 1` (arXiv 2401.10241);
    /// DualPipe `p + 1` (DeepSeek-V3).
    #[test]
    fn as_many_are_in_flight_as_is_known() {
        for (parallel, m) in cases() {
            let (p, v) = (parallel.pp, parallel.virtual_stages);
            for i in 0..p {
                let actions = actions(&parallel, i, m, m);
                let known = match parallel.schedule {
                    Schedule::Gpipe => m,
                    Schedule::OneFOneB | Schedule::ZbH1 => m.min(p - i),
                    Schedule::Interleaved => (m * v).min(2 * (p - i - 1) + (v - 1) * p + 1),
                    Schedule::ZbH2 => m.min(2 * (p - i) - 1),
                    Schedule::DualPipe => p + 1,
                };
                let said = format!("{:?}, stage {i} of {p}, {m} micro-batches", parallel.schedule);
                assert_eq!(most_in_flight(&actions, &INPUT_DONE), known, "{said}");
                let with_weights = most_in_flight(&actions, &ALL_DONE);
                match parallel.schedule {
                    Schedule::ZbH1 => assert_eq!(with_weights, m.min(p), "{said}"),
                    Schedule::ZbH2 => assert_eq!(with_weights, m.min(2 * p - 1), "{said}"),
                    Schedule::DualPipe => assert!(with_weights <= p + 1, "{said}: {with_weights}"),
                    _ => assert_eq!(with_weights, known, "{said}"),
                }
            }
        }
    }

    #[test]
    fn small_ones_by_hand() {
        let written = |parallel: Parallel, stage, micro_batches| -> String {
            let one = |action: Action| {
                let pass = match action.pass {
                    Pass::Forward => 'F',
                    Pass::Backward => 'B',
                    Pass::InputGrad => 'I',
                    Pass::WeightGrad => 'W',
                };
                let part = if action.part == 0 { String::new() } else { "'".repeat(action.part as usize) };
                format!("{pass}{}{part}", action.micro_batch)
            };
            let all: Vec<String> =
                actions(&parallel, stage, micro_batches, micro_batches).into_iter().map(one).collect();
            all.join(" ")
        };
        let of = |schedule, pp| Parallel { schedule, pp, ..Parallel::default() };
        assert_eq!(written(of(Schedule::Gpipe, 2), 0, 3), "F0 F1 F2 B0 B1 B2");
        assert_eq!(written(of(Schedule::OneFOneB, 3), 0, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(written(of(Schedule::OneFOneB, 3), 2, 2), "F0 B0 F1 B1");
        let interleaved = Parallel { virtual_stages: 2, ..of(Schedule::Interleaved, 2) };
        // one group of three
        assert_eq!(written(interleaved.clone(), 1, 3), "F0 F1 F2 F0' B0' F1' B1' F2' B2' B0 B1 B2");
        assert_eq!(written(interleaved.clone(), 0, 2), "F0 F1 F0' F1' B0' B1' B0 B1");
        assert_eq!(written(interleaved, 1, 4), "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3");
        assert_eq!(written(of(Schedule::ZbH1, 2), 0, 3), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
        assert_eq!(written(of(Schedule::ZbH1, 2), 1, 3), "F0 I0 F1 I1 W0 F2 I2 W1 W2");
        assert_eq!(written(of(Schedule::ZbH2, 2), 0, 3), "F0 F1 F2 I0 W0 I1 W1 I2 W2");
        assert_eq!(written(of(Schedule::DualPipe, 2), 0, 4), "F0 F2' F1 B2' F3' B0 B3' I1 W1");
    }
}
