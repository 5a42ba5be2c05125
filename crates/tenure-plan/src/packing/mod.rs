//! Packing: buffers with known lifetimes, each given a place in one range of memory.
//!
//! Buffers that are alive at once share no byte; others may have the same place. The search follows M. Moffitt,
//! *MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning*, ASPLOS 2023.
//!
//! ```
//! use std::ops::ControlFlow;
//! use tenure_plan::packing::{PackingOptions, PackingProblem};
//!
//! let csv = "id,lower,upper,size\na,0,3,4\nb,3,9,4\nc,0,9,4\n";
//! let problem = PackingProblem::from_csv(csv.as_bytes())?;
//! let outcome = problem.pack(&PackingOptions::default(), |_| ControlFlow::Continue(()));
//! assert_eq!(outcome.packing.height_bytes(), 8); // `b` takes the place of `a`
//! # Ok::<(), tenure_plan::packing::PackingError>(())
//! ```

mod best_fit;
mod control;
mod csv;
mod error;
mod pack;
mod ranking;
mod search;
mod sections;
mod state;

pub use best_fit::Order;
pub use control::PackingProgress;
pub use error::{BufferError, PackingError};
pub use pack::{PackingOptions, PackingOutcome};

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use sections::Sections;

/// Bytes that are needed for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its name, another for each buffer.
    pub id: String,
    /// When its life begins, in any unit.
    pub start: u64,
    /// When its life is over: the first moment at which it is not needed.
    pub end: u64,
    /// Its size; a buffer of none has place anywhere.
    pub size_bytes: u64,
    /// What its offset is a multiple of, at least 1.
    pub alignment: u64,
    /// The offset that it must have; `None` leaves it to the packing.
    pub offset: Option<u64>,
}

impl Buffer {
    /// The bytes that it must have, if its offset is fixed and it has any.
    fn fixed(&self) -> Option<Range<u64>> {
        let offset = self.offset.filter(|_| self.size_bytes > 0)?;
        Some(offset..offset + self.size_bytes)
    }
}

/// Buffers to be placed in one range.
///
/// Every one has a name of its own, lives for some time and has an alignment; their sizes and alignments add up to less
/// than 2^63, above the highest of those with a fixed offset. No two with fixed offsets share a byte at once.
#[derive(Clone, Debug)]
pub struct PackingProblem {
    buffers: Vec<Buffer>,
    sections: Sections,
}

impl PackingProblem {
    /// A problem of `buffers`.
    ///
    /// # Errors
    /// The first buffer that makes no sense.
    pub fn new(buffers: Vec<Buffer>) -> Result<Self, PackingError> {
        error::check(&buffers).map_err(|(index, reason)| PackingError::Buffer { index, reason })?;
        Ok(Self::of_checked(buffers))
    }

    fn of_checked(buffers: Vec<Buffer>) -> Self {
        let sections = Sections::of(&buffers);
        Self { buffers, sections }
    }

    /// Reads the file at `path`, in the format of [`from_csv`](Self::from_csv).
    ///
    /// # Errors
    /// One line that names the file and the line in it.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PackingError> {
        csv::read(path.as_ref()).map_err(|error| error.in_file(path))
    }

    /// Reads MiniMalloc's format: lines of fields with commas between, the first of which names the columns. There are
    /// `id`, `lower` (also `start`, `begin`), `upper` and `size`, and there may be `alignment`. `end` instead of
    /// `upper` is the last moment at which a buffer is needed. A buffer with a number in a column `offset` stays there, so
    /// the answer to one problem is a problem that has this answer only. A column `hint` is not read. A column `gaps` may
    /// be there if it is empty.
    ///
    /// # Errors
    /// The first line that makes no sense.
    pub fn from_csv(content: &[u8]) -> Result<Self, PackingError> {
        csv::parse(content)
    }

    /// The buffers, in the order in which they were given.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The most bytes that are alive at once, or the highest end of a buffer with a fixed offset: no packing is lower.
    pub fn lower_bound_bytes(&self) -> u64 {
        let fixed = self.buffers.iter().filter_map(Buffer::fixed).map(|bytes| bytes.end);
        self.sections.totals(&self.buffers).into_iter().chain(fixed).max().unwrap_or(0)
    }

    /// Places one buffer after the other, in `order`, each in the smallest hole that it fits in among those placed
    /// before, or above them. Takes time in the square of the buffers' number, or of those alive at once in
    /// [`Order::Start`].
    pub fn best_fit(&self, order: Order) -> Packing {
        let offsets = best_fit::place(&self.buffers, order, |_| true);
        Packing::new(offsets.expect("nobody ends it"), &self.buffers)
    }
}

/// A place for every buffer of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    offsets: Vec<u64>,
    height_bytes: u64,
}

impl Packing {
    fn new(offsets: Vec<u64>, buffers: &[Buffer]) -> Self {
        let placed = offsets.iter().zip(buffers).filter(|(_, buffer)| buffer.size_bytes > 0);
        let tops = placed.map(|(offset, buffer)| offset + buffer.size_bytes);
        let height_bytes = tops.max().unwrap_or(0);
        Self { offsets, height_bytes }
    }

    /// The buffers' first bytes, in the order of the problem's buffers.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The size of the range that holds them all.
    pub fn height_bytes(&self) -> u64 {
        self.height_bytes
    }

    /// Writes `problem`, which this is a packing of, with the offsets as a last column.
    ///
    /// # Errors
    /// What the writer said.
    ///
    /// # Panics
    /// If `problem` has another number of buffers.
    pub fn write_csv(&self, problem: &PackingProblem, writer: impl Write) -> io::Result<()> {
        assert_eq!(self.offsets.len(), problem.buffers.len(), "a packing of this problem");
        csv::write(&problem.buffers, &self.offsets, writer)
    }
}

/// The lowest multiple of `alignment` that is not below `offset`. A problem's bounds keep it from overflowing.
fn align_up(offset: u64, alignment: u64) -> u64 {
    if alignment == 1 { offset } else { offset.next_multiple_of(alignment) }
}
