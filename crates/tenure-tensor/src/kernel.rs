//! Tables of kernels by device and dtype.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tenure_core::{DType, DeviceKind};

use crate::{Result, TensorError};

/// A kernel function for one dtype on one kind of device.
pub type Entry<F> = (DeviceKind, DType, F);

/// A table of the functions that compute an operation, by device kind and dtype. `F` is the type of function pointer,
/// the same for all entries. It is like ATen's `DispatchStub`, and as extensible as its dispatcher: any crate can add a
/// function to any table, also in place of an existing one, and make its own tables.
///
/// ```
/// use tenure_tensor::{DType, DeviceKind, Kernel};
///
/// static HALVE: Kernel<fn(f64) -> f64> = Kernel::new("halve", &[&[(DeviceKind::Cpu, DType::F64, |x| x / 2.0)]]);
/// assert_eq!(HALVE.find(DeviceKind::Cpu, DType::F64)?(3.0), 1.5);
/// assert!(HALVE.find(DeviceKind::Cpu, DType::F32).is_err());
///
/// HALVE.register(DeviceKind::Cpu, DType::F32, |x| f64::from(x as f32 / 2.0));
/// assert!(HALVE.find(DeviceKind::Cpu, DType::F32).is_ok());
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
pub struct Kernel<F: Copy + 'static> {
    name: &'static str,
    builtin: &'static [&'static [Entry<F>]],
    added: RwLock<Vec<Entry<F>>>,
    has_added: AtomicBool,
}

impl<F: Copy> Kernel<F> {
    /// Creates the table of the operation `name` (used in errors), with one list of functions for each kind of device.
    pub const fn new(name: &'static str, builtin: &'static [&'static [Entry<F>]]) -> Self {
        Self { name, builtin, added: RwLock::new(Vec::new()), has_added: AtomicBool::new(false) }
    }

    /// Returns the operation's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Registers `function` for `dtype` on `device`, in place of any earlier function.
    pub fn register(&self, device: DeviceKind, dtype: DType, function: F) {
        self.added.write().push((device, dtype, function));
        self.has_added.store(true, Ordering::Release);
    }

    /// Returns the function for `dtype` on `device` that was registered last.
    ///
    /// # Errors
    /// [`TensorError::NoKernel`].
    pub fn find(&self, device: DeviceKind, dtype: DType) -> Result<F> {
        if self.has_added.load(Ordering::Acquire)
            && let Some(entry) = self.added.read().iter().rev().find(|entry| entry.0 == device && entry.1 == dtype)
        {
            return Ok(entry.2);
        }
        find(self.name, self.builtin, device, dtype)
    }
}

/// Returns the function for `dtype` on `device` from some lists of entries.
pub(crate) fn find<F: Copy>(op: &'static str, lists: &[&[Entry<F>]], device: DeviceKind, dtype: DType) -> Result<F> {
    let found = lists.iter().copied().flatten().find(|entry| entry.0 == device && entry.1 == dtype);
    found.map(|entry| entry.2).ok_or(TensorError::NoKernel { op, device, dtype })
}

/// Builds a list of kernel entries for one kind of device. It takes one function for any dtype, or a generic function
/// that is instantiated for each element type: for `all` dtypes, for `numbers` (all but `bool`), for `integers` (and
/// `bool`), for `whole numbers` (integers without `bool`), for `floats`, or `only` for those named.
///
/// Fewer types are compiled with one of these:
/// - `bits of`: the signed integer of the same width serves an unsigned one, for functions that give it the same bits.
/// - `lanes of`: the type that a dtype is computed in, which holds all of its values: `f32` for `f16` and `bf16`, and
///   the next signed integer for `uint16` and `uint32`.
/// - `wrapping lanes of`: the first for integers, the second for floats.
macro_rules! entries {
    ($kind:ident, all: $function:ident) => {
        $crate::kernel::entries!($kind, @ $function, (Bool U8 I8 I16 I32 I64 F16 BF16 F32 F64 U16 U32 U64))
    };
    ($kind:ident, numbers: $function:ident) => {
        $crate::kernel::entries!($kind, @ $function, (U8 I8 I16 I32 I64 F16 BF16 F32 F64 U16 U32 U64))
    };
    ($kind:ident, floats: $function:ident) => { $crate::kernel::entries!($kind, @ $function, (F16 BF16 F32 F64)) };
    ($kind:ident, all: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64) (U16 u16) (U32 u32) (U64 u64))
    };
    ($kind:ident, numbers: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64) (U16 u16) (U32 u32) (U64 u64))
    };
    ($kind:ident, floats: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64))
    };
    ($kind:ident, bits of all: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64) (U16 i16) (U32 i32) (U64 i64))
    };
    ($kind:ident, bits of numbers: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64) (U16 i16) (U32 i32) (U64 i64))
    };
    ($kind:ident, bits of integers: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (U16 i16) (U32 i32) (U64 i64))
    };
    ($kind:ident, bits of whole numbers: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (U16 i16) (U32 i32) (U64 i64))
    };
    ($kind:ident, lanes of all: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 f32) (BF16 f32) (F32 f32) (F64 f64) (U16 i32) (U32 i64) (U64 u64))
    };
    ($kind:ident, lanes of numbers: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 f32) (BF16 f32) (F32 f32) (F64 f64) (U16 i32) (U32 i64) (U64 u64))
    };
    ($kind:ident, lanes of whole numbers: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (U16 i32) (U32 i64) (U64 u64))
    };
    ($kind:ident, lanes of floats: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (F16 f32) (BF16 f32) (F32 f32) (F64 f64))
    };
    ($kind:ident, wrapping lanes of all: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 f32) (BF16 f32) (F32 f32) (F64 f64) (U16 i16) (U32 i32) (U64 i64))
    };
    ($kind:ident, wrapping lanes of numbers: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 f32) (BF16 f32) (F32 f32) (F64 f64) (U16 i16) (U32 i32) (U64 i64))
    };
    ($kind:ident, only $dtype:ident $type:ty: $function:ident::<T>) => {
        $crate::kernel::entries!($kind, @ $function: ($dtype $type))
    };
    ($kind:ident, @ $function:ident, ($($dtype:ident)*)) => {
        &[$(($crate::DeviceKind::$kind, $crate::DType::$dtype, $function)),*]
    };
    ($kind:ident, @ $function:ident: $(($dtype:ident $type:ty))*) => {
        &[$(($crate::DeviceKind::$kind, $crate::DType::$dtype, $function::<$type>)),*]
    };
}
pub(crate) use entries;

/// [`entries!`] for the CPU.
macro_rules! on_cpu {
    ($($what:tt)*) => { $crate::kernel::entries!(Cpu, $($what)*) };
}
pub(crate) use on_cpu;

/// [`entries!`] for CUDA devices.
macro_rules! on_cuda {
    ($($what:tt)*) => { $crate::kernel::entries!(Cuda, $($what)*) };
}
pub(crate) use on_cuda;
