//! An API server that is killed, frozen, slow, or asked through a wire that loses answers, on an etcd that forgets.

use fakes::kubernetes::{Fault, Wire};
use fakes::ledger::faults::{Rig, survives_an_outage, survives_torn_writes};
use tokio::time::{Instant, sleep};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(4);

impl Site {
    /// A ledger that does not wait for long, through `wire` or straight.
    fn hasty(&self, name: &str, wire: Option<&Wire>) -> KubernetesLedger {
        let config = self.config(name, wire.map(Wire::url));
        KubernetesLedger::new(&KubernetesLedgerConfig { timeout: TIMEOUT, ..config }).unwrap()
    }
}

#[async_trait]
impl Rig for Site {
    fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::new(self.hasty("rig", None))
    }

    fn deadline(&self) -> Duration {
        TIMEOUT
    }

    async fn down(&self) {
        self.plane.kill_api();
    }

    async fn up(&self) {
        self.plane.start_api();
        tokio::task::block_in_place(|| self.plane.await_ready());
    }

    async fn tear(&self, (broker, epoch, host): (i32, u64, &str), entries: &[Entry], percent: u8) {
        let wire = Wire::to(&self.plane).await;
        let config = KubernetesLedgerConfig { timeout: TIMEOUT / 2, ..self.config("rig", Some(wire.url())) };
        let ledger = KubernetesLedger::new(&config).unwrap();
        ledger.latest(BrokerId(broker)).await.unwrap();
        wire.set(Some(Fault::Torn(percent)));
        let error = append(&ledger, (broker, epoch, host), entries).await.unwrap_err();
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error:?}");
        assert!(chain(&error).contains("it may have been written or not"), "{}", chain(&error));
        assert!(wire.writes() >= 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn survives_what_befalls_the_api_server() {
    let Some(site) = Site::start() else { return };
    a_lost_answer_is_found_by_reading_back(&site).await;
    what_passes_is_asked_again_and_no_read_may_be_old(&site).await;
    an_old_answer_wins_nothing(&site).await;
    a_compacted_etcd_makes_no_difference(&site).await;
    a_claim_before_a_frozen_server_is_unknown_and_found_out_later(&site).await;
    a_server_killed_in_the_middle_of_appends_loses_nothing(&site).await;
    survives_torn_writes(&site).await;
    survives_an_outage(&site).await;
}

async fn a_lost_answer_is_found_by_reading_back(site: &Site) {
    let wire = Wire::to(&site.plane).await;
    let ledger = site.hasty("lost", Some(&wire));
    // Each act is several writes: each of their answers is lost once.
    for lost in 1..=4 {
        let broker = i32::try_from(lost).unwrap();
        wire.set(Some(Fault::Lost(lost)));
        ledger.claim(&claim(broker, 1, "a")).await.unwrap();
        wire.set(Some(Fault::Lost(lost)));
        append(&ledger, (broker, 1, "a"), &[started(0)]).await.unwrap();
        append(&ledger, (broker, 1, "a"), &[started(0)]).await.unwrap();
        wire.set(Some(Fault::Lost(lost)));
        let cell = Cell { version: 1, text: "one".to_owned() };
        assert_eq!(ledger.set_cell(&format!("c{lost}"), &cell).await.unwrap(), cell);
        let other = Cell { version: 1, text: "other".to_owned() };
        assert_eq!(ledger.set_cell(&format!("c{lost}"), &other).await.unwrap(), cell);
        wire.set(Some(Fault::Lost(lost)));
        ledger.remember(BrokerId(broker), &decision("a", 1, "one")).await.unwrap();
        wire.set(None);
        let read = site.hasty("lost", None);
        assert_eq!(read.remembered(BrokerId(broker)).await.unwrap().len(), 1, "once, and not twice");
        let records = read.latest(BrokerId(broker)).await.unwrap().unwrap().records;
        assert_eq!(records.iter().map(|record| record.seq).collect::<Vec<_>>(), [0, 1, 2]);
        // Whoever else claims is told who has it.
        match read.claim(&claim(broker, 1, "b")).await {
            Err(LedgerError::Taken { by, .. }) => assert_eq!(by, "a".into()),
            other => panic!("{other:?}"),
        }
    }
}

async fn what_passes_is_asked_again_and_no_read_may_be_old(site: &Site) {
    let wire = Wire::to(&site.plane).await;
    let ledger = site.hasty("passes", Some(&wire));
    for (n, code) in (1..).zip([410, 429, 500, 503, 504]) {
        wire.set(Some(Fault::Refused(code, 3)));
        ledger.claim(&claim(n, 1, "a")).await.unwrap();
        wire.set(Some(Fault::Refused(code, 1)));
        assert_eq!(ledger.latest(BrokerId(n)).await.unwrap().unwrap().epoch, Epoch(1));
    }
    wire.set(Some(Fault::Late(Duration::from_millis(200))));
    append(&ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
    wire.set(None);
    ledger.sync().await.unwrap();
    ledger.check().await.unwrap();
    let asked = wire.asked();
    assert!(asked.len() > 20);
    assert!(asked.iter().all(|asked| !asked.contains("resourceVersion")), "{asked:#?}");
}

/// As a cache between us and the API server would, or a server that forgot to ask etcd.
async fn an_old_answer_wins_nothing(site: &Site) {
    let wire = Wire::to(&site.plane).await;
    let (old, new) = (site.hasty("old", Some(&wire)), site.hasty("old", None));
    let one = BrokerId(1);
    old.claim(&claim(1, 1, "a")).await.unwrap();
    append(&old, (1, 1, "a"), &[started(0)]).await.unwrap();
    old.latest(one).await.unwrap();
    old.orders().await.unwrap();
    wire.set(Some(Fault::Old));
    // It has gone on meanwhile, and is over; the next epoch is another's.
    append(&new, (1, 1, "a"), &[done(0, 1)]).await.unwrap();
    let stale = append(&old, (1, 1, "a"), &[done(0, 2)]).await.unwrap_err();
    assert!(matches!(stale, LedgerError::Unavailable { .. }), "{stale:?}");
    append(&new, (1, 1, "a"), &[ended()]).await.unwrap();
    new.claim(&claim(1, 2, "b")).await.unwrap();
    let records = old.latest(one).await.unwrap().unwrap().records.len() as u64;
    assert_eq!(records, 2, "the wire tells what was");
    let succeeds = Some(Succession { epoch: Epoch(1), records });
    for claim in [Claim { succeeds, ..claim(1, 2, "a") }, claim(1, 2, "a")] {
        assert!(old.claim(&claim).await.is_err());
    }
    assert!(append(&old, (1, 1, "a"), &[started(1)]).await.is_err());
    wire.set(None);
    let all = old.all(one).await.unwrap();
    assert_eq!(all.iter().map(|journal| journal.records.len()).collect::<Vec<_>>(), [4, 1]);
    assert_eq!(all[1].claim.by, "b".into());
}

async fn a_compacted_etcd_makes_no_difference(site: &Site) {
    let ledger = site.hasty("compact", None);
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    for _ in 0..5 {
        // Between what is read and what is written.
        let asking = ledger.cluster.ask();
        let book = ledger.book(&asking, Journal::Epoch(BrokerId(1), Epoch(1))).await.unwrap().unwrap();
        site.plane.compact();
        let record = &ledger.latest(BrokerId(1)).await.unwrap().unwrap().records[0];
        let seq = book.journal(BrokerId(1), Epoch(1)).unwrap().records.len() as u64;
        let record = Record { seq, entry: Entry::Alive, ..record.clone() };
        let line = book::line(&mark(), &[record]).unwrap();
        let journal = Journal::Epoch(BrokerId(1), Epoch(1));
        assert!(book.add(&asking, &ledger.names, journal, &line, None).await.unwrap());
    }
    site.plane.compact();
    assert_eq!(ledger.latest(BrokerId(1)).await.unwrap().unwrap().records.len(), 6);
    ledger.check().await.unwrap();
}

async fn a_claim_before_a_frozen_server_is_unknown_and_found_out_later(site: &Site) {
    let ledger = Arc::new(site.hasty("frozen", None));
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    ledger.sync().await.unwrap();
    site.plane.freeze_api();
    // One that has read already, and whose write meets the frozen server.
    let begun = Instant::now();
    let unknown = {
        let asking = ledger.cluster.ask();
        let journal = Journal::Epoch(BrokerId(20), Epoch(1));
        let record = Record {
            seq: 0,
            at: Timestamp::now(),
            by: "a".into(),
            entry: Entry::Claimed { claim: Box::new(claim(20, 1, "a")) },
        };
        let line = book::line(&mark(), &[record]).unwrap();
        let of = journal.of(&"a".into());
        let begin = book::begin(&asking, &ledger.names, journal, of, &line);
        ledger.within(&asking, "claim epoch 1 of broker 20".to_owned(), begin).await
    };
    let error = chain(&unknown.unwrap_err());
    assert!(error.contains("it may have been written or not"), "{error}");
    assert!(begun.elapsed() < TIMEOUT + Duration::from_secs(1));
    let claims = (10..14).map(|broker| {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move { ledger.claim(&claim(broker, 1, "a")).await })
    });
    for claimed in claims.collect::<Vec<_>>() {
        let error = claimed.await.unwrap().unwrap_err();
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error:?}");
        assert!(chain(&error).contains("did not answer"), "{}", chain(&error));
    }
    site.plane.thaw_api();
    tokio::task::block_in_place(|| site.plane.await_ready());
    if let Some(found) =
        ledger.book(&ledger.cluster.ask(), Journal::Epoch(BrokerId(20), Epoch(1))).await.unwrap()
    {
        assert_eq!(found.journal(BrokerId(20), Epoch(1)).unwrap().claim.by, "a".into());
    }
    // Whatever came of them: one owner each, whom everybody sees alike.
    for broker in 10..14 {
        let seen = ledger.latest(BrokerId(broker)).await.unwrap();
        let told = ledger.claim(&claim(broker, 1, "b")).await;
        match seen {
            Some(seen) => {
                assert_eq!(seen.claim.by, "a".into());
                assert!(matches!(told, Err(LedgerError::Taken { .. })), "{told:?}");
            }
            None => assert!(told.is_ok(), "{told:?}"),
        }
    }
    append(&*ledger, (1, 1, "a"), &[started(0)]).await.unwrap();
}

async fn a_server_killed_in_the_middle_of_appends_loses_nothing(site: &Site) {
    let ledger = Arc::new(site.hasty("killed", None));
    ledger.claim(&claim(1, 1, "a")).await.unwrap();
    let writer = {
        let ledger = Arc::clone(&ledger);
        tokio::spawn(async move {
            let (mut confirmed, mut failed) = (Vec::new(), 0);
            while confirmed.len() < 60 || failed == 0 {
                match append(&*ledger, (1, 1, "a"), &[started(confirmed.len() + failed)]).await {
                    Ok(seqs) => confirmed.extend(seqs),
                    Err(LedgerError::Unavailable { .. }) => failed += 1,
                    Err(other) => panic!("{other:?}"),
                }
            }
            confirmed
        })
    };
    while ledger.latest(BrokerId(1)).await.unwrap().unwrap().records.len() < 20 {
        sleep(Duration::from_millis(10)).await;
    }
    site.plane.kill_api();
    // Longer than an append waits, so that one is told.
    sleep(TIMEOUT + Duration::from_secs(2)).await;
    site.plane.start_api();
    let confirmed = tokio::time::timeout(Duration::from_secs(120), writer).await.unwrap().unwrap();
    let read = site.ledger("killed").latest(BrokerId(1)).await.unwrap().unwrap().records;
    let seqs: Vec<u64> = read.iter().map(|record| record.seq).collect();
    assert_eq!(seqs, (0..read.len() as u64).collect::<Vec<_>>());
    assert!(confirmed.iter().all(|seq| seqs.contains(seq)), "what was confirmed is there");
    assert!(confirmed.windows(2).all(|two| two[0] < two[1]));
}
