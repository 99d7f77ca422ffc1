//! What a cluster's nodes are configured with.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::cluster::ClusterSpec;
use super::node::{BROKER_PORT, CONTROLLER_PORT, Node};
use super::secured::{BETWEEN_PORT, Secured};
use super::zookeeper::{SecuredZooKeeper, Server};

pub(super) type Properties = Vec<(String, String)>;

/// As `id@host:port`: the controllers, or the brokers where there are no others.
pub(super) fn voters(controllers: &[Node], brokers: &[Node]) -> Vec<String> {
    let voters = if controllers.is_empty() { brokers } else { controllers };
    let at = |node: &Node| SocketAddr::from((node.ip, CONTROLLER_PORT));
    voters.iter().map(|node| format!("{}@{}", node.id, at(node))).collect()
}

pub(super) fn owned<const N: usize>(entries: [(&str, String); N]) -> Properties {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Who holds the cluster together.
#[derive(Debug, Clone, Copy)]
pub(super) enum By<'a> {
    /// Controllers of its own, as voters.
    Controllers(&'a [String]),
    /// ZooKeeper.
    ZooKeeper(&'a Server),
}

impl By<'_> {
    fn properties(self) -> Properties {
        match self {
            By::Controllers(voters) => owned([
                ("controller.quorum.voters", voters.join(",")),
                ("controller.listener.names", "CONTROLLER".to_owned()),
                ("listener.security.protocol.map", "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned()),
            ]),
            By::ZooKeeper(server) => {
                let mut properties = owned([("zookeeper.connect", server.address().to_string())]);
                properties.extend(server.secured().map(SecuredZooKeeper::of_brokers).unwrap_or_default());
                properties
            }
        }
    }

    fn id(self) -> &'static str {
        match self {
            By::Controllers(_) => "node.id",
            By::ZooKeeper(_) => "broker.id",
        }
    }
}

pub(super) fn common(spec: &ClusterSpec, secured: Option<&Secured>, by: By<'_>) -> Properties {
    let internal = spec.brokers.min(3).to_string();
    let mut properties = by.properties();
    properties.extend(owned([
        ("auto.create.topics.enable", "false".to_owned()),
        ("offsets.topic.replication.factor", internal.clone()),
        ("offsets.topic.num.partitions", "5".to_owned()),
        ("transaction.state.log.replication.factor", internal),
        ("transaction.state.log.num.partitions", "5".to_owned()),
        ("group.initial.rebalance.delay.ms", "0".to_owned()),
    ]));
    properties.extend(secured.map(Secured::of_all).unwrap_or_default());
    properties
}

pub(super) fn of_controller(
    spec: &ClusterSpec,
    secured: Option<&Secured>,
    node: &Node,
    common: &Properties,
) -> Properties {
    let mut properties = owned([
        ("process.roles", "controller".to_owned()),
        ("node.id", node.id.to_string()),
        ("listeners", format!("CONTROLLER://{}", node.address())),
        ("log.dirs", node.mount_point()),
    ]);
    properties.extend(common.iter().cloned());
    properties.extend(secured.map(|secured| secured.of_node(node.id)).unwrap_or_default());
    properties.extend(spec.controller_properties.iter().cloned());
    properties
}

pub(super) fn of_broker(
    spec: &ClusterSpec,
    secured: Option<&Secured>,
    by: By<'_>,
    node: &Node,
    common: &Properties,
) -> Properties {
    let mut properties = template(spec, secured, by, common);
    let mut listeners = brokers_listeners(secured, Some(node.ip));
    if spec.combined {
        listeners.push(format!("CONTROLLER://{}:{CONTROLLER_PORT}", node.ip));
    }
    properties.extend(owned([
        (by.id(), node.id.to_string()),
        ("listeners", listeners.join(",")),
        ("advertised.listeners", listeners.join(",")),
        ("log.dirs", node.all_log_dirs().join(",")),
    ]));
    properties.extend(secured.map(|secured| secured.of_node(node.id)).unwrap_or_default());
    properties
}

/// What identifies a broker is put in by whoever starts one.
pub(super) fn template(
    spec: &ClusterSpec,
    secured: Option<&Secured>,
    by: By<'_>,
    common: &Properties,
) -> Properties {
    let (roles, listeners) = match spec.combined {
        // As a standby has them that was made for a broker of its own: at an address which no host here has.
        true => {
            let own = Ipv4Addr::new(192, 0, 2, 31);
            let mut listeners = brokers_listeners(secured, Some(own));
            listeners.push(format!("CONTROLLER://{own}:{CONTROLLER_PORT}"));
            ("broker,controller", listeners)
        }
        false => ("broker", brokers_listeners(secured, None)),
    };
    let mut properties = owned([("listeners", listeners.join(","))]);
    if let By::Controllers(_) = by {
        properties.extend(owned([("process.roles", roles.to_owned())]));
    }
    properties.extend(common.iter().cloned());
    properties.extend(secured.map(Secured::of_brokers).unwrap_or_default());
    properties.extend(spec.properties.iter().cloned());
    properties
}

/// A broker's listeners at `ip`, or at every address.
fn brokers_listeners(secured: Option<&Secured>, ip: Option<Ipv4Addr>) -> Vec<String> {
    let at = |name: &str, port: u16| match ip {
        Some(ip) => format!("{name}://{}", SocketAddr::from((IpAddr::from(ip), port))),
        None => format!("{name}://:{port}"),
    };
    match secured {
        None => vec![at("PLAINTEXT", BROKER_PORT)],
        Some(_) => vec![at("CLIENTS", BROKER_PORT), at("BROKERS", BETWEEN_PORT)],
    }
}
