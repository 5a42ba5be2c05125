//! [`BumpPool`]: a pool that allocates upward and frees everything at once.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use crate::{Address, AllocError, Block, Request, Resource};

/// The alignment in bytes: blocks start and end at multiples of it, as in every allocator of this crate.
const ALIGNMENT: u64 = 512;

/// A pool that hands out a range from its start to its end and takes everything back at once: for workspaces that live
/// for a step.
///
/// Freeing a block does not make its memory reusable. The pool starts over at [`reset`](Self::reset). It also starts
/// over once no block is live, but only while a single stream has used it since the last reset. Once a second stream
/// allocates, every block gets memory that no stream has used since the last reset, and only a reset starts over.
pub struct BumpPool {
    base: Address,
    bytes: u64,
    state: Mutex<BumpState>,
}

#[derive(Default)]
struct BumpState {
    /// The offset from the base at which the owner's next block begins.
    cursor: u64,
    /// The end of the part that streams have used since the last reset, as an offset from the base.
    used: u64,
    owner: Owner,
    live: FxHashMap<Address, u64>,
    live_bytes: u64,
}

/// The streams that have used the range since the last reset.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Owner {
    #[default]
    /// No stream.
    Unowned,
    /// One stream.
    Stream(StreamId),
    /// Two streams or more.
    Several,
}

impl BumpPool {
    /// Makes a pool over the part of `base..base + bytes` from the first to the last multiple of 512 in it.
    pub fn new(base: Address, bytes: u64) -> Self {
        let end = base.saturating_add(bytes) / ALIGNMENT * ALIGNMENT;
        let base = base.checked_next_multiple_of(ALIGNMENT).unwrap_or(end);
        Self { base, bytes: end.saturating_sub(base), state: Mutex::default() }
    }

    /// Frees every block. Old addresses must not be freed any more: a new block may have the same address.
    ///
    /// Blocks allocated next may overlap them on any stream. Call it when all work on the old blocks has completed, or
    /// when every stream that allocates next waits for that work.
    pub fn reset(&self) {
        *self.state.lock() = BumpState::default();
    }

    /// Returns the bytes of the pool.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes in live blocks, rounded up to multiples of 512.
    pub fn live_bytes(&self) -> u64 {
        self.state.lock().live_bytes
    }

    /// Returns the number of live blocks.
    pub fn live_blocks(&self) -> usize {
        self.state.lock().live.len()
    }
}

impl Resource for BumpPool {
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the rest of the range is too short; the range stands for the device in it.
    /// [`AllocError::TooLarge`] if the bytes cannot be rounded up to a multiple of 512.
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        let Request { bytes: requested, stream, .. } = request;
        if requested == 0 {
            return Ok(Block { address: 0, bytes: 0 });
        }
        let bytes = requested.checked_next_multiple_of(ALIGNMENT).ok_or(AllocError::TooLarge(requested))?;
        let mut state = self.state.lock();
        let (start, owner) = match state.owner {
            Owner::Unowned => (0, Owner::Stream(stream)),
            Owner::Stream(owner) if owner == stream => (state.cursor, state.owner),
            // Stream order does not protect memory that another stream has used.
            Owner::Stream(_) | Owner::Several => (state.used, Owner::Several),
        };
        let free = self.bytes - start;
        if bytes > free {
            let allocated = state.live_bytes;
            let total = self.bytes;
            return Err(AllocError::OutOfMemory {
                requested,
                stream,
                allocated,
                reserved: total,
                inactive: total - allocated,
                overhead: 0,
                free,
                total,
                allowed: total,
            });
        }
        state.owner = owner;
        state.cursor = start + bytes;
        state.used = state.used.max(state.cursor);
        state.live_bytes += bytes;
        let address = self.base + start;
        state.live.insert(address, bytes);
        Ok(Block { address, bytes })
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        if address == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        let bytes = state.live.remove(&address).ok_or(AllocError::UnknownAddress(address))?;
        state.live_bytes -= bytes;
        if state.live.is_empty() && state.owner != Owner::Several {
            state.cursor = 0;
        }
        Ok(())
    }
}
