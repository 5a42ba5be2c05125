//! Kernels of index arithmetic: the indices of true elements, flat indices, coordinates, and triangles of matrices.

use tenure_device::cuda::{KernelName, LaunchConfig};

use super::elementwise::{self, Expression};
use super::iteration_space::{linear, unit, unit_type};
use super::queue::{self, Queue};
use super::{async_errors, on_cpu};
use crate::cpu;
use crate::cpu::index::{Coordinate, Nonzero, Position, Triangle};
use crate::kernel::on_cuda;
use crate::{Access, DType, DeviceKind, Elementwise, Entry, Result, Scalar, Tensor};

pub(crate) const NONZERO: &[Entry<Nonzero>] = &[(DeviceKind::Cuda, DType::Bool, nonzero)];
pub(crate) const POSITION: &[Entry<Position>] = &[(DeviceKind::Cuda, DType::I64, position)];
pub(crate) const COORDINATE: &[Entry<Coordinate>] = &[(DeviceKind::Cuda, DType::I64, coordinate)];
pub(crate) const TRIANGLE: &[Entry<Triangle>] = on_cuda!(all: triangle);

const TRIANGLE_SOURCE: &str = include_str!("source/triangle.cu");
const NONZERO_SOURCE: &str = include_str!("source/nonzero.cu");
pub(super) const BEFORE: &str = include_str!("source/before.cu");

fn position(iter: &Elementwise<'_>, size: usize, dim: usize) -> Result<()> {
    static EXPRESSION: Expression = Expression {
        name: "position",
        lanes: &["T", "T", "T"],
        values: &["a * n0 + (b < -n0 || b >= n0 ? (report(fault, code, b, n1, n0), (T)0) : b < 0 ? b + n0 : b)"],
        fault: Some(async_errors::INDEX),
    };
    let numbers = [size, dim].map(|number| Scalar::Int(number as i64));
    elementwise::run(iter, DType::I64, &EXPRESSION, &numbers, move |iter| {
        on_cpu(iter.op(), &[cpu::index::POSITION], DType::I64)?(iter, size, dim)
    })
}

fn coordinate(iter: &Elementwise<'_>, stride: usize, size: usize) -> Result<()> {
    static EXPRESSION: Expression =
        Expression { name: "coordinate", lanes: &["T", "T"], values: &["a / n0 % n1"], fault: None };
    let numbers = [stride, size].map(|number| Scalar::Int(number as i64));
    elementwise::run(iter, DType::I64, &EXPRESSION, &numbers, move |iter| {
        on_cpu(iter.op(), &[cpu::index::COORDINATE], DType::I64)?(iter, stride, size)
    })
}

/// The number of bytes of a mask that one block reads.
const BLOCK_BYTES: usize = 4096;

/// Returns the flat indices of the true elements of `mask`. Waits for the device once, for their number, which is the
/// output's size.
fn nonzero(mask: &Tensor) -> Result<Tensor> {
    let device = mask.device();
    let count = mask.numel();
    if count == 0 {
        return Tensor::empty(&[0], DType::I64, device);
    }
    let blocks = count.div_ceil(BLOCK_BYTES);
    let found = Tensor::empty(&[blocks + 1], DType::I64, device)?;

    let mut access = Access::new("nonzero", &[&found], &[mask])?;
    let words = [access.read_ptr(0).addr(), count, access.write_ptr(0).addr(), blocks, 0].map(|word| word as u64);
    queue::submit(
        &access,
        |queue: &mut Queue| {
            launch_nonzero(queue, "nonzero_count", blocks, 256, words)?;
            launch_nonzero(queue, "nonzero_scan", 1, 1024, words)
        },
        |writes, reads| {
            let mut access = Access::new("nonzero", &[&writes[0]], &[&reads[0]])?;
            let (mask, found) = access.slices::<bool, i64>(0, 0)?;
            let mut sum = 0;
            for (block, found) in found.iter_mut().enumerate() {
                *found = sum;
                sum += mask.iter().skip(block * BLOCK_BYTES).take(BLOCK_BYTES).filter(|is_set| **is_set).count() as i64;
            }
            Ok(())
        },
    )?;
    drop(access);
    let total = found.narrow(0, blocks, 1)?.item::<i64>()?;

    let out = Tensor::empty(&[total as usize], DType::I64, device)?;
    if total == 0 {
        return Ok(out);
    }
    let mut access = Access::new("nonzero", &[&out], &[mask, &found])?;
    let words = [access.read_ptr(0).addr(), count, access.read_ptr(1).addr(), blocks, access.write_ptr(0).addr()];
    queue::submit(
        &access,
        |queue| launch_nonzero(queue, "nonzero", blocks, 256, words.map(|word| word as u64)),
        |writes, reads| writes[0].copy_raw(&on_cpu("nonzero", &[cpu::index::NONZERO], DType::Bool)?(&reads[0])?),
    )?;
    drop(access);
    Ok(out)
}

/// Launches a step of [`nonzero`].
fn launch_nonzero(queue: &Queue, name: &'static str, grid: usize, threads: u32, mut words: [u64; 5]) -> Result<()> {
    queue.launch(
        KernelName { op: name, variant: 0 },
        || format!("#define {}\n{BEFORE}{NONZERO_SOURCE}", name.to_uppercase()),
        LaunchConfig { grid: [grid as u32, 1, 1], block: [threads, 1, 1], shared_bytes: 0 },
        &mut words,
    )
}

/// Copies the elements of `input` on one side of a diagonal, and zeros for the others.
fn triangle(out: &Tensor, input: &Tensor, diagonal: isize, is_lower: bool) -> Result<()> {
    let [.., rows, columns] = out.sizes()[..] else { return Ok(()) };
    if out.numel() == 0 {
        return Ok(());
    }
    let mut access = Access::new("triangle", &[out], &[input])?;
    let to = access.write_ptr(0).addr();
    let from = access.read_ptr(0).addr();
    let dtype = out.dtype();
    let width = unit([to, from, columns * dtype.size()]) / dtype.size();
    let count = out.numel() / width;
    // A diagonal outside the matrix has all elements on one side, so it can be clamped.
    let edge = diagonal.clamp(-(rows as isize) - 1, columns as isize + 1);
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let sizes = [to, from, count, rows, columns / width].map(|word| word as u64);
            let [to, from, count, rows, columns] = sizes;
            let mut words = [to, from, count, rows, columns, edge as u64, u64::from(is_lower)];
            let variant = (width << 8 | dtype.size()) as u64;
            queue.launch(
                KernelName { op: "triangle", variant },
                || {
                    let unit = unit_type(dtype.size());
                    format!("#define V {width}\ntypedef {unit} Unit;\n{TRIANGLE_SOURCE}")
                },
                linear(count as usize),
                &mut words,
            )
        },
        move |writes, reads| {
            on_cpu("triangle", &[cpu::index::TRIANGLE], dtype)?(&writes[0], &reads[0], diagonal, is_lower)
        },
    )
}
