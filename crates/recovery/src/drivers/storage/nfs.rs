//! `nfs`: mounts a broker's log dirs with the system's `mount`, and verifies what came of it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::Deserialize;

use super::log_dir::{self, look};
use super::mounted::step_error;
use super::mountinfo::{Mount, Mounts, is_plain, same_source};
use super::snapshot::SnapshotConfig;
use crate::drivers::command::{CommandError, Ended, ending, last_words, run};
use crate::drivers::fence::OntapGrantConfig;
use crate::drivers::off_path::off_path;
use crate::model::{Epoch, human};
use crate::ports::{BoxError, Note, StepError, Storage};

const DRIVER: &str = "nfs";

/// Log dirs on NFS that a takeover mounts on this host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NfsConfig {
    /// What to mount. Every log dir of the broker lies on one of these.
    pub mount: Vec<MountConfig>,
    /// How long one `mount`, one `umount` or one look at a log dir may take.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
    /// Lets this host in by the storage's export rules before it mounts.
    #[serde(default)]
    pub grant: Option<Box<OntapGrantConfig>>,
    /// Has ONTAP take a snapshot of each of the broker's volumes before this host is let in, named by broker and epoch as
    /// `understudy-broker-1-epoch-7`. A restart in place and a switchover take one as well, for they are epochs too.
    #[serde(default)]
    pub snapshot: Option<Box<SnapshotConfig>>,
}

/// One NFS mount.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountConfig {
    /// Server and export, such as `svm1.example.com:/kafka01`.
    pub source: String,
    /// Where to mount it: an absolute path without symbolic links. Made if it is not there.
    pub target: PathBuf,
    /// Mount options, as `nfs(5)` explains them. `soft` is refused: it turns a slow server into lost writes.
    #[serde(default = "default_options")]
    pub options: String,
}

fn default_timeout() -> Duration {
    Duration::from_secs(15)
}

fn default_options() -> String {
    "vers=4.1,proto=tcp,hard,nconnect=16,noatime".to_owned()
}

impl NfsConfig {
    /// The driver for a broker with these log dirs.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self, log_dirs: Vec<PathBuf>) -> Result<Nfs, Vec<String>> {
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
        if problems.is_empty() {
            Ok(Nfs { mounts: self.mount, timeout: self.timeout, log_dirs, fs_type: "nfs4" })
        } else {
            Err(problems)
        }
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
            let target = self.target.display();
            problem("target", &format!("`{target}` is not a plain absolute path below /"));
        }
        if self.options.contains(char::is_whitespace) || self.options.is_empty() {
            problem("options", "must be words between commas, without spaces");
        }
        if self.options.split(',').any(|option| matches!(option, "soft" | "softerr")) {
            problem("options", "a soft mount turns a slow server into lost writes; use hard");
        }
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

    /// Options that were asked for and are not in force: those that make the mount useless, and the others.
    ///
    /// `nconnect` is one of the others: the kernel shares one client for all mounts of a server, so the
    /// first mount decides it.
    fn missing(&self, mount: &Mount) -> (Vec<String>, Vec<String>) {
        const OTHERS: [&str; 6] = ["proto=", "nconnect=", "noatime", "rsize=", "wsize=", "sec="];
        let asked = self.options.split(',').map(|option| option.replacen("nfsvers=", "vers=", 1));
        let absent = asked.filter(|option| match option.strip_prefix("vers=") {
            // Asked for as 4, shown as 4.2.
            Some(_) => !mount.options.iter().any(|o| o == option || o.starts_with(&format!("{option}."))),
            None => !mount.has(option),
        });
        let known = absent.filter_map(|option| {
            let vital = option.starts_with("vers=") || matches!(option.as_str(), "hard" | "rw" | "ro");
            (vital || OTHERS.iter().any(|o| option.starts_with(o))).then_some((vital, option))
        });
        let (vital, others): (Vec<_>, Vec<_>) = known.partition(|(vital, _)| *vital);
        let names = |options: Vec<(bool, String)>| options.into_iter().map(|(_, option)| option).collect();
        (names(vital), names(others))
    }
}

/// The driver; see [`NfsConfig`].
#[derive(Debug)]
pub struct Nfs {
    mounts: Vec<MountConfig>,
    timeout: Duration,
    log_dirs: Vec<PathBuf>,
    /// `nfs4`; the tests mount what needs no server.
    fs_type: &'static str,
}

impl Nfs {
    async fn mount(&self, config: &MountConfig) -> Result<Note, StepError> {
        let purpose = format!("mount {} at {}", config.source, config.target.display());
        let found = self.mounted_at(&config.target, &purpose)?;
        if let Some(why) = config.stranger(found.as_ref()) {
            return Err(refused(&purpose, why));
        }
        let mut how = "was mounted already".to_owned();
        if found.is_none() {
            self.make_target(&config.target, &purpose).await?;
            let source = OsStr::new(&config.source);
            let options = ["-t", self.fs_type, "-o", &config.options].map(OsStr::new);
            let arguments = [&options[..], &[source, config.target.as_os_str()]].concat();
            let ended = self.run("mount", &arguments, &purpose).await?;
            how = format!("was mounted in {}", human(ended.took));
        }
        let Some(mount) = self.mounted_at(&config.target, &purpose)? else {
            let why = "mount reports success, and the kernel shows nothing mounted there".to_owned();
            return Err(refused(&purpose, why));
        };
        self.verified(config, &mount, &purpose, &how)
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
        let (vital, others) = config.missing(mount);
        if mount.fs_type != self.fs_type || !vital.is_empty() {
            let why = format!(
                "{} is mounted with {}, without {}. Unmount it, and look at the options and the server",
                mount.words(),
                mount.options.join(","),
                if vital.is_empty() { self.fs_type.to_owned() } else { vital.join(",") }
            );
            return Err(refused(purpose, why));
        }
        if mount.has("ro") && !config.options.split(',').any(|option| option == "ro") {
            return Err(refused(purpose, format!("{} is mounted read-only", mount.words())));
        }
        let but = if others.is_empty() { String::new() } else { format!(" (without {})", others.join(",")) };
        let text = format!("{} {how}{but}", mount.words());
        Ok(Note::new(text).with(&config.target.display().to_string(), mount.options.join(",")))
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

    async fn unmount(&self, config: &MountConfig) -> Result<Note, StepError> {
        let target = config.target.display();
        let purpose = format!("unmount {target}");
        let ours = |found: Option<Mount>| found.filter(|mount| same_source(&mount.source, &config.source));
        if ours(self.mounted_at(&config.target, &purpose)?).is_none() {
            return Ok(Note::new(format!("{} is not mounted at {target}", config.source)));
        }
        let ended = self.run("umount", &[config.target.as_os_str()], &purpose).await?;
        match ours(self.mounted_at(&config.target, &purpose)?) {
            None => Ok(Note::new(format!("{target} was unmounted in {}", human(ended.took)))),
            Some(mount) => {
                let why = format!("umount reports success, and the kernel still shows {}", mount.words());
                Err(refused(&purpose, why))
            }
        }
    }

    async fn check_mount(&self, config: &MountConfig) -> Result<Note, StepError> {
        let target = config.target.display();
        let purpose = format!("mount {} at {target}", config.source);
        let found = self.mounted_at(&config.target, &purpose)?;
        if let Some(why) = config.stranger(found.as_ref()) {
            return Err(refused(&purpose, why));
        }
        if let Some(mount) = found {
            return self.verified(config, &mount, &purpose, "is mounted here already");
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
        Ok(Note::new(format!("{} can be mounted: {target} {state}", config.source)))
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

/// One note of several, or the first error.
fn join_notes(notes: Vec<Result<Note, StepError>>) -> Result<Note, StepError> {
    let notes = notes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let texts: Vec<String> = notes.iter().map(|note| note.text.clone()).collect();
    let details = notes.into_iter().flat_map(|note| note.details).collect();
    Ok(Note { text: texts.join("; "), details })
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

    async fn check(&self) -> Result<Note, StepError> {
        self.check_helper().await?;
        join_notes(join_all(self.mounts.iter().map(|config| self.check_mount(config))).await)
    }
}

#[cfg(test)]
mod tests {
    use super::super::StorageConfig;
    use super::*;
    use crate::drivers::in_namespaces::{inside, must, run_ignored_tests_of};
    use crate::model::BrokerId;
    use crate::ports::chain;

    const EPOCH: Epoch = Epoch(1);

    fn mount(target: &Path, options: &str) -> MountConfig {
        MountConfig {
            source: "svm1:/kafka01".to_owned(),
            target: target.to_owned(),
            options: options.to_owned(),
        }
    }

    fn nfs(mounts: Vec<MountConfig>) -> Nfs {
        let log_dirs = mounts.iter().map(|mount| mount.target.clone()).collect();
        let config = NfsConfig { mount: mounts, timeout: default_timeout(), grant: None, snapshot: None };
        config.build(log_dirs).unwrap()
    }

    /// The driver as it is, but for a file system that needs no server. Like NFS, tmpfs takes any source.
    fn tmpfs(mounts: Vec<MountConfig>) -> Nfs {
        Nfs { fs_type: "tmpfs", ..nfs(mounts) }
    }

    #[test]
    fn the_documented_section_is_accepted() {
        let text = r#"
            driver = "nfs"
            [[mount]]
            source = "svm1.example.com:/kafka02"
            target = "/mnt/kafka/broker2"
        "#;
        let config: StorageConfig = toml::from_str(text).unwrap();
        let StorageConfig::Nfs(nfs) = &config else { panic!("another driver") };
        assert_eq!(nfs.mount[0].options, "vers=4.1,proto=tcp,hard,nconnect=16,noatime");
        assert!(config.build(BrokerId(2), vec![PathBuf::from("/mnt/kafka/broker2/data")]).is_ok());
    }

    #[test]
    fn bad_values_are_reported_together() {
        let mounts = vec![
            mount(Path::new("/mnt/kafka/"), "soft"),
            MountConfig { source: "svm1".to_owned(), ..mount(Path::new("/mnt/b"), "hard, noatime") },
            mount(Path::new("/mnt/b/c"), "hard"),
        ];
        let config = NfsConfig { mount: mounts, timeout: Duration::ZERO, grant: None, snapshot: None };
        let problems = config.build(vec![PathBuf::from("/data")]).unwrap_err();
        for key in [
            "mount[0].target",
            "mount[0].options",
            "mount[1].source",
            "mount[1].options",
            "timeout",
            "mount[2].target",
            "log_dirs: /data lies in no mount target",
        ] {
            assert!(problems.iter().any(|problem| problem.starts_with(key)), "{key} in {problems:?}");
        }
        assert_eq!(problems.len(), 7, "{problems:?}");
    }

    #[test]
    fn what_the_server_did_not_grant_is_seen() {
        let mounts = |options: &str| {
            let line = format!("1 0 0:1 / / rw,noatime - nfs4 svm1:/kafka01 {options}\n");
            Mounts::parse(line.as_bytes()).unwrap().at(Path::new("/")).unwrap().clone()
        };
        let config = mount(Path::new("/mnt"), "nfsvers=4.1,proto=tcp,hard,nconnect=16,noatime,bg");
        let all = mounts("rw,vers=4.1,hard,proto=tcp,nconnect=16");
        assert_eq!(config.missing(&all), (vec![], vec![]));
        let less = mounts("rw,vers=4.0,soft,proto=tcp");
        assert_eq!(
            config.missing(&less),
            (vec!["vers=4.1".into(), "hard".into()], vec!["nconnect=16".into()])
        );
        let any = mount(Path::new("/mnt"), "vers=4");
        assert_eq!(any.missing(&mounts("rw,vers=4.2")), (vec![], vec![]));
    }

    #[test]
    fn mounts_in_namespaces_of_their_own() {
        run_ignored_tests_of(module_path!());
    }

    #[tokio::test]
    #[ignore = "run by mounts_in_namespaces_of_their_own"]
    async fn a_mount_is_made_found_again_and_released() {
        if !inside() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("new/broker1");
        let nfs = tmpfs(vec![mount(&target, "noatime,size=1m")]);
        assert!(nfs.check().await.unwrap().text.contains("will be made"));
        assert!(!target.exists(), "a check made the target");

        let note = nfs.attach(EPOCH).await.unwrap();
        assert!(note.text.starts_with("svm1:/kafka01 (tmpfs) at "), "{}", note.text);
        assert!(note.text.contains("was mounted in"), "{}", note.text);
        must(&format!("touch {}/kept", target.display()));
        assert!(nfs.attach(EPOCH).await.unwrap().text.contains("was mounted already"));
        assert!(target.join("kept").exists(), "mounted a second time");
        assert!(nfs.check().await.unwrap().text.contains("is mounted here already"));

        assert!(nfs.release().await.unwrap().text.contains("was unmounted"));
        assert!(!target.join("kept").exists());
        assert!(nfs.release().await.unwrap().text.contains("is not mounted"));
    }

    #[tokio::test]
    #[ignore = "run by mounts_in_namespaces_of_their_own"]
    async fn another_source_at_the_target_is_left_alone() {
        if !inside() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        must(&format!("mount -t tmpfs svm2:/other {}", dir.path().display()));
        let nfs = tmpfs(vec![mount(dir.path(), "noatime")]);
        for error in [nfs.attach(EPOCH).await.unwrap_err(), nfs.check().await.unwrap_err()] {
            assert_eq!(error.kind(), "refused");
            assert!(error.to_string().contains("svm2:/other (tmpfs) at"), "{error}");
        }
        assert!(nfs.release().await.unwrap().text.contains("is not mounted"));
        assert!(must("cat /proc/self/mountinfo").contains("svm2:/other"));
        must(&format!("umount {}", dir.path().display()));
    }

    #[tokio::test]
    #[ignore = "run by mounts_in_namespaces_of_their_own"]
    async fn a_mount_that_is_not_what_was_asked_for_is_refused() {
        if !inside() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        must(&format!("mount -t tmpfs svm1:/kafka01 {}", dir.path().display()));
        let error = nfs(vec![mount(dir.path(), "vers=4.1,hard")]).attach(EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("without vers=4.1,hard"), "{error}");
        must(&format!("umount {0}; mount -t tmpfs -o ro svm1:/kafka01 {0}", dir.path().display()));
        let error = tmpfs(vec![mount(dir.path(), "noatime")]).attach(EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("mounted read-only"), "{error}");
        must(&format!("umount {}", dir.path().display()));
    }

    #[tokio::test]
    #[ignore = "run by mounts_in_namespaces_of_their_own"]
    async fn a_mount_that_fails_a_busy_target_and_a_symbolic_link_say_so() {
        if !inside() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("t");
        let error = tmpfs(vec![mount(&target, "size=nonsense")]).attach(EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("mount ended with exit code 32: "), "{error}");

        let nfs = tmpfs(vec![mount(&target, "noatime")]);
        nfs.attach(EPOCH).await.unwrap();
        let open = fs::File::create(target.join("open")).unwrap();
        let error = nfs.release().await.unwrap_err();
        assert!(error.to_string().contains("busy"), "{error}");
        drop(open);
        nfs.release().await.unwrap();

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let linked = tmpfs(vec![mount(&link, "noatime")]);
        for error in [linked.attach(EPOCH).await.unwrap_err(), linked.check().await.unwrap_err()] {
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_helper_that_hangs_is_unconfirmed() {
        let nfs =
            Nfs { timeout: Duration::from_millis(100), ..nfs(vec![mount(Path::new("/mnt/x"), "hard")]) };
        let error = nfs.run("sleep", &[OsStr::new("1000")], "mount it").await.unwrap_err();
        assert_eq!(error.kind(), "unconfirmed");
        assert!(chain(&error).contains("is the server alive?"), "{}", chain(&error));
    }
}
