//! What is asked of each volume by itself.

use drivers::storage::MountConfig;
use ontap_client::{Volume, VolumeState};

use super::super::facts::Facts;
use super::super::sites::Guarded;
use super::finding::{About, Check, Finding, Notes, Saving};
use super::judge::{full, percent};

/// What a grown volume should be filled to, in percent.
const COMFORT_PERCENT: u64 = 70;

/// Those of the broker, in the configuration's order.
pub(super) fn volumes(about: &About, svm: &str, broker: &Guarded, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let all = match &facts.volumes {
        Ok(all) => all,
        Err(why) => {
            let mut notes = Notes::on(about.clone());
            notes.unread(Check::Volume, why);
            [Check::Junction, Check::SnapshotPolicy, Check::Space, Check::Efficiency]
                .into_iter()
                .for_each(|check| notes.unread(check, why));
            findings.extend(notes.into_findings());
            &Vec::new()
        }
    };
    for name in &broker.volumes {
        let mut notes = Notes::on(About { volume: Some(name.clone()), ..about.clone() });
        if let Some(volume) = all.iter().find(|volume| volume.name == *name) {
            state(&mut notes, svm, volume);
            junction(&mut notes, svm, volume, broker);
            snapshots(&mut notes, svm, volume);
            space(&mut notes, svm, volume);
            efficiency(&mut notes, svm, volume);
            let logical_bytes = volume.space.logical_space.used_bytes;
            notes.saving(Saving { logical_bytes, physical_bytes: volume.space.physical_used_bytes });
        } else if facts.volumes.is_ok() {
            let found = format!("{svm} has no such volume, or this account is not shown it");
            let remedy =
                "correct `volumes` in [broker.storage.grant], or make it: understudy ontap provision";
            notes.fail(Check::Volume, found, remedy);
        }
        preserve_unlink(&mut notes, svm, name, facts);
        findings.extend(notes.into_findings());
    }
    let mut notes = Notes::on(about.clone());
    strange_mounts(&mut notes, broker, all);
    findings.extend(notes.into_findings());
    findings
}

fn state(notes: &mut Notes, svm: &str, volume: &Volume) {
    let name = &volume.name;
    match (&volume.state, volume.kind.as_deref()) {
        (Some(VolumeState::Online), Some("dp")) => {
            let remedy = format!("snapmirror break -destination-path {svm}:{name}, if it is to be used now");
            notes.fail(Check::Volume, "it is the copy of a mirror, which nobody can write", remedy);
        }
        (Some(VolumeState::Online), _) => notes.pass(Check::Volume, "online"),
        (Some(state), _) => {
            let remedy = format!("volume online -vserver {svm} -volume {name}");
            notes.fail(Check::Volume, format!("it is {state}"), remedy);
        }
        (None, _) => notes.not_said(Check::Volume, "whether it is online"),
    }
}

fn preserve_unlink(notes: &mut Notes, svm: &str, name: &str, facts: &Facts) {
    let by_name = match &facts.preserve_unlink {
        Ok(by_name) => by_name,
        Err(why) => return notes.unread(Check::PreserveUnlink, why),
    };
    match by_name.get(name) {
        Some(Some(true)) => notes.pass(Check::PreserveUnlink, "is-preserve-unlink-enabled is true"),
        Some(Some(false)) => {
            let remedy =
                format!("volume modify -vserver {svm} -volume {name} -is-preserve-unlink-enabled true");
            notes.fail(Check::PreserveUnlink, "is-preserve-unlink-enabled is false", remedy);
        }
        Some(None) | None => {
            notes.not_said(Check::PreserveUnlink, "whether is-preserve-unlink-enabled is true");
        }
    }
}

/// The path of `server:/path`.
pub(super) fn export_of(mount: &MountConfig) -> &str {
    let path = mount.source.rsplit_once(":/").map_or("", |(server, _)| &mount.source[server.len() + 1..]);
    let bare = path.trim_end_matches('/');
    if bare.is_empty() { "/" } else { bare }
}

/// The server of `server:/path`, an IPv6 address without its brackets.
pub(super) fn server_of(mount: &MountConfig) -> &str {
    let server = mount.source.rsplit_once(":/").map_or("", |(server, _)| server);
    server.trim_start_matches('[').trim_end_matches(']')
}

/// Whether `path` is `junction` or lies below it.
fn lies_in(path: &str, junction: &str) -> bool {
    let junction = junction.trim_end_matches('/');
    path.strip_prefix(junction).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether `mount` mounts `volume` or a directory in it: no other junction lies further in on the way.
fn is_of(mount: &MountConfig, volume: &Volume, all: &[Volume]) -> bool {
    let path = export_of(mount);
    let depth = |volume: &Volume| {
        let junction = volume.nas.junction.as_deref().filter(|junction| lies_in(path, junction));
        junction.map(|junction| junction.trim_end_matches('/').len())
    };
    let deepest = all.iter().filter_map(depth).max();
    depth(volume).is_some_and(|depth| Some(depth) == deepest)
}

fn junction(notes: &mut Notes, svm: &str, volume: &Volume, broker: &Guarded) {
    let name = &volume.name;
    let Some(junction) = volume.nas.junction.as_deref().filter(|junction| !junction.is_empty()) else {
        let path = match &broker.mounts[..] {
            [only] if broker.volumes.len() == 1 => export_of(only).to_owned(),
            _ => format!("/{name}"),
        };
        let remedy = format!("volume mount -vserver {svm} -volume {name} -junction-path {path}");
        return notes.fail(Check::Junction, "it is mounted nowhere in its SVM", remedy);
    };
    let mount = broker.mounts.iter().find(|mount| lies_in(export_of(mount), junction));
    match mount {
        _ if broker.mounts.is_empty() => {
            notes
                .pass(Check::Junction, format!("at {junction}; the configuration names no mount to compare"));
        }
        Some(mount) => notes.pass(Check::Junction, format!("at {junction}, mounted as {}", mount.source)),
        None => {
            let found =
                format!("at {junction}, which no [[broker.storage.mount]] of broker {} names", broker.id);
            let remedy = format!(
                "correct `source`, or move the junction while nobody has it mounted: volume unmount -vserver {svm} -volume \
                 {name}; volume mount -vserver {svm} -volume {name} -junction-path <path>"
            );
            notes.fail(Check::Junction, found, remedy);
        }
    }
}

/// Mounts that lead to a volume that is not the broker's: the fence would not deny it.
fn strange_mounts(notes: &mut Notes, broker: &Guarded, all: &[Volume]) {
    for mount in &broker.mounts {
        let of = all.iter().find(|volume| is_of(mount, volume, all));
        let Some(volume) = of.filter(|volume| !broker.volumes.contains(&volume.name)) else { continue };
        let found =
            format!("{} leads to volume {}, which is not one of the broker's", mount.source, volume.name);
        let remedy =
            "correct `source`, or name the volume in `volumes` of [broker.storage.grant] and of the fences";
        notes.fail(Check::Junction, found, remedy);
    }
}

fn snapshots(notes: &mut Notes, svm: &str, volume: &Volume) {
    match volume.snapshot_policy.name.as_deref() {
        Some("none") => notes.pass(Check::SnapshotPolicy, "none"),
        Some(policy) => {
            let name = &volume.name;
            let remedy = format!("volume modify -vserver {svm} -volume {name} -snapshot-policy none");
            notes.warn(Check::SnapshotPolicy, format!("snapshots are taken by policy {policy}"), remedy);
        }
        None => notes.not_said(Check::SnapshotPolicy, "which snapshot policy it has"),
    }
}

fn space(notes: &mut Notes, svm: &str, volume: &Volume) {
    let space = &volume.space;
    let size = space.size_bytes.or(volume.size_bytes);
    let percent = space.percent_used.map(u64::from).or_else(|| percent(space.used_bytes, size));
    let Some(percent) = percent else {
        return notes.not_said(Check::Space, "how full it is");
    };
    let remedy = || {
        let grow = match (space.used_bytes, size) {
            (Some(used), Some(size)) => {
                let wanted = used.saturating_mul(100) / COMFORT_PERCENT;
                wanted.saturating_sub(size).div_ceil(1 << 30).max(1)
            }
            _ => 100,
        };
        format!(
            "volume size -vserver {svm} -volume {} -new-size +{grow}GB, or shorten the topics' retention",
            volume.name
        )
    };
    full(notes, Check::Space, percent, &format!("{percent} % used"), remedy);
}

fn efficiency(notes: &mut Notes, svm: &str, volume: &Volume) {
    let Some(efficiency) = &volume.efficiency else {
        return notes.not_said(Check::Efficiency, "whether efficiency is on");
    };
    let said = [
        ("dedupe", &efficiency.dedupe),
        ("compression", &efficiency.compression),
        ("compaction", &efficiency.compaction),
    ];
    let said: Vec<(&str, &str)> =
        said.into_iter().filter_map(|(name, word)| Some((name, word.as_deref()?))).collect();
    if said.is_empty() {
        return notes.not_said(Check::Efficiency, "whether efficiency is on");
    }
    let on = said.iter().any(|(_, word)| !matches!(*word, "none" | "disabled"));
    let words: Vec<String> = said.iter().map(|(name, word)| format!("{name} {word}")).collect();
    if on {
        return notes.pass(Check::Efficiency, words.join(", "));
    }
    let remedy = format!("volume efficiency on -vserver {svm} -volume {}", volume.name);
    notes.warn(Check::Efficiency, words.join(", "), remedy);
}
