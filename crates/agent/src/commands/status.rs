//! `understudy status`: how every guarded broker stands, by the running agent, or else by the ledger.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use recovery::decide::{Decision, Failure, HoldReason};
use recovery::model::{
    BrokerId, CheckSeen, Epoch, EpochState, HostName, Instruction, LedgerStanding, Order, Outcome, human,
};
use recovery::policy::Policy;
use recovery::status::{BrokerStatus, TakeoverStatus};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::http::StatusPage;
use crate::orders::in_force_for;
use crate::output::print;
use crate::world;

/// An agent tells of each broker in some hundred bytes.
const LONGEST_ANSWER: u64 = 16 << 20;

/// How long the running agent may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

const RUNBOOK: &str = "docs/runbooks/holds-and-errors.md";

/// The whole answer.
#[derive(Debug, Serialize)]
struct Report {
    /// Where the facts come from.
    source: String,
    /// Why the running agent was not the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    /// When the facts were gathered.
    at: Option<Timestamp>,
    host: HostName,
    mode: &'static str,
    /// Signals that cannot see, with the reason.
    blind: Vec<String>,
    /// What the agent's own checks found last.
    checks: Vec<CheckSeen>,
    /// Why orders and budgets are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    orders_unread: Option<String>,
    /// Automatic takeovers of all brokers together.
    budget: Option<Budget>,
    brokers: Vec<Line>,
    /// Every broker that is down, and who counts with it; nobody, where no agent watches.
    down: Vec<Failure>,
}

/// One broker.
#[derive(Debug, Serialize)]
struct Line {
    broker: BrokerId,
    owner: Option<HostName>,
    epoch: Option<Epoch>,
    says: String,
    evidence: Vec<String>,
    takeover: Option<TakeoverStatus>,
    /// What keeps it from being well, each with the section of the runbook about it.
    missing: Vec<Missing>,
    /// The pause, the approval and the switchover that are in force.
    orders: Vec<Order>,
    /// Automatic takeovers of this broker.
    budget: Option<Budget>,
    #[serde(skip)]
    exit: Exit,
}

/// How many automatic takeovers there were within the window, since a person last acknowledged.
#[derive(Debug, Clone, Copy, Serialize)]
struct Budget {
    used: usize,
    limit: usize,
    window_secs: u64,
}

/// What the ledger says beside the state of the brokers.
struct Book {
    orders: BTreeMap<BrokerId, Vec<Order>>,
    budgets: BTreeMap<BrokerId, Budget>,
    all: Budget,
}

#[derive(Debug, Serialize)]
struct Missing {
    what: String,
    runbook: String,
}

impl Missing {
    fn new(what: impl fmt::Display, label: &str) -> Self {
        Self { what: what.to_string(), runbook: format!("{RUNBOOK}#{label}") }
    }
}

/// Asks the running agent; if there is none, reads the ledger.
pub(super) async fn run(global: &Global, config: &Config) -> anyhow::Result<Exit> {
    let mut report = match ask(config).await {
        Ok(page) => by_agent(config.listen, page),
        // Nothing is known of the agent then, and the ledger alone would look as if there were none.
        Err(error) if config.tls.is_some() && is_denied(&error) => {
            let why =
                "with [agent.tls] the agent is asked on its socket, which is for root: run this as root";
            return Err(error.context(why));
        }
        Err(error) => by_ledger(config, format!("{error:#}")).await?,
    };
    match book(config).await {
        Ok(book) => report.add(book),
        Err(error) => report.orders_unread = Some(format!("{error:#}")),
    }
    print(&report, global.output)?;
    let worst = report.brokers.iter().map(|line| line.exit).max();
    Ok(worst.unwrap_or(Exit::Done))
}

/// Over TCP; with `[agent.tls]` on the socket, where root need not show who it is.
async fn ask(config: &Config) -> anyhow::Result<StatusPage> {
    let (listen, socket) = (config.listen, &config.socket);
    let at = if config.tls.is_some() { socket.display().to_string() } else { listen.to_string() };
    let look = async {
        match config.tls {
            Some(_) => page(UnixStream::connect(socket).await?).await,
            None => page(TcpStream::connect(listen).await?).await,
        }
    };
    let answer = match tokio::time::timeout(ANSWER_WITHIN, look).await {
        Ok(answer) => answer.with_context(|| format!("no agent answers on {at}"))?,
        Err(_) => bail!("no answer from {at} within {ANSWER_WITHIN:?}"),
    };
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{at} does not speak HTTP"))?;
    ensure!(head.lines().next().is_some_and(|l| l.contains(" 200 ")), "{at} is not an agent");
    serde_json::from_str(body).with_context(|| format!("{at} is not an agent of this version"))
}

fn is_denied(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == ErrorKind::PermissionDenied)
}

async fn page(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<Vec<u8>> {
    // HTTP/1.0: the answer ends with the connection, so nothing has to be parsed but its begin.
    stream.write_all(b"GET /v1/status HTTP/1.0\r\nHost: agent\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn by_agent(at: SocketAddr, page: StatusPage) -> Report {
    let status = page.status;
    Report {
        source: format!("the agent running here ({at}, version {})", page.version),
        agent: None,
        at: status.at,
        host: status.host,
        mode: status.mode.word(),
        blind: status.blind.into_iter().map(|(signal, why)| format!("{signal}: {why}")).collect(),
        checks: status.checks,
        orders_unread: None,
        budget: None,
        brokers: status.brokers.into_iter().map(decided).collect(),
        down: status.down,
    }
}

fn decided(broker: BrokerStatus) -> Line {
    let (exit, missing) = match &broker.decision {
        Some(Decision::Hold { reasons }) => {
            (Exit::Held, reasons.iter().map(|r: &HoldReason| Missing::new(r, r.label())).collect())
        }
        Some(Decision::Escalate { reasons }) => {
            (Exit::Stuck, reasons.iter().map(|r| Missing::new(r, r.label())).collect())
        }
        _ => (Exit::Done, disarmed(&broker).into_iter().collect()),
    };
    Line {
        broker: broker.id,
        owner: broker.owner,
        epoch: broker.epoch,
        says: broker.says,
        evidence: broker.evidence,
        takeover: broker.takeover,
        missing,
        orders: Vec::new(),
        budget: None,
        exit,
    }
}

/// A broker that is well, and whose next failure will all the same need a person.
fn disarmed(broker: &BrokerStatus) -> Option<Missing> {
    let (epoch, EpochState::Ended { outcome, .. }) = (broker.epoch?, broker.last.as_ref()?) else {
        return None;
    };
    let label = match outcome {
        Outcome::Stuck { .. } => "stuck",
        Outcome::Abandoned { .. } => "abandoned",
        _ => return None,
    };
    let what = format!(
        "takeover epoch {epoch} ended {}: the next failure of this broker will need a person, until a \
         `failover` by hand has succeeded",
        outcome.label()
    );
    Some(Missing::new(what, label))
}

async fn by_ledger(config: &Config, agent: String) -> anyhow::Result<Report> {
    let ledger = world::ledger(config)?;
    let topology = &config.topology;
    let mut brokers = Vec::new();
    for broker in topology.brokers.keys() {
        let standing = world::standing(ledger.as_ref(), topology, *broker).await?;
        brokers.push(recorded(*broker, standing, &topology.here));
    }
    Ok(Report {
        source: "the ledger".to_owned(),
        agent: Some(agent),
        at: Some(Timestamp::now()),
        host: topology.here.clone(),
        mode: config.policy.mode.word(),
        blind: Vec::new(),
        checks: Vec::new(),
        orders_unread: None,
        budget: None,
        brokers,
        down: Vec::new(),
    })
}

/// By the ledger alone nobody knows whether the broker is well: only what was done about it.
fn recorded(broker: BrokerId, standing: LedgerStanding, here: &HostName) -> Line {
    let LedgerStanding { epoch, owner, state, .. } = standing;
    let (says, exit, missing) = match state {
        None => ("never taken over".to_owned(), Exit::Done, Vec::new()),
        Some(EpochState::Open { by, .. }) => {
            (format!("{by} is taking it over (epoch {epoch})"), Exit::Done, Vec::new())
        }
        Some(EpochState::Ended { by, outcome }) => {
            let (exit, label) = match &outcome {
                Outcome::Stuck { .. } => (Exit::Stuck, Some("stuck")),
                Outcome::Abandoned { .. } if by == *here => (Exit::Stuck, Some("abandoned")),
                _ => (Exit::Done, None),
            };
            let missing = label.map(|label| Missing::new(&outcome, label));
            (format!("last takeover, by {by}: {outcome}"), exit, missing.into_iter().collect())
        }
    };
    let (owner, epoch) = (Some(owner), Some(epoch));
    let (orders, budget) = (Vec::new(), None);
    Line { broker, owner, epoch, says, evidence: Vec::new(), takeover: None, missing, orders, budget, exit }
}

/// Orders and budgets, which the running agent does not tell.
async fn book(config: &Config) -> anyhow::Result<Book> {
    let ledger = world::ledger(config)?;
    let (policy, now) = (&config.policy, Timestamp::now());
    let since = now.checked_sub(policy.budget_window).unwrap_or(Timestamp::MIN);
    let book = ledger.orders().await?;
    let (mut orders, mut budgets, mut all) = (BTreeMap::new(), BTreeMap::new(), 0);
    for id in config.topology.brokers.keys() {
        let standing = world::standing(ledger.as_ref(), &config.topology, *id).await?;
        orders.insert(*id, in_force_for(&book, *id, standing.epoch, now).cloned().collect());
        let used = standing.attempts.iter().filter(|a| a.counts(since, book.acked(*id))).count();
        budgets.insert(*id, budget(used, policy.takeovers_per_broker, policy));
        all += used;
    }
    Ok(Book { orders, budgets, all: budget(all, policy.takeovers_per_cluster, policy) })
}

fn budget(used: usize, limit: usize, policy: &Policy) -> Budget {
    Budget { used, limit, window_secs: policy.budget_window.as_secs() }
}

impl Report {
    fn add(&mut self, mut book: Book) {
        self.budget = Some(book.all);
        for line in &mut self.brokers {
            line.orders = book.orders.remove(&line.broker).unwrap_or_default();
            line.budget = book.budgets.remove(&line.broker);
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, limit, window_secs } = self;
        let window = humantime::format_duration(Duration::from_secs(*window_secs));
        write!(f, "{used} of {limit} automatic takeovers within {window}")?;
        if used >= limit { write!(f, ": SPENT, the next one needs `understudy ack`") } else { Ok(()) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.map_or_else(|| "before its first look".to_owned(), |at| format!("at {at:.0}"));
        writeln!(f, "{}, mode {}, by {}, {at}", self.host, self.mode, self.source)?;
        if let Some(why) = &self.agent {
            writeln!(f, "NOTHING IS WATCHED FROM HERE: {why}; start it with `understudy run`")?;
        }
        self.blind.iter().try_for_each(|blind| writeln!(f, "cannot see: {blind}"))?;
        for CheckSeen { found, age } in self.checks.iter().filter(|seen| seen.found.failed()) {
            writeln!(f, "NOT READY: {}: {} (checked {} ago)", found.check, found.says, human(*age))?;
            if !found.remedy.is_empty() {
                writeln!(f, "    do: {}", found.remedy)?;
            }
            writeln!(f, "    see: {RUNBOOK}#not-ready")?;
        }
        if let Some(why) = &self.orders_unread {
            writeln!(f, "orders and budgets cannot be read: {why}")?;
        }
        if let Some(budget) = self.budget.filter(|budget| budget.used > 0) {
            writeln!(f, "all brokers together: {budget}")?;
        }
        self.down.iter().try_for_each(|failure| writeln!(f, "down: {failure}"))?;
        self.brokers.iter().try_for_each(|line| write!(f, "{line}"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner.as_ref().map_or("unknown", |owner| &owner.0);
        let epoch = self.epoch.map_or_else(|| "unknown".to_owned(), |epoch| epoch.to_string());
        writeln!(f, "broker {}  owner {owner}  epoch {epoch}  {}", self.broker, self.says)?;
        if let Some(takeover) = &self.takeover {
            let detail = takeover.rejoining.clone().unwrap_or_else(|| takeover.steps.join(", "));
            writeln!(f, "    taking over since {}: {} {detail}", takeover.since, takeover.phase)?;
        }
        for order in &self.orders {
            let word = if matches!(order.what, Instruction::Pause { .. }) { "PAUSED" } else { "waiting" };
            writeln!(f, "    {word}: {order}")?;
        }
        if let Some(budget) = self.budget.filter(|budget| budget.used > 0) {
            writeln!(f, "    {budget}")?;
        }
        for missing in &self.missing {
            writeln!(f, "    missing: {}\n    see: {}", missing.what, missing.runbook)?;
        }
        if self.exit != Exit::Done {
            self.evidence.iter().try_for_each(|clue| writeln!(f, "    evidence: {clue}"))?;
        }
        Ok(())
    }
}
