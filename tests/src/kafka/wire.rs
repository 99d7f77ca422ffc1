//! What one broker says of the cluster, asked over a connection of our own: a client library would answer
//! from its cache, or ask a broker of its choice.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
use kafka_protocol::messages::{
    BrokerId, DescribeClusterRequest, DescribeQuorumRequest, MetadataRequest, MetadataResponse,
    RequestHeader, ResponseHeader, TopicName, UnregisterBrokerRequest,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::Cluster;

/// The oldest version that names offline replicas and reads the same on every Kafka we meet.
const METADATA_VERSION: i16 = 7;

/// The oldest that tells fenced brokers.
const DESCRIBE_CLUSTER_VERSION: i16 = 2;

/// How long an answer may take that is not one of many.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Where a broker is asked by the bed.
#[derive(Debug, Clone)]
pub struct Door {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
}

/// The cluster as one broker sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The brokers that are registered and not fenced.
    pub brokers: BTreeSet<i32>,
    /// Every partition of every topic.
    pub partitions: Vec<Partition>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub index: i32,
    /// Its leader; -1 when it has none.
    pub leader: i32,
    /// Its assigned replicas; the first is the preferred leader.
    pub replicas: Vec<i32>,
    /// Its in-sync replicas.
    pub isr: Vec<i32>,
}

/// A connection to one broker.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    correlation: i32,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Door {
    /// A listener in plaintext.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }

    /// One that takes certificates.
    pub(super) fn secured(address: SocketAddr, tls: Arc<ClientConfig>) -> Self {
        Self { address, tls: Some(tls) }
    }
}

impl Stream {
    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.read_exact(bytes),
            Self::Tls(stream) => stream.read_exact(bytes),
        }
    }
}

impl Wire {
    /// Connects; every request is to be answered within `limit`.
    ///
    /// # Errors
    /// When it cannot be reached in time.
    pub fn connect(broker: &Door, limit: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&broker.address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        let stream = match &broker.tls {
            Some(tls) => {
                let session = ClientConnection::new(Arc::clone(tls), broker.address.ip().into())?;
                Stream::Tls(Box::new(StreamOwned::new(session, stream)))
            }
            None => Stream::Plain(stream),
        };
        Ok(Self { stream, correlation: 0 })
    }

    /// The whole cluster, as this broker sees it.
    ///
    /// # Errors
    /// When it does not answer in time, or not what was asked. The connection is of no use then.
    pub fn metadata(&mut self) -> Result<ClusterView> {
        let request = MetadataRequest::default().with_topics(None).with_allow_auto_topic_creation(false);
        let response: MetadataResponse = self.ask(&request, METADATA_VERSION)?;
        let brokers = response.brokers.iter().map(|broker| broker.node_id.0).collect();
        let mut partitions = Vec::new();
        for topic in response.topics {
            let name = topic.name.map(|name| name.0.as_str().to_owned()).unwrap_or_default();
            partitions.extend(topic.partitions.into_iter().map(|partition| Partition {
                topic: name.clone(),
                index: partition.partition_index,
                leader: partition.leader_id.0,
                replicas: partition.replica_nodes.iter().map(|id| id.0).collect(),
                isr: partition.isr_nodes.iter().map(|id| id.0).collect(),
            }));
        }
        Ok(ClusterView { brokers, partitions })
    }

    /// The registered brokers, and whether each is fenced. Kafka 4.0 on.
    ///
    /// # Errors
    /// When it does not answer in time, or not what was asked. The connection is of no use then.
    pub fn registrations(&mut self) -> Result<BTreeMap<i32, bool>> {
        let request = DescribeClusterRequest::default().with_include_fenced_brokers(true);
        let said = self.ask(&request, DESCRIBE_CLUSTER_VERSION)?;
        ensure!(said.error_code == 0, "DescribeCluster answers {}", said.error_code);
        Ok(said.brokers.iter().map(|broker| (broker.broker_id.0, broker.is_fenced)).collect())
    }

    /// The node id of the active controller, as whoever is asked passes the question on.
    ///
    /// # Errors
    /// When it does not answer in time, or there is none.
    pub fn active_controller(&mut self) -> Result<i32> {
        let topic = TopicData::default()
            .with_topic_name(TopicName(StrBytes::from_static_str("__cluster_metadata")))
            .with_partitions(vec![PartitionData::default()]);
        let said = self.ask(&DescribeQuorumRequest::default().with_topics(vec![topic]), 1)?;
        ensure!(said.error_code == 0, "DescribeQuorum answers {}", said.error_code);
        let partitions = said.topics.iter().flat_map(|topic| &topic.partitions);
        let leaders: Vec<i32> = partitions.map(|partition| partition.leader_id.0).collect();
        leaders.first().copied().filter(|id| *id >= 0).context("there is no active controller")
    }

    /// Has the registration of `broker` removed, whatever it does. Returns the error code.
    ///
    /// # Errors
    /// When nothing is answered in time.
    pub fn unregister(&mut self, broker: i32) -> Result<i16> {
        let request = UnregisterBrokerRequest::default().with_broker_id(BrokerId(broker));
        Ok(self.ask(&request, 0)?.error_code)
    }

    pub(super) fn ask<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        self.correlation += 1;
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("e2e")));
        let mut body = BytesMut::new();
        header.encode(&mut body, R::header_version(version))?;
        request.encode(&mut body, version)?;
        let mut frame = BytesMut::new();
        frame.put_u32(u32::try_from(body.len())?);
        frame.extend_from_slice(&body);
        self.stream.write_all(&frame)?;

        let mut size = [0; 4];
        self.stream.read_exact(&mut size)?;
        let size = usize::try_from(u32::from_be_bytes(size))?;
        ensure!(size < 64 << 20, "an answer of {size} bytes");
        let mut answer = vec![0; size];
        self.stream.read_exact(&mut answer)?;
        let mut answer = Bytes::from(answer);
        ensure!(answer.remaining() >= 4, "an answer of {size} bytes");
        let correlation =
            ResponseHeader::decode(&mut answer, R::Response::header_version(version))?.correlation_id;
        if correlation != self.correlation {
            bail!("answer {correlation} to request {}", self.correlation);
        }
        R::Response::decode(&mut answer, version).context("an answer that cannot be read")
    }
}

impl Cluster {
    /// A connection to the first broker other than `not` that answers.
    ///
    /// # Errors
    /// When none does.
    pub fn wire(&self, not: i32) -> Result<Wire> {
        let others = self.brokers().iter().filter(|node| node.id() != not);
        let mut wires = others.map(|node| {
            let mut wire = Wire::connect(&node.door(), PATIENCE)?;
            wire.metadata().map(|_| wire)
        });
        wires.find(Result::is_ok).unwrap_or_else(|| Err(anyhow!("no broker other than {not} answers")))
    }

    /// Has the registration of `broker` removed, whatever it does: as a person would, or a request that came
    /// late.
    ///
    /// # Errors
    /// When the controller refuses.
    pub fn unregister(&self, broker: i32) -> Result<()> {
        let code = self.wire(broker)?.unregister(broker)?;
        ensure!(code == 0, "the controller answers UnregisterBroker with {code}");
        Ok(())
    }
}

impl ClusterView {
    /// Nothing is missing: all of `brokers` are there, and every replica is in sync.
    ///
    /// # Errors
    /// What is missing.
    pub fn ensure_complete(&self, brokers: usize) -> Result<()> {
        ensure!(self.brokers.len() == brokers, "brokers {:?} of {brokers}", self.brokers);
        let lagging =
            self.partitions.iter().filter(|partition| partition.isr.len() < partition.replicas.len());
        let lagging = lagging.count();
        ensure!(lagging == 0, "{lagging} of {} partitions lack in-sync replicas", self.partitions.len());
        Ok(())
    }
}
