//! Ranges of numbers: arange, linspace, logspace.

use tenure_device::cuda::KernelName;

use super::iteration_space::linear;
use super::queue::{self, Queue};
use super::{on_cpu, stored};
use crate::cpu;
use crate::cpu::ranges::{RangeKernel, RangeRule};
use crate::kernel::on_cuda;
use crate::{Access, Entry, Result, Tensor};

pub(crate) const RANGES: &[Entry<RangeKernel>] = on_cuda!(numbers: range);

const TEMPLATE: &str = include_str!("source/series.cu");

fn range(op: &'static str, out: &Tensor, rule: RangeRule) -> Result<()> {
    let count = out.numel();
    let dtype = out.dtype();
    if count == 0 {
        return Ok(());
    }
    let mut access = Access::new(op, &[out], &[])?;
    let to = access.write_ptr(0).addr() as u64;
    let (rule_name, numbers) = match rule {
        RangeRule::Integers(start, step) => ("INTEGERS", [start as u64, step as u64, 0]),
        RangeRule::Floats(start, step) => ("FLOATS", [start.to_bits(), step.to_bits(), 0]),
        RangeRule::Between(start, end) => ("BETWEEN", [start.to_bits(), end.to_bits(), 0]),
        RangeRule::Powers(base, start, end) => ("POWERS", [start.to_bits(), end.to_bits(), base.to_bits()]),
    };
    let launch = |queue: &mut Queue| {
        let [first, second, third] = numbers;
        let mut words = [to, count as u64, first, second, third];
        let is_floating = i32::from(dtype.is_floating());
        let variant = (dtype as u64) << 1 | u64::from(rule_name == "FLOATS");
        queue.launch(
            KernelName { op, variant },
            || {
                let stored = stored(dtype);
                format!("#define {rule_name}\n#define IS_FLOATING {is_floating}\ntypedef {stored} T;\n{TEMPLATE}")
            },
            linear(count),
            &mut words,
        )
    };
    queue::submit(&access, launch, move |writes, _| on_cpu(op, &[cpu::ranges::RANGES], dtype)?(op, &writes[0], rule))
}
