//! Compressed files, told by their first bytes, and archives, which are refused.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::expect_fetched;

/// Source: RFC 1952.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// Source: <https://tukaani.org/xz/xz-file-format.txt>
const XZ: &[u8] = b"\xfd7zXZ\0";
const BZIP2: &[u8] = b"BZh";
/// The bytes of a block or of an empty file's end, after the digit that follows [`BZIP2`]. A text has none of both.
const BZIP2_BLOCKS: [&[u8]; 2] = [&[0x31, 0x41, 0x59, 0x26, 0x53, 0x59], &[0x17, 0x72, 0x45, 0x38, 0x50, 0x90]];
/// Source: RFC 8878.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The size of the contents of a file of `lzma` is below this; otherwise liblzma takes it for another file.
const LZMA_MOST_BYTES: u64 = 1 << 38;

/// How often a file may have been compressed: `a.txt.xz.gz` was twice. There are files that decompress to themselves,
/// without end.
const MOST_LAYERS: usize = 3;
/// The number of bytes by which a format is told, at least. A tar archive's mark ends within them.
const BEGINNING_BYTES: u64 = 512;

/// The memory limit of the xz decoder; `xz -9` needs 65 MiB.
const XZ_MEMORY_BYTES: u64 = 128 << 20;

/// Files that are not unpacked: the offset and the bytes of a mark, the name, and a program that unpacks it.
const REFUSED: [(usize, &[u8], &str, &str); 9] = [
    (0, b"PK\x03\x04", "a zip archive", "unzip"),
    (0, b"PK\x05\x06", "an empty zip archive", "unzip"),
    (257, b"ustar", "a tar archive", "tar -xf"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "7z x"),
    (0, b"Rar!\x1a\x07", "a RAR archive", "unrar x"),
    (0, &[0x04, 0x22, 0x4d, 0x18], "compressed by lz4", "lz4 -d"),
    (0, b"LZIP\x01", "compressed by lzip", "lzip -d"),
    (0, b"\x89LZO\0\r\n\x1a\n", "compressed by lzop", "lzop -d"),
    (0, &[0x1f, 0x9d], "compressed by compress", "gzip -d"),
];

/// A format that is decompressed.
#[derive(Clone, Copy)]
enum Format {
    Gzip,
    Xz,
    Lzma,
    Bzip2,
    Zstd,
}

/// Opens a file, and returns an error if it is a pointer of git-lfs. A file that gzip, xz, lzma, bzip2 or zstd
/// compressed, up to three times, is decompressed as it is read, whatever its name is.
///
/// # Errors
/// The file cannot be read, or is a device, which may have no end, or a pointer of git-lfs. Damaged contents are an
/// error of opening or of reading.
pub fn open_unpacked(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let file = File::open(path)?;
    let file_type = file.metadata()?.file_type();
    if file_type.is_char_device() || file_type.is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is a device, not a file: give a file or a pipe"));
    }
    let mut source: Box<dyn BufRead> = Box::new(BufReader::new(file));
    for _ in 0..=MOST_LAYERS {
        // One read of a pipe or of a decoder may return fewer bytes than a mark has.
        let mut beginning = Vec::new();
        source.by_ref().take(BEGINNING_BYTES).read_to_end(&mut beginning)?;
        expect_fetched(&beginning)?;
        let format = Format::of(&beginning);
        source = Box::new(Cursor::new(beginning).chain(source));
        match format {
            Some(format) => source = format.unpack(source)?,
            None => return Ok(source),
        }
    }
    Err(invalid(format!(
        "it is compressed more than {MOST_LAYERS} times: decompress it, and give the file that is in it"
    )))
}

impl Format {
    /// Returns the format of a file that begins with these bytes, if it is one of them.
    fn of(beginning: &[u8]) -> Option<Self> {
        match beginning {
            _ if beginning.starts_with(GZIP) => Some(Self::Gzip),
            _ if beginning.starts_with(XZ) => Some(Self::Xz),
            _ if is_lzma(beginning) => Some(Self::Lzma),
            _ if is_bzip2(beginning) => Some(Self::Bzip2),
            _ if is_zstd(beginning) => Some(Self::Zstd),
            _ => None,
        }
    }

    fn unpack(self, source: Box<dyn BufRead>) -> io::Result<Box<dyn BufRead>> {
        Ok(match self {
            Self::Gzip => unpacked("gzip", MultiGzDecoder::new(source)),
            Self::Xz => unpacked("xz", xz_decoder(source)?),
            Self::Lzma => unpacked("lzma", xz_decoder(source)?),
            Self::Bzip2 => unpacked("bzip2", MultiBzDecoder::new(source)),
            Self::Zstd => unpacked("zstd", ZstdDecoder { source, frame: Box::new(FrameDecoder::new()) }),
        })
    }
}

/// Returns a decoder of xz and of lzma. It refuses bytes that follow the data.
fn xz_decoder(source: Box<dyn BufRead>) -> io::Result<XzDecoder<Box<dyn BufRead>>> {
    let stream = Stream::new_auto_decoder(XZ_MEMORY_BYTES, CONCATENATED)?;
    Ok(XzDecoder::new_stream(source, stream))
}

fn unpacked(format: &'static str, decoder: impl Read + 'static) -> Box<dyn BufRead> {
    Box::new(BufReader::new(Unpacked { format, decoder }))
}

/// Returns an error if a file that begins with `bytes` is an archive, or compressed in a way that [`open_unpacked`]
/// does not read. A tar archive is told by its first 262 bytes.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`]. The message names a program that unpacks the file.
pub fn expect_no_archive(bytes: &[u8]) -> io::Result<()> {
    let mut refused = REFUSED.into_iter();
    match refused.find(|(offset, mark, ..)| bytes.get(*offset..).is_some_and(|rest| rest.starts_with(mark))) {
        Some((_, _, name, program)) => Err(invalid(format!(
            "this is {name}, which is not read: unpack it, such as by `{program}`, and give a file from it"
        ))),
        None => Ok(()),
    }
}

/// Returns whether a file begins as those of `lzma` do. The format has no mark: a byte of parameters, the sizes of the
/// dictionary and of the contents, and the first byte of the data, which is 0. The sizes are checked as liblzma does.
/// Source: <https://github.com/tukaani-project/xz/blob/master/doc/lzma-file-format.txt>
fn is_lzma(beginning: &[u8]) -> bool {
    let Some(([0x5d, a, b, c, d, contents @ ..], [0, ..])) = beginning.split_first_chunk::<13>() else {
        return false;
    };
    let dictionary_bytes = u32::from_le_bytes([*a, *b, *c, *d]);
    let contents_bytes = u64::from_le_bytes(*contents);
    // A power of two, or one and a half.
    let is_dictionary = matches!(dictionary_bytes.checked_shr(dictionary_bytes.trailing_zeros()), Some(1 | 3));
    // Without a size the data has a mark at its end.
    is_dictionary && (contents_bytes == u64::MAX || contents_bytes < LZMA_MOST_BYTES)
}

fn is_bzip2(beginning: &[u8]) -> bool {
    let level = beginning.strip_prefix(BZIP2).and_then(<[u8]>::split_first);
    level.is_some_and(|(level, rest)| level.is_ascii_digit() && BZIP2_BLOCKS.iter().any(|mark| rest.starts_with(mark)))
}

/// Returns whether a file begins with a frame, or with one to skip, with which `pzstd` begins.
fn is_zstd(beginning: &[u8]) -> bool {
    beginning.starts_with(ZSTD) || matches!(beginning, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// A decoder whose errors name the format.
struct Unpacked<D> {
    format: &'static str,
    decoder: D,
}

impl<D: Read> Read for Unpacked<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => {
                let message = format!("its {} data is damaged or cut off, copy it again: {error}", self.format);
                io::Error::new(kind, message)
            }
        })
    }
}

/// A decoder of all frames of a zstd file. Parallel compressors write many, and `ruzstd` decodes one.
struct ZstdDecoder<R> {
    source: R,
    frame: Box<FrameDecoder>,
}

impl<R: BufRead> Read for ZstdDecoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.frame.can_collect() == 0 {
            if !self.frame.is_finished() {
                let block = BlockDecodingStrategy::UptoBlocks(1);
                self.frame.decode_blocks(&mut self.source, block).map_err(io::Error::other)?;
                continue;
            }
            let stated = self.frame.get_checksum_from_data();
            if stated.is_some() && stated != self.frame.get_calculated_checksum() {
                return Err(invalid("its checksum differs".into()));
            }
            if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            match self.frame.reset(&mut self.source) {
                Ok(()) => {}
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        self.frame.read(buffer)
    }
}
