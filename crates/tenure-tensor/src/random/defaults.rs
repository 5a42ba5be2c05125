//! The generators of operations that are given none: one for each device.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use parking_lot::Mutex;

use super::{Generator, GeneratorState};
use crate::Device;
use crate::scopes::Scopes;

/// The process's default generators.
struct ProcessGenerators {
    /// The seed of devices that have no generator yet.
    seed: u64,
    generators: BTreeMap<Device, Generator>,
}

static PROCESS: Mutex<ProcessGenerators> = Mutex::new(ProcessGenerators { seed: 0, generators: BTreeMap::new() });

thread_local! {
    static OWN: Scopes<Generator> = const { Scopes::new() };
}

/// Returns the generator of operations on `device` that are given none, such as
/// [`dropout`](crate::Tensor::dropout). Each device has one, as in PyTorch: drawing on one device leaves the others'
/// generators as they are. They are the process's, whose seeds are 0 until [`manual_seed`], unless the thread has
/// [one of its own](DefaultGenerator).
///
/// ```
/// use tenure_tensor::random::{self, Generator};
/// use tenure_tensor::{DType, Device, Tensor};
///
/// random::manual_seed(3);
/// let other = random::default_generator(Device::cuda(0)).state();
/// Tensor::rand(&[3], DType::F32, Device::CPU, &Generator::default())?;
/// assert_ne!(random::default_generator(Device::CPU).state(), other);
/// assert_eq!(random::default_generator(Device::cuda(0)).state(), other);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
pub fn default_generator(device: Device) -> Generator {
    Scopes::latest(&OWN).unwrap_or_else(|| PROCESS.lock().of(device))
}

/// Moves the default generators of all devices to the beginning of a seed's sequence, like PyTorch's
/// `torch.manual_seed`.
pub fn manual_seed(seed: u64) {
    if let Some(own) = Scopes::latest(&OWN) {
        return own.manual_seed(seed);
    }
    let mut process = PROCESS.lock();
    process.seed = seed;
    process.generators.values().for_each(|generator| generator.manual_seed(seed));
}

impl ProcessGenerators {
    fn of(&mut self, device: Device) -> Generator {
        let first = GeneratorState::new(self.seed, 0);
        self.generators.entry(device).or_insert_with(|| Generator::unnoted(Some(device), first)).clone()
    }
}

/// A guard that gives its thread a [default generator](default_generator) of its own, for all devices, while it lives.
/// Without it, threads share the process's, and chance decides which thread draws first. If several live, the one
/// entered last decides.
#[must_use = "it holds for as long as it lives"]
pub struct DefaultGenerator {
    scope: u64,
    thread: PhantomData<*const ()>,
}

impl DefaultGenerator {
    /// Makes `generator` the thread's default generator.
    pub fn enter(generator: Generator) -> Self {
        Self { scope: Scopes::enter(&OWN, generator), thread: PhantomData }
    }
}

impl Drop for DefaultGenerator {
    fn drop(&mut self) {
        Scopes::leave(&OWN, self.scope);
    }
}

/// The states of the [default generators](default_generator) of all devices at one time.
///
/// ```
/// use tenure_tensor::random::{self, DefaultStates};
/// use tenure_tensor::Device;
///
/// let states = DefaultStates::now([]);
/// let drawn = random::default_generator(Device::CPU).next_u64();
/// states.restore();
/// assert_eq!(random::default_generator(Device::CPU).next_u64(), drawn);
/// ```
#[derive(Clone, Debug)]
pub struct DefaultStates {
    states: BTreeMap<Device, GeneratorState>,
    /// The state of a device that had no generator.
    first: GeneratorState,
}

impl DefaultStates {
    /// Returns the current states. In a capture, the generators of `devices` vary from replay to replay afterwards, as
    /// do the CPU's and those that were used before.
    pub fn now(devices: impl IntoIterator<Item = Device>) -> Self {
        let mut used = used_devices();
        used.extend(devices);
        let states = used.into_iter().map(|device| (device, default_generator(device).state())).collect();
        let first = match Scopes::latest(&OWN) {
            Some(own) => own.state(),
            None => GeneratorState::new(PROCESS.lock().seed, 0),
        };
        Self { states, first }
    }

    /// Moves the thread's default generators to these states.
    pub fn restore(&self) {
        let devices = used_devices().into_iter().chain(self.states.keys().copied());
        for device in devices {
            default_generator(device).set_state(self.states.get(&device).copied().unwrap_or(self.first));
        }
    }
}

/// Returns the CPU and the devices that have a default generator.
fn used_devices() -> BTreeSet<Device> {
    PROCESS.lock().generators.keys().copied().chain([Device::CPU]).collect()
}
