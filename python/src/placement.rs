//! Where PyTorch's tensors on the CPU live: placements and recordings, which threads enter and leave.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;

use pyo3::prelude::*;
use tenure::prelude::*;
use tenure_plan::Mapping;
use tenure_tier::{Medium, Options, PlacementGuard, RecorderGuard, Tier, WhenFull};

use crate::errors::complaint;
use crate::json;

thread_local! {
    static ENTERED: RefCell<Vec<(u64, Guard)>> = const { RefCell::new(Vec::new()) };
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// What keeps a thread in a placement or a recording.
enum Guard {
    Placed { _guard: PlacementGuard },
    Recorded { _guard: RecorderGuard },
}

/// The address of the table of functions that the shim under PyTorch's memory of the CPU stands on.
#[pyfunction]
pub(crate) fn cpu_api() -> usize {
    tenure_capi::cpu::tenure_cpu_table().expose_provenance()
}

/// Whether what this thread allocates on the CPU is placed or recorded.
#[pyfunction]
pub(crate) fn is_placed() -> bool {
    AllocatorScope::current(Device::CPU).is_some()
}

/// Leaves what was entered with this token, and all that was entered since and not left.
#[pyfunction]
pub(crate) fn leave_placement(token: u64) {
    while let Some((left, _guard)) = ENTERED.with_borrow_mut(|entered| {
        let is_entered = entered.iter().any(|(other, _)| *other == token);
        if is_entered { entered.pop() } else { None }
    }) {
        if left == token {
            return;
        }
    }
}

fn entered(guard: Guard) -> u64 {
    let token = LAST.get() + 1;
    LAST.set(token);
    ENTERED.with_borrow_mut(|entered| entered.push((token, guard)));
    token
}

/// `tenure_tier::Placement`.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Placement(tenure_tier::Placement);

#[pymethods]
impl Placement {
    #[new]
    fn new(
        py: Python<'_>,
        mapping: PathBuf,
        tiers: Vec<(String, String)>,
        is_strict: bool,
        may_miss: bool,
    ) -> PyResult<Self> {
        let open = || -> Result<_, String> {
            let mapping = Mapping::read(mapping).map_err(|error| error.to_string())?;
            let open = |(name, medium): (String, String)| {
                let (medium, capacity) = Medium::with_capacity(&medium)?;
                Tier::open(name, &medium, capacity)
            };
            let tiers: Vec<Tier> =
                tiers.into_iter().map(open).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
            let when_full = if may_miss { WhenFull::Miss } else { WhenFull::Refuse };
            tenure_tier::Placement::open(mapping, tiers, Options { is_strict, when_full })
                .map_err(|error| error.to_string())
        };
        py.detach(open).map(Self).map_err(complaint)
    }

    /// Places this thread, until `leave_placement` is called with the token that is returned.
    fn enter(&self) -> u64 {
        entered(Guard::Placed { _guard: self.0.enter() })
    }

    /// What is where, as JSON and as text.
    fn report(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let report = py.detach(|| self.0.report());
        Ok((json(&report)?, report.to_string()))
    }

    /// Raises if a key of the mapping never came.
    fn check_all_came(&self) -> PyResult<()> {
        self.0.check_all_came().map_err(|error| complaint(error.to_string()))
    }
}

/// `tenure_tier::Recorder`.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Recorder(tenure_tier::Recorder);

#[pymethods]
impl Recorder {
    #[new]
    fn new() -> PyResult<Self> {
        tenure_tier::Recorder::new().map(Self).map_err(|error| complaint(error.to_string()))
    }

    /// Records this thread, until `leave_placement` is called with the token that is returned.
    fn enter(&self) -> u64 {
        entered(Guard::Recorded { _guard: self.0.enter() })
    }

    /// `tenure_tier::Recorder::begin_iteration`.
    fn begin_iteration(&self) {
        self.0.begin_iteration();
    }

    /// Writes the problem of placing what was recorded.
    fn write(&self, py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
        let write = || self.0.problem(name, Vec::new(), Vec::new())?.write(path);
        py.detach(write).map_err(|error| complaint(error.to_string()))
    }
}
