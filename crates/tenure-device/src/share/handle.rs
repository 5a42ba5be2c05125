//! The handle of a block, by which another process finds its memory.

use std::fmt;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use serde::{Deserialize, Serialize};

/// The first bytes of every handle, which tell it apart from other handles, such as CUDA's own.
const MAGIC: [u8; 6] = *b"tenure";

/// The version of every handle.
const VERSION: u16 = 1;

/// The location of a block: its chunks, side by side, and the process to ask for them.
///
/// Two blocks in the same chunks have the same handle, so that a receiver maps the chunks once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct BlockHandle {
    pub(super) sender: Sender,
    /// [`Driver::uuid`](crate::Driver::uuid) of the device.
    pub(super) device: [u8; 16],
    /// Never empty; the sizes sum to less than 2^64 bytes.
    pub(super) chunks: Vec<SharedChunk>,
}

/// A process that shares its chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Sender {
    /// The name of its socket, chosen at random, which no other process has.
    pub(super) token: [u8; 16],
    /// The process number, for messages.
    pub(super) pid: u32,
}

/// A chunk of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct SharedChunk {
    /// The chunk's number, which the sender never gives to another chunk.
    pub(super) number: u64,
    pub(super) bytes: u64,
}

/// The reason why bytes are not a handle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The bytes do not begin as a handle does.
    #[error(
        "it was not made by Tenure: install Tenure's allocator in the process that sends the tensor too, before it \
         uses the device"
    )]
    Foreign,
    /// The handle is of another release.
    #[error("it has version {0}, and this process reads version {VERSION}: use the same release of Tenure in both")]
    Version(u16),
    /// The body of the handle makes no sense.
    #[error("it was cut or changed on its way")]
    Malformed,
}

impl BlockHandle {
    /// Encodes the handle: the magic bytes, the version, and the fields in postcard.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let head = [MAGIC.as_slice(), &VERSION.to_le_bytes()].concat();
        postcard::to_extend(self, head).expect("numbers always have a form, and a vector has room for them")
    }

    /// Decodes a handle; fails if it does not name at least one byte.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HandleError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(HandleError::Foreign)?;
        let (version, body) = rest.split_first_chunk().ok_or(HandleError::Malformed)?;
        let version = u16::from_le_bytes(*version);
        if version != VERSION {
            return Err(HandleError::Version(version));
        }
        match postcard::take_from_bytes::<Self>(body) {
            Ok((handle, [])) if handle.total_bytes().is_some_and(|bytes| bytes > 0) => Ok(handle),
            _ => Err(HandleError::Malformed),
        }
    }

    /// Returns the size of all chunks together, in bytes; `None` if the sum overflows.
    fn total_bytes(&self) -> Option<u64> {
        self.chunks.iter().try_fold(0u64, |sum, chunk| sum.checked_add(chunk.bytes))
    }
}

impl Sender {
    /// Returns the address of the sender's socket: a name without a file, which disappears with the process.
    pub(super) fn address(&self) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new_abstract_name(self.to_string().as_bytes())
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tenure-blocks-")?;
        self.token.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle() -> impl Strategy<Value = BlockHandle> {
        let chunks = prop::collection::vec((any::<u64>(), 1..u64::MAX / 256), 1..256);
        (any::<([u8; 16], u32, [u8; 16])>(), chunks).prop_map(|((token, pid, device), chunks)| BlockHandle {
            sender: Sender { token, pid },
            device,
            chunks: chunks.into_iter().map(|(number, bytes)| SharedChunk { number, bytes }).collect(),
        })
    }

    proptest! {
        #[test]
        fn a_handle_survives_encoding(handle in handle()) {
            prop_assert_eq!(BlockHandle::decode(&handle.encode()), Ok(handle));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(BlockHandle::decode(&bytes), Err(HandleError::Foreign));
            let head = [MAGIC.as_slice(), &VERSION.to_le_bytes()].concat();
            if let Ok(handle) = BlockHandle::decode(&[head, bytes].concat()) {
                prop_assert!(handle.total_bytes().is_some());
            }
        }

        #[test]
        fn a_handle_that_was_cut_is_refused(handle in handle(), cut: prop::sample::Index) {
            let bytes = handle.encode();
            prop_assert!(BlockHandle::decode(&bytes[..cut.index(bytes.len())]).is_err());
        }
    }

    #[test]
    fn handles_of_others_are_told_apart() {
        // A handle as PyTorch's own allocator sends it: a version, a type, and CUDA's handle.
        assert_eq!(BlockHandle::decode(&[1, b'c', 0, 0]), Err(HandleError::Foreign));
        assert_eq!(BlockHandle::decode(b"tenure\x07\x00"), Err(HandleError::Version(7)));
    }

    #[test]
    fn chunks_that_no_address_space_holds_are_refused() {
        let chunk = SharedChunk { number: 0, bytes: u64::MAX };
        for chunks in [vec![], vec![chunk, chunk], vec![SharedChunk { number: 1, bytes: 0 }]] {
            let handle = BlockHandle { sender: Sender { token: [0; 16], pid: 1 }, device: [0; 16], chunks };
            assert_eq!(BlockHandle::decode(&handle.encode()), Err(HandleError::Malformed));
        }
    }
}
