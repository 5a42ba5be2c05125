//! Encodings that make tensors smaller on their way out of a device or onto a disk.
//!
//! A stream is little-endian:
//!
//! | at | what |
//! | --- | --- |
//! | 0 | `TNC1` |
//! | 4 | codec, bytes of an element, 0, 0 |
//! | 8 | bytes of the tensor, 64 bits |
//! | 16 | for each block, 32 bits: where it ends in the payload, in units of 16 bytes; zeros to the next unit |
//! | then | the payload: the blocks, each with zeros to the next unit |
//!
//! A block is [`BLOCK`] elements. The last is padded with zeros. A block whose bits are all 0 takes no bytes, and a
//! block that would get no smaller is stored as it is; its length tells which. A tensor that would get no smaller is
//! stored under [`Codec::None`], unchanged, right after byte 16. So the size has a bound, [`max_bytes`]. Any thread can
//! encode and decode blocks, in any order. The kernels of [`cuda`] write and read the same bytes.

mod bits;
mod coding;
pub mod cuda;
mod elements;
mod gain;
mod planes;
mod span;
mod stream;
mod vectors;

use std::fmt;
use std::str::FromStr;

use tenure_core::DType;

pub use coding::{Choice, Coding};
pub(crate) use coding::{LOSSLESS, Speeds};
pub use gain::{Gain, choose};
pub use stream::{Jobs, StreamReader, StreamWriter, max_bytes, sequential};

/// The number of elements of a block.
pub const BLOCK: usize = 1024;

/// The bytes of a plane: one bit of each element of a block.
pub(super) const PLANE: usize = BLOCK / 8;

/// How a tensor is encoded. The names are those of `--codec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Codec {
    /// Unchanged.
    #[default]
    None = 0,
    /// A bitmap and the elements that are not 0, for sparse tensors such as outputs of ReLU. Lossless, for all dtypes:
    /// only an element whose bits are all 0 counts as 0.
    Zeros = 1,
    /// Exponents in as few bits as they need, next to signs and mantissas. Lossless, for bf16 and f32.
    Planes = 2,
    /// f32 rounded to f16. Lossy.
    Fp16 = 3,
    /// A bitmap and the elements that are not 0, rounded to f16, for f32. Lossy: FlashNeuron's compression (FAST'21).
    CsrFp16 = 4,
}

impl Codec {
    /// Every codec: `Codec::ALL[codec as usize] == codec`.
    pub const ALL: [Self; 5] = [Self::None, Self::Zeros, Self::Planes, Self::Fp16, Self::CsrFp16];

    /// Returns whether decoded bytes may differ from the originals.
    pub const fn is_lossy(self) -> bool {
        matches!(self, Self::Fp16 | Self::CsrFp16)
    }

    /// Returns whether the codec encodes elements of this dtype. It leaves others unchanged.
    pub const fn is_for(self, dtype: DType) -> bool {
        match self {
            Self::None | Self::Zeros => true,
            Self::Planes => matches!(dtype, DType::BF16 | DType::F32),
            Self::Fp16 | Self::CsrFp16 => matches!(dtype, DType::F32),
        }
    }

    /// Returns the codec's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zeros => "zeros",
            Self::Planes => "planes",
            Self::Fp16 => "fp16",
            Self::CsrFp16 => "csr-fp16",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        let found = Self::ALL.into_iter().find(|codec| codec.name() == name);
        found.ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

/// The reason why a stream was not encoded or decoded. Its message is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The header is not one of a stream.
    #[error("this is not an encoded tensor: its header is of another format or changed")]
    Header,
    /// The stream has too few bytes, or too many.
    #[error("an encoded tensor has {expected} bytes, and {bytes} are there: it was cut or changed")]
    Length {
        /// The bytes that there are, or that there is room for.
        bytes: usize,
        /// The bytes that its header and table require.
        expected: usize,
    },
    /// The data of a block is invalid.
    #[error("block {block} of an encoded tensor was changed")]
    Block {
        /// The number of the block.
        block: usize,
    },
    /// The stream does not fit into the memory for it.
    #[error(
        "a tensor becomes {bytes} bytes, and there is room for {given}: `max_bytes` says how many are always enough"
    )]
    Room {
        /// Bytes of the stream.
        bytes: usize,
        /// The bytes of that memory.
        given: usize,
    },
    /// A device could not decode the stream.
    #[error(
        "an encoded tensor on a device was cut or changed, or is another one: its codec, dtype or size is not as said"
    )]
    Changed,
    /// The buffer has another size than the tensor.
    #[error("an encoded tensor of {raw_bytes} bytes is decoded into {given}")]
    Size {
        /// Bytes of the tensor.
        raw_bytes: usize,
        /// Bytes of the buffer.
        given: usize,
    },
}

/// No codec has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no codec {0:?}: none, zeros and planes lose nothing, nor does auto, which chooses among them; fp16 and \
     csr-fp16 round f32 to f16"
)]
pub struct UnknownCodec(String);

/// The result of encoding a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The codec that was used: [`Codec::None`] if the requested one would not have made it smaller.
    pub codec: Codec,
    /// The bytes of the tensor.
    pub raw_bytes: usize,
    /// The bytes of the stream.
    pub bytes: usize,
}

impl Encoded {
    /// Combines parts into one. Its codec is the one of most bytes; among equals, the first.
    pub(crate) fn of_all(parts: impl Iterator<Item = Self>) -> Self {
        let mut all = Self { codec: Codec::None, raw_bytes: 0, bytes: 0 };
        let mut by_codec = [0; Codec::ALL.len()];
        for part in parts {
            by_codec[part.codec as usize] += part.raw_bytes;
            all.raw_bytes += part.raw_bytes;
            all.bytes += part.bytes;
        }
        let most = Codec::ALL.into_iter().rev().max_by_key(|codec| by_codec[*codec as usize]);
        Self { codec: most.unwrap_or_default(), ..all }
    }
}

/// Encodes a tensor and appends it, on the calling thread. [`StreamWriter`] uses more threads, and writes to any
/// memory.
///
/// ```
/// use tenure_core::DType;
/// use tenure_tier::codec::{self, Codec};
///
/// let tensor = [0_f32, 0.0, 1.5, 0.0].map(f32::to_le_bytes).concat().repeat(1000);
/// let mut stream = Vec::new();
/// let encoded = codec::encode(Codec::Zeros, DType::F32, &tensor, &mut stream);
/// assert!(encoded.codec == Codec::Zeros && encoded.bytes * 3 < encoded.raw_bytes);
/// let mut back = vec![0; tensor.len()];
/// codec::decode(&stream, &mut back)?;
/// assert_eq!(back, tensor);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn encode(codec: Codec, dtype: DType, raw: &[u8], into: &mut Vec<u8>) -> Encoded {
    let writer = StreamWriter::new(codec, dtype, raw, &sequential);
    let start = into.len();
    into.resize(start + writer.encoded().bytes, 0);
    writer.write(&mut into[start..], &sequential);
    writer.encoded()
}

/// Decodes a whole stream on the calling thread. [`StreamReader`] uses more threads.
///
/// # Errors
/// [`CodecError`]: `stream` is not a stream, is not whole, or has a tensor of another size. `into` is then unspecified.
pub fn decode(stream: &[u8], into: &mut [u8]) -> Result<Encoded, CodecError> {
    let reader = StreamReader::new(stream)?;
    reader.read(into, &sequential)?;
    Ok(reader.encoded())
}
