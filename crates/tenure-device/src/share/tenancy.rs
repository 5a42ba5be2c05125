//! The range for computation: any number of workers and streams have it in their allocators, but only one uses it at a
//! time. And the ranges that a worker has inserted into its allocator.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_alloc::adaptor::RangeGate;
use tenure_alloc::{Address, BackingError};
use tenure_core::StreamId;

use super::manifest::{Content, Manifest};
use super::{DaemonRefusal, PoolLease, RangeUse, ShareError, SharedPool};
use crate::AccessMode;
use crate::memory::DeviceMemory;

/// The pause between two attempts to enter a range that other processes use.
const RETRY: Duration = Duration::from_millis(2);

/// A function that runs the closure it is given, which may wait for other processes.
pub(super) type AroundWait = fn(&mut (dyn FnMut() + Send));

/// The use of a range by one stream: the range is leased while the stream has blocks in it.
pub(super) struct Tenancy {
    mapping: Arc<SharedPool>,
    offset: u64,
    bytes: u64,
    memory: &'static DeviceMemory,
    /// The parameters that the computation uses.
    parameters: Option<PlacedParameters>,
    patience: Duration,
    around_wait: AroundWait,
    /// Locked at most for one call to the daemon or the device, never while waiting for other processes.
    state: Mutex<TenancyState>,
}

#[derive(Default)]
struct TenancyState {
    /// The number of blocks in the range, including blocks about to be placed there.
    blocks: u64,
    lease: Option<PoolLease>,
    /// Whether the parameters have been found to match the last transfer since the first of these blocks entered.
    is_checked: bool,
}

impl Tenancy {
    /// Creates the tenancy of the `bytes` bytes from `offset` of `mapping`, for `memory`.
    pub(super) fn new(
        mapping: Arc<SharedPool>,
        (offset, bytes): (u64, u64),
        memory: &'static DeviceMemory,
        parameters: Option<PlacedParameters>,
        (patience, around_wait): (Duration, AroundWait),
    ) -> Self {
        Self { mapping, offset, bytes, memory, parameters, patience, around_wait, state: Mutex::default() }
    }

    /// Gives the lease back, if the tenancy still has it.
    pub(super) fn end(&self) -> Result<(), ShareError> {
        self.state.lock().lease.take().map_or(Ok(()), PoolLease::release)
    }

    /// Counts one more block, if that needs no call to the daemon or the device. Returns whether it was counted.
    fn enter_at_once(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        let enters = state.blocks > 0 && state.is_checked;
        state.blocks += u64::from(enters);
        enters
    }

    /// Counts one more block. Waits until the parameters are there and no other process or stream uses the range.
    fn wait_and_enter(&self) -> Result<(), ShareError> {
        let deadline = Instant::now() + self.patience;
        loop {
            let waits = Instant::now() < deadline;
            match self.try_enter(waits) {
                // While blocks are in the range, the processes that could resolve the error cannot enter: do not wait
                // for them.
                Err(error) if waits && may_clear(&error) && !self.is_used() => thread::sleep(RETRY),
                entered => return entered,
            }
        }
    }

    /// Counts one more block, or fails if that must wait. With `waits`, the caller tries again soon.
    fn try_enter(&self, waits: bool) -> Result<(), ShareError> {
        let state = &mut *self.state.lock();
        if state.blocks == 0 || !state.is_checked {
            state.is_checked = self.check()?;
        }
        if state.lease.is_none() && state.blocks == 0 {
            let lease = self.mapping.lease_in_turn(self.offset, self.bytes, AccessMode::ReadWrite, waits)?;
            state.lease = Some(lease);
        }
        state.blocks += 1;
        Ok(())
    }

    fn is_used(&self) -> bool {
        self.state.lock().blocks > 0
    }

    /// Returns whether the computation's parameters are known to lie as they were transferred last.
    fn check(&self) -> Result<bool, ShareError> {
        self.parameters.as_ref().map_or(Ok(true), |parameters| parameters.check(self.memory))
    }

    /// Gives the range back if it has no blocks and no stream is being captured (a capture forbids waiting for the
    /// device).
    fn give_back_if_unused(&self, state: &mut TenancyState) {
        if state.blocks == 0 && !self.memory.donated().is_capturing() {
            // Dropping the lease waits for the device and gives the range back. On failure the range stays with this
            // process.
            state.lease = None;
        }
    }
}

impl RangeGate for Tenancy {
    /// Without a daemon the range cannot be leased: this process then goes on with memory of its own.
    fn enter(&self) -> Result<bool, BackingError> {
        if self.enter_at_once() {
            return Ok(true);
        }
        let mut entered = Ok(());
        (self.around_wait)(&mut || entered = self.wait_and_enter());
        match entered {
            Ok(()) => Ok(true),
            Err(ShareError::DaemonGone { .. } | ShareError::NoDaemon { .. }) => Ok(false),
            Err(error) => Err(BackingError::Failed { call: "use of the shared cache", reason: error.to_string() }),
        }
    }

    fn leave(&self) {
        let state = &mut *self.state.lock();
        state.blocks -= 1;
        self.give_back_if_unused(state);
    }

    fn after_captures(&self) {
        self.give_back_if_unused(&mut self.state.lock());
    }
}

/// Parameters that were placed before they were written.
pub(super) struct PlacedParameters {
    /// The mapping that has the parameters at its start.
    pub(super) mapping: Arc<SharedPool>,
    pub(super) bytes: u64,
}

impl PlacedParameters {
    /// Returns whether the parameters lie as they were transferred last; `false` if that cannot be known yet, because
    /// they are being transferred or a stream is being captured.
    pub(super) fn check(&self, memory: &DeviceMemory) -> Result<bool, ShareError> {
        let address: Address = self.mapping.address();
        let placed = match memory.donated().live(address) {
            Ok(placed) if !placed.is_empty() => placed,
            // No parameters were placed, or the range was taken out again.
            _ => return Ok(true),
        };
        if memory.donated().is_capturing() {
            return Ok(false);
        }
        let read_content = || Manifest::read_content(&**memory.driver(), address, self.bytes);
        let mut content = read_content()?;
        if content == Content::Unfinished {
            if self.is_being_written()? {
                return Ok(false);
            }
            // The writer may have finished between the two reads.
            content = read_content()?;
        }
        match content {
            Content::Nothing => Err(ShareError::NothingPublished),
            Content::Unfinished => Err(ShareError::Incomplete),
            Content::Parameters(written) => written.difference(&placed).map_or(Ok(true), Err),
        }
    }

    /// Returns whether a process is writing the parameters. If the daemon is gone, the answer is `false`: the process
    /// that wrote them was most likely the one that ran the daemon.
    fn is_being_written(&self) -> Result<bool, ShareError> {
        match self.mapping.is_written(0, self.bytes) {
            Err(ShareError::DaemonGone { .. }) => Ok(false),
            is_written => is_written,
        }
    }
}

/// Returns whether the next step of another process may clear this error.
fn may_clear(error: &ShareError) -> bool {
    matches!(
        error,
        ShareError::Refused(DaemonRefusal::Leased { .. })
            | ShareError::NothingPublished
            | ShareError::Incomplete
            | ShareError::PublishedUnreadable(_)
            | ShareError::PlacedOtherwise { .. }
    )
}

/// A range of the shared cache that the allocator may place blocks in.
pub(super) struct Inserted {
    /// The mapping that contains the range. If a range is inserted several times, each insertion has a mapping of its
    /// own.
    pub(super) mapping: Arc<SharedPool>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) range: RangeUse,
    pub(super) stream: StreamId,
    pub(super) right: Right,
    /// The publisher's description of the parameters in the range, once they are published.
    pub(super) about: Option<Vec<u8>>,
}

/// The right under which a range is used.
pub(super) enum Right {
    /// A lease, taken when the range is inserted.
    Leased(PoolLease),
    /// A lease, taken when the range is inserted. When the range is taken out, readers are told which blocks were
    /// written.
    Transferring(PoolLease),
    /// A lease that is held only while blocks are in the range.
    WhileUsed(Arc<Tenancy>),
    /// No lease: tensors were placed in the range before their parameters are written. This process reads them there,
    /// while other processes may write them.
    Placed,
}

impl Inserted {
    pub(super) fn address(&self) -> Address {
        self.mapping.address() + self.offset
    }

    /// Returns whether the range has bytes in common with `bytes` bytes from `offset`.
    pub(super) fn overlaps(&self, offset: u64, bytes: u64) -> bool {
        self.offset < offset.saturating_add(bytes) && offset < self.offset + self.bytes
    }

    /// Returns whether this process writes parameters in the range.
    pub(super) fn writes_parameters(&self) -> bool {
        let (Right::Leased(lease) | Right::Transferring(lease)) = &self.right else { return false };
        self.range == RangeUse::Parameters && lease.access() == AccessMode::ReadWrite
    }

    pub(super) fn placed_parameters(&self) -> PlacedParameters {
        PlacedParameters { mapping: Arc::clone(&self.mapping), bytes: self.bytes }
    }
}
