//! What fences by export rules ask of the rest of the file: a proof by them speaks of volumes, so every broker that may
//! run on such a host must be known to be on those.

use std::collections::BTreeMap;

use recovery::drivers::fence::{FenceConfig, OntapExportConfig, OntapGrantConfig};
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
) -> Vec<Finding> {
    let mut found = Vec::new();
    for broker in brokers {
        let key = format!("{}.storage", broker.section);
        let Some(grant) = broker.drivers.storage.grant() else {
            found.extend(ungranted(key, fences));
            continue;
        };
        let key = format!("{key}.grant");
        found.extend(fences.get(broker.home).and_then(|ladder| still_let_in(&key, broker.home, ladder)));
        for (host, rung) in
            fences.iter().flat_map(|(host, ladder)| ladder.iter().map(move |rung| (host, rung)))
        {
            let FenceConfig::OntapExport(rung) = rung else { continue };
            // A home takes in its own brokers, and perhaps no other; a standby may take in any.
            let is_a_home = brokers.iter().any(|other| other.home == host);
            if host == broker.home || !is_a_home {
                found.extend(uncovered(&key, broker.id, grant, host, rung));
            }
        }
    }
    found
}

fn ungranted(key: String, fences: &BTreeMap<HostName, Vec<FenceConfig>>) -> Option<Finding> {
    let by_rules = |rung: &FenceConfig| matches!(rung, FenceConfig::OntapExport(_));
    let host = fences.iter().find(|(_, ladder)| ladder.iter().any(by_rules)).map(|(host, _)| host)?;
    let reason = format!(
        "has no grant, and {host} is fenced by export rules: that it is denied volumes would say nothing of this \
         broker's log dirs"
    );
    let remedy = "add [broker.storage.grant] with the broker's volumes, or fence every host in another way";
    Some((key, reason, remedy.to_owned()))
}

fn still_let_in(key: &str, home: &HostName, ladder: &[FenceConfig]) -> Option<Finding> {
    let first = ladder.first()?;
    if matches!(first, FenceConfig::OntapExport(_)) {
        return None;
    }
    let reason = format!(
        "would never let this host in: {home} stays in the rule, for its first fence does not take it out"
    );
    let remedy =
        format!("make ontap_export the first [[host.fence]] of {home}; further ones are tried after it");
    Some((key.to_owned(), reason, remedy))
}

fn uncovered(
    key: &str,
    id: BrokerId,
    grant: &OntapGrantConfig,
    host: &HostName,
    rung: &OntapExportConfig,
) -> Option<Finding> {
    let same_place = grant.ontap.url.trim_end_matches('/') == rung.ontap.url.trim_end_matches('/')
        && grant.svm == rung.svm;
    if !same_place {
        let reason =
            format!("is for another url or svm than the fence of {host}, which broker {id} may run on");
        return Some((key.to_owned(), reason, "give both the same url and svm".to_owned()));
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
