//! The NFS server: nfs-ganesha on an address of its own, with short leases, and whatever it is told over its
//! D-Bus.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::eventually;
use crate::host::Host;
use crate::lab::Lab;
use crate::process::Process;

/// Where it listens.
const ADDRESS: &str = "10.77.0.250";
/// How long a silent client keeps its locks, and how long a server that has started waits for its clients, in
/// seconds.
pub(super) const LEASE: u32 = 10;
/// Its root inside its host, and the shared storage in there.
const ROOT: &str = "/srv/root";
const EXPORTS: &str = "/export";

/// A directory that the server exports.
#[derive(Debug, Clone)]
pub struct Export {
    /// Its directory below the server's storage; `/NAME` is what clients mount.
    pub name: String,
    /// Who may mount it: addresses, or networks (`10.77.0.0/24`).
    pub clients: BTreeSet<String>,
}

impl Export {
    /// An export that these may mount.
    #[must_use]
    pub fn to<S: AsRef<str>>(name: &str, clients: &[S]) -> Self {
        let clients = clients.iter().map(|client| client.as_ref().to_owned()).collect();
        Self { name: name.to_owned(), clients }
    }

    /// One that every host of the lab may mount.
    #[must_use]
    pub fn to_all(name: &str) -> Self {
        Self::to(name, &["10.77.0.0/24"])
    }
}

/// A byte-range lock that the server holds for a client, on a file below an export.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerLock {
    /// The export.
    pub export: String,
    /// The file, relative to it.
    pub path: String,
}

/// The server. It is outside of all guests, on a namespace host of its own that no story sees.
#[derive(Debug)]
pub struct NfsServer {
    host: Host,
    storage: PathBuf,
    exports: Mutex<Vec<Export>>,
    lease: u32,
    process: Mutex<Option<Arc<Process>>>,
    stalled: AtomicBool,
}

impl NfsServer {
    pub(super) fn start(root: &Path, lab: &Lab, exports: Vec<Export>, lease: u32) -> Result<Self> {
        let host = Host::create("nfs", ADDRESS.parse()?, lab.artifacts())?;
        let storage = lab.shared("nfs")?;
        for export in &exports {
            fs::create_dir_all(storage.join(&export.name))?;
        }
        let server = Self {
            host,
            storage,
            exports: Mutex::new(exports),
            lease,
            process: Mutex::default(),
            stalled: AtomicBool::default(),
        };
        server.furnish(root)?;
        server.write_config()?;
        server.serve()?;
        Ok(server)
    }

    /// Its root: what guests have, with what it writes itself in memory.
    fn furnish(&self, root: &Path) -> Result<()> {
        let script = "set -e
            mkdir -p /srv/upper /srv/work $0
            mount -t overlay -o lowerdir=$1,upperdir=/srv/upper,workdir=/srv/work overlay $0
            mkdir -p $0/export $0/var/lib/nfs/ganesha $0/run/dbus $0/run/ganesha
            mount --bind $2 $0/export
            mount -t proc proc $0/proc
            mount --rbind /dev $0/dev
            echo be0000000000000000000000000000ff >$0/etc/machine-id
            chroot $0 dbus-daemon --system --fork --nopidfile";
        let (root, storage) = (root.display().to_string(), self.storage.display().to_string());
        let output = self.host.run(&["sh", "-c", script, ROOT, &root, &storage])?;
        ensure!(output.code == 0, "the NFS server's root cannot be made: {}", output.stderr.trim());
        Ok(())
    }

    /// Starts the daemon, and waits until it answers over D-Bus and grants locks again.
    fn serve(&self) -> Result<()> {
        let config = "/etc/ganesha/ganesha.conf";
        let daemon = ["/usr/bin/ganesha.nfsd", "-F", "-L", "STDOUT", "-f", config, "-p", "/run/ganesha.pid"];
        let mut command = vec!["chroot", ROOT];
        command.extend(daemon);
        let process = self.host.spawn("ganesha", &command)?;
        *lock(&self.process) = Some(Arc::clone(&process));
        eventually("the NFS server to serve", Duration::from_secs(30), || {
            ensure!(process.is_running(), "it ended: {}", process.last_words());
            self.call("ExportMgr", "exportmgr.ShowExports", &[])
        })
        .map(drop)
    }

    /// Where clients reach it.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.host.address()
    }

    /// What a client mounts: `ADDRESS:/EXPORT`.
    #[must_use]
    pub fn source(&self, export: &str) -> String {
        format!("{}:/{export}", self.address())
    }

    /// An export's directory, as the bed sees it.
    #[must_use]
    pub fn directory(&self, export: &str) -> PathBuf {
        self.storage.join(export)
    }

    /// Lets these clients, and nobody else, mount an export; holds when it returns, as the server says
    /// itself.
    ///
    /// # Errors
    /// When there is no such export, or the server says otherwise afterwards.
    pub fn let_in(&self, export: &str, clients: &BTreeSet<String>) -> Result<()> {
        let (id, changed) = {
            let mut exports = lock(&self.exports);
            let place = exports.iter().position(|known| known.name == export);
            let place = place.with_context(|| format!("the NFS server has no export {export}"))?;
            let changed = exports[place].clients != *clients;
            exports[place].clients.clone_from(clients);
            (place + 1, changed)
        };
        if !changed {
            return Ok(());
        }
        self.write_config()?;
        let expression = format!("string:EXPORT(Export_Id={id})");
        self.call("ExportMgr", "exportmgr.UpdateExport", &["string:/etc/ganesha/ganesha.conf", &expression])?;
        let now = self.who_may_mount(export)?;
        let wanted: BTreeSet<String> = clients.iter().map(|client| with_prefix(client)).collect();
        ensure!(now == wanted, "the NFS server lets {now:?} mount {export} instead of {wanted:?}");
        Ok(())
    }

    /// Who may mount an export, as it was told.
    ///
    /// # Errors
    /// When there is no such export.
    pub fn clients_of(&self, export: &str) -> Result<BTreeSet<String>> {
        let exports = lock(&self.exports);
        let known = exports.iter().find(|known| known.name == export);
        Ok(known.with_context(|| format!("the NFS server has no export {export}"))?.clients.clone())
    }

    /// When it last heard of each client, in seconds of the epoch. Who only keeps its lease is heard of too.
    ///
    /// # Errors
    /// When it does not say.
    pub fn last_heard(&self) -> Result<BTreeMap<Ipv4Addr, i64>> {
        Ok(last_heard(&self.call("ClientMgr", "clientmgr.ShowClients", &[])?))
    }

    /// Who may mount an export, as the server says, with prefix length.
    ///
    /// # Errors
    /// When it does not say.
    pub fn who_may_mount(&self, export: &str) -> Result<BTreeSet<String>> {
        let place = lock(&self.exports).iter().position(|known| known.name == export);
        let id = place.with_context(|| format!("the NFS server has no export {export}"))? + 1;
        let text = self.call("ExportMgr", "exportmgr.DisplayExport", &[&format!("uint16:{id}")])?;
        // Its paths come first; then a list of clients.
        let (_, clients) = text.split_once("array [").context("the NFS server's answer has no clients")?;
        Ok(quoted(clients).filter(|text| text.contains('/')).map(str::to_owned).collect())
    }

    /// Takes from the client that calls itself `client` all its opens and locks, on every export.
    ///
    /// The server then waits for clients to reclaim, and grants new locks when it next looks whether any
    /// will: within half a lease.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn release(&self, client: &str) -> Result<()> {
        // An owner begins with what its host calls itself: the slash keeps 10.77.0.11 from meaning
        // 10.77.0.111 too.
        self.call("admin", "admin.grace", &[&format!("string:2:{client}/")]).map(drop)
    }

    /// The addresses that have a connection to it. A crashed client's stays for a while.
    ///
    /// # Errors
    /// When it cannot be told.
    pub fn connected(&self) -> Result<BTreeSet<Ipv4Addr>> {
        let listed = self.host.run(&["ss", "-Htn", "state", "established", "sport", "=", ":2049"])?;
        ensure!(listed.code == 0, "cannot list connections: {}", listed.stderr.trim());
        let peer = |line: &str| {
            let (address, _) = line.split_whitespace().nth(3)?.rsplit_once(':')?;
            address.trim_matches(['[', ']']).trim_start_matches("::ffff:").parse().ok()
        };
        Ok(listed.stdout.lines().filter_map(peer).collect())
    }

    /// The locks that it holds for clients now, on the files named so that are at most one directory below an
    /// export: the kernel under the server knows them. Whose they are it does not tell.
    ///
    /// # Errors
    /// When the storage cannot be listed.
    pub fn locks(&self, file: &str) -> Result<BTreeSet<ServerLock>> {
        // The server locks for its clients by "open file description".
        let all = fs::read_to_string("/proc/locks")?;
        let held: BTreeSet<u64> =
            all.lines().filter(|line| line.contains("OFDLCK")).filter_map(inode_of).collect();
        let mut locks = BTreeSet::new();
        for export in lock(&self.exports).iter() {
            let directory = self.directory(&export.name);
            let mut candidates = vec![directory.join(file)];
            for entry in fs::read_dir(&directory)? {
                candidates.push(entry?.path().join(file));
            }
            for path in candidates {
                if fs::metadata(&path).is_ok_and(|found| held.contains(&found.ino())) {
                    let path = path.strip_prefix(&directory)?.display().to_string();
                    locks.insert(ServerLock { export: export.name.clone(), path });
                }
            }
        }
        Ok(locks)
    }

    /// It no longer answers anybody, until [`NfsServer::resume`].
    ///
    /// # Errors
    /// When it does not run.
    pub fn stall(&self) -> Result<()> {
        self.stalled.store(true, Ordering::SeqCst);
        self.daemon()?.signal(Signal::STOP)
    }

    /// Whether it is stalled.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::SeqCst)
    }

    /// It goes on from where it stood still.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.daemon()?.signal(Signal::CONT)?;
        self.stalled.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// It dies, and is started again: its clients have to reclaim what they hold.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn restart(&self) -> Result<()> {
        self.daemon()?.kill()?;
        self.serve()
    }

    /// It has not crashed. Then its clients hang, which looks like a defect of theirs.
    ///
    /// # Errors
    /// When it has ended by itself; with its last words.
    pub fn ensure_runs(&self) -> Result<()> {
        let daemon = self.daemon()?;
        ensure!(daemon.is_running(), "the NFS server has crashed: {}", daemon.last_words());
        Ok(())
    }

    fn daemon(&self) -> Result<Arc<Process>> {
        lock(&self.process).clone().context("the NFS server was never started")
    }

    fn call(&self, object: &str, method: &str, arguments: &[&str]) -> Result<String> {
        let (object, method) = (format!("/org/ganesha/nfsd/{object}"), format!("org.ganesha.nfsd.{method}"));
        let mut command =
            vec!["chroot", ROOT, "dbus-send", "--system", "--print-reply", "--reply-timeout=20000"];
        command.extend(["--dest=org.ganesha.nfsd", &object, &method]);
        command.extend(arguments);
        let output = self.host.run(&command)?;
        ensure!(output.code == 0, "the NFS server refuses {method}: {}", output.stderr.trim());
        Ok(output.stdout)
    }

    fn write_config(&self) -> Result<()> {
        let text = config(self.address(), &lock(&self.exports), self.lease);
        let path = format!(
            "/proc/{}/root{ROOT}/etc/ganesha/ganesha.conf",
            self.host.first_process()?.as_raw_nonzero()
        );
        fs::write(&path, text).with_context(|| format!("cannot write {path}"))
    }
}

fn config(address: Ipv4Addr, exports: &[Export], lease: u32) -> String {
    let mut text = format!(
        "NFS_CORE_PARAM {{ Protocols = 4; Bind_addr = {address}; NFS_Port = 2049; Enable_NLM = false; \
         Enable_RQUOTA = false; Enable_UDP = false; }}\n\
         NFSV4 {{ Minor_Versions = 1, 2; Lease_Lifetime = {lease}; Grace_Period = {LEASE}; RecoveryBackend = fs; \
         Allow_Numeric_Owners = true; Only_Numeric_Owners = true; Delegations = false; }}\n\
         EXPORT_DEFAULTS {{ SecType = sys; Squash = No_Root_Squash; Attr_Expiration_Time = 0; }}\n\
         LOG {{ Default_Log_Level = EVENT; }}\n"
    );
    for (place, Export { name, clients }) in exports.iter().enumerate() {
        let id = place + 1;
        let clients = clients.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let rule = if clients.is_empty() {
            String::new()
        } else {
            format!("CLIENT {{ Clients = {clients}; Access_Type = RW; }} ")
        };
        // Each with a file system id of its own, as volumes have.
        let _ = writeln!(
            text,
            "EXPORT {{ Export_Id = {id}; Filesystem_id = 77.{id}; Path = {EXPORTS}/{name}; Pseudo = /{name}; \
             Protocols = 4; Transports = TCP; Access_Type = NONE; FSAL {{ Name = VFS; }} {rule}}}"
        );
    }
    text
}

fn with_prefix(client: &str) -> String {
    if client.contains('/') { client.to_owned() } else { format!("{client}/32") }
}

/// Everything that stands in `string "…"`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("string \"")?.strip_suffix('"'))
}

/// Reads what `ShowClients` prints: of each client its address, what it uses, and the seconds and nanoseconds
/// of its last request.
fn last_heard(text: &str) -> BTreeMap<Ipv4Addr, i64> {
    let mut heard = BTreeMap::new();
    let mut client = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = quoted(line).next() {
            // What is no address is the name of a protocol.
            client = address.trim_start_matches("::ffff:").parse::<Ipv4Addr>().ok().or(client);
        } else if let (Some(address), Some(number)) = (client, line.strip_prefix("uint64 ")) {
            if let Ok(seconds) = number.parse() {
                heard.insert(address, seconds);
            }
            client = None;
        }
    }
    heard
}

/// `3: OFDLCK ADVISORY  WRITE -1 fe:00:10100747 0 EOF`.
fn inode_of(line: &str) -> Option<u64> {
    line.split_whitespace().nth(5)?.rsplit(':').next()?.parse().ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_nobody_may_mount_has_no_clients() {
        let exports = [Export::to::<&str>("a", &[]), Export::to("b", &["10.77.0.111", "10.77.0.31"])];
        let text = config(Ipv4Addr::new(10, 77, 0, 250), &exports, LEASE);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("EXPORT {")).collect();
        assert!(lines[0].contains("Pseudo = /a;") && !lines[0].contains("CLIENT"), "{}", lines[0]);
        assert!(lines[1].contains("Clients = 10.77.0.111, 10.77.0.31;"), "{}", lines[1]);
        assert!(lines[1].contains("Export_Id = 2;"), "{}", lines[1]);
    }

    #[test]
    fn a_client_was_heard_of_at_its_last_request() {
        let client = |last: u8, seconds: u32| {
            format!(
                "struct {{\n string \"::ffff:10.77.0.{last}\"\n struct {{\n string \"NFSv41\"\n boolean true\n }}\n \
                 struct {{\n uint64 {seconds}\n uint64 912041900\n }}\n }}\n"
            )
        };
        let text =
            format!("struct {{\n uint64 1\n uint64 2\n }}\n array [\n{}{}]", client(111, 70), client(31, 90));
        let expected =
            BTreeMap::from([(Ipv4Addr::new(10, 77, 0, 111), 70), (Ipv4Addr::new(10, 77, 0, 31), 90)]);
        assert_eq!(last_heard(&text), expected);
    }

    #[test]
    fn a_lock_names_its_inode() {
        assert_eq!(inode_of("3: OFDLCK ADVISORY  WRITE -1 fe:00:10100747 0 EOF"), Some(10_100_747));
        assert_eq!(inode_of(""), None);
    }
}
