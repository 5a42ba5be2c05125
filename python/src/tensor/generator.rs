//! `tenure.Generator`: sequences of random numbers.

use pyo3::prelude::*;
use tenure::tensor::random::{self, Generator, GeneratorState};

/// A sequence of random numbers: a seed and a position. Copies made by `clone_state` draw the same numbers.
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
    #[pyo3(signature = (seed = 0))]
    fn new(seed: u64) -> Self {
        Self { generator: Generator::new(seed) }
    }

    /// Moves to the beginning of a seed's sequence, and returns the generator.
    fn manual_seed(slf: Bound<'_, Self>, seed: u64) -> Bound<'_, Self> {
        slf.get().generator.manual_seed(seed);
        slf
    }

    /// Returns the seed.
    fn initial_seed(&self) -> u64 {
        self.generator.state().seed
    }

    /// Returns the seed and the position in its sequence.
    fn get_state(&self) -> (u64, u64) {
        let GeneratorState { seed, offset, .. } = self.generator.state();
        (seed, offset)
    }

    /// Moves to a seed and a position that `get_state` returned.
    fn set_state(&self, state: (u64, u64)) {
        self.generator.set_state(GeneratorState::new(state.0, state.1));
    }
}

/// Returns the generator of operations that are given none.
#[pyfunction]
pub(crate) fn default_generator() -> GeneratorObject {
    GeneratorObject { generator: random::default_generator() }
}
