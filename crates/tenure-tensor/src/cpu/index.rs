//! Index arithmetic: true elements, positions and coordinates of elements, and triangles of matrices.

use super::elementwise;
use super::gather::Wrong;
use super::shared_memory::SharedPointer;
use crate::kernel::on_cpu;
use crate::{Access, DType, Device, DeviceKind, Elementwise, Entry, Result, Tensor, TensorError, threads};

/// A kernel that returns the numbers of the true elements of a contiguous `bool` tensor.
pub(crate) type Nonzero = fn(&Tensor) -> Result<Tensor>;
/// A kernel that extends a position by one dimension: `out = before * size + index`, all `int64`. Negative indices
/// count from the end. The last two arguments are the size and the dimension's number, which errors name.
pub(crate) type Position = fn(&Elementwise<'_>, usize, usize) -> Result<()>;
/// A kernel that turns positions into indices along a dimension, with the arguments stride (positions between
/// neighbours) and size.
pub(crate) type Coordinate = fn(&Elementwise<'_>, usize, usize) -> Result<()>;
/// A kernel that copies the elements of matrices at and below a diagonal (`true`), or at and above it (`false`), and
/// writes zeros elsewhere. Both tensors are contiguous.
pub(crate) type Triangle = fn(&Tensor, &Tensor, isize, bool) -> Result<()>;

pub(crate) const NONZERO: &[Entry<Nonzero>] = &[(DeviceKind::Cpu, DType::Bool, nonzero)];
pub(crate) const POSITION: &[Entry<Position>] = &[(DeviceKind::Cpu, DType::I64, position)];
pub(crate) const COORDINATE: &[Entry<Coordinate>] = &[(DeviceKind::Cpu, DType::I64, coordinate)];
pub(crate) const TRIANGLE: &[Entry<Triangle>] = on_cpu!(all: triangle);

fn nonzero(mask: &Tensor) -> Result<Tensor> {
    let access = Access::new("nonzero", &[], &[mask])?;
    let mask = access.slice::<bool>(0)?;
    let count = mask.iter().filter(|is_set| **is_set).count();
    let out = Tensor::empty(&[count], DType::I64, Device::CPU)?;
    let set = mask.iter().enumerate().filter(|(_, is_set)| **is_set);
    Access::new("nonzero", &[&out], &[])?.slice_mut::<i64>(0)?.iter_mut().zip(set).for_each(|(to, (at, _))| {
        *to = at as i64;
    });
    Ok(out)
}

fn position(iter: &Elementwise<'_>, size: usize, dim: usize) -> Result<()> {
    let wrong = Wrong::default();
    elementwise::binary(iter, |before: i64, index: i64| {
        let wrapped = if index < 0 { index + size as i64 } else { index };
        if (0..size as i64).contains(&wrapped) {
            return before * size as i64 + wrapped;
        }
        wrong.note(index).unwrap_or(0)
    });
    wrong.check(|index| TensorError::Index { op: iter.op(), index, dim, size })
}

fn coordinate(iter: &Elementwise<'_>, stride: usize, size: usize) -> Result<()> {
    elementwise::unary(iter, |position: i64| (position as usize / stride.max(1) % size.max(1)) as i64);
    Ok(())
}

fn triangle(out: &Tensor, input: &Tensor, diagonal: isize, is_lower: bool) -> Result<()> {
    let [.., rows, columns] = out.sizes()[..] else { return Ok(()) };
    let mut access = Access::new("triangle", &[out], &[input])?;
    let width = out.dtype().size();
    let to = SharedPointer(access.write_ptr(0));
    let from = SharedPointer(access.read_ptr(0).cast_mut());
    let lines = out.numel() / columns.max(1);
    threads::for_each_range(lines, (16 * 1024) / columns.max(1), |range| {
        for line in range {
            // The edge is the first column above the diagonal, or the one at it.
            let row = (line % rows) as isize;
            let edge = row.saturating_add(diagonal).saturating_add(isize::from(is_lower));
            let edge = edge.clamp(0, columns as isize) as usize * width;
            let (kept, zero) =
                if is_lower { (0..edge, edge..columns * width) } else { (edge..columns * width, 0..edge) };
            let to = to.get().wrapping_add(line * columns * width);
            let from = from.get().wrapping_add(line * columns * width);
            // SAFETY: these are lines of contiguous tensors of the same sizes and dtype, which do not overlap; zero is
            // zero bytes in every dtype.
            unsafe {
                from.add(kept.start).copy_to_nonoverlapping(to.add(kept.start), kept.len());
                to.add(zero.start).write_bytes(0, zero.len());
            }
        }
    });
    Ok(())
}
