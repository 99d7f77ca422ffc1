//! A standby pod takes a broker over whose node lost power: its Kafka waits in a container of its own, in the brokers'
//! image, until the agent beside it gives the word.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::kubernetes::Node;
use e2e::kubernetes::kafka::{KAFKA, service_of};
use e2e::kubernetes::standby::{self, STANDBY};
use e2e::kubernetes::takeover::{PATIENCE, Site, StandbyPod, VICTIM};
use e2e::{Lab, holds, story_within};
use rustix::process::Pid;
use serde_json::Value;

pub(crate) const LIMIT: Duration = Duration::from_secs(900);

#[test]
fn a_standby_pod_takes_a_broker_over() {
    story_within("a_standby_pod_takes_a_broker_over", LIMIT, |lab| {
        let bed = Bed::begin(lab)?;
        let fault = bed.site.strike()?;
        bed.is_back(fault)?;
        bed.end()
    });
}

/// A cluster in pods that serves a producer, and a standby pod that may take one broker over.
pub(crate) struct Bed<'lab> {
    pub(crate) site: Site<'lab>,
    standby: StandbyPod,
}

impl<'lab> Bed<'lab> {
    /// Brings it up.
    pub(crate) fn begin(lab: &'lab Lab) -> Result<Self> {
        Self::at(Site::begin(lab)?)
    }

    /// The same of a cluster that is there.
    pub(crate) fn at(site: Site<'lab>) -> Result<Self> {
        let standby = site.add_standby()?;
        let bed = Self { site, standby };
        ensure!(bed.restarts()? == 0, "a container was restarted");
        Ok(bed)
    }

    /// The processes of the agent.
    pub(crate) fn agents(&self) -> Result<Vec<Pid>> {
        self.site.agents_on(&self.standby.node)
    }

    /// How often the pod's containers were started again.
    pub(crate) fn restarts(&self) -> Result<u64> {
        let pod = self.site.kubernetes.pod(STANDBY)?.context("no pod")?;
        let all = pod.0["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().filter_map(|one| one["restartCount"].as_u64()).sum())
    }

    /// The standby's Kafka is not started for as long as `time`.
    pub(crate) fn starts_nothing(&self, time: Duration) -> Result<()> {
        let node = self.node()?;
        holds("no Kafka but its broker's on the standby's node", time, || {
            let running = node.containers(KAFKA)?.len();
            ensure!(running == 1, "{running} Kafkas run there");
            Ok(())
        })
    }

    /// The broker is as it was, for as long as `time`.
    pub(crate) fn stays(&self, time: Duration) -> Result<()> {
        holds("the broker in every ISR", time, || {
            ensure!(self.site.watch.now().is_some_and(|standing| standing.is_complete()), "it is not");
            Ok(())
        })
    }

    /// Waits until the broker is back, in the standby alone.
    pub(crate) fn is_back(&self, fault: Instant) -> Result<()> {
        self.site.is_back(fault)?;
        let StandbyPod { node, pod } = &self.standby;
        let running = self.node()?.containers(KAFKA)?;
        ensure!(running.len() == 2, "{} Kafkas run on {node}", running.len());
        let service = format!("/api/v1/namespaces/default/services/{}", service_of(VICTIM));
        let service = self.site.kubernetes.get(&service)?;
        let selector = &service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"];
        ensure!(selector == STANDBY, "the Service selects {selector}");
        let now = self.site.kubernetes.pod(STANDBY)?.context("no pod")?;
        ensure!(pod.uid() == now.uid(), "it is another pod");
        self.site.is_written_down()
    }

    /// What the ledger has of the broker's takeover, which is one at most.
    pub(crate) fn records(&self) -> Result<Vec<Value>> {
        standby::records(&self.site.kubernetes, VICTIM)
    }

    /// Ends the load, and judges it.
    pub(crate) fn end(self) -> Result<()> {
        self.site.kubernetes.wait_pod(STANDBY, PATIENCE)?;
        self.site.judge().map(drop)
    }

    fn node(&self) -> Result<&Node> {
        self.site.kubernetes.node(&self.standby.node).map(AsRef::as_ref)
    }
}
