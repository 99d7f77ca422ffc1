//! What a takeover by this host needs, as `understudy check` and the daemon find it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{BrokerId, HostName};

/// One thing that a takeover by this host needs, or goes better with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "check", content = "of", rename_all = "snake_case")]
pub enum Check {
    /// The configuration's own warnings.
    Configuration,
    /// The ledger can be written and read.
    Ledger,
    /// The cluster answers, and each partition has another replica.
    Cluster,
    /// A signal sees.
    Signal(String),
    /// The agent may do in the cluster what it does in a takeover; empty, or the controller that was asked.
    Rights(String),
    /// The certificate of a listener is valid.
    ListenerCertificate(String),
    /// A controller's listener accepts connections; empty if none is configured.
    Controller(String),
    /// Every fence of a host answers.
    Fence(HostName),
    /// This host's NFS client is told from every other host's.
    NfsClient,
    /// A peer tells who is connected to the brokers on its host.
    Peer(HostName),
    /// Who is to ask over the network can be told from others.
    Access,
    /// The certificates in a file are valid.
    Certificate(PathBuf),
    /// The class-data archive fits Kafka and its Java.
    ClassData,
    /// What Kafka would read through after a crash.
    Logs(BrokerId),
    /// The broker's address can be moved here.
    Address(BrokerId),
    /// The name of the broker's listener leads to the address that moves.
    Listener(BrokerId),
    /// The log dirs can be attached, and the grant allows it.
    Storage(BrokerId),
    /// What becomes of open files that are unlinked.
    Unlinks(BrokerId),
    /// What the lock of a dead host costs.
    Lease(BrokerId),
    /// Kafka can be started here: its template renders, the log dirs are the broker's.
    BrokerHost(BrokerId),
}

impl Check {
    /// The metric label, and the heading in the runbook.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Ledger => "ledger",
            Self::Cluster => "cluster",
            Self::Signal(_) => "signal",
            Self::Rights(_) => "rights",
            Self::ListenerCertificate(_) => "listener_certificate",
            Self::Controller(_) => "controller",
            Self::Fence(_) => "fence",
            Self::NfsClient => "nfs_client",
            Self::Peer(_) => "peer",
            Self::Access => "access",
            Self::Certificate(_) => "certificate",
            Self::ClassData => "class_data",
            Self::Logs(_) => "logs",
            Self::Address(_) => "address",
            Self::Listener(_) => "listener",
            Self::Storage(_) => "storage",
            Self::Unlinks(_) => "unlinks",
            Self::Lease(_) => "lease",
            Self::BrokerHost(_) => "broker_host",
        }
    }

    /// The one of several that it looks at, such as a host or a node id; empty where there is but one.
    #[must_use]
    pub fn of(&self) -> String {
        match self {
            Self::Configuration
            | Self::Ledger
            | Self::Cluster
            | Self::NfsClient
            | Self::Access
            | Self::ClassData => String::new(),
            Self::Signal(name)
            | Self::Controller(name)
            | Self::Rights(name)
            | Self::ListenerCertificate(name) => name.clone(),
            Self::Fence(host) | Self::Peer(host) => host.to_string(),
            Self::Certificate(file) => file.display().to_string(),
            Self::Logs(broker)
            | Self::Address(broker)
            | Self::Listener(broker)
            | Self::Storage(broker)
            | Self::Unlinks(broker)
            | Self::Lease(broker)
            | Self::BrokerHost(broker) => broker.to_string(),
        }
    }

    /// The one broker that it is about; `None` if it is about the whole host, or another one.
    #[must_use]
    pub fn broker(&self) -> Option<BrokerId> {
        match self {
            Self::Logs(broker)
            | Self::Address(broker)
            | Self::Listener(broker)
            | Self::Storage(broker)
            | Self::Unlinks(broker)
            | Self::Lease(broker)
            | Self::BrokerHost(broker) => Some(*broker),
            _ => None,
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration => write!(f, "configuration"),
            Self::Ledger => write!(f, "ledger"),
            Self::Cluster => write!(f, "cluster"),
            Self::Signal(name) => write!(f, "signal {name}"),
            Self::Rights(name) if name.is_empty() => write!(f, "rights"),
            Self::Rights(name) => write!(f, "rights at controller {name}"),
            Self::ListenerCertificate(listener) => write!(f, "certificate of listener {listener}"),
            Self::Controller(name) if name.is_empty() => write!(f, "controllers"),
            Self::Controller(name) => write!(f, "controller {name}"),
            Self::Fence(host) => write!(f, "fence of {host}"),
            Self::NfsClient => write!(f, "NFS client"),
            Self::Peer(host) => write!(f, "peer {host}: clients"),
            Self::Access => write!(f, "access"),
            Self::Certificate(file) => write!(f, "certificate {}", file.display()),
            Self::ClassData => write!(f, "class data"),
            Self::Logs(broker) => write!(f, "broker {broker}: logs to read after a crash"),
            Self::Address(broker) => write!(f, "broker {broker}: address"),
            Self::Listener(broker) => write!(f, "broker {broker}: listener"),
            Self::Storage(broker) => write!(f, "broker {broker}: storage"),
            Self::Unlinks(broker) => write!(f, "broker {broker}: unlinking open files"),
            Self::Lease(broker) => write!(f, "broker {broker}: a dead host's lock"),
            Self::BrokerHost(broker) => write!(f, "broker {broker}: Kafka here"),
        }
    }
}

/// What a check comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A takeover would work.
    Ok,
    /// A takeover would work, and not as well as it could.
    Warn,
    /// A takeover would fail.
    Fail,
}

/// What a check found. It is no proof, and no reason to act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// What was looked at.
    #[serde(flatten)]
    pub check: Check,
    /// What it comes to.
    pub verdict: Verdict,
    /// What was found.
    pub says: String,
    /// What to do about it; empty where nothing needs doing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Checked {
    /// Whether a takeover would fail.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.verdict == Verdict::Fail
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.says)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; do: {}", self.remedy) }
    }
}

/// What a check found last, while that still counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckSeen {
    /// What it found.
    #[serde(flatten)]
    pub found: Checked,
    /// How long ago it began to look.
    pub age: Duration,
}
