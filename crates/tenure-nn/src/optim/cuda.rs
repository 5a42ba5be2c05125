//! CUDA kernels of rules: they step many parameters in one launch.

use tenure_tensor::cuda::{self, KernelName, LaunchConfig, Queue};
use tenure_tensor::{Access, DType, Result, Tensor};

use super::{Numbers, StepKernel, Stepped};

const TENSORS: &str = include_str!("source/tensors.cu");
const STEP: &str = include_str!("source/step.cu");
const SQUARES: &str = include_str!("source/squares.cu");
const THREADS: u32 = 256;

/// The capacities, in tensors, of the kernels' variants. The arguments of a launch must fit in 32,764 bytes.
const MOST: [usize; 3] = [8, 64, 512];
/// The elements of a block: few enough that the blocks fill a device, and enough that a block is worth its launch.
const CHUNK: std::ops::RangeInclusive<usize> = 1 << 14..=1 << 17;
const BLOCKS: usize = 4096;
/// The elements of a block of sums. The number is fixed, so that a tensor's sum does not depend on the others.
const CHUNK_OF_SUMS: usize = 1 << 15;

/// A rule's step in CUDA C++.
pub(super) struct Step {
    /// The kernel's name, unique for each rule.
    pub(super) op: &'static str,
    /// The number of slots.
    pub(super) slots: usize,
    /// Statements that update `value` and the slots `s0`, `s1`, ... by `grad`, the numbers `n0`, `n1`, ..., and a
    /// `factor`.
    pub(super) element: &'static str,
}

/// Steps parameters. A simulated device calls `host` instead.
pub(super) fn step(
    how: &'static Step,
    dtype: DType,
    numbers: &Numbers,
    parameters: &[Stepped<'_>],
    host: StepKernel,
) -> Result<()> {
    let count = 1 + how.slots;
    let mut written: Vec<&Tensor> = Vec::new();
    for stepped in parameters {
        written.extend(std::iter::once(stepped.parameter).chain(stepped.slots).take(count));
    }
    let read: Vec<&Tensor> = parameters.iter().map(|stepped| stepped.grad).collect();
    let known = Numbers::new(numbers.values().to_vec());
    run(how, dtype, numbers, &written, &read, None, move |writes, reads| {
        let (grads, words) = reads.split_at(writes.len() / count);
        let stepped =
            writes.chunks(count).zip(grads).map(|(own, grad)| Stepped { parameter: &own[0], grad, slots: &own[1..] });
        let numbers = words.first().map_or_else(|| Ok(known.clone()), Numbers::read)?;
        host(&numbers, &stepped.collect::<Vec<_>>())
    })
}

/// Writes gradients multiplied by a factor, a double on the device. A simulated device calls `host` instead.
pub(super) fn scale(
    dtype: DType,
    out: &[&Tensor],
    grads: &[&Tensor],
    factor: &Tensor,
    host: impl Fn(&[&Tensor], &[&Tensor], &Tensor) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    const SCALE: Step = Step { op: "scale_grads", slots: 0, element: "value = grad * factor;" };
    run(&SCALE, dtype, &Numbers::new(Vec::new()), out, grads, Some(factor), move |writes, reads| {
        let (grads, factor) = reads.split_at(writes.len());
        host(&writes.iter().collect::<Vec<_>>(), &grads.iter().collect::<Vec<_>>(), &factor[0])
    })
}

/// Launches a step. `written` holds the parameter and slots of each gradient.
fn run(
    how: &'static Step,
    dtype: DType,
    numbers: &Numbers,
    written: &[&Tensor],
    grads: &[&Tensor],
    factor: Option<&Tensor>,
    host: impl Fn(&[Tensor], &[Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let values = numbers.values();
    let more = [factor, numbers.words()];
    let reads: Vec<&Tensor> = grads.iter().copied().chain(more.into_iter().flatten()).collect();
    let mut access = Access::new(how.op, written, &reads)?;
    let own = 1 + how.slots;
    let mut tensors = Vec::new();
    for (index, grad) in grads.iter().enumerate() {
        let mut arrays: Vec<u64> = (0..own).map(|slot| access.write_ptr(index * own + slot).addr() as u64).collect();
        arrays.push(access.read_ptr(index).addr() as u64);
        tensors.push((arrays, grad.numel()));
    }
    let mut places = (grads.len()..reads.len()).map(|place| access.read_ptr(place).addr() as u64);
    let more = more.map(|tensor| tensor.and_then(|_| places.next()).unwrap_or(0));
    let launch = |queue: &mut Queue| {
        Chunks::new(&tensors).launch(dtype, |most, blocks, _, words| {
            let source = || {
                let list: String = (0..values.len()).map(|n| format!("const C n{n} = numbers[{n}]; ")).collect();
                let slots: String = (0..how.slots).map(|slot| format!("C& s{slot} = x[{}]; ", slot + 1)).collect();
                let element = format!(
                    "DEVICE void element(const C (&numbers)[NUMBERS], C factor, C (&x)[1 + SLOTS], C grad) {{ {list}\
                     C& value = x[0]; {slots}{} }}\n",
                    how.element
                );
                let head = format!("#define SLOTS {}\n#define NUMBERS {}\n", how.slots, values.len().max(1));
                [&head, &source(dtype, own + 1, most), &element, STEP].concat()
            };
            let mut all: Vec<u64> = values.iter().map(|number| number.to_bits()).collect();
            all.resize(values.len().max(1), 0);
            all.extend(more);
            all.extend(words);
            queue.launch(name(how.op, dtype, most), source, blocks, &mut all)
        })
    };
    cuda::submit(&access, launch, host)
}

/// Writes the sum of the squares of each non-empty tensor's elements to a vector of doubles. A tensor's sum does not
/// depend on the others. A simulated device calls `host` instead.
pub(super) fn sums_of_squares(
    dtype: DType,
    sums: &Tensor,
    tensors: &[&Tensor],
    host: impl Fn(&Tensor, &[&Tensor]) -> Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let op = "sums_of_squares";
    let mut access = Access::new(op, &[sums], tensors)?;
    let place = access.write_ptr(0).addr() as u64;
    let list: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| (vec![access.read_ptr(index).addr() as u64], tensor.numel()))
        .collect();
    let launch = |queue: &mut Queue| {
        let chunks = Chunks::of(&list, CHUNK_OF_SUMS);
        let parts = queue.workspace(8 * chunks.blocks)?;
        let mut done = 0;
        chunks.launch(dtype, |most, config, first, words| {
            let source = |total: u8| [&format!("#define TOTAL {total}\n"), &source(dtype, 1, most), SQUARES].concat();
            let mut all = vec![place + 8 * done as u64, parts + 8 * first as u64];
            done += words[0] as usize;
            let totals = LaunchConfig { grid: [words[0] as u32, 1, 1], ..config };
            all.extend(words);
            queue.launch(name(op, dtype, most), || source(0), config, &mut all)?;
            queue.launch(name("sums_of_squares_total", dtype, most), || source(1), totals, &mut all)
        })
    };
    cuda::submit(&access, launch, move |writes, reads| host(&writes[0], &reads.iter().collect::<Vec<_>>()))
}

fn name(op: &'static str, dtype: DType, most: usize) -> KernelName {
    KernelName { op, variant: (dtype as u64) << 32 | most as u64 }
}

fn source(dtype: DType, arrays: usize, most: usize) -> String {
    let stored = cuda::stored(dtype);
    let computed = cuda::computed(dtype);
    format!("#define ARRAYS {arrays}\n#define MOST {most}\ntypedef {stored} T;\ntypedef {computed} C;\n{TENSORS}")
}

/// Tensors, each with the addresses of its arrays and its number of elements, divided into chunks for blocks.
struct Chunks<'a> {
    tensors: Vec<&'a (Vec<u64>, usize)>,
    chunk: usize,
    /// The number of blocks of all launches.
    blocks: usize,
}

impl<'a> Chunks<'a> {
    fn new(tensors: &'a [(Vec<u64>, usize)]) -> Self {
        let elements: usize = tensors.iter().map(|(_, n)| *n).sum();
        Self::of(tensors, (elements / BLOCKS).next_power_of_two().clamp(*CHUNK.start(), *CHUNK.end()))
    }

    /// Divides tensors into chunks of `chunk` elements.
    fn of(tensors: &'a [(Vec<u64>, usize)], chunk: usize) -> Self {
        let tensors: Vec<_> = tensors.iter().filter(|(_, n)| *n > 0).collect();
        let blocks = tensors.iter().map(|(_, n)| n.div_ceil(chunk)).sum();
        Self { tensors, chunk, blocks }
    }

    /// Calls `launch(most, config, first, words)` for as many tensors as one launch takes, at most `most`. `first` is
    /// the number of the launch's first block among all; `words` are `Tensors` in tensors.cu.
    fn launch(
        &self,
        dtype: DType,
        mut launch: impl FnMut(usize, LaunchConfig, usize, Vec<u64>) -> Result<()>,
    ) -> Result<()> {
        debug_assert!(self.chunk.is_multiple_of(16 / dtype.size()));
        let mut first = 0;
        for tensors in self.tensors.chunks(MOST[MOST.len() - 1]) {
            let most = MOST.into_iter().find(|most| *most >= tensors.len()).unwrap_or(tensors.len());
            let mut words = vec![tensors.len() as u64, self.chunk as u64];
            let mut blocks = 0;
            for (arrays, n) in tensors {
                words.extend(arrays);
                words.extend([*n as u64, blocks as u64]);
                blocks += n.div_ceil(self.chunk);
            }
            let missing = (most - tensors.len()) * (tensors[0].0.len() + 2);
            words.resize(words.len() + missing, 0);
            let config = LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
            launch(most, config, first, words)?;
            first += blocks;
        }
        Ok(())
    }
}
