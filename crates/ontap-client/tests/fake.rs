//! The fake keeps its promises: what each fault does, how pages go, who is let in when, and what jobs come to.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ontap_client::fake::{Access, ClientCertificate, Fake, Fault, Table, World};
use reqwest::{Client, Method, Response};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

const RULE: &str = "/api/protocols/nfs/export-policies";
const OLD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 101));
const NEW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 102));

/// A fake with one volume, `kafka01`, that only the old owner may use, and a client for it.
struct Bed {
    fake: Fake,
    client: Client,
    policy: i64,
    volume: String,
}

fn client(certificate: Option<&[u8]>) -> Client {
    client_as(certificate, None)
}

/// With a certificate of its own, if need be.
fn client_as(certificate: Option<&[u8]>, own: Option<&ClientCertificate>) -> Client {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(certificate) = certificate {
        roots.add(certificate.to_vec().into()).unwrap();
    }
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let chain = vec![CertificateDer::from_pem_slice(own.certificate_pem.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(own.key_pem.as_bytes()).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap()
}

fn seeded() -> (World, i64, String) {
    let mut world = World::small();
    let policy = world.policy("svm1", "broker-1", &[&["10.0.0.101"]]);
    let volume = world.volume("svm1", "kafka01", "broker-1");
    (world, policy, volume)
}

impl Bed {
    async fn new() -> Self {
        let (world, policy, volume) = seeded();
        Self { fake: Fake::start(world).await.unwrap(), client: client(None), policy, volume }
    }

    async fn try_send(&self, method: &str, path: &str, body: Option<Value>) -> reqwest::Result<Response> {
        let method: Method = method.parse().unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.fake.url()));
        request = request.basic_auth("admin", Some("secret"));
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await
    }

    /// The status and the body.
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let response = self.try_send(method, path, body).await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send("GET", path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn rule(&self) -> String {
        format!("{RULE}/{}/rules/1", self.policy)
    }

    async fn give_to(&self, owner: IpAddr) -> (u16, Value) {
        self.send("PATCH", &self.rule(), Some(json!({ "clients": [{ "match": owner.to_string() }] }))).await
    }

    async fn owner(&self) -> Value {
        self.get(&self.rule()).await["clients"][0]["match"].clone()
    }

    fn allows(&self, client: IpAddr) -> bool {
        self.fake.allows(client, "kafka01").may_write()
    }
}

fn code(body: &Value) -> &str {
    body["error"]["code"].as_str().unwrap_or_default()
}

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
    bed.fake.world(|world| world.jobs_take(Duration::from_millis(100)));
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
    let mut changes = bed.fake.changes();
    while bed.get(job).await["state"] == "running" {
        changes.changed().await.unwrap();
    }
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

#[tokio::test]
async fn what_is_only_validated_is_not_done() {
    let bed = Bed::new().await;
    let path = format!("/api/storage/volumes/{}?validate_only=true", bed.volume);
    assert_eq!(bed.send("PATCH", &path, Some(json!({ "comment": "mine" }))).await.0, 200);
    assert_eq!(bed.get(&format!("/api/storage/volumes/{}", bed.volume)).await["comment"], "");
    let (status, answer) = bed.send("PATCH", &path, Some(json!({ "size": 1 }))).await;
    assert_eq!((status, code(&answer)), (400, "917534"));
}
