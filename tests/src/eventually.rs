//! Waiting for a condition, with a deadline and a useful complaint.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::unjudged::Waited;

/// How often a condition is looked at.
const TICK: Duration = Duration::from_millis(30);

/// Waits until `attempt` returns `Ok`, at most `limit`. An `Err` says what was seen instead; the last one is
/// what the failure reports.
///
/// # Errors
/// [`Waited`] when `limit` has passed: what was awaited, and what was last seen.
pub fn eventually<T, E: std::fmt::Display>(
    what: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(seen) if begin.elapsed() >= limit => {
                return Err(Waited { what: what.to_owned(), limit, seen: format!("{seen:#}") }.into());
            }
            Err(_) => thread::sleep(TICK),
        }
    }
}

/// Looks for as long as `time`, and fails as soon as `look` does.
///
/// # Errors
/// The first of `look`, and when it came.
pub fn holds(what: &str, time: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        look().with_context(|| format!("{what}: no more after {:.1} s", begin.elapsed().as_secs_f64()))?;
        thread::sleep(TICK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_what_was_awaited() {
        let mut left = 3;
        let value = eventually("three tries", Duration::from_secs(5), || {
            left -= 1;
            if left == 0 { Ok("done") } else { Err(format!("{left} left")) }
        });
        assert_eq!(value.unwrap(), "done");
    }

    #[test]
    fn what_holds_no_more_fails_at_once() {
        let mut left = 3;
        let ends = holds("it", Duration::from_secs(60), || {
            left -= 1;
            anyhow::ensure!(left > 0, "it ended");
            Ok(())
        });
        assert_eq!((left, ends.unwrap_err().root_cause().to_string()), (0, "it ended".to_owned()));
        holds("it", Duration::from_millis(50), || Ok(())).unwrap();
    }

    #[test]
    fn says_what_was_last_seen() {
        let error =
            eventually("a miracle", Duration::from_millis(50), || Err::<(), _>("nothing")).unwrap_err();
        assert_eq!(error.to_string(), "waited 50ms for: a miracle; last seen: nothing");
    }
}
