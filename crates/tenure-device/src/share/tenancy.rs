//! The range for computation: any number of workers and streams have it in their allocators, and one uses it at a time.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_alloc::adaptor::Gate;
use tenure_alloc::{Address, BackingError};

use super::manifest::{Content, Manifest};
use super::{PoolLease, Refusal, ShareError, SharedPool};
use crate::Access;
use crate::memory::DeviceMemory;

/// How often it is looked again whether others have finished.
const RETRY: Duration = Duration::from_millis(2);

/// A range that is leased while a stream has blocks in it.
pub(super) struct Tenancy {
    view: Arc<SharedPool>,
    offset: u64,
    bytes: u64,
    memory: &'static DeviceMemory,
    /// The parameters that are computed with.
    parameters: Option<Awaited>,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Blocks in the range, or about to be placed there.
    blocks: u64,
    lease: Option<PoolLease>,
    /// Whether the parameters were found to be those that were transferred, since the first of the blocks.
    is_checked: bool,
}

impl Tenancy {
    /// Of the `bytes` bytes from `offset` of `view`, for `memory`.
    pub(super) fn new(
        view: Arc<SharedPool>,
        (offset, bytes): (u64, u64),
        memory: &'static DeviceMemory,
        parameters: Option<Awaited>,
        patience: Duration,
    ) -> Self {
        Self { view, offset, bytes, memory, parameters, patience, state: Mutex::default() }
    }

    /// Gives the lease back, if it was kept.
    pub(super) fn end(&self) -> Result<(), ShareError> {
        self.state.lock().lease.take().map_or(Ok(()), PoolLease::release)
    }

    /// Waits until the parameters are there and nobody else uses the range.
    fn begin(&self, state: &mut State) -> Result<(), ShareError> {
        let deadline = Instant::now() + self.patience;
        while let Err(error) = self.try_begin(state) {
            if !may_pass(&error) || Instant::now() >= deadline {
                return Err(error);
            }
            thread::sleep(RETRY);
        }
        Ok(())
    }

    fn try_begin(&self, state: &mut State) -> Result<(), ShareError> {
        state.is_checked = self.check()?;
        if state.lease.is_none() {
            state.lease = Some(self.view.lease(self.offset, self.bytes, Access::ReadWrite)?);
        }
        Ok(())
    }

    fn check(&self) -> Result<bool, ShareError> {
        self.parameters.as_ref().map_or(Ok(true), |parameters| parameters.check(self.memory))
    }
}

impl Gate for Tenancy {
    /// Without a daemon nobody can say who uses the range: this process goes on with memory of its own.
    fn enter(&self) -> Result<bool, BackingError> {
        let mut state = self.state.lock();
        let entered = match state.blocks {
            0 => self.begin(&mut state),
            _ if state.is_checked => Ok(()),
            _ => self.check().map(|is_checked| state.is_checked = is_checked),
        };
        match entered {
            Ok(()) => {
                state.blocks += 1;
                Ok(true)
            }
            Err(ShareError::DaemonGone { .. } | ShareError::NoDaemon { .. }) => Ok(false),
            Err(error) => Err(BackingError::Failed { call: "use of the shared cache", reason: error.to_string() }),
        }
    }

    fn leave(&self) {
        let mut state = self.state.lock();
        state.blocks -= 1;
        // In a capture the device can not be waited for: whoever uses the range next, or clears it, finds the lease.
        if state.blocks == 0 && !self.memory.donated().is_capturing() {
            // Dropped, it waits for the device and is given back. What fails leaves it with this process.
            state.lease = None;
        }
    }
}

/// Parameters that were placed before they were written.
pub(super) struct Awaited {
    /// They lie at its start.
    pub(super) view: Arc<SharedPool>,
    pub(super) bytes: u64,
}

impl Awaited {
    /// Whether they lie as they were transferred last; `false` if that is not known yet, as they are being transferred.
    pub(super) fn check(&self, memory: &DeviceMemory) -> Result<bool, ShareError> {
        let address: Address = self.view.address();
        let placed = match memory.donated().live(address) {
            Ok(placed) if !placed.is_empty() => placed,
            // None are, or the range was taken out again.
            _ => return Ok(true),
        };
        if memory.donated().is_capturing() {
            return Ok(false);
        }
        match Manifest::look(&**memory.driver(), address, self.bytes)? {
            Content::Nothing => Err(ShareError::NothingPublished),
            Content::Unfinished => Ok(false),
            Content::Parameters(written) => written.difference(&placed).map_or(Ok(true), Err),
        }
    }
}

/// Whether another process's next step may end what stands in the way.
fn may_pass(error: &ShareError) -> bool {
    matches!(
        error,
        ShareError::Refused(Refusal::Leased { .. })
            | ShareError::NothingPublished
            | ShareError::PublishedUnreadable(_)
            | ShareError::PlacedOtherwise { .. }
    )
}
