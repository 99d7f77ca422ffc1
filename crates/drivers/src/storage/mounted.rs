//! `mounted`: somebody else mounts the log dirs; a takeover verifies that they are what they must be.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;

use super::log_dir::{self, has_meta, look};
use super::mountinfo::{Mount, same_source};
use super::nfs::objections;
use super::probe::Prober;
use super::{Nothing, lock_wait};
use kafka::meta_properties::FILE_NAME as META;
use recovery::model::{Epoch, HeldLock};
use recovery::ports::{Note, StepError, Storage};

const DRIVER: &str = "mounted";

/// Log dirs that are mounted on this host already, by `/etc/fstab` or otherwise.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountedConfig<G = Nothing, S = Nothing> {
    /// Refuse a log dir that lies on the root file system. There, storage that is *not* mounted looks like an
    /// empty log dir, and Kafka would fill the local disk. `false` accepts any directory of this host.
    #[serde(default = "yes")]
    pub require_mount: bool,
    /// Accept a log dir on a disk of this host, as on a test host. Without it, a log dir has to be on a network
    /// file system (NFS, CephFS, GlusterFS, Lustre, GPFS, BeeGFS, GFS2 or OCFS2) or on what `source` names: a
    /// copy from before the move to NFS may lie below the mount point, and Kafka must not be started on it.
    #[serde(default)]
    pub local: bool,
    /// What must be mounted there, such as `svm1.example.com:/kafka01`. Not compared when left out, and
    /// `check` warns.
    pub source: Option<String>,
    /// The file system type it must have, such as `nfs4`. Not compared when left out.
    pub fstype: Option<String>,
    /// How long looking at a log dir may take.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// How long a takeover waits at most, before it starts Kafka, until nobody holds `.lock` in any log dir:
    /// an NFS server keeps a dead client's lock until its lease ends, and grants none in a grace period.
    /// Longer than both together.
    #[serde(default = "lock_wait", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub lock_wait: Duration,
    /// Lets this host in by the storage's export rules before the log dirs are looked at. The mount has to be
    /// there by itself then, as with autofs; before that, `check` and `rejoin` fail for what they cannot see.
    pub grant: Option<Box<G>>,
    /// Has ONTAP take a snapshot of each of the broker's volumes before Kafka is started here, named by
    /// broker and epoch as `understudy-broker-1-epoch-7`. A restart in place and a switchover take one as
    /// well, for they are epochs too.
    pub snapshot: Option<Box<S>>,
}

fn yes() -> bool {
    true
}

fn default_timeout() -> Duration {
    Duration::from_secs(5)
}

impl<G, S> MountedConfig<G, S> {
    /// The driver for a broker with these log dirs. `program` is called as
    /// `program storage-probe ACT --dir DIR`, and does what [`super::probe::act`] does.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, log_dirs: Vec<PathBuf>, program: &Path) -> Result<Mounted, Vec<String>> {
        let mut problems = log_dir::problems(&log_dirs);
        if self.timeout.is_zero() {
            problems.push("timeout: must be longer than zero".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let prober = Prober { program: program.to_owned(), limit: self.timeout };
        let Self { require_mount, local, source, fstype, timeout, .. } = self;
        Ok(Mounted { require_mount, local, source, fstype, timeout, log_dirs, prober })
    }
}

/// The driver; see [`MountedConfig`].
#[derive(Debug)]
pub struct Mounted {
    require_mount: bool,
    local: bool,
    source: Option<String>,
    fstype: Option<String>,
    timeout: Duration,
    log_dirs: Vec<PathBuf>,
    prober: Prober,
}

impl Mounted {
    /// What every log dir lies on; each is what it must be.
    async fn verify(&self, purpose: &str) -> Result<Vec<(&Path, Mount)>, StepError> {
        let looks = self.log_dirs.iter().map(|dir| async move { (dir, look(dir, self.timeout).await) });
        let mut found = Vec::new();
        for (dir, mount) in futures_util::future::join_all(looks).await {
            let mount = mount.map_err(|e| step_error(DRIVER, purpose, e))?;
            if let Some(why) = self.objection(dir, &mount) {
                return Err(StepError::Refused { driver: DRIVER, action: purpose.to_owned(), why });
            }
            found.push((dir.as_path(), mount));
        }
        Ok(found)
    }

    /// The same for people.
    fn told(found: &[(&Path, Mount)]) -> Note {
        let mut note = Note::default();
        for (dir, mount) in found {
            note = note.and(Note::new(format!("{} is on {}", dir.display(), mount.words())));
            if mount.fs_type.starts_with("nfs") {
                // Whoever mounts it decides; here it can only be told.
                let against = objections(mount);
                note = note.warn(against.iter().map(|why| format!("{}: {why}", mount.point.display())));
            }
            note = note.with(&dir.display().to_string(), mount.options.join(","));
        }
        note
    }

    /// The warning that nothing says what must be mounted. One `source` cannot name several.
    fn unnamed(&self, found: &[(&Path, Mount)]) -> Option<String> {
        let (_, mount) = found.first().filter(|_| self.source.is_none())?;
        let alike = found.iter().all(|(_, other)| same_source(&other.source, &mount.source));
        (alike && mount.is_shared()).then(|| {
            format!(
                "source is not set, so that another volume which is mounted at {} is not noticed: write \
                 source = \"{}\"",
                mount.point.display(),
                mount.source
            )
        })
    }

    /// What speaks against using this mount for `dir`.
    fn objection(&self, dir: &Path, mount: &Mount) -> Option<String> {
        let dir = dir.display();
        let found = mount.words();
        if self.require_mount && mount.point == Path::new("/") {
            return Some(format!(
                "{dir} is not mounted: it lies on the root file system, {found}. Mount its storage. Where log dirs \
                 are plain directories of this host, as on a test host, set require_mount = false"
            ));
        }
        let unlike = |expected: &&String| !same_source(expected, &mount.source);
        if let Some(expected) = self.source.as_ref().filter(unlike) {
            return Some(format!("{dir} is on {found}, and must be on {expected}. Mount the right storage"));
        }
        if let Some(expected) = self.fstype.as_ref().filter(|t| **t != mount.fs_type) {
            return Some(format!("{dir} is on {found}, and must be on a file system of type {expected}"));
        }
        // `fstype` names no storage: a disk of this host below a mount that is missing has its type as well.
        let named = self.source.is_some() || self.local || !self.require_mount;
        if !named && !mount.is_shared() {
            return Some(format!(
                "{dir} is on {found}, and {} is not known as a network file system: the storage may be missing, \
                 and this an old copy below its mount point. Mount the storage, and name it as source. Where log \
                 dirs lie on this host's own disks, as on a test host, set local = true",
                mount.fs_type
            ));
        }
        mount.has("ro").then(|| format!("{dir} is mounted read-only: {found}. Mount it read-write"))
    }
}

/// What a mount says that is told to break a lock.
pub(super) fn cannot_break(driver: &'static str) -> StepError {
    let (action, why) = ("break locks".to_owned(), "only the storage itself can".to_owned());
    StepError::Refused { driver, action, why }
}

/// A log dir's error as a step's: a clear no is `Refused`, a look that failed is `Failed`.
pub(super) fn step_error(driver: &'static str, purpose: &str, error: log_dir::LogDirError) -> StepError {
    let action = purpose.to_owned();
    if error.is_failure() {
        StepError::Failed { driver, action, source: error.into() }
    } else {
        StepError::Refused { driver, action, why: error.to_string() }
    }
}

#[async_trait]
impl Storage for Mounted {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn attach(&self, _epoch: Epoch) -> Result<Note, StepError> {
        Ok(Self::told(&self.verify("use the log dirs").await?))
    }

    async fn release(&self) -> Result<Note, StepError> {
        Ok(Note::new("nothing to release: the log dirs are mounted by somebody else"))
    }

    async fn withdraw(&self) -> Result<Note, StepError> {
        Ok(Note::new("the log dirs are mounted by somebody else, who must unmount what this host lost"))
    }

    async fn check(&self) -> Result<Note, StepError> {
        let purpose = "use the log dirs";
        let found = self.verify(purpose).await?;
        for dir in &self.log_dirs {
            // No takeover puts there what is not there now.
            if !has_meta(dir, self.timeout).await.map_err(|e| step_error(DRIVER, purpose, e))? {
                let why = format!(
                    "{} has no {META}: it is not the formatted log dir of a broker. Mount the right storage, and do \
                     not format it",
                    dir.display()
                );
                return Err(StepError::Refused { driver: DRIVER, action: purpose.to_owned(), why });
            }
        }
        Ok(Self::told(&found).warn(self.unnamed(&found)))
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
        self.prober.locks(DRIVER, &self.log_dirs).await
    }

    async fn break_locks(&self) -> Result<Note, StepError> {
        Err(cannot_break(DRIVER))
    }

    async fn unlinks(&self) -> Result<Note, StepError> {
        // What is not mounted would be tried on the local disk.
        self.verify("try what becomes of open files that are unlinked").await?;
        Ok(self.prober.unlinks(&self.log_dirs).await)
    }
}

#[cfg(test)]
mod tests {
    use super::super::StorageConfig;
    use super::super::mountinfo::Mounts;
    use super::*;
    use crate::in_namespaces::{inside, must, run_ignored_tests_of};
    use recovery::ports::chain;

    const EPOCH: Epoch = Epoch(1);

    fn mounted(config: &str, log_dir: &Path) -> Mounted {
        toml::from_str::<MountedConfig>(config)
            .unwrap()
            .build(vec![log_dir.to_owned()], Path::new("/bin/false"))
            .unwrap()
    }

    async fn refusal(config: &str, log_dir: &Path) -> String {
        let error = mounted(config, log_dir).attach(EPOCH).await.unwrap_err();
        assert_eq!(error.kind(), "refused", "{}", chain(&error));
        error.to_string()
    }

    #[test]
    fn the_documented_section_is_accepted() {
        let config: StorageConfig = toml::from_str("driver = \"mounted\"").unwrap();
        assert!(matches!(&config, StorageConfig::Mounted(c) if c.require_mount && !c.local));
        assert_eq!(config.build(vec![], Path::new("/bin/false")).err().unwrap(), ["log_dirs: there is none"]);
    }

    #[tokio::test]
    async fn a_log_dir_that_is_not_there_or_no_directory_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = refusal("", file.path()).await;
        assert!(text.contains("is not a directory"), "{text}");
        let text = refusal("require_mount = false", &file.path().with_extension("gone")).await;
        assert!(text.contains("does not exist: is its storage mounted?"), "{text}");
    }

    #[test]
    fn mounts_in_namespaces_of_their_own() {
        run_ignored_tests_of(module_path!());
    }

    #[tokio::test]
    #[ignore = "run by mounts_in_namespaces_of_their_own"]
    async fn only_what_is_mounted_as_expected_is_used() {
        if !inside() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("broker1");
        std::fs::create_dir(&dir).unwrap();
        let text = refusal("", Path::new("/")).await;
        assert!(text.contains("is not mounted: it lies on the root file system"), "{text}");
        assert!(mounted("require_mount = false", &dir).attach(EPOCH).await.is_ok());

        must(&format!("mount -t tmpfs svm1:/kafka01 {}", dir.display()));
        let note =
            mounted("source = \"svm1:/kafka01/\"\nfstype = \"tmpfs\"", &dir).attach(EPOCH).await.unwrap();
        assert_eq!(note.text, format!("{0} is on svm1:/kafka01 (tmpfs) at {0}", dir.display()));
        let text = refusal("source = \"svm1:/kafka02\"", &dir).await;
        assert!(text.contains("and must be on svm1:/kafka02"), "{text}");
        let text = refusal("fstype = \"nfs4\"", &dir).await;
        assert!(text.contains("of type nfs4"), "{text}");

        // A symbolic link is followed to where the data is.
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(mounted("local = true", &link).attach(EPOCH).await.is_ok());

        must(&format!("mount -o remount,bind,ro {}", dir.display()));
        assert!(refusal("local = true", &dir).await.contains("read-only"));
        must(&format!("umount {}", dir.display()));

        // A bind mount is a mount, as shared directories in test beds are.
        let shared = root.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        must(&format!("mount --bind {} {}", shared.display(), dir.display()));
        assert!(mounted("local = true", &dir).attach(EPOCH).await.is_ok());
        // A takeover would fail once it has fenced.
        let text = mounted("local = true", &dir).check().await.unwrap_err().to_string();
        assert!(text.contains("has no meta.properties"), "{text}");
        std::fs::write(shared.join(META), "").unwrap();
        assert!(mounted("local = true", &dir).check().await.is_ok());
        must(&format!("umount {}", dir.display()));
    }

    #[tokio::test]
    #[ignore = "run by mounts_in_namespaces_of_their_own"]
    async fn an_old_copy_on_a_disk_of_this_host_is_refused_unless_the_configuration_says_local() {
        if !inside() {
            return;
        }
        // /var is a file system of its own; the broker's mount below it is missing.
        let var = tempfile::tempdir().unwrap();
        must(&format!("mount -t tmpfs /dev/mapper/vg0-var {}", var.path().display()));
        let copy = var.path().join("kafka/broker1");
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::write(copy.join(META), "cluster.id=c1\nnode.id=1\nversion=1\n").unwrap();
        for config in ["", "fstype = \"tmpfs\""] {
            let text = refusal(config, &copy).await;
            assert!(text.contains("/dev/mapper/vg0-var (tmpfs)"), "{text}");
            assert!(text.contains("tmpfs is not known as a network file system"), "{text}");
            assert!(text.contains("set local = true"), "{text}");
            assert!(mounted(config, &copy).check().await.is_err());
            assert!(mounted(config, &copy).unlinks().await.is_err());
        }
        for config in ["local = true", "require_mount = false", "source = \"/dev/mapper/vg0-var\""] {
            let note = mounted(config, &copy).check().await.unwrap();
            assert!(note.warnings.is_empty(), "{note}");
            assert!(mounted(config, &copy).attach(EPOCH).await.is_ok());
        }
        must(&format!("umount {}", var.path().display()));
    }

    #[test]
    fn a_network_mount_is_used_and_a_source_that_is_not_named_is_told() {
        let on = |fs_type: &str, source: &str| {
            let text = format!(
                "28 1 254:1 / / rw - ext4 /dev/vda1 rw\n40 28 0:50 / /mnt/b1 rw - {fs_type} {source} rw,hard\n"
            );
            Mounts::parse(text.as_bytes()).unwrap().at(Path::new("/mnt/b1")).unwrap().clone()
        };
        let dir = Path::new("/mnt/b1");
        let by_default = mounted("", dir);
        for fs_type in ["nfs", "nfs4", "ceph", "fuse.glusterfs", "lustre"] {
            assert_eq!(by_default.objection(dir, &on(fs_type, "svm1:/kafka01")), None, "{fs_type}");
        }
        for fs_type in ["ext4", "xfs", "autofs", "fuse.sshfs", "9p", "overlay"] {
            assert!(by_default.objection(dir, &on(fs_type, "svm1:/kafka01")).is_some(), "{fs_type}");
        }
        let one = [(dir, on("nfs4", "svm1:/kafka01"))];
        let warning = by_default.unnamed(&one).unwrap();
        assert!(warning.contains("write source = \"svm1:/kafka01\""), "{warning}");
        assert_eq!(mounted("source = \"svm1:/kafka01\"", dir).unnamed(&one), None);
        let two = [(dir, on("nfs4", "svm1:/kafka01")), (dir, on("nfs4", "svm1:/kafka02"))];
        assert_eq!(by_default.unnamed(&two), None, "no single source could be written");
        assert_eq!(mounted("local = true", dir).unnamed(&[(dir, on("ext4", "/dev/vdb"))]), None);
    }
}
