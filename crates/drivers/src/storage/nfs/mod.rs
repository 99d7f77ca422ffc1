//! `nfs`: mounts a broker's log dirs with the system's `mount`, verifies what came of it, and gives them
//! back.
//!
//! What is mounted is read from mountinfo, which waits for nobody. What has to ask the server runs in a
//! process with a deadline. A mount that was at the target before is adopted if its server answers; [`old`]
//! says what becomes of it if not.

pub(super) mod fuzz;
mod kernel;
mod old;
mod options;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::Deserialize;

use super::log_dir::{self, look};
use super::mounted::{cannot_break, step_error};
use super::mountinfo::{Mount, Mounts, is_plain, plainly, same_source};
use super::probe::{ProbeAct, ProbeError, Prober};
use super::{Nothing, lock_wait};
use crate::command::{CommandError, Ended, ending, last_words, run};
use crate::off_path::off_path;
use recovery::model::{Epoch, HeldLock, human};
use recovery::ports::{BoxError, Note, StepError, Storage};

pub(super) use options::objections;

const DRIVER: &str = "nfs";
const DEFAULT_OPTIONS: &str = "vers=4.1,proto=tcp,hard,nconnect=16,noatime";

/// Log dirs on NFS that a takeover mounts on this host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NfsConfig<G = Nothing, S = Nothing> {
    /// What to mount. Every log dir of the broker lies on one of these.
    pub mount: Vec<MountConfig>,
    /// How long one `mount`, one `umount` or one look at a log dir may take. Whether a mount that is there
    /// already still answers has to be known within a third of it.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// How long a takeover waits at most, before it starts Kafka, until nobody holds `.lock` in any log dir:
    /// an NFS server keeps a dead client's lock until its lease ends, and grants none in a grace period.
    /// Longer than both together.
    #[serde(default = "lock_wait", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub lock_wait: Duration,
    /// Lets this host in by the storage's export rules before it mounts.
    pub grant: Option<Box<G>>,
    /// Has ONTAP take a snapshot of each of the broker's volumes before this host is let in, named by broker
    /// and epoch as `understudy-broker-1-epoch-7`. A restart in place and a switchover take one as well, for
    /// they are epochs too.
    pub snapshot: Option<Box<S>>,
}

/// One NFS mount.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountConfig {
    /// Server and export, such as `svm1.example.com:/kafka01`.
    pub source: String,
    /// Where to mount it: an absolute path without symbolic links. Made if it is not there.
    #[serde(deserialize_with = "plainly")]
    pub target: PathBuf,
    /// Mount options, as `nfs(5)` explains them. Refused, because Kafka's data would not survive them:
    /// `soft`, `softerr`, `softreval`, `nolock`, `local_lock` other than `none`, `nocto`, versions below 4.1,
    /// `proto=udp`, `bg`, `ro`. `retry=0` is added if no `retry` is there, so that a server that refuses is
    /// told at once.
    #[serde(default = "default_options")]
    pub options: String,
}

fn default_timeout() -> Duration {
    Duration::from_secs(15)
}

fn default_options() -> String {
    DEFAULT_OPTIONS.to_owned()
}

impl<G, S> NfsConfig<G, S> {
    /// The driver for a broker with these log dirs. `program` is called as
    /// `program storage-probe ACT --dir DIR`, and does what [`super::probe::act`] does.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, log_dirs: Vec<PathBuf>, program: &Path) -> Result<Nfs, Vec<String>> {
        let mut problems = log_dir::problems(&log_dirs);
        problems.extend(self.mount.iter().enumerate().flat_map(|(i, mount)| mount.problems(i)));
        if self.mount.is_empty() {
            problems.push("mount: there is none; add a [[broker.storage.mount]]".to_owned());
        }
        if self.timeout.is_zero() {
            problems.push("timeout: must be longer than zero".to_owned());
        }
        let targets: Vec<&PathBuf> = self.mount.iter().map(|mount| &mount.target).collect();
        for (i, one) in targets.iter().enumerate() {
            // They are mounted side by side, so none may wait for another.
            if targets.iter().enumerate().any(|(j, other)| i != j && one.starts_with(other)) {
                problems.push(format!("mount[{i}].target: {} lies inside another target", one.display()));
            }
        }
        let outside = log_dirs.iter().filter(|dir| !targets.iter().any(|target| dir.starts_with(target)));
        problems.extend(outside.map(|dir| format!("log_dirs: {} lies in no mount target", dir.display())));
        if !problems.is_empty() {
            return Err(problems);
        }
        let prober = Prober { program: program.to_owned(), limit: self.timeout / 3 };
        let (timeout, fs_type, proc) = (self.timeout, "nfs4", PathBuf::from("/proc"));
        Ok(Nfs { mounts: self.mount, timeout, log_dirs, prober, fs_type, proc, taken_off: Mutex::default() })
    }
}

impl MountConfig {
    fn problems(&self, index: usize) -> Vec<String> {
        let mut problems = Vec::new();
        let mut problem = |key: &str, why: &str| problems.push(format!("mount[{index}].{key}: {why}"));
        let (server, export) = self.source.rsplit_once(":/").unwrap_or_default();
        if server.is_empty() || server.starts_with('-') || export.contains(char::is_whitespace) {
            problem("source", &format!("`{}` is not server:/export", self.source));
        }
        if !is_plain(&self.target) || self.target == Path::new("/") {
            // Not repeated: it may be what hides a login, and no longer stands as it was written.
            problem("target", "is not an absolute path below / without `..`");
        }
        options::problems(&self.options).iter().for_each(|why| problem("options", why));
        problems
    }

    /// What is mounted at the target, in words, when it is something else than the source.
    fn stranger(&self, found: Option<&Mount>) -> Option<String> {
        let other = found.filter(|mount| !same_source(&mount.source, &self.source))?;
        Some(format!(
            "{} is mounted where {} belongs. Unmount it, or correct the configuration",
            other.words(),
            self.source
        ))
    }

    /// The server's address, where the source names it as such.
    fn server(&self) -> Option<IpAddr> {
        let (server, _) = self.source.rsplit_once(":/")?;
        server.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

/// The driver; see [`NfsConfig`].
#[derive(Debug)]
pub struct Nfs {
    mounts: Vec<MountConfig>,
    timeout: Duration,
    log_dirs: Vec<PathBuf>,
    prober: Prober,
    /// `nfs4`; the tests mount what needs no server.
    fs_type: &'static str,
    /// `/proc`, but for tests.
    proc: PathBuf,
    taken_off: Mutex<TakenOff>,
}

/// Devices of file systems that are mounted no more, and that the kernel may still hold.
#[derive(Debug, Default)]
struct TakenOff {
    /// By target: may have pages to write.
    open: BTreeMap<PathBuf, String>,
    /// Never written through.
    harmless: BTreeSet<String>,
}

impl Nfs {
    async fn mount(&self, config: &MountConfig) -> Result<Note, StepError> {
        let purpose = format!("mount {} at {}", config.source, config.target.display());
        let found = self.mounted_at(&config.target, &purpose)?;
        if let Some(why) = config.stranger(found.as_ref()) {
            return Err(refused(&purpose, why));
        }
        let (mut before, mut private) = (String::new(), false);
        if let Some(mount) = found {
            let why = match self.prober.send(ProbeAct::Look, &config.target).await {
                Ok(_) => {
                    return self.verified(
                        config,
                        &mount,
                        &purpose,
                        "was mounted already, and its server answers",
                    );
                }
                Err(error @ ProbeError::NotStarted(_)) => return Err(failed(&purpose, error.into())),
                Err(error) => error.to_string(),
            };
            private = self.clear(config, &mount, &purpose, &why).await?;
            before = format!(", in the place of one that was dead ({why}) and is taken off");
        }
        self.make_target(&config.target, &purpose).await?;
        let orphans = self.orphans(config, &purpose)?;
        let (source, options) = (OsStr::new(&config.source), self.options(config, private));
        let options = ["-t", self.fs_type, "-o", &options].map(OsStr::new);
        let arguments = [&options[..], &[source, config.target.as_os_str()]].concat();
        let ended = self.run("mount", &arguments, &purpose).await?;
        let Some(mount) = self.mounted_at(&config.target, &purpose)? else {
            let why = "mount reports success, and the kernel shows nothing mounted there".to_owned();
            return Err(refused(&purpose, why));
        };
        self.alone(config, &mount, &orphans, &purpose).await?;
        self.taken_off().open.remove(&config.target);
        self.verified(config, &mount, &purpose, &format!("was mounted in {}{before}", human(ended.took)))
    }

    /// The options for `mount`. `private`: the kernel must not use a file system again that it has of this
    /// export.
    fn options(&self, config: &MountConfig, private: bool) -> String {
        let mut options = config.options.clone();
        if self.fs_type == "nfs4" && !options.split(',').any(|option| option.starts_with("retry=")) {
            // Else mount.nfs tries again for two minutes what was refused.
            options.push_str(",retry=0");
        }
        if private && self.fs_type == "nfs4" {
            options.push_str(",nosharecache");
        }
        options
    }

    fn verified(
        &self,
        config: &MountConfig,
        mount: &Mount,
        purpose: &str,
        how: &str,
    ) -> Result<Note, StepError> {
        if let Some(why) = config.stranger(Some(mount)) {
            return Err(refused(purpose, why));
        }
        let (vital, others) = options::missing(&config.options, mount);
        if mount.fs_type != self.fs_type || !vital.is_empty() {
            let why = format!(
                "{} is mounted with {}, without {}. Unmount it, and look at the options and the server",
                mount.words(),
                mount.options.join(","),
                if vital.is_empty() { self.fs_type.to_owned() } else { vital.join(",") }
            );
            return Err(refused(purpose, why));
        }
        if mount.has("ro") {
            return Err(refused(purpose, format!("{} is mounted read-only", mount.words())));
        }
        let against = if self.fs_type == "nfs4" { objections(mount) } else { Vec::new() };
        if !against.is_empty() {
            let why =
                format!("{}: {}. Unmount it, and correct its options", mount.words(), against.join("; "));
            return Err(refused(purpose, why));
        }
        let but = if others.is_empty() { String::new() } else { format!(" (without {})", others.join(",")) };
        let target = config.target.display().to_string();
        let mut note = Note::new(format!("{} {how}{but}", mount.words()))
            .with(&target, mount.options.join(","))
            .with(&format!("{target} device"), &mount.device);
        // Not vital: it is told for people, and to be compared with what the server says.
        let volumes = kernel::volumes(&self.proc).unwrap_or_default();
        if let Some(volume) = volumes.iter().find(|volume| volume.device == mount.device) {
            note = note.with(&format!("{target} fsid"), &volume.fsid);
        }
        Ok(note)
    }

    fn taken_off(&self) -> MutexGuard<'_, TakenOff> {
        self.taken_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is seen at `target` now.
    fn mounted_at(&self, target: &Path, purpose: &str) -> Result<Option<Mount>, StepError> {
        let mounts = Mounts::read().map_err(|e| failed(purpose, e.into()))?;
        Ok(mounts.at(target).cloned())
    }

    async fn make_target(&self, target: &Path, purpose: &str) -> Result<(), StepError> {
        let path = target.to_owned();
        let make = move || fs::create_dir_all(&path).and_then(|()| fs::canonicalize(&path));
        let made = off_path(&format!("making {}", target.display()), self.timeout, make).await;
        let real = made.map_err(|e| failed(purpose, e.into()))?.map_err(|e| failed(purpose, e.into()))?;
        if real == target { Ok(()) } else { Err(refused(purpose, symbolic(target, &real))) }
    }

    async fn run(&self, program: &str, arguments: &[&OsStr], purpose: &str) -> Result<Ended, StepError> {
        match run(Path::new(program), arguments, b"", self.timeout).await {
            Ok(ended) if ended.status.success() => Ok(ended),
            Ok(ended) => {
                let words = last_words(&format!("{}\n{}", ended.stdout, ended.stderr));
                let why = format!("{program} ended with {}: {words}", ending(ended.status));
                Err(refused(purpose, why))
            }
            Err(CommandError::TimedOut { limit, said, .. }) => {
                let words = last_words(&said);
                let action =
                    format!("{purpose} ({program} hung and was killed; is the server alive? {words})");
                Err(StepError::Unconfirmed { driver: DRIVER, action, limit })
            }
            Err(error) => Err(failed(purpose, error.into())),
        }
    }

    /// Every log dir is there, and on one of the mounts.
    async fn verify_log_dirs(&self, purpose: &str) -> Result<(), StepError> {
        let looks = self.log_dirs.iter().map(|dir| async move { (dir, look(dir, self.timeout).await) });
        for (dir, mount) in join_all(looks).await {
            let mount = mount.map_err(|e| step_error(DRIVER, purpose, e))?;
            if !self.mounts.iter().any(|config| config.target == mount.point) {
                let (dir, words) = (dir.display(), mount.words());
                return Err(refused(purpose, format!("{dir} is on {words}, which is none of the mounts")));
            }
        }
        Ok(())
    }

    async fn check_mount(&self, config: &MountConfig) -> Result<Note, StepError> {
        let target = config.target.display();
        let purpose = format!("mount {} at {target}", config.source);
        let found = self.mounted_at(&config.target, &purpose)?;
        if let Some(why) = config.stranger(found.as_ref()) {
            return Err(refused(&purpose, why));
        }
        if let Some(mount) = found {
            let mut note = self.verified(config, &mount, &purpose, "is mounted here already")?;
            if let Err(error) = self.prober.send(ProbeAct::Look, &config.target).await {
                let why = recovery::ports::chain(&error);
                note = note.warn([format!("it does not work ({why}): a takeover would replace it")]);
            }
            return Ok(note);
        }
        let path = config.target.clone();
        let nearest = move || -> io::Result<(PathBuf, PathBuf, bool)> {
            let there = path.ancestors().find(|p| p.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
            let real = there.canonicalize()?;
            let is_dir = real.metadata()?.is_dir();
            Ok((there.to_owned(), real, is_dir))
        };
        let found = off_path(&format!("looking at {target}"), self.timeout, nearest).await;
        let found = found.map_err(|e| failed(&purpose, e.into()))?;
        let (there, real, is_dir) = found.map_err(|e| failed(&purpose, e.into()))?;
        if there != real {
            return Err(refused(&purpose, symbolic(&there, &real)));
        }
        if !is_dir {
            let why = format!("{} is not a directory; the target must be one", there.display());
            return Err(refused(&purpose, why));
        }
        let state = if there == config.target { "is free" } else { "will be made" };
        let server = self.check_server(config, &purpose).await?;
        Ok(Note::new(format!("{} is not mounted now: {server}, and {target} {state}", config.source)))
    }

    /// Nothing of it is mounted, so nobody would notice before a takeover that the server is out of reach.
    async fn check_server(&self, config: &MountConfig, purpose: &str) -> Result<&'static str, StepError> {
        let address = server::address(&config.source, &config.options).filter(|_| self.fs_type == "nfs4");
        let Some(address) = address else {
            return Ok("its server was not tried, for it can be asked over TCP only");
        };
        let answers = server::answers(&address, self.timeout / 3).await;
        answers.map(|()| "its server answers").map_err(|why| refused(purpose, why))
    }

    /// The program that `mount` calls for the file system type. Without it the kernel cannot resolve the
    /// server's name, and says so in words that help nobody.
    async fn check_helper(&self) -> Result<(), StepError> {
        let fs_type = self.fs_type;
        let is_there = move || {
            let dirs = ["/sbin", "/usr/sbin", "/bin", "/usr/bin", "/usr/local/sbin"];
            dirs.iter().any(|dir| Path::new(dir).join(format!("mount.{fs_type}")).exists())
        };
        let purpose = "mount over NFS";
        let found = off_path("looking for the mount helper", self.timeout, is_there).await;
        if found.map_err(|e| failed(purpose, e.into()))? || fs_type != "nfs4" {
            return Ok(());
        }
        let why = "there is no mount.nfs4 on this host: install nfs-common (Debian) or nfs-utils (Red Hat)";
        Err(refused(purpose, why.to_owned()))
    }
}

/// What to say of a mount namespace that is not the host's. Nothing, where that cannot be read.
fn elsewhere(ours: Option<PathBuf>, hosts: Option<PathBuf>) -> Option<String> {
    match (ours, hosts) {
        (Some(ours), Some(hosts)) if ours != hosts => Some(
            "the agent runs in a mount namespace of its own, so that a Kafka which another unit runs does not \
             see what it mounts. Take ProtectSystem=, PrivateTmp=, PrivateMounts= and their like out of the agent's unit"
                .to_owned(),
        ),
        _ => None,
    }
}

/// One note of several, or the first error.
fn join_notes(notes: Vec<Result<Note, StepError>>) -> Result<Note, StepError> {
    notes.into_iter().try_fold(Note::default(), |all, note| Ok(all.and(note?)))
}

fn symbolic(path: &Path, real: &Path) -> String {
    // The kernel tells mounts by their real paths, so we would not find ours again.
    let (path, real) = (path.display(), real.display());
    format!("{path} leads through a symbolic link to {real}; write the real path as target and log dir")
}

fn refused(purpose: &str, why: String) -> StepError {
    StepError::Refused { driver: DRIVER, action: purpose.to_owned(), why }
}

fn failed(purpose: &str, source: BoxError) -> StepError {
    StepError::Failed { driver: DRIVER, action: purpose.to_owned(), source }
}

#[async_trait]
impl Storage for Nfs {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn attach(&self, _epoch: Epoch) -> Result<Note, StepError> {
        let note = join_notes(join_all(self.mounts.iter().map(|config| self.mount(config))).await)?;
        self.verify_log_dirs("use the log dirs").await?;
        Ok(note)
    }

    async fn release(&self) -> Result<Note, StepError> {
        join_notes(join_all(self.mounts.iter().map(|config| self.unmount(config))).await)
    }

    async fn withdraw(&self) -> Result<Note, StepError> {
        self.release().await
    }

    async fn check(&self) -> Result<Note, StepError> {
        self.check_helper().await?;
        // Before 3 a.m.: a takeover that meets a dead mount has to see it.
        kernel::volumes(&self.proc)
            .map_err(|e| failed("see what the kernel's NFS client holds", e.into()))?;
        let note = join_notes(join_all(self.mounts.iter().map(|config| self.check_mount(config))).await)?;
        // The kernel's own, which waits for nobody.
        let of = |process: &str| fs::read_link(self.proc.join(process).join("ns/mnt")).ok();
        Ok(note.warn(elsewhere(of("self"), of("1"))))
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
        self.prober.locks(DRIVER, &self.log_dirs).await
    }

    async fn break_locks(&self) -> Result<Note, StepError> {
        Err(cannot_break(DRIVER))
    }

    async fn unlinks(&self) -> Result<Note, StepError> {
        // What is not mounted would be tried on the local disk.
        self.verify_log_dirs("try what becomes of open files that are unlinked").await?;
        Ok(self.prober.unlinks(&self.log_dirs).await)
    }
}

#[cfg(test)]
mod tests;
