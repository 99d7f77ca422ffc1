//! `kubernetes_service`: a broker's own Service selects the pod of this host.
//!
//! The Service's selector is one label, whose value is a pod's name. Moving the address is one patch of exactly the
//! version of the Service that was read, so of two hosts that move it at once one reads anew. It has moved once the
//! slices of the Service, which the cluster's own controller keeps and its proxies follow, name this pod and no other.

mod endpoints;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use recovery::model::{Epoch, PLACED};
use recovery::ports::{Address, Note, StepError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use self::endpoints::Endpoints;
use crate::client::{Asking, Cluster, Place};
use crate::fault::{Fault, User};
use crate::names::{is_label, is_label_key, place_problems};
use crate::watched::Watched;

const DRIVER: &str = "kubernetes_service";
const USER: User = User { section: "broker.address", role: "service-rbac.yaml" };

/// How long one question may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Between two readings of the slices.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The pod that has an address which was given up: none has this name, for a pod's own label is never it.
const NOBODY: &str = "nobody.understudy.dev";
/// The Service that a slice is of.
const OF_SERVICE: &str = "kubernetes.io/service-name";

/// A Service of the broker's own, whose selector says which pod has the broker. See `docs/kubernetes.md`.
///
/// Its selector is one label, whose value is the name of a pod. A takeover writes this pod's name there, and waits until
/// the Service's endpoints are this pod and no other. Connections that are open stay where they are: the cluster sends
/// only new ones to the pod that is selected.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesServiceConfig {
    /// The broker's own Service. It selects no other broker, and publishes addresses that are not ready.
    pub service: String,
    /// The name of this pod, in which Kafka is started.
    pub pod: String,
    /// The label that the Service selects by. Its value is the name of the pod that has it; a StatefulSet sets the one
    /// that is the default.
    #[serde(default = "default_label")]
    pub label: String,
    /// The namespace of the Service and of this pod. Without it: that of the kubeconfig's context, or of this pod.
    #[serde(default)]
    pub namespace: Option<String>,
    /// A kubeconfig, as in `[ledger]`.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// How long the cluster may take until the Service's endpoints are this pod. After an API server was away, its
    /// controllers see again up to a minute later (a watch is tried again after 30 s and up to as much again).
    #[serde(default = "ninety_seconds", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub timeout: Duration,
}

fn default_label() -> String {
    "statefulset.kubernetes.io/pod-name".to_owned()
}

fn ninety_seconds() -> Duration {
    Duration::from_secs(90)
}

impl KubernetesServiceConfig {
    /// The driver, ready to use.
    ///
    /// # Errors
    /// Every bad value, as `key: what is wrong`.
    pub fn build(self) -> Result<ServiceAddress, Vec<String>> {
        let mut problems = Vec::new();
        if !is_label(&self.service, 63) {
            problems
                .push(format!("service: `{}` is not the name of a Service, such as kafka-1", self.service));
        }
        // As the value of a label.
        if self.pod.len() > 63 || !self.pod.split('.').all(|part| is_label(part, 63)) {
            problems.push(format!(
                "pod: `{}` is not the name of a pod, such as standby-0, of 63 characters or less",
                self.pod
            ));
        }
        if !is_label_key(&self.label) {
            problems.push(format!("label: `{}` is not the name of a label", self.label));
        }
        problems.extend(place_problems(self.namespace.as_deref(), self.kubeconfig.as_deref()));
        if self.timeout < Duration::from_secs(1) {
            problems.push("timeout: must be at least 1s".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let Self { service, pod, label, namespace, kubeconfig, timeout } = self;
        let cluster = Arc::new(Cluster::new(kubeconfig, namespace, ATTEMPT, USER));
        let watched = Watched::new(cluster.clone(), Place::Own, &service, |_| String::new());
        Ok(ServiceAddress { service, pod, label, timeout, cluster, watched })
    }
}

/// The driver; see [`KubernetesServiceConfig`].
#[derive(Debug)]
pub struct ServiceAddress {
    service: String,
    pod: String,
    label: String,
    timeout: Duration,
    cluster: Arc<Cluster>,
    watched: Watched<Service>,
}

/// Why an act ends early.
enum Stop {
    Fault(Fault),
    Step(StepError),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<StepError> for Stop {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

impl ServiceAddress {
    fn action(&self) -> String {
        format!("have the Service {} select {}", self.service, self.pod)
    }

    fn refused(&self, action: &str, why: String) -> StepError {
        StepError::Refused { driver: DRIVER, action: action.to_owned(), why }
    }

    fn failed(&self, action: &str, why: String) -> StepError {
        StepError::Failed { driver: DRIVER, action: action.to_owned(), source: why.into() }
    }

    /// Gives up at the deadline, once the last reading that began before it is over.
    async fn within<T>(
        &self,
        asking: &Asking<'_>,
        action: &str,
        work: impl Future<Output = Result<T, Stop>>,
    ) -> Result<T, StepError> {
        let failed = |fault: Fault| self.failed(action, fault.to_string());
        match tokio::time::timeout(self.timeout + ATTEMPT, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Stop::Step(error))) => Err(error),
            Ok(Err(Stop::Fault(fault))) => Err(failed(fault)),
            Err(_) => Err(match asking.trouble() {
                Some(fault) => failed(fault),
                None => {
                    StepError::Unconfirmed { driver: DRIVER, action: action.to_owned(), limit: self.timeout }
                }
            }),
        }
    }

    /// The Service, and the pod that it selects. Refuses one that is not as it must be.
    async fn service(&self, asking: &Asking<'_>, action: &str) -> Result<(Service, Option<String>), Stop> {
        let name = &self.service;
        let Some(service) = asking.get::<Service>(name).await? else {
            let namespace = asking.namespace().await?;
            let why = format!(
                "there is no Service {name} in namespace {namespace}: make one for this broker, or correct {}.service",
                USER.section
            );
            return Err(self.refused(action, why).into());
        };
        let spec = service.spec.clone().unwrap_or_default();
        if spec.type_.as_deref() == Some("ExternalName") {
            let why = format!(
                "the Service {name} is of type ExternalName, which selects no pod: give the broker one that does"
            );
            return Err(self.refused(action, why).into());
        }
        let others: Vec<String> =
            spec.selector.iter().flatten().filter(|(key, _)| **key != self.label).map(pair).collect();
        if !others.is_empty() {
            let why = format!(
                "the Service {name} selects by {} as well, which this pod may lack: leave {} alone in its selector",
                others.join(" and "),
                self.label
            );
            return Err(self.refused(action, why).into());
        }
        if spec.publish_not_ready_addresses != Some(true) {
            let why = format!(
                "the Service {name} does not publish addresses that are not ready, and a pod whose Kafka is not started yet is \
                 not: set spec.publishNotReadyAddresses to true"
            );
            return Err(self.refused(action, why).into());
        }
        Ok((service, self.selected(&spec)))
    }

    fn selected(&self, spec: &ServiceSpec) -> Option<String> {
        spec.selector.as_ref()?.get(&self.label).cloned()
    }

    /// This pod, once it is clear that the selector would select it and no other.
    async fn own(&self, asking: &Asking<'_>, action: &str) -> Result<Pod, Stop> {
        let selector = format!("{}={}", self.label, self.pod);
        let pods: Vec<Pod> = asking.list(&selector).await?;
        let names: Vec<&str> = pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
        let why = match names[..] {
            [name] if name == self.pod => return Ok(pods[0].clone()),
            [] => format!(
                "no pod has the label {selector}: correct {}.pod, or give this pod the label, whose value is its own name",
                USER.section
            ),
            [other] => format!(
                "the label {selector} is that of {other}, which is not this pod: its value must be the name of the pod that \
                 has it"
            ),
            _ => format!(
                "the Service would select {} pods, {}, which have all the label {selector}: leave it to the pod of that \
                 name",
                names.len(),
                names.join(" and ")
            ),
        };
        Err(self.refused(action, why).into())
    }

    async fn endpoints(&self, asking: &Asking<'_>) -> Result<Endpoints, Stop> {
        let slices: Vec<EndpointSlice> = asking.list(&format!("{OF_SERVICE}={}", self.service)).await?;
        Ok(Endpoints::of(&slices))
    }

    /// Writes `pod` into the selector of the version that was read. `false`: there is another version by now.
    async fn select(&self, asking: &Asking<'_>, was: &Service, pod: &str, dry: bool) -> Result<bool, Fault> {
        let patch = json!({
            "metadata": { "resourceVersion": was.metadata.resource_version },
            "spec": { "selector": { &self.label: pod } },
        });
        Ok(asking.patch::<Service>(Place::Own, &self.service, &patch, dry).await?.is_some())
    }

    /// Has the Service select this pod. `true`: it did not before.
    async fn move_here(&self, asking: &Asking<'_>, action: &str) -> Result<bool, Stop> {
        let mut tried = false;
        loop {
            let (service, selected) = self.service(asking, action).await?;
            if selected.as_deref() == Some(&self.pod) {
                // Where it was tried, the answer was lost.
                return Ok(tried);
            }
            tried = true;
            if self.select(asking, &service, &self.pod, false).await? {
                return Ok(true);
            }
        }
    }

    async fn have(&self, asking: &Asking<'_>, action: &str, until: Instant) -> Result<Note, Stop> {
        let own = self.own(asking, action).await?;
        let moved = self.move_here(asking, action).await?;
        let uid = own.metadata.uid.unwrap_or_default();
        loop {
            let found = self.endpoints(asking).await?;
            // Somebody else may have moved it meanwhile.
            let (_, selected) = self.service(asking, action).await?;
            self.is_still_ours(selected, action)?;
            if let Some(addresses) = found.are_only(&self.pod, &uid) {
                // What the signal says from now on.
                self.watched.read().await?;
                let said = if moved { "selects" } else { "selected already" };
                let text = format!(
                    "the Service {} {said} {}, and its endpoints are {addresses} alone",
                    self.service, self.pod
                );
                let note = Note::new(text);
                return Ok(if moved { note.with(PLACED, true) } else { note });
            }
            if until.saturating_duration_since(Instant::now()) <= POLL_INTERVAL {
                let action = format!(
                    "{action} (its selector does; its endpoints were read last as {found}: look whether the cluster's \
                     controller manager runs, and whether somebody else writes EndpointSlices of it)"
                );
                return Err(StepError::Unconfirmed { driver: DRIVER, action, limit: self.timeout }.into());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    fn is_still_ours(&self, selected: Option<String>, action: &str) -> Result<(), StepError> {
        let selected = selected.unwrap_or_else(|| "no pod".to_owned());
        if selected == self.pod {
            return Ok(());
        }
        let why = format!(
            "it selected this pod and then {selected}: find out who else writes its selector (a deployment tool, or an agent \
             that the ledger does not know), and end that"
        );
        Err(self.refused(action, why))
    }

    async fn give_up(&self, asking: &Asking<'_>) -> Result<Note, Stop> {
        loop {
            let Some(service) = asking.get::<Service>(&self.service).await? else {
                return Ok(Note::new(format!("there is no Service {} any more", self.service)));
            };
            let selected = service.spec.as_ref().and_then(|spec| self.selected(spec));
            if selected.as_deref() != Some(&self.pod) {
                self.watched.read().await?;
                let selected = selected.unwrap_or_else(|| "no pod".to_owned());
                return Ok(Note::new(format!("the Service {} selects {selected}", self.service)));
            }
            self.select(asking, &service, NOBODY, false).await?;
        }
    }

    async fn look(&self, asking: &Asking<'_>, action: &str) -> Result<Note, Stop> {
        let (service, selected) = self.service(asking, action).await?;
        self.own(asking, action).await?;
        let found = self.endpoints(asking).await?;
        let selects = selected.unwrap_or_else(|| "no pod".to_owned());
        // It changes nothing; a right that is missing is told.
        self.select(asking, &service, &self.pod, true).await?;
        // So that a right that `here` needs is told as well.
        if let Some(why) = self.watched.settled().await?.and_then(|sight| sight.trouble) {
            return Err(self.failed(action, why).into());
        }
        Ok(Note::new(format!(
            "the Service {} can select {} (it selects {selects}; its endpoints are {found})",
            self.service, self.pod
        )))
    }
}

fn pair((key, value): (&String, &String)) -> String {
    format!("{key}={value}")
}

#[async_trait]
impl Address for ServiceAddress {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn acquire(&self, _epoch: Epoch) -> Result<Note, StepError> {
        let (action, asking) = (self.action(), self.cluster.ask());
        let until = Instant::now() + self.timeout;
        self.within(&asking, &action, self.have(&asking, &action, until)).await
    }

    /// Nothing: the connections are in the tables of other nodes. One that leads to a pod which is dead ends by the
    /// client's own patience, and one to a pod that was fenced once that pod ends.
    async fn reset_clients(&self) -> Result<Note, StepError> {
        Ok(Note::new("Kubernetes leaves open connections to the last owner to their clients"))
    }

    /// Has the Service select nobody, if it selects this pod.
    async fn release(&self) -> Result<Note, StepError> {
        let (action, asking) =
            (format!("have the Service {} select nobody", self.service), self.cluster.ask());
        self.within(&asking, &action, self.give_up(&asking)).await
    }

    async fn here(&self) -> Result<bool, StepError> {
        let action = format!("see which pod the Service {} selects", self.service);
        let sight = self.watched.settled().await.map_err(|fault| self.failed(&action, fault.to_string()))?;
        if let Some(why) = sight.as_ref().and_then(|sight| sight.trouble.clone()) {
            return Err(self.failed(&action, why));
        }
        let selected = sight.and_then(|sight| sight.now).and_then(|service| self.selected(&service.spec?));
        Ok(selected.as_deref() == Some(&self.pod))
    }

    /// Another pod among the endpoints while the Service selects this one. Before that nobody counts: the Service is
    /// taken from whichever pod it selects, and no pod can keep it.
    async fn holder(&self) -> Result<Option<String>, StepError> {
        if !self.here().await? {
            return Ok(None);
        }
        let (action, asking) =
            (format!("read the endpoints of the Service {}", self.service), self.cluster.ask());
        let found = self.within(&asking, &action, self.endpoints(&asking)).await?;
        Ok(found.other_than(&self.pod))
    }

    /// Nothing: the cluster's proxies believe the Service alone.
    async fn defend(&self) -> Result<(), StepError> {
        Ok(())
    }

    async fn check(&self) -> Result<Note, StepError> {
        let (action, asking) = (self.action(), self.cluster.ask());
        self.within(&asking, &action, self.look(&asking, &action)).await
    }
}
