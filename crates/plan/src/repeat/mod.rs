//! What a step does again and again is run a few times: micro-batches ([`micro_batches`]) and decoder layers ([`layers`]). What
//! the rest adds to the sums is counted ([`folded`]), and it is written down where every storage is asked for. Nothing is
//! assumed of a tape: where what was run is not alike, all of it is run.

mod alike;
mod compared;
mod folded;
mod layers;
mod left_out;
mod micro_batches;
mod outline;
mod postponed;
mod rounds;
mod stand_ins;
mod stretches;
#[cfg(test)]
mod tests;
mod turns;

pub(crate) use folded::{Between, Cut, Folded, PhaseRun};
pub(crate) use layers::Repeat;
pub(crate) use postponed::{Aside, Postponed};
pub(crate) use rounds::{Rounds, shares_within_passes};
