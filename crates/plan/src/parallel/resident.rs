//! Which parts of a stage its schedule has whole under FSDP2, where a stage has several: those that run next
//! (`_add_unshard_reshard`, torch's `distributed/pipelining/schedules.py`). A stage of one part has no such actions, its layers
//! come and go by their modules' hooks alone.

use super::schedule::Action;

/// Parts that are whole at a time (`max_active_stages`).
const WHOLE: usize = 3;

/// Parts that go (`RESHARD`) and that set out (`UNSHARD`) before an action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) reshards: Vec<u32>,
    pub(crate) unshards: Vec<u32>,
}

/// What goes and what comes before each action.
pub(crate) fn turns(actions: &[Action]) -> Vec<Turn> {
    let mut whole: Vec<u32> = Vec::new();
    let turn = |next: Vec<u32>| {
        let (stays, reshards) = whole.iter().partition(|part| next.contains(part));
        whole = stays;
        let unshards: Vec<u32> = next.into_iter().filter(|part| !whole.contains(part)).collect();
        whole.extend(&unshards);
        Turn { reshards, unshards }
    };
    run_next(actions).into_iter().map(turn).collect()
}

/// For each action the parts that are run from it on, the next ones first.
fn run_next(actions: &[Action]) -> Vec<Vec<u32>> {
    let mut next: Vec<u32> = Vec::new();
    let from_here = |action: &Action| {
        next.retain(|part| *part != action.part);
        next.insert(0, action.part);
        next.iter().take(WHOLE).copied().collect()
    };
    let mut all: Vec<Vec<u32>> = actions.iter().rev().map(from_here).collect();
    all.reverse();
    all
}

#[cfg(test)]
mod tests {
    use super::super::schedule::{Action, actions};
    use super::super::{Parallel, Schedule};
    use super::*;

    fn of(virtual_stages: u32) -> (Vec<Action>, Vec<Turn>) {
        let parallel =
            Parallel { pp: 2, schedule: Schedule::Interleaved, virtual_stages, ..Parallel::default() };
        let actions = actions(&parallel, 0, 4, 4);
        let turns = turns(&actions);
        (actions, turns)
    }

    /// Up to three come at once and stay for as long as they are run.
    #[test]
    fn few_parts_come_once() {
        for parts in [2, 3] {
            let (actions, turns) = of(parts);
            let unshards: Vec<u32> = turns.iter().flat_map(|turn| turn.unshards.clone()).collect();
            assert_eq!(unshards, (0..parts).collect::<Vec<_>>());
            assert_eq!(turns[0].unshards.len(), parts as usize);
            for (at, turn) in turns.iter().enumerate() {
                let runs_again = |part: &u32| actions[at..].iter().any(|action| action.part == *part);
                assert!(!turn.reshards.iter().any(runs_again));
            }
        }
    }

    /// Of more, three are whole at a time, the one that runs among them.
    #[test]
    fn of_many_parts_three_are_whole() {
        let (actions, turns) = of(4);
        let mut whole = Vec::new();
        for (action, turn) in actions.iter().zip(turns) {
            whole.retain(|part| !turn.reshards.contains(part));
            whole.extend(turn.unshards);
            assert!(whole.contains(&action.part) && whole.len() <= WHOLE);
        }
        assert_eq!(of(4).1[2], Turn { reshards: vec![0], unshards: vec![3] });
    }
}
