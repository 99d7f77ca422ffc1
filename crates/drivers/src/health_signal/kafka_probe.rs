//! A fresh TCP connection, with its TLS handshake, and one `ApiVersions` request to every broker's listener. No
//! login: the answer to that request is for anybody.
//!
//! A fresh connection, because only that shows that the broker still accepts clients. One exception: while a
//! broker accepts and does not answer, its first unanswered connection is kept and waited on. Fresh ones
//! would pile up in the listener's backlog, which nobody empties; once it is full the kernel drops further
//! attempts, and a hung process looks like a dead host. The kept connection tells the two apart: the kernel
//! at its other end acknowledges what it is sent, as long as there is one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use kafka_protocol::messages::ApiVersionsRequest;
use tokio::select;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};

use kafka::Dialer;
use kafka::wire::{Asked, Connection, WireError};
use recovery::model::{BrokerId, Endpoint, Evidence, Fact, Moment, ProbeOutcome};
use recovery::ports::{Clock, HealthSignal, chain};

/// Four looks a second: a dead host is seen within a fraction of the time that must pass before anybody acts.
pub const PERIOD: Duration = Duration::from_millis(250);
/// How long a host may take to accept a connection, or to acknowledge: that is for its kernel, which takes
/// less than a millisecond on one site. One failed probe says little, and a run of them is what counts; that
/// is why they follow each other as soon as this.
const REACH: Duration = PERIOD;
/// How long Kafka may take to answer. A healthy broker takes milliseconds, a busy one more.
const LIMIT: Duration = Duration::from_millis(500);
/// Whoever has not accepted a connection by then is asked for another, for a packet may have been lost, and
/// TCP repeats the first one after 1 s only. Whoever has not answered by then is asked once more, so that its
/// kernel has something to acknowledge: what is left of [`LIMIT`] has room for a lost packet, which TCP
/// repeats after 200 ms (on Linux).
const PROMPT: Duration = Duration::from_millis(100);
/// No more questions than this go to one that hangs: together they are 3 kB, which its kernel has room for.
/// From then on a host that dies is noticed by its keepalives.
const NUDGES: u8 = 64;

/// A broker that left the list is probed for this long: it may be one of several that failed together, and
/// must be counted. After that it counts as taken out of the cluster.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Probes the guarded brokers, and those that the cluster lists or listed lately.
#[derive(Debug)]
pub struct KafkaProbe {
    dialer: Dialer,
    configured: BTreeMap<BrokerId, Endpoint>,
    listed: watch::Receiver<BTreeMap<BrokerId, Endpoint>>,
    /// Where each broker was when it was last listed, and when that was.
    known: Mutex<BTreeMap<BrokerId, (Endpoint, Moment)>>,
    unanswered: Mutex<BTreeMap<BrokerId, Unanswered>>,
}

/// A connection that was accepted, and the question on it that was not answered.
#[derive(Debug)]
struct Unanswered {
    connection: Connection,
    asked: Asked,
    /// How often it was asked again.
    nudges: u8,
}

/// What came of waiting.
enum Came {
    /// An answer, or an error that no waiting mends.
    Over(Result<(), WireError>),
    /// No answer yet, of a process whose host is there as far as is known.
    Nothing(Unanswered),
}

impl KafkaProbe {
    /// `configured` are the listeners of the guarded brokers; they win over what `listed` says of the same
    /// brokers.
    #[must_use]
    pub fn new(
        dialer: Dialer,
        configured: BTreeMap<BrokerId, Endpoint>,
        listed: watch::Receiver<BTreeMap<BrokerId, Endpoint>>,
    ) -> Self {
        Self { dialer, configured, listed, known: Mutex::default(), unanswered: Mutex::default() }
    }

    async fn targets(&self, now: Moment) -> BTreeMap<BrokerId, Endpoint> {
        let mut known = self.known.lock().await;
        known.extend(self.listed.borrow().iter().map(|(id, at)| (*id, (at.clone(), now))));
        known.retain(|_, (_, listed_at)| now.since(*listed_at) <= REMEMBERED);
        let known = known.iter().map(|(id, (endpoint, _))| (*id, endpoint.clone()));
        known.chain(self.configured.clone()).collect()
    }
}

#[async_trait]
impl HealthSignal for KafkaProbe {
    fn name(&self) -> &'static str {
        "kafka_probe"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let mut unanswered = self.unanswered.lock().await;
        let mut held = std::mem::take(&mut *unanswered);
        let probes = self.targets(at).await.into_iter().map(|(broker, endpoint)| {
            let held = held.remove(&broker).filter(|held| *held.connection.at() == endpoint);
            async move { (broker, probe(&self.dialer, &endpoint, held).await) }
        });
        let mut facts = Vec::new();
        let mut faults = Vec::new();
        for (broker, came) in join_all(probes).await {
            match came {
                Ok((outcome, held)) => {
                    unanswered.extend(held.map(|held| (broker, held)));
                    facts.push(Fact::Probe { broker, outcome });
                }
                Err(why) => faults.push(format!("broker {broker}: {why}")),
            }
        }
        // Last, because any other fact of a signal says that it can see again.
        facts.extend((!faults.is_empty()).then(|| Fact::Blind { why: faults.join("; ") }));
        facts.into_iter().map(|fact| Evidence { signal: self.name(), at, fact }).collect()
    }
}

/// What came of one probe, and the connection to wait on next time. An error is a fault of this host, which
/// says nothing about the broker.
async fn probe(
    dialer: &Dialer,
    at: &Endpoint,
    held: Option<Unanswered>,
) -> Result<(ProbeOutcome, Option<Unanswered>), String> {
    let until = Instant::now() + LIMIT;
    let addresses = dialer.resolve(at, until).await.map_err(|error| chain(&error))?;
    let asked = match held {
        Some(held) => Ok(held),
        None => ask(dialer, at, &addresses).await,
    };
    let mut came = match asked {
        Ok(asked) => asked.wait(until).await,
        Err(error) => Came::Over(Err(error)),
    };
    // It was reset, or the host at its other end is gone: only a fresh one can tell.
    if matches!(came, Came::Over(Err(WireError::Closed { .. }))) {
        came = match ask(dialer, at, &addresses).await {
            Ok(asked) => asked.answer(until.max(Instant::now() + PROMPT)).await,
            Err(error) => Came::Over(Err(error)),
        };
    }
    match came {
        Came::Over(Err(error)) => {
            let error = dialer.explained(error, at, &addresses, Instant::now() + REACH).await;
            Ok((outcome(&error)?, None))
        }
        Came::Over(Ok(())) => Ok((ProbeOutcome::Answered, None)),
        Came::Nothing(held) => Ok((ProbeOutcome::Silent, Some(held))),
    }
}

async fn ask(dialer: &Dialer, at: &Endpoint, addresses: &[SocketAddr]) -> Result<Unanswered, WireError> {
    let until = Instant::now() + REACH;
    let again = async {
        sleep(PROMPT).await;
        dialer.connect(at, addresses, until).await
    };
    let mut connection = select! {
        biased;
        connected = dialer.connect(at, addresses, until) => connected,
        connected = again => connected,
    }?;
    let asked = connection.ask_api_versions(until).await?;
    Ok(Unanswered { connection, asked, nudges: 0 })
}

impl Unanswered {
    /// Waits for the answer, as long as a probe may take.
    async fn wait(self, until: Instant) -> Came {
        let mut held = self;
        if held.nudges == 0 {
            match held.answer(Instant::now() + PROMPT).await {
                Came::Nothing(silent) => held = silent,
                came => return came,
            }
        }
        if let Err(error) = held.nudge(until).await {
            return Came::Over(Err(error));
        }
        match held.answer(until).await {
            Came::Nothing(held) => match held.connection.acknowledged::<ApiVersionsRequest>() {
                Ok(()) => Came::Nothing(held),
                Err(error) => Came::Over(Err(error)),
            },
            came => came,
        }
    }

    /// Asks once more, for the other kernel's sake: it acknowledges that at once, whatever hangs above it.
    /// Without that, one that had acknowledged the question and then died could not be told from a process
    /// that hangs.
    async fn nudge(&mut self, until: Instant) -> Result<(), WireError> {
        if self.nudges < NUDGES {
            self.nudges += 1;
            self.connection.nudge(until).await?;
        }
        Ok(())
    }

    async fn answer(mut self, until: Instant) -> Came {
        match self.connection.answer::<ApiVersionsRequest>(self.asked, until).await {
            Err(WireError::Silent { .. }) => Came::Nothing(self),
            came => Came::Over(came.map(drop)),
        }
    }
}

fn outcome(error: &WireError) -> Result<ProbeOutcome, String> {
    match error {
        // An error code is an answer too.
        WireError::Code { .. } | WireError::Unsupported { .. } => Ok(ProbeOutcome::Answered),
        WireError::Refused { .. } => Ok(ProbeOutcome::Refused),
        WireError::Unreachable { .. } => Ok(ProbeOutcome::Unreachable),
        WireError::Silent { .. } | WireError::Closed { .. } | WireError::Nonsense { .. } => {
            Ok(ProbeOutcome::Silent)
        }
        // It answers, and does not want us, or is not wanted: no sign of how it is.
        WireError::Local { .. }
        | WireError::Untrusted { .. }
        | WireError::Unauthenticated { .. }
        | WireError::Mismatched { .. } => Err(chain(error)),
    }
}

#[cfg(test)]
mod tests {
    mod secured;

    use std::os::fd::AsFd;

    use kafka_protocol::messages::ApiKey;
    use socket2::{SockFilter, SockRef};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};
    use tokio::time::timeout;

    use super::*;
    use fakes::kafka::{Fake, Reply};
    use recovery::model::{Moment, Now};

    struct Stopped;

    #[async_trait]
    impl Clock for Stopped {
        fn now(&self) -> Now {
            Now { mono: Moment(Duration::from_secs(7)), wall: jiff::Timestamp::UNIX_EPOCH }
        }
        async fn sleep(&self, duration: Duration) {
            sleep(duration).await;
        }
    }

    fn probe_of(endpoints: &[&Endpoint]) -> KafkaProbe {
        let configured = (1..).map(BrokerId).zip(endpoints.iter().map(|e| (*e).clone())).collect();
        KafkaProbe::new(Dialer::plaintext(), configured, watch::channel(BTreeMap::new()).1)
    }

    async fn outcomes(signal: &KafkaProbe) -> Vec<ProbeOutcome> {
        let evidence = signal.look(&Stopped).await;
        let outcome = |evidence: Evidence| match evidence.fact {
            _ if evidence.at != Stopped.now().mono => panic!("not dated by the begin of the look"),
            Fact::Probe { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        };
        evidence.into_iter().map(outcome).collect()
    }

    fn endpoint(address: SocketAddr) -> Endpoint {
        address.to_string().parse().unwrap()
    }

    async fn refusing() -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        endpoint(listener.local_addr().unwrap())
    }

    /// Accepts in the kernel only, as a stopped process does, with room for two connections.
    fn stopped() -> (TcpListener, Endpoint) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let at = endpoint(listener.local_addr().unwrap());
        (listener, at)
    }

    #[tokio::test]
    async fn tells_answers_refusals_and_silence_apart_in_one_round() {
        let healthy = Fake::start(|_| None).await;
        let refused = refusing().await;
        let hung = Fake::start(|_| Some(Reply::Nothing)).await;
        let closing = Fake::start(|_| Some(Reply::Close)).await;
        let signal = probe_of(&[&healthy.at, &refused, &hung.at, &closing.at]);
        let begin = Instant::now();
        use ProbeOutcome::{Answered, Refused, Silent};
        assert_eq!(outcomes(&signal).await, [Answered, Refused, Silent, Silent]);
        assert!(begin.elapsed() < LIMIT * 2, "side by side, each within its deadline");
    }

    #[tokio::test]
    async fn every_probe_of_a_healthy_broker_is_a_fresh_connection() {
        let healthy = Fake::start(|_| None).await;
        let signal = probe_of(&[&healthy.at]);
        for _ in 0..3 {
            assert_eq!(outcomes(&signal).await, [ProbeOutcome::Answered]);
        }
        assert_eq!(healthy.calls(ApiKey::ApiVersions), 3);
        assert!(signal.unanswered.lock().await.is_empty());
    }

    #[tokio::test]
    async fn a_full_backlog_that_is_not_ours_is_unreachable() {
        let (_listener, at) = stopped();
        let address: SocketAddr = at.to_string().parse().unwrap();
        let mut fill = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            fill.push(stream.unwrap());
        }
        assert_eq!(outcomes(&probe_of(&[&at])).await, [ProbeOutcome::Unreachable]);
    }

    #[tokio::test]
    async fn probing_a_stopped_process_does_not_fill_its_backlog() {
        let (_listener, at) = stopped();
        let signal = probe_of(&[&at]);
        for round in 0..5 {
            assert_eq!(outcomes(&signal).await, [ProbeOutcome::Silent], "round {round}");
        }
    }

    #[tokio::test]
    async fn a_process_that_wakes_up_answers_on_the_connection_that_waits() {
        let (listener, at) = stopped();
        let signal = probe_of(&[&at]);
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Silent]);
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut request = vec![0; 4];
            stream.read_exact(&mut request).await.unwrap();
            // Correlation id 1, no error, no APIs, no throttling, no tagged fields.
            let body = [0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0];
            stream.write_all(&fakes::kafka::framed(&body)).await.unwrap();
        };
        let ((), outcomes) = tokio::join!(answer, outcomes(&signal));
        assert_eq!(outcomes, [ProbeOutcome::Answered]);
    }

    #[tokio::test]
    async fn a_lost_packet_is_not_a_lost_host() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [listener.local_addr().unwrap()];
        let at = endpoint(addresses[0]);
        let (socket, mut tries) = (SockRef::from(&listener), 0);
        // A machine that stands still for so long that both are late is asked again; with one connection each
        // try fails.
        let asked = loop {
            host_dies(&listener);
            let back = async {
                sleep(PROMPT / 2).await;
                socket.detach_filter().unwrap();
            };
            let dialer = Dialer::plaintext();
            let ((), asked) = tokio::join!(back, ask(&dialer, &at, &addresses));
            tries += 1;
            if asked.is_ok() || tries == 5 {
                break asked;
            }
        };
        assert!(asked.is_ok(), "{asked:?}");
    }

    #[tokio::test]
    async fn a_hung_process_that_dies_is_seen_at_once() {
        let (listener, at) = stopped();
        let signal = probe_of(&[&at]);
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Silent]);
        drop(listener);
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Refused]);
    }

    /// Whatever arrives at `socket` is dropped by its host's kernel, as if that were no longer there.
    fn host_dies(socket: impl AsFd) {
        // BPF_RET: take 0 bytes of the packet.
        SockRef::from(&socket).attach_filter(&[SockFilter::new(6, 0, 0, 0)]).unwrap();
    }

    #[tokio::test]
    async fn a_host_that_dies_in_the_middle_of_a_probe_is_not_taken_for_a_process_that_hangs() {
        let (listener, at) = stopped();
        let signal = probe_of(&[&at]);
        let death = async {
            let (stream, _) = listener.accept().await.unwrap();
            // The question has arrived, and been acknowledged.
            stream.readable().await.unwrap();
            host_dies(&stream);
            host_dies(&listener);
            stream
        };
        let (_stream, outcomes) = tokio::join!(death, outcomes(&signal));
        assert_eq!(outcomes, [ProbeOutcome::Unreachable]);
    }

    #[tokio::test]
    async fn a_host_that_dies_while_its_process_hangs_is_unreachable_from_then_on() {
        let (listener, at) = stopped();
        let signal = probe_of(&[&at]);
        for _ in 0..2 {
            assert_eq!(outcomes(&signal).await, [ProbeOutcome::Silent]);
        }
        let (stream, _) = listener.accept().await.unwrap();
        host_dies(&stream);
        host_dies(&listener);
        for _ in 0..2 {
            assert_eq!(outcomes(&signal).await, [ProbeOutcome::Unreachable]);
        }
    }

    #[tokio::test]
    async fn a_process_that_hangs_is_not_asked_without_end() {
        let (listener, at) = stopped();
        let mut held = ask(&Dialer::plaintext(), &at, &[at.to_string().parse().unwrap()]).await.unwrap();
        for _ in 0..=NUDGES {
            held.nudge(Instant::now() + LIMIT).await.unwrap();
        }
        assert_eq!(held.nudges, NUDGES);
        assert!(
            matches!(held.wait(Instant::now() + LIMIT).await, Came::Nothing(_)),
            "all of that is acknowledged"
        );
        drop(listener);
    }

    #[tokio::test]
    async fn configured_listeners_win_over_listed_ones() {
        let right = Fake::start(|_| None).await;
        let other = Fake::start(|_| None).await;
        let wrong = refusing().await;
        let (sender, listed) = watch::channel(BTreeMap::new());
        let signal =
            KafkaProbe::new(Dialer::plaintext(), BTreeMap::from([(BrokerId(1), right.at.clone())]), listed);
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Answered]);
        sender.send_replace(BTreeMap::from([(BrokerId(1), wrong), (BrokerId(2), other.at.clone())]));
        assert_eq!(outcomes(&signal).await, [ProbeOutcome::Answered, ProbeOutcome::Answered]);
        assert_eq!(other.calls(ApiKey::ApiVersions), 1);
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_is_our_blindness_not_their_death() {
        let signal = probe_of(&[&"no-such-host.invalid:9092".parse().unwrap()]);
        let evidence = signal.look(&Stopped).await;
        assert_eq!(evidence.len(), 1);
        assert!(
            matches!(&evidence[0].fact, Fact::Blind { why } if why.starts_with("broker 1: ")),
            "{evidence:?}"
        );
    }
}
