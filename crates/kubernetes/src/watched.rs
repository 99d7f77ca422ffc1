//! One object of the cluster, kept by a watch: asked for once, and told of from then on.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kube::api::WatchEvent;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::client::{Cluster, Known, Place};
use crate::fault::Fault;

/// From the end of a watch to the next one.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the first one may take to be agreed to.
const BEGINS_WITHIN: Duration = Duration::from_secs(3);
/// An object that came and went within this time, while nothing was heard, is left out of account: a Kafka takes longer
/// to start.
pub(crate) const GAP: Duration = Duration::from_secs(5);
/// Between two looks whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What is known of an object.
#[derive(Debug, Clone)]
pub(crate) struct Sight<K> {
    /// The object; `None` if there is none.
    pub(crate) now: Option<K>,
    /// What it was last, if there is none any more.
    pub(crate) last: Option<K>,
    /// When its mark was last seen to become another one.
    pub(crate) marked: Instant,
    /// The last mark that was not empty, of whichever object had the name; `None` again once so little was heard that
    /// there may have been another one.
    pub(crate) said: Option<String>,
    /// Until when nothing that became of it can have been missed.
    heard: Instant,
    /// Whether a watch was agreed to or refused so far.
    settled: bool,
    /// Why it is not watched.
    pub(crate) trouble: Option<String>,
}

/// The object, and the task that keeps it until this value is dropped.
#[derive(Debug)]
pub(crate) struct Watched<K> {
    of: Arc<Of<K>>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug)]
struct Of<K> {
    cluster: Arc<Cluster>,
    place: Place,
    name: String,
    /// What of the object is its mark.
    mark: fn(&K) -> String,
    /// `None` until it was asked for.
    sight: Mutex<Option<Sight<K>>>,
}

impl<K> Drop for Watched<K> {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl<K: Known + 'static> Watched<K> {
    /// Asks for nothing yet.
    pub(crate) fn new(cluster: Arc<Cluster>, place: Place, name: &str, mark: fn(&K) -> String) -> Self {
        let of = Of { cluster, place, name: name.to_owned(), mark, sight: Mutex::default() };
        Self { of: Arc::new(of), task: OnceLock::new() }
    }

    /// What is known; `None` until it was asked for. The first call begins the watch.
    pub(crate) fn sight(&self) -> Option<Sight<K>> {
        self.task.get_or_init(|| tokio::spawn(keep(self.of.clone())).abort_handle());
        self.of.sight().clone()
    }

    /// The same, asked for if it was not, once the first watch is agreed to or refused: the first to know of it learns
    /// what a watch lacks.
    pub(crate) async fn settled(&self) -> Result<Option<Sight<K>>, Fault> {
        if self.sight().is_none() {
            self.read().await?;
        }
        let until = Instant::now() + BEGINS_WITHIN;
        loop {
            let sight = self.sight();
            if sight.as_ref().is_some_and(|sight| sight.settled) || Instant::now() >= until {
                return Ok(sight);
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks for it anew.
    pub(crate) async fn read(&self) -> Result<(), Fault> {
        self.of.read().await.map(drop)
    }
}

async fn keep<K: Known + 'static>(of: Arc<Of<K>>) {
    loop {
        if let Err(fault) = of.follow().await
            && let Some(sight) = &mut *of.sight()
        {
            (sight.settled, sight.trouble) = (true, Some(fault.to_string()));
        }
        sleep(PAUSE).await;
    }
}

impl<K: Known + 'static> Of<K> {
    fn sight(&self) -> MutexGuard<'_, Option<Sight<K>>> {
        self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self) -> Result<String, Fault> {
        let (object, version) = self.cluster.find(self.place, &self.name).await?;
        self.is(object);
        Ok(version)
    }

    async fn follow(&self) -> Result<(), Fault> {
        let before = self.sight().as_ref().map(|sight| (sight.heard, uid(sight.last.as_ref())));
        let version = self.read().await?;
        if let (Some((heard, uid_before)), Some(sight)) = (before, &mut *self.sight())
            && heard.elapsed() > GAP
            && (sight.now.is_none() || uid(sight.now.as_ref()) != uid_before)
        {
            sight.said = sight.now.as_ref().map(self.mark).filter(|mark| !mark.is_empty());
        }
        let heard = |event: Option<WatchEvent<K>>| match event {
            // What was read meanwhile may be newer.
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) if self.is_new(&object) => {
                self.is(Some(object));
            }
            Some(WatchEvent::Added(_) | WatchEvent::Modified(_)) => {}
            Some(WatchEvent::Deleted(object)) => {
                self.is(Some(object));
                self.is(None);
            }
            // After an error the API server ends the watch, and all is asked anew.
            Some(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) => {}
            None => {
                if let Some(sight) = &mut *self.sight() {
                    (sight.settled, sight.trouble) = (true, None);
                }
            }
        };
        let heard = |event| {
            heard(event);
            self.sight().iter_mut().for_each(|sight| sight.heard = Instant::now());
        };
        self.cluster.watch(self.place, (&self.name, &version), heard).await?;
        // A watch that is ended has told all until then.
        self.sight().iter_mut().for_each(|sight| sight.heard = Instant::now());
        Ok(())
    }

    /// Whether it is no older than what is known. Versions that are no numbers are taken as they come.
    fn is_new(&self, object: &K) -> bool {
        let version = |object: &K| object.meta().resource_version.as_ref()?.parse::<u64>().ok();
        let sight = self.sight();
        let known = sight.as_ref().and_then(|sight| version(sight.now.as_ref()?));
        known.zip(version(object)).is_none_or(|(known, told)| told >= known)
    }

    fn is(&self, object: Option<K>) {
        let mut sight = self.sight();
        let Some(sight) = &mut *sight else {
            let last = object.clone();
            let now = Instant::now();
            let said = object.as_ref().map(self.mark).filter(|mark| !mark.is_empty());
            let (settled, trouble) = (false, None);
            *sight = Some(Sight { now: object, last, marked: now, said, heard: now, settled, trouble });
            return;
        };
        if let Some(object) = &object {
            let mark = (self.mark)(object);
            if sight.last.as_ref().map(self.mark).as_ref() != Some(&mark) {
                sight.marked = Instant::now();
            }
            sight.said = Some(mark).filter(|mark| !mark.is_empty()).or(sight.said.take());
            sight.last = Some(object.clone());
        }
        sight.now = object;
    }
}

fn uid<K: Known>(object: Option<&K>) -> Option<String> {
    object?.meta().uid.clone()
}
