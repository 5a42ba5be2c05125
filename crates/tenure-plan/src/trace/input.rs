//! The input of a trace: decompressed bytes, counted and limited.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use super::{TraceError, reserve};

const XZ_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The memory limit of the xz decoder; `xz -9` needs 65 MiB.
const XZ_MEMORY_BYTES: u64 = 128 << 20;
const BUFFER_BYTES: usize = 64 << 10;
/// Long enough to detect every format, and to see the name of a zip archive's first file.
const HEAD_BYTES: usize = 128;

/// The decompressed bytes of a trace, counted and limited.
pub(crate) struct Input<'a> {
    content: Box<dyn Read + 'a>,
    head: Vec<u8>,
    /// Bytes read from `content`; those from `next` on are not consumed yet.
    buffer: Vec<u8>,
    next: usize,
    /// The offset of the buffer in the content.
    buffer_offset: u64,
    limit: u64,
    compression: Option<&'static str>,
    compressed_offset: Rc<Cell<u64>>,
}

impl<'a> Input<'a> {
    /// Opens a reader. Decompresses xz and gzip, detected by their magic numbers; accepts at most `limit` bytes of
    /// content.
    pub(crate) fn open(reader: impl Read + 'a, limit: u64) -> Result<Self, TraceError> {
        let compressed_offset = Rc::new(Cell::new(0));
        let counted = Counted { reader, offset: Rc::clone(&compressed_offset) };
        let (head, raw) = peek(BufReader::with_capacity(BUFFER_BYTES, counted))?;
        let (compression, content): (_, Box<dyn Read + 'a>) = if head.starts_with(&XZ_MAGIC) {
            let stream = Stream::new_stream_decoder(XZ_MEMORY_BYTES, CONCATENATED).map_err(io::Error::from)?;
            (Some("xz"), Box::new(XzDecoder::new_stream(raw, stream)))
        } else if head.starts_with(&GZIP_MAGIC) {
            (Some("gzip"), Box::new(MultiGzDecoder::new(raw)))
        } else {
            (None, Box::new(raw))
        };
        let mut input = Self {
            content,
            head: Vec::new(),
            buffer: Vec::new(),
            next: 0,
            buffer_offset: 0,
            limit,
            compression,
            compressed_offset,
        };
        while input.buffer.len() < HEAD_BYTES && input.read_more()? > 0 {}
        input.head = input.buffer.iter().copied().take(HEAD_BYTES).collect();
        Ok(input)
    }

    /// Returns the first bytes of the content, up to 128, without consuming them.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the bytes of content consumed so far.
    pub(crate) fn offset(&self) -> u64 {
        self.buffer_offset + self.next as u64
    }

    /// Reads the next byte.
    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, TraceError> {
        let byte = match self.buffer.get(self.next) {
            Some(&byte) => byte,
            None => self.fill_some()?[0],
        };
        self.next += 1;
        Ok(byte)
    }

    /// Reads the next `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        if let Some(&bytes) = self.buffer[self.next..].first_chunk() {
            self.next += N;
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            let available = self.fill_some()?;
            let taken = available.len().min(N - filled);
            bytes[filled..filled + taken].copy_from_slice(&available[..taken]);
            filled += taken;
            self.next += taken;
        }
        Ok(bytes)
    }

    /// Replaces `bytes` by the next `count` bytes. Memory grows with the bytes that exist, not with `count`.
    pub(crate) fn exactly(&mut self, count: usize, bytes: &mut Vec<u8>) -> Result<(), TraceError> {
        bytes.clear();
        while bytes.len() < count {
            let missing = count - bytes.len();
            let available = self.fill_some()?;
            let taken = available.len().min(missing);
            reserve(bytes, taken)?;
            bytes.extend_from_slice(&available[..taken]);
            self.next += taken;
        }
        Ok(())
    }

    /// Replaces `bytes` by the bytes before the next line feed, at most `limit`; skips the line feed.
    pub(crate) fn line(&mut self, limit: usize, bytes: &mut Vec<u8>) -> Result<(), TraceError> {
        bytes.clear();
        loop {
            match self.byte()? {
                b'\n' => return Ok(()),
                _ if bytes.len() == limit => {
                    return Err(TraceError::TooLarge { offset: self.offset(), what: "a line", limit: limit as u64 });
                }
                byte => bytes.push(byte),
            }
        }
    }

    /// Checks that the content ends here. Compressed data is checked to its end.
    pub(crate) fn finish(&mut self) -> Result<(), TraceError> {
        if self.fill()?.is_empty() {
            return Ok(());
        }
        Err(TraceError::Trailing { offset: self.offset() })
    }

    fn fill_some(&mut self) -> Result<&[u8], TraceError> {
        let offset = self.offset();
        let available = self.fill()?;
        match available {
            [] if offset == 0 => Err(TraceError::Empty),
            [] => Err(TraceError::Truncated { offset }),
            _ => Ok(available),
        }
    }

    /// Returns the rest of the buffer and fills it again if it is empty; returns an empty slice at the end of the
    /// content.
    fn fill(&mut self) -> Result<&[u8], TraceError> {
        if self.next == self.buffer.len() {
            self.buffer_offset += self.next as u64;
            self.next = 0;
            self.buffer.clear();
            self.read_more()?;
        }
        Ok(&self.buffer[self.next..])
    }

    /// Adds to the buffer, up to the first byte over the limit.
    fn read_more(&mut self) -> Result<usize, TraceError> {
        let end = self.buffer_offset + self.buffer.len() as u64;
        if end > self.limit {
            return Err(TraceError::TooLarge { offset: end, what: "decompressed content", limit: self.limit });
        }
        let filled = self.buffer.len();
        let room = (self.limit - end).saturating_add(1).min(BUFFER_BYTES as u64) as usize;
        reserve(&mut self.buffer, room)?;
        self.buffer.resize(filled + room, 0);
        let count = loop {
            match self.content.read(&mut self.buffer[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.buffer.truncate(filled + count.as_ref().map_or(0, |&count| count));
        count.map_err(|error| explain(error, self.compression, end, self.compressed_offset.get()))
    }
}

/// Returns the first bytes of `reader`, and a reader that still yields them.
fn peek<'a>(mut reader: impl BufRead + 'a) -> io::Result<(Vec<u8>, impl BufRead + 'a)> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    reader.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok((head.clone(), io::Cursor::new(head).chain(reader)))
}

fn explain(error: io::Error, compression: Option<&'static str>, offset: u64, compressed_offset: u64) -> TraceError {
    match (compression, error.kind()) {
        (Some(format), io::ErrorKind::UnexpectedEof) => {
            TraceError::TruncatedCompression { format, compressed_bytes: compressed_offset, offset }
        }
        (Some(format), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other) => {
            TraceError::Compression { format, offset: compressed_offset, reason: error.to_string() }
        }
        _ => TraceError::Io(error),
    }
}

/// A reader that counts the bytes read through it.
struct Counted<R> {
    reader: R,
    offset: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.offset.set(self.offset.get() + count as u64);
        Ok(count)
    }
}
