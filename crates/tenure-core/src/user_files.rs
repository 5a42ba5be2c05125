//! Files as other programs leave them, whatever their format is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const BYTE_ORDER_MARK: &str = "\u{feff}";
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Returns the bytes of a text in UTF-8 without the byte order mark that some editors begin files with.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes)
}

/// Returns a text without the byte order mark that some editors begin files with.
pub fn text_without_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Refuses a file that begins with `bytes` if it is a pointer of git-lfs: a small text that stands for a large file until
/// that is fetched.
///
/// # Errors
/// It is a pointer: [`io::ErrorKind::InvalidData`], with how to fetch the file. Source:
/// <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>
pub fn expect_fetched(bytes: &[u8]) -> io::Result<()> {
    match bytes.starts_with(LFS_POINTER) {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "this is a git-lfs pointer, not the file that it stands for: run `git lfs pull` in the repository it is \
             from, or download the file itself",
        )),
        false => Ok(()),
    }
}

/// Refuses an open file that is a pointer of git-lfs, as [`expect_fetched`] does. The next read begins where it would have.
///
/// # Errors
/// It is a pointer, or cannot be read.
pub fn expect_fetched_file(file: &File) -> io::Result<()> {
    let mut beginning = [0; LFS_POINTER.len()];
    match file.read_exact_at(&mut beginning, 0) {
        Ok(()) => expect_fetched(&beginning),
        // Too short for a pointer.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(error),
    }
}
