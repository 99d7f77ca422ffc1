//! A cluster of any size that holds nothing: each broker is a listener at an address of its own that speaks
//! Kafka's protocol as far as one asks how a cluster is. For what size alone makes of the one who asks.
//!
//! What it tells is true of itself: a broker that was stopped is heard no more by the controller, and leaves
//! the broker list and every ISR when its session is over.

mod told;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Encodable, decode_request_header_from_buffer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use crate::lab::{HUB, Lab};
use crate::{Host, shell};

/// The network of all brokers; it leads to the hub.
const NETWORK: &str = "10.78.0.0/16";
/// Where each broker listens.
const PORT: u16 = 9092;
/// The controller's node id; that of no broker.
const CONTROLLER: i32 = 100_000;
/// The controller's address, and where it listens.
const CONTROLLER_AT: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 78, 255, 1), 9093);
/// The session timeout of Kafka's default.
const SESSION: Duration = Duration::from_secs(9);
/// What the count calls the question for every partition of the cluster.
pub const FULL_METADATA: &str = "Metadata, all topics";
/// A request is some hundred bytes.
const MAX_REQUEST_BYTES: usize = 1 << 20;

/// How large a cluster is.
#[derive(Debug, Clone, Copy)]
pub struct HollowSpec {
    /// Brokers, with the node ids from 1 on. At least three.
    pub brokers: i32,
    /// Partitions, each with three replicas.
    pub partitions: i32,
    /// Partitions of a topic.
    pub per_topic: i32,
}

/// A running cluster. It ends when this is dropped.
#[derive(Debug)]
pub struct Hollow {
    cluster: Arc<State>,
    nodes: Mutex<BTreeMap<i32, JoinHandle<()>>>,
    runtime: Runtime,
}

/// A version of `Metadata`, whether all topics were asked for, and the brokers out of service.
type AnswerKey = (i16, bool, Vec<i32>);

/// What all nodes of a cluster know.
#[derive(Debug)]
struct State {
    spec: HollowSpec,
    /// When brokers were stopped.
    stopped: Mutex<BTreeMap<i32, Instant>>,
    /// Answers that are long to make: by version, and by who was out of service.
    told: Mutex<BTreeMap<AnswerKey, Bytes>>,
    /// Requests and the bytes of their answers, by what was asked.
    asked: Mutex<BTreeMap<&'static str, (u64, u64)>>,
    /// What was asked and is not known here.
    strange: Mutex<Vec<String>>,
}

impl Hollow {
    /// Brings up every node, in the hub of `lab`.
    ///
    /// # Errors
    /// When the hub cannot have the addresses, or a node cannot listen.
    pub fn start(lab: &Lab, spec: HollowSpec) -> Result<Self> {
        ensure!((3..50_000).contains(&spec.brokers), "{} brokers: from 3 to 50,000", spec.brokers);
        ensure!(spec.partitions > 0 && spec.per_topic > 0, "a cluster without partitions");
        // Every address of the network is the hub's own, without naming each.
        shell::sh(&format!("ip route add local {NETWORK} dev lo"))?;
        let runtime = Runtime::new()?;
        let cluster = Arc::new(State {
            spec,
            stopped: Mutex::default(),
            told: Mutex::default(),
            asked: Mutex::default(),
            strange: Mutex::default(),
        });
        let hollow = Self { cluster, nodes: Mutex::default(), runtime };
        for id in 1..=spec.brokers {
            hollow.serve(id, hollow.address(id))?;
        }
        hollow.serve(CONTROLLER, SocketAddr::from(CONTROLLER_AT))?;
        lab.note(format!("{} brokers that hold nothing, of {} partitions", spec.brokers, spec.partitions));
        Ok(hollow)
    }

    /// Where a broker listens.
    #[must_use]
    pub fn address(&self, id: i32) -> SocketAddr {
        address(id)
    }

    /// The controller, as an agent's `cluster.controllers` has it.
    #[must_use]
    pub fn controller(&self) -> String {
        format!("{CONTROLLER}@{}:{}", CONTROLLER_AT.0, CONTROLLER_AT.1)
    }

    /// Lets `host` reach every node.
    ///
    /// # Errors
    /// When it is off.
    pub fn reach_from(&self, host: &Host) -> Result<()> {
        let output = host.run(&["ip", "route", "add", NETWORK, "via", &HUB.to_string()])?;
        ensure!(output.code == 0, "no way from {} to {NETWORK}: {}", host.name(), output.stderr);
        Ok(())
    }

    /// The host of a broker dies: nothing is answered at its address any more, and no packet refused.
    ///
    /// # Errors
    /// When it was stopped before, or its address cannot be taken away.
    pub fn stop(&self, id: i32) -> Result<()> {
        let node = lock(&self.nodes).remove(&id).with_context(|| format!("there is no broker {id}"))?;
        let ip = address(id).ip();
        shell::sh(&format!("ip route add blackhole {ip}/32 table local"))?;
        node.abort();
        lock(&self.cluster.stopped).insert(id, Instant::now());
        Ok(())
    }

    /// How often what was asked, and how many bytes were answered.
    #[must_use]
    pub fn asked(&self) -> BTreeMap<&'static str, (u64, u64)> {
        lock(&self.cluster.asked).clone()
    }

    /// Fails if anybody asked what is not known here: such a one saw another cluster than a real one.
    ///
    /// # Errors
    /// What was asked.
    pub fn ensure_understood(&self) -> Result<()> {
        let strange = lock(&self.cluster.strange);
        ensure!(strange.is_empty(), "requests that were not understood: {:?}", strange.first());
        Ok(())
    }

    fn serve(&self, id: i32, at: SocketAddr) -> Result<()> {
        let _inside = self.runtime.enter();
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(at).with_context(|| format!("node {id} cannot have {at}"))?;
        let node = accept(socket.listen(128)?, self.cluster.clone());
        lock(&self.nodes).insert(id, self.runtime.spawn(node));
        Ok(())
    }
}

fn address(id: i32) -> SocketAddr {
    let [.., high, low] = id.to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 78, high, low), PORT))
}

/// A node: its connections end with it.
async fn accept(listener: TcpListener, cluster: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                let cluster = cluster.clone();
                connections.spawn(async move {
                    if let Err(error) = converse(stream, &cluster).await {
                        lock(&cluster.strange).push(format!("{error:#}"));
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers until the other side ends the connection, whenever that is.
async fn converse(mut stream: TcpStream, cluster: &State) -> Result<()> {
    while let Ok(size) = stream.read_i32().await {
        let size = usize::try_from(size).ok().filter(|size| *size <= MAX_REQUEST_BYTES);
        let mut body = vec![0; size.context("a request of no sensible size")?];
        if stream.read_exact(&mut body).await.is_err() {
            break;
        }
        let mut body = Bytes::from(body);
        let header = decode_request_header_from_buffer(&mut body)?;
        let answer = cluster.answer(&header, body)?;
        if stream.write_all(&answer).await.is_err() {
            break;
        }
    }
    Ok(())
}

impl State {
    fn answer(&self, header: &RequestHeader, body: Bytes) -> Result<Bytes> {
        let key = ApiKey::try_from(header.request_api_key);
        let key = key.ok().with_context(|| format!("API key {}", header.request_api_key))?;
        let version = header.request_api_version;
        let (what, said) = self.told(key, version, body).with_context(|| format!("{key:?} {version}"))?;
        let mut frame = BytesMut::with_capacity(said.len() + 16);
        frame.put_i32(0);
        let correlated = ResponseHeader::default().with_correlation_id(header.correlation_id);
        correlated.encode(&mut frame, key.response_header_version(version))?;
        frame.put(said);
        let size = i32::try_from(frame.len() - 4)?;
        frame[..4].copy_from_slice(&size.to_be_bytes());
        let mut asked = lock(&self.asked);
        let (times, bytes) = asked.entry(what).or_default();
        *times += 1;
        *bytes += u64::try_from(frame.len())?;
        Ok(frame.freeze())
    }

    /// Brokers whose sessions are over.
    fn fenced(&self) -> Vec<i32> {
        let stopped = lock(&self.stopped);
        stopped.iter().filter(|(_, at)| at.elapsed() >= SESSION).map(|(id, _)| *id).collect()
    }

    /// When each broker last fetched the metadata log, in milliseconds since 1970: twice a second while it
    /// lives.
    fn fetched(&self) -> impl Iterator<Item = (i32, i64)> {
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis());
        let now = now.unwrap_or(i64::MAX);
        let stopped = lock(&self.stopped).clone();
        (1..=self.spec.brokers).map(move |id| {
            let silent = stopped.get(&id).map_or(0, |at| at.elapsed().as_millis());
            (id, now - i64::try_from(silent).unwrap_or_default() - i64::from(id % 500))
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
