//! Libraries of extensions, which `include/tenure_extension.h` describes: opening them, and calling their functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::{Status, clear_last_error, last_error};
use crate::tensors::autograd::PushedModes;
use crate::tensors::value::{Returned, Value};

/// `TENURE_ABI` of `tenure_extension.h`.
const ABI: u32 = 1;

/// Why an extension cannot be opened, or a function of it has failed.
#[derive(Debug, thiserror::Error)]
pub enum ExtensionError {
    /// The system cannot open the library.
    #[error("the extension cannot be opened: {reason}")]
    Open {
        /// The system's reason, which names the library.
        reason: String,
    },
    /// The library is no extension.
    #[error("{} is not an extension: it has no tenure_extension_entry, which TENURE_EXTENSION defines", path.display())]
    NoEntry {
        /// The library.
        path: PathBuf,
    },
    /// The extension was built with headers of another version.
    #[error("{} was built for version {found} of Tenure's extensions, and this is version {ABI}: build it again",
        path.display())]
    Abi {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A function has failed.
    #[error("{message}")]
    Failed {
        /// The kind of failure.
        status: Status,
        /// The function's message.
        message: String,
    },
    /// A function has returned a value of no type of a result.
    #[error("{name} has returned a value of type {kind}, which a result cannot have")]
    Result {
        /// The function.
        name: String,
        /// The type.
        kind: i32,
    },
}

/// `tenure_function` of `tenure_extension.h`.
#[repr(C)]
struct FunctionEntry {
    name: *const c_char,
    doc: *const c_char,
    call: Option<unsafe extern "C" fn(*mut c_void, *const Value, usize, *mut Value) -> c_int>,
    context: *mut c_void,
}

/// `tenure_extension` of `tenure_extension.h`.
#[repr(C)]
struct Entry {
    abi: u32,
    count: usize,
    functions: *const FunctionEntry,
}

/// A function of an extension.
pub struct Function {
    name: String,
    doc: String,
    entry: &'static FunctionEntry,
}

// SAFETY: by the header, any thread may call the function.
unsafe impl Send for Function {}
// SAFETY: by the header, several threads may call the function at the same time.
unsafe impl Sync for Function {}

/// Opens an extension's library, and returns its functions. The library stays open until the process ends.
///
/// # Errors
/// The system cannot open the library; it is no extension, or one of another version; its initialisation fails.
pub fn open(path: &Path) -> Result<Vec<Function>, ExtensionError> {
    let path = path.to_owned();
    let open_failed = |reason| ExtensionError::Open { reason };
    offer_own_functions().map_err(open_failed)?;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| open_failed(error.to_string()))?;
    // SAFETY: a C string. The library's constructors are the program's own choice.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(open_failed(system_reason()));
    }
    // SAFETY: an open library and a C string.
    let entry = unsafe { libc::dlsym(library, c"tenure_extension_entry".as_ptr()) };
    if entry.is_null() {
        return Err(ExtensionError::NoEntry { path });
    }
    // SAFETY: by the header, this is the function of that name.
    let entry = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *const Entry>(entry) };
    clear_last_error();
    // SAFETY: by the header, the entry and what it refers to live as long as the process.
    let Some(entry) = (unsafe { entry().as_ref() }) else { return Err(failed(Status::Invalid)) };
    if entry.abi != ABI {
        return Err(ExtensionError::Abi { path, found: entry.abi });
    }
    // SAFETY: by the header, the entry has so many functions, with C strings.
    let functions: &'static [FunctionEntry] = unsafe { crate::tensors::value::elements(entry.functions, entry.count) };
    // SAFETY: likewise.
    let text = |text: *const c_char| unsafe {
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Ok(functions.iter().map(|entry| Function { name: text(entry.name), doc: text(entry.doc), entry }).collect())
}

impl Function {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the documentation.
    pub fn doc(&self) -> &str {
        &self.doc
    }

    /// Calls the function.
    ///
    /// # Errors
    /// The function fails, or returns what is no result.
    pub fn call(&self, arguments: &[Value]) -> Result<Returned, ExtensionError> {
        let mut result = Value::NONE;
        let FunctionEntry { call: Some(call), context, .. } = *self.entry else {
            let message = format!("{} has no function to call", self.name);
            return Err(ExtensionError::Failed { status: Status::Invalid, message });
        };
        clear_last_error();
        let _pushed = PushedModes::begin();
        // SAFETY: by the header: the values live during the call, and the function writes a result if it succeeds.
        let status = Status::of(unsafe { call(context, arguments.as_ptr(), arguments.len(), &raw mut result) });
        if status != Status::Ok {
            return Err(failed(status));
        }
        // SAFETY: by the header, this is a result, which the function has given up.
        unsafe { result.take() }.map_err(|kind| ExtensionError::Result { name: self.name.clone(), kind })
    }
}

/// Returns the failure whose message is this thread's last error.
fn failed(status: Status) -> ExtensionError {
    // SAFETY: a C string of this thread.
    let message = unsafe { CStr::from_ptr(last_error()) }.to_string_lossy();
    let message = if message.is_empty() { "the extension has failed, and gives no reason".into() } else { message };
    ExtensionError::Failed { status, message: message.into_owned() }
}

/// Lets libraries that are opened later find this library's functions, wherever it was opened itself.
fn offer_own_functions() -> Result<(), String> {
    // SAFETY: all zeros is a value of this type.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let own: *const c_void = crate::tenure_version as *const c_void;
    // SAFETY: an address, and a place to write to.
    if unsafe { libc::dladdr(own, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return Err("the system does not know where Tenure's own functions are".into());
    }
    // SAFETY: a C string of the system. The library is open already, or is the program, which has a name that the system
    // cannot open: its functions are found if it was linked to offer them.
    unsafe { libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_GLOBAL) };
    Ok(())
}

/// Returns the system's reason for the last failure.
fn system_reason() -> String {
    // SAFETY: it returns null or a C string that is valid until this thread's next call.
    let reason = unsafe { libc::dlerror() };
    if reason.is_null() {
        return "the system gives no reason".into();
    }
    // SAFETY: not null.
    unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
}
