//! The ZooKeeper of a cluster from before KRaft: one server, on a host of its own.

mod secured;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Jvm, Kafka};
use crate::eventually;
use crate::host::Host;
use crate::lab::Lab;
use crate::process::Process;
pub use secured::SecuredZooKeeper;

const IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 61);
const PORT: u16 = 2181;
/// With TLS.
const SECURE_PORT: u16 = 2182;
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
const CLI: &str = "org.apache.zookeeper.ZooKeeperMain";

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    host: Arc<Host>,
    process: Arc<Process>,
    /// Its own command line.
    cli: Vec<String>,
    /// The same as a stranger, where it is secured.
    strangers: Vec<String>,
    secured: Option<SecuredZooKeeper>,
}

impl Server {
    /// Starts it on host z1, and waits until it gives sessions. `secure`: to its own alone.
    pub(crate) fn start(lab: &Lab, kafka: &Kafka, conf: &Path, secure: bool) -> Result<Self> {
        let host = lab.host("z1", &IP.to_string())?;
        let data = lab.kept("zookeeper")?;
        let properties = conf.join("zookeeper.properties");
        let security = conf.join("zookeeper-security");
        let secured = secure.then(|| SecuredZooKeeper::prepare(security, &IP.to_string())).transpose()?;
        let at = match &secured {
            None => format!("clientPortAddress={IP}\nclientPort={PORT}\n"),
            Some(secured) => {
                format!(
                    "secureClientPortAddress={IP}\nsecureClientPort={SECURE_PORT}\n{}",
                    secured.of_server()
                )
            }
        };
        let data = format!("dataDir={}\ntickTime=2000\nadmin.enableServer=false\n", data.display());
        fs::write(&properties, at + &data)?;
        let log4j = conf.join("log4j2.properties");
        let jvm = |heap: &str, who: &str| match &secured {
            Some(secured) if who == "server" => secured.jvm(Jvm::quick(heap), who),
            Some(secured) => secured.cli(Jvm::quick(heap), who),
            None => Jvm::quick(heap),
        };
        let command =
            kafka.command(&jvm("128m", "server"), &log4j, MAIN, &[&properties.display().to_string()]);
        let process = host.spawn("zookeeper", &command)?;
        let own = address(secure).to_string();
        let cli = |who: &str| kafka.command(&jvm("64m", who), &log4j, CLI, &["-server", &own]);
        let (cli, strangers) = (cli("client"), cli("stranger"));
        let server = Self { host, process, cli, strangers, secured };
        server.wait().with_context(|| server.process.last_words())?;
        Ok(server)
    }

    /// Where clients find it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        address(self.secured.is_some())
    }

    /// What keeps others out, if anything does.
    #[must_use]
    pub fn secured(&self) -> Option<&SecuredZooKeeper> {
        self.secured.as_ref()
    }

    /// The host that it runs on.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// What its own command line says to this command.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn say(&self, command: &[&str]) -> Result<String> {
        self.said(&self.cli, command)
    }

    /// The same, where it is secured, by somebody who may log in and is none of the brokers.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn say_as_stranger(&self, command: &[&str]) -> Result<String> {
        self.said(&self.strangers, command)
    }

    fn said(&self, cli: &[String], command: &[&str]) -> Result<String> {
        let all: Vec<&str> = cli.iter().map(String::as_str).chain(command.iter().copied()).collect();
        let said = self.host.run(&all)?;
        Ok(said.stdout + &said.stderr)
    }

    fn wait(&self) -> Result<()> {
        eventually("ZooKeeper to serve", Duration::from_secs(60), || {
            if self.secured.is_some() {
                let said = self.say(&["get", "/zookeeper/quota"])?;
                ensure!(said.contains("SyncConnected") && !said.contains("Exception"), "it says: {said}");
                return Ok(());
            }
            let mut stream = TcpStream::connect_timeout(&self.address(), Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(b"srvr")?;
            let mut said = String::new();
            stream.read_to_string(&mut said)?;
            ensure!(said.contains("Mode: "), "it says: {said}");
            Ok(())
        })
    }
}

fn address(secure: bool) -> SocketAddr {
    SocketAddr::from((IP, if secure { SECURE_PORT } else { PORT }))
}
