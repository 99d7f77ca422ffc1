//! `understudy ledger`: which ledger it is, and which machine this is to it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use drivers::machine::{Local, random_id};
use jiff::Timestamp;
use recovery::known::{self, HomeHolder, Identity, Machine, Met, NameHolder};
use recovery::model::{BrokerId, Epoch, HostName};
use recovery::ports::{Ledger, chain};
use serde::Serialize;

use super::agreed;
use crate::UsageError;
use crate::cli;
use crate::config::Small;
use crate::exit::Exit;
use crate::output::{print, say};
use crate::refusal::Refusal;

pub(super) async fn run(global: &cli::Global, command: &cli::Ledger) -> anyhow::Result<Exit> {
    let config = Small::load(&global.config)?;
    let ledger = config.ledger.open().map_err(|said| UsageError(said.join("; ")))?;
    match command {
        cli::Ledger::Init => init(global, &config, ledger).await,
        cli::Ledger::Show => {
            print(&Shown::read(&config, ledger.as_ref()).await?, global.output)?;
            Ok(Exit::Done)
        }
        cli::Ledger::Adopt { yes } => adopt(global, &config, ledger.as_ref(), *yes).await,
    }
}

/// What `init` did.
#[derive(Serialize)]
struct Made {
    place: String,
    #[serde(flatten)]
    identity: Identity,
    made: bool,
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, identity: Identity { id, at, by, .. }, made } = self;
        let word = if *made { "initialised" } else { "was initialised before, and stays as it is" };
        write!(f, "{place} {word}: ledger {id}, made {at:.0} on {by}")
    }
}

async fn init(global: &cli::Global, config: &Small, ledger: Arc<dyn Ledger>) -> anyhow::Result<Exit> {
    let place = config.ledger.place();
    if let Some(met) = Local::new(config.state_dir.clone()).met()?
        && known::identity(ledger.as_ref()).await?.is_none_or(|found| found.id != met.id)
    {
        let why = format!(
            "this host knows ledger {} (since {:.0}, at {}), and {place} is not that one: is its storage mounted? If the \
             cluster gets a new ledger, stop every agent, remove {}/ledger.json on every host, and run this again",
            met.id,
            met.since,
            met.place,
            config.state_dir.display()
        );
        return Err(Refusal::LedgerForeign.because(why).into());
    }
    let ours = Identity::new(random_id()?, config.here.clone(), Timestamp::now());
    let (identity, made) = known::init(ledger.as_ref(), &ours).await?;
    match ledger.check().await {
        Ok(note) => note.warnings.iter().for_each(|warning| say(format!("warning: {warning}"))),
        Err(error) => say(format!("warning: {}", chain(&error))),
    }
    print(&Made { place, identity, made }, global.output)?;
    Ok(if made { Exit::Done } else { Exit::Held })
}

/// What there is.
#[derive(Serialize)]
struct Shown {
    place: String,
    /// `None` in a place that was never initialised.
    ledger: Option<Identity>,
    /// The ledger that this host has met.
    met: Option<Met>,
    /// Which machine this is; `None` before its agent or `guard` ran for the first time.
    instance: Option<String>,
    names: BTreeMap<HostName, Option<NameHolder>>,
    homes: BTreeMap<BrokerId, (HostName, Option<HomeHolder>)>,
}

impl Shown {
    async fn read(config: &Small, ledger: &dyn Ledger) -> anyhow::Result<Self> {
        let local = Local::new(config.state_dir.clone());
        let identity = known::identity(ledger).await?;
        let (mut names, mut homes) = (BTreeMap::new(), BTreeMap::new());
        for host in config.homes.values().chain([&config.here]) {
            names.insert(host.clone(), known::name_holder(ledger, host).await?);
        }
        for (broker, home) in &config.homes {
            homes.insert(*broker, (home.clone(), known::home_holder(ledger, *broker).await?));
        }
        let (place, met, instance) = (config.ledger.place(), local.met()?, local.instance()?);
        Ok(Self { place, ledger: identity, met, instance, names, homes })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, ledger, met, instance, names, homes } = self;
        match ledger {
            Some(Identity { id, at, by, .. }) => writeln!(f, "{place}: ledger {id}, made {at:.0} on {by}")?,
            None => writeln!(f, "{place}: no ledger; never initialised, or not mounted")?,
        }
        match met {
            Some(Met { id, since, .. }) => writeln!(f, "this host knows: ledger {id}, since {since:.0}")?,
            None => writeln!(f, "this host knows: none yet")?,
        }
        match instance {
            Some(instance) => write!(f, "this machine: instance {instance}")?,
            None => write!(f, "this machine: none yet")?,
        }
        for (host, holder) in names {
            match holder {
                Some(NameHolder { instance, at, left: None }) => {
                    write!(f, "\nname {host}: instance {instance}, since {at:.0}")?;
                }
                Some(NameHolder { instance, left: Some(left), .. }) => {
                    write!(f, "\nname {host}: given up by instance {instance} at {left:.0}")?;
                }
                None => write!(f, "\nname {host}: nobody has said it yet")?,
            }
        }
        for (broker, (home, holder)) in homes {
            match holder {
                Some(HomeHolder { home, at }) => {
                    write!(f, "\nhome of broker {broker}: {home}, since {at:.0}")?;
                }
                None => write!(f, "\nhome of broker {broker}: {home} by this configuration, not registered")?,
            }
        }
        Ok(())
    }
}

/// What `adopt` changed.
#[derive(Serialize)]
struct Adopted {
    adopted: Vec<String>,
}

impl fmt::Display for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.adopted.is_empty() {
            return write!(
                f,
                "nothing to adopt: the ledger, the name and the homes are as they are configured"
            );
        }
        write!(f, "adopted: {}", self.adopted.join("; "))
    }
}

async fn adopt(global: &cli::Global, config: &Small, ledger: &dyn Ledger, yes: bool) -> anyhow::Result<Exit> {
    let (here, place) = (&config.here, config.ledger.place());
    let Some(identity) = known::identity(ledger).await? else {
        let why = format!(
            "{place} holds no ledger: see that its storage is mounted, or run `understudy ledger init`"
        );
        return Err(Refusal::LedgerUnknown.because(why).into());
    };
    ledger.sync().await?;
    // What this host is to the ledger is not changed under a Kafka that runs by it.
    for broker in config.homes.keys() {
        super::guard::nobody_runs(config, *broker, &[])?;
    }
    let local = Local::new(config.state_dir.clone());
    let (met, instance) = (local.met()?, local.ensure_instance()?);
    let mut changes = Vec::new();
    let foreign = met.as_ref().is_none_or(|met| met.id != identity.id);
    if foreign {
        let old = met.map_or("none".to_owned(), |met| met.id);
        changes.push(format!("the ledger that this host knows: {old} → {}", identity.id));
    }
    let mut back = Vec::new();
    for broker in config.homes.keys() {
        let newest = ledger.latest(*broker).await?.map_or(Epoch::default(), |newest| newest.epoch);
        let seen = local.newest_epoch(*broker)?;
        if newest < seen {
            changes
                .push(format!("the newest epoch of broker {broker} that this host knows: {seen} → {newest}"));
            back.push((*broker, newest));
        }
    }
    let holder = known::name_holder(ledger, here).await?.filter(|holder| holder.instance != instance);
    if let Some(NameHolder { instance: old, at, .. }) = &holder {
        changes.push(format!("the name {here}: instance {old} (since {at:.0}) → this machine, {instance}"));
    }
    let mut moved = Vec::new();
    for (broker, _) in config.homes.iter().filter(|(_, home)| *home == here) {
        let Some(other) = known::home_holder(ledger, *broker).await?.filter(|other| other.home != *here)
        else {
            continue;
        };
        if ledger.latest(*broker).await?.is_some_and(|newest| newest.outcome().is_none()) {
            let why = format!("a takeover of broker {broker} is under way: wait for its end, then try again");
            return Err(Refusal::EpochOpen.because(why).into());
        }
        changes.push(format!("the home of broker {broker}: {} → {here}", other.home));
        moved.push(*broker);
    }
    if !changes.is_empty() && !yes {
        changes.iter().for_each(say);
        let question = "Is the machine that had the name or the home gone for good, or is no Kafka of these brokers on it, \
                        and is this the ledger that every other host uses?";
        if !agreed(question)? {
            return Ok(Exit::Held);
        }
    }
    if foreign {
        local.meet(&identity, &place)?;
    }
    for (broker, newest) in back {
        local.keep_epoch(broker, newest)?;
    }
    if holder.is_some() {
        known::give_name(ledger, here, &instance, Timestamp::now()).await?;
    }
    for broker in moved {
        known::give_home(ledger, broker, here, Timestamp::now()).await?;
    }
    print(&Adopted { adopted: changes }, global.output)?;
    Ok(Exit::Done)
}
