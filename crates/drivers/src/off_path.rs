//! File system calls away from the caller's thread: a dead NFS server hangs a call for as long as it is
//! dead, and nothing can interrupt it.
//!
//! The call runs on a plain thread that has nothing else to do. The runtime's pool (`spawn_blocking`) would
//! not do: hung calls would fill it, and the runtime waits for it when the agent shuts down. A thread whose
//! call has returned waits a while for the next one, because the ledger is read all the time.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;

/// Calls that may hang at one time, over all keys. Each holds a thread until its server answers.
const MAX_HUNG: usize = 64;

/// The calls whose caller gave up and which still hang, by name.
static HUNG: Mutex<BTreeMap<String, Hung>> = Mutex::new(BTreeMap::new());

/// How long a thread waits for its next call.
const IDLE_FOR: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads that wait for a call.
static IDLE: Mutex<Vec<(ThreadId, Sender<Job>)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Hung {
    calls: usize,
    /// When the first of them was begun.
    since: Timestamp,
}

/// Why a file system call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum OffPathError {
    /// The deadline passed. The call goes on hanging on its own thread.
    #[error(
        "{what} did not return within {limit:?}: the storage below it may be dead; check the mount and its server"
    )]
    Hung {
        /// What was called, on what.
        what: String,
        /// The deadline.
        limit: Duration,
    },
    /// An earlier call of the same name still hangs, so no further one was begun.
    #[error(
        "{what} still hangs from an earlier call, since {since:.0}: the storage below it may be dead; check the mount and its server"
    )]
    StillHung {
        /// What was called, on what.
        what: String,
        /// When the call that hangs was begun, by this host's clock.
        since: Timestamp,
    },
    /// So many calls hang that no further one is begun.
    #[error(
        "{what} was not begun, because {hung} file system calls hang already: check the mounts of this host"
    )]
    TooManyHung {
        /// What was to be called, on what.
        what: String,
        /// How many calls hang.
        hung: usize,
    },
    /// The thread could not be started.
    #[error("no thread could be started for {what}")]
    NoThread {
        /// What was to be called, on what.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The call itself panicked.
    #[error("{what} panicked; this is a defect of understudy")]
    Panicked {
        /// What was called, on what.
        what: String,
    },
}

/// Runs `f`, which may hang on a dead file system, on its own thread, and waits at most `limit` for it.
///
/// `what` names the call and its object for people ("reading /mnt/kafka/meta.properties"). It is the key too:
/// while a call of that name hangs, no further one is begun, so that a dead server costs one thread for every
/// name and not one for every attempt. Dropping the future gives the call up, as the deadline does.
///
/// # Errors
/// When there is no answer in time, or when no call was begun because earlier ones still hang.
pub async fn off_path<T: Send + 'static>(
    what: &str,
    limit: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OffPathError> {
    refuse_if_hung(what)?;
    let (sender, answer) = oneshot::channel();
    let (key, begun) = (what.to_owned(), Timestamp::now());
    let run = move || {
        let result = catch_unwind(AssertUnwindSafe(f));
        if sender.send(result).is_err() {
            // The caller has given up and left the call in `HUNG`. It hangs no more.
            forget(&key);
        }
    };
    on_some_thread(Box::new(run))
        .map_err(|source| OffPathError::NoThread { what: what.to_owned(), source })?;
    let mut call = Call { what, begun, answer, answered: false };
    match tokio::time::timeout(limit, &mut call.answer).await {
        Ok(result) => {
            call.answered = true;
            // The outer error means that the thread ended without a word, the inner one that `f` panicked.
            result.ok().and_then(Result::ok).ok_or_else(|| OffPathError::Panicked { what: what.to_owned() })
        }
        Err(_) => Err(OffPathError::Hung { what: what.to_owned(), limit }),
    }
}

/// Has an idle thread do it, or else a new one.
fn on_some_thread(mut job: Job) -> io::Result<()> {
    let idle = || lock(&IDLE).pop();
    while let Some((_, thread)) = idle() {
        match thread.send(job) {
            Ok(()) => return Ok(()),
            Err(unsent) => job = unsent.0,
        }
    }
    let (sender, jobs) = channel();
    thread::Builder::new()
        .name("off-path".to_owned())
        .spawn(move || {
            job();
            work(&sender, &jobs);
        })
        .map(drop)
}

/// Does one job after the other until none comes for a while.
fn work(sender: &Sender<Job>, jobs: &Receiver<Job>) {
    let own = thread::current().id();
    loop {
        lock(&IDLE).push((own, sender.clone()));
        let job = match jobs.recv_timeout(IDLE_FOR) {
            Ok(job) => job,
            Err(_) if leave(own) => return,
            // Somebody has taken this thread up by now, and its job is on its way.
            Err(_) => match jobs.recv() {
                Ok(job) => job,
                Err(_) => return,
            },
        };
        job();
    }
}

/// Whether this thread was among the idle ones. It no longer is.
fn leave(own: ThreadId) -> bool {
    let mut idle = lock(&IDLE);
    let place = idle.iter().position(|(id, _)| *id == own);
    place.map(|place| idle.swap_remove(place)).is_some()
}

/// A call under way. Dropped without an answer, it is counted as hung until its thread ends.
struct Call<'a, T> {
    what: &'a str,
    begun: Timestamp,
    answer: oneshot::Receiver<T>,
    answered: bool,
}

impl<T> Drop for Call<'_, T> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let none = Hung { calls: 0, since: self.begun };
        lock(&HUNG).entry(self.what.to_owned()).or_insert(none).calls += 1;
        // After `close` the thread's `send` fails and the thread forgets the call, unless it has sent
        // already.
        self.answer.close();
        if self.answer.try_recv().is_ok() {
            forget(self.what);
        }
    }
}

fn refuse_if_hung(what: &str) -> Result<(), OffPathError> {
    let calls = lock(&HUNG);
    let hung: usize = calls.values().map(|hung| hung.calls).sum();
    if let Some(Hung { since, .. }) = calls.get(what) {
        Err(OffPathError::StillHung { what: what.to_owned(), since: *since })
    } else if hung >= MAX_HUNG {
        Err(OffPathError::TooManyHung { what: what.to_owned(), hung })
    } else {
        Ok(())
    }
}

fn forget(what: &str) {
    let mut calls = lock(&HUNG);
    if let Some(hung) = calls.get_mut(what) {
        hung.calls -= 1;
        if hung.calls == 0 {
            calls.remove(what);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under this lock, and entries are whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn an_answer_comes_back() {
        assert_eq!(off_path("adding", LONG, || 1 + 1).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_thread_that_is_done_takes_the_next_call() {
        let (begun, mut threads) = (Instant::now(), std::collections::BTreeSet::new());
        // It may take a moment until it waits for one.
        while threads
            .insert(off_path("asking", LONG, || format!("{:?}", thread::current().id())).await.unwrap())
        {
            assert!(begun.elapsed() < LONG, "each call had a thread of its own: {threads:?}");
        }
    }

    #[tokio::test]
    async fn a_hung_call_is_reported_refused_a_second_time_and_forgotten_when_it_returns() {
        let (release, gate) = channel::<()>();
        let error = off_path("reading /dead", SHORT, move || gate.recv()).await.unwrap_err();
        assert!(matches!(&error, OffPathError::Hung { what, .. } if what == "reading /dead"), "{error}");
        assert!(error.to_string().contains("reading /dead did not return within 30ms"), "{error}");

        let error = off_path("reading /dead", LONG, || ()).await.unwrap_err();
        assert!(matches!(error, OffPathError::StillHung { .. }), "{error}");
        assert!(error.to_string().contains("still hangs from an earlier call, since 2"), "{error}");
        off_path("reading /alive", LONG, || ()).await.unwrap();

        release.send(()).unwrap();
        let begun = Instant::now();
        while off_path("reading /dead", LONG, || ()).await.is_err() {
            assert!(begun.elapsed() < LONG, "the call returned and still counts as hung");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_dropped_future_counts_as_given_up() {
        let (release, gate) = channel::<()>();
        let call = off_path("dropped", LONG, move || gate.recv());
        assert!(tokio::time::timeout(SHORT, call).await.is_err());
        let error = off_path("dropped", LONG, || ()).await.unwrap_err();
        assert!(matches!(error, OffPathError::StillHung { .. }), "{error}");
        drop(release);
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let error = off_path("breaking", LONG, || panic!("on purpose")).await.unwrap_err();
        assert!(matches!(error, OffPathError::Panicked { .. }), "{error}");
    }

    #[test]
    fn a_hung_call_does_not_hold_up_the_end_of_the_runtime() {
        let (release, gate) = channel::<()>();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let result = runtime.block_on(off_path("outliving the runtime", SHORT, move || gate.recv()));
        assert!(matches!(result, Err(OffPathError::Hung { .. })));
        let begun = Instant::now();
        drop(runtime);
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(release);
    }
}
