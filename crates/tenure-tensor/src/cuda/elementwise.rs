//! Kernels of elementwise expressions, compiled for each combination of dtypes and strides at its first use.

use smallvec::SmallVec;
use tenure_device::cuda::{KernelName, LaunchConfig};

use super::iteration_space::{RANKS, is_large};
use super::queue::{self, Host, Queue};
use super::{computed, stored};
use crate::elementwise::ElementwiseOperand;
use crate::{Element, Elementwise, Result, Scalar, Tensor};
use tenure_core::DType;

const TEMPLATE: &str = include_str!("source/elementwise.cu");
const THREADS: u64 = 256;

/// The largest number of elements of one thread, and the largest number of bytes that it moves at once.
const WIDEST: usize = 8;
const VECTOR_BYTES: usize = 16;

/// An expression in CUDA C++ that computes one element of each output from one element of each input (`a`, `b`, ...)
/// and from numbers (`n0`, `n1`, ...).
pub(super) struct Expression {
    /// The kernel's name, unique to the expression.
    pub(super) name: &'static str,
    /// The types of the outputs and then the inputs in the expression: `T` is the type to compute in, and `u8` to `u64`
    /// are the element's bits as in memory.
    pub(super) lanes: &'static [&'static str],
    /// The value to write to each output.
    pub(super) values: &'static [&'static str],
    /// The code of the error that the expression may report, by `report(fault, code, ...)`.
    pub(super) fault: Option<u64>,
}

/// Defines tables of functions that compute an expression of elements, and of the numbers that are `given`. Each table
/// has the name of its counterpart on the CPU.
macro_rules! expressions {
    (of $module:ident: $(
        $name:ident: $lanes:tt ($($dtypes:tt)*), $value:expr $(, also $second:expr)?
            $(, given $given:ident: $type:ty)? $(, fault $fault:expr)?;
    )*) => {$(
        pub(crate) const $name: &[$crate::Entry<fn(&$crate::Elementwise<'_> $(, $type)?) -> $crate::Result<()>>] = {
            use $crate::cuda::elementwise::{self, Expression};

            static EXPRESSION: Expression = Expression {
                name: concat!(module_path!(), "::", stringify!($name)),
                lanes: &$lanes,
                values: &[$value $(, $second)?],
                fault: elementwise::expressions!(@fault $($fault)?),
            };
            // The code that dtypes have in common is compiled once.
            fn run(
                iter: &$crate::Elementwise<'_>, dtype: $crate::DType $(, $given: $type)?
            ) -> $crate::Result<()> {
                let numbers = elementwise::expressions!(@numbers $($given)?);
                elementwise::run(iter, dtype, &EXPRESSION, &numbers, move |iter| {
                    $crate::cuda::on_cpu(iter.op(), &[$crate::cpu::$module::$name], dtype)?(iter $(, $given)?)
                })
            }
            fn kernel<E: $crate::Element>(iter: &$crate::Elementwise<'_> $(, $given: $type)?) -> $crate::Result<()> {
                run(iter, E::DTYPE $(, $given)?)
            }
            $crate::kernel::on_cuda!($($dtypes)*: kernel::<T>)
        };
    )*};
    (@fault) => { None };
    (@fault $fault:expr) => { Some($fault) };
    (@numbers) => { [] };
    (@numbers $given:ident) => { elementwise::KernelArguments::numbers($given) };
}
pub(super) use expressions;

/// Converts a function's arguments other than tensors to an expression's numbers.
pub(super) trait KernelArguments<const N: usize> {
    fn numbers(self) -> [Scalar; N];
}

impl KernelArguments<1> for Scalar {
    fn numbers(self) -> [Scalar; 1] {
        [self]
    }
}

impl KernelArguments<1> for f64 {
    fn numbers(self) -> [Scalar; 1] {
        [Scalar::Float(self)]
    }
}

impl<const N: usize> KernelArguments<N> for [f64; N] {
    fn numbers(self) -> [Scalar; N] {
        self.map(Scalar::Float)
    }
}

/// Writes the values of the expression to the outputs of `iter`, computed in the dtype `compute`. A simulated device
/// calls `host` instead.
pub(super) fn run(
    iter: &Elementwise<'_>,
    compute: DType,
    expression: &'static Expression,
    numbers: &[Scalar],
    host: impl Fn(&Elementwise<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let op = iter.op();
    let mut host = Some(host);
    run_erased(iter, compute, expression, numbers, &mut || {
        let host = host.take()?;
        Some(Box::new(move |writes, reads| host(&of_tensors(op, writes, reads)?)))
    })
}

fn of_tensors<'a>(op: &'static str, writes: &'a [Tensor], reads: &'a [Tensor]) -> Result<Elementwise<'a>> {
    let (writes, reads): (Vec<&Tensor>, Vec<&Tensor>) = (writes.iter().collect(), reads.iter().collect());
    Elementwise::new(op, &writes, &reads)
}

/// Does the same as [`run`], but `host` takes the written and the read tensors, which have the operands' common sizes.
pub(super) fn run_of(
    iter: &Elementwise<'_>,
    compute: DType,
    expression: &'static Expression,
    numbers: &[Scalar],
    host: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let mut host = Some(host);
    run_erased(iter, compute, expression, numbers, &mut || Some(Box::new(host.take()?)))
}

/// Does the work of [`run`] and [`run_of`]. It calls `host` at most once.
fn run_erased(
    iter: &Elementwise<'_>,
    compute: DType,
    expression: &'static Expression,
    numbers: &[Scalar],
    host: &mut dyn FnMut() -> Option<Host>,
) -> Result<()> {
    if iter.numel() == 0 {
        return Ok(());
    }
    let shape = ElementwiseShape::new(iter, expression);
    queue::submit_erased(iter, &mut |queue| shape.launch(queue, iter, compute, expression, numbers), host)
}

/// The way in which a thread reads an operand.
#[derive(Clone, Copy, PartialEq)]
enum OperandReading {
    /// As vectors: elements are contiguous along the first dimension.
    Dense,
    /// One element: its stride along the first dimension is 0, or each thread has only one element.
    One,
    /// From the kernel's parameters: the operand is a number on the CPU.
    Host,
}

/// The properties other than dtypes that a kernel is compiled for.
struct ElementwiseShape {
    /// The number of elements of a thread.
    width: usize,
    dims: usize,
    /// Whether indices need 64 bits.
    is_large: bool,
    readings: SmallVec<[OperandReading; 4]>,
}

impl ElementwiseShape {
    fn new(iter: &Elementwise<'_>, expression: &Expression) -> Self {
        let sizes = iter.sizes();
        let operands = iter.operands();
        debug_assert_eq!(operands.len(), expression.lanes.len());
        let mut readings: SmallVec<[OperandReading; 4]> = SmallVec::new();
        let mut width = WIDEST;
        for operand in operands {
            let size = operand.dtype.size();
            let inner = operand.strides.first().copied().unwrap_or(0);
            let kind = match () {
                () if operand.device.is_cpu() => OperandReading::Host,
                () if inner == size && sizes.first().is_some_and(|size| *size > 1) => OperandReading::Dense,
                () => OperandReading::One,
            };
            readings.push(kind);
            match kind {
                OperandReading::Host => {}
                OperandReading::One if inner == 0 => {}
                OperandReading::One => width = 1,
                OperandReading::Dense => {
                    width = width.min(VECTOR_BYTES / size);
                    let places = operand.strides[1..].iter().copied().chain([operand.data.addr()]);
                    while places.clone().any(|place| !place.is_multiple_of(width * size)) {
                        width /= 2;
                    }
                }
            }
        }
        if readings[..expression.values.len()].iter().any(|kind| *kind != OperandReading::Dense) {
            width = 1;
        }
        // With a single dimension, the last vector may be partial. With several, every row must be whole vectors.
        while sizes.len() > 1 && !sizes[0].is_multiple_of(width) {
            width /= 2;
        }
        let largest = operands
            .iter()
            .map(|operand: &ElementwiseOperand| {
                sizes.iter().zip(&operand.strides).map(|(size, stride)| size * stride).sum::<usize>()
            })
            .max()
            .unwrap_or(0)
            .max(iter.numel());
        let dims = RANKS.into_iter().find(|rank| *rank >= sizes.len()).unwrap_or(sizes.len());
        Self { width, dims, is_large: is_large(largest), readings }
    }

    fn launch(
        &self,
        queue: &Queue,
        iter: &Elementwise<'_>,
        compute: DType,
        expression: &'static Expression,
        numbers: &[Scalar],
    ) -> Result<()> {
        let sizes = iter.sizes();
        let operands = iter.operands();
        let first = sizes.first().copied().unwrap_or(1);
        let vectors = first.div_ceil(self.width) * sizes.iter().skip(1).product::<usize>();
        let mut words: SmallVec<[u64; 64]> = SmallVec::new();
        words.extend([vectors as u64, first as u64]);
        let size =
            |dim: usize| if dim == 0 { first.div_ceil(self.width) } else { sizes.get(dim).copied().unwrap_or(1) };
        words.extend((0..self.dims).map(|dim| size(dim) as u64));
        for (index, operand) in operands.iter().enumerate() {
            words.push(match self.readings[index] {
                OperandReading::Host => {
                    bits(host_value(operand), &expression.lanes[index].replace('T', computed(compute)))
                }
                _ => operand.data.addr() as u64,
            });
            let stride =
                |dim: usize| operand.strides.get(dim).copied().unwrap_or(0) * if dim == 0 { self.width } else { 1 };
            words.extend((0..self.dims).map(|dim| stride(dim) as u64));
        }
        words.extend(numbers.iter().map(|number| bits(*number, computed(compute))));
        if let Some(code) = expression.fault {
            words.extend(queue.fault(code)?);
        }
        let name = KernelName { op: expression.name, variant: self.variant(operands, compute) };
        let config = LaunchConfig {
            grid: [vectors.div_ceil(THREADS as usize) as u32, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared_bytes: 0,
        };
        queue.launch(name, || self.source(operands, compute, expression, numbers.len()), config, &mut words)
    }

    /// Returns a number that identifies the kernel's source among the sources of its expression.
    fn variant(&self, operands: &[ElementwiseOperand], compute: DType) -> u64 {
        let mut variant = compute as u64;
        let mut push = |value: u64, bits: u32| variant = variant << bits | value;
        push(u64::from(self.width.trailing_zeros()), 2);
        push(u64::from(self.is_large), 1);
        push(self.dims as u64, 5);
        for (operand, kind) in operands.iter().zip(&self.readings) {
            push(operand.dtype as u64, 4);
            push(*kind as u64, 2);
        }
        variant
    }

    /// Returns the kernel's source.
    fn source(
        &self,
        operands: &[ElementwiseOperand],
        compute: DType,
        expression: &Expression,
        numbers: usize,
    ) -> String {
        let width = self.width;
        let dims = self.dims;
        let index = if self.is_large { "u64" } else { "u32" };
        let lane = |operand: usize| expression.lanes[operand];
        let outputs = expression.values.len();
        let inputs: Vec<(usize, char)> = (outputs..operands.len()).zip('a'..).collect();
        let mut text = format!(
            "#define V {width}\n#define DIMS {dims}\ntypedef {index} Index;\ntypedef {} T;\n",
            computed(compute)
        );
        text.push_str(MATH);
        text.push_str(TEMPLATE);

        let mut line = |words: std::fmt::Arguments<'_>| text.extend([&words.to_string()[..], "\n"]);
        let arguments: String = inputs.iter().map(|(operand, name)| format!("{} {name}, ", lane(*operand))).collect();
        let named: String = (0..numbers).map(|number| format!("T n{number}, ")).collect();
        for (output, value) in expression.values.iter().enumerate() {
            line(format_args!(
                "DEVICE {} value_{output}({arguments}{named}u64 fault, u64 code) {{ return {value}; }}",
                lane(output),
            ));
        }
        let faults = if expression.fault.is_some() { "u64 fault; u64 code; " } else { "" };
        let stored_numbers = if numbers > 0 { format!("u64 numbers[{numbers}]; ") } else { String::new() };
        line(format_args!(
            "struct Params {{ u64 vectors; u64 first; u64 sizes[DIMS]; Operand operands[{}]; {stored_numbers}{faults}}};",
            operands.len()
        ));
        line(format_args!(
            "extern \"C\" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {{"
        ));
        line(format_args!("Index at = (Index)blockIdx.x * THREADS + threadIdx.x;"));
        line(format_args!("if (at >= (Index)p.vectors) return;"));
        line(format_args!("int count = V;"));
        if dims == 1 {
            line(format_args!("if (V > 1 && at == (Index)p.vectors - 1) count = (int)(p.first - (u64)at * V);"));
        }
        for operand in 0..operands.len() {
            line(format_args!("Index o{operand} = 0;"));
        }
        line(format_args!("#pragma unroll\nfor (int dim = 0; dim < DIMS; dim++) {{"));
        line(format_args!(
            "const Index size = (Index)p.sizes[dim], rest = dim + 1 < DIMS ? at / size : 0, i = at - rest * size;"
        ));
        for operand in 0..operands.len() {
            line(format_args!("o{operand} += i * (Index)p.operands[{operand}].strides[dim];"));
        }
        line(format_args!("at = rest; }}"));
        for (operand, name) in &inputs {
            let kind = match self.readings[*operand] {
                OperandReading::Dense => "DENSE",
                OperandReading::One => "ONE",
                OperandReading::Host => "HOST",
            };
            let lane = lane(*operand);
            let from = in_memory(operands[*operand].dtype, lane);
            line(format_args!(
                "{lane} {name}[V]; load<{kind}, {from}>(p.operands[{operand}], o{operand}, count, {name});"
            ));
        }
        let arguments: String = inputs.iter().map(|(_, name)| format!("{name}[i], ")).collect();
        let numbers: String = (0..numbers).map(|number| format!("number<T>(p.numbers[{number}]), ")).collect();
        let fault = if expression.fault.is_some() { "p.fault, p.code" } else { "0, 0" };
        for output in 0..outputs {
            line(format_args!(
                "{} y{output}[V];\n#pragma unroll\n\
                 for (int i = 0; i < V; i++) if (i < count) y{output}[i] = value_{output}({arguments}{numbers}{fault});",
                lane(output)
            ));
        }
        for (output, operand) in operands[..outputs].iter().enumerate() {
            let to = in_memory(operand.dtype, lane(output));
            line(format_args!("store<{to}>(p.operands[{output}], o{output}, count, y{output});"));
        }
        line(format_args!("}}"));
        text
    }
}

/// Returns the CUDA C++ type of an operand's elements in memory: an unsigned integer if the expression takes bits.
fn in_memory(dtype: DType, lane: &'static str) -> &'static str {
    if lane.starts_with('u') { lane } else { stored(dtype) }
}

/// The mathematical functions that expressions use.
pub(super) const MATH: &str = include_str!("source/math.cu");

/// Returns the only element of an operand on the CPU.
fn host_value(operand: &ElementwiseOperand) -> Scalar {
    crate::element::with_element!(operand.dtype, E => {
        // SAFETY: this is one element of this dtype, locked by the `Elementwise`.
        unsafe { operand.data.cast::<E>().read() }.to_scalar()
    })
}

/// Returns a number as the 64-bit word that a kernel takes for a parameter of this type.
pub(super) fn bits(number: Scalar, lane: &str) -> u64 {
    match lane {
        "float" | "double" => number.to_f64().to_bits(),
        "u64" => number.to_u64(),
        _ => number.to_i64() as u64,
    }
}
