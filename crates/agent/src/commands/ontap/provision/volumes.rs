//! A broker's volume: itself, its policy, snapshots, preserve-unlink, and last its junction.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ontap_client::{ExportRule, PolicyRules, Volume, VolumeState, VolumeStyle};

use super::act::{Act, Setting};
use super::plan::{Draft, aggregates_of, strangers};
use super::policy::{LetIn, let_in, list};
use super::wanted::{Wanted, WantedBroker, size};
use crate::cli::Style;

/// ONTAP rounds sizes to its blocks and constituents: that much less, in percent, is the same size.
pub(super) const ROUNDING_PERCENT: u64 = 1;

/// What the SVM has.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) volumes: &'a [Volume],
    pub(super) policies: &'a [PolicyRules],
    pub(super) preserve: &'a BTreeMap<String, Option<bool>>,
}

/// `place`: which of all the volumes it is, from 0.
pub(super) fn plan_volume(
    draft: &mut Draft,
    wanted: &Wanted,
    broker: &WantedBroker,
    (name, place): (&str, usize),
    seen: &Seen<'_>,
) {
    let found = seen.volumes.iter().find(|volume| volume.name == name);
    match found {
        None => create(draft, wanted, broker, (name, place)),
        Some(volume) => {
            if !is_usable(draft, wanted, volume) {
                return;
            }
            policy(draft, wanted, broker, volume, seen);
            snapshots(draft, volume);
        }
    }
    preserve_unlink(draft, wanted, name, found.map(|_| seen.preserve.get(name).copied().flatten()));
    junction(draft, wanted, name, found, seen.volumes);
}

fn create(draft: &mut Draft, wanted: &Wanted, broker: &WantedBroker, (name, place): (&str, usize)) {
    let aggregates = aggregates_of(wanted, place);
    let per_aggregate = (wanted.style == Style::Flexgroup).then_some(wanted.constituents_per_aggregate);
    let (style, parts) = match per_aggregate {
        Some(count) => ("FlexGroup", format!(", {count} constituents on each")),
        None => ("FlexVol", String::new()),
    };
    let says = format!(
        "{style} of {} on {}{parts}; export policy {}, snapshot policy none",
        size(wanted.size_bytes),
        aggregates.join(", "),
        broker.policy
    );
    let act = Act::CreateVolume {
        name: name.to_owned(),
        policy: broker.policy.clone(),
        aggregates,
        size_bytes: wanted.size_bytes,
        constituents_per_aggregate: per_aggregate,
    };
    draft.create(&format!("volume {name}"), says, act);
}

/// Whether Kafka can use a volume that is there, of the right style and size; notes what is right, grown or
/// wrong.
fn is_usable(draft: &mut Draft, wanted: &Wanted, volume: &Volume) -> bool {
    let (svm, name) = (&wanted.svm, &volume.name);
    let what = format!("volume {name}");
    let other = "choose other names by --name, or look at that volume";
    let style = match wanted.style {
        Style::Flexvol => VolumeStyle::FlexVol,
        Style::Flexgroup => VolumeStyle::FlexGroup,
    };
    let problem = if let Some(is) = volume.style.as_ref().filter(|is| **is != style) {
        Some((
            format!("it is a {is}, not a {style}"),
            format!("{other}; a volume does not change its style here"),
        ))
    } else if let Some(kind) = volume.kind.as_deref().filter(|kind| *kind != "rw") {
        Some((format!("it is of type {kind}, which nobody writes"), other.to_owned()))
    } else if let Some(state) = volume.state.as_ref().filter(|state| **state != VolumeState::Online) {
        Some((format!("it is {state}"), format!("volume online -vserver {svm} -volume {name}")))
    } else {
        let security = volume.nas.security_style.as_deref().filter(|style| *style != "unix");
        security.map(|security| {
            let remedy = format!("volume modify -vserver {svm} -volume {name} -security-style unix");
            (format!("its security style is {security}, and Kafka's user is a Unix one"), remedy)
        })
    };
    if let Some((says, remedy)) = problem {
        draft.conflict(&what, says, remedy);
        return false;
    }
    let least = wanted.size_bytes - wanted.size_bytes / 100 * ROUNDING_PERCENT;
    match volume.size_bytes {
        Some(has) if has < least => {
            let says = format!("it has {}, and grows to {}", size(has), size(wanted.size_bytes));
            let act = Act::Set { volume: name.clone(), to: Setting::Size(wanted.size_bytes) };
            draft.change(&what, says, act);
        }
        Some(has) => draft.right(&what, format!("{style} of {}", size(has))),
        None => draft.note(&what, "ONTAP does not say how large it is", "its size is left as it is"),
    }
    true
}

fn policy(draft: &mut Draft, wanted: &Wanted, broker: &WantedBroker, volume: &Volume, seen: &Seen<'_>) {
    let (svm, name, ours) = (&wanted.svm, &volume.name, &broker.policy);
    let what = format!("export policy of {name}");
    let Some(has) = volume.nas.export_policy.name.as_deref() else {
        return draft.conflict(
            &what,
            "ONTAP does not say which it has",
            "give the account a role that is shown it",
        );
    };
    if has == ours {
        return draft.right(&what, ours.as_str());
    }
    let by_hand = format!(
        "if nobody uses the volume by that policy, change it by hand: volume modify -vserver {svm} -volume {name} -policy \
         {ours}"
    );
    let strangers = strangers(seen.volumes, has, broker);
    if !strangers.is_empty() {
        let says = format!("it is {has}, which {} have too", strangers.join(", "));
        return draft.conflict(&what, says, by_hand);
    }
    let rules = seen.policies.iter().find(|found| found.name == has);
    let rules = rules.and_then(|found| found.rules.as_deref().ok());
    // ONTAP's own `default` has no rules from the beginning.
    if rules.is_some_and(|rules| lets_nobody_in(rules) && !(has == "default" && rules.is_empty())) {
        let says =
            format!("it is {has}, which lets nobody in: that may be a fence, and a fence is not lifted here");
        let remedy = "see `understudy history`, and run `understudy rejoin` on the host that was fenced";
        return draft.conflict(&what, says, remedy);
    }
    let others: Vec<String> =
        rules.unwrap_or_default().iter().flat_map(|rule| others(let_in(rule), broker)).collect();
    if rules.is_none() || !others.is_empty() {
        let whom = if rules.is_none() { "nobody can see whom".to_owned() } else { list(&others) };
        let says = format!("it is {has}, which lets {whom} in: who uses the volume by that would lose it");
        return draft.conflict(&what, says, by_hand);
    }
    let act = Act::Set { volume: name.clone(), to: Setting::Policy(ours.clone()) };
    draft.change(&what, format!("{has} becomes {ours}"), act);
}

/// No rule, or none with an address that a host can have.
fn lets_nobody_in(rules: &[ExportRule]) -> bool {
    rules.iter().all(|rule| matches!(let_in(rule), LetIn::Addresses(addresses) if addresses.is_empty()))
}

/// Whom a rule lets in besides the broker's owner.
fn others(inside: LetIn, broker: &WantedBroker) -> Vec<String> {
    match inside {
        LetIn::Unclear(pattern) => vec![pattern],
        LetIn::Addresses(addresses) => {
            let strange = |address: &IpAddr| !broker.owners.contains(address);
            addresses.into_iter().filter(strange).map(|address| address.to_string()).collect()
        }
    }
}

fn snapshots(draft: &mut Draft, volume: &Volume) {
    let what = format!("snapshot policy of {}", volume.name);
    match volume.snapshot_policy.name.as_deref() {
        Some("none") => draft.right(&what, "none"),
        Some(has) => {
            let act = Act::Set { volume: volume.name.clone(), to: Setting::NoSnapshots };
            draft.change(&what, format!("{has} becomes none; the snapshots there are stay"), act);
        }
        None => {
            draft.note(&what, "ONTAP does not say which it has", "it is left as it is; see that it is none");
        }
    }
}

/// `is`: of a volume that is there, what ONTAP says of it.
fn preserve_unlink(draft: &mut Draft, wanted: &Wanted, name: &str, is: Option<Option<bool>>) {
    let what = format!("preserve-unlink of {name}");
    let act = Act::PreserveUnlink { volume: name.to_owned() };
    match is {
        None => draft.create(&what, "on", act),
        Some(Some(true)) => draft.right(&what, "on"),
        Some(Some(false)) => draft.change(&what, "off becomes on", act),
        Some(None) => {
            let remedy = format!(
                "see: volume show -vserver {} -volume {name} -fields is-preserve-unlink-enabled",
                wanted.svm
            );
            draft.conflict(&what, "ONTAP does not say whether it is on", remedy);
        }
    }
}

fn junction(draft: &mut Draft, wanted: &Wanted, name: &str, found: Option<&Volume>, all: &[Volume]) {
    let (what, path) = (format!("junction of {name}"), format!("/{name}"));
    let has = found.and_then(|volume| volume.nas.junction.as_deref()).filter(|path| !path.is_empty());
    match has {
        Some(has) if has == path => return draft.right(&what, has),
        Some(has) => {
            let remedy = format!(
                "mount it from {has}, or, while nobody has it mounted: volume unmount -vserver {svm} -volume {name}; volume \
                 mount -vserver {svm} -volume {name} -junction-path {path}",
                svm = wanted.svm
            );
            return draft.conflict(&what, format!("it is at {has}, not at {path}"), remedy);
        }
        None => {}
    }
    let taken = all.iter().find(|volume| volume.nas.junction.as_deref() == Some(path.as_str()));
    if let Some(other) = taken {
        let says = format!("{path} is that of volume {}", other.name);
        return draft.conflict(&what, says, "choose other names by --name, or move that volume's junction");
    }
    let act = Act::Mount { volume: name.to_owned(), junction: path.clone() };
    match found {
        None => draft.create(&what, path, act),
        Some(_) => draft.change(&what, format!("mounted nowhere; becomes {path}"), act),
    }
}
