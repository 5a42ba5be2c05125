//! Memory that many threads use at once.

use std::ops::Range;

/// A slice that threads write to, each its own part.
pub(super) struct Slots<T> {
    data: *mut T,
    length: usize,
}

// SAFETY: whoever takes a range says that no other thread has it.
unsafe impl<T: Send> Sync for Slots<T> {}

impl<T> Slots<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self { data: slice.as_mut_ptr(), length: slice.len() }
    }

    /// A range of it.
    ///
    /// # Safety
    /// The slice's memory is still there, and its owner does not touch it. No other range that is in use meets this one.
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

/// The same slice, for as long as the caller likes: while something else of an `Access` is taken.
///
/// # Safety
/// The memory stays there, and is not written to, for that long.
pub(super) unsafe fn unbound<'a, T>(slice: &[T]) -> &'a [T] {
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(slice.as_ptr(), slice.len()) }
}
