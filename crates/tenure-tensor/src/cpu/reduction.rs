//! The reduction engine: reduces many elements to one, over any dimensions of any layout and dtype.
//!
//! Sizes and strides alone decide the order in which elements are accumulated; the number of threads never does.
//! Accumulation is pairwise: a *leaf* of elements is accumulated in one loop, and leaves are merged like a tree, so
//! that rounding errors grow with the logarithm of the count. If the densest dimension is kept, whole rows of outputs
//! (*columns*) are accumulated at once. If it is reduced, neighbours are accumulated in *lanes*, which are merged at
//! the end of a leaf.
//!
//! A reduction is compiled for contiguous elements of one type. Elements of another dtype, or with gaps, are first
//! copied to a buffer, a leaf at a time.

use std::mem::MaybeUninit;
use std::ops::Range;

use smallvec::SmallVec;

use super::cast::{self, Cast};
use super::shared_memory::DisjointSlice;
use super::strided::strided;
use super::vectorized;
use crate::{Access, DType, Element, Result, Scalar, Tensor, TensorError, arrays, threads};

/// A reduction of the elements of `N` inputs to `K` outputs. Each output may have a parameter: a row's mean, for
/// example.
pub(crate) trait ElementReduction<const N: usize, const K: usize>: Sync {
    /// The type that elements of the inputs are converted to.
    type Input: Element;
    /// The type of the accumulators.
    type Accumulator: Copy + Send + Sync;
    /// The type that elements of the outputs are converted from.
    type Output: Element;
    /// The type of an output's parameter, after its conversion. Reductions without parameters get `false`.
    type Parameter: Element;

    /// Returns the reduction's identity: the accumulators of no elements.
    fn identity(&self) -> [Self::Accumulator; K];

    /// Adds one element of each input to the accumulators. It is number `at` of the output's elements.
    fn accumulate(
        &self,
        sums: [Self::Accumulator; K],
        values: [Self::Input; N],
        parameter: Self::Parameter,
        at: usize,
    ) -> [Self::Accumulator; K];

    /// Merges the accumulators of two parts, in their order.
    fn merge(&self, left: [Self::Accumulator; K], right: [Self::Accumulator; K]) -> [Self::Accumulator; K];

    /// Returns the values to write.
    fn finish(&self, sums: [Self::Accumulator; K], parameter: Self::Parameter) -> [Self::Output; K];
}

/// The number of elements that are worth waking a thread for.
const GRAIN: usize = 32 * 1024;
/// The number of parts that a reduction to few outputs is divided into: usually more than there are threads.
const PARTS: usize = 64;
/// The number of neighbours of a row that are accumulated at once: several vectors, so that they need not wait for each
/// other.
const LANES: usize = 32;
/// The number of neighbours of a row that are accumulated in one loop.
const LEAF: usize = LANES * DEPTH;
/// The number of columns that are accumulated at once: as many as fit in the first-level cache.
const WIDTH: usize = 512;
/// The number of elements that are added one after the other to one accumulator.
const DEPTH: usize = 32;
/// The number of outputs that are finished, and of rows that are accumulated, in one loop.
const ROWS: usize = 32;

/// Reduces `inputs`, all of the same sizes, to `outputs`. Outputs and `parameters` are contiguous, with size 1 where
/// dimensions are reduced.
pub(crate) fn reduce<F: ElementReduction<N, K>, const N: usize, const K: usize>(
    op: &'static str,
    reduction: &F,
    outputs: [&Tensor; K],
    inputs: [&Tensor; N],
    parameters: Option<&Tensor>,
) -> Result<()> {
    check(op, &outputs, &inputs, parameters)?;
    let reads: SmallVec<[&Tensor; 4]> = inputs.into_iter().chain(parameters).collect();
    let mut access = Access::new(op, &outputs, &reads)?;
    let (kept, reduced) = dimensions(outputs[0], inputs);
    let count = reduced.iter().map(|dim| dim.size).product();
    let is_columns = match (kept.first(), reduced.first()) {
        // Rows too short for the lanes are accumulated side by side as well.
        (Some(kept), Some(reduced)) => kept.steps[0] < reduced.steps[0] || count < LANES,
        (kept, _) => kept.is_some(),
    };
    let reducer = Reducer {
        reduction,
        inputs: arrays::from_fn(|input| access.read_ptr(input)),
        readers: arrays::from_fn(|input| Conversion::between(inputs[input].dtype(), F::Input::DTYPE)),
        outputs: arrays::from_fn(|output| access.write_ptr(output)),
        writers: arrays::from_fn(|output| Conversion::between(F::Output::DTYPE, outputs[output].dtype())),
        parameters: parameters
            .map(|parameters| (access.read_ptr(N), Conversion::between(parameters.dtype(), F::Parameter::DTYPE))),
        count,
        outer: kept.iter().skip(usize::from(is_columns)).map(|dim| dim.size).product(),
        columns: if is_columns { kept[0].size } else { 1 },
        is_columns,
        kept,
        reduced,
    };
    reducer.run();
    Ok(())
}

fn check(op: &'static str, outputs: &[&Tensor], inputs: &[&Tensor], parameters: Option<&Tensor>) -> Result<()> {
    let to = outputs[0].sizes();
    let from = inputs[0].sizes();
    let reduces = to.len() == from.len() && to.iter().zip(from).all(|(to, from)| to == from || *to == 1);
    let mut written = outputs.iter().copied().chain(parameters);
    let fits_outputs = written.all(|tensor| tensor.sizes() == to && tensor.is_contiguous() && tensor.device().is_cpu());
    let fits_inputs = inputs.iter().all(|tensor| tensor.sizes() == from && tensor.device().is_cpu());
    if reduces && fits_outputs && fits_inputs {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("sizes {from:?} cannot be folded to {to:?} of these layouts")))
}

/// A dimension of all inputs, or several that are contiguous and so merged into one.
struct ReductionDim<const N: usize> {
    size: usize,
    /// The distance of neighbours in each input, in bytes.
    steps: [usize; N],
    /// The distance of neighbours in the outputs, in elements.
    output: usize,
}

type ReductionDims<const N: usize> = SmallVec<[ReductionDim<N>; 4]>;

/// Returns the kept and the reduced dimensions, densest first.
fn dimensions<const N: usize>(output: &Tensor, inputs: [&Tensor; N]) -> (ReductionDims<N>, ReductionDims<N>) {
    let sizes = inputs[0].sizes();
    let dim = |dim: usize| ReductionDim {
        size: sizes[dim],
        steps: arrays::from_fn(|input| inputs[input].strides()[dim] * inputs[input].dtype().size()),
        output: if output.sizes()[dim] == 1 { 0 } else { output.strides()[dim] },
    };
    // The last dimension comes first, so that it counts as the densest among equals.
    let all = (0..sizes.len()).rev().filter(|dim| sizes[*dim] != 1);
    let (reduced, kept): (SmallVec<[usize; 5]>, SmallVec<[usize; 5]>) = all.partition(|dim| output.sizes()[*dim] == 1);
    (coalesce(kept.into_iter().map(dim)), coalesce(reduced.into_iter().map(dim)))
}

fn coalesce<const N: usize>(dims: impl Iterator<Item = ReductionDim<N>>) -> ReductionDims<N> {
    let mut dims: ReductionDims<N> = dims.collect();
    dims.sort_by_key(|dim| (dim.steps, dim.output));
    let mut merged: ReductionDims<N> = ReductionDims::new();
    for dim in dims {
        match merged.last_mut() {
            Some(last)
                if last.output * last.size == dim.output
                    && (0..N).all(|input| last.steps[input] * last.size == dim.steps[input]) =>
            {
                last.size *= dim.size;
            }
            _ => merged.push(dim),
        }
    }
    merged
}

/// The conversion of elements between memory and a loop.
#[derive(Clone, Copy)]
struct Conversion {
    /// The size in bytes of an element before its conversion (`from`) and after (`to`).
    from: usize,
    to: usize,
    cast: Option<Cast>,
}

impl Conversion {
    fn between(from: DType, to: DType) -> Self {
        Self { from: from.size(), to: to.size(), cast: (from != to).then(|| cast::between(from, to)) }
    }

    /// Returns whether a loop can use elements `step` bytes apart where they are.
    fn is_direct(&self, step: usize) -> bool {
        self.cast.is_none() && step == self.from
    }

    /// Returns `n` elements that are `step` bytes apart as contiguous, converted elements: in place if they are so
    /// already, else in the buffers.
    ///
    /// # Safety
    /// The elements must be at `place`, and `n` must be at most [`LEAF`].
    unsafe fn load(&self, place: *const u8, step: usize, n: usize, buffers: &mut ReductionBuffers) -> *const u8 {
        if n == 0 {
            // A tensor without elements may have no memory.
            return place;
        }
        // SAFETY: as the caller promises; a buffer has room for `LEAF` elements.
        unsafe {
            let mut elements = place;
            if step != self.from {
                strided(self.from).gather(place, step, buffers.elements(), n);
                elements = buffers.elements();
            }
            let Some(cast) = self.cast else { return elements };
            cast(elements, buffers.converted(), n);
            buffers.converted()
        }
    }

    /// Converts `n` contiguous elements and writes them `step` bytes apart.
    ///
    /// # Safety
    /// The elements must be at `values`, their places at `place`, and `n` must be at most [`LEAF`].
    unsafe fn store(&self, values: *const u8, place: *mut u8, step: usize, n: usize) {
        let mut buffers = ReductionBuffers::new();
        // SAFETY: as the caller promises; a buffer has room for `LEAF` elements.
        unsafe {
            let mut elements = values;
            if let Some(cast) = self.cast {
                cast(values, buffers.converted(), n);
                elements = buffers.converted();
            }
            strided(self.to).scatter(elements, place, step, n);
        }
    }
}

/// Memory for a leaf: its contiguous elements, and the same after conversion.
struct ReductionBuffers {
    elements: MaybeUninit<LeafBuffer>,
    converted: MaybeUninit<LeafBuffer>,
}

#[repr(align(64))]
struct LeafBuffer {
    _bytes: [u8; LEAF * size_of::<u64>()],
}

impl ReductionBuffers {
    const fn new() -> Self {
        Self { elements: MaybeUninit::uninit(), converted: MaybeUninit::uninit() }
    }

    fn elements(&mut self) -> *mut u8 {
        self.elements.as_mut_ptr().cast()
    }

    fn converted(&mut self) -> *mut u8 {
        self.converted.as_mut_ptr().cast()
    }
}

/// A reduction of some tensors, divided into tiles.
struct Reducer<'a, F: ElementReduction<N, K>, const N: usize, const K: usize> {
    reduction: &'a F,
    inputs: [*const u8; N],
    readers: [Conversion; N],
    outputs: [*mut u8; K],
    writers: [Conversion; K],
    parameters: Option<(*const u8, Conversion)>,
    kept: ReductionDims<N>,
    reduced: ReductionDims<N>,
    /// The number of elements that make one output.
    count: usize,
    /// The number of outputs along the first kept dimension, if they are accumulated at once.
    columns: usize,
    /// The number of outputs along the other kept dimensions.
    outer: usize,
    is_columns: bool,
}

// SAFETY: threads read the inputs, and no two threads write the same outputs.
unsafe impl<F: ElementReduction<N, K>, const N: usize, const K: usize> Sync for Reducer<'_, F, N, K> {}

/// Some neighbouring outputs.
struct Tile<const N: usize> {
    inputs: [*const u8; N],
    output: usize,
    width: usize,
}

/// The accumulators of a tile's outputs.
type Accumulators<S, const K: usize> = [[S; WIDTH]; K];

impl<F: ElementReduction<N, K>, const N: usize, const K: usize> Reducer<'_, F, N, K> {
    fn run(&self) {
        let tiles = self.outer * self.columns.div_ceil(WIDTH);
        let elements = self.outer * self.columns * self.count;
        let splits = PARTS.div_ceil(tiles.max(1)).min(elements / GRAIN).min(self.count.div_ceil(DEPTH)).max(1);
        if tiles >= PARTS / 2 || splits == 1 {
            let tiles_per_part = (GRAIN * tiles).checked_div(elements).unwrap_or(tiles);
            threads::for_each_range(tiles, tiles_per_part, |range| {
                if self.is_columns || self.count > LEAF || self.reduced.len() != 1 {
                    range.for_each(|tile| self.reduce_tile(&self.tile(tile)));
                } else {
                    self.reduce_short_rows(range);
                }
            });
        } else {
            self.reduce_in_parts(tiles, splits);
        }
    }

    /// Computes outputs of few elements, those of a kept dimension one after the other.
    fn reduce_short_rows(&self, range: Range<usize>) {
        let steps = self.reduced[0].steps;
        let (size, next) = self.kept.first().map_or((1, [0; N]), |dim| (dim.size, dim.steps));
        let output = self.kept.first().map_or(0, |dim| dim.output);
        let is_one_run = (0..N).all(|input| next[input] == self.count * steps[input]);
        let most = match self.is_direct(steps) {
            true => ROWS,
            false if is_one_run => (LEAF / self.count.max(1)).clamp(1, ROWS),
            false => 1,
        };
        let mut sums = [self.reduction.identity(); ROWS];
        let mut parameters = [self.no_parameter(); ROWS];
        let mut buffers = [const { ReductionBuffers::new() }; N];
        let mut at = range.start;
        while at < range.end {
            let tile = self.tile(at);
            let n = (size - at % size).min(range.end - at).min(most);
            let (first, pitch) = match self.is_direct(steps) {
                true => (tile.inputs.map(<*const u8>::cast), next),
                false => {
                    (
                        self.load_each(&mut buffers, |input: usize, buffers: &mut ReductionBuffers| {
                            // SAFETY: these are `n` rows of the input, which are one run if there is more than one.
                            unsafe {
                                self.readers[input]
                                    .load(tile.inputs[input], steps[input], n * self.count, buffers)
                                    .cast()
                            }
                        }),
                        [self.count * size_of::<F::Input>(); N],
                    )
                }
            };
            self.load_parameters(tile.output, output, &mut parameters[..n]);
            self.reduce_rows(first, pitch, self.count, 0, &parameters[..n], &mut sums[..n]);
            self.write(tile.output, output, n, |row| (sums[row], parameters[row]));
            at += n;
        }
    }

    /// Computes the outputs of a tile.
    fn reduce_tile(&self, tile: &Tile<N>) {
        if self.is_columns {
            let mut sums = self.identity_columns();
            self.reduce_columns(tile, 0..self.count, &mut sums);
            self.write_tile(tile, |column| arrays::from_fn(|k| sums[k][column]));
        } else {
            let sums = self.reduce_row(tile, 0..self.count);
            self.write_tile(tile, |_| sums);
        }
    }

    /// Computes few outputs of many elements: in parts, which are merged afterwards. Outputs times parts are never so
    /// many that the parts' accumulators would need much memory.
    fn reduce_in_parts(&self, tiles: usize, splits: usize) {
        let width = self.columns.min(WIDTH);
        let mut parts = vec![self.reduction.identity(); tiles * splits * width];
        let accumulators = DisjointSlice::new(&mut parts);
        let length = self.count.div_ceil(splits).next_multiple_of(DEPTH);
        threads::for_each_part(tiles * splits, |part| {
            let tile = self.tile(part / splits);
            let start = (part % splits * length).min(self.count);
            let range = start..(start + length).min(self.count);
            // SAFETY: each part has its own `width` accumulators.
            let into = unsafe { accumulators.range(part * width..(part + 1) * width) };
            if self.is_columns {
                let mut sums = self.identity_columns();
                self.reduce_columns(&tile, range, &mut sums);
                (0..tile.width).for_each(|column| into[column] = arrays::from_fn(|k| sums[k][column]));
            } else {
                into[0] = self.reduce_row(&tile, range);
            }
        });
        for tile in 0..tiles {
            let parts = &mut parts[tile * splits * width..][..splits * width];
            let mut gap = 1;
            while gap < splits {
                for part in (0..splits - gap).step_by(2 * gap) {
                    for column in 0..width {
                        let left = part * width + column;
                        let right = (part + gap) * width + column;
                        parts[left] = self.reduction.merge(parts[left], parts[right]);
                    }
                }
                gap *= 2;
            }
            self.write_tile(&self.tile(tile), |column| parts[column]);
        }
    }

    fn tile(&self, number: usize) -> Tile<N> {
        let per_row = self.columns.div_ceil(WIDTH);
        let column = number % per_row * WIDTH;
        let mut inputs = self.inputs;
        let mut output = 0;
        let mut rest = number / per_row;
        let mut advance = |dim: &ReductionDim<N>, by: usize| {
            output += by * dim.output;
            inputs = arrays::from_fn(|input| inputs[input].wrapping_add(by * dim.steps[input]));
        };
        if self.is_columns {
            advance(&self.kept[0], column);
        }
        for dim in self.kept.iter().skip(usize::from(self.is_columns)) {
            advance(dim, rest % dim.size);
            rest /= dim.size;
        }
        Tile { inputs, output, width: (self.columns - column).min(WIDTH) }
    }

    fn write_tile(&self, tile: &Tile<N>, sums: impl Fn(usize) -> [F::Accumulator; K]) {
        let step = if self.is_columns { self.kept[0].output } else { 0 };
        let mut parameters = [self.no_parameter(); WIDTH];
        self.load_parameters(tile.output, step, &mut parameters[..tile.width]);
        self.write(tile.output, step, tile.width, |column| (sums(column), parameters[column]));
    }

    /// Finishes `n` outputs, `step` elements apart, and writes them.
    #[inline(always)]
    fn write(&self, output: usize, step: usize, n: usize, sums: impl Fn(usize) -> ([F::Accumulator; K], F::Parameter)) {
        for first in (0..n).step_by(ROWS) {
            let n = ROWS.min(n - first);
            let mut values = [MaybeUninit::<[F::Output; ROWS]>::uninit(); K];
            for at in 0..n {
                let (sums, parameter) = sums(first + at);
                let finished = self.reduction.finish(sums, parameter);
                for (values, value) in values.iter_mut().zip(finished) {
                    // SAFETY: `values` has room for `ROWS` elements.
                    unsafe { values.as_mut_ptr().cast::<F::Output>().add(at).write(value) };
                }
            }
            for (k, values) in values.iter().enumerate() {
                let writer = &self.writers[k];
                let place = self.outputs[k].wrapping_add((output + first * step) * writer.to);
                // SAFETY: no other thread writes these outputs.
                unsafe { writer.store(values.as_ptr().cast(), place, step * writer.to, n) };
            }
        }
    }

    /// Loads the parameters of outputs that are `step` elements apart.
    fn load_parameters(&self, output: usize, step: usize, parameters: &mut [F::Parameter]) {
        let Some((first, reader)) = self.parameters else { return };
        let mut buffers = ReductionBuffers::new();
        let place = first.wrapping_add(output * reader.from);
        // SAFETY: there is one value for each output, contiguous as the outputs are; a tile has no more outputs than a
        // leaf has elements.
        unsafe {
            let loaded = reader.load(place, step * reader.from, parameters.len(), &mut buffers);
            parameters.as_mut_ptr().copy_from_nonoverlapping(loaded.cast(), parameters.len());
        }
    }

    fn no_parameter(&self) -> F::Parameter {
        F::Parameter::from_scalar(Scalar::Bool(false))
    }

    fn identity_columns(&self) -> Accumulators<F::Accumulator, K> {
        let identity = self.reduction.identity();
        arrays::from_fn(|k| [identity[k]; WIDTH])
    }

    fn is_direct(&self, steps: [usize; N]) -> bool {
        self.readers.iter().zip(steps).all(|(reader, step)| reader.is_direct(step))
    }

    /// Returns the results of `load` for each input with its buffers.
    fn load_each(
        &self,
        buffers: &mut [ReductionBuffers; N],
        load: impl Fn(usize, &mut ReductionBuffers) -> *const F::Input,
    ) -> [*const F::Input; N] {
        let mut loaded = [std::ptr::null(); N];
        for (input, (loaded, buffers)) in loaded.iter_mut().zip(buffers).enumerate() {
            *loaded = load(input, buffers);
        }
        loaded
    }

    fn reduce_row(&self, tile: &Tile<N>, range: Range<usize>) -> [F::Accumulator; K] {
        match split_point(&range, LEAF) {
            None => self.row_leaf(tile, range),
            Some(middle) => {
                let left = self.reduce_row(tile, range.start..middle);
                self.reduction.merge(left, self.reduce_row(tile, middle..range.end))
            }
        }
    }

    fn row_leaf(&self, tile: &Tile<N>, range: Range<usize>) -> [F::Accumulator; K] {
        let mut buffers = [const { ReductionBuffers::new() }; N];
        let first = self.load_each(&mut buffers, |input, buffers| self.load_row(tile, &range, input, buffers));
        let mut sums = [self.reduction.identity()];
        let mut parameters = [self.no_parameter()];
        self.load_parameters(tile.output, 0, &mut parameters);
        self.reduce_rows(first, [0; N], range.len(), range.start, &parameters, &mut sums);
        sums[0]
    }

    /// Returns elements of a row, contiguous and converted.
    fn load_row(
        &self,
        tile: &Tile<N>,
        range: &Range<usize>,
        input: usize,
        buffers: &mut ReductionBuffers,
    ) -> *const F::Input {
        if range.is_empty() {
            return tile.inputs[input].cast();
        }
        let reader = &self.readers[input];
        let step = self.reduced.first().map_or(0, |dim| dim.steps[input]);
        let inner = self.reduced.first().map_or(1, |dim| dim.size);
        // SAFETY: these are runs of the input, together no longer than a leaf.
        unsafe {
            if self.reduced.len() <= 1 || range.start % inner + range.len() <= inner {
                let place = self.place(tile, input, range.start);
                return reader.load(place, step, range.len(), buffers).cast();
            }
            let elements = buffers.elements();
            self.for_each_run(range, |at, n| {
                let to = elements.add((at - range.start) * reader.from);
                strided(reader.from).gather(self.place(tile, input, at), step, to, n);
            });
            reader.load(elements, reader.from, range.len(), buffers).cast()
        }
    }

    /// Returns a pointer to the input's element number `at` among those of the tile's first output.
    fn place(&self, tile: &Tile<N>, input: usize, at: usize) -> *const u8 {
        let mut place = tile.inputs[input];
        let mut rest = at;
        for dim in &self.reduced {
            place = place.wrapping_add(rest % dim.size * dim.steps[input]);
            rest /= dim.size;
        }
        place
    }

    /// Iterates over elements in runs along the densest reduced dimension: `run(number of the first, length)`.
    fn for_each_run(&self, range: &Range<usize>, mut run: impl FnMut(usize, usize)) {
        let inner = self.reduced.first().map_or(1, |dim| dim.size);
        let mut at = range.start;
        while at < range.end {
            let n = (inner - at % inner).min(range.end - at);
            run(at, n);
            at += n;
        }
    }

    /// Accumulates rows of `count` neighbours, `pitch` bytes apart. `at` is the number of the first element.
    fn reduce_rows(
        &self,
        first: [*const F::Input; N],
        pitch: [usize; N],
        count: usize,
        at: usize,
        parameters: &[F::Parameter],
        sums: &mut [[F::Accumulator; K]],
    ) {
        vectorized!(for (row, (sums, parameter)) in sums.iter_mut().zip(parameters).enumerate() {
            let row = arrays::from_fn(|input| first[input].wrapping_byte_add(row * pitch[input]));
            *sums = self.reduce_lanes(row, count, at, *parameter);
        });
    }

    /// Accumulates `n` neighbours in lanes, and merges the lanes.
    #[inline(always)]
    fn reduce_lanes(
        &self,
        row: [*const F::Input; N],
        n: usize,
        at: usize,
        parameter: F::Parameter,
    ) -> [F::Accumulator; K] {
        let identity = self.reduction.identity();
        let mut lanes: [[F::Accumulator; LANES]; K] = arrays::from_fn(|k| [identity[k]; LANES]);
        let in_blocks = n - n % LANES;
        if in_blocks > 0 {
            // A copy that is indexed only with constants stays in registers.
            let mut sums = lanes;
            for i in (0..in_blocks).step_by(LANES) {
                // SAFETY: these are elements of the row.
                let block: [[F::Input; LANES]; N] =
                    arrays::from_fn(|input| unsafe { row[input].add(i).cast::<[F::Input; LANES]>().read() });
                #[expect(clippy::needless_range_loop, reason = "a loop of constant length is made one of vectors")]
                for lane in 0..LANES {
                    let values = arrays::from_fn(|input| block[input][lane]);
                    self.accumulate_lane(&mut sums, lane, values, parameter, at + i + lane);
                }
            }
            lanes = sums;
        }
        for lane in 0..n - in_blocks {
            // SAFETY: this is an element of the row.
            let values = arrays::from_fn(|input| unsafe { row[input].add(in_blocks + lane).read() });
            self.accumulate_lane(&mut lanes, lane, values, parameter, at + in_blocks + lane);
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for lane in 0..width {
                let left = arrays::from_fn(|k| lanes[k][lane]);
                let right = arrays::from_fn(|k| lanes[k][lane + width]);
                let sums = self.reduction.merge(left, right);
                (0..K).for_each(|k| lanes[k][lane] = sums[k]);
            }
        }
        arrays::from_fn(|k| lanes[k][0])
    }

    #[inline(always)]
    fn accumulate_lane(
        &self,
        lanes: &mut [[F::Accumulator; LANES]; K],
        lane: usize,
        values: [F::Input; N],
        parameter: F::Parameter,
        at: usize,
    ) {
        let sums = self.reduction.accumulate(arrays::from_fn(|k| lanes[k][lane]), values, parameter, at);
        for k in 0..K {
            lanes[k][lane] = sums[k];
        }
    }

    fn reduce_columns(&self, tile: &Tile<N>, range: Range<usize>, sums: &mut Accumulators<F::Accumulator, K>) {
        match split_point(&range, DEPTH) {
            None => self.column_leaf(tile, range, sums),
            Some(middle) => {
                self.reduce_columns(tile, range.start..middle, sums);
                let mut more = self.identity_columns();
                self.reduce_columns(tile, middle..range.end, &mut more);
                for column in 0..tile.width {
                    let left = arrays::from_fn(|k| sums[k][column]);
                    let right = arrays::from_fn(|k| more[k][column]);
                    let merged = self.reduction.merge(left, right);
                    (0..K).for_each(|k| sums[k][column] = merged[k]);
                }
            }
        }
    }

    fn column_leaf(&self, tile: &Tile<N>, range: Range<usize>, sums: &mut Accumulators<F::Accumulator, K>) {
        let steps = self.kept[0].steps;
        let width = tile.width;
        let below = self.reduced.first().map_or([0; N], |dim| dim.steps);
        let mut parameters = [self.no_parameter(); WIDTH];
        self.load_parameters(tile.output, self.kept[0].output, &mut parameters[..width]);
        let is_direct = self.is_direct(steps);
        let is_one_run = (0..N).all(|input| below[input] == width * steps[input]);
        let mut buffers = [const { ReductionBuffers::new() }; N];
        self.for_each_run(&range, |at, n| {
            if is_direct {
                let first = arrays::from_fn(|input| self.place(tile, input, at).cast());
                return self.accumulate_rows(first, below, at..at + n, &parameters[..width], sums);
            }
            let most = if is_one_run { LEAF / width } else { 1 };
            for row in (at..at + n).step_by(most) {
                let rows = row..(row + most).min(at + n);
                let first = self.load_each(&mut buffers, |input, buffers| {
                    let place = self.place(tile, input, row);
                    // SAFETY: these are rows of the input, which are one run if there is more than one.
                    unsafe { self.readers[input].load(place, steps[input], rows.len() * width, buffers).cast() }
                });
                self.accumulate_rows(first, [width * size_of::<F::Input>(); N], rows, &parameters[..width], sums);
            }
        });
    }

    /// Accumulates rows that are `pitch` bytes apart, with one element for each column. `rows` has their numbers among
    /// all rows.
    fn accumulate_rows(
        &self,
        first: [*const F::Input; N],
        pitch: [usize; N],
        rows: Range<usize>,
        parameters: &[F::Parameter],
        sums: &mut Accumulators<F::Accumulator, K>,
    ) {
        let parameters: &[F::Parameter] = &parameters[..parameters.len().min(WIDTH)];
        vectorized!(for row in 0..rows.len() {
            let at = rows.start + row;
            let row: [*const F::Input; N] = arrays::from_fn(|input| first[input].wrapping_byte_add(row * pitch[input]));
            for (column, parameter) in parameters.iter().enumerate() {
                // SAFETY: this is an element of the row.
                let values = arrays::from_fn(|input| unsafe { row[input].add(column).read() });
                let sum = self.reduction.accumulate(arrays::from_fn(|k| sums[k][column]), values, *parameter, at);
                (0..K).for_each(|k| sums[k][column] = sum[k]);
            }
        });
    }
}

/// Returns where to divide a range of more than `leaf`, or `None` for a shorter one.
fn split_point(range: &Range<usize>, leaf: usize) -> Option<usize> {
    (range.len() > leaf).then(|| range.start + (range.len() / 2).next_multiple_of(leaf))
}
