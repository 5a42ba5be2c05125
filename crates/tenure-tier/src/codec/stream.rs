//! Readers and writers of whole tensors, on any number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tenure_core::DType;

use super::span::{CodecFunctions, UNIT};
use super::{BLOCK, Codec, CodecError, Encoded};

/// A function that runs a job once for each number below its first argument, in any order, on any threads, and returns
/// when all are done.
pub type Jobs<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// Runs [`Jobs`] on the calling thread.
pub fn sequential(count: usize, job: &(dyn Fn(usize) + Sync)) {
    (0..count).for_each(job);
}

/// Returns the most bytes of a stream for `raw_bytes` bytes of `dtype`, for any contents and any codec.
///
/// ```
/// use tenure_core::DType;
///
/// assert_eq!(tenure_tier::codec::max_bytes(DType::BF16, 1 << 20), (1 << 20) + 16);
/// ```
pub const fn max_bytes(dtype: DType, raw_bytes: usize) -> usize {
    let table = table_bytes(raw_bytes.div_ceil(BLOCK * dtype.size()));
    // The kernels write the table even if the tensor then stays as it is.
    HEADER + if table > raw_bytes { table } else { raw_bytes }
}

pub(super) const MAGIC: [u8; 4] = *b"TNC1";
pub(super) const HEADER: usize = 16;
/// The number of blocks of a job: a span. They have at most half a megabyte.
const SPAN: usize = 64;
/// The largest tensor that is encoded. In larger ones, the ends of blocks do not fit into 32 bits; they stay unchanged.
pub(super) const MAX_BYTES: usize = UNIT * (u32::MAX as usize >> 1);

pub(super) const fn table_bytes(blocks: usize) -> usize {
    (4 * blocks).next_multiple_of(UNIT)
}

/// A tensor about to be encoded. The length of its stream is known before a byte of it is written.
///
/// ```
/// use tenure_core::DType;
/// use tenure_tier::codec::{Codec, StreamReader, StreamWriter};
///
/// // As many threads as there are jobs; a program has its own.
/// let threads = |count: usize, job: &(dyn Fn(usize) + Sync)| {
///     std::thread::scope(|scope| (0..count).for_each(|number| drop(scope.spawn(move || job(number)))));
/// };
/// let tensor = vec![0_u8; 1 << 20];
/// let writer = StreamWriter::new(Codec::Zeros, DType::BF16, &tensor, &threads);
/// let mut stream = vec![1; writer.encoded().bytes];
/// writer.write(&mut stream, &threads);
/// let mut back = vec![1; 1 << 20];
/// StreamReader::new(&stream)?.read(&mut back, &threads)?;
/// assert_eq!(back, tensor);
/// # Ok::<(), tenure_tier::codec::CodecError>(())
/// ```
pub struct StreamWriter<'a> {
    raw: &'a [u8],
    encoded: Encoded,
    /// The bytes of an element.
    width: usize,
    blocks: Option<EncodedBlocks>,
}

/// The blocks of an encoded stream.
struct EncodedBlocks {
    functions: CodecFunctions,
    /// The end of each block in the payload, in units.
    ends: Vec<u32>,
}

impl<'a> StreamWriter<'a> {
    /// Measures the blocks of a tensor.
    pub fn new(codec: Codec, dtype: DType, raw: &'a [u8], jobs: &Jobs<'_>) -> Self {
        let functions = CodecFunctions::new(codec, dtype).filter(|_| raw.len() <= MAX_BYTES);
        let blocks = functions.map(|functions| EncodedBlocks::measure(functions, raw, jobs));
        let blocks = blocks.filter(|blocks| blocks.stream_bytes() < HEADER + raw.len());
        let (codec, bytes) = match &blocks {
            Some(blocks) => (blocks.functions.codec, blocks.stream_bytes()),
            None => (Codec::None, HEADER + raw.len()),
        };
        Self { raw, encoded: Encoded { codec, raw_bytes: raw.len(), bytes }, width: dtype.size(), blocks }
    }

    /// Returns the result that [`write`](Self::write) will have.
    pub fn encoded(&self) -> Encoded {
        self.encoded
    }

    /// Writes the stream.
    ///
    /// # Panics
    /// If `into` does not have as many bytes as [`encoded`](Self::encoded) says.
    pub fn write(&self, into: &mut [u8], jobs: &Jobs<'_>) {
        assert_eq!(into.len(), self.encoded.bytes, "a stream is written into as many bytes as it has");
        let (header, rest) = into.split_at_mut(HEADER);
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&[self.encoded.codec as u8, self.width as u8, 0, 0]);
        header[8..].copy_from_slice(&(self.raw.len() as u64).to_le_bytes());
        let Some(blocks) = &self.blocks else { return rest.copy_from_slice(self.raw) };
        let (table, payload) = rest.split_at_mut(table_bytes(blocks.ends.len()));
        table[4 * blocks.ends.len()..].fill(0);
        for (target, end) in table.chunks_exact_mut(4).zip(&blocks.ends) {
            target.copy_from_slice(&end.to_le_bytes());
        }
        let spans = Mutex::new(Vec::new());
        let mut rest = payload;
        for span in 0..blocks.spans() {
            let (target, after) = std::mem::take(&mut rest).split_at_mut(blocks.bytes_of(span).len());
            spans.lock().push(Some(target));
            rest = after;
        }
        jobs(blocks.spans(), &|span| {
            let Some(target) = spans.lock()[span].take() else { return };
            let raw = raw_span(self.raw, span, blocks.functions);
            (blocks.functions.encode)(raw, &mut blocks.units_of(span), target);
        });
    }
}

/// An encoded tensor whose header and table are valid for the whole stream.
pub struct StreamReader<'a> {
    encoded: Encoded,
    blocks: Option<EncodedBlocks>,
    payload: &'a [u8],
}

impl<'a> StreamReader<'a> {
    /// Checks the header and the table.
    ///
    /// # Errors
    /// [`CodecError`] if `stream` is not a stream or not a whole one.
    pub fn new(stream: &'a [u8]) -> Result<Self, CodecError> {
        let cut = |expected| CodecError::Length { bytes: stream.len(), expected };
        let (header, rest) = stream.split_at_checked(HEADER).ok_or(cut(HEADER))?;
        let &[m0, m1, m2, m3, codec, width, 0, 0, ref raw_bytes @ ..] = header else { return Err(CodecError::Header) };
        let codec = *Codec::ALL.get(usize::from(codec)).ok_or(CodecError::Header)?;
        let raw_bytes = raw_bytes.try_into().map_or(u64::MAX, u64::from_le_bytes);
        // A larger number fails below too, but must not overflow.
        let raw_bytes = usize::try_from(raw_bytes).ok().filter(|bytes| *bytes <= usize::MAX >> 2);
        let (MAGIC, Some(raw_bytes)) = ([m0, m1, m2, m3], raw_bytes) else { return Err(CodecError::Header) };
        let encoded = Encoded { codec, raw_bytes, bytes: stream.len() };
        if codec == Codec::None {
            let is_whole = rest.len() == raw_bytes;
            return is_whole.then_some(Self { encoded, blocks: None, payload: rest }).ok_or(cut(HEADER + raw_bytes));
        }
        let functions = CodecFunctions::of_width(codec, width.into()).filter(|_| raw_bytes <= MAX_BYTES);
        let functions = functions.ok_or(CodecError::Header)?;
        let count = raw_bytes.div_ceil(functions.block_bytes());
        let (table, payload) = rest.split_at_checked(table_bytes(count)).ok_or(cut(HEADER + table_bytes(count)))?;
        let ends = table.chunks_exact(4).take(count).map(|end| end.try_into().map_or(u32::MAX, u32::from_le_bytes));
        let blocks = EncodedBlocks { functions, ends: ends.collect() };
        if let Some(block) = (1..count).find(|block| blocks.ends[block - 1] > blocks.ends[*block]) {
            return Err(CodecError::Block { block });
        }
        if stream.len() != blocks.stream_bytes() {
            return Err(cut(blocks.stream_bytes()));
        }
        Ok(Self { encoded, blocks: Some(blocks), payload })
    }

    /// Returns the tensor's codec and sizes.
    pub fn encoded(&self) -> Encoded {
        self.encoded
    }

    /// Decodes the tensor.
    ///
    /// # Errors
    /// [`CodecError::Size`], and [`CodecError::Block`], after which the contents of `into` are unspecified.
    pub fn read(&self, into: &mut [u8], jobs: &Jobs<'_>) -> Result<(), CodecError> {
        let raw_bytes = self.encoded.raw_bytes;
        if into.len() != raw_bytes {
            return Err(CodecError::Size { raw_bytes, given: into.len() });
        }
        let Some(blocks) = &self.blocks else {
            into.copy_from_slice(self.payload);
            return Ok(());
        };
        let spans = Mutex::new(into.chunks_mut(SPAN * blocks.functions.block_bytes()).map(Some).collect::<Vec<_>>());
        let first_bad = AtomicUsize::new(usize::MAX);
        jobs(blocks.spans(), &|span| {
            let Some(raw) = spans.lock()[span].take() else { return };
            let bytes = &self.payload[blocks.bytes_of(span)];
            if let Err(block) = (blocks.functions.decode)(bytes, &mut blocks.units_of(span), raw) {
                first_bad.fetch_min(SPAN * span + block, Ordering::Relaxed);
            }
        });
        match first_bad.into_inner() {
            usize::MAX => Ok(()),
            block => Err(CodecError::Block { block }),
        }
    }
}

/// Returns a span's part of a tensor.
fn raw_span(raw: &[u8], span: usize, functions: CodecFunctions) -> &[u8] {
    let bytes = SPAN * functions.block_bytes();
    &raw[span * bytes..raw.len().min((span + 1) * bytes)]
}

impl EncodedBlocks {
    /// Measures all blocks of a tensor.
    fn measure(functions: CodecFunctions, raw: &[u8], jobs: &Jobs<'_>) -> Self {
        let mut ends = vec![0; raw.len().div_ceil(functions.block_bytes())];
        let spans = Mutex::new(ends.chunks_mut(SPAN).map(Some).collect::<Vec<_>>());
        let count = spans.lock().len();
        jobs(count, &|span| {
            let Some(units) = spans.lock()[span].take() else { return };
            (functions.measure)(raw_span(raw, span, functions), units);
        });
        drop(spans);
        let mut end = 0;
        for units in &mut ends {
            end += *units;
            *units = end;
        }
        Self { functions, ends }
    }

    /// Returns the number of spans, which are jobs.
    fn spans(&self) -> usize {
        self.ends.len().div_ceil(SPAN)
    }

    /// Returns the start of a block in the payload, in units.
    fn start(&self, block: usize) -> usize {
        block.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }

    /// Returns the range of a span's bytes in the payload.
    fn bytes_of(&self, span: usize) -> std::ops::Range<usize> {
        let last = self.ends.len().min((span + 1) * SPAN);
        UNIT * self.start(span * SPAN)..UNIT * self.start(last)
    }

    /// Returns the lengths of a span's blocks, in units.
    fn units_of(&self, span: usize) -> impl Iterator<Item = usize> {
        let blocks = span * SPAN..self.ends.len().min((span + 1) * SPAN);
        blocks.map(|block| self.ends[block] as usize - self.start(block))
    }

    fn stream_bytes(&self) -> usize {
        HEADER + table_bytes(self.ends.len()) + UNIT * self.start(self.ends.len())
    }
}
