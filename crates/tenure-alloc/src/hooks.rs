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
    /// Adds a callback that may free memory when it runs short.
    pub(crate) fn add_callback(&self, callback: FreeMemoryCallback) {
        self.callbacks.lock().push(Arc::from(callback));
    }

    /// Adds an observer of out-of-memory errors.
    pub(crate) fn add_observer(&self, observer: OutOfMemoryObserver) {
        self.observers.lock().push(Arc::from(observer));
    }

    /// Returns whether the program has added a callback that may free memory.
    pub(crate) fn has_callbacks(&self) -> bool {
        !self.callbacks.lock().is_empty()
    }

    /// Calls every callback, also after one has freed memory. Returns whether one returned `true`: that it may have
    /// freed a block.
    pub(crate) fn free_memory(&self) -> bool {
        let callbacks = self.callbacks.lock().clone();
        let mut has_freed = false;
        for callback in callbacks {
            has_freed |= callback();
        }
        has_freed
    }

    /// Calls every observer with an out-of-memory error.
    pub(crate) fn report_out_of_memory(&self, error: &OutOfMemory) {
        let observers = self.observers.lock().clone();
        for observer in observers {
            observer(error);
        }
    }
}
