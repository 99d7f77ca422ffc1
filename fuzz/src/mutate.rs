//! Changed inputs, the same ones every time.

/// Bytes at the edges of what parsers look at: signs, separators, ends of varints.
const EDGES: &[u8] = b"\0\x01\x0f\x7f\x80\xff \t\n\r\\\"'#=:,./-09azAZ[]{}<>";
/// Longer inputs than this are cut: they find nothing new, slowly.
const MAX_BYTES: usize = 4096;

/// Makes inputs out of seeds.
#[derive(Debug)]
pub struct Mutator<'s> {
    state: u64,
    seeds: &'s [Vec<u8>],
}

impl<'s> Mutator<'s> {
    /// One whose inputs depend on `number` and `seeds` alone.
    #[must_use]
    pub fn new(number: u64, seeds: &'s [Vec<u8>]) -> Self {
        // Xorshift stands still at zero.
        Self { state: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, seeds }
    }

    /// The next input: a seed with one to eight changes.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.seed().to_vec();
        for _ in 0..=self.below(8) {
            self.change(&mut input);
        }
        input.truncate(MAX_BYTES);
        input
    }

    fn seed(&mut self) -> &'s [u8] {
        let seeds = self.seeds;
        let at = self.below(seeds.len());
        seeds.get(at).map_or(&[], Vec::as_slice)
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let from = self.below(input.len() + 1);
        let to = (from + self.below(16)).min(input.len());
        let edge = EDGES[self.below(EDGES.len())];
        match self.below(8) {
            0 => input.truncate(from),
            1 => drop(input.drain(from..to)),
            2 => input.insert(from, edge),
            3 => drop(input.splice(from..from, vec![edge; 1 + to - from])),
            4 => {
                let piece = input[from..to].to_vec();
                let at = self.below(input.len() + 1);
                drop(input.splice(at..at, piece));
            }
            5 => {
                let other = self.seed();
                let (start, end) = (self.below(other.len() + 1), self.below(other.len() + 1));
                let piece = &other[start.min(end)..start.max(end)];
                drop(input.splice(from..to, piece.iter().copied()));
            }
            change => {
                let bit = 1 << self.below(8);
                if let Some(byte) = input.get_mut(from) {
                    *byte = if change == 6 { edge } else { *byte ^ bit };
                }
            }
        }
    }

    /// A number below `end`; 0 if there is none.
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // The upper half is the better one, and always fits.
        (self.state >> 32) as usize % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_number_makes_the_same_inputs_and_another_makes_others() {
        let seeds = [b"one=1\n".to_vec(), b"two=2\n".to_vec()];
        let inputs = |number| -> Vec<Vec<u8>> {
            let mut mutator = Mutator::new(number, &seeds);
            (0..500).map(|_| mutator.next_input()).collect()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(3));
        assert!(inputs(1).iter().collect::<BTreeSet<_>>().len() > 400, "too many are the same");
    }
}
