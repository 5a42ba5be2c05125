//! The functions of the driver that other code reaches through wrappers, and how it gets to the wrappers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use parking_lot::Mutex;

use super::caller::calling_library;
use super::objects::{self, Objects, Replacement};
use super::{calls, room};

/// A result of the driver: 0 is success.
pub(super) type Code = c_int;

/// The oldest version of CUDA whose functions are wrapped under names that had another meaning before.
const RENAMED_VERSION: c_int = 3020;

/// A flag of `cuGetProcAddress`: the null stream is the thread's own.
const PER_THREAD_STREAM: u64 = 2;

/// A function of the driver that other code reaches through a wrapper.
pub(super) struct Hook {
    /// The name under which the driver's library has it.
    symbol: &'static CStr,
    /// The name under which `cuGetProcAddress` returns it.
    name: &'static CStr,
    null_stream: NullStream,
    wrapper: fn() -> *const c_void,
    real: AtomicPtr<c_void>,
}

/// The stream that a function takes for the null stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NullStream {
    /// It takes no stream.
    None,
    Legacy,
    PerThread,
}

impl NullStream {
    /// Returns whether a function that takes this one is meant by those who ask for `wanted`.
    fn is_for(self, wanted: Self) -> bool {
        self == Self::None || self == wanted
    }
}

impl Hook {
    pub(super) const fn new(
        symbol: &'static CStr,
        name: &'static CStr,
        null_stream: NullStream,
        wrapper: fn() -> *const c_void,
    ) -> Self {
        Self { symbol, name, null_stream, wrapper, real: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the driver's function.
    ///
    /// # Safety
    /// `F` is the type of the function's pointer, and the wrapper was handed out.
    pub(super) unsafe fn real<F: Copy>(&self) -> F {
        let real = self.real.load(Ordering::Relaxed);
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: by the function's contract. The wrapper is handed out only once the function was found.
        unsafe { mem::transmute_copy(&real) }
    }

    /// Returns the wrapper, if the driver has the function.
    fn wrapper(&self) -> Option<*const c_void> {
        (!self.real.load(Ordering::Relaxed).is_null()).then(self.wrapper)
    }
}

/// The loader's `dlsym`, for `dlsym` below.
static LOADER_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

static OBJECTS: Mutex<Option<Objects>> = Mutex::new(None);

/// Finds the driver's functions, and redirects what the loaded objects look up.
///
/// # Safety
/// `driver` is a handle of the driver's library.
pub(super) unsafe fn install(driver: *mut c_void) {
    for hook in all() {
        // SAFETY: by the function's contract.
        let real = unsafe { libc::dlsym(driver, hook.symbol.as_ptr()) };
        hook.real.store(real, Ordering::Relaxed);
    }
    // The first stack trace loads a library, which had better not happen within a library's call.
    calling_library();
    LOADER_DLSYM.store(libc::dlsym as *mut c_void, Ordering::Release);
    OBJECTS.lock().get_or_insert_with(Objects::new);
    redirect_new();
    let replacements =
        all().filter_map(|hook| Some(Replacement { by: hook.wrapper()?, function: hook.real.load(Ordering::Relaxed) }));
    // SAFETY: the wrappers do the work of the functions that they replace.
    unsafe { objects::replace_in_variables(&replacements.collect::<Vec<_>>()) };
}

/// Returns all hooks.
fn all() -> impl DoubleEndedIterator<Item = &'static Hook> {
    calls::HOOKS.iter().chain(room::HOOKS).copied()
}

/// Redirects the objects that were loaded since the last call.
fn redirect_new() {
    // A thread that loads a library holds the loader's lock while the library's own start calls this, and another thread
    // may wait here for that lock. That other thread then redirects; or else the next call does.
    let Some(mut objects) = OBJECTS.try_lock() else { return };
    let Some(objects) = objects.as_mut() else { return };
    // SAFETY: `dlsym` and the wrappers do the work of the functions that they replace.
    unsafe {
        objects.redirect_new(&|name| match name.to_bytes() {
            b"dlsym" => Some(dlsym as *const c_void),
            [b'c', b'u', ..] => by_symbol(name),
            _ => None,
        });
    }
}

/// Returns the wrapper of a function that the driver's library has under this name.
fn by_symbol(symbol: &CStr) -> Option<*const c_void> {
    all().find(|hook| hook.symbol == symbol)?.wrapper()
}

/// `dlsym`, for other objects. Calls the loader's with the caller's return address in place, from which the loader tells
/// in which objects a caller looks.
#[unsafe(naked)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {wrapped}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "mov rax, qword ptr [rip + {loader}]",
        "jmp rax",
        wrapped = sym wrapped,
        loader = sym LOADER_DLSYM,
    )
}

/// Returns the wrapper of the function that a look-up would find, or null if it would find another one or none.
unsafe extern "C" fn wrapped(handle: *mut c_void, name: *const c_char) -> *const c_void {
    // A library is loaded before its functions are looked up, and calls no driver before that.
    redirect_new();
    if name.is_null() || handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        return ptr::null();
    }
    // SAFETY: a text, by the contract of `dlsym`.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(hook) = all().find(|hook| hook.symbol == name) else { return ptr::null() };
    // SAFETY: the arguments of a call of `dlsym`.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    let is_driver = !found.is_null() && found == hook.real.load(Ordering::Relaxed);
    if is_driver { (hook.wrapper)() } else { ptr::null() }
}

/// Replaces a function that `cuGetProcAddress` has found by its wrapper.
///
/// # Safety
/// The arguments of a call that succeeded.
pub(super) unsafe fn replace(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64) {
    if name.is_null() || function.is_null() || version < RENAMED_VERSION {
        return;
    }
    // SAFETY: by the function's contract, a text, and a place that was written.
    let (name, found) = unsafe { (CStr::from_ptr(name), *function) };
    let streams = if flags & PER_THREAD_STREAM == 0 { NullStream::Legacy } else { NullStream::PerThread };
    let is_found = |hook: &&Hook| hook.real.load(Ordering::Relaxed) == found;
    // The driver may return another address than that of its symbol. Of functions with two forms it cannot be told then
    // which one it is.
    let is_named = |hook: &&Hook| {
        hook.name == name && hook.null_stream.is_for(streams) && hook.name.to_bytes() != b"cuGetProcAddress"
    };
    let hook = all().find(is_found).or_else(|| all().find(is_named));
    if let Some(wrapper) = hook.and_then(Hook::wrapper).filter(|_| !found.is_null()) {
        // SAFETY: as above.
        unsafe { *function = wrapper.cast_mut() };
    }
}
