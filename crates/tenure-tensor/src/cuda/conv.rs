//! Convolutions by cuDNN, or by a kernel of one thread or block for each element if cuDNN does not support the case.

use smallvec::SmallVec;
use tenure_device::cuda::{Compute, ConvolutionPass as Pass, CudaDriver, DnnConvolution, KernelName, LaunchConfig};

use super::pointwise::ADD;
use super::queue::{self, Queue};
use super::{computed, on_cpu, stored};
use crate::cpu;
use crate::cpu::conv::{Convolve, WeightGradient};
use crate::geometry::{Geometry, along_channels};
use crate::kernel::{find, on_cuda};
use crate::{Access, Elementwise, Entry, Result, Tensor, precision};

pub(crate) const CONVOLVE: &[Entry<Convolve>] = on_cuda!(floats: convolve);
pub(crate) const TRANSPOSED: &[Entry<Convolve>] = on_cuda!(floats: transposed);
pub(crate) const WEIGHT_GRADIENT: &[Entry<WeightGradient>] = on_cuda!(floats: weight_gradient);

const TEMPLATE: &str = include_str!("source/conv.cu");
const THREADS: u64 = 256;

fn convolve(out: &Tensor, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>, geometry: &Geometry) -> Result<()> {
    let there = *geometry;
    let work = ConvCall { pass: Pass::Forward, operands: [input, weight, out], geometry };
    work.submit("conv", bias, move |out, [a, b], bias| {
        let host = on_cpu("conv", &[cpu::conv::CONVOLVE, cpu::conv::CONVOLVE_HALVES], out.dtype())?;
        host(out, a, b, bias, &there)
    })
}

fn transposed(out: &Tensor, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>, geometry: &Geometry) -> Result<()> {
    let there = *geometry;
    let work = ConvCall { pass: Pass::DataGradient, operands: [out, weight, input], geometry };
    work.submit("conv_transpose", bias, move |out, [a, b], bias| {
        let host = on_cpu("conv_transpose", &[cpu::conv::TRANSPOSED, cpu::conv::TRANSPOSED_HALVES], out.dtype())?;
        host(out, b, a, bias, &there)
    })
}

fn weight_gradient(out: &Tensor, input: &Tensor, grad: &Tensor, geometry: &Geometry) -> Result<()> {
    let there = *geometry;
    let work = ConvCall { pass: Pass::WeightGradient, operands: [input, out, grad], geometry };
    work.submit("conv_weight_gradient", None, move |out, [a, b], _| {
        let lists = [cpu::conv::WEIGHT_GRADIENT, cpu::conv::WEIGHT_GRADIENT_HALVES];
        on_cpu("conv_weight_gradient", &lists, out.dtype())?(out, a, b, &there)
    })
}

/// A convolution: images, weight and result, one of which is computed from the two others. All three are contiguous, or
/// all have their channels last.
struct ConvCall<'a> {
    pass: Pass,
    operands: [&'a Tensor; 3],
    geometry: &'a Geometry,
}

impl ConvCall<'_> {
    /// Computes the convolution and adds the bias. `host` does both with contiguous tensors: the written one, and the
    /// others in order.
    fn submit(
        &self,
        op: &'static str,
        bias: Option<&Tensor>,
        host: impl Fn(&Tensor, [&Tensor; 2], Option<&Tensor>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let written = match self.pass {
            Pass::DataGradient => 0,
            Pass::WeightGradient => 1,
            Pass::Forward => 2,
        };
        let out = self.operands[written];
        if out.numel() == 0 {
            return Ok(());
        }
        let others: SmallVec<[&Tensor; 3]> =
            (0..3).filter(|index| *index != written).map(|i| self.operands[i]).collect();
        let reads: SmallVec<[&Tensor; 3]> = others.into_iter().chain(bias).collect();
        let mut access = Access::new(op, &[out], &reads)?;
        let mut data = [access.read_word(0), access.read_word(1), 0];
        data[written..].rotate_right(1);
        data[written] = access.write_word(0);
        let bias_data = bias.map_or(0, |_| access.read_word(2));
        let mut is_biased = true;
        queue::submit(
            &access,
            |queue| match queue.cuda() {
                Some(driver) if self.convolve(queue, driver, data)? => {
                    is_biased = bias.is_none();
                    Ok(())
                }
                _ => self.convolve_directly(queue, op, data, bias_data),
            },
            move |writes, reads| {
                let dense = Tensor::empty(writes[0].sizes(), writes[0].dtype(), writes[0].device())?;
                host(&dense, [&reads[0].contiguous()?, &reads[1].contiguous()?], reads.get(2))?;
                writes[0].copy_raw(&dense)
            },
        )?;
        drop(access);
        match bias {
            Some(bias) if !is_biased => add_to_channels(op, out, bias),
            _ => Ok(()),
        }
    }

    /// Computes by the library. Returns `false` if the library is missing or does not support the case.
    fn convolve(&self, queue: &mut Queue, driver: &CudaDriver, data: [u64; 3]) -> Result<bool> {
        if self.operands.iter().any(|operand| operand.numel() == 0) {
            return Ok(false);
        }
        let rank = self.operands[0].rank().max(4);
        let Geometry { stride, padding, dilation, .. } = *self.geometry;
        let alignment = data.iter().map(|address| address.trailing_zeros()).min().unwrap_or(0);
        let convolution = DnnConvolution {
            pass: self.pass,
            dtype: self.operands[0].dtype(),
            compute: if precision::tf32_in_convolutions() { Compute::Tf32 } else { Compute::Full },
            spatial: rank - 2,
            input: sizes(self.operands[0], rank),
            weight: sizes(self.operands[1], rank),
            output: sizes(self.operands[2], rank),
            is_channels_last: !self.operands.iter().all(|operand| operand.is_contiguous()),
            stride,
            padding,
            dilation,
            alignment: 1 << alignment.min(4),
        };
        let plan = match driver.convolution_plan(&convolution) {
            Err(error) if error.kind.is_unsupported() => {
                return Ok(false);
            }
            plan => queue.driver_result(plan)?,
        };
        let plan = match queue.candidates().filter(|_| !plan.is_tuned()) {
            None => plan,
            Some(count) => {
                let (stream, room) = (queue.stream(), |bytes: usize| queue.workspace(bytes.max(1)).ok());
                // SAFETY: as below; the convolution afterwards overwrites the results of the trials.
                let tuned = unsafe { driver.tune_convolution(&convolution, data, stream, count, room) };
                queue.driver_result(tuned)?
            }
        };
        let bytes = plan.workspace_bytes();
        let workspace = if bytes > 0 { queue.workspace(bytes)? } else { 0 };
        // SAFETY: the tensors are as described, locked by the caller and recorded on the queue's stream; the workspace
        // is as large as the plan requires.
        queue.driver_result(unsafe { driver.convolve(&plan, data, workspace, queue.stream()) })?;
        Ok(true)
    }

    /// Computes by our own kernel.
    fn convolve_directly(&self, queue: &Queue, op: &'static str, data: [u64; 3], bias: u64) -> Result<()> {
        let [input, weight, output] = self.operands;
        let Geometry { stride, padding, dilation, groups } = *self.geometry;
        let mut words: SmallVec<[u64; 64]> = SmallVec::new();
        words.extend([input.sizes()[0], groups, weight.sizes()[1], weight.sizes()[0] / groups].map(|size| size as u64));
        for sizes in
            [spatial(input, input.sizes(), 1), spatial(weight, weight.sizes(), 1), spatial(output, output.sizes(), 1)]
        {
            words.extend(sizes.map(|size| size as u64));
        }
        for numbers in [stride, padding, dilation] {
            words.extend(numbers.map(|number| number as u64));
        }
        for (operand, address) in self.operands.into_iter().zip(data) {
            words.push(address);
            words.extend(operand.strides()[..2].iter().map(|stride| *stride as u64));
            words.extend(spatial(operand, operand.strides(), 0).map(|stride| stride as u64));
        }
        words.push(bias);
        let dtype = input.dtype();
        let (pass, blocks) = match self.pass {
            Pass::Forward => ("FORWARD", (output.numel() as u64).div_ceil(THREADS)),
            Pass::DataGradient => ("DATA_GRADIENT", (input.numel() as u64).div_ceil(THREADS)),
            Pass::WeightGradient => ("WEIGHT_GRADIENT", weight.numel() as u64),
        };
        let grid = [blocks.min(i32::MAX as u64) as u32, 1, 1];
        let config = LaunchConfig { grid, block: [THREADS as u32, 1, 1], shared_bytes: 0 };
        queue.launch(
            KernelName { op, variant: dtype as u64 },
            || {
                let stored = stored(dtype);
                let computed = computed(dtype);
                format!("typedef {stored} Stored;\ntypedef {computed} T;\n#define {pass}\n{TEMPLATE}")
            },
            config,
            &mut words,
        )
    }
}

/// Returns the elements of `all` for depth, height and width, and `none` for missing dimensions.
fn spatial(tensor: &Tensor, all: &[usize], none: usize) -> [usize; 3] {
    std::array::from_fn(|dim| (dim + tensor.rank()).checked_sub(3).filter(|at| *at >= 2).map_or(none, |at| all[at]))
}

/// Adds a channel's number to each of its pixels.
fn add_to_channels(op: &'static str, out: &Tensor, bias: &Tensor) -> Result<()> {
    let bias = along_channels(bias, out)?;
    find(op, &[ADD], out.device().kind(), out.dtype())?(&Elementwise::new(op, &[out], &[out, &bias])?)
}

/// Returns a tensor's sizes as the library takes them: a single spatial dimension counts as the width.
fn sizes(tensor: &Tensor, rank: usize) -> [usize; 5] {
    let sizes = tensor.sizes();
    let mut padded = [1; 5];
    padded[..2].copy_from_slice(&sizes[..2]);
    padded[rank + 2 - sizes.len()..rank].copy_from_slice(&sizes[2..]);
    padded
}
