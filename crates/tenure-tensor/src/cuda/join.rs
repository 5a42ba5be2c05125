//! Concatenation of tensors, and reversal of dimensions.

use smallvec::SmallVec;
use tenure_device::cuda::{KernelName, LaunchConfig};

use super::iteration_space::{is_large, linear, unit, unit_type};
use super::on_cpu;
use super::queue::{self, Queue};
use crate::cpu;
use crate::cpu::join::{Flip, Join};
use crate::kernel::on_cuda;
use crate::{Access, Entry, Result, Tensor};

pub(crate) const JOIN: &[Entry<Join>] = on_cuda!(all: join);

const JOIN_SOURCE: &str = include_str!("source/join.cu");

/// The largest number of parts that are copied at once.
const MOST: usize = 64;

/// Copies all parts at once, if each is laid out in memory like its place except for the distance of rows; else one by
/// one.
fn join(out: &Tensor, dim: usize, parts: &[&Tensor]) -> Result<()> {
    let parts: SmallVec<[&Tensor; 8]> = parts.iter().copied().filter(|part| part.numel() > 0).collect();
    if parts.is_empty() || parts.len() > MOST || !parts.iter().all(|part| lies_as(part, out, dim)) {
        return cpu::join::join(out, dim, &parts);
    }
    let mut access = Access::new("cat", &[out], &parts)?;
    let size = out.dtype().size();
    let bytes = |tensor: &Tensor| tensor.sizes()[dim] * out.strides()[dim] * size;
    let to = access.write_ptr(0).addr();
    let from: SmallVec<[usize; 8]> = (0..parts.len()).map(|part| access.read_ptr(part).addr()).collect();
    // In all tensors, rows must begin and end at units.
    let unit = unit(parts.iter().map(|part| bytes(part)).chain(from.iter().copied()).chain([to]));
    let count = out.numel() * size / unit;
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let mut words: SmallVec<[u64; 64]> = SmallVec::new();
            words.extend([to, count, bytes(out) / unit, parts.len()].map(|word| word as u64));
            let mut start = 0;
            for (part, from) in parts.iter().zip(&from) {
                let length = bytes(part) / unit;
                words.extend([*from, start, length].map(|word| word as u64));
                start += length;
            }
            words.resize(4 + 3 * MOST, 0);
            let is_large = is_large(count);
            let name = KernelName { op: "cat", variant: (unit as u64) << 1 | u64::from(is_large) };
            let config: LaunchConfig = linear(count);
            queue.launch(
                name,
                || {
                    let unit = unit_type(unit);
                    let index = if is_large { "u64" } else { "u32" };
                    format!("#define MOST {MOST}\ntypedef {unit} Unit;\ntypedef {index} Index;\n{JOIN_SOURCE}")
                },
                config,
                &mut words,
            )
        },
        move |writes, reads| cpu::join::join(&writes[0], dim, &reads.iter().collect::<Vec<_>>()),
    )
}

/// Returns whether a part is dense, with its dimensions in memory in the output's order.
fn lies_as(part: &Tensor, out: &Tensor, dim: usize) -> bool {
    let along = out.strides()[dim];
    let length = out.sizes()[dim];
    let mut strides = out.strides().iter().zip(part.strides()).zip(part.sizes());
    part.dtype() == out.dtype()
        && strides.all(|((whole, stride), size)| {
            *size == 1 || *stride == if *whole > along { whole / length * part.sizes()[dim] } else { *whole }
        })
}

pub(crate) const FLIP: &[Entry<Flip>] = on_cuda!(all: flip);

const FLIP_SOURCE: &str = include_str!("source/flip.cu");

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
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let mut words = [to, from, count, length, block / unit].map(|word| word as u64);
            queue.launch(
                KernelName { op: "flip", variant: unit as u64 },
                || format!("typedef {} Unit;\n{FLIP_SOURCE}", unit_type(unit)),
                linear(count),
                &mut words,
            )
        },
        move |writes, reads| on_cpu("flip", &[cpu::join::FLIP], dtype)?(&writes[0], &reads[0], dim),
    )
}
