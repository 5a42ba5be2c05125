//! How a *donated* range, memory from outside such as a cache that processes share, is divided: which requests it serves,
//! and where. By `InOrder` and `Recorded`, two processes repeat one layout.

use crate::{Address, AllocError};

/// The granule in bytes: every block is a multiple of it.
pub(super) const GRANULE: u64 = 512;

/// The largest request in bytes that a best-fit range leaves to the allocator below.
const SMALL_LIMIT: u64 = 1 << 20;

/// The rule by which a donated range serves requests and places their blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RangePlacement {
    /// Serves requests of more than 1 MiB, each in the smallest free piece that fits. The allocator below serves the
    /// others.
    #[default]
    BestFit,
    /// Serves every request until the range is [closed](super::DonatedRanges::close), each in the first free piece that
    /// fits, so that the same requests get the same places. A request that fits nowhere is refused, not served from
    /// elsewhere.
    InOrder,
    /// Serves exactly these requests, in this order, each at its place. Any other request is refused. After the last
    /// one, the range serves no more.
    Recorded(Vec<PlacedBlock>),
}

/// A block in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBlock {
    /// The offset of its first byte from the start of the range, in bytes.
    pub offset: u64,
    /// The bytes requested.
    pub bytes: u64,
}

impl PlacedBlock {
    /// Returns the offset after the block; `None` if it is too large.
    pub(super) fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes.checked_next_multiple_of(GRANULE)?)
    }

    /// Returns the places that [`RangePlacement::InOrder`] gives these requests in an empty range that has room for all
    /// of them.
    pub fn in_order(requests: &[u64]) -> Vec<Self> {
        requests
            .iter()
            .scan(0, |end: &mut u64, &bytes: &u64| {
                let offset = *end;
                *end = end.saturating_add(bytes.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX));
                Some(Self { offset, bytes })
            })
            .collect()
    }
}

/// A [`RangePlacement`] and its progress.
pub(super) enum Rule {
    BestFit,
    InOrder {
        /// Addresses and requested bytes in the order of allocation: live blocks, and freed ones that no later one
        /// overlaps.
        placed: Vec<(Address, u64)>,
        /// Whether the range still serves requests.
        is_open: bool,
    },
    Recorded {
        requests: Vec<PlacedBlock>,
        /// The number of requests served so far.
        served: usize,
    },
}

impl Rule {
    pub(super) fn new(placement: RangePlacement) -> Self {
        match placement {
            RangePlacement::BestFit => Self::BestFit,
            RangePlacement::InOrder => Self::InOrder { placed: Vec::new(), is_open: true },
            RangePlacement::Recorded(requests) => Self::Recorded { requests, served: 0 },
        }
    }

    /// Returns the smallest request in bytes that it may serve.
    pub(super) fn least(&self) -> u64 {
        match self {
            Self::BestFit => SMALL_LIMIT + 1,
            _ if self.takes_all() => 1,
            _ => u64::MAX,
        }
    }

    /// Returns whether each request of the stream is served here or refused.
    pub(super) fn takes_all(&self) -> bool {
        match self {
            Self::InOrder { is_open, .. } => *is_open,
            Self::Recorded { .. } => self.outstanding() > 0,
            Self::BestFit => false,
        }
    }

    /// Returns the number of recorded requests that are not served yet.
    pub(super) fn outstanding(&self) -> usize {
        match self {
            Self::Recorded { requests, served } => requests.len() - served,
            _ => 0,
        }
    }

    /// Returns the recorded offset of the next request, if requests are recorded and not all are served.
    pub(super) fn recorded(&self, requested: u64) -> Result<Option<u64>, AllocError> {
        let Self::Recorded { requests, served: index } = self else { return Ok(None) };
        match requests.get(*index) {
            Some(placed) if placed.bytes == requested => Ok(Some(placed.offset)),
            Some(placed) => Err(AllocError::LayoutDiffers { index: *index, requested, recorded: placed.bytes }),
            None => Ok(None),
        }
    }

    /// Records that a block was placed at `address`.
    pub(super) fn note_allocated(&mut self, address: Address, requested: u64) {
        match self {
            Self::InOrder { placed, .. } => {
                placed.retain(|&(at, bytes)| end(at, bytes) <= address || end(address, requested) <= at);
                placed.push((address, requested));
            }
            Self::Recorded { served, .. } => *served += 1,
            Self::BestFit => {}
        }
    }
}

/// Returns the address after a block.
fn end(address: Address, bytes: u64) -> Address {
    address + bytes.next_multiple_of(GRANULE)
}
