//! Files that appear whole or not at all, and what their readers say in one line.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use serde::Serialize;
use tenure_core::user_files::{expect_no_utf_16, open_unpacked};

/// Writes beside `path` and renames when everything is there, so that nobody ever sees a part.
pub(crate) fn write_atomically(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Made by ourselves, not only for the owner's eyes, and with errors that do not name a file that nobody knows.
    let make = |path: &Path| File::options().write(true).create_new(true).open(path);
    let mut file = tempfile::Builder::new().prefix(".tenure-").make_in(folder, make)?;
    content(&mut BufWriter::new(file.as_file_mut()))?;
    // A file that is replaced keeps its permissions.
    if let Ok(replaced) = fs::metadata(path) {
        file.as_file().set_permissions(replaced.permissions())?;
    }
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// The same, of JSON.
pub(crate) fn write_json(path: &Path, content: &impl Serialize) -> io::Result<()> {
    write_atomically(path, |out| Ok(serde_json::to_writer(&mut *out, content)?).and_then(|()| out.flush()))
}

/// Reads a text in UTF-8, which gzip may have packed.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_unpacked(path)?.read_to_end(&mut bytes)?;
    expect_no_utf_16(&bytes)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// What is wrong with a text, which may repeat a part of it, as one line.
pub(crate) fn one_line(error: &serde_json::Error) -> String {
    error.to_string().replace(char::is_control, " ")
}
