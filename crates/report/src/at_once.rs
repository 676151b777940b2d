//! Several things made at once, on as many cores as there are; what comes out is in the order of what went in.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

/// What is made of each.
pub(crate) fn at_once<T: Sync, R: Send>(of: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let made = of.chunks(cores).flat_map(|some| {
        let Some((own, others)) = some.split_first() else { return Vec::new() };
        thread::scope(|scope| {
            let running: Vec<_> = others.iter().map(|one| scope.spawn(|| make(one))).collect();
            let own = make(own); // this thread is one of them
            let others =
                running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            std::iter::once(own).chain(others).collect()
        })
    });
    made.collect()
}

#[cfg(test)]
mod tests {
    use super::at_once;

    #[test]
    fn what_comes_out_is_in_the_order_of_what_went_in() {
        let numbers: Vec<u64> = (0..1000).collect();
        let doubled = at_once(&numbers, |number| number * 2);
        assert_eq!(doubled, (0..1000).map(|number| number * 2).collect::<Vec<_>>());
        assert!(at_once(&[] as &[u64], |number| *number).is_empty());
    }
}
