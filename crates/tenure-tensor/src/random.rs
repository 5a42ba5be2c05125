//! Counter-based random number generators.
//!
//! A [`Generator`] is only a seed and a counter. The numbers are Philox4x32-10 (Salmon et al., "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011): a *block* of four 32-bit words is a function of the seed and of the block's
//! place in the sequence. So any thread can compute any block, and past draws can be computed again from a
//! [`GeneratorState`].
//!
//! Element `i`, counted in the order of dimensions, comes from word `i % 4` of block `offset + i / 4`. An element that
//! takes 64 bits (`float64`, integers) comes from block `offset + i / 2`, words `i % 2 * 2` (low) and the next (high).
//! Its bits `w` become a number so:
//!
//! | numbers | are |
//! | --- | --- |
//! | uniform in \[0, 1) | the highest 24 bits of `w` (`float64` 53, `float16` 11, `bfloat16` 8) as a fraction |
//! | normal | from two neighbours `u` and `v`, each (`w` + ½) / 2^bits: √(-2 ln `u`) cos 2π`v`, and the same with the
//! sine |
//! | integers in \[0, n) | ⌊`w` n / 2⁶⁴⌋, biased by less than n / 2⁶⁴ |
//! | true with probability p | whether `w` < p 2³² |

mod defaults;

use std::sync::Arc;

use parking_lot::Mutex;

pub use self::defaults::{DefaultGenerator, DefaultStates, default_generator, manual_seed};
use crate::cuda::captured;
use crate::{Device, Result, TensorError, arrays};

/// A random number generator: a seed and the number of blocks drawn. It is a handle: clones draw from one sequence.
///
/// A generator draws the same numbers for all devices. One [of a device](Generator::of_device) draws for devices of that
/// kind only, as in PyTorch. [`Generator::default`] stands for the [default generator](default_generator) of the device
/// that the numbers are for.
///
/// ```
/// use tenure_tensor::random::Generator;
/// use tenure_tensor::{DType, Device, Tensor};
///
/// let generator = Generator::new(7);
/// let state = generator.state();
/// let first = Tensor::rand(&[3], DType::F32, Device::CPU, &generator)?;
/// assert_ne!(Tensor::rand(&[3], DType::F32, Device::CPU, &generator)?.to_vec::<f32>()?, first.to_vec::<f32>()?);
///
/// generator.set_state(state);
/// assert_eq!(Tensor::rand(&[3], DType::F32, Device::CPU, &generator)?.to_vec::<f32>()?, first.to_vec::<f32>()?);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Generator {
    /// `None`: the default generator of each device.
    sequence: Option<Sequence>,
}

/// [`Generator::default`].
pub(crate) static DEFAULT: Generator = Generator { sequence: None };

/// A sequence of random numbers that generators share.
#[derive(Clone, Debug)]
struct Sequence {
    /// The device that it draws for; `None` for all devices.
    device: Option<Device>,
    state: Arc<Mutex<GeneratorState>>,
}

/// A place in a seed's sequence of blocks: two numbers that a checkpoint can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GeneratorState {
    /// The seed of the sequence.
    pub seed: u64,
    /// The number of the next block.
    pub offset: u64,
    /// In a capture, the origin that the offset counts from ([`captured`]); 0 otherwise.
    pub(crate) origin: u64,
}

impl Generator {
    /// Creates a generator for all devices at the beginning of a seed's sequence.
    pub fn new(seed: u64) -> Self {
        Self::made(None, GeneratorState::new(seed, 0))
    }

    /// Creates a generator at the beginning of a seed's sequence that draws only for devices of `device`'s kind.
    pub fn of_device(device: Device, seed: u64) -> Self {
        Self::made(Some(device), GeneratorState::new(seed, 0))
    }

    fn made(device: Option<Device>, state: GeneratorState) -> Self {
        let generator = Self::unnoted(device, state);
        captured::made(&generator);
        generator
    }

    /// Creates a generator that the thread's current capture does not record.
    fn unnoted(device: Option<Device>, state: GeneratorState) -> Self {
        Self { sequence: Some(Sequence { device, state: Arc::new(Mutex::new(state)) }) }
    }

    /// Returns the device that it draws for, or `None` if it draws for all.
    pub fn device(&self) -> Option<Device> {
        self.sequence.as_ref()?.device
    }

    /// Moves to the beginning of a seed's sequence.
    pub fn manual_seed(&self, seed: u64) {
        self.set_state(GeneratorState::new(seed, 0));
    }

    /// Returns the current state. The state of [`Generator::default`] is that of the CPU's default generator.
    pub fn state(&self) -> GeneratorState {
        self.with_state(|state| *state)
    }

    /// Moves to a state, of this generator or of another.
    pub fn set_state(&self, state: GeneratorState) {
        self.with_state(|own| *own = state);
    }

    /// Creates another generator for the same device in the same state.
    pub fn clone_state(&self) -> Self {
        Self::made(self.device(), self.state())
    }

    /// Reserves `blocks` blocks for the caller alone; they begin at the returned state.
    pub fn reserve(&self, blocks: u64) -> GeneratorState {
        self.with_state(|state| {
            let first = *state;
            *state = first.advanced(blocks);
            first
        })
    }

    /// Reserves `blocks` blocks for numbers on `device`.
    ///
    /// # Errors
    /// The generator is of a device of another kind.
    pub(crate) fn reserve_for(&self, op: &'static str, device: Device, blocks: u64) -> Result<GeneratorState> {
        match self.device() {
            Some(own) if own.kind() != device.kind() => {
                let expected = device.kind().name();
                let found = own.kind().name();
                let reason = format!("Expected a '{expected}' device type for generator but found '{found}'");
                Err(TensorError::argument(op, reason))
            }
            _ if self.is_default() => Ok(default_generator(device).reserve(blocks)),
            _ => Ok(self.reserve(blocks)),
        }
    }

    /// Returns 64 random bits. Takes a block.
    pub fn next_u64(&self) -> u64 {
        low_and_high(self.reserve(1).block(0))[0]
    }

    /// Creates a generator whose seed is drawn from this one, for example for a worker thread. Takes a block.
    pub fn fork(&self) -> Self {
        Self::made(self.device(), GeneratorState::new(self.next_u64(), 0))
    }

    /// Returns whether it stands for the default generators.
    pub(crate) const fn is_default(&self) -> bool {
        self.sequence.is_none()
    }

    /// Returns whether both are handles of one generator.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (&self.sequence, &other.sequence) {
            (Some(own), Some(other)) => Arc::ptr_eq(&own.state, &other.state),
            (own, other) => own.is_none() && other.is_none(),
        }
    }

    fn with_state<R>(&self, function: impl FnOnce(&mut GeneratorState) -> R) -> R {
        let Some(sequence) = &self.sequence else {
            return default_generator(Device::CPU).with_state(function);
        };
        let mut state = sequence.state.lock();
        captured::join(self, &mut state);
        function(&mut state)
    }
}

impl GeneratorState {
    /// Returns the state at block number `offset` of a seed's sequence.
    pub const fn new(seed: u64, offset: u64) -> Self {
        Self { seed, offset, origin: 0 }
    }

    /// Returns the state `blocks` blocks further on.
    pub(crate) const fn advanced(self, blocks: u64) -> Self {
        Self { offset: self.offset.wrapping_add(blocks), ..self }
    }

    /// Computes the block `index` places further on.
    pub fn block(self, index: u64) -> [u32; 4] {
        self.blocks::<1>(index)[0]
    }

    /// Computes the `N` blocks from `index` places further on, side by side.
    #[inline(always)]
    pub(crate) fn blocks<const N: usize>(self, index: u64) -> [[u32; 4]; N] {
        let places: [u64; N] = arrays::from_fn(|lane| self.offset.wrapping_add(index).wrapping_add(lane as u64));
        let mut counters = [
            arrays::map(places, |place| place as u32),
            arrays::map(places, |place| (place >> 32) as u32),
            [0; N],
            [0; N],
        ];
        philox(&mut counters, [self.seed as u32, (self.seed >> 32) as u32]);
        arrays::from_fn(|lane| arrays::from_fn(|word| counters[word][lane]))
    }
}

/// Returns a block as two 64-bit numbers.
#[inline(always)]
pub(crate) fn low_and_high([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32]
}

/// Computes Philox4x32-10 of `N` counters, word by word, in place.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "a lane is one element of each word")]
fn philox<const N: usize>(counters: &mut [[u32; N]; 4], mut key: [u32; 2]) {
    const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    for _ in 0..10 {
        for lane in 0..N {
            let [a, b, c, d] = arrays::from_fn(|word| counters[word][lane]);
            let first = MULTIPLIERS[0] * u64::from(a);
            let second = MULTIPLIERS[1] * u64::from(c);
            counters[0][lane] = (second >> 32) as u32 ^ b ^ key[0];
            counters[1][lane] = second as u32;
            counters[2][lane] = (first >> 32) as u32 ^ d ^ key[1];
            counters[3][lane] = first as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
}
