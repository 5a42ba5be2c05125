//! Random numbers by counter.
//!
//! A [`Generator`] only counts. The numbers are Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
//! 3", SC 2011): a *block* of four 32-bit words is a function of the seed and of the block's place in the sequence, so
//! that any thread computes any block, and what was drawn once can be computed again from a [`State`].
//!
//! Element `i`, counted in the order of dimensions, comes from block `offset + i / 4`, word `i % 4`; of what takes 64
//! bits (`float64`, integers), from block `offset + i / 2`, words `i % 2 * 2` (low) and the next (high). Of the bits `w`:
//!
//! | numbers | are |
//! | --- | --- |
//! | uniform in \[0, 1) | the highest 24 bits of `w` (`float64` 53, `float16` 11, `bfloat16` 8) as a fraction |
//! | normal | of two neighbours `u` and `v`, as (`w` + ½) / 2^bits: √(-2 ln `u`) cos 2π`v`, and the same with the sine |
//! | integers in \[0, n) | ⌊`w` n / 2⁶⁴⌋, biased by less than n / 2⁶⁴ |
//! | true with probability p | whether `w` < p 2³² |

use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, MutexGuard};

use crate::arrays;
use crate::cuda::captured;
use crate::scopes::Scopes;

/// A seed, and how many blocks were drawn. A handle: clones draw from one sequence.
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
#[derive(Clone, Debug)]
pub struct Generator {
    state: Arc<Mutex<State>>,
}

/// A place in a seed's sequence of blocks. Two numbers, to be kept in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The sequence.
    pub seed: u64,
    /// The next block.
    pub offset: u64,
    /// In a capture, what it counts from ([`captured`]); 0 otherwise.
    pub(crate) origin: u64,
}

impl Generator {
    /// At the beginning of a seed's sequence.
    pub fn new(seed: u64) -> Self {
        let generator = Self::unnoted(seed);
        captured::made(&generator);
        generator
    }

    /// One that is no part of what a thread captures just now.
    fn unnoted(seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed, 0))) }
    }

    /// Goes to the beginning of a seed's sequence.
    pub fn manual_seed(&self, seed: u64) {
        self.set_state(State::new(seed, 0));
    }

    /// Where it is.
    pub fn state(&self) -> State {
        *self.lock()
    }

    /// Goes where another was, or it was itself.
    pub fn set_state(&self, state: State) {
        *self.lock() = state;
    }

    /// Takes that many blocks, for the caller alone: they begin at the returned state.
    pub fn reserve(&self, blocks: u64) -> State {
        let mut state = self.lock();
        let first = *state;
        *state = first.advanced(blocks);
        first
    }

    /// 64 random bits. Takes a block.
    pub fn next_u64(&self) -> u64 {
        low_and_high(self.reserve(1).block(0))[0]
    }

    /// A generator of a seed drawn from this one, such as for a worker thread. Takes a block.
    pub fn fork(&self) -> Self {
        Self::new(self.next_u64())
    }

    /// Whether the two are handles of one generator.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        captured::join(self, &mut state);
        state
    }
}

impl State {
    /// The block number `offset` of a seed's sequence.
    pub const fn new(seed: u64, offset: u64) -> Self {
        Self { seed, offset, origin: 0 }
    }

    /// So many blocks on.
    pub(crate) const fn advanced(self, blocks: u64) -> Self {
        Self { offset: self.offset.wrapping_add(blocks), ..self }
    }

    /// The block `index` places on.
    pub fn block(self, index: u64) -> [u32; 4] {
        self.blocks::<1>(index)[0]
    }

    /// The `N` blocks from `index` places on, computed side by side.
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

/// Where operations draw from that are given no generator, such as [`dropout`](crate::Tensor::dropout): the process's,
/// whose seed is 0 until [`manual_seed`], unless the thread has [one of its own](DefaultGenerator).
pub fn default_generator() -> Generator {
    static DEFAULT: LazyLock<Generator> = LazyLock::new(|| Generator::unnoted(0));
    Scopes::latest(&OWN).unwrap_or_else(|| DEFAULT.clone())
}

thread_local! {
    static OWN: Scopes<Generator> = const { Scopes::new() };
}

/// While it lives, the [default generator](default_generator) of this thread is one of its own: several threads that draw
/// from one sequence take turns by chance. The latest that is alive holds.
#[must_use = "it holds for as long as it lives"]
pub struct DefaultGenerator {
    scope: u64,
    thread: PhantomData<*const ()>,
}

impl DefaultGenerator {
    /// Begins.
    pub fn enter(generator: Generator) -> Self {
        Self { scope: Scopes::enter(&OWN, generator), thread: PhantomData }
    }
}

impl Drop for DefaultGenerator {
    fn drop(&mut self) {
        Scopes::leave(&OWN, self.scope);
    }
}

/// Takes the default generator to the beginning of a seed's sequence. PyTorch's `torch.manual_seed`.
pub fn manual_seed(seed: u64) {
    default_generator().manual_seed(seed);
}

/// A block as two numbers of 64 bits.
#[inline(always)]
pub(crate) fn low_and_high([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32]
}

/// Philox4x32-10 of `N` counters, word by word, in place.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "a lane is one element of each word")]
fn philox<const N: usize>(counters: &mut [[u32; N]; 4], mut key: [u32; 2]) {
    const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    for _ in 0..10 {
        for lane in 0..N {
            let [a, b, c, d] = arrays::from_fn(|word| counters[word][lane]);
            let (first, second) = (MULTIPLIERS[0] * u64::from(a), MULTIPLIERS[1] * u64::from(c));
            counters[0][lane] = (second >> 32) as u32 ^ b ^ key[0];
            counters[1][lane] = second as u32;
            counters[2][lane] = (first >> 32) as u32 ^ d ^ key[1];
            counters[3][lane] = first as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
}
