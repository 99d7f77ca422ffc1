//! What the platform says of a host's machine: people are told of it, and no decision rests on it.

use std::collections::BTreeSet;
use std::time::Duration;

use fakes::{BROKER, World};
use recovery::decide::{Decision, decide, sentences};
use recovery::model::{
    Evidence, Fact, LedgerReading, LedgerStanding, MachineState, Moment, Now, ProbeOutcome,
};
use recovery::observe::{Board, Observation, observe};
use recovery::ports::Clock;

const COUNTS_FOR: Duration = Duration::from_secs(120);

fn off() -> MachineState {
    MachineState::Off { state: "stopped".to_owned() }
}

/// A broker that cannot be reached from second 40 to 160, and what was said of its owner's machine in second 40.
fn seen_at(second: u64, said: Option<MachineState>) -> Observation {
    let mut board = Board::default();
    let mut record = |at: u64, fact| {
        board.record(Evidence { signal: "test", at: Moment(Duration::from_secs(at)), fact });
    };
    for at in 40..=second {
        record(at, Fact::Probe { broker: BROKER, outcome: ProbeOutcome::Unreachable });
    }
    let standing = LedgerStanding::untouched("kafka-1".into());
    let reading = LedgerReading { brokers: [(BROKER, standing)].into(), ..LedgerReading::default() };
    record(second, Fact::Ledger(reading));
    if let Some(state) = said {
        record(40, Fact::Machine { host: "kafka-1".into(), state, counts_for: COUNTS_FOR });
    }
    let now = Now { mono: Moment(Duration::from_secs(second)), ..World::new().now() };
    observe(&board, &BTreeSet::from([BROKER]), Duration::from_secs(3), now)
}

#[test]
fn what_the_platform_says_is_told_for_as_long_as_it_counts() {
    let told = |seen: &Observation| sentences(BROKER, seen).into_iter().find(|said| said.contains("machine"));
    let expected = "the platform: the machine of kafka-1 is stopped (no witness)";
    assert_eq!(told(&seen_at(160, Some(off()))).as_deref(), Some(expected));
    assert_eq!(told(&seen_at(161, Some(off()))), None);
    assert_eq!(told(&seen_at(160, None)), None);
    let ails = MachineState::Ails { why: "it is to be retired".to_owned() };
    let expected = "the platform: the machine of kafka-1 runs; it is to be retired (no witness)";
    assert_eq!(told(&seen_at(60, Some(ails))).as_deref(), Some(expected));
}

#[test]
fn a_machine_that_is_off_is_no_second_witness() {
    let (topology, policy) = (World::topology(), World::policy());
    let decided = |said| decide(BROKER, &seen_at(100, said), &topology, &policy);
    let (with, without) = (decided(Some(off())), decided(None));
    let (Decision::Hold { reasons: with }, Decision::Hold { reasons: without }) = (with, without) else {
        panic!("one witness is enough to hold");
    };
    assert_eq!(with, without);
}
