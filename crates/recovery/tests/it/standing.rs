//! Where a broker stands after its epochs: who owns it, and who may be writing.

use std::collections::BTreeSet;
use std::time::Duration;

use fakes::ledger::contract::{claim, done, started};
use recovery::journal::{Claim, Entry, EpochJournal, Record};
use recovery::model::{
    Acked, BrokerId, Cause, Epoch, EpochState, HostName, Instruction, LedgerStanding, Order, Orders, Outcome,
    Succession,
};
use recovery::plan::{Phase, Stage, Step, Unregister};

/// The contract's plan has two steps: to render the configuration, and to start Kafka.
const START: usize = 1;

fn journal(claim: Claim, entries: &[Entry]) -> EpochJournal {
    let first = [Entry::Claimed { claim: Box::new(claim.clone()) }];
    let records = (0..).zip(first.iter().chain(entries)).map(|(seq, entry)| Record {
        seq,
        at: claim.at,
        by: claim.by.clone(),
        entry: entry.clone(),
    });
    let (broker, epoch) = (BrokerId(1), claim.plan.epoch);
    EpochJournal { broker, epoch, records: records.collect(), claim }
}

fn ended(outcome: Outcome) -> Entry {
    Entry::Ended { outcome }
}

fn recovered() -> Entry {
    ended(Outcome::Recovered { time_to_isr: Duration::from_secs(7), remarks: Vec::new() })
}

fn abandoned() -> Entry {
    ended(Outcome::Abandoned { at: "render_config".to_owned(), why: "w".to_owned(), kept: Vec::new() })
}

fn after(journals: &[EpochJournal]) -> LedgerStanding {
    LedgerStanding::after(&"home".into(), journals)
}

fn hosts<const N: usize>(names: [&str; N]) -> BTreeSet<HostName> {
    names.map(HostName::from).into()
}

#[test]
fn before_the_first_epoch_its_home_owns_it() {
    let standing = after(&[]);
    assert_eq!(
        (standing.epoch, standing.owner, standing.writers),
        (Epoch(0), "home".into(), hosts(["home"]))
    );
}

#[test]
fn an_open_claimant_may_write_and_owns_nothing_before_the_start() {
    let standing = after(&[journal(claim(1, 1, "a"), &[started(0), done(0, 1)])]);
    assert_eq!(standing.owner, "home".into());
    assert_eq!(standing.writers, hosts(["a", "home"]));
    assert_eq!(standing.records, 3);
    let open = EpochState::Open { by: "a".into(), touched: true, cause: Cause::Automatic };
    assert_eq!(standing.state, Some(open));
}

#[test]
fn whoever_begins_the_start_owns_it_alone() {
    let steps = [started(0), done(0, 1), started(START)];
    assert_eq!(after(&[journal(claim(1, 1, "a"), &steps)]).writers, hosts(["a"]));
    // Even if somebody else's claim is abandoned after that.
    let second = Claim { succeeds: Some(Succession { epoch: Epoch(1), records: 4 }), ..claim(1, 2, "b") };
    let standing = after(&[journal(claim(1, 1, "a"), &steps), journal(second, &[abandoned()])]);
    assert_eq!((standing.owner, standing.writers), ("a".into(), hosts(["a"])));
}

#[test]
fn a_claimant_that_was_succeeded_stays_a_writer_until_somebody_starts() {
    let second = Claim { succeeds: Some(Succession { epoch: Epoch(1), records: 1 }), ..claim(1, 2, "b") };
    let silent = journal(claim(1, 1, "a"), &[]);
    let standing = after(&[silent.clone(), journal(second.clone(), &[abandoned()])]);
    assert_eq!(standing.writers, hosts(["a", "home"]), "b has ended its own work");
    let standing = after(&[silent, journal(second, &[started(0), done(0, 1), started(START)])]);
    assert_eq!((standing.owner, standing.writers), ("b".into(), hosts(["b"])));
}

#[test]
fn what_a_claimant_adds_after_it_was_succeeded_is_void() {
    let second = Claim { succeeds: Some(Succession { epoch: Epoch(1), records: 3 }), ..claim(1, 2, "b") };
    let raced = journal(claim(1, 1, "a"), &[started(0), done(0, 1), started(START), recovered()]);
    let standing = after(&[raced, journal(second, &[abandoned()])]);
    assert_eq!(standing.owner, "home".into());
    assert_eq!(standing.writers, hosts(["a", "home"]));
    assert_eq!(standing.attempts[0].ended, None);
}

#[test]
fn the_owner_is_not_what_a_plan_took_for_it() {
    // The plan of the contract says `kafka-1`: it was made before anybody owned it, and is older than the
    // claim.
    let first =
        journal(claim(1, 1, "a"), &[started(0), done(0, 1), started(START), done(START, 1), recovered()]);
    let standing = after(&[first, journal(claim(1, 2, "b"), &[abandoned()])]);
    assert_eq!((standing.owner, standing.writers), ("a".into(), hosts(["a"])));
    assert_eq!(
        standing.attempts.iter().filter_map(|a| a.ended.as_deref()).collect::<Vec<_>>(),
        ["recovered", "abandoned"]
    );
}

#[test]
fn a_successor_must_have_seen_the_newest_picture_even_of_an_end() {
    let seen = Claim { succeeds: Some(Succession { epoch: Epoch(1), records: 2 }), ..claim(1, 2, "b") };
    let open = journal(claim(1, 1, "a"), &[started(0)]);
    assert!(open.may_be_followed_by(&seen));
    assert!(!open.may_be_followed_by(&claim(1, 2, "b")), "it is open");
    let recovered = journal(claim(1, 1, "a"), &[started(0), recovered()]);
    assert!(!recovered.may_be_followed_by(&seen), "it would fence a host that is well");
    assert!(recovered.may_be_followed_by(&claim(1, 2, "b")));
}

#[test]
fn those_who_gave_up_are_counted_since_the_last_recovery_and_the_last_ack() {
    let planned = Claim { cause: Cause::Planned, ..claim(1, 3, "c") };
    let all = [
        journal(claim(1, 1, "a"), &[abandoned()]),
        journal(claim(1, 2, "b"), &[abandoned()]),
        journal(planned, &[abandoned()]),
    ];
    let standing = after(&all);
    let gave_up = |acked| standing.gave_up(acked).into_iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(gave_up(None), hosts(["a", "b"]), "a switchover that came to nothing does not count");
    let acked = |at, epoch| Some(Acked { at, epoch });
    let at = standing.attempts[0].at;
    assert_eq!(gave_up(acked(at, None)), hosts([]), "an older understudy did not write the epoch");
    assert_eq!(gave_up(acked(at, Some(Epoch(3)))), hosts([]));
    let later = jiff::Timestamp::from_second(1 << 32).unwrap();
    assert_eq!(
        gave_up(acked(later, Some(Epoch(1)))),
        hosts(["b"]),
        "a clock that was set back makes nothing older"
    );
    let steps = [started(0), done(0, 1), started(START), done(START, 1), recovered()];
    let standing = after(&[all[0].clone(), journal(claim(1, 2, "b"), &steps)]);
    assert!(standing.gave_up(None).is_empty());
}

/// An epoch that has the broker's registration removed, or waits for it to expire.
fn removing(epoch: u64, decision: Unregister, entries: &[Entry]) -> EpochJournal {
    let mut claim = claim(1, epoch, "a");
    claim.plan.fault_at = claim.at - Duration::from_secs(epoch);
    claim.plan.stages[0].steps[0] = Step::Unregister { broker: BrokerId(1), decision, zookeeper: false };
    journal(claim, entries)
}

#[test]
fn what_we_have_taken_off_the_list_is_remembered_until_it_is_recovered() {
    let stuck = || ended(Outcome::Stuck { at: "await_isr".to_owned(), why: "w".to_owned() });
    let asks = || Unregister::Use { sharing: BTreeSet::new() };
    let waits = || Unregister::Wait { why: "w".to_owned() };
    let removed = |journals: &[EpochJournal]| after(journals).removed.map(|removal| removal.epoch.0);
    let sent = || removing(1, asks(), &[started(0), done(0, 1), started(START), stuck()]);
    assert_eq!(removed(&[sent()]), Some(1));
    assert_eq!(removed(&[removing(1, asks(), &[started(0)])]), Some(1), "it may have arrived");
    assert_eq!(removed(&[removing(1, asks(), &[])]), None, "it was not begun");
    assert_eq!(removed(&[removing(1, waits(), &[started(0), done(0, 1)])]), None, "nothing was sent");
    // What came after it has not brought the broker back.
    let abandoned = || removing(2, waits(), &[started(0), abandoned()]);
    assert_eq!(removed(&[sent(), abandoned()]), Some(1));
    assert_eq!(removed(&[sent(), abandoned(), removing(3, asks(), &[started(0), stuck()])]), Some(3));
    assert_eq!(removed(&[sent(), removing(2, waits(), &[started(0), recovered()])]), None);
    // The fault is that of the first attempt, until one recovers the broker.
    let fault = |journals: &[EpochJournal]| after(journals).fault_at;
    assert_eq!(fault(&[sent(), abandoned()]), Some(sent().claim.plan.fault_at));
    assert_eq!(fault(&[sent(), removing(2, waits(), &[started(0), recovered()])]), None);
    assert_eq!(fault(&[removing(1, asks(), &[])]), None, "a claim that was given up touched nothing");
}

#[test]
fn a_standing_that_was_written_before_these_were_known_is_read() {
    let mut old = serde_json::to_value(after(&[])).expect("it can be written");
    let fields = old.as_object_mut().expect("an object");
    assert!(fields.remove("removed").is_some() && fields.remove("fault_at").is_some());
    assert_eq!(serde_json::from_value::<LedgerStanding>(old).expect("it is read"), after(&[]));
}

#[test]
fn who_was_fenced_stays_out_until_it_recovers_the_broker_or_rejoins() {
    let ladder = vec!["switch".to_owned()];
    let mut first = claim(1, 1, "a");
    first.plan.stages.insert(
        0,
        Stage {
            phase: Phase::Fence,
            steps: vec![
                Step::Fence { host: "home".into(), ladder: ladder.clone(), on: None },
                Step::Prove { host: "home".into(), ladder },
            ],
        },
    );
    let orders = Orders::default();
    let fenced = |journals: &[EpochJournal], orders: &Orders| {
        after(journals).fenced_here(&"home".into(), orders).map(|fence| (fence.epoch, fence.proven))
    };
    let begun = journal(first.clone(), &[started(0)]);
    assert_eq!(fenced(&[begun], &orders), None, "a fence that was begun is none yet");
    let confirmed = journal(first.clone(), &[started(0), done(0, 1)]);
    assert_eq!(fenced(&[confirmed], &orders), Some((Epoch(1), false)));
    let proven = journal(first, &[started(0), done(0, 1), started(1), done(1, 1), abandoned()]);
    assert_eq!(fenced(std::slice::from_ref(&proven), &orders), Some((Epoch(1), true)));

    let at = |seconds| proven.claim.at + Duration::from_secs(seconds);
    let rejoined = |host: &str, at| {
        Orders(vec![Order { at, host: host.into(), who: "ada".to_owned(), what: Instruction::Rejoined }])
    };
    assert_eq!(fenced(std::slice::from_ref(&proven), &rejoined("home", at(1))), None);
    assert!(fenced(std::slice::from_ref(&proven), &rejoined("a", at(1))).is_some(), "another host");
    let back = journal(claim(1, 2, "home"), &[started(0), done(0, 1), started(START), recovered()]);
    assert_eq!(fenced(&[proven, back], &orders), None);
}

#[test]
fn the_first_failure_since_the_last_recovery_is_known_with_its_cause() {
    let all = [journal(claim(1, 1, "a"), &[abandoned()]), journal(claim(1, 2, "b"), &[abandoned()])];
    let standing = after(&all);
    let first = standing.first_failure(None).expect("there is one");
    assert_eq!((first.epoch, first.why.as_deref()), (Epoch(1), Some("render_config: w")));
    assert_eq!(
        standing.first_failure(Some(Acked { at: all[0].claim.at, epoch: None })),
        None,
        "acknowledged"
    );
}
