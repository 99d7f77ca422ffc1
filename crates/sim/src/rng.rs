//! Randomness from the seed: one stream per kind, so that one more fault does not shift every latency.

/// A stream of random numbers (splitmix64): small, and the same on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The stream of this seed for `kind`.
    #[must_use]
    pub(crate) fn stream(seed: u64, kind: &str) -> Self {
        // FNV-1a, because the hashes of the standard library may change between its versions.
        let hash = kind.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash);
        rng.next();
        rng
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` up to and without `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).max(1)
    }

    /// An index below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count.max(1) as u64).unwrap_or_default()
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// One of `choices`, each as likely as its weight says.
    pub(crate) fn weighted<T: Copy>(&mut self, choices: &[(u64, T)], otherwise: T) -> T {
        let total = choices.iter().map(|(weight, _)| weight).sum::<u64>();
        let mut left = self.next() % total.max(1);
        for (weight, choice) in choices {
            if left < *weight {
                return *choice;
            }
            left -= weight;
        }
        otherwise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_the_same_for_a_seed_and_differ_by_kind() {
        let draw = |kind| {
            let mut rng = Rng::stream(7, kind);
            (0..4).map(|_| rng.between(0, 1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw("faults"), draw("faults"));
        assert_ne!(draw("faults"), draw("latency"));
    }

    #[test]
    fn weights_are_kept() {
        let mut rng = Rng::stream(1, "weights");
        let hits = (0..1000).filter(|_| rng.weighted(&[(9, true), (1, false)], false)).count();
        assert!((850..950).contains(&hits), "{hits}");
    }
}
