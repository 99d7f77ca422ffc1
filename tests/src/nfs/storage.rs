//! A storage system with ONTAP's REST API in front of the real NFS server: its export rules are the server's,
//! a lock that is broken is released there, and the locks and clients that it shows are those that the server
//! has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fakes::ontap::{Fake, Fault, LockFace, Scheme, Table, World};
use serde_json::json;
use tokio::runtime::Runtime;

use super::server::{NfsServer, ServerLock};
use crate::eventually;
use crate::lab::{HUB, Lab};
use crate::ontap::{Login, SVM};

/// The volume that `understudy ontap verify --try` makes. Until then nobody is let in to its export.
pub(super) const SCRATCH: &str = "understudy_verify";
/// The file that Kafka locks in each log dir. Other locks are nobody's proof.
const LOCK: &str = ".lock";
/// How long the server may take to give up a lock that was broken.
const RELEASE: Duration = Duration::from_secs(10);

/// The storage system of a story on real NFS.
pub struct NfsOntap {
    storage: Arc<Storage>,
    runtime: Runtime,
}

struct Storage {
    fake: Fake,
    server: Arc<NfsServer>,
    volumes: Vec<String>,
    /// Whether the server has an export for [`SCRATCH`].
    scratch: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Who may come to be let in, by name: what a rule can mean.
    clients: BTreeMap<String, Ipv4Addr>,
    /// The locks that the storage system shows, by UUID, and whose they are.
    shown: BTreeMap<String, (ServerLock, Ipv4Addr)>,
    /// Whom the server lets in, volume by volume.
    let_in: BTreeMap<String, BTreeSet<Ipv4Addr>>,
    /// What must never have been.
    wrongs: Vec<String>,
}

impl NfsOntap {
    /// Starts it for volumes, each an export of the same name that one host, by name and address, is let in
    /// to.
    ///
    /// # Errors
    /// When it cannot listen, or the server does not do as its rules say.
    pub fn start(lab: &Lab, server: &Arc<NfsServer>, volumes: &[(&str, (&str, Ipv4Addr))]) -> Result<Self> {
        let mut world = World::default();
        world.ha_pair("node-01", "node-02");
        world.aggregate("aggr1", "node-01");
        world.svm(SVM);
        world.lif(SVM, "lif1", server.address().into(), "node-01");
        // A second node with a memory of its own, and NFSv4 locks as the vendor documents them: without their
        // client.
        world.lif(SVM, "lif2", [10, 77, 0, 249].into(), "node-02");
        world.show_locks(LockFace::Absent);
        let mut clients = BTreeMap::new();
        for (volume, (host, address)) in volumes {
            world.policy(SVM, volume, &[&[&address.to_string()]]);
            world.volume(SVM, volume, volume);
            clients.insert((*host).to_owned(), *address);
        }
        let runtime = Runtime::new()?;
        let listen = Fake::listen(world, SocketAddr::from((HUB, 0)), Scheme::Https);
        let fake = runtime.block_on(listen).context("the storage system cannot listen")?;
        let storage = Arc::new(Storage {
            fake,
            server: Arc::clone(server),
            volumes: volumes.iter().map(|(volume, _)| (*volume).to_owned()).collect(),
            scratch: server.clients_of(SCRATCH).is_ok(),
            state: Mutex::new(State { clients, ..State::default() }),
        });
        storage.follow()?;
        let follower = Arc::downgrade(&storage);
        storage.fake.follow(move || follow(&follower, Occasion::Request));
        // What comes by time alone, what the server's clients do, and who is still at work.
        let (watcher, mut changes) = (Arc::downgrade(&storage), storage.fake.changes());
        runtime.spawn(async move {
            while watcher.strong_count() > 0 {
                let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
                let watcher = Weak::clone(&watcher);
                let _ = tokio::task::spawn_blocking(move || follow(&watcher, Occasion::Look)).await;
                // Following reads and changes the world, which is told as a change too.
                changes.mark_unchanged();
            }
        });
        lab.note(format!("storage system at {}", storage.fake.url()));
        Ok(Self { storage, runtime })
    }

    /// A host that may be let in later.
    ///
    /// # Errors
    /// When the server does not do as the rules say.
    pub fn plug_in(&self, host: &str, address: Ipv4Addr) -> Result<()> {
        self.storage.state().clients.insert(host.to_owned(), address);
        self.storage.follow()
    }

    /// Everything that an agent's configuration needs to reach it; the password is `secret`.
    ///
    /// # Errors
    /// When the storage system has no certificate.
    pub fn login(&self) -> Result<Login> {
        let addresses = self.storage.state().clients.clone();
        Login::of(&self.storage.fake, self.storage.volumes.clone(), addresses)
    }

    /// The hosts that may come to be let in, by name.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.storage.state().clients.keys().cloned().collect()
    }

    /// The hosts that the rule of a volume lets in now, by name.
    #[must_use]
    pub fn owners(&self, volume: &str) -> Vec<String> {
        self.storage.owners(volume)
    }

    /// The locks that it shows: volume and file, and the client's address.
    #[must_use]
    pub fn locks(&self) -> Vec<(String, Ipv4Addr)> {
        let state = self.storage.state();
        let shown = state.shown.values();
        shown.map(|(lock, client)| (format!("{}/{}", lock.export, lock.path), *client)).collect()
    }

    /// The fake itself.
    #[must_use]
    pub fn fake(&self) -> &Fake {
        &self.storage.fake
    }

    /// Has something go wrong with some requests, until [`NfsOntap::heal`].
    pub fn inject(&self, fault: Fault) {
        self.storage.fake.inject(fault);
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        self.storage.fake.heal();
    }

    /// No rule ever let two hosts in, and the server did as the rules say.
    ///
    /// # Errors
    /// What was wrong.
    pub fn ensure_one_owner_at_a_time(&self) -> Result<()> {
        let state = self.storage.state();
        ensure!(state.wrongs.is_empty(), "{}", state.wrongs.join("; "));
        Ok(())
    }

    /// Has the storage system no longer answer anybody. The NFS server serves on, by the last rules.
    pub fn shut_down(self) {
        self.runtime.shutdown_background();
    }
}

/// Why the server is looked after.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// A request has changed something, and is answered when the server has followed.
    Request,
    /// Time has passed.
    Look,
}

fn follow(storage: &Weak<Storage>, occasion: Occasion) {
    let Some(storage) = storage.upgrade() else { return };
    if storage.server.is_stalled() && occasion == Occasion::Look {
        return;
    }
    if let Err(error) = storage.follow() {
        storage.state().wrongs.push(format!("the NFS server could not follow the rules: {error:#}"));
    }
}

impl Storage {
    fn owners(&self, volume: &str) -> Vec<String> {
        let clients = self.state().clients.clone();
        let let_in = |address: Ipv4Addr| {
            self.fake.world(|world| world.would_allow(address.into(), volume).may_write())
        };
        clients.into_iter().filter(|(_, address)| let_in(*address)).map(|(name, _)| name).collect()
    }

    /// Makes the server as the rules have it, and the storage system show what the server has.
    fn follow(&self) -> Result<()> {
        for volume in &self.volumes {
            let owners = self.owners(volume);
            if owners.len() > 1 {
                self.state().wrongs.push(format!("the rule of {volume} lets {owners:?} in"));
            }
        }
        // One at a time, and nobody is told of a change before it is made.
        let mut state = self.state();
        let addresses: Vec<Ipv4Addr> = state.clients.values().copied().collect();
        let mut allowed = BTreeMap::new();
        let scratch = self.scratch.then(|| SCRATCH.to_owned());
        for volume in self.volumes.iter().cloned().chain(scratch) {
            let may = |address: &Ipv4Addr| self.fake.allows(IpAddr::from(*address), &volume).may_write();
            let clients: BTreeSet<Ipv4Addr> = addresses.iter().copied().filter(may).collect();
            allowed.insert(volume, clients);
        }
        // A server that stalls answers nobody, and what it need not do is no fault of its.
        if self.server.is_stalled() && state.let_in == allowed {
            return Ok(());
        }
        // Whoever is thrown out is so before anybody is let in.
        for (volume, clients) in &allowed {
            let still = self.server.clients_of(volume)?.intersection(&text(clients)).cloned().collect();
            self.server.let_in(volume, &still)?;
        }
        for (volume, clients) in &allowed {
            self.server.let_in(volume, &text(clients))?;
        }
        state.let_in.clone_from(&allowed);
        self.release_broken(&mut state)?;
        self.show_locks(&mut state, &allowed)?;
        self.show_clients(&allowed)
    }

    /// Locks that are no longer shown were broken: the server releases what their clients hold.
    fn release_broken(&self, state: &mut State) -> Result<()> {
        let rows: BTreeSet<String> = self.fake.world(|world| {
            let uuid = |row: &serde_json::Value| row["uuid"].as_str().map(str::to_owned);
            world.rows(Table::Locks).iter().filter_map(uuid).collect()
        });
        let broken: Vec<String> = state.shown.keys().filter(|uuid| !rows.contains(*uuid)).cloned().collect();
        let broken: Vec<_> = broken.iter().filter_map(|uuid| state.shown.remove(uuid)).collect();
        let clients: BTreeSet<Ipv4Addr> = broken.iter().map(|(_, client)| *client).collect();
        for client in clients {
            self.server.release(&client.to_string())?;
        }
        eventually("the NFS server to give up the locks that were broken", RELEASE, || {
            let held = self.server.locks(LOCK)?;
            let left = broken.iter().find(|(lock, _)| held.contains(lock));
            ensure!(left.is_none(), "{left:?} is held");
            Ok(())
        })
    }

    fn show_locks(&self, state: &mut State, allowed: &BTreeMap<String, BTreeSet<Ipv4Addr>>) -> Result<()> {
        let held = self.server.locks(LOCK)?;
        let gone: Vec<String> = state
            .shown
            .iter()
            .filter(|(_, (lock, _))| !held.contains(lock))
            .map(|(uuid, _)| uuid.clone())
            .collect();
        for uuid in gone {
            self.fake.world(|world| world.remove(Table::Locks, &[("uuid", &uuid)]));
            state.shown.remove(&uuid);
        }
        for lock in held {
            if state.shown.values().any(|(known, _)| *known == lock) {
                continue;
            }
            // The server does not tell whose it is: who is let in and connected has taken it.
            let Some(clients) = allowed.get(&lock.export) else { continue };
            let Some(client) = clients.first().copied() else { continue };
            let uuid = self.fake.world(|world| world.lock(&lock.export, client.into(), &lock.path));
            state.shown.insert(uuid, (lock, client));
        }
        Ok(())
    }

    /// Who is let in and has been heard of is connected, idle since then.
    fn show_clients(&self, allowed: &BTreeMap<String, BTreeSet<Ipv4Addr>>) -> Result<()> {
        let (heard, connected) = (self.server.last_heard()?, self.server.connected()?);
        for (volume, clients) in allowed {
            for client in clients.iter().filter(|client| connected.contains(client)) {
                let Some(heard) = heard.get(client) else { continue };
                let address = client.to_string();
                let place = [("volume.name", volume.as_str()), ("client_ip", &address)];
                self.fake.world(|world| {
                    if world.find(Table::ConnectedClients, &place).is_none() {
                        world.connect(volume, (*client).into(), Duration::ZERO);
                    }
                    world.update(Table::ConnectedClients, &place, json!({ "~since": heard }));
                });
            }
        }
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn text(clients: &BTreeSet<Ipv4Addr>) -> BTreeSet<String> {
    clients.iter().map(ToString::to_string).collect()
}
