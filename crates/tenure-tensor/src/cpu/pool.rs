//! Pooling: each window of an image becomes one pixel.

use super::{in_f32, widened};
use crate::geometry::{Taps, Windows};
use crate::kernel::on_cpu;
use crate::{Access, DType, Element, Entry, Float, Number, Result, Tensor, threads};

/// A kernel that writes the largest element of each window, and its number within the window. All tensors are
/// contiguous.
pub(crate) type MaxPool = fn(&Tensor, &Tensor, &Tensor, &Taps) -> Result<()>;

/// A kernel that, given the numbers of the largest elements, reads them from a larger image, or writes a larger image
/// that has the given pixels there and zeros elsewhere. All tensors are contiguous.
pub(crate) type Chosen = fn(&Tensor, &Tensor, &Tensor, &Taps) -> Result<()>;

/// A kernel that writes the mean of each window, or spreads pixels over their windows. All tensors are contiguous.
pub(crate) type AvgPool = fn(&Tensor, &Tensor, &Windows) -> Result<()>;

pub(crate) const MAX_POOL: &[Entry<MaxPool>] = on_cpu!(@ max_pool: (F32 f32) (F64 f64));
pub(crate) const MAX_POOL_HALVES: &[Entry<MaxPool>] = on_cpu!(@ max_pool_halves, (F16 BF16));
pub(crate) const PICK: &[Entry<Chosen>] = on_cpu!(@ pick: (F32 f32) (F64 f64));
pub(crate) const PICK_HALVES: &[Entry<Chosen>] = on_cpu!(@ pick_halves, (F16 BF16));
pub(crate) const PUT: &[Entry<Chosen>] = on_cpu!(@ put: (F32 f32) (F64 f64));
pub(crate) const PUT_HALVES: &[Entry<Chosen>] = on_cpu!(@ put_halves, (F16 BF16));
pub(crate) const AVG_POOL: &[Entry<AvgPool>] = on_cpu!(@ avg_pool: (F32 f32) (F64 f64));
pub(crate) const AVG_POOL_HALVES: &[Entry<AvgPool>] = on_cpu!(@ avg_pool_halves, (F16 BF16));
pub(crate) const SPREAD: &[Entry<AvgPool>] = on_cpu!(@ spread: (F32 f32) (F64 f64));
pub(crate) const SPREAD_HALVES: &[Entry<AvgPool>] = on_cpu!(@ spread_halves, (F16 BF16));

/// The number of elements that are worth waking a thread for.
const GRAIN: usize = 64 * 1024;

/// The type of an element's number within its window: as small as possible.
trait Tap: Element {
    /// The value that stands for no element yet.
    const NONE: Self;
    fn new(number: usize) -> Self;
    fn number(self) -> usize;
}

macro_rules! tap {
    ($($type:ty),*) => {$(
        impl Tap for $type {
            const NONE: Self = Self::MAX;

            #[inline(always)]
            fn new(number: usize) -> Self {
                number as Self
            }

            #[inline(always)]
            fn number(self) -> usize {
                self as usize
            }
        }
    )*};
}
tap!(u8, i32);

fn max_pool<T: Float>(out: &Tensor, taps: &Tensor, input: &Tensor, how: &Taps) -> Result<()> {
    match taps.dtype() {
        DType::U8 => max_pool_with::<T, u8>(out, taps, input, how),
        _ => max_pool_with::<T, i32>(out, taps, input, how),
    }
}

fn max_pool_with<T: Float, I: Tap>(out: &Tensor, taps: &Tensor, input: &Tensor, how: &Taps) -> Result<()> {
    let mut access = Access::new("max_pool", &[taps], &[])?;
    let numbers = Planes::<I>(access.write_ptr(0).cast());
    let ([from, pixels], width) = (how.pixels(), how.target[2]);
    for_each_plane(
        "max_pool",
        [(out, pixels), (input, from)],
        pixels * how.numel(),
        #[inline(always)]
        |plane, out: &mut [T], source| {
            // SAFETY: each plane of the output is taken once.
            let numbers = unsafe { numbers.plane(plane, pixels) };
            for (row, (out, numbers)) in out.chunks_mut(width).zip(numbers.chunks_mut(width)).enumerate() {
                // A dilated window that covers only padding keeps these values.
                out.fill(T::from_scalar(f64::NEG_INFINITY.into()));
                numbers.fill(I::NONE);
                how.for_each_row(
                    row,
                    // Without this, the compiler does not inline the closure, and uses no vectors.
                    #[inline(always)]
                    |number, first, columns, step| {
                        let number = I::new(number);
                        let out = &mut out[columns.clone()];
                        let numbers = &mut numbers[columns];
                        let better = |value: T, out: &mut T, at: &mut I| {
                            // NaN counts as larger than any number, as in PyTorch.
                            #[allow(clippy::eq_op, reason = "NaN is not equal to itself")]
                            let is_better = (value > *out) | (value != value) | (*at == I::NONE);
                            *out = if is_better { value } else { *out };
                            *at = if is_better { number } else { *at };
                        };
                        let source = &source[first..];
                        match step {
                            1 => out.iter_mut().zip(numbers).zip(source).for_each(|((out, at), x)| better(*x, out, at)),
                            2 => {
                                let pairs = source.chunks(2);
                                out.iter_mut().zip(numbers).zip(pairs).for_each(|((out, at), x)| better(x[0], out, at));
                            }
                            _ => {
                                let steps = source.iter().step_by(step);
                                out.iter_mut().zip(numbers).zip(steps).for_each(|((out, at), x)| better(*x, out, at));
                            }
                        }
                    },
                );
            }
        },
    )
}

fn pick<T: Float>(out: &Tensor, image: &Tensor, taps: &Tensor, how: &Taps) -> Result<()> {
    let access = Access::new("max_pool", &[], &[taps])?;
    let numbers = Numbers::new(&access, taps)?;
    let offsets = how.offsets();
    let [from, pixels] = how.pixels();
    for_each_plane(
        "max_pool",
        [(out, pixels), (image, from)],
        pixels,
        #[inline(always)]
        |plane, out: &mut [T], source| {
            how.for_each_pixel(|pixel, first| {
                let offset = offsets.get(numbers.get(plane * pixels + pixel));
                out[pixel] = offset.map_or(T::ZERO, |offset| source[(first + offset) as usize]);
            });
        },
    )
}

fn put<T: Float>(out: &Tensor, image: &Tensor, taps: &Tensor, how: &Taps) -> Result<()> {
    let access = Access::new("max_pool", &[], &[taps])?;
    let numbers = Numbers::new(&access, taps)?;
    let offsets = how.offsets();
    let [large, pixels] = how.pixels();
    for_each_plane(
        "max_pool",
        [(out, large), (image, pixels)],
        large,
        #[inline(always)]
        |plane, out: &mut [T], source| {
            out.fill(T::ZERO);
            how.for_each_pixel(|pixel, first| {
                if let Some(offset) = offsets.get(numbers.get(plane * pixels + pixel)) {
                    let place = &mut out[(first + offset) as usize];
                    *place = place.plus(source[pixel]);
                }
            });
        },
    )
}

fn avg_pool<T: Float>(out: &Tensor, input: &Tensor, windows: &Windows) -> Result<()> {
    let [large, pixels] = windows.pixels();
    for_each_plane(
        "avg_pool",
        [(out, pixels), (input, large)],
        large,
        #[inline(always)]
        |_, out: &mut [T], source: &[T]| {
            windows.for_each(|pixel, window, count| {
                let mut sum = T::Sum::ZERO;
                for row in windows.rows(window) {
                    sum = source[row].iter().fold(sum, |sum, value| sum.plus(value.widen()));
                }
                out[pixel] = T::narrow(sum / T::Compute::from_scalar((count as f64).into()));
            });
        },
    )
}

fn spread<T: Float>(out: &Tensor, image: &Tensor, windows: &Windows) -> Result<()> {
    let [large, pixels] = windows.pixels();
    for_each_plane(
        "avg_pool",
        [(out, large), (image, pixels)],
        large,
        #[inline(always)]
        |_, out: &mut [T], source: &[T]| {
            out.fill(T::ZERO);
            windows.for_each(|pixel, window, count| {
                let value = source[pixel].widen() / T::Compute::from_scalar((count as f64).into());
                let share = T::narrow(value);
                for row in windows.rows(window) {
                    out[row].iter_mut().for_each(|place| *place = place.plus(share));
                }
            });
        },
    )
}

fn max_pool_halves(out: &Tensor, taps: &Tensor, input: &Tensor, how: &Taps) -> Result<()> {
    in_f32(out, |wide| max_pool::<f32>(wide, taps, &widened(input)?, how))
}

fn pick_halves(out: &Tensor, image: &Tensor, taps: &Tensor, how: &Taps) -> Result<()> {
    in_f32(out, |wide| pick::<f32>(wide, &widened(image)?, taps, how))
}

fn put_halves(out: &Tensor, image: &Tensor, taps: &Tensor, how: &Taps) -> Result<()> {
    in_f32(out, |wide| put::<f32>(wide, &widened(image)?, taps, how))
}

fn avg_pool_halves(out: &Tensor, input: &Tensor, windows: &Windows) -> Result<()> {
    in_f32(out, |wide| avg_pool::<f32>(wide, &widened(input)?, windows))
}

fn spread_halves(out: &Tensor, image: &Tensor, windows: &Windows) -> Result<()> {
    in_f32(out, |wide| spread::<f32>(wide, &widened(image)?, windows))
}

/// Images of one channel, one after the other.
struct Planes<T>(*mut T);

// SAFETY: each plane is taken once.
unsafe impl<T: Send> Sync for Planes<T> {}

impl<T> Planes<T> {
    /// # Safety
    /// The memory must have this plane, and only the caller may use it while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "each is taken once")]
    unsafe fn plane(&self, plane: usize, pixels: usize) -> &mut [T] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(plane * pixels), pixels) }
    }
}

/// The numbers of elements within their windows, of either width.
enum Numbers<'a> {
    Small(&'a [u8]),
    Large(&'a [i32]),
}

impl<'a> Numbers<'a> {
    fn new(access: &'a Access<'_>, taps: &Tensor) -> Result<Self> {
        match taps.dtype() {
            DType::U8 => access.slice(0).map(Self::Small),
            _ => access.slice(0).map(Self::Large),
        }
    }

    #[inline(always)]
    fn get(&self, index: usize) -> usize {
        match self {
            Self::Small(numbers) => numbers[index].number(),
            Self::Large(numbers) => numbers[index].number(),
        }
    }
}

/// Computes each plane of the first tensor from the same plane of the second: `plane(number, to, from)`, about `work`
/// steps each. Each tensor comes with the number of pixels in its planes.
fn for_each_plane<T: Element>(
    op: &'static str,
    [(out, pixels), (image, from)]: [(&Tensor, usize); 2],
    work: usize,
    plane: impl Fn(usize, &mut [T], &[T]) + Sync,
) -> Result<()> {
    let mut access = Access::new(op, &[out], &[image])?;
    let to = Planes::<T>(access.write_ptr(0).cast());
    let source = access.slice::<T>(0)?;
    let planes = out.numel().checked_div(pixels).unwrap_or(0);
    threads::for_each_range(planes, GRAIN.div_ceil(work.max(1)), |planes| {
        super::vectorized!(for number in planes.clone() {
            // SAFETY: each plane of the output is taken once.
            let out = unsafe { to.plane(number, pixels) };
            plane(number, out, &source[number * from..][..from]);
        });
    });
    Ok(())
}
