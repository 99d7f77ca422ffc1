//! Snapshots of a broker's volumes, taken before its new owner is let in.
//!
//! The storage step comes after the proof that nobody writes, so a snapshot holds what the old owner left.
//! Its name is made of the broker and the epoch: whoever repeats the step finds it.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use ontap_client::{Client, NewSnapshot, Snapshot, SnapshotState, Volume, VolumeState, VolumeStyle};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};

use crate::login::Login;
use crate::{OntapConfig, OntapGrantConfig};
use recovery::model::{BrokerId, Epoch, human};
use recovery::ports::{Note, StepError, chain};

const DRIVER: &str = "ontap_snapshot";

/// Between two looks at a snapshot that nobody has confirmed yet.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a takeover waits at most for old snapshots to be deleted. The next one deletes the rest.
const PRUNE_LIMIT: Duration = Duration::from_secs(2);

/// `check` points out a volume with less of it free, in percent: what a snapshot holds stays in it.
const LITTLE_ROOM: u64 = 10;

/// A snapshot of each of the broker's volumes, named as `understudy-broker-1-epoch-7`. It is taken after the
/// proof and before this host is let in, to come back to if something is wrong with what it does.
///
/// A snapshot keeps what Kafka deletes afterwards, and that counts in the volume: leave room for it. A
/// restart in place and a switchover take one as well, for they are epochs too.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotConfig {
    /// Where ONTAP is, and the account to use there. That of `grant`, if it is left out.
    #[serde(default)]
    pub ontap: Option<OntapConfig>,
    /// The SVM that the volumes belong to. That of `grant`, if it is left out.
    #[serde(default)]
    pub svm: Option<String>,
    /// The volumes of this broker, all of them. Those of `grant`, if it is left out.
    #[serde(default)]
    pub volumes: Option<Vec<String>>,
    /// How many of these snapshots of this broker are kept on each volume, the new one among them. Older ones
    /// are deleted after it was taken; nobody else's ever are. What Kafka deletes stays in them and counts in
    /// the volume: leave room.
    #[serde(default = "two")]
    pub keep: usize,
    /// Whether a takeover without a snapshot is none: `true` abandons it, `false` goes on and says so.
    #[serde(default)]
    pub required: bool,
    /// How long the takeover waits for the snapshots.
    #[serde(default = "five_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

fn two() -> usize {
    2
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

impl SnapshotConfig {
    /// What takes them, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub(super) fn build(
        self,
        broker: BrokerId,
        grant: Option<&OntapGrantConfig>,
    ) -> Result<Snapshots, Vec<String>> {
        let mut problems = Vec::new();
        let contradiction = "is not what `grant` says; leave it out here";
        if let (Some(svm), Some(grant)) = (&self.svm, grant)
            && *svm != grant.svm
        {
            problems.push(format!("svm: {contradiction}"));
        }
        if let (Some(volumes), Some(grant)) = (&self.volumes, grant)
            && set(volumes) != set(&grant.volumes)
        {
            problems.push(format!("volumes: {contradiction}"));
        }
        let svm = self.svm.or_else(|| grant.map(|grant| grant.svm.clone())).unwrap_or_default();
        if svm.is_empty() {
            problems.push("svm: name the SVM that the volumes belong to".to_owned());
        }
        let volumes = self.volumes.or_else(|| grant.map(|grant| grant.volumes.clone())).unwrap_or_default();
        if volumes.is_empty() || volumes.iter().any(String::is_empty) {
            problems.push("volumes: name every volume of the broker".to_owned());
        }
        if set(&volumes).len() < volumes.len() {
            problems.push("volumes: one of them is named twice".to_owned());
        }
        if self.keep == 0 {
            problems.push("keep: must be 1 or more: the new one is among them".to_owned());
        }
        if self.timeout.is_zero() {
            problems.push("timeout: must be longer than zero".to_owned());
        }
        let login = match self.ontap.as_ref().or(grant.map(|grant| &grant.ontap)) {
            Some(ontap) => Login::of(ontap).map_err(|said| problems.extend(said)).ok(),
            None => {
                problems.push("ontap: is missing, and there is no `grant` to take it from".to_owned());
                None
            }
        };
        let Some(login) = login.filter(|_| problems.is_empty()) else { return Err(problems) };
        let Self { keep, required, timeout, .. } = self;
        Ok(Snapshots { login, svm, volumes, broker, keep, required, timeout })
    }
}

fn set(names: &[String]) -> BTreeSet<&String> {
    names.iter().collect()
}

/// Takes the snapshots of one broker; see [`SnapshotConfig`].
#[derive(Debug)]
pub(super) struct Snapshots {
    login: Login,
    svm: String,
    volumes: Vec<String>,
    broker: BrokerId,
    keep: usize,
    required: bool,
    timeout: Duration,
}

/// A volume that has the snapshot of this epoch.
struct Held {
    volume: Volume,
    taken: Option<Timestamp>,
    /// Whether it was there before anybody asked for it.
    before: bool,
}

/// How far it has come with one volume, to say so when the time is up.
#[derive(Default)]
struct Attempt {
    /// Whether ONTAP was asked for it.
    asked: bool,
    /// Why the last look was not the end of it.
    last: String,
}

impl Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.last.is_empty() {
            write!(f, " ({})", self.last)?;
        }
        if self.asked {
            f.write_str(". It may be taken yet, and then holds what the new owner has written by then")?;
        }
        Ok(())
    }
}

/// What came of taking them.
pub(super) struct Taken {
    pub(super) note: Note,
    held: Vec<Held>,
    /// The way to ONTAP, if there is one.
    client: Option<Client>,
}

/// The name of a broker's snapshot of an epoch.
fn name(broker: BrokerId, epoch: Epoch) -> String {
    format!("understudy-broker-{broker}-epoch-{epoch}")
}

/// The epoch of a snapshot of ours, of this broker. `None`: it is somebody else's.
fn epoch_of(broker: BrokerId, found: &str) -> Option<Epoch> {
    let epoch = found.rsplit_once('-')?.1.parse().map(Epoch).ok()?;
    (name(broker, epoch) == found).then_some(epoch)
}

/// Whether what is there is what was to be there. The inner `Ok`: it can be used; `Err`: not known yet.
fn verdict(snapshot: &Snapshot, volume: &Volume) -> Result<Result<(), String>, String> {
    match &snapshot.state {
        Some(SnapshotState::Valid) => Ok(Ok(())),
        // Only a FlexGroup's has a state.
        None if volume.style != Some(VolumeStyle::FlexGroup) => Ok(Ok(())),
        None | Some(SnapshotState::NotKnown) => Ok(Err("ONTAP does not say whether it is valid".to_owned())),
        Some(state) => Err(format!(
            "ONTAP calls it `{state}`, which nothing can be brought back from: delete it by hand to have another taken"
        )),
    }
}

/// Those of `found` that are to be deleted: ours, and older than the newest `keep` usable ones. Never that of
/// `present`, nor of a newer epoch; what cannot be used does not count as kept.
fn surplus<'a>(
    found: &'a [Snapshot],
    volume: &Volume,
    broker: BrokerId,
    present: Epoch,
    keep: usize,
) -> Vec<&'a Snapshot> {
    let ours = found.iter().filter_map(|snapshot| Some((epoch_of(broker, &snapshot.name)?, snapshot)));
    let mut ours: Vec<(Epoch, &Snapshot)> = ours.collect();
    ours.sort_by_key(|(epoch, _)| std::cmp::Reverse(*epoch));
    let mut kept = 0;
    let mut old = Vec::new();
    for (epoch, snapshot) in ours {
        if kept >= keep && epoch < present {
            old.push(snapshot);
        }
        kept += usize::from(matches!(verdict(snapshot, volume), Ok(Ok(()))));
    }
    old
}

impl Snapshots {
    /// Ensures that every volume has the snapshot of this epoch.
    pub(super) async fn take(&self, epoch: Epoch) -> Result<Taken, StepError> {
        let begun = Instant::now();
        let until = begun + self.timeout;
        let name = name(self.broker, epoch);
        let client = match timeout_at(until, self.login.client(self.timeout)).await {
            Ok(client) => client.map_err(|error| chain(error.as_ref())),
            Err(_) => Err(format!("the login could not be read within {}", human(self.timeout))),
        };
        let (mut held, mut missing) = (Vec::new(), Vec::new());
        match &client {
            Ok(client) => {
                let all = self.volumes.iter().map(|volume| self.hold(client, volume, &name, until));
                for (volume, outcome) in self.volumes.iter().zip(join_all(all).await) {
                    match outcome {
                        Ok(one) => held.push(one),
                        Err(why) => missing.push(format!("{volume}: {why}")),
                    }
                }
            }
            Err(why) => missing.push(format!("{}: {why}", self.volumes.join(", "))),
        }
        if self.required && !missing.is_empty() {
            let why = format!(
                "{}. Nothing goes on without it, for `required = true` in [broker.storage.snapshot]",
                missing.join("; ")
            );
            return Err(refused(format!("take snapshot {name}"), why));
        }
        let note = told(&name, &held, &missing, begun.elapsed());
        Ok(Taken { note, held, client: client.ok() })
    }

    /// Ensures that one volume has it, or says why it has not.
    async fn hold(&self, client: &Client, volume: &str, name: &str, until: Instant) -> Result<Held, String> {
        let mut attempt = Attempt::default();
        match timeout_at(until, self.ensure(client, volume, name, &mut attempt)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("not confirmed within {}{attempt}", human(self.timeout))),
        }
    }

    /// Reads and asks until it is there. A volume has a name once, so that to ask again takes no second one.
    async fn ensure(
        &self,
        client: &Client,
        volume: &str,
        name: &str,
        attempt: &mut Attempt,
    ) -> Result<Held, String> {
        let volume = client.volume(&self.svm, volume).await.map_err(|error| chain(&error))?;
        let volume = volume.ok_or_else(|| format!("there is no such volume in {}", self.svm))?;
        loop {
            let mut found = client.snapshot(&volume.uuid, name).await.map_err(|error| chain(&error))?;
            if found.is_none() {
                attempt.asked = true;
                match client.create_snapshot(&volume.uuid, &NewSnapshot::named(name)).await {
                    Ok(new) => found = Some(new),
                    Err(error) if may_come(&error) => attempt.last = chain(&error),
                    Err(error) => return Err(chain(&error)),
                }
            }
            if let Some(snapshot) = found {
                match verdict(&snapshot, &volume)? {
                    Ok(()) => {
                        return Ok(Held { volume, taken: snapshot.create_time, before: !attempt.asked });
                    }
                    Err(why) => attempt.last = why,
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Deletes what is older than is to be kept, on volumes that hold the present one.
    pub(super) async fn prune(&self, taken: &Taken, present: Epoch) -> Note {
        let Some(client) = &taken.client else { return Note::default() };
        let until = Instant::now() + self.timeout.min(PRUNE_LIMIT);
        let all = taken.held.iter().map(|held| self.prune_one(client, &held.volume, present, until));
        let (mut deleted, mut left) = (Vec::new(), Vec::new());
        for (gone, why) in join_all(all).await {
            deleted.extend(gone);
            left.extend(why);
        }
        let all = (!left.is_empty()).then(|| format!("old snapshots were not deleted ({})", left.join("; ")));
        Note::default()
            .warn(all)
            .with("snapshots_deleted", deleted.join(", "))
            .with("snapshots_not_deleted", left.join("; "))
    }

    /// What was deleted of one volume, and what not.
    async fn prune_one(
        &self,
        client: &Client,
        volume: &Volume,
        present: Epoch,
        until: Instant,
    ) -> (Vec<String>, Vec<String>) {
        let late = || "it was not confirmed in time".to_owned();
        let found = match timeout_at(until, client.snapshots(&volume.uuid)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return (Vec::new(), vec![format!("{}: {}", volume.name, chain(&error))]),
            Err(_) => return (Vec::new(), vec![format!("{}: {}", volume.name, late())]),
        };
        let deletions =
            surplus(&found, volume, self.broker, present, self.keep).into_iter().map(async |old| {
                let of = format!("{} of {}", old.name, volume.name);
                match timeout_at(until, client.delete_snapshot(&volume.uuid, &old.uuid)).await {
                    Ok(Ok(())) => Ok(of),
                    Ok(Err(error)) => Err(format!("{of}: {}", chain(&error))),
                    Err(_) => Err(format!("{of}: {}", late())),
                }
            });
        let (mut deleted, mut left) = (Vec::new(), Vec::new());
        for outcome in join_all(deletions).await {
            match outcome {
                Ok(of) => deleted.push(of),
                Err(why) => left.push(why),
            }
        }
        (deleted, left)
    }

    /// Whether they could be taken, as far as reading shows.
    pub(super) async fn check(&self) -> Result<Note, StepError> {
        let looks = async {
            let client = match self.login.client(self.timeout).await {
                Ok(client) => client,
                Err(error) => return vec![Err(chain(error.as_ref()))],
            };
            join_all(self.volumes.iter().map(|volume| self.look(&client, volume))).await
        };
        let looks = timeout(self.timeout, looks)
            .await
            .unwrap_or_else(|_| vec![Err(format!("no answer within {}", human(self.timeout)))]);
        let (mut good, mut bad) = (Note::default(), Vec::new());
        for look in looks {
            match look {
                Ok(note) => good = good.and(note),
                Err(why) => bad.push(why),
            }
        }
        if bad.is_empty() {
            let text = format!(
                "snapshots can be taken of {} ({} are kept; whether the account may take and delete them is not tried)",
                good.text, self.keep
            );
            return Ok(Note { text, ..good });
        }
        let why = bad.join("; ");
        if self.required {
            return Err(refused(format!("be sure of snapshots for broker {}", self.broker), why));
        }
        Ok(Note::warning(format!("a takeover would go on without a snapshot: {why}")))
    }

    /// One volume in words, or why no snapshot can be taken of it.
    async fn look(&self, client: &Client, name: &str) -> Result<Note, String> {
        let failed = |error: ontap_client::Error| format!("{name}: {}", chain(&error));
        let volume = client.volume(&self.svm, name).await.map_err(failed)?;
        let volume = volume.ok_or_else(|| format!("there is no volume {name} in {}", self.svm))?;
        if let Some(state) = volume.state.as_ref().filter(|state| **state != VolumeState::Online) {
            return Err(format!("{name} is {state}"));
        }
        let found = client.snapshots(&volume.uuid).await.map_err(failed)?;
        let ours = found.iter().filter(|found| epoch_of(self.broker, &found.name).is_some()).count();
        let mut little = false;
        let room = match (volume.space.available_bytes, volume.space.size_bytes.filter(|size| *size > 0)) {
            (Some(free), Some(size)) => {
                let percent = u128::from(free) * 100 / u128::from(size);
                little = percent < u128::from(LITTLE_ROOM);
                format!("{percent} % free")
            }
            _ => "ONTAP does not say how much is free".to_owned(),
        };
        let little = little.then(|| format!("what a snapshot keeps may fill {name}"));
        Ok(Note::new(format!("{name} ({ours} of ours now; {room})")).warn(little))
    }
}

/// Whether a later look may find it: nobody knows yet, somebody else was at it, or the error passes.
fn may_come(error: &ontap_client::Error) -> bool {
    error.is_unconfirmed()
        || error.is_passing()
        || error.is_in_use()
        || error.is_duplicate()
        || matches!(error, ontap_client::Error::NotApplied { .. })
}

/// What was done and what not, for the journal.
fn told(name: &str, held: &[Held], missing: &[String], took: Duration) -> Note {
    let list = |before: bool| {
        let of = held.iter().filter(|one| one.before == before).map(|one| one.volume.name.as_str());
        of.collect::<Vec<_>>().join(", ")
    };
    let mut said = Vec::new();
    if held.iter().any(|one| !one.before) {
        said.push(format!("snapshot {name} of {} was taken in {}", list(false), human(took)));
    }
    if held.iter().any(|one| one.before) {
        said.push(format!("snapshot {name} of {} was there already", list(true)));
    }
    let none =
        (!missing.is_empty()).then(|| format!("there is no snapshot {name} of {}", missing.join("; ")));
    let dated = held.iter().map(|one| {
        let taken: &dyn Display = one.taken.as_ref().map_or(&"an unknown time", |at| at);
        format!("{} (taken at {taken})", one.volume.name)
    });
    let dated = dated.collect::<Vec<_>>().join(", ");
    let name = if held.is_empty() { "" } else { name };
    Note::new(said.join("; "))
        .warn(none)
        .with("snapshot", name)
        .with("snapshot_of", dated)
        .with("snapshot_missing", missing.join("; "))
}

fn refused(action: String, why: String) -> StepError {
    StepError::Refused { driver: DRIVER, action, why }
}

#[cfg(test)]
mod tests;
