//! The ZooKeeper of a cluster from before KRaft: one server, on a host of its own.

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

const IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 61);
const PORT: u16 = 2181;
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
const CLI: &str = "org.apache.zookeeper.ZooKeeperMain";

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    host: Arc<Host>,
    process: Arc<Process>,
    /// Its own command line.
    cli: Vec<String>,
}

impl Server {
    /// Where clients find it.
    pub(crate) fn address() -> SocketAddr {
        SocketAddr::from((IP, PORT))
    }

    /// Starts it on host z1, and waits until it gives sessions.
    pub(crate) fn start(lab: &Lab, kafka: &Kafka, conf: &Path) -> Result<Self> {
        let host = lab.host("z1", &IP.to_string())?;
        let data = lab.kept("zookeeper")?;
        let properties = conf.join("zookeeper.properties");
        let at = format!("clientPortAddress={IP}\nclientPort={PORT}\ndataDir={}\n", data.display());
        fs::write(&properties, format!("{at}tickTime=2000\nadmin.enableServer=false\n"))?;
        let log4j = conf.join("log4j2.properties");
        let command = kafka.command(&Jvm::quick("128m"), &log4j, MAIN, &[&properties.display().to_string()]);
        let process = host.spawn("zookeeper", &command)?;
        let own = Self::address().to_string();
        let cli = kafka.command(&Jvm::quick("64m"), &log4j, CLI, &["-server", &own]);
        let server = Self { host, process, cli };
        server.wait().with_context(|| server.process.last_words())?;
        Ok(server)
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
        let all: Vec<&str> = self.cli.iter().map(String::as_str).chain(command.iter().copied()).collect();
        let said = self.host.run(&all)?;
        Ok(said.stdout + &said.stderr)
    }

    fn wait(&self) -> Result<()> {
        eventually("ZooKeeper to serve", Duration::from_secs(60), || {
            let mut stream = TcpStream::connect_timeout(&Self::address(), Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(b"srvr")?;
            let mut said = String::new();
            stream.read_to_string(&mut said)?;
            ensure!(said.contains("Mode: "), "it says: {said}");
            Ok(())
        })
    }
}
