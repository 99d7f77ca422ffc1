//! What the fences of the hosts mean for the rest of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::config::FenceConfig;
use drivers::health_signal::peer::PeerConfig;
use kubernetes::{KubernetesNodeConfig, KubernetesPodConfig, KubernetesTaintConfig};
use recovery::model::{Broker, BrokerId, HostName};
use recovery::policy::Mode;

use super::brokers::Brokers;
use super::check::{Agent, Check};
use super::exports::{self, Guarded};
use super::problem::Problem;

/// The hosts whose first fence leaves no lock of theirs behind.
pub(super) fn unlocked(fences: &BTreeMap<HostName, Vec<FenceConfig>>) -> BTreeSet<HostName> {
    let first = |ladder: &Vec<FenceConfig>| ladder.first().is_some_and(FenceConfig::frees_locks);
    fences.iter().filter(|(_, ladder)| first(ladder)).map(|(host, _)| host.clone()).collect()
}

/// The hosts that a fence may leave running.
pub(crate) fn outlive(fences: &BTreeMap<HostName, Vec<FenceConfig>>) -> BTreeSet<HostName> {
    let storage_only = fences.iter().filter(|(_, ladder)| ladder.iter().any(FenceConfig::leaves_running));
    storage_only.map(|(host, _)| host.clone()).collect()
}

/// The hosts that are pods, which may be made anew on another node than their fences act on.
pub(super) fn wandering(taints: &BTreeMap<HostName, KubernetesTaintConfig>) -> BTreeSet<HostName> {
    taints.iter().filter(|(_, taint)| taint.pod.is_some()).map(|(host, _)| host.clone()).collect()
}

impl Check<'_> {
    /// The nodes and pods that a cluster of Kubernetes is asked about, which have to be those that the fences are for.
    pub(super) fn kubernetes(
        &mut self,
        ladders: &BTreeMap<HostName, Vec<FenceConfig>>,
        all: &Brokers,
        taints: &BTreeMap<HostName, KubernetesTaintConfig>,
        mode: Option<Mode>,
    ) -> (Option<KubernetesNodeConfig>, Option<KubernetesPodConfig>) {
        let (nodes, pods) = (self.kubernetes_node(ladders), self.kubernetes_pod(&all.drivers));
        for (host, node) in nodes.iter().flat_map(|nodes| &nodes.hosts) {
            let (reason, remedy) = match taints.get(&HostName(host.clone())).map(|taint| &taint.node) {
                Some(Some(fenced)) if fenced != node => (
                    format!("[host.kubernetes] of {host} says {fenced}: one of the two is another machine"),
                    "write the node that the host's fences act on in both",
                ),
                Some(None) => (
                    format!("{host} is a pod, which may be on any [[node]]"),
                    "take the line out: of a pod, only its present node could be told",
                ),
                _ => continue,
            };
            self.doc.problem(&format!("kubernetes_node.hosts.{host}"), reason, remedy);
        }
        self.fences_follow_pods(pods.as_ref(), &all.brokers, taints, mode);
        (nodes, pods)
    }

    /// A broker whose home is a pod is fenced by what acts on a node, so it has to be seen that the pod is there.
    fn fences_follow_pods(
        &mut self,
        pods: Option<&KubernetesPodConfig>,
        brokers: &BTreeMap<BrokerId, Broker>,
        taints: &BTreeMap<HostName, KubernetesTaintConfig>,
        mode: Option<Mode>,
    ) {
        for (id, pod) in pods.iter().flat_map(|pods| &pods.pods) {
            let broker = id.parse().ok().and_then(|id| brokers.get(&BrokerId(id)));
            let Some(home) = broker.map(|broker| &broker.home) else { continue };
            if taints.get(home).is_some_and(|taint| taint.pod.as_ref() == Some(pod)) {
                continue;
            }
            let reason = format!(
                "{home} is this pod, and no [host.kubernetes] of it says so: a pod that is made anew on another node \
                 would be fenced by the old one's power or address"
            );
            let remedy = format!(
                "write pod = \"{pod}\" in [host.kubernetes] of [[host]] {home}, with the node that its fences act on"
            );
            let problem = self.doc.describe(&format!("kubernetes_pod.pods.{id}"), reason, remedy);
            self.as_mode_wants(problem, mode);
        }
    }

    /// The nodes that can be fenced, and with them the pods on them that are hosts.
    pub(super) fn nodes(&mut self) -> (BTreeMap<String, Vec<FenceConfig>>, BTreeMap<String, Vec<String>>) {
        let (mut nodes, mut names) = (BTreeMap::new(), BTreeMap::new());
        for i in 0..self.doc.len("node") {
            let (key, section) = (format!("node[{i}].name"), format!("node[{i}].fence"));
            let (ladder, drivers) = self.ladder(&section);
            if self.doc.len(&section) == 0 {
                self.doc.problem(
                    &format!("node[{i}]"),
                    "has no fence",
                    "add a [[node.fence]] that ends its power",
                );
            }
            for (n, _) in ladder.iter().enumerate().filter(|(_, fence)| fence.leaves_running()) {
                let reason = "leaves the node running, and with it other pods of its brokers' names";
                let remedy = "name a fence that ends its power; one of its storage is for a [[host]] with a fixed `node`";
                self.doc.problem(&format!("{section}[{n}]"), reason, remedy);
            }
            let Some(name): Option<String> = self.doc.read(&key) else { continue };
            names.insert(name.clone(), drivers);
            if nodes.insert(name, ladder).is_some() {
                self.doc.problem(&key, "has a section already", "one [[node]] section a node");
            }
        }
        (nodes, names)
    }

    /// The hosts that are nodes, which are to be tainted beside what fences them, and those that are pods.
    pub(super) fn taints(
        &mut self,
        nodes: &BTreeMap<String, Vec<FenceConfig>>,
    ) -> BTreeMap<HostName, KubernetesTaintConfig> {
        let mut taints = BTreeMap::new();
        for i in 0..self.doc.len("host") {
            let section = format!("host[{i}].kubernetes");
            if !self.doc.has(&section) {
                continue;
            }
            let (name, config) = (self.doc.read(&format!("host[{i}].name")), self.doc.read(&section));
            let (Some(name), Some(config)): (Option<String>, Option<KubernetesTaintConfig>) = (name, config)
            else {
                continue;
            };
            self.is_fenced(&section, i, config.node.is_some(), !nodes.is_empty());
            self.driver(&section, config.problems());
            taints.insert(HostName(name), config);
        }
        taints
    }

    /// A controller makes a pod anew on another node, so that its fences have to follow it.
    pub(super) fn are_pods(&mut self, all: &Brokers, taints: &BTreeMap<HostName, KubernetesTaintConfig>) {
        for (section, home) in &all.homes {
            if taints.get(home).is_some_and(|taint| taint.node.is_none()) {
                continue;
            }
            let reason = format!(
                "{home} is no pod that is fenced with its node, and driver = \"rescheduling\" has pods made anew on other ones"
            );
            let remedy =
                format!("add [[host]] name = \"{home}\" with a `pod` and no `node` in [host.kubernetes]");
            self.doc.problem(&format!("{section}.home"), reason, remedy);
        }
    }

    /// A taint proves nothing, and of a pod its node is fenced.
    fn is_fenced(&mut self, section: &str, host: usize, is_node: bool, nodes: bool) {
        let own = self.doc.len(&format!("host[{host}].fence")) > 0;
        let (reason, remedy) = match (is_node, own, nodes) {
            (true, true, _) | (false, false, true) => return,
            (true, false, _) => (
                "taints a node, which proves nothing: its containers may run on, and Kafka in them",
                "add a [[host.fence]] that proves, such as power, `ec2_stop`, or `ontap_export` for the node's address",
            ),
            (false, true, _) => (
                "names no `node`, and the [[host.fence]] of this host acts on one machine, wherever the pod is",
                "name that `node`, or move the fence into a [[node]]",
            ),
            (false, false, false) => (
                "names no `node`, and no node can be fenced",
                "add a [[node]] with its [[node.fence]] for each node that the pod may be on",
            ),
        };
        self.doc.problem(section, reason, remedy);
    }

    /// Where hosts answer by themselves: as configured, or where the agent there does.
    pub(super) fn own_addresses(
        &mut self,
        all: &Brokers,
        peers: &[PeerConfig],
    ) -> BTreeMap<HostName, IpAddr> {
        let listeners = all.brokers.values().filter_map(|broker| broker.listener.host.parse().ok());
        let moved = all.drivers.values().filter_map(|drivers| drivers.address.as_ref()?.ip());
        let moved: BTreeSet<IpAddr> = moved.chain(listeners).map(|ip: IpAddr| ip.to_canonical()).collect();
        self.instances_keep_their_addresses(&moved);
        // The loopback address answers always: an agent behind a tunnel has one.
        let moves = |own: &IpAddr| moved.contains(own) || own.is_loopback();
        let peer = |peer: &PeerConfig| Some((HostName(peer.host.clone()), peer.address()?));
        let mut own: BTreeMap<_, _> = peers.iter().filter_map(peer).filter(|(_, own)| !moves(own)).collect();
        for i in 0..self.doc.len("host") {
            let [name, key] = ["name", "address"].map(|key| format!("host[{i}].{key}"));
            if !self.doc.has(&key) {
                continue;
            }
            let (name, text) = (self.doc.read::<String>(&name), self.doc.read::<String>(&key));
            let (Some(name), Some(text)) = (name, text) else { continue };
            match text.parse::<IpAddr>() {
                Ok(address) if moves(&address) => {
                    let remedy = "name an address that stays with the host, such as the one that its administrators use";
                    self.doc.problem(&key, "is a broker's, which moves with it, or this host's own", remedy);
                }
                Ok(address) => drop(own.insert(HostName(name), address)),
                Err(_) => {
                    self.doc.problem(&key, "is no IP address", "give it in numbers, such as \"10.0.0.1\"");
                }
            }
        }
        own
    }

    /// An instance is known by its first address, which never moves.
    fn instances_keep_their_addresses(&mut self, moved: &BTreeSet<IpAddr>) {
        let fences = (0..self.doc.len("host"))
            .flat_map(|i| (0..self.doc.len(&format!("host[{i}].fence"))).map(move |n| (i, n)));
        let stops = fences.map(|(i, n)| format!("host[{i}].fence[{n}].instance.private_address"));
        for key in stops.collect::<Vec<_>>() {
            let address = self.doc.has(&key).then(|| self.doc.read::<IpAddr>(&key)).flatten();
            if address.is_some_and(|address| moved.contains(&address)) {
                let remedy = "name the instance's own address, the primary one of its first interface, or leave it out";
                self.doc.problem(&key, "is a broker's, which moves to other instances", remedy);
            }
        }
    }

    /// What export rules prove of a host must be all that matters of it.
    pub(super) fn exports_cover(
        &mut self,
        all: &Brokers,
        fences: &BTreeMap<HostName, Vec<FenceConfig>>,
        agent: Option<&Agent>,
        mode: Option<Mode>,
    ) {
        let here = agent.map(|agent| &agent.here);
        let guarded = all.brokers.values().filter_map(|broker| {
            let (section, drivers) = (all.sections.get(&broker.id)?, all.drivers.get(&broker.id)?);
            Some(Guarded { section, id: broker.id, home: &broker.home, drivers })
        });
        for (key, reason, remedy) in exports::findings(&guarded.collect::<Vec<_>>(), fences, here) {
            let problem = self.doc.describe(&key, reason, remedy);
            // A person may act in any mode, and a grant would undo the fence for him as well.
            self.unfit.push(problem.clone());
            self.as_mode_wants(problem, mode);
        }
    }

    /// A fence agent is not told which host it is to switch off: its options alone say so.
    pub(super) fn fences_are_apart(&mut self) {
        let mut known: BTreeMap<_, (String, String)> = BTreeMap::new();
        let all = ["host", "node"].map(|kind| (0..self.doc.len(kind)).map(move |i| format!("{kind}[{i}]")));
        for owner in all.into_iter().flatten().collect::<Vec<_>>() {
            let host: String = self.doc.read(&format!("{owner}.name")).unwrap_or_default();
            for n in 0..self.doc.len(&format!("{owner}.fence")) {
                let section = format!("{owner}.fence[{n}]");
                let fence: Option<FenceConfig> = self.doc.read(&section);
                for device in fence.iter().flat_map(FenceConfig::devices) {
                    let place = (host.clone(), section.clone());
                    let (other, at) = known.entry(device).or_insert(place).clone();
                    if other != host {
                        let reason = format!(
                            "is the device of {at}, which is for {other}: the order for {host} would switch {other} off, and \
                             {host} would be taken for off while it lives"
                        );
                        let remedy = "give each host its own address, plug or instance";
                        self.doc.problem(&section, reason, remedy);
                    }
                }
            }
        }
    }

    /// Who only watches may do so with what could not be acted by.
    fn as_mode_wants(&mut self, problem: Problem, mode: Option<Mode>) {
        match mode {
            Some(Mode::Observe) => self.warnings.push(problem),
            _ => self.doc.note(problem),
        }
    }

    /// Without a fence nothing could be proven, and so nothing started.
    pub(super) fn homes_can_be_fenced(
        &mut self,
        homes: &[(String, HostName)],
        fences: &BTreeMap<HostName, Vec<String>>,
        taints: &BTreeMap<HostName, KubernetesTaintConfig>,
        mode: Option<Mode>,
    ) {
        // Of a pod that has no fence of its own, its node is fenced.
        let is_pod = |home: &HostName| taints.get(home).is_some_and(|taint| taint.pod.is_some());
        for (section, home) in homes.iter().filter(|(_, home)| !is_pod(home)) {
            if fences.get(home).is_some_and(|ladder| !ladder.is_empty()) {
                continue;
            }
            let reason = "has no fence, so a takeover from it could never be proven safe".to_owned();
            let remedy = format!("add a [[host]] with name = \"{home}\" and a [[host.fence]]");
            let problem = self.doc.describe(&format!("{section}.home"), reason, remedy);
            self.as_mode_wants(problem, mode);
        }
    }
}
