//! Reversal of dimensions.

use tenure_device::cuda::KernelName;

use super::iteration_space::{linear, unit, unit_type};
use super::on_cpu;
use super::queue::{self, Queue};
use crate::cpu;
use crate::cpu::flip::Flip;
use crate::kernel::on_cuda;
use crate::{Access, Entry, Result, Tensor};

pub(crate) const FLIP: &[Entry<Flip>] = on_cuda!(all: flip);

const TEMPLATE: &str = include_str!("source/flip.cu");

fn flip(out: &Tensor, input: &Tensor, dim: usize) -> Result<()> {
    if out.numel() == 0 {
        return Ok(());
    }
    let mut access = Access::new("flip", &[out], &[input])?;
    let to = access.write_ptr(0).addr();
    let from = access.read_ptr(0).addr();
    let dtype = out.dtype();
    let length = out.sizes()[dim];
    // Blocks keep the order of their elements.
    let block = out.sizes()[dim + 1..].iter().product::<usize>() * dtype.size();
    let unit = unit([to, from, block]);
    let count = out.numel() * dtype.size() / unit;
    let launch = |queue: &mut Queue| {
        let mut words = [to, from, count, length, block / unit].map(|word| word as u64);
        queue.launch(
            KernelName { op: "flip", variant: unit as u64 },
            || format!("typedef {} Unit;\n{TEMPLATE}", unit_type(unit)),
            linear(count),
            &mut words,
        )
    };
    queue::submit(&access, launch, move |writes, reads| {
        on_cpu("flip", &[cpu::flip::FLIP], dtype)?(&writes[0], &reads[0], dim)
    })
}
