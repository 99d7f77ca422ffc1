//! The lab of one story: its hosts, its switch, its cluster, its agents, its folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::agent::{self, Agent};
use crate::host::{BRIDGE, Host, PRIVATE};
use crate::kafka::{Cluster, ClusterSpec};
use crate::sandbox::Folders;
use crate::shell;
use crate::switch::{Hosts, PowerSwitch};
use crate::unjudged::SetUp;

/// The bed's own address on the bridge; the power switch and all clients are there.
pub(crate) const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

/// Everything a story may touch. All hosts share one bridge, 10.77.0.0/24.
#[derive(Debug)]
pub struct Lab {
    name: String,
    folders: PathBuf,
    data: PathBuf,
    begin: Instant,
    timeline: Mutex<File>,
    hosts: Hosts,
    switch: PowerSwitch,
    agents: Mutex<Vec<Arc<Agent>>>,
}

impl Lab {
    /// Makes the hub in the namespaces that this process is in.
    pub(crate) fn open(name: &str, folders: Folders) -> Result<Self> {
        for path in [&folders.artifacts, &folders.data, &std::env::current_exe()?] {
            ensure!(
                !path.starts_with(PRIVATE),
                "{} is below {PRIVATE}, which every host replaces: build elsewhere",
                path.display()
            );
        }
        fs::create_dir_all(folders.artifacts.join("logs"))?;
        shell::sh(&format!("ip link add {BRIDGE} type bridge mcast_snooping 0"))?;
        shell::sh(&format!("ip link set {BRIDGE} up"))?;
        shell::sh(&format!("ip addr add {HUB}/24 dev {BRIDGE}"))?;
        let hosts = Hosts::default();
        Ok(Self {
            name: name.to_owned(),
            timeline: Mutex::new(File::create(folders.artifacts.join("timeline.log"))?),
            folders: folders.artifacts,
            data: folders.data,
            begin: Instant::now(),
            switch: PowerSwitch::start(HUB, Arc::clone(&hosts))?,
            hosts,
            agents: Mutex::default(),
        })
    }

    /// The story's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The story's folder: what is put here is kept when it fails.
    #[must_use]
    pub fn artifacts(&self) -> &Path {
        &self.folders
    }

    /// A directory of the shared storage, by name, as all hosts could mount it ([`Host::bind`]). It outlives
    /// every host, and not the story.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn shared(&self, name: &str) -> Result<PathBuf> {
        make(self.data.join(name))
    }

    /// A shared directory with room for so many MiB: one that can be filled.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn small_shared(&self, name: &str, mebibytes: u32) -> Result<PathBuf> {
        let dir = self.shared(name)?;
        shell::sh(&format!("mount -t tmpfs -o size={mebibytes}m tmpfs {}", dir.display()))?;
        Ok(dir)
    }

    /// A shared directory that is kept with the artifacts: for a ledger.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn kept(&self, name: &str) -> Result<PathBuf> {
        make(self.folders.join(name))
    }

    /// Writes a line with the time since the story began to standard error and to `timeline.log`.
    pub fn note(&self, what: impl AsRef<str>) {
        let line = format!("{:8.3} {}", self.begin.elapsed().as_secs_f64(), what.as_ref());
        eprintln!("{line}");
        // The timeline is a convenience: a story does not fail for it.
        let _ = writeln!(lock(&self.timeline), "{line}");
    }

    /// A new host, switched on, plugged into the switch's outlet of the same name.
    ///
    /// # Errors
    /// When the name or address is bad or taken.
    pub fn host(&self, name: &str, address: &str) -> Result<Arc<Host>> {
        let address: Ipv4Addr = address.parse().with_context(|| format!("host {name}: {address:?}"))?;
        let mut hosts = lock(&self.hosts);
        ensure!(
            hosts.values().all(|host| host.name() != name && host.address() != address),
            "host {name} at {address}: name or address is taken"
        );
        let host = Arc::new(Host::create(name, address, &self.folders)?);
        hosts.insert(name.to_owned(), Arc::clone(&host));
        Ok(host)
    }

    /// All hosts, by name.
    #[must_use]
    pub fn hosts(&self) -> BTreeMap<String, Arc<Host>> {
        lock(&self.hosts).clone()
    }

    /// The host of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(&self, name: &str) -> Result<Arc<Host>> {
        lock(&self.hosts).get(name).cloned().with_context(|| format!("there is no host {name}"))
    }

    /// The power switch.
    #[must_use]
    pub fn switch(&self) -> &PowerSwitch {
        &self.switch
    }

    /// Makes everybody forget where `address` was: what a gratuitous ARP does, for a move by hand.
    ///
    /// # Errors
    /// When a host that is on cannot be told.
    pub fn forget_neighbour(&self, address: IpAddr) -> Result<()> {
        shell::sh(&format!("ip neigh flush to {address}"))?;
        for host in self.hosts().values().filter(|host| host.is_on()) {
            host.run(&["ip", "neigh", "flush", "to", &address.to_string()])?;
        }
        Ok(())
    }

    /// Brings up a Kafka cluster, each node on a host of its own.
    ///
    /// # Errors
    /// When Kafka is not there, or the cluster is not complete in five minutes.
    pub fn kafka(&self, spec: ClusterSpec) -> Result<Cluster> {
        Cluster::start(self, spec).context(SetUp)
    }

    /// The agent on `host` with this configuration, not started: for its commands.
    ///
    /// # Errors
    /// When the binary is not there.
    pub fn idle_agent(&self, host: &Arc<Host>, config: &str) -> Result<Arc<Agent>> {
        let agent = Arc::new(Agent::prepare(&agent::binary()?, Arc::clone(host), config)?);
        lock(&self.agents).push(Arc::clone(&agent));
        Ok(agent)
    }

    /// Starts the agent (`understudy run`) on `host` with this configuration.
    ///
    /// # Errors
    /// When the binary is not there, or ends at once.
    pub fn agent(&self, host: &Arc<Host>, config: &str) -> Result<Arc<Agent>> {
        self.agent_of(&agent::binary()?, host, config)
    }

    /// [`Lab::agent`] with another binary: an older release, say.
    ///
    /// # Errors
    /// When it is not there, or ends at once.
    pub fn agent_of(&self, binary: &Path, host: &Arc<Host>, config: &str) -> Result<Arc<Agent>> {
        let agent = Arc::new(Agent::prepare(binary, Arc::clone(host), config)?);
        lock(&self.agents).push(Arc::clone(&agent));
        agent.start()?;
        Ok(agent)
    }

    /// At the end: what the agents have to say. Whoever no longer answers is left out.
    pub(crate) fn collect(&self) {
        for agent in lock(&self.agents).iter() {
            agent.dump(Duration::from_secs(2));
        }
    }
}

fn make(directory: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
