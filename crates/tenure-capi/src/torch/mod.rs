//! The functions of Tenure that PyTorch's allocator calls, as `include/tenure_torch.h` declares and documents them.

mod blocks;
mod callbacks;
mod devices;
mod history;
mod limits;
mod object;
mod pinned;
mod pluggable;
mod pools;
mod sharing;
mod snapshot;
mod statistics;
mod yielding;

use std::ffi::{c_char, c_int, c_void};

use tenure_alloc::PoolCheckpoint;

use crate::failure::{Failure, Status};
use blocks::ContextVisit;
use callbacks::{FreeMemory, Observer};
pub use devices::stream;
use history::{CRecording, Tracker};
use object::Object;
use pinned::CPinnedStatistics;
use pools::{AddressVisit, CPool, CPoolSource, StreamFilter};
pub use sharing::run_waits_in;
use sharing::{HandleVisit, Imported};
use snapshot::Visitor;
use statistics::{CStatistics, PoolVisit};
pub use yielding::yield_to_libraries;

/// `tenure_torch_api` of `tenure_torch.h`.
#[repr(C)]
pub struct TorchTable {
    size: usize,
    abi: u32,
    last_error: extern "C" fn() -> *const c_char,
    configure: unsafe extern "C" fn(*const c_char) -> Status,
    is_open: extern "C" fn(c_int) -> bool,
    allocate: unsafe extern "C" fn(c_int, usize, *mut c_void, Object, *mut *mut c_void) -> Status,
    free: extern "C" fn(*mut c_void, Object) -> Status,
    record_stream: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status,
    block: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut usize) -> Status,
    extent: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut usize) -> Status,
    context: unsafe extern "C" fn(*mut c_void, ContextVisit, *mut c_void) -> Status,
    annotate_block: extern "C" fn(*mut c_void, Object) -> Status,
    statistics: unsafe extern "C" fn(c_int, *mut CStatistics) -> Status,
    private_pools: unsafe extern "C" fn(c_int, PoolVisit, *mut c_void) -> Status,
    reset_peak_statistics: extern "C" fn(c_int) -> Status,
    reset_accumulated_statistics: extern "C" fn(c_int) -> Status,
    set_memory_fraction: extern "C" fn(c_int, f64) -> Status,
    memory_fraction: unsafe extern "C" fn(c_int, *mut f64) -> Status,
    largest_free: unsafe extern "C" fn(c_int, *mut usize) -> Status,
    tune: unsafe extern "C" fn(c_int, *const f64, usize, *mut bool) -> Status,
    add_out_of_memory_observer: extern "C" fn(Observer, Object) -> Status,
    add_free_memory_callback: extern "C" fn(FreeMemory, Object) -> Status,
    record_history: unsafe extern "C" fn(*const CRecording, bool) -> Status,
    set_note: extern "C" fn(Object),
    annotate: unsafe extern "C" fn(c_int, *const *const c_char, usize) -> Status,
    add_tracker: extern "C" fn(Tracker, Object) -> Status,
    snapshot: unsafe extern "C" fn(c_int, CPool, bool, *const Visitor) -> Status,
    create_pool: unsafe extern "C" fn(c_int, CPool, *mut CPoolSource) -> Status,
    release_pool: extern "C" fn(c_int, CPool) -> Status,
    pool_uses: unsafe extern "C" fn(c_int, CPool, *mut usize) -> Status,
    begin_pool: extern "C" fn(c_int, CPool, bool, StreamFilter, Object) -> Status,
    set_capturing: extern "C" fn(c_int, CPool, bool) -> Status,
    end_pool: extern "C" fn(c_int, CPool) -> Status,
    use_pool_on_oom: extern "C" fn(c_int, CPool, bool) -> Status,
    set_no_split: extern "C" fn(c_int, CPool) -> Status,
    release_cached: extern "C" fn(c_int, CPool, Object) -> Status,
    live_blocks: unsafe extern "C" fn(c_int, CPool, AddressVisit, *mut c_void) -> Status,
    checkpoint: unsafe extern "C" fn(c_int, CPool, *mut *mut PoolCheckpoint) -> Status,
    drop_checkpoint: unsafe extern "C" fn(*mut PoolCheckpoint),
    restore: unsafe extern "C" fn(c_int, *const PoolCheckpoint, AddressVisit, AddressVisit, *mut c_void) -> Status,
    enable_peer: extern "C" fn(c_int, c_int) -> Status,
    share: unsafe extern "C" fn(*mut c_void, *mut usize, HandleVisit, *mut c_void) -> Status,
    open_shared: unsafe extern "C" fn(c_int, *const c_char, usize, *mut *mut c_void, *mut *mut Imported) -> Status,
    close_shared: unsafe extern "C" fn(*mut Imported),
    allocate_pinned: unsafe extern "C" fn(c_int, usize, *mut c_void, Object, *mut *mut c_void) -> Status,
    pinned_depends_on_stream: extern "C" fn() -> bool,
    free_pinned: extern "C" fn(*mut c_void, Object) -> Status,
    record_stream_pinned: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> bool,
    release_cached_pinned: extern "C" fn() -> Status,
    pinned_statistics: unsafe extern "C" fn(*mut CPinnedStatistics),
    reset_peak_pinned_statistics: extern "C" fn(),
    reset_accumulated_pinned_statistics: extern "C" fn(),
    record_pinned_history: unsafe extern "C" fn(c_int, *const CRecording, bool) -> Status,
    pinned_snapshot: unsafe extern "C" fn(bool, *const Visitor),
    begin_pinned_pool: extern "C" fn(c_int, CPool, pinned::StreamFilter, Object) -> Status,
    end_pinned_pool: extern "C" fn(CPool),
    release_pinned_pool: extern "C" fn(CPool),
}

static TABLE: TorchTable = TorchTable {
    size: size_of::<TorchTable>(),
    abi: 5,
    last_error: crate::tenure_last_error,
    configure: devices::configure,
    is_open: devices::is_open,
    allocate: blocks::allocate,
    free: blocks::free,
    record_stream: blocks::record_stream,
    block: blocks::block,
    extent: blocks::extent,
    context: blocks::context,
    annotate_block: blocks::annotate_block,
    statistics: statistics::statistics,
    private_pools: statistics::private_pools,
    reset_peak_statistics: statistics::reset_peak_statistics,
    reset_accumulated_statistics: statistics::reset_accumulated_statistics,
    set_memory_fraction: limits::set_memory_fraction,
    memory_fraction: limits::memory_fraction,
    largest_free: limits::largest_free,
    tune: limits::tune,
    add_out_of_memory_observer: callbacks::add_out_of_memory_observer,
    add_free_memory_callback: callbacks::add_free_memory_callback,
    record_history: history::record_history,
    set_note: history::set_note,
    annotate: history::annotate,
    add_tracker: history::add_tracker,
    snapshot: snapshot::snapshot,
    create_pool: pools::create_pool,
    release_pool: pools::release_pool,
    pool_uses: pools::pool_uses,
    begin_pool: pools::begin_pool,
    set_capturing: pools::set_capturing,
    end_pool: pools::end_pool,
    use_pool_on_oom: pools::use_pool_on_oom,
    set_no_split: pools::set_no_split,
    release_cached: pools::release_cached,
    live_blocks: pools::live_blocks,
    checkpoint: pools::checkpoint,
    drop_checkpoint: pools::drop_checkpoint,
    restore: pools::restore,
    enable_peer: sharing::enable_peer,
    share: sharing::share,
    open_shared: sharing::open_shared,
    close_shared: sharing::close_shared,
    allocate_pinned: pinned::allocate,
    pinned_depends_on_stream: pinned::depends_on_stream,
    free_pinned: pinned::free,
    record_stream_pinned: pinned::record_stream,
    release_cached_pinned: pinned::release_cached,
    pinned_statistics: pinned::statistics,
    reset_peak_pinned_statistics: pinned::reset_peak_statistics,
    reset_accumulated_pinned_statistics: pinned::reset_accumulated_statistics,
    record_pinned_history: pinned::record_history,
    pinned_snapshot: pinned::snapshot,
    begin_pinned_pool: pinned::begin_pool,
    end_pinned_pool: pinned::end_pool,
    release_pinned_pool: pinned::release_pool,
};

/// Returns the table of functions, which lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_torch_table() -> *const TorchTable {
    &TABLE
}

/// Returns the fraction of a device that this process may hold: the smallest one of the open devices or, if none is
/// open, the one with which devices are opened.
pub fn memory_fraction() -> f64 {
    limits::least_memory_fraction()
}

/// Sets the options with which devices are opened: `tenure_torch_api.configure`, for Rust.
///
/// # Errors
/// Returns the message if the options are invalid, or if a device is open already.
pub fn configure(options: &str) -> Result<(), String> {
    devices::configure_from(options).map_err(|failure: Failure| failure.to_string())
}

/// Returns whether [`configure`] was called, from Rust or through the table. If so, PyTorch uses Tenure, or will soon.
pub fn is_configured() -> bool {
    devices::is_configured()
}
