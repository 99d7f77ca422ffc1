//! A broker whose home is a guest: its log dir on the NFS server, mounted and started by systemd, as on a machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::guest::Guest;
use super::server::NfsServer;
use crate::host::Output;
use crate::kafka::Node;
use crate::lab::Lab;
use crate::ontap::volume;
use crate::standby::LEDGER;

/// The unit that is Kafka, as packages call it.
pub const UNIT: &str = "kafka.service";
/// The export that holds the ledger.
pub const LEDGER_EXPORT: &str = "ledger";
/// Where an agent's configuration is.
const CONFIG: &str = "/etc/understudy/understudy.toml";

/// Where a broker is at home, and who serves its log dir: the export [`volume`] of it, which the guest must be let in to
/// before the cluster starts.
#[derive(Debug, Clone)]
pub struct GuestHome {
    /// The machine.
    pub guest: Arc<Guest>,
    /// The server.
    pub server: Arc<NfsServer>,
}

impl GuestHome {
    pub(crate) fn log_dir(&self, broker: i32) -> PathBuf {
        self.server.directory(&volume(broker))
    }
}

/// The name of the mount unit for a target.
fn mount_unit(target: &str) -> String {
    format!("{}.mount", target.trim_matches('/').replace('/', "-"))
}

/// The mount of an export, as a unit: from then on at each boot.
///
/// # Errors
/// When it cannot be mounted.
pub fn mount_at_boot(guest: &Guest, server: &NfsServer, export: &str, target: &str) -> Result<()> {
    let source = server.source(export);
    let text = format!(
        "[Unit]\nDescription={source}\n[Mount]\nWhat={source}\nWhere={target}\nType=nfs4\n\
         Options=vers=4.1,proto=tcp,hard,noatime,nconnect=4\nTimeoutSec=30\n[Install]\nWantedBy=remote-fs.target\n"
    );
    let unit = mount_unit(target);
    guest.write(&format!("/etc/systemd/system/{unit}"), text)?;
    guest.sh(&format!("systemctl daemon-reload && systemctl enable --quiet --now {unit}")).map(drop)
}

/// Makes the guest the home of a broker: mounts its log dir, and writes and enables its unit.
pub(crate) fn install(lab: &Lab, home: &GuestHome, node: &Node) -> Result<()> {
    let target = node.mount_point();
    mount_at_boot(&home.guest, &home.server, &volume(node.id()), &target)?;
    let log =
        lab.artifacts().canonicalize()?.join(format!("logs/{}-kafka-{}.log", home.guest.name(), node.id()));
    let command = node.command.iter().map(|word| quoted(word)).collect::<Result<Vec<_>>>()?.join(" ");
    let address = node.address().ip();
    // The address comes after every condition, so that a broker that may not start does not take it.
    let text = format!(
        "[Unit]\nDescription=Kafka broker {}\nRequires={mount}\nAfter={mount}\n\
         [Service]\nExecStartPre=ip addr replace {address}/24 dev eth0\nExecStart={command}\n\
         StandardOutput=append:{log}\nStandardError=append:{log}\nSuccessExitStatus=143\nTimeoutStopSec=60\n\
         [Install]\nWantedBy=multi-user.target\n",
        node.id(),
        mount = mount_unit(&target),
        log = log.display(),
    );
    home.guest.write(&format!("/etc/systemd/system/{UNIT}"), text)?;
    home.guest.sh(&format!("systemctl daemon-reload && systemctl enable --quiet {UNIT}")).map(drop)
}

/// Starts Kafka in its guest. Whether it serves is for others to say.
pub(crate) fn start(guest: &Guest) -> Result<()> {
    guest.sh(&format!("systemctl start {UNIT}")).map(drop)
}

/// A word of a command line, as a unit wants it.
fn quoted(word: &str) -> Result<String> {
    ensure!(!word.contains(['"', '\\', '\n']), "{word:?} cannot stand in a unit");
    let word = word.replace('%', "%%").replace('$', "$$");
    Ok(if word.contains([' ', '\'']) { format!("\"{word}\"") } else { word })
}

/// An agent that systemd runs in a guest.
#[derive(Debug)]
pub struct GuestAgent {
    guest: Arc<Guest>,
    binary: String,
}

impl GuestAgent {
    /// Installs the agent in a guest with this configuration: mounts the ledger, and writes the unit
    /// `understudy.service`, which is enabled and not started.
    ///
    /// # Errors
    /// When the binary is not there, or the ledger cannot be mounted.
    pub fn install(guest: &Arc<Guest>, server: &NfsServer, config: &str) -> Result<Self> {
        mount_at_boot(guest, server, LEDGER_EXPORT, LEDGER)?;
        guest.sh("mkdir -p /srv/local/state")?;
        guest.write("/srv/local/ontap.password", "secret\n")?;
        guest.write(CONFIG, config)?;
        let binary = crate::agent::binary()?.canonicalize()?;
        let binary = binary.to_str().context("a path that is not UTF-8")?.to_owned();
        let text = format!(
            "[Unit]\nDescription=Understudy\nRequires={mount}\nAfter={mount}\n\
             [Service]\nExecStart={binary} --config {CONFIG} run\nRestart=on-failure\nRestartSec=1\n\
             Environment=RUST_BACKTRACE=1\n[Install]\nWantedBy=multi-user.target\n",
            mount = mount_unit(LEDGER),
        );
        guest.write("/etc/systemd/system/understudy.service", text)?;
        guest.sh("systemctl daemon-reload && systemctl enable --quiet understudy")?;
        Ok(Self { guest: Arc::clone(guest), binary })
    }

    /// The guest it is in.
    #[must_use]
    pub fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    /// Starts the daemon.
    ///
    /// # Errors
    /// When systemd cannot.
    pub fn start(&self) -> Result<()> {
        self.guest.sh("systemctl start understudy").map(drop)
    }

    /// Waits until `/readyz` says so.
    ///
    /// # Errors
    /// When it does not in `limit`; says what the journal has.
    pub fn wait_ready(&self, limit: Duration) -> Result<()> {
        crate::eventually(&format!("the agent on {} to be ready", self.guest.name()), limit, || {
            let (code, body) = self.get("/readyz")?;
            ensure!(code == 200, "/readyz answers {code}: {body}");
            Ok(())
        })
        .with_context(|| {
            let journal = self.guest.run(&["journalctl", "--unit=understudy", "--lines=20", "--no-pager"]);
            journal.map_or_else(|error| format!("{error:#}"), |said| said.stdout)
        })
    }

    /// A page of the agent, asked for over the management link: status code and body.
    ///
    /// # Errors
    /// When it does not answer in two seconds. It must listen on all addresses.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let address = (self.guest.management(), crate::agent::HTTP_PORT).into();
        crate::http::get(address, path, Duration::from_secs(2))
    }

    /// Runs a command (`status`, `check`, …) in the guest with the agent's configuration.
    ///
    /// # Errors
    /// When it cannot be run; its own failure is in the [`Output`].
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        self.guest.run(&self.command(arguments))
    }

    /// The command line of a command with the agent's configuration.
    pub(crate) fn command<'c>(&'c self, arguments: &[&'c str]) -> Vec<&'c str> {
        let mut command = vec![self.binary.as_str(), "--config", CONFIG];
        command.extend(arguments);
        command
    }

    /// Changes the agent's configuration, for its next start and for commands.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn reconfigure(&self, change: impl FnOnce(&mut toml::Table)) -> Result<()> {
        let mut config = self.guest.read(CONFIG)?.parse()?;
        change(&mut config);
        self.guest.write(CONFIG, config.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stands_in_a_unit_as_it_is() {
        assert_eq!(quoted("-cp").unwrap(), "-cp");
        assert_eq!(quoted("a b%$c").unwrap(), "\"a b%%$$c\"");
        assert!(quoted("a\"b").is_err());
        assert_eq!(mount_unit("/srv/kafka/broker1"), "srv-kafka-broker1.mount");
    }
}
