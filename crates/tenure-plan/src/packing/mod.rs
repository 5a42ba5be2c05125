//! Packing: buffers with known lifetimes, each given a place in one range of memory.
//!
//! Buffers that are alive at once share no byte; others may have the same offset. The search follows M. Moffitt,
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
mod improve;
mod occupied;
mod order;
mod pack;
mod ranking;
mod search;
mod sections;
mod state;

pub use control::PackingProgress;
pub use error::{BufferError, PackingError};
pub use order::Order;
pub use pack::{PackingOptions, PackingOutcome};

use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use best_fit::{Fit, Placer};
use order::Sorter;
use sections::Sections;

/// A buffer: bytes that are needed for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its name, unique in the problem.
    pub id: String,
    /// The beginning of its lifetime, in any unit.
    pub start: u64,
    /// The end of its lifetime: the first moment at which it is no longer needed.
    pub end: u64,
    /// Its size in bytes; an empty buffer fits anywhere.
    pub size_bytes: u64,
    /// Its alignment, at least 1: the offset is a multiple of it.
    pub alignment: u64,
    /// Its fixed offset; `None` leaves the offset to the packing.
    pub offset: Option<u64>,
}

impl Buffer {
    /// Returns the bytes that it must have, if its offset is fixed and it is not empty.
    fn fixed(&self) -> Option<Range<u64>> {
        let offset = self.offset.filter(|_| self.size_bytes > 0)?;
        Some(offset..offset + self.size_bytes)
    }
}

/// Buffers to be placed in one range.
///
/// Every buffer has a unique name, a lifetime that is not empty, and an alignment. The sizes and alignments add up to
/// less than 2^63 above the highest end of a buffer with a fixed offset. No two buffers with fixed offsets share a byte
/// at the same time.
#[derive(Clone, Debug)]
pub struct PackingProblem {
    buffers: Vec<Buffer>,
    sections: Sections,
}

impl PackingProblem {
    /// Makes a problem of `buffers`.
    ///
    /// # Errors
    /// An error for the first buffer that is not valid.
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

    /// Reads MiniMalloc's format: lines of fields separated by commas; the first line names the columns. The columns
    /// `id`, `lower` (also `start`, `begin`), `upper` and `size` are required, `alignment` is optional. `end` instead
    /// of `upper` is the last moment at which a buffer is needed. A buffer with a number in the column `offset` stays
    /// there, so a solution that was written out is a problem with exactly that solution. The column `hint` is ignored.
    /// A column `gaps` is accepted if it is empty. A field may stand in quotes, as in RFC 4180.
    ///
    /// # Errors
    /// An error for the first malformed line.
    pub fn from_csv(content: &[u8]) -> Result<Self, PackingError> {
        csv::parse(content)
    }

    /// Returns the buffers, in the order in which they were given.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Returns the most bytes that are alive at once, or the highest end of a buffer with a fixed offset if that is
    /// more. No packing is lower.
    pub fn lower_bound_bytes(&self) -> u64 {
        let fixed = self.buffers.iter().filter_map(Buffer::fixed).map(|bytes| bytes.end);
        self.sections.totals(&self.buffers).into_iter().chain(fixed).max().unwrap_or(0)
    }

    /// Places one buffer after the other in `order`, each into the smallest hole between those placed before that holds
    /// it, or above them. Takes the more time the more holes are left: with 50,000 buffers, a fifth of a second to some
    /// seconds.
    pub fn best_fit(&self, order: Order) -> Packing {
        let all: Vec<usize> = (0..self.buffers.len()).collect();
        let sequence = Sorter::new(self).sequence(&all, order.keys());
        let placed = Placer::new(self, &all).place(&sequence, Fit::Best, |_, _| true);
        let mut offsets: Vec<u64> = self.buffers.iter().map(|buffer| buffer.offset.unwrap_or(0)).collect();
        for (index, offset) in sequence.into_iter().zip(placed.expect("no limit ends it")) {
            offsets[index] = offset;
        }
        Packing::new(offsets, &self.buffers)
    }
}

/// An offset for every buffer of a problem.
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

    /// Returns the offset of each buffer, in the order of the problem's buffers.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Returns the size in bytes of the range that holds all buffers.
    pub fn height_bytes(&self) -> u64 {
        self.height_bytes
    }

    /// Writes `problem`, which this packing solves, with the offsets as the last column.
    ///
    /// # Errors
    /// The writer's error.
    ///
    /// # Panics
    /// Panics if `problem` has another number of buffers.
    pub fn write_csv(&self, problem: &PackingProblem, writer: impl Write) -> io::Result<()> {
        assert_eq!(self.offsets.len(), problem.buffers.len(), "a packing of this problem");
        csv::write(&problem.buffers, &self.offsets, writer)
    }
}

/// Returns the lowest multiple of `alignment` that is at least `offset`. The limits of a problem keep it from
/// overflowing.
fn align_up(offset: u64, alignment: u64) -> u64 {
    if alignment == 1 { offset } else { offset.next_multiple_of(alignment) }
}
