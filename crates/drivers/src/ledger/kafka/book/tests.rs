use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use fakes::ledger::contract::{claim, decision, ended, started};
use recovery::model::{Distrust, Instruction, Succession};
use recovery::ports::chain;

const BROKER: BrokerId = BrokerId(1);

/// A record of the topic.
type Line = (String, Vec<u8>);

fn line(host: &str, what: What) -> Line {
    let proposal = Proposal::new(&host.into(), what);
    (proposal.key(), proposal.encode().unwrap())
}

fn records(epoch: u64, host: &str, first: u64, entries: Vec<Entry>) -> What {
    let record = |(seq, entry)| Record { seq, at: Timestamp::UNIX_EPOCH, by: host.into(), entry };
    What::Records {
        broker: BROKER,
        epoch: Epoch(epoch),
        records: (first..).zip(entries).map(record).collect(),
    }
}

fn claimed(claim: Claim) -> What {
    let (epoch, host) = (claim.plan.epoch.0, claim.by.0.clone());
    records(epoch, &host, 0, vec![Entry::Claimed { claim: Box::new(claim) }])
}

fn fold(lines: &[Line]) -> Book {
    let mut book = Book::new("t");
    for (offset, (key, value)) in (0..).zip(lines) {
        book.apply(offset, key.as_bytes(), Some(value));
    }
    book
}

fn holders(book: &Book) -> Vec<String> {
    book.epochs(BROKER).unwrap().iter().map(|journal| journal.claim.by.0.clone()).collect()
}

#[test]
fn of_two_rival_claims_the_first_counts() {
    let lines = [line("a", claimed(claim(1, 1, "a"))), line("b", claimed(claim(1, 1, "b")))];
    assert_eq!(holders(&fold(&lines)), ["a"]);
    let book = fold(&[lines[1].clone(), lines[0].clone()]);
    assert_eq!(holders(&book), ["b"]);
    match book.may_claim(&claim(1, 1, "a")) {
        Err(LedgerError::Taken { by, .. }) => assert_eq!(by, "b".into()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_proposal_learns_its_own_verdict() {
    let rivals = [
        Proposal::new(&"a".into(), claimed(claim(1, 1, "a"))),
        Proposal::new(&"b".into(), claimed(claim(1, 1, "b"))),
    ];
    let mut book = Book::new("t");
    assert_eq!(book.verdict(&rivals[0].id), None);
    for (offset, rival) in (0..).zip(&rivals) {
        book.apply(offset, rival.key().as_bytes(), Some(&rival.encode().unwrap()));
    }
    assert_eq!(rivals.map(|rival| book.verdict(&rival.id)), [Some(true), Some(false)]);
}

#[test]
fn a_claimant_that_went_on_is_not_succeeded_and_one_that_was_succeeded_does_not_go_on() {
    let succeeding = Claim { succeeds: Some(Succession { epoch: Epoch(1), records: 1 }), ..claim(1, 2, "b") };
    let (first, next) = (line("a", claimed(claim(1, 1, "a"))), line("b", claimed(succeeding)));
    let alive = line("a", records(1, "a", 1, vec![Entry::Alive]));
    let went_on = fold(&[first.clone(), alive.clone(), next.clone()]);
    assert_eq!((holders(&went_on).len(), went_on.epochs(BROKER).unwrap()[0].records.len()), (1, 2));
    let succeeded = fold(&[first, next, alive]);
    assert_eq!((holders(&succeeded).len(), succeeded.epochs(BROKER).unwrap()[0].records.len()), (2, 1));
    match succeeded.may_append(BROKER, Epoch(1), &"a".into()) {
        Err(LedgerError::Superseded { ours: Epoch(1), theirs: Epoch(2), .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_two_processes_of_one_host_the_first_takes_the_number() {
    let lines = [
        line("a", claimed(claim(1, 1, "a"))),
        line("a", records(1, "a", 1, vec![started(0)])),
        line("a", records(1, "a", 1, vec![started(1)])),
        line("a", records(1, "a", 2, vec![ended()])),
        line("a", records(1, "a", 3, vec![Entry::Resumed])),
    ];
    let book = fold(&lines);
    let entries: Vec<_> =
        book.epochs(BROKER).unwrap()[0].records.iter().skip(1).map(|r| r.entry.clone()).collect();
    assert_eq!(entries, [started(0), ended()]);
}

#[test]
fn lost_records_are_missed() {
    let lines = [
        line("a", claimed(claim(1, 1, "a"))),
        line("a", records(1, "a", 1, vec![started(0)])),
        line("a", records(1, "a", 2, vec![ended()])),
        line("b", claimed(claim(1, 2, "b"))),
    ];
    assert!(fold(&lines).epochs(BROKER).is_ok());
    for (lost, offset) in [(0, 0), (1, 1)] {
        let mut rest = lines.to_vec();
        rest.remove(lost);
        let error = fold(&rest).epochs(BROKER).unwrap_err().to_string();
        assert!(error.contains(&format!("topic t, partition 0, offset {offset}")), "{error}");
        assert!(error.contains("missing"), "{error}");
    }
}

#[test]
fn what_is_not_understood_damages_what_it_is_about_until_it_is_removed() {
    let good = line("a", claimed(claim(1, 1, "a")));
    let mut book = fold(&[good.clone(), ("epoch/1/2/x".to_owned(), b"junk".to_vec())]);
    let error = book.epochs(BROKER).unwrap_err().to_string();
    assert!(error.contains("topic t, partition 0, offset 1, key epoch/1/2/x is damaged"), "{error}");
    assert!(book.epochs(BrokerId(2)).is_ok() && book.orders().is_ok() && book.decisions(BROKER).is_ok());
    assert!(
        book.may_claim(&claim(1, 2, "b")).is_err() && book.may_append(BROKER, Epoch(1), &"a".into()).is_err()
    );
    book.apply(2, b"epoch/1/2/x", None);
    assert_eq!(holders(&book), ["a"]);
    book.apply(3, b"", Some(b"hello"));
    assert!(book.epochs(BROKER).is_err() && book.orders().is_err() && book.decisions(BROKER).is_err());
    book.apply(4, b"", None);
    // What counts is not taken back.
    book.apply(5, good.0.as_bytes(), None);
    assert_eq!(holders(&book), ["a"]);
}

#[test]
fn what_a_newer_version_wrote_hides_what_builds_on_it_and_is_called_newer() {
    let (first, third) = (line("a", claimed(claim(1, 1, "a"))), line("b", claimed(claim(1, 3, "b"))));
    let newer = ("epoch/1/2/x".to_owned(), br#"{"v":1,"id":"x","needs":2,"what":{}}"#.to_vec());
    let book = fold(&[first, newer, third]);
    for error in [
        book.epochs(BROKER).map(drop).unwrap_err(),
        book.may_claim(&claim(1, 2, "b")).unwrap_err(),
        book.may_append(BROKER, Epoch(1), &"a".into()).map(drop).unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(
            matches!(error, LedgerError::Distrusted { distrust: Distrust::LedgerNewer, .. }),
            "{error:?}"
        );
        assert!(said.contains("offset 1") && said.contains("upgrade this host"), "{said}");
    }
    assert!(book.epochs(BrokerId(2)).is_ok() && book.orders().is_ok());
}

#[test]
fn decisions_go_round_and_a_new_process_goes_on() {
    let mut book = Book::new("t");
    let host = HostName::from("a");
    for n in 0..i64::from(DECISIONS) + 3 {
        let slot = book.next_slot(BROKER, &host);
        let event = Box::new(decision("a", n, &n.to_string()));
        let (key, value) = line("a", What::Decision { broker: BROKER, slot, event });
        book.apply(n, key.as_bytes(), Some(&value));
    }
    let kept = book.decisions(BROKER).unwrap();
    assert_eq!(kept.len(), DECISIONS as usize);
    assert_eq!(kept[0].at, Timestamp::from_second(3).unwrap());
    assert_eq!(book.next_slot(BROKER, &host), 3);
    assert_eq!(book.next_slot(BROKER, &"b".into()), 0);
}

#[test]
fn epochs_are_claimed_one_by_one() {
    let book = fold(&[line("a", claimed(claim(1, 1, "a")))]);
    for (epoch, why) in [(0, "epoch 2 is due"), (3, "epoch 2 is due"), (2, "is taken by a")] {
        let error = chain(&book.may_claim(&claim(1, epoch, "b")).unwrap_err());
        assert!(error.contains(why), "{error}");
    }
}

/// What a host tries, from a view that may be old.
#[derive(Debug, Clone)]
struct Attempt {
    host: usize,
    /// How many of the newest records it has not read.
    behind: usize,
    what: u8,
}

fn attempts() -> impl Strategy<Value = Vec<Attempt>> {
    let attempt = (0..3usize, prop_oneof![3 => Just(0usize), 2 => 0..6usize], 0..4u8)
        .prop_map(|(host, behind, what)| Attempt { host, behind, what });
    prop::collection::vec(attempt, 0..60)
}

/// The proposal that a host makes by the book it has read, if the book allows one.
fn propose(book: &Book, attempt: &Attempt) -> Option<Line> {
    let host = ["a", "b", "c"][attempt.host];
    let newest = book.epochs(BROKER).unwrap().last();
    let epoch = newest.map_or(0, |journal| journal.epoch.0);
    match attempt.what {
        0 => {
            let seen = |journal: &EpochJournal| Succession {
                epoch: journal.epoch,
                records: journal.records.len() as u64,
            };
            let claim = Claim { succeeds: newest.map(seen), ..claim(1, epoch + 1, host) };
            book.may_claim(&claim).ok().map(|()| line(host, claimed(claim)))
        }
        what => {
            let entries = if what == 3 { vec![ended()] } else { vec![Entry::Alive, started(0)] };
            let first = book.may_append(BROKER, Epoch(epoch), &host.into()).ok()?;
            Some(line(host, records(epoch, host, first, entries)))
        }
    }
}

proptest! {
    #[test]
    fn whatever_hosts_have_read_when_they_write_one_history_comes_of_it(attempts in attempts()) {
        let mut lines: Vec<Line> = Vec::new();
        for attempt in &attempts {
            let read = lines.len().saturating_sub(attempt.behind);
            lines.extend(propose(&fold(&lines[..read]), attempt));
        }
        let book = fold(&lines);
        let journals = book.epochs(BROKER).unwrap();
        for (n, journal) in (1..).zip(journals) {
            prop_assert_eq!(journal.epoch, Epoch(n));
            for (seq, record) in (0..).zip(&journal.records) {
                prop_assert_eq!((record.seq, &record.by), (seq, &journal.claim.by));
            }
        }
        // What counted when only a part was read still counts, as it was.
        for read in 0..lines.len() {
            let earlier = fold(&lines[..read]);
            for (then, now) in earlier.epochs(BROKER).unwrap().iter().zip(journals) {
                prop_assert!(now.records.starts_with(&then.records));
            }
        }
        // Records that are void may go: nothing changes without them.
        let counting: Vec<Line> = lines.iter().filter(|(key, _)| {
            book.verdict(key.rsplit('/').next().unwrap()) == Some(true)
        }).cloned().collect();
        let compacted = fold(&counting);
        prop_assert_eq!(compacted.epochs(BROKER).unwrap(), journals);
    }
}

#[test]
fn orders_are_read_in_the_order_of_their_time() {
    let order = |second| {
        let at = Timestamp::from_second(second).unwrap();
        Order { at, host: "a".into(), who: "ada".to_owned(), what: Instruction::Rejoined }
    };
    let book = fold(&[line("a", What::Order(order(2))), line("a", What::Order(order(1)))]);
    assert_eq!(book.orders().unwrap().0, [order(1), order(2)]);
}
