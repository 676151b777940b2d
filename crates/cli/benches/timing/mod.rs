//! How long something takes: the best of some runs.

#![allow(clippy::unwrap_used)] // of no run there is no time

use std::time::{Duration, Instant};

pub(crate) fn best(times: u32, mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let began = Instant::now();
        run();
        began.elapsed()
    };
    (0..times).map(time).min().unwrap()
}
