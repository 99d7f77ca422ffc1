//! What can be seen of the assumptions by reading.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ontap::{ServingNodes, serving_nodes};
use ontap_client::{Client, Lock, LockQuery, NfsClient, NfsClientQuery, Qtree, Visibility, is_constituent};
use recovery::ports::chain;

use super::NOBODY;
use super::finding::{Assumption, Findings};
use super::place::Place;

/// How long the list of connected clients is watched: live Kafkas write every 5 s.
const WATCHED: Duration = Duration::from_secs(6);

/// A client that did something within so long is remembered by its node: that is how long an entry lives at
/// least.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Reads everything, one thing after the other: this is for people, not for a takeover. Returns whether an
/// entry of an access cache was shown.
pub(super) async fn look(client: &Client, place: &Place, findings: &mut Findings) -> bool {
    let volumes: Vec<&str> = place.volumes.iter().map(String::as_str).collect();
    system(client, place, findings).await;
    let nodes = nodes(client, place, findings).await;
    let held = locks(client, place, &volumes, findings).await;
    let shown = caches(client, place, (&nodes, &held), findings).await;
    evaluation(client, place, findings).await;
    match client.qtrees(&place.svm, &volumes).await {
        Ok(Visibility::Visible(listed)) => qtrees(&listed, &volumes, findings),
        Ok(Visibility::NotVisible { why }) => findings.differs(Assumption::Qtrees, why),
        Err(error) => findings.differs(Assumption::Qtrees, chain(&error)),
    }
    connected(client, place, findings).await;
    counters(client, place, &volumes, findings).await;
    shown
}

/// Every volume has a qtree without a name, of number 0. Where it is not listed, others may not be either.
fn qtrees(listed: &[Qtree], volumes: &[&str], findings: &mut Findings) {
    let untold = listed.iter().filter(|qtree| {
        qtree.volume.name.is_none() || qtree.export_policy.name.as_deref().is_none_or(str::is_empty)
    });
    let untold = untold.count();
    let unlisted = volumes.iter().filter(|volume| !listed.iter().any(|qtree| qtree.volume.is_named(volume)));
    let unlisted: Vec<&str> = unlisted.copied().collect();
    if untold > 0 {
        let found =
            format!("of {untold} of {} qtrees the volume or the export policy is not told", listed.len());
        findings.differs(Assumption::Qtrees, found);
    } else if !unlisted.is_empty() {
        let found = format!(
            "can be read, but lists none of {}, not even that of the volume itself: whether there is no other is \
             not told",
            unlisted.join(", ")
        );
        findings.not_seen(Assumption::Qtrees, found);
    } else {
        findings.holds(Assumption::Qtrees, format!("can be read; {} in these volumes", listed.len()));
    }
}

async fn system(client: &Client, place: &Place, findings: &mut Findings) {
    match client.cluster().await.map(|cluster| cluster.version) {
        Ok(version) if version.is_at_least(9, 12, 1) => {
            findings.holds(Assumption::Release, version.full.unwrap_or_default());
        }
        Ok(version) => findings.differs(Assumption::Release, format!("{version} is older than 9.12.1")),
        Err(error) => findings.not_seen(Assumption::Release, chain(&error)),
    }
    let service = match client.nfs_service(&place.svm).await {
        Ok(Some(service)) => service,
        Ok(None) => return findings.differs(Assumption::PnfsOff, "the SVM has no NFS service"),
        Err(error) => return findings.differs(Assumption::PnfsOff, chain(&error)),
    };
    match service.protocol.v41_features.pnfs_enabled {
        Some(false) => findings.holds(Assumption::PnfsOff, "it is off"),
        Some(true) => findings.differs(Assumption::PnfsOff, "it is on"),
        None => findings.differs(Assumption::PnfsOff, "ONTAP does not say"),
    }
    let seconds = |told: Option<u32>| told.map_or("not told".to_owned(), |secs| format!("{secs} s"));
    let (lease, grace) = (service.protocol.v4_lease_secs, service.protocol.v4_grace_secs);
    let found = format!("lease {}, grace period {}", seconds(lease), seconds(grace));
    match lease.zip(grace) {
        Some(_) => findings.holds(Assumption::Grace, found),
        None => findings.not_seen(Assumption::Grace, found),
    }
}

async fn nodes(client: &Client, place: &Place, findings: &mut Findings) -> Vec<String> {
    match serving_nodes(client, &place.svm).await {
        Ok(nodes) if nodes.names.is_empty() => {
            findings.differs(Assumption::Nodes, "no node of the SVM is shown");
        }
        Ok(ServingNodes { names, by_cluster }) => {
            let by = match by_cluster {
                true => "as the cluster lists them",
                false => "as the SVM's interfaces name them; this account does not see the cluster's nodes",
            };
            findings.holds(Assumption::Nodes, format!("{}, {by}", names.join(", ")));
            return names;
        }
        Err(error) => findings.differs(Assumption::Nodes, chain(&error)),
    }
    Vec::new()
}

/// What each node remembers of those who are let in now, and of an address that nobody has. That nothing is
/// shown holds nowhere: it is what an account that sees no entry is shown as well. Returns whether one was.
async fn caches(
    client: &Client,
    place: &Place,
    (nodes, held): (&[String], &[Lock]),
    findings: &mut Findings,
) -> bool {
    let policies = match client.volume_exports(&place.svm).await {
        Ok(all) => all
            .into_iter()
            .filter(|volume| place.volumes.contains(&volume.name))
            .filter_map(|volume| volume.nas.export_policy.name)
            .collect::<BTreeSet<_>>(),
        Err(error) => {
            findings.differs(Assumption::CacheByNode, chain(&error));
            return false;
        }
    };
    let (mut said, mut worded, mut wordless) = (Vec::new(), 0, 0);
    for policy in &policies {
        for node in nodes {
            for address in place.addresses.iter().chain([&NOBODY]) {
                match client.access_cache_entry(&place.svm, node, policy, *address).await {
                    Ok(None) => {}
                    Ok(Some(entry)) => {
                        let word = entry.polarity.map(|polarity| polarity.to_string());
                        *(if word.is_some() { &mut worded } else { &mut wordless }) += 1;
                        said.push(format!("{address} on {node}: {}", word.as_deref().unwrap_or("an entry")));
                    }
                    Err(error) => {
                        findings.differs(Assumption::CacheByNode, format!("{node}: {}", chain(&error)));
                        return false;
                    }
                }
            }
        }
    }
    if policies.is_empty() || nodes.is_empty() {
        findings.not_seen(Assumption::CacheByNode, "there is no policy or no node to ask about");
    } else if said.is_empty() {
        no_entries(client, place, held, findings).await;
    } else {
        findings.holds(Assumption::CacheByNode, said.join(", "));
    }
    match (worded, wordless) {
        (0, 0) => findings.not_seen(Assumption::Polarity, "there is no entry"),
        (_, 0) => findings.holds(Assumption::Polarity, "entries say whether they let in"),
        _ => findings.differs(
            Assumption::Polarity,
            format!("{wordless} entries do not say whether they let in: each is taken for one that does"),
        ),
    }
    worded + wordless > 0
}

/// No node shows an entry of any host, though each answers.
async fn no_entries(client: &Client, place: &Place, held: &[Lock], findings: &mut Findings) {
    let which = NfsClientQuery { svm: &place.svm, volume: None, client_ip: None };
    let connected = client.nfs_clients(&which).await.unwrap_or_default();
    let mut at_work: BTreeSet<String> = connected.iter().filter_map(|row| at_work(row, place)).collect();
    if !held.is_empty() {
        at_work.insert(format!("{} locks are held", held.len()));
    }
    if at_work.is_empty() {
        let found = "can be read, and shows nothing; no host is at work that would have to be shown";
        return findings.not_seen(Assumption::CacheByNode, found);
    }
    let at_work = at_work.into_iter().collect::<Vec<_>>().join(", ");
    findings.differs(
        Assumption::CacheByNode,
        format!(
            "no node shows an entry of any host, though {at_work}: that none is shown proves nothing here"
        ),
    );
}

/// Whether a host of ours used a volume of ours so lately that its node remembers it.
fn at_work(row: &NfsClient, place: &Place) -> Option<String> {
    let address = row.client_ip.as_deref()?.parse::<IpAddr>().ok()?.to_canonical();
    let is_of = |name: &str, volume: &String| name == volume || is_constituent(volume, name);
    let ours = row.volume.name.as_deref().is_some_and(|name| place.volumes.iter().any(|of| is_of(name, of)));
    let lately = row.idle.is_some_and(|idle| idle < REMEMBERED);
    (ours && lately && place.addresses.contains(&address)).then(|| format!("{address} is at work"))
}

async fn locks(client: &Client, place: &Place, volumes: &[&str], findings: &mut Findings) -> Vec<Lock> {
    let locks = match client.locks(&LockQuery { volumes, ..LockQuery::in_svm(&place.svm) }).await {
        Ok(locks) => locks,
        Err(error) => {
            findings.differs(Assumption::LocksByVolume, chain(&error));
            return Vec::new();
        }
    };
    if locks.is_empty() {
        findings.not_seen(Assumption::LocksByVolume, "can be read; no lock is held now");
        return locks;
    }
    let named = locks.iter().filter(|lock| lock.client().is_some()).count();
    let words = locks.iter().map(|lock| {
        let protocol = lock.protocol.as_ref().map(ToString::to_string).unwrap_or_default();
        let kind = lock.kind.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("{protocol} {kind}")
    });
    let words = words.collect::<BTreeSet<String>>().into_iter().collect::<Vec<_>>().join(", ");
    findings.holds(
        Assumption::LocksByVolume,
        format!("{} locks, {named} name their client ({words})", locks.len()),
    );
    locks
}

async fn evaluation(client: &Client, place: &Place, findings: &mut Findings) {
    let Some(volume) = place.volumes.first() else {
        return findings.not_seen(Assumption::CheckAccess, "no volume is configured");
    };
    match client.check_access(&place.svm, volume, NOBODY).await {
        Ok(path) if path.last().is_some_and(ontap_client::PathAccess::is_denied) => {
            findings.holds(Assumption::CheckAccess, format!("{NOBODY} is denied {volume}"));
        }
        Ok(path) => {
            findings.differs(Assumption::CheckAccess, format!("of {NOBODY} on {volume} it says {path:?}"));
        }
        Err(error) => findings.not_seen(Assumption::CheckAccess, chain(&error)),
    }
}

/// Whether the list moves while clients work.
async fn connected(client: &Client, place: &Place, findings: &mut Findings) {
    let which = NfsClientQuery { svm: &place.svm, volume: None, client_ip: None };
    let first = client.nfs_clients(&which).await;
    tokio::time::sleep(WATCHED).await;
    let (first, second) = match (first, client.nfs_clients(&which).await) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => {
            return findings.not_seen(Assumption::ConnectedClients, chain(&error));
        }
    };
    let every = client.nfs_client_settings().await.ok().and_then(|settings| settings.update);
    let every =
        every.map_or(String::new(), |every| format!("; ONTAP writes it every {} min", every.as_secs() / 60));
    let count = |list: &[NfsClient]| {
        list.iter().filter_map(|row| Some(row.local_requests? + row.remote_requests?)).sum::<u64>()
    };
    let moved = count(&second).saturating_sub(count(&first));
    let found = format!("{} rows, {moved} requests more within {} s{every}", second.len(), WATCHED.as_secs());
    if moved > 0 {
        findings.holds(Assumption::ConnectedClients, found);
    } else {
        let more = "proof = \"idle\" cannot be met unless it moves while a client works";
        findings.not_seen(Assumption::ConnectedClients, format!("{found}: {more}"));
    }
}

async fn counters(client: &Client, place: &Place, volumes: &[&str], findings: &mut Findings) {
    match client.counters_of(&place.svm, volumes).await {
        Ok(all) => {
            let dated = |name: &&&str| {
                let of = all.iter().find(|one| one.name == **name).and_then(|one| one.statistics.as_ref());
                of.is_some_and(|statistics| statistics.timestamp.is_some())
            };
            let seen = volumes.iter().filter(dated).count();
            let found = format!("{seen} of {} volumes have counters with a date", volumes.len());
            match seen == volumes.len() && seen > 0 {
                true => findings.holds(Assumption::Counters, found),
                false => findings.not_seen(Assumption::Counters, found),
            }
        }
        Err(error) => findings.not_seen(Assumption::Counters, chain(&error)),
    }
}
