//! What tests of several drivers do with the pod `kafka-1-0` of the namespace `kafka`.

use std::time::Duration;

use async_trait::async_trait;
use fakes::kubernetes::ControlPlane;
use recovery::model::{Moment, Now};
use recovery::ports::Clock;
use serde_json::json;

/// A clock that stands.
pub(crate) struct Still;

#[async_trait]
impl Clock for Still {
    fn now(&self) -> Now {
        Now { mono: Moment(Duration::from_secs(7)), wall: "2026-11-25T03:00:00Z".parse().unwrap() }
    }

    async fn sleep(&self, _duration: Duration) {}
}

/// Makes the pod, on this node or on none yet.
pub(crate) fn make_pod(plane: &ControlPlane, node: Option<&str>) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kafka-1-0"},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "kafka", "image": "kafka"}],
        },
    });
    plane.kubectl(&["-n", "kafka", "apply", "-f", "-"], &pod.to_string()).unwrap();
}

/// The uid of the pod.
pub(crate) fn uid(plane: &ControlPlane) -> String {
    let uid = ["-n", "kafka", "get", "pod", "kafka-1-0", "-o", "jsonpath={.metadata.uid}"];
    plane.kubectl(&uid, "").unwrap()
}

/// Has a node be there, ready or not, as of the second `since` of some minute.
pub(crate) fn make_node(plane: &ControlPlane, name: &str, ready: &str, since: u8) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    plane.kubectl(&["apply", "-f", "-"], &node.to_string()).unwrap();
    let since = format!("2026-11-25T03:00:{since:02}Z");
    let condition = json!({"type": "Ready", "status": ready, "lastTransitionTime": since});
    let patch = json!({"status": {"conditions": [condition]}}).to_string();
    let args = ["patch", "node", name, "--subresource=status", "--type=strategic", "-p", &patch];
    plane.kubectl(&args, "").unwrap();
}

/// Takes the object away, whatever becomes of its containers.
pub(crate) fn delete_pod(plane: &ControlPlane) {
    let delete = ["-n", "kafka", "delete", "pod", "kafka-1-0", "--force", "--grace-period=0"];
    plane.kubectl(&delete, "").unwrap();
}
