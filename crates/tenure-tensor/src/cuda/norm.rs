//! Layer, group and batch normalisation.

use smallvec::SmallVec;
use tenure_device::cuda::{KernelName, LaunchConfig};

use super::elementwise::expressions;
use super::lines::{self, Lines, RowAlignment};
use super::on_cpu;
use super::queue::{self, Queue};
use super::reduce::{Fold, fold};
use crate::cpu;
use crate::cpu::norm::{NormRows, NormalizeRows, NormalizeRowsBackward, NormalizeSums};
use crate::kernel::on_cuda;
use crate::{Access, Entry, Result, Tensor};

const TEMPLATE: &str = include_str!("source/norm.cu");

/// The number of blocks with which [`NORMALIZE_ROWS_BACKWARD`] keeps a device busy. Each computes a part of the sums.
pub(crate) const PARTS: usize = 264;

pub(crate) const NORMALIZE_ROWS: &[Entry<NormalizeRows>] = on_cuda!(floats: normalize_rows);
pub(crate) const NORMALIZE_ROWS_BACKWARD: &[Entry<NormalizeRowsBackward>] = on_cuda!(floats: normalize_rows_backward);
pub(crate) const NORMALIZE_SUMS: &[Entry<NormalizeSums>] = on_cuda!(floats: normalize_sums);

expressions! {
    of norm:
    NORMALIZE: ["T", "T", "T", "T", "T"] (lanes of floats), "(a - b) * c + d";
    NORMALIZE_BACKWARD: ["T", "T", "T", "T", "T", "T", "T"] (lanes of floats), "a * d + (b - c) * e + f";
    NORMALIZE_RELU_BACKWARD: ["T", "T", "T", "T", "T", "T", "T", "T"] (lanes of floats),
        "(g <= (T)0 ? (T)0 : a) * d + (b - c) * e + f";
}

fn normalize_rows(out: &Tensor, rows: NormRows<'_>, eps: f64) -> Result<()> {
    let count = rows.rstd.numel();
    let dtype = rows.input.dtype();
    if out.numel() == 0 && count == 0 {
        return Ok(());
    }
    let writes: Vec<&Tensor> = [out, rows.rstd].into_iter().chain(rows.mean).collect();
    let reads: Vec<&Tensor> = [rows.input].into_iter().chain(rows.weight).chain(rows.bias).collect();
    let mut access = Access::new("layer_norm", &writes, &reads)?;
    let n = out.numel() / count;
    let out = access.write_word(0);
    let rstd = access.write_word(1);
    let mean = rows.mean.map_or(0, |_| access.write_word(2));
    let input = access.read_word(0);
    let weight = rows.weight.map_or(0, |_| access.read_word(1));
    let bias = rows.bias.map_or(0, |_| access.read_word(reads.len() - 1));
    let [has_mean, has_weight, has_bias] = [rows.mean, rows.weight, rows.bias].map(|tensor| tensor.is_some());
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let lines = Lines::new(dtype, &[out, input, weight, bias], 1, count, n, RowAlignment::None);
            let places = [out, input, weight, bias, mean, rstd, 0, eps.to_bits()];
            let name = KernelName { op: "layer_norm", variant: lines.variant() };
            queue.launch(
                name,
                || lines.source(&[("BACKWARD", 0)], TEMPLATE),
                lines.config(count),
                &mut lines::words(&places, [n, count, 1, lines.lanes]),
            )
        },
        move |writes, reads| {
            let rows = NormRows {
                input: &reads[0],
                weight: has_weight.then(|| &reads[1]),
                bias: has_bias.then(|| &reads[1 + usize::from(has_weight)]),
                mean: has_mean.then(|| &writes[2]),
                rstd: &writes[1],
            };
            on_cpu("layer_norm", &[cpu::norm::NORMALIZE_ROWS], dtype)?(&writes[0], rows, eps)
        },
    )
}

fn normalize_rows_backward(
    out: &Tensor,
    parts: &Tensor,
    grad: &Tensor,
    rows: NormRows<'_>,
    base: Option<&Tensor>,
) -> Result<()> {
    /// The largest block: a thread needs registers both for its elements and for its sums.
    const MOST_THREADS: usize = 512;
    let dtype = rows.input.dtype();
    let optional = [rows.mean, rows.weight, base];
    let reads: Vec<&Tensor> = [grad, rows.input, rows.rstd].into_iter().chain(optional.into_iter().flatten()).collect();
    let mut access = Access::new("layer_norm_backward", &[out, parts], &reads)?;
    let count = rows.rstd.numel();
    let n = parts.sizes()[2];
    let blocks = parts.sizes()[0];
    if n == 0 {
        return Ok(());
    }
    let [out, parts] = [0, 1].map(|index| access.write_word(index));
    let [grad, input, rstd] = [0, 1, 2].map(|index| access.read_word(index));
    let mut next = 3..;
    let [mean, weight, base] =
        optional.map(|tensor| tensor.and_then(|_| next.next()).map_or(0, |index| access.read_word(index)));
    let is_there = optional.map(|tensor| tensor.is_some());
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let arrays: SmallVec<[u64; 3]> =
                [grad].into_iter().chain((base != 0).then_some(base)).chain([input]).collect();
            let places = [out, grad, input, weight, base];
            let lines =
                Lines::new(dtype, &places, arrays.len(), count, n, RowAlignment::None).in_blocks_of(MOST_THREADS, n);
            let length = count.div_ceil(blocks);
            let places: SmallVec<[u64; 10]> =
                [out].into_iter().chain(arrays).chain([weight, 0, mean, rstd, parts, 0]).collect();
            let name = KernelName { op: "layer_norm_backward", variant: lines.variant() };
            let sums =
                if lines.items > 0 && lines.threads > lines.lanes { 2 * n * rows.rstd.dtype().size() } else { 0 };
            let config = LaunchConfig {
                grid: [blocks as u32, 1, 1],
                block: [lines.threads as u32, 1, 1],
                shared_bytes: sums as u32,
            };
            queue.launch(
                name,
                || lines.source(&[("BACKWARD", 1)], TEMPLATE),
                config,
                &mut lines::words(&places, [n, count, length, lines.lanes]),
            )
        },
        move |writes, reads| {
            let mut next = reads[3..].iter();
            let [mean, weight, base] = is_there.map(|is_there| if is_there { next.next() } else { None });
            let rows = NormRows { input: &reads[1], weight, bias: None, mean, rstd: &reads[2] };
            let host = on_cpu("layer_norm_backward", &[cpu::norm::NORMALIZE_ROWS_BACKWARD], dtype)?;
            host(&writes[0], &writes[1], &reads[0], rows, base)
        },
    )
}

fn normalize_sums(
    out: [&Tensor; 2],
    grad: &Tensor,
    input: &Tensor,
    mean: &Tensor,
    output: Option<&Tensor>,
) -> Result<()> {
    static PRODUCTS: Fold = Fold { name: "norm_sums", fold: "typedef Products Fold;", part_bytes: [8, 16] };
    static OF_RELU: Fold = Fold { name: "norm_relu_sums", ..PRODUCTS };
    let has_output = output.is_some();
    let dtype = input.dtype();
    let host = move |writes: &[Tensor], reads: &[Tensor]| {
        let (output, mean) = if has_output { (Some(&reads[2]), &reads[3]) } else { (None, &reads[2]) };
        let host = on_cpu(PRODUCTS.name, &[cpu::norm::NORMALIZE_SUMS], dtype)?;
        host([&writes[0], &writes[1]], &reads[0], &reads[1], mean, output)
    };
    match output {
        None => fold(&PRODUCTS, out, [grad, input], Some(mean), host),
        Some(output) => fold(&OF_RELU, out, [grad, input, output], Some(mean), host),
    }
}
