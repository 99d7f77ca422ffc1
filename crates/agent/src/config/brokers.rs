//! The `[[broker]]` sections, and what only one broker can have.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ontap::storage::StorageConfig;
use recovery::model::{Broker, BrokerId, Endpoint, HostName};

use super::check::Check;
use super::{AddressConfig, BrokerConfig};
use crate::world::OURSELVES;

impl Check<'_> {
    pub(super) fn brokers(&mut self) -> Brokers {
        let mut all = Brokers::default();
        let mut taken = Taken::default();
        for i in 0..self.doc.len("broker") {
            let section = format!("broker[{i}]");
            let home: Option<String> = self.doc.read(&format!("{section}.home"));
            let home = home.inspect(|home| self.host_name(&format!("{section}.home"), home)).map(HostName);
            all.homes.extend(home.clone().map(|home| (section.clone(), home)));
            let Some((broker, drivers)) = self.broker(&section, home, &mut taken) else { continue };
            all.sections.insert(broker.id, section);
            all.drivers.insert(broker.id, drivers);
            all.brokers.insert(broker.id, broker);
        }
        if self.doc.len("broker") == 0 {
            let remedy = "add a [[broker]] section for each broker that this host may take over";
            self.doc.problem("broker", "no broker is guarded", remedy);
        }
        all
    }

    /// Each key is read by itself, so that every one is checked whatever is wrong with the others.
    fn broker(
        &mut self,
        section: &str,
        home: Option<HostName>,
        taken: &mut Taken,
    ) -> Option<(Broker, BrokerConfig)> {
        let at = |name: &str| format!("{section}.{name}");
        let id = self.doc.read(&at("id")).map(BrokerId);
        if let Some(id) = id {
            self.once(&mut taken.values, at("id"), format!("id {id}"));
            if id.0 < 0 {
                self.doc.problem(&at("id"), "is not a node id", "use the broker's node.id, 0 or more");
            }
        }
        let listener: Option<String> = self.doc.read(&at("listener"));
        let listener = listener.and_then(|text| self.endpoint(&at("listener"), &text));
        if let Some(listener) = &listener {
            self.once(&mut taken.values, at("listener"), format!("listener {listener}"));
        }
        let address: Option<AddressConfig> = self.doc.read(&at("address"));
        if let Some(address) = &address {
            self.address(section, address, listener.as_ref(), taken);
        }
        let here = self.stays_here(section);
        let (log_dirs, storage) = (at("log_dirs"), at("storage"));
        let log_dirs: Option<Vec<PathBuf>> = if here { self.doc.read(&log_dirs) } else { Some(Vec::new()) };
        let storage: Option<StorageConfig> = if here { self.doc.read(&storage) } else { None };
        if let (Some(log_dirs), Some(storage)) = (&log_dirs, &storage)
            && let Err(said) = ontap::storage::build(
                storage.clone(),
                id.unwrap_or(BrokerId(0)),
                log_dirs.clone(),
                Path::new(OURSELVES),
            )
        {
            self.driver(&at("storage"), said);
        }
        for (i, dir) in log_dirs.iter().flatten().enumerate() {
            self.log_dir(format!("{section}.log_dirs[{i}]"), dir, taken);
        }
        let properties = self.doc.read(&at("properties")).unwrap_or_default();
        let locks = storage.as_ref().map(StorageConfig::locks).unwrap_or_default();
        let admission = storage.as_ref().map(ontap::storage::admission).unwrap_or_default();
        let followed_later = address.as_ref().is_some_and(AddressConfig::followed_later);
        let moved = address.as_ref().map(|address| address.address().to_owned());
        let broker = Broker {
            id: id?,
            home: home?,
            listener: listener?,
            log_dirs: log_dirs?,
            address: moved,
            followed_later,
            racks: self.doc.read(&at("racks")).unwrap_or_default(),
            locks,
            admission,
        };
        if here && storage.is_none() {
            return None;
        }
        Some((broker, BrokerConfig { address, storage, properties }))
    }

    /// Whether a broker that is taken over comes to this host. One whose host is made anew elsewhere brings along what a
    /// standby has to be given; whatever is missing or too much is noted.
    fn stays_here(&mut self, section: &str) -> bool {
        let driver: Option<String> = self.doc.read("broker_host.driver");
        let rescheduled = driver.as_deref() == Some("rescheduling");
        for key in ["log_dirs", "storage", "address", "properties"].map(|name| format!("{section}.{name}")) {
            let wanted = !rescheduled && (key.ends_with("log_dirs") || key.ends_with("storage"));
            match self.doc.has(&key) {
                true if rescheduled => {
                    let reason = "says how the broker would come to this host, and with driver = \"rescheduling\" it does not";
                    self.doc.problem(&key, reason, "take it out: the pod brings its own along");
                }
                false if wanted => {
                    self.doc.problem(
                        &key,
                        "is missing",
                        "say where its log dirs are, and how they come here",
                    );
                }
                _ => {}
            }
        }
        !rescheduled
    }

    fn address(
        &mut self,
        section: &str,
        address: &AddressConfig,
        listener: Option<&Endpoint>,
        taken: &mut Taken,
    ) {
        let (key, moved) = (format!("{section}.address.{}", address.key()), address.address());
        self.once(&mut taken.values, key, format!("address {moved}"));
        if let Err(said) = address.clone().build(Arc::default(), Vec::new()) {
            self.driver(&format!("{section}.address"), said);
        }
        let key = format!("{section}.listener");
        match address {
            AddressConfig::KubernetesService(config) => {
                self.listener_is_service(&key, listener, moved);
                self.is_this_pod(&format!("{section}.address.pod"), &config.pod);
            }
            _ => self.listener_is_moved(&key, listener, moved),
        }
    }

    fn log_dir(&mut self, key: String, dir: &Path, taken: &mut Taken) {
        let other = taken.dirs.iter().find(|(d, _)| d.starts_with(dir) || dir.starts_with(d));
        if let Some((_, other)) = other.cloned() {
            self.twice(&key, &other);
        }
        taken.dirs.push((dir.to_owned(), key));
    }

    fn once(&mut self, taken: &mut BTreeMap<String, String>, key: String, value: String) {
        match taken.get(&value).cloned() {
            Some(other) => self.twice(&key, &other),
            None => drop(taken.insert(value, key)),
        }
    }

    fn twice(&mut self, key: &str, other: &str) {
        self.doc.problem(key, format!("is taken by {other}"), "two brokers cannot share it");
    }

    /// In a pod the agent's host is the pod: under another name it would take a broker from itself.
    fn is_this_pod(&mut self, key: &str, pod: &str) {
        let driver: Option<String> = self.doc.read("broker_host.driver");
        let here: Option<String> = self.doc.read("agent.host");
        if let Some(here) = here.filter(|here| driver.as_deref() == Some("kubernetes") && here != pod) {
            let reason = format!("is another pod than agent.host, {here}");
            self.doc.problem(key, reason, "give both the name of the pod that this agent is in");
        }
    }

    /// The same of a Service, whose own address nobody but the cluster knows.
    fn listener_is_service(&mut self, key: &str, listener: Option<&Endpoint>, service: &str) {
        let Some(host) = listener.map(|listener| listener.host.as_str()) else { return };
        if host.parse::<IpAddr>().is_err() && host.split('.').next() != Some(service) {
            let reason = format!("is not the Service that moves ({service})");
            self.doc.problem(key, reason, "clients would not find the broker after a takeover");
        }
    }

    /// Clients reach the broker at its listener: it must be what moves. A name is resolved by `check`.
    fn listener_is_moved(&mut self, key: &str, listener: Option<&Endpoint>, moved: &str) {
        let moved = moved.split('/').next().unwrap_or_default();
        let listener = listener.and_then(|listener| listener.host.parse::<IpAddr>().ok());
        if let (Some(listener), Ok(moved)) = (listener, moved.parse::<IpAddr>())
            && listener != moved
        {
            let reason = format!("is not on the address that moves ({moved})");
            self.doc.problem(key, reason, "clients would not find the broker after a takeover");
        }
    }
}

/// What only one broker can have.
#[derive(Default)]
struct Taken {
    values: BTreeMap<String, String>,
    dirs: Vec<(PathBuf, String)>,
}

/// The `[[broker]]` sections: what could be read of each.
#[derive(Default)]
pub(super) struct Brokers {
    pub(super) brokers: BTreeMap<BrokerId, Broker>,
    pub(super) drivers: BTreeMap<BrokerId, BrokerConfig>,
    /// Where each stands in the file.
    pub(super) sections: BTreeMap<BrokerId, String>,
    /// Every section that names a home.
    pub(super) homes: Vec<(String, HostName)>,
}
