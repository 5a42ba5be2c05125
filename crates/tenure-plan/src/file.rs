//! Reads and writes files of JSON and text; shortens parser errors to one line.

use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;
use tenure_core::atomic_files::write_atomically;
use tenure_core::user_files::{expect_no_utf_16, open_unpacked};

/// Writes JSON, [atomically](write_atomically).
pub(crate) fn write_json(path: &Path, content: &impl Serialize) -> io::Result<()> {
    write_atomically(path, |out| Ok(serde_json::to_writer(out, content)?))
}

/// Reads a text in UTF-8, plain or compressed: see [`open_unpacked`].
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_unpacked(path)?.read_to_end(&mut bytes)?;
    expect_no_utf_16(&bytes)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns the error of a text, which may quote a part of the text, as one line.
pub(crate) fn one_line(error: &serde_json::Error) -> String {
    error.to_string().replace(char::is_control, " ")
}
