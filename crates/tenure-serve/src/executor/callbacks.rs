//! A thread for callbacks that may drop a model. The threads that report loaded weights must not drop models.

use std::sync::mpsc;
use std::{io, thread};

/// A handle to the thread, which ends with its last handle.
#[derive(Clone)]
pub(crate) struct Callbacks(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Callbacks {
    pub(crate) fn start(thread: &str) -> io::Result<Self> {
        let (calls, receiver) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::Builder::new().name(thread.into()).spawn(move || receiver.into_iter().for_each(|call| call()))?;
        Ok(Self(calls))
    }

    /// Runs a call on the thread.
    pub(crate) fn call(&self, call: impl FnOnce() + Send + 'static) {
        // If the thread is gone, there is nothing left to notify.
        let _ = self.0.send(Box::new(call));
    }
}
