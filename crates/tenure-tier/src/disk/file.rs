//! Temporary files for spilled bytes.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl, stat, statvfs};
use rustix::io::Errno;

use super::staging::{Chunk, DISK_BLOCK};
use crate::TierError;

/// A file without a name, allocated in full when it is created. It is gone when the process ends, however it ends.
pub(super) struct ExtentFile {
    pub(super) file: File,
    pub(super) folder: PathBuf,
    /// Whether transfers bypass the system's page cache.
    pub(super) is_direct: bool,
}

impl ExtentFile {
    /// Creates a file of `bytes` bytes in a folder. Tests direct access by writing a block of `chunk`.
    pub(super) fn create(folder: &Path, bytes: u64, chunk: &Chunk) -> Result<Self, TierError> {
        let file = tempfile::tempfile_in(folder).map_err(TierError::system(folder.display(), "making a file"))?;
        let available = free_bytes(folder)?;
        if bytes > available {
            return Err(TierError::NoRoom { path: folder.into(), capacity: bytes, available });
        }
        // Allocates all of it, so that a write cannot find the file system full later.
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // Another process took the room meanwhile.
            Err(Errno::NOSPC) => {
                let available = free_bytes(folder)?;
                return Err(TierError::NoRoom { path: folder.into(), capacity: bytes, available });
            }
            allocated => allocated.map_err(TierError::system(folder.display(), "fallocate"))?,
        }
        let is_direct = make_direct(&file, chunk).map_err(TierError::system(folder.display(), "fcntl"))?;
        Ok(Self { file, folder: folder.into(), is_direct })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

/// Makes transfers bypass the page cache (`O_DIRECT`) if a test write shows that the file system supports it. Returns
/// whether it does.
fn make_direct(file: &File, chunk: &Chunk) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_ok() && file.write_all_at(&chunk.bytes()[..DISK_BLOCK], 0).is_ok() {
        return Ok(true);
    }
    fcntl_setfl(file, flags)?;
    Ok(false)
}

/// Returns the device number of a folder's file system.
pub(super) fn file_system_of(folder: &Path) -> Result<u64, TierError> {
    Ok(stat(folder).map_err(TierError::system(folder.display(), "stat"))?.st_dev)
}

/// Returns the bytes of a folder's file system that this process may still allocate.
pub(super) fn free_bytes(folder: &Path) -> Result<u64, TierError> {
    let free = statvfs(folder).map_err(TierError::system(folder.display(), "statvfs"))?;
    Ok(free.f_bavail.saturating_mul(free.f_frsize))
}
