//! Memory that many threads write to, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice that threads write to.
pub(super) struct Slots<'a, T> {
    data: *mut T,
    length: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: whoever takes a range says that no other thread has it.
unsafe impl<T: Send> Sync for Slots<'_, T> {}

impl<'a, T> Slots<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { data: slice.as_mut_ptr(), length: slice.len(), slice: PhantomData }
    }

    /// A range of it.
    ///
    /// # Safety
    /// While it is borrowed, no range that meets it is.
    ///
    /// # Panics
    /// If it is not within the slice.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the caller says that ranges do not meet")]
    pub(super) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {} slots", self.length);
        // SAFETY: within the slice, and as the caller says, nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }
}
