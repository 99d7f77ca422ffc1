//! What single calls send, and what they make of the answers.

use std::time::Duration;

use ontap_client::{
    Aggregate, ConnectionQuery, Error, ExportRule, FlushAnswer, LockProtocol, LockQuery, NewExportRule,
    NewVolume, NfsClientQuery, Visibility, VolumeChange, VolumeQuery,
};
use serde_json::{Value, json};

use crate::server::{Reply, Server};

fn ok(body: Value) -> Reply {
    Reply::Json(200, body)
}

fn records(records: Value) -> Reply {
    let count = records.as_array().unwrap().len();
    ok(json!({ "records": records, "num_records": count }))
}

fn fault(status: u16, code: &str) -> Reply {
    Reply::Json(status, json!({ "error": { "code": code, "message": "no" } }))
}

fn rule(index: u64, clients: &[&str]) -> Value {
    let clients: Vec<_> = clients.iter().map(|client| json!({ "match": client })).collect();
    json!({ "index": index, "clients": clients, "rw_rule": ["sys"] })
}

fn as_read(rule: &Value) -> ExportRule {
    serde_json::from_value(rule.clone()).unwrap()
}

/// A server whose policy has the rules `before`, until a PATCH after which it has those `after`.
async fn rules(before: Value, patch: Vec<Reply>, after: Value) -> Server {
    let mut patches = 0;
    Server::start(move |_, seen| match seen.method.as_str() {
        "GET" => records(if patches < patch.len() { before.clone() } else { after.clone() }),
        _ => {
            patches += 1;
            patch[patches - 1].clone()
        }
    })
    .await
}

#[tokio::test]
async fn clients_of_a_rule_are_replaced_in_one_request_and_read_back() {
    let (old, new) = (rule(1, &["10.0.0.101"]), rule(1, &["10.0.0.102"]));
    let other = rule(2, &["10.9.9.9"]);
    let server = rules(json!([other, old]), vec![ok(json!({}))], json!([new, other])).await;
    let rules = server.client().replace_clients(12884901890, &as_read(&old), &["10.0.0.102"]).await.unwrap();
    assert!(rules.len() == 2 && rules[0].is_for(&["10.0.0.102"]));
    let seen = server.seen();
    assert!(seen[0].is("GET", "/api/protocols/nfs/export-policies/12884901890/rules"));
    assert!(seen[1].is("PATCH", "/api/protocols/nfs/export-policies/12884901890/rules/1"));
    assert_eq!(seen[1].body, json!({ "clients": [{ "match": "10.0.0.102" }] }));
    assert!(seen[2].is("GET", "/api/protocols/nfs/export-policies/12884901890/rules"));
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn a_rule_that_has_moved_is_not_overwritten() {
    let old = rule(1, &["10.0.0.101"]);
    let moved = json!([rule(1, &["10.9.9.9"]), rule(2, &["10.0.0.101"])]);
    let server = rules(moved.clone(), vec![ok(json!({}))], moved.clone()).await;
    let error = server.client().replace_clients(7, &as_read(&old), &["10.0.0.102"]).await.unwrap_err();
    assert!(matches!(error, Error::Usage { .. }), "{error:?}");
    assert!(server.seen().iter().all(|seen| seen.method == "GET"));

    // Nor by a repetition, whether the first attempt was taken up or not.
    for passing in
        [Reply::Json(429, json!({ "error": { "code": "262160", "message": "busy" } })), Reply::Drop]
    {
        let is_open = matches!(passing, Reply::Drop);
        let server = rules(json!([old]), vec![passing], moved.clone()).await;
        let error = server.client().replace_clients(7, &as_read(&old), &["10.0.0.102"]).await.unwrap_err();
        assert_eq!(error.is_unconfirmed(), is_open, "{error:?}");
        assert_eq!(server.seen().iter().filter(|seen| seen.method == "PATCH").count(), 1);
    }
}

/// A policy shows less of a rule than the rule itself does.
#[tokio::test]
async fn a_rule_that_was_read_in_part_is_the_same_rule() {
    let (old, new) = (rule(1, &["10.0.0.101"]), rule(1, &["10.0.0.102"]));
    let read = json!({ "index": 1, "clients": [{ "match": "10.0.0.101" }] });
    let server = rules(json!([old]), vec![ok(json!({}))], json!([new])).await;
    server.client().replace_clients(7, &as_read(&read), &["10.0.0.102"]).await.unwrap();
}

#[tokio::test]
async fn a_lost_replacement_is_looked_up_before_it_is_repeated() {
    let (old, new) = (rule(1, &["10.0.0.101"]), rule(1, &["10.0.0.102"]));
    let server = rules(json!([old]), vec![Reply::Drop], json!([new])).await;
    server.client().replace_clients(7, &as_read(&old), &["10.0.0.102"]).await.unwrap();
    let methods: Vec<_> = server.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(methods, ["GET", "PATCH", "GET"], "it was in force");
    let server = rules(json!([old]), vec![Reply::Drop, ok(json!({}))], json!([new])).await;
    server.client().replace_clients(7, &as_read(&old), &["10.0.0.102"]).await.unwrap();
    let methods: Vec<_> = server.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(methods, ["GET", "PATCH", "GET", "PATCH", "GET"], "it was not");
}

#[tokio::test]
async fn an_owner_that_lives_on_in_another_rule_is_found_out() {
    let old = rule(1, &["10.0.0.101"]);
    let mut changed = rule(1, &["10.0.0.102"]);
    changed["rw_rule"] = json!(["any"]);
    for after in [
        json!([rule(1, &["10.0.0.102"]), rule(2, &["10.9.9.9", "10.0.0.101"])]),
        json!([changed]),
        json!([rule(2, &["10.0.0.102"])]),
        json!([]),
    ] {
        let server = rules(json!([old]), vec![ok(json!({}))], after).await;
        let error = server.client().replace_clients(7, &as_read(&old), &["10.0.0.102"]).await.unwrap_err();
        assert!(matches!(error, Error::NotApplied { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_success_that_is_a_lie_is_found_out() {
    let old = rule(1, &["10.0.0.101"]);
    let server = rules(json!([old]), vec![ok(json!({}))], json!([old])).await;
    let error = server.client().replace_clients(7, &as_read(&old), &["10.0.0.102"]).await.unwrap_err();
    assert!(matches!(&error, Error::NotApplied { what, .. } if what.contains("10.0.0.101")), "{error:?}");

    let old =
        json!({ "uuid": "v1", "name": "v", "nas": { "path": "/v", "export_policy": { "name": "default" } } });
    for change in [
        VolumeChange { junction: Some(""), ..VolumeChange::default() },
        VolumeChange { export_policy: Some("fence"), ..VolumeChange::default() },
    ] {
        let server = Server::of(vec![ok(json!({})), ok(old.clone())]).await;
        let error = server.client().update_volume("v1", &change).await.unwrap_err();
        assert!(matches!(error, Error::NotApplied { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn if_reading_back_fails_the_change_is_unconfirmed() {
    let old = rule(1, &["10.0.0.101"]);
    let server = Server::of(vec![records(json!([old])), ok(json!({})), fault(403, "6")]).await;
    let error = server.client().replace_clients(7, &as_read(&old), &["10.0.0.102"]).await.unwrap_err();
    assert!(error.is_unconfirmed(), "{error:?}");
}

#[tokio::test]
async fn what_cannot_be_meant_is_not_sent() {
    let server = Server::of(vec![ok(json!({}))]).await;
    let client = server.client();
    for error in [
        client.replace_clients(7, &as_read(&rule(1, &["10.0.0.101"])), &[]).await.unwrap_err(),
        client.update_volume("v1", &VolumeChange::default()).await.unwrap_err(),
        // These would be all volumes, or something else altogether.
        client.delete_volume("").await.unwrap_err(),
        client.delete_volume("..").await.unwrap_err(),
        client.delete_volume(".\n.").await.unwrap_err(),
        client.svm("").await.unwrap_err(),
        client.in_svm("a\nb").svms().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Usage { .. }), "{error:?}");
    }
    assert!(server.seen().is_empty());
}

#[test]
fn a_rule_is_compared_as_ontap_writes_it() {
    let clients = json!([{ "match": "FE80::0:1" }, { "match": "Host1" }]);
    let rule: ExportRule = serde_json::from_value(json!({ "index": "1", "clients": clients })).unwrap();
    assert!(rule.is_for(&["host1", "fe80::1"]));
    assert!(!rule.is_for(&["host1"]) && !rule.is_for(&["host1", "fe80::1", "10.0.0.1"]));
}

#[tokio::test]
async fn a_key_stays_one_part_of_the_path() {
    let server = Server::of(vec![ok(json!({}))]).await;
    server.client().delete_snapshot("v1", "../../a b?c#d").await.unwrap();
    assert_eq!(server.seen()[0].target, "/api/storage/volumes/v1/snapshots/..%2F..%2Fa%20b%3Fc%23d");
}

#[tokio::test]
async fn a_policy_is_made_with_its_rules() {
    let made = json!([{ "id": "12884901890", "name": "fence", "svm": { "name": "svm1" } }]);
    let server = Server::of(vec![Reply::Json(201, json!({})), records(made)]).await;
    let rules = [NewExportRule::nfs4(&["10.0.0.101"])];
    let policy = server.client().create_export_policy("svm1", "fence", &rules).await.unwrap();
    assert_eq!(policy.id, 12_884_901_890);
    let rule = json!({
        "clients": [{ "match": "10.0.0.101" }], "protocols": ["nfs4"], "ro_rule": ["sys"], "rw_rule": ["sys"],
        "superuser": ["sys"]
    });
    assert_eq!(server.seen()[0].body, json!({ "svm": { "name": "svm1" }, "name": "fence", "rules": [rule] }));
}

#[tokio::test]
async fn rules_come_in_their_order_and_a_new_one_tells_its_index() {
    let rules = json!([{ "index": 3 }, { "index": "1" }]);
    let server = Server::of(vec![
        records(rules),
        Reply::Json(201, json!({ "num_records": 1, "records": [{ "index": "4" }] })),
        fault(409, "1704070"),
    ])
    .await;
    let client = server.client();
    let indexes: Vec<_> = client.export_rules(7).await.unwrap().iter().map(|rule| rule.index).collect();
    assert_eq!(indexes, [1, 3]);
    let new = NewExportRule::nfs4(&["10.0.0.101"]);
    assert_eq!(client.create_export_rule(7, &new).await.unwrap(), Some(4));
    assert!(client.create_export_rule(7, &new).await.unwrap_err().is_duplicate());
}

#[tokio::test]
async fn what_fsx_does_not_show_is_not_visible() {
    for hidden in [fault(403, "6"), fault(400, "6691623"), fault(405, "3"), fault(400, "918701")] {
        let server = Server::of(vec![hidden]).await;
        let client = server.client();
        assert!(matches!(client.aggregates().await.unwrap(), Visibility::NotVisible { .. }));
        assert!(client.nodes().await.unwrap().visible().is_none());
        let which = ConnectionQuery { svm: "svm1", remote_ip: None, service: None };
        assert!(client.active_connections(&which).await.unwrap().visible().is_none());
        // What must be seen is an error.
        client.svms().await.unwrap_err();
    }
    let server = Server::of(vec![fault(400, "262179")]).await;
    server.client().aggregates().await.unwrap_err();
}

#[tokio::test]
async fn preserve_unlink_is_tried_with_more_privilege_and_read_back() {
    let server = Server::of(vec![
        fault(400, "262179"),
        ok(json!({ "num_records": 1, "cli_output": "" })),
        fault(400, "262197"),
        records(json!([{ "vserver": "svm1", "volume": "kafka01", "is_preserve_unlink_enabled": "true" }])),
    ])
    .await;
    server.client().set_preserve_unlink("svm1", "kafka01", true).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].target, "/api/private/cli/volume?vserver=svm1&volume=kafka01");
    assert_eq!(
        seen[1].target,
        "/api/private/cli/volume?vserver=svm1&volume=kafka01&privilege_level=advanced"
    );
    assert_eq!(seen[1].body, json!({ "is-preserve-unlink-enabled": true }));
    let read =
        "/api/private/cli/volume?vserver=svm1&volume=kafka01&fields=is-preserve-unlink-enabled".to_owned();
    assert_eq!(seen[2].target, read);
    assert_eq!(seen[3].target, format!("{read}&privilege_level=advanced"));
}

#[tokio::test]
async fn a_change_by_name_that_matched_nothing_is_an_error() {
    let server = Server::of(vec![ok(json!({ "num_records": 0, "cli_output": "" }))]).await;
    let error = server.client().set_preserve_unlink("svm1", "typo", true).await.unwrap_err();
    assert!(matches!(error, Error::NothingMatched { .. }), "{error:?}");
    let server = Server::of(vec![records(json!([]))]).await;
    let error = server.client().preserve_unlink("svm1", "typo").await.unwrap_err();
    assert!(matches!(error, Error::NothingMatched { .. }), "{error:?}");
}

#[tokio::test]
async fn an_error_in_an_answer_of_200_is_an_error() {
    let body = json!({ "num_records": 0, "error": { "code": "917658", "message": "must be offline" } });
    let server = Server::of(vec![ok(body.clone()), ok(body)]).await;
    let error = server.client().flush_access_cache("svm1", "node-01", "p").await.unwrap_err();
    assert_eq!(error.code(), Some(917_658));
    let seen = server.seen();
    assert_eq!(seen[0].target, "/api/private/cli/vserver/export-policy/access-cache/flush");
    assert_eq!(seen[0].body, json!({ "vserver": "svm1", "policy": "p", "node": "node-01" }));
    // The wider command, if that is what the account may.
    assert_eq!(seen[1].target, "/api/private/cli/vserver/export-policy/cache/flush?privilege_level=advanced");
    assert_eq!(seen[1].body, json!({ "vserver": "svm1", "cache": "access", "node": "node-01" }));
    // Unless others are to be spared; and what was done is told.
    let refused = json!({ "error": { "code": "6", "message": "not authorized for that command" } });
    let server = Server::of(vec![ok(refused.clone()), ok(refused), ok(json!({ "num_records": 1 }))]).await;
    let client = server.client();
    client.sparing_others().flush_access_cache("svm1", "node-01", "p").await.unwrap_err();
    assert_eq!(server.seen().len(), 1);
    let wide = client.flush_access_cache("svm1", "node-01", "p").await.unwrap();
    assert_eq!(wide, FlushAnswer::CountedForSvm);
}

#[tokio::test]
async fn expensive_fields_are_named_and_values_are_literal() {
    let server = Server::of(vec![records(json!([]))]).await;
    let client = server.client();
    let volumes = VolumeQuery { svm: Some("svm*"), export_policy: Some("fence"), ..VolumeQuery::default() };
    client.volumes(&volumes).await.unwrap();
    let lock = LockQuery { protocol: Some(&LockProtocol::Nfsv41), ..LockQuery::in_svm("svm1") };
    client.locks(&lock).await.unwrap();
    let who = NfsClientQuery { svm: "svm1", volume: Some("v"), client_ip: Some("10.0.0.101") };
    client.nfs_clients(&who).await.unwrap();
    let targets: Vec<_> = server.seen().into_iter().map(|seen| seen.target).collect();
    assert!(targets[0].contains("svm.name=%22svm*%22&nas.export_policy.name=fence"), "{}", targets[0]);
    assert!(
        targets[0].contains("nas.path%2C") && targets[0].contains("space.physical_used"),
        "{}",
        targets[0]
    );
    assert!(targets[1].contains("svm.name=svm1&protocol=nfsv4.1&fields=uuid%2C"), "{}", targets[1]);
    assert!(targets[2].contains("volume.name=v&client_ip=10.0.0.101"), "{}", targets[2]);
    assert!(targets.iter().all(|target| target.ends_with("ignore_unknown_fields=true")), "{targets:?}");
}

#[tokio::test]
async fn a_volume_is_made_with_what_is_set_only() {
    let made = records(json!([{ "uuid": "v1", "name": "v" }]));
    let server = Server::of(vec![Reply::Json(201, json!({})), made]).await;
    let client = server.client();
    let new = NewVolume {
        size_bytes: Some(1 << 40),
        junction: Some("/v".to_owned()),
        snapshot_policy: Some("none".to_owned()),
        ..NewVolume::new("svm1", "v", "aggr1")
    };
    client.create_volume(&new).await.unwrap();
    let seen = server.seen();
    assert_eq!(
        seen[0].body,
        json!({
            "svm": { "name": "svm1" }, "name": "v", "aggregates": [{ "name": "aggr1" }], "size": 1_u64 << 40,
            "nas": { "path": "/v" }, "snapshot_policy": { "name": "none" }
        })
    );
}

#[test]
fn savings_follow_from_the_aggregate() {
    let aggregate: Aggregate = serde_json::from_value(json!({
        "uuid": "a", "name": "aggr1",
        "space": { "efficiency": { "logical_used": 1700, "ratio": "1.70" } }
    }))
    .unwrap();
    assert_eq!(aggregate.space.efficiency.unwrap().physical_used_bytes(), Some(1000));
}

#[tokio::test]
async fn a_deadline_may_be_as_long_as_one_likes() {
    let server = Server::of(vec![records(json!([]))]).await;
    assert!(server.client().within(Duration::MAX).svms().await.unwrap().is_empty());
}
