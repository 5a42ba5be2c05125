//! What PyTorch's operations make, as a shim between its autograd and its kernels tells, and what autograd saves: the table
//! of `torch/shim_operations/tenure_operations.h`, which says what each function does.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use tenure::core::{DType, Device, Storage};
use tenure_capi::shared;

use crate::errors::complaint;

/// A storage of PyTorch's: where its bytes are, how many they are, and how often they were written to.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Bytes {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) version: u64,
}

/// Who listens. Streams are PyTorch's.
pub(crate) trait Listen: Send + Sync {
    /// Whether to be told of the operation that comes next.
    fn wishes(&self, stream: usize) -> bool;

    /// An operation was asked for, which has made something; and what makes it again, if it is known.
    fn operation(&self, stream: usize, made: &[Bytes], inputs: &[Bytes], call: Option<Call>);
}

/// What is known of a tensor.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Look {
    /// If not, nothing else is known.
    pub(crate) may_go: bool,
    scalar_type: u8,
    pub(crate) bytes: Bytes,
}

impl Look {
    /// Bytes, where Tenure has no such numbers.
    pub(crate) fn dtype(self) -> DType {
        match self.scalar_type {
            1 => DType::I8,
            2 => DType::I16,
            3 => DType::I32,
            4 => DType::I64,
            5 => DType::F16,
            6 => DType::F32,
            7 => DType::F64,
            11 => DType::Bool,
            15 => DType::BF16,
            _ => DType::U8,
        }
    }
}

#[repr(C)]
struct Listener {
    user: *mut c_void,
    drop: extern "C" fn(*mut c_void),
    wishes: extern "C" fn(*mut c_void, *mut c_void) -> bool,
    operation: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *const Bytes,
        usize,
        *const Bytes,
        usize,
        Option<NonNull<c_void>>,
    ),
}

#[repr(C)]
struct Table {
    size: usize,
    last_error: extern "C" fn() -> *const c_char,
    new_recorder: extern "C" fn(c_int, Listener) -> Option<NonNull<c_void>>,
    drop_recorder: unsafe extern "C" fn(NonNull<c_void>),
    begin: unsafe extern "C" fn(NonNull<c_void>, *const usize, usize),
    listen: unsafe extern "C" fn(Option<NonNull<c_void>>),
    run: unsafe extern "C" fn(NonNull<c_void>, usize, *const NonNull<c_void>, *mut Bytes) -> Option<NonNull<c_void>>,
    drop_call: unsafe extern "C" fn(NonNull<c_void>),
    drop_tensor: unsafe extern "C" fn(NonNull<c_void>),
    look: unsafe extern "C" fn(NonNull<c_void>, NonNull<c_void>) -> Look,
    name: unsafe extern "C" fn(NonNull<c_void>) -> *const c_char,
    save: unsafe extern "C" fn(NonNull<c_void>, bool) -> Option<NonNull<c_void>>,
    modified: unsafe extern "C" fn(NonNull<c_void>) -> *const c_char,
    restore: unsafe extern "C" fn(NonNull<c_void>, Option<NonNull<c_void>>) -> Option<NonNull<c_void>>,
    drop_saved: unsafe extern "C" fn(NonNull<c_void>),
    stream: extern "C" fn(c_int) -> *mut c_void,
    new_storage: extern "C" fn(c_int, usize) -> Option<NonNull<c_void>>,
    drop_storage: unsafe extern "C" fn(NonNull<c_void>),
}

/// The shim.
#[derive(Clone, Copy)]
pub(crate) struct Shim(&'static Table);

impl Shim {
    /// By the address of its table.
    ///
    /// # Safety
    /// That is what there is, for as long as the process.
    pub(crate) unsafe fn at(address: usize) -> PyResult<Self> {
        // SAFETY: by the function's contract.
        let table = unsafe { &*std::ptr::with_exposed_provenance::<Table>(address) };
        if table.size == size_of::<Table>() {
            Ok(Self(table))
        } else {
            Err(complaint("the shim and Tenure are of different versions: build the shim again".into()))
        }
    }

    /// Where the thread computes on a device.
    pub(crate) fn stream(self, device: Device) -> usize {
        (self.0.stream)(index_of(device)).addr()
    }

    /// Why this thread's last call failed.
    fn error(self) -> String {
        // SAFETY: a string of the thread's, there until its next call.
        unsafe { text((self.0.last_error)()) }
    }
}

/// # Safety
/// It is a string, if it is not null.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: by the function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A tensor of PyTorch's, in an object of Python's.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'py> {
    handle: NonNull<c_void>,
    object: PhantomData<Borrowed<'py, 'py, PyAny>>,
}

impl<'py> Tensor<'py> {
    /// # Errors
    /// The object is no tensor.
    pub(crate) fn of(object: &'py Bound<'_, PyAny>) -> PyResult<Self> {
        let address: usize = object.getattr(intern!(object.py(), "_cdata"))?.extract()?;
        let handle = NonNull::new(std::ptr::without_provenance_mut(address));
        Ok(Self { handle: handle.ok_or_else(|| complaint("a tensor that is none".into()))?, object: PhantomData })
    }

    /// What to call it in an error.
    pub(crate) fn name(self, shim: Shim) -> String {
        // SAFETY: the object has it.
        unsafe { text((shim.0.name)(self.handle)) }
    }
}

/// A tensor that autograd has saved.
pub(crate) struct Saved {
    shim: Shim,
    owned: Owned,
}

impl Saved {
    /// As it is, or without its bytes.
    pub(crate) fn new(shim: Shim, tensor: Tensor<'_>, is_without_bytes: bool) -> PyResult<Self> {
        // SAFETY: the object has the tensor.
        let handle = unsafe { (shim.0.save)(tensor.handle, is_without_bytes) };
        let handle = handle.ok_or_else(|| complaint(shim.error()))?;
        Ok(Self { shim, owned: Owned { handle, drop: shim.0.drop_saved } })
    }

    /// PyTorch's own words, if it was written to since.
    pub(crate) fn modified(&self) -> Option<String> {
        // SAFETY: it lives.
        let words = unsafe { (self.shim.0.modified)(self.owned.handle) };
        // SAFETY: as the shim says.
        (!words.is_null()).then(|| unsafe { text(words) })
    }

    /// The tensor; on a storage, if it was saved without its bytes.
    pub(crate) fn restored<'py>(&self, py: Python<'py>, storage: Option<Storage>) -> PyResult<Bound<'py, PyAny>> {
        let storage = storage.map(|storage| py.detach(|| Owned::storage(self.shim, storage)).map_err(complaint));
        let storage = storage.transpose()?;
        // SAFETY: both live, and Python's lock is held.
        let object =
            unsafe { (self.shim.0.restore)(self.owned.handle, storage.as_ref().map(|storage| storage.handle)) };
        let object = object.ok_or_else(|| complaint(self.shim.error()))?;
        // SAFETY: a new reference.
        Ok(unsafe { Bound::from_owned_ptr(py, object.as_ptr().cast()) })
    }
}

/// Tells of what threads make on a device.
pub(crate) struct Recorder {
    shim: Shim,
    owned: Owned,
}

impl Recorder {
    pub(crate) fn new(shim: Shim, device: Device, listener: Arc<dyn Listen>) -> PyResult<Self> {
        let user = Box::into_raw(Box::new(User { shim, listener })).cast();
        let listener = Listener { user, drop: dropped, wishes, operation };
        let handle = (shim.0.new_recorder)(index_of(device), listener);
        let handle = handle.ok_or_else(|| complaint(shim.error()))?;
        Ok(Self { shim, owned: Owned { handle, drop: shim.0.drop_recorder } })
    }

    /// From now on storages at these addresses stay.
    pub(crate) fn begin(&self, staying: &[usize]) {
        // SAFETY: it lives.
        unsafe { (self.shim.0.begin)(self.owned.handle, staying.as_ptr(), staying.len()) }
    }

    /// What there is to know of a tensor that is saved.
    pub(crate) fn look(&self, tensor: Tensor<'_>) -> Look {
        // SAFETY: both live.
        unsafe { (self.shim.0.look)(self.owned.handle, tensor.handle) }
    }

    /// This thread's operations are told from now on, or not any more.
    pub(crate) fn listen(&self, on: bool) {
        // SAFETY: it lives; a thread that goes on to listen has it, too.
        unsafe { (self.shim.0.listen)(on.then_some(self.owned.handle)) }
    }
}

/// An operation, and what it was given.
pub(crate) struct Call {
    shim: Shim,
    owned: Owned,
}

impl Call {
    /// The storage of result number `made` of those that were told, of the inputs', as PyTorch makes it again.
    pub(crate) fn run(&self, made: usize, inputs: Vec<Storage>, device: Device) -> Result<Storage, String> {
        let Shim(table) = self.shim;
        let inputs = inputs.into_iter().map(|input| Owned::storage(self.shim, input));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let handles: Vec<_> = inputs.iter().map(|input| input.handle).collect();
        let mut bytes = Bytes::default();
        // SAFETY: it lives, and these are storages.
        let result = unsafe { (table.run)(self.owned.handle, made, handles.as_ptr(), &mut bytes) };
        let handle = result.ok_or_else(|| self.shim.error())?;
        let _result = Owned { handle, drop: table.drop_tensor };
        // SAFETY: the result has the storage.
        let storage = unsafe { shared::share(device, bytes.address, bytes.bytes) };
        storage.ok_or_else(|| "what it makes is not in Tenure's memory".into())
    }
}

/// Something of PyTorch's.
struct Owned {
    handle: NonNull<c_void>,
    drop: unsafe extern "C" fn(NonNull<c_void>),
}

// SAFETY: the shim's functions may be called from any thread.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// A storage, as one of PyTorch's.
    fn storage(Shim(table): Shim, storage: Storage) -> Result<Self, String> {
        let (index, bytes) = (index_of(storage.device()), storage.bytes());
        let lent = shared::lend(storage);
        let made = (table.new_storage)(index, bytes).map(|handle| Self { handle, drop: table.drop_storage });
        let made = made.ok_or_else(|| Shim(table).error())?;
        if lent.is_taken() {
            Ok(made)
        } else {
            Err("PyTorch did not ask Tenure for memory: another allocator took its place".into())
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it is owned.
        unsafe { (self.drop)(self.handle) }
    }
}

/// As the shim counts.
fn index_of(device: Device) -> c_int {
    if device.is_cpu() { -1 } else { c_int::from(device.index()) }
}

/// Whom a recorder tells.
struct User {
    shim: Shim,
    listener: Arc<dyn Listen>,
}

extern "C" fn dropped(user: *mut c_void) {
    // SAFETY: the shim's only call of it, for what a recorder was made with.
    drop(unsafe { Box::from_raw(user.cast::<User>()) });
}

extern "C" fn wishes(user: *mut c_void, stream: *mut c_void) -> bool {
    // SAFETY: the shim calls it with what a recorder was made with.
    let User { listener, .. } = unsafe { &*user.cast() };
    // Whoever listens is to be told by other ways what went wrong: nothing may unwind into PyTorch.
    catch_unwind(AssertUnwindSafe(|| listener.wishes(stream.addr()))).unwrap_or(false)
}

unsafe extern "C" fn operation(
    user: *mut c_void,
    stream: *mut c_void,
    made: *const Bytes,
    made_count: usize,
    inputs: *const Bytes,
    input_count: usize,
    call: Option<NonNull<c_void>>,
) {
    let slice = |first: *const Bytes, count| -> &[Bytes] {
        // SAFETY: the shim says so; where there are none, the address may be null.
        if count == 0 { &[] } else { unsafe { slice::from_raw_parts(first, count) } }
    };
    // SAFETY: the shim calls it with what a recorder was made with.
    let User { shim, listener } = unsafe { &*user.cast() };
    let call = call.map(|handle| Call { shim: *shim, owned: Owned { handle, drop: shim.0.drop_call } });
    let (made, inputs) = (slice(made, made_count), slice(inputs, input_count));
    let _ = catch_unwind(AssertUnwindSafe(|| listener.operation(stream.addr(), made, inputs, call)));
}
