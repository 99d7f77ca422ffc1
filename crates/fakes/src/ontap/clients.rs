//! NFS clients, as the fake's world shows them: who is connected, who works, who holds which lock.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::query;
use super::shapes::Table;
use super::world::{World, reference_of};

/// What is shown of who holds an NFSv4 lock. The vendor's documents say that it cannot be shown; our
/// recordings are of other protocols.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LockFace {
    /// The client's address.
    #[default]
    Named,
    /// No field.
    Absent,
    /// `-`, as the command line writes it.
    Dash,
    /// An empty text.
    Empty,
    /// `0.0.0.0`.
    Nobody,
}

impl LockFace {
    /// Every one of them.
    pub const ALL: [Self; 5] = [Self::Named, Self::Absent, Self::Dash, Self::Empty, Self::Nobody];

    /// A lock as it is shown. What is not shown cannot be asked for either.
    pub(super) fn shown(self, mut row: Value) -> Value {
        let text = match self {
            Self::Named => return row,
            _ if !row["protocol"].as_str().is_some_and(|protocol| protocol.starts_with("nfsv4")) => {
                return row;
            }
            Self::Absent => {
                super::fields::remove(&mut row, "client_address");
                return row;
            }
            Self::Dash => "-",
            Self::Empty => "",
            Self::Nobody => "0.0.0.0",
        };
        row["client_address"] = text.into();
        row
    }
}

impl World {
    /// `client` connects to `volume` now, or as soon as it is created, and holds two NFSv4.1 locks in it.
    pub fn guest(&mut self, volume: &str, client: IpAddr) {
        if self.find(Table::Volumes, &[("name", volume)]).is_some() {
            self.connect(volume, client, Duration::ZERO);
            self.lock(volume, client, "broker1/.lock");
            self.lock(volume, client, "broker1/__a_demo_topic-0/00000000000000000000.log");
        } else {
            self.guests.push((volume.to_owned(), client));
        }
    }

    /// The guests of a volume that has just been created arrive.
    pub(super) fn welcome(&mut self, volume: &str) {
        let (now, later): (Vec<_>, Vec<_>) = self.guests.drain(..).partition(|(name, _)| name == volume);
        self.guests = later;
        now.into_iter().for_each(|(volume, client)| self.guest(&volume, client));
    }

    /// A connected client that has been idle for so long (whole seconds), and its TCP connection. From now on
    /// its `idle_duration` grows, until [`World::touch`].
    pub fn connect(&mut self, volume: &str, client: IpAddr, idle: Duration) {
        let Some(row) = self.find(Table::Volumes, &[("name", volume)]).cloned() else { return };
        let svm = query::text(&row["svm"]["name"]);
        let lif = self.find(Table::Interfaces, &[("svm.name", &svm)]).cloned().unwrap_or_default();
        let node = lif["location"]["node"].clone();
        let connected = json!({
            "svm": row["svm"], "node": node, "server_ip": lif["ip"]["address"], "client_ip": client.to_string(),
            "volume": reference_of(&row), "protocol": "nfs4.1", "~since": seconds_ago(idle),
            "export_policy": row["nas"]["export_policy"], "local_request_count": 1000, "remote_request_count": 0,
        });
        self.insert(Table::ConnectedClients, connected);
        self.counter += 1;
        let connection = json!({
            "node": node["name"], "cid": 2_000_000 + self.counter, "vserver": svm, "lif_name": lif["name"],
            "local_address": lif["ip"]["address"], "local_port": 2049, "remote_ip": client.to_string(),
            "remote_port": 700 + self.counter % 300, "proto": "tcp", "service": "nfs", "lru": "yes",
            "blocks_lb": false,
        });
        self.insert(Table::CliConnections, connection);
        super::access::remember(self, client, volume, &query::text(&node["name"]));
    }

    /// From now on this node's access cache shows no entry, whatever is in it.
    pub fn hides_cache_of(&mut self, node: &str) {
        self.hidden_caches.insert(node.to_owned());
    }

    /// What there is in this node's access cache is shown again.
    pub fn shows_cache_of(&mut self, node: &str) {
        self.hidden_caches.remove(node);
    }

    /// What is in the nodes' access caches: node, client, and whether it may write.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, IpAddr, bool)> {
        let entries = self.verdicts.iter();
        entries.map(|((node, client, _), is)| (node.clone(), *client, is.access.may_write())).collect()
    }

    /// The client does something on the volume: it is no longer idle. Returns whether it is connected at all.
    pub fn touch(&mut self, volume: &str, client: IpAddr) -> bool {
        if self.list_stands {
            return false;
        }
        let client = client.to_string();
        let place = [("volume.name", volume), ("client_ip", client.as_str())];
        self.counter += 1;
        let done =
            json!({ "~since": seconds_ago(Duration::ZERO), "local_request_count": 1000 + self.counter });
        self.update(Table::ConnectedClients, &place, done) > 0
    }

    /// From now on NFSv4 locks are shown like this.
    pub fn show_locks(&mut self, face: LockFace) {
        self.lock_face = face;
    }

    /// From now on the list of connected clients is as it was: who does something looks idle all the same. A
    /// real one is written anew every 1 to 8 hours.
    pub fn list_stands_still(&mut self) {
        self.list_stands = true;
    }

    /// A granted NFSv4.1 share lock of `client` on `path` (relative to the junction). Returns its UUID.
    pub fn lock(&mut self, volume: &str, client: IpAddr, path: &str) -> String {
        let uuid = self.uuid();
        let Some(row) = self.find(Table::Volumes, &[("name", volume)]).cloned() else { return uuid };
        let svm = query::text(&row["svm"]["name"]);
        let lif = self.find(Table::Interfaces, &[("svm.name", &svm)]).cloned().unwrap_or_default();
        let junction = row["nas"]["path"].as_str().unwrap_or_default();
        let lock = json!({
            "uuid": uuid, "svm": row["svm"], "volume": reference_of(&row), "path": format!("{junction}/{path}"),
            "interface": { "name": lif["name"], "uuid": lif["uuid"], "ip": { "address": lif["ip"]["address"] } },
            "node": lif["location"]["node"], "client_address": client.to_string(), "protocol": "nfsv4.1",
            "type": "share_level", "state": "granted", "constituent": false,
            "owner_id": format!("{:024x}", self.counter),
            "share_lock": { "mode": "read_write_deny_none", "soft": false },
        });
        self.insert(Table::Locks, lock);
        uuid
    }
}

/// That moment, in seconds of the epoch.
fn seconds_ago(age: Duration) -> i64 {
    jiff::Timestamp::now().as_second() - i64::try_from(age.as_secs()).unwrap_or_default()
}
