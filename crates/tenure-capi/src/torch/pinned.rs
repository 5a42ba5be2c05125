//! Pinned host memory.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use tenure_alloc::Address;
use tenure_core::StreamId;
use tenure_device::DeviceBacking;
use tenure_device::memory::{MAX_DEVICES, MemoryError};
use tenure_device::pinned::{CallTimes, Forks, PinnedAllocator, PinnedConfig, PinnedStatistics, Use};

use super::devices::{device, pinned_cache_bytes};
use super::history::{CRecording, recording_of};
use super::object::Object;
use super::pools::CPool;
use super::snapshot::Visitor;
use super::statistics::CStat;
use crate::device::OpenDevice;
use crate::failure::{Failure, Status, guarded};
use crate::stream_id;

/// The part of the host's memory that may be cached, unless a setting says: one in so many bytes.
const CACHE_PART: u64 = 8;

/// The allocator of all devices, from its first use on.
static ALLOCATOR: OnceLock<Arc<PinnedAllocator>> = OnceLock::new();

/// The marks of each device's streams.
static MARKS: [OnceLock<Arc<DeviceBacking>>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// A C function to call with its object, a device and a stream. Returns whether the stream allocates from the pool.
pub(super) type StreamFilter = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> bool;

pub(super) unsafe extern "C" fn allocate(
    number: c_int,
    bytes: usize,
    stream: *mut c_void,
    context: Object,
    address: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let _context = context.enter();
        // SAFETY: by the header, a stream of the device.
        let stream = || unsafe { stream_of(number, stream) };
        let allocated = allocator(number)?.allocate(bytes as u64, stream).map_err(MemoryError::from)?;
        // SAFETY: by the header, a place to write to.
        unsafe { address.write(std::ptr::with_exposed_provenance_mut(allocated as usize)) };
        Ok(())
    })
}

pub(super) extern "C" fn depends_on_stream() -> bool {
    ALLOCATOR.get().is_none_or(|allocator| allocator.has_pools())
}

pub(super) extern "C" fn free(address: *mut c_void, context: Object) -> Status {
    guarded(|| {
        let _context = context.enter();
        let freed = ALLOCATOR.get().map_or(Ok(()), |allocator| allocator.free(address.addr() as Address));
        Ok(freed.map_err(MemoryError::from)?)
    })
}

pub(super) unsafe extern "C" fn record_stream(address: *mut c_void, number: c_int, stream: *mut c_void) -> bool {
    let Some(allocator) = ALLOCATOR.get() else { return false };
    if allocator.bytes(address.addr() as Address).is_none() {
        return false;
    }
    // A copy has used the device, which is open or can be opened.
    let _ = device(number);
    // SAFETY: by the header, a stream of the device.
    let stream = unsafe { stream_of(number, stream) };
    stream.is_some_and(|stream| allocator.record(address.addr() as Address, &stream))
}

pub(super) extern "C" fn release_cached() -> Status {
    guarded(|| ALLOCATOR.get().map_or(Ok(()), |allocator| Ok(allocator.release_cached().map_err(MemoryError::from)?)))
}

pub(super) unsafe extern "C" fn statistics(target: *mut CPinnedStatistics) {
    let statistics = ALLOCATOR.get().map(|allocator| allocator.statistics()).unwrap_or_default();
    // SAFETY: by the header, a place to write to.
    unsafe { target.write(CPinnedStatistics::from(&statistics)) };
}

pub(super) extern "C" fn reset_peak_statistics() {
    if let Some(allocator) = ALLOCATOR.get() {
        allocator.reset_peak_statistics();
    }
}

pub(super) extern "C" fn reset_accumulated_statistics() {
    if let Some(allocator) = ALLOCATOR.get() {
        allocator.reset_accumulated_statistics();
    }
}

pub(super) extern "C" fn begin_pool(number: c_int, pool: CPool, filter: StreamFilter, user: Object) -> Status {
    guarded(|| {
        let filter = Box::new(move |of: &Use| {
            let number = of.device.driver().device().index();
            let stream = std::ptr::without_provenance_mut(of.stream.0 as usize);
            // SAFETY: the filter was handed over with its object, which lives as long as this closure.
            unsafe { filter(user.pointer(), number.into(), stream) }
        });
        allocator(number)?.begin_pool(pool.into(), filter);
        Ok(())
    })
}

pub(super) extern "C" fn end_pool(pool: CPool) {
    if let Some(allocator) = ALLOCATOR.get() {
        allocator.end_pool(pool.into());
    }
}

pub(super) extern "C" fn release_pool(pool: CPool) {
    if let Some(allocator) = ALLOCATOR.get() {
        allocator.release_pool(pool.into());
    }
}

pub(super) unsafe extern "C" fn record_history(number: c_int, recording: *const CRecording, clear: bool) -> Status {
    guarded(|| {
        // SAFETY: by the header, null or a recording.
        let recording = unsafe { recording.as_ref() }.map(recording_of).transpose()?;
        let history = allocator(number)?.history();
        match recording {
            Some(recording) => history.start(recording, clear),
            None => history.stop(),
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn snapshot(traces: bool, visitor: *const Visitor) {
    // SAFETY: by the header, a visitor.
    let visitor = unsafe { &*visitor };
    if let Some(allocator) = ALLOCATOR.get() {
        allocator.blocks().iter().for_each(|block| visitor.show_pinned(block));
        let events = if traces { allocator.history().events() } else { Vec::new() };
        events.iter().for_each(|event| visitor.show_event(-1, event));
    }
}

/// Returns the allocator. The first call makes it, with the driver of an open device, or else of device `number`.
fn allocator(number: c_int) -> Result<&'static PinnedAllocator, Failure> {
    if let Some(allocator) = ALLOCATOR.get() {
        return Ok(allocator);
    }
    // No device gets a context for it that the program may never use.
    let open = OpenDevice::all().next().map(|(_, open)| open);
    let driver = open.map_or_else(|| device(number), Ok)?.memory.driver();
    let cache_bytes = pinned_cache_bytes().unwrap_or_else(|| host_bytes() / CACHE_PART);
    // A child may read what its parent has pinned, as it can with the driver's memory.
    let config = PinnedConfig { user: "PyTorch", cache_bytes, forks: Forks::Shared, ..PinnedConfig::new(u64::MAX) };
    Ok(ALLOCATOR.get_or_init(|| PinnedAllocator::new(Arc::clone(driver), config)))
}

/// Returns a stream of an open device.
///
/// # Safety
/// `stream` is null, or a stream of the device.
unsafe fn stream_of(number: c_int, stream: *mut c_void) -> Option<Use> {
    let open = OpenDevice::get(number).ok()?;
    let stream: StreamId = stream_id(stream);
    // SAFETY: by the function's contract.
    unsafe { open.adopt(stream) };
    let marks = MARKS.get(number as usize)?;
    let device = marks.get_or_init(|| Arc::new(DeviceBacking::new(Arc::clone(open.memory.driver()))));
    Some(Use { device: Arc::clone(device), stream })
}

/// Returns the bytes of the host's memory.
fn host_bytes() -> u64 {
    // SAFETY: the call reads a constant of the system.
    let [pages, bytes] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    u64::try_from(pages).unwrap_or(0) * u64::try_from(bytes).unwrap_or(0)
}

/// `tenure_call_times`.
#[derive(Debug)]
#[repr(C)]
struct CCallTimes {
    count: i64,
    total_us: i64,
    shortest_us: i64,
    longest_us: i64,
}

impl From<&CallTimes> for CCallTimes {
    fn from(times: &CallTimes) -> Self {
        let CallTimes { count, total, shortest, longest } = *times;
        let [total_us, shortest_us, longest_us] =
            [total, shortest.unwrap_or_default(), longest].map(|time| time.as_micros() as i64);
        Self { count: count as i64, total_us, shortest_us, longest_us }
    }
}

/// `tenure_pinned_statistics`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CPinnedStatistics {
    blocks: CStat,
    used_bytes: CStat,
    chunks: CStat,
    pinned_bytes: CStat,
    pinning: CCallTimes,
    unpinning: CCallTimes,
    chunks_by_size: [i64; 64],
}

impl From<&PinnedStatistics> for CPinnedStatistics {
    fn from(statistics: &PinnedStatistics) -> Self {
        let PinnedStatistics { blocks, used_bytes, chunks, pinned_bytes, pinning, unpinning, .. } = statistics;
        let mut chunks_by_size = [0; 64];
        for (&power, &count) in &statistics.chunks_by_size {
            chunks_by_size[power as usize] = count as i64;
        }
        Self {
            blocks: blocks.into(),
            used_bytes: used_bytes.into(),
            chunks: chunks.into(),
            pinned_bytes: pinned_bytes.into(),
            pinning: pinning.into(),
            unpinning: unpinning.into(),
            chunks_by_size,
        }
    }
}
