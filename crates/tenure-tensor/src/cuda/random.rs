//! Random numbers as defined in [`crate::random`]: each element comes from the same bits as on the CPU.

use tenure_device::cuda::{KernelName, LaunchConfig};

use super::{async_errors, captured, computed, on_cpu, queue, stored};
use crate::cpu::random::{self as cpu, Bernoulli, BernoulliEach, Dropout, Integers, Permutation, Reals};
use crate::kernel::on_cuda;
use crate::random::GeneratorState;
use crate::{Access, DType, DeviceKind, Entry, Result, Tensor};

pub(crate) const UNIFORM: &[Entry<Reals>] = on_cuda!(floats: uniform);
pub(crate) const NORMAL: &[Entry<Reals>] = on_cuda!(floats: normal);
pub(crate) const INTEGERS: &[Entry<Integers>] = on_cuda!(all: integers);
pub(crate) const BERNOULLI: &[Entry<Bernoulli>] = on_cuda!(all: bernoulli);
pub(crate) const BERNOULLI_EACH: &[Entry<BernoulliEach>] = on_cuda!(floats: bernoulli_each);
pub(crate) const DROPOUT: &[Entry<Dropout>] = on_cuda!(floats: dropout);
pub(crate) const PERMUTATION: &[Entry<Permutation>] = &[(DeviceKind::Cuda, DType::I64, permutation)];

pub(super) const PHILOX: &str = include_str!("source/philox.cu");
const TEMPLATE: &str = include_str!("source/random.cu");
const SHUFFLE: &str = include_str!("source/permutation.cu");
const THREADS: usize = 256;

/// A kind of draw: a kernel's name, which the source has in capitals, and its numbers.
struct Draw {
    name: &'static str,
    numbers: [u64; 2],
    /// The code of the error that it may report.
    fault: Option<u64>,
}

fn uniform(out: &Tensor, state: GeneratorState, low: f64, high: f64) -> Result<()> {
    let draw = Draw { name: "uniform", numbers: [low, high - low].map(f64::to_bits), fault: None };
    let dtype = out.dtype();
    run("uniform", [out, out], state, &draw, move |[out, _], state| {
        on_cpu("uniform", &[cpu::UNIFORM], dtype)?(out, state, low, high)
    })
}

fn normal(out: &Tensor, state: GeneratorState, mean: f64, deviation: f64) -> Result<()> {
    let draw = Draw { name: "normal", numbers: [mean, deviation].map(f64::to_bits), fault: None };
    let dtype = out.dtype();
    run("normal", [out, out], state, &draw, move |[out, _], state| {
        on_cpu("normal", &[cpu::NORMAL], dtype)?(out, state, mean, deviation)
    })
}

fn integers(out: &Tensor, state: GeneratorState, first: i64, count: u64) -> Result<()> {
    let draw = Draw { name: "randint", numbers: [first as u64, count], fault: None };
    let dtype = out.dtype();
    run("randint", [out, out], state, &draw, move |[out, _], state| {
        on_cpu("randint", &[cpu::INTEGERS], dtype)?(out, state, first, count)
    })
}

fn bernoulli(out: &Tensor, state: GeneratorState, probability: f64) -> Result<()> {
    let draw = Draw { name: "bernoulli", numbers: [cpu::limit(probability), 0], fault: None };
    let dtype = out.dtype();
    run("bernoulli", [out, out], state, &draw, move |[out, _], state| {
        on_cpu("bernoulli", &[cpu::BERNOULLI], dtype)?(out, state, probability)
    })
}

fn bernoulli_each(out: &Tensor, probabilities: &Tensor, state: GeneratorState) -> Result<()> {
    let draw = Draw { name: "bernoulli_each", numbers: [0; 2], fault: Some(async_errors::PROBABILITY) };
    let dtype = probabilities.dtype();
    run("bernoulli", [out, probabilities], state, &draw, move |[out, input], state| {
        on_cpu("bernoulli", &[cpu::BERNOULLI_EACH], dtype)?(out, input, state)
    })
}

fn dropout(out: &Tensor, input: &Tensor, state: GeneratorState, probability: f64) -> Result<()> {
    let kept = 1.0 - probability;
    let draw = Draw { name: "dropout", numbers: [cpu::limit(kept), (1.0 / kept).to_bits()], fault: None };
    let dtype = input.dtype();
    run("dropout", [out, input], state, &draw, move |[out, input], state| {
        on_cpu("dropout", &[cpu::DROPOUT], dtype)?(out, input, state, probability)
    })
}

/// Draws the first tensor; the second is the input, unless it is the same tensor. A simulated device calls `host`.
fn run(
    op: &'static str,
    [out, input]: [&Tensor; 2],
    state: GeneratorState,
    draw: &Draw,
    host: impl Fn([&Tensor; 2], GeneratorState) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let count = out.numel();
    if count == 0 {
        return Ok(());
    }
    let dtype = out.dtype();
    let has_input = !std::ptr::eq(out, input);
    let start = Start::of(state)?;
    let reads: Vec<&Tensor> = has_input.then_some(input).into_iter().chain(&start.origin).collect();
    let mut access = Access::new(op, &[out], &reads)?;
    let to = access.write_word(0);
    let from = if has_input { access.read_word(0) } else { 0 };
    // 64-bit numbers take two words each, others one.
    let block = if draw.name == "randint" || (dtype == DType::F64 && matches!(draw.name, "uniform" | "normal")) {
        2
    } else {
        4
    };
    let width = block.max(16 / dtype.size());
    let digits = match dtype {
        DType::BF16 => 8,
        DType::F16 => 11,
        _ => 24,
    };
    let state = start.state;
    queue::submit(
        &access,
        |queue: &mut queue::Queue| {
            let [fault, code] = draw.fault.map_or(Ok([0; 2]), |code| queue.fault(code))?;
            let [first, second] = draw.numbers;
            let [seed, offset, origin] = start.words(&access, usize::from(has_input));
            let mut words = [to, from, count as u64, seed, offset, origin, first, second, fault, code];
            let grid = [count.div_ceil(width * THREADS) as u32, 1, 1];
            let config = LaunchConfig { grid, block: [THREADS as u32, 1, 1], shared_bytes: 0 };
            queue.launch(
                KernelName { op: draw.name, variant: dtype as u64 },
                || {
                    let stored = stored(dtype);
                    let computed = computed(dtype);
                    format!(
                        "#define {}\n#define BLOCK {block}\n#define V {width}\n#define DIGITS {digits}\n\
                     typedef {stored} T;\ntypedef {computed} C;\n{PHILOX}{TEMPLATE}",
                        draw.name.to_uppercase()
                    )
                },
                config,
                &mut words,
            )
        },
        move |writes, reads| {
            let (input, origin) = reads.split_at(usize::from(has_input));
            host([&writes[0], input.first().unwrap_or(&writes[0])], placed(state, origin)?)
        },
    )
}

/// The place where draws begin.
pub(super) struct Start {
    pub(super) state: GeneratorState,
    /// The origin that the state counts from, in a capture.
    pub(super) origin: Option<Tensor>,
}

impl Start {
    pub(super) fn of(state: GeneratorState) -> Result<Self> {
        Ok(match captured::origin(state)? {
            Some((state, origin)) => Self { state, origin: Some(origin) },
            None => Self { state, origin: None },
        })
    }

    /// Returns the words of `State` in philox.cu. The origin is read tensor `place` of `access`.
    pub(super) fn words(&self, access: &Access<'_>, place: usize) -> [u64; 3] {
        let origin = self.origin.as_ref().map_or(0, |_| access.read_word(place));
        [self.state.seed, self.state.offset, origin]
    }
}

/// Returns the state where draws begin, counted from an origin if there is one.
pub(super) fn placed(state: GeneratorState, origin: &[Tensor]) -> Result<GeneratorState> {
    origin.first().map_or(Ok(state), |origin| captured::placed(state, origin))
}

fn permutation(out: &Tensor, state: GeneratorState) -> Result<()> {
    let count = out.numel();
    if count == 0 {
        return Ok(());
    }
    let start = Start::of(state)?;
    let mut access = Access::new("randperm", &[out], start.origin.as_ref().as_slice())?;
    let to = access.write_word(0);
    let state = start.state;
    queue::submit(
        &access,
        |queue: &mut queue::Queue| {
            let owners = queue.workspace(count * size_of::<u64>())?;
            let config = LaunchConfig { grid: [1; 3], block: [1024, 1, 1], shared_bytes: 0 };
            let [seed, offset, origin] = start.words(&access, 0);
            let mut words = [to, owners, count as u64, seed, offset, origin];
            queue.launch(KernelName { op: "randperm", variant: 0 }, || [PHILOX, SHUFFLE].concat(), config, &mut words)
        },
        move |writes, origin| {
            let state = placed(state, origin)?;
            on_cpu("randperm", &[cpu::PERMUTATION], DType::I64)?(&writes[0], state)
        },
    )
}
