//! Ctrl-C during long computations: checks for Python's signals while a computation runs without the GIL.
#![expect(clippy::disallowed_methods, reason = "it looks for signals from time to time")]

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The time between two checks for signals: short for a user who pressed Ctrl-C, and long against a wait for the GIL,
/// which other threads may hold for 5 ms.
const PERIOD: Duration = Duration::from_millis(100);

/// The number of steps between two looks at the clock.
const STEPS: u32 = 1024;

/// Ends a computation that runs without the GIL on Ctrl-C or on any exception that a signal handler raises.
pub(crate) struct Interrupt {
    raised: Option<PyErr>,
    steps: u32,
    asked: Instant,
}

impl Interrupt {
    pub(crate) fn new() -> Self {
        Self { raised: None, steps: 0, asked: Instant::now() }
    }

    /// Counts one of many short steps. Returns whether to go on.
    pub(crate) fn step(&mut self) -> ControlFlow<()> {
        self.steps = (self.steps + 1) % STEPS;
        if self.steps == 0 { self.ask() } else { ControlFlow::Continue(()) }
    }

    /// Checks for signals, if [`PERIOD`] has passed since the last check. Returns whether to go on.
    pub(crate) fn ask(&mut self) -> ControlFlow<()> {
        if self.asked.elapsed() < PERIOD {
            return ControlFlow::Continue(());
        }
        self.raised = Python::attach(|py| py.check_signals()).err();
        self.asked = Instant::now();
        if self.raised.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns the exception that a signal handler raised, if any; else the computation's own result.
    pub(crate) fn result<T>(self, made: PyResult<T>) -> PyResult<T> {
        self.raised.map_or(made, Err)
    }
}

/// A reader that fails once an interrupt has come.
pub(crate) struct Interruptible<'a, R> {
    pub(crate) reader: R,
    pub(crate) interrupt: &'a mut Interrupt,
}

impl<R: Read> Read for Interruptible<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.interrupt.ask() {
            ControlFlow::Continue(()) => self.reader.read(buffer),
            ControlFlow::Break(()) => Err(io::Error::other("interrupted")),
        }
    }
}
