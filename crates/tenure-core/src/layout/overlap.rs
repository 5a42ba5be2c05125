//! Overlap: whether two elements of a layout share a place in memory.

use smallvec::SmallVec;

use super::Layout;

/// The answer to whether two elements of a layout share a place in memory. ATen's `MemOverlap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// Every element has a place of its own: the layout can be written to.
    No,
    /// Two elements share a place.
    Yes,
    /// The strides alone do not tell. A caller that writes to such a layout must know that it does not overlap.
    TooHard,
}

impl Layout {
    /// Returns whether two elements share a place in memory.
    ///
    /// `No` and `Yes` are certain. PyTorch's `has_internal_overlap` answers `No` only for dense layouts; this also
    /// sees slices and other gaps. Deciding every case is NP-hard.
    pub fn overlap(&self) -> Overlap {
        if self.is_empty() {
            return Overlap::No;
        }
        let mut dims: SmallVec<[(usize, usize); 5]> =
            self.strides.iter().copied().zip(self.sizes.iter().copied()).filter(|&(_, size)| size > 1).collect();
        dims.sort_unstable();
        let repeats = dims.first().is_some_and(|&(stride, _)| stride == 0);
        if repeats || dims.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Overlap::Yes;
        }
        // A step along a dimension that is longer than the reach of all denser dimensions never meets one of their
        // elements.
        let mut reach = 0;
        for (stride, size) in dims {
            if stride <= reach {
                return Overlap::TooHard;
            }
            reach += (size - 1) * stride;
        }
        Overlap::No
    }
}
