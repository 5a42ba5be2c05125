//! Rows of elements that several threads walk together: `Line` in lines.cu.

use smallvec::SmallVec;
use tenure_device::cuda::LaunchConfig;

use super::{computed, stored};
use crate::DType;

const LINES: &str = include_str!("source/lines.cu");
const WARP: usize = 32;
/// The largest number of bytes that are read at once.
const VECTOR_BYTES: usize = 16;
/// The largest number of 32-bit values that a thread keeps.
const KEPT: usize = 32;
/// The number of threads of a block for short rows, the largest number for a row that is kept, the number for one that
/// is not, and the number that keeps a device busy.
const THREADS: usize = 256;
const MOST_THREADS: usize = 1024;
const LONG: usize = 512;
const BUSY: usize = 1 << 17;

/// The division of rows among threads.
pub(super) struct Lines {
    dtype: DType,
    /// The number of elements that are read at once.
    width: usize,
    arrays: usize,
    /// The number of vectors of each array that a thread keeps; 0 if it keeps none.
    pub(super) items: usize,
    /// The number of threads of a row.
    pub(super) lanes: usize,
    /// The number of threads of a block.
    pub(super) threads: usize,
}

/// The alignment of rows.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum RowAlignment {
    /// Rows may begin anywhere, with elements before the first whole vector.
    Any,
    /// Rows begin with a whole vector, because another array is read by the same vectors in all rows.
    None,
}

impl Lines {
    /// Divides `rows` rows of `n` elements, of arrays that begin at `places`. The first `arrays` of them are read.
    pub(super) fn new(dtype: DType, places: &[u64], arrays: usize, rows: usize, n: usize, edges: RowAlignment) -> Self {
        let size = dtype.size();
        let mut width = VECTOR_BYTES / size;
        while places.iter().any(|place| !place.is_multiple_of((width * size) as u64)) {
            width /= 2;
        }
        // Each of at least a warp's threads has at most one element of the edges.
        while !n.is_multiple_of(width) && (edges == RowAlignment::None || n < WARP * width * 2) {
            width /= 2;
        }
        let vectors = n.div_ceil(width);
        let most = (KEPT * 4 / (size.max(4) * width * arrays)).clamp(1, 4);
        let lanes = |items: usize| match vectors.div_ceil(items) {
            lanes if lanes <= WARP => lanes.max(1).next_power_of_two(),
            lanes => lanes.next_multiple_of(WARP),
        };
        // Fewer threads for a row exchange less, but many are needed if there are few rows.
        let mut items = most;
        while items > 1 && (lanes(items) < WARP || rows * lanes(items) < BUSY && lanes(items / 2) <= LONG) {
            items /= 2;
        }
        let mut lanes = lanes(items);
        if !n.is_multiple_of(width) {
            lanes = lanes.max(WARP);
        }
        if lanes > MOST_THREADS {
            (items, lanes) = (0, LONG);
        }
        let threads = lanes * (THREADS / lanes).max(1);
        Self { dtype, width, arrays, items, lanes, threads }
    }

    /// Changes the division for blocks that each walk many rows of `n` elements.
    pub(super) fn in_blocks_of(self, threads: usize, n: usize) -> Self {
        let most = (KEPT * 4 / (self.dtype.size().max(4) * self.width * self.arrays)).clamp(1, 4);
        let vectors = n / self.width;
        let items = [1, 2, 4].into_iter().find(|items| *items <= most && vectors.div_ceil(*items) <= threads);
        let lanes = match items.map(|items| vectors.div_ceil(items)) {
            Some(lanes) if lanes <= WARP => lanes.next_power_of_two(),
            Some(lanes) => lanes.next_multiple_of(WARP),
            None => threads,
        };
        Self { items: items.unwrap_or(0), lanes, threads: threads / lanes * lanes, ..self }
    }

    /// Returns the division for interleaved rows, `lanes` of them to a block.
    pub(super) fn in_columns(dtype: DType, arrays: usize, lanes: usize) -> Self {
        Self { dtype, width: 1, arrays, items: 1, lanes, threads: THREADS }
    }

    /// Returns the launch of one block for every `threads / lanes` rows.
    pub(super) fn config(&self, rows: usize) -> LaunchConfig {
        let blocks = rows.div_ceil(self.threads / self.lanes) as u32;
        LaunchConfig { grid: [blocks, 1, 1], block: [self.threads as u32, 1, 1], shared_bytes: 0 }
    }

    /// Returns the largest number of threads of a block: the fewer, the more registers each may have.
    fn bounds(&self) -> usize {
        self.threads.next_power_of_two().max(THREADS)
    }

    /// Returns the number of this variant: it covers all that the source depends on.
    pub(super) fn variant(&self) -> u64 {
        let sizes = [(self.width.trailing_zeros().into(), 2), (self.items as u64, 3), (self.arrays as u64, 2)];
        let bounds = self.bounds().ilog2() - THREADS.ilog2();
        let variant = u64::from(bounds) << 4 | self.dtype as u64;
        sizes.into_iter().fold(variant, |variant, (size, bits)| variant << bits | size)
    }

    pub(super) fn source(&self, defines: &[(&str, u64)], template: &str) -> String {
        let bounds = self.bounds();
        let mut text: String = defines.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        text += &format!(
            "#define V {}\n#define ITEMS {}\n#define ARRAYS {}\n#define THREADS {bounds}\ntypedef {} T;\ntypedef {} C;\n",
            self.width,
            self.items,
            self.arrays,
            stored(self.dtype),
            computed(self.dtype)
        );
        [&text, LINES, template].concat()
    }
}

/// Returns the products of the sizes before a dimension and after it.
pub(super) fn around(sizes: &[usize], dim: usize) -> (usize, usize) {
    (sizes.iter().take(dim).product(), sizes.iter().skip(dim + 1).product())
}

/// Returns the words of places, followed by numbers.
pub(super) fn words<const N: usize>(places: &[u64], numbers: [usize; N]) -> SmallVec<[u64; 16]> {
    places.iter().copied().chain(numbers.map(|number| number as u64)).collect()
}
