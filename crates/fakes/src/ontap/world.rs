//! Everything that the fake knows, and seeding it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::access::{Access, Verdict};
use super::clients::LockFace;
use super::fields::merge;
use super::query;
use super::shapes::Table;

/// Smallest FlexVol, in bytes.
pub(super) const SMALLEST_VOLUME: i64 = 20 * 1024 * 1024;

/// The state of the fake: records by table, accounts, and the access cache.
///
/// Records are plain JSON as ONTAP would show them in full. The methods here keep references (`svm`,
/// `volume`, `export_policy`) consistent; [`World::insert`] and [`World::update`] let a test write anything.
#[derive(Debug, Clone)]
pub struct World {
    tables: BTreeMap<Table, Vec<Value>>,
    pub(super) accounts: Vec<Account>,
    /// By node, client and policy.
    pub(super) verdicts: BTreeMap<(String, IpAddr, i64), Verdict>,
    /// How long verdicts outlive a change of rules; set by a fault for one request.
    pub(super) lag: Option<Duration>,
    /// Fields that this release does not know.
    pub(super) unknown_fields: Vec<String>,
    /// Fields of the command line that admin privilege does not know.
    pub(super) advanced_fields: Vec<String>,
    /// Clients that start to use a volume as soon as it exists: (volume, client, LIF).
    pub(super) guests: Vec<(String, IpAddr)>,
    /// How locks of NFSv4 are shown.
    pub(super) lock_face: LockFace,
    /// The list of connected clients is not written anew.
    pub(super) list_stands: bool,
    /// Nodes whose access cache shows no entry.
    pub(super) hidden_caches: BTreeSet<String>,
    pub(super) counter: u64,
    pub(super) job_time: Duration,
}

/// Who may log in.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) password: String,
    pub(super) token: Option<String>,
    /// DER.
    pub(super) certificate: Option<Vec<u8>>,
    /// Paths below which this account may do nothing.
    pub(super) denied: Vec<String>,
    pub(super) readonly: bool,
}

impl Default for World {
    /// A cluster named `cluster1` of ONTAP 9.15.1 with the account `admin`, password `secret`, and nothing
    /// else.
    fn default() -> Self {
        let mut world = Self {
            tables: BTreeMap::new(),
            accounts: Vec::new(),
            verdicts: BTreeMap::new(),
            lag: None,
            unknown_fields: Vec::new(),
            advanced_fields: Vec::new(),
            guests: Vec::new(),
            lock_face: LockFace::default(),
            list_stands: false,
            hidden_caches: BTreeSet::new(),
            counter: 0,
            job_time: Duration::ZERO,
        };
        world.account("admin", "secret");
        let uuid = world.uuid();
        world.insert(Table::Cluster, json!({ "name": "cluster1", "uuid": uuid }));
        world.release(9, 15, 1);
        let settings = json!({
            "client_retention_interval": "PT48H", "update_interval": "PT8H", "enable_nfs_clients_deletion": false,
        });
        world.insert(Table::ClientSettings, settings);
        world
    }
}

impl World {
    /// A small world: the HA pair `node-01`/`node-02`, aggregate `aggr1`, SVM `svm1` with NFSv4.1, data LIF
    /// `lif1` (10.0.0.50), the policy `default`, one SnapMirror relationship. The client 10.0.0.101 connects
    /// to a volume `kafka01` and holds locks in it as soon as there is one.
    #[must_use]
    pub fn small() -> Self {
        let mut world = Self::default();
        world.ha_pair("node-01", "node-02");
        world.aggregate("aggr1", "node-01");
        world.svm("svm1");
        world.lif("svm1", "lif1", IpAddr::from([10, 0, 0, 50]), "node-01");
        world.snapmirror("svm_src:kafka_src", "svm1:kafka_dr");
        world.guest("kafka01", IpAddr::from([10, 0, 0, 101]));
        world
    }

    /// What is reported as the version, e.g. 9, 12, 1.
    pub fn release(&mut self, generation: u8, major: u8, minor: u8) {
        let version = json!({
            "full": format!("NetApp Release {generation}.{major}.{minor}: Thu Jan 01 00:00:00 UTC 2026"),
            "generation": generation, "major": major, "minor": minor,
        });
        for table in [Table::Cluster, Table::Nodes] {
            self.update(table, &[], json!({ "version": version.clone() }));
        }
    }

    /// This release does not know `field`: `fields=` and queries that name it are refused.
    pub fn does_not_know(&mut self, field: &str) {
        self.unknown_fields.push(field.to_owned());
    }

    /// Lets the command line know `field` (with `_` for `-`) only with advanced privilege.
    pub fn needs_advanced(&mut self, field: &str) {
        self.advanced_fields.push(field.to_owned());
    }

    /// How long every job takes. Zero: a job has ended before its request is answered.
    pub fn jobs_take(&mut self, time: Duration) {
        self.job_time = time;
    }

    /// Lets `name` log in by password; again: changes the password.
    pub fn account(&mut self, name: &str, password: &str) {
        self.accounts.retain(|account| account.name != name);
        self.accounts.push(Account {
            name: name.to_owned(),
            password: password.to_owned(),
            token: None,
            certificate: None,
            denied: Vec::new(),
            readonly: false,
        });
    }

    /// Lets `name` log in by `Authorization: Bearer TOKEN` too.
    pub fn token(&mut self, name: &str, token: &str) {
        self.of_account(name, |account| account.token = Some(token.to_owned()));
    }

    /// Everything below `path` (from `/api`) is refused to `name` with 403.
    pub fn deny(&mut self, name: &str, path: &str) {
        self.of_account(name, |account| account.denied.push(path.to_owned()));
    }

    /// `name` may only read.
    pub fn readonly(&mut self, name: &str) {
        self.of_account(name, |account| account.readonly = true);
    }

    /// Lets `name` log in by this client certificate (DER) too.
    pub fn certificate(&mut self, name: &str, certificate: &[u8]) {
        self.of_account(name, |account| account.certificate = Some(certificate.to_vec()));
    }

    fn of_account(&mut self, name: &str, act: impl FnOnce(&mut Account)) {
        if let Some(account) = self.accounts.iter_mut().find(|account| account.name == name) {
            act(account);
        }
    }

    /// Two nodes that are each other's partners.
    pub fn ha_pair(&mut self, first: &str, second: &str) {
        let uuids = [self.uuid(), self.uuid()];
        let version = self.tables[&Table::Cluster][0]["version"].clone();
        for (name, own, partner, other) in [(first, 0, second, 1), (second, 1, first, 0)] {
            let node = json!({
                "name": name, "uuid": uuids[own], "state": "up", "membership": "available", "uptime": 86_400,
                "model": "AFF-A900", "serial_number": format!("000000-{own}"), "version": version,
                "ha": {
                    "enabled": true, "auto_giveback": true, "interconnect": { "state": "up" },
                    "partners": [{ "name": partner, "uuid": uuids[other] }],
                    "takeover": { "state": "not_attempted" },
                    "giveback": { "state": "nothing_to_giveback" },
                    "takeover_check": { "takeover_possible": true, "reasons": [] },
                },
            });
            self.insert(Table::Nodes, node);
        }
    }

    /// An online aggregate of 10 TiB on `node`.
    pub fn aggregate(&mut self, name: &str, node: &str) {
        let (uuid, node) = (self.uuid(), self.reference(Table::Nodes, node));
        let size = 10_i64 << 40;
        let aggregate = json!({
            "name": name, "uuid": uuid, "state": "online", "node": node, "home_node": node,
            "space": {
                "block_storage": {
                    "size": size, "used": 302_476_636_160_i64, "available": size - 302_476_636_160,
                    "physical_used": 302_476_636_160_i64,
                },
                "efficiency": {
                    "logical_used": 451_293_446_144_i64, "savings": 148_816_809_984_i64, "ratio": 1.492,
                },
                "efficiency_without_snapshots": {
                    "logical_used": 451_293_446_144_i64, "savings": 148_816_809_984_i64, "ratio": 1.492,
                },
            },
        });
        self.insert(Table::Aggregates, aggregate);
    }

    /// A running data SVM with an NFS service (v3, v4.1) and the export policy `default`, which has no rules.
    pub fn svm(&mut self, name: &str) {
        let uuid = self.uuid();
        let aggregates: Vec<Value> = self.rows(Table::Aggregates).iter().map(reference_of).collect();
        let svm = json!({
            "name": name, "uuid": uuid, "state": "running", "subtype": "default", "language": "c.utf_8",
            "ipspace": { "name": "Default" }, "aggregates": aggregates,
            "nfs": { "allowed": true, "enabled": true }, "snapshot_policy": { "name": "default" },
        });
        self.insert(Table::Svms, svm);
        let service = super::create::nfs_service(&json!({ "name": name, "uuid": uuid }));
        self.insert(Table::NfsServices, service);
        self.policy(name, "default", &[]);
    }

    /// A data LIF that is up and at home on `node`.
    pub fn lif(&mut self, svm: &str, name: &str, address: IpAddr, node: &str) {
        let place = self.reference(Table::Nodes, node);
        let lif = json!({
            "name": name, "uuid": self.uuid(), "svm": self.reference(Table::Svms, svm), "scope": "svm",
            "enabled": true, "state": "up",
            "ip": {
                "address": address.to_string(), "netmask": "24",
                "family": if address.is_ipv4() { "ipv4" } else { "ipv6" },
            },
            "services": ["data_core", "data_nfs"], "service_policy": { "name": "default-data-files" },
            "location": {
                "home_node": place, "node": place, "is_home": true, "auto_revert": true,
                "failover": "broadcast_domain_only", "broadcast_domain": { "name": "Default" },
                "home_port": { "name": "e0d", "node": { "name": node } },
                "port": { "name": "e0d", "node": { "name": node } },
            },
        });
        self.insert(Table::Interfaces, lif);
    }

    /// An export policy with one rule for each entry of `rules`: who matches it may read and write. Returns
    /// its id.
    pub fn policy(&mut self, svm: &str, name: &str, rules: &[&[&str]]) -> i64 {
        let id = self.policy_id();
        let svm = self.reference(Table::Svms, svm);
        self.insert(Table::Policies, json!({ "id": id, "name": name, "svm": svm }));
        for (index, clients) in (1..).zip(rules) {
            let clients: Vec<Value> = clients.iter().map(|client| json!({ "match": client })).collect();
            let mut rule = super::create::rule_defaults();
            let own = json!({
                "index": index, "policy": { "id": id, "name": name }, "svm": svm, "clients": clients,
                "ro_rule": ["sys"], "rw_rule": ["sys"], "superuser": ["sys"],
            });
            merge(&mut rule, own);
            self.insert(Table::Rules, rule);
        }
        id
    }

    /// An online FlexVol of 100 GiB on the first aggregate, mounted at `/NAME`. Returns its UUID.
    pub fn volume(&mut self, svm: &str, name: &str, policy: &str) -> String {
        let aggregate = self.rows(Table::Aggregates).first().map(reference_of).unwrap_or_default();
        let body = json!({
            "name": name, "svm": self.reference(Table::Svms, svm), "aggregates": [aggregate],
            "size": 100_i64 << 30,
            "nas": { "path": format!("/{name}"), "export_policy": self.policy_reference(svm, policy) },
        });
        super::create::put_volume(self, body, None)
    }

    /// A qtree in a volume, with an export policy of its own.
    pub fn qtree(&mut self, volume: &str, name: &str, policy: &str) {
        let Some(row) = self.find(Table::Volumes, &[("name", volume)]).cloned() else { return };
        let svm = query::text(&row["svm"]["name"]);
        let qtree = json!({
            "id": self.rows(Table::Qtrees).len() + 1, "name": name, "svm": row["svm"], "volume": reference_of(&row),
            "export_policy": self.policy_reference(&svm, policy),
        });
        self.insert(Table::Qtrees, qtree);
    }

    /// What the volume's metrics show from now on: writes per second, bytes per second, and microseconds for
    /// each.
    pub fn load(&mut self, volume: &str, iops: u64, throughput: u64, latency: u64) {
        let rate = |value: u64| json!({ "read": 0, "write": value, "other": 0, "total": value });
        let metric = json!({
            "iops": rate(iops), "throughput": rate(throughput), "latency": rate(latency), "status": "ok",
            "duration": "PT15S", "timestamp": now(),
        });
        self.update(Table::Volumes, &[("name", volume)], json!({ "metric": metric }));
    }

    /// What the volume's raw counters show from now on: reads, writes and other operations since the node
    /// started, dated `at`. `status` is `ok`, or why they are not whole.
    pub fn counted(&mut self, volume: &str, operations: [u64; 3], at: jiff::Timestamp, status: &str) {
        let [read, write, other] = operations;
        let all = json!({ "read": read, "write": write, "other": other, "total": read + write + other });
        let statistics = json!({ "timestamp": at.to_string(), "status": status, "iops_raw": all });
        self.update(Table::Volumes, &[("name", volume)], json!({ "statistics": statistics }));
    }

    /// An asynchronous relationship in state `snapmirrored`, healthy, half a minute behind. Returns its UUID.
    pub fn snapmirror(&mut self, source: &str, destination: &str) -> String {
        let uuid = self.uuid();
        let side = |path: &str| json!({ "path": path, "svm": { "name": path.split(':').next() } });
        let relationship = json!({
            "uuid": uuid, "source": side(source), "destination": side(destination), "state": "snapmirrored",
            "healthy": true, "lag_time": "PT30S", "policy": { "name": "Asynchronous", "type": "async" },
            "exported_snapshot": "snapmirror.1", "restore": false,
            "transfer": { "state": "success", "bytes_transferred": 1024, "end_time": now() },
        });
        self.insert(Table::Snapmirror, relationship);
        uuid
    }

    /// Every record of a table.
    #[must_use]
    pub fn rows(&self, table: Table) -> &[Value] {
        self.tables.get(&table).map_or(&[], Vec::as_slice)
    }

    pub(super) fn rows_mut(&mut self, table: Table) -> &mut Vec<Value> {
        self.tables.entry(table).or_default()
    }

    /// The first record with these values, e.g. `&[("svm.name", "svm1"), ("name", "vol1")]`.
    #[must_use]
    pub fn find(&self, table: Table, fields: &[(&str, &str)]) -> Option<&Value> {
        self.rows(table).iter().find(|row| has(row, fields))
    }

    /// Adds a record as it is.
    pub fn insert(&mut self, table: Table, row: Value) {
        self.rows_mut(table).push(row);
    }

    /// Lays `patch` over every record with these values; returns how many there are.
    #[expect(clippy::needless_pass_by_value, reason = "so that a call can hold json!(…)")]
    pub fn update(&mut self, table: Table, fields: &[(&str, &str)], patch: Value) -> usize {
        let rows = self.rows_mut(table).iter_mut().filter(|row| has(row, fields));
        rows.map(|row| merge(row, patch.clone())).count()
    }

    /// Takes away every record with these values; returns how many there were.
    pub fn remove(&mut self, table: Table, fields: &[(&str, &str)]) -> usize {
        let rows = self.rows_mut(table);
        let before = rows.len();
        rows.retain(|row| !has(row, fields));
        before - rows.len()
    }

    /// Whether the rules as they stand let `client` in to `volume` (of any SVM), whatever the access cache
    /// holds.
    #[must_use]
    pub fn would_allow(&self, client: IpAddr, volume: &str) -> Access {
        super::access::evaluate(self, client, volume)
    }

    /// `{"name", "uuid"}` of a record by its name.
    pub(super) fn reference(&self, table: Table, name: &str) -> Value {
        let row = self.find(table, &[("name", name)]);
        row.map_or_else(|| json!({ "name": name }), reference_of)
    }

    /// `{"name", "id"}` of an export policy.
    pub(super) fn policy_reference(&self, svm: &str, name: &str) -> Value {
        let row = self.find(Table::Policies, &[("svm.name", svm), ("name", name)]);
        row.map_or_else(|| json!({ "name": name }), |row| json!({ "name": name, "id": row["id"] }))
    }

    pub(super) fn uuid(&mut self) -> String {
        self.counter += 1;
        format!("{:08x}-5eed-11ef-9abc-{:012x}", 0x1000_0000 + self.counter, self.counter)
    }

    /// Does not give out again what `other` gave out.
    pub(super) fn skip_what(&mut self, other: &Self) {
        self.counter = self.counter.max(other.counter);
    }

    /// As real ones are: 64-bit, and no UUID.
    pub(super) fn policy_id(&mut self) -> i64 {
        self.counter += 1;
        12_884_901_888 + i64::try_from(self.counter).unwrap_or_default()
    }

    /// The rules of a policy have changed. With a lag in force, verdicts that clients have got stay for so
    /// long.
    pub(super) fn rules_changed(&mut self, policy: i64) {
        // Without one, what an earlier change left in the cache stays there all the same.
        let Some(lag) = self.lag else { return };
        for (_, verdict) in self.verdicts.iter_mut().filter(|((_, _, id), _)| *id == policy) {
            verdict.stays_until = verdict.stays_until.max(Some(Instant::now() + lag));
        }
    }
}

fn has(row: &Value, fields: &[(&str, &str)]) -> bool {
    fields
        .iter()
        .all(|(field, wanted)| query::leaves(row, field).iter().any(|leaf| query::text(leaf) == *wanted))
}

pub(super) fn reference_of(row: &Value) -> Value {
    json!({ "name": row["name"], "uuid": row["uuid"] })
}

/// Now, as ONTAP writes times.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string()
}
