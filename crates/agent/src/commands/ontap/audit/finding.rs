//! What an audit finds.

use std::fmt;

use recovery::model::BrokerId;
use serde::Serialize;

use super::super::facts::Unread;
use super::super::provision::size;

/// What is looked at. Each has a section in `docs/ontap.md`, under its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Check {
    Coverage,
    Release,
    Nfs41,
    Pnfs,
    TransferSize,
    RootExport,
    LifHealth,
    LifHome,
    AggregateSpace,
    ExportPolicy,
    ExportRule,
    Connections,
    Volume,
    PreserveUnlink,
    Junction,
    SnapshotPolicy,
    Space,
    Efficiency,
}

impl Check {
    /// Every one.
    #[cfg(test)]
    pub(super) const ALL: [Self; 18] = [
        Self::Coverage,
        Self::Release,
        Self::Nfs41,
        Self::Pnfs,
        Self::TransferSize,
        Self::RootExport,
        Self::LifHealth,
        Self::LifHome,
        Self::AggregateSpace,
        Self::ExportPolicy,
        Self::ExportRule,
        Self::Connections,
        Self::Volume,
        Self::PreserveUnlink,
        Self::Junction,
        Self::SnapshotPolicy,
        Self::Space,
        Self::Efficiency,
    ];

    /// Its name in the report, and the heading of its section.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Coverage => "coverage",
            Self::Release => "release",
            Self::Nfs41 => "nfs41",
            Self::Pnfs => "pnfs",
            Self::TransferSize => "transfer_size",
            Self::RootExport => "root_export",
            Self::LifHealth => "lif_health",
            Self::LifHome => "lif_home",
            Self::AggregateSpace => "aggregate_space",
            Self::ExportPolicy => "export_policy",
            Self::ExportRule => "export_rule",
            Self::Connections => "connections",
            Self::Volume => "volume",
            Self::PreserveUnlink => "preserve_unlink",
            Self::Junction => "junction",
            Self::SnapshotPolicy => "snapshot_policy",
            Self::Space => "space",
            Self::Efficiency => "efficiency",
        }
    }

    /// Why it matters.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Coverage => {
                "only volumes that a [broker.storage.grant] names can be audited, and fenced by ONTAP"
            }
            Self::Release => {
                "preserve-unlink came with ONTAP 9.12.1; without it topic deletion and reassignment break brokers"
            }
            Self::Nfs41 => {
                "preserve-unlink works over NFSv4.1 only, and its locks die with the client's lease"
            }
            Self::Pnfs => {
                "TR-4947 switches pNFS on; a client that holds a layout might write past the export rules, which are \
                 the fence, so it has to be off here"
            }
            Self::TransferSize => {
                "TR-4947 measured with 262144 bytes for a read or write; less takes more round trips"
            }
            Self::RootExport => {
                "a client mounts by way of the SVM's root: where it may not read that, it reaches no volume"
            }
            Self::LifHealth => "a LIF that is down takes every mount through it along: the brokers hang",
            Self::LifHome => {
                "away from home its traffic crosses the cluster's network, and a node may be down"
            }
            Self::AggregateSpace => "a full aggregate stops every volume on it, however empty these look",
            Self::ExportPolicy => {
                "a broker is fenced by the policy of its volumes: whoever shares it is fenced along, or keeps the fence \
                 from being used"
            }
            Self::ExportRule => {
                "the fence takes single addresses out of the one rule; what another rule or a subnet lets in stays in"
            }
            Self::Connections => "TR-4947 mounts with nconnect=16; with fewer connections throughput is less",
            Self::Volume => "a broker's log dirs lie on it",
            Self::PreserveUnlink => {
                "Kafka deletes files that it holds open; without this the client renames them to .nfs files instead, \
                 directories cannot be removed, and the broker stops"
            }
            Self::Junction => {
                "a standby mounts what the configuration names; it must be there, and be this broker's"
            }
            Self::SnapshotPolicy => {
                "snapshots keep the segments that Kafka has deleted, so that space runs out; Kafka's copies are its replicas"
            }
            Self::Space => "on a full volume the broker's log dirs go offline",
            Self::Efficiency => {
                "TR-4947 counts on deduplication and compression: Kafka's copies save space only by them"
            }
        }
    }
}

/// How it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// As it should be.
    Pass,
    /// Works, and not as well or as surely as it could.
    Warn,
    /// Brokers or takeovers break by it, or it could not be read because of an error.
    Fail,
    /// The role or the platform does not show it: neither good nor bad.
    NotVisible,
}

/// What a finding is about: the further in, the more is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct About {
    /// The address of the management LIF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ontap: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) svm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) broker: Option<BrokerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broker = self.broker.map(|id| format!("broker {id}"));
        let parts = [self.svm.clone(), broker, self.volume.clone()];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match (&self.ontap, parts.is_empty()) {
            (Some(ontap), true) => f.write_str(ontap),
            _ => f.write_str(&parts.join(", ")),
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) check: Check,
    pub(crate) verdict: Verdict,
    pub(crate) about: About,
    pub(crate) found: String,
    pub(crate) why: &'static str,
    /// What to do: a line for ONTAP's command line, and a word about it. `None` where nothing needs doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
    #[serde(flatten)]
    pub(crate) saving: Saving,
}

/// The bytes that data take, of a volume or an aggregate. What ONTAP does not say is not there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Saving {
    /// As clients count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logical_bytes: Option<u64>,
    /// On the disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) physical_bytes: Option<u64>,
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { logical_bytes: Some(logical), physical_bytes: Some(physical) } = *self else {
            return Ok(());
        };
        write!(f, "; {} logical in {} physical", size(logical), size(physical))?;
        if physical > 0 { write!(f, ", {:.2}:1", logical as f64 / physical as f64) } else { Ok(()) }
    }
}

/// Collects what is found about one thing.
#[derive(Debug)]
pub(super) struct Notes {
    about: About,
    findings: Vec<Finding>,
}

impl Notes {
    pub(super) fn on(about: About) -> Self {
        Self { about, findings: Vec::new() }
    }

    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    fn note(&mut self, check: Check, verdict: Verdict, found: String, remedy: Option<String>) {
        let about = self.about.clone();
        let saving = Saving::default();
        self.findings.push(Finding { check, verdict, about, found, why: check.why(), remedy, saving });
    }

    /// Says with the last finding what efficiency saves.
    pub(super) fn saving(&mut self, saving: Saving) {
        if let Some(last) = self.findings.last_mut() {
            last.saving = saving;
        }
    }

    pub(super) fn pass(&mut self, check: Check, found: impl Into<String>) {
        self.note(check, Verdict::Pass, found.into(), None);
    }

    pub(super) fn warn(&mut self, check: Check, found: impl Into<String>, remedy: impl Into<String>) {
        self.note(check, Verdict::Warn, found.into(), Some(remedy.into()));
    }

    pub(super) fn fail(&mut self, check: Check, found: impl Into<String>, remedy: impl Into<String>) {
        self.note(check, Verdict::Fail, found.into(), Some(remedy.into()));
    }

    /// ONTAP answered, and left it out.
    pub(super) fn not_said(&mut self, check: Check, what: &str) {
        self.note(check, Verdict::NotVisible, format!("ONTAP does not say {what}"), None);
    }

    pub(super) fn unread(&mut self, check: Check, why: &Unread) {
        match why {
            Unread::NotVisible(why) => {
                let remedy =
                    "to see it, give the account's role readonly access to that path (see docs/ontap.md)";
                self.note(check, Verdict::NotVisible, why.clone(), Some(remedy.to_owned()));
            }
            Unread::Failed(why) => {
                let remedy = "see to what it says, and run the audit again";
                self.note(check, Verdict::Fail, format!("not read: {why}"), Some(remedy.to_owned()));
            }
        }
    }
}
