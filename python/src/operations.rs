//! The operations that PyTorch runs and the tensors that autograd saves, reported by a shim between PyTorch's autograd
//! and its kernels. `torch/shim_operations/tenure_operations.h` documents each function of the shim's table.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use tenure::core::{DType, Device, Storage};
use tenure::offload::Position;
use tenure_device::exchange;

use crate::errors::complaint;

/// A storage of PyTorch's: its address, its size in bytes, and how often it was written to.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Bytes {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) version: u64,
}

/// A listener to PyTorch's operations. Streams are handles of PyTorch's.
pub(crate) trait Listen: Send + Sync {
    /// Returns whether the listener wants to hear of the next operation.
    fn wishes(&self, stream: usize) -> bool;

    /// Records an operation that was launched: its results and inputs, and the call that repeats it, if known. Without a
    /// call, the inputs are the arguments that it wrote to.
    fn operation(&self, stream: usize, made: &[Bytes], inputs: &[Bytes], call: Option<Call>);
}

/// The facts about a tensor that is about to be saved.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct SavedFacts {
    /// Whether the tensor may leave the device's memory. If not, the other fields are not set.
    pub(crate) may_go: bool,
    scalar_type: u8,
    pub(crate) bytes: Bytes,
}

impl SavedFacts {
    /// Returns the element type. Types that Tenure does not have count as bytes.
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
            27 => DType::U16,
            28 => DType::U32,
            29 => DType::U64,
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
struct ShimTable {
    size: usize,
    last_error: extern "C" fn() -> *const c_char,
    new_recorder: extern "C" fn(c_int, Listener) -> Option<NonNull<c_void>>,
    drop_recorder: unsafe extern "C" fn(NonNull<c_void>),
    begin: unsafe extern "C" fn(NonNull<c_void>, *const usize, usize),
    listen: unsafe extern "C" fn(Option<NonNull<c_void>>, u64),
    sequence: extern "C" fn() -> i64,
    node_sequence: extern "C" fn() -> i64,
    enter_hooks: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Option<NonNull<c_void>>,
    leave_hooks: unsafe extern "C" fn(NonNull<c_void>),
    set_hooks: unsafe extern "C" fn(NonNull<c_void>, bool),
    suspend_hooks: unsafe extern "C" fn(NonNull<c_void>, bool),
    set_only_hooks: extern "C" fn(bool),
    drop_hooks: unsafe extern "C" fn(NonNull<c_void>),
    run: unsafe extern "C" fn(NonNull<c_void>, usize, *const NonNull<c_void>, *mut Bytes) -> Option<NonNull<c_void>>,
    drop_call: unsafe extern "C" fn(NonNull<c_void>),
    drop_tensor: unsafe extern "C" fn(NonNull<c_void>),
    look: unsafe extern "C" fn(NonNull<c_void>, NonNull<c_void>) -> SavedFacts,
    name: unsafe extern "C" fn(NonNull<c_void>) -> *const c_char,
    save: unsafe extern "C" fn(NonNull<c_void>, bool) -> Option<NonNull<c_void>>,
    modified: unsafe extern "C" fn(NonNull<c_void>) -> *const c_char,
    restore: unsafe extern "C" fn(NonNull<c_void>, Option<NonNull<c_void>>) -> Option<NonNull<c_void>>,
    drop_saved: unsafe extern "C" fn(NonNull<c_void>),
    stream: extern "C" fn(c_int) -> *mut c_void,
    new_storage: extern "C" fn(c_int, usize) -> Option<NonNull<c_void>>,
    drop_storage: unsafe extern "C" fn(NonNull<c_void>),
    exchange: unsafe extern "C" fn(NonNull<c_void>, NonNull<c_void>) -> bool,
}

/// The shim, as its table of functions.
#[derive(Clone, Copy)]
pub(crate) struct Shim(&'static ShimTable);

impl Shim {
    /// Returns the shim whose table is at `address`.
    ///
    /// # Safety
    /// `address` is that of a shim's table, which lives as long as the process.
    pub(crate) unsafe fn at(address: usize) -> PyResult<Self> {
        // SAFETY: by the function's contract.
        let table = unsafe { &*std::ptr::with_exposed_provenance::<ShimTable>(address) };
        if table.size == size_of::<ShimTable>() {
            Ok(Self(table))
        } else {
            Err(complaint("the shim and Tenure are of different versions: build the shim again".into()))
        }
    }

    /// Returns the handle of this thread's current stream on a device.
    pub(crate) fn stream(self, device: Device) -> usize {
        (self.0.stream)(index_of(device)).addr()
    }

    /// Returns this thread's sequence number, which grows with each operation that is no part of another one. None in
    /// backward, and in a thread without hooks of saved tensors.
    pub(crate) fn sequence(self) -> Option<u64> {
        u64::try_from((self.0.sequence)()).ok()
    }

    /// Returns where this thread is: in forward by its [sequence number](Self::sequence), in backward by that of the
    /// operation whose gradient it computes.
    pub(crate) fn position(self) -> Position {
        let node = || u64::try_from((self.0.node_sequence)()).ok();
        let forward = self.sequence().map(Position::Forward);
        forward.or_else(|| node().map(Position::Backward)).unwrap_or(Position::Unknown)
    }

    /// Switches this thread's hooks of saved tensors on or off, if it has entered only one pair.
    pub(crate) fn set_only_hooks(self, on: bool) {
        (self.0.set_only_hooks)(on);
    }

    /// Returns why this thread's last call failed.
    fn error(self) -> String {
        // SAFETY: the shim returns a string of this thread's, valid until the thread's next call.
        unsafe { text((self.0.last_error)()) }
    }
}

/// Copies a C string.
///
/// # Safety
/// `text` points to a string that ends with a null byte.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: by the function's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A borrowed PyTorch tensor, which a Python object owns.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'py> {
    handle: NonNull<c_void>,
    object: PhantomData<Borrowed<'py, 'py, PyAny>>,
}

impl<'py> Tensor<'py> {
    /// Returns the tensor in a Python object.
    ///
    /// # Errors
    /// The object is no tensor.
    pub(crate) fn of(object: &'py Bound<'_, PyAny>) -> PyResult<Self> {
        let address: usize = object.getattr(intern!(object.py(), "_cdata"))?.extract()?;
        let handle = NonNull::new(std::ptr::without_provenance_mut(address));
        Ok(Self { handle: handle.ok_or_else(|| complaint("a tensor that is none".into()))?, object: PhantomData })
    }

    /// Returns a name for the tensor in error messages.
    pub(crate) fn name(self, shim: Shim) -> String {
        // SAFETY: the object owns the tensor.
        unsafe { text((shim.0.name)(self.handle)) }
    }
}

/// A storage of PyTorch's that no tensor has.
pub(crate) struct TorchStorage {
    shim: Shim,
    owned: Owned,
}

impl TorchStorage {
    /// Makes a storage of PyTorch's of one of Tenure's.
    pub(crate) fn of(shim: Shim, storage: Storage) -> Result<Self, String> {
        Ok(Self { shim, owned: Owned::storage(shim, storage)? })
    }

    /// Exchanges the bytes with those of a tensor's storage, which has the same size.
    pub(crate) fn exchange(&self, tensor: Tensor<'_>) -> Result<(), String> {
        // SAFETY: both are alive.
        let has_exchanged = unsafe { (self.shim.0.exchange)(tensor.handle, self.owned.handle) };
        if has_exchanged { Ok(()) } else { Err(self.shim.error()) }
    }
}

/// A tensor that autograd has saved.
pub(crate) struct SavedTensor {
    shim: Shim,
    owned: Owned,
}

impl SavedTensor {
    /// Saves the tensor, with or without its bytes.
    pub(crate) fn new(shim: Shim, tensor: Tensor<'_>, is_without_bytes: bool) -> PyResult<Self> {
        // SAFETY: the object owns the tensor.
        let handle = unsafe { (shim.0.save)(tensor.handle, is_without_bytes) };
        let handle = handle.ok_or_else(|| complaint(shim.error()))?;
        Ok(Self { shim, owned: Owned { handle, drop: shim.0.drop_saved } })
    }

    /// Returns PyTorch's error message if the tensor was written to since it was saved.
    pub(crate) fn modified(&self) -> Option<String> {
        // SAFETY: the saved tensor is alive.
        let words = unsafe { (self.shim.0.modified)(self.owned.handle) };
        // SAFETY: the shim returns a valid string or null.
        (!words.is_null()).then(|| unsafe { text(words) })
    }

    /// Returns the tensor. If it was saved without its bytes, `storage` provides them.
    pub(crate) fn restored<'py>(&self, py: Python<'py>, storage: Option<Storage>) -> PyResult<Bound<'py, PyAny>> {
        let storage = storage.map(|storage| py.detach(|| Owned::storage(self.shim, storage)).map_err(complaint));
        let storage = storage.transpose()?;
        // SAFETY: both are alive, and this thread holds the GIL.
        let object =
            unsafe { (self.shim.0.restore)(self.owned.handle, storage.as_ref().map(|storage| storage.handle)) };
        let object = object.ok_or_else(|| complaint(self.shim.error()))?;
        // SAFETY: the shim returns a new reference.
        Ok(unsafe { Bound::from_owned_ptr(py, object.as_ptr().cast()) })
    }
}

/// A recorder: reports to a listener the operations that threads run on a device.
pub(crate) struct OperationRecorder {
    shim: Shim,
    owned: Owned,
}

impl OperationRecorder {
    pub(crate) fn new(shim: Shim, device: Device, listener: Arc<dyn Listen>) -> PyResult<Self> {
        let user = Box::into_raw(Box::new(User { shim, listener })).cast();
        let listener = Listener { user, drop: dropped, wishes, operation };
        let handle = (shim.0.new_recorder)(index_of(device), listener);
        let handle = handle.ok_or_else(|| complaint(shim.error()))?;
        Ok(Self { shim, owned: Owned { handle, drop: shim.0.drop_recorder } })
    }

    /// Begins a step: from now on storages at these addresses stay in memory.
    pub(crate) fn begin(&self, staying: &[usize]) {
        // SAFETY: the recorder is alive.
        unsafe { (self.shim.0.begin)(self.owned.handle, staying.as_ptr(), staying.len()) }
    }

    /// Returns the facts about a tensor that is about to be saved.
    pub(crate) fn look(&self, tensor: Tensor<'_>) -> SavedFacts {
        // SAFETY: both are alive.
        unsafe { (self.shim.0.look)(self.owned.handle, tensor.handle) }
    }

    /// Starts the recording of this thread's operations, from a [sequence number](Shim::sequence) on, or stops it.
    pub(crate) fn listen(&self, from: Option<u64>) {
        // SAFETY: the recorder is alive, and a thread that listens keeps it alive.
        unsafe { (self.shim.0.listen)(from.map(|_| self.owned.handle), from.unwrap_or(0)) }
    }
}

/// Hooks on the tensors that a thread saves for backward, on its stack until it [leaves](Self::leave) them.
///
/// PyTorch calls only the hooks on top of the stack. Wherever these lie on the stack, the thread may
/// [pause](Self::pause) them: then PyTorch saves tensors as if they had never been there.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct SavedHooks {
    shim: Shim,
    owned: Owned,
}

#[pymethods]
impl SavedHooks {
    /// Puts two functions on top of the thread's stack. `operations` is the address of the shim's table.
    #[new]
    fn new(operations: usize, pack: Py<PyAny>, unpack: Py<PyAny>) -> PyResult<Self> {
        // SAFETY: the package has loaded the shim, which is never unloaded.
        let shim = unsafe { Shim::at(operations) }?;
        // SAFETY: the shim takes over the references, and this thread holds the GIL.
        let handle = unsafe { (shim.0.enter_hooks)(pack.into_ptr().cast(), unpack.into_ptr().cast()) };
        let handle = handle.ok_or_else(|| complaint(shim.error()))?;
        Ok(Self { shim, owned: Owned { handle, drop: shim.0.drop_hooks } })
    }

    /// Takes the hooks off the stack for good, in the thread that made them.
    fn leave(&self) {
        // SAFETY: the hooks are alive.
        unsafe { (self.shim.0.leave_hooks)(self.owned.handle) }
    }

    /// Takes the hooks off the stack, if they are on it.
    fn pause(&self) {
        // SAFETY: the hooks are alive.
        unsafe { (self.shim.0.set_hooks)(self.owned.handle, false) }
    }

    /// Puts the hooks back where they were, if they are not there.
    fn resume(&self) {
        // SAFETY: the hooks are alive.
        unsafe { (self.shim.0.set_hooks)(self.owned.handle, true) }
    }

    /// Takes the hooks off the stack, whether they are paused or not, until this is called with `False`.
    fn suspend(&self, is_suspended: bool) {
        // SAFETY: the hooks are alive.
        unsafe { (self.shim.0.suspend_hooks)(self.owned.handle, is_suspended) }
    }
}

/// An operation and its arguments, ready to run again.
pub(crate) struct Call {
    shim: Shim,
    owned: Owned,
}

impl Call {
    /// Runs the operation again. Returns the storage of its result number `made`, in the order of the results that were
    /// reported. `inputs` are the storages of its inputs.
    pub(crate) fn run(&self, made: usize, inputs: Vec<Storage>, device: Device) -> Result<Storage, String> {
        let Shim(table) = self.shim;
        let inputs = inputs.into_iter().map(|input| Owned::storage(self.shim, input));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let handles: Vec<_> = inputs.iter().map(|input| input.handle).collect();
        let mut bytes = Bytes::default();
        // SAFETY: the call is alive, and the handles are storages that live until it returns.
        let result = unsafe { (table.run)(self.owned.handle, made, handles.as_ptr(), &mut bytes) };
        let handle = result.ok_or_else(|| self.shim.error())?;
        let _result = Owned { handle, drop: table.drop_tensor };
        // SAFETY: the result owns the storage.
        let storage = unsafe { exchange::share(device, bytes.address, bytes.bytes) };
        storage.ok_or_else(|| "what it makes is not in Tenure's memory".into())
    }
}

/// An object of PyTorch's that this process owns, with the shim's function that frees it.
struct Owned {
    handle: NonNull<c_void>,
    drop: unsafe extern "C" fn(NonNull<c_void>),
}

// SAFETY: the shim's functions may be called from any thread.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// Wraps a storage of Tenure's in one of PyTorch's.
    fn storage(Shim(table): Shim, storage: Storage) -> Result<Self, String> {
        let index = index_of(storage.device());
        let bytes = storage.bytes();
        let lent = exchange::lend(storage);
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
        // SAFETY: the handle is owned and is freed once.
        unsafe { (self.drop)(self.handle) }
    }
}

/// Returns the device's index in the shim's numbering: -1 for the CPU.
fn index_of(device: Device) -> c_int {
    if device.is_cpu() { -1 } else { c_int::from(device.index()) }
}

/// The user data of a recorder: its listener.
struct User {
    shim: Shim,
    listener: Arc<dyn Listen>,
}

extern "C" fn dropped(user: *mut c_void) {
    // SAFETY: the shim calls this once, with the pointer that the recorder was made with.
    drop(unsafe { Box::from_raw(user.cast::<User>()) });
}

extern "C" fn wishes(user: *mut c_void, stream: *mut c_void) -> bool {
    // SAFETY: the shim passes the pointer that the recorder was made with.
    let User { listener, .. } = unsafe { &*user.cast() };
    // A panic must not unwind into PyTorch. The listener reports errors by other ways.
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
    // SAFETY: the shim passes the pointer that the recorder was made with.
    let User { shim, listener } = unsafe { &*user.cast() };
    let call = call.map(|handle| Call { shim: *shim, owned: Owned { handle, drop: shim.0.drop_call } });
    // SAFETY: the shim passes so many elements.
    let made = unsafe { bytes_at(made, made_count) };
    // SAFETY: likewise.
    let inputs = unsafe { bytes_at(inputs, input_count) };
    let _ = catch_unwind(AssertUnwindSafe(|| listener.operation(stream.addr(), made, inputs, call)));
}

/// Returns the `count` elements at `first`, which may be null if there are none.
///
/// # Safety
/// The elements are there during the call.
unsafe fn bytes_at<'a>(first: *const Bytes, count: usize) -> &'a [Bytes] {
    // SAFETY: by the function's contract.
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(first, count) } }
}
