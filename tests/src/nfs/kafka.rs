//! A broker whose home is a guest: its log dir on the NFS server, mounted and started by systemd, as on a
//! machine.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::guest::Guest;
use super::install::{BINARY, LEDGER_DIR, PROPERTIES, TEMPLATE, UNITS, install, user_id};
use super::server::NfsServer;
use crate::host::Output;
use crate::kafka::{Cluster, Node};
use crate::ontap::{PASSWORD, volume};
use crate::shell;

/// The unit that is Kafka as the stories' victim: the shipped template's instance.
pub const UNIT: &str = "kafka@1.service";
/// The export that holds the ledger.
pub const LEDGER_EXPORT: &str = "ledger";
/// Where an agent's configuration is.
const CONFIG: &str = "/etc/understudy/understudy.toml";

/// Where a broker is at home, and who serves its log dir: the export [`volume`] of it, which the guest must
/// be let in to before the cluster starts.
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

/// A mount unit, and its text.
pub(super) fn mount(server: &NfsServer, export: &str, target: &str) -> (String, String) {
    let source = server.source(export);
    let text = format!(
        "[Unit]\nDescription={source}\n[Mount]\nWhat={source}\nWhere={target}\nType=nfs4\n\
         Options=vers=4.1,proto=tcp,hard,noatime,nconnect=4\nTimeoutSec=30\n[Install]\nWantedBy=remote-fs.target\n"
    );
    (mount_unit(target), text)
}

/// The mount of an export, as a unit: from then on at each boot.
///
/// # Errors
/// When it cannot be mounted.
pub fn mount_at_boot(guest: &Guest, server: &NfsServer, export: &str, target: &str) -> Result<()> {
    let (unit, text) = mount(server, export, target);
    guest.write(&format!("{UNITS}/{unit}"), text)?;
    guest.sh(&format!("systemctl daemon-reload && systemctl enable --quiet --now {unit}")).map(drop)
}

/// Makes the guest the home of a broker: mounts its log dir, and installs and enables its unit.
/// `start_script` is `kafka-server-start.sh`. Until an agent is installed beside it, its configuration is the
/// least that `guard` needs.
pub(crate) fn install_home(home: &GuestHome, node: &Node, start_script: &str) -> Result<()> {
    let (user, log_dir) = (user_id()?, home.log_dir(node.id()));
    shell::run("chown", ["-R", &format!("{user}:{user}"), &log_dir.display().to_string()])?;
    let (id, name, target) = (node.id(), node.home_name(), node.mount_point());
    let (mount, mounted) = mount(&home.server, &volume(id), &target);
    let guarded = format!(
        "[agent]\nhost = \"{name}\"\n[ledger]\ndriver = \"file\"\ndir = \"{LEDGER_DIR}\"\n\
         [[broker]]\nid = {id}\nhome = \"{name}\"\n"
    );
    // The address comes after every condition, so that a broker that may not start does not take it.
    let site = format!(
        "[Unit]\nRequiresMountsFor={target}\n[Service]\nExecStartPre=+ip addr replace {}/24 dev eth0\n",
        node.address().ip()
    );
    let properties = fs::read_to_string(node.properties())?;
    let files = [
        (format!("{UNITS}/{mount}"), mounted),
        (format!("{UNITS}/kafka@{id}.service.d/site.conf"), site),
        (PROPERTIES.to_owned(), properties),
        (CONFIG.to_owned(), guarded),
    ];
    let then =
        format!("systemctl enable --quiet --now {mount} && systemctl enable --quiet kafka@{id}.service");
    install(&home.guest, &home.server, start_script, &files, &then)
}

/// Starts Kafka in its guest. Whether it serves is for others to say.
pub(crate) fn start(guest: &Guest, broker: i32) -> Result<()> {
    guest.sh(&format!("systemctl start kafka@{broker}.service")).map(drop)
}

/// An agent that systemd runs in a guest.
#[derive(Debug)]
pub struct GuestAgent {
    guest: Arc<Guest>,
}

impl GuestAgent {
    /// Installs the agent in a guest with this configuration, as `deploy/systemd/README.md` says, and
    /// everything that a takeover of a broker of `cluster` needs there. It is enabled and not started.
    ///
    /// # Errors
    /// When the binary is not there, or the ledger cannot be mounted.
    pub fn install(guest: &Arc<Guest>, server: &NfsServer, cluster: &Cluster, config: &str) -> Result<Self> {
        let files = [
            (PASSWORD.to_owned(), "secret\n".to_owned()),
            (TEMPLATE.to_owned(), fs::read_to_string(cluster.template())?),
            (CONFIG.to_owned(), config.to_owned()),
        ];
        let then = format!("chmod 0600 {PASSWORD} {CONFIG} && systemctl enable --quiet understudy");
        install(guest, server, cluster.start_script(), &files, &then)?;
        Ok(Self { guest: Arc::clone(guest) })
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
        // The configuration is where it is looked for.
        let mut command = vec![BINARY];
        command.extend(arguments);
        self.guest.run(&command)
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
    fn a_mount_has_the_unit_that_systemd_looks_for() {
        assert_eq!(mount_unit("/srv/kafka/broker1"), "srv-kafka-broker1.mount");
    }
}
