//! What a step does again and again is run a few times and written down for the rest: micro-batches ([`micro_batches`]) and
//! decoder layers ([`layers`]). Nothing is assumed of a tape: where what was run is not alike, all of it is run.

mod alike;
mod compared;
mod layers;
mod micro_batches;
mod outline;
mod rounds;
mod stand_ins;
mod stretches;
#[cfg(test)]
mod tests;
mod turns;

pub(crate) use layers::Repeat;
pub(crate) use micro_batches::repeated;
pub(crate) use rounds::{Rounds, sends_in_buckets, shares_within_passes};
