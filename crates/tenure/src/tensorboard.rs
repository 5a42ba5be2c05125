//! Writes event files for TensorBoard.
//!
//! A file is records (TFRecord): the length in 8 bytes, its checksum, the bytes of an `Event` (protobuf, `event.proto`
//! of TensorFlow), their checksum; numbers are little-endian.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

/// The part of TensorFlow's `Event` that is written.
#[derive(Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Scalar>,
}

#[derive(Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

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
        let file_version = Some("brain.Event:2".into());
        writer.write(&Event { wall_time: wall_time(), step: 0, file_version, summary: None })?;
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
        let scalar = |(tag, number): &(&str, f64)| Scalar { tag: (*tag).into(), simple_value: Some(*number as f32) };
        let summary = Some(Summary { values: scalars.iter().map(scalar).collect() });
        let step = step.try_into().map_err(io::Error::other)?;
        self.write(&Event { wall_time: wall_time(), step, file_version: None, summary })
    }

    /// Writes a record in one call, so that a reader sees it whole or not at all.
    fn write(&mut self, event: &Event) -> io::Result<()> {
        let event = &event.encode_to_vec()[..];
        let length = (event.len() as u64).to_le_bytes();
        let parts = [&length[..], &checksum(&length).to_le_bytes(), event, &checksum(event).to_le_bytes()];
        self.file.write_all(&parts.concat())
    }
}

/// Returns the masked CRC-32C; the mask avoids weak checksums of bytes that contain checksums.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
