//! The command line. Commands read unless their help says that they act.

mod kubernetes;
mod ontap;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use drivers::storage::probe::ProbeAct;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tracing::level_filters::LevelFilter;

pub use kubernetes::Kubernetes;
pub use ontap::{BrokerOwner, Ontap, Provision, Style, Verify};

/// Takes over Kafka brokers whose host died and whose log dirs live on shared storage.
#[derive(Debug, Parser)]
#[command(name = "understudy", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 held by policy, \
                          4 stuck: needs a person";

/// Where the configuration is looked for.
pub(crate) const DEFAULT_PATH: &str = "/etc/understudy/understudy.toml";

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The configuration file
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "UNDERSTUDY_CONFIG",
        default_value = DEFAULT_PATH
    )]
    pub config: PathBuf,
    /// How results are written to standard output
    #[arg(long, global = true, value_enum, default_value_t)]
    pub output: Output,
    /// How log lines are written to standard error
    #[arg(long, global = true, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Least severe log lines that are written: error, warn, info, debug, trace or off [default: info
    /// for `run`, warn for the rest]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<LevelFilter>,
}

/// How results are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch the brokers and take over those whose host died (the daemon; acts as `mode` allows)
    Run,
    /// Take one broker over now: shows the plan, asks, ACTS
    Failover(Failover),
    /// Move one healthy broker to another host: asks, ORDERS it, follows it to its end
    Switchover(Switchover),
    /// Let no agent begin a takeover, of one broker or of any
    Pause(Pause),
    /// End pauses
    Resume {
        /// Node id of the broker [default: every pause ends]
        #[arg(long, value_name = "N")]
        broker: Option<i32>,
    },
    /// Say that you have looked: a stuck or exhausted broker may be tried again, and budgets count anew
    Ack {
        /// Node id of the broker [default: every broker]
        #[arg(long, value_name = "N")]
        broker: Option<i32>,
        /// What you found
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Let agents in mode `approve` take one broker over
    Approve {
        /// Node id of the broker
        #[arg(long, value_name = "N")]
        broker: i32,
        /// When the approval expires
        #[arg(long = "for", value_name = "DURATION", default_value = "15m", value_parser = duration)]
        lasting: Duration,
    },
    /// May Kafka of this broker start on this host? For `ExecCondition=` and entry points: exit code 0 means
    /// yes
    Guard {
        /// Node id of the broker
        #[arg(long, value_name = "N")]
        broker: i32,
        /// How long an unreadable ledger is tried again
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
        wait: Duration,
        /// The takeover that this start is part of; its agent says so in the unit's environment
        #[arg(long, value_name = "N", env = "UNDERSTUDY_EPOCH")]
        epoch: Option<u64>,
        /// Become COMMAND if Kafka may start: it then holds the broker's right on this host for as long as it
        /// lives, so that no second one can be started here. A refusal ends with 125
        #[arg(long, requires = "command")]
        exec: bool,
        /// The user that COMMAND runs as
        #[arg(long, value_name = "USER", requires = "exec")]
        user: Option<String>,
        /// What starts Kafka in the foreground, such as `/opt/kafka/bin/kafka-server-start.sh FILE`
        #[arg(last = true, requires = "exec", value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Be the entry point of Kafka's container in a pod: wait for the word of the agent beside it, and only then start
    /// COMMAND. Ends with the pod
    Enter {
        /// The directory of the volume that both containers have: `broker_host.dir` of the agent
        #[arg(long, value_name = "PATH", default_value = "/run/understudy")]
        dir: PathBuf,
        /// Only copy this program into that directory, as `understudy`, for Kafka's container to begin with
        #[arg(long, conflicts_with = "command")]
        install: bool,
        /// What starts Kafka in the foreground, with `{properties}` for the path of its configuration, such as
        /// `/opt/kafka/bin/kafka-server-start.sh {properties}`
        #[arg(last = true, required_unless_present = "install", value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Bring this host back as a standby after it was fenced: checks, asks, LIFTS ITS FENCE
    Rejoin {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Have the agent that runs here read its configuration anew: shows what is different, CHANGES what is in force
    Reload(Reload),
    /// Show what a takeover of one broker would do, and what speaks against it
    Plan {
        /// Node id of the broker
        #[arg(long, value_name = "N")]
        broker: i32,
    },
    /// Show how every guarded broker stands, and what a person has to do
    Status,
    /// Explain every takeover step by step, and every decision not to act
    History(History),
    /// Check that this host could take over: everything a takeover needs, with remedies
    Check,
    /// Give the cluster's ledger its identity, once; show it; or make this machine known to it anew
    #[command(subcommand)]
    Ledger(Ledger),
    /// Make the class-data archive with which Kafka starts faster here: STARTS Kafka once, beside everything,
    /// at the lowest priority
    Warm(Warm),
    /// Audit, prepare or measure the brokers' storage on NetApp ONTAP
    #[command(subcommand)]
    Ontap(Ontap),
    /// What a Kubernetes cluster needs before its ledger can be used
    #[command(subcommand)]
    Kubernetes(Kubernetes),
    /// Print the version
    Version,
    /// Write and sync a small file, once; the daemon runs this in a process of its own
    #[command(hide = true)]
    Canary(Canary),
    /// Make one call on a mount that may be dead, once; other commands run this in a process of its own
    #[command(hide = true)]
    StorageProbe(StorageProbe),
    /// Print docs/configuration.md
    #[command(hide = true)]
    ConfigReference,
}

/// What to do with the ledger.
#[derive(Debug, Subcommand)]
pub enum Ledger {
    /// Initialise the ledger: WRITES its identity. Once for a cluster, on any host; refuses where one exists
    Init,
    /// Show which ledger it is, who has the names, and where the brokers' homes are
    Show,
    /// After a reinstallation, a move or a replaced ledger: GIVES this machine its host's name, its brokers'
    /// homes, its ledger
    Adopt {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Options of `warm`.
#[derive(Debug, Args)]
pub struct Warm {
    /// Node id of the broker as which Kafka is started here; only what is not the broker's own counts
    /// [default: the first]
    #[arg(long, value_name = "N")]
    pub broker: Option<i32>,
    /// Make it anew although the one that is there fits
    #[arg(long)]
    pub force: bool,
}

/// Options of `canary`.
#[derive(Debug, Args)]
pub struct Canary {
    /// Where
    #[arg(long, value_name = "PATH")]
    pub dir: PathBuf,
    /// This host's name, which becomes part of the file's
    #[arg(long, value_name = "HOST")]
    pub host: String,
}

/// Options of `storage-probe`.
#[derive(Debug, Args)]
pub struct StorageProbe {
    /// What to do: `look`, `flush` or `unlink`
    #[arg(value_parser = probe_act)]
    pub act: ProbeAct,
    /// Where
    #[arg(long, value_name = "PATH")]
    pub dir: PathBuf,
}

fn probe_act(text: &str) -> Result<ProbeAct, String> {
    let found = ProbeAct::ALL.into_iter().find(|act| act.name() == text);
    found.ok_or_else(|| format!("`{text}` is none of look, flush, unlink and lock"))
}

/// Options of `history`.
#[derive(Debug, Args)]
pub struct History {
    /// Only this broker
    #[arg(long, value_name = "N")]
    pub broker: Option<i32>,
    /// Draw a takeover instead: its steps over time, as SVG on standard output
    #[arg(long)]
    pub svg: bool,
    /// The takeover of this epoch [default: the newest one]
    #[arg(long, value_name = "EPOCH", requires = "svg")]
    pub epoch: Option<u64>,
    /// What a producer was acknowledged, to be drawn under it: lines `SECONDS,RATE`, in seconds since 1970
    /// and records a second
    #[arg(long, value_name = "FILE", requires = "svg")]
    pub rate: Option<PathBuf>,
}

/// Options of `failover`.
#[derive(Debug, Args)]
pub struct Failover {
    /// Node id of the broker
    #[arg(long, value_name = "N")]
    pub broker: i32,
    /// The host that takes over: `self`, or this host's own name
    #[arg(long, value_name = "HOST", default_value = "self")]
    pub to: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Act although something speaks against it. The fence is still proven first
    #[arg(long = "override")]
    pub override_objections: bool,
}

/// Options of `pause`.
#[derive(Debug, Args)]
pub struct Pause {
    /// Node id of the broker [default: every broker]
    #[arg(long, value_name = "N")]
    pub broker: Option<i32>,
    /// Why, for those who wonder later
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// How long, such as `2h` [default: until `understudy resume`]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "until")]
    pub lasting: Option<Duration>,
    /// Until when, such as `2026-03-01 22:00` in this host's time, or `2026-03-01T22:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub until: Option<Timestamp>,
}

/// Options of `reload`.
#[derive(Debug, Args)]
pub struct Reload {
    /// Only check the file and show what is different
    #[arg(long)]
    pub dry_run: bool,
    /// How long to wait while a takeover goes on; the agent applies the file after its end all the same
    #[arg(long, value_name = "DURATION", default_value = "45s", value_parser = duration)]
    pub wait: Duration,
}

/// Options of `switchover`.
#[derive(Debug, Args)]
pub struct Switchover {
    /// Node id of the broker
    #[arg(long, value_name = "N")]
    pub broker: i32,
    /// The host that takes it
    #[arg(long, value_name = "HOST")]
    pub to: String,
    /// Not before this, such as `2026-03-01 22:00` in this host's time, or `2026-03-01T22:00:00Z`
    /// [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub at: Option<Timestamp>,
    /// The order is void if nobody has taken it up within this time
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub within: Duration,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Give the order and do not follow it
    #[arg(long)]
    pub no_wait: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 90s, 15m or 2h"))
}

fn time(text: &str) -> Result<Timestamp, String> {
    // Where no offset is written, the clock on this host's wall is meant.
    let local = || text.parse::<DateTime>()?.to_zoned(TimeZone::system()).map(|zoned| zoned.timestamp());
    let time: Result<Timestamp, jiff::Error> = text.parse().or_else(|_| local());
    time.map_err(|_| {
        "write it as 2026-03-01T22:00:00Z, or as 2026-03-01 22:00 in this host's time".to_owned()
    })
}
