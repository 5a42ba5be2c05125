/// Why a stream was not decoded: it was cut, or changed. Always one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// It does not begin as one.
    #[error("this is no encoded tensor: its header is of another format or changed")]
    Header,
    /// It has too few bytes, or too many.
    #[error("an encoded tensor has {expected} bytes, and {bytes} are there: it was cut or changed")]
    Length {
        /// Bytes that are there, or can be there.
        bytes: usize,
        /// Bytes that it says it has.
        expected: usize,
    },
    /// What it says of a block cannot be.
    #[error("block {block} of an encoded tensor was changed")]
    Block {
        /// Which one.
        block: usize,
    },
    /// It does not fit.
    #[error(
        "a tensor becomes {bytes} bytes, and there is room for {given}: `max_bytes` says how many are always enough"
    )]
    Room {
        /// Bytes of the stream.
        bytes: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// A device could not decode it.
    #[error(
        "an encoded tensor on a device was cut or changed, or is another one: its codec, dtype or size is not as said"
    )]
    Changed,
    /// A buffer of another size.
    #[error("an encoded tensor of {raw_bytes} bytes is decoded into {given}")]
    Size {
        /// Bytes of the tensor.
        raw_bytes: usize,
        /// Bytes of the buffer.
        given: usize,
    },
}

/// There is no codec of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no codec {0:?}: none, zeros and planes lose nothing, nor does auto, which chooses among them; fp16 and \
     csr-fp16 round f32 to f16"
)]
pub struct UnknownCodec(pub(super) String);
