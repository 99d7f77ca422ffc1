//! The active controller's account of who fetches the metadata log (`DescribeQuorum`).
//!
//! Every live KRaft broker fetches it at least twice a second, so this is a second witness of a broker's
//! death, independent of our own way to it, seconds before the broker's session expires.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use kafka_protocol::messages::describe_quorum_response::PartitionData;
use tokio::sync::Mutex;
use tokio::time::Instant;

use kafka::wire::{Connection, Controller, WireError};
use kafka::{Dialer, Dialers};
use recovery::model::{BrokerId, Endpoint, Evidence, Fact, QuorumView};
use recovery::ports::{Clock, HealthSignal, chain};

/// As often as the brokers are probed: the two witnesses are heard together.
const PERIOD: Duration = Duration::from_millis(250);
/// How long one look may take, whatever number of endpoints it tries.
const LIMIT: Duration = Duration::from_millis(500);

/// Asks the active controller when it last heard of every node.
#[derive(Debug)]
pub struct KafkaQuorum {
    dialer: Dialer,
    endpoints: Vec<Endpoint>,
    line: Mutex<Line>,
}

/// The endpoint whose turn it is, and the connection that is kept open to it.
#[derive(Debug, Default)]
struct Line {
    turn: usize,
    connection: Option<Connection>,
}

impl KafkaQuorum {
    /// Asks the controllers' own listeners, or the bootstrap brokers, which pass the question on, where no
    /// controllers are configured.
    #[must_use]
    pub fn new(dialers: Dialers, controllers: &[Controller], bootstrap: &[Endpoint]) -> Self {
        let (dialer, endpoints) = if controllers.is_empty() {
            (dialers.brokers, bootstrap.to_vec())
        } else {
            let listeners = controllers.iter().map(|controller| controller.listener.clone());
            (dialers.controllers, listeners.collect())
        };
        Self { dialer, endpoints, line: Mutex::default() }
    }

    /// Asks one endpoint after another, until one answers or the time is up. The next look begins where this
    /// one ends, so that an endpoint that eats the whole deadline does so once.
    async fn ask(&self) -> Result<QuorumView, String> {
        let until = Instant::now() + LIMIT;
        let mut line = self.line.lock().await;
        let mut failures = Vec::new();
        for _ in &self.endpoints {
            match line.ask(&self.dialer, &self.endpoints, until).await {
                Ok(said) => return Ok(view(&said)),
                Err(error) if error.is_not_leader() => {
                    failures.push(format!("{} is not the active controller", self.endpoints[line.turn]));
                }
                Err(error) => failures.push(chain(&error)),
            }
            line.connection = None;
            line.turn = (line.turn + 1) % self.endpoints.len();
            if Instant::now() >= until {
                break;
            }
        }
        Err(if failures.is_empty() {
            "nobody is configured to be asked".to_owned()
        } else {
            failures.join("; ")
        })
    }
}

impl Line {
    async fn ask(
        &mut self,
        dialer: &Dialer,
        endpoints: &[Endpoint],
        until: Instant,
    ) -> Result<PartitionData, WireError> {
        let rest = || until.saturating_duration_since(Instant::now());
        // Taken out while in use: a look that is cancelled half-way leaves no half-read answer behind.
        let mut connection = match self.connection.take() {
            Some(open) => open,
            None => dialer.open(&endpoints[self.turn], rest()).await?,
        };
        let said = connection.describe_quorum(rest()).await?;
        self.connection = Some(connection);
        Ok(said)
    }
}

#[async_trait]
impl HealthSignal for KafkaQuorum {
    fn name(&self) -> &'static str {
        "kafka_quorum"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let fact = match self.ask().await {
            Ok(view) => Fact::Quorum(view),
            Err(why) => Fact::Blind { why },
        };
        vec![Evidence { signal: self.name(), at, fact }]
    }
}

/// Ages by the controller's own clock: all timestamps in one answer are the active controller's.
fn view(said: &PartitionData) -> QuorumView {
    let mut fetched: BTreeMap<BrokerId, i64> = BTreeMap::new();
    for replica in said.current_voters.iter().chain(&said.observers) {
        // Below zero: not heard since this controller took over.
        if replica.last_fetch_timestamp >= 0 {
            // A node that came back with a new metadata directory has two entries; the freshest counts.
            let known = fetched.entry(BrokerId(replica.replica_id.0)).or_default();
            *known = (*known).max(replica.last_fetch_timestamp);
        }
    }
    // The leader's own timestamp is the time of the answer.
    let leader = BrokerId(said.leader_id.0);
    let now = fetched.get(&leader).or_else(|| fetched.values().max()).copied().unwrap_or_default();
    let age = |at: i64| Duration::from_millis(u64::try_from(now.saturating_sub(at)).unwrap_or(0));
    QuorumView {
        leader: leader.0,
        leader_epoch: said.leader_epoch,
        silence: fetched.into_iter().map(|(node, at)| (node, age(at))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use kafka_protocol::messages::describe_quorum_response::{ReplicaState, TopicData};
    use kafka_protocol::messages::{ApiKey, BrokerId as Node, DescribeQuorumResponse};

    use super::*;
    use fakes::kafka::{Call, Fake, Reply};
    use recovery::model::{Moment, Now};

    struct At(Duration);

    #[async_trait]
    impl Clock for At {
        fn now(&self) -> Now {
            Now { mono: Moment(self.0), wall: jiff::Timestamp::UNIX_EPOCH }
        }
        async fn sleep(&self, duration: Duration) {
            tokio::time::sleep(duration).await;
        }
    }

    const CLOCK: At = At(Duration::from_secs(7));

    fn replica(id: i32, fetched: i64) -> ReplicaState {
        ReplicaState::default().with_replica_id(Node(id)).with_last_fetch_timestamp(fetched)
    }

    fn quorum(voters: Vec<ReplicaState>, observers: Vec<ReplicaState>) -> PartitionData {
        PartitionData::default()
            .with_leader_id(Node(101))
            .with_leader_epoch(4)
            .with_current_voters(voters)
            .with_observers(observers)
    }

    fn said(call: &Call, partition: PartitionData) -> Reply {
        let topic = TopicData::default().with_partitions(vec![partition]);
        call.say(&DescribeQuorumResponse::default().with_topics(vec![topic]))
    }

    fn millis(view: &QuorumView) -> Vec<(i32, u128)> {
        view.silence.iter().map(|(id, silence)| (id.0, silence.as_millis())).collect()
    }

    #[test]
    fn silence_is_counted_from_the_leaders_own_timestamp() {
        let seen = view(&quorum(vec![replica(101, 10_000), replica(102, 9_900)], vec![replica(1, 7_500)]));
        assert_eq!((seen.leader, seen.leader_epoch), (101, 4));
        assert_eq!(millis(&seen), [(1, 2_500), (101, 0), (102, 100)]);
    }

    #[test]
    fn without_the_leaders_timestamp_the_newest_counts() {
        let seen = view(&quorum(vec![replica(101, -1), replica(102, 9_900)], vec![replica(1, 7_500)]));
        assert_eq!(millis(&seen), [(1, 2_400), (102, 0)]);
    }

    #[test]
    fn nodes_that_were_not_heard_yet_are_left_out() {
        let seen = view(&quorum(vec![replica(101, 10_000)], vec![replica(1, -1), replica(2, 9_999)]));
        assert_eq!(millis(&seen), [(2, 1), (101, 0)]);
    }

    #[test]
    fn of_two_entries_for_one_node_the_freshest_counts() {
        let (old, new) = (replica(1, 2_000), replica(1, 9_800));
        for observers in [vec![old.clone(), new.clone()], vec![new, old]] {
            let seen = view(&quorum(vec![replica(101, 10_000)], observers));
            assert_eq!(millis(&seen), [(1, 200), (101, 0)]);
        }
    }

    #[test]
    fn a_timestamp_ahead_of_the_leader_is_no_silence() {
        let seen = view(&quorum(vec![replica(101, 10_000)], vec![replica(1, 10_050), replica(2, i64::MAX)]));
        assert_eq!(millis(&seen), [(1, 0), (2, 0), (101, 0)]);
    }

    #[tokio::test]
    async fn finds_the_active_controller_and_stays_with_it() {
        let follower = Fake::start(|call| match call.key {
            ApiKey::DescribeQuorum => Some(call.say(&DescribeQuorumResponse::default().with_error_code(6))),
            _ => None,
        })
        .await;
        let active = Fake::start(|call| match call.key {
            ApiKey::DescribeQuorum => Some(said(call, quorum(vec![replica(101, 5)], vec![replica(1, 2)]))),
            _ => None,
        })
        .await;
        let controllers: Vec<Controller> =
            [&follower.at, &active.at].map(|at| format!("101@{at}").parse().unwrap()).to_vec();
        let signal = KafkaQuorum::new(Dialers::plaintext(), &controllers, &[]);
        for _ in 0..3 {
            let evidence = signal.look(&CLOCK).await;
            assert_eq!(evidence[0].at, Moment(CLOCK.0), "dated by the begin of the look");
            let Fact::Quorum(view) = &evidence[0].fact else { panic!("{evidence:?}") };
            assert_eq!(millis(view), [(1, 3), (101, 0)]);
        }
        assert_eq!(follower.calls(ApiKey::DescribeQuorum), 1);
        assert_eq!(active.calls(ApiKey::ApiVersions), 1, "one connection is kept");
    }

    #[tokio::test]
    async fn moves_on_from_an_endpoint_that_hangs() {
        let hung = Arc::new(AtomicBool::new(false));
        let hangs = hung.clone();
        let first = Fake::start(move |call| match call.key {
            ApiKey::DescribeQuorum if hangs.load(Ordering::SeqCst) => Some(Reply::Nothing),
            ApiKey::DescribeQuorum => Some(said(call, quorum(vec![replica(101, 5)], vec![]))),
            _ => None,
        })
        .await;
        let second = Fake::start(|call| match call.key {
            ApiKey::DescribeQuorum => Some(said(call, quorum(vec![replica(101, 6)], vec![]))),
            _ => None,
        })
        .await;
        let signal = KafkaQuorum::new(Dialers::plaintext(), &[], &[first.at.clone(), second.at.clone()]);
        assert!(matches!(signal.look(&CLOCK).await[0].fact, Fact::Quorum(_)));
        hung.store(true, Ordering::SeqCst);
        let begin = Instant::now();
        let blind = signal.look(&CLOCK).await;
        assert!(begin.elapsed() < LIMIT * 3, "bounded");
        assert!(matches!(&blind[0].fact, Fact::Blind { why } if why.contains("did not answer")), "{blind:?}");
        assert!(matches!(signal.look(&CLOCK).await[0].fact, Fact::Quorum(_)));
        assert_eq!(second.calls(ApiKey::DescribeQuorum), 1);
    }

    #[tokio::test]
    async fn says_why_it_is_blind() {
        let follower = Fake::start(|call| match call.key {
            ApiKey::DescribeQuorum => Some(call.say(&DescribeQuorumResponse::default().with_error_code(6))),
            _ => None,
        })
        .await;
        let signal = KafkaQuorum::new(Dialers::plaintext(), &[], std::slice::from_ref(&follower.at));
        let blind = signal.look(&CLOCK).await;
        let Fact::Blind { why } = &blind[0].fact else { panic!("{blind:?}") };
        assert_eq!(*why, format!("{} is not the active controller", follower.at));
    }
}
