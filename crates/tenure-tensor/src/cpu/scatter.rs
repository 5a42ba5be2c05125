//! Kernels that write elements by index. Several writes to one place happen in the order of the index, on one thread.

use tenure_core::Overlap;

use super::gather::{Places, Wrong, with_width};
use super::scratch;
use super::shared_memory::SharedPointer;
use crate::access::overlap;
use crate::kernel::on_cpu;
use crate::{Access, DType, Device, Entry, Number, Result, Tensor, TensorError, threads};

/// A kernel that writes or adds `values` to `target` at `index` along a dimension: (op, target, index, values,
/// dimension). The index is `int64`, has the values' sizes, and is no larger than the target in the other dimensions.
pub(crate) type Scatter = fn(&'static str, &Tensor, &Tensor, &Tensor, usize) -> Result<()>;
/// A kernel that writes or adds rows of `values` to `target` at `positions`: (op, target, positions, values,
/// dimensions). The positions, one for each row, are contiguous `int64`. They count the elements of these dimensions of
/// the target, the last fastest. A row has the target's other dimensions.
pub(crate) type Put = fn(&'static str, &Tensor, &Tensor, &Tensor, &[usize]) -> Result<()>;

pub(crate) const SCATTER: &[Entry<Scatter>] = on_cpu!(all: scatter);
pub(crate) const SCATTER_ADD: &[Entry<Scatter>] = on_cpu!(bits of numbers: scatter_add::<T>);
pub(crate) const PUT: &[Entry<Put>] = on_cpu!(all: put);
pub(crate) const PUT_ADD: &[Entry<Put>] = on_cpu!(bits of numbers: put_add::<T>);

/// The number of elements that a thread takes at a time.
const GRAIN: usize = 16 * 1024;
/// The number of neighbouring lines that are processed together.
const BUNDLE: usize = 128;

fn scatter(op: &'static str, target: &Tensor, index: &Tensor, values: &Tensor, dim: usize) -> Result<()> {
    with_width!(target.dtype(), T => scatter_lines(op, target, index, values, dim, |_: T, new| new))
}

fn scatter_add<T: Number>(
    op: &'static str,
    target: &Tensor,
    index: &Tensor,
    values: &Tensor,
    dim: usize,
) -> Result<()> {
    scatter_lines(op, target, index, values, dim, T::plus)
}

/// Scatters line by line along `dim`: no two lines write to one place.
fn scatter_lines<T: Copy>(
    op: &'static str,
    target: &Tensor,
    index: &Tensor,
    values: &Tensor,
    dim: usize,
    combine: impl Fn(T, T) -> T + Sync,
) -> Result<()> {
    check_apart(op, target, &[index, values])?;
    let mut access = Access::new(op, &[target], &[index, values])?;
    let places = Places::new(target.layout(), &[dim], size_of::<T>());
    let size = target.sizes()[dim] as u64;
    let sizes = index.sizes();
    let length = sizes[dim];
    let lines = index.numel() / sizes[dim].max(1);
    let to = byte_strides(target);
    let at = byte_strides(index);
    let from = byte_strides(values);
    let begin = |line: usize, strides: &[usize]| {
        let mut rest = line;
        (0..sizes.len())
            .rev()
            .filter(|other| *other != dim)
            .map(|other| {
                let place = rest % sizes[other] * strides[other];
                rest /= sizes[other];
                place
            })
            .sum::<usize>()
    };
    let target = SharedPointer(access.write_ptr(0));
    let index = access.read_ptr(0);
    let values = access.read_ptr(1);
    let index = SharedPointer(index.cast_mut());
    let values = SharedPointer(values.cast_mut());
    // SAFETY: this is within the layout of the index, which is locked.
    let read = |start: usize, i: usize| unsafe { index.get().add(start + i * at[dim]).cast::<i64>().read() };
    // Lines that are neighbours in memory are walked together, as many as share cache lines.
    let last = sizes.len() - 1;
    let beside = if dim == last { 1 } else { sizes[last] };
    let for_each_bundle = |bundle: &(dyn Fn(usize, usize) + Sync)| {
        threads::for_each_range(lines, (GRAIN / length.max(1)).max(BUNDLE.min(beside)), |range| {
            let mut line = range.start;
            while line < range.end {
                let n = BUNDLE.min(beside - line % beside).min(range.end - line);
                bundle(line, n);
                line += n;
            }
        });
    };
    let wrong = Wrong::default();
    for_each_bundle(&|line, n| {
        let start = begin(line, &at);
        for i in 0..length {
            for next in 0..n {
                let index = read(start + next * at[last], i);
                if index as u64 >= size {
                    let _: Option<()> = wrong.note(index);
                }
            }
        }
    });
    wrong.check(|index| places.error(op, index))?;
    for_each_bundle(&|line, n| {
        let target_start = begin(line, &to);
        let index_start = begin(line, &at);
        let start = begin(line, &from);
        let step = to[dim];
        let steps = [to[last], at[last], from[last]];
        for i in 0..length {
            let from = values.get().wrapping_add(start + i * from[dim]);
            for next in 0..n {
                let index = read(index_start + next * steps[1], i);
                if index as u64 >= size {
                    continue;
                }
                // SAFETY: these are within the layouts, which are locked; only this thread writes to the line.
                unsafe {
                    let to = target.get().add(target_start + next * steps[0] + index as usize * step).cast::<T>();
                    to.write(combine(to.read(), from.add(next * steps[2]).cast::<T>().read()));
                }
            }
        }
    });
    Ok(())
}

fn put(op: &'static str, target: &Tensor, positions: &Tensor, values: &Tensor, dims: &[usize]) -> Result<()> {
    // The last of several rows for one position wins.
    with_width!(target.dtype(), T => put_rows::<T>(op, target, positions, values, dims, |run, rows| {
        let [.., last] = rows else { return };
        // SAFETY: these are elements of the run.
        (0..run.length).for_each(|i| unsafe { run.to(i).write(run.from(*last, i).read()) });
    }))
}

fn put_add<T: Number>(
    op: &'static str,
    target: &Tensor,
    positions: &Tensor,
    values: &Tensor,
    dims: &[usize],
) -> Result<()> {
    put_rows::<T>(op, target, positions, values, dims, |run, rows| match run.steps {
        // A case for constant strides, so that the loops over neighbours are vectorised.
        [1, 1, _] => add_rows(run, rows, 1, 1),
        [to, from, _] => add_rows(run, rows, to, from),
    })
}

#[inline(always)]
fn add_rows<T: Number>(run: &Run<T>, rows: &[[i64; 2]], to_step: usize, from_step: usize) {
    const LANES: usize = 64;
    for start in (0..run.length).step_by(LANES) {
        let mut sums = [T::Sum::ZERO; LANES];
        let sums = &mut sums[..LANES.min(run.length - start)];
        let to = run.to(start);
        // SAFETY: these are elements of the run, here and below.
        sums.iter_mut().enumerate().for_each(|(i, sum)| *sum = unsafe { to.add(i * to_step).read() }.widen());
        for row in rows {
            let from = run.from(*row, start);
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                *sum = sum.plus(unsafe { from.add(i * from_step).read() }.widen());
            }
        }
        // SAFETY: as above.
        sums.iter().enumerate().for_each(|(i, sum)| unsafe { to.add(i * to_step).write(T::narrow(*sum)) });
    }
}

/// Some neighbouring elements of the target, and of the first row of the values.
struct Run<T> {
    to: *mut T,
    from: *const T,
    /// The distances in elements of neighbours in the target, of neighbours in the values, and of rows.
    steps: [usize; 3],
    length: usize,
}

impl<T> Run<T> {
    #[inline(always)]
    fn to(&self, i: usize) -> *mut T {
        self.to.wrapping_add(i * self.steps[0])
    }

    #[inline(always)]
    fn from(&self, [_, row]: [i64; 2], i: usize) -> *const T {
        self.from.wrapping_add(i * self.steps[1] + row as usize * self.steps[2])
    }
}

/// Calls `write` with every run of the target that is written, and with the (position, row) pairs that are written
/// there.
fn put_rows<T: Copy>(
    op: &'static str,
    target: &Tensor,
    positions: &Tensor,
    values: &Tensor,
    dims: &[usize],
    write: impl Fn(&Run<T>, &[[i64; 2]]) + Sync,
) -> Result<()> {
    check_apart(op, target, &[values])?;
    let places = Places::new(target.layout(), dims, 1);
    let order = in_order(op, positions, &places)?;
    let mut access = Access::new(op, &[target], &[values, &order])?;
    let others = (0..target.rank()).filter(|dim| !dims.contains(dim)).map(|dim| target.strides()[dim]);
    let rest = merged(&values.sizes()[1..], &others.collect::<Vec<_>>(), &values.strides()[1..]);
    let ((length, steps), outer) = rest.split_last().map_or(((1, [0; 2]), &[][..]), |(last, outer)| (*last, outer));
    let runs: usize = outer.iter().map(|(size, _)| size).product();
    let to = SharedPointer(access.write_ptr(0).cast::<T>());
    let from = SharedPointer(access.read_ptr(0).cast::<T>().cast_mut());
    let (order, _) = access.slice::<i64>(1)?.as_chunks::<2>();
    let steps = [steps[0], steps[1], values.strides()[0]];
    threads::for_each_range(order.len(), GRAIN / (runs * length).max(1), |range| {
        // The part before writes the position that began there.
        let begun =
            order[range.clone()].iter().take_while(|[place, _]| range.start > 0 && *place == order[range.start - 1][0]);
        let mut at = range.start + begun.count();
        while at < range.end {
            let [index, _] = order[at];
            let rows = &order[at..];
            let rows = &rows[..rows.partition_point(|[other, _]| *other == index)];
            at += rows.len();
            let Some(place) = places.find(index) else { continue };
            crate::vectorized(
                #[inline(always)]
                || {
                    for run in 0..runs {
                        let mut rest = run;
                        let mut start = [place, 0];
                        for (size, steps) in outer.iter().rev() {
                            start = [start[0] + rest % size * steps[0], start[1] + rest % size * steps[1]];
                            rest /= size;
                        }
                        let to = to.get().wrapping_add(start[0]);
                        let from = from.get().wrapping_add(start[1]);
                        write(&Run { to, from, steps, length }, rows);
                    }
                },
            );
        }
    });
    Ok(())
}

/// Returns pairs of a position and its number, the smallest position first.
fn in_order(op: &'static str, positions: &Tensor, places: &Places) -> Result<Tensor> {
    let order = scratch(|| Tensor::empty(&[positions.numel(), 2], DType::I64, Device::CPU))?;
    let mut access = Access::new(op, &[&order], &[positions])?;
    let (positions, pairs) = access.slices::<i64, i64>(0, 0)?;
    let (pairs, _) = pairs.as_chunks_mut::<2>();
    for (row, (pair, position)) in pairs.iter_mut().zip(positions).enumerate() {
        places.find(*position).ok_or_else(|| places.error(op, *position))?;
        *pair = [*position, row as i64];
    }
    pairs.sort_unstable();
    drop(access);
    Ok(order)
}

/// Returns the dimensions with their strides in two layouts, and merges dimensions that are one in both.
fn merged(sizes: &[usize], left: &[usize], right: &[usize]) -> Vec<(usize, [usize; 2])> {
    let mut merged: Vec<(usize, [usize; 2])> = Vec::with_capacity(sizes.len());
    for ((size, left), right) in sizes.iter().zip(left).zip(right) {
        match merged.last_mut() {
            Some((outer, strides)) if *strides == [left * size, right * size] => {
                *outer *= size;
                *strides = [*left, *right];
            }
            _ => merged.push((*size, [*left, *right])),
        }
    }
    merged
}

/// Checks that the elements of `target` do not share memory with each other or with the inputs.
pub(crate) fn check_apart(op: &'static str, target: &Tensor, inputs: &[&Tensor]) -> Result<()> {
    let reason = if target.layout().overlap() == Overlap::Yes {
        format!("more than one element of sizes {:?}, which are written, is at one place", target.sizes())
    } else if let Some(input) = inputs.iter().find(|input| overlap(target, input)) {
        format!("what is written, of sizes {:?}, overlaps an input of sizes {:?}", target.sizes(), input.sizes())
    } else {
        return Ok(());
    };
    Err(TensorError::Overlap { op, reason })
}

/// Returns the distances of neighbours in bytes.
fn byte_strides(tensor: &Tensor) -> Vec<usize> {
    tensor.strides().iter().map(|stride| stride * tensor.dtype().size()).collect()
}
