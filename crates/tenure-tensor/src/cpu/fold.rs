//! Folds: reductions of many elements to one, over any dimensions of any layout and dtype.
//!
//! Sizes and strides alone decide the order in which elements are accumulated; the number of threads never does.
//! Accumulation is pairwise: a *leaf* of elements is accumulated in one loop, and leaves are merged like a tree, so
//! that rounding errors grow with the logarithm of the count. If the densest dimension is kept, whole rows of outputs
//! (*columns*) are accumulated at once. If it is reduced, neighbours are accumulated in *lanes*, which are merged at
//! the end of a leaf.
//!
//! A fold is compiled for contiguous elements of one type. Elements of another dtype, or with gaps, are first copied to
//! a buffer, a leaf at a time.

use std::mem::MaybeUninit;
use std::ops::Range;

use smallvec::SmallVec;

use super::cast::{self, Cast};
use super::loops::vectorized;
use super::slots::Slots;
use super::strided::strided;
use crate::{Access, DType, Element, Result, Scalar, Tensor, TensorError, arrays, threads};

/// A fold of the elements of `N` inputs to `K` outputs. Each output may have one element of `Given`.
pub(crate) trait Fold<const N: usize, const K: usize>: Sync {
    /// The type that elements of the inputs are converted to.
    type From: Element;
    /// The type of the accumulators.
    type Sum: Copy + Send + Sync;
    /// The type that elements of the outputs are converted from.
    type To: Element;
    /// The type of a value that is known of each output beforehand, after its conversion; `false` if there is none.
    type Given: Element;

    /// Returns the fold's identity: the accumulators of no elements.
    fn start(&self) -> [Self::Sum; K];

    /// Adds one element of each input to the accumulators. It is number `at` of the output's elements.
    fn step(&self, sums: [Self::Sum; K], values: [Self::From; N], given: Self::Given, at: usize) -> [Self::Sum; K];

    /// Merges the accumulators of two parts, in their order.
    fn merge(&self, left: [Self::Sum; K], right: [Self::Sum; K]) -> [Self::Sum; K];

    /// Returns the values to write.
    fn finish(&self, sums: [Self::Sum; K], given: Self::Given) -> [Self::To; K];
}

/// The number of elements that are worth waking a thread for.
const GRAIN: usize = 32 * 1024;
/// The number of parts that a fold to few outputs is divided into: usually more than there are threads.
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

/// Folds `inputs`, all of the same sizes, to `outputs`. Outputs and `given` are contiguous, with size 1 where
/// dimensions are reduced.
pub(crate) fn fold<F: Fold<N, K>, const N: usize, const K: usize>(
    op: &'static str,
    fold: &F,
    outputs: [&Tensor; K],
    inputs: [&Tensor; N],
    given: Option<&Tensor>,
) -> Result<()> {
    check(op, &outputs, &inputs, given)?;
    let reads: SmallVec<[&Tensor; 4]> = inputs.into_iter().chain(given).collect();
    let mut access = Access::new(op, &outputs, &reads)?;
    let (kept, reduced) = dimensions(outputs[0], inputs);
    let count = reduced.iter().map(|dim| dim.size).product();
    let is_columns = match (kept.first(), reduced.first()) {
        // Rows too short for the lanes are accumulated side by side as well.
        (Some(kept), Some(reduced)) => kept.steps[0] < reduced.steps[0] || count < LANES,
        (kept, _) => kept.is_some(),
    };
    let work = Work {
        fold,
        inputs: arrays::from_fn(|input| access.read_ptr(input)),
        readers: arrays::from_fn(|input| Elements::between(inputs[input].dtype(), F::From::DTYPE)),
        outputs: arrays::from_fn(|output| access.write_ptr(output)),
        writers: arrays::from_fn(|output| Elements::between(F::To::DTYPE, outputs[output].dtype())),
        given: given.map(|given| (access.read_ptr(N), Elements::between(given.dtype(), F::Given::DTYPE))),
        count,
        outer: kept.iter().skip(usize::from(is_columns)).map(|dim| dim.size).product(),
        columns: if is_columns { kept[0].size } else { 1 },
        is_columns,
        kept,
        reduced,
    };
    work.run();
    Ok(())
}

fn check(op: &'static str, outputs: &[&Tensor], inputs: &[&Tensor], given: Option<&Tensor>) -> Result<()> {
    let (to, from) = (outputs[0].sizes(), inputs[0].sizes());
    let reduces = to.len() == from.len() && to.iter().zip(from).all(|(to, from)| to == from || *to == 1);
    let is_output = |tensor: &Tensor| tensor.sizes() == to && tensor.is_contiguous() && tensor.device().is_cpu();
    let is_input = |tensor: &&Tensor| tensor.sizes() == from && tensor.device().is_cpu();
    if reduces && outputs.iter().copied().chain(given).all(is_output) && inputs.iter().all(is_input) {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("sizes {from:?} cannot be folded to {to:?} of these layouts")))
}

/// A dimension of all inputs, or several that can be walked as one.
struct Dim<const N: usize> {
    size: usize,
    /// The distance of neighbours in each input, in bytes.
    steps: [usize; N],
    /// The distance of neighbours in the outputs, in elements.
    output: usize,
}

type Dims<const N: usize> = SmallVec<[Dim<N>; 4]>;

/// Returns the kept and the reduced dimensions, densest first.
fn dimensions<const N: usize>(output: &Tensor, inputs: [&Tensor; N]) -> (Dims<N>, Dims<N>) {
    let sizes = inputs[0].sizes();
    let is_reduced = |dim: &usize| output.sizes()[*dim] == 1;
    let dim = |dim: usize| Dim {
        size: sizes[dim],
        steps: arrays::from_fn(|input| inputs[input].strides()[dim] * inputs[input].dtype().size()),
        output: if is_reduced(&dim) { 0 } else { output.strides()[dim] },
    };
    // The last dimension comes first, so that it counts as the densest among equals.
    let all = || (0..sizes.len()).rev().filter(|dim| sizes[*dim] != 1);
    (coalesce(all().filter(|dim| !is_reduced(dim)).map(dim)), coalesce(all().filter(is_reduced).map(dim)))
}

fn coalesce<const N: usize>(dims: impl Iterator<Item = Dim<N>>) -> Dims<N> {
    let mut dims: Dims<N> = dims.collect();
    dims.sort_by_key(|dim| (dim.steps, dim.output));
    let mut merged: Dims<N> = Dims::new();
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
struct Elements {
    /// The size in bytes of an element before its conversion (`from`) and after (`to`).
    from: usize,
    to: usize,
    cast: Option<Cast>,
}

impl Elements {
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
    unsafe fn load(&self, place: *const u8, step: usize, n: usize, buffers: &mut Buffers) -> *const u8 {
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
        let mut buffers = Buffers::new();
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
struct Buffers {
    elements: MaybeUninit<Buffer>,
    converted: MaybeUninit<Buffer>,
}

#[repr(align(64))]
struct Buffer {
    _bytes: [u8; LEAF * size_of::<u64>()],
}

impl Buffers {
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

struct Work<'a, F: Fold<N, K>, const N: usize, const K: usize> {
    fold: &'a F,
    inputs: [*const u8; N],
    readers: [Elements; N],
    outputs: [*mut u8; K],
    writers: [Elements; K],
    given: Option<(*const u8, Elements)>,
    kept: Dims<N>,
    reduced: Dims<N>,
    /// The number of elements that make one output.
    count: usize,
    /// The number of outputs along the first kept dimension, if they are accumulated at once.
    columns: usize,
    /// The number of outputs along the other kept dimensions.
    outer: usize,
    is_columns: bool,
}

// SAFETY: threads read the inputs, and no two threads write the same outputs.
unsafe impl<F: Fold<N, K>, const N: usize, const K: usize> Sync for Work<'_, F, N, K> {}

/// Some neighbouring outputs.
struct Tile<const N: usize> {
    inputs: [*const u8; N],
    output: usize,
    width: usize,
}

/// The accumulators of a tile's outputs.
type Sums<S, const K: usize> = [[S; WIDTH]; K];

impl<F: Fold<N, K>, const N: usize, const K: usize> Work<'_, F, N, K> {
    fn run(&self) {
        let tiles = self.outer * self.columns.div_ceil(WIDTH);
        let elements = self.outer * self.columns * self.count;
        let splits = PARTS.div_ceil(tiles.max(1)).min(elements / GRAIN).min(self.count.div_ceil(DEPTH)).max(1);
        if tiles >= PARTS / 2 || splits == 1 {
            let tiles_per_part = (GRAIN * tiles).checked_div(elements).unwrap_or(tiles);
            threads::for_each_range(tiles, tiles_per_part, |range| {
                if self.is_columns || self.count > LEAF || self.reduced.len() != 1 {
                    range.for_each(|tile| self.whole(&self.tile(tile)));
                } else {
                    self.short_rows(range);
                }
            });
        } else {
            self.split(tiles, splits);
        }
    }

    /// Computes outputs of few elements, those of a kept dimension one after the other.
    fn short_rows(&self, range: Range<usize>) {
        let steps = self.reduced[0].steps;
        let (size, next) = self.kept.first().map_or((1, [0; N]), |dim| (dim.size, dim.steps));
        let output = self.kept.first().map_or(0, |dim| dim.output);
        let is_one_run = (0..N).all(|input| next[input] == self.count * steps[input]);
        let most = match self.is_direct(steps) {
            true => ROWS,
            false if is_one_run => (LEAF / self.count.max(1)).clamp(1, ROWS),
            false => 1,
        };
        let mut sums = [self.fold.start(); ROWS];
        let mut given = [self.nothing(); ROWS];
        let mut buffers = [const { Buffers::new() }; N];
        let mut at = range.start;
        while at < range.end {
            let (tile, n) = (self.tile(at), (size - at % size).min(range.end - at).min(most));
            let (first, pitch) = match self.is_direct(steps) {
                true => (tile.inputs.map(<*const u8>::cast), next),
                false => {
                    let load = |input: usize, buffers: &mut Buffers| {
                        // SAFETY: these are `n` rows of the input, which are one run if there is more than one.
                        unsafe {
                            self.readers[input].load(tile.inputs[input], steps[input], n * self.count, buffers).cast()
                        }
                    };
                    (self.load_each(&mut buffers, load), [self.count * size_of::<F::From>(); N])
                }
            };
            self.load_given(tile.output, output, &mut given[..n]);
            self.gather_rows(first, pitch, self.count, 0, &given[..n], &mut sums[..n]);
            self.write(tile.output, output, n, |row| (sums[row], given[row]));
            at += n;
        }
    }

    /// Computes the outputs of a tile.
    fn whole(&self, tile: &Tile<N>) {
        if self.is_columns {
            let mut sums = self.empty();
            self.gather_columns(tile, 0..self.count, &mut sums);
            self.write_tile(tile, |column| arrays::from_fn(|k| sums[k][column]));
        } else {
            let sums = self.gather_row(tile, 0..self.count);
            self.write_tile(tile, |_| sums);
        }
    }

    /// Computes few outputs of many elements: in parts, which are merged afterwards. Outputs times parts are never so
    /// many that the parts' accumulators would need much memory.
    fn split(&self, tiles: usize, splits: usize) {
        let width = self.columns.min(WIDTH);
        let mut parts = vec![self.fold.start(); tiles * splits * width];
        let slots = Slots::new(&mut parts);
        let length = self.count.div_ceil(splits).next_multiple_of(DEPTH);
        threads::for_each_part(tiles * splits, |part| {
            let tile = self.tile(part / splits);
            let start = (part % splits * length).min(self.count);
            let range = start..(start + length).min(self.count);
            // SAFETY: each part has its own `width` accumulators.
            let into = unsafe { slots.range(part * width..(part + 1) * width) };
            if self.is_columns {
                let mut sums = self.empty();
                self.gather_columns(&tile, range, &mut sums);
                (0..tile.width).for_each(|column| into[column] = arrays::from_fn(|k| sums[k][column]));
            } else {
                into[0] = self.gather_row(&tile, range);
            }
        });
        for tile in 0..tiles {
            let parts = &mut parts[tile * splits * width..][..splits * width];
            let mut gap = 1;
            while gap < splits {
                for part in (0..splits - gap).step_by(2 * gap) {
                    for column in 0..width {
                        let (left, right) = (part * width + column, (part + gap) * width + column);
                        parts[left] = self.fold.merge(parts[left], parts[right]);
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
        let (mut output, mut rest) = (0, number / per_row);
        let mut advance = |dim: &Dim<N>, by: usize| {
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

    fn write_tile(&self, tile: &Tile<N>, sums: impl Fn(usize) -> [F::Sum; K]) {
        let step = if self.is_columns { self.kept[0].output } else { 0 };
        let mut given = [self.nothing(); WIDTH];
        self.load_given(tile.output, step, &mut given[..tile.width]);
        self.write(tile.output, step, tile.width, |column| (sums(column), given[column]));
    }

    /// Finishes `n` outputs, `step` elements apart, and writes them.
    #[inline(always)]
    fn write(&self, output: usize, step: usize, n: usize, sums: impl Fn(usize) -> ([F::Sum; K], F::Given)) {
        for first in (0..n).step_by(ROWS) {
            let n = ROWS.min(n - first);
            let mut values = [MaybeUninit::<[F::To; ROWS]>::uninit(); K];
            for at in 0..n {
                let (sums, given) = sums(first + at);
                let finished = self.fold.finish(sums, given);
                for (values, value) in values.iter_mut().zip(finished) {
                    // SAFETY: `values` has room for `ROWS` elements.
                    unsafe { values.as_mut_ptr().cast::<F::To>().add(at).write(value) };
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

    /// Loads the given values of outputs that are `step` elements apart.
    fn load_given(&self, output: usize, step: usize, given: &mut [F::Given]) {
        let Some((first, reader)) = self.given else { return };
        let mut buffers = Buffers::new();
        let place = first.wrapping_add(output * reader.from);
        // SAFETY: there is one value for each output, contiguous as the outputs are; a tile has no more outputs than a
        // leaf has elements.
        unsafe {
            let loaded = reader.load(place, step * reader.from, given.len(), &mut buffers);
            given.as_mut_ptr().copy_from_nonoverlapping(loaded.cast(), given.len());
        }
    }

    fn nothing(&self) -> F::Given {
        F::Given::from_scalar(Scalar::Bool(false))
    }

    fn empty(&self) -> Sums<F::Sum, K> {
        let start = self.fold.start();
        arrays::from_fn(|k| [start[k]; WIDTH])
    }

    fn is_direct(&self, steps: [usize; N]) -> bool {
        self.readers.iter().zip(steps).all(|(reader, step)| reader.is_direct(step))
    }

    /// Returns the results of `load` for each input with its buffers.
    fn load_each(
        &self,
        buffers: &mut [Buffers; N],
        load: impl Fn(usize, &mut Buffers) -> *const F::From,
    ) -> [*const F::From; N] {
        let mut loaded = [std::ptr::null(); N];
        for (input, (loaded, buffers)) in loaded.iter_mut().zip(buffers).enumerate() {
            *loaded = load(input, buffers);
        }
        loaded
    }

    fn gather_row(&self, tile: &Tile<N>, range: Range<usize>) -> [F::Sum; K] {
        match halves(&range, LEAF) {
            None => self.row_leaf(tile, range),
            Some(middle) => {
                let left = self.gather_row(tile, range.start..middle);
                self.fold.merge(left, self.gather_row(tile, middle..range.end))
            }
        }
    }

    fn row_leaf(&self, tile: &Tile<N>, range: Range<usize>) -> [F::Sum; K] {
        let mut buffers = [const { Buffers::new() }; N];
        let first = self.load_each(&mut buffers, |input, buffers| self.load_row(tile, &range, input, buffers));
        let (mut sums, mut given) = ([self.fold.start()], [self.nothing()]);
        self.load_given(tile.output, 0, &mut given);
        self.gather_rows(first, [0; N], range.len(), range.start, &given, &mut sums);
        sums[0]
    }

    /// Returns elements of a row, contiguous and converted.
    fn load_row(&self, tile: &Tile<N>, range: &Range<usize>, input: usize, buffers: &mut Buffers) -> *const F::From {
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
        let (mut place, mut rest) = (tile.inputs[input], at);
        for dim in &self.reduced {
            place = place.wrapping_add(rest % dim.size * dim.steps[input]);
            rest /= dim.size;
        }
        place
    }

    /// Walks elements in runs along the densest reduced dimension: `run(number of the first, length)`.
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
    fn gather_rows(
        &self,
        first: [*const F::From; N],
        pitch: [usize; N],
        count: usize,
        at: usize,
        given: &[F::Given],
        sums: &mut [[F::Sum; K]],
    ) {
        vectorized!(for (row, (sums, given)) in sums.iter_mut().zip(given).enumerate() {
            let row = arrays::from_fn(|input| first[input].wrapping_byte_add(row * pitch[input]));
            *sums = self.gather_lanes(row, count, at, *given);
        });
    }

    /// Accumulates `n` neighbours in lanes, and merges the lanes.
    #[inline(always)]
    fn gather_lanes(&self, row: [*const F::From; N], n: usize, at: usize, given: F::Given) -> [F::Sum; K] {
        let start = self.fold.start();
        let mut lanes: [[F::Sum; LANES]; K] = arrays::from_fn(|k| [start[k]; LANES]);
        let whole = n - n % LANES;
        if whole > 0 {
            // A copy that is indexed only with constants stays in registers.
            let mut sums = lanes;
            for i in (0..whole).step_by(LANES) {
                // SAFETY: these are elements of the row.
                let block: [[F::From; LANES]; N] =
                    arrays::from_fn(|input| unsafe { row[input].add(i).cast::<[F::From; LANES]>().read() });
                #[expect(clippy::needless_range_loop, reason = "a loop of constant length is made one of vectors")]
                for lane in 0..LANES {
                    let values = arrays::from_fn(|input| block[input][lane]);
                    self.step_lane(&mut sums, lane, values, given, at + i + lane);
                }
            }
            lanes = sums;
        }
        for lane in 0..n - whole {
            // SAFETY: this is an element of the row.
            let values = arrays::from_fn(|input| unsafe { row[input].add(whole + lane).read() });
            self.step_lane(&mut lanes, lane, values, given, at + whole + lane);
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for lane in 0..width {
                let (left, right) = (arrays::from_fn(|k| lanes[k][lane]), arrays::from_fn(|k| lanes[k][lane + width]));
                let sums = self.fold.merge(left, right);
                (0..K).for_each(|k| lanes[k][lane] = sums[k]);
            }
        }
        arrays::from_fn(|k| lanes[k][0])
    }

    #[inline(always)]
    fn step_lane(
        &self,
        lanes: &mut [[F::Sum; LANES]; K],
        lane: usize,
        values: [F::From; N],
        given: F::Given,
        at: usize,
    ) {
        let sums = self.fold.step(arrays::from_fn(|k| lanes[k][lane]), values, given, at);
        for k in 0..K {
            lanes[k][lane] = sums[k];
        }
    }

    fn gather_columns(&self, tile: &Tile<N>, range: Range<usize>, sums: &mut Sums<F::Sum, K>) {
        match halves(&range, DEPTH) {
            None => self.column_leaf(tile, range, sums),
            Some(middle) => {
                self.gather_columns(tile, range.start..middle, sums);
                let mut more = self.empty();
                self.gather_columns(tile, middle..range.end, &mut more);
                for column in 0..tile.width {
                    let (left, right) = (arrays::from_fn(|k| sums[k][column]), arrays::from_fn(|k| more[k][column]));
                    let merged = self.fold.merge(left, right);
                    (0..K).for_each(|k| sums[k][column] = merged[k]);
                }
            }
        }
    }

    fn column_leaf(&self, tile: &Tile<N>, range: Range<usize>, sums: &mut Sums<F::Sum, K>) {
        let (steps, width) = (self.kept[0].steps, tile.width);
        let below = self.reduced.first().map_or([0; N], |dim| dim.steps);
        let mut given = [self.nothing(); WIDTH];
        self.load_given(tile.output, self.kept[0].output, &mut given[..width]);
        let is_direct = self.is_direct(steps);
        let is_one_run = (0..N).all(|input| below[input] == width * steps[input]);
        let mut buffers = [const { Buffers::new() }; N];
        self.for_each_run(&range, |at, n| {
            if is_direct {
                let first = arrays::from_fn(|input| self.place(tile, input, at).cast());
                return self.gather_below(first, below, at..at + n, &given[..width], sums);
            }
            let most = if is_one_run { LEAF / width } else { 1 };
            for row in (at..at + n).step_by(most) {
                let rows = row..(row + most).min(at + n);
                let first = self.load_each(&mut buffers, |input, buffers| {
                    let place = self.place(tile, input, row);
                    // SAFETY: these are rows of the input, which are one run if there is more than one.
                    unsafe { self.readers[input].load(place, steps[input], rows.len() * width, buffers).cast() }
                });
                self.gather_below(first, [width * size_of::<F::From>(); N], rows, &given[..width], sums);
            }
        });
    }

    /// Accumulates rows that are `pitch` bytes apart, with one element for each column. `rows` has their numbers among
    /// all rows.
    fn gather_below(
        &self,
        first: [*const F::From; N],
        pitch: [usize; N],
        rows: Range<usize>,
        given: &[F::Given],
        sums: &mut Sums<F::Sum, K>,
    ) {
        let given: &[F::Given] = &given[..given.len().min(WIDTH)];
        vectorized!(for row in 0..rows.len() {
            let at = rows.start + row;
            let row: [*const F::From; N] = arrays::from_fn(|input| first[input].wrapping_byte_add(row * pitch[input]));
            for (column, given) in given.iter().enumerate() {
                // SAFETY: this is an element of the row.
                let values = arrays::from_fn(|input| unsafe { row[input].add(column).read() });
                let sum = self.fold.step(arrays::from_fn(|k| sums[k][column]), values, *given, at);
                (0..K).for_each(|k| sums[k][column] = sum[k]);
            }
        });
    }
}

/// Returns where to divide a range of more than `leaf`, or `None` for a shorter one.
fn halves(range: &Range<usize>, leaf: usize) -> Option<usize> {
    (range.len() > leaf).then(|| range.start + (range.len() / 2).next_multiple_of(leaf))
}
