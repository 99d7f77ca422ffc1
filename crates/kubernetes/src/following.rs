//! The fences of a pod that may be on any of some nodes: those of the node that a takeover's plan names.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use recovery::model::{Epoch, HostName, Machine};
use recovery::ports::{Fence, Note, Proof, StepError};

use crate::taint::{OF, Tainted};
use crate::whereabouts::Whereabouts;

const DRIVER: &str = "kubernetes";
/// The detail in which a fence tells whether what it fences has power.
const POWER: &str = "power";

/// Fences that follow a pod. Each of a takeover's steps acts on the node that stands in its plan, wherever the pod is
/// made anew meanwhile.
pub struct Following {
    pub(crate) nodes: BTreeMap<String, Tainted>,
    pub(crate) whereabouts: Arc<Whereabouts>,
}

impl Following {
    fn unplanned(action: &str, host: &HostName) -> StepError {
        let why = "it is a pod, and the plan does not say on which node it was".to_owned();
        StepError::Refused { driver: DRIVER, action: format!("{action} {host}"), why }
    }

    async fn here(&self, action: &str, host: &HostName) -> Result<Tainted, StepError> {
        let refused = |why| StepError::Refused { driver: DRIVER, action: format!("{action} {host}"), why };
        let machine = self.whereabouts.machine().await.map_err(refused)?;
        let node = self.nodes.get(&machine.name);
        let unknown = || refused(format!("it is on {}, which no [[node]] is", machine.name));
        node.map(|node| node.of(&machine, false)).ok_or_else(unknown)
    }
}

#[async_trait]
impl Fence for Following {
    fn name(&self) -> &str {
        DRIVER
    }

    async fn fence(&self, host: &HostName, _epoch: Epoch) -> Result<Note, StepError> {
        Err(Self::unplanned("fence", host))
    }

    async fn prove(&self, host: &HostName, _epoch: Epoch) -> Result<Proof, StepError> {
        Err(Self::unplanned("prove anything of", host))
    }

    fn on(&self, machine: &Machine, moves: bool) -> Option<Arc<dyn Fence>> {
        let node = self.nodes.get(&machine.name)?;
        Some(Arc::new(node.of(machine, moves)))
    }

    /// Of the node that the pod is on. One that it has left is lifted by whoever has repaired it: taking its taint off is
    /// all.
    async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
        self.here("lift the fence of", host).await?.lift(host).await
    }

    async fn check(&self, host: &HostName) -> Result<Note, StepError> {
        let mut all = Note::default();
        for (_, found) in self.checks(host).await {
            all = all.and(found?);
        }
        Ok(all)
    }

    /// Of every node. Only of the one that the pod is on does it matter to the pod whether it has power.
    async fn checks(&self, _host: &HostName) -> Vec<(String, Result<Note, StepError>)> {
        let at = self.whereabouts.machine().await.ok();
        let checks = self.nodes.iter().map(async |(name, node)| {
            let mut checks = node.device_checks().await;
            if at.as_ref().is_none_or(|at| at.name != *name) {
                let notes = checks.iter_mut().filter_map(|(_, found)| found.as_mut().ok());
                notes.for_each(|note| drop(note.details.remove(POWER)));
            }
            checks
        });
        join_all(checks).await.into_iter().flatten().collect()
    }

    fn disbelieve(&self, rung: &str, why: &str) {
        let Some((node, rung)) = rung.split_once(OF) else { return };
        if let Some(node) = self.nodes.get(node) {
            node.disbelieve(rung, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use fakes::kubernetes::{ADMIN, ControlPlane};
    use recovery::ports::MOVED;

    use super::*;
    use crate::bed::{delete_pod, make_node, make_pod, uid};
    use crate::taint::KubernetesTaintConfig;

    /// What fences were asked, by node.
    #[derive(Default)]
    struct Device(Mutex<Vec<String>>);

    impl Device {
        fn note(&self, what: &str, host: &HostName) -> Note {
            self.0.lock().unwrap().push(format!("{what} {host}"));
            Note::new(format!("{what}: {host}")).with(POWER, "on")
        }
    }

    #[async_trait]
    impl Fence for Device {
        fn name(&self) -> &'static str {
            "device"
        }
        async fn fence(&self, host: &HostName, _epoch: Epoch) -> Result<Note, StepError> {
            Ok(self.note("fence", host))
        }
        async fn prove(&self, host: &HostName, _epoch: Epoch) -> Result<Proof, StepError> {
            Ok(Proof { host: host.clone(), by: "device".to_owned(), note: self.note("prove", host) })
        }
        async fn lift(&self, host: &HostName) -> Result<Note, StepError> {
            Ok(self.note("lift", host))
        }
        async fn check(&self, host: &HostName) -> Result<Note, StepError> {
            Ok(self.note("check", host))
        }
        fn disbelieve(&self, rung: &str, why: &str) {
            self.note(&format!("disbelieve {rung}, for {why}, on"), &HostName(String::new()));
        }
    }

    fn fences(plane: &ControlPlane, device: &Arc<Device>) -> Following {
        let config = KubernetesTaintConfig {
            node: None,
            pod: Some("kafka-1-0".to_owned()),
            namespace: Some("kafka".to_owned()),
            kubeconfig: Some(plane.kubeconfig(ADMIN, None)),
        };
        let nodes: BTreeSet<String> = ["node-a", "node-b"].map(str::to_owned).into();
        let there = config.whereabouts(&"kafka-1".into(), &nodes).unwrap();
        let device: Arc<dyn Fence> = device.clone();
        config.follow(&nodes.into_iter().map(|node| (node, device.clone())).collect(), there).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_pod_is_fenced_with_the_node_that_the_plan_names_and_no_other() {
        let Some(plane) = ControlPlane::start() else { return };
        plane.kubectl(&["create", "namespace", "kafka"], "").unwrap();
        for node in ["node-a", "node-b"] {
            make_node(&plane, node, "True", 0);
        }
        make_pod(&plane, Some("node-b"));
        let (host, epoch, device) = (HostName::from("kafka-1"), Epoch(7), Arc::new(Device::default()));
        let fences = fences(&plane, &device);
        for refused in
            [fences.fence(&host, epoch).await.map(drop), fences.prove(&host, epoch).await.map(drop)]
        {
            assert!(refused.unwrap_err().to_string().contains("kafka-1"));
        }
        let machine = |node: &str| Machine { name: node.to_owned(), guest: uid(&plane) };
        assert!(fences.on(&machine("node-c"), false).is_none());
        // The pod is not there, so that it would prove nothing of it.
        let astray = fences.on(&machine("node-a"), true).unwrap();
        assert!(matches!(astray.fence(&host, epoch).await, Err(StepError::Refused { .. })));
        assert!(device.0.lock().unwrap().is_empty(), "{:?}", device.0);

        let there = fences.on(&machine("node-b"), false).unwrap();
        let fenced = there.fence(&host, epoch).await.unwrap();
        assert!(
            fenced.text.contains("fence: node-b") && fenced.text.contains("is tainted"),
            "{}",
            fenced.text
        );
        let proof = there.prove(&host, epoch).await.unwrap();
        assert!(proof.host == host && proof.note.text.contains("pod kafka-1-0 is on node-b"), "{proof:?}");
        assert_eq!(*device.0.lock().unwrap(), ["fence node-b", "prove node-b"]);
        made_anew(&plane, &fences, &machine("node-b")).await;
        let checks = fences.checks(&host).await;
        let named: Vec<&str> = checks.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(named, ["node-a: device", "node-a: kubernetes", "node-b: device", "node-b: kubernetes"]);
        // The power of another node says nothing of the pod's.
        let power = |index: usize| checks[index].1.as_ref().unwrap().details.contains_key(POWER);
        assert!(!power(0) && power(2), "{checks:?}");
        fences.disbelieve("node-b: device", "it answers");
        assert_eq!(device.0.lock().unwrap().last().unwrap(), "disbelieve device, for it answers, on ");
        let lifted = fences.lift(&host).await.unwrap();
        assert!(lifted.text.contains("node node-b lost its taint"), "{}", lifted.text);
    }

    /// Another pod of the name says nothing against a proof of the node, if a controller was to make it; whoever starts
    /// a broker elsewhere must not have the proof.
    async fn made_anew(plane: &ControlPlane, fences: &Following, on: &Machine) {
        let (host, epoch) = (HostName::from("kafka-1"), Epoch(7));
        delete_pod(plane);
        make_pod(plane, Some("node-b"));
        assert_ne!(uid(plane), on.guest);
        let starts = fences.on(on, false).unwrap().prove(&host, epoch).await.unwrap_err();
        assert!(starts.to_string().contains("was made anew since this was decided"), "{starts}");
        let moves = fences.on(on, true).unwrap();
        let proof = moves.prove(&host, epoch).await.unwrap();
        assert!(proof.note.details[MOVED].contains("was made anew since this was decided"), "{proof:?}");
        // Nothing is fenced for it that was not.
        assert!(matches!(moves.fence(&host, epoch).await, Err(StepError::Refused { .. })));
    }
}
