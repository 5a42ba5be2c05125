//! Files of data, which gzip may have packed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tenure_core::user_files::expect_fetched;

use super::{DataError, Result};

/// A gzip file's first bytes. RFC 1952.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Opens a file. One that gzip has packed is unpacked as it is read, whatever its name is.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>> {
    let mut file = BufReader::new(File::open(path).map_err(DataError::io(path))?);
    let beginning = file.fill_buf().map_err(DataError::io(path))?;
    expect_fetched(beginning).map_err(DataError::io(path))?;
    let is_packed = beginning.starts_with(&GZIP);
    Ok(if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) })
}
