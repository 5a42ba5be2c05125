//! Attention that does not store the matrix of all weights.
//!
//! The algorithm is FlashAttention (Dao et al., 2022): it takes a block of keys at a time, with an online softmax over
//! the blocks so far. Queries are taken a panel at a time, transposed. So every product finds its operands in the order
//! of its registers, and the softmax runs along queries without a sum across a vector.

use super::gemm::Multiply;
use super::math::Math;
use super::matrix::Matrix;
use super::random::{kept, limit};
use super::{in_f32, scratch, scratch_of, widened};
use crate::element::Element;
use crate::geometry::{Dropping, Weighting};
use crate::kernel::on_cpu;
use crate::random::GeneratorState;
use crate::{Access, DType, Device, Entry, Result, Tensor, arrays, threads};

/// A kernel that writes the weighted means of values, and the logarithms of the sums of weights, `(batch, heads,
/// queries)`. Queries, keys and values have four dimensions, the last one dense; keys and values may have fewer heads.
/// The mask, `bool` or numbers to add to the scores, is broadcast.
pub(crate) type Attend = fn([&Tensor; 2], [&Tensor; 3], Option<&Tensor>, Weighting) -> Result<()>;

/// A kernel that writes the gradients of queries, keys and values. Its inputs are queries, keys, values, the gradient
/// of the means, the means, and the logarithms of the sums. All rows are dense.
pub(crate) type AttendBackward = fn([&Tensor; 3], [&Tensor; 6], Option<&Tensor>, Weighting) -> Result<()>;

pub(crate) const ATTEND: &[Entry<Attend>] = on_cpu!(@ attend: (F32 f32) (F64 f64));
pub(crate) const ATTEND_HALVES: &[Entry<Attend>] = on_cpu!(@ attend_halves, (F16 BF16));
pub(crate) const BACKWARD: &[Entry<AttendBackward>] = on_cpu!(@ backward: (F32 f32) (F64 f64));
pub(crate) const BACKWARD_HALVES: &[Entry<AttendBackward>] = on_cpu!(@ backward_halves, (F16 BF16));

/// The number of queries in a panel.
const PANEL: usize = 64;

/// The number of queries in a panel if there are no more, as when generating one token at a time.
const FEW: usize = 8;

/// The number of keys in a block: a multiple of `BITS`.
const KEYS: usize = 3 * BITS;

/// The number of keys whose weights one word of a dropout mask covers.
const BITS: usize = u32::BITS as usize;

/// The number of parts to aim for, so that threads share the work evenly.
const PARTS: usize = 16;

/// The number of columns that a product takes without packing its left operand.
const COLUMNS: usize = 48;

fn attend<T: Multiply + Math>(
    outputs: [&Tensor; 2],
    inputs: [&Tensor; 3],
    mask: Option<&Tensor>,
    weighting: Weighting,
) -> Result<()> {
    if inputs[0].sizes()[2] <= FEW {
        return attend_panels::<T, FEW>(outputs, inputs, mask, weighting);
    }
    attend_panels::<T, PANEL>(outputs, inputs, mask, weighting)
}

fn attend_panels<T: Multiply + Math, const P: usize>(
    [out, sums]: [&Tensor; 2],
    [queries, keys, values]: [&Tensor; 3],
    mask: Option<&Tensor>,
    weighting: Weighting,
) -> Result<()> {
    let reads: Vec<&Tensor> = [queries, keys, values].into_iter().chain(mask).collect();
    let mut access = Access::new("attention", &[out, sums], &reads)?;
    let to = Heads::<T>::new(access.write_ptr(0), out);
    let sums = Heads::<T>::new(access.write_ptr(1), sums);
    let [q, k, v] = [0, 1, 2].map(|index| Heads::<T>::new(access.read_ptr(index), reads[index]));
    let mask = mask.map(|mask| Mask::new(access.read_ptr(3), mask));
    let length = queries.sizes()[2];
    let width = queries.sizes()[3];
    let count = keys.sizes()[2];
    let value_width = values.sizes()[3];
    let heads = queries.sizes()[1];
    let group = queries.sizes()[1] / keys.sizes()[1].max(1);
    let panels = length.div_ceil(P);
    let dropped = weighting.dropout.map(Dropped::new);
    let parts = queries.sizes()[0] * heads * panels;
    let room = (width + KEYS + value_width) * P;
    threads::for_each_part_with(
        parts,
        || scratch_of::<T>(room),
        |workspace, part| {
            // The longest parts go first: with a causal mask, later queries see more keys.
            let head = part / panels;
            let first = (panels - 1 - part % panels) * P;
            let at = [head / heads, head % heads];
            let kv = [at[0], at[1] / group];
            let lanes = P.min(length - first);
            let mut access = Access::new("attention", &[workspace], &[])?;
            let (query, rest) = access.slice_mut::<T>(0)?.split_at_mut(width * P);
            let (scores, sum) = rest.split_at_mut(KEYS * P);
            let mut largest = [T::of(f64::NEG_INFINITY); P];
            let mut total = [T::ZERO; P];
            sum.fill(T::ZERO);
            // SAFETY: the matrices are the queries, keys and values of a head, and panels of the workspace.
            unsafe {
                crate::vectorized(
                    #[inline(always)]
                    || q.head(at).at(first, 0).transpose_to::<P>(query, lanes, width),
                );
                let end = if weighting.is_causal { count.min(first + lanes) } else { count };
                for key in (0..end).step_by(KEYS) {
                    let block = KEYS.min(end - key);
                    score::<T, P>(query, k.head(kv).at(key, 0), scores, [width, block], weighting.scale);
                    crate::vectorized(
                        #[inline(always)]
                        || {
                            hide::<T, P>(scores, [first, key], [lanes, block], at, mask, weighting.is_causal);
                            let before = online_softmax(&mut scores[..block * P], &mut largest, &mut total);
                            for row in sum.chunks_exact_mut(P) {
                                (0..P).for_each(|lane| row[lane] = row[lane] * before[lane]);
                            }
                            if let Some(dropped) = dropped {
                                let kept = dropped.kept::<P>(head * length + first, key, [lanes, block], count);
                                dropped.leave_out(&kept, &mut scores[..block * P]);
                            }
                        },
                    );
                    accumulate::<T, P>(sum, scores, v.head(kv).at(key, 0), [block, value_width]);
                }
                let share: [T; P] = arrays::map(total, |total| if total == T::ZERO { T::ZERO } else { T::ONE / total });
                let to = to.head(at).at(first, 0);
                for lane in 0..lanes {
                    let row = to.at(lane, 0).data;
                    (0..value_width).for_each(|i| row.add(i).write(sum[i * P + lane] * share[lane]));
                    sums.head(at).at(first + lane, 0).data.write(largest[lane] + total[lane].log());
                }
            }
            Ok(())
        },
    )
}

fn backward<T: Multiply + Math>(
    outputs: [&Tensor; 3],
    inputs: [&Tensor; 6],
    mask: Option<&Tensor>,
    weighting: Weighting,
) -> Result<()> {
    let [queries, keys, values, ..] = inputs;
    let length = queries.sizes()[2];
    let width = queries.sizes()[3];
    let count = keys.sizes()[2];
    let value_width = values.sizes()[3];
    let batch = keys.sizes()[0];
    let heads = keys.sizes()[1];
    let group = queries.sizes()[1] / keys.sizes()[1].max(1);
    // If there are few heads, several parts share one. Each takes every `slices`-th panel, and has its own sums.
    let slices = PARTS.div_ceil((batch * heads).max(1)).clamp(1, (group * length.div_ceil(PANEL)).max(1));
    let [to_queries, outputs @ ..] = outputs;
    let apart = |output: &Tensor| {
        if slices == 1 {
            output.fill_raw("attention", 0.into())?;
            return Ok(output.clone());
        }
        let sizes: Vec<usize> = [slices * batch].iter().chain(&output.sizes()[1..]).copied().collect();
        scratch(|| Tensor::zeros(&sizes, T::DTYPE, Device::CPU))
    };
    let [grown_keys, grown_values] = [apart(outputs[0])?, apart(outputs[1])?];
    let written = [to_queries, &grown_keys, &grown_values];
    let reads: Vec<&Tensor> = inputs.into_iter().chain(mask).collect();
    let mut access = Access::new("attention", &written, &reads)?;
    let [to_q, to_k, to_v] = [0, 1, 2].map(|index| Heads::<T>::new(access.write_ptr(index), written[index]));
    let [q, k, v, grad, out, sums] =
        [0, 1, 2, 3, 4, 5].map(|index| Heads::<T>::new(access.read_ptr(index), inputs[index]));
    let mask = mask.map(|mask| Mask::new(access.read_ptr(6), mask));
    let dropped = weighting.dropout.map(Dropped::new);
    let room = (2 * width + value_width + 2 * KEYS) * PANEL;
    threads::for_each_part_with(
        batch * heads * slices,
        || scratch_of::<T>(room),
        |workspace, part| {
            let slice = part % slices;
            let kv = [part / slices / heads, part / slices % heads];
            let grown = [slice * batch + kv[0], kv[1]];
            let mut access = Access::new("attention", &[workspace], &[])?;
            let (query, rest) = access.slice_mut::<T>(0)?.split_at_mut(width * PANEL);
            let (to_query, rest) = rest.split_at_mut(width * PANEL);
            let (grads, rest) = rest.split_at_mut(value_width * PANEL);
            let (weights, to_scores) = rest.split_at_mut(KEYS * PANEL);
            let panels = (0..group).flat_map(|head| (0..length).step_by(PANEL).map(move |first| (head, first)));
            for (head, first) in panels.skip(slice).step_by(slices) {
                let at = [kv[0], kv[1] * group + head];
                let lanes = PANEL.min(length - first);
                // Lanes without a query, and queries that see no key, have weights of zero.
                let mut shift = [T::of(f64::INFINITY); PANEL];
                let mut inner = [T::ZERO; PANEL];
                to_query.fill(T::ZERO);
                // SAFETY: the matrices are the queries, keys, values and gradients of a head, and panels of the workspace;
                // only this part writes to these queries' gradients and to its own sums.
                unsafe {
                    let rows = q.head(at).at(first, 0);
                    let rows_of_grad = grad.head(at).at(first, 0);
                    crate::vectorized(
                        #[inline(always)]
                        || {
                            rows.transpose_to::<PANEL>(query, lanes, width);
                            rows_of_grad.transpose_to::<PANEL>(grads, lanes, value_width);
                        },
                    );
                    for lane in 0..lanes {
                        let grad = rows_of_grad.at(lane, 0).data;
                        let out = out.head(at).at(first + lane, 0).data;
                        inner[lane] =
                            (0..value_width).fold(T::ZERO, |sum, i| sum + grad.add(i).read() * out.add(i).read());
                        let sum = sums.head(at).at(first + lane, 0).data.read();
                        shift[lane] = if sum == T::of(f64::NEG_INFINITY) { T::of(f64::INFINITY) } else { sum };
                    }
                    let end = if weighting.is_causal { count.min(first + lanes) } else { count };
                    for key in (0..end).step_by(KEYS) {
                        let block = KEYS.min(end - key);
                        let keys = k.head(kv).at(key, 0);
                        let values = v.head(kv).at(key, 0);
                        score::<T, PANEL>(query, keys, weights, [width, block], weighting.scale);
                        score::<T, PANEL>(grads, values, to_scores, [value_width, block], 1.0);
                        let scale = T::of(weighting.scale);
                        crate::vectorized(
                            #[inline(always)]
                            || {
                                hide::<T, PANEL>(weights, [first, key], [lanes, block], at, mask, weighting.is_causal);
                                let head = at[0] * heads * group + at[1];
                                let mut kept = [[0; PANEL]; KEYS / BITS];
                                if let Some(dropped) = dropped {
                                    kept = dropped.kept(head * length + first, key, [lanes, block], count);
                                    dropped.leave_out(&kept, &mut to_scores[..block * PANEL]);
                                }
                                let rows = weights[..block * PANEL].chunks_exact_mut(PANEL);
                                for (weights, to_scores) in rows.zip(to_scores.chunks_exact_mut(PANEL)) {
                                    for lane in 0..PANEL {
                                        let weight = (weights[lane] - shift[lane]).exp();
                                        weights[lane] = weight;
                                        to_scores[lane] = weight * (to_scores[lane] - inner[lane]) * scale;
                                    }
                                }
                                if let Some(dropped) = dropped {
                                    dropped.leave_out(&kept, &mut weights[..block * PANEL]);
                                }
                            },
                        );
                        let grown_k = to_k.head(grown).at(key, 0).transposed();
                        let grown_v = to_v.head(grown).at(key, 0).transposed();
                        let one = T::ONE;
                        let panel = Matrix::new(weights.as_ptr(), 1, PANEL);
                        T::multiply([value_width, lanes, block], grown_v, rows_of_grad.transposed(), panel, one, one);
                        let panel = Matrix::new(to_scores.as_ptr(), 1, PANEL);
                        T::multiply([width, lanes, block], grown_k, rows.transposed(), panel, one, one);
                        accumulate::<T, PANEL>(to_query, to_scores, keys, [block, width]);
                    }
                    let to = to_q.head(at).at(first, 0);
                    for lane in 0..lanes {
                        let row = to.at(lane, 0).data;
                        (0..width).for_each(|i| row.add(i).write(to_query[i * PANEL + lane]));
                    }
                }
            }
            Ok(())
        },
    )?;
    drop(access);
    for (output, grown) in outputs.into_iter().zip([grown_keys, grown_values]).filter(|_| slices > 1) {
        let sums = [slices as isize, output.numel() as isize];
        output.copy_raw(&grown.view(&sums)?.sum(&[0], false)?.view_as(output)?)?;
    }
    Ok(())
}

/// Multiplies a panel of queries with some keys: writes a row for each key.
///
/// # Safety
/// `keys` must have `count` rows of `width` elements.
unsafe fn score<T: Multiply + Math, const P: usize>(
    panel: &[T],
    keys: Matrix<T>,
    scores: &mut [T],
    [width, count]: [usize; 2],
    scale: f64,
) {
    for first in (0..count).step_by(COLUMNS) {
        let keys = keys.at(first, 0);
        // SAFETY: the keys are there, as the caller promises; the target is rows of the scores.
        unsafe {
            T::multiply(
                [P, width, COLUMNS.min(count - first)],
                Matrix::new(scores[first * P..].as_ptr(), 1, P),
                Matrix::new(panel.as_ptr(), 1, P),
                Matrix { row: keys.column, column: keys.row, ..keys },
                T::of(scale),
                T::ZERO,
            );
        }
    }
}

/// Adds values, weighted by the rows of a panel: a row of sums for each element of a value.
///
/// # Safety
/// `values` must have `count` rows of `width` elements.
unsafe fn accumulate<T: Multiply + Math, const P: usize>(
    sums: &mut [T],
    weights: &[T],
    values: Matrix<T>,
    [count, width]: [usize; 2],
) {
    for first in (0..width).step_by(COLUMNS) {
        // SAFETY: the values are there, as the caller promises; the others are rows of the sums and weights.
        unsafe {
            T::multiply(
                [P, count, COLUMNS.min(width - first)],
                Matrix::new(sums[first * P..].as_ptr(), 1, P),
                Matrix::new(weights.as_ptr(), 1, P),
                values.at(0, first),
                T::ONE,
                T::ONE,
            );
        }
    }
}

/// Converts a block of scores to weights relative to the largest score so far. Returns the factors by which earlier
/// weights shrink.
#[inline(always)]
fn online_softmax<T: Math, const P: usize>(scores: &mut [T], largest: &mut [T; P], total: &mut [T; P]) -> [T; P] {
    let mut now = *largest;
    for row in scores.chunks_exact(P) {
        for lane in 0..P {
            now[lane] = if row[lane] > now[lane] || row[lane].is_nan() { row[lane] } else { now[lane] };
        }
    }
    let mut before = [T::ZERO; P];
    let mut shift = [T::ZERO; P];
    for lane in 0..P {
        shift[lane] = if now[lane] == T::of(f64::NEG_INFINITY) { T::ZERO } else { now[lane] };
        before[lane] = (largest[lane] - shift[lane]).exp();
        total[lane] = total[lane] * before[lane];
    }
    for row in scores.chunks_exact_mut(P) {
        for lane in 0..P {
            row[lane] = (row[lane] - shift[lane]).exp();
            total[lane] = total[lane] + row[lane];
        }
    }
    *largest = now;
    before
}

/// Sets the scores of keys that a query does not see to minus infinity, or adds the mask to the scores.
///
/// # Safety
/// The mask must cover these heads, queries and keys.
#[inline(always)]
unsafe fn hide<T: Math, const P: usize>(
    scores: &mut [T],
    [first, key]: [usize; 2],
    [lanes, block]: [usize; 2],
    at: [usize; 2],
    mask: Option<Mask>,
    is_causal: bool,
) {
    let hidden = T::of(f64::NEG_INFINITY);
    for (index, row) in scores.chunks_exact_mut(P).take(block).enumerate() {
        if let Some(mask) = mask {
            for (lane, score) in row[..lanes].iter_mut().enumerate() {
                // SAFETY: this is an element of the mask.
                unsafe {
                    match mask {
                        Mask::Seen(mask) if mask.head(at).at(first + lane, key + index).data.read() == 0 => {
                            *score = hidden;
                        }
                        Mask::Seen(_) => {}
                        Mask::AddedF32(mask) => {
                            let added = mask.head(at).at(first + lane, key + index).data.read();
                            *score = *score + T::of(f64::from(added));
                        }
                        Mask::AddedF64(mask) => {
                            *score = *score + T::of(mask.head(at).at(first + lane, key + index).data.read());
                        }
                    }
                }
            }
        }
        if is_causal && key + index > first {
            let unseen = (key + index - first).min(P);
            row[..unseen].fill(hidden);
        }
    }
}

/// Dropout of attention weights.
#[derive(Clone, Copy)]
struct Dropped {
    state: GeneratorState,
    limit: u64,
    /// The factor of the weights that are kept.
    scale: f64,
}

impl Dropped {
    fn new(dropping: Dropping) -> Self {
        let kept = 1.0 - dropping.probability;
        Self { state: dropping.state, limit: limit(kept), scale: 1.0 / kept }
    }

    /// Returns which weights are kept, as bits, of the block of `count` keys from `key` on and of queries from `row`
    /// on. Rows are counted over all heads.
    #[inline(always)]
    fn kept<const P: usize>(
        self,
        row: usize,
        key: usize,
        [lanes, block]: [usize; 2],
        count: usize,
    ) -> [[u32; P]; KEYS / BITS] {
        let mut bits = [[0; P]; KEYS / BITS];
        for (index, bits) in bits.iter_mut().enumerate().take(block.div_ceil(BITS)) {
            for (lane, bits) in bits.iter_mut().enumerate().take(lanes) {
                *bits = kept(self.state, (row + lane) * count + key + index * BITS, self.limit);
            }
        }
        bits
    }

    /// Sets the dropped weights of a block, or their gradients, to zero and scales the others.
    #[inline(always)]
    fn leave_out<T: Math, const P: usize>(self, kept: &[[u32; P]; KEYS / BITS], weights: &mut [T]) {
        let scale = T::of(self.scale);
        for (rows, bits) in weights.chunks_mut(BITS * P).zip(kept) {
            for (index, row) in rows.chunks_exact_mut(P).enumerate() {
                for lane in 0..P {
                    row[lane] = if bits[lane] >> index & 1 == 1 { row[lane] * scale } else { T::ZERO };
                }
            }
        }
    }
}

/// The matrices of a batch of heads.
#[derive(Clone, Copy)]
struct Heads<T> {
    first: Matrix<T>,
    batch: usize,
    head: usize,
}

impl<T> Heads<T> {
    fn new(data: *const u8, tensor: &Tensor) -> Self {
        let strides = tensor.strides();
        let column = strides.get(3).copied().unwrap_or(1);
        Self { first: Matrix::new(data.cast(), strides[2], column), batch: strides[0], head: strides[1] }
    }

    #[inline(always)]
    fn head(self, [batch, head]: [usize; 2]) -> Matrix<T> {
        let data = self.first.data.wrapping_add(batch * self.batch + head * self.head);
        Matrix { data, ..self.first }
    }
}

#[derive(Clone, Copy)]
enum Mask {
    Seen(Heads<u8>),
    AddedF32(Heads<f32>),
    AddedF64(Heads<f64>),
}

impl Mask {
    fn new(data: *const u8, mask: &Tensor) -> Self {
        match mask.dtype() {
            DType::F32 => Self::AddedF32(Heads::new(data, mask)),
            DType::F64 => Self::AddedF64(Heads::new(data, mask)),
            // A `bool` is a byte, 0 or 1.
            _ => Self::Seen(Heads::new(data, mask)),
        }
    }
}

impl<T: Element> Matrix<T> {
    /// Writes some rows as columns of a panel, with zeros after the last row.
    ///
    /// # Safety
    /// The matrix must have `rows` rows of `width` elements.
    #[inline(always)]
    unsafe fn transpose_to<const P: usize>(self, panel: &mut [T], rows: usize, width: usize) {
        for (column, to) in panel.chunks_exact_mut(P).take(width).enumerate() {
            for (row, to) in to.iter_mut().enumerate() {
                // SAFETY: this is an element of the matrix.
                *to = if row < rows { unsafe { self.at(row, column).data.read() } } else { T::from_scalar(0.into()) };
            }
        }
    }
}

fn attend_halves(
    [out, sums]: [&Tensor; 2],
    inputs: [&Tensor; 3],
    mask: Option<&Tensor>,
    weighting: Weighting,
) -> Result<()> {
    let mask = wide_mask(mask)?;
    let [q, k, v] = inputs.map(widened);
    in_f32(out, |wide| attend::<f32>([wide, sums], [&q?, &k?, &v?], mask.as_ref(), weighting))
}

fn backward_halves(
    outputs: [&Tensor; 3],
    inputs: [&Tensor; 6],
    mask: Option<&Tensor>,
    weighting: Weighting,
) -> Result<()> {
    let mask = wide_mask(mask)?;
    let [q, k, v, grad, out, sums] = inputs;
    let q = widened(q)?;
    let k = widened(k)?;
    let v = widened(v)?;
    let grad = widened(grad)?;
    // The means are computed again in `f32`: the saved ones were rounded, and small gradients are differences of
    // products with them.
    let out = single_like(out)?;
    let sums = single_like(sums)?;
    attend::<f32>([&out, &sums], [&q, &k, &v], mask.as_ref(), weighting)?;
    let wide = [single_like(outputs[0])?, single_like(outputs[1])?, single_like(outputs[2])?];
    let inputs = [&q, &k, &v, &grad, &out, &sums];
    backward::<f32>([&wide[0], &wide[1], &wide[2]], inputs, mask.as_ref(), weighting)?;
    outputs.iter().zip(&wide).try_for_each(|(output, wide)| output.copy_raw(wide))
}

fn single_like(like: &Tensor) -> Result<Tensor> {
    scratch(|| Tensor::empty(like.sizes(), DType::F32, like.device()))
}

fn wide_mask(mask: Option<&Tensor>) -> Result<Option<Tensor>> {
    mask.map(|mask| if mask.dtype() == DType::Bool { Ok(mask.clone()) } else { widened(mask) }).transpose()
}
