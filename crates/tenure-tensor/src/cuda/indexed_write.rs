//! Indexed writes: the layout, checks and launches that scatter and index_add share.

use smallvec::SmallVec;
use tenure_device::cuda::KernelName;

use super::async_errors;
use super::gather::IndexedPlaces;
use super::iteration_space::{IterationSpace, unit_type};
use super::queue::{self, Queue};
use crate::cpu::scatter::check_apart;
use crate::elementwise::Dims;
use crate::{Access, Result, Tensor, TensorError};

const TEMPLATE: &str = include_str!("source/scatter.cu");

/// A write by index: a target, an index and values. Lines write to separate places; the writes along a line are
/// numbered.
pub(super) struct IndexedWrite<'a> {
    pub(super) op: &'static str,
    pub(super) target: &'a Tensor,
    pub(super) index: &'a Tensor,
    pub(super) values: &'a Tensor,
    pub(super) places: IndexedPlaces,
    pub(super) sizes: Dims,
    /// The dimension along which lines run.
    pub(super) along: usize,
    /// The number of dimensions of the index.
    indexed: usize,
    /// The strides of index, target and values, in bytes; the target's is 0 along lines.
    pub(super) strides: [Dims; 3],
    /// The number of lines, each with its own places.
    lines: usize,
    /// The strides of the line number.
    line_strides: Dims,
}

impl<'a> IndexedWrite<'a> {
    pub(super) fn lines(
        op: &'static str,
        target: &'a Tensor,
        index: &'a Tensor,
        values: &'a Tensor,
        dim: usize,
    ) -> Self {
        let width = target.dtype().size();
        let places = IndexedPlaces::new(target.layout(), &[dim], width);
        let mut to = in_bytes(target.strides(), width);
        to[dim] = 0;
        let sizes = Dims::from_slice(index.sizes());
        let mut line_strides = Dims::from_elem(0, sizes.len());
        let mut lines = 1;
        for other in (0..sizes.len()).rev().filter(|other| *other != dim) {
            line_strides[other] = lines;
            lines *= sizes[other];
        }
        let strides = [in_bytes(index.strides(), size_of::<i64>()), to, in_bytes(values.strides(), width)];
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

    pub(super) fn rows(
        op: &'static str,
        target: &'a Tensor,
        positions: &'a Tensor,
        values: &'a Tensor,
        dims: &[usize],
    ) -> Self {
        let width = target.dtype().size();
        let places = IndexedPlaces::new(target.layout(), dims, width);
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

    /// Describes writes of single elements, one after the other, to any elements of the target.
    pub(super) fn elements(op: &'static str, target: &'a Tensor, index: &'a Tensor, values: &'a Tensor) -> Self {
        let width = target.dtype().size();
        let dims: Dims = (0..target.rank()).collect();
        let places = IndexedPlaces::new(target.layout(), &dims, width);
        let (sizes, one) = (Dims::from_elem(values.numel(), 1), |stride| Dims::from_elem(stride, 1));
        let strides = [one(0), one(0), one(width)];
        let line_strides = one(0);
        Self { op, target, index, values, places, sizes, along: 0, indexed: 1, strides, lines: 1, line_strides }
    }

    /// Returns the space of all writes, with their places in the index, the target, the values and `more`.
    pub(super) fn space(&self, dims: usize, more: &[&Dims]) -> IterationSpace {
        let operands: SmallVec<[&[usize]; 5]> =
            self.strides.iter().chain(more.iter().copied()).map(|strides| &strides[..dims]).collect();
        IterationSpace::new(&self.sizes[..dims], &operands)
    }

    /// Returns the strides of the number of a write along its line.
    pub(super) fn numbers(&self) -> Dims {
        let mut numbers = Dims::from_elem(0, self.sizes.len());
        numbers[self.along] = 1;
        numbers
    }

    /// Locks the tensors. Returns the addresses of the index, the target and the values.
    pub(super) fn access(&self) -> Result<(Access<'a>, [usize; 3])> {
        let device = self.target.device();
        if let Some(other) = [self.index, self.values].iter().find(|other| other.device() != device) {
            return Err(TensorError::Device { op: self.op, left: device, right: other.device() });
        }
        check_apart(self.op, self.target, &[self.index, self.values])?;
        let mut access = Access::new(self.op, &[self.target], &[self.index, self.values])?;
        let starts = [access.read_ptr(0).addr(), access.write_ptr(0).addr(), access.read_ptr(1).addr()];
        Ok((access, starts))
    }

    /// Writes the values. The last of several writes to one place wins.
    pub(super) fn write(
        mut self,
        host: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        if self.sizes.contains(&0) {
            return Ok(());
        }
        let (access, starts) = self.access()?;
        let is_once = self.sizes[self.along] == 1;
        if is_once {
            self.line_strides.fill(0);
        }
        let more = [&self.line_strides, &self.numbers()];
        let claims = self.space(self.indexed, &more);
        let mut all = self.space(self.sizes.len(), &more);
        let is_large = all.is_large(self.places.extent());
        let begins = starts[1..].iter().chain(&self.places.strides).copied();
        let unit = all.widen(self.target.dtype().size(), 1..3, begins);
        queue::submit(
            &access,
            |queue: &mut Queue| {
                let fault = queue.fault(async_errors::INDEX)?;
                let owners = match is_once {
                    true => 0,
                    false => queue.workspace(self.lines * self.places.count * if is_large { 8 } else { 4 })?,
                };
                let step = |name: &'static str, space: &IterationSpace, unit: usize| {
                    let mut words: SmallVec<[u64; 64]> = space.words().chain(self.places.words(fault)).collect();
                    words.extend(starts.map(|start| start as u64));
                    words.push(owners);
                    let variant = space.variant(is_large) << 16 | self.places.variant() << 8 | unit as u64;
                    queue.launch(
                        KernelName { op: name, variant },
                        || {
                            let definitions =
                                format!("#define {}\ntypedef {} Unit;\n", name.to_uppercase(), unit_type(unit));
                            [&definitions, &space.source(is_large), &self.places.source(), TEMPLATE].concat()
                        },
                        space.config(),
                        &mut words,
                    )
                };
                if !is_once {
                    step("scatter_clear", &claims, 1)?;
                    step("scatter_claim", &claims, 1)?;
                }
                step("scatter", &all, unit)
            },
            move |writes, reads| host(&writes[0], &reads[0], &reads[1]),
        )
    }
}

/// Returns the distances of neighbours in bytes.
fn in_bytes(strides: &[usize], width: usize) -> Dims {
    strides.iter().map(|stride| stride * width).collect()
}
