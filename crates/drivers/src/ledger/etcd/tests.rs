//! The contract on a real cluster, and what only etcd has: members that die, leases, alarms, logins, a past.

mod cluster;

use std::sync::Arc;

use serde_json::json;

use self::cluster::{Cluster, Wire, must_be_installed};
use super::super::LedgerConfig;
use super::*;
use fakes::ledger::contract::{append, claim, contract, decision, done, ended, started};
use fakes::ledger::faults::{Fill, Rig, survives_a_full_disk, survives_an_outage, survives_torn_writes};
use recovery::model::{Distrust, Succession};
use recovery::ports::chain;

const TIMEOUT: Duration = Duration::from_secs(4);
const LEASE: Duration = Duration::from_secs(3);

fn config(endpoints: Vec<String>) -> EtcdLedgerConfig {
    let json = json!({ "endpoints": endpoints, "timeout": "4s" });
    serde_json::from_value(json).unwrap()
}

/// With a lease so short that tests need not wait for it.
fn ledger(endpoints: Vec<String>) -> EtcdLedger {
    EtcdLedger { lease: LEASE, ..EtcdLedger::new(&config(endpoints)).unwrap() }
}

async fn cluster(more: &[&str]) -> Cluster {
    must_be_installed();
    Cluster::start(more).await
}

#[async_trait]
impl Rig for Cluster {
    fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::new(ledger(self.endpoints()))
    }

    fn deadline(&self) -> Duration {
        TIMEOUT
    }

    async fn down(&self) {
        self.kill(0);
        self.kill(2);
    }

    async fn up(&self) {
        self.restart(0);
        self.restart(2);
    }

    async fn tear(&self, (broker, epoch, host): (i32, u64, &str), entries: &[Entry], percent: u8) {
        let wire = Wire::to(&self.endpoints()[1], percent).await;
        let ledger = ledger(vec![wire.endpoint.clone()]);
        let error = append(&ledger, (broker, epoch, host), entries).await.unwrap_err();
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error:?}");
        assert!(chain(&error).contains("it may have been written or not"), "{}", chain(&error));
        assert_eq!(wire.transactions(), 1, "a write is not repeated");
    }
}

#[async_trait]
impl Fill for Cluster {
    async fn fill(&self) {
        Self::fill(self).await;
    }

    async fn empty(&self) {
        Self::empty(self).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keeps_the_contract() {
    let cluster = cluster(&[]).await;
    // Nothing fails on purpose here, so that the deadline may be a long one: the machine may be busy.
    let patient = EtcdLedgerConfig { timeout: Duration::from_secs(20), ..config(cluster.endpoints()) };
    contract(|| Arc::new(EtcdLedger { lease: LEASE, ..EtcdLedger::new(&patient).unwrap() })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn survives_what_befalls_the_cluster() {
    let cluster = cluster(&[]).await;
    survives_torn_writes(&cluster).await;
    survives_an_outage(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_alarm_leaves_nothing_half_done_and_says_what_to_do() {
    let cluster = cluster(&["--quota-backend-bytes", "8388608"]).await;
    survives_a_full_disk(&cluster).await;
    cluster.fill().await;
    let error = chain(&cluster.ledger().claim(&claim(1, 1, "a")).await.unwrap_err());
    assert!(error.contains("space exceeded; compact and defragment etcd"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_members_of_three_are_enough_and_one_is_not() {
    let cluster = cluster(&[]).await;
    let ledger = ledger(cluster.endpoints());
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    for n in 0..3 {
        cluster.kill(n);
        // The leader may have been this one: then there is a moment without.
        again(|| append(&ledger, (1, 1, "a"), &[Entry::Alive])).await;
        cluster.restart(n);
        again(|| async { ledger.latest(BrokerId(1)).await }).await;
        cluster.wait_for(n).await;
    }
    cluster.kill(0);
    cluster.kill(1);
    let error = chain(&ledger.latest(BrokerId(1)).await.unwrap_err());
    assert!(error.contains("read the newest epoch of broker 1") && error.contains("etcd"), "{error}");
    assert!(error.contains("Connection refused"), "the members that are down are named: {error}");
    cluster.restart(1);
    again(|| append(&ledger, (1, 1, "a"), &[Entry::Alive])).await;
}

async fn again<T, F: Future<Output = Result<T, LedgerError>>>(call: impl Fn() -> F) -> T {
    let begun = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error @ LedgerError::Unavailable { .. }) => {
                assert!(begun.elapsed() < Duration::from_secs(60), "{}", chain(&error));
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_claimant_that_works_is_not_succeeded_and_its_lease_goes_with_its_silence() {
    let cluster = cluster(&[]).await;
    let (old, new) = (ledger(cluster.endpoints()), ledger(cluster.endpoints()));
    let silent = |records| {
        let succeeds = Some(Succession { epoch: Epoch(1), records });
        Claim { succeeds, ..claim(1, 2, "b") }
    };
    old.claim(&claim(1, 1, "a")).await.unwrap();
    let begun = Instant::now();
    let mut records = 1;
    while begun.elapsed() < 2 * LEASE {
        append(&old, (1, 1, "a"), &[Entry::Alive]).await.unwrap();
        records += 1;
        // The successor has seen everything there is, and believes the claimant to be silent.
        let refused = new.claim(&silent(records)).await.unwrap_err();
        assert!(matches!(refused, LedgerError::Taken { .. }), "{refused:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // Another process of the host carries on: it works under a lease of its own.
    append(&ledger(cluster.endpoints()), (1, 1, "a"), &[Entry::Resumed]).await.unwrap();
    assert!(matches!(new.claim(&silent(records + 1)).await, Err(LedgerError::Taken { .. })));
    let begun = Instant::now();
    while new.claim(&silent(records + 1)).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the lease never runs out");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let stale = append(&old, (1, 1, "a"), &[Entry::Alive]).await.unwrap_err();
    assert!(matches!(stale, LedgerError::Superseded { .. }), "{stale:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_append_between_a_successors_look_and_its_claim_voids_the_claim() {
    let cluster = cluster(&[]).await;
    let (old, new) = (ledger(cluster.endpoints()), ledger(cluster.endpoints()));
    old.claim(&claim(1, 1, "a")).await.unwrap();
    let seen = new.seen(BrokerId(1)).await.ok().unwrap();
    append(&old, (1, 1, "a"), &[started(0)]).await.unwrap();
    let head = new.keys.head(BrokerId(1));
    let only_if = vec![Compare::written_at(&head, seen.token)];
    let committed = new.commit(only_if, vec![Change::put(&head, "never")]).await.ok().unwrap();
    assert!(!committed, "etcd itself refuses it");
    assert_eq!(new.latest(BrokerId(1)).await.unwrap().unwrap().records.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_kept_is_bounded_and_long_histories_come_in_pages() {
    let cluster = cluster(&[]).await;
    let ledger = ledger(cluster.endpoints());
    let dir = ledger.keys.decisions_of(BrokerId(1), &"a".into());
    for second in 0..30 {
        ledger.add_value(&dir, &decision("a", second, "x"), 7).await.ok().unwrap();
    }
    let kept = ledger.remembered(BrokerId(1)).await.unwrap();
    let seconds: Vec<i64> = kept.iter().map(|event| event.at.as_second()).collect();
    assert_eq!(seconds, (23..30).collect::<Vec<_>>());

    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    for _ in 0..600 {
        append(&ledger, (1, 1, "a"), &[Entry::Alive]).await.unwrap();
    }
    assert_eq!(ledger.latest(BrokerId(1)).await.unwrap().unwrap().records.len(), 601);
    let too_large = append(&ledger, (1, 1, "a"), &[done(0, WRITE_LIMIT)]).await.unwrap_err();
    assert!(chain(&too_large).contains("one write to etcd may have 1048576"), "{}", chain(&too_large));
    append(&ledger, (1, 1, "a"), &[done(0, WRITE_LIMIT - 2000)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damage_is_reported_with_its_key_and_nothing_is_guessed() {
    let cluster = cluster(&[]).await;
    let ledger = ledger(cluster.endpoints());
    let keys = &ledger.keys;
    let one = BrokerId(1);
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
    append(&ledger, (1, 1, "a"), &[ended()]).await.unwrap();
    let good = |key: &str| {
        let (ledger, key) = (&ledger, key.to_owned());
        async move { ledger.gateway.get(&key).await.unwrap().0.unwrap().value }
    };
    let (batch, head) = (keys.batch(one, Epoch(1), 1), keys.head(one));
    let newer = String::from_utf8(good(&head).await.0).unwrap().replace("\"format\":1", "\"format\":2");
    let damages = [
        (batch.clone(), Change::delete(&batch), "record 1 must be here"),
        (batch.clone(), Change::put(&batch, "{"), "it is not JSON"),
        (batch.clone(), Change::put(&batch, r#"[{"needs":2}]"#), "upgrade this host"),
        (
            keys.batch(one, Epoch(1), 0),
            Change::delete(&keys.batch(one, Epoch(1), 0)),
            "record 0 must be here",
        ),
        (keys.batch(one, Epoch(1), 2), Change::delete(&keys.batch(one, Epoch(1), 2)), "2 of 3 records"),
        (head.clone(), Change::put(&head, &newer), "upgrade this host"),
    ];
    for (key, damage, why) in damages {
        let before = good(&key).await;
        ledger.commit(Vec::new(), vec![damage]).await.ok().unwrap();
        let error = ledger.latest(one).await.unwrap_err();
        let newer = matches!(error, LedgerError::Distrusted { distrust: Distrust::LedgerNewer, .. });
        assert_eq!(newer, why.contains("upgrade"), "{error:?}");
        assert!(newer || matches!(error, LedgerError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
        let refused = ledger.claim(&claim(1, 2, "b")).await.unwrap_err();
        assert_eq!(refused.to_string(), error.to_string());
        let before = String::from_utf8(before.0).unwrap();
        ledger.commit(Vec::new(), vec![Change::put(&key, &before)]).await.ok().unwrap();
    }
    ledger.claim(&claim(1, 2, "b")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_etcd_that_lost_its_past_is_not_an_empty_ledger() {
    let (first, second) = (cluster(&[]).await, cluster(&[]).await);
    let mut ledger = ledger(first.endpoints());
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    // The same addresses, but what answers there now was set up anew.
    let emptied = Gateway::new(second.endpoints(), TIMEOUT, None, None);
    emptied.remembers(&ledger.gateway);
    ledger.gateway = emptied;
    for result in
        [ledger.latest(BrokerId(1)).await.map(drop), ledger.claim(&claim(1, 1, "b")).await.map(drop)]
    {
        let error = result.unwrap_err();
        assert!(matches!(error, LedgerError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains("restored from a backup"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_login_is_renewed_when_it_runs_out_and_a_wrong_one_is_named() {
    let cluster = cluster(&[]).await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "s3cret\n").unwrap();
    let prefix = serde_json::to_value(wire::Bytes::from("/understudy/")).unwrap();
    let end = serde_json::to_value(wire::Bytes::from("/understudy0")).unwrap();
    let steps = [
        ("auth/user/add", json!({ "name": "root", "password": "r" })),
        ("auth/role/add", json!({ "name": "root" })),
        ("auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("auth/user/add", json!({ "name": "u", "password": "s3cret" })),
        ("auth/role/add", json!({ "name": "ledger" })),
        (
            "auth/role/grant",
            json!({ "name": "ledger", "perm": { "permType": "READWRITE", "key": prefix, "range_end": end } }),
        ),
        ("auth/user/grant", json!({ "user": "u", "role": "ledger" })),
        ("auth/enable", json!({})),
    ];
    for (path, body) in steps {
        let answer = cluster.call(0, path, &body).await.unwrap();
        assert!(answer.get("error").is_none(), "{path}: {answer}");
    }
    let login = |user: &str, password| {
        let (user, password) = (Some(user.to_owned()), Some(password));
        EtcdLedger::new(&EtcdLedgerConfig { user, password, ..config(cluster.endpoints()) }).unwrap()
    };
    let right = OptionValue::File { file: secret.path().to_owned() };
    let ledger = login("u", right.clone());
    ledger.check().await.unwrap();
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    // As when it has run out.
    ledger.gateway.has_token("gone.1");
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();

    let says = |result: Result<Note, LedgerError>| chain(&result.unwrap_err());
    let none = says(EtcdLedger::new(&config(cluster.endpoints())).unwrap().check().await);
    assert!(none.contains("set ledger.user and ledger.password"), "{none}");
    let wrong = says(login("u", OptionValue::Env { env: "PATH".to_owned() }).check().await);
    assert!(wrong.contains("see that ledger.user and ledger.password are right"), "{wrong}");
    let missing = says(login("u", OptionValue::File { file: "/nonexistent/p".into() }).check().await);
    assert!(missing.contains("/nonexistent/p could not be read"), "{missing}");
    let elsewhere = EtcdLedgerConfig { prefix: "/other/".to_owned(), ..config(cluster.endpoints()) };
    let elsewhere = EtcdLedgerConfig { user: Some("u".to_owned()), password: Some(right), ..elsewhere };
    let denied = says(EtcdLedger::new(&elsewhere).unwrap().check().await);
    assert!(denied.contains("grant the user's role readwrite on ledger.prefix"), "{denied}");
}

#[test]
fn the_configuration_is_checked() {
    let parse = serde_json::from_value::<LedgerConfig>;
    let good = parse(json!({ "driver": "etcd", "endpoints": ["http://10.0.0.1:2379"] })).unwrap();
    assert_eq!(good.open().unwrap().name(), "etcd");
    let LedgerConfig::Etcd(etcd) = &good else { panic!("{good:?}") };
    assert_eq!((etcd.prefix.as_str(), etcd.timeout), ("/understudy/", Duration::from_secs(5)));
    let typo = parse(json!({ "driver": "etcd", "endpoint": [] })).unwrap_err().to_string();
    assert!(typo.contains("unknown field `endpoint`"), "{typo}");
    let bad = parse(json!({
        "driver": "etcd",
        "endpoints": ["10.0.0.1", "https://a:2379", "ftp://a", "http://u:p@a", "http://a:1/v3", "http://a:1/"],
        "prefix": "x", "timeout": "1ms", "user": "u", "password": "hunter2",
    }));
    let problems = bad.unwrap().open().err().unwrap();
    let keys: Vec<&str> = problems.iter().map(|problem| problem.split_once(':').unwrap().0).collect();
    let endpoints = ["endpoints[0]", "endpoints[1]", "endpoints[2]", "endpoints[3]", "endpoints[4]"];
    assert_eq!(keys, [&endpoints[..], &["prefix", "timeout", "password"]].concat(), "{problems:#?}");
    assert!(!problems.join(" ").contains("hunter2") && !problems.join(" ").contains("u:p"), "{problems:?}");
    let bad = parse(json!({
        "driver": "etcd", "endpoints": [], "password": { "env": "P" }, "tls": { "ca": "ca.pem", "cert": "/c" },
    }));
    let problems = bad.unwrap().open().err().unwrap();
    let keys: Vec<&str> = problems.iter().map(|problem| problem.split_once(':').unwrap().0).collect();
    assert_eq!(keys, ["endpoints", "tls", "user", "tls.ca", "tls.key"], "{problems:#?}");
}

/// What answers without end is no etcd, and does not fill this host's memory.
#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n").await;
            let spaces = vec![b' '; 1 << 20];
            while stream.write_all(&spaces).await.is_ok() {
                counted.fetch_add(spaces.len(), std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    let error = chain(&ledger(vec![endpoint]).check().await.unwrap_err());
    assert!(error.contains("longer than 16 MiB"), "{error}");
    assert!(sent.load(std::sync::atomic::Ordering::Relaxed) < 128 << 20, "{sent:?}");
    server.abort();
}

/// A member that repeats the login in a refusal gives it away to nobody.
#[tokio::test]
async fn a_member_that_repeats_the_login_is_told_without_it() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = vec![0; 4096];
            let length = stream.read(&mut asked).await.unwrap_or_default();
            let asked = String::from_utf8_lossy(&asked[..length]).into_owned();
            let (status, body) = match asked.contains("/auth/authenticate") {
                true => (200, json!({ "header": {}, "token": "t0ken" })),
                false => (400, json!({ "code": 7, "message": format!("denied: hunter2 {asked}") })),
            };
            let body = body.to_string();
            let head =
                format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hunter2\n").unwrap();
    let password = json!({ "file": file.path() });
    let login = json!({ "endpoints": [endpoint], "timeout": "4s", "user": "u", "password": password });
    let login: EtcdLedgerConfig = serde_json::from_value(login).unwrap();
    let error = chain(&EtcdLedger::new(&login).unwrap().check().await.unwrap_err());
    assert!(error.contains("denied: ***") && error.contains("authorization: ***"), "{error}");
    assert!(!error.contains("hunter2") && !error.contains("t0ken"), "{error}");
    server.abort();
}
