//! What the surviving brokers say: the broker list on every look, replicas and ISR when something changed.
//!
//! Each client asks on a task of its own, and a look takes what has arrived: a client that hangs on a dead
//! broker delays nobody, and is asked again once it is back.
//!
//! Asked over our own connections, one a client, and not through librdkafka: that keeps a thread for every
//! broker it hears of, which is three thousand of them where a cluster has a thousand brokers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};

use kafka::Dialer;
use kafka::wire::{Connection, Topics, WireError};
use recovery::model::{BrokerId, Endpoint, Evidence, Fact, Moment, PartitionView};
use recovery::ports::{Clock, HealthSignal, chain};

/// The list changes when the controller fences a broker or lets it back, seconds after the event itself.
const PERIOD: Duration = Duration::from_millis(500);
/// How long a look waits for the clients it asked.
const LIMIT: Duration = Duration::from_millis(400);
/// How long a client waits for a broker, on its own task, before it tries another.
const FETCH_LIMIT: Duration = Duration::from_secs(1);
/// The same for the full picture, which may be tens of megabytes.
const FULL_FETCH_LIMIT: Duration = Duration::from_secs(10);
/// Without news the full picture is read again after this long: topics come and go without it.
const FULL_EVERY: Duration = Duration::from_secs(30);
/// Three vantage points are enough for a majority; each costs a connection.
const MAX_CLIENTS: usize = 3;
/// Asks the cluster for its brokers and partitions through up to three bootstrap servers.
pub struct KafkaMetadata {
    state: Mutex<State>,
    listed: watch::Sender<BTreeMap<BrokerId, Endpoint>>,
}

struct State {
    clients: Vec<Client>,
    answers: UnboundedReceiver<Answer>,
    /// The client whose answer was used last.
    used: usize,
    /// When the last full picture was asked for, and the broker list it came with.
    full: Option<(Moment, BTreeMap<BrokerId, Endpoint>)>,
    /// That picture. Giving one of a large cluster up takes longer than a tick may, so it is given up here, a
    /// look after the next one has taken its place.
    kept: Vec<Arc<PartitionView>>,
}

/// The near end of a client's task, which ends when this is dropped.
struct Client {
    asks: mpsc::Sender<Ask>,
    busy: bool,
}

#[derive(Debug, Clone, Copy)]
struct Ask {
    at: Moment,
    full: bool,
}

struct Answer {
    client: usize,
    ask: Ask,
    said: Result<Said, String>,
}

struct Said {
    brokers: BTreeMap<BrokerId, Endpoint>,
    partitions: PartitionView,
}

impl KafkaMetadata {
    /// Starts a client for each of the first three `bootstrap` servers, on the present runtime. The brokers
    /// that the cluster lists are published in `listed`.
    #[must_use]
    pub fn new(
        dialer: &Dialer,
        bootstrap: &[Endpoint],
        listed: watch::Sender<BTreeMap<BrokerId, Endpoint>>,
    ) -> Self {
        let (sender, answers) = unbounded_channel();
        let servers = bootstrap.iter().take(MAX_CLIENTS).enumerate();
        let clients = servers.map(|(client, server)| Client::start(dialer, client, server, sender.clone()));
        let state = State { clients: clients.collect(), answers, used: 0, full: None, kept: Vec::new() };
        Self { state: Mutex::new(state), listed }
    }
}

impl Client {
    fn start(dialer: &Dialer, client: usize, server: &Endpoint, answers: UnboundedSender<Answer>) -> Self {
        let (asks, asked) = mpsc::channel(1);
        tokio::spawn(work(client, Line::to(dialer.clone(), client, server), asked, answers));
        Self { asks, busy: false }
    }
}

/// A client's task: answers one ask after another, until nobody asks any more.
async fn work(
    client: usize,
    mut line: Line,
    mut asks: mpsc::Receiver<Ask>,
    answers: UnboundedSender<Answer>,
) {
    while let Some(ask) = asks.recv().await {
        let said = line.fetch(ask.full).await;
        if answers.send(Answer { client, ask, said }).is_err() {
            return;
        }
    }
}

/// The connection that a client keeps, and whom it asks when that breaks.
struct Line {
    dialer: Dialer,
    client: usize,
    /// The bootstrap server, and the brokers that were last listed.
    endpoints: Vec<Endpoint>,
    turn: usize,
    connection: Option<Connection>,
}

impl Line {
    fn to(dialer: Dialer, client: usize, server: &Endpoint) -> Self {
        Self { dialer, client, endpoints: vec![server.clone()], turn: 0, connection: None }
    }

    /// Asks one broker after another, until one answers or the time is up. The next fetch begins where this
    /// one ends, so that a broker that eats the whole time does so once.
    async fn fetch(&mut self, full: bool) -> Result<Said, String> {
        let until = Instant::now() + if full { FULL_FETCH_LIMIT } else { FETCH_LIMIT };
        let topics = if full { Topics::All } else { Topics::None };
        let mut failed = String::new();
        // Once more than there are, if the first may only have closed a connection that was kept.
        let tries = self.endpoints.len() + usize::from(self.connection.is_some());
        for _ in 0..tries {
            let kept = self.connection.is_some();
            match self.ask(topics, until).await {
                Ok(said) => {
                    self.learn(&said.brokers);
                    return Ok(said);
                }
                Err(error) => {
                    let again = kept && matches!(error, WireError::Closed { .. });
                    self.turn = (self.turn + usize::from(!again)) % self.endpoints.len();
                    failed = chain(&error);
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        Err(failed)
    }

    async fn ask(&mut self, topics: Topics<'_>, until: Instant) -> Result<Said, WireError> {
        let rest = || until.saturating_duration_since(Instant::now());
        // Taken out while in use: what failed, or was not waited for to its end, is not used again.
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => self.dialer.open(&self.endpoints[self.turn], rest().min(FETCH_LIMIT)).await?,
        };
        let seen = connection.metadata(topics, rest()).await?;
        self.connection = Some(connection);
        Ok(Said { brokers: seen.brokers, partitions: seen.partitions })
    }

    /// Whom to ask when this one fails: each client another one, for three that ask the same broker are one
    /// witness.
    fn learn(&mut self, brokers: &BTreeMap<BrokerId, Endpoint>) {
        let here = &self.endpoints[self.turn];
        let server = &self.endpoints[0];
        let mut others: Vec<_> = brokers.values().filter(|at| *at != server).cloned().collect();
        let spread = others.len() * self.client / MAX_CLIENTS;
        others.rotate_left(spread);
        others.insert(0, server.clone());
        // It may be asked on although it is listed no more: it answers.
        let turn = others.iter().position(|at| at == here);
        let turn = turn.unwrap_or_else(|| {
            others.push(here.clone());
            others.len() - 1
        });
        (self.endpoints, self.turn) = (others, turn);
    }
}

impl State {
    /// Asks one client, if it is idle. Says whether it was.
    fn ask(&mut self, client: usize, ask: Ask) -> bool {
        let client = &mut self.clients[client];
        let asked = !client.busy && client.asks.try_send(ask).is_ok();
        client.busy |= asked;
        asked
    }

    /// What arrives, until `waiting` answers to asks of `at` are there or the time is up. With nobody to wait
    /// for, waits for anything at all.
    async fn collect(&mut self, at: Moment, mut waiting: usize, until: Instant) -> Vec<Answer> {
        let mut arrived = Vec::new();
        while waiting > 0 || arrived.is_empty() {
            let Ok(Some(answer)) = timeout_at(until, self.answers.recv()).await else { break };
            self.clients[answer.client].busy = false;
            waiting -= usize::from(answer.ask.at == at).min(waiting);
            arrived.push(answer);
        }
        arrived
    }

    /// One round: asks whoever is idle for the broker list, and then, if it is due, one for the full picture.
    async fn round(&mut self, at: Moment) -> Vec<Answer> {
        let until = Instant::now() + LIMIT;
        let waiting = (0..self.clients.len()).filter(|c| self.ask(*c, Ask { at, full: false })).count();
        let mut arrived = self.collect(at, waiting, until).await;
        if let Some((client, brokers)) = self.listing(&arrived).map(|(_, c, said)| (c, &said.brokers)) {
            let due = |(read, had): &(Moment, _)| had != brokers || at.since(*read) >= FULL_EVERY;
            if self.full.as_ref().is_none_or(due) && self.ask(client, Ask { at, full: true }) {
                arrived.extend(self.collect(at, 1, Instant::now() + LIMIT).await);
            }
        }
        arrived
    }

    /// The answer to believe: of the newest, the one most others agree with; of equals, the one believed last
    /// time. A broker that is cut off from the controller keeps telling an old list.
    fn listing<'a>(&self, arrived: &'a [Answer]) -> Option<(Moment, usize, &'a Said)> {
        let said = |a: &'a Answer| a.said.as_ref().ok().map(|said| (a.ask.at, a.client, said));
        let heard: Vec<_> = arrived.iter().filter_map(said).collect();
        let agreeing = |said: &Said| heard.iter().filter(|(_, _, s)| s.brokers == said.brokers).count();
        let rank = |(at, client, said): &(Moment, usize, &Said)| (*at, agreeing(said), *client == self.used);
        heard.iter().max_by_key(|heard| rank(heard)).copied()
    }

    /// The newest one stays: it is the one that others use.
    fn give_up_old_pictures(&mut self) {
        let newest = self.kept.pop();
        let (idle, used): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.kept).into_iter().partition(|view| Arc::strong_count(view) == 1);
        self.kept = used;
        self.kept.extend(newest);
        if !idle.is_empty() {
            tokio::task::spawn_blocking(move || drop(idle));
        }
    }

    fn why_blind(&self, arrived: &[Answer]) -> String {
        let failures: Vec<&str> =
            arrived.iter().filter_map(|a| Some(a.said.as_ref().err()?.as_str())).collect();
        if failures.is_empty() {
            format!("no bootstrap server answered within {LIMIT:?}")
        } else {
            failures.join("; ")
        }
    }
}

#[async_trait]
impl HealthSignal for KafkaMetadata {
    fn name(&self) -> &'static str {
        "kafka_metadata"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let now = clock.now().mono;
        let mut state = self.state.lock().await;
        let arrived = state.round(now).await;
        state.give_up_old_pictures();
        let evidence = |at, fact| Evidence { signal: self.name(), at, fact };
        let Some((at, client, said)) = state.listing(&arrived) else {
            return vec![evidence(now, Fact::Blind { why: state.why_blind(&arrived) })];
        };
        state.used = client;
        let brokers = said.brokers.clone();
        self.listed.send_if_modified(|known| {
            let changed = *known != brokers;
            known.clone_from(&brokers);
            changed
        });
        let mut facts = vec![evidence(at, Fact::Listed { brokers })];
        for answer in arrived {
            if let (true, Ok(said)) = (answer.ask.full, answer.said) {
                state.full = Some((answer.ask.at, said.brokers));
                let view = Arc::new(said.partitions);
                state.kept.push(view.clone());
                facts.push(evidence(answer.ask.at, Fact::Partitions(view)));
            }
        }
        facts
    }
}

#[cfg(test)]
mod tests;
