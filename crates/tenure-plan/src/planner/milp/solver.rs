//! The solver of mixed-integer problems, HiGHS: watched, and ended when whoever watches has had enough.

use std::ffi::{c_char, c_int, c_void};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::ptr::from_ref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use highs::{HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};
use highs_sys::{HighsCallbackDataIn, HighsCallbackDataOut};

use crate::planner::PlannerError;

/// How often whoever watches is asked.
const PERIOD: Duration = Duration::from_millis(50);

/// When a search ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) time: Duration,
    /// How far the best may be from the bound, as a share of the best; none if no column has to be a whole number.
    pub(super) gap: Option<f64>,
    pub(super) seed: u64,
}

/// What a search found.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    /// The best values of all columns; none if there are none yet.
    pub(super) columns: Option<Vec<f64>>,
    /// What no solution surpasses; infinite if nothing is known.
    pub(super) bound: f64,
}

/// Searches for the best values of a problem's columns, from `start` if that is given, in which columns that are no whole
/// numbers may be wrong. `watch` is asked again and again whether to go on, and told what the objective says of the best.
pub(super) fn solve(
    problem: RowProblem,
    sense: Sense,
    start: Option<&[f64]>,
    limits: &Limits,
    mut watch: impl FnMut(Option<f64>) -> ControlFlow<()>,
) -> Result<Solved, PlannerError> {
    let (signals, begun) = (Signals::default(), Instant::now());
    // HiGHS keeps threads for each that calls it, and as many as the first call asked for: so each call has its own.
    thread::scope(|scope| {
        let (bell, ended) = mpsc::channel::<()>();
        let worker = scope.spawn(|| {
            let _rings_at_the_end = bell;
            run(problem, sense, start, limits, &signals)
        });
        while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            // It looks at the clock less often than at this.
            if watch(signals.best()).is_break() || begun.elapsed() > limits.time {
                signals.is_stopped.store(true, Ordering::Relaxed);
            }
        }
        worker.join().unwrap_or(Err(PlannerError::Solver("it panicked")))
    })
}

fn run(
    problem: RowProblem,
    sense: Sense,
    start: Option<&[f64]>,
    limits: &Limits,
    signals: &Signals,
) -> Result<Solved, PlannerError> {
    if problem.num_cols() == 0 {
        // There is nothing to start from, which would be refused.
        return Ok(Solved { columns: Some(Vec::new()), bound: 0.0 });
    }
    let refused = |_| PlannerError::Solver("it refused the problem: its numbers are too far apart");
    let unbounded = match sense {
        Sense::Maximise => f64::INFINITY,
        Sense::Minimise => f64::NEG_INFINITY,
    };
    let mut model = problem.try_optimise(sense).map_err(refused)?;
    model.make_quiet();
    // More would hardly be faster.
    model.set_threads(NonZero::<u32>::MIN);
    model.set_option("time_limit", limits.time.as_secs_f64());
    model.set_option("mip_rel_gap", limits.gap.unwrap_or(0.0));
    model.set_option("random_seed", (limits.seed % (1 << 31)) as i32);
    if let Some(start) = start {
        model.try_set_solution(Some(start), None, None, None).map_err(refused)?;
    }
    signals.connect(&mut model).map_err(|()| PlannerError::Solver("it cannot be watched"))?;
    let solved = model.try_solve().map_err(|_| PlannerError::Solver("it failed"))?;
    let bound = match limits.gap {
        Some(_) => solved.double_info_value(c"mip_dual_bound").ok(),
        None => (solved.status() == HighsModelStatus::Optimal).then(|| solved.objective_value()),
    };
    let is_found = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
    Ok(Solved {
        columns: is_found.then(|| solved.get_solution().columns().to_vec()),
        bound: bound.unwrap_or(unbounded),
    })
}

/// What a search and whoever watches it tell each other.
struct Signals {
    is_stopped: AtomicBool,
    /// The bits of what the objective says of the best so far; of NaN if there is none.
    best: AtomicU64,
}

impl Default for Signals {
    fn default() -> Self {
        Self { is_stopped: AtomicBool::new(false), best: AtomicU64::new(f64::NAN.to_bits()) }
    }
}

impl Signals {
    fn best(&self) -> Option<f64> {
        Some(f64::from_bits(self.best.load(Ordering::Relaxed))).filter(|best| !best.is_nan())
    }

    /// Lets a model see whether it is to stop, and tell of what it finds. It must not be solved after the signals' end.
    fn connect(&self, model: &mut highs::Model) -> Result<(), ()> {
        let data = from_ref(self).cast_mut().cast::<c_void>();
        let highs = model.as_mut_ptr();
        // SAFETY: The model is alive, and `callback` has the type that is asked for.
        let mut statuses = vec![unsafe { highs_sys::Highs_setCallback(highs, Some(callback), data) }];
        for kind in [
            highs_sys::kHighsCallbackMipInterrupt,
            highs_sys::kHighsCallbackSimplexInterrupt,
            highs_sys::kHighsCallbackIpmInterrupt,
            highs_sys::kHighsCallbackMipImprovingSolution,
        ] {
            // SAFETY: The model is alive.
            statuses.push(unsafe { highs_sys::Highs_startCallback(highs, kind) });
        }
        if statuses.iter().all(|status| *status == highs_sys::STATUS_OK) { Ok(()) } else { Err(()) }
    }
}

/// Called by HiGHS in the course of a search.
unsafe extern "C" fn callback(
    kind: c_int,
    _: *const c_char,
    out: *const HighsCallbackDataOut,
    input: *mut HighsCallbackDataIn,
    data: *mut c_void,
) {
    // SAFETY: `data` is what `connect` gave, and the signals live as long as the model is solved; all of them is atomic.
    let signals = unsafe { &*data.cast::<Signals>() };
    // SAFETY: HiGHS gives null, or what it reads from until the call ends, which nobody else looks at.
    if let Some(out) = unsafe { out.as_ref() }.filter(|_| kind == highs_sys::kHighsCallbackMipImprovingSolution) {
        signals.best.store(out.objective_function_value.to_bits(), Ordering::Relaxed);
    }
    // SAFETY: As above, of what it writes to.
    if let Some(input) = unsafe { input.as_mut() } {
        input.user_interrupt = c_int::from(signals.is_stopped.load(Ordering::Relaxed));
    }
}
