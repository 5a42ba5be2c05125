//! Estimates of whether encoding is worth its time.

use tenure_core::DType;

use super::span::{CodecFunctions, UNIT};
use super::{BLOCK, Codec};

/// The measured effect of a codec on some kind of tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// The codec.
    pub codec: Codec,
    /// Encoded bytes for each byte of the tensor.
    pub ratio: f64,
    /// Speed in bytes of the tensor per second. If both encoding and decoding count, the slower one.
    pub bytes_per_second: f64,
}

impl Gain {
    /// No encoding, which costs only time on the link.
    pub const NONE: Self = Self { codec: Codec::None, ratio: 1.0, bytes_per_second: f64::INFINITY };

    /// Returns the seconds that it takes to encode a tensor of `bytes` bytes and move it over a link. With
    /// `is_pipelined`, one part is encoded while the part before it is on the link.
    pub fn seconds(&self, bytes: f64, link_bytes_per_second: f64, is_pipelined: bool) -> f64 {
        let encoding = bytes / self.bytes_per_second;
        let passing = self.ratio * bytes / link_bytes_per_second;
        if is_pipelined { encoding.max(passing) } else { encoding + passing }
    }

    /// Estimates a codec's ratio from at most `blocks` blocks of a tensor, spread evenly. The ratio is 1 if the codec
    /// is not for the dtype or there are no bytes.
    ///
    /// ```
    /// use tenure_core::DType;
    /// use tenure_tier::codec::{Codec, Gain};
    ///
    /// let half_zeros = [0_u8, 0, 0x80, 0x3f].repeat(1 << 20);
    /// let ratio = Gain::sampled_ratio(Codec::Zeros, DType::BF16, &half_zeros, 64);
    /// assert!((0.55..0.6).contains(&ratio));
    /// ```
    pub fn sampled_ratio(codec: Codec, dtype: DType, raw: &[u8], blocks: usize) -> f64 {
        let Some(functions) = CodecFunctions::new(codec, dtype) else { return 1.0 };
        let mut units = [0];
        let all = raw.len().div_ceil(BLOCK * dtype.size());
        let mut before = 0;
        let mut after = 0;
        for block in raw.chunks(functions.block_bytes()).step_by(all.div_ceil(blocks.max(1)).max(1)) {
            (functions.measure)(block, &mut units);
            before += block.len();
            // Each block also takes an entry in the table.
            after += UNIT * units[0] as usize + 4;
        }
        if before == 0 { 1.0 } else { (after as f64 / before as f64).min(1.0) }
    }
}

/// Returns the codec with which a tensor moves over a link in the shortest time, or [`Codec::None`] if none is faster.
/// Among equals, the first.
///
/// Only the given codecs are considered: the caller decides whether lossy ones are among them.
///
/// ```
/// use tenure_tier::codec::{Codec, Gain, choose};
///
/// let zeros = Gain { codec: Codec::Zeros, ratio: 0.5, bytes_per_second: 8e9 };
/// assert_eq!(choose(&[zeros], 2.5e9, true), Codec::Zeros); // a disk
/// assert_eq!(choose(&[zeros], 55e9, true), Codec::None); // a link that is faster than the codec
/// ```
pub fn choose(measured: &[Gain], link_bytes_per_second: f64, is_pipelined: bool) -> Codec {
    let seconds = |gain: &Gain| gain.seconds(1.0, link_bytes_per_second, is_pipelined);
    measured.iter().fold(Gain::NONE, |best, next| if seconds(next) < seconds(&best) { *next } else { best }).codec
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROS: Gain = Gain { codec: Codec::Zeros, ratio: 0.5, bytes_per_second: 10e9 };
    const PLANES: Gain = Gain { codec: Codec::Planes, ratio: 0.75, bytes_per_second: 20e9 };

    #[test]
    fn a_tensor_takes_the_slower_of_both_if_they_overlap_and_the_sum_if_not() {
        assert_eq!(ZEROS.seconds(10e9, 2e9, true), 2.5);
        assert_eq!(ZEROS.seconds(10e9, 2e9, false), 3.5);
        assert_eq!(ZEROS.seconds(10e9, 20e9, true), 1.0);
        assert_eq!(Gain::NONE.seconds(10e9, 20e9, false), 0.5);
    }

    #[test]
    fn the_soonest_is_chosen_and_none_unless_one_wins() {
        for (link, pipelined, apart) in [
            (1e9, Codec::Zeros, Codec::Zeros),
            // 0.1 + 0.125 < 0.05 + 0.1875 < 0.25 seconds for 1e9 bytes.
            (4e9, Codec::Zeros, Codec::Zeros),
            // 0.1 + 0.1 = 0.05 + 0.15 = 0.2: nothing wins.
            (5e9, Codec::Zeros, Codec::None),
            (12e9, Codec::Planes, Codec::None),
            (20e9, Codec::None, Codec::None),
            (1e12, Codec::None, Codec::None),
        ] {
            let measured = [ZEROS, PLANES];
            assert_eq!((choose(&measured, link, true), choose(&measured, link, false)), (pipelined, apart), "{link}");
        }
        assert_eq!(choose(&[], 1.0, true), Codec::None);
    }

    #[test]
    fn measurements_that_are_no_numbers_choose_nothing() {
        let broken = Gain { ratio: f64::NAN, ..ZEROS };
        assert_eq!(choose(&[broken], 1e9, false), Codec::None);
        assert_eq!(choose(&[Gain { bytes_per_second: 0.0, ..ZEROS }], 1e9, true), Codec::None);
    }

    #[test]
    fn a_sample_says_what_the_whole_does() {
        let tensor: Vec<u8> = (0..400_000_u32).flat_map(|i| (i % 3 / 2 * i).to_le_bytes()).collect();
        let mut stream = Vec::new();
        let encoded = super::super::encode(Codec::Zeros, DType::I32, &tensor, &mut stream);
        let whole = encoded.bytes as f64 / encoded.raw_bytes as f64;
        for blocks in [1, 7, 64, 10_000] {
            let sampled = Gain::sampled_ratio(Codec::Zeros, DType::I32, &tensor, blocks);
            assert!((sampled - whole).abs() < 0.02, "{sampled} of {blocks} blocks, {whole} of all");
        }
        assert_eq!(Gain::sampled_ratio(Codec::Planes, DType::I32, &tensor, 64), 1.0);
        assert_eq!(Gain::sampled_ratio(Codec::Zeros, DType::I32, &[], 64), 1.0);
    }
}
