//! Sorting of elements.

use tenure_device::cuda::KernelName;

use super::iteration_space::linear;
use super::on_cpu;
use super::queue::{self, Queue};
use super::radix::{self, SortRows, Source};
use crate::autograd::no_grad;
use crate::cpu;
use crate::cpu::sort::Order;
use crate::kernel::on_cuda;
use crate::ops::sort::sort_keys;
use crate::{Access, Entry, Result, Tensor};

pub(crate) const ORDER: &[Entry<Order>] = on_cuda!(all: order);

const RANK: &str = include_str!("source/rank.cu");

/// The row length up to which rows are sorted by comparing all pairs of elements.
const SHORT: usize = 256;

/// Sorts whole rows, whatever the count.
fn order(out: &Tensor, input: &Tensor, count: usize, descending: bool) -> Result<()> {
    if out.numel() == 0 {
        return Ok(());
    }
    let mut access = Access::new("sort", &[out], &[input])?;
    let to = access.write_ptr(0).addr() as u64;
    let from = access.read_ptr(0).addr() as u64;
    let length = input.sizes().last().copied().unwrap_or(1);
    let dtype = input.dtype();
    let source = Source::Elements { dtype, descending };
    let launch = |queue: &mut Queue| {
        if length > SHORT {
            let rows = SortRows { from, rows: out.numel() / length, length };
            return radix::sort(queue, source, rows, Some(to)).map(drop);
        }
        let mut words = [to, from, out.numel() as u64, length as u64];
        let name = KernelName { op: "rank", variant: source.variant() };
        queue.launch(name, || source.definitions() + RANK, linear(out.numel()), &mut words)
    };
    queue::submit(&access, launch, move |writes, reads| {
        let keys = no_grad(|| sort_keys(&reads[0]))?;
        on_cpu("sort", &cpu::sort::ORDER, keys.dtype())?(&writes[0], &keys, count, descending)
    })
}
