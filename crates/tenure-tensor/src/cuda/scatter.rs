//! Elements written and added by index.

use smallvec::SmallVec;
use tenure_device::cuda::KernelName;

use super::elementwise::on_cpu;
use super::gather::Places;
use super::queue::{self, Queue};
use super::space::{Space, unit_type};
use super::{computed, late, stored};
use crate::cpu;
use crate::cpu::scatter::{Put, Scatter, check_apart};
use crate::elementwise::Dims;
use crate::kernel::on_cuda;
use crate::{Access, Entry, Result, Tensor, TensorError};

pub(crate) const SCATTER: &[Entry<Scatter>] = on_cuda!(all: scatter);
pub(crate) const SCATTER_ADD: &[Entry<Scatter>] = on_cuda!(numbers: scatter_add);
pub(crate) const PUT: &[Entry<Put>] = on_cuda!(all: put);
pub(crate) const PUT_ADD: &[Entry<Put>] = on_cuda!(numbers: put_add);

const WRITE: &str = include_str!("source/scatter.cu");
const ADD: &str = include_str!("source/add.cu");

fn scatter(op: &'static str, target: &Tensor, index: &Tensor, values: &Tensor, dim: usize) -> Result<()> {
    let host = on_cpu(cpu::scatter::SCATTER, target.dtype());
    let host = move |target: &Tensor, index: &Tensor, values: &Tensor| {
        host.map_or(Ok(()), |host| host(op, target, index, values, dim))
    };
    Written::lines(op, target, index, values, dim).write(host)
}

fn scatter_add(op: &'static str, target: &Tensor, index: &Tensor, values: &Tensor, dim: usize) -> Result<()> {
    let host = on_cpu(cpu::scatter::SCATTER_ADD, target.dtype());
    let host = move |target: &Tensor, index: &Tensor, values: &Tensor| {
        host.map_or(Ok(()), |host| host(op, target, index, values, dim))
    };
    Written::lines(op, target, index, values, dim).add(host)
}

fn put(op: &'static str, target: &Tensor, positions: &Tensor, values: &Tensor, dims: &[usize]) -> Result<()> {
    let (host, along) = (on_cpu(cpu::scatter::PUT, target.dtype()), Dims::from_slice(dims));
    let host = move |target: &Tensor, positions: &Tensor, values: &Tensor| {
        host.map_or(Ok(()), |host| host(op, target, positions, values, &along))
    };
    Written::rows(op, target, positions, values, dims).write(host)
}

fn put_add(op: &'static str, target: &Tensor, positions: &Tensor, values: &Tensor, dims: &[usize]) -> Result<()> {
    let (host, along) = (on_cpu(cpu::scatter::PUT_ADD, target.dtype()), Dims::from_slice(dims));
    let host = move |target: &Tensor, positions: &Tensor, values: &Tensor| {
        host.map_or(Ok(()), |host| host(op, target, positions, values, &along))
    };
    Written::rows(op, target, positions, values, dims).add(host)
}

/// What is written where. Lines are written to places of their own; along a line, what is written is numbered.
struct Written<'a> {
    op: &'static str,
    target: &'a Tensor,
    index: &'a Tensor,
    values: &'a Tensor,
    places: Places,
    sizes: Dims,
    /// The dimension that lines are along.
    along: usize,
    /// How many of the dimensions the index has.
    indexed: usize,
    /// Of index, target and values, in bytes; the target's is 0 along lines.
    strides: [Dims; 3],
    /// How many lines there are that have places of their own.
    lines: usize,
    /// Of the number of a line.
    line_strides: Dims,
}

impl<'a> Written<'a> {
    fn lines(op: &'static str, target: &'a Tensor, index: &'a Tensor, values: &'a Tensor, dim: usize) -> Self {
        let width = target.dtype().size();
        let places = Places::new(target.layout(), &[dim], width);
        let bytes = |strides: &[usize], width: usize| -> Dims { strides.iter().map(|stride| stride * width).collect() };
        let mut to = bytes(target.strides(), width);
        to[dim] = 0;
        let sizes = Dims::from_slice(index.sizes());
        let mut line_strides = Dims::from_elem(0, sizes.len());
        let mut lines = 1;
        for other in (0..sizes.len()).rev().filter(|other| *other != dim) {
            line_strides[other] = lines;
            lines *= sizes[other];
        }
        let strides = [bytes(index.strides(), size_of::<i64>()), to, bytes(values.strides(), width)];
        Self {
            op,
            target,
            index,
            values,
            places,
            along: dim,
            indexed: sizes.len(),
            sizes,
            strides,
            lines,
            line_strides,
        }
    }

    fn rows(op: &'static str, target: &'a Tensor, positions: &'a Tensor, values: &'a Tensor, dims: &[usize]) -> Self {
        let width = target.dtype().size();
        let places = Places::new(target.layout(), dims, width);
        let sizes = Dims::from_slice(values.sizes());
        let mut index = Dims::from_elem(0, sizes.len());
        index[0] = size_of::<i64>();
        let others = (0..target.rank()).filter(|dim| !dims.contains(dim)).map(|dim| target.strides()[dim] * width);
        let to = std::iter::once(0).chain(others).collect();
        let from = values.strides().iter().map(|stride| stride * width).collect();
        let line_strides = Dims::from_elem(0, sizes.len());
        let strides = [index, to, from];
        Self {
            op,
            target,
            index: positions,
            values,
            places,
            sizes,
            along: 0,
            indexed: 1,
            strides,
            lines: 1,
            line_strides,
        }
    }

    /// All that is written, and its place in the index, the target, the values and `more`.
    fn space(&self, dims: usize, more: &[&Dims]) -> Space {
        let operands: SmallVec<[&[usize]; 5]> =
            self.strides.iter().chain(more.iter().copied()).map(|strides| &strides[..dims]).collect();
        Space::new(&self.sizes[..dims], &operands)
    }

    /// The number of what is written, along its line.
    fn numbers(&self) -> Dims {
        let mut numbers = Dims::from_elem(0, self.sizes.len());
        numbers[self.along] = 1;
        numbers
    }

    /// Where the index, the target and the values begin.
    fn access(&self) -> Result<(Access<'a>, [usize; 3])> {
        let device = self.target.device();
        if let Some(other) = [self.index, self.values].iter().find(|other| other.device() != device) {
            return Err(TensorError::Device { op: self.op, left: device, right: other.device() });
        }
        check_apart(self.op, self.target, &[self.index, self.values])?;
        let mut access = Access::new(self.op, &[self.target], &[self.index, self.values])?;
        let starts = [access.read_ptr(0).addr(), access.write_ptr(0).addr(), access.read_ptr(1).addr()];
        Ok((access, starts))
    }

    /// What is written last to a place stays.
    fn write(mut self, host: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<()> + Send + Sync + 'static) -> Result<()> {
        if self.sizes.contains(&0) {
            return Ok(());
        }
        let (access, starts) = self.access()?;
        let is_once = self.sizes[self.along] == 1;
        if is_once {
            self.line_strides.fill(0);
        }
        let more = [&self.line_strides, &self.numbers()];
        let (claims, mut all) = (self.space(self.indexed, &more), self.space(self.sizes.len(), &more));
        let is_large = all.is_large(self.places.extent());
        let begins = starts[1..].iter().chain(&self.places.strides).copied();
        let unit = all.widen(self.target.dtype().size(), 1..3, begins);
        let launch = |queue: &mut Queue| {
            let fault = queue.fault(late::INDEX)?;
            let owners = match is_once {
                true => 0,
                false => queue.workspace(self.lines * self.places.count * if is_large { 8 } else { 4 })?,
            };
            let step = |name: &'static str, space: &Space, unit: usize| {
                let mut words: SmallVec<[u64; 64]> = space.words().chain(self.places.words()).collect();
                words.extend(starts.map(|start| start as u64));
                words.extend([owners, fault[0], fault[1]]);
                let variant = space.variant(is_large) << 16 | self.places.variant() << 8 | unit as u64;
                let source = || {
                    let definitions = format!("#define {}\ntypedef {} Unit;\n", name.to_uppercase(), unit_type(unit));
                    [&definitions, &space.source(is_large), &self.places.source(), WRITE].concat()
                };
                queue.launch(KernelName { op: name, variant }, source, space.config(), &mut words)
            };
            if !is_once {
                step("clear", &claims, 1)?;
                step("claim", &claims, 1)?;
            }
            step("scatter", &all, unit)
        };
        queue::submit(&access, launch, move |writes, reads| host(&writes[0], &reads[0], &reads[1]))
    }

    /// All is added, in the order of the index.
    fn add(self, host: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<()> + Send + Sync + 'static) -> Result<()> {
        if self.sizes.contains(&0) {
            return Ok(());
        }
        let (access, starts) = self.access()?;
        let dtype = self.target.dtype();
        let mut all = self.space(self.sizes.len(), &[&self.numbers()]);
        let is_large = all.is_large(self.places.extent());
        let begins = starts[1..].iter().chain(&self.places.strides).copied();
        let unit = all.widen(dtype.size(), 1..3, begins.chain([self.strides[2][self.along]]));
        let launch = |queue: &mut Queue| {
            let mut words: SmallVec<[u64; 64]> = all.words().chain(self.places.words()).collect();
            words.extend(starts.map(|start| start as u64));
            let [index, _, values] = &self.strides;
            words.extend([self.sizes[self.along], values[self.along], index[self.along]].map(|word| word as u64));
            words.extend(queue.fault(late::INDEX)?);
            let shape = all.variant(is_large) << 16 | self.places.variant() << 8 | unit as u64;
            let variant = shape << 4 | dtype as u64;
            let source = || {
                let (stored, computed, width) = (stored(dtype), computed(dtype), unit / dtype.size());
                let definitions = format!("#define V {width}\ntypedef {stored} T;\ntypedef {computed} C;\n");
                [&definitions, &all.source(is_large), &self.places.source(), ADD].concat()
            };
            queue.launch(KernelName { op: "index_add", variant }, source, all.config(), &mut words)
        };
        queue::submit(&access, launch, move |writes, reads| host(&writes[0], &reads[0], &reads[1]))
    }
}
