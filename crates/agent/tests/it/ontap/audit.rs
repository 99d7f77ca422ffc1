//! `ontap audit`.

use fakes::ontap::{Fault, Table, World};
use serde_json::json;

use super::bed::{Bed, good_world, odd};

const AUDIT: [&str; 4] = ["ontap", "audit", "--output", "json"];

fn labels(odd: &[(String, String)]) -> Vec<&str> {
    odd.iter().map(|(label, _)| label.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_system_passes_in_eight_reads() {
    let bed = Bed::new(good_world()).await;
    let said = bed.run(&AUDIT).await;
    assert_eq!((said.code, odd(&said.json()).len()), (Some(0), 0), "{said:?}");
    let requests = bed.fake.requests();
    assert_eq!((requests.len(), bed.writes().len()), (8, 0), "{requests:#?}");
    let text = bed.run(&["ontap", "audit"]).await;
    assert!(text.out.contains("ok    preserve_unlink (svm1, broker 1, kafka01)"), "{text:?}");
    assert!(text.out.trim_end().ends_with("0 warnings, 0 failed, 0 not visible"), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_tells_what_efficiency_saves() {
    let bed = Bed::new(good_world()).await;
    let report = bed.run(&AUDIT).await.json();
    let of = |check: &str| {
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["check"] == check)
            .unwrap()
            .clone()
    };
    // The fake's aggregate has the numbers of TR-4947, taken as GiB.
    let aggregate = of("aggregate_space");
    assert_eq!(aggregate["logical_bytes"], 451_293_446_144_u64, "{report}");
    let physical = aggregate["physical_bytes"].as_u64().unwrap();
    assert!(physical.abs_diff(302_475_000_000) < 10_000_000, "{report}");
    let told = bed.run(&["ontap", "audit"]).await.out;
    assert!(told.contains("; 420.3 GiB logical in 281.7 GiB physical, 1.49:1"), "{told}");
    let said = bed.run(&["ontap", "efficiency"]).await;
    assert!(said.code == Some(2) && said.err.contains("part of `ontap audit` now"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untouched_system_fails_with_the_lines_that_mend_it() {
    let mut world = World::small();
    world.volume("svm1", "kafka01", "default");
    world.volume("svm1", "other", "default");
    world.release(9, 11, 1);
    let pnfs = json!({ "protocol": { "v41_features": { "pnfs_enabled": true } } });
    world.update(Table::NfsServices, &[("svm.name", "svm1")], pnfs);
    world.update(Table::Interfaces, &[("name", "lif1")], json!({ "location": { "is_home": false } }));
    let bed = Bed::new(world).await;
    let said = bed.run(&AUDIT).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let found = odd(&said.json());
    let expected = [
        "release: fail",
        "pnfs: fail",
        "transfer_size: warn",
        // The fake's SVM has no root volume.
        "root_export: not_visible",
        "lif_home: warn",
        "export_policy: fail",
        "export_rule: fail",
        "snapshot_policy: warn",
        "efficiency: warn",
    ];
    assert!(expected.iter().all(|label| labels(&found).contains(label)), "{found:#?}");
    let text = bed.run(&["ontap", "audit"]).await;
    for line in [
        "vserver nfs modify -vserver svm1 -v4.1-pnfs disabled",
        "network interface revert -vserver svm1 -lif lif1",
        "volume modify -vserver svm1 -volume kafka01 -snapshot-policy none",
        "see: docs/ontap.md#pnfs",
    ] {
        assert!(text.out.contains(line), "{line}: {}", text.out);
    }
    assert!(bed.writes().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_role_denies_is_not_visible_and_nothing_else_suffers() {
    let mut world = good_world();
    for path in ["/api/storage/aggregates", "/api/private/cli", "/api/cluster"] {
        world.deny("admin", path);
    }
    let bed = Bed::new(world).await;
    let said = bed.run(&AUDIT).await;
    let found = odd(&said.json());
    assert_eq!(said.code, Some(0), "{found:#?}");
    let hidden = ["release", "aggregate_space", "connections", "preserve_unlink"];
    let hidden: Vec<String> = hidden.iter().map(|check| format!("{check}: not_visible")).collect();
    assert_eq!(labels(&found), hidden, "{found:#?}");
    assert!(found.iter().all(|(_, says)| says.contains("permission denied")), "{found:#?}");
    assert_eq!(said.json()["not_visible"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_told_with_its_reason_and_the_rest_is_judged() {
    let bed = Bed::new(good_world()).await;
    bed.fake.inject(Fault::partial(1).on("GET", "/api/storage/volumes"));
    let said = bed.run(&AUDIT).await;
    let found = odd(&said.json());
    assert_eq!(said.code, Some(1), "{found:#?}");
    assert!(
        found.iter().all(|(label, _)| label.ends_with(": fail") || label.ends_with(": not_visible")),
        "{found:#?}"
    );
    assert!(
        found.iter().any(|(label, says)| label == "space: fail" && says.contains("in part only")),
        "{found:#?}"
    );
    let passed = said.json()["passed"].as_u64().unwrap();
    assert!(passed >= 6, "{passed} passed: {said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_an_error_and_not_a_missing_right() {
    let bed = Bed::new(good_world()).await;
    std::fs::write(bed.path("password"), "wrong").unwrap();
    let said = bed.run(&AUDIT).await;
    let report = said.json();
    assert_eq!(
        (said.code, &report["passed"], &report["not_visible"]),
        (Some(1), &json!(0), &json!(0)),
        "{said:?}"
    );
    assert!(odd(&report).iter().all(|(_, says)| says.contains("login refused")), "{said:?}");
    // More of them might lock the account.
    assert_eq!(bed.fake.requests().len(), 1);
    std::fs::remove_file(bed.path("password")).unwrap();
    let said = bed.run(&AUDIT).await;
    assert!(odd(&said.json()).iter().all(|(_, says)| says.contains("could not be read")), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn preserve_unlink_may_need_advanced_privilege() {
    let mut world = good_world();
    world.needs_advanced("is_preserve_unlink_enabled");
    let bed = Bed::new(world).await;
    let said = bed.run(&AUDIT).await;
    assert_eq!((said.code, odd(&said.json()).len(), bed.fake.requests().len()), (Some(0), 0, 9), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_a_grant_is_told_as_not_covered() {
    let bed = Bed::new(good_world()).await;
    bed.edit(|text| {
        let other = text[text.find("[[broker]]").unwrap()..text.find("[broker.storage]").unwrap()].to_owned();
        let other = other
            .replace("id = 1", "id = 2")
            .replace("127.0.0.1:2", "127.0.0.1:3")
            .replace("/logs", "/logs2");
        // Who acts is not allowed such a broker at all.
        let text = text.replace("mode = \"auto\"", "mode = \"observe\"");
        format!("{text}\n{other}[broker.storage]\ndriver = \"mounted\"\nrequire_mount = false\n")
    });
    let said = bed.run(&AUDIT).await;
    let found = odd(&said.json());
    assert_eq!((said.code, labels(&found)), (Some(0), vec!["coverage: warn"]), "{said:?}");
    assert_eq!(said.json()["findings"][0]["about"]["broker"], 2);
}
