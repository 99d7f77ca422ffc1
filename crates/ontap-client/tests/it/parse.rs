//! Answers of any release: fields that are new, fields that are missing or null, words that nobody knows, and
//! numbers and booleans as strings, in every kind of object.

use std::collections::BTreeSet;
use std::fmt::Debug;

use ontap_client::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Without these a record is no record.
const KEYS: &[&str] = &["uuid", "name", "id", "index", "match"];

/// How an answer may differ from the one that we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Oddity {
    New,
    Missing,
    Null,
    OtherWord,
    AsString,
}

/// Applies the oddity at the places that `dice` picks, anywhere in the answer.
fn disturb(value: &mut Value, oddity: Oddity, dice: &mut impl FnMut() -> bool, word: &str) {
    match value {
        Value::Object(fields) => {
            let names: BTreeSet<_> = fields.keys().cloned().collect();
            for name in names.iter().filter(|name| !KEYS.contains(&name.as_str()) && dice()) {
                match oddity {
                    Oddity::Missing => drop(fields.remove(name)),
                    Oddity::Null => drop(fields.insert(name.clone(), Value::Null)),
                    Oddity::OtherWord if fields[name].is_string() => {
                        fields.insert(name.clone(), json!(word));
                    }
                    _ => {}
                }
            }
            fields.values_mut().for_each(|field| disturb(field, oddity, dice, word));
            if oddity == Oddity::New && dice() {
                fields.insert(format!("new_{word}"), json!({ "nested": [word, 1, null] }));
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|one| disturb(one, oddity, dice, word)),
        Value::Number(number) if oddity == Oddity::AsString => *value = json!(number.to_string()),
        Value::Bool(flag) if oddity == Oddity::AsString => *value = json!(flag.to_string()),
        _ => {}
    }
}

fn read<T: DeserializeOwned + Debug>(value: &Value) -> Result<String, TestCaseError> {
    match T::deserialize(value) {
        Ok(read) => Ok(format!("{read:?}")),
        Err(error) => Err(TestCaseError::fail(format!("{error} in {value}"))),
    }
}

/// Whether `T` is read from a disturbed answer, and the same where the oddity says nothing new.
fn sturdy<T: DeserializeOwned + Debug>(
    answer: Value,
    oddity: Oddity,
    seed: u64,
    word: &str,
) -> TestCaseResult {
    let plain = read::<T>(&answer)?;
    let mut state = seed | 1;
    let mut dice = || {
        // Xorshift: enough to pick fields.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 4 == 0
    };
    let mut odd = answer;
    disturb(&mut odd, oddity, &mut dice, word);
    let read = read::<T>(&odd)?;
    if matches!(oddity, Oddity::New | Oddity::AsString) {
        prop_assert_eq!(read, plain, "{}", odd);
    }
    Ok(())
}

fn oddities() -> impl Strategy<Value = Oddity> {
    use Oddity::{AsString, Missing, New, Null, OtherWord};
    prop::sample::select(vec![New, Missing, Null, OtherWord, AsString])
}

macro_rules! sturdy {
    ($($test:ident: $type:ty = $answer:expr;)+) => {
        proptest! {
            #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $test(oddity in oddities(), seed in any::<u64>(), word in "[a-z_0-9.-]{0,12}") {
                    sturdy::<$type>($answer, oddity, seed, &word)?;
                }
            )+
        }
    };
}

fn node() -> Value {
    json!({ "name": "node-01", "uuid": "cc28" })
}

fn rates() -> Value {
    json!({ "read": 200, "write": 100, "other": 100, "total": 1000 })
}

fn version() -> Value {
    json!({ "full": "NetApp Release 9.17.1P1: Mon", "generation": 9, "major": 17, "minor": 1 })
}

sturdy! {
    clusters: Cluster = json!({ "name": "c1", "uuid": "1cd8", "version": version(), "_links": {} });
    nodes: Node = json!({ "name": "node-01", "uuid": "4ea7", "state": "up", "membership": "member", "uptime": 300536,
        "version": version(), "ha": { "enabled": true, "auto_giveback": false, "partners": [node()],
        "takeover": { "state": "not_attempted", "failure": { "code": 852130, "message": "no" } },
        "giveback": { "state": "failed", "status": [{ "aggregate": { "name": "aggr1" } }] },
        "interconnect": { "adapter": "MVIA", "state": "down" },
        "takeover_check": { "takeover_possible": true, "reasons": ["x"] } } });
    svms: Svm = json!({ "uuid": "02c9", "name": "svm1", "state": "running", "subtype": "default",
        "aggregates": [{ "name": "aggr1", "uuid": "1cd8" }] });
    nfs_services: NfsService = json!({ "svm": { "name": "svm1", "uuid": "02c9" }, "enabled": true, "state": "online",
        "protocol": { "v3_enabled": true, "v40_enabled": false, "v41_enabled": true, "v4_id_domain": "example.com",
        "v4_lease_seconds": 30, "v4_grace_seconds": 45, "v4_session_slots": 180,
        "v41_features": { "pnfs_enabled": false, "read_delegation_enabled": false, "write_delegation_enabled": false,
        "referrals_enabled": false, "trunking_enabled": true } },
        "transport": { "tcp_enabled": true, "tcp_max_transfer_size": 65536 },
        "access_cache_config": { "ttl_positive": 3600, "ttl_negative": 3600, "ttl_failure": 1,
        "harvest_timeout": 86400, "isDnsTTLEnabled": false } });
    export_policies: ExportPolicy = json!({ "id": 12884901890_u64, "name": "p", "svm": node() });
    export_rules: ExportRule = json!({ "index": 1, "clients": [{ "match": "0.0.0.0/0" }], "protocols": ["any"],
        "ro_rule": ["sys"], "rw_rule": ["sys"], "superuser": ["none"], "anonymous_user": "65534",
        "allow_suid": true, "chown_mode": "restricted" });
    volumes: Volume = json!({ "uuid": "028b", "name": "vol1", "svm": node(), "state": "online", "style": "flexvol",
        "type": "rw", "size": 20971520, "aggregates": [node()], "comment": "c",
        "nas": { "path": "/vol1", "export_policy": { "name": "default", "id": 100 }, "security_style": "unix",
        "unix_permissions": 755 },
        "space": { "size": 1, "available": 2, "used": 3, "afs_total": 4, "percent_used": 5, "physical_used": 6,
        "footprint": 7, "logical_space": { "used": 8, "used_by_afs": 9 },
        "snapshot": { "reserve_percent": 5, "used": 0 } },
        "efficiency": { "dedupe": "both", "compression": "inline", "compaction": "inline", "ratio": 1.5,
        "storage_efficiency_mode": "efficient" }, "snapshot_policy": { "name": "default" },
        "clone": { "is_flexclone": true, "parent_volume": node(), "parent_snapshot": { "name": "s" },
        "split_initiated": false, "split_complete_percent": 0 } });
    snapshots: Snapshot = json!({ "uuid": "1cd8", "name": "s", "create_time": "2019-02-04T19:00:00Z",
        "expiry_time": "2019-02-04T19:00:00-04:00", "comment": "c", "state": "valid", "snapmirror_label": "l",
        "owners": ["volume_clone"] });
    locks: Lock = json!({ "uuid": "be1c", "svm": node(), "volume": node(), "node": node(),
        "interface": { "name": "lif1", "uuid": "6bf2", "ip": { "address": "10.140.115.95" } },
        "client_address": "10.74.7.22", "protocol": "nfsv4.1", "type": "share_level", "state": "granted",
        "path": "/v/f", "owner_id": "feff", "constituent": false, "delegation": "read",
        "share_lock": { "mode": "read_write_deny_none", "soft": false },
        "byte_lock": { "offset": 0, "length": 10, "exclusive": true, "mandatory": false } });
    nfs_clients: NfsClient = json!({ "svm": node(), "node": node(), "volume": node(), "client_ip": "10.140.137.57",
        "server_ip": "10.140.72.214", "protocol": "nfs4.1", "export_policy": { "name": "p", "id": "12884901890" },
        "idle_duration": "P4DT84H30M5S", "local_request_count": 1, "remote_request_count": 0 });
    nfs_client_settings: NfsClientSettings = json!({ "client_retention_interval": "P7D", "update_interval": "PT8H",
        "enable_nfs_clients_deletion": false });
    connections: ActiveConnection = json!({ "node": "node-01", "cid": 1, "vserver": "svm1", "lif_name": "lif1",
        "local_address": "10.0.0.1", "local_port": 2049, "remote_ip": "10.0.0.101", "remote_port": 800,
        "proto": "tcp", "service": "nfs" });
    interfaces: Interface = json!({ "uuid": "1cd8", "name": "lif1", "svm": node(), "enabled": true, "state": "up",
        "ip": { "address": "10.0.0.1", "netmask": 24, "family": "ipv4" }, "services": ["data_nfs"],
        "service_policy": { "name": "default-data-files" },
        "location": { "node": node(), "port": node(), "home_node": node(), "home_port": node(), "is_home": true,
        "auto_revert": false, "failover": "default" } });
    aggregates: Aggregate = json!({ "uuid": "19425837", "name": "aggr1", "state": "online", "node": node(),
        "home_node": node(), "space": { "block_storage": { "size": 10, "available": 5, "used": 5,
        "physical_used": 4 }, "efficiency": { "logical_used": 10, "savings": 4, "ratio": 1.7 },
        "efficiency_without_snapshots": { "logical_used": 10, "savings": 4, "ratio": 2.0 },
        "efficiency_without_snapshots_flexclones": { "logical_used": 10 } } });
    counters: Counters = json!({ "timestamp": "2017-01-25T11:20:13Z", "status": "ok", "iops_raw": rates() });
}

#[test]
fn a_word_that_nobody_knows_is_kept() {
    let lock: Lock =
        serde_json::from_value(json!({ "uuid": "1", "protocol": "nfsv4.2", "state": 7 })).unwrap();
    assert_eq!(lock.protocol.as_ref().map(LockProtocol::as_str), Some("nfsv4.2"));
    assert_eq!(lock.state, Some(LockState::Unknown("7".to_owned())));
    for word in NodeState::KNOWN {
        let state = NodeState::from(*word);
        assert!(!matches!(state, NodeState::Unknown(_)));
        assert_eq!(serde_json::to_value(&state).unwrap(), json!(word));
    }
}

#[test]
fn a_record_without_its_key_is_an_error() {
    for key in ["uuid", "name"] {
        let mut volume = json!({ "uuid": "u", "name": "n" });
        assert!(Volume::deserialize_from(&volume).is_ok());
        volume[key] = json!("");
        assert!(Volume::deserialize_from(&volume).is_err());
        volume.as_object_mut().map(|fields: &mut Map<_, _>| fields.remove(key));
        assert!(Volume::deserialize_from(&volume).is_err());
    }
    assert!(ExportRule::deserialize_from(&json!({ "index": "first" })).is_err());
}

trait FromValue: DeserializeOwned {
    fn deserialize_from(value: &Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(value.clone())
    }
}

impl<T: DeserializeOwned> FromValue for T {}

#[test]
fn releases_are_compared_by_age() {
    let version: Version =
        serde_json::from_value(json!({ "generation": 9, "major": "12", "minor": 1 })).unwrap();
    assert!(version.is_at_least(9, 12, 1) && version.is_at_least(9, 9, 5) && !version.is_at_least(9, 13, 0));
    assert_eq!(version.to_string(), "9.12.1");
}
