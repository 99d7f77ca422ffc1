//! What a class-data archive was made of, kept beside it, and whether all of that is still so.
//!
//! Java has the last word: it compares every jar itself, and goes on without an archive that does not fit.
//! What Java does not find out is an archive that is cut short, which it maps and dies of: so its length is
//! compared before each start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::super::problem::Problem;
use super::super::site::write_durably;

/// The name of the record.
const FILE: &str = "kafka.json";
/// Of another form nothing is known.
const FORM: u32 = 1;

/// One archive, and what it was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// The form of this record.
    pub(super) form: u32,
    /// The archive's name in the same directory.
    pub(super) archive: String,
    /// Its length.
    pub(super) bytes: u64,
    /// CRC-32C of all of it.
    pub(super) checksum: u32,
    /// When it was made.
    pub(super) made: Timestamp,
    /// How long that took.
    pub(super) took_seconds: f64,
    /// The version that Java says of itself, for people.
    pub(super) java: String,
    /// How Java was found: a path, and the program that it led to.
    pub(super) found: (PathBuf, PathBuf),
    /// What Kafka is started by, by [`super::fingerprint`].
    pub(super) launch: String,
    /// The files that Java and Kafka consist of.
    pub(super) files: BTreeMap<PathBuf, Stamp>,
    /// The jars in each directory of the class path: one that is added belongs to it from then on.
    pub(super) jars: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// A file's length and time of change in seconds and nanoseconds; `None` for one that is not there. Of a
/// directory Java wants to know whether it is empty, and no more: 0 if it is.
pub(super) type Stamp = Option<(u64, i64, i64)>;

/// The stamp of a file as it is now.
pub(super) fn stamp(path: &Path) -> Stamp {
    let filled = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    let of = |file: Metadata| match file.is_dir() {
        true => (u64::from(filled()), 0, 0),
        false => (file.len(), file.mtime(), file.mtime_nsec()),
    };
    fs::metadata(path).ok().map(of)
}

/// The names of the jars in a directory.
pub(super) fn jars_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.to_ascii_lowercase().ends_with(".jar")).collect()
}

impl Record {
    /// The record in `dir`.
    ///
    /// # Errors
    /// Why there is none that can be used, in words.
    pub(super) fn read(dir: &Path) -> Result<Self, String> {
        let path = dir.join(FILE);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err("none was made yet".to_owned());
            }
            Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
        };
        let record: Self = serde_json::from_slice(&content)
            .map_err(|error| format!("{} makes no sense: {error}", path.display()))?;
        let plain = !record.archive.contains('/') && record.archive.ends_with(".jsa");
        if record.form != FORM || !plain {
            return Err(format!("{} is of another version of understudy", path.display()));
        }
        Ok(record)
    }

    /// A record of the present form; what it says of the archive is filled in by whoever puts that into
    /// place.
    pub(super) fn new(launch: String, java: String, found: (PathBuf, PathBuf)) -> Self {
        Self {
            form: FORM,
            archive: String::new(),
            bytes: 0,
            checksum: 0,
            made: Timestamp::now(),
            took_seconds: 0.0,
            java,
            found,
            launch,
            files: BTreeMap::new(),
            jars: BTreeMap::new(),
        }
    }

    /// Keeps it: from now on its archive counts, and no other.
    pub(super) fn keep(&self, dir: &Path) -> Result<(), Problem> {
        let path = dir.join(FILE);
        let content = serde_json::to_vec_pretty(self).map_err(Problem::io(path.display().to_string()))?;
        write_durably(&path, &content, None)
    }

    /// Whether Java, Kafka and what starts them are what the archive was made of, and the archive is whole
    /// and nobody else's: the path of the archive. Looks at files; changes none.
    ///
    /// # Errors
    /// What is no longer so, in words.
    pub(super) fn fits(&self, dir: &Path, launch: &str) -> Result<PathBuf, String> {
        if self.launch != launch {
            return Err("what starts Kafka was changed in [broker_host]".to_owned());
        }
        let (way, led_to) = &self.found;
        match fs::canonicalize(way) {
            Ok(leads_to) if leads_to == *led_to => {}
            Ok(leads_to) => return Err(format!("{} is {} now", way.display(), leads_to.display())),
            Err(error) => return Err(format!("{}: {error}", way.display())),
        }
        if let Some((path, _)) = self.files.iter().find(|(path, then)| stamp(path) != **then) {
            return Err(format!("{} was changed", path.display()));
        }
        if let Some((place, _)) = self.jars.iter().find(|(place, then)| jars_in(place) != **then) {
            return Err(format!("jars were added to or removed from {}", place.display()));
        }
        let archive = dir.join(&self.archive);
        self.is_whole(&archive)?;
        Ok(archive)
    }

    /// Of the right length, a file of ours, and writable by nobody else.
    fn is_whole(&self, archive: &Path) -> Result<(), String> {
        let shown = archive.display();
        let file = fs::symlink_metadata(archive).map_err(|error| format!("{shown}: {error}"))?;
        if !file.is_file() || file.uid() != geteuid().as_raw() || file.mode() & 0o022 != 0 {
            return Err(format!("{shown} is no file that only this agent may write to"));
        }
        if file.len() != self.bytes {
            return Err(format!("{shown} has {} bytes of {}", file.len(), self.bytes));
        }
        Ok(())
    }

    /// Whether every byte of the archive is as it was made. Reads all of it, which keeps it in memory as
    /// well.
    ///
    /// # Errors
    /// That it is not, in words.
    pub(super) fn is_sound(&self, archive: &Path) -> Result<(), String> {
        let read = || {
            let mut file = fs::File::open(archive)?;
            let (mut checksum, mut buffer) = (0, vec![0; 256 * 1024]);
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok::<u32, io::Error>(checksum),
                    count => checksum = crc32c::crc32c_append(checksum, &buffer[..count]),
                }
            }
        };
        match read() {
            Ok(checksum) if checksum == self.checksum => Ok(()),
            Ok(_) => Err(format!("{} is damaged: its checksum is wrong", archive.display())),
            Err(error) => Err(format!("{} cannot be read: {error}", archive.display())),
        }
    }

    /// Takes in a class path, as Java has it: jars, directories, and `dir/*` for all jars of a directory. An
    /// empty entry is the working directory to Java's loader, and nothing to its archive (HotSpot passes it
    /// over).
    pub(super) fn take_in(&mut self, class_path: &str, working_dir: &Path) {
        for entry in class_path.split(':').filter(|entry| !entry.is_empty()) {
            let entry = working_dir.join(entry);
            let all = entry.file_name().is_some_and(|name| name == "*");
            let Some(parent) = entry.parent().map(Path::to_owned) else { continue };
            if all {
                for jar in jars_in(&parent) {
                    let jar = parent.join(jar);
                    self.files.insert(jar.clone(), stamp(&jar));
                }
            } else {
                self.files.insert(entry.clone(), stamp(&entry));
            }
            if all || entry.extension().is_some_and(|extension| extension == "jar") {
                self.jars.entry(parent).or_insert_with_key(|parent| jars_in(parent));
            }
        }
    }

    /// Takes in the Java that `java` (`…/bin/java`) belongs to: what of it an archive depends on.
    pub(super) fn take_in_java(&mut self, java: &Path) {
        let home = java.parent().and_then(Path::parent).unwrap_or(java);
        let parts = [
            "lib/modules",
            "lib/server/libjvm.so",
            "lib/server/classes.jsa",
            "lib/server/classes_nocoops.jsa",
        ];
        for path in parts.iter().map(|part| home.join(part)).chain([java.to_owned()]) {
            let stamp = stamp(&path);
            self.files.insert(path, stamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// An archive of two jars and a Java, and its record.
    fn kept() -> (tempfile::TempDir, Record) {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for dir in ["libs", "jdk/bin", "jdk/lib/server", "state"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for file in ["libs/a.jar", "libs/b.jar", "jdk/bin/java", "jdk/lib/modules", "state/kafka-1.jsa"] {
            fs::write(at(file), file).unwrap();
        }
        std::os::unix::fs::symlink(at("jdk/bin/java"), at("java")).unwrap();
        let java = at("jdk/bin/java").canonicalize().unwrap();
        let mut record = Record::new("launch".into(), "17".into(), (at("java"), java.clone()));
        record.archive = "kafka-1.jsa".into();
        record.bytes = "state/kafka-1.jsa".len() as u64;
        record.checksum = crc32c::crc32c(b"state/kafka-1.jsa");
        record.take_in(&format!("{0}/a.jar:{0}/*", at("libs").display()), Path::new("/"));
        record.take_in_java(&java);
        record.keep(&at("state")).unwrap();
        (root, record)
    }

    #[track_caller]
    fn no_longer_fits(change: impl FnOnce(&Path), part: &str) {
        let (root, _) = kept();
        let record = Record::read(&root.path().join("state")).unwrap();
        record.fits(&root.path().join("state"), "launch").unwrap();
        change(root.path());
        let why = record.fits(&root.path().join("state"), "launch").unwrap_err();
        assert!(why.contains(part), "{why}");
    }

    #[test]
    fn what_was_kept_is_read_back_and_fits() {
        let (root, record) = kept();
        let dir = root.path().join("state");
        assert_eq!(Record::read(&dir).unwrap(), record);
        let archive = record.fits(&dir, "launch").unwrap();
        assert_eq!(archive, dir.join("kafka-1.jsa"));
        record.is_sound(&archive).unwrap();
        assert!(record.fits(&dir, "another").unwrap_err().contains("[broker_host]"));
    }

    #[test]
    fn whatever_java_or_kafka_consist_of_counts() {
        no_longer_fits(|root| fs::write(root.join("libs/a.jar"), "other!!!!!").unwrap(), "a.jar was changed");
        no_longer_fits(
            |root| {
                // Of the same length, but touched.
                let jar = fs::File::options().write(true).open(root.join("libs/b.jar")).unwrap();
                jar.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            },
            "b.jar was changed",
        );
        no_longer_fits(|root| fs::remove_file(root.join("libs/b.jar")).unwrap(), "b.jar was changed");
        no_longer_fits(|root| fs::write(root.join("libs/c.jar"), "").unwrap(), "added to or removed from");
        no_longer_fits(
            |root| fs::write(root.join("jdk/lib/modules"), "newer").unwrap(),
            "modules was changed",
        );
        // One that was not there when it was made.
        let base = |root: &Path| fs::write(root.join("jdk/lib/server/classes.jsa"), "").unwrap();
        no_longer_fits(base, "classes.jsa was changed");
        no_longer_fits(
            |root| {
                fs::remove_file(root.join("java")).unwrap();
                fs::write(root.join("java"), "another").unwrap();
            },
            "java now",
        );
    }

    #[test]
    fn what_changes_in_the_working_directory_is_nothing_to_a_class_path_with_an_empty_entry() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for dir in ["libs", "conf", "state"] {
            fs::create_dir(at(dir)).unwrap();
        }
        for file in ["libs/a.jar", "java", "state/kafka-1.jsa"] {
            fs::write(at(file), "").unwrap();
        }
        let java = at("java").canonicalize().unwrap();
        let mut record = Record::new("launch".into(), "17".into(), (at("java"), java));
        record.archive = "kafka-1.jsa".into();
        record.take_in(&format!(":{0}/libs/a.jar:{0}/conf:", root.path().display()), root.path());
        let fits = || record.fits(&at("state"), "launch");
        fits().unwrap();
        fs::create_dir(at("made-later")).unwrap();
        fs::File::open(root.path()).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        fs::File::open(at("conf")).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        fits().unwrap();
        // A directory must stay as empty as it was: Java takes no archive otherwise.
        fs::write(at("conf/A.class"), "").unwrap();
        assert!(fits().unwrap_err().contains("conf was changed"));
    }

    #[test]
    fn an_archive_that_is_not_whole_or_not_ours_alone_is_not_used() {
        no_longer_fits(|root| fs::write(root.join("state/kafka-1.jsa"), "cut").unwrap(), "has 3 bytes of 17");
        no_longer_fits(|root| fs::remove_file(root.join("state/kafka-1.jsa")).unwrap(), "No such file");
        no_longer_fits(
            |root| {
                let open = fs::Permissions::from_mode(0o664);
                fs::set_permissions(root.join("state/kafka-1.jsa"), open).unwrap();
            },
            "only this agent may write to",
        );
    }

    #[test]
    fn damage_that_leaves_the_length_is_found_by_reading() {
        let (root, record) = kept();
        let archive = root.path().join("state/kafka-1.jsa");
        fs::write(&archive, "state/kafka-2.jsa").unwrap();
        record.fits(&root.path().join("state"), "launch").unwrap();
        assert!(record.is_sound(&archive).unwrap_err().contains("damaged"));
    }

    #[test]
    fn a_record_that_is_missing_damaged_or_of_another_form_is_none() {
        let (root, record) = kept();
        let dir = root.path().join("state");
        Record { form: 2, ..record.clone() }.keep(&dir).unwrap();
        assert!(Record::read(&dir).unwrap_err().contains("another version"));
        Record { archive: "../../etc/passwd.jsa".into(), ..record }.keep(&dir).unwrap();
        assert!(Record::read(&dir).is_err());
        fs::write(dir.join(FILE), "{").unwrap();
        assert!(Record::read(&dir).unwrap_err().contains("makes no sense"));
        fs::remove_file(dir.join(FILE)).unwrap();
        assert_eq!(Record::read(&dir).unwrap_err(), "none was made yet");
    }
}
