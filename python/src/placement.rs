//! Where PyTorch's tensors on the CPU live: placements and recordings, which threads enter and leave.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::prelude::*;
use tenure::core::Tag;
use tenure_plan::Mapping;
use tenure_tier::{Medium, PlacementGuard, PlacementOptions, RecorderGuard, Tier, TierError, WhenFull};

use crate::errors::complaint;
use crate::json;
use crate::purpose::tag_of;

/// The last number given to a placement or a recording.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ENTERED: RefCell<Vec<(u64, Guard)>> = const { RefCell::new(Vec::new()) };
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// A guard that keeps a thread in a placement or a recording until it is dropped.
enum Guard {
    Placed { number: u64, _guard: PlacementGuard },
    Recorded { number: u64, _guard: RecorderGuard },
}

/// Returns the address of the function table that the shim of PyTorch's CPU allocator calls.
#[pyfunction]
pub(crate) fn cpu_api() -> usize {
    tenure_capi::cpu::tenure_cpu_table().expose_provenance()
}

/// Returns the number of the placement or recording that this thread is in; 0 for none.
#[pyfunction]
pub(crate) fn placed_in() -> u64 {
    ENTERED.with_borrow(|entered| match entered.last() {
        Some((_, Guard::Placed { number, .. } | Guard::Recorded { number, .. })) => *number,
        None => 0,
    })
}

/// Leaves the placement or recording that was entered with this token, and all entered after it and not yet left.
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

fn next_number() -> u64 {
    LAST_NUMBER.fetch_add(1, Relaxed) + 1
}

fn entered(guard: Guard) -> u64 {
    let token = LAST.get() + 1;
    LAST.set(token);
    ENTERED.with_borrow_mut(|entered| entered.push((token, guard)));
    token
}

/// A `tenure_tier::Placement`.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Placement {
    placement: tenure_tier::Placement,
    number: u64,
}

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
        let placement = py
            .detach(|| -> Result<_, String> {
                let mapping = Mapping::read(mapping).map_err(|error| error.to_string())?;
                let when_full = if may_miss { WhenFull::Miss } else { WhenFull::Refuse };
                let mut opened = Vec::new();
                open_all(mapping, tiers, PlacementOptions { is_strict, when_full }, &mut opened).map_err(|error| {
                    opened.into_iter().for_each(Tier::discard);
                    error.to_string()
                })
            })
            .map_err(complaint)?;
        Ok(Self { placement, number: next_number() })
    }

    /// Removes the files that were created: the placement will not be used.
    fn discard(&self) {
        self.placement.tiers().iter().cloned().for_each(Tier::discard);
    }

    /// Enters the placement on this thread. Returns a token: the thread leaves when `leave_placement` is called with
    /// it.
    fn enter(&self) -> u64 {
        entered(Guard::Placed { number: self.number, _guard: self.placement.enter() })
    }

    /// Returns whether the byte at an address is in one of the tiers.
    fn contains(&self, address: u64) -> bool {
        self.placement.tiers().iter().any(|tier| tier.addresses().contains(&address))
    }

    /// Returns where every tensor is, as JSON and as text. `outside` is the bytes that PyTorch holds in no tier, each
    /// with the number of its tag.
    fn report(&self, py: Python<'_>, outside: Vec<(u8, u64)>) -> PyResult<(String, String)> {
        let outside: Vec<(Tag, u64)> = outside.into_iter().map(|(tag, bytes)| (tag_of(tag), bytes)).collect();
        let report = py.detach(|| self.placement.report_beside(&outside));
        Ok((json(&report)?, report.to_string()))
    }

    /// Gives the pages of free memory back to the system.
    fn release_cached(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.placement.release_cached()).map_err(|error| complaint(error.to_string()))
    }

    /// Calls `tenure_tier::Placement::measure`.
    fn measure(&self, problem: &crate::plan::Problem) {
        self.placement.measure(&problem.0, tenure_device::Clock::default());
    }

    /// Calls `tenure_tier::Placement::begin_iteration`.
    fn begin_iteration(&self) {
        self.placement.begin_iteration();
    }

    /// Calls `tenure_tier::Placement::kernel_times_ns`.
    fn kernel_times_ns(&self) -> PyResult<Vec<u64>> {
        self.placement.kernel_times_ns().map_err(|error| complaint(error.to_string()))
    }

    /// Raises if a key of the mapping was never allocated.
    fn check_all_came(&self) -> PyResult<()> {
        self.placement.check_all_came().map_err(|error| complaint(error.to_string()))
    }
}

/// Opens tiers, then a placement in them. If it fails, `opened` contains the tiers that were opened.
fn open_all(
    mapping: Mapping,
    tiers: Vec<(String, String)>,
    options: PlacementOptions,
    opened: &mut Vec<Tier>,
) -> Result<tenure_tier::Placement, TierError> {
    for (name, medium) in tiers {
        let (medium, capacity) = Medium::with_capacity(&medium)?;
        opened.push(Tier::open(name, &medium, capacity)?);
    }
    tenure_tier::Placement::open(mapping, opened.clone(), options)
}

/// A `tenure_tier::Recorder`.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Recorder {
    recorder: tenure_tier::Recorder,
    number: u64,
}

#[pymethods]
impl Recorder {
    #[new]
    fn new() -> PyResult<Self> {
        let recorder = tenure_tier::Recorder::new().map_err(|error| complaint(error.to_string()))?;
        Ok(Self { recorder, number: next_number() })
    }

    /// Records this thread until `leave_placement` is called with the token that is returned.
    fn enter(&self) -> u64 {
        entered(Guard::Recorded { number: self.number, _guard: self.recorder.enter() })
    }

    /// Calls `tenure_tier::Recorder::begin_iteration`.
    fn begin_iteration(&self) {
        self.recorder.begin_iteration();
    }

    /// Writes the placement problem that the recording makes.
    fn write(&self, py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
        py.detach(|| self.recorder.problem(name, Vec::new(), Vec::new())?.write(path))
            .map_err(|error| complaint(error.to_string()))
    }
}
