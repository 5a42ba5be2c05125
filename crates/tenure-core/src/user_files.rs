//! Files that other programs wrote: byte order marks, UTF-16, gzip, and pointers of git-lfs.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

const BYTE_ORDER_MARK: &str = "\u{feff}";
/// The first bytes of a gzip file. Source: RFC 1952.
const GZIP: [u8; 2] = [0x1f, 0x8b];
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

/// Opens a file, and returns an error if it is a pointer of git-lfs. A gzip file is decompressed as it is read,
/// whatever its name is.
///
/// # Errors
/// The file cannot be read, or is a pointer of git-lfs.
pub fn open_unpacked(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    let beginning = file.fill_buf()?;
    expect_fetched(beginning)?;
    let is_packed = beginning.starts_with(&GZIP);
    Ok(if is_packed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) })
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
