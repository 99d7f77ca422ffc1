//! The `[[peer]]`, `[[canary]]`, `[ontap_clients]`, `[ec2_status]`, `[kubernetes_node]` and `[kubernetes_pod]` sections.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use aws::Ec2StatusConfig;
use drivers::health_signal::peer::PeerConfig;
use drivers::health_signal::storage_canary::CanaryConfig;
use kubernetes::{KubernetesNodeConfig, KubernetesPodConfig};
use ontap::clients::OntapClientsConfig;
use recovery::model::{BrokerId, HostName};
use recovery::policy::Policy;

use super::check::{Agent, Check};
use super::{BrokerConfig, FenceConfig};

impl Check<'_> {
    pub(super) fn peers(&mut self, agent: Option<&Agent>) -> Vec<PeerConfig> {
        let mut hosts = BTreeMap::new();
        let mut peers = Vec::new();
        for i in 0..self.doc.len("peer") {
            let section = format!("peer[{i}]");
            let key = format!("{section}.host");
            let Some(peer): Option<PeerConfig> = self.doc.read(&section) else { continue };
            self.host_name(&key, &peer.host);
            if agent.is_some_and(|agent| agent.here.0 == peer.host) {
                let remedy = "name other hosts only: this agent would agree with itself";
                self.doc.problem(&key, "is this host", remedy);
            }
            if let Some(other) = hosts.insert(peer.host.clone(), key.clone()) {
                self.doc.problem(&key, format!("is {other} as well"), "one [[peer]] section a host");
            }
            self.driver(&section, peer.problems(agent.is_none_or(|agent| agent.tls.is_some())));
            peers.push(peer);
        }
        peers
    }

    pub(super) fn canaries(&mut self, policy: Option<&Policy>) -> Vec<CanaryConfig> {
        let ids = (0..self.doc.len("broker")).map(|i| format!("broker[{i}].id"));
        let guarded: BTreeSet<BrokerId> = ids.filter_map(|key| self.doc.read(&key)).collect();
        // Without a policy that could be read its problem is told, and there is nothing to compare with.
        let stale_after = policy.map_or(Duration::MAX, |policy| policy.stale_after);
        let log_dirs = (0..self.doc.len("broker")).map(|i| format!("broker[{i}].log_dirs"));
        let log_dirs: Vec<Vec<PathBuf>> = log_dirs.filter_map(|key| self.doc.read(&key)).collect();
        let mut dirs = BTreeMap::new();
        let mut canaries = Vec::new();
        for i in 0..self.doc.len("canary") {
            let section = format!("canary[{i}]");
            let Some(canary): Option<CanaryConfig> = self.doc.read(&section) else { continue };
            let key = format!("{section}.dir");
            if let Some(other) = dirs.insert(canary.dir.clone(), key.clone()) {
                let remedy = "name all its brokers in one [[canary]] section";
                self.doc.problem(&key, format!("is {other} as well"), remedy);
            }
            if let Some(log_dir) = log_dirs.iter().flatten().find(|log_dir| canary.dir.starts_with(log_dir)) {
                let reason = format!("is in the log dir {}", log_dir.display());
                self.doc.problem(&key, reason, "give it a directory of its own beside the log dirs");
            }
            self.driver(&section, canary.problems(&guarded, stale_after));
            canaries.push(canary);
        }
        canaries
    }

    pub(super) fn ontap_clients(
        &mut self,
        policy: Option<&Policy>,
        brokers: &BTreeMap<BrokerId, BrokerConfig>,
    ) -> Option<OntapClientsConfig> {
        let config: OntapClientsConfig = self.doc.read("ontap_clients")?;
        let stale_after = policy.map_or(Duration::MAX, |policy| policy.stale_after);
        self.driver("ontap_clients", config.problems(stale_after));
        let watched = |(id, drivers): (&BrokerId, &BrokerConfig)| {
            ontap::storage::watched(drivers.storage.as_ref()?, *id)
        };
        if !brokers.iter().any(|broker| watched(broker).is_some()) {
            let remedy =
                "add [broker.storage.grant] to the brokers whose volumes are on ONTAP, or leave this out";
            self.doc.problem("ontap_clients", "no broker says where its volumes are", remedy);
        }
        Some(config)
    }

    /// `fences` has every host that is configured.
    pub(super) fn ec2_status(
        &mut self,
        fences: &BTreeMap<HostName, Vec<FenceConfig>>,
    ) -> Option<Ec2StatusConfig> {
        let config: Ec2StatusConfig = self.doc.read("ec2_status")?;
        self.driver("ec2_status", config.clone().build().err().unwrap_or_default());
        self.are_hosts("ec2_status", config.hosts.keys(), fences);
        Some(config)
    }

    /// `fences` has every host that is configured.
    pub(super) fn kubernetes_node(
        &mut self,
        fences: &BTreeMap<HostName, Vec<FenceConfig>>,
    ) -> Option<KubernetesNodeConfig> {
        let config: KubernetesNodeConfig = self.doc.read("kubernetes_node")?;
        self.driver("kubernetes_node", config.clone().build().err().unwrap_or_default());
        self.are_hosts("kubernetes_node", config.hosts.keys(), fences);
        Some(config)
    }

    pub(super) fn kubernetes_pod(
        &mut self,
        brokers: &BTreeMap<BrokerId, BrokerConfig>,
    ) -> Option<KubernetesPodConfig> {
        let config: KubernetesPodConfig = self.doc.read("kubernetes_pod")?;
        let guarded = |id: &String| id.parse().is_ok_and(|id| brokers.contains_key(&BrokerId(id)));
        for id in config.pods.keys().filter(|id| !guarded(id)) {
            let key = format!("kubernetes_pod.pods.{id}");
            self.doc.problem_unseen(&key, "there is no [[broker]] of this id", "write the broker's id");
        }
        self.driver("kubernetes_pod", config.clone().build().err().unwrap_or_default());
        Some(config)
    }

    fn are_hosts<'a>(
        &mut self,
        section: &str,
        hosts: impl Iterator<Item = &'a String>,
        fences: &BTreeMap<HostName, Vec<FenceConfig>>,
    ) {
        for host in hosts.filter(|host| !fences.contains_key(&HostName((*host).clone()))) {
            let remedy = "write the host's name as its [[host]] section has it";
            let key = format!("{section}.hosts.{host}");
            self.doc.problem_unseen(&key, "there is no [[host]] of this name", remedy);
        }
    }
}
