//! Scans: cumulative sums and products.

use tenure_device::cuda::{KernelName, LaunchConfig};

use super::lines;
use super::queue::{self, Queue};
use super::{computed, on_cpu, stored};
use crate::cpu;
use crate::cpu::scan::Scan;
use crate::kernel::on_cuda;
use crate::{Access, DType, DeviceKind, Entry, Result, Tensor};

const TEMPLATE: &str = include_str!("source/scan.cu");
const THREADS: usize = 256;
/// The number of bytes that a thread reads at once.
const VECTOR_BYTES: usize = 16;
/// The row length up to which one thread walks a row, not a block.
const SHORT: usize = 32;
/// The number of blocks that keeps a device busy.
const BLOCKS: usize = 512;
/// The largest number of parts of a row: each part adds up those before it.
const MOST_PARTS: usize = 64;

pub(crate) const CUMSUM: [&[Entry<Scan>]; 2] = [on_cuda!(floats: cumsum), &[(DeviceKind::Cuda, DType::I64, cumsum)]];
pub(crate) const CUMPROD: [&[Entry<Scan>]; 2] = [on_cuda!(floats: cumprod), &[(DeviceKind::Cuda, DType::I64, cumprod)]];

fn cumsum(out: &Tensor, input: &Tensor, dim: usize) -> Result<()> {
    scan("cumsum", out, input, dim, &cpu::scan::CUMSUM)
}

fn cumprod(out: &Tensor, input: &Tensor, dim: usize) -> Result<()> {
    scan("cumprod", out, input, dim, &cpu::scan::CUMPROD)
}

fn scan(op: &'static str, out: &Tensor, input: &Tensor, dim: usize, host: &'static [&[Entry<Scan>]]) -> Result<()> {
    if out.numel() == 0 {
        return Ok(());
    }
    let dtype = out.dtype();
    let mut access = Access::new(op, &[out], &[input])?;
    let places = [access.write_word(0), access.read_word(0)];
    let (outer, step) = lines::around(out.sizes(), dim);
    let rows = outer * step;
    let n = out.sizes().get(dim).copied().unwrap_or(1);
    queue::submit(
        &access,
        |queue| launch(queue, op, dtype, places, [n, rows, step]),
        move |writes, reads| on_cpu(op, host, dtype)?(&writes[0], &reads[0], dim),
    )
}

fn launch(
    queue: &mut Queue,
    op: &'static str,
    dtype: DType,
    places: [u64; 2],
    [n, rows, step]: [usize; 3],
) -> Result<()> {
    let is_columns = step > 1 || n <= SHORT;
    let width = VECTOR_BYTES / dtype.size();
    let is_aligned = n.is_multiple_of(width) && places.iter().all(|place| place.is_multiple_of(VECTOR_BYTES as u64));
    let (parts, unit) = match is_columns {
        true => ((BLOCKS * THREADS / rows).min(n / SHORT).min(MOST_PARTS), 1),
        false => ((BLOCKS / rows).min(n / (2 * THREADS * width)), width),
    };
    let length = n.div_ceil(parts.max(1)).next_multiple_of(unit);
    let parts = n.div_ceil(length);
    let grid = match is_columns {
        true => [(rows * parts).div_ceil(THREADS) as u32, 1, 1],
        false => [rows as u32, parts as u32, 1],
    };
    let config = LaunchConfig { grid, block: [THREADS as u32, 1, 1], shared_bytes: 0 };
    let compute = computed(dtype);
    let bytes = if matches!(dtype, DType::F64 | DType::I64) { 8 } else { 4 };
    let totals = if parts > 1 { queue.workspace(parts * rows * bytes)? } else { 0 };
    let run = |only_totals: bool| {
        let flags = [is_columns, is_aligned, only_totals].map(u64::from);
        let variant = flags.into_iter().fold(dtype as u64, |variant, flag| variant << 1 | flag);
        let mut words = lines::words(&[places[0], places[1], totals], [n, rows, step, length]);
        queue.launch(
            KernelName { op, variant },
            || {
                let product = u64::from(op == "cumprod");
                let [is_columns, is_aligned, only_totals] = flags;
                format!(
                    "#define PRODUCT {product}\n#define V {width}\n#define COLUMNS {is_columns}\n\
                     #define ALIGNED {is_aligned}\n#define TOTALS {only_totals}\n\
                     typedef {} T;\ntypedef {compute} C;\n{TEMPLATE}",
                    stored(dtype)
                )
            },
            config,
            &mut words,
        )
    };
    if parts > 1 {
        run(true)?;
    }
    run(false)
}
