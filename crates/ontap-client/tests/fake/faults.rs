//! What each fault does, who is let in when, and what jobs come to.

use std::time::{Duration, Instant};

use fakes::ontap::{Access, Fault};
use serde_json::{Value, json};

use crate::bed::{Bed, NEW, OLD, RULE, code};

/// Follows `next` to the end and returns what was shown, and in how many pages.
async fn all_pages(bed: &Bed, path: &str) -> (Vec<String>, usize) {
    let (mut names, mut pages, mut next) = (Vec::new(), 0, Some(path.to_owned()));
    while let Some(path) = next {
        let page = bed.get(&path).await;
        names.extend(
            page["records"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()),
        );
        pages += 1;
        next = page["_links"]["next"]["href"].as_str().map(str::to_owned);
    }
    (names, pages)
}

#[tokio::test]
async fn pages_lead_to_all_records_in_order() {
    let bed = Bed::new().await;
    bed.fake.world(|world| {
        (1..=7).for_each(|number| drop(world.volume("svm1", &format!("v{number}"), "default")));
    });
    let (names, pages) =
        all_pages(&bed, "/api/storage/volumes?name=v*&order_by=name%20desc&max_records=3").await;
    assert_eq!((names.join(" ").as_str(), pages), ("v7 v6 v5 v4 v3 v2 v1", 3));
    bed.fake.inject(Fault::short_pages(2).on("GET", "/api/storage"));
    let (names, pages) = all_pages(&bed, "/api/storage/volumes?name=v*").await;
    assert_eq!((names.len(), pages), (7, 5), "the last page leads to an empty one");
    bed.fake.heal();
    bed.fake.inject(Fault::partial(2));
    let partial = bed.get("/api/storage/volumes?name=v*").await;
    assert_eq!((&partial["num_records"], partial["_links"].get("next")), (&json!(2), None));
    assert_eq!(code(&partial), "65552");
}

#[tokio::test]
async fn a_change_of_owner_bites_at_once() {
    let bed = Bed::new().await;
    assert!(bed.allows(OLD) && !bed.allows(NEW));
    let changes = bed.fake.changes();
    assert_eq!(bed.give_to(NEW).await, (200, json!({})));
    assert!(changes.has_changed().unwrap());
    assert!(!bed.allows(OLD) && bed.allows(NEW));
    let swap = json!({ "nas": { "export_policy": { "name": "default" } } });
    assert_eq!(bed.send("PATCH", &format!("/api/storage/volumes/{}", bed.volume), Some(swap)).await.0, 202);
    assert_eq!(bed.fake.allows(NEW, "kafka01"), Access::Denied);
    let unmount = json!({ "nas.path": "" });
    bed.send("PATCH", &format!("/api/storage/volumes/{}", bed.volume), Some(unmount)).await;
    assert_eq!(bed.fake.allows(NEW, "kafka01"), Access::NotMounted);
}

#[tokio::test]
async fn a_change_that_bites_late_waits_for_the_access_cache() {
    let bed = Bed::new().await;
    assert!(bed.allows(OLD));
    bed.fake.inject(Fault::bites_late(Duration::from_secs(3600)).on("PATCH", RULE).first(1));
    bed.give_to(NEW).await;
    assert_eq!(bed.owner().await, "10.0.0.102", "the rule reads as changed");
    assert!(bed.allows(OLD), "the verdict that the old owner got is still used");
    assert!(bed.allows(NEW), "a client that was never here has no verdict to be stuck with");
    let flush = "/api/private/cli/vserver/export-policy/cache/flush";
    let body = json!({ "vserver": "svm1", "cache": "access" });
    assert_eq!(bed.send("POST", flush, Some(body.clone())).await.0, 400, "the privilege is advanced");
    assert!(bed.allows(OLD));
    let (status, _) = bed.send("POST", &format!("{flush}?privilege_level=advanced"), Some(body)).await;
    assert_eq!((status, bed.allows(OLD)), (200, false));
}

#[tokio::test]
async fn a_change_that_bites_late_bites_in_the_end_and_says_so() {
    let bed = Bed::new().await;
    assert!(bed.allows(OLD));
    bed.fake.inject(Fault::bites_late(Duration::from_millis(50)));
    bed.give_to(NEW).await;
    let mut changes = bed.fake.changes();
    while bed.allows(OLD) {
        changes.changed().await.unwrap();
    }
    assert!(bed.allows(NEW));
}

#[tokio::test]
async fn a_flush_of_one_address_leaves_the_others() {
    let bed = Bed::new().await;
    bed.give_to(NEW).await;
    assert!(!bed.allows(OLD) && bed.allows(NEW));
    bed.fake.inject(Fault::bites_late(Duration::from_secs(3600)));
    bed.give_to(OLD).await;
    let flush = "/api/private/cli/vserver/export-policy/access-cache/flush";
    let of = |node| json!({ "vserver": "svm1", "policy": "broker-1", "address": "10.0.0.101", "node": node });
    assert_eq!(bed.send("POST", flush, Some(of("node-02"))).await.0, 200);
    assert!(!bed.allows(OLD), "that node does not serve it");
    assert_eq!(bed.send("POST", flush, Some(of("node-01"))).await.0, 200);
    assert!(bed.allows(OLD) && bed.allows(NEW), "the new owner's verdict is as old as before");
    assert_eq!(bed.send("POST", flush, Some(of("node-03"))).await.0, 404);
}

#[tokio::test]
async fn being_busy_ends_after_so_many_requests() {
    let bed = Bed::new().await;
    bed.fake.inject(Fault::busy(Duration::from_millis(1500)).on("GET", "/api/cluster").first(2));
    for _ in 0..2 {
        let response = bed.try_send("GET", "/api/cluster", None).await.unwrap();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(code(&response.json().await.unwrap()), "262160");
    }
    bed.get("/api/cluster").await;
    let statuses: Vec<_> = bed.fake.requests().iter().map(|request| request.status).collect();
    assert_eq!(statuses, [Some(429), Some(429), Some(200)]);
}

#[tokio::test]
async fn an_error_of_the_server_leaves_everything_as_it_was() {
    let bed = Bed::new().await;
    bed.fake.inject(Fault::status(503).on("PATCH", RULE));
    assert_eq!(bed.give_to(NEW).await.0, 503);
    assert_eq!(bed.owner().await, "10.0.0.101");
    bed.fake.heal();
    assert_eq!(bed.give_to(NEW).await.0, 200);
}

#[tokio::test]
async fn a_dropped_reply_has_had_its_effect() {
    let bed = Bed::new().await;
    bed.fake.inject(Fault::dropped_reply().on("PATCH", RULE));
    let body = json!({ "clients": [{ "match": "10.0.0.102" }] });
    assert!(bed.try_send("PATCH", &bed.rule(), Some(body)).await.is_err());
    assert_eq!(bed.owner().await, "10.0.0.102");
    assert_eq!(bed.fake.requests()[0].status, None);
}

#[tokio::test]
async fn a_lying_success_has_none() {
    let bed = Bed::new().await;
    bed.fake.inject(Fault::lying_success());
    assert_eq!(bed.give_to(NEW).await, (200, json!({})));
    assert_eq!(bed.owner().await, "10.0.0.101");
    let path = format!("/api/storage/volumes/{}?return_timeout=30", bed.volume);
    let (status, body) = bed.send("PATCH", &path, Some(json!({ "comment": "mine" }))).await;
    assert_eq!(status, 200, "{body}");
    let job = bed.get(body["job"]["_links"]["self"]["href"].as_str().unwrap()).await;
    assert_eq!(job["state"], "success");
    assert_eq!(bed.get(&path).await["comment"], "");
}

#[tokio::test]
async fn a_job_that_fails_changes_nothing() {
    let bed = Bed::new().await;
    bed.fake.inject(Fault::job_fails(917_536, "volume is busy").on("PATCH", "/api/storage/volumes").first(1));
    let path = format!("/api/storage/volumes/{}", bed.volume);
    let (status, body) = bed.send("PATCH", &path, Some(json!({ "comment": "mine" }))).await;
    assert_eq!(status, 202);
    let job = bed.get(body["job"]["_links"]["self"]["href"].as_str().unwrap()).await;
    assert_eq!((job["state"].as_str(), job["code"].as_i64()), (Some("failure"), Some(917_536)));
    assert_eq!((&job["message"], code(&job)), (&json!("volume is busy"), "917536"));
    assert_eq!(bed.get(&path).await["comment"], "");
}

#[tokio::test]
async fn a_job_takes_its_time() {
    let bed = Bed::new().await;
    bed.fake.world(|world| world.jobs_take(Duration::from_secs(3600)));
    let body = json!({
        "name": "slow", "svm.name": "svm1", "aggregates": [{ "name": "aggr1" }], "size": "1GB", "nas.path": "/slow",
    });
    let response = bed.try_send("POST", "/api/storage/volumes", Some(body)).await.unwrap();
    assert_eq!(response.status(), 202);
    let place = response.headers()["location"].to_str().unwrap().to_owned();
    let job: Value = response.json().await.unwrap();
    let job = job["job"]["_links"]["self"]["href"].as_str().unwrap();
    assert_eq!(bed.get(job).await["state"], "running");
    assert_eq!(bed.send("GET", &place, None).await.0, 404, "it is not there yet");
    bed.fake.end_jobs();
    assert_eq!(bed.get(job).await["state"], "success");
    bed.fake.world(|world| world.jobs_take(Duration::from_millis(100)));
    assert_eq!(bed.get(&place).await["size"], 1 << 30, "it is where it was promised");
    let (status, _) =
        bed.send("PATCH", &format!("{place}?return_timeout=30"), Some(json!({ "size": "2GB" }))).await;
    assert_eq!(status, 200, "return_timeout waits for the end");
    assert_eq!(bed.get(&place).await["size"], 2_i64 << 30);
}

#[tokio::test]
async fn a_slow_request_is_slow() {
    let bed = Bed::new().await;
    bed.fake.inject(Fault::slow(Duration::from_millis(80)).on("*", "/api/cluster"));
    let started = Instant::now();
    bed.get("/api/cluster").await;
    assert!(started.elapsed() >= Duration::from_millis(80));
}

#[tokio::test]
async fn a_second_change_does_not_end_a_lag() {
    let bed = Bed::new().await;
    assert!(bed.allows(OLD));
    bed.fake.inject(Fault::bites_late(Duration::from_secs(3600)).on("PATCH", RULE).first(1));
    bed.give_to(NEW).await;
    bed.give_to("10.0.0.103".parse().unwrap()).await;
    assert!(bed.allows(OLD) && !bed.allows(NEW));
}

#[tokio::test]
async fn a_deletion_of_many_may_stop_half_way_and_say_where_to_go_on() {
    let bed = Bed::new().await;
    bed.fake.inject(Fault::short_pages(1).on("DELETE", "/api/protocols/locks"));
    let path = "/api/protocols/locks?client_address=10.0.0.101";
    let (status, body) = bed.send("DELETE", path, None).await;
    assert_eq!((status, &body["num_records"]), (200, &json!(1)));
    let next = body["_links"]["next"]["href"].as_str().unwrap().to_owned();
    let (_, body) = bed.send("DELETE", &next, None).await;
    assert_eq!((&body["num_records"], body.get("_links")), (&json!(1), None));
    assert_eq!(bed.get(path).await["num_records"], 0);
    bed.fake.world(|world| (0..3).for_each(|at| drop(world.volume("svm1", &format!("v{at}"), "default"))));
    bed.fake.inject(Fault::short_pages(2).on("PATCH", "/api/storage"));
    let comment = || Some(json!({ "comment": "mine" }));
    let (status, body) = bed.send("PATCH", "/api/storage/volumes?name=v*", comment()).await;
    assert_eq!((status, body["jobs"].as_array().unwrap().len()), (202, 2));
    let next = body["_links"]["next"]["href"].as_str().unwrap().to_owned();
    let (_, body) = bed.send("PATCH", &next, comment()).await;
    assert_eq!(body["num_records"], 1, "{next}");
    assert_eq!(bed.get("/api/storage/volumes?comment=mine").await["num_records"], 3);
}
