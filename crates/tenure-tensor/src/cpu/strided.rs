//! Copies between strided and contiguous elements.

use super::vectorized;

/// Copies elements of one width between strided and contiguous memory.
#[derive(Clone, Copy)]
pub(super) enum Strided {
    One,
    Two,
    Four,
    Eight,
}

/// Returns the copier for elements of `width` bytes.
pub(super) fn strided(width: usize) -> Strided {
    match width {
        1 => Strided::One,
        2 => Strided::Two,
        4 => Strided::Four,
        _ => Strided::Eight,
    }
}

impl Strided {
    /// # Safety
    /// There must be `n` elements at `from`, `stride` bytes apart, and room for them at `to`.
    pub(super) unsafe fn gather(self, from: *const u8, stride: usize, to: *mut u8, n: usize) {
        unsafe fn of<T: Copy>(from: *const u8, stride: usize, to: *mut u8, n: usize) {
            let to = to.cast::<T>();
            // SAFETY: as the caller promises.
            unsafe {
                if stride == size_of::<T>() {
                    to.copy_from_nonoverlapping(from.cast(), n);
                } else if stride == 0 {
                    let value = from.cast::<T>().read();
                    vectorized!((0..n).for_each(|i| to.add(i).write(value)));
                } else {
                    (0..n).for_each(|i| to.add(i).write(from.add(i * stride).cast::<T>().read()));
                }
            }
        }
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::One => of::<u8>(from, stride, to, n),
                Self::Two => of::<u16>(from, stride, to, n),
                Self::Four => of::<u32>(from, stride, to, n),
                Self::Eight => of::<u64>(from, stride, to, n),
            }
        }
    }

    /// # Safety
    /// There must be `n` elements at `from`, and room for them at `to`, `stride` bytes apart.
    pub(super) unsafe fn scatter(self, from: *const u8, to: *mut u8, stride: usize, n: usize) {
        unsafe fn of<T: Copy>(from: *const u8, to: *mut u8, stride: usize, n: usize) {
            let from = from.cast::<T>();
            // SAFETY: as the caller promises.
            unsafe {
                if stride == size_of::<T>() {
                    to.cast::<T>().copy_from_nonoverlapping(from, n);
                } else {
                    (0..n).for_each(|i| to.add(i * stride).cast::<T>().write(from.add(i).read()));
                }
            }
        }
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::One => of::<u8>(from, to, stride, n),
                Self::Two => of::<u16>(from, to, stride, n),
                Self::Four => of::<u32>(from, to, stride, n),
                Self::Eight => of::<u64>(from, to, stride, n),
            }
        }
    }
}
