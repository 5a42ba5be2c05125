use std::io::{self, Read};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often Python is asked: soon enough for whoever pressed Ctrl-C, and seldom enough that a wait for Python's lock,
/// which others may hold for 5 ms, does not count.
const PERIOD: Duration = Duration::from_millis(100);

/// Steps between two looks at the clock.
const STEPS: u32 = 1024;

/// Lets Ctrl-C, or whatever a signal's handler raises, end a computation that runs without Python's lock.
pub(crate) struct Interrupt {
    raised: Option<PyErr>,
    steps: u32,
    asked: Instant,
}

impl Interrupt {
    pub(crate) fn new() -> Self {
        Self { raised: None, steps: 0, asked: Instant::now() }
    }

    /// One of many short steps is over: whether to go on.
    pub(crate) fn step(&mut self) -> ControlFlow<()> {
        self.steps = (self.steps + 1) % STEPS;
        if self.steps == 0 { self.ask() } else { ControlFlow::Continue(()) }
    }

    /// Asks Python, if it is time to.
    pub(crate) fn ask(&mut self) -> ControlFlow<()> {
        if self.asked.elapsed() < PERIOD {
            return ControlFlow::Continue(());
        }
        self.raised = Python::attach(|py| py.check_signals()).err();
        self.asked = Instant::now();
        if self.raised.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// What a computation made; or what a signal's handler raised, whatever the computation made of that.
    pub(crate) fn result<T>(self, made: PyResult<T>) -> PyResult<T> {
        self.raised.map_or(made, Err)
    }
}

/// A reader that an interrupt ends with an error.
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
