//! Whether ZooKeeper can be asked, in a cluster that has no controllers of its own.

use drivers::cluster::zookeeper::ZooKeepers;
use recovery::model::{BrokerId, Check};

use super::Item;

/// Whether ZooKeeper tells who is registered, in the place that the cluster has there.
pub(super) async fn look(zookeeper: ZooKeepers, guarded: Vec<BrokerId>) -> Vec<Item> {
    let item = Check::Controller("ZooKeeper".to_owned());
    let remedy = "until it answers, a takeover waits for the dead broker's session: let this host reach it, and correct \
                  cluster.zookeeper, which ends with the chroot of zookeeper.connect where that has one, and \
                  [cluster.zookeeper_security], which has protocol = \"SSL\" or \"SASL_SSL\" where the brokers have \
                  zookeeper.ssl.client.enable=true";
    let (registered, controller) = match zookeeper.look().await {
        Ok(seen) => seen,
        Err(why) => return vec![Item::warn(item, why, remedy)],
    };
    if guarded.iter().all(|id| !registered.contains(id)) {
        let says = format!("none of the guarded brokers is registered in {zookeeper}");
        return vec![Item::warn(item, says, remedy)];
    }
    let names = registered.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let controller = controller.map_or_else(|| "none".to_owned(), |id| id.to_string());
    vec![Item::ok(
        item,
        format!("brokers {names} are registered in {zookeeper}; the controller is {controller}"),
    )]
}
