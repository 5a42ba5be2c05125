//! Tables of kernels by device and dtype.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tenure_core::{DType, DeviceKind};

use crate::{Result, TensorError};

/// A function of an operation for one dtype on one kind of device.
pub type Entry<F> = (DeviceKind, DType, F);

/// What computes an operation, by device and dtype. `F` is a function pointer, the same for all. ATen's
/// `DispatchStub`, and as open as its dispatcher: a crate can add a function to any table, also in place of one, and make
/// tables of its own.
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
    /// A table of the operation `name`, for errors, with a list of functions for each kind of device.
    pub const fn new(name: &'static str, builtin: &'static [&'static [Entry<F>]]) -> Self {
        Self { name, builtin, added: RwLock::new(Vec::new()), has_added: AtomicBool::new(false) }
    }

    /// The operation's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Computes `dtype` on `device` with `function` from now on.
    pub fn register(&self, device: DeviceKind, dtype: DType, function: F) {
        self.added.write().push((device, dtype, function));
        self.has_added.store(true, Ordering::Release);
    }

    /// What computes `dtype` on `device`: what was registered last.
    ///
    /// # Errors
    /// [`TensorError::NoKernel`].
    pub fn find(&self, device: DeviceKind, dtype: DType) -> Result<F> {
        let is_it = |entry: &&Entry<F>| entry.0 == device && entry.1 == dtype;
        if self.has_added.load(Ordering::Acquire)
            && let Some(entry) = self.added.read().iter().rev().find(is_it)
        {
            return Ok(entry.2);
        }
        let found = self.builtin.iter().copied().flatten().find(is_it);
        found.map(|entry| entry.2).ok_or(TensorError::NoKernel { op: self.name, device, dtype })
    }
}

/// A list of functions on the CPU: one that takes any dtype, or one for each type of element, for `all` dtypes, for
/// `numbers` (all but `bool`), for `integers` (and `bool`), `whole numbers` (without), or for `floats`. In `lanes` of them, it is the type they are
/// computed in that a function is for: `f32` for `f16` and `bf16`.
macro_rules! on_cpu {
    (all: $function:ident) => { $crate::kernel::on_cpu!(@ $function, (Bool U8 I8 I16 I32 I64 F16 BF16 F32 F64)) };
    (numbers: $function:ident) => { $crate::kernel::on_cpu!(@ $function, (U8 I8 I16 I32 I64 F16 BF16 F32 F64)) };
    (floats: $function:ident) => { $crate::kernel::on_cpu!(@ $function, (F16 BF16 F32 F64)) };
    (all: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64))
    };
    (numbers: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64))
    };
    (integers: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64))
    };
    (floats: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (F16 half::f16) (BF16 half::bf16) (F32 f32) (F64 f64))
    };
    (whole numbers: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64))
    };
    (lanes of all: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (Bool bool) (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 f32) (BF16 f32) (F32 f32) (F64 f64))
    };
    (lanes of numbers: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (U8 u8) (I8 i8) (I16 i16) (I32 i32) (I64 i64)
            (F16 f32) (BF16 f32) (F32 f32) (F64 f64))
    };
    (lanes of floats: $function:ident::<T>) => {
        $crate::kernel::on_cpu!(@ $function: (F16 f32) (BF16 f32) (F32 f32) (F64 f64))
    };
    (@ $function:ident, ($($dtype:ident)*)) => {
        &[$(($crate::DeviceKind::Cpu, $crate::DType::$dtype, $function)),*]
    };
    (@ $function:ident: $(($dtype:ident $type:ty))*) => {
        &[$(($crate::DeviceKind::Cpu, $crate::DType::$dtype, $function::<$type>)),*]
    };
}
pub(crate) use on_cpu;
