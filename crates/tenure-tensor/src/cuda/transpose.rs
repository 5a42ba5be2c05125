//! Copies between layouts that are dense along different dimensions.

use smallvec::SmallVec;
use tenure_device::cuda::{KernelName, LaunchConfig};

use super::iteration_space::{IterationSpace, unit_type};
use super::queue::Queue;
use super::stored;
use crate::elementwise::Dims;
use crate::{Elementwise, Result};

const TEMPLATE: &str = include_str!("source/transpose.cu");
const THREADS: u32 = 256;

/// The size in bytes from which a side is worth a tile: with less, neighbours are in the first-level cache anyway.
const WORTH: usize = 32;

/// Returns the dimension along which the input is dense, if it is not the output's and both are long enough for a tile.
pub(super) fn across(iter: &Elementwise<'_>) -> Option<usize> {
    let [out, input] = iter.operands() else { return None };
    let width = input.dtype.size();
    let across = input.strides.iter().position(|stride| *stride == width)?;
    let is_worth = |dim: usize| iter.sizes()[dim] * width >= WORTH;
    let is_so = across > 0 && out.strides[0] == out.dtype.size() && input.strides[0] > width && !input.device.is_cpu();
    (is_so && is_worth(0) && is_worth(across)).then_some(across)
}

/// Copies tile by tile.
pub(super) fn launch(queue: &Queue, iter: &Elementwise<'_>, across: usize) -> Result<()> {
    let [out, input] = iter.operands() else { return Ok(()) };
    let others = |numbers: &Dims| -> Dims {
        let kept = numbers.iter().enumerate().filter(|(dim, _)| *dim != 0 && *dim != across);
        kept.map(|(_, number)| *number).collect()
    };
    let sizes = Dims::from_slice(iter.sizes());
    let space = IterationSpace::new(&others(&sizes), &[&others(&out.strides), &others(&input.strides)]);
    let is_large = space.is_large(0);
    let side = if out.dtype.size() > 2 { 32 } else { 64 };
    let rows = sizes[across];
    let columns = sizes[0];
    let mut words: SmallVec<[u64; 64]> = space.words().collect();
    words.extend([out.data, input.data].map(|data| data.addr() as u64));
    words.extend([rows, columns, out.strides[across], input.strides[0]].map(|word| word as u64));
    let source = || {
        // Between equal dtypes, bits are moved.
        let is_same = out.dtype == input.dtype;
        let [to, from] =
            [out.dtype, input.dtype].map(|dtype| if is_same { unit_type(dtype.size()) } else { stored(dtype) });
        let pad = (4 / out.dtype.size()).max(1);
        let definitions = format!("#define SIDE {side}\n#define PAD {pad}\ntypedef {to} To;\ntypedef {from} From;\n");
        [&definitions, &space.source(is_large), TEMPLATE].concat()
    };
    let variant = space.variant(is_large) << 8 | (out.dtype as u64) << 4 | input.dtype as u64;
    let blocks = rows.div_ceil(side) * columns.div_ceil(side) * space.count();
    let config = LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
    queue.launch(KernelName { op: "transpose", variant }, source, config, &mut words)
}
