//! What another agent sees: its page `/v1/view`, asked for over HTTP.
//!
//! Each peer is a signal of its own with its own name, so that one that cannot be reached is told apart from
//! the others, once when it goes and once when it is back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clients::{self, ClientsPage};
use crate::cluster::advertised::{self, ReachPage};
use crate::command::last_words;
use crate::http::{GetError, get};
use crate::tls::Tls;
use recovery::model::{BrokerId, Endpoint, Evidence, Fact, HostName, PeerView};
use recovery::ports::{BoxError, Clock, HealthSignal, Reach, chain};

const PERIOD: Duration = Duration::from_millis(500);
/// How long one question may take, name resolution included. A healthy agent answers within milliseconds.
const LIMIT: Duration = Duration::from_secs(1);
/// The same for the one question that has the peer ask others before it answers.
const REACH_LIMIT: Duration = Duration::from_secs(3);
/// The longest answer that is read. A view has about a hundred bytes for each broker, a list of clients some
/// fifty at most for each connection.
const MAX_BYTES: usize = 1 << 20;
const PATH: &str = "/v1/view";

/// Another agent that is asked what it sees: one that guards the same brokers, or that runs on a broker's
/// host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// The name of its host: `agent.host` of the agent there. An answer in another name is refused.
    pub host: String,
    /// Where it answers, such as `http://10.0.0.12:9095`: `agent.listen` of the agent there, which must not
    /// be the loopback address then. It begins with `https://` where that agent has `[agent.tls]`, and so must this one. Name an address rather than a name: asking a peer should not depend on
    /// DNS, and only who asks from an address that is named here is told which clients are connected to this
    /// host (`/v1/clients`), so that it can reset their connections when it takes a broker over, and whether
    /// a broker is reached from this host (`/v1/reach/N`) before it calls that broker back.
    pub url: String,
}

impl PeerConfig {
    /// Everything that is wrong with it, as `key: what is wrong`.
    #[must_use]
    pub fn problems(&self, with_tls: bool) -> Vec<String> {
        let why = match endpoint(&self.url) {
            Ok((_, true)) if !with_tls => {
                "begins with https://, and this agent has no [agent.tls] to show".to_owned()
            }
            Ok(_) => return Vec::new(),
            Err(why) => why,
        };
        vec![format!("url: {why}")]
    }

    /// The address in its URL; `None` if that has a name.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        let host = endpoint(&self.url).ok()?.0.host;
        host.parse().ok().map(|ip: IpAddr| ip.to_canonical())
    }

    /// Makes the signal. `tls`: what this agent shows.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(&self, tls: Option<&Arc<Tls>>) -> Result<Peer, Vec<String>> {
        let problems = self.problems(tls.is_some());
        let Ok((at, encrypted)) = endpoint(&self.url) else { return Err(problems) };
        if !problems.is_empty() {
            return Err(problems);
        }
        let (host, tls) = (HostName(self.host.clone()), tls.filter(|_| encrypted).cloned());
        Ok(Peer { name: format!("peer {host}").leak(), host, at, tls, there: AtomicBool::new(true) })
    }
}

/// Where it leads, and whether by TLS.
fn endpoint(url: &str) -> Result<(Endpoint, bool), String> {
    let (rest, encrypted) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (rest, false),
        (_, Some(rest)) => (rest, true),
        (None, None) => return Err("is not a URL; write it as \"http://10.0.0.12:9095\"".to_owned()),
    };
    if rest.contains('@') {
        return Err("has a login in it, which agents do not ask for: leave all up to the `@` out".to_owned());
    }
    let at = rest.strip_suffix('/').unwrap_or(rest).parse().map_err(|error| format!("{error}"))?;
    Ok((at, encrypted))
}

/// Asks one peer.
#[derive(Debug)]
pub struct Peer {
    /// Leaked: there is one for every peer in the configuration, for as long as the process lives.
    name: &'static str,
    host: HostName,
    at: Endpoint,
    tls: Option<Arc<Tls>>,
    /// Whether it gave any answer when it was asked last, whatever the question.
    there: AtomicBool,
}

/// Why a peer's view is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("the agent at {at} cannot be reached")]
    Unreachable { at: Endpoint, source: std::io::Error },
    #[error("the agent at {at} did not answer within {limit:?}")]
    Late { at: Endpoint, limit: Duration },
    #[error("no TLS with the agent at {at}: {why}")]
    Untrusted { at: Endpoint, why: String },
    #[error("what is at {at} does not speak HTTP as an agent does")]
    Broken { at: Endpoint, source: BoxError },
    #[error("the answer of {at} is longer than {MAX_BYTES} bytes: is an agent there?")]
    TooLong { at: Endpoint },
    #[error("the agent at {at} does not give {path}: {status}: {said}")]
    NotGiven { at: Endpoint, path: String, status: StatusCode, said: String },
    #[error("the answer of {at} is not what {path} is: is it an agent of this version?")]
    Garbled { at: Endpoint, path: String, source: serde_json::Error },
    #[error("the agent at {at} is on {said}, not on {expected}: correct `host` or `url` of this [[peer]]")]
    OtherHost { at: Endpoint, said: HostName, expected: HostName },
}

impl PeerError {
    /// Whether the peer gave no answer at all, as one that is dead.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Late { .. })
    }
}

impl Peer {
    /// The name of its host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host.0
    }

    /// Whether it answered when it was asked last; so too before that.
    pub(crate) fn is_there(&self) -> bool {
        self.there.load(Ordering::Relaxed)
    }

    /// Whether what its cluster advertises for `broker` leads there from its host.
    pub(crate) async fn reach(&self, broker: BrokerId) -> Result<Reach, PeerError> {
        let page: ReachPage = self.ask(&format!("{}{broker}", advertised::PATH), REACH_LIMIT).await?;
        self.speaks_for_itself(&page.host)?;
        Ok(match page.found {
            Reach::Unreached { at, why } => Reach::Unreached { at, why: last_words(&why) },
            found => found,
        })
    }

    /// Who is connected to brokers there.
    pub(crate) async fn clients(&self) -> Result<ClientsPage, PeerError> {
        let page: ClientsPage = self.ask(clients::PATH, LIMIT).await?;
        self.speaks_for_itself(&page.host)?;
        Ok(page)
    }

    /// How many connections it tells of. For `check`; takeovers use what [`clients::follow`] keeps.
    ///
    /// # Errors
    /// Why it does not tell, for people.
    pub async fn tells_clients(&self) -> Result<usize, String> {
        let page = self.clients().await.map_err(|error| chain(&error))?;
        Ok(page.connections.values().flat_map(|of| of.values()).map(BTreeSet::len).sum())
    }

    fn speaks_for_itself(&self, said: &HostName) -> Result<(), PeerError> {
        if *said == self.host {
            return Ok(());
        }
        let (said, expected) = (said.clone(), self.host.clone());
        Err(PeerError::OtherHost { at: self.at.clone(), said, expected })
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str, limit: Duration) -> Result<T, PeerError> {
        let at = || self.at.clone();
        let answer = timeout(limit, self.exchange(path)).await;
        let answer = answer.unwrap_or_else(|_| Err(PeerError::Late { at: at(), limit }));
        self.there.store(!answer.as_ref().is_err_and(PeerError::is_unreachable), Ordering::Relaxed);
        let ((status, body), path) = (answer?, path.to_owned());
        if status != StatusCode::OK {
            let said = last_words(&String::from_utf8_lossy(&body));
            return Err(PeerError::NotGiven { at: at(), path, status, said });
        }
        serde_json::from_slice(&body).map_err(|source| PeerError::Garbled { at: at(), path, source })
    }

    /// One request on a fresh connection: only that shows that the peer is there now.
    async fn exchange(&self, path: &str) -> Result<(StatusCode, Bytes), PeerError> {
        let at = || self.at.clone();
        let stream = TcpStream::connect((self.at.host.as_str(), self.at.port)).await;
        let stream = stream.map_err(|source| PeerError::Unreachable { at: at(), source })?;
        let said = match &self.tls {
            None => get(stream, &self.at.to_string(), path, MAX_BYTES).await,
            Some(tls) => {
                let stream = tls.connect(stream, &self.at.host).await;
                let stream = stream.map_err(|why| PeerError::Untrusted { at: at(), why })?;
                get(stream, &self.at.to_string(), path, MAX_BYTES).await
            }
        };
        said.map_err(|error| match error {
            GetError::TooLong => PeerError::TooLong { at: at() },
            GetError::Broken(source) => PeerError::Broken { at: at(), source },
        })
    }
}

#[async_trait]
impl HealthSignal for Peer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let view = self.ask(PATH, LIMIT).await.and_then(|view: PeerView| {
            self.speaks_for_itself(&view.host)?;
            Ok(view)
        });
        let fact = match view {
            Ok(view) => Fact::Peer(view),
            Err(error) => Fact::Blind { why: chain(&error) },
        };
        vec![Evidence { signal: self.name, at, fact }]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Instant;

    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Json, Response};
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::clock::SystemClock;
    use recovery::model::{Candidate, LocalProcess, NfsClientId, PeerSaw, ProbeOutcome};

    fn view(host: &str) -> PeerView {
        let lasting = Duration::from_millis(2_500);
        let outcome = ProbeOutcome::Silent;
        let saw = PeerSaw { outcome, lasting, answered: Some(lasting), stopped: false, well_in: None };
        let candidate = Candidate {
            rank: 100,
            rack: Some("a".to_owned()),
            serves: BTreeSet::from([BrokerId(1), BrokerId(2)]),
            carries: BTreeSet::from([BrokerId(2)]),
            limit: 1,
            unfit: Some("the ledger has not been read lately".to_owned()),
            not_ready: [(BrokerId(1), "fence of kafka-1".to_owned())].into(),
        };
        PeerView {
            host: host.into(),
            brokers: BTreeMap::from([(BrokerId(1), saw)]),
            stalled: BTreeSet::from([BrokerId(1)]),
            local: BTreeMap::from([(BrokerId(2), LocalProcess::Running)]),
            candidate: Some(candidate),
            nfs_client: Some(NfsClientId { uniquifier: "f81d".to_owned(), node: "standby-2".to_owned() }),
        }
    }

    fn peer(at: impl std::fmt::Display) -> Peer {
        PeerConfig { host: "standby-2".to_owned(), url: format!("http://{at}") }.build(None).unwrap()
    }

    /// A real server that answers as `page` does.
    async fn serving<P, F>(page: P) -> Peer
    where
        P: Fn() -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = Router::new().route(PATH, get(page));
        tokio::spawn(async move { axum::serve(listener, router).await });
        peer(at)
    }

    /// A server that says `bytes`, whatever it is asked, and leaves the connection open.
    async fn saying(bytes: &'static [u8]) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(bytes).await;
                open.push(stream);
            }
        });
        peer(at)
    }

    async fn fact(peer: &Peer) -> Fact {
        let before = SystemClock.now().mono;
        let begun = Instant::now();
        let mut evidence = peer.look(&SystemClock).await;
        assert!(begun.elapsed() < LIMIT * 2, "took {:?}", begun.elapsed());
        let evidence = evidence.pop().unwrap();
        assert_eq!(evidence.signal, "peer standby-2");
        assert!(evidence.at.since(before) < LIMIT / 2, "not dated by the begin of the look");
        evidence.fact
    }

    async fn blind(peer: &Peer) -> String {
        match fact(peer).await {
            Fact::Blind { why } => why,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_view_comes_over_as_it_was_given() {
        let peer = serving(|| async { Json(view("standby-2")).into_response() }).await;
        for _ in 0..3 {
            let Fact::Peer(seen) = fact(&peer).await else { panic!("not seen") };
            assert_eq!(seen, view("standby-2"));
        }
    }

    #[tokio::test]
    async fn a_view_in_another_name_is_refused() {
        let why = blind(&serving(|| async { Json(view("standby-3")).into_response() }).await).await;
        assert!(why.contains("is on standby-3, not on standby-2"), "{why}");
    }

    #[tokio::test]
    async fn an_agent_that_has_no_view_is_quoted() {
        let page = || async { (StatusCode::SERVICE_UNAVAILABLE, "no decision yet\n").into_response() };
        let why = blind(&serving(page).await).await;
        assert!(why.contains("503 Service Unavailable: no decision yet"), "{why}");
    }

    #[tokio::test]
    async fn a_slow_answer_is_not_waited_for() {
        let page = || async {
            std::future::pending::<()>().await;
            StatusCode::OK.into_response()
        };
        let why = blind(&serving(page).await).await;
        assert!(why.contains("did not answer within 1s"), "{why}");
        // Neither is one whose body never ends to come.
        let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"host\":";
        let why = blind(&saying(begun).await).await;
        assert!(why.contains("did not answer within 1s"), "{why}");
    }

    #[tokio::test]
    async fn a_huge_answer_is_not_read_to_its_end() {
        let page = || async { vec![b' '; MAX_BYTES + 1].into_response() };
        let why = blind(&serving(page).await).await;
        assert!(why.contains("longer than 1048576 bytes"), "{why}");
    }

    #[tokio::test]
    async fn garbage_is_refused() {
        let why = blind(&serving(|| async { "{\"host\": 7}".into_response() }).await).await;
        assert!(why.contains("is not what /v1/view is"), "{why}");
        let why = blind(&saying(b"220 mail.example.com ESMTP\r\n").await).await;
        assert!(why.contains("does not speak HTTP"), "{why}");
    }

    #[tokio::test]
    async fn one_that_is_not_there_is_told_with_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let why = blind(&peer(at)).await;
        assert!(why.starts_with(&format!("the agent at {at} cannot be reached: ")), "{why}");
    }

    #[tokio::test]
    async fn a_peer_that_cannot_be_reached_hides_no_other() {
        use recovery::model::{Moment, Now};
        use recovery::observe::{Board, observe};

        let there = serving(|| async { Json(view("standby-2")).into_response() }).await;
        let gone = PeerConfig { host: "standby-3".to_owned(), url: "http://127.0.0.1:1".to_owned() };
        let gone = gone.build(None).unwrap();
        let mut board = Board::default();
        for peer in [&gone, &there, &gone, &there] {
            peer.look(&SystemClock).await.into_iter().for_each(|evidence| board.record(evidence));
        }
        let now = Now { mono: Moment(SystemClock.now().mono.0), wall: jiff::Timestamp::UNIX_EPOCH };
        let seen = observe(&board, &BTreeSet::new(), Duration::from_secs(60), now);
        assert_eq!(seen.peers.keys().map(|h| h.0.as_str()).collect::<Vec<_>>(), ["standby-2"]);
        assert_eq!(seen.blind.keys().copied().collect::<Vec<_>>(), ["peer standby-3"]);
    }

    #[test]
    fn only_plain_urls_of_agents_are_taken() {
        for (url, said) in [
            ("https://10.0.0.12:9095", "url: begins with https://, and this agent has no [agent.tls]"),
            ("10.0.0.12:9095", "url: is not a URL"),
            ("http://10.0.0.12", "url: `10.0.0.12` is not host:port"),
            ("http://me:hunter2@10.0.0.12:9095", "url: has a login in it"),
            ("http://me:hunter2@10.0.0.12:9095/v1", "url: has a login in it"),
            ("http://10.0.0.12:9095/v1/view", "url: `10.0.0.12:9095/v1/view` is not host:port"),
        ] {
            let problems = PeerConfig { host: "b".to_owned(), url: url.to_owned() }.build(None).unwrap_err();
            assert!(problems[0].starts_with(said), "{problems:?}");
            assert!(!problems[0].contains("hunter2"), "{problems:?}");
        }
        assert!(
            PeerConfig { host: "b".to_owned(), url: "http://[fd00::1]:9095/".to_owned() }.build(None).is_ok()
        );
    }
}
