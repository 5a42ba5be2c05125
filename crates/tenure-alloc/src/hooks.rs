//! The callbacks and observers that a program adds to an allocator.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{FreeMemoryCallback, OutOfMemory, OutOfMemoryObserver};

type Callback = Arc<dyn Fn() -> bool + Send + Sync>;
type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// The program's callbacks and observers. They are called without the allocator's locks, and without the locks here.
#[derive(Default)]
pub(crate) struct Hooks {
    callbacks: Mutex<Vec<Callback>>,
    observers: Mutex<Vec<Observer>>,
}

impl Hooks {
    /// Adds a callback to try when memory runs short.
    pub(crate) fn add_callback(&self, callback: FreeMemoryCallback) {
        self.callbacks.lock().push(Arc::from(callback));
    }

    /// Adds an observer of out-of-memory errors.
    pub(crate) fn add_observer(&self, observer: OutOfMemoryObserver) {
        self.observers.lock().push(Arc::from(observer));
    }

    /// Returns whether [`free_memory`](Self::free_memory) would call anything.
    pub(crate) fn has_callbacks(&self) -> bool {
        !self.callbacks.lock().is_empty()
    }

    /// Calls every callback; returns whether any of them may have freed a block.
    pub(crate) fn free_memory(&self) -> bool {
        let callbacks = self.callbacks.lock().clone();
        callbacks.iter().filter(|callback| callback()).count() > 0
    }

    /// Calls every observer with an out-of-memory error.
    pub(crate) fn out_of_memory(&self, error: &OutOfMemory) {
        let observers = self.observers.lock().clone();
        observers.iter().for_each(|observer| observer(error));
    }
}
