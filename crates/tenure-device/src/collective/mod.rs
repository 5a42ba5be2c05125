//! Collective operations, which reduce and exchange data between the devices of one process, as NCCL's do.

mod nccl;
mod sim;

use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::{DType, Device, StreamId};

use crate::{CallError, Driver, Executor};

/// The operation that combines the numbers of several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their mean.
    Average,
    /// The largest.
    Max,
}

/// An error of a collective operation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// There is no NCCL to load.
    #[error(
        "NCCL was not found (libnccl.so, or libnccl.so.2): put its folder into LD_LIBRARY_PATH; the Python package \
         `nvidia-nccl-cu13` has it"
    )]
    NoLibrary,
    /// NCCL refused.
    #[error("{call}: {reason}")]
    Failed {
        /// NCCL's function.
        call: &'static str,
        /// NCCL's error text.
        reason: String,
    },
    /// The devices are simulated and real ones mixed, or none, or one device is given twice.
    #[error("{devices:?} is not a valid group: give each device once, all of one driver")]
    NoGroup {
        /// The devices given.
        devices: Vec<Device>,
    },
    /// The element type cannot be reduced.
    #[error("{0} is not exchanged between devices: convert it first")]
    DType(DType),
    /// Another device did not make the call, or the group was [ended](Communicator::abort).
    #[error("another device of the group did not make the same call, or failed")]
    Alone,
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] CallError),
}

/// A device's membership in a group. A call puts work on a stream, which completes once all devices of the group have
/// made the same call. All devices must make the same calls in the same order, each from a thread of its own.
///
/// Only the device checks addresses, when the work runs.
pub struct Communicator {
    driver: Arc<dyn Driver>,
    rank: usize,
    size: usize,
    group: Arc<Group>,
}

/// The implementation of a group: NCCL's, or that of simulated devices.
enum Group {
    Nccl(nccl::NcclGroup),
    Sim(Arc<sim::Meeting>),
}

impl Communicator {
    /// Returns the communicators of a group of devices, in their order.
    ///
    /// # Errors
    /// [`CollectiveError::NoGroup`]; NCCL is missing, or refuses.
    pub fn group(drivers: &[Arc<dyn Driver>]) -> Result<Vec<Self>, CollectiveError> {
        let devices: Vec<Device> = drivers.iter().map(|driver| driver.device()).collect();
        let simulated = drivers.iter().filter(|driver| matches!(driver.executor(), Executor::Sim(_))).count();
        let is_repeated = devices.iter().enumerate().any(|(at, device)| devices[..at].contains(device));
        if devices.is_empty() || is_repeated || ![0, devices.len()].contains(&simulated) {
            return Err(CollectiveError::NoGroup { devices });
        }
        let group = Arc::new(match simulated {
            0 => Group::Nccl(nccl::NcclGroup::new(drivers)?),
            _ => Group::Sim(Arc::new(sim::Meeting::new(drivers.len()))),
        });
        let communicators = drivers.iter().enumerate().map(|(rank, driver)| {
            let driver = Arc::clone(driver);
            let group = Arc::clone(&group);
            Self { driver, rank, size: drivers.len(), group }
        });
        Ok(communicators.collect())
    }

    /// Returns the device's index in the group, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of devices in the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.driver.device()
    }

    /// Reduces `count` elements at `address` over all devices, on `stream`: each device gets the result in place.
    ///
    /// # Errors
    /// [`CollectiveError::DType`]; NCCL or the driver refuses; another device failed before.
    pub fn all_reduce(
        &self,
        address: Address,
        count: usize,
        dtype: DType,
        reduction: ReduceOp,
        stream: StreamId,
    ) -> Result<(), CollectiveError> {
        match (&*self.group, self.driver.executor()) {
            (Group::Nccl(group), Executor::Cuda(driver)) => {
                group.all_reduce(self.rank, driver, address, count, dtype, reduction, stream)
            }
            (Group::Sim(meeting), Executor::Sim(driver)) => {
                sim::all_reduce(meeting, self.rank, driver, address, count, dtype, reduction, stream)
            }
            _ => unreachable!("a group is of its devices' kind"),
        }
    }

    /// Copies `bytes` bytes at `address` from the device of rank `root` to all others, on `stream`.
    ///
    /// # Errors
    /// NCCL or the driver refuses; another device failed before.
    pub fn broadcast(
        &self,
        address: Address,
        bytes: usize,
        root: usize,
        stream: StreamId,
    ) -> Result<(), CollectiveError> {
        match (&*self.group, self.driver.executor()) {
            (Group::Nccl(group), Executor::Cuda(driver)) => {
                group.broadcast(self.rank, driver, address, bytes, root, stream)
            }
            (Group::Sim(meeting), Executor::Sim(driver)) => {
                sim::broadcast(meeting, self.rank, driver, address, bytes, root, stream)
            }
            _ => unreachable!("a group is of its devices' kind"),
        }
    }

    /// Runs `calls` and combines the collective calls that it makes into one piece of work on their stream: many small
    /// ones then cost about as much as one large one. On simulated devices, only runs `calls`.
    ///
    /// # Errors
    /// The errors of `calls`; NCCL refuses.
    pub fn together(&self, calls: impl FnOnce() -> Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        match (&*self.group, self.driver.executor()) {
            (Group::Nccl(group), Executor::Cuda(driver)) => group.together(self.rank, driver, calls),
            _ => calls(),
        }
    }

    /// Ends the group, for all devices: work that waits for another device stops waiting, its results are undefined,
    /// and every later call fails. Use it when a device cannot make the calls that others wait for, from the thread
    /// that makes this device's calls.
    pub fn abort(&self) {
        match &*self.group {
            Group::Nccl(group) => group.end(self.rank),
            Group::Sim(meeting) => meeting.abort(),
        }
    }
}
