//! What is repeated and what is not, and what an error says about the change.

use std::time::{Duration, Instant};

use ontap_client::{Auth, Client, Error, NewSnapshot, Retry, Tls, VolumeChange};
use serde_json::{Value, json};

use crate::server::{Reply, Server};

fn fault(code: Value, message: &str) -> Value {
    json!({ "error": { "code": code, "message": message } })
}

fn svms() -> Reply {
    Reply::Json(200, json!({ "records": [{ "uuid": "u1", "name": "svm1" }], "num_records": 1 }))
}

fn grow() -> VolumeChange<'static> {
    VolumeChange { size_bytes: Some(20), ..VolumeChange::default() }
}

#[tokio::test]
async fn a_read_is_repeated_after_every_passing_failure() {
    for passing in [
        Reply::Json(429, fault(json!("262160"), "too many requests")),
        Reply::Json(500, fault(json!("262145"), "exception")),
        Reply::Json(503, fault(json!(7), "busy")),
        Reply::Text(502, "<html>bad gateway</html>"),
        Reply::Drop,
    ] {
        let server = Server::of(vec![passing, svms()]).await;
        assert_eq!(server.client().svms().await.unwrap().len(), 1);
        assert_eq!(server.seen().len(), 2);
    }
}

#[tokio::test]
async fn a_read_is_repeated_only_so_often() {
    let server = Server::of(vec![Reply::Json(503, fault(json!("7"), "busy"))]).await;
    let error = server.client().svms().await.unwrap_err();
    assert!(matches!(&error, Error::Api(refusal) if refusal.status == 503), "{error:?}");
    assert!(error.is_passing() && !error.is_unconfirmed());
    assert_eq!((error.code(), server.seen().len()), (Some(7), 3));
}

#[tokio::test]
async fn a_definite_no_is_not_repeated() {
    type Check = fn(&Error) -> bool;
    let cases: [(u16, Value, Check, &str); 8] = [
        (401, fault(json!("6691623"), "no"), Error::is_unauthorized, "unauthorized"),
        (403, fault(json!("6"), "not authorized"), Error::is_permission, "permission_denied"),
        (403, json!(null), Error::is_permission, "permission_denied"),
        (400, fault(json!("6691623"), "not authorized"), Error::is_permission, "permission_denied"),
        (404, fault(json!(4), "entry doesn't exist"), Error::is_not_found, "not_found"),
        (400, fault(json!("8586226"), "no such UUID"), Error::is_not_found, "not_found"),
        (404, fault(json!("3"), "no such API"), Error::is_not_visible, "api"),
        (400, fault(json!("262179"), "unexpected"), |e| e.code() == Some(262_179), "api"),
    ];
    for (status, body, check, kind) in cases {
        let server = Server::of(vec![Reply::Json(status, body)]).await;
        let error = server.client().svms().await.unwrap_err();
        assert!(check(&error) && !error.is_passing(), "{error:?}");
        assert_eq!((error.kind(), server.seen().len()), (kind, 1));
    }
}

#[tokio::test]
async fn retry_after_is_kept_to() {
    let server = Server::of(vec![Reply::Later(429, fault(json!("262160"), "later"), 1), svms()]).await;
    let begun = Instant::now();
    server.client().svms().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn waiting_longer_than_the_deadline_is_given_up_at_once() {
    let server = Server::of(vec![Reply::Later(429, fault(json!("262160"), "later"), 3600)]).await;
    let begun = Instant::now();
    let error = server.client().svms().await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    // What ONTAP said is still to be seen.
    assert_eq!(error.refusal().and_then(|refusal| refusal.retry_after), Some(Duration::from_secs(3600)));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_call_returns_within_its_deadline() {
    let server = Server::of(vec![Reply::Hang]).await;
    let client = server.client().within(Duration::from_millis(200));
    let begun = Instant::now();
    let error = client.svms().await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    let error = client.create_snapshot("v1", &NewSnapshot::named("s")).await.unwrap_err();
    assert!(error.is_unconfirmed(), "it was sent: {error:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn an_attempt_that_hangs_does_not_cost_the_whole_deadline() {
    let server = Server::of(vec![Reply::Hang, svms()]).await;
    let client = server.builder().attempt_limit(Duration::from_secs(1)).build().unwrap();
    client.svms().await.unwrap();
}

#[tokio::test]
async fn what_creates_is_sent_once_if_it_may_have_been_taken_up() {
    for open in [
        Reply::Json(500, fault(json!("262145"), "exception")),
        Reply::Json(503, fault(json!("7"), "busy")),
        Reply::Text(502, "bad gateway"),
        Reply::Text(200, "no JSON"),
        Reply::Drop,
    ] {
        let server = Server::of(vec![open]).await;
        let error = server.client().create_snapshot("v1", &NewSnapshot::named("s")).await.unwrap_err();
        assert!(error.is_unconfirmed(), "{error:?}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn what_creates_is_repeated_if_it_was_not_taken_up() {
    let busy = Reply::Json(429, fault(json!("262160"), "too many requests"));
    let made = Reply::Json(200, json!({ "records": [{ "uuid": "s1", "name": "s" }], "num_records": 1 }));
    let server = Server::of(vec![busy.clone(), busy, Reply::Json(201, json!({})), made]).await;
    server.client().create_snapshot("v1", &NewSnapshot::named("s")).await.unwrap();
    let methods: Vec<_> = server.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(methods, ["POST", "POST", "POST", "GET"]);
}

#[tokio::test]
async fn an_absolute_change_is_repeated_after_a_lost_reply() {
    let volume = Reply::Json(200, json!({ "uuid": "v1", "name": "v" }));
    let server = Server::of(vec![Reply::Drop, Reply::Json(200, json!({})), volume]).await;
    server.client().update_volume("v1", &grow()).await.unwrap();
    let seen = server.seen();
    assert_eq!((seen.len(), &seen[0].body), (3, &json!({ "size": 20 })));
    assert_eq!(seen[0].body, seen[1].body);
}

#[tokio::test]
async fn once_lost_a_change_stays_unconfirmed_whatever_comes_after() {
    let denied = Reply::Json(403, fault(json!("6"), "denied"));
    let server = Server::of(vec![Reply::Drop, denied]).await;
    let error = server.client().update_volume("v1", &grow()).await.unwrap_err();
    assert!(error.is_unconfirmed() && error.is_permission(), "{error:?}");

    let busy = Reply::Json(429, fault(json!("262160"), "busy"));
    let server = Server::of(vec![busy]).await;
    let error = server.client().update_volume("v1", &grow()).await.unwrap_err();
    assert!(!error.is_unconfirmed(), "it was never taken up: {error:?}");
}

#[tokio::test]
async fn once_lost_a_change_stays_unconfirmed_even_if_a_good_status_says_no() {
    let refused = json!({ "num_records": 0, "error": { "code": "917658", "message": "must be offline" } });
    for no in [refused, json!({ "num_records": 0, "cli_output": "" })] {
        let server = Server::of(vec![Reply::Drop, Reply::Json(200, no.clone())]).await;
        let error = server.client().set_preserve_unlink("svm1", "kafka01", true).await.unwrap_err();
        assert!(error.is_unconfirmed(), "{error:?}");
        let server = Server::of(vec![Reply::Json(200, no)]).await;
        let error = server.client().set_preserve_unlink("svm1", "kafka01", true).await.unwrap_err();
        assert!(!error.is_unconfirmed(), "{error:?}");
    }
    let begun = Reply::Json(202, json!({ "job": { "uuid": "j1" } }));
    let failed = json!({ "uuid": "j1", "state": "failure", "code": 917536, "message": "busy" });
    let server = Server::of(vec![Reply::Drop, begun, Reply::Json(200, failed)]).await;
    let error = server.client().delete_volume("v1").await.unwrap_err();
    assert!(error.is_unconfirmed() && error.is_in_use(), "{error:?}");
}

#[tokio::test]
async fn what_is_gone_is_deleted() {
    let gone = Reply::Json(404, fault(json!("4"), "entry doesn't exist"));
    for replies in [vec![gone.clone()], vec![Reply::Drop, gone]] {
        Server::of(replies).await.client().delete_volume("v1").await.unwrap();
    }
}

#[tokio::test]
async fn what_only_a_gateway_does_not_know_is_not_deleted() {
    let gateway = Reply::Text(404, "<html>no such page</html>");
    let server = Server::of(vec![gateway.clone()]).await;
    let error = server.client().delete_volume("v1").await.unwrap_err();
    assert!(!error.is_not_found() && error.kind() == "api", "{error:?}");
    let error = server.client().delete_snapshot("v1", "s1").await.unwrap_err();
    assert_eq!(error.kind(), "api", "{error:?}");
    let server = Server::of(vec![Reply::Drop, gateway]).await;
    let error = server.client().delete_snapshot("v1", "s1").await.unwrap_err();
    assert!(error.is_unconfirmed() && !error.is_not_found(), "{error:?}");
}

#[tokio::test]
async fn a_deletion_whose_job_found_nothing_is_read_back() {
    let begun = Reply::Json(202, json!({ "job": { "uuid": "j1" } }));
    let failed = json!({ "uuid": "j1", "state": "failure", "code": 4, "message": "entry doesn't exist" });
    let gone = Reply::Json(404, fault(json!("4"), "entry doesn't exist"));
    let there = Reply::Json(200, json!({ "uuid": "v1", "name": "kafka01" }));
    for (read, is_deleted) in [(gone, true), (there, false), (Reply::Text(404, "<html>"), false)] {
        let server = Server::of(vec![begun.clone(), Reply::Json(200, failed.clone()), read]).await;
        let outcome = server.client().delete_volume("v1").await;
        assert_eq!(outcome.is_ok(), is_deleted, "{outcome:?}");
        assert!(server.seen()[2].is("GET", "/api/storage/volumes/v1"));
    }
}

#[tokio::test]
async fn the_command_lines_own_500_is_a_no() {
    let server = Server::of(vec![Reply::Json(500, fault(json!("917658"), "must be offline"))]).await;
    let client = server.client().sparing_others();
    let error = client.flush_access_cache("svm1", "node-01", "p").await.unwrap_err();
    assert!(!error.is_unconfirmed() && !error.is_passing(), "{error:?}");
    let seen = server.seen();
    assert!(
        seen.len() == 1 && seen[0].is("POST", "/api/private/cli/vserver/export-policy/access-cache/flush")
    );
}

#[tokio::test]
async fn without_a_connection_nothing_was_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let retry =
        Retry { attempts: 2, first_wait: Duration::from_millis(1), longest_wait: Duration::from_millis(1) };
    let client = Client::builder(format!("http://127.0.0.1:{port}"), Auth::Bearer("hunter2".into()));
    let client = client.tls(Tls::InsecurePlainHttp).retry(retry).build().unwrap();
    let error = client.create_snapshot("v1", &NewSnapshot::named("s")).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn secrets_go_to_the_server_and_nowhere_else() {
    let server = Server::of(vec![Reply::Json(401, fault(json!("6691623"), "no")), Reply::Drop]).await;
    let client = server.client().in_svm("svm1");
    for _ in 0..2 {
        let error = client.svm("secret-name").await.unwrap_err();
        let shown = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        assert!(!shown.contains("hunter2") && !shown.contains("YWRtaW4"), "{shown}");
    }
    let seen = &server.seen()[0];
    assert_eq!(seen.headers["authorization"], "Basic YWRtaW46aHVudGVyMg==");
    assert_eq!(seen.headers["x-dot-svm-name"], "svm1");
    assert!(seen.headers["x-dot-client-app"].starts_with("ontap-client/"));
}
