//! What differs from story to story.

use crate::history::SOCKET_TIMEOUT_MS;
use crate::kafka::ClusterSpec;
use crate::{Outlet, Storage};

/// What differs from story to story.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The cluster.
    pub cluster: ClusterSpec,
    /// `observe`, `approve` or `auto`.
    pub mode: &'static str,
    /// What differs in `[policy]`. What reads as a number becomes one.
    pub policy: &'static [(&'static str, &'static str)],
    /// What differs in `[broker.properties]` of the victim, as standbys have it.
    pub properties: &'static [(&'static str, &'static str)],
    /// Records a second.
    pub rate: u32,
    /// How long the producer waits for an answer, in milliseconds.
    pub socket_timeout_ms: u32,
    /// Whether the producer begins anew after a fatal error. What it was not told about then stays unknown.
    pub begins_anew: bool,
    /// How many standbys there are, on hosts standby-1 (10.77.0.31, or 10.78.0.31 where the cluster has zones),
    /// standby-2, …; the first has the best rank.
    pub standbys: u8,
    /// The brokers whose home has an agent too, for that broker.
    pub at_home: &'static [i32],
    /// Whether all agents ask each other what they see.
    pub peers: bool,
    /// Whether all agents keep a canary on the storage of the log dirs.
    pub canary: bool,
    /// What of a host the fence switches off.
    pub fence: Outlet,
    /// How hosts have the ledger.
    pub ledger: Storage,
    /// The controllers as agents are to know them, as `id@host:port`; their own listeners if empty.
    pub controllers: Vec<String>,
    /// Fence by the export rules of a storage system, with this deadline. Takes a cluster on
    /// [`Storage::Fuse`].
    pub ontap: Option<&'static str>,
    /// Hosts are instances of an EC2, which fences them and moves addresses, with this deadline for the latter. With
    /// `ontap`, it fences a host that lives on behind the export rules, if `then_switched_off` is set.
    pub ec2: Option<&'static str>,
    /// Whether the agent has its rights, where the cluster is secured.
    pub rights: bool,
    /// Whether the power switch comes after the export rules, or after the outlet `fence`, for a host that lives on
    /// behind them.
    pub then_switched_off: bool,
}

impl Setup {
    /// Hosts are instances of EC2, and log dirs are on FSx for ONTAP, whose export rules are the first fence.
    #[must_use]
    pub fn on_fsx() -> Self {
        let cluster = ClusterSpec { storage: Storage::Fuse, ..ClusterSpec::default() };
        Self { cluster, ontap: Some("30s"), ec2: Some("60s"), ..Self::default() }
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            cluster: ClusterSpec::default(),
            mode: "auto",
            policy: &[],
            properties: &[],
            rate: 500,
            socket_timeout_ms: SOCKET_TIMEOUT_MS,
            begins_anew: false,
            standbys: 1,
            at_home: &[],
            peers: false,
            canary: false,
            fence: Outlet::Power,
            ledger: Storage::Bind,
            controllers: Vec::new(),
            ontap: None,
            ec2: None,
            rights: true,
            then_switched_off: false,
        }
    }
}
