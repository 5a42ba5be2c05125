//! Attention without storing the matrix of all weights, and its gradients. 16-bit floats use cuDNN, whose gradients
//! need such a matrix for some heads at a time to be the same bits every time. All other cases use our own kernels. So
//! does dropout: it must draw the random numbers that a tensor of all weights would get, and cuDNN draws others.

use smallvec::SmallVec;
use tenure_device::cuda::{CudaDriver, DnnAttention, DnnPlan, KernelName, LaunchConfig};

use super::elementwise::bits;
use super::queue::{self, Queue};
use super::random::{PHILOX, Start, placed};
use super::{computed, on_cpu, stored};
use crate::cpu::attention::{self, Attend, AttendBackward};
use crate::cpu::random::limit;
use crate::geometry::{Dropping, Weighting};
use crate::kernel::on_cuda;
use crate::random::GeneratorState;
use crate::{Access, DType, Entry, Result, Scalar, Tensor, tuning};

pub(crate) const ATTEND: &[Entry<Attend>] = on_cuda!(floats: attend);
pub(crate) const BACKWARD: &[Entry<AttendBackward>] = on_cuda!(floats: backward);

const PARAMS: &str = include_str!("source/attention_params.cu");
const PRODUCTS: &str = include_str!("source/products.cu");
const TEMPLATE: &str = include_str!("source/attention.cu");
const THREADS: u32 = 256;

/// The sources of the kernels for 16-bit floats, which use tensor cores.
const MATRIX: &str = include_str!("source/matrix.cu");
const HALVES: &str = include_str!("source/attention_halves.cu");
const THREADS_OF_HALVES: u32 = 128;

/// The largest head size for which the kernels for 16-bit floats have enough registers and shared memory.
const WIDEST: usize = 256;

/// The alignment in bytes that cuDNN needs for the addresses of rows.
const ALIGNMENT: usize = 16;

/// The number of pairs of a query and a key from which cuDNN is used. With fewer, it is no faster, and our own kernel
/// rounds less.
const TILE: usize = 16 * 16;

/// The number of threads that share a row.
const THREADS_PER_ROW: usize = 16;

fn attend(outputs: [&Tensor; 2], inputs: [&Tensor; 3], mask: Option<&Tensor>, weighting: Weighting) -> Result<()> {
    let [out, sums] = outputs;
    if sums.numel() == 0 {
        return Ok(());
    }
    let start = weighting.dropout.map(|dropping| Start::of(dropping.state)).transpose()?;
    let origin = start.as_ref().and_then(|start| start.origin.as_ref());
    let reads: SmallVec<[&Tensor; 5]> = inputs.into_iter().chain(mask).chain(origin).collect();
    let mut access = Access::new("attention", &outputs, &reads)?;
    let written = [0, 1].map(|index| access.write_word(index));
    let read: SmallVec<[u64; 5]> = (0..reads.len()).map(|index| access.read_word(index)).collect();
    let call = AttentionCall {
        inputs: [0, 1, 2].map(|index| (inputs[index], read[index])),
        out: (out, written[0]),
        sums: written[1],
        mask: mask.map(|mask| (mask, read[3])),
        weighting,
        dropout_words: dropout_words(weighting, start.as_ref(), &access, reads.len() - 1),
    };
    let has_mask = mask.is_some();
    let state = start.as_ref().map(|start| start.state);
    queue::submit(
        &access,
        |queue| match queue.cuda() {
            Some(driver) if call.attend_by_library(queue, driver)? => Ok(()),
            _ => call.launch(queue, AttentionKernel::Attend, 0, [None; 4]),
        },
        move |writes, reads| {
            let lists = [attention::ATTEND, attention::ATTEND_HALVES];
            let host = on_cpu("attention", &lists, reads[0].dtype())?;
            let (mask, origin) = reads[3..].split_at(usize::from(has_mask));
            let weighting = with_actual_state(weighting, state, origin)?;
            host([&writes[0], &writes[1]], [&reads[0], &reads[1], &reads[2]], mask.first(), weighting)
        },
    )
}

fn backward(outputs: [&Tensor; 3], inputs: [&Tensor; 6], mask: Option<&Tensor>, weighting: Weighting) -> Result<()> {
    let [q, k, v, grad, out, sums] = inputs;
    if outputs.iter().all(|output| output.numel() == 0) {
        return Ok(());
    }
    let start = weighting.dropout.map(|dropping| Start::of(dropping.state)).transpose()?;
    let origin = start.as_ref().and_then(|start| start.origin.as_ref());
    let reads: SmallVec<[&Tensor; 8]> = inputs.into_iter().chain(mask).chain(origin).collect();
    let mut access = Access::new("attention_backward", &outputs, &reads)?;
    let written = [0, 1, 2].map(|index| access.write_word(index));
    let read: SmallVec<[u64; 8]> = (0..reads.len()).map(|index| access.read_word(index)).collect();
    let call = AttentionCall {
        inputs: [(q, read[0]), (k, read[1]), (v, read[2])],
        out: (out, read[4]),
        sums: read[5],
        mask: mask.map(|mask| (mask, read[6])),
        weighting,
        dropout_words: dropout_words(weighting, start.as_ref(), &access, reads.len() - 1),
    };
    let has_mask = mask.is_some();
    let state = start.as_ref().map(|start| start.state);
    let to = |index: usize| Some((outputs[index], written[index]));
    let all = [Some((grad, read[3])), to(0), to(1), to(2)];
    queue::submit(
        &access,
        |queue| {
            if let Some(driver) = queue.cuda()
                && call.differentiate_by_library(queue, driver, all)?
            {
                return Ok(());
            }
            let parts = [AttentionKernel::Inner, AttentionKernel::ToQueries, AttentionKernel::ToKeys];
            // With tensor cores, the kernel of the queries' gradients also computes the inner products, and stores each
            // beside its query's sum.
            let (parts, numbers) = if call.uses_tensor_cores() { (&parts[1..], 2) } else { (&parts[..], 1) };
            let inner = queue.workspace(sums.numel().max(1) * numbers * sums.dtype().size())?;
            parts.iter().try_for_each(|part| call.launch(queue, *part, inner, all))
        },
        move |writes, reads| {
            let grad = reads[3].contiguous()?;
            let inputs = [&reads[0], &reads[1], &reads[2], &grad, &reads[4], &reads[5]];
            let all = writes.iter().map(|write| Tensor::empty(write.sizes(), write.dtype(), grad.device()));
            let all = all.collect::<Result<Vec<_>>>()?;
            let lists = [attention::BACKWARD, attention::BACKWARD_HALVES];
            let host = on_cpu("attention_backward", &lists, grad.dtype())?;
            let (mask, origin) = reads[6..].split_at(usize::from(has_mask));
            let weighting = with_actual_state(weighting, state, origin)?;
            host([&all[0], &all[1], &all[2]], inputs, mask.first(), weighting)?;
            writes.iter().zip(&all).try_for_each(|(to, dense)| to.copy_raw(dense))
        },
    )
}

/// Returns the kernel's words for dropout: three words of the generator's state, the number of the 2³² random words
/// that keep a weight, and the factor of kept weights. The tensor of the state's origin, in a capture, is read tensor
/// `last` of
/// `access`.
fn dropout_words(weighting: Weighting, start: Option<&Start>, access: &Access<'_>, last: usize) -> Option<[u64; 5]> {
    let start = start?;
    let kept = 1.0 - weighting.dropout?.probability;
    let [seed, offset, origin] = start.words(access, last);
    Some([seed, offset, origin, limit(kept), (1.0 / kept).to_bits()])
}

/// Returns `weighting` with the generator's actual state, computed from `state` and its origin, for a simulated device.
fn with_actual_state(weighting: Weighting, state: Option<GeneratorState>, origin: &[Tensor]) -> Result<Weighting> {
    let (Some(dropping), Some(state)) = (weighting.dropout, state) else { return Ok(weighting) };
    Ok(Weighting { dropout: Some(Dropping { state: placed(state, origin)?, ..dropping }), ..weighting })
}

/// A tensor, and the address of its first element.
type TensorAddress<'a> = (&'a Tensor, u64);

/// One of the kernels in the source.
#[derive(Clone, Copy)]
enum AttentionKernel {
    /// Computes the means and each query's sum.
    Attend,
    /// Computes the inner products of each query's mean and its gradient.
    Inner,
    /// Computes the gradients of queries.
    ToQueries,
    /// Computes the gradients of keys and values.
    ToKeys,
}

/// The arguments of one call of attention or its gradients.
struct AttentionCall<'a> {
    /// Queries, keys and values.
    inputs: [TensorAddress<'a>; 3],
    /// The weighted means.
    out: TensorAddress<'a>,
    sums: u64,
    mask: Option<TensorAddress<'a>>,
    weighting: Weighting,
    /// The kernel's words for dropout, if there is dropout.
    dropout_words: Option<[u64; 5]>,
}

impl AttentionCall<'_> {
    /// Computes attention by cuDNN. Returns `false` if cuDNN is missing or does not support the case.
    fn attend_by_library(&self, queue: &mut Queue, driver: &CudaDriver) -> Result<bool> {
        let [q, k, v] = self.inputs;
        let places = [q, k, v, self.out];
        let Some(attention) = self.describe(&places) else { return Ok(false) };
        let Some(plan) = plan(queue, driver, &attention)? else { return Ok(false) };
        let workspace = queue.workspace(plan.workspace_bytes().max(1))?;
        let data = places.map(|(_, data)| data);
        // SAFETY: the tensors are as described, locked by the caller and recorded on the queue's stream; the workspace
        // is as large as the plan requires.
        queue.driver_result(unsafe { driver.attend(&plan, &data, self.sums, workspace, queue.stream()) })?;
        Ok(true)
    }

    /// Computes the gradients by cuDNN, for some batches or heads at a time. Returns `false` as
    /// `attend_by_library` does.
    fn differentiate_by_library(
        &self,
        queue: &mut Queue,
        driver: &CudaDriver,
        grads: [Option<TensorAddress<'_>>; 4],
    ) -> Result<bool> {
        let ([q, k, v], [Some(grad), Some(to_q), Some(to_k), Some(to_v)]) = (self.inputs, grads) else {
            return Ok(false);
        };
        let places = [q, k, v, self.out, grad, to_q, to_k, to_v];
        let Some(all) = self.describe(&places) else { return Ok(false) };
        let group = all.heads / all.kv_heads;
        // The first choice gives the same bits every time. For long sequences, the weights of even one head are too
        // many to store: then sums are in any order.
        let mut choices = [largest_part(&all), DnnAttention { is_in_any_order: true, ..all }];
        if tuning::sums_in_any_order() {
            choices.reverse();
        }
        let mut found = None;
        for part in choices {
            // The sums of each part must begin at an aligned address.
            let is_all = (part.batch, part.heads) == (all.batch, all.heads);
            let is_aligned = is_all || (part.heads * part.queries * size_of::<f32>()).is_multiple_of(ALIGNMENT);
            if is_aligned && found.is_none() {
                found = plan(queue, driver, &part)?.map(|plan| (plan, part));
            }
        }
        let Some((plan, part)) = found else { return Ok(false) };
        let workspace = queue.workspace(plan.workspace_bytes().max(1))?;
        for batch in (0..all.batch).step_by(part.batch) {
            for head in (0..all.kv_heads).step_by(part.kv_heads) {
                let data = std::array::from_fn::<u64, 8, _>(|index| {
                    let head = if matches!(index, 1 | 2 | 6 | 7) { head } else { head * group };
                    let [from_batch, from_head, _] = all.strides[index];
                    let elements = batch * from_batch + head * from_head;
                    places[index].1 + (elements * all.dtype.size()) as u64
                });
                let sums = (batch * all.heads + head * group) * all.queries * size_of::<f32>();
                let sums = self.sums + sums as u64;
                // SAFETY: the tensors are as described, locked by the caller and recorded on the queue's stream, and
                // these are parts of them; the workspace is as large as the plan requires.
                queue.driver_result(unsafe { driver.attend(&plan, &data, sums, workspace, queue.stream()) })?;
            }
        }
        Ok(true)
    }

    /// Returns the description of the case for cuDNN. `None` if cuDNN cannot be used: it takes 16-bit floats with
    /// aligned rows, without mask and dropout.
    fn describe(&self, places: &[TensorAddress<'_>]) -> Option<DnnAttention> {
        let [(q, _), (k, _), (v, _)] = self.inputs;
        let (&[batch, heads, queries, width], dtype) = (q.sizes(), q.dtype()) else { return None };
        let kv_heads = k.sizes()[1];
        let keys = k.sizes()[2];
        let value_width = v.sizes()[3];
        let mut multiples = [width, value_width].into_iter().chain(places.iter().flat_map(|(tensor, _)| {
            tensor
                .sizes()
                .iter()
                .zip(tensor.strides())
                .take(3)
                .filter(|(size, _)| **size > 1)
                .map(|(_, stride)| *stride)
        }));
        let is_aligned = places.iter().all(|(_, data)| data.is_multiple_of(ALIGNMENT as u64))
            && multiples.all(|stride| (stride * dtype.size()).is_multiple_of(ALIGNMENT));
        if !is_half(dtype)
            || !is_aligned
            || self.mask.is_some()
            || self.dropout_words.is_some()
            || queries * keys < TILE
            || [batch, heads, width, value_width].contains(&0)
        {
            return None;
        }
        let mut strides = [[0; 3]; 8];
        for (to, (tensor, _)) in strides.iter_mut().zip(places) {
            // A dimension of size 1 has no neighbours: its stride is set as if the tensor were dense.
            let sizes = tensor.sizes();
            let given = tensor.strides();
            *to =
                std::array::from_fn(|dim| if sizes[dim] > 1 { given[dim] } else { sizes[dim + 1..].iter().product() });
        }
        Some(DnnAttention {
            is_backward: places.len() == 8,
            is_in_any_order: false,
            dtype,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            width,
            value_width,
            scale: (self.weighting.scale as f32).to_bits(),
            is_causal: self.weighting.is_causal,
            strides,
            alignment: ALIGNMENT,
        })
    }

    /// Returns whether our own kernels use tensor cores for this case.
    fn uses_tensor_cores(&self) -> bool {
        let [(q, _), _, (v, _)] = self.inputs;
        is_half(q.dtype()) && q.sizes()[3].max(v.sizes()[3]) <= WIDEST
    }

    /// Launches one of our own kernels. `inner` is the address of the inner products. `grads` are the gradients of the
    /// means, queries, keys and values that the kernel reads or writes.
    fn launch(
        &self,
        queue: &Queue,
        kernel: AttentionKernel,
        inner: u64,
        grads: [Option<TensorAddress<'_>>; 4],
    ) -> Result<()> {
        let [(q, _), (k, _), (v, _)] = self.inputs;
        let [batch, heads, queries, width] = std::array::from_fn(|dim| q.sizes()[dim]);
        let kv_heads = k.sizes()[1];
        let keys = k.sizes()[2];
        let value_width = v.sizes()[3];
        let dtype = q.dtype();
        let is_half = is_half(dtype);
        let is_matrix = self.uses_tensor_cores();
        // The number of queries and keys in a block: as many as fit into a block's shared memory.
        let block = if dtype == DType::F64 { 32 } else { 64 };
        let blocks = match kernel {
            AttentionKernel::Attend | AttentionKernel::ToQueries => queries.div_ceil(block) * batch * heads,
            AttentionKernel::Inner if is_half => queries.div_ceil(block) * batch * heads,
            AttentionKernel::ToKeys => keys.div_ceil(block) * batch * kv_heads,
            AttentionKernel::Inner => (batch * heads * queries).div_ceil(THREADS as usize / THREADS_PER_ROW),
        };
        if blocks == 0 {
            return Ok(());
        }
        let mut words: SmallVec<[u64; 64]> = SmallVec::new();
        let sizes = [batch, heads, heads / kv_heads.max(1), queries, keys, width, value_width];
        words.extend(sizes.map(|size| size as u64));
        words.extend([bits(Scalar::Float(self.weighting.scale), "double"), u64::from(self.weighting.is_causal)]);
        self.inputs.iter().chain([&self.out]).for_each(|place| words.extend(heads_of(Some(*place))));
        words.push(self.sums);
        let strides = self.mask.map(|(mask, _)| mask.strides());
        words.push(self.mask.map_or(0, |(_, data)| data));
        words.extend((0..4).map(|dim| strides.map_or(0, |strides| strides[dim] as u64)));
        words.extend(heads_of(grads[0]));
        words.push(inner);
        grads[1..].iter().for_each(|place| words.extend(heads_of(*place)));
        words.extend(self.dropout_words.unwrap_or_default());

        let mask = match self.mask {
            None => 0,
            Some((mask, _)) if mask.dtype() == DType::Bool => 1,
            Some(_) => 2,
        };
        let [width, value_width] = [width, value_width].map(|width| width.max(32).next_power_of_two());
        let (op, name) = match kernel {
            AttentionKernel::Attend => ("attention", "ATTEND"),
            AttentionKernel::Inner => ("attention_inner", if is_half { "EXACT_INNER" } else { "INNER" }),
            AttentionKernel::ToQueries => ("attention_to_queries", "TO_QUERIES"),
            AttentionKernel::ToKeys => ("attention_to_keys", "TO_KEYS"),
        };
        let drops = u64::from(self.dropout_words.is_some());
        let widths = u64::from(width.trailing_zeros()) << 8 | u64::from(value_width.trailing_zeros());
        let variant = ((dtype as u64) << 3 | drops << 2 | mask) << 16 | widths;
        let threads = if is_matrix { THREADS_OF_HALVES } else { THREADS };
        let config = LaunchConfig { grid: [blocks as u32, 1, 1], block: [threads, 1, 1], shared_bytes: 0 };
        queue.launch(
            KernelName { op, variant },
            || {
                let stored = stored(dtype);
                let computed = computed(dtype);
                let kernels = if is_matrix {
                    format!("#define HALF \"{stored}\"\n{PARAMS}{MATRIX}{HALVES}")
                } else {
                    format!("#define BLOCK {block}\n{PARAMS}{PRODUCTS}{TEMPLATE}")
                };
                format!(
                    "typedef {stored} Stored;\ntypedef {computed} T;\n#define {name}\n#define WIDTH {width}\n\
                     #define VALUE_WIDTH {value_width}\n#define MASK {mask}\n#define DROPS {drops}\n\
                     {PHILOX}{kernels}"
                )
            },
            config,
            &mut words,
        )
    }
}

/// Returns the largest part of the batches, or of one batch's heads, whose gradients cuDNN can compute at once: its
/// workspace has two bytes for each pair of a query and a key.
fn largest_part(all: &DnnAttention) -> DnnAttention {
    /// The largest workspace in bytes, if there are several parts.
    const MOST: usize = 512 << 20;
    let of_head = all.queries.next_multiple_of(64) * all.keys.next_multiple_of(64) * 2 * (all.heads / all.kv_heads);
    // All parts have the same sizes, so that one plan fits all.
    let batch = largest_divisor(all.batch, MOST / (of_head * all.kv_heads).max(1));
    let kv_heads = if batch > 1 { all.kv_heads } else { largest_divisor(all.kv_heads, MOST / of_head.max(1)) };
    DnnAttention { batch, kv_heads, heads: all.heads / all.kv_heads * kv_heads, ..*all }
}

/// Returns the largest divisor of a number up to a limit, or 1.
fn largest_divisor(number: usize, limit: usize) -> usize {
    (1..=number.min(limit)).rev().find(|divisor| number.is_multiple_of(*divisor)).unwrap_or(1)
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Returns cuDNN's plan, or `None` if it does not support the case.
fn plan(queue: &Queue, driver: &CudaDriver, attention: &DnnAttention) -> Result<Option<DnnPlan>> {
    match driver.attention_plan(attention) {
        Err(error) if error.kind.is_unsupported() => Ok(None),
        plan => queue.driver_result(plan).map(Some),
    }
}

/// Returns the four words that describe a tensor to kernels: its address, and its strides without the last. Zeros for
/// `None`.
fn heads_of(place: Option<TensorAddress<'_>>) -> [u64; 4] {
    let Some((tensor, data)) = place else { return [0; 4] };
    let strides = tensor.strides();
    [data, strides[0] as u64, strides[1] as u64, strides[2] as u64]
}
