//! Errors of the codecs.

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
pub struct UnknownCodec(pub(super) String);
