//! What is thrown next: everything random of a marathon comes from one seed.

use std::time::Duration;

/// A stream of numbers that is the same for the same seed (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

/// The kinds of rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    PowerOff,
    CutLink,
    CutShortly,
    Freeze,
    FreezeShortly,
    KillKafka,
    StopKafka,
    KillClaimant,
    FreezeClaimant,
    StallLedger,
    SwitchUnknown,
    CutTwo,
    Move,
}

/// Each kind, with how often it comes up among the sum of all.
const WEIGHTS: [(Kind, u64); 13] = [
    (Kind::PowerOff, 4),
    (Kind::CutLink, 3),
    (Kind::CutShortly, 1),
    (Kind::Freeze, 3),
    (Kind::FreezeShortly, 2),
    (Kind::KillKafka, 3),
    (Kind::StopKafka, 1),
    (Kind::KillClaimant, 3),
    (Kind::FreezeClaimant, 3),
    (Kind::StallLedger, 2),
    (Kind::SwitchUnknown, 2),
    (Kind::CutTwo, 2),
    (Kind::Move, 2),
];

/// All that is random in one round. The same numbers are drawn whatever the kind, so that a round that goes
/// another way does not change those that follow.
#[derive(Debug, Clone)]
pub(super) struct Throw {
    pub(super) kind: Kind,
    /// The broker that it befalls.
    pub(super) broker: i32,
    /// Another broker, for faults that take two.
    pub(super) other: i32,
    /// From 0 up to 1: where in the range that its kind allows a moment or a duration lies.
    pub(super) shares: [f64; 2],
}

impl Dice {
    pub(super) fn of(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn throw(&mut self, brokers: u64) -> Throw {
        let mut left = self.below(WEIGHTS.iter().map(|(_, weight)| weight).sum());
        let kind = WEIGHTS.iter().find(|(_, weight)| {
            let hit = left < *weight;
            left = left.saturating_sub(*weight);
            hit
        });
        let broker = self.below(brokers);
        let other = (broker + 1 + self.below(brokers - 1)) % brokers;
        let id = |place: u64| i32::try_from(place + 1).unwrap_or(1);
        Throw {
            kind: kind.map_or(Kind::PowerOff, |(kind, _)| *kind),
            broker: id(broker),
            other: id(other),
            shares: [self.share(), self.share()],
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn share(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).unwrap_or_default()) / (f64::from(u32::MAX) + 1.0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Throw {
    /// When the second thing of a round happens, after the first; in seconds.
    pub(super) fn moment(&self, from: f64, to: f64) -> Duration {
        Duration::from_secs_f64(from + (to - from) * self.shares[0])
    }

    /// How long it lasts; in seconds.
    pub(super) fn lasting(&self, from: f64, to: f64) -> Duration {
        Duration::from_secs_f64(from + (to - from) * self.shares[1])
    }
}

impl Kind {
    /// As it stands in the summary.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PowerOff => "host loses power",
            Self::CutLink => "host cut off",
            Self::CutShortly => "host cut off shortly",
            Self::Freeze => "host frozen",
            Self::FreezeShortly => "host frozen shortly",
            Self::KillKafka => "Kafka killed",
            Self::StopKafka => "Kafka stopped cleanly",
            Self::KillClaimant => "agent killed in its takeover",
            Self::FreezeClaimant => "agent frozen in its takeover",
            Self::StallLedger => "ledger stalled, host lost",
            Self::SwitchUnknown => "switch unknown, host lost",
            Self::CutTwo => "two hosts cut off",
            Self::Move => "switchover",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_throws_the_same_again() {
        let throws = |seed| {
            let mut dice = Dice::of(seed);
            (0..50).map(|_| format!("{:?}", dice.throw(3))).collect::<Vec<_>>()
        };
        assert_eq!(throws(7), throws(7));
        assert_ne!(throws(7), throws(8));
    }

    #[test]
    fn everything_comes_up() {
        let mut dice = Dice::of(1);
        let throws: Vec<Throw> = (0..2000).map(|_| dice.throw(3)).collect();
        let kinds: BTreeSet<&str> = throws.iter().map(|throw| throw.kind.name()).collect();
        assert_eq!(kinds.len(), WEIGHTS.len());
        let pairs: BTreeSet<(i32, i32)> = throws.iter().map(|throw| (throw.broker, throw.other)).collect();
        assert_eq!(pairs, [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)].into());
        for throw in &throws {
            let lasting = throw.lasting(1.0, 2.0).as_secs_f64();
            assert!((1.0..2.0).contains(&lasting), "{lasting}");
        }
    }
}
