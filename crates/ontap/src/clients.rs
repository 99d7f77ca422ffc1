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
use ontap_client::{Client, Counters, NfsClient, VolumeCounters, is_constituent};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use crate::OntapConfig;
use crate::login::Login;
use crate::moves::{self, Places};
use recovery::model::{BrokerId, CanaryOutcome, Evidence, Fact, HostName, Moment, VolumeUse, human};
use recovery::ports::{Clock, HealthSignal, chain};

mod refused;

use self::refused::{Kept, Miss, Refused};

const SIGNAL: &str = "ontap_clients";

/// Twice Kafka's `replica.high.watermark.checkpoint.interval.ms`: a volume with less between two operations
/// is in use. Volumes that fell silent within so long of each other did so together.
const TWO_CHECKPOINTS: Duration = Duration::from_secs(10);

/// Watches by ONTAP's own counters whether brokers' volumes are in use, to tell a storage that stalls for all
/// from a client that stopped. Only there if this section is; all its keys may be left out.
///
/// It also notices, every 10 s, that an interface, an aggregate or a node has moved, after which ONTAP grants
/// no new lock for a while: a takeover's time is predicted with it.
///
/// It watches every broker with `[broker.storage.grant]` (or a complete `[broker.storage.snapshot]`) and
/// takes login, SVM and volumes from there; whose an address is, it takes from the fences `ontap_export` and
/// the grants. It only reads, with two requests for each SVM at a time, and five more every 10 s.
///
/// If nothing at all is counted for `quiet_after` in any volume that was in use, and brokers of two hosts or
/// more fell silent together, the storage counts as stalled, as by a canary: nothing is taken over. One
/// volume without writes while others are written to is shown, and decides nothing. While ONTAP cannot be
/// asked, nothing is held for it. A login that ONTAP refuses is tried again after 30 s, and then after twice
/// as long each time, up to 10 min; at once when its secret file changes.
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
        let mut signals: BTreeMap<(String, Option<&str>, &str), OntapClients> = BTreeMap::new();
        let mut problems = Vec::new();
        for one in watched {
            let login = match Login::of(&one.ontap) {
                Ok(login) => login,
                Err(said) => {
                    problems.extend(said);
                    continue;
                }
            };
            let place = (one.ontap.place(), one.ontap.user.as_deref(), one.svm.as_str());
            let signal = signals.entry(place).or_insert_with(|| OntapClients {
                config: self.clone(),
                login,
                svm: one.svm.clone(),
                volumes: BTreeMap::new(),
                hosts: hosts.clone(),
                kept: Mutex::default(),
                refused: Mutex::default(),
                tracks: Mutex::default(),
                moves: Mutex::default(),
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
    kept: Mutex<Option<Kept>>,
    /// The last login, if it was refused.
    refused: Mutex<Option<Refused>>,
    tracks: Mutex<BTreeMap<String, Track>>,
    moves: Mutex<Moves>,
}

/// The counters of a volume from look to look.
#[derive(Debug, Clone)]
struct Track {
    operations: Counter,
    writes: Counter,
    /// ONTAP's own date of the last reading.
    dated: Timestamp,
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

/// What was read of a volume, and ONTAP's date of it; `None` if ONTAP does not vouch for it, does not tell,
/// or does not say when: then it may be the last reading once more.
fn counted(counters: &Counters) -> Option<(u64, u64, Timestamp)> {
    if counters.status.as_deref().is_some_and(|status| status != "ok") {
        return None;
    }
    let operations = counters.operations;
    let sum = || Some(operations.read? + operations.write? + operations.other?);
    Some((operations.total.or_else(sum)?, operations.write?, counters.timestamp?))
}

impl Track {
    /// Takes a reading in. One that ONTAP dates no later than the last is the last one once more, and shows
    /// no silence.
    fn follow(track: Option<&Self>, counters: &Counters, begun: Moment, ended: Moment) -> Option<Self> {
        let Some((operations, writes, dated)) = counted(counters) else { return track.cloned() };
        let Some(mut track) = track.cloned() else {
            let first = |value| Counter { value, moved: None };
            return Some(Self { operations: first(operations), writes: first(writes), dated, read: begun });
        };
        if dated <= track.dated {
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

/// Where the SVM was served from, and when that was seen to change.
#[derive(Debug, Default)]
struct Moves {
    last: Option<(Moment, Places)>,
    /// The end of the look that saw it, and how long clients may reclaim their locks.
    moved: Option<(Moment, Duration)>,
}

impl Moves {
    /// For how long no new lock may be granted.
    fn left(&self, now: Moment) -> Option<Duration> {
        let (moved, grace) = self.moved?;
        Some(grace.saturating_sub(now.since(moved))).filter(|left| !left.is_zero())
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

/// Whether `name` is the volume, or a constituent of it.
fn is_of(name: &str, volume: &str) -> bool {
    name == volume || is_constituent(volume, name)
}

impl OntapClients {
    async fn client(&self) -> Result<Kept, Miss> {
        let kept = lock(&self.kept).clone();
        if let Some(kept) = kept {
            return Ok(kept);
        }
        // Before they are read: whoever changes them meanwhile is not to be missed.
        let secrets = self.login.stamp().await;
        let client = self.login.client(self.config.deadline).await;
        let client = client.map_err(|error| Miss::Other(chain(error.as_ref())))?;
        let kept = Kept { client, secrets, proven: false };
        *lock(&self.kept) = Some(kept.clone());
        Ok(kept)
    }

    /// Both lists, side by side once the login is no wrong one.
    async fn read(&self) -> Result<(Vec<VolumeCounters>, Vec<NfsClient>), Miss> {
        let kept = self.client().await?;
        let names: Vec<&str> = self.volumes.keys().map(String::as_str).collect();
        let counters = kept.client.counters_of(&self.svm, &names);
        let clients = kept.client.nfs_clients_of(&self.svm, &names);
        let read = match kept.proven {
            true => tokio::try_join!(counters, clients),
            // Two wrong logins at once might lock the account.
            false => match counters.await {
                Ok(counters) => {
                    lock(&self.kept).iter_mut().for_each(|kept| kept.proven = true);
                    clients.await.map(|clients| (counters, clients))
                }
                Err(error) if error.refusal().is_some_and(|refusal| refusal.status == 403) => {
                    return Err(Miss::Login(kept.secrets, chain(&error)));
                }
                Err(error) => Err(error),
            },
        };
        read.map_err(|error| match error.is_unauthorized() {
            true => Miss::Login(kept.secrets, chain(&error)),
            false => Miss::Other(chain(&error)),
        })
    }

    /// Why nothing is asked now. The files are looked at only while a login is not tried.
    async fn waits(&self, now: Moment) -> Option<String> {
        let refused = lock(&self.refused).clone()?;
        let why = refused.waits(now)?;
        let secrets = self.login.stamp().await;
        (!refused.is_of_others(&secrets)).then_some(why)
    }

    /// What a look came to that read nothing. The next one reads the secrets anew, which may have been
    /// changed.
    fn missed(&self, miss: Miss, begun: Moment) -> Fact {
        *lock(&self.kept) = None;
        let why = match miss {
            Miss::Other(why) => why,
            Miss::Login(secrets, why) => {
                let mut last = lock(&self.refused);
                let refused = Refused::after(last.as_ref(), why.clone(), begun, secrets);
                let why = refused.waits(begun).unwrap_or(why);
                *last = Some(refused);
                why
            }
        };
        Fact::Blind { why: format!("{}: {why}", self.svm) }
    }

    /// Sees every now and then whether what serves the SVM has moved. What cannot be read has not. `client`:
    /// one that had proven its login when the look began.
    async fn see_moves(&self, client: Option<Client>, clock: &dyn Clock) {
        let due = |last: &(Moment, Places)| clock.now().mono.since(last.0) >= moves::LOOKS_APART;
        if !lock(&self.moves).last.as_ref().is_none_or(due) {
            return;
        }
        let Some(client) = client else { return };
        let names: Vec<&str> = self.volumes.keys().map(String::as_str).collect();
        let Ok(now) = moves::places(&client, &self.svm, &names).await else { return };
        let before = lock(&self.moves).last.clone();
        let moved = before.as_ref().is_some_and(|(_, before)| now.moved_since(before));
        let grace = if moved { Some(moves::grace(&client, &self.svm).await) } else { None };
        let at = clock.now().mono;
        if let Some((seen, before)) = before {
            // By the clock of this process, which a takeover has too.
            let after = Instant::now().checked_sub(at.since(seen)).unwrap_or_else(Instant::now);
            moves::keep((self.login.name(), &self.svm), &before, &now, after);
        }
        let mut moves = lock(&self.moves);
        moves.last = Some((at, now));
        moves.moved = grace.map(|grace| (at, grace)).or(moves.moved);
    }

    /// The volumes of which ONTAP shows no counters, or none with a date. The others are seen all the same.
    fn unseen(&self, counters: &[VolumeCounters]) -> BTreeSet<&str> {
        let of = |name: &str| counters.iter().find(|one| one.name == name)?.statistics.as_ref();
        let told = |name: &str| of(name).is_some_and(|read| read.timestamp.is_some());
        self.volumes.keys().map(String::as_str).filter(|name| !told(name)).collect()
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
        let unseen = self.unseen(counters);
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
        // What is not seen of a broker may be at work.
        for volume in unseen {
            tracks.remove(volume);
            let broker = self.volumes.get(volume).and_then(|broker| all.get_mut(broker));
            broker.into_iter().for_each(|one| (one.quiet, one.unwritten) = (None, None));
        }
        all
    }

    fn whose(&self, client: &NfsClient) -> Option<String> {
        let address = client.client_ip.as_ref()?;
        let host = address.parse::<IpAddr>().ok().and_then(|ip| self.hosts.get(&ip.to_canonical()));
        Some(host.map_or_else(|| address.clone(), |host| host.0.clone()))
    }

    fn facts(&self, all: &BTreeMap<BrokerId, Use>, now: Moment) -> Vec<Fact> {
        let grace = lock(&self.moves).left(now);
        let after = self.config.quiet_after;
        let mut facts: Vec<Fact> = Vec::new();
        for (broker, one) in all {
            let Use { quiet, unwritten, client_idle, .. } = *one;
            let stopped = stopped(*broker, all, after);
            let usage = VolumeUse { quiet, unwritten, client_idle, stopped, grace };
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
        let limit = self.config.deadline;
        if let Some(why) = self.waits(begun).await {
            let fact = Fact::Blind { why: format!("{}: {why}", self.svm) };
            return vec![Evidence { signal: SIGNAL, at: begun, fact }];
        }
        let proven = lock(&self.kept).as_ref().filter(|kept| kept.proven).map(|kept| kept.client.clone());
        let (read, _) =
            tokio::join!(timeout(limit, self.read()), timeout(limit, self.see_moves(proven, clock)));
        let ended = clock.now().mono;
        let late = |_| Err(Miss::Other(format!("no answer within {}", human(limit))));
        let facts = match read.unwrap_or_else(late) {
            Ok((counters, clients)) => {
                *lock(&self.refused) = None;
                let mut facts = self.facts(&self.follow(&counters, &clients, begun, ended), ended);
                let unseen = self.unseen(&counters).into_iter().collect::<Vec<_>>().join(", ");
                let blind =
                    || Fact::Blind { why: format!("{}: ONTAP shows no counters of {unseen}", self.svm) };
                facts.extend((!unseen.is_empty()).then(blind));
                facts
            }
            Err(miss) => vec![self.missed(miss, begun)],
        };
        facts.into_iter().map(|fact| Evidence { signal: SIGNAL, at: begun, fact }).collect()
    }
}

#[cfg(test)]
mod tests;
