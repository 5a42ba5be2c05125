//! A reader of existing files, such as a model's weights. It bypasses the system's page cache and reads several parts
//! at once.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::TierError;
use crate::disk::{CHUNK, Chunk, DISK_BLOCK, StagingMemory, join_unless_current};

/// The number of threads, each with one read at a time. A disk reaches full speed with a few reads of 1 MiB.
const THREADS: usize = 8;

/// A file to read in parts.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl SourceFile {
    /// Opens a file. Bypasses the system's page cache if the file system supports it, so that weights are not in memory
    /// twice.
    ///
    /// # Errors
    /// The file cannot be opened, or `path` is not a file.
    pub fn open(path: &Path) -> Result<Self, TierError> {
        let file = File::open(path).map_err(TierError::system(path.display(), "open"))?;
        let metadata = file.metadata().map_err(TierError::system(path.display(), "stat"))?;
        if !metadata.is_file() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it is not a file");
            return Err(TierError::system(path.display(), "open")(error));
        }
        let flags = fcntl_getfl(&file).map_err(TierError::system(path.display(), "fcntl"))?;
        // If direct access is refused, now or at the first read, bytes go through the page cache.
        let _ = fcntl_setfl(&file, flags | OFlags::DIRECT);
        Ok(Self { file, path: path.into(), bytes: metadata.len() })
    }

    /// Returns the length in bytes that the file had when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads from `offset`, the start of a block, into `chunk`, until at least `least` bytes are there. Fails if the
    /// file ends before.
    fn read_blocks(&self, offset: u64, chunk: &mut [u8], least: usize) -> io::Result<()> {
        let mut read = 0;
        while read < least {
            // Only the last read is short, since the file may end within a block.
            match self.file.read_at(&mut chunk[read..], offset + read as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The disk's block size is not ours, or the file system refuses direct access only now.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.is_direct()? => {
                    fcntl_setfl(&self.file, fcntl_getfl(&self.file)? - OFlags::DIRECT)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether reads bypass the page cache.
    fn is_direct(&self) -> io::Result<bool> {
        Ok(fcntl_getfl(&self.file)?.contains(OFlags::DIRECT))
    }
}

/// A part of a file, and the range of the target that it is read into.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// The file.
    pub source: Arc<SourceFile>,
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The range of bytes in the target.
    pub to: Range<usize>,
}

/// Reads parts of files into memory, on threads of its own. Reads begin in the order of the calls. Dropping it waits
/// for all of them.
pub struct FileReader {
    shared: Arc<ReaderShared>,
    threads: Vec<thread::JoinHandle<()>>,
}

struct ReaderShared {
    queue: Mutex<BlockQueue>,
    /// Signals that there are blocks to read, or that no more will come.
    queue_changed: Condvar,
}

/// The blocks that wait for a thread.
#[derive(Default)]
struct BlockQueue {
    blocks: VecDeque<FileBlock>,
    /// Whether the reader was dropped, so that no more blocks will come.
    is_closed: bool,
}

/// Bytes of a file that one thread reads at once.
struct FileBlock {
    request: Arc<dyn ReadRequest>,
    source: Arc<SourceFile>,
    offset: u64,
    to: Range<usize>,
}

/// A call of [`FileReader::read`], which ends when all its blocks are read.
trait ReadRequest: Send + Sync {
    /// Copies bytes to offset `at` of the target. No other thread writes to the same range.
    fn store(&self, at: usize, bytes: &[u8]);
    /// Returns whether a block has failed.
    fn has_failed(&self) -> bool;
    /// Records that one more block is done, and its result.
    fn end(&self, result: Result<(), TierError>);
}

/// The target of a call of [`FileReader::read`].
struct ReadTarget<T, F> {
    /// The start of the target's bytes, which do not move.
    start: *mut u8,
    /// The number of blocks that are not done.
    left: AtomicUsize,
    completion: Mutex<ReadCompletion<T, F>>,
}

/// The owner and the callback of a target, and the first error.
struct ReadCompletion<T, F> {
    /// The target and its callback, until all blocks are done.
    target: Option<(T, F)>,
    error: Option<TierError>,
}

// SAFETY: the pointer is to bytes of a target that may be sent to other threads. Blocks do not overlap, so no two
// threads write to the same byte. The last thread takes the target out when all others are done.
unsafe impl<T: Send, F: Send> Send for ReadTarget<T, F> {}
// SAFETY: as above.
unsafe impl<T: Send, F: Send> Sync for ReadTarget<T, F> {}

impl<T: Send, F: FnOnce(T, Result<(), TierError>) + Send> ReadRequest for ReadTarget<T, F> {
    fn store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: `FileReader::read` has checked that the range is within the target's bytes and overlaps no other. The
        // target lives until the last block ends.
        unsafe { self.start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    fn has_failed(&self) -> bool {
        self.completion.lock().error.is_some()
    }

    fn end(&self, result: Result<(), TierError>) {
        if let Err(error) = result {
            self.completion.lock().error.get_or_insert(error);
        }
        // The thread that ends the last block sees all bytes that others wrote.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut completion = self.completion.lock();
            let ended = completion.target.take();
            let error = completion.error.take();
            drop(completion);
            if let Some((target, done)) = ended {
                done(target, error.map_or(Ok(()), Err));
            }
        }
    }
}

impl FileReader {
    /// Starts a reader's threads.
    ///
    /// # Errors
    /// There is no memory, or no thread can be started.
    pub fn start() -> Result<Self, TierError> {
        let shared = Arc::new(ReaderShared { queue: Mutex::default(), queue_changed: Condvar::new() });
        let chunks = StagingMemory::chunks(THREADS).map_err(TierError::system("reading files", "mmap"))?;
        let mut reader = Self { shared, threads: Vec::new() };
        for (number, chunk) in chunks.into_iter().enumerate() {
            let shared = Arc::clone(&reader.shared);
            let thread = thread::Builder::new().name(format!("tenure-read-{number}")).spawn(move || shared.run(chunk));
            reader.threads.push(thread.map_err(TierError::system("reading files", "clone"))?);
        }
        Ok(reader)
    }

    /// Begins to read parts into a target, and returns at once. Calls `done` with the target and the result, when all
    /// parts are read, or after an error when nothing more is written to the target. A thread of the reader calls it,
    /// and it must not block that thread for long. If there is nothing to read, or a part is beyond its file's end, the
    /// calling thread calls it at once.
    ///
    /// # Panics
    /// If the parts are not in the order of their places in the target, overlap, or are not within it.
    pub fn read<T: AsMut<[u8]> + Send + 'static>(
        &self,
        parts: &[FilePart],
        mut target: T,
        done: impl FnOnce(T, Result<(), TierError>) + Send + 'static,
    ) {
        let bytes = target.as_mut();
        let mut end = 0;
        for part in parts {
            assert!(part.to.start >= end && part.to.end >= part.to.start, "parts are apart, and in order");
            end = part.to.end;
        }
        assert!(end <= bytes.len(), "parts are within the target");
        let cut = parts.iter().find(|part| part.offset.saturating_add(part.to.len() as u64) > part.source.bytes());
        if let Some(FilePart { source, offset, to }) = cut {
            let needed = offset.saturating_add(to.len() as u64);
            return done(target, Err(TierError::Cut { path: source.path.clone(), needed, bytes: source.bytes }));
        }
        let start = bytes.as_mut_ptr();
        let pieces: Vec<_> = parts.iter().flat_map(pieces).collect();
        if pieces.is_empty() {
            return done(target, Ok(()));
        }
        let completion = Mutex::new(ReadCompletion { target: Some((target, done)), error: None });
        let request: Arc<dyn ReadRequest> =
            Arc::new(ReadTarget { start, left: AtomicUsize::new(pieces.len()), completion });
        let mut queue = self.shared.queue.lock();
        queue.blocks.extend(pieces.into_iter().map(|(source, offset, to)| {
            let request = Arc::clone(&request);
            FileBlock { request, source, offset, to }
        }));
        drop(queue);
        self.shared.queue_changed.notify_all();
    }
}

/// Divides a part into pieces that fit in a chunk together with the start of their first block.
fn pieces(part: &FilePart) -> impl Iterator<Item = (Arc<SourceFile>, u64, Range<usize>)> {
    let FilePart { source, offset, to } = part.clone();
    let mut at = to.start;
    std::iter::from_fn(move || {
        let from = offset + (at - to.start) as u64;
        let room = CHUNK - (from % DISK_BLOCK as u64) as usize;
        let begin = at;
        at = (begin + room).min(to.end);
        (begin < to.end).then(|| (Arc::clone(&source), from, begin..at))
    })
}

impl ReaderShared {
    /// Reads blocks until the reader is dropped and the queue is empty.
    fn run(&self, mut chunk: Chunk) {
        loop {
            let mut queue = self.queue.lock();
            let block = loop {
                if let Some(block) = queue.blocks.pop_front() {
                    break block;
                }
                if queue.is_closed {
                    return;
                }
                self.queue_changed.wait(&mut queue);
            };
            drop(queue);
            let result = if block.request.has_failed() { Ok(()) } else { block.read(chunk.bytes_mut()) };
            block.request.end(result);
        }
    }
}

impl FileBlock {
    /// Reads the block through `chunk` into the target.
    fn read(&self, chunk: &mut [u8]) -> Result<(), TierError> {
        let before = (self.offset % DISK_BLOCK as u64) as usize;
        let needed = before + self.to.len();
        let whole = needed.next_multiple_of(DISK_BLOCK);
        self.source.read_blocks(self.offset - before as u64, &mut chunk[..whole], needed).map_err(|error| {
            let path = &self.source.path;
            match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    let needed = self.offset + self.to.len() as u64;
                    let bytes = self.source.file.metadata().map_or(self.source.bytes, |metadata| metadata.len());
                    TierError::Cut { path: path.clone(), needed, bytes }
                }
                _ => TierError::system(path.display(), "read")(error),
            }
        })?;
        self.request.store(self.to.start, &chunk[before..needed]);
        Ok(())
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.queue_changed.notify_all();
        self.threads.drain(..).for_each(join_unless_current);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use proptest::prelude::*;

    use super::*;

    fn file(bytes: usize) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let contents: Vec<u8> =
            (0..bytes as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(&path, &contents).unwrap();
        (folder, path, contents)
    }

    fn read(reader: &FileReader, parts: &[FilePart], bytes: usize) -> (Vec<u8>, Result<(), TierError>) {
        let (sender, receiver) = mpsc::channel();
        reader.read(parts, vec![7; bytes], move |target, result| sender.send((target, result)).unwrap());
        receiver.recv().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn parts_from_anywhere_come_to_their_places(
            bytes in 1_usize..3 << 20,
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..700_000, 0_usize..5000), 0..6),
        ) {
            let (_folder, path, contents) = file(bytes);
            let source = Arc::new(SourceFile::open(&path).unwrap());
            let mut parts = Vec::new();
            let mut expected = Vec::new();
            for (from, length, gap) in cuts {
                let offset = from.index(bytes);
                let length = length.min(bytes - offset);
                expected.resize(expected.len() + gap, 7);
                let to = expected.len()..expected.len() + length;
                expected.extend(&contents[offset..offset + length]);
                parts.push(FilePart { source: Arc::clone(&source), offset: offset as u64, to });
            }
            let reader = FileReader::start().unwrap();
            let (read, result) = read(&reader, &parts, expected.len());
            prop_assert!(result.is_ok() && read == expected);
        }
    }

    #[test]
    fn a_file_that_is_cut_or_gone_is_an_error_that_names_it() {
        let (_folder, path, _) = file(3 << 20);
        let source = Arc::new(SourceFile::open(&path).unwrap());
        let reader = FileReader::start().unwrap();
        let part = |offset, length| FilePart { source: Arc::clone(&source), offset, to: 0..length };
        let said = |parts: &[FilePart], bytes| read(&reader, parts, bytes).1.unwrap_err().to_string();
        let behind = said(&[part(3 << 20, 1)], 1);
        assert!(behind.contains("model.safetensors") && behind.contains("3145728 bytes"), "{behind}");
        File::options().write(true).open(&path).unwrap().set_len((2 << 20) + 5).unwrap();
        let cut = said(&[part(0, 3 << 20)], 3 << 20);
        assert!(cut.contains("model.safetensors") && cut.contains("2097157 bytes"), "{cut}");
        // The next request is not affected.
        assert!(read(&reader, &[part(1, 1 << 20)], 1 << 20).1.is_ok());
        assert!(SourceFile::open(path.parent().unwrap()).is_err() && SourceFile::open(&path.join("no")).is_err());
    }

    #[test]
    fn pending_reads_finish_before_the_reader_ends() {
        let (_folder, path, contents) = file(1 << 20);
        let source = Arc::new(SourceFile::open(&path).unwrap());
        let (sender, receiver) = mpsc::channel();
        let reader = FileReader::start().unwrap();
        for offset in 0..20 {
            let part = FilePart { source: Arc::clone(&source), offset, to: 0..1000 };
            let sender = sender.clone();
            reader.read(&[part], vec![0; 1000], move |target, result| {
                result.unwrap();
                sender.send((offset as usize, target)).unwrap();
            });
        }
        drop((reader, sender));
        let all: Vec<_> = receiver.iter().collect();
        assert_eq!(all.len(), 20);
        assert!(all.iter().all(|(offset, read)| *read == contents[*offset..offset + 1000]));
    }
}
