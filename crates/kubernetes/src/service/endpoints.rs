//! Where a Service leads, by its slices.

use std::fmt;

use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Every endpoint of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoints(Vec<Endpoint>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Endpoint {
    /// `None` for one that is no pod.
    pod: Option<String>,
    /// Of the pod.
    uid: String,
    addresses: Vec<String>,
    /// Whether the cluster sends connections there. A slice that does not say so means yes.
    ready: bool,
}

impl Endpoints {
    pub(super) fn of(slices: &[EndpointSlice]) -> Self {
        let all = slices.iter().flat_map(|slice| &slice.endpoints);
        let endpoints = all.map(|endpoint| {
            let target = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
            Endpoint {
                pod: target.and_then(|target| target.name.clone()),
                uid: target.and_then(|target| target.uid.clone()).unwrap_or_default(),
                addresses: endpoint.addresses.clone(),
                ready: endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false),
            }
        });
        Self(endpoints.collect())
    }

    /// The addresses, if there is at least one, all are of this pod, and all get connections.
    pub(super) fn are_only(&self, pod: &str, uid: &str) -> Option<String> {
        let ours = |one: &Endpoint| one.pod.as_deref() == Some(pod) && one.uid == uid && one.ready;
        let addresses: Vec<&str> = self.0.iter().flat_map(|one| &one.addresses).map(String::as_str).collect();
        (!addresses.is_empty() && self.0.iter().all(ours)).then(|| addresses.join(" and "))
    }

    /// One that is not of this pod.
    pub(super) fn other_than(&self, pod: &str) -> Option<String> {
        self.0.iter().find(|one| one.pod.as_deref() != Some(pod)).map(ToString::to_string)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pod, addresses) = (self.pod.as_deref().unwrap_or("no pod"), self.addresses.join(", "));
        let ready = if self.ready { "" } else { ", not ready" };
        write!(f, "{pod} ({addresses}{ready})")
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        if all.is_empty() { f.write_str("none") } else { f.write_str(&all.join(" and ")) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(endpoints: &[Value]) -> Endpoints {
        let slice = |endpoint: &Value| {
            serde_json::from_value(json!({
                "metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [endpoint]
            }))
            .unwrap()
        };
        Endpoints::of(&endpoints.iter().map(slice).collect::<Vec<_>>())
    }

    fn endpoint(pod: &str, uid: &str, ready: &Value) -> Value {
        json!({
            "addresses": ["10.0.0.7"], "conditions": {"ready": ready},
            "targetRef": {"kind": "Pod", "name": pod, "uid": uid},
        })
    }

    #[test]
    fn only_this_very_pod_that_gets_connections_counts() {
        let own = || endpoint("standby-0", "u1", &json!(true));
        let is = |endpoints: &[Value]| of(endpoints).are_only("standby-0", "u1").is_some();
        assert!(is(&[own()]));
        assert!(is(&[own(), own()]), "one slice for each family of addresses");
        assert!(is(&[endpoint("standby-0", "u1", &Value::Null)]));
        assert!(!is(&[]), "no slice yet");
        assert!(!is(&[endpoint("standby-0", "u1", &json!(false))]), "published, and not ready");
        assert!(!is(&[endpoint("standby-0", "u0", &json!(true))]), "the pod of that name before this one");
        assert!(!is(&[own(), endpoint("kafka-1", "u2", &json!(true))]));
        assert!(!is(&[own(), json!({"addresses": ["192.0.2.1"]})]), "one that somebody wrote by hand");
    }

    #[test]
    fn another_one_is_named() {
        let both = of(&[endpoint("standby-0", "u1", &json!(true)), endpoint("kafka-1", "u2", &json!(false))]);
        assert_eq!(both.other_than("standby-0").unwrap(), "kafka-1 (10.0.0.7, not ready)");
        assert_eq!(of(&[]).to_string(), "none");
        assert_eq!(of(&[json!({"addresses": ["192.0.2.1"]})]).to_string(), "no pod (192.0.2.1)");
    }
}
