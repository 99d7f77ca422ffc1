//! Making and using an archive, with a stand-in for Java: a shell under its name, that waits at the gate as
//! Java does.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::super::BrokerIdentity;
use super::super::common::processors;
use super::super::process::{Process, ProcessConfig};
use super::*;
use crate::host_lock::FlockHostLock;
use recovery::model::Epoch;
use recovery::ports::{BrokerHost, HostLock, Note, Proof, chain};

const BROKER: BrokerId = BrokerId(1);
const LONG: Duration = Duration::from_secs(20);

/// Waits at the gate, says that it serves, and writes its archive when it is asked to end. Without a gate it
/// is a broker.
const JAVA: &str = r#"
echo "$JDK_JAVA_OPTIONS" >>options
for option in $JDK_JAVA_OPTIONS; do
    case $option in
    -XX:ArchiveClassesAtExit=*) archive=${option#*=} ;;
    -XX:PauseAtStartupFile=*) gate=${option#*=} ;;
    esac
done
if [ "$gate" ]; then
    : >"$gate"
    while [ -e "$gate" ]; do sleep 0.01; done
fi
echo "$*" >>began
case $* in *-version*) exit 0 ;; esac
trap 'echo classes >"$archive"; exit 143' TERM
echo Kafka Server started
while :; do sleep 0.01; done
"#;

/// A host with a Java, a jar, and one broker.
struct Bed {
    root: tempfile::TempDir,
}

fn bed() -> Bed {
    let root = tempfile::tempdir().unwrap();
    for dir in ["jdk/bin", "libs", "log"] {
        fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    let java = root.path().join("jdk/bin/java");
    // By a process of its own: what this one has open for writing at a fork of another test cannot be
    // executed.
    assert!(Command::new("cp").arg("/bin/sh").arg(&java).status().unwrap().success());
    let bed = Bed { root };
    bed.write("java.sh", JAVA.replace(">>", &format!(">>{}/", bed.root.path().display())).as_str());
    bed.write("kafka.sh", "exec $JAVA \"$@\"");
    bed.write("libs/a.jar", "a");
    bed.write("jdk/release", "JAVA_VERSION=\"17.0.15\"\n");
    bed.write("log/meta.properties", "version=1\ncluster.id=c1\nnode.id=1\ndirectory.id=d1\n");
    let template = "process.roles=broker\nnode.id=9\ncontroller.quorum.voters=101@c:9093\n\
                    controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://:9092\n";
    bed.write("template", template);
    bed
}

impl Bed {
    fn write(&self, name: &str, text: &str) {
        fs::write(self.root.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root.path().join(name)).unwrap_or_default()
    }

    fn path(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    fn config(&self) -> ProcessConfig {
        let command =
            ["/bin/sh".into(), self.path("kafka.sh"), "kafka.Kafka".into(), PROPERTIES.to_owned()].to_vec();
        let java =
            format!("{} {} -cp {}", self.path("jdk/bin/java"), self.path("java.sh"), self.path("libs/a.jar"));
        let environment = [("JAVA".to_owned(), java), (VARIABLE.to_owned(), "-Dmine=1".to_owned())];
        ProcessConfig {
            command,
            stop_command: Vec::new(),
            template: self.root.path().join("template"),
            environment: environment.into(),
            user: None,
            class_data: ClassDataUse::Auto,
            timeout: LONG,
        }
    }

    fn driver(&self) -> Process {
        let identity = BrokerIdentity {
            id: BROKER,
            listener: "10.0.0.1:9092".parse().unwrap(),
            log_dirs: vec![self.root.path().join("log")],
            properties: BTreeMap::new(),
        };
        let state_dir = self.root.path().join("state");
        Process::new(self.config(), "standby".into(), state_dir, vec![identity]).unwrap()
    }

    fn class_data(&self) -> ClassData {
        BrokerHostConfig::Process(self.config()).class_data(&self.root.path().join("state"), vec![BROKER])
    }

    async fn made(&self) -> Result<Made, String> {
        self.class_data().make(None, || None).await.map_err(|error| chain(&error))
    }

    /// Nothing of the attempt is left: neither a process nor a file.
    fn is_clean(&self) {
        let dir = self.root.path().join("state/class-data");
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> =
            names.filter(|name| name == "scratch" || name.to_string_lossy().ends_with(".tmp")).collect();
        assert!(left.is_empty(), "{left:?}");
        let java = self.root.path().join("jdk/bin/java").canonicalize().unwrap();
        let runs = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == java);
        let begun = Instant::now();
        while super::super::proc::pids().unwrap().iter().any(runs) {
            assert!(begun.elapsed() < LONG, "a Java is left behind");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Puts an archive for `shelf` into place that depends on nothing but the shell.
pub(in super::super) fn shelve(shelf: &Shelf) -> PathBuf {
    fs::create_dir_all(&shelf.dir).unwrap();
    let shell = Path::new("/bin/sh");
    let found = (shell.to_owned(), shell.canonicalize().unwrap());
    let mut record = Record::new(shelf.launch.clone(), "17".to_owned(), found);
    (record.archive, record.bytes) = ("kafka-1.jsa".to_owned(), 7);
    let archive = shelf.dir.join(&record.archive);
    fs::write(&archive, "classes").unwrap();
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o644)).unwrap();
    record.keep(&shelf.dir).unwrap();
    archive
}

#[tokio::test]
async fn an_archive_is_made_by_what_starts_kafka_and_fits_until_something_changes() {
    let bed = bed();
    let class_data = bed.class_data();
    assert_eq!(class_data.look().await.unwrap(), Look::None { why: "none was made yet".into() });
    let made = bed.made().await.unwrap();
    bed.is_clean();
    assert!(made.java.starts_with("Java 17.0.15, ") && made.from == "broker_host.command", "{made:?}");
    let Look::Fits { archive, bytes: 8, .. } = class_data.look().await.unwrap() else {
        panic!("does not fit")
    };
    assert_eq!(archive, made.archive);
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o644);
    // An operator's own options are there while it is made, too.
    assert!(bed.read("options").trim_end().ends_with(" -Dmine=1"), "{}", bed.read("options"));

    bed.write("libs/a.jar", "another");
    let Look::None { why } = class_data.look().await.unwrap() else { panic!("still fits") };
    assert!(why.contains("a.jar was changed"), "{why}");
    let again = bed.made().await.unwrap();
    assert_ne!(again.archive, archive);
    assert!(!archive.exists());
    fs::write(&again.archive, "damaged\n").unwrap();
    let Look::None { why } = class_data.look().await.unwrap() else { panic!("still fits") };
    assert!(why.contains("checksum") && !again.archive.exists(), "{why}");
}

#[tokio::test]
async fn check_names_the_java_that_the_command_starts() {
    let bed = bed();
    bed.made().await.unwrap();
    let java = bed.root.path().join("jdk/bin/java").canonicalize().unwrap();
    let looks = bed.driver().check(BROKER).await;
    let expected = format!("Kafka's command starts {}", java.display());
    assert!(looks.iter().flatten().any(|note| note.text == expected), "{looks:?}");
}

#[tokio::test]
async fn a_start_uses_what_fits_and_says_so() {
    let bed = bed();
    let driver = bed.driver();
    let proof = Proof { host: "kafka-1".into(), by: "fence_agent".into(), note: Note::new("off") };
    let start = async |epoch: u64| {
        driver.render(BROKER, Epoch(epoch)).await.unwrap();
        let note = driver.start(BROKER, Epoch(epoch), std::slice::from_ref(&proof)).await.unwrap();
        let begun = Instant::now();
        while !bed.read("began").contains("kafka.Kafka") {
            assert!(begun.elapsed() < LONG, "it did not start");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        driver.stop(BROKER, LONG).await.unwrap();
        let told = bed.read("options");
        for file in ["began", "options"] {
            fs::remove_file(bed.path(file)).unwrap();
        }
        (note.details["class_data"].clone(), told.trim().to_owned())
    };
    assert_eq!(start(1).await, ("none: none was made yet".to_owned(), "-Dmine=1".to_owned()));
    let archive = bed.made().await.unwrap().archive;
    for file in ["began", "options"] {
        fs::remove_file(bed.path(file)).unwrap();
    }
    let shown = archive.display();
    let told = with_archive(Some("-Dmine=1"), &archive, processors());
    assert_eq!(start(2).await, (format!("used: {shown}"), told));
    bed.write("libs/b.jar", "added");
    let (says, told) = start(3).await;
    assert!(says.starts_with("none: jars were added to"), "{says}");
    assert_eq!(told, "-Dmine=1");
    // Cut short, Java would map it and die of it.
    fs::remove_file(bed.path("libs/b.jar")).unwrap();
    assert!(start(4).await.0.starts_with("used: "));
    fs::write(&archive, "cla").unwrap();
    let (says, told) = start(5).await;
    assert!(says.starts_with("none: ") && says.ends_with("has 3 bytes of 8"), "{says}");
    assert_eq!(told, "-Dmine=1");
}

#[tokio::test]
async fn a_kafka_that_would_do_more_than_its_configuration_says_never_begins() {
    let bed = bed();
    bed.write("kafka.sh", "exec $JAVA \"$@\" --override log.dirs=/mnt/kafka");
    let why = bed.made().await.unwrap_err();
    assert!(why.contains("more than the configuration it is given") && why.contains("--override"), "{why}");
    bed.is_clean();
    assert_eq!(bed.read("began"), "");
    let mut config = bed.config();
    config.command.push("--override".into());
    let class_data =
        BrokerHostConfig::Process(config).class_data(&bed.root.path().join("state"), vec![BROKER]);
    assert!(chain(&class_data.make(None, || None).await.unwrap_err()).contains("has `--override`"));
}

#[tokio::test]
async fn a_script_that_asks_for_javas_version_first_or_stays_above_it_is_no_hindrance() {
    let bed = bed();
    bed.write("kafka.sh", "$JAVA -version || exit 1\n$JAVA \"$@\"\nexit $?");
    bed.made().await.unwrap();
    bed.is_clean();
    assert_eq!(bed.read("began").lines().count(), 2);
}

#[tokio::test]
async fn a_java_that_makes_none_is_named_and_nothing_is_left() {
    let bed = bed();
    bed.write("jdk/release", "JAVA_VERSION=\"11.0.2\"\n");
    let why = bed.made().await.unwrap_err();
    assert!(why.contains("Java 11.0.2, ") && why.contains("too old"), "{why}");
    bed.is_clean();
    assert_eq!(bed.read("began"), "");
    for (script, part) in [
        ("echo \"Unrecognized VM option 'ArchiveClassesAtExit=x'\"; exit 1", "HotSpot 13 or later"),
        ("echo no such class; exit 1", "ended early (exit code 1): no such class"),
    ] {
        bed.write("java.sh", script);
        let why = bed.made().await.unwrap_err();
        assert!(why.contains(part), "{why}");
        bed.is_clean();
    }
}

#[tokio::test]
async fn a_takeover_ends_it_at_once_and_keeps_it_from_beginning() {
    let bed = bed();
    let locks = FlockHostLock::new(bed.root.path().join("state"));
    let (class_data, asked) = (bed.class_data(), Arc::new(AtomicBool::new(false)));
    let hears = asked.clone();
    let made = tokio::spawn(async move {
        let stop = move || {
            hears.store(true, Ordering::Relaxed);
            None
        };
        class_data.make(None, stop).await.map_err(|error| chain(&error))
    });
    while !asked.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let held = locks.try_lock(BROKER).unwrap();
    let why = made.await.unwrap().unwrap_err();
    assert!(why.contains("given up: broker 1 is being taken over"), "{why}");
    bed.is_clean();
    assert_eq!(bed.class_data().busy_with().unwrap(), Some(BROKER));
    assert!(bed.made().await.unwrap_err().contains("given up"));
    drop(held);
    bed.made().await.unwrap();
}

#[tokio::test]
async fn none_is_wanted_where_the_operator_says_so_or_sees_to_it() {
    let bed = bed();
    let off = ProcessConfig { class_data: ClassDataUse::Off, ..bed.config() };
    let mut own = bed.config();
    own.command.insert(2, "-XX:SharedArchiveFile=/mine.jsa".into());
    let manual = ProcessConfig { class_data: ClassDataUse::Manual, ..bed.config() };
    let of =
        |config| BrokerHostConfig::Process(config).class_data(&bed.root.path().join("state"), vec![BROKER]);
    for config in [off, own] {
        let class_data = of(config);
        assert!(!class_data.is_automatic());
        assert!(matches!(class_data.look().await.unwrap(), Look::Unwanted { .. }));
    }
    assert!(!of(manual.clone()).is_automatic());
    bed.made().await.unwrap();
    assert!(matches!(of(manual).look().await.unwrap(), Look::Fits { .. }));
}
