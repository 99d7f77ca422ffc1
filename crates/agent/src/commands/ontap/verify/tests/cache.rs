//! What the access caches show and what an order to flush them comes to.

use super::*;

/// What an order to flush answers is believed only if it counts something, or an entry was seen to go.
#[tokio::test]
async fn a_flush_holds_only_if_it_counts_or_an_entry_was_seen_to_go() {
    let site = site().await;
    for (answer, said) in [
        (json!({}), Verdict::NotSeen),
        (json!([]), Verdict::NotSeen),
        (json!({ "num_records": 0 }), Verdict::NotSeen),
        (json!({ "cli_output": "Error: command failed" }), Verdict::NotSeen),
        (json!({ "num_records": 1 }), Verdict::Holds),
    ] {
        site.fake.inject(Fault::says(200, answer.clone()).on("POST", CLI));
        let findings = site.attempt().await;
        assert_eq!(verdict(&findings, Assumption::Flush), Some(said), "{answer}: {findings:?}");
        site.fake.heal();
    }
    // The entry that was there stays, whatever is counted.
    site.fake.inject(Fault::bites_late(Duration::from_secs(3600)).on("PATCH", RULES));
    site.fake.inject(Fault::says(200, json!({ "num_records": 1 })).on("POST", CLI));
    let findings = site.attempt_on(&host(&site.fake)).await;
    assert_eq!(verdict(&findings, Assumption::Flush), Some(Verdict::Differs), "{findings:?}");
}

/// An account that sees entries of brokers' hosts need not mount to believe that there is none.
#[tokio::test]
async fn no_entry_holds_once_an_entry_was_shown() {
    let site = site().await;
    let findings = site.run(Run { shown: true, ..Run::default() }).await;
    assert_eq!(verdict(&findings, Assumption::NoEntry), Some(Verdict::Holds), "{findings:?}");
}

/// That no node shows an entry is what an account that is shown none sees as well.
#[tokio::test]
async fn a_cache_that_shows_nothing_never_holds() {
    let none = json!({ "error": { "code": "4", "message": "entry doesn't exist" } });
    for fault in [Fault::says(404, none), Fault::says(200, json!({ "num_records": 0, "records": [] }))] {
        let site = site().await;
        assert!(site.fake.allows([10, 0, 0, 101].into(), "kafka01").may_write());
        site.fake.inject(fault.on("GET", CACHE));
        // It holds locks.
        let findings = site.look().await;
        assert_eq!(differing(&findings), [Assumption::CacheByNode], "{findings:?}");
        // It holds none, and was at work a moment ago.
        site.fake.world(|world| {
            world.remove(Table::Locks, &[]);
            world.touch("kafka01", [10, 0, 0, 101].into());
        });
        let findings = site.look().await;
        assert_eq!(differing(&findings), [Assumption::CacheByNode], "{findings:?}");
        // It was there an hour ago: it may be forgotten by now.
        site.fake.world(|world| {
            world.remove(Table::ConnectedClients, &[]);
            world.connect("kafka01", [10, 0, 0, 101].into(), Duration::from_secs(3600));
        });
        let findings = site.look().await;
        assert_eq!(differing(&findings), [], "{findings:?}");
        assert_eq!(verdict(&findings, Assumption::CacheByNode), Some(Verdict::NotSeen), "{findings:?}");
    }
}

/// A qtree of which ONTAP does not say whose it is may have a policy of its own; and where not even the
/// volume's own is listed, another may be missing too.
#[tokio::test]
async fn qtrees_that_are_not_told_do_not_hold() {
    let of = |qtree: serde_json::Value| {
        Fault::says(200, json!({ "num_records": 1, "records": [qtree] })).on("GET", QTREES)
    };
    let (volume, policy) = (json!({ "name": "kafka01" }), json!({ "name": "kafka01" }));
    for (listed, said) in [
        (json!({ "name": "", "volume": volume, "export_policy": policy }), Verdict::Holds),
        (json!({ "name": "", "volume": volume }), Verdict::Differs),
        (json!({ "name": "", "volume": volume, "export_policy": { "name": "" } }), Verdict::Differs),
        (json!({ "name": "", "export_policy": policy }), Verdict::Differs),
    ] {
        let site = site().await;
        site.fake.inject(of(listed.clone()));
        assert_eq!(verdict(&site.look().await, Assumption::Qtrees), Some(said), "{listed}");
    }
    let site = site().await;
    site.fake.inject(Fault::says(200, json!({ "num_records": 0, "records": [] })).on("GET", QTREES));
    let findings = site.look().await;
    assert_eq!(verdict(&findings, Assumption::Qtrees), Some(Verdict::NotSeen), "{findings:?}");
}

/// The marks of whatever epoch let nobody in, and do not make a rule look open.
#[tokio::test]
async fn no_mark_of_an_epoch_is_taken_for_the_address_that_nobody_has() {
    let site = site().await;
    let marks: Vec<_> = (1..=254).map(|last| json!({ "match": format!("192.0.2.{last}") })).collect();
    site.fake.world(|world| {
        world.update(Table::Rules, &[("policy.name", "kafka01")], json!({ "clients": marks }))
    });
    let findings = site.look().await;
    assert_eq!(verdict(&findings, Assumption::CheckAccess), Some(Verdict::Holds), "{findings:?}");
    assert!(ontap::is_mark(&NOBODY), "and no host has it");
}

/// The wide flush has every client of the SVM asked for anew: nothing that is tried goes that far.
#[tokio::test]
async fn a_trial_never_flushes_what_is_remembered_of_others() {
    let site = site().await;
    assert!(site.fake.allows([10, 0, 0, 101].into(), "kafka01").may_write());
    let unknown = json!({ "error": { "code": "262179", "message": "is not a recognized command" } });
    site.fake.inject(Fault::says(400, unknown).on("POST", &format!("{CACHE}/flush")));
    let findings = site.attempt().await;
    assert_eq!(verdict(&findings, Assumption::Flush), Some(Verdict::Differs), "{findings:?}");
    let wide = format!("{CLI}/cache/flush");
    let requests = site.fake.requests();
    assert!(requests.iter().any(|request| request.path.starts_with(CACHE)), "{requests:?}");
    assert!(!requests.iter().any(|request| request.path.starts_with(&wide)), "{requests:?}");
}
