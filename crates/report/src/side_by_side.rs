//! The same work on many items, as many at once as the machine has cores; what comes out is in the order of what went in.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// As many threads as the machine has cores.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does the same with all items.
pub fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    counted(items.len(), cores(), |at| items.get(at).map(&work)).into_iter().flatten().collect()
}

/// Does the same with the numbers from 0 up to that one, on so many threads.
pub fn counted<R: Send>(many: usize, threads: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = || -> Vec<(usize, R)> {
        let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        numbers.take_while(|at| *at < many).map(|at| (at, work(at))).collect()
    };
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(many)).map(|_| scope.spawn(done)).collect();
        let joined =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect()
    });
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_what_went_in() {
        for threads in [1, 2, 7] {
            let doubled = counted(1000, threads, |number| number * 2);
            assert_eq!(doubled, (0..1000).map(|number| number * 2).collect::<Vec<_>>());
        }
        assert!(side_by_side(&[] as &[u8], |_| ()).is_empty());
    }
}
