//! Options and facts in, plans out: nothing to do, something to do, something in the way.

use std::collections::BTreeMap;

use clap::Parser;
use ontap::OntapConfig;
use ontap::storage::StorageConfig;
use ontap_client::{PolicyRules, Version, Volume};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::act::{Act, Setting};
use super::plan::{Item, State, plan};
use super::snippet::snippet;
use super::wanted::{Wanted, size};
use crate::cli::{Cli, Command, Ontap, Provision};
use crate::commands::ontap::facts::{Facts, Unread};

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn options(more: &[&str]) -> Box<Provision> {
    let base = ["understudy", "ontap", "provision"];
    let cli = Cli::try_parse_from(base.iter().chain(more)).unwrap();
    match cli.command {
        Command::Ontap(Ontap::Provision(options)) => options,
        other => panic!("{other:?}"),
    }
}

const ONE: [&str; 6] = ["--aggregate", "aggr1", "--broker", "1=10.0.0.101", "--size", "100GiB"];

fn wanted(more: &[&str]) -> Wanted {
    Wanted::of(&options(more), "svm1").unwrap()
}

fn problems(more: &[&str]) -> String {
    Wanted::of(&options(more), "svm1").unwrap_err().to_string()
}

fn rule(clients: &[&str]) -> Value {
    let clients: Vec<Value> = clients.iter().map(|client| json!({ "match": client })).collect();
    json!({ "index": 1, "clients": clients, "protocols": ["nfs4"], "ro_rule": ["sys"], "rw_rule": ["sys"] })
}

fn policies(rules: &Value) -> Vec<PolicyRules> {
    of(json!([{ "id": 1, "name": "default", "rules": [] }, { "id": 2, "name": "kafka1", "rules": rules }]))
}

fn volume(patch: &Value) -> Volume {
    let mut row = json!({
        "uuid": "v", "name": "kafka1_1", "state": "online", "type": "rw", "style": "flexvol",
        "size": 100_u64 << 30, "aggregates": [{ "name": "aggr1" }], "snapshot_policy": { "name": "none" },
        "nas": { "path": "/kafka1_1", "export_policy": { "name": "kafka1" }, "security_style": "unix" },
    });
    for (key, value) in patch.as_object().unwrap() {
        match value {
            Value::Object(inner) => inner.iter().for_each(|(name, value)| row[key][name] = value.clone()),
            value => row[key] = value.clone(),
        }
    }
    of(row)
}

/// An SVM without volumes.
fn empty() -> Facts {
    let hidden = Unread::NotVisible("not asked".to_owned());
    Facts {
        release: Ok(Version { generation: 9, major: 15, minor: 1, full: None }),
        service: Ok(Some(of(
            json!({ "protocol": { "v41_enabled": true, "v41_features": { "pnfs_enabled": false } } }),
        ))),
        volumes: Ok(Vec::new()),
        policies: Ok(of(json!([{ "id": 1, "name": "default", "rules": [] }]))),
        preserve_unlink: Ok(BTreeMap::new()),
        lifs: Ok(vec![of(
            json!({ "uuid": "l", "name": "lif1", "state": "up", "ip": { "address": "10.0.0.50" } }),
        )]),
        aggregates: Ok(vec![aggregate("aggr1"), aggregate("aggr2")]),
        ..Facts::unread(&hidden)
    }
}

fn aggregate(name: &str) -> ontap_client::Aggregate {
    let space = json!({ "block_storage": { "available": 10_u64 << 40 } });
    of(json!({ "uuid": name, "name": name, "state": "online", "space": space }))
}

/// Broker 1 with one volume, as [`ONE`] asks for it.
fn complete() -> Facts {
    Facts {
        volumes: Ok(vec![volume(&json!({}))]),
        policies: Ok(policies(&json!([rule(&["10.0.0.101"])]))),
        preserve_unlink: Ok(BTreeMap::from([("kafka1_1".to_owned(), Some(true))])),
        ..empty()
    }
}

fn change(act: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = complete();
    act(&mut facts);
    facts
}

fn with_volume(patch: &Value) -> Facts {
    change(|facts| facts.volumes = Ok(vec![volume(patch)]))
}

fn with_rules(rules: &Value) -> Facts {
    change(|facts| facts.policies = Ok(policies(rules)))
}

fn acts(items: &[Item]) -> Vec<Act> {
    items.iter().filter_map(|item| item.act.clone()).collect()
}

/// Exactly one thing is in the way.
fn in_the_way(facts: &Facts, what: &str, says: &str) {
    let items = plan(&wanted(&ONE), facts);
    let odd: Vec<&Item> = items.iter().filter(|item| item.state == State::Conflict).collect();
    let [item] = odd[..] else { panic!("{odd:#?}") };
    assert!(item.what == what && item.says.contains(says), "{item:#?}");
    assert!(item.remedy.as_ref().is_some_and(|remedy| !remedy.is_empty()), "{item:#?}");
}

/// Exactly this is done.
fn done(facts: &Facts, act: &Act) {
    let items = plan(&wanted(&ONE), facts);
    assert!(items.iter().all(|item| item.state != State::Conflict), "{items:#?}");
    assert_eq!(acts(&items), std::slice::from_ref(act));
}

#[test]
fn options_are_judged_all_at_once() {
    let one = |more: &[&str]| problems(&[&ONE[..], more].concat());
    assert!(one(&["--broker", "1=10.0.0.7"]).contains("--broker: 1 is named twice"));
    assert!(one(&["--aggregate", "aggr1"]).contains("--aggregate: aggr1 is named twice"));
    assert!(one(&["--volumes-per-broker", "0"]).contains("0 volumes hold nothing"));
    assert!(one(&["--volumes-per-broker", "2", "--name", "kafka{broker}"]).contains("makes `kafka1` twice"));
    assert!(one(&["--broker", "2=10.0.0.7", "--name", "kafka{n}"]).contains("makes `kafka1` twice"));
    assert!(one(&["--broker", "2=10.0.0.7", "--policy", "kafka"]).contains("makes `kafka` twice"));
    assert!(one(&["--policy", "default"]).contains("cannot be a broker's export policy"));
    for bad in ["kafka{broker}-{n}", "{broker}_{n}", "kafka {n}", "kafka{brokr}_{n}", &"k".repeat(204)] {
        assert!(one(&["--name", bad]).contains("cannot be the name of a volume"), "{bad}");
    }
    let small = ["--aggregate", "a", "--broker", "1=10.0.0.1", "--size", "1GiB", "--style", "flexgroup"];
    assert!(
        problems(&small).contains("a FlexGroup of 8 constituents has at least 1.6 GiB"),
        "{}",
        problems(&small)
    );
    let both = one(&["--policy", "default", "--name", "a-b"]);
    assert_eq!(both.lines().count(), 2, "{both}");
}

#[test]
fn sizes_read_as_people_write_them() {
    for (bytes, text) in
        [(0, "0 bytes"), (20 << 20, "20 MiB"), (1536 << 30, "1.5 TiB"), (100 << 30, "100 GiB")]
    {
        assert_eq!(size(bytes), text);
    }
}

#[test]
fn on_an_empty_svm_everything_is_made_in_an_order_that_shows_nothing_half_made() {
    let more = ["--broker", "2=10.0.0.102,10.0.1.102", "--aggregate", "aggr2", "--volumes-per-broker", "2"];
    let items = plan(&wanted(&[&ONE[..], &more].concat()), &empty());
    assert!(items.iter().all(|item| matches!(item.state, State::Right | State::Create)), "{items:#?}");
    let acts = acts(&items);
    assert_eq!(acts.len(), 2 * (1 + 2 * 3));
    let clients = vec!["10.0.0.101".parse().unwrap()];
    assert_eq!(acts[0], Act::CreatePolicy { policy: "kafka1".to_owned(), clients });
    let create = Act::CreateVolume {
        name: "kafka1_1".to_owned(),
        policy: "kafka1".to_owned(),
        aggregates: vec!["aggr1".to_owned()],
        size_bytes: 100 << 30,
        constituents_per_aggregate: None,
    };
    assert_eq!(acts[1], create);
    assert_eq!(acts[2], Act::PreserveUnlink { volume: "kafka1_1".to_owned() });
    assert_eq!(acts[3], Act::Mount { volume: "kafka1_1".to_owned(), junction: "/kafka1_1".to_owned() });
    // FlexVols lie on the aggregates in turn.
    let on: Vec<String> = acts
        .iter()
        .filter_map(|act| match act {
            Act::CreateVolume { aggregates, .. } => Some(aggregates.join(",")),
            _ => None,
        })
        .collect();
    assert_eq!(on, ["aggr1", "aggr2", "aggr1", "aggr2"]);
    let room = items.iter().find(|item| item.what == "aggregate aggr2").unwrap();
    assert!(room.says.contains("10 TiB free, 200 GiB to be made on it"), "{room:?}");
}

#[test]
fn a_flexgroup_lies_on_every_aggregate() {
    let more = ["--aggregate", "aggr2", "--style", "flexgroup"];
    let items = plan(&wanted(&[&ONE[..], &more].concat()), &empty());
    let made = acts(&items).into_iter().find_map(|act| match act {
        Act::CreateVolume { aggregates, constituents_per_aggregate, .. } => {
            Some((aggregates, constituents_per_aggregate))
        }
        _ => None,
    });
    assert_eq!(made.unwrap(), (vec!["aggr1".to_owned(), "aggr2".to_owned()], Some(8)));
}

#[test]
fn what_is_complete_is_left_alone() {
    let items = plan(&wanted(&ONE), &complete());
    assert!(items.iter().all(|item| item.state == State::Right), "{items:#?}");
    // Larger than asked for, and rounded by ONTAP: neither is changed.
    for bytes in [200_u64 << 30, (100 << 30) - 4096] {
        let facts = with_volume(&json!({ "size": bytes }));
        assert!(acts(&plan(&wanted(&ONE), &facts)).is_empty());
    }
    // A fence and a takeover back leave the epoch in the rule.
    let marked = with_rules(&json!([rule(&["10.0.0.101", "192.0.2.8", "198.51.100.1", "203.0.113.1"])]));
    assert!(acts(&plan(&wanted(&ONE), &marked)).is_empty());
}

#[test]
fn what_is_half_there_is_completed() {
    let set = |to| Act::Set { volume: "kafka1_1".to_owned(), to };
    done(&with_volume(&json!({ "snapshot_policy": { "name": "default" } })), &set(Setting::NoSnapshots));
    done(&with_volume(&json!({ "size": 50_u64 << 30 })), &set(Setting::Size(100 << 30)));
    let mount = Act::Mount { volume: "kafka1_1".to_owned(), junction: "/kafka1_1".to_owned() };
    done(&with_volume(&json!({ "nas": { "path": null } })), &mount);
    let off =
        change(|facts| facts.preserve_unlink = Ok(BTreeMap::from([("kafka1_1".to_owned(), Some(false))])));
    done(&off, &Act::PreserveUnlink { volume: "kafka1_1".to_owned() });
    let clients = vec!["10.0.0.101".parse().unwrap()];
    let unused = change(|facts| {
        facts.policies = Ok(policies(&json!([])));
        facts.volumes = Ok(Vec::new());
    });
    let rule = Act::CreateRule { policy: "kafka1".to_owned(), clients };
    assert!(acts(&plan(&wanted(&ONE), &unused)).contains(&rule));
    in_the_way(&with_rules(&json!([])), "export policy kafka1", "that may be a fence");
    // Alone under a policy that lets nobody in.
    let old = change(|facts| {
        facts.volumes = Ok(vec![volume(&json!({ "nas": { "export_policy": { "name": "default" } } }))]);
    });
    done(&old, &set(Setting::Policy("kafka1".to_owned())));
}

#[test]
fn one_more_address_of_the_owner_is_added_to_its_rule() {
    let two = ["--aggregate", "aggr1", "--broker", "1=10.0.0.101,10.0.1.101", "--size", "100GiB"];
    let items = plan(&wanted(&two), &complete());
    let [Act::ExtendRule { clients, rule, .. }] = &acts(&items)[..] else { panic!("{items:#?}") };
    assert_eq!((clients[0].to_string().as_str(), rule.index), ("10.0.1.101", 1));
}

#[test]
fn whoever_else_is_let_in_is_in_the_way() {
    let what = "export policy kafka1";
    in_the_way(&with_rules(&json!([rule(&["10.0.0.102"])])), what, "lets 10.0.0.102 in");
    in_the_way(&with_rules(&json!([rule(&["10.0.0.101", "10.0.0.102"])])), what, "lets 10.0.0.102 in");
    in_the_way(&with_rules(&json!([rule(&["10.0.0.0/24"])])), what, "may be more than one host");
    in_the_way(&with_rules(&json!([rule(&["192.0.2.8", "198.51.100.1"])])), what, "lets nobody in");
    in_the_way(&with_rules(&json!([rule(&["10.0.0.101"]), rule(&["10.0.0.101"])])), what, "has 2 rules");
    let mut never = rule(&["10.0.0.101"]);
    never["rw_rule"] = json!(["never"]);
    in_the_way(&with_rules(&json!([never])), what, "lets nobody write");
    let shared = change(|facts| {
        let other = volume(&json!({ "name": "other", "nas": { "path": "/other" } }));
        facts.volumes.as_mut().unwrap().push(other);
    });
    in_the_way(&shared, what, "that of other too");
}

#[test]
fn a_volume_is_not_taken_away_from_others() {
    let what = "export policy of kafka1_1";
    let old = json!({ "nas": { "export_policy": { "name": "old" } } });
    let with = |rules: Value| {
        let mut facts = with_volume(&old);
        let policies = facts.policies.as_mut().unwrap();
        policies.push(of(json!({ "id": 3, "name": "old", "rules": rules })));
        facts
    };
    in_the_way(&with(json!([rule(&["10.0.0.200"])])), what, "lets 10.0.0.200 in");
    in_the_way(&with(json!([rule(&["@hosts"])])), what, "lets @hosts in");
    in_the_way(&with_volume(&old), what, "nobody can see whom");
    let mut shared = with(json!([]));
    let other = json!({ "name": "other", "nas": { "path": "/other", "export_policy": { "name": "old" } } });
    shared.volumes.as_mut().unwrap().push(volume(&other));
    in_the_way(&shared, what, "which other have too");
    // Nobody in it may mean that somebody was put out.
    in_the_way(
        &with(json!([rule(&["192.0.2.8", "198.51.100.1", "203.0.113.1"])])),
        what,
        "which lets nobody in",
    );
    in_the_way(&with(json!([])), what, "which lets nobody in");
    // The owner's own access moves along.
    let set = Act::Set { volume: "kafka1_1".to_owned(), to: Setting::Policy("kafka1".to_owned()) };
    done(&with(json!([rule(&["10.0.0.101"])])), &set);
}

#[test]
fn a_volume_of_another_kind_is_in_the_way() {
    for (patch, says) in [
        (json!({ "style": "flexgroup" }), "it is a flexgroup, not a flexvol"),
        (json!({ "type": "dp" }), "of type dp"),
        (json!({ "state": "offline" }), "it is offline"),
        (json!({ "nas": { "security_style": "ntfs" } }), "security style is ntfs"),
    ] {
        let items = plan(&wanted(&ONE), &with_volume(&patch));
        let odd: Vec<_> = items.iter().filter(|item| item.state == State::Conflict).collect();
        assert!(odd.len() == 1 && odd[0].what == "volume kafka1_1" && odd[0].says.contains(says), "{odd:#?}");
    }
    in_the_way(&with_volume(&json!({ "nas": { "path": "/old" } })), "junction of kafka1_1", "it is at /old");
    let taken = change(|facts| {
        let other = json!({ "name": "other", "nas": { "export_policy": { "name": "default" } } });
        facts.volumes = Ok(vec![volume(&json!({ "nas": { "path": null } })), volume(&other)]);
    });
    in_the_way(&taken, "junction of kafka1_1", "/kafka1_1 is that of volume other");
}

#[test]
fn a_system_that_does_not_fit_is_in_the_way_or_noted() {
    let old = change(|facts| facts.release = Ok(Version { generation: 9, major: 11, minor: 1, full: None }));
    in_the_way(&old, "release", "no preserve-unlink");
    in_the_way(&change(|facts| facts.service = Ok(None)), "NFS service of svm1", "no SVM svm1");
    in_the_way(
        &change(|facts| facts.aggregates = Ok(vec![aggregate("aggr2")])),
        "aggregate aggr1",
        "none of this name",
    );
    let hidden = || Unread::NotVisible("permission denied".to_owned());
    in_the_way(
        &change(|facts| facts.preserve_unlink = Err(hidden())),
        "preserve-unlink",
        "permission denied",
    );
    in_the_way(&change(|facts| facts.volumes = Err(hidden())), "volumes", "permission denied");
    let fsx = change(|facts| {
        facts.release = Err(hidden());
        facts.aggregates = Err(hidden());
    });
    let notes: Vec<_> =
        plan(&wanted(&ONE), &fsx).into_iter().filter(|item| item.state == State::Note).collect();
    assert_eq!(notes.len(), 2, "{notes:#?}");
    let mut full = empty();
    full.aggregates = Ok(vec![of(json!({
        "uuid": "a", "name": "aggr1", "space": { "block_storage": { "available": 1_u64 << 30 } },
    }))]);
    let items = plan(&wanted(&ONE), &full);
    let room = items.iter().find(|item| item.what == "aggregate aggr1").unwrap();
    assert!(room.state == State::Note && room.says.contains("1 GiB free, 100 GiB to be made"), "{room:?}");
}

#[test]
fn the_snippet_is_what_the_configuration_takes() {
    let more = ["--broker", "2=10.0.0.102", "--volumes-per-broker", "2"];
    let wanted = wanted(&[&ONE[..], &more].concat());
    let ontap: OntapConfig = of(json!({
        "url": "https://cluster1", "user": "understudy", "password_file": "/etc/understudy/o\"dd", "pin": "aa",
    }));
    let text = snippet(&wanted, &ontap, &empty());
    let read: Value = toml::from_str(&text).unwrap();
    let brokers = read["broker"].as_array().unwrap();
    assert_eq!((brokers.len(), &brokers[1]["id"]), (2, &json!(2)));
    let StorageConfig::Nfs(nfs) = of(brokers[1]["storage"].clone()) else { panic!("{text}") };
    let grant = nfs.grant.unwrap();
    assert_eq!(
        (grant.volumes, grant.svm),
        (vec!["kafka2_1".to_owned(), "kafka2_2".to_owned()], "svm1".to_owned())
    );
    assert_eq!((nfs.mount[1].source.as_str(), grant.ontap), ("10.0.0.50:/kafka2_2", ontap.clone()));
    // Which standby it is for is not known here, and the configuration says so until it is filled in.
    let StorageConfig::Nfs(nfs) = of(brokers[0]["storage"].clone()) else { panic!("{text}") };
    let problems = nfs.grant.unwrap().build(&[]).unwrap_err();
    assert!(problems.iter().any(|problem| problem.starts_with("addresses: ")), "{problems:?}");
    let mut blind = empty();
    blind.lifs = Ok(Vec::new());
    assert!(snippet(&wanted, &ontap, &blind).contains("<address of an NFS LIF>:/kafka1_1"));
}
