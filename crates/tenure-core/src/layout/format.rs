use std::fmt;

use super::{Dims, Layout, product};
use crate::LayoutError;

/// The order in which a dense tensor's dimensions lie in memory. c10's `MemoryFormat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryFormat {
    /// The last dimension is densest.
    #[default]
    Contiguous,
    /// Sizes (N, C, H, W) lie as N, H, W, C.
    ChannelsLast2d,
    /// Sizes (N, C, D, H, W) lie as N, D, H, W, C.
    ChannelsLast3d,
}

/// Dimensions from the densest outwards.
const CHANNELS_LAST_2D: [usize; 4] = [1, 3, 2, 0];
const CHANNELS_LAST_3D: [usize; 5] = [1, 4, 3, 2, 0];

impl MemoryFormat {
    /// Dimensions from the densest outwards, or `None` if any number of them lies with the last densest.
    fn order(self) -> Option<&'static [usize]> {
        match self {
            Self::Contiguous => None,
            Self::ChannelsLast2d => Some(&CHANNELS_LAST_2D),
            Self::ChannelsLast3d => Some(&CHANNELS_LAST_3D),
        }
    }
}

impl fmt::Display for MemoryFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Contiguous => "contiguous",
            Self::ChannelsLast2d => "channels_last",
            Self::ChannelsLast3d => "channels_last_3d",
        })
    }
}

impl Layout {
    /// The layout of a fresh tensor in `format`, at offset 0.
    ///
    /// # Errors
    /// [`LayoutError::FormatRank`] if the format is for another number of dimensions; [`LayoutError::TooLarge`].
    pub fn with_format(sizes: &[usize], format: MemoryFormat) -> Result<Self, LayoutError> {
        let strides = match format.order() {
            None => dense_strides(sizes, (0..sizes.len()).rev(), |size| size.max(1)),
            Some(order) if order.len() == sizes.len() => {
                // An empty dimension is not counted as one, unlike in contiguous strides: so it is in PyTorch.
                dense_strides(sizes, order.iter().copied(), |size| size)
            }
            Some(order) => {
                return Err(LayoutError::FormatRank { format, expected: order.len(), sizes: sizes.to_vec() });
            }
        };
        let strides = strides.ok_or_else(|| LayoutError::TooLarge { sizes: sizes.to_vec() })?;
        Self::checked(sizes.into(), strides, 0)
    }

    /// Whether the elements lie as in a fresh tensor, wherever they begin. So it is with none.
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous_in(MemoryFormat::Contiguous)
    }

    /// Whether the elements lie as in a fresh tensor of `format`, wherever they begin; false if the format is for
    /// another number of dimensions. Strides of dimensions of size 1 do not matter.
    pub fn is_contiguous_in(&self, format: MemoryFormat) -> bool {
        match format.order() {
            None => self.is_empty() || self.is_dense((0..self.rank()).rev()),
            Some(order) => order.len() == self.rank() && self.is_dense(order.iter().copied()),
        }
    }

    /// The format that an operation on this layout answers in: PyTorch's `suggest_memory_format`.
    ///
    /// A view of a channels-last tensor is still channels last although it may not be contiguous. Here strides of
    /// dimensions of size 1 do matter, being all that tells the formats of some layouts apart, and a layout that
    /// could be either is contiguous. Source: `is_channels_last_strides_2d_s4` in `c10/core/MemoryFormat.h`.
    pub fn memory_format(&self) -> MemoryFormat {
        match self.rank() {
            4 if self.has_strides_like(&CHANNELS_LAST_2D) => MemoryFormat::ChannelsLast2d,
            5 if self.has_strides_like(&CHANNELS_LAST_3D) => MemoryFormat::ChannelsLast3d,
            _ => MemoryFormat::Contiguous,
        }
    }

    fn is_dense(&self, order: impl Iterator<Item = usize>) -> bool {
        let mut expected = 1;
        for dim in order.filter(|&dim| self.sizes[dim] != 1) {
            if self.strides[dim] != expected {
                return false;
            }
            // An empty layout's sizes may multiply past every number; then no stride is the expected one.
            expected = self.sizes[dim].saturating_mul(expected);
        }
        true
    }

    fn has_strides_like(&self, order: &[usize]) -> bool {
        let channel_stride = self.strides[order[0]];
        if channel_stride == 0 || self.is_empty() {
            return false;
        }
        let mut least = 0;
        for &dim in order {
            let stride = self.strides[dim];
            // With every other dimension of size 1, a batch of single values fits both formats.
            if stride < least || (dim == 0 && least == channel_stride) {
                return false;
            }
            least = stride * self.sizes[dim];
        }
        true
    }
}

/// Strides that lay the dimensions densely in `order`, each counted as `count` says.
fn dense_strides(sizes: &[usize], order: impl Iterator<Item = usize>, count: impl Fn(usize) -> usize) -> Option<Dims> {
    let mut strides = Dims::from_elem(1, sizes.len());
    let mut stride = Some(1);
    for dim in order {
        strides[dim] = stride?;
        stride = product(strides[dim], count(sizes[dim]));
    }
    Some(strides)
}
