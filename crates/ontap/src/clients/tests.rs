use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use fakes::ontap::{Fake, Fault, Table, World};
use ontap_client::Fingerprint;
use serde_json::json;
use tempfile::NamedTempFile;

use super::*;
use recovery::model::Now;
use recovery::observe::{Board, observe};

const VOLUMES: [&str; 3] = ["kafka01", "kafka02", "kafka03"];

/// A clock that is set by hand.
#[derive(Default)]
struct Hand(AtomicU64);

#[async_trait]
impl Clock for Hand {
    fn now(&self) -> Now {
        let secs = self.0.load(Ordering::Relaxed);
        let wall = Timestamp::from_second(1_800_000_000 + i64::try_from(secs).unwrap()).unwrap();
        Now { mono: Moment(Duration::from_secs(secs)), wall }
    }

    async fn sleep(&self, _: Duration) {}
}

/// Three volumes, of brokers 1, 2 and 3, each used from a host of its own.
struct Site {
    fake: Fake,
    signal: OntapClients,
    clock: Hand,
    counts: BTreeMap<&'static str, u64>,
    _password: NamedTempFile,
}

async fn site() -> Site {
    let mut world = World::small();
    for (at, volume) in VOLUMES.into_iter().enumerate() {
        world.policy("svm1", volume, &[&["10.0.0.101"]]);
        world.volume("svm1", volume, volume);
        world.remove(Table::ConnectedClients, &[("volume.name", volume)]);
        world.connect(volume, [10, 0, 0, 101 + u8::try_from(at).unwrap()].into(), Duration::ZERO);
    }
    let fake = Fake::https(world).await.unwrap();
    let mut password = NamedTempFile::new().unwrap();
    password.write_all(b"secret\n").unwrap();
    let pin = Fingerprint::of(fake.certificate_der().unwrap());
    let (url, file) = (fake.url(), password.path());
    let ontap = format!("url = \"{url}\"\nuser = \"admin\"\npassword_file = {file:?}\npin = \"{pin}\"");
    let ontap: OntapConfig = toml::from_str(&ontap).unwrap();
    let watched = |(id, volume): (i32, &str)| Watched {
        broker: BrokerId(id),
        ontap: ontap.clone(),
        svm: "svm1".to_owned(),
        volumes: vec![volume.to_owned()],
    };
    let watched: Vec<Watched> = (1..).zip(VOLUMES).map(watched).collect();
    let hosts = [([10, 0, 0, 101].into(), "kafka-1".into()), ([10, 0, 0, 102].into(), "kafka-2".into())];
    let config: OntapClientsConfig = toml::from_str("").unwrap();
    let [signal] = <[OntapClients; 1]>::try_from(config.build(&watched, &hosts.into()).unwrap()).unwrap();
    // A busy machine may take longer; what a slow answer means is tested by itself.
    let signal =
        OntapClients { config: OntapClientsConfig { deadline: Duration::from_secs(20), ..config }, ..signal };
    Site { fake, signal, clock: Hand::default(), counts: BTreeMap::new(), _password: password }
}

impl Site {
    /// Two seconds later: `written` were written to, nothing else happened, and the counters were dated anew.
    async fn look(&mut self, written: &[&str]) -> Vec<Fact> {
        self.look_at(written, 2, "ok").await
    }

    async fn look_at(&mut self, written: &[&str], dated: u64, status: &str) -> Vec<Fact> {
        let now = self.clock.0.fetch_add(2, Ordering::Relaxed) + dated;
        let at = Timestamp::from_second(1_800_000_000 + i64::try_from(now).unwrap()).unwrap();
        for volume in VOLUMES {
            let count = self.counts.entry(volume).or_insert(1_000);
            *count += u64::from(written.contains(&volume)) * 3;
            let count = *count;
            self.fake.world(|world| world.counted(volume, [7, count, 7], at, status));
        }
        self.signal.look(&self.clock).await.into_iter().map(|evidence| evidence.fact).collect()
    }

    /// As many looks as cover `secs`; the last one is returned.
    async fn looks(&mut self, written: &[&str], secs: usize) -> Vec<Fact> {
        let mut last = Vec::new();
        for _ in 0..secs / 2 {
            last = self.look(written).await;
        }
        last
    }
}

fn usage(facts: &[Fact], id: i32) -> VolumeUse {
    let of = |fact: &Fact| match fact {
        Fact::Volumes { broker, usage } if *broker == BrokerId(id) => Some(*usage),
        _ => None,
    };
    facts.iter().find_map(of).unwrap()
}

fn stalled(facts: &[Fact]) -> Option<usize> {
    facts.iter().find_map(|fact| match fact {
        Fact::Storage { brokers, outcome: CanaryOutcome::Stalled, .. } => Some(brokers.len()),
        _ => None,
    })
}

#[tokio::test]
async fn a_client_that_stopped_is_told_from_a_storage_that_stalls() {
    let mut site = site().await;
    let facts = site.look(&VOLUMES).await;
    assert_eq!(usage(&facts, 1).quiet, None);
    assert_eq!(site.fake.requests().len(), 2);
    site.looks(&VOLUMES, 10).await;
    // One client stops.
    let facts = site.looks(&VOLUMES[1..], 14).await;
    assert!(!usage(&facts, 1).stopped, "{facts:?}");
    let facts = site.looks(&VOLUMES[1..], 2).await;
    let (one, other) = (usage(&facts, 1), usage(&facts, 2));
    assert_eq!((one.stopped, one.unwritten, one.quiet), (true, Some(secs(16)), Some(secs(16))));
    assert_eq!((other.stopped, other.unwritten), (false, Some(secs(0))));
    assert!(one.client_idle.is_some());
    assert_eq!(stalled(&facts), None);
    // The others do as well: it is the storage, by those who went together.
    assert_eq!(stalled(&site.looks(&[], 14).await), None);
    let facts = site.looks(&[], 2).await;
    assert_eq!(stalled(&facts), Some(3));
    assert!(!usage(&facts, 1).stopped && !usage(&facts, 2).stopped, "{facts:?}");
    // One operation of one of them is enough.
    assert_eq!(stalled(&site.look(&["kafka03"]).await), None);
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[tokio::test]
async fn one_host_or_one_broker_in_use_is_not_all() {
    // Nobody was ever seen to use the others.
    let mut lone = site().await;
    lone.looks(&VOLUMES[..1], 6).await;
    assert_eq!(stalled(&lone.looks(&[], 40).await), None);
    // One was stopped long ago.
    let mut old = site().await;
    old.looks(&VOLUMES[..2], 6).await;
    old.looks(&VOLUMES[..1], 40).await;
    assert_eq!(stalled(&old.looks(&[], 40).await), None);
    // All brokers are on one host.
    let mut same = site().await;
    same.fake.world(|world| world.update(Table::ConnectedClients, &[], json!({ "client_ip": "10.0.0.101" })));
    same.looks(&VOLUMES, 6).await;
    assert_eq!(stalled(&same.looks(&[], 40).await), None);
}

#[tokio::test]
async fn counters_that_restart_or_are_not_vouched_for_show_no_silence() {
    let mut site = site().await;
    site.looks(&VOLUMES, 6).await;
    site.looks(&[], 14).await;
    // The node has restarted.
    site.counts = VOLUMES.map(|volume| (volume, 5)).into();
    let facts = site.look(&[]).await;
    assert_eq!((usage(&facts, 1).quiet, stalled(&facts)), (Some(secs(0)), None));
    // What ONTAP dates no later, or calls no `ok`, is no reading.
    for _ in 0..20 {
        let facts = site.look_at(&[], 0, "partial_no_data").await;
        assert_eq!((usage(&facts, 1).quiet, stalled(&facts)), (Some(secs(0)), None));
    }
    let before = i64::try_from(site.clock.0.load(Ordering::Relaxed)).unwrap();
    let still = Timestamp::from_second(1_800_000_000 + before - 60).unwrap();
    for _ in 0..20 {
        site.clock.0.fetch_add(2, Ordering::Relaxed);
        let count = site.counts["kafka01"];
        site.fake.world(|world| VOLUMES.iter().for_each(|v| world.counted(v, [7, count, 7], still, "ok")));
        let facts = site.signal.look(&site.clock).await;
        let facts: Vec<Fact> = facts.into_iter().map(|evidence| evidence.fact).collect();
        assert_eq!(stalled(&facts), None);
    }
}

#[tokio::test]
async fn a_storage_that_cannot_be_asked_blinds_the_signal_alone() {
    let mut site = site().await;
    site.looks(&VOLUMES, 6).await;
    site.looks(&[], 30).await;
    site.signal.config.deadline = Duration::from_millis(300);
    for fault in [Fault::slow(secs(60)), Fault::status(503), Fault::denied(), Fault::login_expired()] {
        site.fake.inject(fault);
        let facts = site.look(&[]).await;
        assert!(matches!(facts.as_slice(), [Fact::Blind { .. }]), "{facts:?}");
        let mut board = Board::default();
        let now = site.clock.now();
        for fact in facts {
            board.record(Evidence { signal: SIGNAL, at: now.mono, fact });
        }
        let seen = observe(&board, &[BrokerId(1)].into(), secs(3), now);
        assert_eq!((seen.brokers[&BrokerId(1)].storage.as_ref(), seen.blind.len()), (None, 1));
        site.fake.heal();
        // A login that was refused is not tried again at once.
        site.clock.0.fetch_add(600, Ordering::Relaxed);
    }
    site.signal.config.deadline = secs(20);
    let facts = site.look(&VOLUMES).await;
    assert_eq!(usage(&facts, 1).quiet, Some(secs(0)));
    // A volume that is not there, or of which nothing is told.
    site.fake.world(|world| world.remove(Table::Volumes, &[("name", "kafka02")]));
    let facts = site.signal.look(&site.clock).await;
    let [.., Evidence { fact: Fact::Blind { why }, .. }] = facts.as_slice() else { panic!("{facts:?}") };
    assert_eq!(why, "svm1: ONTAP shows no counters of kafka02");
    let facts: Vec<Fact> = facts.into_iter().map(|evidence| evidence.fact).collect();
    assert_eq!(
        (usage(&facts, 1).quiet, usage(&facts, 2).quiet),
        (Some(secs(0)), None),
        "the others are seen"
    );
}

#[tokio::test]
async fn counters_without_a_date_are_not_seen_and_blind_no_other_volume() {
    let mut site = site().await;
    site.looks(&VOLUMES, 6).await;
    for _ in 0..20 {
        site.clock.0.fetch_add(2, Ordering::Relaxed);
        site.fake.world(|world| {
            world.update(
                Table::Volumes,
                &[("name", "kafka01")],
                serde_json::json!({ "statistics": { "timestamp": null } }),
            );
        });
        let facts = site.signal.look(&site.clock).await;
        let facts: Vec<Fact> = facts.into_iter().map(|evidence| evidence.fact).collect();
        assert_eq!((usage(&facts, 1).quiet, usage(&facts, 1).unwritten), (None, None), "{facts:?}");
        assert!(
            matches!(facts.last(), Some(Fact::Blind { why }) if why.ends_with("counters of kafka01")),
            "{facts:?}"
        );
        assert_eq!(stalled(&facts), None);
    }
}

#[test]
fn whose_an_entry_is_is_told_by_volume_and_constituent() {
    assert!(is_of("kafka01", "kafka01") && is_of("kafka01__0003", "kafka01"));
    assert!(!is_of("kafka012", "kafka01") && !is_of("kafka0", "kafka01"));
}

#[test]
fn bad_values_are_told_at_once() {
    let config: OntapClientsConfig =
        toml::from_str("period = \"0s\"\ndeadline = \"2s\"\nquiet_after = \"4s\"").unwrap();
    let problems = config.problems(secs(3));
    let keys: Vec<&str> =
        problems.iter().filter_map(|text| text.split_once(": ")).map(|(key, _)| key).collect();
    assert_eq!(keys, ["period", "quiet_after", "deadline"]);
    assert!(toml::from_str::<OntapClientsConfig>("").unwrap().problems(secs(3)).is_empty());
}

/// An interface that has moved is seen within 10 s, and how long ONTAP grants no lock counts down from there.
#[tokio::test]
async fn what_moved_is_told_with_what_is_left_of_the_grace_period() {
    let mut site = site().await;
    site.fake.world(|world| {
        world.update(Table::NfsServices, &[], json!({ "protocol": { "v4_grace_seconds": 20 } }));
        world.ha_pair("node-08", "node-09");
        world.aggregate("aggr8", "node-08");
    });
    let grace = |facts: &[Fact]| (1..=3).map(|id| usage(facts, id).grace).max().flatten();
    assert_eq!(grace(&site.looks(&VOLUMES, 30).await), None, "nothing has moved since it looks");
    site.fake.world(|world| {
        world.update(Table::Nodes, &[("name", "node-08")], json!({ "state": "taken_over" }));
        world.update(Table::Aggregates, &[("name", "aggr8")], json!({ "node": { "name": "node-09" } }));
    });
    assert_eq!(grace(&site.looks(&VOLUMES, 12).await), None, "what moved serves none of the volumes");
    site.fake.world(|world| {
        let away = json!({ "location": { "node": { "name": "node-02" }, "is_home": false } });
        world.update(Table::Interfaces, &[("name", "lif1")], away);
    });
    let told = grace(&site.looks(&VOLUMES, 12).await).unwrap();
    assert!(told > Duration::from_secs(5) && told <= Duration::from_secs(20), "{told:?}");
    assert_eq!(grace(&site.looks(&VOLUMES, 30).await), None, "it is over, and nothing has moved since");
}

fn blind(facts: &[Fact]) -> &str {
    let [Fact::Blind { why }] = facts else { panic!("{facts:?}") };
    why
}

/// Many wrong logins might lock the account, and the fence with it.
#[tokio::test]
async fn a_refused_login_is_tried_less_and_less_often_and_at_once_with_another_secret() {
    for refused in [Fault::login_expired(), Fault::denied()] {
        let mut site = site().await;
        site.fake.inject(refused);
        let facts = site.look(&[]).await;
        assert!(blind(&facts).contains("Tried again in 30.0 s"), "{facts:?}");
        assert_eq!(site.fake.requests().len(), 1, "one login at a time");
        for (secs, tries) in [(28, 1), (4, 2), (56, 2), (4, 3), (3600, 10)] {
            site.looks(&[], secs).await;
            assert_eq!(site.fake.requests().len(), tries, "after {secs} s more");
        }
        // Whatever stands in it: it may be the right one now.
        std::fs::write(site._password.path(), b"another\n").unwrap();
        let facts = site.look(&[]).await;
        assert!(blind(&facts).contains("Tried again in 30.0 s"), "{facts:?}");
        assert_eq!(site.fake.requests().len(), 11);
        std::fs::write(site._password.path(), b"secret\n").unwrap();
        site.fake.heal();
        site.look(&VOLUMES).await;
        let facts = site.look(&VOLUMES).await;
        assert_eq!(usage(&facts, 1).quiet, Some(secs(0)), "{facts:?}");
    }
}

/// A password that was changed while the signal is at work: what is sent side by side then is sent once.
#[tokio::test]
async fn a_login_that_expires_at_work_is_tried_once_in_thirty_seconds() {
    let mut site = site().await;
    site.looks(&VOLUMES, 6).await;
    site.fake.inject(Fault::login_expired());
    site.fake.forget_requests();
    site.look(&VOLUMES).await;
    let sent = site.fake.requests().len();
    assert!(sent <= 7, "{sent}");
    site.looks(&VOLUMES, 26).await;
    assert_eq!(site.fake.requests().len(), sent);
    // Anything else keeps its pace.
    site.fake.heal();
    site.looks(&VOLUMES, 6).await;
    site.fake.inject(Fault::denied());
    site.fake.forget_requests();
    let facts = site.look(&VOLUMES).await;
    assert!(!blind(&facts).contains("Tried again in"), "{facts:?}");
    site.fake.heal();
    assert_eq!(usage(&site.look(&VOLUMES).await, 1).quiet, Some(secs(0)));
}

/// The login counts as none before its first answer, whichever of two questions is asked first.
#[tokio::test]
async fn nothing_is_asked_beside_a_login_that_has_proven_nothing() {
    for _ in 0..10 {
        let mut site = site().await;
        site.look(&VOLUMES).await;
        let asked: Vec<String> = site.fake.requests().into_iter().map(|request| request.path).collect();
        assert_eq!(asked, ["/api/storage/volumes", "/api/protocols/nfs/connected-clients"]);
    }
}
