//! Kubernetes behind the ports of a recovery: the ledger, a witness, a broker's address, and a taint.
//!
//! - [`KubernetesLedger`] (`kubernetes`) keeps the ledger in custom resources;
//! - [`Nodes`] (`kubernetes_node`) tells what the cluster says of the nodes of hosts;
//! - [`Pods`] (`kubernetes_pod`) tells people what becomes of brokers' own pods;
//! - [`ServiceAddress`] (`kubernetes_service`) has a broker's own Service select the pod of this host;
//! - [`Tainted`] keeps new pods off the node of a host that is fenced by other means, and has no such fence believed
//!   once the pod that the host is was made anew elsewhere;
//! - [`Places`] (`kubernetes_place`) tells where those pods are;
//! - [`definitions_yaml`] is what a cluster needs installed first.
//!
//! Deliberately absent: a fence (a kubelet that is frozen or cut off keeps its containers running), a Lease as a proof
//! (that one has run out proves nothing about its holder), a read that a cache of the API server may answer (no request
//! says `resourceVersion=0`), a retry that may do a thing twice, and any call before the first use.

#[cfg(test)]
mod bed;
mod client;
mod crd;
mod fault;
mod following;
mod ledger;
mod names;
mod node;
mod others;
mod pod;
mod rescheduling;
mod service;
mod taint;
mod watched;
mod whereabouts;

pub use crd::definitions_yaml;
pub use following::Following;
pub use ledger::{KubernetesLedger, KubernetesLedgerConfig};
pub use node::{KubernetesNodeConfig, Nodes};
pub use pod::{KubernetesPodConfig, Pods};
pub use rescheduling::{Rescheduling, ReschedulingConfig};
pub use service::{KubernetesServiceConfig, ServiceAddress};
pub use taint::{KubernetesTaintConfig, Tainted};
pub use whereabouts::{Places, Whereabouts};
