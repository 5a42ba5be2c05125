//! Times of a problem's kernels, measured between the allocations of a placed program.

use tenure_core::{Clock, KeyId};
use tenure_plan::Problem;
use tenure_plan::problem::Kernel;

use crate::TierError;

/// Times of the kernels of a recorded problem, as sums over steps.
pub(crate) struct KernelTimes {
    clock: Clock,
    /// Keys of the allocations with which kernels begin, in their order.
    keys: Vec<String>,
    /// Whether the problem has a kernel before the first allocation.
    has_begin: bool,
    /// If it has one after the last, the optimizer's: the share that the last allocation's kernel has of the time that both
    /// take, by the bytes that they access.
    last_share: Option<f64>,
    /// The step that is measured now.
    step: Option<Step>,
    sums_ns: Vec<u64>,
    steps: u64,
    /// How the last step that did not count differed.
    difference: Option<String>,
}

struct Step {
    began_ns: u64,
    allocated: Vec<(u64, KeyId)>,
}

impl KernelTimes {
    /// For a problem as recorders make it.
    pub(crate) fn new(problem: &Problem, clock: Clock) -> Self {
        let kernels = problem.kernels();
        let is_begin = |kernel: &Kernel| kernel.name == "begin" && kernel.writes.is_empty();
        let has_begin = kernels.first().is_some_and(is_begin);
        let last_share = match kernels {
            [.., last, update] if update.name == "update" => {
                let bytes = |kernel: &Kernel| kernel.accesses().map(|access| access.bytes).sum::<u64>() as f64;
                Some(bytes(last) / (bytes(last) + bytes(update)).max(1.0))
            }
            _ => None,
        };
        let allocated = usize::from(has_begin)..kernels.len() - usize::from(last_share.is_some());
        let keys = kernels.get(allocated).unwrap_or_default().iter().map(|kernel| kernel.name.clone()).collect();
        let sums_ns = vec![0; kernels.len()];
        Self { clock, keys, has_begin, last_share, step: None, sums_ns, steps: 0, difference: None }
    }

    /// Ends the step that is measured, if there is one, and begins another.
    pub(crate) fn begin_step(&mut self) {
        self.end_step();
        self.step = Some(Step { began_ns: self.now_ns(), allocated: Vec::new() });
    }

    /// An allocation with a key.
    pub(crate) fn note(&mut self, key: KeyId) {
        let at_ns = self.now_ns();
        // One more than expected tells that a step differs; others need no room.
        if let Some(step) = self.step.as_mut().filter(|step| step.allocated.len() <= self.keys.len()) {
            step.allocated.push((at_ns, key));
        }
    }

    /// Ends the step that is measured, if there is one. Returns mean nanoseconds of each kernel.
    ///
    /// # Errors
    /// [`TierError::NotMeasured`] if no step allocated what the problem says.
    pub(crate) fn mean_ns(&mut self) -> Result<Vec<u64>, TierError> {
        self.end_step();
        if self.steps == 0 {
            let reason = self.difference.clone().unwrap_or_else(|| "no step has begun".into());
            return Err(TierError::NotMeasured { reason });
        }
        Ok(self.sums_ns.iter().map(|sum| sum / self.steps).collect())
    }

    fn end_step(&mut self) {
        let Some(Step { began_ns, allocated }) = self.step.take() else { return };
        let ended_ns = self.now_ns();
        self.difference = self.difference_of(&allocated);
        if self.difference.is_some() {
            return;
        }
        let mut begins_ns: Vec<u64> = allocated.iter().map(|(at_ns, _)| *at_ns).collect();
        if self.has_begin {
            begins_ns.insert(0, began_ns);
        }
        if let Some((share, last_ns)) = self.last_share.zip(begins_ns.last().copied()) {
            begins_ns.push(last_ns + (share * (ended_ns - last_ns) as f64) as u64);
        }
        let ends_ns = begins_ns.iter().copied().skip(1).chain([ended_ns]);
        for (sum_ns, (begin_ns, end_ns)) in self.sums_ns.iter_mut().zip(begins_ns.iter().zip(ends_ns)) {
            *sum_ns += end_ns - begin_ns;
        }
        self.steps += 1;
    }

    fn difference_of(&self, allocated: &[(u64, KeyId)]) -> Option<String> {
        let names = allocated.iter().map(|(_, key)| key.key().map(|key| key.to_string()).unwrap_or_default());
        let mut pairs = self.keys.iter().zip(names);
        if let Some((expected, name)) = pairs.find(|(expected, name)| *expected != name) {
            return Some(format!("a step allocated {name:?} where the problem has {expected:?}"));
        }
        let (found, expected) = (allocated.len(), self.keys.len());
        let more = if found > expected { "more allocations" } else { "fewer allocations" };
        (found != expected).then(|| format!("a step made {more} with keys than the {expected} of the problem"))
    }

    fn now_ns(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }
}
