//! Times of a problem's kernels, measured between the allocations of a placed program.

use std::sync::Arc;

use tenure_core::{Clock, KeyId};
use tenure_plan::Problem;

use crate::TierError;

/// The times of a recorded problem's kernels, summed over steps. Its methods take no lock. Only
/// [`EndedStep::kernels_ns`] takes the lock of the names of keys.
pub(crate) struct KernelTimes {
    clock: Clock,
    expected: Arc<ExpectedStep>,
    /// The step being measured.
    step: Option<MeasuredStep>,
    sums_ns: Vec<u64>,
    steps: u64,
    /// The first difference of the last step that did not count.
    difference: Option<String>,
}

/// The allocations and kernels that a step should have, from the problem.
struct ExpectedStep {
    /// The keys of the allocations that begin kernels, in order.
    keys: Vec<String>,
    /// Whether the problem has a kernel before the first allocation.
    has_begin: bool,
    /// Set if the problem has a kernel after the last allocation, the optimizer's: the last allocation's share of the
    /// time that both kernels take, estimated by the bytes that they access.
    last_share: Option<f64>,
}

/// A step that is being measured.
struct MeasuredStep {
    began_ns: u64,
    /// The time and the key of each allocation.
    allocated: Vec<(u64, KeyId)>,
}

/// A step that was measured, with the expected allocations.
pub(crate) struct EndedStep {
    step: MeasuredStep,
    ended_ns: u64,
    expected: Arc<ExpectedStep>,
}

impl KernelTimes {
    /// Creates the sums for a problem made by a recorder.
    pub(crate) fn new(problem: &Problem, clock: Clock) -> Self {
        let kernels = problem.kernels();
        let has_begin = kernels.first().is_some_and(|kernel| kernel.name == "begin" && kernel.writes.is_empty());
        let last_share = match kernels {
            [.., last, update] if update.name == "update" => {
                let [last, update] =
                    [last, update].map(|kernel| kernel.accesses().map(|access| access.bytes).sum::<u64>() as f64);
                Some(last / (last + update).max(1.0))
            }
            _ => None,
        };
        let allocated = usize::from(has_begin)..kernels.len() - usize::from(last_share.is_some());
        let keys = kernels.get(allocated).unwrap_or_default().iter().map(|kernel| kernel.name.clone()).collect();
        let expected = Arc::new(ExpectedStep { keys, has_begin, last_share });
        Self { clock, expected, step: None, sums_ns: vec![0; kernels.len()], steps: 0, difference: None }
    }

    /// Begins a step. Returns the step before, if it was measured.
    pub(crate) fn begin_step(&mut self) -> Option<EndedStep> {
        let ended = self.end_step();
        self.step = Some(MeasuredStep { began_ns: self.now_ns(), allocated: Vec::new() });
        ended
    }

    /// Ends the step being measured, if there is one.
    pub(crate) fn end_step(&mut self) -> Option<EndedStep> {
        let step = self.step.take()?;
        Some(EndedStep { step, ended_ns: self.now_ns(), expected: Arc::clone(&self.expected) })
    }

    /// Records an allocation with a key.
    pub(crate) fn record_allocation(&mut self, key: KeyId) {
        let at_ns = self.now_ns();
        // One allocation more than expected shows that a step differs; more need not be stored.
        if let Some(step) = self.step.as_mut().filter(|step| step.allocated.len() <= self.expected.keys.len()) {
            step.allocated.push((at_ns, key));
        }
    }

    /// Adds the times of a step, or records how it differed. Ignores a step of a problem that was measured before.
    pub(crate) fn add(&mut self, ended: &EndedStep, kernels_ns: Result<Vec<u64>, String>) {
        if !Arc::ptr_eq(&ended.expected, &self.expected) {
            return;
        }
        match kernels_ns {
            Ok(kernels_ns) => {
                self.sums_ns.iter_mut().zip(kernels_ns).for_each(|(sum_ns, ns)| *sum_ns += ns);
                self.steps += 1;
            }
            Err(difference) => self.difference = Some(difference),
        }
    }

    /// Returns the mean time of each kernel in ns.
    ///
    /// # Errors
    /// [`TierError::NotMeasured`] if no step made the problem's allocations.
    pub(crate) fn mean_ns(&self) -> Result<Vec<u64>, TierError> {
        if self.steps == 0 {
            let reason = self.difference.clone().unwrap_or_else(|| "no step has begun".into());
            return Err(TierError::NotMeasured { reason });
        }
        Ok(self.sums_ns.iter().map(|sum| sum / self.steps).collect())
    }

    fn now_ns(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }
}

impl EndedStep {
    /// Returns the time of each kernel of the problem in ns, or how the step differs from the problem.
    pub(crate) fn kernels_ns(&self) -> Result<Vec<u64>, String> {
        let Self { step: MeasuredStep { began_ns, allocated }, ended_ns, expected } = self;
        expected.check(allocated)?;
        let mut begins_ns: Vec<u64> = allocated.iter().map(|(at_ns, _)| *at_ns).collect();
        if expected.has_begin {
            begins_ns.insert(0, *began_ns);
        }
        if let Some((share, last_ns)) = expected.last_share.zip(begins_ns.last().copied()) {
            begins_ns.push(last_ns + (share * (ended_ns - last_ns) as f64) as u64);
        }
        let ends_ns = begins_ns.iter().copied().skip(1).chain([*ended_ns]);
        Ok(begins_ns.iter().zip(ends_ns).map(|(begin_ns, end_ns)| end_ns - begin_ns).collect())
    }
}

impl ExpectedStep {
    /// Checks that the step made the expected allocations. The error is the first difference.
    fn check(&self, allocated: &[(u64, KeyId)]) -> Result<(), String> {
        let names = allocated.iter().map(|(_, key)| key.key().map(|key| key.to_string()).unwrap_or_default());
        let mut pairs = self.keys.iter().zip(names);
        if let Some((expected, name)) = pairs.find(|(expected, name)| *expected != name) {
            return Err(format!("a step allocated {name:?} where the problem has {expected:?}"));
        }
        let found = allocated.len();
        let expected = self.keys.len();
        if found == expected {
            return Ok(());
        }
        let more = if found > expected { "more allocations" } else { "fewer allocations" };
        Err(format!("a step made {more} with keys than the {expected} of the problem"))
    }
}
