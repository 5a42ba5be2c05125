//! What PyTorch's allocator asks of Tenure: the table of `include/tenure_torch.h`, which says what each function does.

mod blocks;
mod callbacks;
mod devices;
mod object;
mod pluggable;
mod pools;
mod statistics;

use std::ffi::{c_char, c_int, c_void};

use crate::failure::{Failure, Status};
use callbacks::{FreeMemory, Observer};
use object::Object;
use pools::{Filter, Pool};
use statistics::CStatistics;

/// `tenure_torch_api` of `tenure_torch.h`.
#[repr(C)]
pub struct Table {
    size: usize,
    abi: u32,
    last_error: extern "C" fn() -> *const c_char,
    configure: unsafe extern "C" fn(*const c_char) -> Status,
    is_open: extern "C" fn(c_int) -> bool,
    allocate: unsafe extern "C" fn(c_int, usize, *mut c_void, Object, *mut *mut c_void) -> Status,
    free: extern "C" fn(*mut c_void, Object) -> Status,
    record_stream: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status,
    statistics: unsafe extern "C" fn(c_int, *mut CStatistics) -> Status,
    reset_peak_statistics: extern "C" fn(c_int) -> Status,
    reset_accumulated_statistics: extern "C" fn(c_int) -> Status,
    set_memory_fraction: extern "C" fn(c_int, f64) -> Status,
    add_out_of_memory_observer: extern "C" fn(Observer, Object) -> Status,
    add_free_memory_callback: extern "C" fn(FreeMemory, Object) -> Status,
    begin_pool: extern "C" fn(c_int, Pool, Filter, Object) -> Status,
    end_pool: extern "C" fn(c_int, Pool) -> Status,
    release_pool: extern "C" fn(c_int, Pool) -> Status,
    release_cached: extern "C" fn(c_int, Pool, Object) -> Status,
}

static TABLE: Table = Table {
    size: size_of::<Table>(),
    abi: 1,
    last_error: crate::tenure_last_error,
    configure: devices::configure,
    is_open: devices::is_open,
    allocate: blocks::allocate,
    free: blocks::free,
    record_stream: blocks::record_stream,
    statistics: statistics::statistics,
    reset_peak_statistics: statistics::reset_peak_statistics,
    reset_accumulated_statistics: statistics::reset_accumulated_statistics,
    set_memory_fraction: statistics::set_memory_fraction,
    add_out_of_memory_observer: callbacks::add_out_of_memory_observer,
    add_free_memory_callback: callbacks::add_free_memory_callback,
    begin_pool: pools::begin_pool,
    end_pool: pools::end_pool,
    release_pool: pools::release_pool,
    release_cached: pools::release_cached,
};

/// The table.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_torch_table() -> *const Table {
    &TABLE
}

/// Says how devices are opened: `tenure_torch_api.configure`, for Rust.
///
/// # Errors
/// The options make no sense, or a device is open already: the message.
pub fn configure(options: &str) -> Result<(), String> {
    devices::configure_from(options).map_err(|failure: Failure| failure.to_string())
}
