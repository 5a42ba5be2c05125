//! Random numbers that are the same on every machine, and Zipf's law.

/// The generator SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws a rank below `count`; rank 0 is twice as likely as rank 1.
    pub(crate) fn zipf(&mut self, count: usize) -> usize {
        let sum: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
        let mut drawn = self.unit() * sum;
        let rank = (0..count).find(|rank| {
            drawn -= 1.0 / (rank + 1) as f64;
            drawn < 0.0
        });
        rank.unwrap_or(count - 1)
    }
}
