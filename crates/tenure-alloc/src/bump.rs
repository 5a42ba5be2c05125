use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use crate::{Address, AllocError, Block, Request, Resource};

/// Blocks start and end at multiples of this many bytes, as in every allocator of this crate.
const ALIGNMENT: u64 = 512;

/// Hands out a range from its start to its end and takes everything back at once: for workspaces that live for a step.
///
/// A freed block is not used again by itself. The pool starts over at [`reset`](Self::reset), or by itself once no
/// block is live, but then only for the one stream that has used it since the last reset: another stream gets memory
/// that no stream has used yet, and from then on only a reset starts over.
pub struct BumpPool {
    base: Address,
    bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where the next block of the owner begins, from the base.
    cursor: u64,
    /// Up to where streams have used the range since the last reset.
    used: u64,
    owner: Owner,
    live: FxHashMap<Address, u64>,
    live_bytes: u64,
}

/// Who has used the range since the last reset.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Owner {
    #[default]
    Nobody,
    Stream(StreamId),
    Several,
}

impl BumpPool {
    /// A pool over those bytes of `base..base + bytes` that lie between multiples of 512.
    pub fn new(base: Address, bytes: u64) -> Self {
        let end = base.saturating_add(bytes) / ALIGNMENT * ALIGNMENT;
        let base = base.checked_next_multiple_of(ALIGNMENT).unwrap_or(end);
        Self { base, bytes: end.saturating_sub(base), state: Mutex::default() }
    }

    /// Ends the tenure of every block. Addresses handed out before are unknown from now on.
    ///
    /// What is handed out next may overlap them on any stream: call it when all their work has completed, or when
    /// every stream that allocates next waits for it.
    pub fn reset(&self) {
        *self.state.lock() = State::default();
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in live blocks, rounded up to multiples of 512.
    pub fn live_bytes(&self) -> u64 {
        self.state.lock().live_bytes
    }

    /// Live blocks.
    pub fn live_blocks(&self) -> usize {
        self.state.lock().live.len()
    }
}

impl Resource for BumpPool {
    /// # Errors
    /// The rest of the range is too short: [`AllocError::OutOfMemory`], in which the range stands for the device.
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        let Request { bytes: requested, stream, .. } = request;
        if requested == 0 {
            return Ok(Block { address: 0, bytes: 0 });
        }
        let bytes = requested.checked_next_multiple_of(ALIGNMENT).ok_or(AllocError::TooLarge(requested))?;
        let mut state = self.state.lock();
        let (start, owner) = match state.owner {
            Owner::Nobody => (0, Owner::Stream(stream)),
            Owner::Stream(owner) if owner == stream => (state.cursor, state.owner),
            // Stream order says nothing about memory that another stream has used.
            Owner::Stream(_) | Owner::Several => (state.used, Owner::Several),
        };
        let free = self.bytes - start;
        if bytes > free {
            let (allocated, total) = (state.live_bytes, self.bytes);
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
