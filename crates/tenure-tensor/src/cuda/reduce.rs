//! Reduction kernels: sums, extremes, norms and other folds over dimensions.

use smallvec::SmallVec;
use tenure_device::cuda::{KernelName, LaunchConfig};

use super::elementwise::MATH;
use super::iteration_space::is_large;
use super::queue::{self, Queue};
use super::{on_cpu, stored, summed};
use crate::cpu;
use crate::cpu::reduce::{Extreme, Moments, Reduce, ReduceWith};
use crate::kernel::on_cuda;
use crate::{Access, DType, DeviceKind, Entry, Result, Tensor};

const FOLDS: &str = include_str!("source/folds.cu");
const TEMPLATE: &str = include_str!("source/reduce.cu");
const THREADS: usize = 256;
const WARP: usize = 32;

/// The largest number of elements that are read at once, and their bytes.
const WIDEST: usize = 8;
const VECTOR_BYTES: usize = 16;

/// The number of blocks that keeps a device busy. If there are fewer, several blocks share each output. It is a
/// constant, so that results do not depend on the device.
const BLOCKS: usize = 512;
/// The number of blocks that the last step aims at. With more outputs, each of its blocks combines several of them.
const LAST_STEP_BLOCKS: usize = 128;

/// The numbers of dimensions that kernels are compiled for.
const RANKS: [usize; 3] = [2, 6, 24];

/// A reduction: how a kernel folds many values into one output.
pub(super) struct Fold {
    /// The kernel's name, unique to the fold.
    pub(super) name: &'static str,
    /// The definition of `Fold` in CUDA C++: by the macro `EACH`, or as a type of folds.cu.
    pub(super) fold: &'static str,
    /// The size in bytes of a partial result of an output, when computed in 32 bits and in 64 bits.
    pub(super) part_bytes: [usize; 2],
}

/// Defines a fold with one sum per output, of the type that values are computed in.
macro_rules! each {
    ($name:literal, $fold:literal) => {{
        static FOLD: Fold = Fold { name: $name, fold: $fold, part_bytes: [4, 8] };
        &FOLD
    }};
}

pub(crate) const SUM: [&[Entry<Reduce>]; 2] =
    [on_cuda!(floats: sum), &[(DeviceKind::Cuda, DType::Bool, sum), (DeviceKind::Cuda, DType::I64, sum)]];
pub(crate) const MEAN: &[Entry<Reduce>] = on_cuda!(floats: mean);
pub(crate) const PROD: [&[Entry<Reduce>]; 2] = [on_cuda!(floats: prod), &[(DeviceKind::Cuda, DType::I64, prod)]];
pub(crate) const NORM_1: &[Entry<Reduce>] = on_cuda!(floats: norm_1);
pub(crate) const NORM_2: &[Entry<Reduce>] = on_cuda!(floats: norm_2);
pub(crate) const EXTREME: [&[Entry<Extreme>]; 2] =
    [on_cuda!(floats: extreme), &[(DeviceKind::Cuda, DType::Bool, extreme), (DeviceKind::Cuda, DType::I64, extreme)]];
pub(crate) const POSITION: [&[Entry<ReduceWith>]; 2] =
    [on_cuda!(floats: position), &[(DeviceKind::Cuda, DType::I64, position)]];
pub(crate) const LOGSUMEXP: &[Entry<ReduceWith>] = on_cuda!(floats: logsumexp);
pub(crate) const MOMENTS: &[Entry<Moments>] = on_cuda!(floats: moments);

fn sum(out: &Tensor, input: &Tensor) -> Result<()> {
    reduce(each!("sum", "EACH(C, (C)0, x, a + b, s)"), &cpu::reduce::SUM, out, input)
}

fn mean(out: &Tensor, input: &Tensor) -> Result<()> {
    reduce(each!("mean", "EACH(C, (C)0, x, a + b, s / (C)count)"), &[cpu::reduce::MEAN], out, input)
}

fn prod(out: &Tensor, input: &Tensor) -> Result<()> {
    reduce(each!("prod", "EACH(C, (C)1, x, a * b, s)"), &cpu::reduce::PROD, out, input)
}

fn norm_1(out: &Tensor, input: &Tensor) -> Result<()> {
    reduce(each!("norm_1", "EACH(C, (C)0, absolute(x), a + b, s)"), &[cpu::reduce::NORM_1], out, input)
}

fn norm_2(out: &Tensor, input: &Tensor) -> Result<()> {
    reduce(each!("norm_2", "EACH(C, (C)0, x * x, a + b, sqrt(s))"), &[cpu::reduce::NORM_2], out, input)
}

fn reduce(how: &'static Fold, host: &'static [&[Entry<Reduce>]], out: &Tensor, input: &Tensor) -> Result<()> {
    let dtype = input.dtype();
    fold(how, [out], [input], None, move |writes, reads| on_cpu(how.name, host, dtype)?(&writes[0], &reads[0]))
}

fn extreme(out: &Tensor, input: &Tensor, largest: bool) -> Result<()> {
    let how = match largest {
        true => each!("amax", "EACH(C, lowest<C>(), x, maximum(a, b), s)"),
        false => each!("amin", "EACH(C, highest<C>(), x, minimum(a, b), s)"),
    };
    let dtype = input.dtype();
    fold(how, [out], [input], None, move |writes, reads| {
        on_cpu(how.name, &cpu::reduce::EXTREME, dtype)?(&writes[0], &reads[0], largest)
    })
}

fn position(out: &Tensor, input: &Tensor, given: &Tensor) -> Result<()> {
    static POSITION: Fold = Fold {
        name: "argmax",
        // NaN does not equal itself, and occurs only if the given extreme is NaN.
        fold: "EACH(i64, highest<i64>(), x == given || x != x ? at : highest<i64>(), a < b ? a : b, s)",
        part_bytes: [8, 8],
    };
    let dtype = input.dtype();
    fold(&POSITION, [out], [input], Some(given), move |writes, reads| {
        on_cpu(POSITION.name, &cpu::reduce::POSITION, dtype)?(&writes[0], &reads[0], &reads[1])
    })
}

fn logsumexp(out: &Tensor, input: &Tensor, largest: &Tensor) -> Result<()> {
    let how = each!("logsumexp", "EACH(C, (C)0, exp(x - base_of(given)), a + b, log(s) + base_of(given))");
    let dtype = input.dtype();
    fold(how, [out], [input], Some(largest), move |writes, reads| {
        on_cpu(how.name, &[cpu::reduce::LOGSUMEXP], dtype)?(&writes[0], &reads[0], &reads[1])
    })
}

fn moments(mean: &Tensor, squares: &Tensor, input: &Tensor) -> Result<()> {
    static MOMENTS: Fold = Fold { name: "moments", fold: "typedef Moments Fold;", part_bytes: [12, 24] };
    let dtype = input.dtype();
    fold(&MOMENTS, [mean, squares], [input], None, move |writes, reads| {
        on_cpu(MOMENTS.name, &[cpu::reduce::MOMENTS], dtype)?(&writes[0], &writes[1], &reads[0])
    })
}

/// Folds `inputs`, all of the same sizes and dtype, to `outputs`. Outputs and `given` are contiguous, with size 1 where
/// dimensions are reduced. A simulated device calls `host` instead.
pub(super) fn fold<const N: usize, const K: usize>(
    how: &'static Fold,
    outputs: [&Tensor; K],
    inputs: [&Tensor; N],
    given: Option<&Tensor>,
    host: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let total = outputs[0].numel();
    if total == 0 {
        return Ok(());
    }
    let reads: SmallVec<[&Tensor; 3]> = inputs.into_iter().chain(given).collect();
    let mut access = Access::new(how.name, &outputs, &reads)?;
    let (mut kept, mut reduced) = dimensions(outputs[0], inputs);
    let pointers = Pointers {
        inputs: std::array::from_fn::<u64, N, _>(|input| access.read_word(input)).into_iter().collect(),
        outputs: std::array::from_fn::<u64, K, _>(|output| access.write_word(output)).into_iter().collect(),
        given: given.map_or(0, |_| access.read_word(N)),
    };
    let from = inputs[0].dtype();
    let to = outputs[0].dtype();
    let types = Types { from, to, given: given.map_or(from, Tensor::dtype) };
    let plan = FoldPlan::new(types, &pointers, &mut kept, &mut reduced);
    queue::submit(&access, |queue| plan.launch(queue, how, &pointers, total), host)
}

/// The addresses of a fold's tensors; `given` is 0 if there is none.
struct Pointers {
    inputs: SmallVec<[u64; 2]>,
    outputs: SmallVec<[u64; 2]>,
    given: u64,
}

/// The dtypes of a fold's inputs, outputs and `given`.
#[derive(Clone, Copy)]
struct Types {
    from: DType,
    to: DType,
    given: DType,
}

/// A dimension of all inputs, or several that are contiguous and so merged into one.
struct FoldDim {
    size: usize,
    /// The stride of each input, in bytes.
    strides: SmallVec<[usize; 2]>,
    /// The stride of the outputs, in elements; 0 for a reduced dimension.
    output_stride: usize,
}

type FoldDims = SmallVec<[FoldDim; 4]>;

/// Returns the number of elements in these dimensions.
fn count_of(dims: &FoldDims) -> usize {
    dims.iter().map(|dim| dim.size).product()
}

/// Returns the kept and the reduced dimensions, each with the smallest stride first.
fn dimensions<const N: usize>(output: &Tensor, inputs: [&Tensor; N]) -> (FoldDims, FoldDims) {
    let sizes = inputs[0].sizes();
    let dim = |dim: usize| FoldDim {
        size: sizes[dim],
        strides: inputs.iter().map(|input| input.strides()[dim] * input.dtype().size()).collect(),
        output_stride: if output.sizes()[dim] == 1 { 0 } else { output.strides()[dim] },
    };
    // The last dimension comes first, so that it counts as the densest among equals.
    let all = (0..sizes.len()).rev().filter(|dim| sizes[*dim] != 1);
    let (reduced, kept): (SmallVec<[usize; 5]>, SmallVec<[usize; 5]>) = all.partition(|dim| output.sizes()[*dim] == 1);
    (coalesce(kept.into_iter().map(dim)), coalesce(reduced.into_iter().map(dim)))
}

/// Sorts dimensions by stride, and merges those that are contiguous in all tensors.
fn coalesce(dims: impl Iterator<Item = FoldDim>) -> FoldDims {
    let mut dims: FoldDims = dims.collect();
    dims.sort_by(|left, right| (&left.strides, left.output_stride).cmp(&(&right.strides, right.output_stride)));
    let mut merged = FoldDims::new();
    for dim in dims {
        match merged.last_mut() {
            Some(last)
                if last.output_stride * last.size == dim.output_stride
                    && last.strides.iter().zip(&dim.strides).all(|(step, next)| step * last.size == *next) =>
            {
                last.size *= dim.size;
            }
            _ => merged.push(dim),
        }
    }
    merged
}

/// The division of a fold among threads and blocks.
struct FoldPlan<'a> {
    types: Types,
    /// Whether neighbouring threads have neighbouring outputs, rather than elements of the same output.
    is_columns: bool,
    /// The number of neighbouring elements that a thread reads at once.
    width: usize,
    is_large: bool,
    rank: usize,
    /// The number of elements that are reduced to one output.
    count: usize,
    /// The number of outputs, and of elements reduced to each. One of them counts vectors of `width` elements.
    kept_size: usize,
    reduced_size: usize,
    /// The number of neighbouring threads.
    lanes: usize,
    blocks: usize,
    /// The number of blocks that share each output, and the number of reduced elements or vectors of each block.
    parts: usize,
    length: usize,
    kept: &'a FoldDims,
    reduced: &'a FoldDims,
}

impl<'a> FoldPlan<'a> {
    /// Plans a fold. The first dimension of `kept` or `reduced` is changed to count vectors.
    fn new(types: Types, pointers: &Pointers, kept: &'a mut FoldDims, reduced: &'a mut FoldDims) -> Self {
        let total = count_of(kept);
        let count = count_of(reduced);
        let largest = (0..pointers.inputs.len())
            .map(|input| {
                kept.iter()
                    .chain(reduced.iter())
                    .map(|dim| dim.size.saturating_sub(1) * dim.strides[input])
                    .sum::<usize>()
            })
            .max()
            .unwrap_or(0)
            .max(total * count);
        let is_columns = match (kept.first(), reduced.first()) {
            // Rows of few elements are read by one thread each.
            (Some(kept), Some(reduced)) => kept.strides[0] < reduced.strides[0] || count < WIDEST,
            (kept, _) => kept.is_some(),
        };
        let width = width(types.from.size(), pointers, kept, reduced, is_columns);
        if let Some(dim) = if is_columns { kept.first_mut() } else { reduced.first_mut() }
            && width > 1
        {
            dim.size /= width;
            dim.output_stride *= width;
            dim.strides.iter_mut().for_each(|step| *step *= width);
        }
        let kept_size = count_of(kept);
        let reduced_size = count_of(reduced);
        // The number of loads that a thread has in flight.
        let unroll = if width * types.from.size() < 8 { 8 } else { 4 };
        let (lanes, blocks, threads) = if is_columns {
            let side_by_side = kept_size.next_power_of_two().min(WARP);
            let below = (1 << (reduced_size / unroll).max(1).ilog2()).min(THREADS / side_by_side);
            let lanes = THREADS / below;
            (lanes, kept_size.div_ceil(lanes), below)
        } else {
            let mut lanes = reduced_size.div_ceil(unroll).next_power_of_two().min(THREADS);
            while lanes < THREADS && 2 * lanes <= reduced_size && kept_size * lanes < BLOCKS * THREADS {
                lanes *= 2;
            }
            (lanes, kept_size.div_ceil(THREADS / lanes), lanes)
        };
        let parts = (BLOCKS / blocks).min(reduced_size / (2 * unroll * threads)).max(1);
        let length = reduced_size.div_ceil(parts);
        let rank = kept.len() + reduced.len();
        Self {
            types,
            is_columns,
            width,
            is_large: is_large(largest),
            rank: RANKS.into_iter().find(|most| *most >= rank).unwrap_or(rank),
            count,
            kept_size,
            reduced_size,
            lanes,
            blocks,
            parts: if parts > 1 { reduced_size.div_ceil(length) } else { 1 },
            length,
            kept,
            reduced,
        }
    }

    fn launch(&self, queue: &mut Queue, how: &'static Fold, pointers: &Pointers, total: usize) -> Result<()> {
        let part_bytes = how.part_bytes[usize::from(matches!(summed(self.types.from), "double" | "i64"))];
        let workspace = if self.parts > 1 { queue.workspace(self.parts * total * part_bytes)? } else { 0 };
        let run = |kind: FoldLayout, [reduced_size, lanes]: [usize; 2], grid: [u32; 3]| {
            let mut words: SmallVec<[u64; 64]> = SmallVec::new();
            words.extend(pointers.inputs.iter().chain(&pointers.outputs).copied());
            words.extend([pointers.given, workspace]);
            let sizes = [total, self.count, self.kept_size, reduced_size, self.length, lanes];
            words.extend(sizes.into_iter().chain([self.kept.len(), self.reduced.len()]).map(|size| size as u64));
            for dim in self.kept.iter().chain(self.reduced) {
                words.push(dim.size as u64);
                words.extend(dim.strides.iter().map(|step| *step as u64));
                words.push(dim.output_stride as u64);
            }
            let missing = self.rank - self.kept.len() - self.reduced.len();
            words.extend(std::iter::repeat_n(0, missing * (2 + pointers.inputs.len())));
            let config = LaunchConfig { grid, block: [THREADS as u32, 1, 1], shared_bytes: 0 };
            let name = KernelName { op: how.name, variant: self.variant(kind) };
            queue.launch(name, || self.source(kind, how, pointers), config, &mut words)
        };
        let kind = if self.is_columns { FoldLayout::Columns } else { FoldLayout::Rows };
        run(kind, [self.reduced_size, self.lanes], [self.blocks as u32, self.parts as u32, 1])?;
        if self.parts > 1 {
            // With few outputs there are many parts of each, so more threads work on one output.
            let lanes = (total / LAST_STEP_BLOCKS).clamp(1, WARP).next_power_of_two();
            run(FoldLayout::Parts, [self.parts, lanes], [total.div_ceil(lanes) as u32, 1, 1])?;
        }
        Ok(())
    }

    /// Returns a number that identifies the kernel's source among the sources of its fold.
    fn variant(&self, kind: FoldLayout) -> u64 {
        let Types { from, to, given } = self.types;
        let mut variant = kind as u64;
        let mut push = |value: u64, bits: u32| variant = variant << bits | value;
        [from, to, given].into_iter().for_each(|dtype| push(dtype as u64, 4));
        push(u64::from(self.width.trailing_zeros()), 2);
        push(u64::from(self.is_large), 1);
        push(self.rank as u64, 8);
        variant
    }

    fn source(&self, kind: FoldLayout, how: &Fold, pointers: &Pointers) -> String {
        let Types { from, to, given } = self.types;
        let inputs = pointers.inputs.len();
        let outputs = pointers.outputs.len();
        let width = self.width;
        let rank = self.rank;
        let index = if self.is_large { "u64" } else { "u32" };
        let kind = match kind {
            FoldLayout::Rows => "ROWS",
            FoldLayout::Columns => "COLUMNS",
            FoldLayout::Parts => "PARTS",
        };
        let compute = summed(self.types.from);
        let [from, to, given] = [from, to, given].map(stored);
        let head = format!(
            "#define {kind}\n#define INPUTS {inputs}\n#define OUTPUTS {outputs}\n#define V {width}\n#define RANK {rank}\n\
             typedef {index} Index;\ntypedef {compute} C;\ntypedef {from} From;\ntypedef {to} To;\ntypedef {given} Given;\n"
        );
        [&head, MATH, FOLDS, how.fold, "\n", TEMPLATE].concat()
    }
}

/// The assignment of elements to threads.
#[derive(Clone, Copy)]
enum FoldLayout {
    /// Neighbouring threads share an output.
    Rows,
    /// Neighbouring threads have neighbouring outputs.
    Columns,
    /// The last step: threads combine the partial results of several blocks.
    Parts,
}

/// Returns the number of elements that can be read at once in all inputs: contiguous, and aligned in every row.
fn width(size: usize, pointers: &Pointers, kept: &FoldDims, reduced: &FoldDims, is_columns: bool) -> usize {
    let (along, across) = if is_columns { (kept, reduced) } else { (reduced, kept) };
    let Some((dense, others)) = along.split_first() else { return 1 };
    if dense.strides.iter().any(|step| *step != size) {
        return 1;
    }
    let mut width = WIDEST.min(VECTOR_BYTES / size);
    let others = others.iter().chain(across).flat_map(|dim| dim.strides.iter().copied());
    let places: SmallVec<[usize; 16]> = others.chain(pointers.inputs.iter().map(|first| *first as usize)).collect();
    while !dense.size.is_multiple_of(width) || places.iter().any(|place| !place.is_multiple_of(width * size)) {
        width /= 2;
    }
    width
}
