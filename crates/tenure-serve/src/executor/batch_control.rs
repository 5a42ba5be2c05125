//! The control of a batch while it is computed.

use std::mem;

use parking_lot::Mutex;

/// A batch that is computed or will be. It is abandoned when no request waits for its answer any more, whenever that is.
#[derive(Default)]
pub(crate) struct BatchControl(Mutex<BatchState>);

#[derive(Default)]
enum BatchState {
    /// Nothing is known about how it stops.
    #[default]
    Wanted,
    /// It is computed, and this call stops it early.
    Stoppable(Box<dyn FnOnce() + Send>),
    Abandoned,
}

impl BatchControl {
    /// Abandons the batch: what computes it ends as early as possible.
    pub(crate) fn abandon(&self) {
        let before = mem::replace(&mut *self.0.lock(), BatchState::Abandoned);
        if let BatchState::Stoppable(stop) = before {
            stop();
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(*self.0.lock(), BatchState::Abandoned)
    }

    /// Sets the call that stops the computation. It is called at once if the batch has been abandoned already.
    pub(crate) fn on_abandon(&self, stop: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        match *state {
            BatchState::Abandoned => {
                drop(state);
                stop();
            }
            BatchState::Wanted | BatchState::Stoppable(_) => *state = BatchState::Stoppable(Box::new(stop)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_batch_is_stopped_once_whether_it_is_abandoned_before_or_after_it_begins() {
        for is_early in [false, true] {
            let control = BatchControl::default();
            let stops = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&stops);
            if is_early {
                control.abandon();
            }
            control.on_abandon(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(control.is_abandoned(), is_early);
            control.abandon();
            control.abandon();
            assert_eq!((control.is_abandoned(), stops.load(Ordering::Relaxed)), (true, 1));
        }
    }
}
