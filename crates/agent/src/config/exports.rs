//! What fences by export rules ask of the rest of the file: a proof by them speaks of volumes, so every
//! broker that may run on such a host must be known to be on those.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::config::FenceConfig;
use ontap::{OntapExportConfig, OntapGrantConfig};
use recovery::model::{BrokerId, HostName};

use super::BrokerConfig;

/// A broker, where it lives and how its log dirs come to a host.
pub(super) struct Guarded<'c> {
    pub(super) section: &'c str,
    pub(super) id: BrokerId,
    pub(super) home: &'c HostName,
    pub(super) drivers: &'c BrokerConfig,
}

/// Key, what is wrong, what to do.
pub(super) type Finding = (String, String, String);

/// Everything that would make a proof by export rules worth nothing, or a grant impossible.
pub(super) fn findings(
    brokers: &[Guarded<'_>],
    fences: &BTreeMap<HostName, Vec<FenceConfig>>,
    here: Option<&HostName>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for broker in brokers {
        // A home takes in its own brokers, and perhaps no other; a standby may take in any.
        let is_anothers_home = |host: &HostName| brokers.iter().any(|other| other.home == host);
        let may_run_it = |host: &HostName| host == broker.home || !is_anothers_home(host);
        let ladders = fences.iter().filter(|(host, ladder)| !ladder.is_empty() && Some(*host) != here);
        let ladders = ladders.filter(|(host, _)| may_run_it(host));
        let key = format!("{}.storage", broker.section);
        let Some(grant) = broker.drivers.storage.as_ref().and_then(|storage| storage.grant()) else {
            found.extend(ladders.filter_map(|(host, ladder)| ungranted(&key, host, ladder)).next());
            continue;
        };
        let key = format!("{key}.grant");
        found.extend(ladders.filter_map(|(host, ladder)| uncovered(&key, broker.id, grant, host, ladder)));
        let others = fences.iter().filter(|(host, _)| Some(*host) != here);
        found.extend(others.filter_map(|(host, ladder)| lets_in_again(&key, grant, host, ladder)));
    }
    found
}

fn by_rules(ladder: &[FenceConfig]) -> impl Iterator<Item = &OntapExportConfig> {
    ladder.iter().filter_map(|rung| match rung {
        FenceConfig::OntapExport(rung) => Some(&**rung),
        _ => None,
    })
}

fn ungranted(key: &str, host: &HostName, ladder: &[FenceConfig]) -> Option<Finding> {
    by_rules(ladder).next()?;
    let reason = format!(
        "has no grant, and {host} is fenced by export rules: that it is denied volumes would say nothing of this \
         broker's log dirs"
    );
    let remedy = "add [broker.storage.grant] with the broker's volumes, or fence every host in another way";
    Some((key.to_owned(), reason, remedy.to_owned()))
}

/// The grant lets in nobody whom the fence of another host takes out.
fn lets_in_again(
    key: &str,
    grant: &OntapGrantConfig,
    host: &HostName,
    ladder: &[FenceConfig],
) -> Option<Finding> {
    let fenced = |address: &&IpAddr| {
        by_rules(ladder)
            .flat_map(|rung| &rung.addresses)
            .any(|other| other.to_canonical() == address.to_canonical())
    };
    let address = grant.addresses.iter().find(fenced)?;
    let reason =
        format!("{address} is an address of {host} too, which it would let in again after that was fenced");
    let remedy =
        "name the addresses by which this host alone mounts: an address that moves with a broker is not one";
    Some((format!("{key}.addresses"), reason, remedy.to_owned()))
}

fn uncovered(
    key: &str,
    id: BrokerId,
    grant: &OntapGrantConfig,
    host: &HostName,
    ladder: &[FenceConfig],
) -> Option<Finding> {
    let Some(FenceConfig::OntapExport(rung)) = ladder.first() else {
        let reason = format!(
            "would never let this host in once broker {id} ran on {host}, which stays in the rule: its first fence does \
             not take it out"
        );
        let remedy =
            format!("make ontap_export the first [[host.fence]] of {host}; further ones are tried after it");
        return Some((key.to_owned(), reason, remedy));
    };
    let same_place = grant.ontap.place() == rung.ontap.place() && grant.svm == rung.svm;
    if !same_place {
        let reason =
            format!("is for another ONTAP or svm than the fence of {host}, which broker {id} may run on");
        let remedy =
            "give both the same url (or fsx) and svm; brokers on several SVMs need standbys of their own";
        return Some((key.to_owned(), reason, remedy.to_owned()));
    }
    let missing: Vec<&str> =
        grant.volumes.iter().filter(|volume| !rung.volumes.contains(volume)).map(String::as_str).collect();
    if missing.is_empty() {
        return None;
    }
    let missing = missing.join(", ");
    let reason = format!(
        "{missing}: not among the volumes that the fence of {host} denies, which broker {id} may run on"
    );
    Some((
        format!("{key}.volumes"),
        reason,
        format!("add {missing} to `volumes` in the ontap_export of {host}"),
    ))
}
