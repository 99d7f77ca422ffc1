//! What one broker says of the cluster, asked over a connection of our own: a client library would answer from
//! its cache, or ask a broker of its choice.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, RequestHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

/// The oldest version that names offline replicas and reads the same on every Kafka we meet.
const METADATA_VERSION: i16 = 7;

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
    stream: TcpStream,
    correlation: i32,
}

impl Wire {
    /// Connects; every request is to be answered within `limit`.
    ///
    /// # Errors
    /// When it cannot be reached in time.
    pub fn connect(broker: SocketAddr, limit: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&broker, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
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

    fn ask<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
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
        // Our versions are older than flexible headers: nothing follows the correlation id.
        ensure!(R::Response::header_version(version) == 0, "a response header we do not read");
        let correlation = answer.get_i32();
        if correlation != self.correlation {
            bail!("answer {correlation} to request {}", self.correlation);
        }
        R::Response::decode(&mut answer, version).context("an answer that cannot be read")
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
