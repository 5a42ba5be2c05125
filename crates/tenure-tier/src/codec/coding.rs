//! The choice of the codec for bytes on their way to a disk.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::DType;

use super::{Codec, Gain, UnknownCodec, choose};

/// The way a codec is chosen. The names are those of `--codec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Chooses the lossless codec for each piece, from measured speeds and ratios.
    Auto,
    /// Always uses this codec.
    Codec(Codec),
}

impl Choice {
    /// Returns whether decoded bytes may differ from the originals.
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

/// The codecs that lose nothing and may save bytes.
pub(crate) const LOSSLESS: [Codec; 2] = [Codec::Zeros, Codec::Planes];

/// How bytes are encoded on their way to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coding {
    /// The choice of the codec.
    pub choice: Choice,
    /// The dtype of the elements, which are contiguous.
    pub dtype: DType,
    /// Whether the encoding thread is otherwise idle. Then encoding overlaps with writing, and costs nothing where the
    /// disk takes longer.
    pub is_beside: bool,
}

impl Coding {
    /// Leaves bytes as they are.
    pub const NONE: Self = Self { choice: Choice::Codec(Codec::None), dtype: DType::U8, is_beside: false };

    /// Returns the codec for some bytes: the one given, or the fastest way over a link of this bandwidth.
    pub(crate) fn codec(&self, raw: &[u8], speeds: &Speeds, link_bytes_per_second: f64) -> Codec {
        match self.choice {
            Choice::Codec(codec) => codec,
            Choice::Auto => {
                let gains = LOSSLESS.map(|codec| Gain {
                    codec,
                    ratio: self.sampled_ratio(codec, raw),
                    bytes_per_second: speeds.of(codec),
                });
                choose(&gains, link_bytes_per_second, self.is_beside)
            }
        }
    }

    /// Estimates the encoded bytes per byte from a few blocks.
    pub(crate) fn sampled_ratio(&self, codec: Codec, raw: &[u8]) -> f64 {
        /// The number of blocks that are sampled, a small part of a piece.
        const SAMPLED: usize = 16;
        Gain::sampled_ratio(codec, self.dtype, raw, SAMPLED)
    }
}

/// The speeds of codecs, measured in use.
#[derive(Default)]
pub(crate) struct Speeds {
    /// The times of encoding and of decoding, for each codec.
    times: [[CodecTimes; 2]; Codec::ALL.len()],
}

/// Bytes of tensors, and the time that they took.
#[derive(Default)]
struct CodecTimes {
    bytes: AtomicU64,
    time_ns: AtomicU64,
}

impl Speeds {
    /// Runs `encode` on `bytes` bytes of a tensor and measures it.
    pub(crate) fn encode<R>(&self, codec: Codec, bytes: usize, encode: impl FnOnce() -> R) -> R {
        self.times[codec as usize][0].time(bytes, encode)
    }

    /// Runs `decode` on `bytes` bytes of a tensor and measures it.
    pub(crate) fn decode<R>(&self, codec: Codec, bytes: usize, decode: impl FnOnce() -> R) -> R {
        self.times[codec as usize][1].time(bytes, decode)
    }

    /// Returns the slower of both speeds in bytes per second. It is infinite until enough is measured, so that each
    /// codec gets tried.
    fn of(&self, codec: Codec) -> f64 {
        let [encode, decode] = &self.times[codec as usize];
        encode.speed().min(decode.speed())
    }
}

impl CodecTimes {
    /// The bytes after which a measurement counts.
    const MIN_BYTES: u64 = 2 << 20;

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
        let bytes = self.bytes.load(Ordering::Relaxed);
        let time_ns = self.time_ns.load(Ordering::Relaxed);
        if bytes < Self::MIN_BYTES { f64::INFINITY } else { bytes as f64 * 1e9 / time_ns.max(1) as f64 }
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
    fn measurements_choose_only_lossless_codecs() {
        let speeds = Speeds::default();
        let raw = half_zeros();
        assert_eq!(AUTO.codec(&raw, &speeds, 1e9), Codec::Zeros);
        assert_eq!(Coding { choice: Choice::Codec(Codec::Planes), ..AUTO }.codec(&raw, &speeds, 1e9), Codec::Planes);
        // Encoding takes 1 s for 8 GiB, decoding 1 s for 4e9 bytes.
        speeds.times[Codec::Zeros as usize][0].add(8 << 30, Duration::from_secs(1));
        speeds.times[Codec::Zeros as usize][1].add(4_000_000_000, Duration::from_secs(1));
        speeds.times[Codec::Planes as usize][0].add(2 << 20, Duration::from_secs(1));
        for (link, apart, beside) in [
            (1e9, Codec::Zeros, Codec::Zeros),
            // Halving the bytes is no longer worth the time, unless the encoding thread is idle.
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
