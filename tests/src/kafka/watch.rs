//! Watching one broker's partitions from outside, through brokers that are not it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::wire::{ClusterView, Door, Wire};
use crate::eventually;

/// How often the cluster is asked. A broker may be gone for only some tenths of a second.
const TICK: Duration = Duration::from_millis(30);

/// How one broker stands, as the others say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// It is registered and not fenced.
    pub listed: bool,
    /// The partitions it holds a replica of.
    pub replicas: usize,
    /// Those of them whose in-sync set it is in.
    pub in_sync: usize,
    /// Those it leads.
    pub leading: usize,
    /// Those that have no leader at all.
    pub leaderless: usize,
}

impl Standing {
    fn of(view: &ClusterView, broker: i32) -> Self {
        let held: Vec<_> =
            view.partitions.iter().filter(|partition| partition.replicas.contains(&broker)).collect();
        let count = |test: &dyn Fn(&super::Partition) -> bool| held.iter().filter(|held| test(held)).count();
        Self {
            listed: view.brokers.contains(&broker),
            replicas: held.len(),
            in_sync: count(&|partition| partition.isr.contains(&broker)),
            leading: count(&|partition| partition.leader == broker),
            leaderless: count(&|partition| partition.leader < 0),
        }
    }

    /// It is listed and in sync with every partition it holds.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.listed && self.in_sync == self.replicas
    }
}

/// When a broker came back, in seconds after the fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rejoin {
    /// The cluster knew that it was gone.
    pub gone: f64,
    /// It was listed again.
    pub listed: f64,
    /// Its first partition was in sync again.
    pub first_in_sync: f64,
    /// Its last one: the time-to-ISR.
    pub all_in_sync: f64,
}

/// Records every change of a broker's standing, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    broker: i32,
    changes: Arc<Mutex<Vec<(Instant, Standing)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches `broker` through whichever of `others` answers.
    pub(crate) fn start(broker: i32, others: Vec<Door>) -> Self {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (changes, stop) = (Arc::clone(&changes), Arc::clone(&stop));
            thread::spawn(move || poll(broker, &others, &changes, &stop))
        };
        Self { broker, changes, stop, thread: Some(thread) }
    }

    /// Every change so far.
    #[must_use]
    pub fn changes(&self) -> Vec<(Instant, Standing)> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How it stands now; `None` before the first answer.
    #[must_use]
    pub fn now(&self) -> Option<Standing> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).last().map(|(_, standing)| *standing)
    }

    /// Waits until its standing passes `test`.
    ///
    /// # Errors
    /// When it does not in `limit`; says how it stands.
    pub fn wait(&self, what: &str, limit: Duration, test: impl Fn(&Standing) -> bool) -> Result<Standing> {
        eventually(&format!("broker {} {what}", self.broker), limit, || match self.now() {
            Some(standing) if test(&standing) => Ok(standing),
            Some(standing) => Err(format!("{standing:?}")),
            None => Err("no answer from the cluster".to_owned()),
        })
    }

    /// Waits until the broker, which was complete before `fault`, was seen gone and is complete again. To be
    /// in every in-sync set is not enough: a dead broker is, until the controller has fenced it.
    ///
    /// # Errors
    /// When that has not happened in `limit`; says how it stands.
    pub fn wait_rejoined(&self, fault: Instant, limit: Duration) -> Result<Rejoin> {
        eventually(&format!("broker {} to leave and be back in every ISR", self.broker), limit, || {
            rejoin(&self.changes(), fault).with_context(|| format!("{:?}", self.now()))
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends within one request's limit; its panic would only hide the story's own failure.
            let _ = thread.join();
        }
    }
}

fn poll(broker: i32, others: &[Door], changes: &Mutex<Vec<(Instant, Standing)>>, stop: &AtomicBool) {
    let mut connection = None;
    let mut turn = others.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = turn.next().and_then(|other| Wire::connect(other, Duration::from_secs(1)).ok());
        }
        match connection.as_mut().map(Wire::metadata) {
            Some(Ok(view)) => {
                let standing = Standing::of(&view, broker);
                let mut changes = changes.lock().unwrap_or_else(PoisonError::into_inner);
                if changes.last().is_none_or(|(_, last)| *last != standing) {
                    changes.push((Instant::now(), standing));
                }
            }
            Some(Err(_)) | None => connection = None,
        }
        thread::sleep(TICK);
    }
}

/// The times of leaving and coming back, once both have happened.
fn rejoin(changes: &[(Instant, Standing)], fault: Instant) -> Option<Rejoin> {
    let first_after = |after: Instant, test: &dyn Fn(&Standing) -> bool| {
        changes.iter().find(|(at, standing)| *at >= after && test(standing)).map(|(at, _)| *at)
    };
    let gone = first_after(fault, &|standing| !standing.listed)?;
    let listed = first_after(gone, &|standing| standing.listed)?;
    let first = first_after(listed, &|standing| standing.in_sync > 0)?;
    let all = first_after(listed, &Standing::is_complete)?;
    let since = |at: Instant| at.duration_since(fault).as_secs_f64();
    Some(Rejoin {
        gone: since(gone),
        listed: since(listed),
        first_in_sync: since(first),
        all_in_sync: since(all),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(listed: bool, in_sync: usize) -> Standing {
        Standing { listed, replicas: 3, in_sync, leading: 0, leaderless: 0 }
    }

    #[test]
    fn a_dead_broker_that_still_shows_in_every_isr_is_not_back() {
        let fault = Instant::now();
        let at = |seconds| fault + Duration::from_secs(seconds);
        let mut changes = vec![(at(0), standing(true, 3))];
        assert_eq!(rejoin(&changes, fault), None);
        changes.push((at(2), standing(false, 0)));
        changes.push((at(5), standing(true, 0)));
        changes.push((at(6), standing(true, 1)));
        assert_eq!(rejoin(&changes, fault), None);
        changes.push((at(7), standing(true, 3)));
        let expected = Rejoin { gone: 2.0, listed: 5.0, first_in_sync: 6.0, all_in_sync: 7.0 };
        assert_eq!(rejoin(&changes, fault), Some(expected));
    }

    #[test]
    fn what_happened_before_the_fault_does_not_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let changes =
            vec![(at(0), standing(true, 3)), (at(1), standing(false, 0)), (at(2), standing(true, 3))];
        assert_eq!(rejoin(&changes, at(3)), None);
    }
}
