//! The checks that the daemon goes through by itself, so that a standby that could not take over says so
//! before it has to.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use async_trait::async_trait;
use recovery::model::{Check, Checked, Evidence, Fact, Moment, Verdict};
use recovery::plan::Phase;
use recovery::ports::{Clock, HealthSignal};
use recovery::status::Status;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Item, Look};

/// How long one check may take: longer than its driver's own deadline, with which it says more.
const CHECK_WITHIN: Duration = Duration::from_secs(120);

/// A result counts for this many rounds: one that is late or cut short makes nobody look ready or not.
const COUNTS_FOR: u32 = 3;

/// Part of the interval, in percent, by which a round may begin earlier: the hosts that ask one device do not
/// stay in step.
const SPREAD: u32 = 10;

/// Goes through the checks one after the other, as a signal on its own task: whatever hangs delays the other
/// checks, and nothing else.
pub(crate) struct StandingChecks {
    looks: Vec<Look>,
    every: Duration,
    status: watch::Receiver<Status>,
}

impl StandingChecks {
    /// Those of `looks` that the daemon goes through, every `every`. `status` tells of takeovers here.
    pub(crate) fn new(looks: Vec<Look>, every: Duration, status: watch::Receiver<Status>) -> Self {
        Self { looks: looks.into_iter().filter(|look| look.standing).collect(), every, status }
    }

    /// What one check finds; `None` if a takeover came between.
    async fn find(&self, look: &Look) -> Option<Checked> {
        // A device that allows one login at a time belongs to the takeover.
        let mut status = self.status.clone();
        let disturbs = matches!(look.check, Check::Fence(_));
        tokio::select! {
            biased;
            _ = status.wait_for(fences), if disturbs => None,
            items = items(look) => summary(&look.check, items),
        }
    }
}

#[async_trait]
impl HealthSignal for StandingChecks {
    fn name(&self) -> &'static str {
        "checks"
    }

    fn period(&self) -> Duration {
        let chance = u32::try_from(RandomState::new().build_hasher().finish() % 1_000).unwrap_or_default();
        self.every - self.every * SPREAD / 100 * chance / 1_000
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let begun = clock.now().mono;
        let mut found: Vec<(Moment, Checked)> = Vec::new();
        for look in &self.looks {
            let at = clock.now().mono;
            found.extend(self.find(look).await.map(|found| (at, found)));
        }
        let round = self.every.max(clock.now().mono.since(begun));
        let dated = found.into_iter().map(|(at, found)| Evidence {
            signal: self.name(),
            at,
            fact: Fact::Checked { found, counts_for: round * COUNTS_FOR },
        });
        dated.collect()
    }
}

/// Whether a takeover by this host needs its fence devices now.
fn fences(status: &Status) -> bool {
    let takeovers = status.brokers.iter().filter_map(|broker| broker.takeover.as_ref());
    takeovers.into_iter().any(|takeover| takeover.phase <= Phase::Prove)
}

/// On a task of its own, which ends with this future: a check that panics is one that failed.
async fn items(look: &Look) -> Vec<Item> {
    let mut task = JoinSet::new();
    task.spawn((look.look)());
    let why = match timeout(CHECK_WITHIN, task.join_next()).await {
        Ok(Some(Ok(items))) => return items,
        Ok(Some(Err(panicked))) => {
            format!("the check itself failed ({panicked}); this is a defect of understudy")
        }
        Ok(None) | Err(_) => format!("no result within {CHECK_WITHIN:?}"),
    };
    vec![Item::fail(&look.check, why, "run `understudy check`")]
}

/// What its items come to: the worst of them, in their words. `None`: there is nothing to look at.
fn summary(check: &Check, items: Vec<Item>) -> Option<Checked> {
    let verdict = items.iter().map(|item| item.verdict).max()?;
    let worst: Vec<Item> = items.into_iter().filter(|item| item.verdict == verdict).collect();
    let words = |part: fn(&Item) -> &str| {
        let mut parts: Vec<&str> = worst.iter().map(part).filter(|text| !text.is_empty()).collect();
        parts.dedup();
        parts.join("; ")
    };
    let (says, remedy) = (words(|item| &item.says), words(|item| &item.remedy));
    Some(Checked {
        check: check.clone(),
        verdict,
        says,
        remedy: if verdict == Verdict::Ok { String::new() } else { remedy },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fakes::World;
    use recovery::cycle::Cycle;
    use recovery::model::{BrokerId, Epoch};
    use recovery::status::{BrokerStatus, TakeoverStatus};
    use tokio::sync::Notify;

    use super::*;

    const EVERY: Duration = Duration::from_secs(300);

    fn fence() -> Check {
        Check::Fence("kafka-1".into())
    }

    fn status() -> (watch::Sender<Status>, watch::Receiver<Status>) {
        let (_, status) = Cycle::new(World::topology(), World::policy(), World::new().ports());
        watch::channel(status.borrow().clone())
    }

    fn taking_over(phase: Phase) -> BrokerStatus {
        let since = jiff::Timestamp::now();
        let takeover = TakeoverStatus { epoch: Epoch(1), since, phase, steps: Vec::new(), rejoining: None };
        BrokerStatus {
            id: BrokerId(1),
            owner: None,
            epoch: None,
            last: None,
            decision: None,
            says: String::new(),
            evidence: Vec::new(),
            takeover: Some(takeover),
            volumes: None,
        }
    }

    async fn found(checks: &StandingChecks) -> Vec<Checked> {
        let evidence = checks.look(&World::new()).await;
        let found = evidence.into_iter().filter_map(|evidence| match evidence.fact {
            Fact::Checked { found, .. } => Some(found),
            _ => None,
        });
        found.collect()
    }

    #[tokio::test]
    async fn they_go_one_after_the_other_and_those_for_people_only_are_left_out() {
        let at_once = Arc::new(AtomicUsize::new(0));
        let one = |check: Check| {
            let at_once = at_once.clone();
            Look::standing(check.clone(), move || {
                let (at_once, check) = (at_once.clone(), check.clone());
                async move {
                    assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::task::yield_now().await;
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    vec![
                        Item::ok(&check, "well"),
                        Item::warn(&check, "so so", "look"),
                        Item::ok(&check, "well"),
                    ]
                }
            })
        };
        let by_hand = Look::told(Check::Configuration, || vec![Item::ok("configuration", "read")]);
        let looks = vec![one(fence()), by_hand, one(Check::Ledger), one(Check::ClassData)];
        let found = found(&StandingChecks::new(looks, EVERY, status().1)).await;
        assert_eq!(
            found.iter().map(|it| &it.check).collect::<Vec<_>>(),
            [&fence(), &Check::Ledger, &Check::ClassData]
        );
        assert!(
            found.iter().all(|it| it.verdict == Verdict::Warn && it.says == "so so" && it.remedy == "look")
        );
    }

    #[tokio::test]
    async fn a_check_that_panics_is_one_that_failed() {
        let broken = Look::standing(Check::Ledger, || async { panic!("on purpose") });
        let well = Look::standing(fence(), || async { vec![Item::ok(fence(), "well")] });
        let found = found(&StandingChecks::new(vec![broken, well], EVERY, status().1)).await;
        assert!(found[0].failed() && found[0].says.contains("defect of understudy"), "{found:?}");
        assert_eq!(found[1].verdict, Verdict::Ok);
    }

    #[tokio::test]
    async fn a_takeover_has_the_fence_device_for_itself() {
        let (set, status) = status();
        let (begun, asked) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (begins, asks) = (begun.clone(), asked.clone());
        let device = Look::standing(fence(), move || {
            asks.fetch_add(1, Ordering::SeqCst);
            begins.notify_one();
            std::future::pending()
        });
        let ledger = Look::standing(Check::Ledger, || async { vec![Item::ok(Check::Ledger, "well")] });
        let checks = Arc::new(StandingChecks::new(vec![device, ledger], EVERY, status));
        let round = tokio::spawn({
            let checks = checks.clone();
            async move { found(&checks).await }
        });
        begun.notified().await;
        set.send_modify(|status| status.brokers = vec![taking_over(Phase::Claim)]);
        let names = |found: Vec<Checked>| found.into_iter().map(|it| it.check).collect::<Vec<_>>();
        assert_eq!(names(round.await.unwrap()), [Check::Ledger], "what was asked of the device is given up");
        assert_eq!(names(found(&checks).await), [Check::Ledger]);
        assert_eq!(asked.load(Ordering::SeqCst), 1, "it is not asked during the takeover");
        set.send_modify(|status| status.brokers = vec![taking_over(Phase::Rejoin)]);
        assert!(!fences(&checks.status.borrow()), "the fence is proven by then");
    }

    #[tokio::test]
    async fn the_interval_is_kept_but_for_a_tenth() {
        let checks = StandingChecks::new(Vec::new(), EVERY, status().1);
        let periods: Vec<Duration> = (0..200).map(|_| checks.period()).collect();
        assert!(periods.iter().all(|period| (EVERY * 9 / 10..=EVERY).contains(period)), "{periods:?}");
        assert!(periods.iter().max() > periods.iter().min(), "no two hosts would part");
    }
}
