//! Array constructors written as loops: always inlined, unlike those of the standard library.

use std::mem::MaybeUninit;

/// Applies `function` to each element, like `[T; N]::map`, which the compiler may leave as a call.
#[inline(always)]
pub(crate) fn map<T: Copy, R: Copy, const N: usize>(array: [T; N], mut function: impl FnMut(T) -> R) -> [R; N] {
    from_fn(
        #[inline(always)]
        |index| function(array[index]),
    )
}

/// Returns the array of `element(0)` to `element(N - 1)`, like [`std::array::from_fn`], for elements that need no drop.
/// It compiles to a quarter of the code; the kernels instantiate it a thousand times.
#[inline(always)]
pub(crate) fn from_fn<T: Copy, const N: usize>(mut element: impl FnMut(usize) -> T) -> [T; N] {
    let mut array = MaybeUninit::<[T; N]>::uninit();
    let first = array.as_mut_ptr().cast::<T>();
    let mut index = 0;
    while index < N {
        // SAFETY: `index < N`, so this is an element of the array.
        unsafe { first.add(index).write(element(index)) };
        index += 1;
    }
    // SAFETY: all elements are written.
    unsafe { array.assume_init() }
}
