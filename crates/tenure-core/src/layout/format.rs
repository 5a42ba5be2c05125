//! Memory formats: the order in which a layout's dimensions lie in memory.

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

/// The dimensions from the densest outwards.
const CHANNELS_LAST_2D: [usize; 4] = [1, 3, 2, 0];
const CHANNELS_LAST_3D: [usize; 5] = [1, 4, 3, 2, 0];

impl MemoryFormat {
    /// Returns the format of a name of PyTorch's: `contiguous_format`, `channels_last` or `channels_last_3d`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "contiguous_format" => Some(Self::Contiguous),
            "channels_last" => Some(Self::ChannelsLast2d),
            "channels_last_3d" => Some(Self::ChannelsLast3d),
            _ => None,
        }
    }

    /// Returns the dimensions from the densest outwards. `None` stands for any number of dimensions with the last
    /// densest.
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
    /// Returns the layout of a fresh tensor in `format`, at offset 0.
    ///
    /// # Errors
    /// [`LayoutError::FormatRank`] if the format is for another number of dimensions; [`LayoutError::TooLarge`].
    pub fn with_format(sizes: &[usize], format: MemoryFormat) -> Result<Self, LayoutError> {
        let strides = match format.order() {
            None => dense_strides(sizes, (0..sizes.len()).rev(), |size| size.max(1)),
            Some(order) if order.len() == sizes.len() => {
                // An empty dimension does not count as one here, unlike in contiguous strides. PyTorch does the same.
                dense_strides(sizes, order.iter().copied(), |size| size)
            }
            Some(order) => {
                return Err(LayoutError::FormatRank { format, expected: order.len(), sizes: sizes.to_vec() });
            }
        };
        let strides = strides.ok_or_else(|| LayoutError::TooLarge { sizes: sizes.to_vec() })?;
        Self::checked(sizes.into(), strides, 0)
    }

    /// Returns whether the elements lie as in a fresh tensor, wherever they begin. This is true if there are no
    /// elements.
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous_in(MemoryFormat::Contiguous)
    }

    /// Returns whether the elements lie as in a fresh tensor of `format`, wherever they begin. Returns false if the
    /// format is for another number of dimensions. Strides of dimensions of size 1 do not matter.
    pub fn is_contiguous_in(&self, format: MemoryFormat) -> bool {
        match format.order() {
            None => self.is_empty() || self.is_dense((0..self.rank()).rev()),
            Some(order) => order.len() == self.rank() && self.is_dense(order.iter().copied()),
        }
    }

    /// Returns the format for the results of operations on this layout: PyTorch's `suggest_memory_format`.
    ///
    /// A view of a channels-last tensor is still channels last although it may not be contiguous. Here strides of
    /// dimensions of size 1 do matter, since only they tell the formats of some layouts apart. A layout that fits both
    /// formats is contiguous. Source: `is_channels_last_strides_2d_s4` in `c10/core/MemoryFormat.h`.
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
            // The product of an empty layout's sizes may be past every number. Then no stride is the expected one.
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
            // If every other dimension has size 1, a batch of single values fits both formats.
            if stride < least || (dim == 0 && least == channel_stride) {
                return false;
            }
            least = stride * self.sizes[dim];
        }
        true
    }
}

/// Returns strides that lay the dimensions densely in `order`, where a dimension of size `n` counts as `count(n)`.
fn dense_strides(sizes: &[usize], order: impl Iterator<Item = usize>, count: impl Fn(usize) -> usize) -> Option<Dims> {
    let mut strides = Dims::from_elem(1, sizes.len());
    let mut stride = Some(1);
    for dim in order {
        strides[dim] = stride?;
        stride = product(strides[dim], count(sizes[dim]));
    }
    Some(strides)
}
