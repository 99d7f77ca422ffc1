//! Which driver each `[[host.fence]]` section means.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use aws::Ec2StopConfig;
use drivers::certificate::CertificateFile;
use drivers::fence::{AllOfConfig, DeviceConfig, ExecConfig, FenceAgentConfig};
use ontap::OntapExportConfig;
use recovery::ports::Fence;
use schemars::JsonSchema;
use serde::Deserialize;

/// One way to fence a host. A host may have several; they are tried in order.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum FenceConfig {
    /// A Pacemaker fence agent.
    FenceAgent(FenceAgentConfig),
    /// A program of the site's own, called as a fence agent is.
    ///
    /// It reads `key=value` lines on its standard input: `action` (`off`, `on` or `status`), `understudy_host`,
    /// `understudy_epoch` (not when it is only checked) and the options below. For `off` it exits with 0 once
    /// the host is off. For `on`, which only `understudy rejoin` asks for, it exits with 0 once the host may
    /// run again, which `status` then tells. For `status` it prints `off` and exits with 2 when it has *read* that
    /// the host is off, prints `on` and exits with 0 when the host is on, and exits with anything else when it
    /// cannot tell. Off takes both, the exit code and a line that is a state (`off`, `Status: OFF`, `Chassis Power
    /// is off`): a shell that fails exits with 2 as well, and a usage text has the word in it. `off` must give the
    /// order even to a host that reads off, or print `already off`: such a host may be in a reset.
    Exec(ExecConfig),
    /// Several devices that must *all* be proven: the outlets of a host with two power supplies.
    ///
    /// Two sections `[[host.fence]]` are something else: a ladder, of which one proven device is enough, and the next
    /// one is for when it is not.
    AllOf(AllOfConfig),
    /// The export rules of an ONTAP system, which lets the host in to its volumes or not.
    ///
    /// Each broker's volumes have an export policy of their own with one rule, which is for the addresses by
    /// which the owner mounts them and for nobody else. Fencing takes the owner's addresses out of it and
    /// puts none of another host in, then breaks the owner's locks. Refused: policies that other volumes have
    /// too, more than one rule, rules for subnets, netgroups, names or other protocols, and pNFS.
    ///
    /// It cuts off the volumes only: the host lives on, and Kafka on it fails. Addresses of TEST-NET-1, -2
    /// and -3 in a rule stand for the epoch that fenced (see `understudy history`).
    OntapExport(Box<OntapExportConfig>),
    /// An EC2 instance, which is stopped by force. See `docs/aws.md`.
    ///
    /// An order that EC2 accepts proves nothing: only `stopped` or `terminated`, read back for the very instance that the
    /// host is. A security group is no fence.
    Ec2Stop(Box<Ec2StopConfig>),
}

impl FenceConfig {
    /// The driver, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<Arc<dyn Fence>, Vec<String>> {
        Ok(match self {
            Self::FenceAgent(config) => Arc::new(config.build()?),
            Self::Exec(config) => Arc::new(config.build()?),
            Self::AllOf(config) => Arc::new(config.build()?),
            Self::OntapExport(config) => Arc::new(config.build()?),
            Self::Ec2Stop(config) => Arc::new(config.build()?),
        })
    }

    /// What it switches, where that is said by its settings alone: no two hosts have one of them in common. A site's own
    /// program is told the host.
    #[must_use]
    pub fn devices(&self) -> Vec<(Vec<String>, BTreeMap<String, String>)> {
        match self {
            Self::FenceAgent(config) => vec![DeviceConfig::FenceAgent(config.clone()).which()],
            Self::AllOf(config) => {
                let agents =
                    config.device.iter().filter(|device| matches!(device, DeviceConfig::FenceAgent(_)));
                agents.map(DeviceConfig::which).collect()
            }
            Self::Ec2Stop(config) => {
                let id = config.instance.id.clone().map(|id| ("id".to_owned(), id));
                let named = [("tag".to_owned(), config.instance.tag.clone())].into_iter().chain(id);
                vec![(vec!["ec2".to_owned()], named.collect())]
            }
            Self::Exec(_) | Self::OntapExport(_) => Vec::new(),
        }
    }

    /// Whether a host that it has proven fenced holds no lock on its volumes any more, whenever its lease
    /// ends.
    #[must_use]
    pub fn frees_locks(&self) -> bool {
        matches!(self, Self::OntapExport(_))
    }

    /// Whether this fence cuts the host off and no more: the host lives on, and may answer for its address.
    #[must_use]
    pub fn leaves_running(&self) -> bool {
        match self {
            Self::FenceAgent(config) => config.leaves_running.unwrap_or_default(),
            Self::Exec(config) => config.leaves_running,
            Self::AllOf(config) => config.leaves_running(),
            Self::OntapExport(_) => true,
            Self::Ec2Stop(_) => false,
        }
    }

    /// The same, with what only the device itself knows: fence agents are asked for their metadata, for some seconds
    /// at most.
    #[must_use]
    pub fn described(mut self) -> Self {
        match &mut self {
            Self::FenceAgent(config) => config.ask_itself(),
            Self::AllOf(config) => config.ask_themselves(),
            Self::Exec(_) | Self::OntapExport(_) | Self::Ec2Stop(_) => {}
        }
        self
    }

    /// The files with certificates that it needs.
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateFile> {
        match self {
            Self::OntapExport(config) => config.ontap.certificates().collect(),
            _ => Vec::new(),
        }
    }

    /// The addresses by which the host mounts its volumes, where the fence goes by them.
    #[must_use]
    pub fn storage_addresses(&self) -> &[IpAddr] {
        match self {
            Self::OntapExport(config) => &config.addresses,
            _ => &[],
        }
    }
}
