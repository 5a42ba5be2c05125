//! Softmax and log-softmax.

use tenure_device::cuda::{KernelName, LaunchConfig};

use super::lines::{self, Lines, RowAlignment};
use super::on_cpu;
use super::queue::{self, Queue};
use crate::cpu;
use crate::cpu::softmax::{Softmax, SoftmaxBackward};
use crate::kernel::on_cuda;
use crate::{Access, Entry, Result, Tensor};

/// The source of running sums of exponentials.
pub(super) const EXPONENTIALS: &str = include_str!("source/exponentials.cu");
const TEMPLATE: &str = include_str!("source/softmax.cu");
/// The number of threads of a block if the elements of a row are not contiguous.
const THREADS: usize = 256;
const WARP: usize = 32;

pub(crate) const SOFTMAX: &[Entry<Softmax>] = on_cuda!(floats: softmax);
pub(crate) const SOFTMAX_BACKWARD: &[Entry<SoftmaxBackward>] = on_cuda!(floats: softmax_backward);

fn softmax(out: &Tensor, input: &Tensor, dim: usize, logarithmic: bool) -> Result<()> {
    let dtype = out.dtype();
    run("softmax", out, &[input], dim, logarithmic, move |writes, reads| {
        on_cpu("softmax", &[cpu::softmax::SOFTMAX], dtype)?(&writes[0], &reads[0], dim, logarithmic)
    })
}

fn softmax_backward(out: &Tensor, grad: &Tensor, output: &Tensor, dim: usize, logarithmic: bool) -> Result<()> {
    let dtype = out.dtype();
    run("softmax_backward", out, &[grad, output], dim, logarithmic, move |writes, reads| {
        let host = on_cpu("softmax_backward", &[cpu::softmax::SOFTMAX_BACKWARD], dtype)?;
        host(&writes[0], &reads[0], &reads[1], dim, logarithmic)
    })
}

fn run(
    op: &'static str,
    out: &Tensor,
    inputs: &[&Tensor],
    dim: usize,
    logarithmic: bool,
    host: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    if out.numel() == 0 {
        return Ok(());
    }
    let mut access = Access::new(op, &[out], inputs)?;
    let mut places = vec![access.write_word(0)];
    places.extend((0..inputs.len()).map(|input| access.read_word(input)));
    let (outer, step) = lines::around(out.sizes(), dim);
    let rows = outer * step;
    let n = out.sizes().get(dim).copied().unwrap_or(1);
    let is_columns = step > 1;
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let mut lines = Lines::new(out.dtype(), &places, inputs.len(), rows, n, RowAlignment::Any);
            let mut config = lines.config(rows);
            if is_columns {
                let below = 1 << (n / 4).max(1).ilog2();
                let side_by_side = step.next_power_of_two().min(WARP);
                let lanes = THREADS / below.min(THREADS / side_by_side);
                lines = Lines::in_columns(out.dtype(), inputs.len(), lanes);
                config = LaunchConfig { grid: [rows.div_ceil(lanes) as u32, 1, 1], ..config };
                config.block = [THREADS as u32, 1, 1];
            }
            let flags = [inputs.len() == 2, logarithmic, is_columns].map(u64::from);
            let variant = flags.into_iter().fold(lines.variant(), |variant, flag| variant << 1 | flag);
            let mut words = lines::words(&places, [n, rows, lines.lanes, step]);
            queue.launch(
                KernelName { op, variant },
                || {
                    let defines = [("BACKWARD", flags[0]), ("LOGARITHMIC", flags[1]), ("COLUMNS", 1)];
                    lines.source(&defines[..if is_columns { 3 } else { 2 }], &[EXPONENTIALS, TEMPLATE].concat())
                },
                config,
                &mut words,
            )
        },
        host,
    )
}
