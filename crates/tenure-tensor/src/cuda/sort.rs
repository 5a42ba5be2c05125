//! Sorting of elements: of short rows by the rank of each element, of longer ones by a stable radix sort.

use tenure_device::cuda::{KernelName, LaunchConfig};

use super::index::BEFORE;
use super::iteration_space::linear;
use super::queue::{self, Queue};
use super::{on_cpu, stored};
use crate::autograd::no_grad;
use crate::cpu;
use crate::cpu::sort::Order;
use crate::kernel::on_cuda;
use crate::order::sort_keys;
use crate::{Access, DType, Entry, Result, Tensor, tuning};

pub(crate) const ORDER: &[Entry<Order>] = on_cuda!(all: order);

const RANK: &str = include_str!("source/rank.cu");

/// The row length up to which rows are sorted by comparing all pairs of elements.
const RANKED: usize = 256;

/// Sorts whole rows, whatever the count.
fn order(out: &Tensor, input: &Tensor, count: usize, descending: bool) -> Result<()> {
    if out.numel() == 0 {
        return Ok(());
    }
    let mut access = Access::new("sort", &[out], &[input])?;
    let to = access.write_word(0);
    let from = access.read_word(0);
    let length = input.sizes().last().copied().unwrap_or(1);
    let dtype = input.dtype();
    let source = Source::Elements { dtype, descending };
    queue::submit(
        &access,
        |queue: &mut Queue| {
            if length > RANKED {
                let rows = SortRows { from, rows: out.numel() / length, length };
                return radix_sort(queue, source, rows, Some(to)).map(drop);
            }
            let mut words = [to, from, out.numel() as u64, length as u64];
            let name = KernelName { op: "rank", variant: source.variant() };
            queue.launch(name, || source.definitions() + RANK, linear(out.numel()), &mut words)
        },
        move |writes, reads| {
            let keys = no_grad(|| sort_keys(&reads[0]))?;
            on_cpu("sort", &cpu::sort::ORDER, keys.dtype())?(&writes[0], &keys, count, descending)
        },
    )
}

const KEYS: &str = include_str!("source/keys.cu");
const TEMPLATE: &str = include_str!("source/radix.cu");
const THREADS: usize = 256;
const DIGITS: usize = 256;
const DIGIT_BITS: usize = 8;

/// The row length up to which rows are cut into small tiles, so that several blocks get some.
const SHORT: usize = 64 * 1024;

/// The kind of keys to sort.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Source {
    /// Elements of a dtype, in ascending or descending order.
    Elements { dtype: DType, descending: bool },
    /// Positions below a limit, as `int64`; positions out of range count as the limit.
    Positions { limit: usize },
    /// Keys below a limit.
    Keys { limit: usize },
}

impl Source {
    /// Returns the number of bits in which keys can differ.
    fn bits(self) -> usize {
        match self {
            Self::Elements { dtype, .. } => dtype.size() * 8,
            Self::Positions { limit } | Self::Keys { limit } => (usize::BITS - limit.leading_zeros()).max(1) as usize,
        }
    }

    /// Returns the size of a key in bytes.
    pub(super) fn key_bytes(self) -> usize {
        let is_counted = !matches!(self, Self::Elements { .. });
        if self.bits() > 32 || is_counted && tuning::counts_in_64_bits() { 8 } else { 4 }
    }

    /// Returns the definitions of `Key` and of the making of keys, for kernels.
    pub(super) fn definitions(self) -> String {
        let key = key_type(self.key_bytes());
        let (element, descending) = match self {
            Self::Elements { dtype, descending } => (stored(dtype), descending),
            _ => (key, false),
        };
        let positions = if let Self::Positions { .. } = self { "#define POSITIONS\n" } else { "" };
        let descending = u32::from(descending);
        format!("{positions}#define DESCENDING {descending}\ntypedef {element} Element;\ntypedef {key} Key;\n{KEYS}")
    }

    /// Returns a number of 8 bits for all that the definitions depend on.
    pub(super) fn variant(self) -> u64 {
        match self {
            Self::Elements { dtype, descending } => (dtype as u64) << 1 | u64::from(descending),
            Self::Positions { .. } => 0x80 | self.key_bytes() as u64,
            Self::Keys { .. } => 0xc0 | self.key_bytes() as u64,
        }
    }
}

/// Rows of the same length, one after the other from an address.
#[derive(Clone, Copy)]
pub(super) struct SortRows {
    pub(super) from: u64,
    pub(super) rows: usize,
    pub(super) length: usize,
}

/// Sorted elements: the addresses of their keys, and of the numbers that they had in their rows, of `number_bytes`
/// each.
pub(super) struct Sorted {
    pub(super) keys: u64,
    pub(super) numbers: u64,
}

/// Returns the size in bytes of the number of a row's element.
pub(super) fn number_bytes(length: usize) -> usize {
    if length > u32::MAX as usize || tuning::counts_in_64_bits() { 8 } else { 4 }
}

/// Returns the unsigned integer type of this size in bytes, for kernels.
pub(super) fn key_type(bytes: usize) -> &'static str {
    if bytes == 8 { "u64" } else { "u32" }
}

/// Sorts each row, stably. If there is an `out`, the numbers are written there, as `int64`, and the keys are dropped.
pub(super) fn radix_sort(queue: &mut Queue, source: Source, rows: SortRows, out: Option<u64>) -> Result<Sorted> {
    let SortRows { from, rows, length } = rows;
    let key_bytes = source.key_bytes();
    let number_bytes = number_bytes(length);
    let items = if length <= SHORT { 4 } else { 16 };
    let tiles = length.div_ceil(THREADS * items);
    let mut memory = |bytes: usize| queue.workspace(rows * bytes);
    let counts = memory(DIGITS * tiles * number_bytes)?;
    let totals = memory(DIGITS * number_bytes)?;
    let passes = source.bits().div_ceil(DIGIT_BITS);
    // Buffers for pairs of keys and numbers: one pair is read while the other is written.
    let pairs = (passes - usize::from(out.is_some())).min(2);
    let mut buffers = [[0; 2]; 2];
    for buffer in &mut buffers[..pairs] {
        *buffer = [memory(length * key_bytes)?, memory(length * number_bytes)?];
    }
    let mut read = [from, 0];
    for pass in 0..passes {
        let is_first = pass == 0;
        let is_last = pass + 1 == passes && out.is_some();
        let written = match out {
            Some(out) if is_last => [0, out],
            _ => buffers[pass % 2],
        };
        let limit = match source {
            Source::Elements { .. } => 0,
            Source::Positions { limit } | Source::Keys { limit } => limit,
        };
        let shape = [length, tiles, pass * DIGIT_BITS, limit].map(|word| word as u64);
        let words = [&read[..], &written[..], &[counts, totals], &shape[..]].concat();
        let step = |name: &'static str, blocks: usize| {
            let variant = source.variant() << 8 | (items as u64) << 3 | (number_bytes as u64 / 8) << 2;
            let variant = variant | u64::from(is_first) << 1 | u64::from(is_last);
            let config = LaunchConfig { grid: [blocks as u32, 1, 1], block: [THREADS as u32, 1, 1], shared_bytes: 0 };
            queue.launch(
                KernelName { op: name, variant },
                || {
                    let first = u32::from(is_first);
                    let last = u32::from(is_last);
                    let number = key_type(number_bytes);
                    let definitions = source.definitions();
                    format!(
                        "{definitions}#define {}\n#define FIRST {first}\n#define LAST {last}\n\
                         #define ITEMS {items}\ntypedef {number} Number;\n{BEFORE}{TEMPLATE}",
                        name.to_uppercase()
                    )
                },
                config,
                &mut words.clone(),
            )
        };
        step("sort_count", tiles * rows)?;
        if tiles > 1 {
            step("sort_add_up", DIGITS * rows)?;
        }
        step("sort_move", tiles * rows)?;
        read = written;
    }
    Ok(Sorted { keys: read[0], numbers: read[1] })
}
