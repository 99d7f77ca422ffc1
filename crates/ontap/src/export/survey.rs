//! Who may reach the volumes, as ONTAP has it configured, and whether that can be understood at all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use ontap_client::{
    Client, ExportRule, Lock, NfsService, PolicyRules, Qtree, Reference, Visibility, VolumeExport,
    is_constituent,
};

use super::{OntapExport, marks};

/// What was read. Four requests, side by side, however many volumes there are.
pub(super) struct Look {
    service: Option<NfsService>,
    volumes: Vec<VolumeExport>,
    policies: Vec<PolicyRules>,
    qtrees: Visibility<Vec<Qtree>>,
}

impl Look {
    pub(super) async fn at(client: &Client, svm: &str, volumes: &[&str]) -> ontap_client::Result<Self> {
        let (service, volumes, policies, qtrees) = tokio::try_join!(
            client.nfs_service(svm),
            client.volume_exports(svm),
            client.export_policy_rules(svm),
            client.qtrees(svm, volumes)
        )?;
        Ok(Self { service, volumes, policies, qtrees })
    }

    /// What is known besides of the SVM whose exports these are.
    pub(super) fn with(&self, exports: Vec<Export>) -> Survey {
        let names = self.volumes.iter().map(|volume| volume.name.clone()).collect();
        let listed = |name: &&String| match &self.qtrees {
            Visibility::Visible(qtrees) => qtrees.iter().any(|qtree| qtree.volume.is_named(name)),
            Visibility::NotVisible { .. } => true,
        };
        let ours = exports.iter().flat_map(|export| &export.volumes);
        let without_qtrees = ours.filter(|name| !listed(name)).cloned().collect();
        let mut others = Vec::new();
        for policy in &self.policies {
            let rules = policy.rules.iter().flatten();
            let addresses = rules.flat_map(|rule| &rule.clients).filter_map(|c| single_address(&c.pattern));
            let clients = addresses.filter(|address| !marks::is_mark(address));
            others.extend(clients.map(|address| (policy.name.clone(), address)));
        }
        Survey { exports, names, without_qtrees, others }
    }

    /// Who may reach the volumes, policy by policy; or everything that speaks against fencing by them.
    pub(super) fn survey(&self, of: &OntapExport) -> Result<Vec<Export>, Vec<String>> {
        let (svm, volumes) = (of.svm.as_str(), of.volumes.as_slice());
        let mut refusals: Vec<String> = self.service_refusal(svm).into_iter().collect();
        refusals.extend(of.paths.iter().filter_map(|path| self.elsewhere(path, volumes)));
        let mut policies: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for name in volumes {
            let volume = self.volumes.iter().find(|volume| volume.name == *name);
            match volume.map(|volume| volume.nas.export_policy.name.as_deref()) {
                Some(Some(policy)) => policies.entry(policy).or_default().push(name),
                Some(None) => refusals.push(format!("ONTAP does not say which export policy {name} has")),
                None => refusals.push(format!("there is no volume {name} in {svm}; correct `volumes`")),
            }
        }
        let mut exports = Vec::new();
        for (policy, of) in policies {
            refusals.extend(of_trident(policy, &of));
            refusals.extend(self.inner_policies(policy, &of));
            match self.export(policy, of, volumes) {
                Ok(export) => exports.push(export),
                Err(why) => refusals.push(why),
            }
        }
        if refusals.is_empty() { Ok(exports) } else { Err(refusals) }
    }

    /// A client that holds a layout may reach data without the rules being asked on its way.
    fn service_refusal(&self, svm: &str) -> Option<String> {
        let Some(service) = &self.service else { return Some(format!("{svm} has no NFS service")) };
        match service.protocol.v41_features.pnfs_enabled {
            Some(false) => None,
            Some(true) => Some(format!(
                "pNFS is on in {svm}, and a client that holds a layout might write past the export rules: switch it \
                 off \
                 (`vserver nfs modify -vserver {svm} -v4.1-pnfs disabled`) and mount again"
            )),
            None => Some(format!("ONTAP does not say whether pNFS is off in {svm}")),
        }
    }

    /// Why an export path is in none of our volumes: the longest junction that it begins with is another
    /// one's.
    fn elsewhere(&self, path: &str, ours: &[String]) -> Option<String> {
        let below = |junction: &str| Path::new(path).starts_with(junction);
        let junctions =
            self.volumes.iter().filter_map(|volume| Some((volume.nas.junction.as_deref()?, volume)));
        let of = junctions.filter(|(junction, _)| below(junction)).max_by_key(|(junction, _)| junction.len());
        match of {
            Some((_, volume)) if ours.contains(&volume.name) => None,
            Some((junction, volume)) => Some(format!(
                "{path} is in the volume {} ({junction}), which is not among `volumes`",
                volume.name
            )),
            None => {
                Some(format!("{path} is in no volume of the SVM: see `volume show -fields junction-path`"))
            }
        }
    }

    /// Volumes of the SVM that have this policy and are not ours, such as a clone that a backup made.
    fn strangers(&self, policy: &str, ours: &[String]) -> Vec<String> {
        let same = self.volumes.iter().filter(|volume| volume.nas.export_policy.is_named(policy));
        let names = same.map(|volume| volume.name.clone());
        names.filter(|name| !ours.iter().any(|our| our == name)).collect()
    }

    /// Qtrees in volumes of this policy over which another one decides: the rule says nothing about them.
    fn inner_policies(&self, policy: &str, volumes: &[&str]) -> Vec<String> {
        let qtrees = match &self.qtrees {
            Visibility::Visible(qtrees) => qtrees,
            Visibility::NotVisible { why } => {
                return vec![format!(
                    "whether a qtree of {} has an export policy of its own cannot be seen ({why}): give the account \
                     the \
                     right to read /api/storage/qtrees",
                    volumes.join(", ")
                )];
            }
        };
        let of = |qtree: &&Qtree| qtree.volume.name.as_deref().is_none_or(|name| volumes.contains(&name));
        let other = |qtree: &Qtree| {
            let name = qtree.name.as_deref().unwrap_or("without a name");
            let Some(volume) = qtree.volume.name.as_deref() else {
                return Some(format!("ONTAP does not say in which volume the qtree {name} is"));
            };
            match qtree.export_policy.name.as_deref() {
                Some(has) if has == policy => None,
                Some(has) => Some(format!(
                    "the qtree {name} of {volume} has the export policy {has} of its own, which the fence does not \
                     change: \
                     give it that of the volume, {policy}"
                )),
                // That of the volume is told of the volume.
                None if qtree.is_the_volume() => None,
                None => {
                    Some(format!("ONTAP does not say which export policy the qtree {name} of {volume} has"))
                }
            }
        };
        qtrees.iter().filter(of).filter_map(other).collect()
    }

    fn export(&self, policy: &str, volumes: Vec<&str>, ours: &[String]) -> Result<Export, String> {
        let Some(found) = self.policies.iter().find(|found| found.name == policy) else {
            return Err(format!("there is no export policy {policy} to be read"));
        };
        let rules = found.rules.as_ref();
        let rules =
            rules.map_err(|why| format!("the rules of export policy {policy} cannot be read: {why}"))?;
        let rule = match rules.as_slice() {
            [one] => one,
            // Nobody would be let in; but an answer that leaves the rules out looks the same.
            [] => {
                return Err(format!(
                    "export policy {policy} has no rule, or ONTAP does not show it to this account: it must have \
                     one, for \
                     nfs4 and the owner alone"
                ));
            }
            more => {
                return Err(format!(
                    "export policy {policy} has {} rules: leave one, for the owner alone",
                    more.len()
                ));
            }
        };
        let (marks, clients) = clients_of(rule, policy)?.into_iter().partition(marks::is_mark);
        let volumes = volumes.into_iter().map(str::to_owned).collect();
        let (policy, strangers) = (policy.to_owned(), self.strangers(policy, ours));
        Ok(Export { policy, id: found.id, rule: rule.clone(), volumes, strangers, clients, marks })
    }
}

/// Why the export policy of these volumes is not one to fence by, if Trident manages it.
///
/// Trident names such a policy (`getExportPolicyName` and `getEmptyExportPolicyName` in its source)
///
/// - `trident-` and the backend's id,
/// - `trident_empty` for a volume that nobody publishes,
/// - or as the volume, which begins with `trident_` by default.
#[must_use]
pub fn of_trident(policy: &str, volumes: &[&str]) -> Option<String> {
    let is_backend = |id: &str| id.len() == 36 && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let of_backend = policy.strip_prefix("trident-").is_some_and(is_backend);
    let of_volume = policy.starts_with("trident_") && volumes.contains(&policy);
    (of_backend || of_volume || policy == "trident_empty").then(|| {
        format!(
            "export policy {policy} is Trident's own, which lets nodes in again whom the fence took out: set \
             `autoExportPolicy: false` in its backend, and give the volumes a policy that nothing else changes"
        )
    })
}

/// The single addresses that a rule is for.
fn clients_of(rule: &ExportRule, policy: &str) -> Result<BTreeSet<IpAddr>, String> {
    if let Some(protocol) = rule.protocols.iter().find(|word| !word.starts_with("nfs") && *word != "any") {
        return Err(format!(
            "the rule of export policy {policy} is for {protocol} too: make it one for nfs4 alone"
        ));
    }
    if rule.clients.is_empty() {
        return Err(format!("ONTAP does not say whom the rule of export policy {policy} is for"));
    }
    let wide = |pattern: &str| {
        format!(
            "the rule of export policy {policy} is for `{pattern}`, which may be more than one host: name single \
             addresses"
        )
    };
    rule.clients
        .iter()
        .map(|client| single_address(&client.pattern).ok_or_else(|| wide(&client.pattern)))
        .collect()
}

/// The one address that a client pattern of an export rule is for: `10.0.0.1` or `10.0.0.1/32`. `None` for
/// what may be more than one host, or is a name.
pub fn single_address(pattern: &str) -> Option<IpAddr> {
    let (address, bits) = match pattern.trim().split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (pattern.trim(), None),
    };
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { "32" } else { "128" };
    bits.is_none_or(|bits| bits == whole).then(|| address.to_canonical())
}

/// Whom an export policy of ours lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) policy: String,
    pub(super) id: u64,
    /// Its rule, as it was read.
    pub(super) rule: ExportRule,
    /// Those of our volumes that have it.
    pub(super) volumes: Vec<String>,
    /// Other volumes that have it. To deny them with ours is safe, since the rule lets in nobody but the
    /// host.
    pub(super) strangers: Vec<String>,
    pub(super) clients: BTreeSet<IpAddr>,
    pub(super) marks: BTreeSet<IpAddr>,
}

impl Export {
    /// Whether one of `host`'s addresses is let in.
    pub(super) fn admits(&self, host: &[IpAddr]) -> bool {
        host.iter().any(|address| self.clients.contains(address))
    }

    /// Whoever is let in and is not `host`.
    pub(super) fn others(&self, host: &[IpAddr]) -> Vec<IpAddr> {
        self.clients.iter().filter(|client| !host.contains(client)).copied().collect()
    }

    /// More than one owner: it is not ours to say which one is right.
    pub(super) fn shared_with(&self, host: &[IpAddr]) -> Option<String> {
        let others = self.others(host);
        if others.is_empty() || !self.admits(host) {
            return None;
        }
        Some(format!(
            "the rule of export policy {} lets {} in beside this host: it must be for one owner; if this very host \
             mounts by them, and no other, name them in `addresses`",
            self.policy,
            list(&others)
        ))
    }

    /// `broker-1: 10.0.0.101` or `broker-1: nobody (epoch 7)`.
    pub(super) fn words(&self) -> String {
        let clients: Vec<IpAddr> = self.clients.iter().copied().collect();
        let who = if clients.is_empty() { "nobody".to_owned() } else { list(&clients) };
        let marks: Vec<IpAddr> = self.marks.iter().copied().collect();
        let epoch = marks::epoch(&marks).map(|epoch| format!(" (epoch {epoch})")).unwrap_or_default();
        format!("{}: {who}{epoch}", self.policy)
    }
}

/// The exports of our volumes, and what is known besides of the SVM.
#[derive(Debug, Clone)]
pub(super) struct Survey {
    pub(super) exports: Vec<Export>,
    /// The names of all volumes of the SVM.
    names: BTreeSet<String>,
    /// Those of our volumes of which no qtree is listed, not even the volume itself.
    without_qtrees: Vec<String>,
    /// Whom the SVM's rules let in: policy and single address.
    pub(super) others: Vec<(String, IpAddr)>,
}

impl Survey {
    /// What was not told of qtrees, which is no reason to refuse: that a volume is listed as its own qtree 0
    /// is documented of the command line alone.
    pub(super) fn beyond(&self) -> Option<String> {
        let what = || {
            let volumes = list(&self.without_qtrees);
            format!(
                "that no qtree of {volumes} has an export policy of its own (ONTAP lists none there at all)"
            )
        };
        (!self.without_qtrees.is_empty()).then(what)
    }

    /// The export of the volume that ONTAP means: one of ours, or a constituent of one.
    fn export_of(&self, volume: &str) -> Option<&Export> {
        let is_own = self.names.contains(volume);
        let is = |ours: &String| ours == volume || (!is_own && is_constituent(ours, volume));
        self.exports.iter().find(|export| export.volumes.iter().any(is))
    }

    /// Whether this is one of our volumes; also where ONTAP does not name it.
    pub(super) fn may_be_ours(&self, volume: &Reference) -> bool {
        volume.name.as_deref().is_none_or(|name| self.export_of(name).is_some())
    }

    /// Whether nobody is let in to the volume.
    fn is_closed(&self, volume: &Reference) -> bool {
        match volume.name.as_deref() {
            Some(name) => self.export_of(name).is_some_and(|export| export.clients.is_empty()),
            None => true,
        }
    }

    /// Whether a lock may be `host`'s. One whose holder ONTAP does not name is, where nobody is let in; where
    /// another host is, it is that one's.
    pub(super) fn may_be_held_by(&self, host: &[IpAddr], lock: &Lock) -> bool {
        match lock.client() {
            Some(client) => self.may_be_ours(&lock.volume) && host.contains(&client),
            None => self.is_closed(&lock.volume),
        }
    }

    /// Our volumes, those that let nobody in first.
    pub(super) fn closed_and_open(&self) -> (Vec<&str>, Vec<&str>) {
        let all = self
            .exports
            .iter()
            .flat_map(|export| export.volumes.iter().map(move |name| (export, name.as_str())));
        let (closed, open): (Vec<_>, Vec<_>) = all.partition(|(export, _)| export.clients.is_empty());
        let names = |of: Vec<(_, _)>| of.into_iter().map(|(_, name)| name).collect();
        (names(closed), names(open))
    }
}

pub(super) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_address_is_one_host() {
        for (pattern, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            (" 10.0.0.1/32", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("FD00::1/128", Some("fd00::1")),
            ("10.0.0.0/24", None),
            ("10.0.0.1/255.255.255.255", None),
            ("0.0.0.0/0", None),
            ("@hosts", None),
            (".example.com", None),
            ("kafka-1", None),
            ("", None),
        ] {
            assert_eq!(
                single_address(pattern),
                expected.map(|address| address.parse().unwrap()),
                "{pattern}"
            );
        }
    }
}
