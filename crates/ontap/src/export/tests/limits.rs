//! What hangs, is not told, or comes once: no proof is lost by it that is one, and none is had that is none.

use fakes::ontap::LockFace;

use super::*;

const HANGS: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_evaluation_that_hangs_keeps_nobody_from_a_proof() {
    let site = site(6).await;
    site.fence.fence(&host(), EPOCH).await.unwrap();
    site.fake.inject(Fault::slow(HANGS).on("GET", CHECK));
    let begun = Instant::now();
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert!(proof.note.details["not_proven"].contains("check-access agrees"), "{:?}", proof.note);
    site.fence.check(&host()).await.unwrap();
}

#[tokio::test]
async fn the_evaluation_is_asked_for_a_few_volumes_at_a_time() {
    let site = site(20).await;
    site.fence.fence(&host(), EPOCH).await.unwrap();
    site.fake.inject(Fault::slow(Duration::from_millis(700)).on("GET", CHECK));
    let asked = || site.fake.requests().iter().filter(|request| request.path == CHECK).count();
    let host = host();
    let at_once = async {
        while asked() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        asked()
    };
    let (proof, at_once) = tokio::join!(site.fence.prove(&host, EPOCH), at_once);
    let _ = proof.unwrap();
    assert!(at_once <= 8, "{at_once} were asked at once");
}

#[tokio::test]
async fn a_flush_that_hangs_keeps_nobody_from_the_fence() {
    let mut site = site(6).await;
    site.fence.timeout = Duration::from_secs(10);
    site.works();
    site.fake.inject(Fault::slow(HANGS).on("POST", FLUSH));
    let note = site.fence.fence(&host(), EPOCH).await.unwrap();
    assert_eq!(note.details["locks_broken"], "12");
    assert!(note.details["access_cache"].contains("not flushed: node-01"), "{note:?}");
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("may still let it in"), "{error}");
    site.fence.lift(&host()).await.unwrap();
}

/// The new owner's own entries, where a node remembers that it was refused.
#[tokio::test]
async fn a_flush_that_hangs_keeps_nobody_from_being_let_in() {
    let site = site(2).await;
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let grant =
        OntapGrant(OntapExport { addresses: vec![new()], timeout: Duration::from_secs(10), ..site.fence });
    site.fake.forget_requests();
    grant.admit(EPOCH).await.unwrap();
    let flushes = || site.fake.requests().iter().filter(|request| request.path == FLUSH).count();
    assert_eq!(flushes(), 0, "nothing was remembered of it");
    grant.withdraw().await.unwrap();
    assert!(!site.fake.allows(new(), "kafka01").may_write());
    grant.admit(EPOCH).await.unwrap();
    assert_eq!(flushes(), 2, "where it was refused, on each node");
    grant.withdraw().await.unwrap();

    assert!(!site.fake.allows(new(), "kafka01").may_write());
    assert!(!site.fake.allows(new(), "kafka02").may_write());
    site.fake.inject(Fault::slow(HANGS).on("POST", FLUSH));
    let note = grant.admit(EPOCH).await.unwrap();
    assert!(note.details["access_cache"].contains("not flushed: node-01"), "{note:?}");
    grant.withdraw().await.unwrap();
    site.fake.heal();
    site.fake.inject(Fault::slow(HANGS).on("GET", CACHE));
    grant.admit(EPOCH).await.unwrap();
}

#[tokio::test]
async fn what_is_not_told_of_a_qtree_is_not_taken_for_fine() {
    for (patch, words) in [
        (json!({ "export_policy": null }), "does not say which export policy the qtree logs of kafka01 has"),
        (json!({ "volume": null }), "does not say in which volume the qtree logs is"),
    ] {
        let site = site(1).await;
        let row = json!({
            "num_records": 1, "records": [{
                "id": 1, "name": "logs", "volume": { "name": "kafka01" }, "export_policy": { "name": "broker-1" },
            }],
        });
        site.fake.inject(Fault::says(200, row.clone()).on("GET", QTREES));
        site.fence.check(&host()).await.unwrap();
        site.fake.heal();
        let mut row = row;
        for (key, value) in patch.as_object().unwrap() {
            row["records"][0][key] = value.clone();
        }
        site.fake.inject(Fault::says(200, row).on("GET", QTREES));
        site.refused(words).await;
    }
}

/// The vendor's list has every volume itself as its qtree 0.
#[tokio::test]
async fn a_volume_of_which_no_qtree_is_listed_is_told() {
    let site = site(2).await;
    let note = site.fence.check(&host()).await.unwrap();
    assert!(!note.to_string().contains("qtree"), "{note:?}");
    let rows = json!([{ "id": 0, "volume": { "name": "kafka01" } }]);
    site.fake.inject(Fault::says(200, json!({ "num_records": 1, "records": rows })).on("GET", QTREES));
    let note = site.fence.check(&host()).await.unwrap();
    let words = "that no qtree of kafka02 has an export policy of its own";
    assert!(note.to_string().contains(words) && !note.to_string().contains("kafka01,"), "{note:?}");
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(proof.note.details["not_proven"].contains(words), "{:?}", proof.note);
}

/// The list is written once after the host is denied, and never again.
#[tokio::test]
async fn silence_in_a_list_that_was_written_once_is_none() {
    let site = with(1, |config| {
        config.proof = ProofLevel::Idle;
        (config.idle_for, config.timeout) = (Duration::from_secs(2), Duration::from_secs(5));
    });
    let site = site.await;
    let neighbour = site.neighbour();
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let host = host();
    let once = async {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        site.fake.world(World::list_stands_still);
        std::future::pending::<()>().await;
    };
    let outcome =
        tokio::select! { outcome = site.fence.prove(&host, EPOCH) => outcome, () = once => unreachable!() };
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("silence in it is none"), "{error}");
    neighbour.abort();
}

#[tokio::test]
async fn silence_counts_only_where_the_list_moves_on_every_node() {
    let site = with(1, |config| {
        config.proof = ProofLevel::Idle;
        (config.idle_for, config.timeout) = (Duration::from_secs(1), Duration::from_secs(3));
    });
    let site = site.await;
    let neighbour = site.neighbour();
    site.fake.world(|world| {
        world.remove(Table::ConnectedClients, &[("client_ip", "10.0.0.101")]);
        // The neighbour is seen by node-01 alone.
        world.remove(Table::ConnectedClients, &[("node.name", "node-02")]);
    });
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("silence in it is none") && error.contains("node-02"), "{error}");
    let checked = site.fence.check(&host()).await.unwrap_err().to_string();
    assert!(checked.contains("would never be met") && checked.contains("node-02"), "{checked}");
    neighbour.abort();
}

#[tokio::test]
async fn a_node_that_is_down_is_named_and_one_that_cannot_serve_the_svm_is_left_out() {
    let mut site = site(1).await;
    site.fence.timeout = Duration::from_millis(1_500);
    site.fence.fence(&host(), EPOCH).await.unwrap();
    site.fake.world(|world| {
        world.ha_pair("node-03", "node-04");
        world.update(Table::Nodes, &[("name", "node-03")], json!({ "state": "down" }));
    });
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(proof.note.details["not_proven"].contains("what node-03 remembers"), "{:?}", proof.note);
    let checked = site.fence.check(&host()).await.unwrap();
    assert!(checked.to_string().contains("what node-03 remembers"), "{checked:?}");

    site.fake.world(|w| w.lif("svm1", "lif3", [10, 0, 0, 52].into(), "node-03"));
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("node-03 is down, and its partner has not taken it over"), "{error}");
    let checked = site.fence.check(&host()).await.unwrap();
    assert!(
        checked.to_string().contains("node-03 is down, and its partner has not taken it over"),
        "{checked:?}"
    );
}

#[tokio::test]
async fn nodes_that_are_not_all_listed_are_not_all_seen() {
    for remove in [&[][..], &[("name", "node-02")][..]] {
        let site = site(1).await;
        site.fence.fence(&host(), EPOCH).await.unwrap();
        let rest = site.fake.world(|world| {
            let mut rest = world.rows(Table::Nodes).to_vec();
            rest.retain(|row| !remove.is_empty() && row["name"] != "node-02");
            rest
        });
        let rows = json!({ "num_records": rest.len(), "records": rest });
        site.fake.inject(Fault::says(200, rows).on("GET", NODES));
        let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
        let not = &proof.note.details["not_proven"];
        assert!(not.contains("without an interface of the SVM"), "{remove:?}: {:?}", proof.note);
    }
    let mut site = site(1).await;
    site.fence.timeout = Duration::from_millis(1_500);
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let place = json!({ "location": { "node": null } });
    site.fake.world(|world| world.update(Table::Interfaces, &[("name", "lif2")], place));
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("on which node the interface lif2 is"), "{error}");
}

/// Locks that name nobody, where another host is let in: they are that one's, as far as anybody can know.
#[tokio::test]
async fn a_proof_says_of_which_locks_it_knows_nothing() {
    let site = site(2).await;
    site.fence.fence(&host(), EPOCH).await.unwrap();
    site.set_rule(2, json!({ "clients": [{ "match": "10.0.0.102" }] }));
    site.fake.world(|world| world.lock("kafka02", new(), ".lock"));
    let named = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert_eq!(named.note.details["locks"], "none");
    assert!(!named.note.details["not_proven"].contains("lock"), "{:?}", named.note);
    for face in LockFace::ALL.into_iter().filter(|face| *face != LockFace::Named) {
        site.fake.world(|world| world.show_locks(face));
        let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
        assert!(proof.note.details["locks"].contains("1 in kafka02 name nobody"), "{:?}", proof.note);
        let not = &proof.note.details["not_proven"];
        assert!(not.contains("that it holds no lock in kafka02"), "{:?}", proof.note);
        assert!(!proof.note.to_string().contains("holds no lock there"), "{:?}", proof.note);
    }
}
