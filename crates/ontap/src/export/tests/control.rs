//! That no entry is shown is a proof only where entries are seen to be shown.

use super::faces::stubborn;
use super::*;

/// The two answers that mean "no entry".
fn none() -> [Fault; 2] {
    let gone = json!({ "error": { "code": "4", "message": "entry doesn't exist" } });
    [Fault::says(404, gone), Fault::says(200, json!({ "num_records": 0, "records": [] }))]
}

/// A surviving broker at work by the node of `lif1`, with an export policy of its own.
fn survivor(site: &Site) {
    site.fake.world(|world| {
        world.policy("svm1", "survivor", &[&["10.0.0.77"]]);
        world.volume("svm1", "survivor", "survivor");
        world.connect("survivor", [10, 0, 0, 77].into(), Duration::ZERO);
    });
}

/// The old owner comes by the other node too.
fn comes_by_node_02(site: &Site) {
    site.fake.world(|world| {
        let mut row = world.find(Table::ConnectedClients, &[("client_ip", "10.0.0.101")]).unwrap().clone();
        (row["server_ip"], row["node"]) = (json!("10.0.0.51"), json!({ "name": "node-02" }));
        world.insert(Table::ConnectedClients, row);
    });
}

/// Another process goes on, which has seen nothing yet.
fn restarted(site: &Site) -> OntapExport {
    let OntapExport { login, svm, volumes, addresses, paths, level, idle_for, timeout, .. } = &site.fence;
    OntapExport {
        login: login.clone(),
        svm: svm.clone(),
        volumes: volumes.clone(),
        addresses: addresses.clone(),
        paths: paths.clone(),
        level: *level,
        silence: Mutex::default(),
        control: Mutex::default(),
        idle_for: *idle_for,
        timeout: *timeout,
        spares_others: false,
    }
}

#[tokio::test]
async fn a_cache_that_never_shows_an_entry_proves_nothing() {
    for none in none() {
        let site = stubborn().await;
        site.fake.inject(Fault::lying_success().on("POST", FLUSH));
        site.fake.inject(none.clone().on("GET", CACHE));
        let checked = site.fence.check(&host()).await.unwrap_err().to_string();
        assert!(checked.contains("nothing would be proven"), "{none:?}: {checked}");
        site.fence.fence(&host(), EPOCH).await.unwrap();
        let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("has shown no access cache entry"), "{none:?}: {error}");
        assert!(site.fake.allows(old(), "kafka01").may_write(), "it would have been a lie");
        site.fake.heal();
        let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
        assert!(proof.note.details["entries_seen"].contains("node-01"), "{:?}", proof.note);
        assert!(!site.fake.allows(old(), "kafka01").may_write());
    }
}

/// An account to which one of the nodes shows nothing: what the other one shows says nothing of it.
#[tokio::test]
async fn each_node_by_which_the_host_was_at_work_has_to_have_shown_an_entry() {
    let site = stubborn().await;
    comes_by_node_02(&site);
    site.fake.world(|world| world.hides_cache_of("node-02"));
    site.fake.inject(Fault::lying_success().on("POST", FLUSH).first(2));
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("node-02 has shown no access cache entry"), "{error}");
    assert!(site.fake.allows(old(), "kafka01").may_write(), "it would have been a lie");

    // By which it was not at work: said, and no reason to refuse.
    let site = super::site(1).await;
    site.fake.world(|world| world.hides_cache_of("node-02"));
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(
        proof.note.details["not_proven"].contains("that node-02 would show an entry"),
        "{:?}",
        proof.note
    );
}

/// A standby died between its fence and its proof, and the host is dead: nothing of it will be seen again.
#[tokio::test]
async fn whoever_carries_on_sees_it_by_the_entries_of_those_at_work() {
    let mut site = site(1).await;
    site.fence.timeout = Duration::from_millis(1_500);
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    let alone = restarted(&site);
    let error = alone.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("node-01 has shown no access cache entry"), "{error}");
    survivor(&site);
    let proof = alone.prove(&host(), EPOCH).await.unwrap();
    assert!(proof.note.details["entries_seen"].contains("node-01"), "{:?}", proof.note);

    // It is known that it came by the other node as well, or nothing is known of it.
    for unknown in [false, true] {
        comes_by_node_02(&site);
        if unknown {
            site.fake.world(|world| world.remove(Table::ConnectedClients, &[("client_ip", "10.0.0.101")]));
        }
        let error = restarted(&site).prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("node-02 has shown no access cache entry"), "{error}");
    }
    assert!(site.fake.allows([10, 0, 0, 77].into(), "survivor").may_write());
    let _ = restarted(&site).prove(&host(), EPOCH).await.unwrap();
}

/// What it flushed would be missed by the fence of a host that died since.
#[tokio::test]
async fn check_leaves_every_clients_entries_as_they_are() {
    let site = site(2).await;
    site.works();
    let entries = || site.fake.world(|world| format!("{:?}", world.entries()));
    let before = entries();
    let note = site.fence.check(&host()).await.unwrap();
    assert_eq!(entries(), before);
    assert!(note.details["access_cache"].contains("entries were seen on node-01, node-02"), "{note:?}");
    // Of the fence that comes then, though the host is dead.
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
}

#[tokio::test]
async fn check_tells_beforehand_whether_there_would_be_a_proof() {
    // Nobody is at work.
    let site = site(1).await;
    site.idle(3600);
    site.fake.world(|world| {
        world.hides_cache_of("node-01");
        world.remove(Table::Locks, &[]);
    });
    let note = site.fence.check(&host()).await.unwrap();
    assert!(note.to_string().contains("WARNING: node-01 has shown no access cache entry"), "{note:?}");
    // It is at work.
    site.fake.world(|world| world.touch("kafka01", old()));
    let error = site.fence.check(&host()).await.unwrap_err().to_string();
    assert!(error.contains("nothing would be proven"), "{error}");
    // Another one is seen, and this one is not.
    site.fake.world(|world| world.shows_cache_of("node-01"));
    survivor(&site);
    let client = site.fence.client(&Purpose(String::new())).await.unwrap();
    client.flush_access_cache("svm1", "node-01", "broker-1").await.unwrap();
    let note = site.fence.check(&host()).await.unwrap();
    assert!(
        note.to_string().contains("WARNING: no node shows an access cache entry of this host"),
        "{note:?}"
    );
}

/// An answer for a node that is not up is the word of somebody who could not ask it.
#[tokio::test]
async fn no_entry_counts_only_on_a_node_that_is_up() {
    for state in ["down", "booting", "", "unknown"] {
        let mut site = site(1).await;
        site.fence.timeout = Duration::from_millis(1_500);
        site.fence.fence(&host(), EPOCH).await.unwrap();
        site.fake.world(|world| {
            world.update(Table::Nodes, &[("name", "node-02")], json!({ "state": state }));
            world.hides_cache_of("node-02");
        });
        let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("node-02"), "{state}: {error}");
        let checked = site.fence.check(&host()).await.unwrap();
        assert!(checked.to_string().contains("WARNING: nothing could be proven now: node-02"), "{checked:?}");
    }
}
