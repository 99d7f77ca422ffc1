//! Whose log dirs are these? Asked before anything is written to them.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};

use super::problem::Problem;
use super::proc::{self, Holder};
use super::rights::{Asked, KAFKA_LOCK, Rights};
use super::user::{User, as_user};
use crate::bounded;
use kafka::meta_properties::{FILE_NAME, MetaProperties};
use recovery::model::BrokerId;
use recovery::ports::Note;

/// Compares every log dir with what it must be, asks for Kafka's rights in it, then tries each: write, fsync,
/// lock.
///
/// Nothing is written anywhere before every dir has been found to be the broker's.
pub(super) fn verify(
    broker: BrokerId,
    log_dirs: &[PathBuf],
    cluster_id: Option<&str>,
    user: Option<&User>,
) -> Result<Note, Problem> {
    as_user(user, || {
        let rights = Rights::to_start(user);
        let (found, _) = usable(broker, log_dirs, cluster_id, &rights).map_err(Problem::Refused)?;
        log_dirs.iter().try_for_each(|dir| probe(dir))?;
        Ok(note(&found))
    })?
}

fn note(found: &BTreeMap<&Path, MetaProperties>) -> Note {
    let cluster = found.values().map(|meta| meta.cluster_id.as_str()).next().unwrap_or_default();
    let text = format!("{} log dir(s) are the broker's own and can be written and locked", found.len());
    let note = Note::new(text).with("cluster.id", cluster);
    found.iter().fold(note, |note, (dir, meta)| {
        let id = meta.directory_id.as_deref().unwrap_or("none: written before Kafka 3.7");
        note.with(&format!("directory.id {}", dir.display()), id)
    })
}

/// Reads whose each log dir is, and asks whether Kafka may use it. Writes nothing.
pub(super) fn usable<'a>(
    broker: BrokerId,
    log_dirs: &'a [PathBuf],
    cluster_id: Option<&str>,
    rights: &Rights,
) -> Result<(BTreeMap<&'a Path, MetaProperties>, Asked), String> {
    match identify(broker, log_dirs, cluster_id) {
        // Only a dir that is the broker's is to be given to Kafka's user.
        Ok(found) => Ok((found, rights.ask(log_dirs)?)),
        Err(why) => Err([why].into_iter().chain(rights.unreadable(log_dirs)).collect::<Vec<_>>().join("; ")),
    }
}

/// Reads whose each log dir is; tells everything that is wrong at once.
fn identify<'a>(
    broker: BrokerId,
    log_dirs: &'a [PathBuf],
    cluster_id: Option<&str>,
) -> Result<BTreeMap<&'a Path, MetaProperties>, String> {
    let mut found = BTreeMap::new();
    let mut wrong = Vec::new();
    for dir in log_dirs {
        match read_meta(dir) {
            Ok(meta) => {
                found.insert(dir.as_path(), meta);
            }
            Err(why) => wrong.push(why),
        }
    }
    // What the cluster says counts; without it the dirs must at least agree.
    let first = log_dirs.iter().find_map(|dir| found.get(dir.as_path())).map(|meta| meta.cluster_id.clone());
    let expected = cluster_id.map(str::to_owned).or(first).unwrap_or_default();
    for (dir, meta) in &found {
        wrong.extend(foreign(broker, dir, meta, &expected));
    }
    wrong.extend(directory_ids(&found));
    if wrong.is_empty() { Ok(found) } else { Err(wrong.join("; ")) }
}

/// `meta.properties` has some five lines.
const LONGEST_META: u64 = 1 << 20;

fn read_meta(dir: &Path) -> Result<MetaProperties, String> {
    let shown = dir.display();
    let path = dir.join(FILE_NAME);
    let error = match bounded::read_file(&path, LONGEST_META) {
        Ok(content) => return MetaProperties::parse(&content, &path).map_err(|error| error.to_string()),
        Err(error) => error,
    };
    if error.kind() != ErrorKind::NotFound {
        return Err(format!("{} cannot be read ({error})", path.display()));
    }
    let is_empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(format!("{shown} does not exist: is the broker's storage mounted on this host?"));
        }
        Err(error) => {
            return Err(format!("{shown} cannot be read ({error}): is it a directory of Kafka's user?"));
        }
    };
    Err(if is_empty {
        format!(
            "{shown} is empty, and a formatted log dir was expected: most likely its storage is not mounted; \
             mount it, and do not format"
        )
    } else {
        format!(
            "{shown} has no {FILE_NAME}, and a formatted log dir was expected: is the right directory mounted? \
             do not format"
        )
    })
}

fn foreign(broker: BrokerId, dir: &Path, meta: &MetaProperties, cluster_id: &str) -> Vec<String> {
    let shown = dir.display();
    let mut wrong = Vec::new();
    if meta.node_id != broker {
        wrong.push(format!(
            "{shown} belongs to broker {}, and broker {broker} was expected: check log_dirs and what is \
             mounted there",
            meta.node_id
        ));
    }
    if meta.cluster_id != cluster_id {
        wrong.push(format!(
            "{shown} belongs to cluster {}, and cluster {cluster_id} was expected: check log_dirs and what is \
             mounted there",
            meta.cluster_id
        ));
    }
    wrong
}

/// The ids of the dirs must differ. Kafka writes them since 3.7, to all dirs at once.
fn directory_ids(found: &BTreeMap<&Path, MetaProperties>) -> Vec<String> {
    let mut seen: BTreeMap<&str, &Path> = BTreeMap::new();
    let mut wrong = Vec::new();
    let some = found.values().any(|meta| meta.directory_id.is_some());
    for (dir, meta) in found {
        match meta.directory_id.as_deref() {
            None if some => wrong.push(format!(
                "{} has no directory.id, and the broker's other log dirs have: is it an older copy?",
                dir.display()
            )),
            None => {}
            Some(id) => {
                if let Some(other) = seen.insert(id, dir) {
                    wrong.push(format!(
                        "{} and {} have the same directory.id {id}: one is a copy of the other, or the same \
                         directory is mounted twice",
                        other.display(),
                        dir.display()
                    ));
                }
            }
        }
    }
    wrong
}

/// Every process on this host that works on one of `log_dirs`.
pub(super) fn holders(log_dirs: &[PathBuf]) -> Result<Vec<Holder>, Problem> {
    // The kernel shows paths without symbolic links.
    let real = |dir: &PathBuf| fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
    let dirs: Vec<PathBuf> = log_dirs.iter().map(real).collect();
    proc::holders(&dirs.iter().flat_map(|dir| lock_files(dir)).collect(), &dirs)
}

pub(super) fn in_words(holders: &[Holder]) -> String {
    holders.iter().map(|holder| holder.text.as_str()).collect::<Vec<_>>().join("; ")
}

/// The names under which the kernel may show Kafka's lock file in a log dir.
fn lock_files(dir: &Path) -> [PathBuf; 2] {
    // Somebody may have deleted the file under a living Kafka.
    [dir.join(KAFKA_LOCK), dir.join(format!("{KAFKA_LOCK} (deleted)"))]
}

/// Does here what Kafka will do: create, write, fsync and lock a file. Nothing of Kafka's is touched.
fn probe(dir: &Path) -> Result<(), Problem> {
    let path = dir.join(format!(".understudy-probe-{}", std::process::id()));
    let what = |act: &str| format!("{act} {}, as Kafka will have to", path.display());
    let open = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&path);
    let mut file = open.map_err(Problem::io(what("creating")))?;
    let tried = (|| {
        file.write_all(b"understudy").map_err(Problem::io(what("writing")))?;
        file.sync_all().map_err(Problem::io(what("syncing")))?;
        // The kind of lock that Java takes; over NFS it is the server that grants it.
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(Problem::io(what("locking")))
    })();
    drop(file);
    let removed = fs::remove_file(&path).map_err(Problem::io(what("removing")));
    tried.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str, meta: Option<&str>) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap().join(name);
        fs::create_dir(&dir).unwrap();
        if let Some(meta) = meta {
            fs::write(dir.join(FILE_NAME), meta).unwrap();
        }
        (root, dir)
    }

    fn meta(cluster: &str, node: i32, directory: &str) -> String {
        format!("version=1\ncluster.id={cluster}\nnode.id={node}\ndirectory.id={directory}\n")
    }

    fn listing(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn check(dirs: &[&PathBuf], cluster: Option<&str>) -> Result<Note, String> {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| (*dir).clone()).collect();
        verify(BrokerId(1), &dirs, cluster, None).map_err(|problem| problem.to_string())
    }

    #[track_caller]
    fn is_refused(dirs: &[&PathBuf], cluster: Option<&str>, because: &[&str]) {
        let error = check(dirs, cluster).unwrap_err();
        assert!(because.iter().all(|part| error.contains(part)), "{error}");
    }

    #[test]
    fn own_dirs_pass_and_nothing_is_left_in_them() {
        let (_a, a) = dir("a", Some(&meta("c1", 1, "d1")));
        let (_b, b) = dir("b", Some(&meta("c1", 1, "d2")));
        let note = check(&[&a, &b], Some("c1")).unwrap();
        assert_eq!(note.details["cluster.id"], "c1");
        assert_eq!(listing(&a), [FILE_NAME]);
        check(&[&a, &b], None).unwrap();
    }

    #[test]
    fn foreign_dirs_are_refused_and_not_written_to() {
        let (_a, a) = dir("a", Some(&meta("c1", 1, "d1")));
        let (_b, b) = dir("b", Some(&meta("c2", 2, "d2")));
        // A probe that came and went would still show in the dir's time stamp.
        let before = fs::metadata(&a).unwrap().modified().unwrap();
        is_refused(
            &[&a, &b],
            Some("c1"),
            &["b belongs to broker 2, and broker 1", "b belongs to cluster c2"],
        );
        is_refused(&[&a, &b], None, &["cluster c1 was expected"]);
        is_refused(&[&a], Some("c9"), &["a belongs to cluster c1, and cluster c9 was expected"]);
        assert_eq!(fs::metadata(&a).unwrap().modified().unwrap(), before);
    }

    #[test]
    fn missing_empty_and_unformatted_dirs_are_told_apart() {
        let (_a, empty) = dir("empty", None);
        let (_b, other) = dir("other", None);
        fs::write(other.join("file"), "").unwrap();
        let missing = empty.join("missing");
        is_refused(
            &[&empty, &other, &missing],
            None,
            &["empty is empty", "other has no meta.properties", "missing does not exist"],
        );
        assert_eq!(listing(&empty), Vec::<String>::new());
        assert_eq!(listing(&other), ["file"]);
        // Nor is one read that has no end.
        let (_c, long) = dir("long", Some(""));
        OpenOptions::new().write(true).open(long.join(FILE_NAME)).unwrap().set_len(1 << 40).unwrap();
        is_refused(&[&long], None, &["cannot be read (it is longer than 1048576 bytes)"]);
    }

    #[test]
    fn directory_ids_must_differ() {
        let (_a, a) = dir("a", Some(&meta("c1", 1, "d1")));
        let (_b, b) = dir("b", Some(&meta("c1", 1, "d1")));
        is_refused(&[&a, &b], None, &["have the same directory.id d1"]);
        let (_o, old) = dir("old", Some("version=1\ncluster.id=c1\nnode.id=1\n"));
        let (_p, older) = dir("older", Some("version=0\ncluster.id=c1\nbroker.id=1\n"));
        is_refused(&[&a, &old], None, &["old has no directory.id"]);
        check(&[&old, &older], None).unwrap();
    }

    #[test]
    fn whoever_works_on_a_dir_here_is_named() {
        let (_a, a) = dir("a", Some(&meta("c1", 1, "d1")));
        let _kafka = fs::File::create(a.join(KAFKA_LOCK)).unwrap();
        let link = a.with_file_name("link");
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let us = std::process::id().to_string();
        assert!(in_words(&holders(&[link]).unwrap()).contains(&us));
        fs::remove_file(a.join(KAFKA_LOCK)).unwrap();
        assert!(in_words(&holders(&[a]).unwrap()).contains(&us), "an open file that was removed");
    }

    #[test]
    fn a_dir_that_kafkas_user_cannot_write_is_an_error() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (root, a) = dir("a", Some(&meta("c1", 1, "d1")));
        for open in [root.path(), a.as_path()] {
            fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let nobody = User::look_up("nobody").unwrap();
        let verify = || verify(BrokerId(1), std::slice::from_ref(&a), None, Some(&nobody));
        let error = verify().unwrap_err().to_string();
        let whose =
            format!("nobody (65534) may not read and write in {}, which belongs to root", a.display());
        assert!(error.contains(&whose), "{error}");
        fs::set_permissions(a.join(FILE_NAME), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let error = verify().unwrap_err().to_string();
        let whose =
            format!("nobody (65534) may not read {}, which belongs to root", a.join(FILE_NAME).display());
        assert!(error.contains("cannot be read (Permission denied") && error.contains(&whose), "{error}");
        assert_eq!(listing(&a), [FILE_NAME]);
    }
}
