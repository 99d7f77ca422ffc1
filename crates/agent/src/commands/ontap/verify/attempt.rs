//! What a takeover does to the storage, done to a scratch volume by the fence's own code: this host is the
//! one that is fenced, and if it mounts the volume it tries to write afterwards.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ontap::{OntapExportConfig, OntapGrant, OntapGrantConfig, ProofLevel, is_mark, serving_nodes};
use ontap_client::{Client, FlushAnswer, Lock, LockQuery, Polarity};
use recovery::model::{Epoch, HostName};
use recovery::ports::{Fence, Note, chain};
use tokio::time::{Instant, sleep};

use super::NOBODY;
use super::bites::Tries;
use super::finding::{Assumption, Findings};
use super::here::{Guest, Mounted};
use super::interrupt::Interrupt;
use super::place::Place;
use super::scratch::{NAME, Scratch};

/// A lock that nobody has.
const NO_LOCK: &str = "00000000-0000-0000-0000-000000000000";

/// Who does what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accounts<'a> {
    /// Makes and deletes the scratch volume.
    pub(super) maker: &'a Client,
    /// The fence's.
    pub(super) client: &'a Client,
}

/// How long is waited for what may come late.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For each act of the fence.
    pub(super) act: Duration,
    /// For a lock to be shown.
    pub(super) lock: Duration,
    /// For a write to come through after the proof.
    pub(super) write: Duration,
    /// For a host that is let in again to be so: an entry that denies lives for 60 s.
    pub(super) let_in: Duration,
    /// For a volume of which ONTAP did not say whether it was made.
    pub(super) volume: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let [act, lock, write, let_in, volume] = [30, 5, 5, 75, 120].map(Duration::from_secs);
        Self { act, lock, write, let_in, volume }
    }
}

/// What is tried, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt<'a, G> {
    pub(super) accounts: Accounts<'a>,
    pub(super) place: &'a Place,
    pub(super) aggregate: &'a str,
    /// Who mounts the scratch volume and is fenced.
    pub(super) guest: Option<&'a G>,
    /// Whether an entry of an access cache was seen before.
    pub(super) shown: bool,
    pub(super) patience: Patience,
}

impl<G: Guest> Attempt<'_, G> {
    /// Makes the scratch volume, tries everything on it, and deletes it, whatever came of it.
    pub(super) async fn run(&self, interrupt: &Interrupt, findings: &mut Findings) {
        let (place, svm) = (self.place, &self.place.svm);
        let owner = match self.guest.map(Guest::address).transpose() {
            Ok(towards) => towards.unwrap_or_else(|| some_address(place)),
            Err(error) => {
                let why = format!("this host has no address towards the one of --mount: {error}");
                return findings.differs(Assumption::Mounted, why);
            }
        };
        let (maker, client) = (self.accounts.maker, self.accounts.client.within(self.patience.act));
        if let Err(why) = Scratch::is_free(maker, svm).await {
            return findings.differs(Assumption::Scratch, why);
        }
        let mut scratch = Scratch::default();
        // Not broken off half way: what ONTAP was told to make has to be known.
        match scratch.make(maker, (svm, self.aggregate), owner, findings).await {
            Err(why) => findings.differs(Assumption::Scratch, format!("it could not be made: {why}")),
            Ok(()) => {
                findings.holds(Assumption::Scratch, format!("{NAME} was made for {owner}"));
                let (patience, shown) = (self.patience, self.shown);
                let trial = Trial { client: &client, place, owner, patience, shown };
                if !interrupt.asked() {
                    trial.with(self.guest, interrupt, findings).await;
                }
            }
        }
        scratch.clean(maker, (svm, self.patience.volume), findings).await;
    }
}

/// One by which a host mounts, or one that is as good.
fn some_address(place: &Place) -> IpAddr {
    let known = place.addresses.iter().copied().find(|address| !is_mark(address));
    known.unwrap_or([10, 255, 255, 254].into())
}

struct Trial<'a> {
    client: &'a Client,
    place: &'a Place,
    owner: IpAddr,
    patience: Patience,
    /// Whether this account was shown an entry of an access cache by now.
    shown: bool,
}

/// What was seen of this host before it was fenced: without that, nothing that is missing later says
/// anything.
#[derive(Debug, Default)]
struct Before {
    /// The nodes that showed an entry that lets it in.
    remembered: BTreeSet<String>,
}

impl Trial<'_> {
    /// On a mount of this host, if there is a LIF. Ends early when a person interrupts it.
    async fn with<G: Guest>(&self, guest: Option<&G>, interrupt: &Interrupt, findings: &mut Findings) {
        let here = match guest {
            // Not broken off either: it would be left mounted.
            Some(guest) => guest.mount(&format!("/{NAME}")).await.map_err(|why| {
                findings.differs(Assumption::Mounted, why);
                "this host could not mount it".to_owned()
            }),
            None => Err("not tried: give --mount with the address of a LIF".to_owned()),
        };
        let done = tokio::select! {
            () = self.run(here.as_ref().map_err(String::as_str), findings) => true,
            () = interrupt.told() => false,
        };
        if !done {
            findings.not_seen(Assumption::RuleBites, "interrupted");
        }
        if let Ok(here) = here
            && let Err(why) = here.unmount().await
        {
            findings.differs(Assumption::Unmounted, why);
        }
    }

    async fn run(&self, here: Result<&impl Mounted, &str>, findings: &mut Findings) {
        let before = match here {
            Ok(here) => self.before(here, findings).await,
            Err(why) => Err(why.to_owned()),
        };
        // A node that nobody works by has no entry to show, and without one nothing counts as flushed.
        let proof = if here.is_ok() { ProofLevel::Flushed } else { ProofLevel::ReadBack };
        let (fence, grant) = match self.drivers(proof) {
            Ok(drivers) => drivers,
            Err(why) => return findings.differs(Assumption::RuleChange, why),
        };
        let host = HostName::from("understudy-verify");
        match fence.fence(&host, Epoch(1)).await {
            Ok(note) => {
                self.broken(&note, before.is_ok(), findings).await;
                findings.holds(Assumption::RuleChange, note.to_string());
            }
            Err(error) => return findings.differs(Assumption::RuleChange, chain(&error)),
        }
        self.flushes(before.as_ref().ok(), findings).await;
        if let Err(error) = fence.prove(&host, Epoch(1)).await {
            return findings.differs(Assumption::RuleBites, chain(&error));
        }
        let why = match (here, before) {
            (Ok(here), Ok(_)) => {
                let tries = Tries::on(here, self.patience.write).await;
                let control = again(here, &grant, self.patience.let_in, findings).await;
                return tries.judge(control, findings);
            }
            (_, Err(why)) => why,
            (Err(why), Ok(_)) => why.to_owned(),
        };
        findings.not_seen(Assumption::RuleBites, why.clone());
        granted(&grant, &why, findings).await;
    }

    /// The very drivers of a takeover, but for what would flush more than the scratch volume's policy.
    fn drivers(&self, proof: ProofLevel) -> Result<(impl Fence, OntapGrant), String> {
        let (svm, timeout) = (self.place.svm.clone(), self.patience.act);
        let (volumes, addresses) = (vec![NAME.to_owned()], vec![self.owner]);
        let export = OntapExportConfig {
            ontap: self.place.fence.clone(),
            svm: svm.clone(),
            volumes: volumes.clone(),
            addresses: addresses.clone(),
            proof,
            idle_for: timeout / 2,
            timeout,
        };
        let ontap = self.place.grant.clone();
        let grant = OntapGrantConfig { ontap, svm, volumes, addresses, paths: Vec::new(), timeout };
        let fence = export.build().map_err(|problems| problems.join("; "))?;
        let grant = grant.build(&[]).map_err(|problems| problems.join("; "))?;
        Ok((fence.sparing_others(), grant.sparing_others()))
    }

    /// What ONTAP shows of this host's locks, which may take a while.
    async fn locks(&self) -> ontap_client::Result<Vec<Lock>> {
        let which = LockQuery { volumes: &[NAME], ..LockQuery::in_svm(&self.place.svm) };
        let begun = Instant::now();
        loop {
            let locks = self.client.locks(&which).await?;
            if !locks.is_empty() || begun.elapsed() > self.patience.lock {
                return Ok(locks);
            }
            sleep(self.patience.lock / 10).await;
        }
    }

    /// What ONTAP shows of a host that works and holds a lock. An error: it cannot work at all.
    async fn before(&self, here: &impl Mounted, findings: &mut Findings) -> Result<Before, String> {
        let wrote = here.write().await.and(here.create("before").await.flatten());
        if let Err(error) = wrote {
            let why = format!("this host cannot write before it is fenced: {error}");
            findings.differs(Assumption::Mounted, why.clone());
            return Err(why);
        }
        findings.holds(Assumption::Mounted, format!("this host ({}) can write", self.owner));
        match self.locks().await {
            Ok(locks) if locks.is_empty() => {
                findings.differs(Assumption::LocksByVolume, "this host holds a lock, and ONTAP shows none");
            }
            Ok(locks) => {
                let shown = locks.iter().map(words_of).collect::<Vec<_>>().join(", ");
                findings.holds(Assumption::LocksByVolume, shown);
            }
            Err(error) => findings.differs(Assumption::LocksByVolume, chain(&error)),
        }
        let (entries, errors) = self.entries(self.owner).await;
        let found = format!("this host ({}) writes: {}", self.owner, entries_in_words(&entries));
        let remembered: BTreeSet<String> =
            entries.iter().filter(|entry| lets_in(entry)).map(|(node, _)| node.clone()).collect();
        if !errors.is_empty() {
            findings.differs(Assumption::CacheByNode, errors.join(", "));
        } else if remembered.is_empty() {
            findings.differs(Assumption::CacheByNode, found);
        } else {
            findings.holds(Assumption::CacheByNode, found);
        }
        Ok(Before { remembered })
    }

    /// What each node shows of an address; and what cannot be read.
    async fn entries(&self, of: IpAddr) -> (Vec<Entry>, Vec<String>) {
        let (mut entries, mut errors) = (Vec::new(), Vec::new());
        let nodes = match serving_nodes(self.client, &self.place.svm).await {
            Ok(nodes) => nodes.names,
            Err(error) => return (entries, vec![chain(&error)]),
        };
        for node in nodes {
            match self.client.access_cache_entry(&self.place.svm, &node, NAME, of).await {
                Ok(entry) => entries.push((node, entry.map(|entry| entry.polarity))),
                Err(error) => errors.push(format!("{node}: {}", chain(&error))),
            }
        }
        (entries, errors)
    }

    /// Each node is told to forget. What this host was remembered by is gone then, and of an address that no
    /// node ever met there is no entry either.
    async fn flushes(&self, before: Option<&Before>, findings: &mut Findings) {
        let (of, svm, client) = (Assumption::Flush, &self.place.svm, self.client.sparing_others());
        let nodes = serving_nodes(&client, svm).await.unwrap_or_default().names;
        let (mut said, mut refused, mut counted) = (Vec::new(), Vec::new(), true);
        for node in &nodes {
            match client.flush_access_cache(svm, node, NAME).await {
                Ok(FlushAnswer::Counted | FlushAnswer::CountedForSvm) => said.push(format!("{node}: done")),
                Ok(FlushAnswer::Unclear(text)) => {
                    counted = false;
                    said.push(format!("{node} answered {text}"));
                }
                Err(error) => refused.push(format!("{node}: {}", chain(&error))),
            }
        }
        let said = said.join(", ");
        let gone = self.is_gone(before).await;
        let seen_to_go = matches!(gone, Some(Ok(_)));
        match gone {
            _ if nodes.is_empty() => findings.differs(of, "no node of the SVM is shown"),
            _ if !refused.is_empty() => findings.differs(
                of,
                format!("{} (that all of the SVM is flushed in its place is not tried)", refused.join(", ")),
            ),
            Some(Ok(nodes)) => findings.holds(of, format!("{said}; the entry on {nodes} is gone")),
            Some(Err(why)) => findings.differs(of, format!("{said}; {why}")),
            None if counted => findings.holds(of, said),
            None => findings.not_seen(
                of,
                format!("{said}: that is no word for done, and no entry was seen to go; give --mount"),
            ),
        }
        self.no_entry(seen_to_go, findings).await;
    }

    /// Whether the entries that let this host in are gone, and where. `None`: there was none.
    async fn is_gone(&self, before: Option<&Before>) -> Option<Result<String, String>> {
        let remembered = &before.filter(|before| !before.remembered.is_empty())?.remembered;
        let (entries, unread) = self.entries(self.owner).await;
        let stays: Vec<&str> =
            entries.iter().filter(|entry| lets_in(entry)).map(|(node, _)| node.as_str()).collect();
        Some(if !unread.is_empty() {
            Err(unread.join(", "))
        } else if !stays.is_empty() {
            Err(format!("{} still lets this host in by what it remembers", stays.join(", ")))
        } else {
            Ok(remembered.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
        })
    }

    /// That nothing is shown says something only where an entry was shown.
    async fn no_entry(&self, seen_to_go: bool, findings: &mut Findings) {
        let (entries, mut wrong) = self.entries(NOBODY).await;
        wrong.extend(entries.iter().filter(|(_, entry)| entry.is_some()).map(|(node, polarity)| {
            format!("{node} shows an entry of {NOBODY}, which nobody has: {polarity:?}")
        }));
        let none = format!("of {NOBODY} no node shows an entry");
        match wrong.is_empty() {
            false => findings.differs(Assumption::NoEntry, wrong.join(", ")),
            true if seen_to_go || self.shown => {
                findings.holds(Assumption::NoEntry, format!("{none}, and others were shown"));
            }
            true => findings.not_seen(
                Assumption::NoEntry,
                format!("{none}, but this account was shown no entry of anybody yet; give --mount"),
            ),
        }
    }

    async fn broken(&self, note: &Note, locked: bool, findings: &mut Findings) {
        let broken = note.details.get("locks_broken").map(String::as_str).unwrap_or_default();
        if locked {
            return match broken {
                "" | "0" => findings.differs(
                    Assumption::BreakByUuid,
                    "this host's lock was not among those that were broken",
                ),
                count => findings.holds(Assumption::BreakByUuid, format!("{count} locks were broken")),
            };
        }
        match self.client.break_these_locks(&self.place.svm, &[NO_LOCK]).await {
            Ok(_) => {
                findings.holds(Assumption::BreakByUuid, "the order is taken; there was no lock to break");
            }
            Err(error) if error.code() == Some(4) => {
                findings.holds(Assumption::BreakByUuid, "the order is taken; there was no lock to break");
            }
            Err(error) => findings.differs(Assumption::BreakByUuid, chain(&error)),
        }
    }
}

/// A node, and what it shows of a host: nothing, or an entry, which may not say whether it lets in.
type Entry = (String, Option<Option<Polarity>>);

/// One that does not say so counts as one that does.
fn lets_in((_, entry): &Entry) -> bool {
    entry.as_ref().is_some_and(|polarity| *polarity != Some(Polarity::Negative))
}

fn entries_in_words(entries: &[Entry]) -> String {
    let words = |(node, entry): &Entry| match entry {
        None => format!("{node}: no entry"),
        Some(None) => format!("{node}: an entry"),
        Some(Some(polarity)) => format!("{node}: {polarity}"),
    };
    entries.iter().map(words).collect::<Vec<_>>().join(", ")
}

fn words_of(lock: &Lock) -> String {
    let protocol = lock.protocol.as_ref().map(ToString::to_string).unwrap_or_default();
    let kind = lock.kind.as_ref().map(ToString::to_string).unwrap_or_default();
    let client = lock.client_address.as_deref().unwrap_or("(no field)");
    format!("{protocol} {kind} on {} by {client}", lock.path.as_deref().unwrap_or("?"))
}

/// Lets this host in again, and returns whether it could write sooner or later: what shows that it was the
/// rules that kept it from writing.
async fn again(
    here: &impl Mounted,
    grant: &OntapGrant,
    patience: Duration,
    findings: &mut Findings,
) -> Result<(), String> {
    let assumption = Assumption::LetInAgain;
    if let Err(error) = grant.admit(Epoch(2)).await {
        findings.differs(assumption, chain(&error));
        return Err(chain(&error));
    }
    let (begun, mut number) = (Instant::now(), 0_u32);
    loop {
        number += 1;
        match here.create(&format!("again-{number}")).await.flatten() {
            Ok(()) if number == 1 => findings.holds(assumption, "this host can write again at once"),
            Ok(()) => {
                let found = format!("this host could write only after {} s", begun.elapsed().as_secs());
                findings.differs(assumption, found);
            }
            Err(error) if begun.elapsed() > patience => {
                findings.differs(assumption, format!("this host cannot write: {error}"));
                return Err(error.to_string());
            }
            Err(_) => {
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        }
        return Ok(());
    }
}

/// The right to let in again, without anybody who would write.
async fn granted(grant: &OntapGrant, why: &str, findings: &mut Findings) {
    match grant.admit(Epoch(2)).await {
        Ok(_) => findings.holds(
            Assumption::LetInAgain,
            format!("the rule has this host again; whether it can write: {why}"),
        ),
        Err(error) => findings.differs(Assumption::LetInAgain, chain(&error)),
    }
}
