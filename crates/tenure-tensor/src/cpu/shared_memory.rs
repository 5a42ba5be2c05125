//! Memory that many threads access at once.

use std::ops::Range;

/// A slice that threads write to, each to its own ranges.
pub(super) struct DisjointSlice<T> {
    data: *mut T,
    length: usize,
}

// SAFETY: the caller of `range` promises that no other thread has the range.
unsafe impl<T: Send> Sync for DisjointSlice<T> {}

impl<T> DisjointSlice<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self { data: slice.as_mut_ptr(), length: slice.len() }
    }

    /// Returns a range of the slice.
    ///
    /// # Safety
    /// The slice's memory must still be there, and its owner must not access it. The range must not overlap another
    /// range in use.
    ///
    /// # Panics
    /// If the range is not within the slice.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller says that ranges do not meet")]
    pub(super) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {} elements", self.length);
        // SAFETY: the range is within the slice, and only the caller has it, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }
}

/// Returns the same slice with a lifetime of the caller's choice, so that an `Access` can be borrowed again.
///
/// # Safety
/// The memory must stay there, and must not be written to, for that long.
pub(super) unsafe fn unbound<'a, T>(slice: &[T]) -> &'a [T] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(slice.as_ptr(), slice.len()) }
}

/// A pointer to locked memory, for any thread.
pub(super) struct SharedPointer<T>(pub(super) *mut T);

// SAFETY: the code that reads and writes there says why it may.
unsafe impl<T> Sync for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    /// Returns the pointer. A closure that calls this method captures the whole struct, which is [`Sync`], rather than
    /// only the field.
    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}
