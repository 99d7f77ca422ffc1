//! A real Kafka: where it is, how it is started, a cluster of it, and what the cluster says of itself.

mod cluster;
mod format;
mod graft;
mod node;
mod properties;
mod provider;
mod rights;
mod secured;
mod tool;
mod watch;
mod wire;
mod zookeeper;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

pub use cluster::{Cluster, ClusterSpec};
pub use node::Node;
pub(crate) use node::pid_file;
pub use provider::Provider;
pub use secured::{AGENT_PASSWORD, Secured, Security, Signer};
pub use watch::{Rejoin, Standing, Watch};
pub use wire::{ClusterView, Door, Partition, Wire};
pub use zookeeper::{SecuredZooKeeper, Server as ZooKeeper};

/// Names the directory that holds Kafka's `libs`.
const HOME: &str = "UNDERSTUDY_KAFKA_HOME";

/// Names a class-data archive of Kafka's.
const CLASSES: &str = "UNDERSTUDY_KAFKA_CLASSES";

/// Kafka's log goes to standard output, and so to the log of its process.
pub(crate) const LOG4J: &str = "status = error
appender.console.type = Console
appender.console.name = C
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{yyyy-MM-dd HH:mm:ss,SSS}] %p %m (%c{1})%n
rootLogger.level = INFO
rootLogger.appenderRef.c.ref = C
";

/// The same for Kafka before 4.0.
pub(crate) const LOG4J_1: &str = "log4j.rootLogger=INFO, C
log4j.appender.C=org.apache.log4j.ConsoleAppender
log4j.appender.C.layout=org.apache.log4j.PatternLayout
log4j.appender.C.layout.ConversionPattern=[%d] %p %m (%c{1})%n
";

/// An unpacked Kafka and the Java to run it.
#[derive(Debug, Clone)]
pub struct Kafka {
    java: PathBuf,
    pub(crate) libs: PathBuf,
    jars: Vec<PathBuf>,
    version: String,
}

/// How a Java virtual machine is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jvm {
    flags: Vec<String>,
    /// Whether it uses the class-data archive.
    archived: bool,
}

impl Jvm {
    /// Starts with the least work, and with a class-data archive if the environment names one: for stories.
    #[must_use]
    pub fn quick(heap: &str) -> Self {
        let flags =
            [format!("-Xmx{heap}"), "-XX:+UseSerialGC".to_owned(), "-XX:TieredStopAtLevel=1".to_owned()];
        Self { flags: flags.to_vec(), archived: true }
    }

    /// The same, but without the bed's archive: for stories in which the agent sees to one.
    #[must_use]
    pub fn without_archive(self) -> Self {
        Self { archived: false, ..self }
    }

    /// The same, and told this.
    #[must_use]
    pub(crate) fn with(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// What `kafka-server-start.sh` would use, but for the heap: for measurements.
    #[must_use]
    pub fn stock(heap: &str) -> Self {
        let mut flags = vec![format!("-Xmx{heap}"), format!("-Xms{heap}")];
        let stock = "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 \
                     -XX:+ExplicitGCInvokesConcurrent -XX:MaxInlineLevel=15 -Djava.awt.headless=true";
        flags.extend(stock.split_whitespace().map(str::to_owned));
        Self { flags, archived: false }
    }
}

impl Kafka {
    /// The Kafka that the environment names, and Java from `JAVA_HOME` or the path.
    ///
    /// # Errors
    /// When there is none.
    pub fn home() -> Result<Self> {
        let home = env::var_os(HOME).map(PathBuf::from).with_context(|| {
            format!("{HOME} is not set: run the stories through `cargo xtask test`, which fetches Kafka")
        })?;
        let libs = home.join("libs");
        let mut jars: Vec<PathBuf> = fs::read_dir(&libs)
            .with_context(|| format!("{HOME}: cannot read {}", libs.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "jar"))
            .collect();
        // A class-data archive only fits the class path it was made with: the order must not vary.
        jars.sort();
        let version = jars
            .iter()
            .find_map(|jar| jar.file_stem()?.to_str()?.strip_prefix("kafka_2.13-"))
            .with_context(|| format!("{HOME}: no Kafka in {}", libs.display()))?;
        Ok(Self { java: java()?, version: version.to_owned(), jars, libs })
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it is of before 4.0, and logs by another library.
    fn is_older(&self) -> bool {
        self.version.starts_with("3.")
    }

    /// Whether it is of before KRaft was ready, and its cluster has ZooKeeper.
    pub(crate) fn has_zookeeper(&self) -> bool {
        self.version.starts_with("3.2.")
    }

    /// The Java that runs it.
    #[must_use]
    pub fn java(&self) -> &Path {
        &self.java
    }

    /// The class-data archive that the environment names.
    pub(crate) fn archive() -> Option<PathBuf> {
        env::var_os(CLASSES).map(PathBuf::from)
    }

    /// Where its jars are.
    pub(crate) fn libs(&self) -> Result<PathBuf> {
        self.libs.canonicalize().with_context(|| format!("there is no {}", self.libs.display()))
    }

    /// Its jars, in the order of the class path.
    pub(crate) fn jars(&self) -> &[PathBuf] {
        &self.jars
    }

    /// The class path that has the jars in `libs`.
    fn class_path(&self, libs: &Path) -> String {
        let places = self.jars.iter().filter_map(|jar| Some(libs.join(jar.file_name()?)));
        places.map(|place| place.display().to_string()).collect::<Vec<_>>().join(":")
    }

    /// The command that runs `main` with `arguments`.
    pub(crate) fn command(&self, jvm: &Jvm, log4j: &Path, main: &str, arguments: &[&str]) -> Vec<String> {
        let mut command = vec![self.java.display().to_string()];
        command.extend(jvm.flags.iter().cloned());
        if let Some(archive) = Self::archive().filter(|_| jvm.archived) {
            // With what an agent says beside an archive of its own.
            command.push(format!("-XX:SharedArchiveFile={}", archive.display()));
            command.push("-Dkeystore.pkcs12.keyPbeIterationCount=1000".to_owned());
        }
        if self.is_older() {
            // Beside the other one, which is not read.
            let log4j = log4j.with_file_name("log4j.properties");
            command.push(format!("-Dlog4j.configuration=file:{}", log4j.display()));
        } else {
            command.push(format!("-Dlog4j2.configurationFile=file:{}", log4j.display()));
        }
        command.extend(["-cp", &self.class_path(&self.libs), main].map(str::to_owned));
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        command
    }
}

/// What Maven Central does not have of Kafka: the `bin/kafka-server-start.sh` of one that is in `/opt/kafka`.
/// Every jar is named, as in Kafka's own: a class-data archive fits no class path with a `*`.
pub(crate) fn start_script(kafka: &Kafka, jvm: &Jvm) -> String {
    format!(
        "#!/bin/sh\nexec java {} -Dlog4j2.configurationFile=file:/etc/kafka/log4j2.properties -cp {} kafka.Kafka \"$@\"\n",
        jvm.flags.join(" "),
        kafka.class_path(Path::new("/opt/kafka/libs"))
    )
}

fn java() -> Result<PathBuf> {
    if let Some(home) = env::var_os("JAVA_HOME") {
        let java = PathBuf::from(home).join("bin/java");
        ensure!(java.is_file(), "JAVA_HOME: there is no {}", java.display());
        return Ok(java);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|directory| directory.join("java")).find(|java| java.is_file());
    found.context("no java on the path: install a Java 17 runtime (apt install openjdk-17-jre-headless)")
}
