//! Kernels that read elements by index.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use smallvec::SmallVec;

use super::elementwise_runs;
use crate::kernel::on_cpu;
use crate::{Elementwise, Entry, Layout, Result, Tensor, TensorError};

/// A kernel that writes `source` at `index` to the output. The operands are the output, `index` (`int64`), and `source`
/// without the dimensions that the last argument names. The index counts the elements of these dimensions, the last
/// dimension fastest.
pub(crate) type Gather = fn(&Elementwise<'_>, &Tensor, &[usize]) -> Result<()>;

pub(crate) const GATHER: &[Entry<Gather>] = on_cpu!(all: gather);

/// Runs an expression with `$T` as a type of the same width as a dtype's elements, which is enough to move them.
macro_rules! with_width {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}
pub(super) use with_width;

fn gather(iter: &Elementwise<'_>, source: &Tensor, dims: &[usize]) -> Result<()> {
    // The iterator points to the elements of index 0; the others are in the storage that it has locked.
    source.layout().check_bounds(source.dtype(), source.storage().bytes())?;
    let places = Places::new(source.layout(), dims, source.dtype().size());
    with_width!(source.dtype(), T => gather_as::<T>(iter, &places))
}

fn gather_as<T: Copy>(iter: &Elementwise<'_>, places: &Places) -> Result<()> {
    let wrong = Wrong::default();
    let read = |index: *mut u8| {
        // SAFETY: this is an element of the index operand, which is `int64`.
        let index = unsafe { index.cast::<i64>().read() };
        places.find(index).or_else(|| wrong.note(index))
    };
    elementwise_runs::for_each_run(iter, |[out, index, source], [to, along, from], n| {
        // SAFETY: the runs are the operands'; `find` gives places of the layout that was checked against the storage
        // above.
        unsafe {
            if along > 0 {
                for i in 0..n {
                    if let Some(place) = read(index.add(i * along)) {
                        let value = source.add(i * from + place).cast::<T>().read();
                        out.add(i * to).cast::<T>().write(value);
                    }
                }
            } else if let Some(place) = read(index) {
                let source = source.add(place);
                if (to, from) == (size_of::<T>(), size_of::<T>()) {
                    source.cast::<T>().copy_to_nonoverlapping(out.cast(), n);
                } else {
                    (0..n).for_each(|i| out.add(i * to).cast::<T>().write(source.add(i * from).cast::<T>().read()));
                }
            }
        }
    });
    wrong.check(|index| places.error(iter.op(), index))
}

/// The places of the elements of some dimensions, counted with the last dimension fastest.
pub(super) struct Places {
    /// The size of each dimension, and the distance of its neighbours in bytes.
    dims: SmallVec<[(usize, usize); 2]>,
    count: usize,
    /// The number of the first of the dimensions.
    first: usize,
}

impl Places {
    pub(super) fn new(layout: &Layout, dims: &[usize], width: usize) -> Self {
        let first = dims.first().copied().unwrap_or(0);
        let dims: SmallVec<[(usize, usize); 2]> =
            dims.iter().map(|dim| (layout.sizes()[*dim], layout.strides()[*dim] * width)).collect();
        Self { count: dims.iter().map(|(size, _)| size).product(), first, dims }
    }

    /// Returns the distance in bytes of an element from that of index 0, or `None` if the index is out of range.
    #[inline(always)]
    pub(super) fn find(&self, index: i64) -> Option<usize> {
        if index as u64 >= self.count as u64 {
            return None;
        }
        let mut rest = index as usize;
        if let [(_, stride)] = self.dims[..] {
            return Some(rest * stride);
        }
        Some(
            self.dims
                .iter()
                .rev()
                .map(|(size, stride)| {
                    let along = rest % size * stride;
                    rest /= size;
                    along
                })
                .sum(),
        )
    }

    pub(super) fn error(&self, op: &'static str, index: i64) -> TensorError {
        TensorError::Index { op, index, dim: self.first, size: self.count }
    }
}

/// The first index out of range that was seen, if any.
#[derive(Default)]
pub(super) struct Wrong {
    is_any: AtomicBool,
    index: AtomicI64,
}

impl Wrong {
    pub(super) fn note<T>(&self, index: i64) -> Option<T> {
        self.index.store(index, Ordering::Relaxed);
        self.is_any.store(true, Ordering::Release);
        None
    }

    pub(super) fn check(&self, error: impl FnOnce(i64) -> TensorError) -> Result<()> {
        match self.is_any.load(Ordering::Acquire) {
            true => Err(error(self.index.load(Ordering::Relaxed))),
            false => Ok(()),
        }
    }
}
