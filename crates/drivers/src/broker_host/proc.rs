//! What `/proc` says: which processes live, and which of them are ours.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::command_line::kafka_in;
use super::problem::Problem;
use recovery::model::{BrokerId, Epoch};

/// A process, and no later one that got the same number: valid until the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessId {
    /// Its number.
    pub(super) pid: i32,
    /// When it started, in clock ticks since boot.
    pub(super) start_ticks: u64,
}

/// The parts of `/proc/PID/stat` that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    state: char,
    parent: i32,
    session: i32,
    threads: u64,
    /// When the process started, in clock ticks since boot.
    pub(super) start_ticks: u64,
}

impl Stat {
    /// Whether anything of the process can still run.
    ///
    /// The first thread may be a zombie while another hangs in a write to a dead server, and that write may
    /// still happen: only a zombie without other threads is gone.
    pub(super) fn is_alive(self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }
}

/// Reads `/proc/PID/stat`; `None` if there is no such process.
pub(super) fn stat(pid: i32) -> Result<Option<Stat>, Problem> {
    let path = format!("/proc/{pid}/stat");
    match fs::read(&path) {
        Ok(content) => {
            let text = String::from_utf8_lossy(&content);
            let parsed = parse_stat(&text);
            parsed.map(Some).ok_or_else(|| Problem::Refused(format!("{path} makes no sense: {text}")))
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(Problem::io(format!("reading {path}"))(error)),
    }
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The command's name stands in parentheses and may contain anything, parentheses too.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// How many bytes a process has read since its start, from whatever it reads; `None` if it is gone, or may
/// not be looked into.
pub(super) fn bytes_read(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(pid_path(pid, "io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar:"))?.trim().parse().ok()
}

/// The session of a process; `None` if there is no such process.
pub(super) fn session(pid: i32) -> Option<i32> {
    stat(pid).ok().flatten().map(|stat| stat.session)
}

/// This process, and every one that has started the other, up to the first.
pub(super) fn ancestry() -> Result<BTreeSet<i32>, Problem> {
    let mut found = BTreeSet::new();
    let mut next = i32::try_from(std::process::id()).ok();
    while let Some(pid) = next.filter(|pid| *pid > 0 && found.insert(*pid)) {
        next = stat(pid)?.map(|stat| stat.parent);
    }
    Ok(found)
}

/// Those children of this process that have ended, and whose status nobody has asked for.
pub(super) fn ended_children() -> Result<Vec<ProcessId>, Problem> {
    let own = i32::try_from(std::process::id()).ok();
    let mut found = Vec::new();
    for pid in pids()? {
        let Some(stat) = stat(pid)? else { continue };
        if Some(stat.parent) == own && !stat.is_alive() {
            found.push(ProcessId { pid, start_ticks: stat.start_ticks });
        }
    }
    Ok(found)
}

/// Whether this very process lives.
pub(super) fn is_alive(id: ProcessId) -> Result<bool, Problem> {
    let stat = stat(id.pid)?;
    Ok(stat.is_some_and(|stat| stat.start_ticks == id.start_ticks && stat.is_alive()))
}

/// Sends SIGTERM to this very process. Returns whether it was there.
pub(super) fn terminate(id: ProcessId) -> Result<bool, Problem> {
    send(id, Signal::TERM, "SIGTERM")
}

/// Sends SIGKILL to this very process. Returns whether it was there.
pub(super) fn kill(id: ProcessId) -> Result<bool, Problem> {
    send(id, Signal::KILL, "SIGKILL")
}

fn send(id: ProcessId, signal: Signal, name: &str) -> Result<bool, Problem> {
    let what = || format!("sending {name} to process {}", id.pid);
    let Some(pid) = Pid::from_raw(id.pid) else { return Ok(false) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) => return Ok(false),
        Err(error) => return Err(Problem::io(what())(error)),
    };
    // Looked at after the handle was taken, so that the handle cannot be that of a later process.
    if !is_alive(id)? {
        return Ok(false);
    }
    match pidfd_send_signal(handle, signal) {
        Ok(()) => Ok(true),
        Err(Errno::SRCH) => Ok(false),
        Err(error) => Err(Problem::io(what())(error)),
    }
}

/// Names the running boot.
pub(super) fn boot_id() -> Result<String, Problem> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path).map_err(Problem::io(format!("reading {path}")))?;
    Ok(text.trim().to_owned())
}

/// What every Kafka started here, and every child of it, carries in its environment.
///
/// It is how a Kafka is found whose start was not recorded any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marker {
    /// The broker.
    pub(super) broker: BrokerId,
    /// Where the agent keeps its records: two agents on one machine do not mix.
    pub(super) state_dir: PathBuf,
}

const BROKER: &str = "UNDERSTUDY_BROKER";
const EPOCH: &str = "UNDERSTUDY_EPOCH";
const STATE_DIR: &str = "UNDERSTUDY_STATE_DIR";

/// A process that carries the marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marked {
    /// The process.
    pub(super) id: ProcessId,
    /// The epoch it was started for.
    pub(super) epoch: Epoch,
    /// Whether it is the one that was started, and not a child of it.
    pub(super) leads_session: bool,
}

impl Marker {
    /// The environment of a process started for `epoch`.
    pub(super) fn environment(&self, epoch: Epoch) -> [(&'static str, std::ffi::OsString); 3] {
        [
            (BROKER, self.broker.to_string().into()),
            (EPOCH, epoch.to_string().into()),
            (STATE_DIR, self.state_dir.clone().into()),
        ]
    }

    /// Every living process with the marker, the one that was started first.
    pub(super) fn find(&self) -> Result<Vec<Marked>, Problem> {
        let mut found = Vec::new();
        for pid in pids()? {
            let Some(epoch) = self.epoch_in(&pid_path(pid, "environ"))? else { continue };
            let Some(stat) = stat(pid)?.filter(|stat| stat.is_alive()) else { continue };
            let id = ProcessId { pid, start_ticks: stat.start_ticks };
            found.push(Marked { id, epoch, leads_session: stat.session == pid });
        }
        found.sort_by_key(|m| (!m.leads_session, m.id.start_ticks, m.id.pid));
        Ok(found)
    }

    /// The epoch that one process was started for, if it is this broker's.
    pub(super) fn epoch_of_process(&self, pid: i32) -> Result<Option<Epoch>, Problem> {
        self.epoch_in(&pid_path(pid, "environ"))
    }

    fn epoch_in(&self, environ: &Path) -> Result<Option<Epoch>, Problem> {
        let content = match fs::read(environ) {
            Ok(content) => content,
            // What we may not look into was started by somebody else: Kafka never has more rights than we.
            Err(error) if is_gone(&error) || error.kind() == ErrorKind::PermissionDenied => return Ok(None),
            Err(error) => return Err(Problem::io(format!("reading {}", environ.display()))(error)),
        };
        Ok(self.epoch_of(&content))
    }

    fn epoch_of(&self, environment: &[u8]) -> Option<Epoch> {
        use std::os::unix::ffi::OsStrExt;
        let value = |name: &str| {
            let mut variables = environment.split(|b| *b == 0);
            variables.find_map(|v| v.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        let ours = value(BROKER)? == self.broker.to_string().as_bytes()
            && value(STATE_DIR)? == self.state_dir.as_os_str().as_bytes();
        let epoch = std::str::from_utf8(value(EPOCH)?).ok()?.parse().ok()?;
        ours.then_some(Epoch(epoch))
    }
}

/// How many of its open files are named for one process.
const SHOWN: usize = 3;

/// A process that works on log dirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    /// The process; `None` if it may not be looked into, and could be anybody's.
    pub(super) id: Option<ProcessId>,
    /// In words: `pid (name) path`.
    pub(super) text: String,
}

/// Every process on this host that has one of `files` open, or any file below `dirs` for writing, and every
/// Kafka that may not be looked into: what cannot be seen is no proof. Kafka lets go of its lock before it
/// has written its last.
///
/// Only for a lock file that another mount namespace calls by another name is a file asked for its identity;
/// else links in `/proc` are read, so that a dead server below `files` does not matter.
pub(super) fn holders(files: &BTreeSet<PathBuf>, dirs: &[PathBuf]) -> Result<Vec<Holder>, Problem> {
    let mut found = Vec::new();
    for pid in pids()? {
        let handles = match fs::read_dir(pid_path(pid, "fd")) {
            Ok(handles) => handles,
            Err(error) if error.kind() == ErrorKind::PermissionDenied && looks_like_kafka(pid, false) => {
                let text = format!("{pid} (a Kafka of another user, which this agent may not look into)");
                found.push(Holder { id: None, text });
                continue;
            }
            // Processes come and go while we look, and those of others may be closed to us.
            Err(_) => continue,
        };
        let open =
            handles.flatten().filter_map(|handle| Some((handle.path(), fs::read_link(handle.path()).ok()?)));
        let held = open.filter(|(handle, path)| {
            files.contains(path)
                || is_one_of(files, handle, path)
                || dirs.iter().any(|dir| path.starts_with(dir)) && may_write(pid, handle)
        });
        let held: BTreeSet<PathBuf> = held.map(|(_, path)| path).collect();
        if !held.is_empty()
            && let Some(stat) = stat(pid)?.filter(|stat| stat.is_alive())
        {
            let name = fs::read_to_string(pid_path(pid, "comm")).unwrap_or_default();
            // `.lock` sorts before the segments; there may be thousands of these.
            let more = held.len().saturating_sub(SHOWN);
            let mut held: Vec<_> = held.iter().take(SHOWN).map(|path| path.display().to_string()).collect();
            held.extend((more > 0).then(|| format!("and {more} more")));
            let id = Some(ProcessId { pid, start_ticks: stat.start_ticks });
            found.push(Holder { id, text: format!("{pid} ({}) {}", name.trim(), held.join(", ")) });
        }
    }
    Ok(found)
}

/// Whether a file was opened for writing; one that cannot be asked was.
fn may_write(pid: i32, handle: &Path) -> bool {
    let Some(number) = handle.file_name().and_then(|name| name.to_str()) else { return true };
    let info = fs::read_to_string(pid_path(pid, &format!("fdinfo/{number}"))).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & 0o3 != 0)
}

/// Whether the command line, which everybody may read, has the name of a Kafka; or may be one's, if the
/// process is known to work on log dirs.
pub(super) fn looks_like_kafka(pid: i32, works_on_logs: bool) -> bool {
    let line = fs::read(pid_path(pid, "cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    kafka_in(&words).is_some_and(|named| named.surely || works_on_logs)
}

/// Whether an open file is one of `files` under the name that a container gives it.
fn is_one_of(files: &BTreeSet<PathBuf>, handle: &Path, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let same_name = files.iter().filter(|file| file.file_name() == path.file_name());
    let mut identities = same_name.filter_map(|file| identity(file)).peekable();
    identities.peek().is_some() && identity(handle).is_some_and(|held| identities.any(|file| file == held))
}

/// The number of every process.
pub(super) fn pids() -> Result<Vec<i32>, Problem> {
    let entries = fs::read_dir("/proc").map_err(Problem::io("reading /proc"))?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all_shown(pids)
}

/// Every pid namespace has a first process. Where that is not shown, others are not either.
fn all_shown(pids: Vec<i32>) -> Result<Vec<i32>, Problem> {
    if pids.contains(&1) { Ok(pids) } else { Err(hidden()) }
}

/// That some processes are not shown: what cannot be seen is no proof.
pub(super) fn hidden() -> Problem {
    Problem::Refused(
        "/proc does not show every process of this host, so that a Kafka may run unseen: run this as root, or mount \
         /proc without `hidepid` (in a unit of systemd: `ProtectProc=default`)"
            .to_owned(),
    )
}

fn pid_path(pid: i32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

/// Whether the process ended while it was looked at.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_reads_is_counted() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = bytes_read(own).unwrap();
        let mut buffer = vec![0; 1 << 20];
        io::Read::read_exact(&mut fs::File::open("/dev/zero").unwrap(), &mut buffer).unwrap();
        assert!(bytes_read(own).unwrap() >= before + (1 << 20));
        assert_eq!(bytes_read(i32::MAX), None);
    }

    #[test]
    fn a_proc_that_hides_processes_is_an_error() {
        assert_eq!(all_shown(vec![7, 1]).unwrap(), [7, 1]);
        let refused = all_shown(vec![7]).unwrap_err().to_string();
        assert!(refused.contains("hidepid"), "{refused}");
    }

    #[test]
    fn stat_survives_odd_names() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 7 0 12345 99 1";
        let expected = Stat { state: 'S', parent: 1, session: 42, threads: 7, start_ticks: 12345 };
        assert_eq!(parse_stat(text), Some(expected));
        assert_eq!(parse_stat("42 (a"), None);
        assert_eq!(parse_stat("42 (a) S 1"), None);
    }

    #[test]
    fn a_zombie_with_living_threads_lives() {
        let stat = |state, threads| Stat { state, parent: 1, session: 1, threads, start_ticks: 1 };
        assert!(!stat('Z', 1).is_alive());
        assert!(stat('Z', 2).is_alive());
        assert!(stat('T', 1).is_alive());
        assert!(stat('D', 1).is_alive());
    }

    #[test]
    fn this_process_lives_and_a_recycled_number_does_not_count() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start_ticks = stat(pid).unwrap().unwrap().start_ticks;
        assert!(is_alive(ProcessId { pid, start_ticks }).unwrap());
        assert!(!is_alive(ProcessId { pid, start_ticks: start_ticks + 1 }).unwrap());
        assert!(!terminate(ProcessId { pid, start_ticks: start_ticks + 1 }).unwrap());
    }

    #[test]
    fn markers_of_other_brokers_and_agents_do_not_match() {
        let marker = Marker { broker: BrokerId(1), state_dir: "/var/lib/understudy".into() };
        let environment = |broker: &str, dir: &str| {
            format!("PATH=/bin\0UNDERSTUDY_BROKER={broker}\0UNDERSTUDY_STATE_DIR={dir}\0UNDERSTUDY_EPOCH=4\0")
        };
        let epoch = |text: String| marker.epoch_of(text.as_bytes());
        assert_eq!(epoch(environment("1", "/var/lib/understudy")), Some(Epoch(4)));
        assert_eq!(epoch(environment("11", "/var/lib/understudy")), None);
        assert_eq!(epoch(environment("1", "/var/lib/understudy2")), None);
        assert_eq!(epoch(String::new()), None);
    }

    #[test]
    fn holders_of_an_open_file_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join(".lock");
        let files = BTreeSet::from([path.clone()]);
        assert_eq!(holders(&files, &[]).unwrap(), Vec::new());
        let _open = fs::File::create(&path).unwrap();
        let found = holders(&files, &[]).unwrap();
        assert!(found[0].text.starts_with(&format!("{} (", std::process::id())), "{found:?}");
    }

    #[test]
    fn who_may_write_below_a_dir_holds_it_and_who_reads_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().canonicalize().unwrap()];
        let log = dirs[0].join("topic-0/00000000000000000000.log");
        fs::create_dir(log.parent().unwrap()).unwrap();
        drop(fs::File::create(&log).unwrap());
        let _reads = fs::File::open(&log).unwrap();
        assert_eq!(holders(&BTreeSet::new(), &dirs).unwrap(), Vec::new());
        let _writes = fs::OpenOptions::new().append(true).open(&log).unwrap();
        let found = holders(&BTreeSet::new(), &dirs).unwrap();
        assert!(found[0].text.contains("topic-0/00000000000000000000.log"), "{found:?}");
    }
}
