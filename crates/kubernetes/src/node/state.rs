//! What a node says of its machine. Pure.
//!
//! A kubelet that renews its lease lives, and so does its machine; one that does not may be dead, frozen or cut off, and
//! its containers may run. The taint of a shutdown and the removal of a node are a cloud's controller's, which asks the
//! cloud and acts on nodes that are not ready; whoever else may write nodes can do the same, so both count only where
//! the kubelet is silent too.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use recovery::model::MachineState;

/// Put by a cloud's controller on a node whose machine is shut down.
const SHUT_DOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// Put by a person, or by what stands in for one, who says that a machine is out of service.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What is known of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) now: Option<&'a Node>,
    /// What it was last, if there is none any more.
    pub(super) last: Option<&'a Node>,
    /// How long ago its lease was last seen to be renewed.
    pub(super) silence: Duration,
    /// For how long a renewal holds.
    pub(super) limit: Duration,
}

/// What it says of the host's machine; `None` if no such node was ever seen.
pub(super) fn state(seen: &Seen<'_>) -> Option<MachineState> {
    let silent = seen.silence > seen.limit;
    let Some(node) = seen.now else {
        return Some(removed(seen.last?, silent));
    };
    if node.metadata.deletion_timestamp.is_some() {
        return Some(changes("being removed from the cluster's nodes"));
    }
    if taint(node, SHUT_DOWN).is_some() {
        return Some(match silent && !is_ready(node) {
            true => MachineState::Off { state: "shut down, says the cloud's controller".to_owned() },
            false => changes("tainted as shut down, and its kubelet was heard"),
        });
    }
    if silent {
        let seconds = seen.silence.as_secs();
        let more = taint(node, OUT_OF_SERVICE).map_or("", |_| "; somebody has tainted it as out of service");
        return Some(changes(&format!(
            "silent to Kubernetes: its kubelet has not renewed its lease for {seconds} s, and is dead, frozen or cut off\
             {more}"
        )));
    }
    let ails: Vec<String> = not_ready(node)
        .into_iter()
        .chain(taint(node, OUT_OF_SERVICE).map(|_| "it is tainted as out of service".to_owned()))
        .chain(is_cordoned(node).then(|| "it is cordoned".to_owned()))
        .collect();
    Some(match ails.is_empty() {
        true => MachineState::Runs,
        false => MachineState::Ails { why: ails.join("; ") },
    })
}

/// A cloud's controller removes what was not ready, and is not in the cloud any more.
fn removed(last: &Node, silent: bool) -> MachineState {
    let of_a_cloud = last.spec.as_ref().is_some_and(|spec| spec.provider_id.is_some());
    if of_a_cloud && silent && !is_ready(last) {
        return MachineState::Off { state: "no node any more: removed once it was not ready".to_owned() };
    }
    changes("no node any more: somebody has removed it, and its machine may run")
}

fn changes(to: &str) -> MachineState {
    MachineState::Changes { to: to.to_owned() }
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

/// Since when its kubelet is ready, by the cluster's word; `None` while it is not.
pub(crate) fn ready_since(node: &Node) -> Option<String> {
    let condition = ready(node).filter(|condition| condition.status == "True")?;
    let since = condition.last_transition_time.as_ref().map(|time| format!("{time:?}"));
    Some(format!("ready {}", since.unwrap_or_default()))
}

fn is_ready(node: &Node) -> bool {
    ready(node).is_some_and(|condition| condition.status == "True")
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
}

fn not_ready(node: &Node) -> Option<String> {
    let Some(condition) = ready(node) else { return Some("it says nothing of being ready".to_owned()) };
    let why = condition.message.as_deref().or(condition.reason.as_deref()).unwrap_or("without a reason");
    match condition.status.as_str() {
        "True" => None,
        // Its kubelet was silent, and is heard again.
        "Unknown" => Some("the cluster has not heard yet that it is ready again".to_owned()),
        _ => Some(format!("its kubelet says that it is not ready ({why})")),
    }
}

fn taint<'a>(node: &'a Node, key: &str) -> Option<&'a Taint> {
    node.spec.as_ref()?.taints.as_deref()?.iter().find(|taint| taint.key == key)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(ready: &str, spec: &Value) -> Node {
        let condition = json!({"type": "Ready", "status": ready, "message": "container runtime is down"});
        serde_json::from_value(json!({
            "metadata": {"name": "n"}, "spec": spec, "status": {"conditions": [condition]}
        }))
        .unwrap()
    }

    fn said(node: &Node, is_there: bool, silence: u64) -> MachineState {
        let (silence, limit) = (Duration::from_secs(silence), Duration::from_secs(40));
        state(&Seen { now: is_there.then_some(node), last: Some(node), silence, limit }).unwrap()
    }

    fn is_off(state: &MachineState) -> bool {
        matches!(state, MachineState::Off { .. })
    }

    #[test]
    fn a_silent_kubelet_alone_never_makes_a_machine_off() {
        let silent = |node: &Node| {
            let state = said(node, true, 41);
            assert!(matches!(state, MachineState::Changes { .. }), "{state:?}");
            state.to_string()
        };
        for ready in ["True", "Unknown", "False"] {
            let text = silent(&node(ready, &json!({})));
            assert!(
                text.contains("not renewed its lease for 41 s, and is dead, frozen or cut off"),
                "{text}"
            );
        }
        let somebody = json!({"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]});
        assert!(silent(&node("Unknown", &somebody)).ends_with("somebody has tainted it as out of service"));
    }

    #[test]
    fn a_machine_is_off_where_the_clouds_controller_and_the_kubelets_silence_agree() {
        let taint = json!({"taints": [{"key": SHUT_DOWN, "effect": "NoSchedule"}]});
        assert!(is_off(&said(&node("Unknown", &taint), true, 41)));
        for (ready, silence) in [("Unknown", 40), ("True", 41), ("False", 3)] {
            let state = said(&node(ready, &taint), true, silence);
            assert!(matches!(state, MachineState::Changes { .. }), "{ready} {silence}: {state:?}");
        }
        let cloud = json!({"providerID": "aws:///eu-central-1a/i-0a"});
        assert!(is_off(&said(&node("Unknown", &cloud), false, 41)));
        // A person removes what lives, or what no cloud knows.
        for (ready, spec, silence) in
            [("True", &cloud, 41), ("Unknown", &cloud, 40), ("Unknown", &json!({}), 41)]
        {
            let state = said(&node(ready, spec), false, silence);
            assert!(state.to_string().ends_with("its machine may run"), "{state:?}");
            assert!(!is_off(&state));
        }
        let none = Seen { now: None, last: None, silence: Duration::MAX, limit: Duration::ZERO };
        assert_eq!(state(&none), None);
    }

    #[test]
    fn what_ails_a_node_that_is_heard_is_told() {
        assert_eq!(said(&node("True", &json!({})), true, 40), MachineState::Runs);
        let ails = |ready, spec| said(&node(ready, &spec), true, 1).to_string();
        assert_eq!(
            ails("False", json!({})),
            "runs; its kubelet says that it is not ready (container runtime is down)"
        );
        assert_eq!(ails("True", json!({"unschedulable": true})), "runs; it is cordoned");
        assert!(ails("Unknown", json!({})).contains("not heard yet"));
    }
}
