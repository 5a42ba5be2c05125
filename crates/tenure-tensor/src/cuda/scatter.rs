//! Kernels that write and add elements by index. All additions to one place happen in the order of the index, on one
//! thread or block.

use smallvec::SmallVec;
use tenure_device::cuda::{KernelName, LaunchConfig};

use super::gather::IndexedPlaces;
use super::indexed_write::IndexedWrite;
use super::iteration_space::IterationSpace;
use super::queue::{self, Queue};
use super::sort::{SortRows, Sorted, Source, key_type, number_bytes, radix_sort};
use super::{async_errors, computed, on_cpu, stored};
use crate::autograd::no_grad;
use crate::cpu;
use crate::cpu::scatter::{Put, Scatter};
use crate::elementwise::Dims;
use crate::kernel::on_cuda;
use crate::{DType, Entry, Layout, Result, Tensor};

pub(crate) const SCATTER: &[Entry<Scatter>] = on_cuda!(all: scatter);
pub(crate) const SCATTER_ADD: &[Entry<Scatter>] = on_cuda!(numbers: scatter_add);
pub(crate) const PUT: &[Entry<Put>] = on_cuda!(all: put);
pub(crate) const PUT_ADD: &[Entry<Put>] = on_cuda!(numbers: put_add);

/// The length up to which the additions to a line are grouped by comparing all pairs.
const FEW: usize = 64;

fn scatter(op: &'static str, target: &Tensor, index: &Tensor, values: &Tensor, dim: usize) -> Result<()> {
    IndexedWrite::lines(op, target, index, values, dim).write(move |target, index, values| {
        on_cpu(op, &[cpu::scatter::SCATTER], target.dtype())?(op, target, index, values, dim)
    })
}

fn scatter_add(op: &'static str, target: &Tensor, index: &Tensor, values: &Tensor, dim: usize) -> Result<()> {
    let host = move |target: &Tensor, index: &Tensor, values: &Tensor| {
        on_cpu(op, &[cpu::scatter::SCATTER_ADD], target.dtype())?(op, target, index, values, dim)
    };
    if index.sizes()[dim] <= FEW {
        return add_unsorted(IndexedWrite::lines(op, target, index, values, dim), host);
    }
    let values = no_grad(|| values.contiguous())?;
    add_sorted(IndexedWrite::elements(op, target, index, &values), Some(dim), host)
}

fn put(op: &'static str, target: &Tensor, positions: &Tensor, values: &Tensor, dims: &[usize]) -> Result<()> {
    let along = Dims::from_slice(dims);
    IndexedWrite::rows(op, target, positions, values, dims).write(move |target, positions, values| {
        on_cpu(op, &[cpu::scatter::PUT], target.dtype())?(op, target, positions, values, &along)
    })
}

fn put_add(op: &'static str, target: &Tensor, positions: &Tensor, values: &Tensor, dims: &[usize]) -> Result<()> {
    let along = Dims::from_slice(dims);
    let host = move |target: &Tensor, positions: &Tensor, values: &Tensor| {
        on_cpu(op, &[cpu::scatter::PUT_ADD], target.dtype())?(op, target, positions, values, &along)
    };
    let rows = IndexedWrite::rows(op, target, positions, values, dims);
    if positions.numel() <= FEW { add_unsorted(rows, host) } else { add_sorted(rows, None, host) }
}

const UNSORTED: &str = include_str!("source/add.cu");
const SORTED: &str = include_str!("source/add_runs.cu");
const SUMS: &str = include_str!("source/sums.cu");
const KEYS: &str = include_str!("source/positions.cu");

/// The number of additions to one place up to which one thread does them all.
const LONG: usize = 32;
const THREADS: usize = 256;

/// Adds short lines: for each place, the thread of the first addition looks for the others.
fn add_unsorted(
    write: IndexedWrite<'_>,
    host: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    if write.sizes.contains(&0) {
        return Ok(());
    }
    let (access, starts) = write.access()?;
    let dtype = write.target.dtype();
    let places = &write.places;
    let mut all = write.space(write.sizes.len(), &[&write.numbers()]);
    let is_large = all.is_large(places.extent());
    let [index, _, values] = write.strides.each_ref().map(|strides| strides[write.along]);
    let begins = starts[1..].iter().chain(&places.strides).copied();
    let unit = all.widen(dtype.size(), 1..3, begins.chain([values]));
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let mut words: SmallVec<[u64; 64]> =
                all.words().chain(places.words(queue.fault(async_errors::INDEX)?)).collect();
            words.extend(starts.map(|start| start as u64));
            words.extend([write.sizes[write.along], values, index].map(|word| word as u64));
            let shape = all.variant(is_large) << 16 | places.variant() << 8 | unit as u64;
            queue.launch(
                KernelName { op: "index_add", variant: shape << 4 | dtype as u64 },
                || [&sums(dtype, unit), &all.source(is_large), &places.source(), UNSORTED].concat(),
                all.config(),
                &mut words,
            )
        },
        move |writes, reads| host(&writes[0], &reads[0], &reads[1]),
    )
}

/// Adds after sorting positions, so that the additions to one place are one run. `dim` is given if the index is along
/// that dimension and has the values' sizes; positions then count all elements.
fn add_sorted(
    write: IndexedWrite<'_>,
    dim: Option<usize>,
    host: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    if write.sizes.contains(&0) {
        return Ok(());
    }
    let (access, starts) = write.access()?;
    let [index, target, values] = starts.map(|start| start as u64);
    let dtype = write.target.dtype();
    let places = &write.places;
    let length = write.sizes[0];
    let [_, to, from] = &write.strides;
    let value_step = from[0];
    let mut within = from.clone();
    within[0] = 0;
    // The runs' numbers come first, so that the threads of a row are neighbours.
    let mut all = IterationSpace::new(&write.sizes, &[&write.numbers(), to, &within]);
    let is_large = all.is_large(places.extent().max(length * value_step));
    let begins = starts[1..].iter().chain(&places.strides).copied();
    let unit = all.widen(dtype.size(), 1..3, begins.chain([value_step]));
    let units = all.count() / length;
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let rows = SortRows { from: index, rows: 1, length };
            let fault = queue.fault(async_errors::INDEX)?;
            let (source, rows, positions) = match dim {
                None => (Source::Positions { limit: places.count }, rows, index),
                Some(dim) => {
                    let source = Source::Keys { limit: places.count };
                    let keys = positions(queue, &write, dim, source, index, fault)?;
                    (source, SortRows { from: keys, ..rows }, 0)
                }
            };
            let Sorted { keys, numbers } = radix_sort(queue, source, rows, None)?;
            let mut words: SmallVec<[u64; 64]> = all.words().chain(places.words(fault)).collect();
            words.extend([target, values, keys, numbers, positions]);
            words.extend([length, value_step, units].map(|word| word as u64));
            let shape = all.variant(is_large) << 16 | places.variant() << 8 | unit as u64;
            let key_bytes = source.key_bytes();
            let number_bytes = number_bytes(length);
            // Neighbouring threads of a long run: each takes units of a row, if a row has several.
            let lanes = if units == 1 { 1 } else { 32 };
            let kinds = [key_bytes == 8, number_bytes == 8, lanes == 1];
            let variant = kinds.into_iter().fold(shape << 4 | dtype as u64, |bits, kind| bits << 1 | u64::from(kind));
            let step = |name: &'static str, config: LaunchConfig| {
                queue.launch(
                    KernelName { op: name, variant },
                    || {
                        let key = key_type(key_bytes);
                        let number = key_type(number_bytes);
                        let definitions = format!(
                            "#define {}\n#define LONG {LONG}\n#define LANES {lanes}\ntypedef {key} Key;\n\
                         typedef {number} Number;\n",
                            name.to_uppercase()
                        );
                        [&definitions, &sums(dtype, unit), &all.source(is_large), &places.source(), SORTED].concat()
                    },
                    config,
                    &mut words.clone(),
                )
            };
            step("add_runs", all.config())?;
            if length <= LONG {
                return Ok(());
            }
            let blocks = length.div_ceil(LONG) * units.div_ceil(lanes);
            let config = LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS as u32, 1, 1], shared_bytes: 0 };
            step("add_long_runs", config)
        },
        move |writes, reads| host(&writes[0], &reads[0], &reads[1]),
    )
}

/// Writes, for each element of the index in order, the number of the target's element that it names. Returns the
/// address of the numbers.
fn positions(
    queue: &mut Queue,
    write: &IndexedWrite<'_>,
    dim: usize,
    source: Source,
    start: u64,
    fault: [u64; 2],
) -> Result<u64> {
    let index = write.index;
    let target = write.target;
    let bytes: Dims = index.strides().iter().map(|stride| stride * size_of::<i64>()).collect();
    let rows = Layout::contiguous(index.sizes())?;
    let elements = Layout::contiguous(target.sizes())?;
    let places = IndexedPlaces::new(&elements, &[dim], 1);
    let mut lines = Dims::from_slice(elements.strides());
    lines[dim] = 0;
    let space = IterationSpace::new(index.sizes(), &[rows.strides(), &bytes, &lines]);
    let is_large = space.is_large(target.numel());
    let keys = queue.workspace(index.numel() * source.key_bytes())?;
    let mut words: SmallVec<[u64; 64]> = space.words().chain(places.words(fault)).collect();
    words.extend([keys, start, target.numel() as u64]);
    let variant = space.variant(is_large) << 4 | source.key_bytes() as u64;
    queue.launch(
        KernelName { op: "scatter_positions", variant },
        || {
            let key = key_type(source.key_bytes());
            [&format!("typedef {key} Key;\n"), &space.source(is_large), &places.source(), KEYS].concat()
        },
        space.config(),
        &mut words,
    )?;
    Ok(keys)
}

/// Returns the source of a thread's sums: as many elements as a unit has.
fn sums(dtype: DType, unit: usize) -> String {
    let stored = stored(dtype);
    let computed = computed(dtype);
    let width = unit / dtype.size();
    format!("#define V {width}\ntypedef {stored} T;\ntypedef {computed} C;\n{SUMS}")
}
