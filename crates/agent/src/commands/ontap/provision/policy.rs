//! A broker's export policy, with its one rule.

use std::net::IpAddr;

use ontap::{is_mark, single_address};
use ontap_client::{ExportRule, PolicyRules, Volume};

use super::super::audit::unfit;
use super::act::Act;
use super::plan::{Draft, strangers};
use super::wanted::{Wanted, WantedBroker};

/// `10.0.0.1, 10.0.0.2`.
pub(super) fn list(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Whom a rule lets in, as far as that can be said of single addresses.
pub(super) enum LetIn {
    /// Some pattern may be more than one host, or the rule has no client that is shown.
    Unclear(String),
    /// These, besides what the fence left in it.
    Addresses(Vec<IpAddr>),
}

pub(super) fn let_in(rule: &ExportRule) -> LetIn {
    let mut addresses = Vec::new();
    for client in &rule.clients {
        match single_address(&client.pattern) {
            Some(address) if is_mark(&address) => {}
            Some(address) => addresses.push(address),
            None => return LetIn::Unclear(client.pattern.clone()),
        }
    }
    if rule.clients.is_empty() {
        return LetIn::Unclear("(not shown)".to_owned());
    }
    LetIn::Addresses(addresses)
}

pub(super) fn plan_policy(
    draft: &mut Draft,
    wanted: &Wanted,
    broker: &WantedBroker,
    volumes: &[Volume],
    policies: &[PolicyRules],
) {
    let (svm, policy) = (&wanted.svm, &broker.policy);
    let what = format!("export policy {policy}");
    let owners = || list(&broker.owners);
    let found = policies.iter().find(|found| found.name == *policy);
    let strangers = strangers(volumes, policy, broker);
    if !strangers.is_empty() {
        let says = format!(
            "it is that of {} too, which would be fenced along with broker {}",
            strangers.join(", "),
            broker.id
        );
        let remedy =
            "choose other names by --policy, or give those volumes another policy: volume modify -policy";
        return draft.conflict(&what, says, remedy);
    }
    let (policy, clients) = (policy.clone(), broker.owners.clone());
    let rules = match found.map(|found| found.rules.as_deref()).transpose() {
        Ok(rules) => rules,
        Err(why) => {
            let remedy =
                format!("see them: vserver export-policy rule show -vserver {svm} -policyname {policy}");
            return draft.conflict(&what, format!("its rules cannot be read: {why}"), remedy);
        }
    };
    match rules {
        None => {
            let says = format!("with one rule, for {} (NFSv4, Unix credentials)", owners());
            draft.create(&what, says, Act::CreatePolicy { policy, clients });
        }
        Some([]) if volumes.iter().any(|volume| volume.nas.export_policy.is_named(&policy)) => {
            let says = "it has no rule, so it lets nobody in to its volumes: that may be a fence, and a fence is not lifted here";
            let remedy = format!(
                "if it is none, give it its rule by hand: vserver export-policy rule create -vserver {svm} -policyname {policy} \
                 -clientmatch {} -protocol nfs4 -rorule sys -rwrule sys -superuser sys",
                owners()
            );
            draft.conflict(&what, says, remedy);
        }
        Some([]) => {
            let says = format!("it has no rule; one for {} (NFSv4, Unix credentials)", owners());
            draft.create(&what, says, Act::CreateRule { policy, clients });
        }
        Some([one]) => plan_rule(draft, (svm, &what), broker, one),
        Some(several) => {
            let says = format!("it has {} rules, and the fence takes one only", several.len());
            let remedy = format!(
                "see whom they let in, and leave one for {}: vserver export-policy rule delete -vserver {svm} -policyname \
                 {policy} -ruleindex <index>",
                owners()
            );
            draft.conflict(&what, says, remedy);
        }
    }
}

/// A rule that lets somebody else in is never changed here, whoever that is.
fn plan_rule(draft: &mut Draft, (svm, what): (&str, &str), broker: &WantedBroker, rule: &ExportRule) {
    let (policy, owners) = (&broker.policy, &broker.owners);
    let by_hand = || {
        format!(
            "if nobody uses it by that, change it by hand: vserver export-policy rule modify -vserver {svm} -policyname \
             {policy} -ruleindex {} -clientmatch {} -protocol nfs4 -rorule sys -rwrule sys",
            rule.index,
            owners.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        )
    };
    if let Some(why) = unfit(rule) {
        return draft.conflict(what, format!("its rule {why}"), by_hand());
    }
    let inside = match let_in(rule) {
        LetIn::Addresses(inside) => inside,
        LetIn::Unclear(pattern) => {
            let says = format!("its rule is for `{pattern}`, which may be more than one host");
            return draft.conflict(what, says, by_hand());
        }
    };
    let others: Vec<IpAddr> = inside.iter().copied().filter(|address| !owners.contains(address)).collect();
    if !others.is_empty() {
        let says = format!("its rule lets {} in, which is not the owner that was named", list(&others));
        let remedy = format!(
            "correct --broker {}=…; after a takeover its owner is the standby. Else {}",
            broker.id,
            by_hand()
        );
        return draft.conflict(what, says, remedy);
    }
    if inside.is_empty() {
        let says = "its rule lets nobody in: the broker's owner was fenced, and that is not lifted here";
        return draft.conflict(
            what,
            says,
            "see `understudy history`, and run `understudy rejoin` on that host",
        );
    }
    let missing: Vec<IpAddr> = owners.iter().copied().filter(|owner| !inside.contains(owner)).collect();
    if missing.is_empty() {
        return draft.right(what, format!("one rule, for {}", list(&inside)));
    }
    let says = format!("its rule is for {}; {} is let in too", list(&inside), list(&missing));
    draft.change(
        what,
        says,
        Act::ExtendRule { policy: policy.clone(), rule: rule.clone(), clients: missing },
    );
}
