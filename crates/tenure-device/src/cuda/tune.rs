//! Measures several ways to compute the same result, and picks the fastest.

use tenure_core::StreamId;

use super::CudaDriver;
use crate::{CallError, EventCalls, EventKind, StreamCalls};

impl CudaDriver {
    /// Returns the fastest candidate that runs, or `None` if none does. Each candidate runs once, and then several
    /// times between two events. Waits for the device.
    pub(super) fn fastest<T>(
        &self,
        candidates: Vec<T>,
        stream: StreamId,
        mut run: impl FnMut(&T) -> Result<(), CallError>,
    ) -> Result<Option<T>, CallError> {
        const ROUNDS: usize = 5;
        let began = self.create_event(EventKind::Timing)?;
        let ended = self.create_event(EventKind::Timing)?;
        let mut measure = |candidate: &T| -> Result<f64, CallError> {
            run(candidate)?;
            self.record_event(began, stream)?;
            (0..ROUNDS).try_for_each(|_| run(candidate))?;
            self.record_event(ended, stream)?;
            self.synchronize_stream(stream)?;
            self.elapsed_us(began, ended)
        };
        let mut best: Option<(f64, T)> = None;
        for candidate in candidates {
            // A candidate that fails to run is skipped.
            if let Ok(elapsed_us) = measure(&candidate)
                && best.as_ref().is_none_or(|(least_us, _)| elapsed_us < *least_us)
            {
                best = Some((elapsed_us, candidate));
            }
        }
        [began, ended].into_iter().try_for_each(|event| self.destroy_event(event))?;
        Ok(best.map(|(_, candidate)| candidate))
    }
}
