//! What a peer says of what it sees.

use std::time::Duration;

use fakes::{BROKER, World};
use recovery::decide::{Decision, decide};
use recovery::model::{Evidence, Fact, LedgerReading, LedgerStanding, Moment, Now, PeerView, ProbeOutcome};
use recovery::observe::{Board, observe};
use recovery::ports::Clock;

/// A peer's answer is written as it was read, and what a peer alone says is never a reason to act.
pub(crate) fn view(bytes: &[u8]) {
    let Ok(view) = serde_json::from_slice::<PeerView>(bytes) else { return };
    let again = serde_json::to_vec(&view).map(|text| serde_json::from_slice::<PeerView>(&text));
    assert!(matches!(again, Ok(Ok(again)) if again == view));
    let (world, topology) = (World::new(), World::topology());
    let mut board = Board::default();
    let standing = LedgerStanding::untouched("kafka-1".into());
    let reading = LedgerReading { brokers: [(BROKER, standing)].into(), ..LedgerReading::default() };
    // All that one witness has against a broker, and the peer.
    let probe = |at| (at, Fact::Probe { broker: BROKER, outcome: ProbeOutcome::Unreachable });
    let facts = [(60, Fact::Ledger(reading)), (60, Fact::Peer(view))].into_iter();
    for (at, fact) in [probe(0), probe(60)].into_iter().chain(facts) {
        board.record(Evidence { signal: "fuzz", at: Moment(Duration::from_secs(at)), fact });
    }
    let now = Now { mono: Moment(Duration::from_secs(60)), ..world.now() };
    let seen = observe(&board, &topology.known, Duration::from_secs(3), now);
    let decision = decide(BROKER, &seen, &topology, &World::policy());
    assert!(!matches!(decision, Decision::TakeOver(_)), "{decision}");
}
