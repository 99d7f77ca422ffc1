//! A storage system with ONTAP's REST API whose export rules really gate the shared log dirs: each broker's
//! log dir is a volume with an export policy of its own. What a request changes holds on every host before it
//! is answered.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fakes::ontap::{self, Fake, Fault, LockFace, Scheme, World};
use ontap_client::Fingerprint;
use serde_json::json;
use tokio::runtime::Runtime;
use toml::{Table, Value, toml};

use crate::host::Host;
use crate::kafka::Cluster;
use crate::lab::{HUB, Lab};

/// Its SVM.
pub(crate) const SVM: &str = "svm1";
/// Where every host with an agent has the password.
pub(crate) const PASSWORD: &str = "/srv/local/ontap.password";

/// The storage system of a story.
pub struct Ontap {
    storage: Arc<Storage>,
    runtime: Runtime,
}

struct Storage {
    fake: Fake,
    /// Volumes, and where they are mounted.
    volumes: BTreeMap<String, String>,
    hosts: Mutex<Vec<Arc<Host>>>,
    /// What must never have been.
    wrongs: Mutex<Vec<String>>,
}

impl Ontap {
    /// Starts it for the log dirs of a cluster: each broker's home is let in to the broker's volume, and
    /// nobody else.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(crate) fn start(lab: &Lab, cluster: &Cluster) -> Result<Self> {
        let mut world = World::small();
        // Two nodes, each with a memory of its own, and NFSv4 locks as the vendor documents them: without
        // their client.
        world.lif(SVM, "lif2", [10, 0, 0, 51].into(), "node-02");
        world.show_locks(LockFace::Absent);
        let mut volumes = BTreeMap::new();
        for node in cluster.brokers() {
            let (volume, home) = (volume(node.id()), node.home()?.address());
            world.policy(SVM, &volume, &[&[&home.to_string()]]);
            world.volume(SVM, &volume, &volume);
            world.guest(&volume, home.into());
            volumes.insert(volume, node.mount_point());
        }
        let runtime = Runtime::new()?;
        let listen = Fake::listen(world, SocketAddr::from((HUB, 0)), Scheme::Https);
        let fake = runtime.block_on(listen).context("the storage system cannot listen")?;
        let homes = cluster.brokers().iter().map(|node| Ok(Arc::clone(node.home()?)));
        let hosts = homes.collect::<Result<_>>()?;
        let storage = Storage { fake, volumes, hosts: Mutex::new(hosts), wrongs: Mutex::default() };
        let storage = Arc::new(storage);
        let follower = Arc::downgrade(&storage);
        storage.fake.follow(move || follow(&follower));
        // What comes by time alone, and who is still at work.
        let (watcher, mut changes) = (Arc::downgrade(&storage), storage.fake.changes());
        runtime.spawn(async move {
            while watcher.strong_count() > 0 {
                let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
                let watcher = Weak::clone(&watcher);
                let _ = tokio::task::spawn_blocking(move || follow(&watcher)).await;
                // Following reads and touches the world, which is told as a change too.
                changes.mark_unchanged();
            }
        });
        lab.note(format!("storage system at {}", storage.fake.url()));
        Ok(Self { storage, runtime })
    }

    /// A host that may be let in later.
    ///
    /// # Errors
    /// When the password cannot be written to it.
    pub(crate) fn plug_in(&self, host: &Arc<Host>) -> Result<()> {
        fs::write(host.local().join("ontap.password"), "secret\n")?;
        lock(&self.storage.hosts).push(Arc::clone(host));
        self.storage.gate()
    }

    /// Has every host fenced by its export rules, and `own` let in by them. What fences there were stay
    /// behind them if `others` is set, and nothing else fences if not.
    ///
    /// # Errors
    /// When the storage system has no certificate.
    pub(crate) fn configure(
        &self,
        config: &mut Table,
        own: &Host,
        timeout: &str,
        others: bool,
    ) -> Result<()> {
        let volumes = self.storage.volumes.keys().cloned().collect();
        let hosts = lock(&self.storage.hosts);
        let addresses = hosts.iter().map(|host| (host.name().to_owned(), host.address())).collect();
        let login = Login { others, ..Login::of(&self.storage.fake, volumes, addresses)? };
        login.configure(config, own.address(), timeout)
    }

    /// Has something go wrong with some requests, until [`Ontap::heal`].
    pub fn inject(&self, fault: Fault) {
        self.storage.fake.inject(fault);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.storage.fake.heal();
    }

    /// From now on NFSv4 locks are shown like this.
    pub fn show_locks(&self, face: LockFace) {
        self.storage.fake.world(|world| world.show_locks(face));
    }

    /// The hosts that the rule of a broker's volume lets in now, by name.
    #[must_use]
    pub fn owners(&self, broker: i32) -> Vec<String> {
        self.storage.owners(&volume(broker))
    }

    /// Has the rule of a broker's volume let exactly these hosts in, whatever agents have made of it.
    ///
    /// # Errors
    /// When there is no such rule, or the shared directories cannot do as it says.
    pub fn let_in(&self, broker: i32, hosts: &[&Host]) -> Result<()> {
        let policy = volume(broker);
        let clients = hosts.iter().map(|host| json!({"match": host.address().to_string()}));
        let patch = json!({"clients": clients.collect::<Vec<_>>()});
        let rules = [("policy.name", policy.as_str())];
        let changed = self.storage.fake.world(|world| world.update(ontap::Table::Rules, &rules, patch));
        ensure!(changed == 1, "{policy} has {changed} rules");
        self.storage.gate()
    }

    /// No rule ever let two hosts in, and the shared directories did as the rules say.
    ///
    /// # Errors
    /// What was wrong.
    pub fn ensure_one_owner_at_a_time(&self) -> Result<()> {
        let wrongs = lock(&self.storage.wrongs);
        ensure!(wrongs.is_empty(), "{}", wrongs.join("; "));
        Ok(())
    }

    /// Has the storage system no longer answer anybody.
    pub fn shut_down(self) {
        self.runtime.shutdown_background();
    }
}

/// How agents reach a storage system, and what they find there.
pub struct Login {
    login: Table,
    volumes: Vec<String>,
    addresses: BTreeMap<String, Ipv4Addr>,
    /// Whether the fences that a host has already come after the export rules.
    others: bool,
}

impl Login {
    /// Of all hosts, by name, with the addresses that rules know them by.
    pub(crate) fn of(
        fake: &Fake,
        volumes: Vec<String>,
        addresses: BTreeMap<String, Ipv4Addr>,
    ) -> Result<Self> {
        let certificate = fake.certificate_der().context("no certificate")?;
        let mut login = toml! { user = "admin" };
        login.insert("password_file".to_owned(), PASSWORD.into());
        login.insert("url".to_owned(), fake.url().into());
        login.insert("pin".to_owned(), Fingerprint::of(certificate).to_string().into());
        Ok(Self { login, volumes, addresses, others: false })
    }

    /// Has every host fenced by its export rules first, and the host at `own` let in by them. The password
    /// is expected in `/srv/local/ontap.password`.
    ///
    /// # Errors
    /// When the configuration names a host that is not known here.
    pub fn configure(&self, config: &mut Table, own: Ipv4Addr, timeout: &str) -> Result<()> {
        let section = |volumes: Vec<String>, address: Ipv4Addr| {
            let mut section = toml! { svm = "svm1" };
            section.insert("volumes".to_owned(), volumes.into());
            section.insert("addresses".to_owned(), vec![address.to_string()].into());
            section.insert("ontap".to_owned(), self.login.clone().into());
            section
        };
        for host in tables(config, "host") {
            let name = host.get("name").and_then(Value::as_str).unwrap_or_default();
            let address = self.addresses.get(name).with_context(|| format!("no host {name}"))?;
            let mut fence = section(self.volumes.clone(), *address);
            fence.insert("driver".to_owned(), "ontap_export".into());
            fence.insert("timeout".to_owned(), timeout.into());
            let mut ladder = vec![Value::from(fence)];
            if let (true, Some(Value::Array(others))) = (self.others, host.remove("fence")) {
                ladder.extend(others);
            }
            host.insert("fence".to_owned(), ladder.into());
        }
        for broker in tables(config, "broker") {
            let id = broker.get("id").and_then(Value::as_integer).context("a broker without id")?;
            let volume = volume(id.try_into()?);
            let mut grant = section(vec![volume.clone()], own);
            grant.insert("paths".to_owned(), vec![format!("/{volume}")].into());
            if let Some(Value::Table(storage)) = broker.get_mut("storage") {
                storage.insert("grant".to_owned(), grant.into());
            }
        }
        Ok(())
    }
}

impl Storage {
    fn owners(&self, volume: &str) -> Vec<String> {
        let hosts = lock(&self.hosts).clone();
        let let_in = |host: &Arc<Host>| {
            self.fake.world(|world| world.would_allow(host.address().into(), volume).may_write())
        };
        hosts.iter().filter(|host| let_in(host)).map(|host| host.name().to_owned()).collect()
    }

    /// Makes every host's mounts as the rules, and what is remembered of them, have it.
    fn gate(&self) -> Result<()> {
        let hosts = lock(&self.hosts);
        for (volume, target) in &self.volumes {
            let address = |host: &Host| IpAddr::from(host.address());
            let allowed = |host: &Host| self.fake.allows(address(host), volume).may_write();
            let (open, closed): (Vec<_>, Vec<_>) = hosts.iter().partition(|host| allowed(host));
            // Whoever is thrown out is so before anybody is let in.
            closed.iter().try_for_each(|host| host.gate(target, false))?;
            open.iter().try_for_each(|host| host.gate(target, true))?;
            for host in open.iter().filter(|host| host.is_on()) {
                self.fake.world(|world| world.touch(volume, address(host)));
            }
        }
        Ok(())
    }
}

/// Called after each change, from any thread.
fn follow(storage: &Weak<Storage>) {
    let Some(storage) = storage.upgrade() else { return };
    for volume in storage.volumes.keys() {
        let owners = storage.owners(volume);
        if owners.len() > 1 {
            lock(&storage.wrongs).push(format!("the rule of {volume} lets {owners:?} in"));
        }
    }
    if let Err(error) = storage.gate() {
        lock(&storage.wrongs).push(format!("the bed could not follow the rules: {error:#}"));
    }
}

/// The volume of a broker's log dir.
pub(crate) fn volume(broker: i32) -> String {
    format!("broker{broker}")
}

/// The tables of a list such as `[[host]]`.
pub(crate) fn tables<'c>(config: &'c mut Table, key: &str) -> impl Iterator<Item = &'c mut Table> {
    let list = config.get_mut(key).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_table_mut)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
