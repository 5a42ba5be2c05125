//! Writes event files for TensorBoard.
//!
//! A file is records (TFRecord): the length in 8 bytes, its checksum, the bytes of an `Event` (protobuf, `event.proto`
//! of TensorFlow), their checksum; numbers are little-endian. The events written here have `wall_time` (field 1,
//! double), `step` (2, varint), `file_version` (3, string) in the first one, and `summary` (5) with repeated `value`
//! (1), each of `tag` (1, string) and `simple_value` (2, float).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

/// The wire types of protobuf.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// A writer of event files: figures over steps.
///
/// ```
/// use tenure::tensorboard::EventWriter;
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let mut events = EventWriter::create(folder)?; // then: tensorboard --logdir FOLDER
/// events.scalars(1, &[("loss", 2.3), ("learning_rate", 0.1)])?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates a new file in `folder`, and the folder if it does not exist. TensorBoard shows the files of a folder as
    /// one run.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let seconds = wall_time() as u64;
        let mut number = 0_u32;
        let (path, file) = loop {
            let path = folder.join(format!("events.out.tfevents.{seconds}.tenure.{}.{number}", process::id()));
            match File::options().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                opened => break (path, opened?),
            }
        };
        let mut writer = Self { path, file };
        let mut event = Vec::new();
        put_double(&mut event, 1, wall_time());
        put_bytes(&mut event, 3, b"brain.Event:2");
        writer.write(&event)?;
        Ok(writer)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the figures of a step, by name. They are in the file when this returns.
    ///
    /// # Errors
    /// The file system returned an error.
    pub fn scalars(&mut self, step: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Vec::new();
        for (name, number) in scalars {
            let mut value = Vec::new();
            put_bytes(&mut value, 1, name.as_bytes());
            put_key(&mut value, 2, FIXED32);
            value.extend((*number as f32).to_le_bytes());
            put_bytes(&mut summary, 1, &value);
        }
        let mut event = Vec::new();
        put_double(&mut event, 1, wall_time());
        put_key(&mut event, 2, VARINT);
        put_varint(&mut event, step);
        put_bytes(&mut event, 5, &summary);
        self.write(&event)
    }

    /// Writes a record in one call, so that a reader sees it whole or not at all.
    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let parts = [&length[..], &checksum(&length).to_le_bytes(), event, &checksum(event).to_le_bytes()];
        self.file.write_all(&parts.concat())
    }
}

/// Returns the masked CRC-32C; the mask avoids weak checksums of bytes that contain checksums.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn put_key(out: &mut Vec<u8>, field: u64, wire_type: u64) {
    put_varint(out, field << 3 | wire_type);
}

fn put_double(out: &mut Vec<u8>, field: u64, value: f64) {
    put_key(out, field, FIXED64);
    out.extend(value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_key(out, field, BYTES);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// Writes seven bits per byte, the lowest first.
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns the seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
