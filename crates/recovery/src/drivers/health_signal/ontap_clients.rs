//! What the storage itself counts: operations in each broker's volumes, and who has been using them.
//!
//! It tells "the storage stalls for all" from "this client stopped writing". A live Kafka writes its
//! checkpoints every 5 s (`replica.high.watermark.checkpoint.interval.ms`), so a volume in which nothing is
//! counted for longer has lost its client, or its storage; which of the two, the other volumes tell.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use ontap_client::{Client, Counters, NfsClient, VolumeCounters};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;

use crate::drivers::fence::OntapConfig;
use crate::drivers::fence::ontap_export::Login;
use crate::model::{BrokerId, CanaryOutcome, Evidence, Fact, HostName, Moment, VolumeUse, human};
use crate::ports::{Clock, HealthSignal, chain};

const SIGNAL: &str = "ontap_clients";

/// Twice Kafka's `replica.high.watermark.checkpoint.interval.ms`: a volume with less between two operations
/// is in use. Volumes that fell silent within so long of each other did so together.
const TWO_CHECKPOINTS: Duration = Duration::from_secs(10);

/// Watches by ONTAP's own counters whether brokers' volumes are in use, to tell a storage that stalls for all
/// from a client that stopped. Only there if this section is; all its keys may be left out.
///
/// It watches every broker with `[broker.storage.grant]` (or a complete `[broker.storage.snapshot]`) and
/// takes login, SVM and volumes from there; whose an address is, it takes from the fences `ontap_export` and
/// the grants. It only reads, with two requests for each SVM at a time.
///
/// If nothing at all is counted for `quiet_after` in any volume that was in use, and brokers of two hosts or
/// more fell silent together, the storage counts as stalled, as by a canary: nothing is taken over. One
/// volume without writes while others are written to is shown, and decides nothing. While ONTAP cannot be
/// asked, nothing is held for it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OntapClientsConfig {
    /// The time from one look to the next.
    #[serde(default = "two_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub period: Duration,
    /// A look that takes longer counts as none. One look and the next must fit into `policy.stale_after`.
    #[serde(default = "one_second", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub deadline: Duration,
    /// A volume counts as silent after so long without an operation. 10 s or longer: a live Kafka writes its
    /// checkpoints every 5 s, unless `replica.high.watermark.checkpoint.interval.ms` says otherwise.
    #[serde(default = "fifteen_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub quiet_after: Duration,
}

fn two_seconds() -> Duration {
    Duration::from_secs(2)
}

fn one_second() -> Duration {
    Duration::from_secs(1)
}

fn fifteen_seconds() -> Duration {
    Duration::from_secs(15)
}

/// The volumes of one broker, and where they are.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The broker.
    pub broker: BrokerId,
    /// Where ONTAP is, and the account to use there.
    pub ontap: OntapConfig,
    /// The SVM that the volumes belong to.
    pub svm: String,
    /// The volumes, by name.
    pub volumes: Vec<String>,
}

impl OntapClientsConfig {
    /// Everything that is wrong with it, as `key: what is wrong and what to do`. Evidence counts for
    /// `stale_after`.
    #[must_use]
    pub fn problems(&self, stale_after: Duration) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, value) in [("period", self.period), ("deadline", self.deadline)] {
            if value.is_zero() {
                problems.push(format!("{key}: must be longer than zero"));
            }
        }
        if self.quiet_after < TWO_CHECKPOINTS {
            problems.push(format!(
                "quiet_after: a live Kafka writes every 5 s; set it to {} or longer",
                human(TWO_CHECKPOINTS)
            ));
        }
        // What is seen is dated by when the look began.
        let oldest = self.period.max(self.deadline) + self.deadline;
        if oldest > stale_after {
            problems.push(format!(
                "deadline: a slow look and the next one take {}, and what is older than policy.stale_after ({}) counts \
                 as not seen; shorten `deadline` or `period`, or raise policy.stale_after",
                human(oldest),
                human(stale_after)
            ));
        }
        problems
    }

    /// One signal for each SVM. `hosts`: whose an address is, as far as it is configured.
    ///
    /// # Errors
    /// Every bad value of a login, as `key: what is wrong`.
    pub fn build(
        &self,
        watched: &[Watched],
        hosts: &BTreeMap<IpAddr, HostName>,
    ) -> Result<Vec<OntapClients>, Vec<String>> {
        let mut signals: BTreeMap<(&str, Option<&str>, &str), OntapClients> = BTreeMap::new();
        let mut problems = Vec::new();
        for one in watched {
            let login = match Login::of(&one.ontap) {
                Ok(login) => login,
                Err(said) => {
                    problems.extend(said);
                    continue;
                }
            };
            let place = (one.ontap.url.as_str(), one.ontap.user.as_deref(), one.svm.as_str());
            let signal = signals.entry(place).or_insert_with(|| OntapClients {
                config: self.clone(),
                login,
                svm: one.svm.clone(),
                volumes: BTreeMap::new(),
                hosts: hosts.clone(),
                client: Mutex::default(),
                tracks: Mutex::default(),
            });
            signal.volumes.extend(one.volumes.iter().map(|volume| (volume.clone(), one.broker)));
        }
        if problems.is_empty() { Ok(signals.into_values().collect()) } else { Err(problems) }
    }
}

/// The signal, of one SVM; see [`OntapClientsConfig`].
#[derive(Debug)]
pub struct OntapClients {
    config: OntapClientsConfig,
    login: Login,
    svm: String,
    /// Whose each volume is.
    volumes: BTreeMap<String, BrokerId>,
    hosts: BTreeMap<IpAddr, HostName>,
    /// Kept from look to look, for its connections; made anew after one that failed, with its secrets read
    /// anew.
    client: Mutex<Option<Client>>,
    tracks: Mutex<BTreeMap<String, Track>>,
}

/// The counters of a volume from look to look.
#[derive(Debug, Clone)]
struct Track {
    operations: Counter,
    writes: Counter,
    /// ONTAP's own date of the last reading.
    dated: Option<Timestamp>,
    /// Begin of the look that brought it.
    read: Moment,
}

/// A counter, and when it was last seen to have moved.
#[derive(Debug, Clone)]
struct Counter {
    value: u64,
    /// End of the look that saw it: what was counted came before. `None`: not seen to move yet, which says
    /// nothing.
    moved: Option<Moment>,
}

impl Counter {
    /// A counter that was reset has moved too: nobody knows what it missed.
    fn read(&mut self, value: u64, ended: Moment) {
        if value != self.value {
            *self = Self { value, moved: Some(ended) };
        }
    }
}

/// What was read of a volume; `None` if ONTAP does not vouch for it, or does not tell.
fn counted(counters: &Counters) -> Option<(u64, u64)> {
    if counters.status.as_deref().is_some_and(|status| status != "ok") {
        return None;
    }
    let operations = counters.operations;
    let sum = || Some(operations.read? + operations.write? + operations.other?);
    Some((operations.total.or_else(sum)?, operations.write?))
}

impl Track {
    /// Takes a reading in. One that ONTAP dates no later than the last is the last one once more, and shows
    /// no silence.
    fn follow(track: Option<&Self>, counters: &Counters, begun: Moment, ended: Moment) -> Option<Self> {
        let Some((operations, writes)) = counted(counters) else { return track.cloned() };
        let dated = counters.timestamp;
        let Some(mut track) = track.cloned() else {
            let first = |value| Counter { value, moved: None };
            return Some(Self { operations: first(operations), writes: first(writes), dated, read: begun });
        };
        if dated.is_some() && dated <= track.dated {
            return Some(track);
        }
        track.operations.read(operations, ended);
        track.writes.read(writes, ended);
        (track.dated, track.read) = (dated, begun);
        Some(track)
    }

    /// For how long it was seen not to move.
    fn still(&self, counter: &Counter) -> Option<Duration> {
        Some(self.read.since(counter.moved?))
    }
}

/// What is known of one broker's volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Use {
    quiet: Option<Duration>,
    unwritten: Option<Duration>,
    client_idle: Option<Duration>,
    /// Whose client used them last: a host's name, or an address.
    by: Option<String>,
}

/// Whether the storage stalls for all: nothing is counted anywhere, and brokers of two hosts fell silent
/// together. One that has been silent for long says nothing about now, and brokers of one host go together
/// with it.
fn stalls(all: &BTreeMap<BrokerId, Use>, after: Duration) -> bool {
    let quiet = || all.values().filter_map(|one| Some((one.quiet?, one)));
    let Some(least) = quiet().map(|(quiet, _)| quiet).min() else { return false };
    let together = quiet().filter(|(quiet, _)| *quiet <= least + TWO_CHECKPOINTS);
    let hosts: BTreeSet<&String> = together.filter_map(|(_, one)| one.by.as_ref()).collect();
    least > after && hosts.len() > 1
}

/// Whether a broker's client stopped writing while volumes of others are written to.
fn stopped(broker: BrokerId, all: &BTreeMap<BrokerId, Use>, after: Duration) -> bool {
    let silent = |one: &Use| one.unwritten.map(|unwritten| unwritten > after);
    let others = || all.iter().filter(|(id, _)| **id != broker).map(|(_, one)| one);
    all.get(&broker).and_then(silent) == Some(true) && others().any(|one| silent(one) == Some(false))
}

/// Whether `name` is the volume, or a constituent of it (`NAME__0001`).
fn is_of(name: &str, volume: &str) -> bool {
    name.strip_prefix(volume).is_some_and(|rest| rest.is_empty() || rest.starts_with("__"))
}

impl OntapClients {
    async fn client(&self) -> Result<Client, String> {
        let kept = lock(&self.client).clone();
        if let Some(client) = kept {
            return Ok(client);
        }
        let client = self.login.client(self.config.deadline).await;
        let client = client.map_err(|error| chain(error.as_ref()))?;
        *lock(&self.client) = Some(client.clone());
        Ok(client)
    }

    /// Both lists, side by side.
    async fn read(&self) -> Result<(Vec<VolumeCounters>, Vec<NfsClient>), String> {
        let client = self.client().await?;
        let names: Vec<&str> = self.volumes.keys().map(String::as_str).collect();
        let read =
            tokio::try_join!(client.counters_of(&self.svm, &names), client.nfs_clients_of(&self.svm, &names));
        let (counters, clients) = read.map_err(|error| chain(&error))?;
        let told = |name: &&str| counters.iter().any(|one| one.name == **name && one.statistics.is_some());
        let missing: Vec<&str> = names.iter().filter(|name| !told(name)).copied().collect();
        if missing.is_empty() {
            return Ok((counters, clients));
        }
        Err(format!("ONTAP shows no counters of {} in {}", missing.join(", "), self.svm))
    }

    /// Takes the counters in, and says how each broker's volumes are used.
    fn follow(
        &self,
        counters: &[VolumeCounters],
        clients: &[NfsClient],
        begun: Moment,
        ended: Moment,
    ) -> BTreeMap<BrokerId, Use> {
        let mut tracks = lock(&self.tracks);
        let mut all: BTreeMap<BrokerId, Use> = BTreeMap::new();
        for (volume, broker) in &self.volumes {
            let read = counters.iter().find(|one| one.name == *volume);
            let read = read.and_then(|one| one.statistics.as_ref());
            let track = read.and_then(|read| Track::follow(tracks.get(volume), read, begun, ended));
            let one = all.entry(*broker).or_default();
            if let Some(track) = track {
                one.quiet = least(one.quiet, track.still(&track.operations));
                one.unwritten = least(one.unwritten, track.still(&track.writes));
                tracks.insert(volume.clone(), track);
            }
            for client in clients {
                let of = client.volume.name.as_deref().is_some_and(|name| is_of(name, volume));
                if of && client.idle.is_some() && one.client_idle.is_none_or(|idle| client.idle < Some(idle))
                {
                    (one.client_idle, one.by) = (client.idle, self.whose(client));
                }
            }
        }
        all
    }

    fn whose(&self, client: &NfsClient) -> Option<String> {
        let address = client.client_ip.as_ref()?;
        let host = address.parse::<IpAddr>().ok().and_then(|ip| self.hosts.get(&ip.to_canonical()));
        Some(host.map_or_else(|| address.clone(), |host| host.0.clone()))
    }

    fn facts(&self, all: &BTreeMap<BrokerId, Use>) -> Vec<Fact> {
        let after = self.config.quiet_after;
        let mut facts: Vec<Fact> = Vec::new();
        for (broker, one) in all {
            let Use { quiet, unwritten, client_idle, .. } = *one;
            let stopped = stopped(*broker, all, after);
            let usage = VolumeUse { quiet, unwritten, client_idle, stopped };
            facts.push(Fact::Volumes { broker: *broker, usage });
        }
        if stalls(all, after) {
            let (canary, brokers) = (format!("{SIGNAL} {}", self.svm), all.keys().copied().collect());
            facts.push(Fact::Storage { canary, brokers, outcome: CanaryOutcome::Stalled });
        }
        facts
    }
}

fn least(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    [one, other].into_iter().flatten().min()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl HealthSignal for OntapClients {
    fn name(&self) -> &'static str {
        SIGNAL
    }

    fn period(&self) -> Duration {
        self.config.period
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let begun = clock.now().mono;
        let read = timeout(self.config.deadline, self.read()).await;
        let ended = clock.now().mono;
        let limit = self.config.deadline;
        let facts = match read.unwrap_or_else(|_| Err(format!("no answer within {}", human(limit)))) {
            Ok((counters, clients)) => self.facts(&self.follow(&counters, &clients, begun, ended)),
            Err(why) => {
                // The password may have been changed.
                *lock(&self.client) = None;
                vec![Fact::Blind { why: format!("{}: {why}", self.svm) }]
            }
        };
        facts.into_iter().map(|fact| Evidence { signal: SIGNAL, at: begun, fact }).collect()
    }
}

#[cfg(test)]
mod tests;
