//! When the agent may act: the checked form of the `[policy]` section.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the agent may do by itself. There is no default: somebody types it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Watch, decide and say what it would have done.
    Observe,
    /// Decide, and wait for a person to run `understudy approve`.
    Approve,
    /// Take over by itself.
    Auto,
}

impl Mode {
    /// As it is typed.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Approve => "approve",
            Self::Auto => "auto",
        }
    }
}

/// The limits that decisions are made by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// What the agent may do by itself.
    pub mode: Mode,
    /// A broker whose host cannot be reached is due after this long.
    pub host_down_after: Duration,
    /// A broker that accepts and does not answer is due after this long.
    pub hung_after: Duration,
    /// A broker whose host lives and refuses connections is due after this long: a restart takes a while.
    pub process_down_after: Duration,
    /// The controller counts as a witness once it has heard nothing for this long. A live KRaft broker
    /// fetches the metadata log every 500 ms at most.
    pub controller_silent_for: Duration,
    /// More brokers than this failed together: hold.
    pub max_brokers_down: usize,
    /// If more than this share of all brokers failed together, in percent: hold.
    pub max_percent_down: u8,
    /// Brokers that went within this long of each other failed together.
    pub mass_failure_window: Duration,
    /// Evidence older than this counts as not seen.
    pub stale_after: Duration,
    /// A claimant that has written nothing for this long may be succeeded, and is then fenced.
    pub claim_silent_after: Duration,
    /// A broker of this host whose process ended is restarted in place after this long.
    pub restart_after: Duration,
    /// A broker of this host that has not answered since this agent began may be booting: whoever starts it
    /// here, such as its unit, has this long before the agent does. So has whoever is late where brokers come
    /// back from a mass failure, from the last one on.
    pub boot_patience: Duration,
    /// Restarts in place within `restart_window` before others take the broker over.
    pub restart_tries: usize,
    /// The window of `restart_tries`.
    pub restart_window: Duration,
    /// Automatic takeovers of one broker within `budget_window` before a person must acknowledge.
    pub takeovers_per_broker: usize,
    /// Automatic takeovers of all brokers together within `budget_window`.
    pub takeovers_per_cluster: usize,
    /// The window of both budgets. For as long, an agent that was restarted goes by what was seen before a
    /// claim or a removal of the broker.
    pub budget_window: Duration,
    /// How long each better standby has before the next one steps in.
    pub step_in_after: Duration,
    /// How long a broker that a takeover started may show no progress on its way back into every ISR.
    pub rejoin_patience: Duration,
    /// How often a takeover starts a Kafka again that ended by itself on that way.
    pub rejoin_restarts: usize,
}
