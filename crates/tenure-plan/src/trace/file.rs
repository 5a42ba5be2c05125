//! File formats of traces, and how they are detected.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use tenure_core::atomic_files::write_atomically;
use tenure_core::user_files::expect_fetched;

use super::{Input, ReadOptions, Trace, TraceError, compact, snapshot, snapshot_writer};

/// The format in which a trace is written. Reading detects the format by the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tenure's own, `.ttrace`.
    Compact,
    /// A PyTorch snapshot, `.pickle`.
    Pickle,
    /// A PyTorch snapshot compressed with xz, `.pickle.xz`.
    PickleXz,
    /// A PyTorch snapshot compressed with gzip, `.pickle.gz`.
    PickleGz,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Compact, Self::Pickle, Self::PickleXz, Self::PickleGz];

    /// Returns the extension of the format's files.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Compact => ".ttrace",
            Self::Pickle => ".pickle",
            Self::PickleXz => ".pickle.xz",
            Self::PickleGz => ".pickle.gz",
        }
    }

    /// Returns the format that the extension of `path` names.
    pub fn from_path(path: impl AsRef<Path>) -> Option<Self> {
        let name = path.as_ref().file_name()?.to_str()?;
        Self::ALL.into_iter().find(|format| name.ends_with(format.extension()))
    }
}

pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Trace, TraceError> {
    let open = || read_from(File::open(path)?, &source_name(path), options);
    open().map_err(|error| error.in_file(path))
}

pub(super) fn read_from(reader: impl Read, name: &str, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut input = Input::open(reader, options.decoded_bytes)?;
    expect_fetched(input.head())?;
    if input.head().starts_with(&compact::MAGIC) {
        compact::read(&mut input, options)
    } else if let Some(what) = other_format(input.head()) {
        Err(TraceError::OtherFormat { what })
    } else {
        snapshot::read(&mut input, name, options)
    }
}

/// Returns the format of a file that begins with `head`, if it is a known format that holds no trace.
fn other_format(head: &[u8]) -> Option<&'static str> {
    const FORMATS: [(&[u8], &str); 15] = [
        (b"PK\x03\x04", "a zip archive (unpack it first)"),
        (b"PK\x05\x06", "an empty zip archive"),
        // `torch.serialization.MAGIC_NUMBER`, pickled.
        (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", "a file of torch.save"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"\x93NUMPY", "a NumPy array"),
        (b"\x28\xb5\x2f\xfd", "a file compressed with zstd (decompress it first)"),
        (b"BZh", "a file compressed with bzip2 (decompress it first)"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive (unpack it first)"),
        (b"PAR1", "a Parquet file"),
        (b"\x7fELF", "a program"),
        (b"{", "JSON"),
        (b"[]", "an empty JSON list"),
        (b"[", "JSON"),
        (b"<", "HTML or XML"),
    ];
    let (magic, what) = FORMATS.into_iter().find(|(magic, _)| head.starts_with(magic))?;
    // The first file of an archive by torch.save.
    let is_torch_save = magic == b"PK\x03\x04" && head.windows(9).any(|name| name == b"/data.pkl");
    Some(if is_torch_save { "a file of torch.save" } else { what })
}

/// Returns the file's name without the format's extension.
pub(super) fn source_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let stem = Format::from_path(path).and_then(|format| name.strip_suffix(format.extension()));
    stem.filter(|stem| !stem.is_empty()).unwrap_or(&name).into()
}

pub(super) fn write(trace: &Trace, path: &Path, format: Format) -> Result<(), TraceError> {
    let written = write_atomically(path, |out| write_to(trace, out, format));
    written.map_err(|error| TraceError::Io(error).in_file(path))
}

pub(super) fn write_to(trace: &Trace, out: impl Write, format: Format) -> io::Result<()> {
    match format {
        Format::Compact => compact::write(trace, out),
        Format::Pickle => snapshot_writer::write(trace, out),
        Format::PickleXz => {
            let mut encoder = XzEncoder::new(out, 6);
            snapshot_writer::write(trace, &mut encoder)?;
            encoder.finish()?.flush()
        }
        Format::PickleGz => {
            let mut encoder = GzEncoder::new(out, flate2::Compression::default());
            snapshot_writer::write(trace, &mut encoder)?;
            encoder.finish()?.flush()
        }
    }
}

pub(super) fn left_out(trace: &Trace, format: Format) -> Option<String> {
    if format != Format::Compact {
        return None;
    }
    let labelled = (0..trace.events.len()).filter(|&event| trace.labels.of_event(event).is_some()).count();
    let parts = [
        (trace.stacks.len().saturating_sub(1), "call stacks"),
        (labelled, "events' tags, compile contexts and pools"),
        (trace.annotations.len(), "annotations"),
        (trace.segments.len(), "segments with their blocks at the end"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let parts = parts.collect::<Vec<_>>().join(", ");
    let extension = format.extension();
    (!parts.is_empty())
        .then(|| format!("a {extension} file holds events only, so it lacks {parts}; a .pickle keeps them"))
}
