//! Attention that does not store the matrix of all weights, and its gradients. 16-bit floats use cuDNN; to give the
//! same bits every time, cuDNN's gradients take such a matrix for some heads at a time. All else uses our own kernels.
//! So does dropout: it draws the random numbers that a tensor of all weights would get, and cuDNN draws others.

use smallvec::SmallVec;
use tenure_device::cuda::{CudaDriver, DnnAttention, DnnPlan, KernelName, LaunchConfig};

use super::elementwise::bits;
use super::queue::{self, Queue};
use super::random::{PHILOX, Start, placed};
use super::{computed, on_cpu, stored};
use crate::cpu::attention::{self, Attend, AttendBackward};
use crate::cpu::random::limit;
use crate::kernel::on_cuda;
use crate::ops::{Dropping, Weighting};
use crate::random::GeneratorState;
use crate::{Access, DType, Entry, Result, Scalar, Tensor, tuning};

pub(crate) const ATTEND: &[Entry<Attend>] = on_cuda!(floats: attend);
pub(crate) const BACKWARD: &[Entry<AttendBackward>] = on_cuda!(floats: backward);

const PARAMS: &str = include_str!("source/attention_params.cu");
const PRODUCTS: &str = include_str!("source/products.cu");
const TEMPLATE: &str = include_str!("source/attention.cu");
const THREADS: u32 = 256;

/// The parts of the kernels for 16-bit floats, which use matrix units.
const MATRIX: &str = include_str!("source/matrix.cu");
const HALVES: &str = include_str!("source/attention_halves.cu");
const THREADS_OF_HALVES: u32 = 128;

/// The widest rows of 16-bit floats for which registers and shared memory have room.
const WIDEST: usize = 256;

/// The alignment in bytes that the library needs for the addresses of rows.
const ALIGNMENT: usize = 16;

/// The number of query-key products from which the library's matrix units pay. Below it, our own kernel rounds less.
const TILE: usize = 16 * 16;

/// The number of threads that share a row.
const SIDE: usize = 16;

fn attend(outputs: [&Tensor; 2], inputs: [&Tensor; 3], mask: Option<&Tensor>, weighting: Weighting) -> Result<()> {
    let [out, sums] = outputs;
    if sums.numel() == 0 {
        return Ok(());
    }
    let start = weighting.dropout.map(|dropping| Start::of(dropping.state)).transpose()?;
    let origin = start.as_ref().and_then(|start| start.origin.as_ref());
    let reads: SmallVec<[&Tensor; 5]> = inputs.into_iter().chain(mask).chain(origin).collect();
    let mut access = Access::new("attention", &outputs, &reads)?;
    let written = [0, 1].map(|index| access.write_ptr(index).addr() as u64);
    let read: SmallVec<[u64; 5]> = (0..reads.len()).map(|index| access.read_ptr(index).addr() as u64).collect();
    let at = |index: usize| (inputs[index], read[index]);
    let work = AttentionCall {
        inputs: [at(0), at(1), at(2)],
        out: (out, written[0]),
        sums: written[1],
        mask: mask.map(|mask| (mask, read[3])),
        weighting,
        drawn: drawn(weighting, start.as_ref(), &access, reads.len() - 1),
    };
    let has_mask = mask.is_some();
    let state = start.as_ref().map(|start| start.state);
    queue::submit(
        &access,
        |queue| match queue.cuda() {
            Some(driver) if work.attend_by_library(queue, driver)? => Ok(()),
            _ => work.launch(queue, AttentionKernel::Attend, 0, [None; 4]),
        },
        move |writes, reads| {
            let lists = [attention::ATTEND, attention::ATTEND_HALVES];
            let host = on_cpu("attention", &lists, reads[0].dtype())?;
            let (mask, origin) = reads[3..].split_at(usize::from(has_mask));
            let weighting = begun(weighting, state, origin)?;
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
    let written = [0, 1, 2].map(|index| access.write_ptr(index).addr() as u64);
    let read: SmallVec<[u64; 8]> = (0..reads.len()).map(|index| access.read_ptr(index).addr() as u64).collect();
    let work = AttentionCall {
        inputs: [(q, read[0]), (k, read[1]), (v, read[2])],
        out: (out, read[4]),
        sums: read[5],
        mask: mask.map(|mask| (mask, read[6])),
        weighting,
        drawn: drawn(weighting, start.as_ref(), &access, reads.len() - 1),
    };
    let has_mask = mask.is_some();
    let state = start.as_ref().map(|start| start.state);
    let to = |index: usize| Some((outputs[index], written[index]));
    let all = [Some((grad, read[3])), to(0), to(1), to(2)];
    queue::submit(
        &access,
        |queue| {
            if let Some(driver) = queue.cuda()
                && work.differentiate_by_library(queue, driver, all)?
            {
                return Ok(());
            }
            let parts = [AttentionKernel::Inner, AttentionKernel::ToQueries, AttentionKernel::ToKeys];
            // With matrix units, the inner sums are found on the way to the gradients of queries, and stored with each
            // query's sum.
            let (parts, numbers) = if work.is_by_matrix_units() { (&parts[1..], 2) } else { (&parts[..], 1) };
            let inner = queue.workspace(sums.numel().max(1) * numbers * sums.dtype().size())?;
            parts.iter().try_for_each(|part| work.launch(queue, *part, inner, all))
        },
        move |writes, reads| {
            let grad = reads[3].contiguous()?;
            let inputs = [&reads[0], &reads[1], &reads[2], &grad, &reads[4], &reads[5]];
            let dense = |index: usize| Tensor::empty(writes[index].sizes(), writes[index].dtype(), grad.device());
            let all = [dense(0)?, dense(1)?, dense(2)?];
            let lists = [attention::BACKWARD, attention::BACKWARD_HALVES];
            let host = on_cpu("attention_backward", &lists, grad.dtype())?;
            let (mask, origin) = reads[6..].split_at(usize::from(has_mask));
            let weighting = begun(weighting, state, origin)?;
            host([&all[0], &all[1], &all[2]], inputs, mask.first(), weighting)?;
            writes.iter().zip(&all).try_for_each(|(to, dense)| to.copy_raw(dense))
        },
    )
}

/// Returns the kernel's words for dropout: the state where draws begin, the number of the 2³² words that keep a weight,
/// and the factor of kept weights. The origin, if there is one, is read tensor `last` of `access`.
fn drawn(weighting: Weighting, start: Option<&Start>, access: &Access<'_>, last: usize) -> Option<[u64; 5]> {
    let start = start?;
    let kept = 1.0 - weighting.dropout?.probability;
    let [seed, offset, origin] = start.words(access, last);
    Some([seed, offset, origin, limit(kept), (1.0 / kept).to_bits()])
}

/// Returns the weighting on the host, with `state` resolved if it counts from an origin.
fn begun(weighting: Weighting, state: Option<GeneratorState>, origin: &[Tensor]) -> Result<Weighting> {
    let (Some(dropping), Some(state)) = (weighting.dropout, state) else { return Ok(weighting) };
    Ok(Weighting { dropout: Some(Dropping { state: placed(state, origin)?, ..dropping }), ..weighting })
}

/// A tensor, and the address of its first element.
type TensorAddress<'a> = (&'a Tensor, u64);

/// The kernel of the source to launch.
#[derive(Clone, Copy)]
enum AttentionKernel {
    Attend,
    Inner,
    ToQueries,
    ToKeys,
}

struct AttentionCall<'a> {
    /// Queries, keys and values.
    inputs: [TensorAddress<'a>; 3],
    /// The weighted means.
    out: TensorAddress<'a>,
    sums: u64,
    mask: Option<TensorAddress<'a>>,
    weighting: Weighting,
    drawn: Option<[u64; 5]>,
}

impl AttentionCall<'_> {
    /// Computes by the library. Returns `false` if the library is missing or does not support the case.
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

    /// Computes the gradients by the library, some batches or heads after the others. Returns `false` as
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
        // For long sequences, the weights of even one head are too many to store: then sums are in any order.
        let mut ways = [together(&all), DnnAttention { is_in_any_order: true, ..all }];
        if tuning::sums_in_any_order() {
            ways.reverse();
        }
        let mut found = None;
        for some in ways {
            // The sums of each part must begin at an aligned address.
            let is_all = (some.batch, some.heads) == (all.batch, all.heads);
            let is_aligned = is_all || (some.heads * some.queries * size_of::<f32>()).is_multiple_of(ALIGNMENT);
            if is_aligned && found.is_none() {
                found = plan(queue, driver, &some)?.map(|plan| (plan, some));
            }
        }
        let Some((plan, some)) = found else { return Ok(false) };
        let workspace = queue.workspace(plan.workspace_bytes().max(1))?;
        for batch in (0..all.batch).step_by(some.batch) {
            for head in (0..all.kv_heads).step_by(some.kv_heads) {
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

    /// Returns the description for the library, or `None` if the library cannot be used. It takes 16-bit floats with
    /// aligned rows, without a mask, and without dropout, whose random numbers are ours.
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
            || self.drawn.is_some()
            || queries * keys < TILE
            || [batch, heads, width, value_width].contains(&0)
        {
            return None;
        }
        let mut strides = [[0; 3]; 8];
        for (to, (tensor, _)) in strides.iter_mut().zip(places) {
            // A dimension of size 1 has no neighbours: its stride is set as if the tensor were dense.
            let [sizes, given] = [tensor.sizes(), tensor.strides()];
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

    /// Returns whether our own kernels use matrix units for this.
    fn is_by_matrix_units(&self) -> bool {
        let [(q, _), _, (v, _)] = self.inputs;
        is_half(q.dtype()) && q.sizes()[3].max(v.sizes()[3]) <= WIDEST
    }

    /// Launches a kernel. `grads` are the gradients of the means, queries, keys and values that it needs.
    fn launch(
        &self,
        queue: &Queue,
        part: AttentionKernel,
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
        let is_matrix = self.is_by_matrix_units();
        // The number of queries and keys in a block: as many as fit into a block's shared memory.
        let block = if dtype == DType::F64 { 32 } else { 64 };
        let blocks = match part {
            AttentionKernel::Attend | AttentionKernel::ToQueries => queries.div_ceil(block) * batch * heads,
            AttentionKernel::Inner if is_half => queries.div_ceil(block) * batch * heads,
            AttentionKernel::ToKeys => keys.div_ceil(block) * batch * kv_heads,
            AttentionKernel::Inner => (batch * heads * queries).div_ceil(THREADS as usize / SIDE),
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
        words.extend(self.drawn.unwrap_or_default());

        let mask = match self.mask {
            None => 0,
            Some((mask, _)) if mask.dtype() == DType::Bool => 1,
            Some(_) => 2,
        };
        let [width, value_width] = [width, value_width].map(|width| width.max(32).next_power_of_two());
        let (op, name) = match part {
            AttentionKernel::Attend => ("attention", "ATTEND"),
            AttentionKernel::Inner => ("attention_inner", if is_half { "EXACT_INNER" } else { "INNER" }),
            AttentionKernel::ToQueries => ("attention_to_queries", "TO_QUERIES"),
            AttentionKernel::ToKeys => ("attention_to_keys", "TO_KEYS"),
        };
        let drops = u64::from(self.drawn.is_some());
        let bits_of = |size: usize| u64::from(size.trailing_zeros());
        let variant = ((dtype as u64) << 3 | drops << 2 | mask) << 16 | bits_of(width) << 8 | bits_of(value_width);
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

/// Returns as large a part of the batches, or of one batch's heads, as may be differentiated together: the library
/// needs two bytes for each pair of a query and a key.
fn together(all: &DnnAttention) -> DnnAttention {
    /// The largest workspace in bytes, if there are several parts.
    const MOST: usize = 512 << 20;
    let of_head = all.queries.next_multiple_of(64) * all.keys.next_multiple_of(64) * 2 * (all.heads / all.kv_heads);
    // All parts have the same sizes, so that one plan fits all.
    let largest = |count: usize, bytes: usize| {
        (1..=count).rev().find(|part| count.is_multiple_of(*part) && part * bytes <= MOST).unwrap_or(1)
    };
    let batch = largest(all.batch, of_head * all.kv_heads);
    let kv_heads = if batch > 1 { all.kv_heads } else { largest(all.kv_heads, of_head) };
    DnnAttention { batch, kv_heads, heads: all.heads / all.kv_heads * kv_heads, ..*all }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Returns the library's plan, or `None` if it does not support the case.
fn plan(queue: &Queue, driver: &CudaDriver, attention: &DnnAttention) -> Result<Option<DnnPlan>> {
    match driver.attention_plan(attention) {
        Err(error) if error.kind.is_unsupported() => Ok(None),
        plan => queue.driver_result(plan).map(Some),
    }
}

/// Returns a tensor as kernels take it: its address, and its strides without the last.
fn heads_of(place: Option<TensorAddress<'_>>) -> [u64; 4] {
    let Some((tensor, data)) = place else { return [0; 4] };
    let stride = |dim: usize| tensor.strides()[dim] as u64;
    [data, stride(0), stride(1), stride(2)]
}
