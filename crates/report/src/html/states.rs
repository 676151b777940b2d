//! Which states a page can tell apart: all of them where there is room, else the largest and those at the peak. A page opens
//! in a moment and weighs a few megabytes whatever the ledger holds; what is left out is counted and drawn as one.

use super::document::{Exact, States};
use crate::json::length_in_html;
use peakledger_core::{Detail, Device, Ledger, State, StateId};
use std::borrow::Cow;

/// Longer names are cut in the middle.
const LONGEST_NAME: usize = 240;
/// What a state and each of its residencies take beside the name, at most.
const STATE: usize = 40;
const STAY: usize = 34;

/// A name that fits a page.
pub(super) fn short(name: &str) -> Cow<'_, str> {
    if name.len() <= LONGEST_NAME {
        return Cow::Borrowed(name); // no more characters than bytes
    }
    let length = name.chars().count();
    if length <= LONGEST_NAME {
        return Cow::Borrowed(name);
    }
    let half = LONGEST_NAME / 2;
    let head: String = name.chars().take(half).collect();
    let tail: String = name.chars().skip(length - half + 1).collect();
    Cow::Owned(format!("{head}…{tail}"))
}

/// The largest states that fit into so many bytes of JSON and are no more than `most`; first those at the peak.
pub(super) fn states(ledger: &Ledger, most: usize, mut room: usize) -> States {
    let at_peak = ledger.largest_contributors(ledger.peak().moment, most / 4).0;
    let at_peak = at_peak.into_iter().map(|contributor| contributor.id);
    let mut by_size: Vec<(u64, StateId)> = ledger
        .states()
        .iter()
        .zip((0u32..).map(StateId))
        .map(|(state, id)| (state.bytes.get(), id))
        .collect();
    let order = |a: &(u64, StateId), b: &(u64, StateId)| b.0.cmp(&a.0).then(a.1.cmp(&b.1));
    if by_size.len() > most {
        by_size.select_nth_unstable_by(most, order);
        by_size.truncate(most);
    }
    by_size.sort_unstable_by(order);
    let (mut kept, mut count) = (vec![false; ledger.states().len()], 0);
    for id in at_peak.chain(by_size.into_iter().map(|(_, id)| id)) {
        let (Some(state), Some(kept)) = (ledger.state(id), kept.get_mut(id.0 as usize)) else { continue };
        if *kept || count == most {
            continue;
        }
        let stays = state.residencies.as_slice().len();
        let takes = STATE + stays.saturating_mul(STAY) + length_in_html(&short(&state.name));
        if let Some(left) = room.checked_sub(takes) {
            room = left;
            (*kept, count) = (true, count + 1);
        }
    }
    let mut columns = States { left_out: ledger.states().len() - count, ..States::default() };
    let all = ledger.states().iter().zip(kept);
    all.filter(|(_, kept)| *kept).for_each(|(state, _)| columns.push(state));
    columns
}

impl States {
    fn push(&mut self, state: &State) {
        let row = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(short(&state.name).into_owned());
        self.categories.push(state.category as usize);
        let detail = Detail::ALL.iter().position(|detail| Some(*detail) == state.detail);
        self.details.push(detail.and_then(|at| i8::try_from(at).ok()).unwrap_or(-1));
        self.bytes.push(Exact(state.bytes.get()));
        self.persistent.push(u8::from(state.persistent));
        for stay in state.residencies.as_slice() {
            self.stays.push([row, u32::from(stay.device == Device::Cpu), stay.start.0, stay.end.0]);
        }
    }
}
