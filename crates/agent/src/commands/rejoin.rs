//! `understudy rejoin`: a host that was fenced comes back as a standby. Checks everything, then lifts its
//! fence.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use jiff::Timestamp;
use recovery::journal::EpochJournal;
use recovery::model::{BrokerId, EpochState, HostName, Instruction, LedgerStanding, Order, Orders, Verdict};
use recovery::ports::{LedgerError, chain};
use serde::Serialize;

use super::agreed;
use crate::checks::{Item, go_through};
use crate::cli::{Global, Output};
use crate::config::Config;
use crate::exit::Exit;
use crate::may_start::Case;
use crate::orders::after;
use crate::output::{print, say};
use crate::refusal::{RUNBOOK, Refusal};
use crate::telemetry::LogSink;
use crate::who::who;
use crate::world::World;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Check {
    what: String,
    says: String,
    /// Whether it would not go as well as it could. That stands in nobody's way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    warns: bool,
    /// What stands in the way; `None` if nothing does.
    refused: Option<Refusal>,
}

impl Check {
    fn ok(what: impl Into<String>, says: impl Into<String>) -> Self {
        Self { what: what.into(), says: says.into(), warns: false, refused: None }
    }

    fn refused(refusal: Refusal, what: impl Into<String>, says: impl Into<String>) -> Self {
        Self { refused: Some(refusal), ..Self::ok(what, says) }
    }

    /// One thing that `understudy check` has looked at.
    fn of(item: Item) -> Self {
        let Item { item, verdict, says, remedy } = item;
        let what = format!("check, {item}");
        let says = if remedy.is_empty() { says } else { format!("{says}; {remedy}") };
        match verdict {
            Verdict::Fail => Self::refused(Refusal::NotReady, what, says),
            Verdict::Warn => Self { warns: true, ..Self::ok(what, says) },
            Verdict::Ok => Self::ok(what, says),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    host: HostName,
    who: String,
    checks: Vec<Check>,
    /// The brokers that this host owns.
    owns: Vec<BrokerId>,
    /// Whether the fence is lifted, and the ledger says that this host is back.
    rejoined: bool,
}

impl Report {
    fn of(host: HostName, who: String) -> Self {
        Self { host, who, checks: Vec::new(), owns: Vec::new(), rejoined: false }
    }

    fn is_refused(&self) -> bool {
        self.checks.iter().any(|check| check.refused.is_some())
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match (self.refused, self.warns) {
            (Some(_), _) => "FAIL",
            (None, true) => "warn",
            (None, false) => "ok",
        };
        write!(f, "{word:<4}  {}: {}", self.what, self.says)?;
        self.refused.map_or(Ok(()), |refusal| write!(f, "\n      see: {RUNBOOK}#{}", refusal.label()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.checks.iter().try_for_each(|check| writeln!(f, "{check}"))?;
        let Self { host, who, rejoined, owns, .. } = self;
        let names = owns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match rejoined {
            true if !owns.is_empty() => {
                write!(f, "{host} owns broker {names}, and may take others over again, as ordered by {who}")
            }
            true => write!(f, "{host} is a standby again, as ordered by {who}"),
            false => write!(f, "{host} is NOT back: {who} has changed nothing in the ledger"),
        }
    }
}

/// The ledger's word on every broker of the configuration.
struct Reading {
    brokers: Vec<(BrokerId, HostName, Vec<EpochJournal>)>,
    orders: Orders,
}

/// Checks, asks, lifts, tells the others.
pub(super) async fn run(global: &Global, yes: bool, config: &Config) -> anyhow::Result<Exit> {
    let world = Arc::new(World::build(config, Arc::new(LogSink::default()))?);
    let host = world.topology.here.clone();
    let mut report = Report::of(host.clone(), who().await);
    report.owns = owned(&world).await;
    report.checks = checks(&world, config).await;
    if report.is_refused() {
        print(&report, global.output)?;
        return Ok(Exit::Held);
    }
    // The answer alone belongs to standard output.
    report.checks.iter().for_each(say);
    if !yes && !agreed(&format!("Lift the fence of {host} and let it be a standby?"))? {
        say("not done");
        return Ok(Exit::Held);
    }
    // No takeover is at work here, or begins, until the fence is lifted: a frozen one might thaw behind it.
    let (_locks, busy) = lock(&world);
    // Another host may have begun one while the checks ran and somebody thought about it.
    let anew = by_ledger(&world).await.into_iter().filter(|check| check.refused.is_some());
    report.checks.extend(busy.into_iter().chain(anew));
    if !report.is_refused() {
        lift(&world, &mut report).await;
    }
    if global.output == Output::Text {
        report.checks.retain(|check| check.refused.is_some() || check.what == FENCE);
    }
    print(&report, global.output)?;
    Ok(if report.rejoined { Exit::Done } else { Exit::Held })
}

const FENCE: &str = "fence of this host";

/// Takes this host's lock on every broker. Who has it is at work at a takeover, or was frozen in the middle
/// of one.
fn lock(world: &World) -> (Vec<Box<dyn Send>>, Vec<Check>) {
    let (mut locks, mut busy) = (Vec::new(), Vec::new());
    for broker in world.topology.brokers.keys() {
        match world.ports.host_lock.try_lock(*broker) {
            Ok(lock) => locks.push(lock),
            Err(error) => {
                let what = format!("work at broker {broker} here");
                busy.push(Check::refused(Refusal::StillWriter, what, chain(&error)));
            }
        }
    }
    (locks, busy)
}

/// Lifts the fence, reads that back, and tells all agents.
async fn lift(world: &World, report: &mut Report) {
    let here = &world.topology.here;
    // What this host has not written yet would come to the log dirs once it is let in again, over what others
    // wrote since.
    for (broker, _) in not_ours(world).await {
        let Some(storage) = world.ports.storage.get(&broker) else { continue };
        if let Err(error) = storage.withdraw().await {
            let what = format!("storage of broker {broker} here");
            report.checks.push(Check::refused(Refusal::StillWriter, what, chain(&error)));
        }
    }
    if report.is_refused() {
        return;
    }
    let lifted = match world.ports.fences.get(here) {
        None => Ok("none is configured here, so there is nothing to lift".to_owned()),
        Some(fence) => fence.lift(here).await.map(|note| note.to_string()),
    };
    match lifted {
        Ok(says) => report.checks.push(Check::ok(FENCE, says)),
        Err(error) => {
            report.checks.push(Check::refused(Refusal::FenceStays, FENCE, chain(&error)));
            return;
        }
    }
    match tell(world, &report.who).await {
        Ok(true) => report.rejoined = true,
        Ok(false) => report.checks.push(Check::refused(
            Refusal::LedgerUnreadable,
            "order book",
            "it does not show that this host is back; the fence is lifted. Run `understudy rejoin` again",
        )),
        Err(error) => report.checks.push(Check::refused(
            Refusal::LedgerUnreadable,
            "order book",
            format!("{}; the fence is lifted. Run `understudy rejoin` again", chain(&error)),
        )),
    }
}

async fn tell(world: &World, who: &str) -> Result<bool, LedgerError> {
    let ledger = &world.ports.ledger;
    let reading = read(world).await?;
    let records = reading.brokers.iter().flat_map(|(_, _, journals)| journals).flat_map(|j| &j.records);
    // Whatever fenced this host came before, by whatever clock.
    let known = records.map(|record| record.at).chain(reading.orders.0.iter().map(|order| order.at));
    let at = after(known, Timestamp::now());
    let host = world.topology.here.clone();
    let order = Order { at, host, who: who.to_owned(), what: Instruction::Rejoined };
    ledger.order(&order).await?;
    Ok(ledger.orders().await?.0.contains(&order))
}

async fn read(world: &World) -> Result<Reading, LedgerError> {
    let ledger = &world.ports.ledger;
    // A fence that is lifted too early is not taken back.
    ledger.sync().await?;
    let mut brokers = Vec::new();
    for broker in world.topology.brokers.values() {
        brokers.push((broker.id, broker.home.clone(), ledger.all(broker.id).await?));
    }
    Ok(Reading { brokers, orders: ledger.orders().await? })
}

/// Everything that must hold before the fence is lifted.
async fn checks(world: &Arc<World>, config: &Config) -> Vec<Check> {
    let mut checks = by_ledger(world).await;
    checks.extend(lock(world).1);
    for (broker, standing) in not_ours(world).await {
        checks.push(no_kafka(world, broker, &standing).await);
        checks.extend(no_address(world, broker));
    }
    checks.extend(go_through(world, config).await.into_iter().map(|found| Check::of(found.item)));
    checks
}

/// Whether the ledger knows of anything that this host may still write to.
async fn by_ledger(world: &World) -> Vec<Check> {
    let here = &world.topology.here;
    let reading = match read(world).await {
        Ok(reading) => reading,
        Err(error) => return vec![Check::refused(Refusal::LedgerUnreadable, "ledger", chain(&error))],
    };
    let one = |(broker, home, journals): &(BrokerId, HostName, Vec<EpochJournal>)| {
        let standing = LedgerStanding::after(home, journals);
        let case = Case { broker: *broker, home, here, journals, orders: &reading.orders };
        let (what, LedgerStanding { epoch, owner, writers, state, .. }) =
            (format!("broker {broker}"), &standing);
        if let Some(EpochState::Open { by, .. }) = state
            && writers.contains(here)
        {
            let says = format!(
                "{by} is at work on it (epoch {epoch}) and this host may be writing: wait for the end"
            );
            return Check::refused(Refusal::EpochOpen, what, says);
        }
        if owner == here {
            let fenced =
                case.fenced().map(|epoch| format!("; epoch {epoch} fenced this host and did not take it"));
            let says = format!("belongs to this host (epoch {epoch}){}", fenced.unwrap_or_default());
            return Check::ok(what, says);
        }
        if writers.contains(here) {
            let says = format!(
                "belongs to {owner}, and an unfinished takeover of this host may still be writing: only a takeover \
                 that ends well, by another host, clears that"
            );
            return Check::refused(Refusal::StillWriter, what, says);
        }
        Check::ok(
            what,
            format!("belongs to {owner} (epoch {epoch}), and nothing of this host may write to it"),
        )
    };
    reading.brokers.iter().map(one).collect()
}

/// How each broker stands. If the ledger cannot be read, that is told elsewhere.
async fn standings(world: &World) -> Vec<(BrokerId, LedgerStanding)> {
    let Ok(reading) = read(world).await else { return Vec::new() };
    let all =
        reading.brokers.into_iter().map(|(id, home, journals)| (id, LedgerStanding::after(&home, &journals)));
    all.collect()
}

/// The brokers that belong to another host.
async fn not_ours(world: &World) -> Vec<(BrokerId, LedgerStanding)> {
    let all = standings(world).await.into_iter();
    all.filter(|(_, standing)| standing.owner != world.topology.here).collect()
}

/// The brokers that belong to this host.
async fn owned(world: &World) -> Vec<BrokerId> {
    let all = standings(world).await.into_iter();
    all.filter(|(_, standing)| standing.owner == world.topology.here).map(|(id, _)| id).collect()
}

async fn no_kafka(world: &World, broker: BrokerId, standing: &LedgerStanding) -> Check {
    let what = format!("Kafka of broker {broker} here");
    // No process can be of an epoch that nobody has claimed, so that any process counts.
    match world.ports.broker_host.prove_stopped(broker, standing.epoch.next()).await {
        Ok(proof) => Check::ok(what, proof.note.to_string()),
        Err(error) => Check::refused(Refusal::KafkaRuns, what, chain(&error)),
    }
}

/// The address that moves with the broker must have moved.
fn no_address(world: &World, broker: BrokerId) -> Option<Check> {
    let moves = world.topology.brokers.get(&broker)?.address.as_ref()?;
    let address: IpAddr = moves.split('/').next()?.parse().ok()?;
    let what = format!("address of broker {broker}");
    Some(match is_here(address) {
        Ok(false) => Check::ok(what, format!("{address} is not on this host")),
        Ok(true) => {
            let says = format!(
                "{address} is on this host: take it off (`ip address del {moves} dev …`), and out of the network \
                 configuration that sets it at boot"
            );
            Check::refused(Refusal::AddressHere, what, says)
        }
        Err(error) => {
            let says = format!("{address} could not be looked for: {error}");
            Check::refused(Refusal::AddressHere, what, says)
        }
    })
}

/// Only what is on this host can be bound, whichever interface has it.
fn is_here(address: IpAddr) -> std::io::Result<bool> {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use drivers::health_signal::kafka_logs::KafkaLogs;

    use super::*;

    fn host(name: &str) -> (fakes::World, World) {
        let fake = fakes::World::new();
        let mut topology = fakes::World::topology();
        topology.here = name.into();
        let policy = fakes::World::policy();
        let (ports, logs) = (fake.ports(), KafkaLogs::new(kafka::Dialer::plaintext(), [].into()));
        let world = World { topology, policy, ports, signals: Vec::new(), logs, clients: Arc::default() };
        (fake, world)
    }

    fn report(world: &World) -> Report {
        Report::of(world.topology.here.clone(), "ada".to_owned())
    }

    #[tokio::test]
    async fn the_fence_is_lifted_and_then_everybody_is_told() {
        let (fake, world) = host("kafka-1");
        fake.truth().fenced.insert("kafka-1".into());
        let mut report = report(&world);
        lift(&world, &mut report).await;
        assert!(report.rejoined && !report.is_refused(), "{report}");
        assert!(fake.truth().fenced.is_empty());
        let orders = world.ports.ledger.orders().await.unwrap();
        assert_eq!((orders.0[0].who.as_str(), &orders.0[0].what), ("ada", &Instruction::Rejoined));
    }

    #[tokio::test]
    async fn a_host_without_a_fence_has_nothing_to_lift() {
        let (_, mut world) = host("kafka-1");
        world.ports.fences.clear();
        let mut report = report(&world);
        lift(&world, &mut report).await;
        assert!(report.rejoined && report.checks[0].says.contains("nothing to lift"), "{report}");
    }

    #[tokio::test]
    async fn a_host_that_may_still_hold_unwritten_pages_stays_fenced() {
        let (fake, mut world) = host("standby-1");
        let switch = world.ports.fences[&"kafka-1".into()].clone();
        world.ports.fences.insert("standby-1".into(), switch);
        fake.truth().fenced.insert("standby-1".into());
        fake.truth().faults.insert("withdraw_storage", fakes::Fault::Refuse);
        let mut refused = report(&world);
        lift(&world, &mut refused).await;
        assert_eq!(refused.checks[0].refused, Some(Refusal::StillWriter), "{refused}");
        assert!(!refused.rejoined && !fake.truth().fenced.is_empty());
        fake.truth().faults.clear();
        let mut lifted = report(&world);
        lift(&world, &mut lifted).await;
        assert!(lifted.rejoined && fake.truth().fenced.is_empty(), "{lifted}");
    }

    #[tokio::test]
    async fn nobody_is_told_of_a_fence_that_stays() {
        let (fake, world) = host("kafka-1");
        fake.truth().faults.insert("lift", fakes::Fault::Refuse);
        let mut report = report(&world);
        lift(&world, &mut report).await;
        assert_eq!(report.checks[0].refused, Some(Refusal::FenceStays), "{report}");
        assert!(!report.rejoined);
        assert!(world.ports.ledger.orders().await.unwrap().0.is_empty());
    }

    #[tokio::test]
    async fn an_owner_is_not_called_a_standby() {
        let (_, world) = host("kafka-1");
        let mut report = report(&world);
        report.owns = owned(&world).await;
        report.rejoined = true;
        let said = report.to_string();
        assert!(said.contains("kafka-1 owns broker 1") && !said.contains("standby"), "{said}");
        let (_, world) = host("standby-1");
        assert!(owned(&world).await.is_empty());
    }

    #[test]
    fn what_check_warns_of_is_not_called_ok() {
        let item =
            |verdict| Item { item: "brokers".into(), verdict, says: "no 1".into(), remedy: "add it".into() };
        for (verdict, said) in [
            (Verdict::Ok, "ok    check, brokers: no 1; add it"),
            (Verdict::Warn, "warn  check, brokers: no 1; add it"),
            (Verdict::Fail, "FAIL  check, brokers: no 1; add it"),
        ] {
            assert!(Check::of(item(verdict)).to_string().starts_with(said), "{}", Check::of(item(verdict)));
        }
    }

    #[test]
    fn only_addresses_of_this_host_are_here() {
        assert!(is_here("127.0.0.1".parse().unwrap()).unwrap());
        assert!(!is_here("192.0.2.7".parse().unwrap()).unwrap(), "kept free for documentation");
    }
}
