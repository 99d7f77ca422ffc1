//! A host that mounts the scratch volume and writes.

use super::*;

/// A host that writes, is fenced, is refused, and is let in again: everything was seen.
#[tokio::test]
async fn a_host_that_mounts_it_settles_what_is_only_tried_without_one() {
    let site = site().await;
    let findings = site.attempt_on(&host(&site.fake)).await;
    let open: Vec<_> = findings.iter().filter(|finding| finding.verdict != Verdict::Holds).collect();
    assert!(open.is_empty() && site.is_clean(), "{open:?}");
    for held in [Assumption::Mounted, Assumption::RuleBites, Assumption::NoEntry, Assumption::Flush] {
        assert_eq!(verdict(&findings, held), Some(Verdict::Holds), "{held:?}");
    }
    let flush = &findings.iter().find(|finding| finding.assumption == Assumption::Flush).unwrap().found;
    assert!(flush.ends_with("the entry on node-01, node-02 is gone"), "{flush}");
}

/// Rules that bite late, a flush that lies, and a cache that says of everybody that there is no entry.
#[tokio::test]
async fn a_storage_that_lies_twice_is_found_out_by_a_host_that_writes() {
    let site = site().await;
    site.fake.inject(Fault::bites_late(Duration::from_secs(3600)).on("PATCH", RULES));
    site.fake.inject(Fault::says(200, json!({ "num_records": 1 })).on("POST", CLI));
    let none = json!({ "error": { "code": "4", "message": "entry doesn't exist" } });
    site.fake.inject(Fault::says(404, none).on("GET", CACHE));
    let findings = site.attempt_on(&host(&site.fake)).await;
    assert_eq!(verdict(&findings, Assumption::RuleBites), Some(Verdict::Differs), "{findings:?}");
    assert_eq!(verdict(&findings, Assumption::CacheByNode), Some(Verdict::Differs), "{findings:?}");
    assert_ne!(verdict(&findings, Assumption::NoEntry), Some(Verdict::Holds), "{findings:?}");
    assert!(site.is_clean());
}

/// A host that fails to write is proof of nothing if it failed before, fails ever after, or is not refused.
#[tokio::test]
async fn a_write_that_fails_is_proof_of_nothing_without_a_control() {
    let site = site().await;
    let cannot = State { writes: false, ..host(&site.fake) };
    let dies = State { dies: true, ..host(&site.fake) };
    let hangs = State { error: Errno::TIMEDOUT, ..host(&site.fake) };
    let breaks = State { error: Errno::IO, ..host(&site.fake) };
    for (state, differs) in [
        (&cannot, vec![Assumption::Mounted]),
        (&dies, vec![Assumption::LetInAgain]),
        (&hangs, vec![]),
        (&breaks, vec![]),
    ] {
        let findings = site.attempt_on(state).await;
        let bites = verdict(&findings, Assumption::RuleBites);
        assert_eq!(bites, Some(Verdict::NotSeen), "{:?}: {findings:?}", state.error);
        assert_eq!(differing(&findings), differs, "{findings:?}");
        assert!(site.is_clean());
    }
}

/// A mount that was asked for and cannot be had is no success.
#[tokio::test]
async fn a_mount_that_fails_differs() {
    let site = site().await;
    let findings = site.attempt_on(&State { mounts: false, ..host(&site.fake) }).await;
    assert_eq!(differing(&findings), [Assumption::Mounted], "{findings:?}");
    assert_eq!(verdict(&findings, Assumption::RuleBites), Some(Verdict::NotSeen), "{findings:?}");
}
