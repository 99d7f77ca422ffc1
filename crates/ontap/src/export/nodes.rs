//! Which nodes of ONTAP clients of an SVM may come by, and what can be said of those that are not up.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ontap_client::{Client, Interface, InterfaceQuery, LinkState, Node, NodeState, Visibility};

use super::survey::list;

/// The nodes that clients of an SVM may come by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServingNodes {
    /// Their names.
    pub names: Vec<String>,
    /// Whether the account sees the nodes of the cluster, those of all interfaces of the SVM among them. If
    /// not, they are those of the SVM's interfaces.
    pub by_cluster: bool,
}

/// Every node that clients of the SVM may come by: all of the cluster where they can be seen, and where the
/// SVM's LIFs are or belong. One that a LIF has left may still remember the host when the LIF comes back. One
/// whose partner has taken its storage over serves nobody, and has forgotten everything when it comes back;
/// so has one that is down and is no LIF's. One that is merely not seen may serve; so may one that is said to
/// be taken over while a LIF is said to be there.
///
/// # Errors
/// When ONTAP does not show the interfaces.
pub async fn serving_nodes(client: &Client, svm: &str) -> Result<ServingNodes, ontap_client::Error> {
    Nodes::of(client, svm).await.map(|nodes| nodes.serving)
}

/// The same, with what else is told of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes {
    pub(super) serving: ServingNodes,
    /// Those of `serving` that can be asked what they remember.
    pub(super) up: Vec<String>,
    /// Why some cannot be asked.
    pub(super) unread: Vec<String>,
    /// Those that are down, and where no LIF of the SVM is or belongs.
    pub(super) left_out: Vec<String>,
    /// Where each address of the SVM is now.
    lifs: BTreeMap<IpAddr, String>,
}

impl Nodes {
    pub(super) async fn of(client: &Client, svm: &str) -> Result<Self, ontap_client::Error> {
        let which = InterfaceQuery { svm: Some(svm), service: None };
        let (lifs, nodes) = tokio::join!(client.interfaces(&which), client.nodes());
        let listed = match nodes? {
            Visibility::Visible(nodes) => nodes,
            Visibility::NotVisible { .. } => Vec::new(),
        };
        Ok(Self::told(svm, &lifs?, &listed))
    }

    fn told(svm: &str, lifs: &[Interface], listed: &[Node]) -> Self {
        let mut nodes = Self::default();
        let mut homes = BTreeSet::new();
        for lif in lifs {
            match &lif.location.node.name {
                Some(node) => {
                    let address = lif.ip.address.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
                    nodes.lifs.extend(address.map(|address| (address.to_canonical(), node.clone())));
                    homes.insert(node.clone());
                }
                None => nodes
                    .unread
                    .push(format!("ONTAP does not say on which node the interface {} is", lif.name)),
            }
            homes.extend(lif.location.home_node.name.clone());
        }
        let is_listed = |name: &String| listed.iter().any(|node| node.name == *name);
        let by_cluster = !listed.is_empty() && homes.iter().all(is_listed);
        let mut names: BTreeSet<String> = homes.iter().filter(|name| !is_listed(name)).cloned().collect();
        nodes.up = names.iter().cloned().collect();
        for Node { name, state, .. } in listed {
            match state {
                Some(state @ (NodeState::TakenOver | NodeState::WaitingForGiveback)) => {
                    let there = names_of(lifs, |lif| {
                        lif.location.node.is_named(name) && lif.state != Some(LinkState::Down)
                    });
                    if !there.is_empty() {
                        nodes.unread.push(format!(
                            "ONTAP says that {name} is {state}, and that the interface {} is there",
                            list(&there)
                        ));
                    }
                    continue;
                }
                Some(NodeState::Down) if !homes.contains(name) => {
                    nodes.left_out.push(name.clone());
                    continue;
                }
                Some(NodeState::Up | NodeState::Degraded) => nodes.up.push(name.clone()),
                Some(NodeState::Down) => nodes.unread.push(is_down(svm, name, lifs)),
                Some(state) => nodes.unread.push(format!("{name} is not up, but {state}")),
                None => nodes.unread.push(format!("ONTAP does not say whether {name} is up")),
            }
            names.insert(name.clone());
        }
        nodes.serving = ServingNodes { names: names.into_iter().collect(), by_cluster };
        nodes
    }

    /// The node where an address of the SVM is now.
    pub(super) fn of_lif(&self, address: &str) -> Option<&String> {
        self.lifs.get(&address.parse::<IpAddr>().ok()?.to_canonical())
    }

    /// Those where a LIF of the SVM is now.
    pub(super) fn with_lif(&self) -> BTreeSet<String> {
        self.lifs.values().cloned().collect()
    }

    /// What nobody can tell.
    pub(super) fn beyond(&self) -> Vec<String> {
        let mut beyond = Vec::new();
        if !self.serving.by_cluster {
            beyond.push(
                "what nodes without an interface of the SVM remember (this account does not see the cluster's \
                 nodes, or \
                 not all of them)"
                    .to_owned(),
            );
        }
        let down =
            |name: &String| format!("what {name} remembers (it is down, and no interface of the SVM is its)");
        beyond.extend(self.left_out.iter().map(down));
        beyond
    }
}

fn names_of(lifs: &[Interface], which: impl Fn(&Interface) -> bool) -> Vec<&str> {
    lifs.iter().filter(|lif| which(lif)).map(|lif| lif.name.as_str()).collect()
}

/// What to do about a node that is down: one where no LIF is now need not be taken over.
fn is_down(svm: &str, name: &str, lifs: &[Interface]) -> String {
    if lifs.iter().any(|lif| lif.location.node.is_named(name)) {
        return format!(
            "{name} is down, and its partner has not taken it over: bring it back, or have it taken over"
        );
    }
    let belong = names_of(lifs, |lif| lif.location.home_node.is_named(name));
    format!(
        "{name} is down, and the interface {} belongs there, though it is elsewhere now: bring the node back, or \
         give the \
         interface another home (`network interface modify -vserver {svm} -lif {} -home-node NODE -home-port PORT`)",
        list(&belong),
        belong.first().unwrap_or(&"LIF")
    )
}
