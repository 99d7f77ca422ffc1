//! One Kafka node: a broker or a controller, with its home host, its log dir and its configuration.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::secured::BETWEEN_PORT;
use super::wire::Door;
use crate::agent::Agent;
use crate::ec2::zones;
use crate::host::{Host, Output};
use crate::machine::LOG_DIRS;
use crate::nfs::{self, Guest};
use crate::process::Process;

/// The port of every broker's client listener.
pub(crate) const BROKER_PORT: u16 = 9092;
/// The port of every controller's listener.
pub(crate) const CONTROLLER_PORT: u16 = 9093;

/// What a node is at home on.
#[derive(Debug, Clone)]
pub(crate) enum Home {
    /// A namespace host of the lab.
    Host(Arc<Host>),
    /// A machine with a kernel of its own, where systemd starts Kafka.
    Guest(Arc<Guest>),
}

/// A broker or a controller.
#[derive(Debug)]
pub struct Node {
    pub(crate) id: i32,
    pub(crate) home: Home,
    /// What clients know. A broker's moves with it, and is not its home's own.
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: u16,
    /// On the shared storage, from outside.
    pub(crate) log_dir: PathBuf,
    pub(crate) log_dirs: u8,
    pub(crate) properties: PathBuf,
    pub(crate) command: Vec<String>,
    pub(crate) process: Mutex<Option<Arc<Process>>>,
    /// How the bed connects to one of a secured cluster.
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Node {
    /// Its node id.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The host it started on.
    ///
    /// # Errors
    /// When that is a guest.
    pub fn home(&self) -> Result<&Arc<Host>> {
        match &self.home {
            Home::Host(host) => Ok(host),
            Home::Guest(guest) => bail!("node {} is at home in guest {}", self.id, guest.name()),
        }
    }

    /// The guest it started in.
    ///
    /// # Errors
    /// When it is at home on a namespace host.
    pub fn guest(&self) -> Result<&Arc<Guest>> {
        match &self.home {
            Home::Guest(guest) => Ok(guest),
            Home::Host(host) => {
                bail!("node {} is at home on host {}, which is no guest", self.id, host.name())
            }
        }
    }

    /// The name of what it started on.
    #[must_use]
    pub fn home_name(&self) -> &str {
        match &self.home {
            Home::Host(host) => host.name(),
            Home::Guest(guest) => guest.name(),
        }
    }

    /// Its listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((self.ip, self.port))
    }

    /// Its address as a link has it, with the length of the prefix.
    #[must_use]
    pub fn on_link(&self) -> String {
        zones::on_link(self.ip)
    }

    /// Where the bed itself asks it.
    #[must_use]
    pub fn door(&self) -> Door {
        match &self.tls {
            Some(tls) => Door::secured(SocketAddr::from((self.ip, BETWEEN_PORT)), Arc::clone(tls)),
            None => Door::plain(self.address()),
        }
    }

    /// Its log dir as the bed sees it: the shared storage's side of the mount.
    #[must_use]
    pub fn log_dir(&self) -> &Path {
        &self.log_dir
    }

    /// Its log dir as every host that mounts it sees it.
    #[must_use]
    pub fn mount_point(&self) -> String {
        mount_point(self.port, self.id)
    }

    /// All its log dirs, as every host that mounts them sees them.
    #[must_use]
    pub fn all_log_dirs(&self) -> Vec<String> {
        let mount = self.mount_point();
        match self.log_dirs {
            1 => vec![mount],
            several => (1..=several).map(|n| format!("{mount}/d{n}")).collect(),
        }
    }

    /// Its `server.properties`.
    #[must_use]
    pub fn properties(&self) -> &Path {
        &self.properties
    }

    /// Starts it at home, as it is started there: by the bed or by systemd.
    pub(crate) fn begin(&self) -> Result<()> {
        match &self.home {
            Home::Host(_) => self.start().map(drop),
            Home::Guest(guest) => nfs::kafka::start(guest, self.id),
        }
    }

    /// Starts it on its home host, with its address.
    ///
    /// # Errors
    /// When the host is off or the process ends at once.
    pub fn start(&self) -> Result<Arc<Process>> {
        let (home, address) = (self.home()?, self.on_link());
        if !home.addresses()?.contains(&address) {
            home.add_address(&address)?;
        }
        self.start_on(home)
    }

    /// Starts it on its home host as its unit there would, `guard` being the unit's condition: an agent of
    /// that host says whether Kafka may start. Returns what it said if not.
    ///
    /// # Errors
    /// When the guard cannot be run, or Kafka ends at once.
    pub fn start_if_guard_allows(&self, guard: &Agent) -> Result<Result<Arc<Process>, Output>> {
        let said = guard.cli(&["guard", "--broker", &self.id.to_string()])?;
        if said.code == 0 { self.start().map(Ok) } else { Ok(Err(said)) }
    }

    /// Starts it on its home host as its unit there would, `guard` becoming Kafka. It may refuse: then the
    /// process ends.
    ///
    /// # Errors
    /// When the guard cannot be run.
    pub fn start_by_guard(&self, guard: &Agent) -> Result<Arc<Process>> {
        self.home()?.spawn(&format!("kafka-{}", self.id), &self.guarded(guard)?)
    }

    /// Starts it on its home host as [`Node::start_by_guard`] does, and again `pause` after each of its ends.
    ///
    /// # Errors
    /// When the supervisor cannot be run.
    pub fn supervise(&self, guard: &Agent, pause: Duration) -> Result<Arc<Process>> {
        let again = format!("while :; do \"$@\"; sleep {}; done", pause.as_secs_f64());
        let mut command = ["/bin/sh", "-c", &again, "supervisor"].map(str::to_owned).to_vec();
        command.extend(self.guarded(guard)?);
        self.home()?.spawn(&format!("supervisor-{}", self.id), &command)
    }

    fn guarded(&self, guard: &Agent) -> Result<Vec<String>> {
        let mut command = guard.command(&["guard", "--broker", &self.id.to_string(), "--exec", "--"])?;
        command.extend(self.command.iter().cloned());
        Ok(command)
    }

    /// Starts it, as it is, on another host that has its log dir and its address.
    ///
    /// # Errors
    /// When the host is off or the process ends at once.
    pub fn start_on(&self, host: &Host) -> Result<Arc<Process>> {
        let mut command = ["/bin/sh", "-c", "echo $$ >$0; exec \"$@\""].map(str::to_owned).to_vec();
        command.push(pid_file(self.id));
        command.extend(self.command.iter().cloned());
        let process = host.spawn(&format!("kafka-{}", self.id), &command)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&process));
        Ok(process)
    }

    /// The process that the bed started last.
    ///
    /// # Errors
    /// When it has not started any.
    pub fn process(&self) -> Result<Arc<Process>> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.clone().with_context(|| format!("node {} was never started", self.id))
    }
}

/// Where a host keeps the process id, as the host sees it, of the Kafka that the bed started there.
pub(crate) fn pid_file(id: i32) -> String {
    format!("/srv/local/kafka-{id}.pid")
}

pub(crate) fn mount_point(port: u16, id: i32) -> String {
    if port == CONTROLLER_PORT {
        format!("{LOG_DIRS}/controller{id}")
    } else {
        format!("{LOG_DIRS}/broker{id}")
    }
}

/// Writes a properties file, in the order given; a key that is given again replaces the first.
pub(crate) fn write_properties(path: &Path, entries: &[(String, String)]) -> Result<()> {
    let mut merged: Vec<&(String, String)> = Vec::new();
    for entry in entries {
        ensure!(!entry.1.contains('\n'), "{}: a value of two lines", entry.0);
        match merged.iter_mut().find(|(key, _)| *key == entry.0) {
            Some(earlier) => *earlier = entry,
            None => merged.push(entry),
        }
    }
    let mut text = String::new();
    for (key, value) in merged {
        writeln!(text, "{key}={value}")?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
