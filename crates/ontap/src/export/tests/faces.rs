//! Each answer that a real system might give in the place of the kind one: never a proof that is none.

use fakes::ontap::LockFace;

use super::*;

/// A site whose rules bite late, as they do where a node remembers the old owner.
pub(super) async fn stubborn() -> Site {
    let mut site = site(1).await;
    site.fence.timeout = Duration::from_millis(1_500);
    site.works();
    site.fake.inject(Fault::bites_late(Duration::from_secs(600)).on("PATCH", POLICIES));
    site
}

#[tokio::test]
async fn locks_are_broken_and_missed_whether_or_not_they_name_their_client() {
    for face in LockFace::ALL {
        let mut site = site(2).await;
        site.fence.timeout = Duration::from_secs(5);
        site.fake.world(|world| {
            world.show_locks(face);
            // A volume that this host may own, and another one does: its locks are its own.
            world.update(
                Table::Rules,
                &[("policy.name", "broker-2")],
                json!({ "clients": [{ "match": "10.0.0.102" }] }),
            );
            world.remove(Table::Locks, &[("volume.name", "kafka02")]);
            world.lock("kafka02", new(), ".lock");
        });
        let note = site.fence.fence(&host(), EPOCH).await.unwrap();
        assert_eq!(note.details["locks_broken"], "2", "{face:?}");
        let left = site.fake.world(|world| world.rows(Table::Locks).to_vec());
        assert!(left.len() == 1 && left[0]["volume"]["name"] == "kafka02", "{face:?}: {left:?}");
        let _ = site.fence.prove(&host(), EPOCH).await.unwrap();

        site.fake.world(|world| world.lock("kafka01", old(), ".lock"));
        let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("1 locks may be its own"), "{face:?}: {error}");
        site.fake.inject(Fault::lying_success().on("DELETE", LOCKS));
        let error = site.fence.fence(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("1 of its locks are there still"), "{face:?}: {error}");
    }
}

/// Between the look at the locks and their end somebody else may have been let in, and have taken one.
#[tokio::test]
async fn a_lock_without_a_name_is_left_to_who_was_let_in_meanwhile() {
    let site = Arc::new(site(1).await);
    site.fake.world(|world| world.show_locks(LockFace::Absent));
    site.fence.fence(&host(), EPOCH).await.unwrap();
    // Its successor is let in, and locks, at the very moment at which the locks are asked for.
    site.fake.inject(Fault::slow(Duration::from_millis(300)).on("GET", LOCKS).first(1));
    let fencing = tokio::spawn({
        let site = Arc::clone(&site);
        async move { site.fence.fence(&host(), EPOCH).await }
    });
    while !site.fake.requests().iter().any(|request| request.path == FLUSH) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    site.set_rule(1, json!({ "clients": [{ "match": "10.0.0.102" }] }));
    site.fake.world(|world| world.lock("kafka01", new(), ".lock"));
    fencing.await.unwrap().unwrap();
    assert_eq!(site.fake.world(|world| world.rows(Table::Locks).len()), 1, "the new owner's lock was broken");
}

#[tokio::test]
async fn what_is_answered_to_a_flush_is_never_the_proof() {
    for body in [
        json!({}),
        json!([]),
        json!({ "num_records": 0 }),
        json!({ "num_records": 1, "cli_output": "" }),
        json!({ "num_records": 1, "cli_output": "Error: command failed" }),
        json!({ "cli_output": "1 entry was flushed." }),
    ] {
        let site = stubborn().await;
        site.fake.inject(Fault::says(200, body.clone()).on("POST", FLUSH));
        site.fence.fence(&host(), EPOCH).await.unwrap();
        let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("may still let it in"), "{body}: {error}");
        site.fake.heal();
        let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
        assert!(!site.fake.allows(old(), "kafka01").may_write(), "{body}");
    }
}

/// Whoever runs out of time in the middle of a look says what the last one lacked.
#[tokio::test]
async fn what_was_missing_is_told_though_the_last_look_did_not_end() {
    let site = stubborn().await;
    site.fake.inject(Fault::lying_success().on("POST", FLUSH));
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let host = host();
    let proving = site.fence.prove(&host, EPOCH);
    let late = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        site.fake.inject(Fault::slow(Duration::from_secs(60)).on("GET", LOCKS));
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! { outcome = proving => outcome, () = late => unreachable!() };
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("may still let it in"), "{error}");
}

#[tokio::test]
async fn a_cache_that_cannot_be_read_proves_nothing() {
    let gone = |message: &str, code: &str| json!({ "error": { "code": code, "message": message } });
    for (status, body) in [
        (200, json!({})),
        (200, json!({ "num_records": 0, "cli_output": "Error: show failed on some nodes" })),
        (403, gone("not authorized for that command", "6")),
        (404, gone("API not found", "3")),
        (500, gone("RPC: Timed out", "65541")),
        (400, gone("Invalid operation", "13115")),
    ] {
        let site = stubborn().await;
        site.fence.fence(&host(), EPOCH).await.unwrap();
        site.fake.inject(Fault::says(status, body.clone()).on("GET", CACHE));
        let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("the access cache cannot be read back"), "{body}: {error}");
    }
}

/// A zombie knocks all the time, and is denied: an entry that says so is no reason to wait.
#[tokio::test]
async fn an_entry_that_denies_is_a_proof_and_one_that_does_not_say_is_none() {
    let mut site = site(1).await;
    site.fence.timeout = Duration::from_millis(1_500);
    site.fence.fence(&host(), EPOCH).await.unwrap();
    assert!(!site.fake.allows(old(), "kafka01").may_write());
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    // A release that does not know the field. The entry is flushed, and comes back.
    site.fake.world(|world| world.does_not_know("polarity"));
    site.fake.inject(Fault::lying_success().on("POST", FLUSH));
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("may still let it in"), "{error}");
    site.fake.heal();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
}

/// A host may mount by several addresses, and be remembered by the last of them.
#[tokio::test]
async fn each_address_of_a_host_is_read_back() {
    let other: IpAddr = [10, 0, 0, 103].into();
    let site = with(1, |config| {
        config.addresses.push(other);
        config.timeout = Duration::from_millis(1_500);
    });
    let site = site.await;
    site.set_rule(1, json!({ "clients": [{ "match": "10.0.0.101" }, { "match": "10.0.0.103" }] }));
    assert!(site.fake.allows(other, "kafka01").may_write());
    site.fake.inject(Fault::bites_late(Duration::from_secs(600)).on("PATCH", POLICIES));
    site.fake.inject(Fault::lying_success().on("POST", FLUSH));
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(
        error.contains("may still let it in") && site.fake.allows(other, "kafka01").may_write(),
        "{error}"
    );
    site.fake.heal();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(!site.fake.allows(other, "kafka01").may_write());
}

#[tokio::test]
async fn a_node_is_left_out_only_when_its_partner_has_taken_over() {
    for (state, proven) in
        [("taken_over", true), ("waiting_for_giveback", true), ("down", false), ("unknown", false)]
    {
        let mut site = site(1).await;
        site.fence.timeout = Duration::from_millis(1_500);
        site.fence.fence(&host(), EPOCH).await.unwrap();
        site.fake.world(|world| {
            world.update(Table::Nodes, &[("name", "node-02")], json!({ "state": state }));
            // Its interface goes with its storage.
            let away = json!({ "location": { "node": { "name": "node-01" }, "is_home": false } });
            world.update(Table::Interfaces, &[("name", "lif2")], away);
        });
        let outcome = site.fence.prove(&host(), EPOCH).await;
        assert_eq!(outcome.is_ok(), proven, "{state}: {outcome:?}");
    }
    // An account of an SVM sees its LIFs, and no node.
    let site = stubborn().await;
    assert!(
        !site.fence.check(&host()).await.unwrap().to_string().contains("does not see the cluster's nodes")
    );
    site.works();
    site.fake.world(|world| world.deny("admin", NODES));
    let checked = site.fence.check(&host()).await.unwrap();
    assert!(checked.to_string().contains("does not see the cluster's nodes"), "{checked:?}");
    site.works();
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(proof.note.to_string().contains("read back on node-01, node-02"), "{:?}", proof.note);
    assert!(proof.note.details["not_proven"].contains("without an interface of the SVM"), "{:?}", proof.note);
    assert!(!site.fake.allows(old(), "kafka01").may_write());
}

#[tokio::test]
async fn ontaps_own_evaluation_may_speak_against_a_proof_and_is_no_condition() {
    let row = |policy: &str, access: &str| json!({ "path": "/kafka01", "policy": policy, "access": access });
    let answer = |row: serde_json::Value| json!({ "num_records": 1, "records": [row] });
    for (body, words) in [
        (answer(row("broker-1", "read_write")), Some("check-access says")),
        (answer(row("broker-1", "read")), Some("check-access says")),
        (answer(row("broker-1", "denied")), None),
        (answer(row("other", "read_write")), None),
        (answer(json!({ "path": "/kafka01", "policy": "broker-1" })), None),
        (json!({}), None),
    ] {
        let mut site = site(1).await;
        site.fence.timeout = Duration::from_millis(1_500);
        site.fence.fence(&host(), EPOCH).await.unwrap();
        site.fake.inject(Fault::says(200, body.clone()).on("GET", CHECK));
        match (site.fence.prove(&host(), EPOCH).await, words) {
            (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{body}: {error}"),
            (Ok(_), None) => {}
            (outcome, _) => panic!("{body}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn a_clone_is_denied_with_its_source_and_a_qtree_of_its_own_is_refused() {
    let site = site(2).await;
    site.works();
    site.fake.world(|world| world.volume("svm1", "backup_clone", "broker-2"));
    let checked = site.fence.check(&host()).await.unwrap();
    assert!(checked.to_string().contains("broker-2 is that of backup_clone too"), "{checked:?}");
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert_eq!(site.rules_admit(old()), 0);

    let qtrees = super::site(1).await;
    qtrees.fake.world(|world| {
        world.policy("svm1", "wide", &[&["0.0.0.0/0"]]);
        world.qtree("kafka01", "same", "broker-1");
    });
    qtrees.fence.check(&host()).await.unwrap();
    qtrees.fake.world(|world| world.qtree("kafka01", "logs", "wide"));
    qtrees.refused("the qtree logs of kafka01 has the export policy wide of its own").await;

    let unseen = super::site(1).await;
    unseen.fake.world(|world| world.deny("admin", QTREES));
    unseen.refused("cannot be seen").await;
}

#[tokio::test]
async fn what_others_have_in_their_policies_is_not_ours_to_understand() {
    let site = site(1).await;
    site.fake.world(|world| {
        world.policy("svm1", "strange", &[&["10.0.0.9"]]);
        let mut row = world.find(Table::Rules, &[("policy.name", "strange")]).unwrap().clone();
        world.remove(Table::Rules, &[("policy.name", "strange")]);
        row.as_object_mut().unwrap().remove("index");
        row["clients"] = json!([{}]);
        world.insert(Table::Rules, row);
        world.update(Table::Policies, &[("name", "strange")], json!({ "are_rules_truncated": true }));
    });
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    // In ours it is.
    site.set_rule(1, json!({ "clients": [{}] }));
    site.refused("the rules of export policy broker-1 cannot be read").await;
}

/// Constituents are ours by either spelling, and a volume that merely has such a name is not.
#[tokio::test]
async fn locks_of_constituents_count_and_those_of_a_volume_of_that_name_do_not() {
    let mut site = site(1).await;
    site.fence.timeout = Duration::from_secs(5);
    site.fake.world(|world| {
        world.show_locks(LockFace::Dash);
        world.policy("svm1", "neighbour", &[&["10.0.0.77"]]);
        world.volume("svm1", "kafka01_0002", "neighbour");
        world.lock("kafka01_0002", [10, 0, 0, 77].into(), "theirs");
        for constituent in ["kafka01__0001", "kafka01_0001"] {
            let uuid = world.lock("kafka01", old(), constituent);
            world.update(Table::Locks, &[("uuid", &uuid)], json!({ "volume": { "name": constituent } }));
        }
    });
    let note = site.fence.fence(&host(), EPOCH).await.unwrap();
    assert_eq!(note.details["locks_broken"], "4");
    let left = site.fake.world(|world| world.rows(Table::Locks).to_vec());
    assert!(left.len() == 1 && left[0]["volume"]["name"] == "kafka01_0002", "{left:?}");
    let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
}

#[tokio::test]
async fn silence_in_a_list_that_stands_still_is_none() {
    let site = with(1, |config| {
        config.proof = ProofLevel::Idle;
        (config.idle_for, config.timeout) = (Duration::from_secs(1), Duration::from_secs(4));
    });
    let site = site.await;
    let neighbour = site.neighbour();
    site.fence.check(&host()).await.unwrap();
    site.fake.world(World::list_stands_still);
    let error = site.fence.check(&host()).await.unwrap_err().to_string();
    assert!(error.contains("would never be met") && error.contains("writes it every 480 min"), "{error}");
    site.fence.fence(&host(), EPOCH).await.unwrap();
    let error = site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string();
    assert!(error.contains("silence in it is none"), "{error}");
    neighbour.abort();
}
