//! Where things lie below the prefix, and what they must look like.
//!
//! ```text
//! broker-<id>/head                          the newest epoch, its claimant, how many records, whether it has ended
//! broker-<id>/epoch-<n>/<seq>               the records of one append, from <seq> on; 0 is the claim
//! broker-<id>/claimant-<n>                  is there while the claimant of epoch n works: under a lease
//! broker-<id>/decisions/<host>/<n>          what <host> decided
//! cells/<name>                              which ledger it is, who has a host's name, where a broker's home is
//! orders/<host>/<n>                         what people on <host> told all agents, and what its agent answered
//! ```
//!
//! Every claim and every append rewrites the head in the same transaction, and only if it is as it was read.
//! The head's revision is therefore the fencing token: etcd itself refuses whoever has missed anything.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::wire::KeyValue;
use crate::ledger::file::host_in_a_name;
use recovery::format;
use recovery::journal::{Claim, Entry, EpochJournal, Record};
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::LedgerError;

/// The version of the layout that this program knows.
const FORMAT: u32 = 1;

const RESTORE: &str = "restore etcd from a snapshot; until then nothing is done about this broker";

/// What `broker-<id>/head` holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    format: u32,
    pub(super) epoch: Epoch,
    pub(super) by: HostName,
    /// In the epoch's journal.
    pub(super) records: u64,
    pub(super) ended: bool,
}

impl Head {
    pub(super) fn of_claim(claim: &Claim) -> Self {
        Self { format: FORMAT, epoch: claim.plan.epoch, by: claim.by.clone(), records: 1, ended: false }
    }

    pub(super) fn and(&self, more: &[Record]) -> Self {
        let ends = more.iter().any(|record| matches!(record.entry, Entry::Ended { .. }));
        Self { records: self.records + more.len() as u64, ended: self.ended || ends, ..self.clone() }
    }
}

/// The names of keys.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn below(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn head(&self, broker: BrokerId) -> String {
        format!("{}broker-{broker}/head", self.prefix)
    }

    pub(super) fn claimant(&self, broker: BrokerId, epoch: Epoch) -> String {
        format!("{}broker-{broker}/claimant-{:020}", self.prefix, epoch.0)
    }

    /// What every journal of a broker begins with.
    pub(super) fn journals(&self, broker: BrokerId) -> String {
        format!("{}broker-{broker}/epoch-", self.prefix)
    }

    pub(super) fn journal(&self, broker: BrokerId, epoch: Epoch) -> String {
        format!("{}{:020}/", self.journals(broker), epoch.0)
    }

    pub(super) fn batch(&self, broker: BrokerId, epoch: Epoch, seq: u64) -> String {
        format!("{}{seq:020}", self.journal(broker, epoch))
    }

    /// What every decision on a broker begins with.
    pub(super) fn decisions(&self, broker: BrokerId) -> String {
        format!("{}broker-{broker}/decisions/", self.prefix)
    }

    pub(super) fn decisions_of(&self, broker: BrokerId, host: &HostName) -> String {
        format!("{}{}/", self.decisions(broker), host_in_a_name(&host.0))
    }

    /// What every order begins with.
    pub(super) fn orders(&self) -> String {
        format!("{}orders/", self.prefix)
    }

    pub(super) fn orders_of(&self, host: &HostName) -> String {
        format!("{}{}/", self.orders(), host_in_a_name(&host.0))
    }

    pub(super) fn cell(&self, name: &str) -> String {
        format!("{}cells/{}", self.prefix, host_in_a_name(name))
    }

    pub(super) fn probe(&self, name: &str) -> String {
        format!("{}probe/{name}", self.prefix)
    }
}

/// The n-th value in a directory.
pub(super) fn numbered(dir: &str, n: u64) -> String {
    format!("{dir}{n:020}")
}

/// Which one it is; `None` where somebody else wrote below our prefix.
pub(super) fn number_of(dir: &str, key: &KeyValue) -> Option<u64> {
    key.name().strip_prefix(dir)?.parse().ok()
}

pub(super) fn damaged(place: impl Into<String>, why: impl Into<String>) -> LedgerError {
    LedgerError::Damaged { place: format!("key {}", place.into()), why: why.into() }
}

/// A value of ours.
///
/// # Errors
/// When it is damaged or a newer understudy's, with the key.
pub(super) fn understand<T: DeserializeOwned>(kv: &KeyValue) -> Result<T, LedgerError> {
    format::read(&kv.value.0).map_err(|error| error.at(format!("key {}", kv.name()), RESTORE))
}

/// Understands a head.
///
/// # Errors
/// When it is damaged or a newer understudy's, with the key.
pub(super) fn head(kv: &KeyValue) -> Result<Head, LedgerError> {
    let head: Head = understand(kv)?;
    if head.format == FORMAT {
        return Ok(head);
    }
    let why = format!("it has format {}, and this understudy knows {FORMAT}", head.format);
    Err(format::newer(format!("key {}", kv.name()), why))
}

/// Understands the journals of the epochs `first..=head.epoch` of a broker, of which `kvs` are all keys in
/// order.
///
/// # Errors
/// `Damaged`, where something is missing or is not what was written.
pub(super) fn journals(
    keys: &Keys,
    broker: BrokerId,
    first: Epoch,
    head: &Head,
    kvs: &[KeyValue],
) -> Result<Vec<EpochJournal>, LedgerError> {
    let mut rest = kvs;
    let mut journals = Vec::new();
    for epoch in (first.0..=head.epoch.0).map(Epoch) {
        let dir = keys.journal(broker, epoch);
        let until = rest.iter().take_while(|kv| kv.key.0.starts_with(dir.as_bytes())).count();
        let (ours, others) = rest.split_at(until);
        journals.push(journal(broker, epoch, &dir, ours)?);
        rest = others;
    }
    if let Some(foreign) = rest.first() {
        return Err(damaged(
            foreign.name(),
            format!("it belongs to no epoch up to {}; {RESTORE}", head.epoch),
        ));
    }
    match journals.last() {
        Some(newest)
            if (newest.records.len() as u64, newest.outcome().is_some()) != (head.records, head.ended) =>
        {
            let why = format!("{} of {} records are there; {RESTORE}", newest.records.len(), head.records);
            Err(damaged(keys.journal(broker, head.epoch), why))
        }
        _ => Ok(journals),
    }
}

fn journal(broker: BrokerId, epoch: Epoch, dir: &str, kvs: &[KeyValue]) -> Result<EpochJournal, LedgerError> {
    let mut records: Vec<Record> = Vec::new();
    for kv in kvs {
        let batch: Vec<Record> = understand(kv)?;
        let seqs = batch.iter().map(|record| record.seq);
        if number_of(dir, kv) != Some(records.len() as u64)
            || !seqs.eq((records.len() as u64..).take(batch.len()))
        {
            return Err(damaged(kv.name(), format!("record {} must be here; {RESTORE}", records.len())));
        }
        records.extend(batch);
    }
    let claim = match records.first().map(|record| &record.entry) {
        Some(Entry::Claimed { claim }) => (**claim).clone(),
        _ => return Err(damaged(dir, format!("the journal must begin with a claim; {RESTORE}"))),
    };
    if (claim.plan.broker, claim.plan.epoch) != (broker, epoch) {
        let (b, e) = (claim.plan.broker, claim.plan.epoch);
        return Err(damaged(dir, format!("it claims epoch {e} of broker {b}; {RESTORE}")));
    }
    Ok(EpochJournal { broker, epoch, claim, records })
}
