//! `ontap provision`.

use std::net::IpAddr;

use fakes::ontap::{Fault, Table, World};
use serde_json::{Value, json};

use super::bed::{Bed, good_world};
use crate::common::Said;

/// Two brokers with two volumes each.
const WANTED: [&str; 12] = [
    "ontap",
    "provision",
    "--aggregate",
    "aggr1",
    "--broker",
    "1=10.0.0.101",
    "--broker",
    "2=10.0.0.102,10.0.1.102",
    "--volumes-per-broker",
    "2",
    "--size",
    "100GiB",
];

const VOLUMES: [&str; 4] = ["kafka1_1", "kafka1_2", "kafka2_1", "kafka2_2"];

/// With the login of the configuration, as a program reads it.
async fn provision(bed: &Bed, more: &[&str]) -> Said {
    bed.fake.forget_requests();
    bed.run(&[&WANTED[..], &["--output", "json"], more].concat()).await
}

fn states(report: &Value, state: &str) -> Vec<String> {
    let items = report["plan"].as_array().unwrap().iter();
    items
        .filter(|item| item["state"] == state)
        .map(|item| item["what"].as_str().unwrap().to_owned())
        .collect()
}

/// Everything is as it was asked for.
fn assert_complete(bed: &Bed) {
    bed.fake.world(|world| {
        for name in VOLUMES {
            let row =
                world.find(Table::Volumes, &[("name", name)]).unwrap_or_else(|| panic!("{name} is missing"));
            let policy = &name[..6];
            assert_eq!(row["nas"]["path"], format!("/{name}"));
            assert_eq!(row["nas"]["export_policy"]["name"], policy);
            assert_eq!(
                (&row["snapshot_policy"]["name"], &row["size"]),
                (&json!("none"), &json!(100_u64 << 30))
            );
            assert_eq!(row["~cli"]["is_preserve_unlink_enabled"], true);
            let rules =
                world.rows(Table::Rules).iter().filter(|rule| rule["policy"]["name"] == policy).count();
            assert_eq!(rules, 1, "{policy}");
        }
        let may_write = |client: [u8; 4], volume| world.would_allow(IpAddr::from(client), volume).may_write();
        assert!(may_write([10, 0, 0, 101], "kafka1_2") && !may_write([10, 0, 0, 102], "kafka1_2"));
        assert!(may_write([10, 0, 1, 102], "kafka2_1") && !may_write([10, 0, 0, 101], "kafka2_1"));
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_changes_nothing_and_applying_it_twice_changes_once() {
    let bed = Bed::new(World::small()).await;
    let plan = provision(&bed, &[]).await;
    assert_eq!((plan.code, bed.writes()), (Some(0), Vec::new()), "{plan:?}");
    assert_eq!(states(&plan.json(), "create").len(), 2 + 4 * 3, "{plan:?}");
    assert_eq!(plan.json()["complete"], false);

    let first = provision(&bed, &["--apply", "--yes"]).await;
    assert_eq!((first.code, first.json()["done"].as_array().unwrap().len()), (Some(0), 14), "{first:?}");
    assert_complete(&bed);
    let toml = first.json()["toml"].as_str().unwrap().to_owned();
    assert!(
        toml.contains("source = \"10.0.0.50:/kafka2_2\"") && toml.contains("[broker.storage.grant]"),
        "{toml}"
    );

    let second = provision(&bed, &["--apply", "--yes"]).await;
    assert_eq!((second.code, bed.writes()), (Some(0), Vec::new()), "{second:?}");
    assert_eq!((&second.json()["complete"], &second.json()["done"]), (&json!(true), &json!([])));
    let text = bed.run(&WANTED).await;
    assert!(text.out.contains("nothing to do") && text.out.contains("[[broker.storage.mount]]"), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_where_nobody_can_answer() {
    let bed = Bed::new(World::small()).await;
    let said = provision(&bed, &["--apply"]).await;
    assert_eq!((said.code, bed.writes()), (Some(2), Vec::new()), "{said:?}");
    assert!(said.err.contains("add --yes"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_half_way_is_completed_by_repeating_it() {
    let (volumes, policies) = ("/api/storage/volumes", "/api/protocols/nfs/export-policies");
    let cases = [
        Fault::job_fails(917_534, "no room").on("POST", volumes).first(1),
        Fault::status(503).on("POST", volumes).first(1),
        // Tried as admin, and then with advanced privilege.
        Fault::denied().on("PATCH", "/api/private/cli/volume").first(2),
        Fault::lying_success().on("PATCH", "/api/private/cli/volume").first(1),
        Fault::lying_success().on("PATCH", volumes).first(1),
        Fault::lying_success().on("POST", policies).first(1),
        Fault::lying_success().on("POST", volumes).first(1),
        Fault::dropped_reply().on("POST", volumes).first(1),
        Fault::dropped_reply().on("POST", policies).first(1),
    ];
    for fault in cases {
        let bed = Bed::new(World::small()).await;
        bed.fake.inject(fault.clone());
        let first = provision(&bed, &["--apply", "--yes"]).await;
        bed.fake.heal();
        let report = first.json();
        assert_eq!((first.code, &report["complete"]), (Some(1), &json!(false)), "{fault:?}: {first:?}");
        assert!(report["failed"].is_string(), "{fault:?}: {first:?}");
        let second = provision(&bed, &["--apply", "--yes"]).await;
        assert_eq!(second.code, Some(0), "{fault:?}: {second:?}");
        assert_complete(&bed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_completed_and_grown_and_never_shrunk() {
    let mut world = World::small();
    world.policy("svm1", "kafka1", &[&["10.0.0.101"]]);
    world.policy("svm1", "kafka2", &[&["10.0.0.102"]]);
    for (volume, policy) in [("kafka1_1", "kafka1"), ("kafka1_2", "kafka1"), ("kafka2_1", "kafka2")] {
        world.volume("svm1", volume, policy);
    }
    world.update(
        Table::Volumes,
        &[("name", "kafka1_1")],
        json!({ "size": 50_u64 << 30, "nas": { "path": "" } }),
    );
    let bed = Bed::new(world).await;
    let said = provision(&bed, &["--apply", "--yes"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_complete(&bed);
    bed.fake
        .world(|world| world.update(Table::Volumes, &[("name", "kafka1_1")], json!({ "size": 1_u64 << 40 })));
    let larger = provision(&bed, &["--apply", "--yes"]).await;
    assert_eq!((larger.code, bed.writes()), (Some(0), Vec::new()), "{larger:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_anywhere_keeps_everything_from_being_done() {
    let mut world = World::small();
    // Somebody else's volume has the policy of broker 2, and the rule of broker 1 lets a stranger in.
    world.policy("svm1", "kafka1", &[&["10.0.0.101", "10.0.0.200"]]);
    world.policy("svm1", "kafka2", &[&["10.0.0.102"]]);
    world.volume("svm1", "reports", "kafka2");
    let bed = Bed::new(world).await;
    for more in [&[][..], &["--apply", "--yes"]] {
        let said = provision(&bed, more).await;
        assert_eq!((said.code, bed.writes()), (Some(1), Vec::new()), "{said:?}");
        assert_eq!(states(&said.json(), "conflict"), ["export policy kafka1", "export policy kafka2"]);
        assert!(said.json()["toml"].is_null());
    }
    let text = bed.run(&WANTED).await;
    assert!(text.out.contains("its rule lets 10.0.0.200 in"), "{text:?}");
    assert!(text.out.contains("it is that of reports too"), "{text:?}");
    assert!(text.out.contains("2 in the way: nothing is done until they are gone"), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_hidden_is_in_the_way_where_it_is_changed_and_noted_where_not() {
    let mut world = World::small();
    for path in ["/api/storage/aggregates", "/api/private/cli/network", "/api/network"] {
        world.deny("admin", path);
    }
    let bed = Bed::new(world).await;
    let said = provision(&bed, &["--apply", "--yes"]).await;
    assert_eq!(
        (said.code, states(&said.json(), "note")),
        (Some(0), vec!["aggregates".to_owned()]),
        "{said:?}"
    );
    assert!(said.json()["toml"].as_str().unwrap().contains("<address of an NFS LIF>"));
    assert_complete(&bed);

    let mut world = World::small();
    world.deny("admin", "/api/private/cli/volume");
    let bed = Bed::new(world).await;
    let said = provision(&bed, &["--apply", "--yes"]).await;
    assert_eq!((said.code, bed.writes()), (Some(1), Vec::new()), "{said:?}");
    assert_eq!(states(&said.json(), "conflict"), ["preserve-unlink"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn flexgroups_are_made_on_every_aggregate() {
    let mut world = World::small();
    world.aggregate("aggr2", "node-02");
    let bed = Bed::new(world).await;
    let more = ["--aggregate", "aggr2", "--style", "flexgroup", "--apply", "--yes"];
    let said = provision(&bed, &more).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_complete(&bed);
    bed.fake.world(|world| {
        let row = world.find(Table::Volumes, &[("name", "kafka1_1")]).unwrap();
        assert_eq!((&row["style"], row["aggregates"].as_array().unwrap().len()), (&json!("flexgroup"), 2));
    });
    // Asked for as FlexVols now: they are not what is wanted, and are not touched.
    let said = provision(&bed, &["--apply", "--yes"]).await;
    assert_eq!((said.code, bed.writes()), (Some(1), Vec::new()), "{said:?}");
    assert_eq!(states(&said.json(), "conflict").len(), 4, "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_by_options_needs_no_configuration() {
    let bed = Bed::new(World::small()).await;
    let (url, pin) = (bed.fake.url(), super::bed::pin(&bed.fake));
    let password = bed.path("password").display().to_string();
    bed.edit(|_| "this is not a configuration".to_owned());
    let login = ["--url", &url, "--user", "admin", "--password-file", &password, "--pin", &pin];
    let said = provision(&bed, &[&login[..], &["--svm", "svm1"]].concat()).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let toml = said.json()["toml"].as_str().unwrap().to_owned();
    assert!(toml.contains(&pin) && !toml.contains("secret"), "{toml}");
    let missing = provision(&bed, &login).await;
    assert!(missing.code == Some(2) && missing.err.contains("--svm: is missing"), "{missing:?}");
    let wrong = provision(&bed, &[&login[..], &["--svm", "svm9"]].concat()).await;
    assert_eq!(
        (wrong.code, states(&wrong.json(), "conflict")),
        (Some(1), vec!["NFS service of svm9".to_owned()])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_told_at_once_with_what_to_do() {
    let bed = Bed::new(good_world()).await;
    let said = provision(&bed, &["--name", "kafka-{broker}", "--policy", "default"]).await;
    assert_eq!((said.code, bed.fake.requests().len()), (Some(2), 0), "{said:?}");
    for part in
        ["--name: makes `kafka-1` twice", "`kafka-1` cannot be the name", "--policy: makes `default` twice"]
    {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
    for (bad, says) in
        [("1", "has no `=`"), ("1=10.0.0.0/24", "no single IP address"), ("x=10.0.0.1", "no node id")]
    {
        let said =
            bed.run(&["ontap", "provision", "--aggregate", "a", "--size", "1GiB", "--broker", bad]).await;
        assert!(said.code == Some(2) && said.err.contains(says), "{said:?}");
    }
    bed.edit(|text| text.replace("[broker.storage.grant]", "[broker.storage.grants]"));
    assert_eq!(provision(&bed, &[]).await.code, Some(2));
}
