//! May Kafka's user do what Kafka will do in a log dir? Asked of the kernel, which asks an NFS server, and
//! without writing: no file is opened, because closing one would end a lock that this process has on it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::user::User;
use kafka::meta_properties::FILE_NAME;

/// Kafka holds this file open in every log dir it works on.
pub(super) const KAFKA_LOCK: &str = ".lock";

/// Kafka replaces these by renaming another file, so that it can do with reading them. One that its user
/// cannot write tells that another user ran Kafka here, who has the newest segments too.
const CHECKPOINTS: [&str; 4] = [
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
];

/// How long partition directories are asked about in a takeover, whose every moment counts.
const TO_START: Duration = Duration::from_millis(200);
/// The same in a check.
const BEFORE: Duration = Duration::from_secs(2);

/// What is asked for Kafka's user. The calling thread must have become it.
#[derive(Debug)]
pub(super) struct Rights {
    /// `kafka (1001)`.
    who: String,
    name: Option<String>,
    /// What is wanted with [`CHECKPOINTS`].
    checkpoints: Access,
    /// How long partition directories are asked about.
    limit: Duration,
    /// Whether their files are asked about, in what is left of that time.
    files: bool,
}

/// How many partition directories there are, and how many were asked about in time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    there: usize,
    asked: usize,
    files: usize,
}

impl Rights {
    /// What Kafka cannot start without.
    pub(super) fn to_start(user: Option<&User>) -> Self {
        Self::new(user, Access::READ_OK, TO_START, false)
    }

    /// What it should have, while there is time to see to it.
    pub(super) fn before(user: Option<&User>) -> Self {
        Self::new(user, Access::READ_OK | Access::WRITE_OK, BEFORE, true)
    }

    fn new(user: Option<&User>, checkpoints: Access, limit: Duration, files: bool) -> Self {
        let name = user.map(|user| user.name.clone());
        let who = format!("{} ({})", name.as_deref().unwrap_or("the agent's user"), geteuid().as_raw());
        Self { who, name, checkpoints, limit, files }
    }

    /// Asks for all that Kafka does in `log_dirs`.
    ///
    /// # Errors
    /// What its user may not do, whose it is, and the remedy.
    pub(super) fn ask(&self, log_dirs: &[PathBuf]) -> Result<Asked, String> {
        let until = Instant::now() + self.limit;
        let mut asked = Asked::default();
        let wrong: Vec<String> =
            log_dirs.iter().filter_map(|dir| in_short(self.in_dir(dir, until, &mut asked))).collect();
        if wrong.is_empty() { Ok(asked) } else { Err(wrong.join("; ")) }
    }

    /// Why `meta.properties` cannot be read, where its rights are the reason.
    pub(super) fn unreadable(&self, log_dirs: &[PathBuf]) -> Option<String> {
        let one = |dir: &PathBuf| self.objection(dir, &dir.join(FILE_NAME), Access::READ_OK);
        in_short(log_dirs.iter().filter_map(one).collect())
    }

    /// `kafka (1001) may write there and in 12 of 12 partition directories, with 60 files`.
    pub(super) fn told(&self, Asked { there, asked, files }: &Asked) -> String {
        let who = &self.who;
        match (there, files) {
            (0, _) => format!("{who} may write there"),
            (_, 0) => format!("{who} may write there and in {asked} of {there} partition directories"),
            (..) => {
                format!(
                    "{who} may write there and in {asked} of {there} partition directories, with {files} files"
                )
            }
        }
    }

    fn in_dir(&self, dir: &Path, until: Instant, count: &mut Asked) -> Vec<String> {
        let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        if let Some(why) = self.objection(dir, dir, all) {
            return vec![why];
        }
        let both = Access::READ_OK | Access::WRITE_OK;
        let mut files = vec![
            (KAFKA_LOCK.to_owned(), both),
            (FILE_NAME.to_owned(), Access::READ_OK),
            (".kafka_cleanshutdown".to_owned(), Access::READ_OK),
        ];
        for name in CHECKPOINTS {
            files.extend([(name.to_owned(), self.checkpoints), (format!("{name}.tmp"), both)]);
        }
        let mut wrong: Vec<String> =
            files.iter().filter_map(|(name, need)| self.objection(dir, &dir.join(name), *need)).collect();
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => return vec![format!("{} cannot be listed: {error}", dir.display())],
        };
        let partitions =
            entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_partition));
        let partitions: Vec<PathBuf> = partitions.map(|entry| entry.path()).collect();
        count.there += partitions.len();
        for partition in &partitions {
            if Instant::now() < until {
                count.asked += 1;
                wrong.extend(self.objection(dir, partition, all));
            }
        }
        for partition in partitions.iter().filter(|_| self.files) {
            wrong.extend(self.in_partition(dir, partition, until, count));
        }
        wrong
    }

    /// Kafka opens every segment to read and write, and gives a log dir up where it may not. One who could be listed
    /// only in part is no objection: the directory itself was asked about.
    fn in_partition(
        &self,
        dir: &Path,
        partition: &Path,
        until: Instant,
        count: &mut Asked,
    ) -> Option<String> {
        let entries = fs::read_dir(partition).into_iter().flatten().flatten();
        let mut wrong = Vec::new();
        for entry in entries.take_while(|_| Instant::now() < until) {
            if let Some(need) = entry.file_name().to_str().and_then(opened) {
                count.files += 1;
                wrong.extend(self.objection(dir, &entry.path(), need));
            }
        }
        wrong.into_iter().next()
    }

    /// Why `path` in the log dir `dir` cannot be used so. What is not there is no objection.
    fn objection(&self, dir: &Path, path: &Path, need: Access) -> Option<String> {
        match access(path, need) {
            Ok(()) | Err(Errno::NOENT | Errno::STALE) => None,
            Err(Errno::ACCESS | Errno::PERM) => Some(self.denied(dir, path, need)),
            Err(Errno::ROFS) => Some(format!("{} is mounted read-only", path.display())),
            Err(error) => Some(format!("{} does not tell who may use it: {error}", path.display())),
        }
    }

    fn denied(&self, dir: &Path, path: &Path, need: Access) -> String {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        let closed = above.into_iter().rev().find(|above| access(*above, Access::EXEC_OK).is_err());
        let (path, verb) = match closed {
            Some(closed) => (closed, "pass through"),
            None if need.contains(Access::EXEC_OK) => (path, "read and write in"),
            None if need.contains(Access::WRITE_OK) => (path, "read and write"),
            None => (path, "read"),
        };
        let (shown, who) = (path.display(), &self.who);
        let Ok(meta) = fs::metadata(path) else { return format!("{who} may not {verb} {shown}") };
        let mode = meta.permissions().mode() & 0o7777;
        let owner = if meta.uid() == 0 { "root".to_owned() } else { format!("user {}", meta.uid()) };
        let remedy = self.remedy(dir, path, meta.uid());
        format!("{who} may not {verb} {shown}, which belongs to {owner} (mode {mode:04o}): {remedy}")
    }

    /// A broker that lives on another host needs its files as they are: numbers are made alike first.
    fn remedy(&self, dir: &Path, path: &Path, owner: u32) -> String {
        let own = geteuid().as_raw();
        if !path.starts_with(dir) {
            return format!("let everybody pass, `chmod a+x {}`", path.display());
        }
        if owner == own {
            return format!("`chmod -R u+rwX {}`", dir.display());
        }
        let name = self.name.clone().unwrap_or_else(|| own.to_string());
        let give = format!("`chown -R {name}: {}`, as root where the storage lets root", dir.display());
        match (owner, &self.name) {
            (0, _) => format!("{give}. Was Kafka started as root once?"),
            (_, None) => format!("name Kafka's user as broker_host.user, or {give}"),
            (_, Some(name)) => format!(
                "if Kafka is user {owner} on the broker's own host, give {name} that number here (`usermod -u {owner} \
                 {name}`), for storage knows numbers and no names; if nobody runs Kafka as user {owner}, {give}"
            ),
        }
    }
}

/// The first in full, for the others are mostly alike.
fn in_short(objections: Vec<String>) -> Option<String> {
    let more = objections.len().saturating_sub(1);
    let first = objections.into_iter().next()?;
    Some(if more == 0 { first } else { format!("{first}; and {more} more in that log dir") })
}

/// How Kafka opens a file of a partition; `None` for one that is not its own.
fn opened(name: &str) -> Option<Access> {
    let (_, ending) = name.rsplit_once('.').unwrap_or_default();
    match (name, ending) {
        (_, "log" | "index" | "timeindex" | "txnindex") => Some(Access::READ_OK | Access::WRITE_OK),
        ("leader-epoch-checkpoint" | "quorum-state", _) | (_, "snapshot" | "checkpoint" | "metadata") => {
            Some(Access::READ_OK)
        }
        _ => None,
    }
}

/// `orders-0`, or the same on its way out or in, such as `orders-0.3c1f-delete`.
fn is_partition(name: &str) -> bool {
    let last = name.rsplit_once('-').map_or("", |(_, last)| last);
    let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    is_number || matches!(last, "delete" | "future" | "stray")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::super::user::as_user;
    use super::*;

    const NOBODY: u32 = 65534;

    fn nobody() -> User {
        User::look_up("nobody").unwrap()
    }

    /// A log dir that is all nobody's.
    fn log_dir() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let dir = root.path().join("kafka");
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(NOBODY), None).unwrap();
        for name in [FILE_NAME, KAFKA_LOCK, CHECKPOINTS[0], "replication-offset-checkpoint.tmp"] {
            put(&dir, name, NOBODY, 0o644);
        }
        for name in ["orders-0", "__cluster_metadata-0", "orders-1.3c1f-delete"] {
            put(&dir, name, NOBODY, 0o755);
        }
        (root, dir)
    }

    fn put(dir: &Path, name: &str, owner: u32, mode: u32) {
        let path = dir.join(name);
        if mode & 0o100 != 0 {
            fs::create_dir_all(&path).unwrap();
        } else {
            fs::write(&path, "").unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner), None).unwrap();
    }

    fn asked(dir: &Path, rights: fn(Option<&User>) -> Rights) -> Result<String, String> {
        let user = nobody();
        let ask = || {
            let rights = rights(Some(&user));
            rights.ask(&[dir.to_owned()]).map(|asked| rights.told(&asked))
        };
        as_user(Some(&user), ask).unwrap()
    }

    fn before(dir: &Path) -> Result<String, String> {
        asked(dir, Rights::before)
    }

    fn to_start(dir: &Path) -> Result<String, String> {
        asked(dir, Rights::to_start)
    }

    #[track_caller]
    fn is_refused(said: Result<String, String>, because: &[&str]) {
        let why = said.unwrap_err();
        assert!(because.iter().all(|part| why.contains(part)), "{why}");
    }

    #[test]
    fn a_log_dir_that_is_kafkas_own_passes_and_what_is_not_kafkas_is_not_asked_about() {
        if !geteuid().is_root() {
            return;
        }
        let (_root, dir) = log_dir();
        put(&dir, "lost+found", 0, 0o700);
        put(&dir, ".snapshot", 0, 0o700);
        let all = "nobody (65534) may write there and in 3 of 3 partition directories";
        assert_eq!(before(&dir).as_deref(), Ok(all));
        assert_eq!(to_start(&dir).as_deref(), Ok(all));
        let late = |user: Option<&User>| Rights { limit: Duration::ZERO, ..Rights::before(user) };
        put(&dir, "orders-0", 0, 0o755);
        let none = "nobody (65534) may write there and in 0 of 3 partition directories";
        assert_eq!(asked(&dir, late).as_deref(), Ok(none), "nobody waits for thousands of directories");
    }

    #[test]
    fn a_log_dir_of_another_number_is_refused_with_both_numbers() {
        if !geteuid().is_root() {
            return;
        }
        let (root, dir) = log_dir();
        put(root.path(), "kafka", 1001, 0o755);
        for said in [before(&dir), to_start(&dir)] {
            let whose = format!(
                "nobody (65534) may not read and write in {}, which belongs to user 1001 (mode 0755)",
                dir.display()
            );
            is_refused(said, &[&whose, "`usermod -u 1001 nobody`"]);
        }
        put(root.path(), "kafka", NOBODY, 0o555);
        is_refused(before(&dir), &["`chmod -R u+rwX "]);
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let above = format!("may not pass through {}", root.path().display());
        is_refused(before(&dir), &[&above, "`chmod a+x "]);
    }

    #[test]
    fn kafkas_files_that_belong_to_root_are_refused() {
        if !geteuid().is_root() {
            return;
        }
        for (name, mode, verb) in [
            (KAFKA_LOCK, 0o644, "read and write"),
            (CHECKPOINTS[0], 0o600, "read"),
            ("replication-offset-checkpoint.tmp", 0o644, "read and write"),
            (FILE_NAME, 0o600, "read"),
            (".kafka_cleanshutdown", 0o600, "read"),
            ("orders-0", 0o755, "read and write in"),
            ("orders-1.3c1f-delete", 0o700, "read and write in"),
        ] {
            let (_root, dir) = log_dir();
            put(&dir, name, 0, mode);
            let whose = format!("{}, which belongs to root (mode {mode:04o})", dir.join(name).display());
            let remedy = format!("`chown -R nobody: {}`", dir.display());
            let verb = format!("nobody (65534) may not {verb} ");
            is_refused(to_start(&dir), &[&whose, &remedy, &verb]);
            is_refused(before(&dir), &[&whose, &remedy]);
        }
    }

    #[test]
    fn files_of_partitions_that_belong_to_root_are_for_a_check_to_tell() {
        if !geteuid().is_root() {
            return;
        }
        let segment = "00000000000000000000";
        for (name, mode) in [
            (format!("orders-0/{segment}.log"), 0o644),
            (format!("orders-0/{segment}.timeindex"), 0o600),
            ("orders-0/leader-epoch-checkpoint".to_owned(), 0o600),
            (format!("__cluster_metadata-0/{segment}-0000000000.checkpoint"), 0o600),
        ] {
            let (_root, dir) = log_dir();
            put(&dir, &format!("orders-0/{segment}.index"), NOBODY, 0o644);
            put(&dir, "orders-0/partition.metadata", 0, 0o644);
            put(&dir, "orders-0/.nfs0001", 0, 0o600);
            let fine = "in 3 of 3 partition directories, with 2 files";
            assert!(before(&dir).unwrap().ends_with(fine), "{:?}", before(&dir));
            put(&dir, &name, 0, mode);
            let whose = format!("{}, which belongs to root (mode {mode:04o})", dir.join(&name).display());
            is_refused(before(&dir), &[&whose]);
            to_start(&dir).unwrap();
        }
    }

    #[test]
    fn a_checkpoint_that_kafka_can_only_replace_is_for_a_check_to_tell_and_stops_no_takeover() {
        if !geteuid().is_root() {
            return;
        }
        let (_root, dir) = log_dir();
        put(&dir, CHECKPOINTS[0], 0, 0o644);
        put(&dir, CHECKPOINTS[3], 0, 0o644);
        is_refused(before(&dir), &[CHECKPOINTS[0], "belongs to root", "and 1 more in that log dir"]);
        to_start(&dir).unwrap();
    }

    #[test]
    fn partition_directories_are_told_by_their_names() {
        for name in
            ["orders-0", "a-b-12", "__cluster_metadata-0", "o-1.3c-delete", "o-1.3c-future", "o-1-stray"]
        {
            assert!(is_partition(name), "{name}");
        }
        for name in ["lost+found", "orders", "orders-", "-x", "remote-log-index-cache", CHECKPOINTS[0]] {
            assert!(!is_partition(name), "{name}");
        }
    }
}
