//! Who is about to open a broker's log dirs. For its first seconds a Kafka holds no file of a log dir, and
//! what it opens first, the metadata log, it opens before it takes its own lock: so it is known by its
//! command line, which names its properties.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::BrokerIdentity;
use super::command_line::{kafka_in, properties_in};
use super::problem::Problem;
use super::proc::{self, Holder, ProcessId};
use crate::bounded;
use kafka::properties::Properties;
use recovery::model::BrokerId;

/// Longer than the properties of any Kafka, in bytes.
pub(super) const LONGEST_PROPERTIES: u64 = 1 << 20;

/// What names a node's log dirs, and its metadata log.
const DIRS: [&str; 3] = ["log.dirs", "log.dir", "metadata.log.dir"];

/// What names a node.
const IDS: [&str; 2] = ["node.id", "broker.id"];

/// Whose Kafka is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sought<'a> {
    /// The broker.
    pub(super) id: BrokerId,
    /// Its log dirs; none where they are not known.
    pub(super) log_dirs: &'a [PathBuf],
}

impl<'a> From<&'a BrokerIdentity> for Sought<'a> {
    fn from(broker: &'a BrokerIdentity) -> Self {
        Self { id: broker.id, log_dirs: &broker.log_dirs }
    }
}

/// Every living process that is, or becomes, a Kafka of `broker`: one whose properties name one of its log
/// dirs, or its id where they name no log dir that could be told from them. One whose properties cannot be
/// read could be anybody's, unless it has long taken the lock of log dirs of its own.
pub(super) fn rivals(broker: &Sought<'_>) -> Result<Vec<Holder>, Problem> {
    let ours = Ours::of(broker);
    let mut found = Vec::new();
    for pid in proc::pids()? {
        let line = match fs::read(format!("/proc/{pid}/cmdline")) {
            Ok(line) => line,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(proc::hidden()),
            // It ended meanwhile.
            Err(_) => continue,
        };
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
        let Some(named) = kafka_in(&words) else { continue };
        let Some(why) = ours.claimed_by(pid, &words[named.at..], named.surely) else { continue };
        let Some(stat) = proc::stat(pid)?.filter(|stat| stat.is_alive()) else { continue };
        let id = Some(ProcessId { pid, start_ticks: stat.start_ticks });
        found.push(Holder { id, text: format!("{pid} (a Kafka, {why})") });
    }
    Ok(found)
}

/// What tells a Kafka of one broker from any other.
struct Ours {
    id: String,
    dirs: BTreeSet<PathBuf>,
    /// Device and inode: another mount namespace may call them by other names.
    identities: BTreeSet<(u64, u64)>,
}

impl Ours {
    fn of(broker: &Sought<'_>) -> Self {
        let real = |dir: &PathBuf| fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
        Self {
            id: broker.id.to_string(),
            dirs: broker.log_dirs.iter().map(real).collect(),
            identities: broker.log_dirs.iter().filter_map(|dir| identity(dir)).collect(),
        }
    }

    /// Why the process `pid`, with this name and these arguments, is a Kafka of this broker; `None` if it is
    /// another's. Where the name is not `surely` a Kafka's, only properties that can be read tell.
    fn claimed_by(&self, pid: i32, words: &[&[u8]], surely: bool) -> Option<String> {
        let arguments = words.get(1..).unwrap_or_default();
        let path = properties_in(arguments);
        let read = path.and_then(|path| bounded::read_regular(&seen_by(pid, path), LONGEST_PROPERTIES).ok());
        let Some(properties) = read.and_then(|content| Properties::parse(&content).ok()) else {
            let named = path.map_or_else(|| "no properties".to_owned(), |path| path.display().to_string());
            return (surely && !has_taken_locks(pid))
                .then(|| format!("whose properties cannot be read: {named}"));
        };
        let value = |key: &str| overridden(arguments, key).or_else(|| properties.get(key).map(str::to_owned));
        let dirs = log_dirs(value);
        if let Some(dir) = dirs.iter().find(|dir| self.is_one_of_ours(pid, dir)) {
            return Some(format!("with log dir {}", dir.display()));
        }
        if !IDS.into_iter().filter_map(&value).any(|id| id.trim() == self.id) {
            return None;
        }
        if self.dirs.is_empty() {
            return Some(format!("with node id {}", self.id));
        }
        dirs.is_empty().then(|| format!("with node id {} and no log dir named", self.id))
    }

    fn is_one_of_ours(&self, pid: i32, dir: &Path) -> bool {
        let seen = seen_by(pid, dir);
        let real = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        self.dirs.contains(dir)
            || self.dirs.contains(&real)
            || identity(&seen).is_some_and(|identity| self.identities.contains(&identity))
    }
}

/// The log dirs and the metadata log dir, by the properties that `value` gives.
pub(super) fn log_dirs(value: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let lists: Vec<String> = DIRS.into_iter().filter_map(value).collect();
    lists.iter().flat_map(|list| list.split(',')).map(|dir| PathBuf::from(dir.trim())).collect()
}

/// The node id, by the properties that `value` gives.
pub(super) fn node_id(value: impl Fn(&str) -> Option<String>) -> Option<String> {
    IDS.into_iter().find_map(value).map(|id| id.trim().to_owned())
}

/// The last of Kafka's `--override key=value`, or `--override=key=value`, for `key`.
pub(super) fn overridden(arguments: &[&[u8]], key: &str) -> Option<String> {
    let values =
        arguments.iter().enumerate().filter_map(|(n, word)| match word.strip_prefix(b"--override")? {
            b"" => arguments.get(n + 1).copied(),
            joined => joined.strip_prefix(b"="),
        });
    let mut values = values.filter_map(|pair| {
        let (name, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
        (name.trim() == key).then(|| value.to_owned())
    });
    values.next_back()
}

/// A path as process `pid` means it, as this one can open it.
fn seen_by(pid: i32, path: &Path) -> PathBuf {
    match path.strip_prefix("/") {
        Ok(below) => Path::new(&format!("/proc/{pid}/root")).join(below),
        Err(_) => Path::new(&format!("/proc/{pid}/cwd")).join(path),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Whether a Kafka is past the moment at which it takes the locks of its log dirs.
fn has_taken_locks(pid: i32) -> bool {
    let Ok(handles) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut open = handles.flatten().filter_map(|handle| fs::read_link(handle.path()).ok());
    open.any(|path| path.file_name() == Some(OsStr::new(".lock")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Something that looks as a Kafka does between its exec and its first open file.
    struct Fake(Child);

    impl Fake {
        /// A Java by its words, of this main class: a shell that waits for what it is to do.
        fn start(dir: &Path, class: &str, arguments: &[&str]) -> Self {
            let mut command = Command::new("sh");
            command.arg0("java").args(["-s", class]).args(arguments).current_dir(dir);
            Self(command.stdin(Stdio::piped()).spawn().unwrap())
        }

        fn pid(&self) -> String {
            format!("{} (a Kafka", self.0.id())
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn broker(dir: &Path) -> BrokerIdentity {
        BrokerIdentity {
            id: BrokerId(7),
            listener: "10.0.0.1:9092".parse().unwrap(),
            log_dirs: vec![dir.join("ours")],
            properties: BTreeMap::new(),
        }
    }

    fn seen(dir: &Path, text: &str, arguments: &[&str]) -> bool {
        seen_of("kafka.Kafka", dir, text, arguments)
    }

    fn seen_of(class: &str, dir: &Path, text: &str, arguments: &[&str]) -> bool {
        fs::write(dir.join("server.properties"), text).unwrap();
        let fake = Fake::start(dir, class, arguments);
        let begun = std::time::Instant::now();
        // Between fork and exec it still has the words of this test.
        while !fs::read(format!("/proc/{}/cmdline", fake.0.id())).unwrap().starts_with(b"java\0") {
            assert!(begun.elapsed().as_secs() < 10);
            std::thread::yield_now();
        }
        rivals(&Sought::from(&broker(dir))).unwrap().iter().any(|holder| holder.text.starts_with(&fake.pid()))
    }

    #[test]
    fn a_kafka_that_has_opened_nothing_yet_is_known_by_its_properties() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir(path.join("ours")).unwrap();
        fs::create_dir(path.join("theirs")).unwrap();
        std::os::unix::fs::symlink(path.join("ours"), path.join("link")).unwrap();
        let (ours, theirs) = (path.join("ours"), path.join("theirs"));
        let ours = ours.display();
        let at = |dirs: &str| format!("node.id=7\nlog.dirs={dirs}\n");
        let file = ["server.properties"];
        assert!(seen(&path, &at(&format!("{}, {ours}", theirs.display())), &file));
        assert!(seen(&path, &at(&path.join("link").display().to_string()), &file));
        assert!(seen(&path, "node.id=7\n", &file), "its default log dirs may be ours");
        assert!(seen(&path, "", &["gone.properties"]), "nobody can say whose it is");
        let moved = format!("log.dirs={ours}");
        assert!(seen(&path, &at("/elsewhere"), &["server.properties", "--override", &moved]));
        assert!(seen(&path, &at("/elsewhere"), &["server.properties", &format!("--override={moved}")]));
        assert!(!seen(&path, &at(&theirs.display().to_string()), &file), "another cluster's");
        assert!(!seen(&path, "node.id=8\n", &file));
    }

    #[test]
    fn a_kafka_of_another_main_class_is_known_by_what_its_properties_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir(path.join("ours")).unwrap();
        let ours = format!("broker.id=7\nlog.dirs={}\n", path.join("ours").display());
        let confluent = "io.confluent.support.metrics.SupportedKafka";
        let registry = "io.confluent.kafka.schemaregistry.rest.SchemaRegistryMain";
        let file = ["server.properties"];
        for class in [confluent, "com.example.Broker"] {
            assert!(seen_of(class, &path, &ours, &file), "{class}");
            assert!(seen_of(class, &path, "node.id=7\n", &file), "{class}: its default log dirs may be ours");
            assert!(!seen_of(class, &path, "node.id=7\nlog.dirs=/elsewhere\n", &file), "{class}");
        }
        assert!(!seen_of("kafka.tools.StorageTool", &path, &ours, &["format", "-c", "server.properties"]));
        assert!(!seen_of(registry, &path, "listeners=http://0.0.0.0:8081\n", &file));
        // Nobody can say whose it is, but by its name.
        assert!(seen_of(confluent, &path, "", &["gone.properties"]));
        assert!(!seen_of(registry, &path, "", &["gone.properties"]));
    }

    #[test]
    fn without_a_log_dir_that_is_known_the_node_id_tells() {
        let dir = tempfile::tempdir().unwrap();
        let properties = dir.path().join("server.properties");
        let sought = Sought { id: BrokerId(7), log_dirs: &[] };
        let pid = i32::try_from(std::process::id()).unwrap();
        let path = properties.display().to_string();
        for (text, ours) in [("node.id=7\nlog.dirs=/x\n", true), ("node.id=8\nlog.dirs=/x\n", false)] {
            fs::write(&properties, text).unwrap();
            assert_eq!(
                Ours::of(&sought).claimed_by(pid, &[b"kafka.Kafka", path.as_bytes()], true).is_some(),
                ours,
                "{text}"
            );
        }
    }

    #[test]
    fn a_kafka_with_locks_of_its_own_is_told_from_ours_without_its_properties() {
        let dir = tempfile::tempdir().unwrap();
        let lock = fs::File::create(dir.path().join(".lock")).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(has_taken_locks(pid));
        let ours = Ours::of(&Sought::from(&broker(dir.path())));
        assert_eq!(ours.claimed_by(pid, &[b"kafka.Kafka", b"/no/such.properties"], true), None);
        drop(lock);
    }
}
