//! When the agent may act: the `[policy]` section, with its defaults. Doc comments are the reference page.

use std::time::Duration;

use schemars::JsonSchema;
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

/// When the agent may act. The defaults suit a cluster on one site.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// What the agent may do by itself. It is a key of its own, which somebody types.
    #[serde(skip)]
    pub mode: Mode,
    /// A broker whose host cannot be reached is taken over after this long; with what a first and a last
    /// probe take, that is about half a second later. At least three probes (750 ms), so that one lost packet
    /// does not look like a dead host. Longer than a host may stand still without being dead, such as a
    /// virtual machine that is moved.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub host_down_after: Duration,
    /// A broker that accepts connections and does not answer is taken over after this long. Longer than the
    /// longest pause (garbage collection, storage) that the brokers get over by themselves. Where a takeover
    /// is expected to take longer than this (as the last ones did, or with much to read of the logs), it is
    /// waited for as long as that, but never for more than three times this.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub hung_after: Duration,
    /// A broker that refuses connections while its host lives is taken over after this long. Longer than a
    /// restart of Kafka on its own host takes. Stretched as `hung_after` is.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub process_down_after: Duration,
    /// The active controller counts as a witness against a broker once it has heard nothing of it for this
    /// long. A live KRaft broker is heard at least every 500 ms.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub controller_silent_for: Duration,
    /// If more brokers than this failed together and are down, none of them is taken over: that is a rack, a
    /// network or the storage, not a host. Brokers of one host count as one.
    pub max_brokers_down: usize,
    /// If more than this share of all brokers failed together and is down, in percent, none of them is taken
    /// over, whatever their number.
    pub max_percent_down: u8,
    /// Brokers that went within this long of each other failed together, and so did those that failed
    /// together with one of them. A broker that has been down for longer, was stopped on purpose, is paused,
    /// or waits for a person is in nobody's way. Longer than one cause takes from the first broker to the
    /// last: by its usual options (`timeo=600,retrans=2`) an NFS client calls a server dead after 180 s.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub mass_failure_window: Duration,
    /// Evidence older than this counts as not seen.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub stale_after: Duration,
    /// A claimant that has written nothing to its takeover's journal for this long may be succeeded by
    /// another standby, which fences it as well. A claimant at work writes every 3 s.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub claim_silent_after: Duration,
    /// A broker that runs on this host and whose process ended is started again here after this long.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub restart_after: Duration,
    /// A broker of this host that has not answered since this agent began may be booting, and is not taken
    /// for one that ended: whoever else starts it here, such as its unit, has this long. So has a Kafka that
    /// somebody else starts, from when the controller last heard it. Longer than a boot takes until Kafka is
    /// executed, and shorter than `process_down_after`, by which others take the broker over. After a mass
    /// failure, such as a loss of power, standbys give as long to whoever is late, from the last broker that
    /// came back on.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub boot_patience: Duration,
    /// How many restarts in place within `restart_window` before other standbys take the broker over.
    pub restart_tries: usize,
    /// The window of `restart_tries`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub restart_window: Duration,
    /// How many takeovers of one broker within `budget_window` are decided without a person. When they are
    /// spent, the agents hold until `understudy ack`. What people ask for does not count.
    pub takeovers_per_broker: usize,
    /// The same for all guarded brokers together.
    pub takeovers_per_cluster: usize,
    /// The window of both budgets. For as long, an agent that was restarted goes by what was seen before a
    /// claim or a removal of the broker.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub budget_window: Duration,
    /// How long a better standby has, once a takeover is due, before the next one steps in.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub step_in_after: Duration,
    /// A broker that a takeover has started may show no progress for this long on its way back into every
    /// ISR. Progress is: its process reads (its logs), it registers, it is unfenced, it answers, a partition
    /// joins, or the bytes that are missing get fewer. Then the takeover ends with what is in the way. It
    /// ends as abandoned, so that another standby may try, if nothing of Kafka runs here any more; else it is
    /// stuck, and a person is called. Longer than Kafka waits for its controllers, which is 60 s
    /// (`initial.broker.registration.timeout.ms`). Where the agent may not read `/proc/PID/io` of Kafka,
    /// longer than its logs take to load.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub rejoin_patience: Duration,
    /// How often a takeover starts a Kafka again that ended by itself on that way. One that ended while the
    /// controllers had no leader is started again when they have one, and does not count.
    pub rejoin_restarts: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            // Until it is read.
            mode: Mode::Observe,
            host_down_after: Duration::from_millis(1_500),
            hung_after: Duration::from_secs(30),
            process_down_after: Duration::from_secs(60),
            controller_silent_for: Duration::from_secs(1),
            max_brokers_down: 1,
            max_percent_down: 50,
            mass_failure_window: Duration::from_secs(300),
            stale_after: Duration::from_secs(3),
            claim_silent_after: Duration::from_secs(15),
            restart_after: Duration::from_millis(500),
            boot_patience: Duration::from_secs(30),
            restart_tries: 2,
            restart_window: Duration::from_secs(600),
            takeovers_per_broker: 3,
            takeovers_per_cluster: 5,
            budget_window: Duration::from_secs(3600),
            step_in_after: Duration::from_secs(5),
            rejoin_patience: Duration::from_secs(300),
            rejoin_restarts: 2,
        }
    }
}
