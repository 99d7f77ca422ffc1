//! What the service manager is told, where one has started us (`Type=notify`).
//!
//! The watchdog is fed by the snapshots that the decision loop makes at the end of each tick, and by nothing
//! else: a loop that hangs makes none, whatever else in this process still runs.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use recovery::status::Status;
use sd_notify::NotifyState;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// Messages that wait for a service manager that does not read. Of more, the newest are dropped.
const QUEUE: usize = 16;

/// Of the time that the watchdog allows, the part after which it is fed again.
const FED_IN: u32 = 4;

/// How long the end waits for a manager that does not read.
const FAREWELL: Duration = Duration::from_millis(500);

/// The longest line that is told, in letters.
const LINE: usize = 200;

/// One thing to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// The decision loop turns. Whether it can see the ledger and the cluster is in the status: an agent that
    /// cannot holds, and being restarted would not help it.
    Ready,
    /// The decision loop has turned again.
    Alive,
    /// How the brokers stand, in a line.
    Status(String),
    /// It was asked to stop.
    Stopping,
}

/// The way to the service manager. Telling never waits.
#[derive(Debug, Clone)]
pub struct Manager(SyncSender<(Word, Option<oneshot::Sender<()>>)>);

impl Manager {
    /// The one that started this process, if any did; without one all is told to nobody.
    #[must_use]
    pub fn of_this_process() -> Self {
        let (send, words) = sync_channel(QUEUE);
        // A thread of its own: a manager that does not read makes `send` wait.
        thread::spawn(move || pass_on(&words));
        Self(send)
    }

    /// Tells it.
    pub fn tell(&self, word: Word) {
        // A word that is lost is told again with a later snapshot.
        let _ = self.0.try_send((word, None));
    }

    /// Tells it that this is the end, and waits a little until that is told: the process ends after it.
    pub async fn tell_the_end(&self) {
        let (told, is_told) = oneshot::channel();
        if self.0.try_send((Word::Stopping, Some(told))).is_ok() {
            let _ = timeout(FAREWELL, is_told).await;
        }
    }
}

fn pass_on(words: &Receiver<(Word, Option<oneshot::Sender<()>>)>) {
    for (word, told) in words {
        let said = match &word {
            Word::Ready => sd_notify::notify(&[NotifyState::Ready]),
            Word::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
            Word::Status(line) => sd_notify::notify(&[NotifyState::Status(line)]),
            Word::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        };
        if let Err(error) = said {
            tracing::debug!(%error, ?word, "the service manager was not told");
        }
        if let Some(told) = told {
            // Whoever waited may have given up.
            let _ = told.send(());
        }
    }
}

/// How often the watchdog of this process wants to be fed; `None` without one.
#[must_use]
pub fn feed_every() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|within| within / FED_IN)
}

/// Follows the snapshots for as long as the loop makes them.
pub async fn follow(
    mut snapshots: watch::Receiver<Status>,
    feed_every: Option<Duration>,
    mut tell: impl FnMut(Word),
) {
    let mut told = Told::default();
    while snapshots.changed().await.is_ok() {
        let words = told.words(&snapshots.borrow_and_update(), Instant::now(), feed_every);
        words.into_iter().for_each(&mut tell);
    }
}

/// What was told so far.
#[derive(Debug, Default)]
struct Told {
    ready: bool,
    fed: Option<Instant>,
    line: String,
}

impl Told {
    /// What a fresh snapshot gives to tell.
    fn words(&mut self, status: &Status, now: Instant, feed_every: Option<Duration>) -> Vec<Word> {
        let mut words = Vec::new();
        if status.at.is_none() {
            return words;
        }
        if !self.ready {
            self.ready = true;
            words.push(Word::Ready);
        }
        let hungry = |every: &Duration| self.fed.is_none_or(|fed| now.duration_since(fed) >= *every);
        if feed_every.as_ref().is_some_and(hungry) {
            self.fed = Some(now);
            words.push(Word::Alive);
        }
        let line = line(status);
        if line != self.line {
            self.line.clone_from(&line);
            words.push(Word::Status(line));
        }
        words
    }
}

/// The brokers that are not well, and what cannot be seen; without what changes with every look, such as
/// ages.
fn line(status: &Status) -> String {
    use recovery::decide::Decision;
    let mut parts = Vec::new();
    let well = |decision: &Option<Decision>| matches!(decision, Some(Decision::Healthy));
    for broker in status.brokers.iter().filter(|broker| !well(&broker.decision)) {
        let state = match (&broker.takeover, &broker.decision) {
            (Some(takeover), _) => format!("takeover, epoch {}, {}", takeover.epoch, takeover.phase),
            (None, Some(decision)) => decision.label().to_owned(),
            (None, None) => "not seen yet".to_owned(),
        };
        parts.push(format!("broker {}: {state}", broker.id));
    }
    if parts.is_empty() {
        parts.push(format!("all {} brokers well", status.brokers.len()));
    }
    parts.extend(status.ledger_missing().map(str::to_owned));
    if !status.metadata_read {
        parts.push("no broker gives its broker list".to_owned());
    }
    let failed = status.checks.iter().filter(|seen| seen.found.failed());
    parts.extend(failed.map(|seen| format!("not ready: {}", seen.found.check)));
    let line = format!("mode {}; {}", status.mode.word(), parts.join("; "));
    line.chars().filter(|c| !c.is_control()).take(LINE).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use jiff::Timestamp;
    use recovery::policy::Mode;

    use super::*;

    fn status(at: Option<Timestamp>) -> Status {
        Status {
            host: "standby-1".into(),
            mode: Mode::Auto,
            at,
            ledger_read: true,
            distrusted: None,
            metadata_read: true,
            blind: [].into(),
            checks: Vec::new(),
            brokers: Vec::new(),
            down: Vec::new(),
            view: None,
        }
    }

    #[test]
    fn the_first_tick_is_ready_and_every_line_is_told_once() {
        let (mut told, now) = (Told::default(), Instant::now());
        assert_eq!(told.words(&status(None), now, None), []);
        let at = Some(Timestamp::now());
        let well = "mode auto; all 0 brokers well".to_owned();
        assert_eq!(told.words(&status(at), now, None), [Word::Ready, Word::Status(well)]);
        assert_eq!(told.words(&status(at), now, None), []);
        let blind = Status { ledger_read: false, ..status(at) };
        let line = "mode auto; all 0 brokers well; the ledger has not been read lately".to_owned();
        assert_eq!(told.words(&blind, now, None), [Word::Status(line)]);
    }

    #[test]
    fn the_watchdog_is_fed_as_often_as_it_wants() {
        let (mut told, begun) = (Told::default(), Instant::now());
        let at = Some(Timestamp::now());
        let every = Some(Duration::from_secs(7));
        let mut fed = |after: u64| {
            let words = told.words(&status(at), begun + Duration::from_secs(after), every);
            words.contains(&Word::Alive)
        };
        assert_eq!([0, 1, 6, 7, 8, 13, 14].map(&mut fed), [true, false, false, true, false, false, true]);
    }

    #[tokio::test]
    async fn a_loop_that_makes_no_snapshots_feeds_nothing() {
        let (set, seen) = watch::channel(status(None));
        let heard: Arc<Mutex<Vec<Word>>> = Arc::default();
        let (every, ear) = (Some(Duration::from_millis(1)), heard.clone());
        let follows = tokio::spawn(follow(seen, every, move |word| ear.lock().unwrap().push(word)));
        let alive = || heard.lock().unwrap().iter().filter(|word| **word == Word::Alive).count();
        for ticks in 1..=3 {
            set.send_replace(status(Some(Timestamp::now())));
            while alive() < ticks {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The next one is due.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Many times over the next one is due, and the loop hangs: that is the point here, so it is a sleep.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(alive(), 3);
        drop(set);
        follows.await.unwrap();
    }
}
