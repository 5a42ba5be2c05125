//! By what bytes are encoded on their way to a disk.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::DType;

use super::{Codec, Gain, UnknownCodec, choose};

/// Who chooses a codec. The names are those of `--codec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Measurements do, of each piece, among those that lose nothing.
    Auto,
    /// Somebody did.
    Codec(Codec),
}

impl Choice {
    /// Whether what comes back may differ from what went out.
    pub const fn is_lossy(self) -> bool {
        matches!(self, Self::Codec(codec) if codec.is_lossy())
    }
}

impl Default for Choice {
    fn default() -> Self {
        Self::Codec(Codec::None)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Codec(codec) => codec.fmt(f),
        }
    }
}

impl FromStr for Choice {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        if name == "auto" { Ok(Self::Auto) } else { name.parse().map(Self::Codec) }
    }
}

/// Those that make something smaller and lose nothing.
pub(crate) const LOSSLESS: [Codec; 2] = [Codec::Zeros, Codec::Planes];

/// How bytes are encoded on their way to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coding {
    /// By what.
    pub choice: Choice,
    /// Of the elements, which are one after the other.
    pub dtype: DType,
    /// Whether who encodes has nothing else to do: then it costs nothing where the disk takes longer.
    pub is_beside: bool,
}

impl Coding {
    /// As they are.
    pub const NONE: Self = Self { choice: Choice::Codec(Codec::None), dtype: DType::U8, is_beside: false };

    /// What some bytes are to be encoded by: what was chosen, or what lets them pass such a link soonest.
    pub(crate) fn codec(&self, raw: &[u8], speeds: &Speeds, link_bytes_per_second: f64) -> Codec {
        let gain = |codec| Gain { codec, ratio: self.sampled_ratio(codec, raw), bytes_per_second: speeds.of(codec) };
        match self.choice {
            Choice::Codec(codec) => codec,
            Choice::Auto => choose(&LOSSLESS.map(gain), link_bytes_per_second, self.is_beside),
        }
    }

    pub(crate) fn sampled_ratio(&self, codec: Codec, raw: &[u8]) -> f64 {
        /// Blocks that are looked at, a small part of a piece.
        const SAMPLED: usize = 16;
        Gain::sampled_ratio(codec, self.dtype, raw, SAMPLED)
    }
}

/// How fast codecs are, as measured where they are used.
#[derive(Default)]
pub(crate) struct Speeds {
    /// By codec: both ways.
    both: [[Tally; 2]; Codec::ALL.len()],
}

/// Bytes of tensors, and how long they took.
#[derive(Default)]
struct Tally {
    bytes: AtomicU64,
    time_ns: AtomicU64,
}

impl Speeds {
    /// Encodes so many bytes of a tensor.
    pub(crate) fn encode<R>(&self, codec: Codec, bytes: usize, encode: impl FnOnce() -> R) -> R {
        self.both[codec as usize][0].time(bytes, encode)
    }

    /// Decodes as many.
    pub(crate) fn decode<R>(&self, codec: Codec, bytes: usize, decode: impl FnOnce() -> R) -> R {
        self.both[codec as usize][1].time(bytes, decode)
    }

    /// Bytes a second, of both ways the slower: no end to them until something is known, so that each codec is tried.
    fn of(&self, codec: Codec) -> f64 {
        let [encode, decode] = &self.both[codec as usize];
        encode.speed().min(decode.speed())
    }
}

impl Tally {
    /// So many bytes are not chance.
    const TRIED: u64 = 2 << 20;

    fn time<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        let since = Instant::now();
        let worked = work();
        self.add(bytes as u64, since.elapsed());
        worked
    }

    fn add(&self, bytes: u64, time: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.time_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn speed(&self) -> f64 {
        let (bytes, time_ns) = (self.bytes.load(Ordering::Relaxed), self.time_ns.load(Ordering::Relaxed));
        if bytes < Self::TRIED { f64::INFINITY } else { bytes as f64 * 1e9 / time_ns.max(1) as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: Coding = Coding { choice: Choice::Auto, dtype: DType::F32, is_beside: false };

    fn half_zeros() -> Vec<u8> {
        (0_u32..1 << 18).flat_map(|i| (i % 2 * i.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect()
    }

    #[test]
    fn a_choice_is_called_as_its_codec_is() {
        for name in ["auto", "none", "zeros", "planes", "fp16", "csr-fp16"] {
            let choice: Choice = name.parse().unwrap();
            assert_eq!((choice.to_string(), choice.is_lossy()), (name.to_owned(), name.contains("fp16")));
        }
        assert!("zip".parse::<Choice>().unwrap_err().to_string().contains("auto"));
    }

    #[test]
    fn all_that_is_lossless_is_tried() {
        let lossless = Codec::ALL.into_iter().filter(|codec| *codec != Codec::None && !codec.is_lossy());
        assert!(lossless.eq(LOSSLESS));
    }

    #[test]
    fn what_was_measured_chooses_and_nothing_lossy_ever() {
        let (speeds, raw) = (Speeds::default(), half_zeros());
        assert_eq!(AUTO.codec(&raw, &speeds, 1e9), Codec::Zeros);
        assert_eq!(Coding { choice: Choice::Codec(Codec::Planes), ..AUTO }.codec(&raw, &speeds, 1e9), Codec::Planes);
        // A second for each 4e9 bytes that are encoded, or read back.
        speeds.both[Codec::Zeros as usize][0].add(8 << 30, Duration::from_secs(1));
        speeds.both[Codec::Zeros as usize][1].add(4_000_000_000, Duration::from_secs(1));
        speeds.both[Codec::Planes as usize][0].add(2 << 20, Duration::from_secs(1));
        for (link, apart, beside) in [
            (1e9, Codec::Zeros, Codec::Zeros),
            // A half of the bytes is no longer worth the time, unless it is nobody else's.
            (3e9, Codec::None, Codec::Zeros),
            (5e9, Codec::None, Codec::None),
        ] {
            let both = [false, true].map(|is_beside| Coding { is_beside, ..AUTO }.codec(&raw, &speeds, link));
            assert_eq!(both, [apart, beside], "{link}");
        }
        let noise: Vec<u8> = (0_u32..1 << 20).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
        assert_eq!(AUTO.codec(&noise, &Speeds::default(), 1e3), Codec::None);
    }
}
