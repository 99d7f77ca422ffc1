//! The system's clocks.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

use recovery::model::{Moment, Now};
use recovery::ports::Clock;

/// `CLOCK_BOOTTIME` for moments, so that a suspended machine does not take old evidence for fresh, and
/// the system's wall clock for records.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Now {
        let since_boot = clock_gettime(ClockId::Boottime);
        // Neither part can be negative: the clock starts at zero when the machine boots.
        let secs = u64::try_from(since_boot.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(since_boot.tv_nsec).unwrap_or_default();
        Now { mono: Moment(Duration::new(secs, nanos)), wall: Timestamp::now() }
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn moments_grow_by_what_was_slept() {
        let clock = SystemClock;
        let before = clock.now();
        clock.sleep(Duration::from_millis(20)).await;
        let after = clock.now();
        assert!(after.mono.since(before.mono) >= Duration::from_millis(20));
        assert!(after.wall > before.wall);
    }
}
