//! An open load: sends requests at their times, whether or not earlier ones were answered.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tokio::runtime::Runtime;

use super::arrivals::Arrival;
use super::metrics::Counted;
use super::target::{RequestOutcome, ServerUnderTest};
use crate::signals;

/// The time between two checks for an interrupt, and between two reads of the server's metrics.
const LOOK: Duration = Duration::from_millis(50);
const READ: Duration = Duration::from_millis(500);

/// A request that was sent, and its outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) arrival: Arrival,
    /// The time from when the request was due until the whole answer arrived.
    pub(super) took: Duration,
    pub(super) outcome: RequestOutcome,
}

/// The results of a replay.
pub(super) struct Replayed {
    pub(super) samples: Vec<Sample>,
    /// The server's counters, with the times at which they were read.
    pub(super) counted: Vec<(Duration, Counted)>,
    /// The first error.
    pub(super) error: Option<String>,
}

/// Sends requests until the last is answered or the user interrupts; requests without an answer by then do not count.
pub(super) fn replay(
    runtime: &Runtime,
    target: &Arc<ServerUnderTest>,
    arrivals: &[Arrival],
    bar: &ProgressBar,
) -> Replayed {
    let (sender, receiver) = mpsc::channel();
    let mut counted = vec![(Duration::ZERO, runtime.block_on(Counted::ask(&target.client)))];
    let begun = Instant::now();
    let (read_sender, seen) = mpsc::channel();
    let reader = runtime.spawn(read(Arc::clone(target), begun, read_sender));
    let mut sent = 0;
    'sending: for &arrival in arrivals {
        while let Some(rest) = arrival.at.checked_sub(begun.elapsed()) {
            if signals::was_received() {
                break 'sending;
            }
            bar.set_position(begun.elapsed().as_millis() as u64);
            thread::sleep(rest.min(LOOK));
        }
        let target = Arc::clone(target);
        let sender = sender.clone();
        runtime.spawn(async move {
            let model = &target.models[arrival.model];
            let answer = model.ask(&target.client).await;
            let took = begun.elapsed().saturating_sub(arrival.at);
            let (outcome, error) = match answer {
                Ok(answer) => (model.outcome(answer), None),
                Err(error) => (RequestOutcome::Failed, Some(format!("{error:#}"))),
            };
            // The receiver is gone after an interrupt.
            let _ = sender.send((Sample { arrival, took, outcome }, error));
        });
        sent += 1;
    }
    drop(sender);
    let mut samples = Vec::with_capacity(sent);
    let mut error = None;
    while samples.len() < sent {
        match receiver.recv_timeout(LOOK) {
            Ok((sample, failure)) => {
                samples.push(sample);
                error = error.or(failure);
            }
            Err(mpsc::RecvTimeoutError::Timeout) if !signals::was_received() => {}
            Err(_) => break,
        }
    }
    reader.abort();
    counted.extend(seen.try_iter());
    counted.push((begun.elapsed(), runtime.block_on(Counted::ask(&target.client))));
    samples.sort_by_key(|sample| sample.arrival.at);
    Replayed { samples, counted, error }
}

/// Reads the server's counters again and again, and sends them.
async fn read(target: Arc<ServerUnderTest>, begun: Instant, sender: mpsc::Sender<(Duration, Counted)>) {
    loop {
        tokio::time::sleep(READ).await;
        let counted = Counted::ask(&target.client).await;
        if sender.send((begun.elapsed(), counted)).is_err() {
            return;
        }
    }
}
