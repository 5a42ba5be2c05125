//! Devices that add up what each of them has, and hand it to one another: NCCL's collectives, of the devices of one
//! process.

mod nccl;
mod sim;

use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::{DType, Device, StreamId};

use crate::{CallError, Driver, Executor};

/// What becomes of numbers of several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum by how many there are.
    Average,
    /// The largest.
    Max,
}

/// Why devices do not work together.
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
        /// NCCL's words.
        reason: String,
    },
    /// Simulated and real devices together, none, or one twice.
    #[error("{devices:?} make no group: give each device once, all of one driver")]
    NoGroup {
        /// What was given.
        devices: Vec<Device>,
    },
    /// Numbers that are not reduced.
    #[error("{0} is not exchanged between devices: convert it first")]
    DType(DType),
    /// Another device did not come, or the group was [ended](Communicator::abort).
    #[error("another device of the group did not make the same call, or failed")]
    Alone,
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] CallError),
}

/// A device's part in a group. What is called on it is put on a stream, and done when all devices of the group have
/// come to it: all make the same calls, in the same order, each from a thread of its own.
///
/// Addresses are checked by the device alone, when the work runs.
pub struct Communicator {
    driver: Arc<dyn Driver>,
    rank: usize,
    size: usize,
    group: Arc<Group>,
}

enum Group {
    Nccl(nccl::Group),
    Sim(Arc<sim::Meeting>),
}

impl Communicator {
    /// The communicators of a group of devices, in their order.
    ///
    /// # Errors
    /// [`CollectiveError::NoGroup`]; there is no NCCL, or it refuses.
    pub fn group(drivers: &[Arc<dyn Driver>]) -> Result<Vec<Self>, CollectiveError> {
        let devices: Vec<Device> = drivers.iter().map(|driver| driver.device()).collect();
        let is_twice = |(at, device): (usize, &Device)| devices[..at].contains(device);
        let simulated = drivers.iter().filter(|driver| matches!(driver.executor(), Executor::Sim(_))).count();
        if devices.is_empty() || devices.iter().enumerate().any(is_twice) || ![0, devices.len()].contains(&simulated) {
            return Err(CollectiveError::NoGroup { devices });
        }
        let group = Arc::new(match simulated {
            0 => Group::Nccl(nccl::Group::new(drivers)?),
            _ => Group::Sim(Arc::new(sim::Meeting::new(drivers.len()))),
        });
        let communicator = |(rank, driver)| {
            let (driver, group) = (Arc::clone(driver), Arc::clone(&group));
            Self { driver, rank, size: drivers.len(), group }
        };
        Ok(drivers.iter().enumerate().map(communicator).collect())
    }

    /// The device's place in the group, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Devices of the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.driver.device()
    }

    /// Puts on `stream`: `count` elements at `address` become what `reduction` makes of all devices'.
    ///
    /// # Errors
    /// [`CollectiveError::DType`]; NCCL or the driver refuses; another device failed before.
    pub fn all_reduce(
        &self,
        address: Address,
        count: usize,
        dtype: DType,
        reduction: Reduction,
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

    /// Puts on `stream`: `bytes` bytes at `address` become those of the device of rank `root`.
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

    /// Makes calls that are put on their stream as one: many small ones cost about what one large one does.
    ///
    /// # Errors
    /// Those of `calls`; NCCL refuses.
    pub fn together(&self, calls: impl FnOnce() -> Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        match (&*self.group, self.driver.executor()) {
            (Group::Nccl(group), Executor::Cuda(driver)) => group.together(self.rank, driver, calls),
            _ => calls(),
        }
    }

    /// Ends the group, for all: what waits for another device waits no longer, whatever its numbers then are, and no later
    /// call succeeds. For a device that cannot make the calls that others wait for, by the thread that makes its calls.
    pub fn abort(&self) {
        match &*self.group {
            Group::Nccl(group) => group.end(self.rank),
            Group::Sim(meeting) => meeting.abort(),
        }
    }
}
