//! `ontap efficiency`.

use fakes::ontap::Fault;

use super::bed::{Bed, good_world};

const EFFICIENCY: [&str; 4] = ["ontap", "efficiency", "--output", "json"];

#[tokio::test(flavor = "multi_thread")]
async fn aggregates_and_volumes_are_measured_and_nothing_is_changed() {
    let bed = Bed::new(good_world()).await;
    let said = bed.run(&EFFICIENCY).await;
    let report = said.json();
    assert_eq!((said.code, bed.writes().len()), (Some(0), 0), "{said:?}");
    let total = &report["aggregates"][0]["total"];
    // The fake's aggregate has the numbers of TR-4947, taken as GiB.
    assert_eq!(
        (&total["logical_bytes"], &total["ratio"]),
        (&451_293_446_144_u64.into(), &1.492.into()),
        "{report}"
    );
    assert_eq!(report["volumes"][0]["volume"], "kafka01");
    let text = bed.run(&["ontap", "efficiency"]).await.out;
    assert!(text.contains("420.3 GiB logical in 281.7 GiB physical, 1.49:1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_that_is_not_shown_is_no_failure_and_an_error_is() {
    let bed = Bed::new(good_world()).await;
    bed.fake.inject(Fault::denied().on("GET", "/api/storage/aggregates"));
    let said = bed.run(&EFFICIENCY).await;
    assert_eq!((said.code, &said.json()["missing"][0]["not_visible"]), (Some(0), &true.into()), "{said:?}");
    bed.fake.heal();
    bed.fake.inject(Fault::login_expired());
    let said = bed.run(&EFFICIENCY).await;
    assert_eq!((said.code, &said.json()["missing"][0]["not_visible"]), (Some(1), &false.into()), "{said:?}");
}
