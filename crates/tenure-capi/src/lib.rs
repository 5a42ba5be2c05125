//! The C interface: the functions that `include/tenure.h` declares and documents. Built as `libtenure_capi.so`.
//!
//! An allocation through it takes no lock and allocates nothing by itself: it looks up the device in a table, and
//! converts the result.
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]

pub mod cpu;
mod device;
pub mod extension;
pub mod failure;
pub mod headers;
mod options;
pub mod shared_cache;
pub mod tensors;
pub mod torch;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use device::OpenDevice;
use failure::{Failure, Status, guarded, last_error};
use options::DeviceOptions;
use tenure_alloc::Request;
use tenure_core::StreamId;

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zero in it"),
    };
    VERSION.as_ptr()
}

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_last_error() -> *const c_char {
    last_error()
}

/// See `tenure.h`.
///
/// # Safety
/// `options` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_open(device: c_int, options: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: by the function's contract.
        let text = if options.is_null() { c"" } else { unsafe { CStr::from_ptr(options) } };
        let text = text.to_str().map_err(|_| Failure::Invalid("options must be UTF-8".into()))?;
        let options: DeviceOptions = text.parse()?;
        OpenDevice::open(device, options.driver(device)?, options.memory)
    })
}

/// See `tenure.h`.
///
/// # Safety
/// `stream` is null or a stream of the device; `block` is null or a place to write a pointer to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_alloc(
    device: c_int,
    bytes: usize,
    stream: *mut c_void,
    block: *mut *mut c_void,
) -> Status {
    guarded(|| {
        if block.is_null() {
            return Err(Failure::null("block"));
        }
        let device = OpenDevice::get(device)?;
        let stream = stream_id(stream);
        // SAFETY: by the function's contract.
        unsafe { device.adopt(stream) };
        let allocated = device.memory.allocate(Request::new(bytes as u64, stream))?;
        // SAFETY: not null, so a place to write to.
        unsafe { block.write(ptr::without_provenance_mut(allocated.address as usize)) };
        Ok(())
    })
}

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_free(device: c_int, block: *mut c_void) -> Status {
    guarded(|| Ok(OpenDevice::get(device)?.memory.free(block.addr() as u64)?))
}

/// See `tenure.h`.
///
/// # Safety
/// `stream` is null or a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_record_stream(device: c_int, block: *mut c_void, stream: *mut c_void) -> Status {
    guarded(|| {
        let device = OpenDevice::get(device)?;
        let stream = stream_id(stream);
        // SAFETY: by the function's contract.
        unsafe { device.adopt(stream) };
        Ok(device.memory.record_stream(block.addr() as u64, stream)?)
    })
}

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_empty_cache(device: c_int) -> Status {
    guarded(|| Ok(OpenDevice::get(device)?.memory.allocator().release_cached()?))
}

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_set_memory_fraction(device: c_int, fraction: f64) -> Status {
    guarded(|| Ok(OpenDevice::get(device)?.memory.allocator().set_memory_fraction(fraction)?))
}

/// See `tenure.h`.
///
/// # Safety
/// `json` and `bytes` are null or places to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_stats_json(device: c_int, json: *mut *mut c_char, bytes: *mut usize) -> Status {
    guarded(|| {
        let memory = OpenDevice::get(device)?.memory;
        let flat = memory.allocator().statistics().flat();
        let mut figures: serde_json::Map<_, _> = flat.into_iter().map(|(name, value)| (name, value.into())).collect();
        // Null if the system does not report it.
        figures.insert("overhead_bytes".into(), memory.backing().known_overhead_bytes().into());
        // SAFETY: by the function's contract.
        unsafe { hand_over(serde_json::Value::from(figures).to_string().into_bytes(), json, bytes) }
    })
}

/// See `tenure.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_reset_peak_stats(device: c_int) -> Status {
    guarded(|| {
        OpenDevice::get(device)?.memory.allocator().reset_peak_statistics();
        Ok(())
    })
}

/// See `tenure.h`.
///
/// # Safety
/// `pickle` and `bytes` are null or places to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_snapshot(device: c_int, pickle: *mut *mut c_char, bytes: *mut usize) -> Status {
    guarded(|| {
        let mut out = Vec::new();
        let written = OpenDevice::get(device)?.memory.allocator().snapshot().write_pickle(&mut out);
        written.map_err(|error| Failure::Invalid(format!("the snapshot cannot be written: {error}")))?;
        // SAFETY: by the function's contract.
        unsafe { hand_over(out, pickle, bytes) }
    })
}

/// See `tenure.h`.
///
/// # Safety
/// `buffer` and `bytes` come from one call of `tenure_stats_json` or `tenure_snapshot`, or `buffer` is null. The buffer
/// is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_free_buffer(buffer: *mut c_char, bytes: usize) {
    if !buffer.is_null() {
        // SAFETY: `hand_over` made the buffer from a boxed slice of one byte more.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(buffer.cast::<u8>(), bytes + 1)) });
    }
}

/// Converts a stream's handle to an id.
#[inline]
fn stream_id(stream: *mut c_void) -> StreamId {
    StreamId(stream.addr() as u64)
}

/// Gives `content` to the C caller as a buffer for `tenure_free_buffer`, with a zero byte after it.
///
/// # Safety
/// `buffer` and `bytes` are null or places to write to.
unsafe fn hand_over(mut content: Vec<u8>, buffer: *mut *mut c_char, bytes: *mut usize) -> Result<(), Failure> {
    if buffer.is_null() || bytes.is_null() {
        return Err(Failure::null("the buffer's place or its size's"));
    }
    let count = content.len();
    content.push(0);
    // SAFETY: neither is null, so both are places to write to.
    unsafe {
        buffer.write(Box::into_raw(content.into_boxed_slice()).cast());
        bytes.write(count);
    }
    Ok(())
}
