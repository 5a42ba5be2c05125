//! Folds: many elements made one, for any dimensions of any layout.
//!
//! Sizes and strides alone say in which order elements are gathered, never how many threads there are. Gathering is
//! pairwise: a *leaf* of elements is gathered in one loop, and leaves are merged like a tree, so that errors of rounding
//! grow with the logarithm of the count. Where the densest dimension is kept, whole rows of outputs (*columns*) are
//! gathered at once; where it is reduced, neighbours are gathered in *lanes*, which are merged at the end of a leaf.

use super::arrays;
use std::ops::Range;

use smallvec::SmallVec;

use super::loops::vectorized;
use super::slots::Slots;
use crate::{Access, Element, Result, Scalar, Tensor, TensorError, threads};

/// What is done with the elements of `N` inputs to make `K` outputs. One element of `Given` belongs to each output.
pub(crate) trait Fold<const N: usize, const K: usize>: Sync {
    /// Elements of the inputs.
    type From: Element;
    /// What is gathered.
    type Sum: Copy + Send + Sync;
    /// Elements of the outputs.
    type To: Element;
    /// What is known of an output beforehand; false where nothing is given.
    type Given: Element;

    /// What no element gives.
    fn start(&self) -> [Self::Sum; K];

    /// With one element of each input more, which is number `at` of those that are gathered.
    fn step(&self, sums: [Self::Sum; K], values: [Self::From; N], given: Self::Given, at: usize) -> [Self::Sum; K];

    /// Of two parts, in their order.
    fn merge(&self, left: [Self::Sum; K], right: [Self::Sum; K]) -> [Self::Sum; K];

    /// What is written.
    fn finish(&self, sums: [Self::Sum; K], given: Self::Given) -> [Self::To; K];
}

/// Elements for which waking a thread pays.
const GRAIN: usize = 32 * 1024;
/// Parts that a fold to few outputs is divided in: more than there are threads, mostly.
const PARTS: usize = 64;
/// Neighbours of a row that are gathered at once: some vectors, so that they need not wait for each other.
const LANES: usize = 32;
/// Neighbours of a row that are gathered in one loop.
const LEAF: usize = LANES * DEPTH;
/// Columns that are gathered at once: as many as stay in the nearest cache.
const WIDTH: usize = 512;
/// Elements that are gathered one after the other into one sum.
const DEPTH: usize = 32;

/// Folds `inputs`, all of the same sizes, to `outputs`, which are contiguous and have size 1 where dimensions are reduced.
/// So has `given`.
pub(crate) fn fold<F: Fold<N, K>, const N: usize, const K: usize>(
    op: &'static str,
    fold: &F,
    outputs: [&Tensor; K],
    inputs: [&Tensor; N],
    given: Option<&Tensor>,
) -> Result<()> {
    check::<F, N, K>(op, outputs, inputs, given)?;
    let reads: SmallVec<[&Tensor; 3]> = inputs.into_iter().chain(given).collect();
    let mut access = Access::new(op, &outputs, &reads)?;
    let (kept, reduced) = dimensions(outputs[0], inputs);
    let count = reduced.iter().map(|dim| dim.size).product();
    let is_columns = match (kept.first(), reduced.first()) {
        // Rows too short for the lanes are gathered side by side as well.
        (Some(kept), Some(reduced)) => kept.steps[0] < reduced.steps[0] || count < LANES,
        (kept, _) => kept.is_some(),
    };
    let work = Work {
        fold,
        inputs: arrays::from_fn(|input| access.read_ptr(input)),
        outputs: arrays::from_fn(|output| access.write_ptr(output).cast()),
        given: given.map(|_| access.read_ptr(N).cast()),
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

fn check<F: Fold<N, K>, const N: usize, const K: usize>(
    op: &'static str,
    outputs: [&Tensor; K],
    inputs: [&Tensor; N],
    given: Option<&Tensor>,
) -> Result<()> {
    let (to, from) = (outputs[0].sizes(), inputs[0].sizes());
    let reduces = to.len() == from.len() && to.iter().zip(from).all(|(to, from)| to == from || *to == 1);
    let written =
        outputs.iter().map(|tensor| (*tensor, F::To::DTYPE)).chain(given.map(|given| (given, F::Given::DTYPE)));
    let fits = |(tensor, dtype): (&Tensor, _)| {
        tensor.sizes() == to && tensor.is_contiguous() && tensor.device().is_cpu() && tensor.dtype() == dtype
    };
    let read = |tensor: &Tensor| tensor.sizes() == from && tensor.device().is_cpu() && tensor.dtype() == F::From::DTYPE;
    if reduces && written.into_iter().all(fits) && inputs.into_iter().all(read) {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("sizes {from:?} cannot be folded to {to:?} of these dtypes and layouts")))
}

/// A dimension of all inputs, or more of them that can be gone through as one.
struct Dim<const N: usize> {
    size: usize,
    /// Distances of neighbours in bytes.
    steps: [usize; N],
    /// Distance of outputs in elements.
    output: usize,
}

type Dims<const N: usize> = SmallVec<[Dim<N>; 4]>;

/// The dimensions that are kept and those that are reduced, densest first.
fn dimensions<const N: usize>(output: &Tensor, inputs: [&Tensor; N]) -> (Dims<N>, Dims<N>) {
    let sizes = inputs[0].sizes();
    let is_reduced = |dim: &usize| output.sizes()[*dim] == 1;
    let dim = |dim: usize| Dim {
        size: sizes[dim],
        steps: arrays::from_fn(|input| inputs[input].strides()[dim] * inputs[input].dtype().size()),
        output: if is_reduced(&dim) { 0 } else { output.strides()[dim] },
    };
    // The last first, so that among equals it counts as the densest.
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

struct Work<'a, F: Fold<N, K>, const N: usize, const K: usize> {
    fold: &'a F,
    inputs: [*const u8; N],
    outputs: [*mut F::To; K],
    given: Option<*const F::Given>,
    kept: Dims<N>,
    reduced: Dims<N>,
    /// Elements that an output is made of.
    count: usize,
    /// Outputs along the first kept dimension, if they are gathered at once.
    columns: usize,
    /// Outputs along the others.
    outer: usize,
    is_columns: bool,
}

// SAFETY: threads read the inputs, and write outputs that are not the same.
unsafe impl<F: Fold<N, K>, const N: usize, const K: usize> Sync for Work<'_, F, N, K> {}

/// Some outputs, next to each other.
struct Tile<const N: usize> {
    inputs: [*const u8; N],
    output: usize,
    width: usize,
}

/// What was gathered for the outputs of a tile.
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

    /// Makes outputs of few elements, those of a kept dimension one after the other.
    fn short_rows(&self, range: Range<usize>) {
        let steps = self.reduced[0].steps;
        let (size, next) = self.kept.first().map_or((1, [0; N]), |dim| (dim.size, dim.steps));
        let output = self.kept.first().map_or(0, |dim| dim.output);
        let mut at = range.start;
        while at < range.end {
            let (first, n) = (self.tile(at), (size - at % size).min(range.end - at));
            let row = |row: usize| {
                let inputs = arrays::from_fn(|input| first.inputs[input].wrapping_add(row * next[input]));
                Tile { inputs, output: first.output + row * output, width: 1 }
            };
            if steps == [size_of::<F::From>(); N] {
                vectorized!(for number in 0..n {
                    let tile = row(number);
                    let sums = self.row_leaf_of(&tile, 0..self.count, [size_of::<F::From>(); N]);
                    self.write(&tile, |_| sums);
                });
            } else {
                (0..n).for_each(|number| self.whole(&row(number)));
            }
            at += n;
        }
    }

    /// Makes the outputs of a tile.
    fn whole(&self, tile: &Tile<N>) {
        if self.is_columns {
            let mut sums = self.empty();
            self.gather_columns(tile, 0..self.count, &mut sums);
            self.write(tile, |column| arrays::from_fn(|k| sums[k][column]));
        } else {
            let sums = self.gather_row(tile, 0..self.count);
            self.write(tile, |_| sums);
        }
    }

    /// Makes few outputs of many elements: in parts, which are merged then. There are never so many of both that the parts
    /// would need much memory.
    fn split(&self, tiles: usize, splits: usize) {
        let width = self.columns.min(WIDTH);
        let mut parts = vec![self.fold.start(); tiles * splits * width];
        let slots = Slots::new(&mut parts);
        let length = self.count.div_ceil(splits).next_multiple_of(DEPTH);
        threads::for_each_part(tiles * splits, |part| {
            let tile = self.tile(part / splits);
            let start = (part % splits * length).min(self.count);
            let range = start..(start + length).min(self.count);
            // SAFETY: there are `width` sums for each part.
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
            self.write(&self.tile(tile), |column| parts[column]);
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

    #[inline(always)]
    fn write(&self, tile: &Tile<N>, sums: impl Fn(usize) -> [F::Sum; K]) {
        let step = if self.is_columns { self.kept[0].output } else { 0 };
        for column in 0..tile.width {
            let output = tile.output + column * step;
            let values = self.fold.finish(sums(column), self.given(output));
            for (to, value) in self.outputs.iter().zip(values) {
                // SAFETY: an output of this tile, which no other thread writes; outputs are contiguous.
                unsafe { to.add(output).write(value) };
            }
        }
    }

    #[inline(always)]
    fn given(&self, output: usize) -> F::Given {
        match self.given {
            // SAFETY: one for each output, contiguous as they are.
            Some(given) => unsafe { given.add(output).read() },
            None => F::Given::from_scalar(Scalar::Bool(false)),
        }
    }

    fn empty(&self) -> Sums<F::Sum, K> {
        let start = self.fold.start();
        arrays::from_fn(|k| [start[k]; WIDTH])
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
        let steps = self.reduced.first().map_or([0; N], |dim| dim.steps);
        if steps == [size_of::<F::From>(); N] {
            // Constants of the function that is compiled for wide vectors, so that these are loaded whole.
            return vectorized!(self.row_leaf_of(tile, range.clone(), [size_of::<F::From>(); N]));
        }
        vectorized!(self.row_leaf_of(tile, range.clone(), steps))
    }

    #[inline(always)]
    fn row_leaf_of(&self, tile: &Tile<N>, range: Range<usize>, steps: [usize; N]) -> [F::Sum; K] {
        let given = self.given(tile.output);
        let start = self.fold.start();
        let mut lanes = arrays::from_fn(|k| [start[k]; LANES]);
        self.for_each_run(
            tile,
            range,
            #[inline(always)]
            |inputs, at, n| self.gather_lanes(&mut lanes, inputs, steps, at, n, given),
        );
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

    /// Gathers `n` neighbours in lanes.
    #[inline(always)]
    fn gather_lanes(
        &self,
        lanes: &mut [[F::Sum; LANES]; K],
        inputs: [*const u8; N],
        steps: [usize; N],
        at: usize,
        n: usize,
        given: F::Given,
    ) {
        let value = |i: usize| {
            // SAFETY: an element of the run.
            arrays::from_fn(|input| unsafe { inputs[input].add(i * steps[input]).cast::<F::From>().read() })
        };
        let whole = n - n % LANES;
        if whole > 0 {
            // A copy that is indexed with constants alone stays in registers.
            let mut sums = *lanes;
            for i in (0..whole).step_by(LANES) {
                // What is dense is loaded whole.
                let block: [[F::From; LANES]; N] = if steps == [size_of::<F::From>(); N] {
                    // SAFETY: elements of the run.
                    arrays::from_fn(|input| unsafe {
                        inputs[input].add(i * steps[input]).cast::<[F::From; LANES]>().read()
                    })
                } else {
                    let values: [[F::From; N]; LANES] = arrays::from_fn(|lane| value(i + lane));
                    arrays::from_fn(|input| arrays::from_fn(|lane| values[lane][input]))
                };
                #[expect(clippy::needless_range_loop, reason = "a loop of constant length is made one of vectors")]
                for lane in 0..LANES {
                    let values = arrays::from_fn(|input| block[input][lane]);
                    self.step_lane(&mut sums, lane, values, given, at + i + lane);
                }
            }
            *lanes = sums;
        }
        for lane in 0..n - whole {
            self.step_lane(lanes, lane, value(whole + lane), given, at + whole + lane);
        }
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
        let steps = self.kept[0].steps;
        if steps == [size_of::<F::From>(); N] {
            return vectorized!(self.column_leaf_of(tile, range.clone(), [size_of::<F::From>(); N], sums));
        }
        vectorized!(self.column_leaf_of(tile, range.clone(), steps, sums));
    }

    #[inline(always)]
    fn column_leaf_of(&self, tile: &Tile<N>, range: Range<usize>, steps: [usize; N], sums: &mut Sums<F::Sum, K>) {
        let below = self.reduced.first().map_or([0; N], |dim| dim.steps);
        let mut given = [self.given(tile.output); WIDTH];
        for (column, given) in given[..tile.width].iter_mut().enumerate() {
            *given = self.given(tile.output + column * self.kept[0].output);
        }
        self.for_each_run(
            tile,
            range,
            #[inline(always)]
            |inputs, at, n| {
                for i in 0..n {
                    let row = arrays::from_fn(|input| inputs[input].wrapping_add(i * below[input]));
                    self.row(sums, row, steps, at + i, tile.width, &given);
                }
            },
        );
    }

    /// Gathers one element for each column.
    #[inline(always)]
    fn row(
        &self,
        sums: &mut Sums<F::Sum, K>,
        inputs: [*const u8; N],
        steps: [usize; N],
        at: usize,
        width: usize,
        given: &[F::Given; WIDTH],
    ) {
        for column in 0..width.min(WIDTH) {
            // SAFETY: an element of the row.
            let values =
                arrays::from_fn(|input| unsafe { inputs[input].add(column * steps[input]).cast::<F::From>().read() });
            let sum = self.fold.step(arrays::from_fn(|k| sums[k][column]), values, given[column], at);
            (0..K).for_each(|k| sums[k][column] = sum[k]);
        }
    }

    /// Goes through the reduced dimensions in runs along the densest: `run(first elements, their number, length)`.
    #[inline(always)]
    fn for_each_run(&self, tile: &Tile<N>, range: Range<usize>, mut run: impl FnMut([*const u8; N], usize, usize)) {
        if let [dim] = &self.reduced[..] {
            let inputs = arrays::from_fn(|input| tile.inputs[input].wrapping_add(range.start * dim.steps[input]));
            return run(inputs, range.start, range.len());
        }
        let inner = self.reduced.first().map_or(1, |dim| dim.size);
        let mut at = range.start;
        while at < range.end {
            let n = (inner - at % inner).min(range.end - at);
            let mut inputs = tile.inputs;
            let mut rest = at;
            for dim in &self.reduced {
                inputs = arrays::from_fn(|input| inputs[input].wrapping_add(rest % dim.size * dim.steps[input]));
                rest /= dim.size;
            }
            run(inputs, at, n);
            at += n;
        }
    }
}

/// Where a range of more than `leaf` is divided.
fn halves(range: &Range<usize>, leaf: usize) -> Option<usize> {
    (range.len() > leaf).then(|| range.start + (range.len() / 2).next_multiple_of(leaf))
}
