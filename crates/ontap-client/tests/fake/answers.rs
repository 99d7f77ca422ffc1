//! What is answered to whom, as ONTAP does it.

use std::time::Duration;

use fakes::ontap::{Fake, Fault, Table, World};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::bed::{Bed, NEW, RULE, client, client_as, code};

#[tokio::test]
async fn a_list_shows_keys_and_what_is_asked_for() {
    let bed = Bed::new().await;
    let plain = bed.get("/api/storage/volumes").await;
    assert_eq!((&plain["num_records"], plain["records"][0]["name"].as_str()), (&json!(1), Some("kafka01")));
    assert!(plain["records"][0].get("size").is_none());
    let star = bed.get("/api/storage/volumes?fields=*").await;
    assert!(star["records"][0]["size"].is_number() && star["records"][0]["nas"].get("path").is_none());
    let named = bed.get("/api/storage/volumes?fields=nas.path&state=online|offline").await;
    assert_eq!(named["records"][0]["nas"]["path"], "/kafka01");
    assert_eq!(bed.get("/api/storage/volumes?name=!kafka01").await["num_records"], 0);
    let counted = bed.get("/api/storage/volumes?return_records=false").await;
    assert_eq!((counted.get("records"), &counted["num_records"]), (None, &json!(1)));
}

#[tokio::test]
async fn links_are_left_out_for_plain_json_but_for_next() {
    let bed = Bed::new().await;
    let url = format!("{}/api/cluster/nodes?max_records=1", bed.fake.url());
    let request =
        bed.client.get(url).basic_auth("admin", Some("secret")).header("accept", "application/json");
    let body: Value = request.send().await.unwrap().json().await.unwrap();
    assert!(body["_links"].get("self").is_none() && body["records"][0].get("_links").is_none(), "{body}");
    assert!(body["_links"]["next"]["href"].is_string());
}

#[tokio::test]
async fn logins_and_roles_are_kept() {
    let bed = Bed::new().await;
    bed.fake.world(|world| {
        world.account("fence", "other");
        world.token("fence", "abc");
        world.deny("fence", "/api/storage/aggregates");
        world.account("viewer", "v");
        world.readonly("viewer");
    });
    let status = async |user: &str, password: &str, method: Method, path: &str| {
        let request = bed.client.request(method, format!("{}{path}", bed.fake.url()));
        let request = match user {
            "bearer" => request.bearer_auth(password),
            user => request.basic_auth(user, Some(password)),
        };
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, code(&response.json().await.unwrap()).to_owned())
    };
    let (locks, aggregates) = ("/api/protocols/locks?volume.name=kafka01", "/api/storage/aggregates");
    assert_eq!(status("admin", "wrong", Method::GET, locks).await.0, 401);
    assert_eq!(status("bearer", "abd", Method::GET, locks).await.0, 401);
    assert_eq!(status("bearer", "abc", Method::GET, locks).await.0, 200);
    assert_eq!(status("fence", "other", Method::GET, aggregates).await, (403, "6".to_owned()));
    assert_eq!(status("viewer", "v", Method::GET, aggregates).await.0, 200);
    assert_eq!(status("viewer", "v", Method::DELETE, locks).await, (403, "6".to_owned()));
    bed.fake.inject(Fault::login_expired().first(1));
    assert_eq!(status("admin", "secret", Method::GET, locks).await.0, 401);
    bed.fake.inject(Fault::denied().on("DELETE", "/api/protocols/locks"));
    assert_eq!(status("admin", "secret", Method::DELETE, locks).await, (403, "6".to_owned()));
    assert_eq!(
        bed.fake.world(|world| world.rows(Table::Locks).len()),
        2,
        "no lock was broken by any of this"
    );
}

#[tokio::test]
async fn locks_of_a_client_are_broken_together() {
    let bed = Bed::new().await;
    bed.fake.world(|world| drop(world.lock("kafka01", NEW, "broker2/.lock")));
    let (status, body) = bed.send("DELETE", "/api/protocols/locks", None).await;
    assert_eq!((status, code(&body)), (400, "262212"), "all locks of all clients are not broken by mistake");
    let (status, body) =
        bed.send("DELETE", "/api/protocols/locks?client_address=10.0.0.101", Some(json!({}))).await;
    assert_eq!((status, &body["num_records"]), (200, &json!(2)));
    let left = bed.get("/api/protocols/locks?fields=client_address").await;
    assert_eq!(
        (&left["num_records"], &left["records"][0]["client_address"]),
        (&json!(1), &json!("10.0.0.102"))
    );
}

#[tokio::test]
async fn rules_are_numbered_moved_and_checked() {
    let bed = Bed::new().await;
    let rules = format!("{RULE}/{}/rules", bed.policy);
    let rule =
        |client: &str| json!({ "clients": [{ "match": client }], "ro_rule": ["sys"], "rw_rule": ["sys"] });
    let response = bed.try_send("POST", &rules, Some(rule("10.0.0.7"))).await.unwrap();
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["location"], format!("{rules}/2").as_str());
    for (body, wanted) in [
        (rule("10.0.0.7"), "1704070"),
        (rule("10.0.0.7/24"), "1704040"),
        (rule("10.0.0.0/64"), "1704042"),
        (json!({ "clients": [{ "match": "a" }], "ro_rule": ["sys"] }), "262212"),
    ] {
        let (status, answer) = bed.send("POST", &rules, Some(body)).await;
        assert_eq!((status, code(&answer)), (400, wanted), "{answer}");
    }
    let (status, _) = bed.send("PATCH", &format!("{rules}/2?new_index=1"), Some(json!({}))).await;
    assert_eq!(status, 200);
    let shown = bed.get(&format!("{rules}?fields=clients&order_by=index")).await;
    let first = |at: usize| shown["records"][at]["clients"][0]["match"].clone();
    assert_eq!((first(0), first(1)), (json!("10.0.0.7"), json!("10.0.0.101")));
    let (status, answer) = bed.send("DELETE", &format!("{RULE}/{}", bed.policy), None).await;
    assert_eq!((status, code(&answer)), (400, "1703945"), "it is in use");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_as_ontap_does() {
    let bed = Bed::new().await;
    for (method, path, body, status, wanted) in [
        ("GET", "/api/no/such/thing", None, 404, "3"),
        ("GET", "/api/storage/volumes/none", None, 404, "4"),
        ("POST", "/api/storage/aggregates", Some(json!({})), 405, "3"),
        ("GET", "/api/storage/volumes?name=a&name=b", None, 400, "262190"),
        ("GET", "/api/storage/volumes?max_records=few", None, 400, "262197"),
        ("GET", "/api/private/cli/volume?fields=*", None, 400, "262220"),
        ("DELETE", "/api/protocols/locks?state=granted", Some(json!({ "x": 1 })), 400, "262198"),
        ("POST", "/api/storage/volumes", Some(json!({ "name": "x" })), 400, "2621707"),
        ("GET", "/api/protocols/nfs/export-policies/7/rules", None, 404, "1703954"),
        ("PATCH", "/api/private/cli/volume?volume=kafka01", Some(json!({ "no-such": 1 })), 400, "262179"),
    ] {
        let (got, answer) = bed.send(method, path, body).await;
        assert_eq!((got, code(&answer)), (status, wanted), "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn an_older_release_does_not_know_preserve_unlink() {
    let bed = Bed::new().await;
    let path = "/api/private/cli/volume?vserver=svm1&volume=kafka01";
    let set = || Some(json!({ "is-preserve-unlink-enabled": true }));
    let (status, answer) = bed.send("PATCH", path, set()).await;
    assert_eq!((status, &answer["num_records"]), (200, &json!(1)));
    let shown = bed.get(&format!("{path}&fields=is-preserve-unlink-enabled")).await;
    assert_eq!(shown["records"][0]["is_preserve_unlink_enabled"], true);
    bed.fake.world(|world| world.release(9, 11, 1));
    assert_eq!(bed.send("PATCH", path, set()).await.0, 400);
    assert_eq!(bed.send("GET", &format!("{path}&fields=is-preserve-unlink-enabled"), None).await.0, 400);
    assert_eq!(bed.get("/api/cluster").await["version"]["major"], 11);
}

#[tokio::test]
async fn tunnelling_headers_scope_a_request() {
    let bed = Bed::new().await;
    bed.fake.world(|world| {
        world.svm("svm2");
        world.volume("svm2", "other", "default");
    });
    let request = bed.client.get(format!("{}/api/storage/volumes", bed.fake.url()));
    let request = request.basic_auth("admin", Some("secret")).header("X-Dot-SVM-Name", "svm2");
    let body: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!((&body["num_records"], &body["records"][0]["name"]), (&json!(1), &json!("other")));
}

#[tokio::test]
async fn https_is_for_those_who_trust_the_certificate() {
    let fake = Fake::https(World::small()).await.unwrap();
    let url = format!("{}/api/cluster", fake.url());
    let ask = async |client: Client| client.get(&url).basic_auth("admin", Some("secret")).send().await;
    assert_eq!(ask(client(fake.certificate_der())).await.unwrap().status(), 200);
    assert!(ask(client(None)).await.is_err());
    assert!(fake.certificate_pem().unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
}

#[tokio::test]
async fn a_client_certificate_is_a_login() {
    let fake = Fake::https(World::small()).await.unwrap();
    let known = fake.client_certificate("admin").unwrap();
    let unknown = fake.client_certificate("nobody").unwrap();
    for (own, status) in [(Some(&known), 200), (Some(&unknown), 401), (None, 401)] {
        let client = client_as(fake.certificate_der(), own);
        let response = client.get(format!("{}/api/cluster", fake.url())).send().await.unwrap();
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn an_idle_client_is_told_from_one_at_work() {
    let bed = Bed::new().await;
    bed.fake.world(|world| world.connect("kafka01", NEW, Duration::from_secs(900)));
    let idle = "/api/protocols/nfs/connected-clients?idle_duration=%3E%3DPT10M";
    let shown = bed.get(idle).await;
    assert_eq!((&shown["num_records"], &shown["records"][0]["client_ip"]), (&json!(1), &json!("10.0.0.102")));
    assert!(bed.fake.world(|world| world.touch("kafka01", NEW)));
    assert_eq!(bed.get(idle).await["num_records"], 0);
    bed.fake.world(|world| world.load("kafka01", 120, 7_000_000, 450));
    let metrics = format!("/api/storage/volumes/{}/metrics?interval=1h&fields=*", bed.volume);
    assert_eq!(bed.get(&metrics).await["records"][0]["iops"]["write"], 120);
}

#[tokio::test]
async fn a_node_that_reboots_is_served_by_its_partner() {
    let bed = Bed::new().await;
    let uuid = bed.get("/api/cluster/nodes?name=node-01").await["records"][0]["uuid"].clone();
    let node = format!("/api/cluster/nodes/{}", uuid.as_str().unwrap());
    let at = async || {
        let lif =
            bed.get("/api/network/ip/interfaces?fields=location").await["records"][0]["location"].clone();
        let aggregate =
            bed.get("/api/storage/aggregates?fields=node").await["records"][0]["node"]["name"].clone();
        (lif["node"]["name"].clone(), lif["is_home"].clone(), aggregate)
    };
    assert_eq!(bed.send("PATCH", &format!("{node}?action=reboot"), Some(json!({}))).await.0, 202);
    assert_eq!(bed.get(&node).await["state"], "waiting_for_giveback");
    assert_eq!(at().await, (json!("node-02"), json!(false), json!("node-02")));
    bed.send("PATCH", &format!("{node}?action=giveback"), Some(json!({}))).await;
    assert_eq!(at().await, (json!("node-01"), json!(true), json!("node-01")));
}

#[tokio::test]
async fn what_is_only_validated_is_not_done() {
    let bed = Bed::new().await;
    let path = format!("/api/storage/volumes/{}?validate_only=true", bed.volume);
    assert_eq!(bed.send("PATCH", &path, Some(json!({ "comment": "mine" }))).await.0, 200);
    assert_eq!(bed.get(&format!("/api/storage/volumes/{}", bed.volume)).await["comment"], "");
    let (status, answer) = bed.send("PATCH", &path, Some(json!({ "size": 1 }))).await;
    assert_eq!((status, code(&answer)), (400, "917534"));
}
