//! A host: its own network, mounts and processes, and the faults that befall it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::export::{Export, Storage};
use crate::machine::{Machine, Mount, is_log_dir, output};
use crate::process::{Process, has_words, signal_if_alive, tail};
use crate::shell;

/// The directory of every host that is its own: a fresh, empty one after each power-on.
pub(crate) const PRIVATE: &str = "/srv";
/// A host's local disk, inside the host: what is here survives a loss of power.
pub(crate) const LOCAL: &str = "/srv/local";
/// The bridge that all hosts are on.
pub(crate) const BRIDGE: &str = "kbr";

/// A machine of the test bed. Its processes and mounts end with its power; its local disk
/// ([`Host::local`]) stays.
#[derive(Debug)]
pub struct Host {
    name: String,
    address: Ipv4Addr,
    local: PathBuf,
    logs: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` while the power is off.
    machine: Option<Machine>,
    /// What is mounted at each power-on, as a machine's `/etc/fstab` would.
    mounts: Vec<Mount>,
    /// The file server lets this host no longer mount what it exports.
    denied: bool,
    /// Where the file server does not let it in to what is exported there.
    closed: BTreeSet<String>,
    /// What its processes have in their environment, as `/etc/environment` would have it.
    environment: Vec<(String, String)>,
}

impl State {
    /// Everything that the file server lets it have and that is not served.
    fn mount_again(&mut self) -> Result<()> {
        let allowed: Vec<Mount> = self
            .mounts
            .iter()
            .filter(|mount| !self.denies(mount) && mount.storage == Storage::Fuse)
            .cloned()
            .collect();
        let Some(machine) = &mut self.machine else { return Ok(()) };
        for mount in allowed {
            if let Some(place) = machine.exports.iter().position(|export| export.target == mount.target) {
                if machine.exports[place].is_served()? {
                    continue;
                }
                // Who still has a file of it open keeps a dead one.
                machine.run(&["umount", "--lazy", &mount.target])?;
                machine.exports.remove(place);
            }
            machine.mount(&mount, false)?;
        }
        Ok(())
    }

    fn denies(&self, mount: &Mount) -> bool {
        self.denied || self.closed.contains(&mount.target)
    }
}

/// What a command that ran in a host said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Exit code; 124 when it did not end in time, 128 + n when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Host {
    /// Makes a host and switches it on.
    pub(crate) fn create(name: &str, address: Ipv4Addr, artifacts: &Path) -> Result<Self> {
        ensure!(name.len() <= 10, "host name {name:?} is too long for the name of its link");
        let local = artifacts.join("hosts").join(name);
        let logs = artifacts.join("logs");
        fs::create_dir_all(&local)?;
        fs::create_dir_all(&logs)?;
        let host = Self { name: name.to_owned(), address, local, logs, state: Mutex::default() };
        host.power_on()?;
        Ok(host)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its local disk, from outside; inside it is `/srv/local`. It is kept with the story's artifacts.
    #[must_use]
    pub fn local(&self) -> &Path {
        &self.local
    }

    /// Mounts the directory `source` (of the sandbox) at `target`, which must be below `/srv`, now and at
    /// each power-on.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn bind(&self, source: &Path, target: &str) -> Result<()> {
        self.mount(Storage::Bind, source, target)
    }

    /// [`Host::bind`], or through a daemon that can be stopped and killed.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(&self, storage: Storage, source: &Path, target: &str) -> Result<()> {
        ensure!(Path::new(target).starts_with(PRIVATE), "{target} is not below {PRIVATE}");
        let mut state = self.state();
        let mount = Mount { source: source.to_owned(), target: target.to_owned(), storage };
        let denied = state.denies(&mount);
        if let Some(machine) = &mut state.machine {
            machine.mount(&mount, denied)?;
        }
        state.mounts.push(mount);
        Ok(())
    }

    /// Takes away what [`Host::bind`] mounted at `target`: a mount that is not there.
    ///
    /// # Errors
    /// When it is not mounted or in use.
    pub fn unbind(&self, target: &str) -> Result<()> {
        let mut state = self.state();
        if let Some(machine) = &state.machine {
            machine.run(&["umount", target])?;
        }
        state.mounts.retain(|mount| mount.target != target);
        Ok(())
    }

    /// The storage mounted below `under` no longer answers: whoever touches it waits. Only what was mounted
    /// with [`Storage::Fuse`].
    ///
    /// # Errors
    /// When the host is off or nothing there can stall.
    pub fn stall(&self, under: &str) -> Result<()> {
        self.signal_exports(under, Signal::STOP)
    }

    /// The storage below `under` answers again, from where it stood still.
    ///
    /// # Errors
    /// As [`Host::stall`].
    pub fn resume(&self, under: &str) -> Result<()> {
        self.signal_exports(under, Signal::CONT)
    }

    fn signal_exports(&self, under: &str, signal: Signal) -> Result<()> {
        let state = self.state();
        let machine = state.machine.as_ref().ok_or_else(|| self.is_off())?;
        let mut below =
            machine.exports.iter().filter(|export| Path::new(&export.target).starts_with(under)).peekable();
        ensure!(below.peek().is_some(), "nothing below {under} on {} can stall", self.name);
        below.try_for_each(|export| export.signal(signal))
    }

    /// The file server throws this host out: every open file of its log dirs fails from now on, and nothing
    /// can be mounted again, not after a restart either. Its processes live.
    ///
    /// # Errors
    /// When a daemon survives.
    pub fn deny_storage(&self) -> Result<()> {
        let mut state = self.state();
        state.denied = true;
        let exports = state.machine.iter_mut().flat_map(|machine| &mut machine.exports);
        exports.filter(|export| is_log_dir(&export.target)).try_for_each(Export::kill)
    }

    /// Lets the host have its storage again, mounted anew.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn allow_storage(&self) -> Result<()> {
        let mut state = self.state();
        state.denied = false;
        state.mount_again()
    }

    /// The file server lets this host in to what is exported at `target` or throws it out, as
    /// [`Host::deny_storage`] does from all. What it may mount later it finds mounted.
    ///
    /// # Errors
    /// When a daemon survives, or it cannot be mounted.
    pub fn gate(&self, target: &str, open: bool) -> Result<()> {
        let mut state = self.state();
        if open {
            return if state.closed.remove(target) { state.mount_again() } else { Ok(()) };
        }
        state.closed.insert(target.to_owned());
        let exports = state.machine.iter_mut().flat_map(|machine| &mut machine.exports);
        exports.filter(|export| export.target == target).try_for_each(Export::kill)
    }

    /// Reads back whether the host has lost its storage: no daemon serves its log dirs, and a write from the
    /// host itself fails.
    ///
    /// # Errors
    /// When the daemons are gone and a write goes through all the same.
    pub fn has_lost_storage(&self) -> Result<bool> {
        let mut state = self.state();
        if !state.denied {
            return Ok(false);
        }
        let Some(machine) = &mut state.machine else { return Ok(true) };
        for export in machine.exports.iter_mut().filter(|export| is_log_dir(&export.target)) {
            if export.is_served()? {
                return Ok(false);
            }
        }
        for export in machine.exports.iter().filter(|export| is_log_dir(&export.target)) {
            let file = format!("{}/understudy-probe", export.target);
            let wrote = output(machine.enter(&["timeout", "2", "touch", &file]))?;
            ensure!(wrote.code != 0, "{} can still write to {}", self.name, export.target);
        }
        Ok(true)
    }

    /// Starts a process in the host. Its output is appended to `HOST-NAME.log` in the story's logs.
    ///
    /// # Errors
    /// When the host is off or the process ends at once.
    pub fn spawn<S: AsRef<std::ffi::OsStr>>(&self, name: &str, command: &[S]) -> Result<Arc<Process>> {
        self.spawn_with(name, command, &[])
    }

    /// [`Host::spawn`] with environment variables.
    ///
    /// # Errors
    /// As [`Host::spawn`].
    pub fn spawn_with<S: AsRef<std::ffi::OsStr>>(
        &self,
        name: &str,
        command: &[S],
        environment: &[(&str, &str)],
    ) -> Result<Arc<Process>> {
        let mut state = self.state();
        let given = state.environment.clone();
        let machine = state.machine.as_mut().ok_or_else(|| self.is_off())?;
        let mut entry = machine.enter(command);
        entry.envs(given).envs(environment.iter().copied());
        let full_name = format!("{}-{name}", self.name);
        let process =
            Arc::new(Process::start(&full_name, entry, self.logs.join(format!("{full_name}.log")))?);
        machine.processes.push(Arc::clone(&process));
        Ok(process)
    }

    /// Runs a command in the host to its end, at most five minutes: one that takes what nobody else wants of
    /// a busy machine is no failure.
    ///
    /// # Errors
    /// When the host is off or the command cannot be run; its own failure is in the [`Output`].
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, command: &[S]) -> Result<Output> {
        let entry = {
            let state = self.state();
            let machine = state.machine.as_ref().ok_or_else(|| self.is_off())?;
            let mut limited: Vec<&std::ffi::OsStr> =
                ["timeout", "--kill-after=5", "300"].map(AsRef::as_ref).to_vec();
            limited.extend(command.iter().map(AsRef::as_ref));
            let mut entry = machine.enter(&limited);
            entry.envs(state.environment.clone());
            entry
        };
        output(entry)
    }

    /// Runs `act` on a thread that is in the host's network: its sockets are the host's.
    ///
    /// # Errors
    /// When the host is off, and what `act` returns.
    pub fn within_network<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let network = {
            let state = self.state();
            let machine = state.machine.as_ref().ok_or_else(|| self.is_off())?;
            File::open(format!("/proc/{}/ns/net", machine.init.as_raw_nonzero()))?
        };
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
                act()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether a packet from this host gets to `address` and back.
    #[must_use]
    pub fn reaches(&self, address: Ipv4Addr) -> bool {
        // Nobody listens on port 1: to be refused takes a live peer.
        let probe =
            || Ok(TcpStream::connect_timeout(&SocketAddr::from((address, 1)), Duration::from_millis(400)));
        match self.within_network(probe) {
            Ok(Err(error)) => error.kind() == ErrorKind::ConnectionRefused,
            Ok(Ok(_)) => true,
            Err(_) => false,
        }
    }

    /// Has every process that is started from now on find these variables.
    pub(crate) fn set_environment(&self, variables: &[(&str, &str)]) {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.state().environment = variables.iter().map(own).collect();
    }

    /// Adds `address` (with prefix length) to the host's link, as an operator would by hand.
    ///
    /// # Errors
    /// When the host is off or has it already.
    pub fn add_address(&self, address: &str) -> Result<()> {
        self.machine_run(&["ip", "addr", "add", address, "dev", "eth0"])
    }

    /// The host's addresses on its link, with prefix length.
    ///
    /// # Errors
    /// When the host is off.
    pub fn addresses(&self) -> Result<Vec<String>> {
        let listed = self.run(&["ip", "-4", "-oneline", "addr", "show", "dev", "eth0"])?;
        Ok(listed
            .stdout
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned))
            .collect())
    }

    /// Whether the host has power.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.state().machine.is_some()
    }

    /// Loss of power: the link goes, then every process dies at once. Nobody gets a farewell packet. No
    /// error if it is off already.
    ///
    /// # Errors
    /// When something survives.
    pub fn power_off(&self) -> Result<()> {
        let mut state = self.state();
        let Some(mut machine) = state.machine.take() else { return Ok(()) };
        // First the link: a dying process's kernel would close its connections, which a dead host does not.
        shell::sh(&format!("ip link del {}", self.link()))?;
        signal_if_alive(machine.init, Signal::KILL)?;
        // Then its storage, for which a process that waits in the kernel would wait for ever.
        machine.exports.iter_mut().try_for_each(Export::kill)?;
        for process in &machine.processes {
            process.wait(Duration::from_secs(20))?;
        }
        machine.unshare.wait()?;
        Ok(())
    }

    /// Power returns: fresh namespaces, its link and first address, its mounts. Nothing is started. No error
    /// if it is on already.
    ///
    /// # Errors
    /// When the namespaces or links cannot be made.
    pub fn power_on(&self) -> Result<()> {
        let mut state = self.state();
        if state.machine.is_some() {
            return Ok(());
        }
        let log = self.logs.join(format!("{}-boot.log", self.name));
        let mut machine = Machine::boot(&log)
            .with_context(|| format!("host {} does not come up: {}", self.name, tail(&log, 500)))?;
        let link = self.link();
        let pid = machine.init.as_raw_nonzero();
        let hardware = self.hardware();
        shell::sh(&format!("ip link add {link} type veth peer name eth0 address {hardware} netns {pid}"))?;
        shell::sh(&format!("ip link set {link} master {BRIDGE} up"))?;
        machine.run(&["ip", "link", "set", "lo", "up"])?;
        machine.run(&["ip", "link", "set", "eth0", "up"])?;
        machine.run(&["ip", "addr", "add", &format!("{}/24", self.address), "dev", "eth0"])?;
        machine.run(&["mount", "-t", "tmpfs", "-o", "mode=755", "private", PRIVATE])?;
        machine.bind(&self.local, LOCAL)?;
        for mount in &state.mounts {
            machine.mount(mount, state.denies(mount))?;
        }
        state.machine = Some(machine);
        Ok(())
    }

    /// Cuts the host off from the network: its link stays up, and nothing passes.
    ///
    /// # Errors
    /// When it is off.
    pub fn cut(&self) -> Result<()> {
        shell::sh(&format!("ip link set {} nomaster", self.link())).map(drop)
    }

    /// Joins it to the network again.
    ///
    /// # Errors
    /// When it is off.
    pub fn heal(&self) -> Result<()> {
        shell::sh(&format!("ip link set {} master {BRIDGE}", self.link())).map(drop)
    }

    /// Whether it has a link, and that is joined to the network.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        let shown = shell::sh(&format!("ip -oneline link show {}", self.link()));
        shown.is_ok_and(|link| link.contains(&format!("master {BRIDGE}")))
    }

    /// Stops (`SIGSTOP`) every process of the host; its kernel still answers, as a hung machine's does.
    ///
    /// # Errors
    /// When the host is off.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// Lets every process go on (`SIGCONT`).
    ///
    /// # Errors
    /// When the host is off.
    pub fn thaw(&self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    /// Sends `signal` to every process of the host whose command line has all of `words`; returns how many
    /// there are.
    ///
    /// # Errors
    /// When the host is off.
    pub fn signal(&self, words: &[&str], signal: Signal) -> Result<usize> {
        let found = self.processes(words)?;
        found.iter().try_for_each(|pid| signal_if_alive(*pid, signal))?;
        Ok(found.len())
    }

    /// The processes of the host whose command line has all of `words`, as the sandbox numbers them.
    ///
    /// # Errors
    /// When the host is off.
    pub fn processes(&self, words: &[&str]) -> Result<Vec<Pid>> {
        let pids = self.state().machine.as_ref().ok_or_else(|| self.is_off())?.pids()?;
        Ok(pids.into_iter().filter(|pid| has_words(*pid, words)).collect())
    }

    /// Its process 1, as the sandbox numbers it.
    pub(crate) fn first_process(&self) -> Result<Pid> {
        Ok(self.state().machine.as_ref().ok_or_else(|| self.is_off())?.init)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        let state = self.state();
        let machine = state.machine.as_ref().ok_or_else(|| self.is_off())?;
        machine.pids()?.into_iter().try_for_each(|pid| signal_if_alive(pid, signal))
    }

    fn machine_run(&self, command: &[&str]) -> Result<()> {
        self.state().machine.as_ref().ok_or_else(|| self.is_off())?.run(command)
    }

    fn is_off(&self) -> anyhow::Error {
        anyhow!("host {} is off", self.name)
    }

    /// The bed's end of its link.
    pub(crate) fn link(&self) -> String {
        format!("v-{}", self.name)
    }

    /// The hardware address of its own end, which a machine keeps through a loss of power.
    pub(crate) fn hardware(&self) -> String {
        let [a, b, c, d] = self.address.octets();
        format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
