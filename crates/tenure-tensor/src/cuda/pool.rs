//! Pooling: each window of an image becomes one pixel. Images are contiguous, or have their channels densest.

use tenure_device::cuda::KernelName;

use super::iteration_space::{is_large, linear, unit};
use super::queue::{self, Queue};
use super::{computed, on_cpu, stored};
use crate::autograd::no_grad;
use crate::cpu::pool::{self as cpu, AvgPool, Chosen, MaxPool};
use crate::geometry::{Rule, Taps, Windows};
use crate::kernel::on_cuda;
use crate::{Access, DType, Entry, MemoryFormat, Result, Tensor};

pub(crate) const MAX_POOL: &[Entry<MaxPool>] = on_cuda!(floats: max_pool);
pub(crate) const PICK: &[Entry<Chosen>] = on_cuda!(floats: pick);
pub(crate) const PUT: &[Entry<Chosen>] = on_cuda!(floats: put);
pub(crate) const AVG_POOL: &[Entry<AvgPool>] = on_cuda!(floats: avg_pool);
pub(crate) const SPREAD: &[Entry<AvgPool>] = on_cuda!(floats: spread);

const TEMPLATE: &str = include_str!("source/pool.cu");

fn max_pool(out: &Tensor, taps: &Tensor, input: &Tensor, how: &Taps) -> Result<()> {
    let with = how.clone();
    let dtype = out.dtype();
    run("max_pool", &[out, taps], &[input], PoolShape::of_taps(how), move |writes, reads| {
        on_cpu("max_pool", &[cpu::MAX_POOL, cpu::MAX_POOL_HALVES], dtype)?(&writes[0], &writes[1], &reads[0], &with)
    })
}

fn pick(out: &Tensor, image: &Tensor, taps: &Tensor, how: &Taps) -> Result<()> {
    let with = how.clone();
    let dtype = out.dtype();
    run("max_pool_pick", &[out], &[image, taps], PoolShape::of_taps(how), move |writes, reads| {
        on_cpu("max_pool_pick", &[cpu::PICK, cpu::PICK_HALVES], dtype)?(&writes[0], &reads[0], &reads[1], &with)
    })
}

fn put(out: &Tensor, image: &Tensor, taps: &Tensor, how: &Taps) -> Result<()> {
    let with = how.clone();
    let dtype = out.dtype();
    run("max_pool_put", &[out], &[image, taps], PoolShape::of_taps(how), move |writes, reads| {
        on_cpu("max_pool_put", &[cpu::PUT, cpu::PUT_HALVES], dtype)?(&writes[0], &reads[0], &reads[1], &with)
    })
}

fn avg_pool(out: &Tensor, input: &Tensor, windows: &Windows) -> Result<()> {
    let with = windows.clone();
    let dtype = out.dtype();
    run("avg_pool", &[out], &[input], PoolShape::of_windows(windows), move |writes, reads| {
        on_cpu("avg_pool", &[cpu::AVG_POOL, cpu::AVG_POOL_HALVES], dtype)?(&writes[0], &reads[0], &with)
    })
}

fn spread(out: &Tensor, image: &Tensor, windows: &Windows) -> Result<()> {
    let with = windows.clone();
    let dtype = out.dtype();
    run("avg_pool_spread", &[out], &[image], PoolShape::of_windows(windows), move |writes, reads| {
        on_cpu("avg_pool_spread", &[cpu::SPREAD, cpu::SPREAD_HALVES], dtype)?(&writes[0], &reads[0], &with)
    })
}

/// The sizes of images and windows.
struct PoolShape {
    source: [usize; 3],
    target: [usize; 3],
    /// The sizes of kernel, stride, padding and dilation.
    how: [[usize; 3]; 4],
    counts_padding: bool,
    /// Whether the windows cover the image evenly.
    is_even: bool,
    format: MemoryFormat,
}

impl PoolShape {
    fn of_taps(taps: &Taps) -> Self {
        let how = [taps.kernel, taps.stride, taps.padding, taps.dilation];
        let source = taps.source;
        let target = taps.target;
        let format = taps.format;
        Self { source, target, how, counts_padding: false, is_even: false, format }
    }

    fn of_windows(windows: &Windows) -> Self {
        let source = windows.source;
        let target = windows.target;
        let format = windows.format;
        match windows.rule {
            Rule::Strided { kernel, stride, padding, counts_padding } => {
                let how = [kernel, stride, padding, [1; 3]];
                Self { source, target, how, counts_padding, is_even: false, format }
            }
            Rule::Even => Self { source, target, how: [[1; 3]; 4], counts_padding: false, is_even: true, format },
        }
    }
}

/// Computes the first written tensor from the first read one. The elements' numbers in their windows, if there are any,
/// are the second written or the second read tensor. A simulated device calls `host` with contiguous tensors.
fn run(
    name: &'static str,
    writes: &[&Tensor],
    reads: &[&Tensor],
    shape: PoolShape,
    host: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let out = writes[0];
    let dtype = writes[0].dtype();
    if out.numel() == 0 {
        return Ok(());
    }
    let mut access = Access::new(name, writes, reads)?;
    let to = access.write_ptr(0).addr();
    let from = access.read_ptr(0).addr();
    let taps = match (writes, reads) {
        ([_, taps], _) => Some((access.write_ptr(1).addr(), taps.dtype())),
        (_, [_, taps]) => Some((access.read_ptr(1).addr(), taps.dtype())),
        _ => None,
    };
    let (taps, tap) = taps.unwrap_or((0, DType::U8));
    let inner = match shape.format {
        MemoryFormat::Contiguous => 1,
        _ => out.sizes()[1],
    };
    let mut width = unit([to, from, inner * dtype.size()]) / dtype.size();
    while !taps.is_multiple_of(width * tap.size()) {
        width /= 2;
    }
    let count = out.numel() / width;
    let largest = out.numel().max(reads[0].numel());
    let sizes = [shape.source, shape.target].into_iter().chain(shape.how);
    // Sums of a few of these sizes must be below 2³¹.
    let is_large = is_large(largest) || sizes.clone().any(|sizes| sizes.iter().any(|size| *size >= 1 << 28));
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let mut words = [to, from, taps, count, inner / width].map(|word| word as u64).to_vec();
            words.extend(sizes.flatten().map(|size| size as u64));
            words.push(u64::from(shape.counts_padding));
            let mut variant = (dtype as u64) << 8 | (width as u64) << 4;
            variant |= u64::from(tap == DType::U8) << 2 | u64::from(is_large) << 1 | u64::from(shape.is_even);
            queue.launch(
                KernelName { op: name, variant },
                || {
                    let stored = stored(dtype);
                    let computed = computed(dtype);
                    let place = if is_large { "i64" } else { "i32" };
                    let even = if shape.is_even { "#define EVEN\n" } else { "" };
                    format!(
                        "#define {}\n{even}#define V {width}\ntypedef {stored} T;\ntypedef {computed} C;\n\
                     typedef {place} Place;\ntypedef {} Tap;\n{TEMPLATE}",
                        name.to_uppercase(),
                        self::stored(tap)
                    )
                },
                linear(count),
                &mut words,
            )
        },
        move |writes, reads| {
            no_grad(|| {
                let made = writes
                    .iter()
                    .map(|tensor| Tensor::empty(tensor.sizes(), tensor.dtype(), tensor.device()))
                    .collect::<Result<Vec<_>>>()?;
                host(&made, &reads.iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?)?;
                writes.iter().zip(&made).try_for_each(|(to, made)| to.copy_raw(made))
            })
        },
    )
}
