//! A place of its own for a Kafka of its own: a broker and its controller in one, on the loopback, with an
//! empty log dir.
//!
//! Everything is in a directory that is made here and that nobody else knows. It is the only one that
//! anything in this agent writes a `meta.properties` to, or removes one from: it was not there before, and no
//! template, broker or mount leads to it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrets::Secrets;

use super::super::problem::Problem;
use super::super::user::User;
use super::Recipe;

/// How long the scratch Kafka may take for one answer; it has the lowest priority.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// `ApiVersions`, version 0, of a client without a name: what every Kafka answers, whoever asks.
const API_VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0, 0];

/// How much of its output is read. A start and a stop of Kafka say some hundred KiB.
const SAID_BYTES: u64 = 4 << 20;

/// The directory, removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    dir: PathBuf,
    listener: SocketAddr,
    /// What Kafka is told of secrets.
    secrets: Secrets,
}

impl Scratch {
    /// Makes it in `place`, for a Kafka that is started by `recipe`. One that an earlier run left is removed
    /// first: the caller holds the lock.
    pub(super) fn new(place: &Path, recipe: &Recipe) -> Result<Self, Problem> {
        let dir = place.join("scratch");
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Problem::io(format!("removing {}", dir.display()))(error));
            }
            _ => {}
        }
        // Both are held until both are known, so that they differ.
        let listen = || TcpListener::bind("127.0.0.1:0").and_then(|port| Ok((port.local_addr()?, port)));
        let ports = listen().and_then(|broker| Ok([broker, listen()?]));
        let ports = ports.map_err(Problem::io("finding free ports on the loopback"))?;
        let [(broker, _), (controller, _)] = &ports;
        let scratch = Self { dir, listener: *broker, secrets: recipe.secrets() };
        let filled = scratch.fill(*controller, recipe.user.as_ref());
        filled.map_err(Problem::io(format!("filling {}", scratch.dir.display())))?;
        Ok(scratch)
    }

    fn fill(&self, controller: SocketAddr, user: Option<&User>) -> std::io::Result<()> {
        let log_dir = self.dir.join("log");
        for dir in [&self.dir, &log_dir, &self.log_files()] {
            fs::DirBuilder::new().mode(0o700).create(dir)?;
        }
        fs::write(
            log_dir.join("meta.properties"),
            "version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n",
        )?;
        fs::write(self.properties(), properties(self.listener, controller, &log_dir))?;
        let Some(user) = user else { return Ok(()) };
        for path in [log_dir.join("meta.properties"), log_dir, self.log_files(), self.dir.clone()] {
            user.own(&path)?;
        }
        // Kafka reads it, and does not write it.
        chown(self.properties(), None, Some(user.gid.as_raw()))?;
        fs::set_permissions(self.properties(), fs::Permissions::from_mode(0o640))
    }

    /// What Kafka is started with.
    pub(super) fn properties(&self) -> PathBuf {
        self.dir.join("server.properties")
    }

    /// Where Kafka's own log files go.
    pub(super) fn log_files(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Where its output goes.
    pub(super) fn output(&self) -> PathBuf {
        self.dir.join("kafka.out")
    }

    /// Where Java writes the archive.
    pub(super) fn archive(&self) -> PathBuf {
        self.dir.join("kafka.jsa")
    }

    /// What is there while a Java that has not begun waits to be let go.
    pub(super) fn gate(&self) -> PathBuf {
        self.dir.join("paused")
    }

    /// Whether Kafka answers.
    pub(super) fn serves(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&self.listener, ANSWER_WITHIN)?;
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            stream.write_all(&API_VERSIONS)?;
            stream.read_exact(&mut [0; 8])
        };
        ask().is_ok()
    }

    /// What Kafka and Java have said, without secrets: of much of it, the begin.
    pub(super) fn said(&self) -> String {
        let mut said = Vec::new();
        // What cannot be read says nothing.
        let _ = fs::File::open(self.output()).and_then(|file| file.take(SAID_BYTES).read_to_end(&mut said));
        self.hide(&String::from_utf8_lossy(&said))
    }

    /// The text without the secrets that Kafka is told.
    pub(super) fn hide(&self, text: &str) -> String {
        self.secrets.redact(text)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "a scratch directory could not be removed");
        }
    }
}

fn properties(broker: SocketAddr, controller: SocketAddr, log_dir: &Path) -> String {
    format!(
        "# A Kafka that understudy starts once and stops, to make a class-data archive.\n\
         process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n\
         listeners=BROKER://{broker},CONTROLLER://{controller}\nadvertised.listeners=BROKER://{broker}\n\
         listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT\ncontroller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=BROKER\nlog.dirs={}\n",
        log_dir.display()
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn recipe(user: Option<User>) -> Recipe {
        let environment = [("KAFKA_OPTS", "-Djavax.net.ssl.keyStorePassword=hunter2")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Recipe { command: Vec::new(), environment, user, from: "a test".to_owned() }
    }

    #[test]
    fn what_kafka_repeats_of_its_secrets_is_hidden() {
        let root = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(root.path(), &recipe(None)).unwrap();
        fs::write(scratch.output(), "Unrecognized option: -Djavax.net.ssl.keyStorePassword=hunter2").unwrap();
        assert_eq!(scratch.said(), "Unrecognized option: -Djavax.net.ssl.keyStorePassword=***");
    }

    #[test]
    fn it_is_alone_on_the_loopback_and_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("scratch/log/left-by-a-crash")).unwrap();
        let scratch = Scratch::new(root.path(), &recipe(None)).unwrap();
        let text = fs::read_to_string(scratch.properties()).unwrap();
        let addresses =
            text.lines().filter(|line| line.contains("://")).flat_map(|line| line.split("://").skip(1));
        assert!(
            addresses.clone().count() == 3 && addresses.clone().all(|a| a.starts_with("127.0.0.1:")),
            "{text}"
        );
        assert!(text.contains(&format!("log.dirs={}/scratch/log\n", root.path().display())), "{text}");
        assert_eq!(fs::read_dir(root.path().join("scratch/log")).unwrap().count(), 1);
        assert!(!scratch.serves());
        drop(scratch);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn kafkas_user_writes_its_directories_and_not_its_configuration() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let nobody = User::look_up("nobody").unwrap();
        let scratch = Scratch::new(root.path(), &recipe(Some(nobody))).unwrap();
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        assert_eq!(owner(&scratch.properties()), 0);
        for path in [scratch.log_files(), root.path().join("scratch/log/meta.properties")] {
            assert_ne!(owner(&path), 0, "{}", path.display());
        }
    }
}
