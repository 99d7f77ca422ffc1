//! Facts in, findings out: each check as it passes, warns, fails, and is not visible.

use std::collections::BTreeMap;

use ontap_client::{Aggregate, Interface, NfsService, Version, Volume};
use recovery::model::BrokerId;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::facts::{Facts, Unread};
use super::super::sites::{Guarded, Site};
use super::finding::{Check, Finding, Verdict};
use super::judge::judge;
use super::{PAGE, Report};

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn service(protocol: Value, transfer: u32) -> NfsService {
    of(json!({
        "enabled": true, "state": "online", "protocol": protocol,
        "transport": { "tcp_max_transfer_size": transfer },
    }))
}

fn protocol(v41: bool, pnfs: bool) -> Value {
    json!({ "v41_enabled": v41, "v41_features": { "pnfs_enabled": pnfs } })
}

fn volume(name: &str, policy: &str) -> Volume {
    of(json!({
        "uuid": name, "name": name, "state": "online", "type": "rw", "aggregates": [{ "name": "aggr1" }],
        "nas": { "path": format!("/{name}"), "export_policy": { "name": policy } },
        "space": { "size": 100_u64 << 30, "used": 10_u64 << 30, "percent_used": 10 },
        "snapshot_policy": { "name": "none" },
        "efficiency": { "dedupe": "background", "compression": "none" },
    }))
}

fn root() -> Volume {
    of(json!({
        "uuid": "root", "name": "svm1_root", "state": "online", "nas": { "path": "/", "export_policy": { "name": "default" } },
    }))
}

fn rule(index: u64, clients: &[&str]) -> Value {
    let clients: Vec<Value> = clients.iter().map(|client| json!({ "match": client })).collect();
    json!({
        "index": index, "clients": clients, "protocols": ["nfs4"], "ro_rule": ["sys"], "rw_rule": ["sys"],
        "superuser": ["sys"],
    })
}

fn policies(of_kafka: &[Value]) -> Vec<ontap_client::PolicyRules> {
    of(json!([
        { "id": 1, "name": "default", "rules": [rule(1, &["10.0.0.0/8"])] },
        { "id": 2, "name": "kafka1", "rules": of_kafka },
    ]))
}

fn lif(is_home: bool, state: &str) -> Interface {
    of(json!({
        "uuid": "lif1", "name": "lif1", "ip": { "address": "10.0.0.50" }, "enabled": true, "state": state,
        "location": { "is_home": is_home, "node": { "name": "node-02" }, "home_node": { "name": "node-01" } },
    }))
}

fn connected(client: &str, count: usize) -> Vec<ontap_client::ActiveConnection> {
    (0..count).map(|_| of(json!({ "remote_ip": client, "local_address": "10.0.0.50" }))).collect()
}

fn aggregate(used: u64) -> Aggregate {
    of(json!({ "uuid": "a", "name": "aggr1", "space": { "block_storage": { "size": 100, "used": used } } }))
}

/// Broker 1 on two volumes, as it should be.
fn site() -> Site {
    let mount = |name: &str| {
        of(json!({
            "source": format!("10.0.0.50:/{name}"), "target": format!("/kafka/{name}"),
            "options": "vers=4.1,nconnect=16",
        }))
    };
    let broker = Guarded {
        id: BrokerId(1),
        volumes: vec!["kafka01".to_owned(), "kafka02".to_owned()],
        mounts: vec![mount("kafka01"), mount("kafka02")],
    };
    let ontap = of(json!({ "url": "https://cluster1" }));
    Site { ontap, svm: "svm1".to_owned(), brokers: vec![broker] }
}

fn good() -> Facts {
    let on = |name: &str| (name.to_owned(), Some(true));
    Facts {
        release: Ok(Version { generation: 9, major: 12, minor: 1, full: None }),
        service: Ok(Some(service(protocol(true, false), 262_144))),
        volumes: Ok(vec![root(), volume("kafka01", "kafka1"), volume("kafka02", "kafka1")]),
        policies: Ok(policies(&[rule(1, &["10.0.0.101"])])),
        preserve_unlink: Ok(BTreeMap::from([on("kafka01"), on("kafka02")])),
        lifs: Ok(vec![lif(true, "up")]),
        connections: Ok(connected("10.0.0.101", 16)),
        aggregates: Ok(vec![aggregate(10)]),
    }
}

fn change(act: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = good();
    act(&mut facts);
    facts
}

/// With the first of the broker's volumes changed.
fn volume_with(patch: Value) -> Facts {
    let mut row = json!({
        "uuid": "kafka01", "name": "kafka01", "state": "online", "type": "rw", "aggregates": [{ "name": "aggr1" }],
        "nas": { "path": "/kafka01", "export_policy": { "name": "kafka1" } },
        "space": { "size": 100_u64 << 30, "used": 10_u64 << 30, "percent_used": 10 },
        "snapshot_policy": { "name": "none" }, "efficiency": { "dedupe": "background" },
    });
    for (key, value) in patch.as_object().unwrap() {
        row[key] = value.clone();
    }
    change(|facts| facts.volumes.as_mut().unwrap()[1] = of(row))
}

fn found(facts: &Facts, check: Check, verdict: Verdict) -> Vec<Finding> {
    let all = judge(&site(), facts);
    all.into_iter().filter(|finding| finding.check == check && finding.verdict == verdict).collect()
}

/// Exactly this one finding is not a pass, and says so.
fn only(facts: &Facts, check: Check, verdict: Verdict, says: &str, remedy: &str) {
    let all = judge(&site(), facts);
    let odd: Vec<&Finding> = all.iter().filter(|finding| finding.verdict != Verdict::Pass).collect();
    let [finding] = odd[..] else { panic!("{odd:#?}") };
    assert_eq!((finding.check, finding.verdict), (check, verdict), "{finding:#?}");
    assert!(finding.found.contains(says), "{finding:#?}");
    assert!(finding.remedy.as_deref().unwrap_or_default().contains(remedy), "{finding:#?}");
    assert!(!finding.why.is_empty());
}

#[test]
fn what_is_as_it_should_be_passes_in_every_check_that_applies() {
    let all = judge(&site(), &good());
    assert!(all.iter().all(|finding| finding.verdict == Verdict::Pass), "{all:#?}");
    for check in Check::ALL.into_iter().filter(|check| *check != Check::Coverage) {
        assert!(all.iter().any(|finding| finding.check == check), "{check:?} is missing");
    }
    assert!(Report::of(all).to_string().ends_with(" passed, 0 warnings, 0 failed, 0 not visible"));
}

#[test]
fn the_release_must_know_preserve_unlink() {
    let old = change(|facts| facts.release = Ok(Version { generation: 9, major: 11, minor: 1, full: None }));
    only(&old, Check::Release, Verdict::Fail, "9.11.1 is older", "cluster image update");
    let unsaid = change(|facts| facts.release = Ok(Version::default()));
    only(&unsaid, Check::Release, Verdict::NotVisible, "does not say", "");
}

#[test]
fn the_nfs_service_is_judged() {
    let with = |service| change(|facts| facts.service = Ok(Some(service)));
    let v3 = with(service(protocol(false, false), 262_144));
    only(
        &v3,
        Check::Nfs41,
        Verdict::Fail,
        "NFSv4.1 is off",
        "vserver nfs modify -vserver svm1 -v4.1 enabled",
    );
    let pnfs = with(service(protocol(true, true), 1_048_576));
    only(&pnfs, Check::Pnfs, Verdict::Fail, "pNFS is on", "-v4.1-pnfs disabled");
    let small = with(service(protocol(true, false), 65_536));
    only(&small, Check::TransferSize, Verdict::Warn, "65536 bytes", "-tcp-max-xfer-size 262144");
    let unsaid = with(service(json!({ "v41_enabled": true }), 262_144));
    only(&unsaid, Check::Pnfs, Verdict::NotVisible, "whether pNFS is off", "");
    let none = change(|facts| facts.service = Ok(None));
    only(&none, Check::Nfs41, Verdict::Fail, "no NFS service", "vserver nfs create");
    let off = with(of(json!({
        "enabled": false, "protocol": protocol(true, false), "transport": { "tcp_max_transfer_size": 262_144 },
    })));
    only(&off, Check::Nfs41, Verdict::Fail, "switched off", "vserver nfs on");
}

#[test]
fn somebody_must_be_able_to_read_the_root() {
    let closed = change(|facts| {
        facts.policies = Ok(of(json!([
            { "id": 1, "name": "default", "rules": [] },
            { "id": 2, "name": "kafka1", "rules": [rule(1, &["10.0.0.101"])] },
        ])));
    });
    only(
        &closed,
        Check::RootExport,
        Verdict::Warn,
        "of the root volume svm1_root has no rule",
        "-policyname default",
    );
    let hidden = change(|facts| drop(facts.volumes.as_mut().unwrap().remove(0)));
    only(&hidden, Check::RootExport, Verdict::NotVisible, "which volume is the root", "");
}

#[test]
fn lifs_are_up_and_at_home() {
    let away = change(|facts| facts.lifs = Ok(vec![lif(false, "up")]));
    only(
        &away,
        Check::LifHome,
        Verdict::Warn,
        "is on node-02, and belongs on node-01",
        "network interface revert",
    );
    let down = change(|facts| facts.lifs = Ok(vec![lif(true, "down")]));
    only(&down, Check::LifHealth, Verdict::Fail, "lif1 (10.0.0.50) is down", "network interface show");
    let other = change(|facts| {
        let mut moved = lif(true, "up");
        moved.ip.address = Some("10.0.0.51".to_owned());
        facts.lifs = Ok(vec![moved]);
    });
    only(&other, Check::LifHealth, Verdict::Fail, "mounts go to 10.0.0.50", "correct `source`");
    let none = change(|facts| facts.lifs = Ok(Vec::new()));
    only(&none, Check::LifHealth, Verdict::Fail, "no LIF", "network interface create");
}

#[test]
fn a_full_aggregate_or_volume_is_told_at_its_limits() {
    for (used, verdict) in [(79, None), (80, Some(Verdict::Warn)), (90, Some(Verdict::Fail))] {
        let facts = change(|facts| facts.aggregates = Ok(vec![aggregate(used)]));
        match verdict {
            None => assert_eq!(found(&facts, Check::AggregateSpace, Verdict::Pass).len(), 1),
            Some(verdict) => {
                only(&facts, Check::AggregateSpace, verdict, "aggr1 is", "add-disks -aggregate aggr1");
            }
        }
        let space = json!({ "size": 100_u64 << 30, "used": used << 30, "percent_used": used });
        let facts = volume_with(json!({ "space": space }));
        match verdict {
            None => assert_eq!(found(&facts, Check::Space, Verdict::Pass).len(), 2),
            // 80 GiB are 70 % of 114.3 GiB, 90 GiB of 128.6 GiB.
            Some(verdict) => {
                let grow = if used == 80 { "-new-size +15GB" } else { "-new-size +29GB" };
                only(&facts, Check::Space, verdict, "% used", grow);
            }
        }
    }
    let unsaid = volume_with(json!({ "space": {} }));
    only(&unsaid, Check::Space, Verdict::NotVisible, "how full", "");
    let computed = volume_with(json!({ "space": { "size": 1000, "used": 891 } }));
    only(&computed, Check::Space, Verdict::Fail, "90 % used", "volume size -vserver svm1 -volume kafka01");
}

#[test]
fn a_policy_is_of_one_broker() {
    let shared = change(|facts| facts.volumes.as_mut().unwrap().push(volume("other", "kafka1")));
    only(&shared, Check::ExportPolicy, Verdict::Fail, "kafka1 is that of other too", "-policy kafka1");
    let several = change(|facts| {
        facts.volumes.as_mut().unwrap()[2] = volume("kafka02", "second");
        facts.policies = Ok(of(json!([
            { "id": 1, "name": "default", "rules": [rule(1, &["10.0.0.0/8"])] },
            { "id": 2, "name": "kafka1", "rules": [rule(1, &["10.0.0.101"])] },
            { "id": 3, "name": "second", "rules": [rule(1, &["10.0.0.101"])] },
        ])));
    });
    only(&several, Check::ExportPolicy, Verdict::Warn, "2 policies (kafka1, second)", "volume modify");
}

#[test]
fn a_policy_has_one_rule_for_single_addresses() {
    let with = |rules: &[Value]| change(|facts| facts.policies = Ok(policies(rules)));
    let two = with(&[rule(1, &["10.0.0.101"]), rule(4, &["10.0.0.102"])]);
    only(&two, Check::ExportRule, Verdict::Fail, "has 2 rules", "delete the others (4)");
    only(&with(&[]), Check::ExportRule, Verdict::Fail, "has no rule", "rule create -vserver svm1");
    for wide in ["10.0.0.0/24", "0.0.0.0/0", "kafka-1", "@brokers"] {
        let facts = with(&[rule(1, &["10.0.0.101", wide])]);
        only(&facts, Check::ExportRule, Verdict::Fail, wide, "-ruleindex 1 -clientmatch");
    }
    for (field, words, says) in [
        ("protocols", json!(["cifs", "nfs4"]), "is for cifs too"),
        ("protocols", json!(["nfs3"]), "not for NFSv4"),
        ("rw_rule", json!(["never"]), "lets nobody write"),
        ("ro_rule", json!(["none"]), "lets nobody read"),
    ] {
        let mut odd = rule(1, &["10.0.0.101"]);
        odd[field] = words;
        only(&with(&[odd]), Check::ExportRule, Verdict::Fail, says, "rule modify");
    }
    // The fence leaves addresses behind that nobody can have: those are not strangers.
    let marked = with(&[rule(1, &["10.0.0.101", "192.0.2.8", "198.51.100.1", "203.0.113.1"])]);
    assert_eq!(found(&marked, Check::ExportRule, Verdict::Pass).len(), 1);
    let fenced = with(&[rule(1, &["192.0.2.8", "198.51.100.1", "203.0.113.1"])]);
    only(&fenced, Check::ExportRule, Verdict::Warn, "lets nobody in", "understudy history");
}

#[test]
fn connections_are_counted_against_nconnect() {
    let with = |connections| change(|facts| facts.connections = Ok(connections));
    only(
        &with(connected("10.0.0.101", 15)),
        Check::Connections,
        Verdict::Warn,
        "15 connections, 16 expected",
        "nconnect=16",
    );
    only(
        &with(connected("10.0.0.102", 16)),
        Check::Connections,
        Verdict::Warn,
        "has not mounted",
        "-remote-ip 10.0.0.101",
    );
    // 3 brokers with nconnect=16 are 48, as in TR-4947: each client counts for itself.
    assert_eq!(found(&with(connected("10.0.0.101", 48)), Check::Connections, Verdict::Pass).len(), 1);
    let mut site = site();
    site.brokers[0].mounts.iter_mut().for_each(|mount| mount.options = "vers=4.1".to_owned());
    let all = judge(&site, &good());
    let odd: Vec<_> = all.iter().filter(|finding| finding.verdict == Verdict::Warn).collect();
    assert!(odd.len() == 1 && odd[0].found.contains("do not set nconnect"), "{odd:#?}");
}

#[test]
fn a_volume_is_there_online_and_not_a_mirror() {
    let gone = change(|facts| drop(facts.volumes.as_mut().unwrap().remove(1)));
    let gone = found(&gone, Check::Volume, Verdict::Fail);
    assert!(gone[0].found.contains("no such volume") && gone[0].about.volume.as_deref() == Some("kafka01"));
    only(
        &volume_with(json!({ "state": "offline" })),
        Check::Volume,
        Verdict::Fail,
        "offline",
        "volume online",
    );
    only(
        &volume_with(json!({ "type": "dp" })),
        Check::Volume,
        Verdict::Fail,
        "copy of a mirror",
        "snapmirror break",
    );
}

#[test]
fn preserve_unlink_is_on() {
    let off =
        change(|facts| facts.preserve_unlink.as_mut().unwrap().extend([("kafka02".into(), Some(false))]));
    let line = "volume modify -vserver svm1 -volume kafka02 -is-preserve-unlink-enabled true";
    only(&off, Check::PreserveUnlink, Verdict::Fail, "false", line);
    let unsaid = change(|facts| facts.preserve_unlink.as_mut().unwrap().retain(|name, _| name != "kafka02"));
    only(&unsaid, Check::PreserveUnlink, Verdict::NotVisible, "does not say", "");
}

#[test]
fn a_junction_is_where_it_is_mounted_from() {
    let nas = |path: Value| json!({ "nas": { "path": path, "export_policy": { "name": "kafka1" } } });
    let nowhere = found(&volume_with(nas(Value::Null)), Check::Junction, Verdict::Fail);
    let remedy = "volume mount -vserver svm1 -volume kafka01 -junction-path /kafka01";
    assert_eq!(nowhere[0].remedy.as_deref(), Some(remedy));
    let elsewhere = found(&volume_with(nas(json!("/old"))), Check::Junction, Verdict::Fail);
    assert!(elsewhere[0].found.contains("at /old, which no [[broker.storage.mount]]"), "{elsewhere:#?}");
    // A directory on the volume is on the volume.
    let mut site = site();
    site.brokers[0].mounts[0].source = "10.0.0.50:/kafka01/broker1/".to_owned();
    assert!(judge(&site, &good()).iter().all(|finding| finding.verdict == Verdict::Pass));
    // A source that leads to somebody else's volume would escape the fence.
    site.brokers[0].mounts[0].source = "10.0.0.50:/kafka01/inner".to_owned();
    let inner = change(|facts| {
        let mut inner = volume("inner", "other");
        inner.nas.junction = Some("/kafka01/inner".to_owned());
        facts.volumes.as_mut().unwrap().push(inner);
    });
    let all = judge(&site, &inner);
    let odd: Vec<_> = all.iter().filter(|finding| finding.verdict == Verdict::Fail).collect();
    assert!(odd.iter().any(|odd| odd.found.contains("leads to volume inner")), "{odd:#?}");
}

#[test]
fn snapshots_and_missing_efficiency_are_warned_of() {
    let snapshots = volume_with(json!({ "snapshot_policy": { "name": "default" } }));
    only(&snapshots, Check::SnapshotPolicy, Verdict::Warn, "policy default", "-snapshot-policy none");
    let off = volume_with(
        json!({ "efficiency": { "dedupe": "none", "compression": "none", "compaction": "none" } }),
    );
    only(
        &off,
        Check::Efficiency,
        Verdict::Warn,
        "dedupe none",
        "volume efficiency on -vserver svm1 -volume kafka01",
    );
    let measured = volume_with(json!({ "space": {
        "size": 100_u64 << 30, "percent_used": 10, "physical_used": 50_u64 << 30,
        "logical_space": { "used": 100_u64 << 30 },
    } }));
    let told = Report::of(found(&measured, Check::Efficiency, Verdict::Pass)).to_string();
    assert!(told.contains("dedupe background; 100 GiB logical in 50 GiB physical, 2.00:1"), "{told}");
    only(
        &volume_with(json!({ "efficiency": null })),
        Check::Efficiency,
        Verdict::NotVisible,
        "efficiency is on",
        "",
    );
}

#[test]
fn what_cannot_be_seen_is_neither_good_nor_bad() {
    let all = judge(&site(), &Facts::unread(&Unread::NotVisible("permission denied".to_owned())));
    assert!(all.iter().all(|finding| finding.verdict == Verdict::NotVisible), "{all:#?}");
    assert!(all.iter().any(|finding| finding.check == Check::PreserveUnlink));
}

#[test]
fn an_error_is_a_failure_and_hides_nothing_else() {
    let broken = Unread::Failed("no connection".to_owned());
    let all = judge(&site(), &Facts::unread(&broken));
    assert!(all.iter().all(|finding| finding.verdict == Verdict::Fail), "{all:#?}");
    // What one error hides is told once for each thing.
    let told = Report::of(all).to_string();
    assert!(told.contains("FAIL  nfs41, pnfs, transfer_size, root_export, lif_health"), "{told}");
    let one = change(|facts| facts.preserve_unlink = Err(broken));
    let all = judge(&site(), &one);
    let odd: Vec<Check> =
        all.iter().filter(|finding| finding.verdict != Verdict::Pass).map(|finding| finding.check).collect();
    assert_eq!(odd, [Check::PreserveUnlink, Check::PreserveUnlink]);
}

#[test]
fn every_check_has_its_section() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ontap.md");
    let text = std::fs::read_to_string(page).unwrap();
    for check in Check::ALL {
        let heading = format!("### {}", check.label());
        assert!(text.lines().any(|line| line == heading), "{PAGE} has no section {heading}");
        assert_eq!(serde_json::to_value(check).unwrap(), check.label());
    }
}
