//! Pointers of git-lfs: small texts that stand for large files until these are fetched.
//! <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>

use std::fs::File;
use std::os::unix::fs::FileExt;

const BEGINNING: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The error for a file that holds a pointer instead of its content.
pub(crate) const POINTER: &str = "this is a git-lfs pointer, not the file that it stands for: run `git lfs pull` in the repository it is from, or \
     download the file itself";

/// Whether a file that begins with these bytes is a pointer.
pub(crate) fn is_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(BEGINNING)
}

/// Whether a file holds a pointer.
pub(crate) fn is_pointer_file(file: &File) -> bool {
    let mut beginning = [0; BEGINNING.len()];
    file.read_exact_at(&mut beginning, 0).is_ok() && is_pointer(&beginning)
}
