//! The discovery against the strict FSx.

use serde_json::{Value, json};

use super::*;
use crate::bed::{World, fault, nowhere, policy, policy_without};

const SVM: &str = "svm-0123456789abcdef0";
const OTHER: &str = "svm-0123456789abcdef1";
const SYSTEM: &str = "fs-0123456789abcdef0";

fn laid(more: Value) -> Option<World> {
    let svm = |name: &str| json!({"system": SYSTEM, "name": name, "tags": {"Name": name, "of": "both"}, "management": format!("{name}.fs-0.fsx.amazonaws.com")});
    let mut laid = json!({
        "policy": policy(),
        "systems": {SYSTEM: {"kind": "ONTAP", "management": "management.fs-0.fsx.amazonaws.com"}},
        "svms": {SVM: svm("kafka"), OTHER: svm("other")},
        "page": 1,
    });
    for (name, value) in more.as_object().unwrap() {
        laid[name] = value.clone();
    }
    World::lay(laid)
}

fn named(world: &World, which: Value) -> FsxConfig {
    let service = world.config();
    let config: FsxConfig = serde_json::from_value(which).unwrap();
    FsxConfig { region: service.region, endpoint: service.endpoint, ..config }
}

async fn asked(world: &World, which: Value) -> Result<String, String> {
    let config = named(world, which);
    assert_eq!(config.problems(), Vec::<String>::new());
    let sdk = sdk_config(&world.config(), Some(world.key())).await.unwrap();
    config.ask(&Client::new(&sdk)).await
}

#[tokio::test]
async fn an_endpoint_is_found_by_id_by_tag_and_by_file_system() {
    let Some(world) = laid(json!({})) else { return };
    for (which, found) in [
        (json!({"svm": SVM}), "kafka.fs-0.fsx.amazonaws.com"),
        (json!({"tag": "Name=other"}), "other.fs-0.fsx.amazonaws.com"),
        (json!({"file_system": SYSTEM}), "management.fs-0.fsx.amazonaws.com"),
    ] {
        assert_eq!(asked(&world, which.clone()).await.as_deref(), Ok(found), "{which}");
    }
    // Pages of one each: the second was read too.
    assert_eq!(world.calls("DescribeStorageVirtualMachines").len(), 3);
}

#[tokio::test]
async fn what_is_not_there_is_told_with_what_to_do() {
    let none = "svm-fffffffffffffffff";
    let windows = json!({"kind": "WINDOWS"});
    let Some(world) = laid(json!({
        "systems": {SYSTEM: windows},
        "svms": {SVM: {"system": SYSTEM, "name": "kafka", "lifecycle": "CREATING", "tags": {"of": "both"}},
                 OTHER: {"system": SYSTEM, "name": "other", "tags": {"of": "both"}, "management": "other.fs-0.fsx.amazonaws.com"}},
    })) else {
        return;
    };
    for (which, told) in [
        (json!({"svm": none}), "there is no such SVM there: correct ontap.fsx.svm or ontap.fsx.region"),
        (json!({"svm": SVM}), "FSx tells no management endpoint of svm-0123456789abcdef0 yet"),
        (json!({"tag": "Name=kafka"}), "has the tag Name=kafka"),
        (json!({"tag": "of=both"}), "set ontap.fsx.svm instead"),
        (json!({"file_system": SYSTEM}), "is no file system of FSx for ONTAP"),
        (json!({"file_system": "fs-fffffffffffffffff"}), "there is no such file system there"),
    ] {
        let why = asked(&world, which.clone()).await.unwrap_err();
        assert!(why.contains(told), "{which}: {why}");
    }
}

#[tokio::test]
async fn one_that_is_deleted_is_not_taken_for_the_one_with_the_tag() {
    let Some(world) = laid(json!({
        "svms": {SVM: {"system": SYSTEM, "name": "kafka", "tags": {"of": "both"}, "management": "new.fs-0.fsx.amazonaws.com"},
                 OTHER: {"system": SYSTEM, "name": "old", "lifecycle": "DELETING", "tags": {"of": "both"},
                         "management": "old.fs-0.fsx.amazonaws.com"}},
    })) else {
        return;
    };
    assert_eq!(asked(&world, json!({"tag": "of=both"})).await.as_deref(), Ok("new.fs-0.fsx.amazonaws.com"));
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    for (which, action) in [
        (json!({"svm": SVM}), "fsx:DescribeStorageVirtualMachines"),
        (json!({"file_system": SYSTEM}), "fsx:DescribeFileSystems"),
    ] {
        let Some(world) = laid(json!({"policy": policy_without(action)})) else { return };
        let why = asked(&world, which).await.unwrap_err();
        assert!(why.contains(&format!("do not allow {action}; add it to the policy")), "{why}");
    }
}

#[tokio::test]
async fn a_busy_api_is_asked_again() {
    let Some(world) = laid(json!({})) else { return };
    let more = json!({"code": "ThrottlingException"});
    world.change(&fault("DescribeStorageVirtualMachines", "refuse", 2, more));
    assert_eq!(asked(&world, json!({"svm": SVM})).await.as_deref(), Ok("kafka.fs-0.fsx.amazonaws.com"));
    assert_eq!(world.calls("DescribeStorageVirtualMachines").len(), 3);
}

#[tokio::test]
async fn an_api_that_is_not_there_is_told_within_the_limit() {
    let service = nowhere();
    let config = FsxConfig {
        svm: Some(SVM.to_owned()),
        region: service.region,
        endpoint: service.endpoint,
        ..FsxConfig::default()
    };
    let why = config.management(Duration::from_secs(20)).await.unwrap_err().to_string();
    assert!(why.starts_with("FSx in eu-central-1 (at "), "{why}");
}

#[test]
fn every_bad_value_is_told() {
    let problems = |text: &str| toml::from_str::<FsxConfig>(text).unwrap().problems().join("; ");
    assert_eq!(problems(""), "fsx: give one of svm, tag and file_system");
    assert_eq!(problems("svm = \"a\"\ntag = \"b=c\""), "fsx: give one of svm, tag and file_system");
    assert!(problems("svm = \"kafka\"").starts_with("fsx.svm: `kafka` is not the id"));
    assert!(problems("file_system = \"svm-0123456789abcdef0\"").starts_with("fsx.file_system: `svm-"));
    assert!(problems("tag = \"kafka\"").starts_with("fsx.tag: `kafka` is not key=value"));
    let both = problems("svm = \"kafka\"\nregion = \"eu central\"");
    assert!(both.contains("fsx.region: `eu central`") && both.contains("fsx.svm"), "{both}");
}
