//! Whoever runs as which broker, by the process tables of all hosts: the one thing that must never be double.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::host::Host;

/// How often every host is looked at.
const TICK: Duration = Duration::from_millis(200);

type Hosts = BTreeMap<String, Arc<Host>>;
/// Host and process id of every Kafka of a broker. A host without power has none.
pub(super) type Carriers = BTreeMap<i32, BTreeSet<(String, i32)>>;

/// Looks at all hosts until it is dropped.
#[derive(Debug)]
pub(super) struct Lookout {
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Seen {
    looks: AtomicU64,
    doubles: Mutex<Vec<String>>,
}

impl Lookout {
    pub(super) fn start(hosts: Hosts) -> Self {
        let (seen, stop) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    look(&hosts, &seen);
                    thread::sleep(TICK);
                }
            })
        };
        Self { seen, stop, thread: Some(thread) }
    }

    /// No broker ran twice so far. Returns how often it was looked.
    pub(super) fn ensure_never_double(&self) -> Result<u64> {
        let doubles = self.seen.doubles.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(doubles.is_empty(), "{}", doubles.join("\n"));
        ensure!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the lookout fell asleep");
        Ok(self.seen.looks.load(Ordering::Relaxed))
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends within one look; its panic would only hide the marathon's own failure.
            let _ = thread.join();
        }
    }
}

fn look(hosts: &Hosts, seen: &Seen) {
    let first = carriers(hosts);
    seen.looks.fetch_add(1, Ordering::Relaxed);
    if first.values().all(|found| found.len() < 2) {
        return;
    }
    // Hosts are looked at one after the other: who moved in between shows twice. Whoever is there both times
    // was there while the other was looked at.
    let second = carriers(hosts);
    for (broker, both) in doubles(&first, &second) {
        let mut doubles = seen.doubles.lock().unwrap_or_else(PoisonError::into_inner);
        doubles.push(format!("two Kafkas run as broker {broker} at once: {both:?}"));
    }
}

fn doubles(first: &Carriers, second: &Carriers) -> Carriers {
    let none = BTreeSet::new();
    let stayed = first.iter().map(|(broker, found)| {
        let again = second.get(broker).unwrap_or(&none);
        (*broker, found.intersection(again).cloned().collect::<BTreeSet<_>>())
    });
    stayed.filter(|(_, both)| both.len() > 1).collect()
}

/// Every Kafka of every host that has power, frozen ones included.
pub(super) fn carriers(hosts: &Hosts) -> Carriers {
    let mut carriers = Carriers::new();
    for (name, host) in hosts {
        // A host that is off carries nothing.
        for pid in host.processes(&["kafka.Kafka"]).unwrap_or_default() {
            let pid = pid.as_raw_nonzero().get();
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if let Some(broker) = broker_of(&line) {
                carriers.entry(broker).or_default().insert((name.clone(), pid));
            }
        }
    }
    carriers
}

/// The broker that a command line starts, by the name of its properties: `b1.properties` as its unit does,
/// `broker-1/server.properties` as an agent does.
fn broker_of(line: &[u8]) -> Option<i32> {
    let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.into_iter().find_map(|word| {
        let path = word.strip_suffix("/server.properties").or_else(|| word.strip_suffix(".properties"))?;
        let name = path.rsplit('/').next()?;
        name.strip_prefix("broker-").or_else(|| name.strip_prefix('b'))?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_known_by_its_properties() {
        let line = |properties: &str| format!("java\0-Xmx1g\0kafka.Kafka\0{properties}\0").into_bytes();
        assert_eq!(broker_of(&line("/a/conf/b2.properties")), Some(2));
        assert_eq!(broker_of(&line("/srv/local/state/broker-13/server.properties")), Some(13));
        assert_eq!(broker_of(&line("/a/conf/c1.properties")), None);
    }

    #[test]
    fn who_moves_while_we_look_is_not_double() {
        let seen = |entries: &[(&str, i32)]| -> Carriers {
            let found = entries.iter().map(|(host, pid)| ((*host).to_owned(), *pid)).collect();
            [(1, found)].into()
        };
        let both = seen(&[("b1", 7), ("standby-1", 9)]);
        assert_eq!(doubles(&both, &seen(&[("standby-1", 9)])), Carriers::new());
        assert_eq!(doubles(&both, &seen(&[("b1", 8), ("standby-1", 9)])), Carriers::new());
        assert_eq!(doubles(&both, &both), both);
    }
}
