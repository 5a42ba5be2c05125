//! The solver of mixed-integer problems, HiGHS. The caller watches it, and can end it at any time.

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

/// The time between two calls of `watch`.
const PERIOD: Duration = Duration::from_millis(50);

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) time: Duration,
    /// The relative gap between the best solution and the bound at which the search ends; `None` if no column has to be
    /// an integer.
    pub(super) gap: Option<f64>,
    pub(super) seed: u64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    /// The best values of all columns; `None` if no solution was found.
    pub(super) columns: Option<Vec<f64>>,
    /// A bound that no solution surpasses; infinite if none is known.
    pub(super) bound: f64,
}

/// Searches for the best values of a problem's columns. Starts from `start` if it is given; its values of columns that
/// are not integers may be wrong. Calls `watch` repeatedly with the objective of the best solution; the search ends if
/// it returns `Break`.
pub(super) fn solve(
    problem: RowProblem,
    sense: Sense,
    start: Option<&[f64]>,
    limits: &Limits,
    mut watch: impl FnMut(Option<f64>) -> ControlFlow<()>,
) -> Result<Solved, PlannerError> {
    let signals = Signals::default();
    let begun = Instant::now();
    // HiGHS keeps threads for each thread that calls it, as many as the first call asked for: so each search has a
    // thread of its own.
    thread::scope(|scope| {
        let (bell, ended) = mpsc::channel::<()>();
        let worker = scope.spawn(|| {
            let _rings_at_the_end = bell;
            run(problem, sense, start, limits, &signals)
        });
        while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            // HiGHS checks its own time limit less often than this loop.
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
        // HiGHS would refuse a problem without columns.
        return Ok(Solved { columns: Some(Vec::new()), bound: 0.0 });
    }
    let refused = |_| PlannerError::Solver("it refused the problem: its numbers are too far apart");
    let unbounded = match sense {
        Sense::Maximise => f64::INFINITY,
        Sense::Minimise => f64::NEG_INFINITY,
    };
    let mut model = problem.try_optimise(sense).map_err(refused)?;
    model.make_quiet();
    // More threads would hardly be faster.
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

/// The signals between a search and the thread that watches it.
struct Signals {
    is_stopped: AtomicBool,
    /// The bits of the objective's value for the best solution so far; of NaN if there is none.
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

    /// Connects a model to the signals, so that it sees a stop and reports its solutions. The model must not be solved
    /// after the signals have been dropped.
    fn connect(&self, model: &mut highs::Model) -> Result<(), ()> {
        let data = from_ref(self).cast_mut().cast::<c_void>();
        let highs = model.as_mut_ptr();
        // SAFETY: The model is alive, and `callback` has the type that HiGHS asks for.
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

/// Reads a new best solution and passes on a stop; HiGHS calls it during a search.
unsafe extern "C" fn callback(
    kind: c_int,
    _: *const c_char,
    out: *const HighsCallbackDataOut,
    input: *mut HighsCallbackDataIn,
    data: *mut c_void,
) {
    // SAFETY: `data` is the pointer that `connect` passed; the signals live as long as the model is solved, and all
    // fields are atomic.
    let signals = unsafe { &*data.cast::<Signals>() };
    // SAFETY: HiGHS passes null or a pointer to data that stays valid until the call ends, and that no other thread
    // accesses.
    if let Some(out) = unsafe { out.as_ref() }.filter(|_| kind == highs_sys::kHighsCallbackMipImprovingSolution) {
        signals.best.store(out.objective_function_value.to_bits(), Ordering::Relaxed);
    }
    // SAFETY: The same holds for the data that it passes for writing.
    if let Some(input) = unsafe { input.as_mut() } {
        input.user_interrupt = c_int::from(signals.is_stopped.load(Ordering::Relaxed));
    }
}
