//! Files as bytes in memory, read when they are looked at.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A file's bytes. Pages come from the system's cache when they are read, so that opening a large file costs nothing.
///
/// Nobody may change the file meanwhile: what is then read is any bytes, and a file that was cut off ends the program
/// (`SIGBUS`). A file that is replaced by `rename`, as checkpoints are, is safe: the mapping keeps the old one.
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// Those of opening and mapping it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(&File::open(path)?)
    }

    /// Maps the whole of a file that is open.
    ///
    /// # Errors
    /// Those of mapping it.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the file is read only; that nobody changes it is the caller's part, as said above.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self { map })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
