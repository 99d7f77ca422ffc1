//! What there is, and what is wanted → what has to be done, and what is in the way. Pure.

use ontap_client::{Aggregate, Volume};
use serde::Serialize;

use super::super::facts::{Facts, Read, Unread};
use super::volumes::plan_volume;
use super::wanted::{Wanted, WantedBroker, size};
use super::{act::Act, policy::plan_policy};
use crate::cli::Style;

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// It is there, and as it should be.
    Right,
    /// It is made.
    Create,
    /// It is there, and is changed.
    Change,
    /// Nothing is done as long as this is so.
    Conflict,
    /// Worth knowing; it keeps nothing from being done.
    Note,
}

/// One thing of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Item {
    pub(super) what: String,
    pub(super) state: State,
    pub(super) says: String,
    /// What a person has to do, of a conflict or note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
    /// What is done about it, if it is created or changed.
    #[serde(skip)]
    pub(super) act: Option<Act>,
}

/// Collects the items.
#[derive(Debug, Default)]
pub(super) struct Draft(pub(super) Vec<Item>);

impl Draft {
    fn item(
        &mut self,
        what: &str,
        state: State,
        says: impl Into<String>,
        remedy: Option<String>,
        act: Option<Act>,
    ) {
        self.0.push(Item { what: what.to_owned(), state, says: says.into(), remedy, act });
    }

    pub(super) fn right(&mut self, what: &str, says: impl Into<String>) {
        self.item(what, State::Right, says, None, None);
    }

    pub(super) fn create(&mut self, what: &str, says: impl Into<String>, act: Act) {
        self.item(what, State::Create, says, None, Some(act));
    }

    pub(super) fn change(&mut self, what: &str, says: impl Into<String>, act: Act) {
        self.item(what, State::Change, says, None, Some(act));
    }

    pub(super) fn conflict(&mut self, what: &str, says: impl Into<String>, remedy: impl Into<String>) {
        self.item(what, State::Conflict, says, Some(remedy.into()), None);
    }

    pub(super) fn note(&mut self, what: &str, says: impl Into<String>, remedy: impl Into<String>) {
        self.item(what, State::Note, says, Some(remedy.into()), None);
    }
}

/// The whole of it, in the order in which it would be done: a policy before its volumes, a junction last of
/// all, so that nobody mounts what is half made.
pub(super) fn plan(wanted: &Wanted, facts: &Facts) -> Vec<Item> {
    let mut draft = Draft::default();
    system(&mut draft, wanted, facts);
    let needed = [
        ("volumes", facts.volumes.as_ref().err()),
        ("export policies", facts.policies.as_ref().err()),
        ("preserve-unlink", facts.preserve_unlink.as_ref().err()),
    ];
    for (what, why) in needed {
        if let Some(why) = why {
            let remedy =
                "what is not seen is not changed: give the account's role this path (see docs/ontap.md)";
            draft.conflict(what, format!("cannot be read: {}", why.why()), remedy);
        }
    }
    if let (Ok(volumes), Ok(policies), Ok(preserve)) =
        (&facts.volumes, &facts.policies, &facts.preserve_unlink)
    {
        let mut place = 0;
        for broker in &wanted.brokers {
            plan_policy(&mut draft, wanted, broker, volumes, policies);
            for name in &broker.volumes {
                let seen = super::volumes::Seen { volumes, policies, preserve };
                plan_volume(&mut draft, wanted, broker, (name, place), &seen);
                place += 1;
            }
        }
    }
    aggregates(&mut draft, wanted, &facts.aggregates);
    draft.0
}

fn system(draft: &mut Draft, wanted: &Wanted, facts: &Facts) {
    let svm = &wanted.svm;
    match &facts.release {
        Ok(version) if version.is_at_least(9, 12, 1) => draft.right("release", format!("ONTAP {version}")),
        Ok(version) => {
            let says = format!("ONTAP {version} has no preserve-unlink, which came with 9.12.1");
            draft.conflict("release", says, "update ONTAP first: cluster image update");
        }
        Err(Unread::NotVisible(why)) => draft.note("release", why.as_str(), "it must be 9.12.1 or newer"),
        Err(Unread::Failed(why)) => {
            draft.conflict("release", why.as_str(), "see to what it says, and repeat");
        }
    }
    let what = format!("NFS service of {svm}");
    match &facts.service {
        Ok(Some(service)) if service.protocol.v41_enabled == Some(false) => {
            let remedy = format!("vserver nfs modify -vserver {svm} -v4.1 enabled");
            draft.note(&what, "NFSv4.1 is off: volumes can be made, but not mounted as they must be", remedy);
        }
        Ok(Some(service)) if service.protocol.v41_features.pnfs_enabled == Some(true) => {
            let remedy = format!("vserver nfs modify -vserver {svm} -v4.1-pnfs disabled");
            draft.note(&what, "pNFS is on: brokers could not be fenced by export rules", remedy);
        }
        Ok(Some(_)) => draft.right(&what, "there"),
        Ok(None) => {
            let says = format!("there is no SVM {svm} with an NFS service, or this account is not shown it");
            draft.conflict(
                &what,
                says,
                format!("correct --svm, or: vserver nfs create -vserver {svm} -v4.1 enabled"),
            );
        }
        Err(Unread::NotVisible(why)) => {
            draft.note(&what, why.as_str(), "see that NFSv4.1 is on and pNFS off");
        }
        Err(Unread::Failed(why)) => draft.conflict(&what, why.as_str(), "see to what it says, and repeat"),
    }
}

/// Whether there is room for what is to be made, and anything to make it on.
fn aggregates(draft: &mut Draft, wanted: &Wanted, all: &Read<Vec<Aggregate>>) {
    let all = match all {
        Ok(all) => all,
        Err(Unread::NotVisible(why)) => {
            return draft.note(
                "aggregates",
                why.as_str(),
                "ONTAP itself refuses one that is not there, or too small",
            );
        }
        Err(Unread::Failed(why)) => {
            return draft.conflict("aggregates", why.as_str(), "see to what it says, and repeat");
        }
    };
    for name in &wanted.aggregates {
        let what = format!("aggregate {name}");
        let Some(found) = all.iter().find(|aggregate| aggregate.name == *name) else {
            let names: Vec<&str> = all.iter().map(|aggregate| aggregate.name.as_str()).collect();
            let remedy = format!("correct --aggregate; there are: {}", names.join(", "));
            draft.conflict(&what, "there is none of this name", remedy);
            continue;
        };
        if let Some(state) = found.state.as_deref().filter(|state| *state != "online") {
            draft.conflict(&what, format!("it is {state}"), "choose another, or bring it online");
            continue;
        }
        let new = demand(&draft.0, name);
        match found.space.block_storage.available_bytes {
            Some(free) if free < new => {
                let says = format!("{} free, {} to be made on it", size(free), size(new));
                draft.note(
                    &what,
                    says,
                    "volumes with a space guarantee will be refused; see that there is room",
                );
            }
            Some(free) => draft.right(&what, format!("{} free, {} to be made on it", size(free), size(new))),
            None => draft.right(&what, "online"),
        }
    }
}

/// Bytes that the plan makes on an aggregate.
fn demand(items: &[Item], aggregate: &str) -> u64 {
    let on = |item: &Item| match &item.act {
        Some(Act::CreateVolume { aggregates, size_bytes, .. })
            if aggregates.iter().any(|a| a == aggregate) =>
        {
            size_bytes / (aggregates.len() as u64).max(1)
        }
        _ => 0,
    };
    items.iter().map(on).fold(0, u64::saturating_add)
}

/// Where the volume at this place of all lies: FlexVols in turn, a FlexGroup on all.
pub(super) fn aggregates_of(wanted: &Wanted, place: usize) -> Vec<String> {
    match (wanted.style, wanted.aggregates.get(place % wanted.aggregates.len().max(1))) {
        (Style::Flexvol, Some(one)) => vec![one.clone()],
        _ => wanted.aggregates.clone(),
    }
}

/// Volumes of the SVM with this policy that are not the broker's.
pub(super) fn strangers<'a>(volumes: &'a [Volume], policy: &str, broker: &WantedBroker) -> Vec<&'a str> {
    volumes
        .iter()
        .filter(|volume| volume.nas.export_policy.is_named(policy) && !broker.volumes.contains(&volume.name))
        .map(|volume| volume.name.as_str())
        .collect()
}
