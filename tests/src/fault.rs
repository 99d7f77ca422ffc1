//! The faults that a story, or a run of random ones, can make: plain data, each with what ends it.

use std::fmt;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::lab::Lab;
use crate::machine::LOG_DIRS;
use crate::standby::LEDGER;
use crate::switch::Mode;

/// Something that goes wrong. Hosts are given by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Loss of power of one host: processes and link go together. Healed, it has power again, and nothing
    /// runs on it.
    PowerOff(String),
    /// These hosts are cut off from the network, together.
    CutOff(Vec<String>),
    /// Every process of a host stands still; its kernel answers.
    Freeze(String),
    /// `kill -9` of the Kafka on a host, and of nothing else. Nothing heals it.
    KillKafka(String),
    /// The Kafka on a host is asked to stop, as its unit would. Nothing heals it.
    StopKafka(String),
    /// The agent of a host is killed. Nothing heals it: whoever has the agent starts it again.
    KillAgent(String),
    /// The agent of a host stands still, and nothing else there.
    FreezeAgent(String),
    /// The log dirs no longer answer, on these hosts. They must be mounted with [`crate::Storage::Fuse`].
    StallStorage(Vec<String>),
    /// The ledger no longer answers, on these hosts. It must be mounted with [`crate::Storage::Fuse`].
    StallLedger(Vec<String>),
    /// The switch treats a plug of it badly.
    Switch {
        /// The plug.
        plug: String,
        /// How.
        mode: Mode,
    },
}

/// What every Kafka has on its command line, and what an agent's daemon has.
const KAFKA: &[&str] = &["kafka.Kafka"];
const AGENT: &[&str] = &["understudy", "run"];

impl Fault {
    /// Makes it happen.
    ///
    /// # Errors
    /// When it cannot happen, as there is no such host or process; some of it may have happened then.
    pub fn strike(&self, lab: &Lab) -> Result<()> {
        lab.note(format!("fault: {self}"));
        match self {
            Self::PowerOff(host) => lab.named(host)?.power_off(),
            Self::CutOff(hosts) => hosts.iter().try_for_each(|host| lab.named(host)?.cut()),
            Self::Freeze(host) => lab.named(host)?.freeze(),
            Self::KillKafka(host) => signal(lab, host, KAFKA, Signal::KILL),
            Self::StopKafka(host) => signal(lab, host, KAFKA, Signal::TERM),
            Self::KillAgent(host) => signal(lab, host, AGENT, Signal::KILL),
            Self::FreezeAgent(host) => signal(lab, host, AGENT, Signal::STOP),
            Self::StallStorage(hosts) => hosts.iter().try_for_each(|host| lab.named(host)?.stall(LOG_DIRS)),
            Self::StallLedger(hosts) => hosts.iter().try_for_each(|host| lab.named(host)?.stall(LEDGER)),
            Self::Switch { plug, mode } => {
                lab.switch().set_mode(plug, *mode);
                Ok(())
            }
        }
    }

    /// Ends it. What it broke for good stays broken. No error if a host that it befell has lost its power
    /// since.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn heal(&self, lab: &Lab) -> Result<()> {
        lab.note(format!("over: {self}"));
        let each = |hosts: &[String], heal: &dyn Fn(&crate::Host) -> Result<()>| {
            hosts.iter().try_for_each(|host| {
                let host = lab.named(host)?;
                if host.is_on() { heal(&host) } else { Ok(()) }
            })
        };
        match self {
            Self::PowerOff(host) => lab.named(host)?.power_on(),
            Self::CutOff(hosts) => each(hosts, &|host| host.heal()),
            Self::Freeze(host) => each(std::slice::from_ref(host), &|host| host.thaw()),
            Self::FreezeAgent(host) => {
                each(std::slice::from_ref(host), &|host| host.signal(AGENT, Signal::CONT).map(drop))
            }
            Self::StallStorage(hosts) => each(hosts, &|host| host.resume(LOG_DIRS)),
            Self::StallLedger(hosts) => each(hosts, &|host| host.resume(LEDGER)),
            Self::Switch { plug, .. } => {
                lab.switch().set_mode(plug, Mode::Works);
                Ok(())
            }
            Self::KillKafka(_) | Self::StopKafka(_) | Self::KillAgent(_) => Ok(()),
        }
    }
}

fn signal(lab: &Lab, host: &str, words: &[&str], signal: Signal) -> Result<()> {
    let count = lab.named(host)?.signal(words, signal)?;
    ensure!(count > 0, "no {} runs on {host}", words.first().context("no words")?);
    Ok(())
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff(host) => write!(f, "{host} loses its power"),
            Self::CutOff(hosts) => write!(f, "{} cut off from the network", hosts.join(", ")),
            Self::Freeze(host) => write!(f, "{host} stands still"),
            Self::KillKafka(host) => write!(f, "Kafka on {host} is killed"),
            Self::StopKafka(host) => write!(f, "Kafka on {host} is stopped"),
            Self::KillAgent(host) => write!(f, "the agent on {host} is killed"),
            Self::FreezeAgent(host) => write!(f, "the agent on {host} stands still"),
            Self::StallStorage(hosts) => write!(f, "the log dirs stall on {}", hosts.join(", ")),
            Self::StallLedger(hosts) => write!(f, "the ledger stalls on {}", hosts.join(", ")),
            Self::Switch { plug, mode } => write!(f, "the switch treats {plug} so: {mode:?}"),
        }
    }
}
