//! Lists are whole or an error, and jobs are followed to their end.

use std::time::Duration;

use ontap_client::{Error, LockQuery, NewSnapshot, NewVolume};
use serde_json::{Value, json};

use crate::server::{Reply, Server};

fn page(names: &[&str], next: Option<&str>) -> Value {
    let records: Vec<_> =
        names.iter().map(|name| json!({ "uuid": format!("u-{name}"), "name": name })).collect();
    let mut page =
        json!({ "num_records": records.len(), "records": records, "_links": { "self": { "href": "/" } } });
    if let Some(next) = next {
        page["_links"]["next"] = json!({ "href": next });
    }
    page
}

async fn names(replies: Vec<Reply>) -> Result<Vec<String>, Error> {
    let svms = Server::of(replies).await.client().svms().await?;
    Ok(svms.into_iter().map(|svm| svm.name).collect())
}

#[tokio::test]
async fn all_pages_are_read() {
    let replies = vec![
        Reply::Json(200, page(&["a", "b"], Some("/api/svm/svms?start.name=b&max_records=2"))),
        Reply::Json(200, page(&[], Some("/api/svm/svms?start.name=c"))),
        Reply::Drop,
        Reply::Json(200, page(&["c"], None)),
    ];
    let server = Server::of(replies).await;
    let client = server.builder().page_size(2).build().unwrap();
    assert_eq!(client.svms().await.unwrap().len(), 3);
    let seen = server.seen();
    assert!(seen[0].target.ends_with("&max_records=2"), "{}", seen[0].target);
    // The link holds all parameters: nothing is added.
    assert_eq!(seen[1].target, "/api/svm/svms?start.name=b&max_records=2");
}

#[tokio::test]
async fn the_next_page_is_on_the_same_server() {
    for stray in
        ["http://10.9.9.9/api/svm/svms", "//10.9.9.9/api/svm", "/docs/api", "http://x@127.0.0.1/api/a"]
    {
        let error = names(vec![Reply::Json(200, page(&["a"], Some(stray)))]).await.unwrap_err();
        assert!(matches!(error, Error::Decode { .. }), "{stray}: {error:?}");
    }
}

#[tokio::test]
async fn pages_that_go_in_circles_end() {
    let error = names(vec![Reply::Json(200, page(&["a"], Some("/api/svm/svms?start=a")))]).await.unwrap_err();
    assert!(error.to_string().contains("circles"), "{error}");
}

#[tokio::test]
async fn a_list_that_is_not_whole_is_an_error() {
    let fault = json!({ "code": "65552", "message": "node-02 did not answer" });
    let mut with_error = page(&["a"], None);
    with_error["error"] = fault.clone();
    let mut with_errors = page(&["a"], None);
    with_errors["errors"] = json!([{ "error": fault }]);
    let mut flat = page(&["a"], None);
    flat["errors"] = json!([fault]);
    for body in [with_error, with_errors, flat] {
        let first = Reply::Json(200, page(&["x"], Some("/api/svm/svms?start=x")));
        let error = names(vec![first, Reply::Json(200, body)]).await.unwrap_err();
        assert!(matches!(&error, Error::Partial { got: 2, why, .. } if why.contains("node-02")), "{error:?}");
    }
    let mut short = page(&["a"], None);
    short["num_records"] = json!("5");
    let error = names(vec![Reply::Json(200, short)]).await.unwrap_err();
    assert!(matches!(error, Error::Partial { got: 1, .. }), "{error:?}");
    let error = names(vec![Reply::Json(200, json!({ "num_records": 0 }))]).await.unwrap_err();
    assert!(matches!(error, Error::Decode { .. }), "{error:?}");
}

#[tokio::test]
async fn a_refusal_with_a_good_status_is_no_partial_list() {
    let refused = json!({ "num_records": 0, "error": { "code": "6", "message": "not authorized" } });
    let error = names(vec![Reply::Json(200, refused.clone())]).await.unwrap_err();
    assert!(error.is_permission() && !error.is_passing() && error.code() == Some(6), "{error:?}");
    let first = Reply::Json(200, page(&["x"], Some("/api/svm/svms?start=x")));
    let error = names(vec![first, Reply::Json(200, refused)]).await.unwrap_err();
    assert!(matches!(error, Error::Partial { got: 1, .. }), "{error:?}");
}

#[tokio::test]
async fn two_where_one_was_asked_for_are_an_error() {
    let server = Server::of(vec![Reply::Json(200, page(&["a", "b"], None))]).await;
    let error = server.client().svm("a").await.unwrap_err();
    assert!(matches!(error, Error::Usage { .. }), "{error:?}");
}

fn accepted() -> Reply {
    Reply::Json(
        202,
        json!({ "job": { "uuid": "j1", "_links": { "self": { "href": "/api/cluster/jobs/j1" } } } }),
    )
}

/// A server that takes a volume and then tells this of its job.
async fn volume(jobs: Vec<Reply>) -> Result<ontap_client::Volume, Error> {
    volume_within(Duration::from_secs(30), jobs).await
}

async fn volume_within(limit: Duration, jobs: Vec<Reply>) -> Result<ontap_client::Volume, Error> {
    let mut jobs = jobs.into_iter();
    let mut last = Reply::Drop;
    let server = Server::start(move |_, seen| {
        if seen.is("POST", "/api/storage/volumes") {
            return accepted();
        }
        if seen.is("GET", "/api/cluster/jobs/j1") {
            last = jobs.next().unwrap_or_else(|| last.clone());
            return last.clone();
        }
        Reply::Json(200, page(&["kafka01"], None))
    })
    .await;
    server.client().within(limit).create_volume(&NewVolume::new("svm1", "kafka01", "aggr1")).await
}

fn job(more: Value) -> Reply {
    let mut job = json!({ "uuid": "j1", "description": "POST /api/storage/volumes" });
    for (key, value) in more.as_object().unwrap() {
        job[key] = value.clone();
    }
    Reply::Json(200, job)
}

#[tokio::test]
async fn a_job_is_followed_to_its_end() {
    let states = ["queued", "running", "paused", "a_new_word"];
    let mut jobs: Vec<_> = states.into_iter().map(|state| job(json!({ "state": state }))).collect();
    jobs.push(job(json!({})));
    jobs.push(Reply::Json(503, json!({})));
    jobs.push(job(json!({ "state": "success" })));
    assert_eq!(volume(jobs).await.unwrap().name, "kafka01");
}

#[tokio::test]
async fn a_job_that_failed_is_an_error_with_its_code() {
    for (state, end) in [
        ("failure", json!({ "code": 917526, "message": "exists" })),
        ("failure", json!({ "code": "917526", "message": "exists" })),
        ("error", json!({ "error": { "code": "917526", "message": "exists" } })),
        ("cancelled", json!({ "code": 0, "error": { "code": 917526, "message": "exists" } })),
        ("expired", json!({ "code": 917526, "error": { "message": "exists" } })),
    ] {
        let mut body = end;
        body["state"] = json!(state);
        let error = volume(vec![job(body)]).await.unwrap_err();
        let Error::JobFailed(job) = &error else { panic!("{error:?}") };
        assert_eq!((job.state.as_str(), job.message.as_str(), error.is_duplicate()), (state, "exists", true));
    }
}

#[tokio::test]
async fn a_job_whose_end_is_not_seen_is_unconfirmed() {
    let running = vec![job(json!({ "state": "running" }))];
    let error = volume_within(Duration::from_secs(2), running).await.unwrap_err();
    assert!(error.is_unconfirmed(), "{error:?}");
    let shown = std::error::Error::source(&error).unwrap().to_string();
    assert!(shown.contains("job j1 is running"), "{shown}");

    let gone = Reply::Json(404, json!({ "error": { "code": "4", "message": "entry doesn't exist" } }));
    let error = volume(vec![gone]).await.unwrap_err();
    assert!(error.is_unconfirmed() && !error.is_not_found(), "the job is gone, not the volume: {error:?}");
}

#[tokio::test]
async fn what_was_created_must_be_there() {
    let server = Server::of(vec![Reply::Json(201, json!({})), Reply::Json(200, page(&[], None))]).await;
    let error = server.client().create_snapshot("v1", &NewSnapshot::named("s")).await.unwrap_err();
    assert!(matches!(error, Error::NotApplied { .. }), "{error:?}");
}

#[tokio::test]
async fn locks_are_broken_until_none_is_left() {
    let more = json!({ "num_records": 3, "_links": { "next": { "href": "/api/protocols/locks?start=3" } } });
    let server =
        Server::of(vec![Reply::Json(200, more), Reply::Drop, Reply::Json(200, json!({ "num_records": 1 }))])
            .await;
    let which = LockQuery { client_address: Some("10.0.0.101"), ..LockQuery::in_svm("svm1") };
    assert_eq!(server.client().break_locks(&which).await.unwrap(), 4);
    let seen = server.seen();
    assert_eq!(seen[0].target, "/api/protocols/locks?svm.name=svm1&client_address=10.0.0.101");
    assert!(seen.iter().all(|seen| seen.method == "DELETE"));
}

#[tokio::test]
async fn every_job_of_a_change_of_many_is_followed() {
    let jobs = json!({ "num_records": 2, "jobs": [{ "uuid": "j1" }, { "uuid": "j2" }] });
    let failed = json!({ "uuid": "j2", "state": "failure", "code": 4, "message": "no" });
    let done = job(json!({ "state": "success" }));
    let server = Server::of(vec![Reply::Json(202, jobs), done, Reply::Json(200, failed)]).await;
    let which = LockQuery { volumes: &["kafka01"], ..LockQuery::in_svm("svm1") };
    let error = server.client().break_locks(&which).await.unwrap_err();
    assert!(matches!(&error, Error::JobFailed(job) if job.uuid == "j2"), "{error:?}");
}

#[tokio::test]
async fn what_is_accepted_without_a_job_is_not_done() {
    for body in [json!({}), json!({ "jobs": [] }), Value::Null] {
        let server = Server::of(vec![Reply::Json(202, body)]).await;
        let error = server.client().delete_volume("v1").await.unwrap_err();
        assert!(error.is_unconfirmed(), "{error:?}");
    }
    let none = json!({ "num_records": 0, "jobs": [] });
    let server = Server::of(vec![Reply::Json(202, none)]).await;
    let which = LockQuery { volumes: &["kafka01"], ..LockQuery::in_svm("svm1") };
    assert_eq!(server.client().break_locks(&which).await.unwrap(), 0);
}

#[tokio::test]
async fn failures_beside_what_was_done_are_not_overlooked() {
    let body = json!({ "uuid": "v1", "name": "v", "errors": [{ "code": "65552", "message": "node-02" }] });
    let server = Server::of(vec![Reply::Json(200, body)]).await;
    let error = server.client().delete_volume("v1").await.unwrap_err();
    assert!(error.is_unconfirmed(), "{error:?}");
    let error = server.client().nfs_client_settings().await.unwrap_err();
    assert!(matches!(&error, Error::Partial { why, .. } if why.contains("node-02")), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_does_not_say_what_was_deleted_is_unconfirmed() {
    let server = Server::of(vec![Reply::Json(200, json!({ "_links": "none" }))]).await;
    let which = LockQuery { volumes: &["kafka01"], ..LockQuery::in_svm("svm1") };
    let error = server.client().break_locks(&which).await.unwrap_err();
    assert!(error.is_unconfirmed(), "{error:?}");
}

#[tokio::test]
async fn once_some_locks_are_broken_a_failure_is_unconfirmed() {
    let more = json!({ "num_records": 3, "_links": { "next": { "href": "/api/protocols/locks?start=3" } } });
    let denied = json!({ "error": { "code": "6", "message": "denied" } });
    let server = Server::of(vec![Reply::Json(200, more), Reply::Json(403, denied)]).await;
    let which = LockQuery { client_address: Some("10.0.0.101"), ..LockQuery::in_svm("svm1") };
    let error = server.client().break_locks(&which).await.unwrap_err();
    assert!(error.is_unconfirmed() && error.is_permission(), "{error:?}");
}

/// A server that answers each DELETE with the next of these, and has so many locks at each GET.
async fn locks(deletions: Vec<Reply>, left: Vec<usize>) -> Server {
    let (mut deletions, mut left) = (deletions.into_iter(), left.into_iter());
    Server::start(move |_, seen| match seen.method.as_str() {
        "DELETE" => deletions.next().unwrap(),
        _ => {
            let records = vec![json!({ "uuid": "l1" }); left.next().unwrap()];
            Reply::Json(200, json!({ "num_records": records.len(), "records": records }))
        }
    })
    .await
}

#[tokio::test]
async fn a_lock_that_went_by_itself_does_not_end_the_breaking_of_the_others() {
    let gone = Reply::Json(404, json!({ "error": { "code": "4", "message": "entry doesn't exist" } }));
    let broken = Reply::Json(200, json!({ "num_records": 2 }));
    let which = LockQuery { client_address: Some("10.0.0.101"), ..LockQuery::in_svm("svm1") };
    let server = locks(vec![gone.clone(), gone.clone(), broken], vec![3, 2]).await;
    assert_eq!(server.client().break_locks(&which).await.unwrap(), 2);
    let methods: Vec<_> = server.seen().into_iter().map(|seen| seen.method).collect();
    assert_eq!(methods, ["DELETE", "GET", "DELETE", "GET", "DELETE"]);
    assert!(server.seen().iter().all(|seen| seen.target.contains("svm1&client_address=10.0.0.101")));

    let server = locks(vec![gone.clone()], vec![0]).await;
    assert_eq!(server.client().break_locks(&which).await.unwrap(), 0);
    // What a gateway says is no such answer.
    let server = locks(vec![Reply::Text(404, "<html>")], vec![]).await;
    assert!(server.client().break_locks(&which).await.unwrap_err().is_unconfirmed());

    let server = Server::start(move |_, seen| match seen.method.as_str() {
        "DELETE" => gone.clone(),
        _ => Reply::Json(200, json!({ "num_records": 1, "records": [{ "uuid": "l1" }] })),
    })
    .await;
    let error = server.client().within(Duration::from_millis(300)).break_locks(&which).await.unwrap_err();
    assert!(error.is_unconfirmed(), "locks are left: {error:?}");
}

#[tokio::test]
async fn a_refusal_that_may_be_about_a_later_lock_leaves_it_open() {
    let which = LockQuery { client_address: Some("10.0.0.101"), ..LockQuery::in_svm("svm1") };
    for (status, code, is_open) in [
        (403, "6", true),
        (409, "8", true),
        (400, "917536", true),
        (400, "262179", false),
        (401, "6691623", false),
    ] {
        let no = json!({ "error": { "code": code, "message": "no" } });
        let server = Server::of(vec![Reply::Json(status, no)]).await;
        let error = server.client().break_locks(&which).await.unwrap_err();
        assert_eq!(error.is_unconfirmed(), is_open, "{error:?}");
        // A refused login is not a missing right, though it may carry the same code.
        assert_eq!(error.is_permission(), status == 403, "{error:?}");
    }
}

#[tokio::test]
async fn locks_that_could_not_be_broken_are_an_error() {
    let body = json!({ "num_records": 1, "error": { "code": "4", "message": "some failed" } });
    let server = Server::of(vec![Reply::Json(200, body)]).await;
    let which = LockQuery { volumes: &["kafka01"], ..LockQuery::in_svm("svm1") };
    let error = server.client().break_locks(&which).await.unwrap_err();
    assert!(matches!(error, Error::Partial { got: 1, .. }), "{error:?}");
    // Those of everyone are not broken at all.
    let error = server.client().break_locks(&LockQuery::in_svm("svm1")).await.unwrap_err();
    assert!(matches!(error, Error::Usage { .. }) && server.seen().len() == 1, "{error:?}");
}

/// What answers without measure is no ONTAP, and does not fill this host's memory.
#[tokio::test]
async fn a_body_without_measure_is_given_up() {
    let padding = "x".repeat(17 << 20);
    let server = Server::of(vec![Reply::Json(200, json!({ "records": [], "padding": padding }))]).await;
    let error = server.client().cluster().await.unwrap_err();
    assert!(matches!(&error, Error::Decode { what, .. } if what.contains("longer than 16777216")), "{error}");
}
