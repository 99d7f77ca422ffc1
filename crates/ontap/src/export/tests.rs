//! Against the fake ONTAP: nothing is proven that is not so, and no rule ever lets two hosts in.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use fakes::ontap::{Fake, Fault, Request, Table, World};
use ontap_client::Fingerprint;
use serde_json::json;
use tempfile::NamedTempFile;

mod control;
mod faces;
mod faults;
mod lies;
mod limits;

use super::*;
use recovery::ports::chain;

const EPOCH: Epoch = Epoch(7);
const POLICIES: &str = "/api/protocols/nfs/export-policies";
const LOCKS: &str = "/api/protocols/locks";
const SERVICES: &str = "/api/protocols/nfs/services";
const VOLUMES: &str = "/api/storage/volumes";
const FLUSH: &str = "/api/private/cli/vserver/export-policy/access-cache/flush";
const CACHE: &str = "/api/private/cli/vserver/export-policy/access-cache";
const CHECK: &str = "/api/private/cli/vserver/export-policy/check-access";
const QTREES: &str = "/api/storage/qtrees";
const LIFS: &str = "/api/network/ip/interfaces";
const NODES: &str = "/api/cluster/nodes";

fn old() -> IpAddr {
    [10, 0, 0, 101].into()
}

fn new() -> IpAddr {
    [10, 0, 0, 102].into()
}

fn host() -> HostName {
    HostName::from("kafka-1")
}

fn name(n: usize) -> String {
    format!("kafka{n:02}")
}

/// An ONTAP and a driver for it.
struct Site {
    fake: Arc<Fake>,
    fence: OntapExport,
    _password: NamedTempFile,
}

/// So many volumes with a policy each, for the old owner, which is connected and has locks in each.
async fn site(volumes: usize) -> Site {
    with(volumes, |_| {}).await
}

async fn with(volumes: usize, change: impl FnOnce(&mut OntapExportConfig)) -> Site {
    let mut world = World::small();
    world.lif("svm1", "lif2", [10, 0, 0, 51].into(), "node-02");
    for n in 1..=volumes {
        world.policy("svm1", &format!("broker-{n}"), &[&["10.0.0.101"]]);
        world.volume("svm1", &name(n), &format!("broker-{n}"));
        if n > 1 {
            world.guest(&name(n), old());
        }
    }
    let fake = Arc::new(Fake::https(world).await.unwrap());
    let mut password = NamedTempFile::new().unwrap();
    password.write_all(b"secret\n").unwrap();
    let mut config = OntapExportConfig {
        ontap: OntapConfig {
            url: Some(fake.url()),
            fsx: None,
            user: Some("admin".to_owned()),
            password_file: Some(password.path().to_owned()),
            certificate: None,
            key: None,
            ca: None,
            pin: Some(Fingerprint::of(fake.certificate_der().unwrap()).to_string()),
        },
        svm: "svm1".to_owned(),
        volumes: (1..=volumes).map(name).collect(),
        addresses: vec![old()],
        proof: ProofLevel::default(),
        idle_for: six_seconds(),
        timeout: thirty_seconds(),
    };
    change(&mut config);
    Site { fake, fence: config.build().unwrap(), _password: password }
}

impl Site {
    /// The rule of a policy as the fake has it.
    fn rule(&self, n: usize) -> Vec<String> {
        self.fake.world(|world| {
            let rule = world.find(Table::Rules, &[("policy.name", &format!("broker-{n}"))]).unwrap();
            let clients = rule["clients"].as_array().unwrap();
            clients.iter().map(|client| client["match"].as_str().unwrap_or_default().to_owned()).collect()
        })
    }

    fn set_rule(&self, n: usize, patch: serde_json::Value) {
        let policy = format!("broker-{n}");
        assert_eq!(self.fake.world(|w| w.update(Table::Rules, &[("policy.name", &policy)], patch)), 1);
    }

    fn rules_admit(&self, client: IpAddr) -> usize {
        let volumes = &self.fence.volumes;
        self.fake.world(|w| volumes.iter().filter(|v| w.would_allow(client, v).may_write()).count())
    }

    /// The old owner is remembered by the cache, and works.
    fn works(&self) {
        for volume in &self.fence.volumes {
            assert!(self.fake.allows(old(), volume).may_write());
            self.fake.world(|world| world.touch(volume, old()));
        }
    }

    /// It has done nothing for so long.
    fn idle(&self, seconds: u64) {
        let since = jiff::Timestamp::now().as_second() - i64::try_from(seconds).unwrap();
        self.fake.world(|world| world.update(Table::ConnectedClients, &[], json!({ "~since": since })));
    }

    /// Another client of the SVM that works all the time.
    fn neighbour(&self) -> tokio::task::JoinHandle<()> {
        self.fake.world(|world| {
            world.policy("svm1", "neighbour", &[&["10.0.0.77"]]);
            world.volume("svm1", "neighbour", "neighbour");
            world.connect("neighbour", [10, 0, 0, 77].into(), Duration::ZERO);
            // By the other node too.
            let mut row = world.find(Table::ConnectedClients, &[("client_ip", "10.0.0.77")]).unwrap().clone();
            (row["server_ip"], row["node"]) = (json!("10.0.0.51"), json!({ "name": "node-02" }));
            world.insert(Table::ConnectedClients, row);
        });
        let fake = Arc::clone(&self.fake);
        tokio::spawn(async move {
            loop {
                fake.world(|world| world.touch("neighbour", [10, 0, 0, 77].into()));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    }

    fn requests(&self) -> usize {
        let count = self.fake.requests().len();
        self.fake.forget_requests();
        count
    }

    async fn refused(&self, words: &str) {
        let before: Vec<_> = (1..=self.fence.volumes.len()).map(|n| self.rule(n)).collect();
        let host = host();
        let errors = [
            self.fence.check(&host).await.unwrap_err(),
            self.fence.fence(&host, EPOCH).await.unwrap_err(),
            self.fence.prove(&host, EPOCH).await.unwrap_err(),
            self.fence.lift(&host).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), "refused", "{}", chain(&error));
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
        let after: Vec<_> = (1..=self.fence.volumes.len()).map(|n| self.rule(n)).collect();
        assert_eq!(before, after, "a refused fence has changed something");
    }
}

#[tokio::test]
async fn a_host_is_taken_out_of_the_rules_of_one_and_of_six_volumes() {
    // Two nodes: a survey and what is remembered until then, the survey, the rules, the nodes and their flush,
    // the locks between two surveys.
    let before = |volumes: usize| 4 + 2 + 2 * volumes + 1;
    for (volumes, fencing, proving) in [
        (1, before(1) + 4 + 3 + 2 + 2 + 4 + 1 + 4 + 1 + 1, 4 + 2 + 2 + 1 + 1 + 1 + 1),
        (6, before(6) + 4 + 18 + 2 + 12 + 4 + 1 + 4 + 1 + 1, 4 + 2 + 12 + 1 + 1 + 6 + 6),
    ] {
        let site = site(volumes).await;
        site.works();
        let error = site.fence.prove(&host(), EPOCH).await.unwrap_err();
        assert!(error.to_string().contains("lets it in"), "{error}");
        site.requests();

        let note = site.fence.fence(&host(), EPOCH).await.unwrap();
        assert_eq!(site.requests(), fencing, "requests for {volumes} volumes");
        assert_eq!(note.details["locks_broken"], (2 * volumes).to_string());
        assert_eq!(site.rules_admit(old()), 0);
        assert!(site.fence.volumes.iter().all(|volume| !site.fake.allows(old(), volume).may_write()));
        assert_eq!(
            marks::epoch(&site.rule(1).iter().map(|m| m.parse().unwrap()).collect::<Vec<_>>()),
            Some(EPOCH)
        );

        let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
        assert_eq!(site.requests(), proving, "requests for the proof of {volumes} volumes");
        assert_eq!((proof.host, proof.by.as_str()), (host(), "ontap_export"));
        assert!(proof.note.details["rules"].contains("broker-1: nobody (epoch 7)"), "{:?}", proof.note);
        assert!(proof.note.details["not_proven"].contains("that it does nothing"), "{:?}", proof.note);
        assert!(
            proof.note.text.contains("read back on node-01, node-02: no entry lets it in"),
            "{:?}",
            proof.note
        );
        assert_eq!(proof.note.details["check_access"], "denied");

        // Again, and by a later takeover: nothing is left to do.
        let again = site.fence.fence(&host(), Epoch(8)).await.unwrap();
        assert_eq!(site.requests(), before(volumes) + 4 + 2 + 2 * volumes + 4 + 1);
        assert_eq!(again.details["locks_broken"], "0");
    }
}

#[tokio::test]
async fn locks_of_others_and_elsewhere_are_left_alone() {
    let site = site(1).await;
    site.fake.world(|world| {
        world.policy("svm1", "else", &[&["10.0.0.101"]]);
        world.volume("svm1", "elsewhere", "else");
        world.guest("elsewhere", old());
        world.lock("kafka01", new(), "file");
    });
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    let left = site.fake.world(|world| world.rows(Table::Locks).len());
    assert_eq!(left, 3);
    assert!(site.fake.allows(old(), "elsewhere").may_write());
}

#[tokio::test]
async fn silence_is_asked_for_and_waited_for() {
    let site = with(2, |config| {
        config.proof = ProofLevel::Idle;
        (config.idle_for, config.timeout) = (Duration::from_secs(2), Duration::from_secs(20));
    });
    let site = site.await;
    site.works();
    // Silence before the rules could deny it is none.
    site.idle(3600);
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let neighbour = site.neighbour();
    let begun = Instant::now();
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(site.requests() < 100, "it looks when there may be something to see");
    assert!(proof.note.details["idle"].starts_with("idle for"), "{:?}", proof.note);
    assert!(!proof.note.details["not_proven"].contains("does nothing"), "{:?}", proof.note);

    // The same silence is not asked for twice, unless the rules have changed since; nor is being unknown
    // enough then.
    let begun = Instant::now();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    site.set_rule(1, json!({ "clients": [{ "match": "10.0.0.102" }] }));
    site.fake.world(|world| world.remove(Table::ConnectedClients, &[("client_ip", "10.0.0.101")]));
    let begun = Instant::now();
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert_eq!(proof.note.details["idle"], "not among the connected clients");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    neighbour.abort();
}

/// The takeovers of two brokers of one host, on two standbys.
#[tokio::test]
async fn two_takeovers_of_one_hosts_volumes_at_once_both_fence_it() {
    for round in 0..10 {
        let site = site(6).await;
        site.works();
        let (host, other) = (host(), Epoch(9));
        let (one, two) = tokio::join!(site.fence.fence(&host, EPOCH), site.fence.fence(&host, other));
        assert!(one.is_ok() && two.is_ok(), "round {round}: {one:?}, {two:?}");
        let (one, two) = tokio::join!(site.fence.prove(&host, EPOCH), site.fence.prove(&host, other));
        assert!(one.is_ok() && two.is_ok(), "round {round}: {one:?}, {two:?}");
        assert_eq!(site.rules_admit(old()), 0);
    }
}

#[tokio::test]
async fn a_host_that_works_or_of_which_nothing_is_known_is_not_proven() {
    let site = with(1, |config| {
        config.proof = ProofLevel::Idle;
        (config.idle_for, config.timeout) = (Duration::from_secs(60), Duration::from_millis(61_000));
    });
    let mut site = site.await;
    site.fence.timeout = Duration::from_secs(5);
    site.works();
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("known to have been idle for"), "{error}");
    // A row without its idle time, and without its volume, may be anything.
    site.fake.world(|world| {
        world.remove(Table::ConnectedClients, &[]);
        let row = json!({ "svm": { "name": "svm1" }, "client_ip": "10.0.0.101" });
        world.insert(Table::ConnectedClients, row);
    });
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err();
    assert_eq!(error.kind(), "refused");
    assert!(error.to_string().contains("how long it has been idle"), "{error}");
}

#[tokio::test]
async fn what_is_wider_than_one_owner_is_refused_before_anything_is_changed() {
    for (patch, words) in [
        (json!({ "clients": [{ "match": "10.0.0.0/24" }] }), "`10.0.0.0/24`"),
        (json!({ "clients": [{ "match": "10.0.0.101" }, { "match": "@kafka" }] }), "`@kafka`"),
        (json!({ "clients": [{ "match": "kafka-1" }] }), "`kafka-1`"),
        (json!({ "clients": [{ "match": ".example.com" }] }), "`.example.com`"),
        (json!({ "clients": [{ "match": "0.0.0.0/0" }] }), "`0.0.0.0/0`"),
        (json!({ "clients": [] }), "does not say whom"),
        (json!({ "clients": [{ "match": "10.0.0.101" }, { "match": "10.0.0.102" }] }), "beside this host"),
        (json!({ "protocols": ["nfs4", "flexcache"] }), "flexcache too"),
        (json!({ "protocols": ["cifs"] }), "cifs too"),
    ] {
        let site = site(2).await;
        site.set_rule(2, patch);
        site.refused(words).await;
    }
}

#[tokio::test]
async fn a_policy_that_trident_manages_is_refused() {
    // A person may have given one such a name.
    for (name, is_its) in [("trident_pvc_1", true), ("trident_kafka", false), ("trident-nfs", false)] {
        assert_eq!(of_trident(name, &["kafka01", "trident_pvc_1"]).is_some(), is_its, "{name}");
    }
    for name in ["trident-403b5326-8482-40db-96d0-d83fb3f4daec", "trident_empty"] {
        let site = site(1).await;
        site.fake.world(|world| {
            world.policy("svm1", name, &[&["10.0.0.101"]]);
            let policy = world.find(Table::Policies, &[("name", name)]).unwrap();
            let patch = json!({ "nas": { "export_policy": { "name": name, "id": policy["id"] } } });
            world.update(Table::Volumes, &[("name", "kafka01")], patch);
        });
        site.refused("autoExportPolicy: false").await;
    }
}

#[tokio::test]
async fn further_rules_pnfs_and_unknown_volumes_are_refused() {
    let rules = site(1).await;
    let row = rules.fake.world(|world| world.rows(Table::Rules)[0].clone());
    let mut second = row;
    second["index"] = json!(2);
    second["clients"] = json!([{ "match": "10.0.0.7" }]);
    rules.fake.world(|world| world.insert(Table::Rules, second));
    rules.refused("has 2 rules").await;

    for (pnfs, words) in [(json!(true), "pNFS is on"), (json!(null), "whether pNFS is off")] {
        let service = site(1).await;
        let patch = json!({ "protocol": { "v41_features": { "pnfs_enabled": pnfs } } });
        service.fake.world(|world| world.update(Table::NfsServices, &[], patch));
        service.refused(words).await;
    }

    let unknown = site(1).await;
    unknown
        .fake
        .world(|world| world.update(Table::Volumes, &[("name", "kafka01")], json!({ "name": "other" })));
    unknown.refused("there is no volume kafka01").await;
}

#[tokio::test]
async fn a_rule_that_bites_late_is_made_to_bite_by_the_flush() {
    let site = site(1).await;
    site.works();
    site.fake.inject(Fault::bites_late(Duration::from_secs(600)).on("PATCH", POLICIES));
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(!site.fake.allows(old(), "kafka01").may_write());
}

#[tokio::test]
async fn without_the_read_back_there_is_no_proof_unless_the_configuration_says_so() {
    let site = site(1).await;
    site.works();
    site.fake.world(|world| world.deny("admin", "/api/private/cli"));
    let note = site.fence.fence(&host(), EPOCH).await.unwrap();
    assert!(note.details["access_cache"].starts_with("not flushed"), "{note:?}");
    let begun = Instant::now();
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("the access cache cannot be read back"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "it waited for what cannot come");

    let trusting = OntapExport { level: ProofLevel::ReadBack, ..site.fence };
    let proof = trusting.prove(&host(), EPOCH).await.unwrap();
    assert_eq!(proof.note.details["access_cache"], "not read back");
    assert!(proof.note.details["not_proven"].contains("access cache"), "{:?}", proof.note);
}

#[tokio::test]
async fn a_lie_about_the_flush_is_read_back() {
    let mut site = with(1, |config| config.timeout = Duration::from_secs(2)).await;
    site.fence.timeout = Duration::from_secs(2);
    site.works();
    site.fake.inject(Fault::bites_late(Duration::from_secs(600)).on("PATCH", POLICIES));
    site.fake.inject(Fault::lying_success().on("POST", FLUSH));
    let note = site.fence.fence(&host(), EPOCH).await.unwrap();
    assert!(note.details["access_cache"].starts_with("flush ordered on node-01, node-02"), "{note:?}");
    assert!(site.fake.allows(old(), "kafka01").may_write());
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err();
    assert!(
        error.to_string().contains("the access cache of node-01, node-02 may still let it in"),
        "{error}"
    );
    // It takes a lock again.
    site.fake.heal();
    site.fake.world(|world| world.lock("kafka01", old(), "file"));
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("1 locks may be its own"), "{error}");
}

#[tokio::test]
async fn lifting_lets_a_host_in_only_where_nobody_else_is() {
    let site = site(2).await;
    site.fence.fence(&host(), EPOCH).await.unwrap();
    site.set_rule(2, json!({ "clients": [{ "match": "10.0.0.102" }] }));
    let note = site.fence.lift(&host()).await.unwrap();
    assert!(note.text.contains("left to their owners: broker-2: 10.0.0.102"), "{note:?}");
    assert!(site.fake.allows(old(), "kafka01").may_write());
    assert!(!site.fake.allows(old(), "kafka02").may_write());
    // The epoch that fenced it stays readable, and nothing is left to do.
    assert_eq!(site.rule(1).len(), 4);
    site.requests();
    site.fence.lift(&host()).await.unwrap();
    assert_eq!(site.requests(), 4);

    // A policy without rules lets nobody in; an answer that leaves them out looks the same, so it proves
    // nothing.
    site.fake.world(|world| world.remove(Table::Rules, &[("policy.name", "broker-1")]));
    for error in [
        site.fence.fence(&host(), EPOCH).await.map(drop).unwrap_err(),
        site.fence.prove(&host(), EPOCH).await.map(drop).unwrap_err(),
        site.fence.lift(&host()).await.map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("export policy broker-1 has no rule"), "{error}");
    }
}

#[tokio::test]
async fn check_reads_and_changes_nothing() {
    let site = site(2).await;
    site.requests();
    let note = site.fence.check(&host()).await.unwrap();
    assert!(note.text.contains("let in to 2 of 2"), "{note:?}");
    assert_eq!(note.details["rules"], "broker-1: 10.0.0.101; broker-2: 10.0.0.101");
    let is_harmless = |request: &Request| request.method == "GET" || request.path == FLUSH;
    assert!(site.fake.requests().iter().all(is_harmless));
    assert!(note.text.contains("Not tried: changing rules and breaking locks"), "{note:?}");
    site.fake.inject(Fault::denied().on("POST", "/api/private/cli/vserver/export-policy"));
    let error = site.fence.check(&host()).await.unwrap_err().to_string();
    assert!(error.contains("the access cache cannot be flushed"), "{error}");
    site.fake.heal();
    site.fake.inject(Fault::denied().on("GET", CACHE));
    let error = site.fence.check(&host()).await.unwrap_err().to_string();
    assert!(error.contains("nothing would ever be proven"), "{error}");
    site.fake.heal();
    site.fake.world(|world| world.remove(Table::ConnectedClients, &[]));
    let note = site.fence.check(&host()).await.unwrap();
    assert!(note.to_string().contains("see that they are those by which it mounts"), "{note:?}");
    site.fake.inject(Fault::login_expired());
    let error = chain(&site.fence.check(&host()).await.unwrap_err());
    assert!(error.contains("login refused") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn what_is_configured_is_what_is_used() {
    let site = site(1).await;
    let dir = tempfile::tempdir().unwrap();
    let (ca, made) = (dir.path().join("ca.pem"), site.fake.client_certificate("admin").unwrap());
    std::fs::write(&ca, site.fake.certificate_pem().unwrap()).unwrap();
    let (chain_file, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&chain_file, &made.certificate_pem).unwrap();
    std::fs::write(&key, &made.key_pem).unwrap();
    let text = format!(
        "svm = \"svm1\"\nvolumes = [\"kafka01\"]\naddresses = [\"10.0.0.101\"]\n\
         proof = \"read_back\"\n[ontap]\nurl = \"{}\"\nca = {ca:?}\ncertificate = {chain_file:?}\nkey = {key:?}",
        site.fake.url()
    );
    let config: OntapExportConfig = toml::from_str(&text).unwrap();
    let fence = config.build().unwrap();
    assert_eq!(fence.name(), "ontap_export");
    fence.check(&host()).await.unwrap();
    std::fs::remove_file(&key).unwrap();
    let error = chain(&fence.check(&host()).await.unwrap_err());
    assert!(error.contains("key.pem could not be read"), "{error}");
}

#[test]
fn bad_values_are_named_together() {
    let text = r#"
        svm = ""
        volumes = ["a", "a"]
        addresses = ["192.0.2.9"]
        proof = "idle"
        idle_for = "1m"
        timeout = "30s"
        [ontap]
        url = "http://cluster1"
        password_file = "here"
        pin = "AB"
    "#;
    let config: OntapExportConfig = toml::from_str(text).unwrap();
    let problems = config.build().unwrap_err();
    let keys: Vec<&str> = problems.iter().filter_map(|p| p.split(':').next()).collect();
    assert_eq!(
        keys,
        [
            "svm",
            "volumes",
            "addresses",
            "timeout",
            "ontap.url",
            "ontap.password_file",
            "ontap.pin",
            "ontap.user"
        ]
    );
    for url in ["https://admin:hunter2@h", "hunter2", "https://h/?p=hunter2"] {
        let text = text.replace("http://cluster1", url);
        let problems = toml::from_str::<OntapExportConfig>(&text).unwrap().build().unwrap_err();
        assert!(problems.iter().any(|problem| problem.starts_with("ontap.url")), "{problems:?}");
        assert!(!format!("{problems:?}").contains("hunter2"), "{problems:?}");
    }
    assert!(toml::from_str::<OntapExportConfig>(&format!("{text}\nword = 1")).is_err());
}

/// An address, or what FSx knows it by: one of them.
#[test]
fn an_ontap_of_fsx_needs_no_address() {
    let config = |place: &str| {
        let text = format!(
            "svm = \"svm1\"\nvolumes = [\"kafka01\"]\naddresses = [\"10.0.0.101\"]\n[ontap]\n{place}\nuser = \"vsadmin\"\n\
             password_file = \"/etc/understudy/ontap.password\""
        );
        toml::from_str::<OntapExportConfig>(&text).unwrap()
    };
    let fsx = "fsx = { svm = \"svm-0123456789abcdef0\", region = \"eu-central-1\" }";
    let good = config(fsx);
    assert_eq!(good.ontap.place(), "svm-0123456789abcdef0 of FSx");
    good.build().unwrap();
    for (place, problem) in [
        ("", "ontap.url: is missing; on FSx for ONTAP `fsx` will do"),
        (
            &format!("url = \"https://cluster1\"\n{fsx}"),
            "ontap.fsx: there is a url as well; choose one of them",
        ),
        ("fsx = {}", "ontap.fsx: give one of svm, tag and file_system"),
    ] {
        assert_eq!(config(place).build().unwrap_err(), [problem], "{place}");
    }
}
