//! `tenure.Generator`: sequences of random numbers.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use tenure::core::{DType, Device};
use tenure::tensor::Tensor;
use tenure::tensor::random::{self, DefaultStates, Generator, GeneratorState};

use super::device::{self, DeviceObject};
use super::{TensorObject, convert, exception, wrapped};

/// The seed of new generators, which is PyTorch's.
const FIRST_SEED: u64 = 67_280_421_310_721;
/// The bytes of a state: the seed and the number of the next block.
const STATE_BYTES: usize = 16;

/// A sequence of random numbers for a device, by default the CPU. Its first seed is PyTorch's, 67280421310721.
#[pyclass(frozen, name = "Generator", module = "tenure")]
pub(crate) struct GeneratorObject {
    generator: Generator,
}

impl GeneratorObject {
    pub(super) fn generator(&self) -> Generator {
        self.generator.clone()
    }
}

#[pymethods]
impl GeneratorObject {
    #[new]
    #[pyo3(signature = (device = None))]
    fn new(device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let device = device.map_or(Ok(Device::CPU), device_of)?;
        Ok(Self { generator: Generator::of_device(device, FIRST_SEED) })
    }

    /// The device that it draws for.
    #[getter]
    fn device(&self) -> DeviceObject {
        DeviceObject::new(self.generator.device().unwrap_or(Device::CPU))
    }

    /// Moves to the beginning of a seed's sequence, and returns the generator. The seed is from -2**63 up to 2**64 - 1;
    /// a negative number stands for itself plus 2**64.
    fn manual_seed<'py>(slf: Bound<'py, Self>, seed: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        slf.get().generator.manual_seed(seed_of(seed)?);
        Ok(slf)
    }

    /// Moves to the beginning of the sequence of a seed that the system chooses, and returns the seed.
    fn seed(&self, py: Python<'_>) -> PyResult<u64> {
        let bytes: [u8; 8] = py.import("os")?.call_method1("urandom", (8,))?.extract()?;
        let seed = u64::from_le_bytes(bytes);
        self.generator.manual_seed(seed);
        Ok(seed)
    }

    /// Returns the seed.
    fn initial_seed(&self) -> u64 {
        self.generator.state().seed
    }

    /// Returns the state as a tensor of 16 bytes on the CPU: the seed, and the position in its sequence.
    fn get_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, TensorObject>> {
        let GeneratorState { seed, offset, .. } = self.generator.state();
        let bytes = [seed.to_le_bytes(), offset.to_le_bytes()].concat();
        wrapped(py, Tensor::from_slice(&bytes, &[STATE_BYTES]).map_err(exception)?)
    }

    /// Moves to a state that `get_state` returned, of this generator or of another.
    fn set_state(&self, new_state: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = convert::tensor(new_state)
            .filter(|state| state.dtype() == DType::U8 && state.sizes() == [STATE_BYTES])
            .ok_or_else(|| PyTypeError::new_err("RNG state must be a tensor of 16 elements of uint8"))?;
        let bytes = state.to_vec::<u8>().map_err(exception)?;
        let [seed, offset] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte])));
        self.generator.set_state(GeneratorState::new(seed, offset));
        Ok(())
    }

    /// Returns another generator in the same state.
    fn clone_state(&self) -> Self {
        Self { generator: self.generator.clone_state() }
    }

    /// Copies and pickles begin with this generator's state.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,), Bound<'py, PyAny>)> {
        let device = slf.get().device().device().to_string();
        let state = slf.call_method0("get_state")?;
        Ok((slf.get_type().into_any(), (device,), state))
    }

    fn __setstate__(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_state(state)
    }

    fn __repr__(&self) -> String {
        format!("<tenure.Generator device={}>", self.device().device())
    }
}

/// Returns the generator of operations on a device that are given none.
#[pyfunction]
pub(crate) fn default_generator(device: &Bound<'_, PyAny>) -> PyResult<GeneratorObject> {
    Ok(GeneratorObject { generator: random::default_generator(device_of(device)?) })
}

/// Moves the default generators of all devices to the beginning of a seed's sequence.
#[pyfunction]
pub(crate) fn manual_seed(seed: &Bound<'_, PyAny>) -> PyResult<()> {
    random::manual_seed(seed_of(seed)?);
    Ok(())
}

/// The states of the default generators of all devices at the time of its creation.
#[pyclass(frozen, name = "DefaultStates", module = "tenure._native")]
pub(crate) struct DefaultStatesObject {
    states: DefaultStates,
}

#[pymethods]
impl DefaultStatesObject {
    #[new]
    fn new() -> Self {
        Self { states: DefaultStates::now([]) }
    }

    /// Moves the default generators to these states.
    fn restore(&self) {
        self.states.restore();
    }
}

fn device_of(object: &Bound<'_, PyAny>) -> PyResult<Device> {
    device::converted(object)?.ok_or_else(|| PyTypeError::new_err("a generator's device is a device or its name"))
}

fn seed_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(seed) = object.extract::<u64>() {
        return Ok(seed);
    }
    object
        .extract::<i64>()
        .map(i64::cast_unsigned)
        .map_err(|_| PyValueError::new_err(format!("the seed {object} is not an integer from -2**63 up to 2**64 - 1")))
}
