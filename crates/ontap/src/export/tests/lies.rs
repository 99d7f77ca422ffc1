//! Answers that contradict each other, or are about something else than was asked: what is not sure of one of
//! them is not proven by the other.

use serde_json::Value;

use super::*;

/// A site whose host is fenced, and of which a proof is had unless something is in its way.
async fn fenced() -> Site {
    let mut site = site(1).await;
    site.fence.timeout = Duration::from_millis(1_500);
    site.works();
    site.fence.fence(&host(), EPOCH).await.unwrap();
    site
}

async fn unproven(site: &Site) -> String {
    site.fence.prove(&host(), EPOCH).await.unwrap_err().to_string()
}

fn list(records: Value) -> Value {
    json!({ "num_records": records.as_array().unwrap().len(), "records": records })
}

#[tokio::test]
async fn a_node_that_was_taken_over_has_no_interface_that_is_up() {
    for state in ["taken_over", "waiting_for_giveback", "TAKEN_OVER"] {
        let site = fenced().await;
        site.fake.world(|world| {
            world.update(Table::Nodes, &[("name", "node-02")], json!({ "state": state }));
        });
        let error = unproven(&site).await;
        assert!(error.contains("that the interface lif2 is there"), "{state}: {error}");
        // One that is down there serves nobody.
        site.fake.world(|world| {
            world.update(Table::Interfaces, &[("name", "lif2")], json!({ "state": "down" }));
        });
        let _ = site.fence.prove(&host(), EPOCH).await.unwrap();
    }
}

#[tokio::test]
async fn advice_about_a_node_that_is_down_fits_where_the_interfaces_are() {
    let site = fenced().await;
    let state = json!({ "state": "down" });
    site.fake.world(|world| world.update(Table::Nodes, &[("name", "node-02")], state));
    let checked = site.fence.check(&host()).await.unwrap().to_string();
    assert!(checked.contains("bring it back, or have it taken over"), "{checked}");
    let away = json!({ "location": { "node": { "name": "node-01" }, "is_home": false } });
    site.fake.world(|world| world.update(Table::Interfaces, &[("name", "lif2")], away));
    let checked = site.fence.check(&host()).await.unwrap().to_string();
    let advice = "`network interface modify -vserver svm1 -lif lif2 -home-node NODE -home-port PORT`";
    assert!(checked.contains(advice) && !checked.contains("have it taken over"), "{checked}");
    // Nor is it the account's rights where a node does not answer.
    let site = super::site(1).await;
    let gone = json!({ "error": { "code": "65541", "message": "RPC: Couldn't make connection" } });
    site.fake.inject(Fault::says(500, gone).on("GET", CACHE));
    let error = site.fence.check(&host()).await.unwrap_err().to_string();
    assert!(error.contains("See that the node answers") && !error.contains("Give the account"), "{error}");
}

/// The rules of a policy are in the list of policies, and in a list of their own.
#[tokio::test]
async fn rules_that_read_otherwise_by_themselves_are_not_proven() {
    let site = fenced().await;
    let rule = site.fake.world(|world| world.find(Table::Rules, &[]).unwrap().clone());
    let id = rule["policy"]["id"].as_i64().unwrap();
    let own = format!("{POLICIES}/{id}/rules");
    let mut wide = rule.clone();
    wide["clients"].as_array_mut().unwrap().push(json!({ "match": "10.0.0.101" }));
    let mut second = rule.clone();
    second["index"] = json!(9);
    for records in [json!([wide]), json!([rule, second]), json!([second]), json!([])] {
        site.fake.inject(Fault::says(200, list(records.clone())).on("GET", &own));
        let error = unproven(&site).await;
        assert!(error.contains("broker-1 read otherwise by themselves"), "{records}: {error}");
        let checked = site.fence.check(&host()).await.unwrap().to_string();
        assert!(checked.contains("WARNING: the rules of export policy broker-1 read otherwise"), "{checked}");
        site.fake.heal();
    }
    // That it cannot be read is told, and no reason to refuse.
    for fault in [Fault::denied(), Fault::status(503), Fault::slow(Duration::from_secs(60))] {
        let mut site = fenced().await;
        site.fence.timeout = Duration::from_secs(20);
        site.fake.inject(fault.on("GET", &own));
        let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
        let not = &proof.note.details["not_proven"];
        assert!(not.contains("that the rules read the same by themselves"), "{not}");
    }
    let proof = site.fence.prove(&host(), EPOCH).await.unwrap();
    assert!(!proof.note.details["not_proven"].contains("by themselves"), "{:?}", proof.note);
}

fn without_volume(site: &Site, client: Option<IpAddr>) -> Value {
    let mut row = site.fake.world(|world| world.rows(Table::Locks)[0].clone());
    row.as_object_mut().unwrap().remove("volume");
    row["client_address"] = client.map_or(Value::Null, |client| client.to_string().into());
    row
}

#[tokio::test]
async fn a_lock_without_its_volume_is_broken_where_it_names_the_host_and_told_otherwise() {
    let site = fenced().await;
    site.fake.world(|world| world.lock("kafka01", old(), ".lock"));
    let his = without_volume(&site, Some(old()));
    site.fake.inject(Fault::says(200, list(json!([his]))).on("GET", LOCKS).first(1));
    site.fake.forget_requests();
    let note = site.fence.fence(&host(), EPOCH).await.unwrap();
    assert_eq!(note.details["locks_broken"], "1");
    let looks = site.fake.requests().iter().filter(|r| r.method == "GET" && r.path == LOCKS).count();
    assert_eq!(looks, 2, "it was broken in the first round");

    site.fake.world(|world| world.lock("kafka01", new(), ".lock"));
    let other_svm = |mut row: Value| {
        row["svm"] = Value::Null;
        row
    };
    for row in [without_volume(&site, None), other_svm(without_volume(&site, Some(old())))] {
        site.fake.inject(Fault::says(200, list(json!([row]))).on("GET", LOCKS));
        let told = "1 of them name no volume, and are broken only where they name this host: see `vserver locks show \
                    -vserver svm1";
        let error = site.fence.fence(&host(), EPOCH).await.unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
        let error = unproven(&site).await;
        assert!(error.contains("1 locks may be its own") && error.contains(told), "{error}");
        assert_eq!(site.fake.world(|world| world.rows(Table::Locks).len()), 1, "it was not his");
        site.fake.heal();
    }
}

#[tokio::test]
async fn check_says_that_entries_without_a_polarity_cannot_prove() {
    let site = site(1).await;
    site.works();
    assert!(!site.fence.check(&host()).await.unwrap().to_string().contains("polarity"));
    site.fake.world(|world| world.does_not_know("polarity"));
    let checked = site.fence.check(&host()).await.unwrap().to_string();
    let words =
        "WARNING: an access cache entry on node-01, node-02 does not say whether it lets in (no `polarity`)";
    assert!(checked.contains(words) && checked.contains("cannot be proven to be denied"), "{checked}");
}

/// What is about another node, SVM, policy or volume is no answer to what was asked.
#[tokio::test]
async fn what_is_of_another_place_proves_nothing() {
    let entry = |key: &str, value: &str| {
        let mut row = json!({ "node": "node-01", "vserver": "svm1", "policy": "broker-1", "address": "10.0.0.101",
            "polarity": "negative" });
        row[key] = value.into();
        list(json!([row]))
    };
    for (key, value) in [("node", "node-07"), ("vserver", "svm2"), ("policy", "broker-2")] {
        let site = fenced().await;
        site.fake.inject(Fault::says(200, entry(key, value)).on("GET", CACHE));
        let error = unproven(&site).await;
        assert!(error.contains("cannot be read back") && error.contains(value), "{key}: {error}");
    }
    let svm = json!({ "name": "svm2" });
    for path in [SERVICES, LOCKS, VOLUMES, POLICIES, QTREES, LIFS] {
        let site = fenced().await;
        let row = json!({ "uuid": "u", "id": 1, "name": "n", "svm": svm });
        site.fake.inject(Fault::says(200, list(json!([row]))).on("GET", path));
        let error = chain(&site.fence.prove(&host(), EPOCH).await.unwrap_err());
        assert!(error.contains("a record of svm2, where svm1 was asked for"), "{path}: {error}");
    }
    let site = fenced().await;
    let row = json!({ "uuid": "u", "svm": { "name": "svm1" }, "volume": { "name": "kafka09" } });
    site.fake.inject(Fault::says(200, list(json!([row]))).on("GET", LOCKS));
    let error = chain(&site.fence.prove(&host(), EPOCH).await.unwrap_err());
    assert!(error.contains("a lock in kafka09, which was not asked for"), "{error}");
}

/// "None" beside a complaint, with an odd count or by another word for it: each kind of answer, at each list
/// that a proof is made of.
#[tokio::test]
async fn an_empty_answer_that_is_not_a_plain_one_proves_nothing() {
    let said = |key: &str, value: Value| {
        let mut body = list(json!([]));
        body[key] = value;
        (200, body)
    };
    let gone = |status: u16, message: &str, target: Option<&str>| {
        let mut error = json!({ "code": "4", "message": message });
        if let Some(target) = target {
            error["target"] = target.into();
        }
        (status, json!({ "error": error }))
    };
    let answers = [
        said("cli_output", json!("Error: show failed: cannot reach node-01")),
        said("warnings", json!(["a node did not answer"])),
        said("num_records", json!("none")),
        said("num_records", json!(-1)),
        gone(404, "entry doesn't exist on node-01", None),
        gone(404, "entry doesn't exist", Some("node")),
        gone(500, "entry doesn't exist", None),
    ];
    let cases = answers.iter().flat_map(|answer| [CACHE, LOCKS].map(|path| (answer, path)));
    let all = cases.map(|((status, body), path)| async move {
        let site = faces::stubborn().await;
        site.fence.fence(&host(), EPOCH).await.unwrap();
        site.fake.inject(Fault::says(*status, body.clone()).on("GET", path));
        let proof = site.fence.prove(&host(), EPOCH).await;
        assert!(proof.is_err(), "{body} of {path}: {proof:?}");
    });
    futures_util::future::join_all(all).await;
}
