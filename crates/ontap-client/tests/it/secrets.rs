//! A server that repeats the login in what it answers gives it away to nobody.

use std::error::Error as StdError;
use std::fmt::Write as _;

use ontap_client::{Auth, Error};
use serde_json::json;

use crate::server::{Reply, Seen, Server};

/// As `server::builder` logs in; the second is the begin of what it sends.
const SECRETS: [&str; 2] = ["hunter2", "YWRtaW46"];

/// Everything that can be written about an error.
fn said(error: &Error) -> String {
    let mut said = format!("{error:?} {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(said, ": {error}").unwrap();
        cause = error.source();
    }
    said
}

#[tokio::test]
async fn what_repeats_the_login_is_told_without_it() {
    type Script = fn(&str) -> Reply;
    let scripts: [(&str, Script); 7] = [
        ("a refusal", |l| {
            Reply::Json(401, json!({ "error": { "message": l, "code": "6691623", "target": l } }))
        }),
        ("not JSON", |l| Reply::Text(400, format!("<html>{}{l}</html>", "x".repeat(178)).leak())),
        ("a good status", |l| Reply::Json(200, json!({ "error": { "message": l } }))),
        ("a list in part", |l| {
            Reply::Json(200, json!({ "records": [{ "uuid": "u", "name": "n" }], "error": { "message": l } }))
        }),
        ("errors beside records", |l| Reply::Json(200, json!({ "errors": [{ "error": { "message": l } }] }))),
        ("another type", |l| Reply::Json(200, json!({ "num_records": l, "records": l }))),
        ("a stray page", |l| {
            let next = json!({ "next": { "href": format!("http://stray/{l}") } });
            Reply::Json(200, json!({ "num_records": 0, "records": [], "_links": next }))
        }),
    ];
    for (kind, script) in scripts {
        for header in [false, true] {
            let server = Server::start(move |_, seen: &Seen| {
                let login = if header { seen.headers["authorization"].clone() } else { "hunter2".to_owned() };
                script(&format!("login {login} failed"))
            });
            let error = server.await.client().svms().await.unwrap_err();
            let said = said(&error);
            assert!(SECRETS.iter().all(|secret| !said.contains(secret)), "{kind}: {said}");
            assert!(said.contains("***"), "{kind} shows what was said otherwise: {said}");
        }
    }
}

#[tokio::test]
async fn a_job_that_repeats_the_login_is_told_without_it() {
    let server = Server::start(|_, seen: &Seen| {
        if seen.method == "DELETE" {
            return Reply::Json(202, json!({ "job": { "uuid": "j" } }));
        }
        let login = seen.headers["authorization"].clone();
        let error = json!({ "message": format!("login {login} or hunter2"), "code": "4" });
        Reply::Json(200, json!({ "uuid": "j", "state": "failure", "message": login, "error": error }))
    });
    let error = server.await.client().delete_volume("v1").await.unwrap_err();
    let said = said(&error);
    assert!(matches!(error, Error::JobFailed(_)) && said.contains("***"), "{said}");
    assert!(SECRETS.iter().all(|secret| !said.contains(secret)), "{said}");
}

#[tokio::test]
async fn a_token_is_a_secret_as_well() {
    let server = Server::start(|_, seen: &Seen| {
        Reply::Json(403, json!({ "error": { "message": seen.headers["authorization"], "code": "6" } }))
    });
    let server = server.await;
    let url = format!("http://127.0.0.1:{}", server.port);
    let client = ontap_client::Client::builder(url, Auth::Bearer("t0ken".into()));
    let error = client.tls(ontap_client::Tls::InsecurePlainHttp).build().unwrap().svms().await.unwrap_err();
    assert!(!said(&error).contains("t0ken") && said(&error).contains("Bearer ***"), "{error:?}");
}
