//! Memory-mapped files.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A file's bytes, mapped into memory. The system reads a page when it is first accessed, so opening a large file costs
/// nothing.
///
/// The file must not be changed while it is mapped: reads may then give any bytes, and reading past the end of a
/// truncated file ends the program (`SIGBUS`). Replacing the file by `rename`, as for checkpoints, is safe: the mapping
/// keeps the old file.
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// The file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(&File::open(path)?)
    }

    /// Maps the whole of an open file.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the file is only read; the caller makes sure that it is not changed, as documented above.
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
