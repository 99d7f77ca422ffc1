//! What `check` says of NFS: who this host's client is beside others', and what its mounts do with open
//! files.

use std::collections::BTreeSet;
use std::sync::Arc;

use drivers::storage::nfs_client::NfsClient;
use recovery::model::{Broker, Check, Fact, HostName, Locks, NfsClientId, human};
use recovery::ports::{Note, Storage};
use tokio::task::JoinSet;

use super::Item;
use crate::world::{self, World};

/// This host's NFS client, beside those of all peers.
pub(super) async fn client(world: Arc<World>) -> Vec<Item> {
    let remedy = "until then a server may take this host for another one, and its locks with it";
    let client = match NfsClient::read() {
        Ok(client) => client,
        Err(error) => return vec![Item::fail(Check::NfsClient, error.to_string(), remedy)],
    };
    let (peers, silent) = peers(&world).await;
    let homes: BTreeSet<HostName> =
        world.topology.brokers.values().map(|broker| broker.home.clone()).collect();
    vec![match client.judge(&world.topology.here, &homes, &peers) {
        Err(why) => Item::fail(Check::NfsClient, why, remedy),
        Ok(mut note) => {
            let names =
                |hosts: Vec<&HostName>| hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            if !peers.is_empty() {
                note = note.and(Note::new(format!(
                    "unlike {}",
                    names(peers.iter().map(|(host, _)| host).collect())
                )));
            }
            if !silent.is_empty() {
                note = note.warn([format!(
                    "{} told nothing of theirs, so that a clone would not be noticed",
                    names(silent.iter().collect())
                )]);
            }
            Item::note(Check::NfsClient, &note)
        }
    }]
}

/// Who the clients of the peers are, and who did not tell.
async fn peers(world: &Arc<World>) -> (Vec<(HostName, NfsClientId)>, Vec<HostName>) {
    let mut asked = JoinSet::new();
    for signal in &world.signals {
        if let Some(host) = signal.name().strip_prefix("peer ") {
            let (host, signal, clock) = (HostName::from(host), signal.clone(), world.ports.clock.clone());
            asked.spawn(async move { (host, signal.look(clock.as_ref()).await) });
        }
    }
    let (mut told, mut silent) = (Vec::new(), Vec::new());
    for (host, evidence) in asked.join_all().await {
        let found = evidence.into_iter().find_map(|evidence| match evidence.fact {
            Fact::Peer(view) => view.nfs_client,
            _ => None,
        });
        match found {
            Some(id) => told.push((host, id)),
            None => silent.push(host),
        }
    }
    told.sort_by(|one, other| one.0.cmp(&other.0));
    silent.sort();
    (told, silent)
}

/// See [`unlinks`].
pub(super) async fn unlinked(world: Arc<World>, broker: Broker) -> Vec<Item> {
    let Some(storage) = world.ports.storage.get(&broker.id) else { return Vec::new() };
    vec![unlinks(&world, &broker, storage.as_ref()).await]
}

/// What becomes of open files that are unlinked. It takes writing, so it is tried by the broker's owner
/// alone.
async fn unlinks(world: &World, broker: &Broker, storage: &dyn Storage) -> Item {
    let item = Check::Unlinks(broker.id);
    let standing = world::standing(world.ports.ledger.as_ref(), &world.topology, broker.id).await;
    let not_tried = |why: String| {
        let says =
            format!("not tried from here, because {why}: run `understudy check` on the broker's owner");
        Item::ok(&item, says)
    };
    match standing {
        Err(error) => return not_tried(format!("the ledger does not say who may write ({error:#})")),
        Ok(standing) if standing.writers.iter().any(|host| *host != world.topology.here) => {
            return not_tried(format!("{} has the broker", standing.owner));
        }
        Ok(_) => {}
    }
    match storage.unlinks().await {
        Ok(note) => Item::note(&item, &note),
        Err(error) => not_tried(recovery::ports::chain(&error)),
    }
}

/// What the lock that a dead owner leaves behind costs a takeover. `None`: its storage keeps none.
pub(super) fn lease(world: &World, broker: &Broker) -> Option<Item> {
    let item = Check::Lease(broker.id);
    let Locks { at_most, lease, told, broken } = broker.locks;
    let lease = lease?;
    if world.topology.unlocked.contains(&broker.home) {
        return Some(Item::ok(
            item,
            format!("the fence of {} breaks it: nobody waits for the lease", broker.home),
        ));
    }
    if broken {
        return Some(Item::ok(
            item,
            "ONTAP is told to break it, should the fence have left it: nobody waits for the lease",
        ));
    }
    let shorter = "have the fence ontap_export first, which breaks locks, or a shorter lease on the server (ONTAP: `vserver nfs \
                   modify -v4-lease-seconds 10`, default 30; Linux: /proc/fs/nfsd/nfsv4leasetime, default 90; nfs-ganesha: \
                   Lease_Lifetime, default 60)";
    let (shown, most) = (human(lease), human(at_most));
    if told && lease > at_most {
        let says = format!(
            "the server keeps it for {shown}, and a takeover waits for {most} at most: it would be abandoned"
        );
        return Some(Item::fail(
            item,
            says,
            "raise [broker.storage] lock_wait above the server's lease and grace period",
        ));
    }
    let says = match told {
        true => format!(
            "the server keeps it until its lease of {shown} is over, and a takeover waits for that before Kafka starts"
        ),
        false => format!(
            "a takeover waits for the server's lease before Kafka starts, {most} at most; how long that is this host cannot tell, \
             for it has nothing mounted from there"
        ),
    };
    Some(Item::warn(item, says, shorter))
}

#[cfg(test)]
mod tests {
    use drivers::health_signal::kafka_logs::KafkaLogs;
    use recovery::model::Verdict;

    use super::*;

    fn host(name: &str) -> World {
        let mut topology = fakes::World::topology();
        topology.here = name.into();
        let ports = fakes::World::new().ports();
        let (logs, policy) = (KafkaLogs::new(kafka::Dialer::plaintext(), [].into()), fakes::World::policy());
        World { topology, policy, ports, signals: Vec::new(), logs, clients: Arc::default() }
    }

    async fn tried(world: &World) -> Item {
        let broker = world.topology.brokers.values().next().unwrap();
        unlinks(world, broker, world.ports.storage[&broker.id].as_ref()).await
    }

    #[test]
    fn what_a_lease_costs_is_said_and_how_to_avoid_it() {
        let said = |locks: Locks, unlocked: bool| {
            let mut world = host("standby-1");
            world.topology.unlocked.extend(unlocked.then(|| HostName::from("kafka-1")));
            let broker = Broker { locks, ..world.topology.brokers.values().next().unwrap().clone() };
            lease(&world, &broker)
        };
        let seconds = std::time::Duration::from_secs;
        let locks = |lease, told| Locks { lease: Some(seconds(lease)), told, ..Locks::default() };
        assert!(said(Locks::default(), false).is_none(), "local storage keeps no lock");
        let told = said(locks(60, true), false).unwrap();
        assert_eq!(told.verdict, Verdict::Warn);
        assert!(
            told.says.contains("its lease of 1 min") && told.remedy.contains("v4-lease-seconds"),
            "{told:?}"
        );
        let unknown = said(locks(180, false), false).unwrap();
        assert!(unknown.verdict == Verdict::Warn && unknown.says.contains("3 min at most"), "{unknown:?}");
        let short = said(locks(300, true), false).unwrap();
        assert!(short.verdict == Verdict::Fail && short.remedy.contains("lock_wait"), "{short:?}");
        assert_eq!(said(locks(60, true), true).unwrap().verdict, Verdict::Ok);
        let broken = said(Locks { broken: true, ..locks(60, true) }, false).unwrap();
        assert_eq!(broken.verdict, Verdict::Ok);
    }

    #[tokio::test]
    async fn only_the_owner_writes_to_a_log_dir_to_try_it() {
        let standby = tried(&host("standby-1")).await;
        assert_eq!(standby.verdict, Verdict::Ok);
        assert!(standby.says.contains("kafka-1 has the broker"), "{}", standby.says);
        let owner = tried(&host("kafka-1")).await;
        assert_eq!(owner.says, "open files go when they are unlinked");
    }

    #[tokio::test]
    async fn nothing_is_tried_while_the_ledger_is_silent() {
        let fake = fakes::World::new();
        let mut world = host("kafka-1");
        world.ports = fake.ports();
        fake.truth().ledger_down = true;
        let item = tried(&world).await;
        assert!(item.says.contains("the ledger does not say"), "{}", item.says);
    }
}
