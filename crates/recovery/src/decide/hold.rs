//! Every reason not to act.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{BrokerId, Distrust, Epoch, HostName, human};

/// Why a dead-looking broker is not taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum HoldReason {
    /// This agent does not see a majority of the other brokers.
    Isolated {
        /// Others that answer.
        answering: usize,
        /// Others there are.
        others: usize,
    },
    /// No surviving broker gave its broker list lately.
    MetadataBlind,
    /// The active controller hears the broker, which we cannot reach: the network between us and it is at
    /// fault.
    OutOfReach {
        /// The last sign of life.
        silence: Duration,
    },
    /// The active controller hears the broker, which does not serve yet: it is starting, or recovering its
    /// logs.
    Starting {
        /// The last sign of life.
        silence: Duration,
    },
    /// Only our own probe speaks: the broker list still has it, the controller could not be asked, and no platform says
    /// that its machine is off.
    OneWitness,
    /// Other agents are configured, and none of them can be asked.
    LoneObserver {
        /// How many are configured.
        peers: usize,
    },
    /// Another agent gets an answer from the broker.
    PeerSeesIt {
        /// That agent's host.
        host: HostName,
    },
    /// The ledger was not read lately.
    LedgerUnreachable,
    /// The broker's journal cannot be understood.
    LedgerDamaged {
        /// Where, and what is wrong.
        why: String,
    },
    /// A ledger answers, and this agent must not use it.
    LedgerDistrusted {
        /// The kind.
        distrust: Distrust,
        /// What was expected, what was found where, and what to do.
        why: String,
    },
    /// Several brokers went together: that is a rack, a network or the storage, not a host.
    MassFailure {
        /// Hosts whose brokers failed together and are down.
        down: usize,
        /// Hosts with brokers there are.
        of: usize,
        /// The limit in hosts: by number or by share, whichever is lower.
        limit: usize,
        /// The brokers that count, this one among them; empty in what an older understudy wrote.
        #[serde(default)]
        brokers: BTreeSet<BrokerId>,
    },
    /// Writes to the broker's storage do not come back: the storage is at fault, not the host.
    StorageStalled {
        /// Whether this host's own canary hangs.
        here: bool,
        /// Other agents whose canary hangs.
        at: BTreeSet<HostName>,
    },
    /// A host that would be fenced also owns a broker that answers: the fence would take that one down.
    HostCarries {
        /// The host.
        host: HostName,
        /// The broker that answers.
        broker: BrokerId,
    },
    /// It left the broker list before it stopped answering, and somebody saw that.
    StoppedCleanly {
        /// The agent that saw it; `None` for this one.
        #[serde(default)]
        seen_by: Option<HostName>,
    },
    /// It went before this agent began to watch: whether it died or was stopped was not seen.
    NeverListed,
    /// A person paused takeovers.
    Paused {
        /// Who.
        who: String,
        /// Why.
        why: String,
        /// When it ends by itself.
        until: Option<Timestamp>,
    },
    /// Too many takeovers in a short time: something is wrong that takeovers do not mend.
    BudgetSpent {
        /// Whose budget.
        budget: Budget,
        /// Takeovers in the window.
        used: usize,
        /// Its length.
        window: Duration,
    },
    /// Another host has claimed the takeover.
    ClaimedElsewhere {
        /// That host.
        by: HostName,
        /// Its epoch.
        epoch: Epoch,
    },
    /// A better standby goes first.
    OthersFirst {
        /// The best one.
        host: HostName,
        /// When this host steps in.
        step_in: Duration,
        /// The check that failed here, if that is why this host is not the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failing: Option<String>,
    },
    /// This host is fenced for this broker, and nobody has lifted that: it claims nothing for it.
    FencedHere {
        /// The epoch that fenced it.
        epoch: Epoch,
        /// Other standbys that may yet take the broker over.
        left_to: BTreeSet<HostName>,
    },
    /// This host has tried and could not; others have not tried yet.
    LeftToOthers {
        /// Those others.
        hosts: BTreeSet<HostName>,
    },
    /// This host owns as many brokers as it may, and no other standby has room.
    StandbyFull {
        /// How many it owns.
        owns: usize,
    },
    /// No fence is configured for a host that may be writing: nothing could be proven.
    NoFence {
        /// That host.
        host: HostName,
    },
    /// A host that may be writing is not where its fences act, or nobody knows where it is: they would prove something
    /// of the wrong machine.
    FenceAstray {
        /// That host.
        host: HostName,
        /// Where it is, where its fences act, and what to do; or why nobody knows.
        why: String,
    },
    /// `mode = "observe"`.
    Observing,
    /// `mode = "approve"`: waits for `understudy approve`.
    AwaitingApproval,
}

/// Whose takeovers are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Those of this broker.
    Broker,
    /// Those of all guarded brokers.
    Cluster,
}

impl HoldReason {
    /// The metric label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Isolated { .. } => "isolated",
            Self::MetadataBlind => "metadata_blind",
            Self::OutOfReach { .. } => "out_of_reach",
            Self::Starting { .. } => "starting",
            Self::OneWitness => "one_witness",
            Self::LoneObserver { .. } => "lone_observer",
            Self::PeerSeesIt { .. } => "peer_sees_it",
            Self::LedgerUnreachable => "ledger_unreachable",
            Self::LedgerDamaged { .. } => "ledger_damaged",
            Self::LedgerDistrusted { distrust, .. } => distrust.label(),
            Self::MassFailure { .. } => "mass_failure",
            Self::StorageStalled { .. } => "storage_stalled",
            Self::HostCarries { .. } => "host_carries",
            Self::StoppedCleanly { .. } => "stopped_cleanly",
            Self::NeverListed => "never_listed",
            Self::Paused { .. } => "paused",
            Self::BudgetSpent { .. } => "budget_spent",
            Self::ClaimedElsewhere { .. } => "claimed_elsewhere",
            Self::OthersFirst { .. } => "others_first",
            Self::FencedHere { .. } => "fenced_here",
            Self::LeftToOthers { .. } => "left_to_others",
            Self::StandbyFull { .. } => "standby_full",
            Self::NoFence { .. } => "no_fence",
            Self::FenceAstray { .. } => "fence_astray",
            Self::Observing => "observing",
            Self::AwaitingApproval => "awaiting_approval",
        }
    }

    /// Whether it says no more than that the mode does not allow it.
    #[must_use]
    pub fn is_of_the_mode(&self) -> bool {
        matches!(self, Self::Observing | Self::AwaitingApproval)
    }

    /// Whether it says that the broker serves, and only this host cannot reach it.
    #[must_use]
    pub fn says_that_it_lives(&self) -> bool {
        matches!(self, Self::OutOfReach { .. } | Self::PeerSeesIt { .. })
    }

    /// Whether somebody should be told at once: the broker is down, and only a person or a repair helps.
    #[must_use]
    pub fn pages(&self) -> bool {
        match self {
            // The broker is in good hands, was stopped on purpose, or somebody knows already.
            Self::OutOfReach { .. }
            | Self::Starting { .. }
            | Self::PeerSeesIt { .. }
            | Self::StoppedCleanly { .. }
            | Self::Paused { .. }
            | Self::ClaimedElsewhere { .. }
            | Self::OthersFirst { .. }
            | Self::LeftToOthers { .. }
            | Self::Observing => false,
            Self::FencedHere { left_to, .. } => left_to.is_empty(),
            Self::Isolated { .. }
            | Self::MetadataBlind
            | Self::OneWitness
            | Self::LoneObserver { .. }
            | Self::LedgerUnreachable
            | Self::LedgerDamaged { .. }
            | Self::LedgerDistrusted { .. }
            | Self::MassFailure { .. }
            | Self::StorageStalled { .. }
            | Self::HostCarries { .. }
            | Self::NeverListed
            | Self::BudgetSpent { .. }
            | Self::StandbyFull { .. }
            | Self::NoFence { .. }
            | Self::FenceAstray { .. }
            | Self::AwaitingApproval => true,
        }
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoppedCleanly { seen_by } => {
                write!(f, "it left the broker list before it stopped answering, as a clean stop does")?;
                seen_by.as_ref().map_or(Ok(()), |host| write!(f, " (seen by the agent on {host})"))
            }
            Self::NeverListed => write!(
                f,
                "it was gone from the broker list before this agent began to watch: whether it died or was stopped \
                 was not seen. `understudy failover` takes it over"
            ),
            Self::Paused { who, why, until } => {
                write!(f, "{who} paused takeovers: {why}")?;
                until.map_or(Ok(()), |until| write!(f, " (until {until:.0})"))
            }
            Self::BudgetSpent { budget, used, window } => {
                let whose = match budget {
                    Budget::Broker => "of this broker",
                    Budget::Cluster => "in the cluster",
                };
                write!(
                    f,
                    "{used} takeovers {whose} within {} are enough: find out why, then run `understudy ack`",
                    human(*window)
                )
            }
            Self::ClaimedElsewhere { by, epoch } => write!(f, "{by} is taking it over (epoch {epoch})"),
            Self::OthersFirst { host, step_in, failing } => {
                write!(f, "{host} goes first; this host steps in after {}", human(*step_in))?;
                let Some(check) = failing else { return Ok(()) };
                write!(f, " (it goes last, because a check fails here: {check}; see `understudy check`)")
            }
            Self::FencedHere { epoch, left_to } => {
                write!(
                    f,
                    "this host was fenced in epoch {epoch}, and nobody has lifted that: run `understudy rejoin` here"
                )?;
                let hosts: Vec<String> = left_to.iter().map(ToString::to_string).collect();
                if hosts.is_empty() { Ok(()) } else { write!(f, "; left to {}", hosts.join(", ")) }
            }
            Self::LeftToOthers { hosts } => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                write!(f, "this host could not; left to {}", hosts.join(", "))
            }
            Self::StandbyFull { owns } => {
                write!(f, "this host owns {owns} brokers already, and may own no more")
            }
            Self::NoFence { host } => {
                write!(f, "no fence is configured for {host}, which may be writing to the log dirs")
            }
            Self::FenceAstray { host, why } => {
                write!(f, "the fences of {host} may be those of the wrong machine: {why}")
            }
            Self::LedgerDistrusted { why, .. } => write!(f, "{why}"),
            Self::Observing => write!(f, "mode is observe: would have acted"),
            Self::AwaitingApproval => {
                write!(f, "mode is approve: run `understudy approve` to let it be taken over")
            }
            Self::Isolated { .. }
            | Self::MetadataBlind
            | Self::OutOfReach { .. }
            | Self::Starting { .. }
            | Self::OneWitness
            | Self::LoneObserver { .. }
            | Self::PeerSeesIt { .. }
            | Self::LedgerUnreachable
            | Self::LedgerDamaged { .. }
            | Self::MassFailure { .. }
            | Self::StorageStalled { .. }
            | Self::HostCarries { .. } => self.fmt_doubt(f),
        }
    }
}

impl HoldReason {
    /// What makes it doubtful that this one broker's host is dead, and dead alone, or that this agent can
    /// know.
    fn fmt_doubt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isolated { answering, others } => write!(
                f,
                "this host sees {answering} of {others} other brokers, not a majority: it may be cut off itself"
            ),
            Self::MetadataBlind => write!(f, "no surviving broker gives its broker list"),
            Self::OutOfReach { silence } => write!(
                f,
                "the active controller heard the broker {} ago: it lives, and only this host cannot reach it",
                human(*silence)
            ),
            Self::Starting { silence } => write!(
                f,
                "the active controller heard the broker {} ago: it is starting, or recovering its logs",
                human(*silence)
            ),
            Self::OneWitness => write!(
                f,
                "only our own probe says so: the broker list still has it and the controller could not be asked"
            ),
            Self::LoneObserver { peers } => write!(
                f,
                "none of the {peers} other agents can be asked: this one may be the one that is cut off"
            ),
            Self::PeerSeesIt { host } => write!(f, "the agent on {host} gets an answer from it"),
            Self::LedgerDamaged { why } => write!(f, "the ledger is damaged: {why}"),
            Self::MassFailure { down, of, limit, brokers } => {
                write!(f, "{down} of {of} hosts failed together (limit {limit}")?;
                if !brokers.is_empty() {
                    let brokers: Vec<String> = brokers.iter().map(ToString::to_string).collect();
                    write!(f, "; brokers {}", brokers.join(", "))?;
                }
                write!(f, "): a rack, network or storage failure, not a host")
            }
            Self::StorageStalled { here, at } => {
                let ours = here.then(|| "this host".to_owned());
                let hosts: Vec<String> = ours.into_iter().chain(at.iter().map(ToString::to_string)).collect();
                write!(f, "writes to its storage fail, or do not come back, on {}", hosts.join(", "))
            }
            Self::HostCarries { host, broker } => write!(
                f,
                "{host} also owns broker {broker}, which answers: the fence would take that one down"
            ),
            Self::LedgerUnreachable => write!(f, "the ledger cannot be read"),
            // Told by `Display` itself: a reason that neither names does not compile.
            Self::StoppedCleanly { .. }
            | Self::NeverListed
            | Self::Paused { .. }
            | Self::BudgetSpent { .. }
            | Self::ClaimedElsewhere { .. }
            | Self::OthersFirst { .. }
            | Self::FencedHere { .. }
            | Self::LeftToOthers { .. }
            | Self::StandbyFull { .. }
            | Self::NoFence { .. }
            | Self::FenceAstray { .. }
            | Self::LedgerDistrusted { .. }
            | Self::Observing
            | Self::AwaitingApproval => Ok(()),
        }
    }
}
