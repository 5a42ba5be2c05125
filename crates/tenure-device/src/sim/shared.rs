//! The bytes of a simulated allocation that several processes share.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

use crate::{ErrorKind, MemoryHandle};

/// The bytes after those of every shared chunk, so that no other file is taken for one.
const TRAILER: [u8; 16] = *b"tenure sim chunk";

/// The first bytes of every memory handle, so that other bytes are not taken for one.
const MAGIC: [u8; 16] = *b"tenure simmemory";

/// The seals of the file: its size cannot change, so that no process reads past the end of the file within a chunk.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The bytes of an exported chunk: a file in memory, which takes only as much memory as was written. The rest reads as
/// 0.
///
/// Each holder of the chunk, in any process, holds a descriptor of one open file, and with it that file's lock. The
/// kernel releases the lock with the last descriptor, however its process ended.
pub(super) struct SharedBytes {
    file: File,
    /// The file's [`identity`].
    identity: (u64, u64),
}

impl SharedBytes {
    /// Creates `bytes` bytes of 0.
    pub(super) fn new(bytes: u64) -> Result<Self, ErrorKind> {
        let file = File::from(memfd_create("tenure-sim-chunk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all_at(&TRAILER, bytes)?;
        fcntl_add_seals(&file, SEALS)?;
        file.lock_shared()?;
        Ok(Self { identity: identity(&file)?, file })
    }

    /// Imports a descriptor of [`export`](Self::export), whose memory must have `bytes` bytes.
    pub(super) fn import(descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Self, ErrorKind> {
        let unknown = ErrorKind::UnknownHandle { what: "shared chunk", handle: descriptor.as_raw_fd() as u64 };
        let file = File::from(descriptor.try_clone_to_owned()?);
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(unknown);
        }
        let actual = file.metadata()?.len().saturating_sub(TRAILER.len() as u64);
        let mut trailer = [0; TRAILER.len()];
        if file.read_exact_at(&mut trailer, actual).is_err() || trailer != TRAILER {
            return Err(unknown);
        }
        if actual != bytes {
            return Err(ErrorKind::SharedSize { given: bytes, actual });
        }
        Ok(Self { identity: identity(&file)?, file })
    }

    /// Returns a handle for [`open`](Self::open): the process and descriptor of the file, its identity, and the size in
    /// bytes.
    pub(super) fn handle(&self, bytes: u64) -> MemoryHandle {
        let mut handle = [0; 64];
        handle[..MAGIC.len()].copy_from_slice(&MAGIC);
        let (device, inode) = self.identity;
        let words = [u64::from(std::process::id()), self.file.as_raw_fd() as u64, device, inode, bytes];
        for (target, word) in handle[MAGIC.len()..].chunks_exact_mut(8).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        MemoryHandle(handle)
    }

    /// Opens the bytes of a handle, whose process must still hold them. Also returns their number.
    pub(super) fn open(handle: &MemoryHandle) -> Result<(Self, u64), ErrorKind> {
        let [process, descriptor, device, inode, bytes] =
            [16, 24, 32, 40, 48].map(|at| u64::from_le_bytes(std::array::from_fn(|i| handle.0[at + i])));
        let unknown = ErrorKind::UnknownHandle { what: "memory of another process", handle: inode };
        if handle.0[..MAGIC.len()] != MAGIC {
            return Err(unknown);
        }
        let path = format!("/proc/{process}/fd/{descriptor}");
        let Ok(file) = File::options().read(true).write(true).open(path) else { return Err(unknown) };
        if identity(&file)? != (device, inode) {
            return Err(unknown);
        }
        Ok((Self::import(file.as_fd(), bytes)?, bytes))
    }

    /// Returns a descriptor that keeps the bytes, and can be sent to other processes.
    pub(super) fn export(&self) -> Result<OwnedFd, ErrorKind> {
        Ok(self.file.as_fd().try_clone_to_owned()?)
    }

    /// Returns whether both are the same bytes.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    pub(super) fn read(&self, offset: u64, target: &mut [u8]) {
        self.file.read_exact_at(target, offset).expect("a file in memory can be read");
    }

    pub(super) fn write(&self, offset: u64, source: &[u8]) {
        self.file.write_all_at(source, offset).expect("a file in memory can be written while the host has memory");
    }

    /// Gives up the bytes. The returned value can tell whether other processes still hold them.
    pub(super) fn abandon(self) -> Result<Abandoned, ErrorKind> {
        // Opened anew: a clone of the descriptor would hold the very lock that reveals other holders.
        let probe = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok(Abandoned(probe))
    }
}

/// Shared bytes that this process gave up and others may still hold.
pub(super) struct Abandoned(File);

impl Abandoned {
    /// Returns whether a descriptor or an import is left in any process.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.0.try_lock(), Err(TryLockError::WouldBlock))
    }
}

/// Returns a file's identity: the same through every descriptor, and different for any two files that exist at once.
pub(super) fn identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

impl From<io::Error> for ErrorKind {
    /// Turns a failure of the host's system into a device error.
    fn from(error: io::Error) -> Self {
        let name = "CUDA_ERROR_OPERATING_SYSTEM".to_owned();
        Self::Device { code: 304, name, description: error.to_string(), in_flight: Vec::new() }
    }
}

impl From<rustix::io::Errno> for ErrorKind {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}
