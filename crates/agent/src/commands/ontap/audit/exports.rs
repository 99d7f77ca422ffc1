//! Whose the export policies are, and whom they let in.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ontap::{is_mark, of_trident, single_address};
use ontap_client::{ExportRule, Volume};

use super::super::facts::Facts;
use super::super::sites::Guarded;
use super::finding::{Check, Notes};
use super::judge::policy;

/// Notes what speaks against the policies of the broker's volumes. Returns who is let in by them.
pub(super) fn exports(notes: &mut Notes, svm: &str, broker: &Guarded, facts: &Facts) -> BTreeSet<IpAddr> {
    let mut owners = BTreeSet::new();
    let all = match &facts.volumes {
        Ok(all) => all,
        Err(why) => {
            notes.unread(Check::ExportPolicy, why);
            notes.unread(Check::ExportRule, why);
            return owners;
        }
    };
    let ours: Vec<&Volume> = all.iter().filter(|volume| broker.volumes.contains(&volume.name)).collect();
    let names: BTreeSet<&str> = ours.iter().filter_map(|v| v.nas.export_policy.name.as_deref()).collect();
    if names.is_empty() || ours.iter().any(|volume| volume.nas.export_policy.name.is_none()) {
        notes.not_said(Check::ExportPolicy, "which export policy the volumes have");
        notes.not_said(Check::ExportRule, "which export policy the volumes have");
        return owners;
    }
    ownership(notes, svm, broker, &names, all);
    let policies = match &facts.policies {
        Ok(policies) => policies,
        Err(why) => {
            notes.unread(Check::ExportRule, why);
            return owners;
        }
    };
    for name in names {
        match policy(policies, name).map(|policy| &policy.rules) {
            Some(Err(why)) => {
                notes.not_said(Check::ExportRule, &format!("whom export policy {name} lets in: {why}"));
            }
            Some(Ok(rules)) => owners.extend(rule(notes, svm, name, rules)),
            None => owners.extend(rule(notes, svm, name, &[])),
        }
    }
    owners
}

fn ownership(notes: &mut Notes, svm: &str, broker: &Guarded, names: &BTreeSet<&str>, all: &[Volume]) {
    let list = names.iter().copied().collect::<Vec<_>>().join(", ");
    let mut alone = true;
    for name in names {
        let volumes: Vec<&str> = broker.volumes.iter().map(String::as_str).collect();
        if let Some(why) = of_trident(name, &volumes) {
            alone = false;
            let remedy =
                "tridentctl get backend -o json shows the setting; then as for a policy that is shared";
            notes.fail(Check::ExportPolicy, why, remedy.to_owned());
            continue;
        }
        let strangers: Vec<&str> = all
            .iter()
            .filter(|v| v.nas.export_policy.is_named(name) && !broker.volumes.contains(&v.name))
            .map(|volume| volume.name.as_str())
            .collect();
        if strangers.is_empty() {
            continue;
        }
        alone = false;
        let own = format!("kafka{}", broker.id);
        let volume = broker.volumes.first().map_or("<volume>", String::as_str);
        let remedy = format!(
            "vserver export-policy create -vserver {svm} -policyname {own}; vserver export-policy rule create -vserver \
             {svm} -policyname {own} -clientmatch <owner's address> -protocol nfs4 -rorule sys -rwrule sys -superuser sys; \
             volume modify -vserver {svm} -volume {volume} -policy {own} (for each of its volumes)"
        );
        let found = format!("export policy {name} is that of {} too", strangers.join(", "));
        notes.fail(Check::ExportPolicy, found, remedy);
    }
    match names.len() {
        1 if alone => notes.pass(Check::ExportPolicy, format!("{list}, of this broker alone")),
        0 | 1 => {}
        several => {
            let remedy = format!("volume modify -vserver {svm} -volume <volume> -policy <one of them>");
            let found =
                format!("the volumes have {several} policies ({list}); fencing changes one after the other");
            notes.warn(Check::ExportPolicy, found, remedy);
        }
    }
}

/// Judges one policy's rules. Returns the single addresses that they let in.
fn rule(notes: &mut Notes, svm: &str, policy: &str, rules: &[ExportRule]) -> Vec<IpAddr> {
    let rule = match rules {
        [one] => one,
        [] => {
            let remedy = format!(
                "vserver export-policy rule create -vserver {svm} -policyname {policy} -clientmatch <owner's address> \
                 -protocol nfs4 -rorule sys -rwrule sys -superuser sys"
            );
            let found = format!("export policy {policy} has no rule, or this account is not shown it");
            notes.fail(Check::ExportRule, found, remedy);
            return Vec::new();
        }
        [first, ..] => {
            let surplus: Vec<String> = rules.iter().skip(1).map(|rule| rule.index.to_string()).collect();
            let remedy = format!(
                "see who is let in, leave rule {} for the owner alone, and delete the others ({}): vserver export-policy \
                 rule delete -vserver {svm} -policyname {policy} -ruleindex <index>",
                first.index,
                surplus.join(", ")
            );
            let found = format!("export policy {policy} has {} rules", rules.len());
            notes.fail(Check::ExportRule, found, remedy);
            return Vec::new();
        }
    };
    let modify = format!(
        "vserver export-policy rule modify -vserver {svm} -policyname {policy} -ruleindex {}",
        rule.index
    );
    let patterns: Vec<&str> = rule.clients.iter().map(|client| client.pattern.as_str()).collect();
    if patterns.is_empty() {
        notes.not_said(Check::ExportRule, &format!("whom the rule of export policy {policy} is for"));
        return Vec::new();
    }
    let addresses: Vec<IpAddr> = patterns.iter().filter_map(|pattern| single_address(pattern)).collect();
    let owners: Vec<IpAddr> = addresses.iter().copied().filter(|address| !is_mark(address)).collect();
    if let Some(wide) = patterns.iter().find(|pattern| single_address(pattern).is_none()) {
        let found =
            format!("the rule of export policy {policy} is for `{wide}`, which may be more than one host");
        notes.fail(Check::ExportRule, found, format!("{modify} -clientmatch <owner's address>"));
    } else if let Some(why) = unfit(rule) {
        let found = format!("the rule of export policy {policy} {why}");
        notes.fail(Check::ExportRule, found, format!("{modify} -protocol nfs4 -rorule sys -rwrule sys"));
    } else if owners.is_empty() {
        let found =
            format!("the rule of export policy {policy} lets nobody in: the broker's owner is fenced");
        let remedy =
            "if a takeover is not under way, see `understudy history`, and `understudy rejoin` on that host";
        notes.warn(Check::ExportRule, found, remedy);
    } else {
        let list: Vec<String> = owners.iter().map(ToString::to_string).collect();
        notes.pass(Check::ExportRule, format!("{policy} has one rule, for {}", list.join(", ")));
    }
    owners
}

/// Why the fence, or Kafka, could not go by such a rule.
pub(crate) fn unfit(rule: &ExportRule) -> Option<String> {
    let nfs4 = |word: &String| matches!(word.as_str(), "any" | "nfs" | "nfs4");
    if let Some(other) = rule.protocols.iter().find(|word| !word.starts_with("nfs") && *word != "any") {
        return Some(format!("is for {other} too"));
    }
    if !rule.protocols.is_empty() && !rule.protocols.iter().any(nfs4) {
        return Some(format!("is for {} only, not for NFSv4", rule.protocols.join(", ")));
    }
    let lets =
        |words: &[String]| words.is_empty() || words.iter().any(|word| word != "never" && word != "none");
    match (lets(&rule.ro_rule), lets(&rule.rw_rule)) {
        (true, true) => None,
        (false, _) => Some(format!("lets nobody read (ro_rule {})", rule.ro_rule.join(", "))),
        (true, false) => Some(format!("lets nobody write (rw_rule {})", rule.rw_rule.join(", "))),
    }
}
