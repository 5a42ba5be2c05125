//! The library that has called the driver.

use std::ffi::{c_int, c_void};

use super::objects::object_of;

/// The most frames that are looked at.
const FRAMES: usize = 32;

/// Libraries that call for others: the CUDA runtime, the driver, and calls from Python by way of `ctypes`.
const BETWEEN: [&str; 3] = ["libcudart.so", "libcuda.so", "libffi.so"];

unsafe extern "C" {
    /// glibc's, of `execinfo.h`.
    fn backtrace(frames: *mut *mut c_void, size: c_int) -> c_int;
}

/// Returns the name of the library, outside of this one, that has called this code.
pub(super) fn calling_library() -> String {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: there is room for so many frames.
    let count = unsafe { backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let own = object_of(calling_library as *const c_void).map(|object| object.base);
    let objects = frames[..count.clamp(0, FRAMES as c_int) as usize].iter().filter_map(|&frame| object_of(frame));
    let callers = objects.filter(|object| Some(object.base) != own);
    let mut names = callers.map(|object| name_of(&object.path.to_string_lossy()));
    names.find(|name| !BETWEEN.iter().any(|it| name.starts_with(it))).unwrap_or_else(|| "unknown code".to_owned())
}

/// Returns the name of the file at a path; for an extension module of Python, whose file name says little, its package.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    let package = ["/site-packages/", "/dist-packages/"].iter().find_map(|folder| path.split_once(folder));
    match package.and_then(|(_, inside)| inside.split_once('/')) {
        Some((package, _)) if !file.starts_with("lib") => package.to_owned(),
        _ => file.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_goes_by_its_file_and_an_extension_module_by_its_package() {
        assert_eq!(name_of("/usr/lib/libnccl.so.2"), "libnccl.so.2");
        assert_eq!(name_of("/v/site-packages/nvidia/nccl/lib/libnccl.so.2"), "libnccl.so.2");
        assert_eq!(name_of("/v/site-packages/cupy_backends/cuda/api/runtime.cpython-312.so"), "cupy_backends");
        assert_eq!(name_of("/v/site-packages/module.so"), "module.so");
        assert_eq!(name_of("program"), "program");
    }
}
