//! Kernels that write and add elements by index.

use super::index_add;
use super::indexed_write::IndexedWrite;
use super::on_cpu;
use crate::autograd::no_grad;
use crate::cpu;
use crate::cpu::scatter::{Put, Scatter};
use crate::elementwise::Dims;
use crate::kernel::on_cuda;
use crate::{Entry, Result, Tensor};

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
        return index_add::add_unsorted(IndexedWrite::lines(op, target, index, values, dim), host);
    }
    let values = no_grad(|| values.contiguous())?;
    index_add::add_sorted(IndexedWrite::elements(op, target, index, &values), Some(dim), host)
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
    if positions.numel() <= FEW { index_add::add_unsorted(rows, host) } else { index_add::add_sorted(rows, None, host) }
}
