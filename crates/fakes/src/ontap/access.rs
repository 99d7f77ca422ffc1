//! Whether the storage lets a client in: junction, export policy, rules, and the access cache over them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use serde_json::Value;

use super::query;
use super::shapes::Table;
use super::world::World;

/// What a client may do with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// There is no such volume, it is not online, or it is not mounted in the namespace.
    NotMounted,
    /// The export policy has no rule that lets the client in.
    Denied,
    /// Read only.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

impl Access {
    /// Whether a write would succeed.
    #[must_use]
    pub fn may_write(self) -> bool {
        self == Self::ReadWrite
    }
}

/// An entry of the access cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    pub(super) access: Access,
    /// Used in place of the rules until then.
    pub(super) stays_until: Option<Instant>,
}

/// The verdict by the rules alone. The policies of parent junctions are not looked at.
pub(super) fn evaluate(world: &World, client: IpAddr, volume: &str) -> Access {
    let Some(policy) = exported_by(world, volume) else { return Access::NotMounted };
    let mut rules: Vec<&Value> =
        world.rows(Table::Rules).iter().filter(|rule| rule["policy"]["id"] == policy).collect();
    rules.sort_by(|left, right| query::order(left, right, "index"));
    rules.into_iter().find(|rule| applies(rule, client)).map_or(Access::Denied, verdict_of)
}

/// The index of the rule that decides over a client; 0: none.
pub(super) fn serving(world: &World, client: IpAddr, volume: &str) -> i64 {
    let policy = exported_by(world, volume);
    let of_policy = |rule: &&Value| policy.as_ref().is_some_and(|id| rule["policy"]["id"] == *id);
    let mut rules: Vec<&Value> = world.rows(Table::Rules).iter().filter(of_policy).collect();
    rules.sort_by(|left, right| query::order(left, right, "index"));
    let first = rules.into_iter().find(|rule| applies(rule, client));
    first.and_then(|rule| rule["index"].as_i64()).unwrap_or_default()
}

/// As a client that knocks, by every LIF of the SVM: each node remembers its own verdict, and one that a
/// change of rules has not reached yet is used. It gets what the most generous of them gives.
pub(super) fn knock(world: &mut World, client: IpAddr, volume: &str) -> Access {
    let Some(policy) = exported_by(world, volume).as_ref().and_then(Value::as_i64) else {
        return Access::NotMounted;
    };
    let by_rules = evaluate(world, client, volume);
    let mut best = None;
    for node in nodes_of(world, volume) {
        let key = (node, client, policy);
        let stays = |verdict: &&Verdict| verdict.stays_until.is_some_and(|until| Instant::now() < until);
        let access = match world.verdicts.get(&key).filter(stays) {
            Some(verdict) => verdict.access,
            None => {
                world.verdicts.insert(key, Verdict { access: by_rules, stays_until: None });
                by_rules
            }
        };
        best = best.max(Some(access));
    }
    best.unwrap_or(by_rules)
}

/// A node has asked the rules about a client of a volume, and keeps what they said.
pub(super) fn remember(world: &mut World, client: IpAddr, volume: &str, node: &str) {
    let access = evaluate(world, client, volume);
    if let Some(policy) = exported_by(world, volume).as_ref().and_then(Value::as_i64) {
        world.verdicts.insert((node.to_owned(), client, policy), Verdict { access, stays_until: None });
    }
}

/// The nodes that clients of a volume may come by: those where its SVM has LIFs.
fn nodes_of(world: &World, volume: &str) -> BTreeSet<String> {
    let Some(row) = world.find(Table::Volumes, &[("name", volume)]) else { return BTreeSet::new() };
    let svm = query::text(&row["svm"]["name"]);
    let lifs = world.rows(Table::Interfaces).iter().filter(|lif| lif["svm"]["name"] == *svm);
    lifs.map(|lif| query::text(&lif["location"]["node"]["name"])).collect()
}

/// The id of the policy that a reachable volume is exported by.
fn exported_by(world: &World, volume: &str) -> Option<Value> {
    let row = world.find(Table::Volumes, &[("name", volume)])?;
    let mounted = row["nas"]["path"].as_str().is_some_and(|path| !path.is_empty());
    let id = &row["nas"]["export_policy"]["id"];
    (mounted && row["state"] == "online" && id.is_number()).then(|| id.clone())
}

/// Kafka's clients authenticate by AUTH_SYS over NFSv4.1; nothing else is looked at.
fn applies(rule: &Value, client: IpAddr) -> bool {
    let speaks = query::leaves(rule, "protocols");
    let nfs4 = speaks.iter().any(|protocol| ["any", "nfs", "nfs4"].iter().any(|known| *protocol == known));
    nfs4 && query::leaves(rule, "clients.match").iter().any(|pattern| covers(&query::text(pattern), client))
}

fn verdict_of(rule: &Value) -> Access {
    let lets =
        |field| query::leaves(rule, field).iter().any(|flavour| *flavour == "any" || *flavour == "sys");
    match (lets("ro_rule"), lets("rw_rule")) {
        (_, true) => Access::ReadWrite,
        (true, false) => Access::ReadOnly,
        (false, false) => Access::Denied,
    }
}

/// Whether a rule's `match` covers the client: an address, `a/bits` or `a/mask`. Names are not resolved here.
fn covers(pattern: &str, client: IpAddr) -> bool {
    let (address, bits) = match pattern.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (pattern, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let width = if address.is_ipv4() { 32 } else { 128 };
    let Some(bits) = bits.map_or(Some(width), |bits| prefix(bits, width)) else { return false };
    address.is_ipv4() == client.is_ipv4()
        && (bits == 0 || number(address) >> (width - bits) == number(client) >> (width - bits))
}

/// `24` or `255.255.255.0` → 24; `None` if it is neither or too long.
fn prefix(bits: &str, width: u32) -> Option<u32> {
    let bits = match bits.parse::<IpAddr>() {
        Ok(mask) => number(mask).count_ones(),
        Err(_) => bits.parse().ok()?,
    };
    (bits <= width).then_some(bits)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Why ONTAP would refuse a rule's `match`: the code and the words.
pub(super) fn problem_of_match(pattern: &str) -> Option<(u32, String)> {
    if pattern.is_empty() || pattern.contains(char::is_whitespace) {
        return Some((1_704_036, format!("Invalid clientmatch: \"{pattern}\"")));
    }
    let (address, bits) = pattern.split_once('/')?;
    let Ok(address) = address.parse::<IpAddr>() else { return None };
    let width = if address.is_ipv4() { 32 } else { 128 };
    let Some(bits) = prefix(bits, width) else {
        return Some((1_704_042, format!("Invalid clientmatch: \"{pattern}\" has too many mask bits")));
    };
    let host = number(address) & !(u128::MAX.checked_shl(width - bits).unwrap_or(0));
    (host != 0).then(|| (1_704_040, format!("Invalid clientmatch: \"{pattern}\" has host bits set")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_and_networks_cover_clients() {
        for (pattern, client, expected) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.0/24", "10.0.0.200", true),
            ("10.0.0.0/255.255.255.0", "10.0.1.200", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("fd00::/64", "fd00::1", true),
            ("@hosts", "10.0.0.1", false),
        ] {
            assert_eq!(covers(pattern, ip(client)), expected, "{pattern} {client}");
        }
    }

    #[test]
    fn bad_matches_have_ontaps_codes() {
        let code = |pattern| problem_of_match(pattern).map(|(code, _)| code);
        assert_eq!(code("10.0.0.1/33"), Some(1_704_042));
        assert_eq!(code("10.0.0.1/24"), Some(1_704_040));
        assert_eq!(code(""), Some(1_704_036));
        for good in ["10.0.0.0/24", "10.0.0.1", "0.0.0.0/0", "@netgroup", ".domain", "host1", "::/0"] {
            assert_eq!(code(good), None, "{good}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let mut world = World::small();
        let policy = world.policy("svm1", "p", &[&["10.0.0.1"], &["10.0.0.0/24"]]).to_string();
        world.volume("svm1", "v", "p");
        assert_eq!(world.would_allow(ip("10.0.0.1"), "v"), Access::ReadWrite);
        assert_eq!(world.would_allow(ip("10.0.1.1"), "v"), Access::Denied);
        world.update(
            Table::Rules,
            &[("policy.id", &policy), ("index", "1")],
            json!({ "rw_rule": ["never"] }),
        );
        assert_eq!(world.would_allow(ip("10.0.0.1"), "v"), Access::ReadOnly);
        assert_eq!(world.would_allow(ip("10.0.0.2"), "v"), Access::ReadWrite);
        world.update(Table::Volumes, &[("name", "v")], json!({ "nas": { "path": "" } }));
        assert_eq!(world.would_allow(ip("10.0.0.2"), "v"), Access::NotMounted);
        assert_eq!(world.would_allow(ip("10.0.0.2"), "absent"), Access::NotMounted);
    }
}
