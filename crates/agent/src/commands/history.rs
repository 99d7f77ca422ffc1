//! `understudy history`: every takeover step by step, every order and every decision, from the ledger.

mod picture;
mod spans;

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use recovery::event::{Event, What};
use recovery::journal::{Entry, EpochJournal};
use recovery::model::{BrokerId, Cause, HostName, Instruction, Order, Orders, Outcome, human};
use recovery::plan::Phase;
use recovery::ports::Note;
use recovery::progress::phases;
use serde::Serialize;

use self::picture::{Picture, read_rate};
use self::spans::{Span, spans};
use super::story::{Told, detail, since};
use crate::UsageError;
use crate::cli::{Global, History};
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{print, print_text};
use crate::world;

#[derive(Serialize)]
struct Report {
    brokers: Vec<Chapter>,
}

/// Everything about one broker.
#[derive(Serialize)]
struct Chapter {
    broker: BrokerId,
    takeovers: Vec<Takeover>,
    /// What people ordered, and what agents answered, oldest first.
    orders: Vec<Order>,
    /// Decisions, oldest first.
    decisions: Vec<Event>,
}

#[derive(Serialize)]
struct Takeover {
    phases: Vec<(Phase, Duration)>,
    /// Everything that was done, and which of it bounded the whole.
    spans: Vec<Span>,
    /// What was proven before Kafka was started.
    proofs: Vec<Proven>,
    #[serde(flatten)]
    journal: EpochJournal,
}

/// A host was read back to be unable to write.
#[derive(Serialize)]
struct Proven {
    host: String,
    at: Timestamp,
    /// The host that read it.
    by: HostName,
    read: Note,
}

/// Reads the ledger and tells what is in it.
pub(super) async fn run(global: &Global, options: &History, config: &Config) -> anyhow::Result<Exit> {
    let only = options.broker;
    let ledger = world::ledger(config)?;
    let wanted = |id: &BrokerId| only.is_none_or(|only| id.0 == only);
    let ids: Vec<BrokerId> = config.topology.brokers.keys().copied().filter(wanted).collect();
    if let (Some(only), true) = (only, ids.is_empty()) {
        return Err(UsageError(format!("broker {only} is not guarded by this host")).into());
    }
    let book = ledger.orders().await?;
    let mut brokers = Vec::new();
    for broker in ids {
        let takeovers: Vec<_> = ledger.all(broker).await?.into_iter().map(Takeover::of).collect();
        let home = config.topology.brokers.get(&broker).map(|b| &b.home);
        let orders = orders_about(broker, home, &takeovers, &book);
        let decisions = ledger.remembered(broker).await?;
        brokers.push(Chapter { broker, takeovers, orders, decisions });
    }
    if options.svg {
        let rate = options.rate.as_deref().map(read_rate).transpose()?.unwrap_or_default();
        let drawn = drawn(&brokers, options.epoch)?;
        print_text(&Picture::of(&drawn.journal, rate))?;
    } else {
        print(&Report { brokers }, global.output)?;
    }
    Ok(Exit::Done)
}

/// The takeover to draw: of that epoch, or the newest one.
fn drawn(brokers: &[Chapter], epoch: Option<u64>) -> anyhow::Result<&Takeover> {
    let mut all = brokers.iter().flat_map(|chapter| &chapter.takeovers);
    match epoch {
        None => all.max_by_key(|takeover| takeover.journal.claim.at),
        // Each broker counts epochs by itself.
        Some(_) if brokers.len() > 1 => {
            return Err(UsageError("--epoch needs --broker: each broker has epochs of its own".into()).into());
        }
        Some(epoch) => all.find(|takeover| takeover.journal.epoch.0 == epoch),
    }
    .ok_or_else(|| {
        UsageError("there is no such takeover to draw: `understudy history` lists them".into()).into()
    })
}

/// The orders about `broker`, those for every broker among them. A host that rejoins matters where it was
/// before.
fn orders_about(
    broker: BrokerId,
    home: Option<&HostName>,
    takeovers: &[Takeover],
    book: &Orders,
) -> Vec<Order> {
    let hosts = takeovers.iter().flat_map(|t| [&t.journal.claim.plan.from, &t.journal.claim.by]);
    let hosts: Vec<&HostName> = hosts.chain(home).collect();
    let about = |order: &&Order| match &order.what {
        Instruction::Pause { broker: whom, .. }
        | Instruction::Resume { broker: whom }
        | Instruction::Ack { broker: whom, .. } => whom.is_none_or(|id| id == broker),
        Instruction::Approve { broker: id, .. }
        | Instruction::Switchover { broker: id, .. }
        | Instruction::Released { broker: id, .. } => *id == broker,
        Instruction::Rejoined => hosts.contains(&&order.host),
    };
    book.0.iter().filter(about).cloned().collect()
}

impl Takeover {
    fn of(journal: EpochJournal) -> Self {
        let proven = journal.records.iter().filter_map(|record| {
            let host = Told { journal: &journal, record }.proven()?;
            let Entry::Done { note, .. } = &record.entry else { return None };
            Some(Proven { host, at: record.at, by: record.by.clone(), read: note.clone() })
        });
        let proofs = proven.collect();
        Self { phases: phases(&journal), spans: spans(&journal), proofs, journal }
    }

    /// What to make quicker if the whole is to be quicker, the longest first; without what took less than a
    /// twentieth.
    fn bounded_by(&self) -> Vec<String> {
        let mut bounding: Vec<&Span> = self.spans.iter().filter(|span| span.bounds).collect();
        let whole: Duration = bounding.iter().map(|span| span.took()).sum();
        bounding.retain(|span| span.took() * 20 >= whole);
        bounding.sort_by_key(|span| std::cmp::Reverse(span.took()));
        bounding.iter().map(|span| format!("{} {}", span.what, human(span.took()))).collect()
    }

    /// Who or what asked for it.
    fn asked_by(&self) -> &'static str {
        let plan = &self.journal.claim.plan;
        match (self.journal.claim.cause, plan.from == plan.to) {
            (Cause::Manual, false) => "asked for by a person",
            (Cause::Manual, true) => "restarted in place, asked for by a person",
            (Cause::Planned, _) => "a switchover",
            (Cause::Automatic, false) => "decided by the agent",
            (Cause::Automatic, true) => "restarted in place, decided by the agent",
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.brokers.iter().try_for_each(|chapter| write!(f, "{chapter}"))
    }
}

impl fmt::Display for Chapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broker {}", self.broker)?;
        if self.takeovers.is_empty() {
            writeln!(f, "  never taken over")?;
        }
        let mut orders = self.orders.iter().peekable();
        for takeover in &self.takeovers {
            while let Some(order) = orders.next_if(|order| order.at <= takeover.journal.claim.at) {
                writeln!(f, "  order: {order}")?;
            }
            write!(f, "{takeover}")?;
        }
        orders.try_for_each(|order| writeln!(f, "  order: {order}"))?;
        if !self.decisions.is_empty() {
            writeln!(f, "  decisions")?;
        }
        for event in &self.decisions {
            decided(f, event)?;
        }
        Ok(())
    }
}

fn decided(f: &mut fmt::Formatter<'_>, event: &Event) -> fmt::Result {
    let (at, host) = (stamp(event.at), &event.host);
    match &event.what {
        What::Decided { decision, evidence } => {
            writeln!(f, "    {at}  {host}: {decision}")?;
            evidence.iter().try_for_each(|clue| writeln!(f, "        because {clue}"))
        }
        What::WouldTakeOver { plan } => {
            writeln!(f, "    {at}  {host}: would act, if the mode allowed it")?;
            plan.to_string().lines().try_for_each(|line| writeln!(f, "        {line}"))
        }
        What::NotPlanned { why } => {
            writeln!(f, "    {at}  {host}: nothing is done, for there is no plan: {why}")
        }
        What::CheckFailed { found } => writeln!(f, "    {at}  {host}: not ready: {found}"),
        What::CheckPassed { found } => writeln!(f, "    {at}  {host}: ready again: {}", found.check),
        _ => Ok(()),
    }
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let journal = &self.journal;
        let plan = &journal.claim.plan;
        writeln!(f, "  epoch {}: {} -> {}, {}", journal.epoch, plan.from, plan.to, self.asked_by())?;
        if let Some(before) = &journal.claim.succeeds {
            writeln!(f, "    succeeds the silent claimant of epoch {}", before.epoch)?;
        }
        writeln!(f, "    {}  last seen well", stamp(plan.fault_at))?;
        plan.because.iter().try_for_each(|clue| writeln!(f, "        because {clue}"))?;
        // That the claimant was at work all the time is of no interest afterwards.
        for record in journal.records.iter().filter(|record| record.entry != Entry::Alive) {
            let told = Told { journal, record };
            writeln!(f, "    {} {:>8}  {told}", stamp(record.at), since(plan.fault_at, record.at))?;
            if let Some(host) = told.proven() {
                writeln!(
                    f,
                    "        PROOF that {host} cannot write, read by {} at {}",
                    record.by,
                    stamp(record.at)
                )?;
            }
            if let Entry::Done { note, .. } = &record.entry {
                note.details.iter().try_for_each(|(name, value)| detail(f, name, value))?;
            }
        }
        if journal.outcome().is_none() {
            writeln!(f, "    not ended yet")?;
        }
        let phases = self.phases.iter().map(|(phase, took)| format!("{phase} {}", human(*took)));
        writeln!(f, "    phases: {}", phases.collect::<Vec<_>>().join(", "))?;
        writeln!(f, "    bounded by: {}", self.bounded_by().join(", "))?;
        match (&plan.predicted, journal.outcome()) {
            (Some(predicted), Some(Outcome::Recovered { time_to_isr, .. })) => {
                let (was, expected) = (*time_to_isr, predicted.time_to_isr());
                let sign = if was < expected { '-' } else { '+' };
                let error = human(was.abs_diff(expected));
                writeln!(f, "    predicted time-to-ISR {predicted}; it was {} ({sign}{error})", human(was))
            }
            (Some(predicted), _) => writeln!(f, "    predicted time-to-ISR {predicted}"),
            (None, _) => Ok(()),
        }
    }
}

/// To the millisecond: more is noise, less hides the order.
fn stamp(at: Timestamp) -> String {
    format!("{at:.3}")
}
