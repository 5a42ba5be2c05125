//! Copies, conversions between dtypes, and the writing of one value or of ranges of numbers.

use smallvec::SmallVec;
use tenure_device::cuda::{KernelName, LaunchConfig};

use super::elementwise::{self, Expression, expressions};
use super::iteration_space::{IterationSpace, linear, unit_type};
use super::queue::{self, Queue};
use super::{on_cpu, stored};
use crate::cpu;
use crate::cpu::copy::{Copy, RangeKernel, RangeRule};
use crate::elementwise::Dims;
use crate::kernel::on_cuda;
use crate::{Access, Elementwise, Entry, Result, Scalar, Tensor};

pub(crate) const COPY: &[Entry<Copy>] = on_cuda!(all: copy);

/// Copies. Between equal dtypes it moves bits, else it converts values.
fn copy(iter: &Elementwise<'_>) -> Result<()> {
    macro_rules! moved {
        ($name:literal, $type:literal) => {{
            static EXPRESSION: Expression =
                Expression { name: $name, lanes: &[$type, $type], values: &["a"], fault: None };
            &EXPRESSION
        }};
    }
    let to = iter.operands()[0].dtype;
    let from = iter.operands()[1].dtype;
    // The compute dtype holds every value of the target's; a source of more precision is rounded once.
    static CONVERTED: Expression = Expression { name: "convert", lanes: &["T", "T"], values: &["a"], fault: None };
    let is_here = iter.operands()[1].device.is_cpu();
    let expression = match to.size() {
        _ if from != to || is_here => &CONVERTED,
        1 => moved!("copy_1", "u8"),
        2 => moved!("copy_2", "u16"),
        4 => moved!("copy_4", "u32"),
        _ => moved!("copy_8", "u64"),
    };
    let host = move |iter: &Elementwise<'_>| on_cpu(iter.op(), &[cpu::copy::COPY], to)?(iter);
    if let Some(across) = across(iter).filter(|_| iter.numel() > 0) {
        let op = iter.op();
        return queue::submit(
            iter,
            |queue| launch_transpose(queue, iter, across),
            move |writes, reads| host(&Elementwise::new(op, &[&writes[0]], &[&reads[0]])?),
        );
    }
    elementwise::run(iter, to, expression, &[], host)
}

const TRANSPOSE: &str = include_str!("source/transpose.cu");
const THREADS: u32 = 256;

/// The size in bytes from which a side is worth a tile: with less, neighbours are in the first-level cache anyway.
const WORTH: usize = 32;

/// Returns the dimension along which the input is dense, if it is not the output's and both are long enough for a tile.
fn across(iter: &Elementwise<'_>) -> Option<usize> {
    let [out, input] = iter.operands() else { return None };
    let width = input.dtype.size();
    let across = input.strides.iter().position(|stride| *stride == width)?;
    let is_so = across > 0 && out.strides[0] == out.dtype.size() && input.strides[0] > width && !input.device.is_cpu();
    (is_so && [0, across].iter().all(|dim| iter.sizes()[*dim] * width >= WORTH)).then_some(across)
}

/// Copies tile by tile.
fn launch_transpose(queue: &Queue, iter: &Elementwise<'_>, across: usize) -> Result<()> {
    let [out, input] = iter.operands() else { return Ok(()) };
    let others = |numbers: &Dims| -> Dims {
        let kept = numbers.iter().enumerate().filter(|(dim, _)| *dim != 0 && *dim != across);
        kept.map(|(_, number)| *number).collect()
    };
    let sizes = Dims::from_slice(iter.sizes());
    let space = IterationSpace::new(&others(&sizes), &[&others(&out.strides), &others(&input.strides)]);
    let is_large = space.is_large(0);
    let side = if out.dtype.size() > 2 { 32 } else { 64 };
    let rows = sizes[across];
    let columns = sizes[0];
    let mut words: SmallVec<[u64; 64]> = space.words().collect();
    words.extend([out.data, input.data].map(|data| data.addr() as u64));
    words.extend([rows, columns, out.strides[across], input.strides[0]].map(|word| word as u64));
    let variant = space.variant(is_large) << 8 | (out.dtype as u64) << 4 | input.dtype as u64;
    let blocks = rows.div_ceil(side) * columns.div_ceil(side) * space.count();
    let config = LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
    queue.launch(
        KernelName { op: "transpose", variant },
        || {
            // Between equal dtypes, bits are moved.
            let is_same = out.dtype == input.dtype;
            let [to, from] =
                [out.dtype, input.dtype].map(|dtype| if is_same { unit_type(dtype.size()) } else { stored(dtype) });
            let pad = (4 / out.dtype.size()).max(1);
            let definitions =
                format!("#define SIDE {side}\n#define PAD {pad}\ntypedef {to} To;\ntypedef {from} From;\n");
            [&definitions, &space.source(is_large), TRANSPOSE].concat()
        },
        config,
        &mut words,
    )
}

expressions! {
    of copy:
    FILL: ["T"] (all), "n0", given value: Scalar;
}

pub(crate) const RANGES: &[Entry<RangeKernel>] = on_cuda!(numbers: range);

const SERIES: &str = include_str!("source/series.cu");

fn range(op: &'static str, out: &Tensor, rule: RangeRule) -> Result<()> {
    let count = out.numel();
    let dtype = out.dtype();
    if count == 0 {
        return Ok(());
    }
    let mut access = Access::new(op, &[out], &[])?;
    let to = access.write_word(0);
    let (rule_name, numbers) = match rule {
        RangeRule::Integers(start, step) => ("INTEGERS", [start as u64, step as u64, 0]),
        RangeRule::Floats(start, step) => ("FLOATS", [start.to_bits(), step.to_bits(), 0]),
        RangeRule::Between(start, end) => ("BETWEEN", [start.to_bits(), end.to_bits(), 0]),
        RangeRule::Powers(base, start, end) => ("POWERS", [start.to_bits(), end.to_bits(), base.to_bits()]),
    };
    queue::submit(
        &access,
        |queue: &mut Queue| {
            let [first, second, third] = numbers;
            let mut words = [to, count as u64, first, second, third];
            let is_floating = i32::from(dtype.is_floating());
            let variant = (dtype as u64) << 1 | u64::from(rule_name == "FLOATS");
            queue.launch(
                KernelName { op, variant },
                || {
                    let stored = stored(dtype);
                    format!("#define {rule_name}\n#define IS_FLOATING {is_floating}\ntypedef {stored} T;\n{SERIES}")
                },
                linear(count),
                &mut words,
            )
        },
        move |writes, _| on_cpu(op, &[cpu::copy::RANGES], dtype)?(op, &writes[0], rule),
    )
}
