//! A thread for calls that may free a model, which whoever learns that weights are there must not do itself.

use std::sync::mpsc;
use std::{io, thread};

/// The thread, which ends with the last of these.
#[derive(Clone)]
pub(crate) struct Callbacks(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Callbacks {
    pub(crate) fn start(thread: &str) -> io::Result<Self> {
        let (calls, receiver) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::Builder::new().name(thread.into()).spawn(move || receiver.into_iter().for_each(|call| call()))?;
        Ok(Self(calls))
    }

    /// Has the thread make a call.
    pub(crate) fn call(&self, call: impl FnOnce() + Send + 'static) {
        // Without the thread, nobody is left to be told.
        let _ = self.0.send(Box::new(call));
    }
}
