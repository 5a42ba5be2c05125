//! Files that other programs wrote: byte order marks, UTF-16, compression, pointers of git-lfs, and paths that are no
//! files.

mod packed;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub use packed::{expect_no_archive, open_unpacked};

const BYTE_ORDER_MARK: &str = "\u{feff}";
const PDF: &[u8] = b"%PDF-";
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Returns the bytes of a text in UTF-8 without the byte order mark that some editors begin files with.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes)
}

/// Returns a text without the byte order mark that some editors begin files with.
pub fn text_without_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Returns an error if a file that begins with `bytes` is a pointer of git-lfs: a small text that stands for a large
/// file until that is fetched.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if it is a pointer. The message says how to fetch the file. Source:
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

/// Returns an error if a text that begins with `bytes` is UTF-16, as some editors and shells write it.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if it is UTF-16, with a byte order mark or without. The message says how to convert
/// it to UTF-8.
pub fn expect_no_utf_16(bytes: &[u8]) -> io::Result<()> {
    let is_utf_16 = match *bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => true,
        [a, 0, b, 0, ..] | [0, a, 0, b, ..] => a.is_ascii_graphic() && b.is_ascii_graphic(),
        _ => false,
    };
    match is_utf_16 {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "this is UTF-16, not UTF-8: convert it, such as by `iconv -f UTF-16 -t UTF-8`",
        )),
        false => Ok(()),
    }
}

/// Returns an error if bytes are no text in UTF-8, such as a pickle or a database. A last character that is cut off, as
/// `head -c` leaves it, is no error.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`]. The message says how to convert a text of another encoding.
pub fn expect_text(bytes: &[u8]) -> io::Result<()> {
    let reason = if bytes.starts_with(PDF) {
        "this is a PDF, not a text: convert it, such as by `pdftotext`".to_owned()
    } else if let Some(offset) = bytes.iter().position(|byte| *byte == 0) {
        format!("this is binary data, not a text: the byte at offset {offset} is zero: give a text in UTF-8")
    } else if let Err(error) = str::from_utf8(bytes)
        && error.error_len().is_some()
    {
        format!(
            "this is not a text in UTF-8: the byte at offset {} is not part of one: if it is a text in another encoding, \
             convert it, such as by `iconv -f LATIN1 -t UTF-8`",
            error.valid_up_to()
        )
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, reason))
}

/// Opens a regular file, and never waits: opening a named pipe would wait for a writer.
///
/// # Errors
/// The file cannot be opened, or is a pipe, a socket, a device or a folder.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // The open file is looked at, because another program may replace the path between a look and the opening.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a regular file")),
    }
}

/// Returns an error if an open file is a pointer of git-lfs, as [`expect_fetched`] does. The file's position stays the
/// same.
///
/// # Errors
/// The file is a pointer, or cannot be read.
pub fn expect_fetched_file(file: &File) -> io::Result<()> {
    let mut beginning = [0; LFS_POINTER.len()];
    match file.read_exact_at(&mut beginning, 0) {
        Ok(()) => expect_fetched(&beginning),
        // The file is too short for a pointer.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(error),
    }
}
