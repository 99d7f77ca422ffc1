use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use fakes::ontap::{Fake, Fault, Table, World};
use ontap_client::Fingerprint;
use serde_json::json;
use tempfile::NamedTempFile;

use super::*;
use crate::granted::Granted;
use crate::snapshotted::Snapshotted;
use crate::storage::{self, StorageConfig};
use recovery::model::HeldLock;
use recovery::ports::Storage;

const VOLUMES: [&str; 2] = ["kafka01", "kafka02"];
const BROKER: BrokerId = BrokerId(1);
const EPOCH: Epoch = Epoch(7);
const NAME: &str = "understudy-broker-1-epoch-7";

/// Storage that is there at once.
struct Mounts;

#[async_trait]
impl Storage for Mounts {
    fn name(&self) -> &'static str {
        "mounts"
    }

    async fn attach(&self, _: Epoch) -> Result<Note, StepError> {
        Ok(Note::new("mounted"))
    }

    async fn release(&self) -> Result<Note, StepError> {
        Ok(Note::new("unmounted"))
    }

    async fn check(&self) -> Result<Note, StepError> {
        Ok(Note::new("free"))
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
        Ok(Vec::new())
    }

    async fn break_locks(&self) -> Result<Note, StepError> {
        Ok(Note::new("none"))
    }

    async fn withdraw(&self) -> Result<Note, StepError> {
        self.release().await
    }

    async fn unlinks(&self) -> Result<Note, StepError> {
        Ok(Note::new("gone"))
    }
}

struct Site {
    fake: Arc<Fake>,
    storage: Snapshotted,
    _password: NamedTempFile,
}

/// Two volumes whose rules let nobody in, as after a fence; `keys` are those of the section.
async fn site(keys: &str) -> Site {
    let mut world = World::small();
    for volume in VOLUMES {
        world.policy("svm1", volume, &[&["192.0.2.1"]]);
        world.volume("svm1", volume, volume);
    }
    let fake = Arc::new(Fake::https(world).await.unwrap());
    let mut password = NamedTempFile::new().unwrap();
    password.write_all(b"secret\n").unwrap();
    let pin = Fingerprint::of(fake.certificate_der().unwrap());
    let grant = format!(
        "svm = \"svm1\"\nvolumes = {VOLUMES:?}\naddresses = [\"10.0.0.102\"]\n[ontap]\nurl = \"{}\"\nuser = \"admin\"\n\
         password_file = {:?}\npin = \"{pin}\"",
        fake.url(),
        password.path()
    );
    let grant: OntapGrantConfig = toml::from_str(&grant).unwrap();
    let snapshots: SnapshotConfig = toml::from_str(keys).unwrap();
    let snapshots = snapshots.build(BROKER, Some(&grant)).unwrap();
    let inner = Arc::new(Granted { grant: grant.build(&[]).unwrap(), inner: Arc::new(Mounts) });
    Site { fake, storage: Snapshotted { snapshots, inner }, _password: password }
}

/// The names of a volume's snapshots, sorted.
fn names(fake: &Fake, volume: &str) -> Vec<String> {
    fake.world(|world| {
        let of = world.rows(Table::Snapshots).iter().filter(|row| row["volume"]["name"] == volume);
        let mut names: Vec<String> = of.map(|row| row["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    })
}

fn put(fake: &Fake, volume: &str, name: &str, state: &str) {
    fake.world(|world| {
        let uuid = world.find(Table::Volumes, &[("name", volume)]).unwrap()["uuid"].clone();
        let own = format!("{volume}-{name}");
        let row = json!({
            "uuid": own, "name": name, "volume": { "name": volume, "uuid": uuid }, "state": state,
            "create_time": "2026-01-01T00:00:00+00:00",
        });
        world.insert(Table::Snapshots, row);
    });
}

fn is_let_in(fake: &Fake) -> bool {
    let new = [10, 0, 0, 102].into();
    VOLUMES.iter().all(|volume| fake.world(|world| world.would_allow(new, volume).may_write()))
}

#[tokio::test]
async fn it_is_taken_before_anybody_is_let_in_and_once_only() {
    let site = site("").await;
    let note = site.storage.attach(EPOCH).await.unwrap();
    assert!(note.text.starts_with("snapshot understudy-broker-1-epoch-7 of kafka01, kafka02 was taken in "));
    assert!(note.text.ends_with("alone; mounted"), "{}", note.text);
    assert_eq!(note.details["snapshot"], NAME);
    assert!(note.details["snapshot_of"].contains("kafka02 (taken at 20"), "{:?}", note.details);
    assert!(!note.details.contains_key("snapshot_missing"));
    assert!(is_let_in(&site.fake));
    let requests = site.fake.requests();
    let taken = requests.iter().rposition(|r| r.method == "POST" && r.path.ends_with("/snapshots")).unwrap();
    let granted = requests.iter().position(|r| r.method == "PATCH").unwrap();
    assert!(taken < granted, "{requests:#?}");

    // Again, as after a crash.
    site.fake.forget_requests();
    let note = site.storage.attach(EPOCH).await.unwrap();
    assert!(
        note.text.starts_with("snapshot understudy-broker-1-epoch-7 of kafka01, kafka02 was there already")
    );
    assert!(site.fake.requests().iter().all(|request| request.method == "GET"));
    assert_eq!(VOLUMES.map(|volume| names(&site.fake, volume).len()), [1, 1]);
    // Half of it was lost.
    site.fake.world(|world| world.remove(Table::Snapshots, &[("volume.name", "kafka02")]));
    let note = site.storage.attach(EPOCH).await.unwrap();
    assert!(
        note.text.contains("of kafka02 was taken in ") && note.text.contains("of kafka01 was there already")
    );
}

#[tokio::test]
async fn the_newest_are_kept_and_nobody_elses_are_touched() {
    let site = site("keep = 2").await;
    let strangers = [
        "hourly.2026-01-01_0005",
        "understudy-broker-10-epoch-1",
        "understudy-broker-1-epoch-",
        "understudy-broker-1-epoch-01",
        "understudy-broker-1-epoch-1-copy",
        "my-understudy-broker-1-epoch-1",
    ];
    for stranger in strangers {
        put(&site.fake, "kafka01", stranger, "valid");
    }
    // Of epoch 9: a newer run is under way somewhere, and this one is late.
    for epoch in [1, 2, 5, 6, 9] {
        put(&site.fake, "kafka01", &format!("understudy-broker-1-epoch-{epoch}"), "valid");
    }
    put(&site.fake, "kafka02", "understudy-broker-1-epoch-3", "valid");
    let note = site.storage.attach(EPOCH).await.unwrap();
    let mut kept: Vec<String> = strangers.map(str::to_owned).into();
    kept.extend([7, 9].map(|epoch| format!("understudy-broker-1-epoch-{epoch}")));
    kept.sort();
    assert_eq!(names(&site.fake, "kafka01"), kept);
    assert_eq!(names(&site.fake, "kafka02"), ["understudy-broker-1-epoch-3", NAME]);
    assert!(note.details["snapshots_deleted"].contains("understudy-broker-1-epoch-6 of kafka01"));
    assert!(note.warnings.is_empty(), "{note}");
}

#[tokio::test]
async fn what_cannot_be_deleted_is_said_and_fails_nothing() {
    for fault in [Fault::denied(), Fault::job_fails(1_638_555, "locked"), Fault::slow(PRUNE_LIMIT * 4)] {
        let site = site("keep = 1\nrequired = true").await;
        put(&site.fake, "kafka01", "understudy-broker-1-epoch-3", "valid");
        site.fake.inject(fault.on("DELETE", "/api/storage"));
        let note = site.storage.attach(EPOCH).await.unwrap();
        assert!(
            note.to_string()
                .contains("WARNING: old snapshots were not deleted (understudy-broker-1-epoch-3 of")
        );
        assert!(note.details.contains_key("snapshots_not_deleted") && is_let_in(&site.fake));
    }
}

#[tokio::test]
async fn without_a_snapshot_a_takeover_goes_on_or_not_as_is_configured() {
    let faults = || {
        [
            (Fault::lying_success(), "ONTAP said it was done, but it is not there when read back"),
            (Fault::status(503), "503"),
            (Fault::denied(), "permission denied"),
            // The act and its request have the same limit: either may be what is told.
            (Fault::slow(Duration::from_secs(60)), "not confirmed within 3.0 s"),
            (Fault::job_fails(65_552, "RPC failure"), "RPC failure"),
        ]
    };
    for (fault, says) in faults() {
        let site = site("timeout = \"3s\"").await;
        site.fake.inject(fault.on("POST", "/api/storage"));
        let begun = Instant::now();
        let note = site.storage.attach(EPOCH).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(15), "{says}");
        let told = note.to_string();
        assert!(told.contains("WARNING: there is no snapshot understudy-broker-1-epoch-7 of kafka01: "));
        assert!(told.contains(says), "{says}: {told}");
        assert!(note.details["snapshot_missing"].contains("kafka02") && is_let_in(&site.fake));
        assert!(!note.details.contains_key("snapshot"), "{:?}", note.details);
    }
    for (fault, says) in faults() {
        let site = site("timeout = \"3s\"\nrequired = true").await;
        site.fake.inject(fault.on("POST", "/api/storage"));
        let error = chain(&site.storage.attach(EPOCH).await.unwrap_err());
        assert!(error.contains(says) && error.contains("`required = true`"), "{says}: {error}");
        assert!(!is_let_in(&site.fake) && site.fake.requests().iter().all(|r| r.method != "PATCH"));
        // Nothing is left behind that keeps the next try from working.
        site.fake.heal();
        site.storage.attach(EPOCH).await.unwrap();
    }
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_again() {
    let site = site("required = true").await;
    site.fake.inject(Fault::dropped_reply().on("POST", "/api/storage"));
    let note = site.storage.attach(EPOCH).await.unwrap();
    assert!(note.text.contains("of kafka01, kafka02 was taken in "), "{}", note.text);
    assert_eq!(VOLUMES.map(|volume| names(&site.fake, volume).len()), [1, 1]);
}

#[tokio::test]
async fn half_a_snapshot_of_a_flexgroup_is_none() {
    let site = site("required = true\ntimeout = \"1s\"").await;
    let volume = [("name", "kafka02")];
    site.fake.world(|world| world.update(Table::Volumes, &volume, json!({ "style": "flexgroup" })));
    for (state, says) in
        [("partial", "ONTAP calls it `partial`"), ("unknown", "does not say whether it is valid")]
    {
        put(&site.fake, "kafka02", NAME, state);
        let error = site.storage.attach(EPOCH).await.unwrap_err().to_string();
        assert!(error.contains("kafka02: ") && error.contains(says), "{error}");
        assert!(!error.contains("kafka01") && !is_let_in(&site.fake), "{error}");
        site.fake.world(|world| world.remove(Table::Snapshots, &[("volume.name", "kafka02")]));
    }
    // It says nothing of a FlexVol's, and has to of a FlexGroup's.
    put(&site.fake, "kafka02", NAME, "valid");
    site.fake.world(|world| {
        world.update(Table::Snapshots, &[("name", NAME)], json!({ "state": null }));
    });
    assert!(site.storage.attach(EPOCH).await.is_err());
    site.fake.world(|world| world.update(Table::Snapshots, &[("name", NAME)], json!({ "state": "valid" })));
    site.storage.attach(EPOCH).await.unwrap();
}

#[test]
fn what_cannot_be_used_does_not_push_out_what_can() {
    let volume = json!({ "uuid": "v", "name": "kafka01", "style": "flexgroup" });
    let volume: Volume = serde_json::from_value(volume).unwrap();
    let all = [(7, "valid"), (6, "partial"), (5, "valid"), (4, "partial"), (3, "valid")];
    let all: Vec<Snapshot> = all
        .iter()
        .map(|(epoch, state)| {
            let name = name(BROKER, Epoch(*epoch));
            serde_json::from_value(json!({ "uuid": name, "name": name, "state": state })).unwrap()
        })
        .collect();
    let old = |present, keep| -> Vec<u64> {
        let old = surplus(&all, &volume, BROKER, Epoch(present), keep);
        old.iter().map(|snapshot| epoch_of(BROKER, &snapshot.name).unwrap().0).collect()
    };
    assert_eq!(old(7, 2), [4, 3]);
    assert_eq!(old(7, 1), [6, 5, 4, 3]);
    assert_eq!(old(7, 3), [0; 0]);
    // The ledger began anew: what was taken now is kept, and what is of later epochs.
    assert_eq!(old(3, 1), [0; 0]);
}

#[tokio::test]
async fn a_check_tells_what_would_go_wrong() {
    let site = site("").await;
    put(&site.fake, "kafka01", NAME, "valid");
    put(&site.fake, "kafka01", "hourly", "valid");
    let text = site.storage.check().await.unwrap().to_string();
    assert!(text.contains("snapshots can be taken of kafka01 (1 of ours now; "), "{text}");
    assert!(text.contains("2 are kept") && !text.contains("WARNING"), "{text}");
    assert!(site.fake.requests().iter().all(|request| request.method == "GET"));
    let full = json!({ "space": { "available": 1024, "size": 100_000_000 } });
    site.fake.world(|world| world.update(Table::Volumes, &[("name", "kafka01")], full));
    let text = site.storage.check().await.unwrap().to_string();
    assert!(text.contains("WARNING: what a snapshot keeps may fill kafka01"), "{text}");
    site.fake.world(|world| world.remove(Table::Volumes, &[("name", "kafka02")]));
    let text = site.storage.check().await.map(|note| note.to_string()).unwrap_or_else(|error| chain(&error));
    assert!(text.contains("there is no volume kafka02 in svm1"), "{text}");
    let text = site.storage.snapshots.check().await.unwrap().to_string();
    assert!(text.starts_with("WARNING: a takeover would go on without a snapshot: "), "{text}");
    let strict = Snapshots { required: true, ..site.storage.snapshots };
    assert!(strict.check().await.is_err());
}

const LOGIN: &str = "url = \"https://c\"\nuser = \"u\"\npassword_file = \"/p\"\n";

fn build(text: &str, log_dir: &str) -> Result<(), Vec<String>> {
    let config: StorageConfig = toml::from_str(text).unwrap();
    storage::build(config, BROKER, vec![PathBuf::from(log_dir)], std::path::Path::new("/bin/true")).map(drop)
}

#[test]
fn the_grant_says_it_already() {
    let nfs = |keys: &str| {
        let text = format!(
            "driver = \"nfs\"\n[[mount]]\nsource = \"s:/kafka01\"\ntarget = \"/mnt/b1\"\n[grant]\nsvm = \"svm1\"\n\
             volumes = [\"kafka01\"]\naddresses = [\"10.0.0.102\"]\n[grant.ontap]\n{LOGIN}[snapshot]\n{keys}"
        );
        build(&text, "/mnt/b1")
    };
    assert_eq!(nfs(""), Ok(()));
    assert_eq!(nfs("svm = \"svm1\"\nvolumes = [\"kafka01\"]"), Ok(()));
    let other = nfs("svm = \"svm2\"\nvolumes = [\"kafka01\", \"kafka02\"]\nkeep = 0").unwrap_err();
    let keys: Vec<&str> = other.iter().filter_map(|text| text.split_once(": ")).map(|(key, _)| key).collect();
    assert_eq!(keys, ["snapshot.svm", "snapshot.volumes", "snapshot.keep"], "{other:?}");
}

#[test]
fn without_a_grant_everything_is_named() {
    let mounted = |keys: &str| build(&format!("driver = \"mounted\"\n[snapshot]\n{keys}"), "/mnt/b1");
    let all = format!("svm = \"svm1\"\nvolumes = [\"kafka01\"]\n[snapshot.ontap]\n{LOGIN}");
    assert_eq!(mounted(&all), Ok(()));
    let missing = mounted("timeout = \"0s\"").unwrap_err();
    let keys: Vec<&str> =
        missing.iter().filter_map(|text| text.split_once(": ")).map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        ["snapshot.svm", "snapshot.volumes", "snapshot.timeout", "snapshot.ontap"],
        "{missing:?}"
    );
}
