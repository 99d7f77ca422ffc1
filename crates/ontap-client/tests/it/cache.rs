//! What counts as "no entry" of a node's access cache, and what does not.

use std::net::IpAddr;

use ontap_client::{Cached, Error, Polarity};
use serde_json::{Value, json};

use crate::server::{Reply, Server};

async fn entry(reply: Reply) -> Result<Option<Cached>, Error> {
    let client: IpAddr = [10, 0, 0, 101].into();
    Server::of(vec![reply]).await.client().access_cache_entry("svm1", "node-01", "p", client).await
}

fn refusal(code: &str, message: &str) -> Value {
    json!({ "error": { "code": code, "message": message } })
}

#[tokio::test]
async fn no_entry_is_a_word_of_ontaps_own_about_nothing_else() {
    for (status, message) in [
        (404, "entry doesn't exist"),
        (400, "entry doesn't exist"),
        (404, " Entry doesn't exist. \n"),
        (400, "ENTRY DOESN'T EXIST"),
    ] {
        assert_eq!(entry(Reply::Json(status, refusal("4", message))).await.unwrap(), None, "{message}");
    }
    let mut null = refusal("4", "entry doesn't exist");
    null["error"]["target"] = Value::Null;
    assert_eq!(entry(Reply::Json(404, null)).await.unwrap(), None);
}

#[tokio::test]
async fn whatever_differs_from_it_is_not_read() {
    let said = "entry doesn't exist";
    for status in [200, 403, 405, 409, 410, 500, 503] {
        entry(Reply::Json(status, refusal("4", said))).await.unwrap_err();
    }
    for code in ["3", "6", "8586226", "13115", "1703954", "x", ""] {
        entry(Reply::Json(404, refusal(code, said))).await.unwrap_err();
    }
    for message in [
        "",
        "Node \"node-01\" doesn't exist",
        "entry doesn't exist on some nodes",
        "entry doesn't exist..",
        "SVM \"svm1\" does not exist",
        "entry",
    ] {
        entry(Reply::Json(404, refusal("4", message))).await.unwrap_err();
    }
    for target in ["node", "vserver", "policy", "address", ""] {
        let mut about = refusal("4", said);
        about["error"]["target"] = target.into();
        entry(Reply::Json(404, about)).await.unwrap_err();
    }
    entry(Reply::Json(404, json!({ "error": { "code": "4" } }))).await.unwrap_err();
    entry(Reply::Text(404, r#"{"error":{"code":"6","code":"4","message":"entry doesn't exist"}}"#))
        .await
        .unwrap_err();
}

#[tokio::test]
async fn an_empty_list_beside_a_complaint_is_not_read() {
    let list = || json!({ "num_records": 0, "records": [] });
    assert_eq!(entry(Reply::Json(200, list())).await.unwrap(), None);
    for silent in [json!(""), json!(" \n"), json!([]), json!({}), Value::Null] {
        for key in ["cli_output", "warnings", "messages", "warning", "message"] {
            let mut body = list();
            body[key] = silent.clone();
            assert_eq!(entry(Reply::Json(200, body.clone())).await.unwrap(), None, "{body}");
        }
    }
    for (key, said) in [
        ("cli_output", json!("Error: show failed: node-01 cannot be reached")),
        ("cli_output", json!("There are no entries matching your query.")),
        ("warnings", json!([{ "message": "node-01 did not answer" }])),
        ("warning", json!("node-01 did not answer")),
        ("messages", json!(["partial"])),
        ("message", json!({ "code": 4 })),
        ("error", json!({ "message": "partial" })),
        ("error", json!("partial")),
        ("errors", json!([{}])),
    ] {
        let mut body = list();
        body[key] = said;
        let error = entry(Reply::Json(200, body.clone())).await.unwrap_err();
        assert!(!error.is_permission(), "{body}: {error}");
    }
}

#[tokio::test]
async fn a_list_that_counts_oddly_is_not_read() {
    for odd in
        [json!("many"), json!(-1), json!("-1"), json!(1.5), json!("-"), json!(""), json!(true), json!(1)]
    {
        let body = json!({ "num_records": odd, "records": [] });
        let error = entry(Reply::Json(200, body.clone())).await.unwrap_err();
        assert!(matches!(error, Error::Partial { .. }), "{body}: {error:?}");
    }
    for fine in [json!(0), json!("0"), Value::Null] {
        let body = json!({ "num_records": fine, "records": [] });
        assert_eq!(entry(Reply::Json(200, body)).await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_answer_with_a_key_twice_is_none() {
    for body in [
        r#"{"num_records":0,"records":[{"address":"10.0.0.101","polarity":"positive"}],"records":[]}"#,
        r#"{"num_records":1,"records":[{"address":"10.0.0.101","polarity":"positive","polarity":"negative"}]}"#,
        r#"{"num_records":1,"records":[{"address":"10.0.0.101","address":"10.0.0.9"}]}"#,
    ] {
        let error = entry(Reply::Text(200, body)).await.unwrap_err();
        assert!(error.to_string().contains("is there twice"), "{error}");
    }
}

#[tokio::test]
async fn capitals_say_the_same() {
    let row =
        |word: &str| json!({ "num_records": 1, "records": [{ "address": "10.0.0.101", "polarity": word }] });
    for (word, expected) in
        [("NEGATIVE", Polarity::Negative), ("Positive", Polarity::Positive), ("negative", Polarity::Negative)]
    {
        let entry = entry(Reply::Json(200, row(word))).await.unwrap().unwrap();
        assert_eq!(entry.polarity, Some(expected), "{word}");
    }
}

#[tokio::test]
async fn an_entry_of_another_place_is_not_read_and_one_of_another_client_is_not_his() {
    let row = |more: Value| {
        let mut row = json!({ "address": "10.0.0.101", "polarity": "negative" });
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Reply::Json(200, json!({ "num_records": 1, "records": [row] }))
    };
    for other in [json!({ "node": "node-02" }), json!({ "vserver": "svm2" }), json!({ "policy": "q" })] {
        let error = entry(row(other.clone())).await.unwrap_err();
        assert!(matches!(error, Error::Decode { .. }), "{other}: {error:?}");
    }
    let same = json!({ "node": "node-01", "vserver": "svm1", "policy": "p" });
    assert!(entry(row(same)).await.unwrap().is_some());
    assert_eq!(entry(row(json!({ "address": "10.0.0.102" }))).await.unwrap(), None);
    for unsaid in [json!({ "address": null }), json!({ "address": "-" }), json!({ "address": "host1" })] {
        assert!(entry(row(unsaid.clone())).await.unwrap().is_some(), "{unsaid}: it may be his");
    }
}

#[tokio::test]
async fn a_missing_permission_names_the_line_that_the_role_lacks() {
    let error = entry(Reply::Json(403, refusal("6", "not authorized"))).await.unwrap_err().to_string();
    let line = "`security login rest-role create -role ROLE -api /api/private/cli/vserver/export-policy -access readonly`";
    assert!(error.contains(line), "{error}");
    let client = Server::of(vec![Reply::Json(403, refusal("6", "no"))]).await.client();
    let error = client.delete_volume("v1").await.unwrap_err().to_string();
    assert!(error.contains("-api /api/storage/volumes -access all`"), "{error}");
    let error = client.svms().await.unwrap_err().to_string();
    assert!(error.contains("-api /api/svm/svms -access readonly`"), "{error}");
    let error = client.cluster().await.unwrap_err().to_string();
    assert!(error.contains("-api /api/cluster -access readonly`"), "{error}");
}
