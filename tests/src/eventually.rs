//! Waiting for a condition, with a deadline and a useful complaint.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

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
    fn says_what_was_last_seen() {
        let error =
            eventually("a miracle", Duration::from_millis(50), || Err::<(), _>("nothing")).unwrap_err();
        assert_eq!(error.to_string(), "waited 50ms for: a miracle; last seen: nothing");
    }
}
