//! What a journal says by itself.

use fakes::ledger::contract::claim;
use jiff::Timestamp;
use recovery::journal::{Entry, EpochJournal, Record};
use recovery::model::{BrokerId, Epoch};

#[test]
fn a_clock_that_is_set_back_does_not_make_an_epoch_young() {
    let at = |second| Timestamp::from_second(1_000 + second).unwrap();
    let record = |second| Record { seq: 0, at: at(second), by: "a".into(), entry: Entry::Alive };
    let open_for = |seconds: &[i64], now| {
        let records = seconds.iter().map(|second| record(*second)).collect();
        let journal = EpochJournal { broker: BrokerId(1), epoch: Epoch(1), claim: claim(1, 1, "a"), records };
        journal.open_for(at(now)).as_secs()
    };
    assert_eq!(open_for(&[0, 10, 20], 25), 25);
    assert_eq!(open_for(&[0, 2, -366, -300], -295), 2 + 66 + 5);
    assert_eq!(open_for(&[0, 10], -50), 10);
    assert_eq!(open_for(&[], 5), 0);
}
