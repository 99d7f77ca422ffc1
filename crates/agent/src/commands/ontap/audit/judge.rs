//! Facts → findings. Pure: what is read, and how, is in `facts.rs`.

use ontap_client::{Aggregate, Efficiency, NfsService, NfsState, PolicyRules, Version, Volume};

use super::super::facts::Facts;
use super::super::sites::Site;
use super::exports::exports;
use super::finding::{About, Check, Finding, Notes, Saving};
use super::network::{connections, lifs};
use super::volumes::volumes;

/// A volume or aggregate that is fuller is worth a look (percent).
pub(super) const SPACE_WARN_PERCENT: u64 = 80;

/// A volume or aggregate that is fuller may stop brokers before anybody has looked (percent).
pub(super) const SPACE_FAIL_PERCENT: u64 = 90;

/// The largest read or write of TR-4947's measurements, in bytes.
const TRANSFER_BYTES: u32 = 262_144;

/// Everything about one SVM and its brokers' volumes.
pub(crate) fn judge(site: &Site, facts: &Facts) -> Vec<Finding> {
    let svm = &site.svm;
    let mut system = Notes::on(About { ontap: Some(site.ontap.place()), ..About::default() });
    release(&mut system, facts);
    let about = About { ontap: Some(site.ontap.place()), svm: Some(svm.clone()), ..About::default() };
    let mut notes = Notes::on(about.clone());
    match &facts.service {
        Ok(service) => self::service(&mut notes, svm, service.as_ref()),
        Err(why) => [Check::Nfs41, Check::Pnfs, Check::TransferSize]
            .into_iter()
            .for_each(|check| notes.unread(check, why)),
    }
    root_export(&mut notes, svm, facts);
    lifs(&mut notes, site, facts);
    aggregates(&mut notes, site, facts);
    let mut findings = system.into_findings();
    findings.extend(notes.into_findings());
    for broker in &site.brokers {
        let about = About { broker: Some(broker.id), ..about.clone() };
        let mut notes = Notes::on(about.clone());
        let owners = exports(&mut notes, svm, broker, facts);
        connections(&mut notes, svm, broker, &owners, facts);
        findings.extend(notes.into_findings());
        findings.extend(volumes(&about, svm, broker, facts));
    }
    findings
}

fn release(notes: &mut Notes, facts: &Facts) {
    let version = match &facts.release {
        Ok(version) => version,
        Err(why) => return notes.unread(Check::Release, why),
    };
    if *version == Version::default() {
        return notes.not_said(Check::Release, "which release it is");
    }
    if version.is_at_least(9, 12, 1) {
        return notes.pass(Check::Release, format!("ONTAP {version}"));
    }
    let remedy = "cluster image update -version 9.12.1 (or newer)";
    notes.fail(Check::Release, format!("ONTAP {version} is older than 9.12.1"), remedy);
}

fn service(notes: &mut Notes, svm: &str, service: Option<&NfsService>) {
    let Some(service) = service else {
        let remedy = format!("vserver nfs create -vserver {svm} -v4.1 enabled");
        return notes.fail(
            Check::Nfs41,
            format!("{svm} has no NFS service that this account can see"),
            remedy,
        );
    };
    let off = service.enabled == Some(false) || service.state == Some(NfsState::Offline);
    match service.protocol.v41_enabled {
        _ if off => {
            let remedy = format!("vserver nfs on -vserver {svm}");
            notes.fail(Check::Nfs41, "the NFS service is switched off", remedy);
        }
        Some(true) => notes.pass(Check::Nfs41, "NFSv4.1 is on"),
        Some(false) => {
            let remedy = format!("vserver nfs modify -vserver {svm} -v4.1 enabled");
            notes.fail(Check::Nfs41, "NFSv4.1 is off", remedy);
        }
        None => notes.not_said(Check::Nfs41, "whether NFSv4.1 is on"),
    }
    match service.protocol.v41_features.pnfs_enabled {
        Some(false) => notes.pass(Check::Pnfs, "pNFS is off"),
        Some(true) => {
            let remedy = format!(
                "vserver nfs modify -vserver {svm} -v4.1-pnfs disabled; then mount anew on every broker host, one by one"
            );
            notes.fail(Check::Pnfs, "pNFS is on", remedy);
        }
        None => notes.not_said(Check::Pnfs, "whether pNFS is off"),
    }
    match service.transport.tcp_max_transfer_bytes {
        Some(bytes) if bytes >= TRANSFER_BYTES => notes.pass(Check::TransferSize, format!("{bytes} bytes")),
        Some(bytes) => {
            let remedy = format!(
                "set -privilege advanced; vserver nfs modify -vserver {svm} -tcp-max-xfer-size {TRANSFER_BYTES}; then \
                 mount anew"
            );
            notes.warn(Check::TransferSize, format!("{bytes} bytes, less than {TRANSFER_BYTES}"), remedy);
        }
        None => notes.not_said(Check::TransferSize, "how large a read or write may be"),
    }
}

/// Whether anybody may read the SVM's root. Whether each owner may is not worked out: rules may be for
/// netgroups.
fn root_export(notes: &mut Notes, svm: &str, facts: &Facts) {
    let (all, policies) = match (&facts.volumes, &facts.policies) {
        (Ok(volumes), Ok(policies)) => (volumes, policies),
        (Err(why), _) | (_, Err(why)) => return notes.unread(Check::RootExport, why),
    };
    let root = all.iter().find(|volume| volume.nas.junction.as_deref() == Some("/"));
    let Some((root, policy)) = root.and_then(|root| Some((root, root.nas.export_policy.name.as_deref()?)))
    else {
        return notes.not_said(Check::RootExport, &format!("which volume is the root of {svm}"));
    };
    let rules = policies.iter().find(|found| found.name == policy);
    match rules.map(|found| found.rules.as_ref().map(Vec::len)) {
        Some(Err(why)) => {
            notes.not_said(Check::RootExport, &format!("whom export policy {policy} lets in: {why}"));
        }
        Some(Ok(0)) | None => {
            let remedy = format!(
                "vserver export-policy rule create -vserver {svm} -policyname {policy} -clientmatch 0.0.0.0/0 -protocol \
                 nfs4 -rorule sys -rwrule never -superuser none (or name your hosts' subnet: reading is enough)"
            );
            let found = format!(
                "export policy {policy} of the root volume {} has no rule, or ONTAP does not show it",
                root.name
            );
            notes.warn(Check::RootExport, found, remedy);
        }
        Some(Ok(rules)) => {
            let found = format!("export policy {policy} of the root volume {} has {rules} rules", root.name);
            notes.pass(Check::RootExport, found);
        }
    }
}

/// Those that the brokers' volumes lie on.
fn aggregates(notes: &mut Notes, site: &Site, facts: &Facts) {
    let all = match &facts.aggregates {
        Ok(all) => all,
        Err(why) => return notes.unread(Check::AggregateSpace, why),
    };
    let volumes = facts.volumes.as_deref().unwrap_or_default();
    let ours = ours(site, volumes);
    let used: Vec<&Aggregate> = all
        .iter()
        .filter(|aggregate| ours.iter().any(|v| v.aggregates.iter().any(|a| a.is_named(&aggregate.name))))
        .collect();
    if used.is_empty() {
        return notes.not_said(Check::AggregateSpace, "on which aggregates the volumes lie");
    }
    for aggregate in used {
        let blocks = &aggregate.space.block_storage;
        let (name, percent) = (&aggregate.name, percent(blocks.used_bytes, blocks.size_bytes));
        let remedy = || {
            format!(
                "storage aggregate add-disks -aggregate {name} -diskcount <N>, or move volumes: volume move start"
            )
        };
        match percent {
            None => notes.not_said(Check::AggregateSpace, &format!("how full {name} is")),
            Some(percent) => {
                full(notes, Check::AggregateSpace, percent, &format!("{name} is {percent} % used"), remedy);
            }
        }
        // Everything that lies on it, snapshots and clones counted in.
        let efficiency = aggregate.space.efficiency.as_ref();
        notes.saving(Saving {
            logical_bytes: efficiency.and_then(|of| of.logical_used_bytes),
            physical_bytes: efficiency.and_then(Efficiency::physical_used_bytes),
        });
    }
}

/// The brokers' volumes that are there.
pub(super) fn ours<'a>(site: &Site, volumes: &'a [Volume]) -> Vec<&'a Volume> {
    let names: Vec<&String> = site.brokers.iter().flat_map(|broker| &broker.volumes).collect();
    volumes.iter().filter(|volume| names.contains(&&volume.name)).collect()
}

/// Rounded up, so that a limit is not passed unseen.
pub(super) fn percent(used: Option<u64>, size: Option<u64>) -> Option<u64> {
    let size = size.filter(|size| *size > 0)?;
    Some(u64::try_from((u128::from(used?) * 100).div_ceil(u128::from(size))).unwrap_or(u64::MAX))
}

/// Notes how full something is.
pub(super) fn full(notes: &mut Notes, check: Check, percent: u64, found: &str, remedy: impl Fn() -> String) {
    if percent >= SPACE_FAIL_PERCENT {
        notes.fail(check, format!("{found}, and {SPACE_FAIL_PERCENT} % is too much"), remedy());
    } else if percent >= SPACE_WARN_PERCENT {
        notes.warn(check, format!("{found}, more than {SPACE_WARN_PERCENT} %"), remedy());
    } else {
        notes.pass(check, found);
    }
}

/// The policy of this name.
pub(super) fn policy<'a>(policies: &'a [PolicyRules], name: &str) -> Option<&'a PolicyRules> {
    policies.iter().find(|policy| policy.name == name)
}
