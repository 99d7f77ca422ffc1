//! What is configured and does not change while the agent runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BrokerId, HostName};

/// A host name or address, and a port. IPv6 addresses are written in brackets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Text that is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not host:port, such as kafka-1.example.com:9092 or [fd00::1]:9092")]
pub struct EndpointError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let error = || EndpointError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        // A bracket within the name would be taken for one around it when what is written is read again.
        let plain = (bare.is_some() || !host.contains(':')) && !host.contains(['[', ']']);
        let port: u16 = port.parse().map_err(|_| error())?;
        if host.is_empty() || !plain || port == 0 {
            return Err(error());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;
    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A broker this agent guards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Its node id.
    pub id: BrokerId,
    /// The host that owns it until the ledger says otherwise.
    pub home: HostName,
    /// Where clients reach it. Moves with the broker.
    pub listener: Endpoint,
    /// Its log dirs, as mounted on this host.
    pub log_dirs: Vec<PathBuf>,
    /// The address that moves with it, for people to read; `None` where nothing is moved.
    pub address: Option<String>,
    /// Whether the network takes its time to follow the address, so that Kafka is started meanwhile.
    pub followed_later: bool,
    /// Racks or availability zones that its standby should be in, best first. Empty: any.
    pub racks: Vec<String>,
    /// What becomes of the lock that a dead owner's Kafka held.
    pub locks: Locks,
    /// What is done at the storage before its log dirs are attached, in order, for people to read.
    pub admission: Vec<String>,
}

/// What becomes of the lock that a dead owner's Kafka held on each log dir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locks {
    /// How long a takeover waits for it at most.
    pub at_most: Duration,
    /// How long the storage keeps it for a client that has died; `None` where it ends with the client.
    pub lease: Option<Duration>,
    /// Whether the storage told how long that is. If not it is `at_most`.
    pub told: bool,
    /// Whether the storage can be told to break it.
    pub broken: bool,
}

impl Default for Locks {
    fn default() -> Self {
        Self { at_most: Self::AT_MOST, lease: None, told: false, broken: false }
    }
}

impl Locks {
    /// The default of `lock_wait`: the longest lease and the longest grace period that servers have by
    /// default, one after the other. Linux has 90 s of each, nfs-ganesha 60 and 90 s, ONTAP 30 and 45 s.
    pub const AT_MOST: Duration = Duration::from_secs(180);
}

/// How this host stands among the standbys that guard the same brokers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Standby {
    /// The standby with the lowest rank goes first. Of equals, the one whose name sorts first.
    pub rank: u32,
    /// The rack or availability zone of this host, as a broker's `racks` name it.
    pub rack: Option<String>,
    /// How many of the guarded brokers this host may own at once.
    pub max_brokers: usize,
}

impl Default for Standby {
    fn default() -> Self {
        Self { rank: 100, rack: None, max_brokers: 1 }
    }
}

/// Everything that is configured and that deciding and planning need.
#[derive(Debug, Clone)]
pub struct Topology {
    /// This host.
    pub here: HostName,
    /// The guarded brokers.
    pub brokers: BTreeMap<BrokerId, Broker>,
    /// Hosts that can be fenced, with the names of their fence drivers in order.
    pub fences: BTreeMap<HostName, Vec<String>>,
    /// Machines that can be fenced, and with them the hosts on them that have no fence of their own, likewise.
    pub machines: BTreeMap<String, Vec<String>>,
    /// Hosts whose first fence leaves no lock of theirs on the storage.
    pub unlocked: BTreeSet<HostName>,
    /// Hosts that a fence of theirs may leave running, proven as it is: it denies the storage, and no more.
    pub outlive: BTreeSet<HostName>,
    /// Hosts that may be on another machine than their fences act on: none is fenced unless it was seen where it is.
    pub wandering: BTreeSet<HostName>,
    /// Whether brokers stay on their hosts, which are pods: a controller of their own makes them anew on another machine.
    pub reschedules: bool,
    /// Whether the controllers' own listeners are configured (needed for `UnregisterBroker`).
    pub controllers_known: bool,
    /// Whether the cluster's brokers are registered in ZooKeeper, which is configured. Kafka of that time ends at once
    /// where another session has its registration.
    pub zookeeper: bool,
    /// Node ids of the brokers named anywhere in the configuration.
    pub known: BTreeSet<BrokerId>,
    /// How this host stands among the standbys.
    pub standby: Standby,
    /// The hosts whose agents are asked what they see.
    pub peers: BTreeSet<HostName>,
}

impl Topology {
    /// How many of the guarded brokers may run on this host at once: those whose home it is, or as many as a
    /// standby may own.
    #[must_use]
    pub fn at_once(&self) -> usize {
        let homes = self.brokers.values().filter(|broker| broker.home == self.here).count();
        homes.max(self.standby.max_brokers).min(self.brokers.len())
    }

    /// Whether `host` has no fence of its own, and is fenced with the machine that it is on.
    #[must_use]
    pub fn roams(&self, host: &HostName) -> bool {
        self.wandering.contains(host) && self.fences.get(host).is_none_or(Vec::is_empty)
    }

    /// Whether a fence of `host` is configured: its own, or that of any machine that it may be on.
    #[must_use]
    pub fn is_fenceable(&self, host: &HostName) -> bool {
        self.fences.get(host).is_some_and(|ladder| !ladder.is_empty())
            || (self.roams(host) && !self.machines.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_runs_its_own_brokers_or_as_many_as_a_standby_may() {
        for (homes, max_brokers, expected) in [
            (["kafka-1", "kafka-2", "kafka-3"], 1, 1),
            (["kafka-1", "kafka-2", "kafka-3"], 2, 2),
            (["kafka-1", "kafka-2", "kafka-3"], 9, 3),
            (["here", "here", "kafka-3"], 1, 2),
        ] {
            let broker = |(n, home): (i32, &str)| Broker {
                id: BrokerId(n),
                home: home.into(),
                listener: "kafka:9092".parse().unwrap(),
                log_dirs: Vec::new(),
                address: None,
                followed_later: false,
                racks: Vec::new(),
                locks: Locks::default(),
                admission: Vec::new(),
            };
            let topology = Topology {
                here: "here".into(),
                brokers: (1..).zip(homes).map(|pair| (BrokerId(pair.0), broker(pair))).collect(),
                fences: BTreeMap::new(),
                machines: BTreeMap::new(),
                unlocked: BTreeSet::new(),
                outlive: BTreeSet::new(),
                wandering: BTreeSet::new(),
                reschedules: false,
                controllers_known: true,
                zookeeper: false,
                known: BTreeSet::new(),
                standby: Standby { max_brokers, ..Standby::default() },
                peers: BTreeSet::new(),
            };
            assert_eq!(topology.at_once(), expected, "{homes:?}, {max_brokers}");
        }
    }
}
