//! What a guest's systemd says of the units that were installed there.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::kafka::{GuestAgent, UNIT};
use super::scenario::kafkas;
use crate::eventually;

/// The agent's unit.
pub const AGENT: &str = "understudy.service";

/// A unit's properties by name, as `systemctl show` prints them.
type Shown = BTreeMap<String, String>;

/// Longer than a quarter of `WatchdogSec=`, which is how often the agent feeds it.
const FED_WITHIN: Duration = Duration::from_secs(30);

impl GuestAgent {
    /// What systemd says of a unit in its guest.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn shown(&self, unit: &str) -> Result<Shown> {
        let text = self.guest().sh(&format!("systemctl show {unit}"))?;
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(text.lines().filter_map(pair).collect())
    }

    /// The daemon is the shipped unit, under a watchdog that it feeds, and has never been started anew.
    ///
    /// # Errors
    /// What is otherwise.
    pub fn ensure_watched(&self) -> Result<()> {
        let shown = self.shown(AGENT)?;
        let is = |name: &str, value: &str| -> Result<()> {
            let found = shown.get(name).map_or("", String::as_str);
            ensure!(found == value, "{name} of {AGENT} is {found:?}, not {value:?}");
            Ok(())
        };
        is("FragmentPath", "/etc/systemd/system/understudy.service")?;
        is("DropInPaths", "/etc/systemd/system/understudy.service.d/nfs.conf")?;
        is("Type", "notify")?;
        is("ActiveState", "active")?;
        is("SubState", "running")?;
        is("WatchdogUSec", "30s")?;
        is("NoNewPrivileges", "yes")?;
        is("NRestarts", "0")?;
        let fed = |shown: &Shown| -> Result<u64> {
            let at = shown.get("WatchdogTimestampMonotonic").context("no WatchdogTimestampMonotonic")?;
            Ok(at.parse()?)
        };
        let before = fed(&shown)?;
        eventually("the agent to feed its watchdog", FED_WITHIN, || {
            let now = fed(&self.shown(AGENT)?)?;
            ensure!(now > before, "the last time was {before} µs after the boot");
            Ok(())
        })
    }

    /// The capabilities, the system call filter and `no_new_privs` that the daemon really has, by its kernel.
    ///
    /// # Errors
    /// When it does not run.
    pub fn confinement(&self) -> Result<String> {
        let pid = main_pid(&self.shown(AGENT)?)?;
        let lines =
            self.guest().sh(&format!("grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/{pid}/status"))?;
        Ok(lines.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// What `systemd-analyze security` makes of the daemon, in a guest: 0.0 is closed, 10.0 open.
    ///
    /// # Errors
    /// When it does not say.
    pub fn exposure(&self) -> Result<f64> {
        let said = self.guest().sh(&format!("systemd-analyze --no-pager security {AGENT}"))?;
        let overall = said.lines().find_map(|line| line.split_once(&format!("{AGENT}: ")));
        let overall = overall.and_then(|(_, rest)| rest.split(' ').next());
        Ok(overall.with_context(|| format!("no overall exposure in {said}"))?.parse()?)
    }

    /// Kafka here is the shipped unit, started by the takeover of `epoch`: its condition said yes, and its
    /// main process has the epoch and is Kafka's user's.
    ///
    /// # Errors
    /// What is otherwise.
    pub fn ensure_unit_of(&self, epoch: u64) -> Result<()> {
        let (guest, shown) = (self.guest(), self.shown(UNIT)?);
        let of = |name: &str| shown.get(name).map_or("", String::as_str);
        ensure!(of("FragmentPath") == "/etc/systemd/system/kafka@.service", "{}", of("FragmentPath"));
        ensure!(of("ActiveState") == "active" && of("Type") == "exec", "{shown:?}");
        ensure!(of("UnitFileState") == "disabled", "{UNIT} is {} on a standby", of("UnitFileState"));
        let condition = of("ExecCondition");
        let said_yes = condition.contains("understudy guard --broker") && condition.contains("; status=0 }");
        ensure!(said_yes, "the condition of {UNIT}: {condition}");
        let pid = main_pid(&shown)?;
        ensure!(
            kafkas(guest)? == [pid.clone()],
            "the main process is {pid}, Kafkas are {:?}",
            kafkas(guest)?
        );
        let environment = guest.sh(&format!("tr '\\0' '\\n' </proc/{pid}/environ"))?;
        let marked = |word: &str| environment.lines().any(|line| line == word);
        ensure!(
            marked(&format!("UNDERSTUDY_EPOCH={epoch}")) && marked("UNDERSTUDY_BROKER=1"),
            "the environment of {UNIT} is not that of epoch {epoch}:\n{environment}"
        );
        let user = guest.sh(&format!("stat --format=%U /proc/{pid}"))?;
        ensure!(user.trim() == super::install::USER, "{UNIT} runs as {user}");
        Ok(())
    }
}

fn main_pid(shown: &Shown) -> Result<String> {
    let pid = shown.get("MainPID").filter(|pid| *pid != "0");
    pid.cloned().with_context(|| format!("no main process: {:?}", shown.get("ActiveState")))
}
