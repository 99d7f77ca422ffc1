//! How fast this machine is now: machines are shared, and the same tests take twice as long on some days.

use std::thread;
use std::time::{Duration, Instant};

/// Rounds of the computation: some 1.0 s, optimised or not, on the machine of the published figures on a good
/// day.
const ROUNDS: u64 = 700_000_000;

/// The time of one fixed computation, on every processor at once: until the last one has done it.
pub(crate) fn measure() -> Duration {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| std::hint::black_box(compute(std::hint::black_box(ROUNDS))));
        }
    });
    begin.elapsed()
}

/// A xorshift generator: nothing but the processor's own arithmetic.
fn compute(rounds: u64) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut round = 0;
    while round < rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        round += 1;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_computation_is_always_the_same() {
        assert_eq!(compute(1000), compute(1000));
        assert_ne!(compute(1000), compute(1001));
    }
}
