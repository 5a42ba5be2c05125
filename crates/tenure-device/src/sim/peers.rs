//! Copies between simulated devices, each of which has its own clock.

use std::sync::Arc;

use parking_lot::Mutex;
use tenure_alloc::Address;
use tenure_core::StreamId;

use super::{SimDriver, SimKernel};
use crate::{Call, CallError, Driver, Executor};

/// The source of a copy, on another device.
pub(crate) struct PeerSource {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) address: Address,
    pub(crate) stream: StreamId,
}

impl SimDriver {
    /// Puts a copy from another device on `stream`, which waits until the source's stream has reached the copy.
    #[track_caller]
    pub(crate) fn copy_from_peer(
        &self,
        target: Address,
        source: PeerSource,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        let name = Call::CopyToPeer.name();
        let PeerSource { driver, address, stream: from } = source;
        let Executor::Sim(peer) = driver.executor() else { unreachable!("simulated devices have simulated peers") };
        let underway = Arc::new(Mutex::new(None));
        let giver = Arc::clone(&underway);
        let waiter = Arc::clone(&underway);
        let taker = underway;
        let give = SimKernel::new(name, from).reads(address, bytes).body(move |memory| {
            let mut all = vec![0; bytes as usize];
            memory.read(address, &mut all);
            *giver.lock() = Some(all);
        });
        let take = SimKernel::new(name, stream).writes(target, bytes).body(move |memory| {
            if let Some(all) = taker.lock().take() {
                memory.write(target, &all);
            }
        });
        // The bytes are taken once: a captured graph of one of the two streams would be launched without the other.
        peer.call(Call::CopyToPeer, |state| {
            let from = state.timeline.stream(from)?;
            state.forbid_in_capture_of(from)
        })?;
        peer.launch(give)?;
        let giving = Arc::clone(&driver);
        self.wait_outside(
            stream,
            Box::new(move || match giving.executor() {
                // Perhaps no other thread runs the source's stream.
                Executor::Sim(peer) if waiter.lock().is_none() => peer.run_if_free() || waiter.lock().is_some(),
                _ => true,
            }),
        )?;
        self.launch(take).map(drop)
    }

    /// Runs everything that may run now, unless another call is using the device. Returns whether the context is lost.
    fn run_if_free(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        while state.fault().is_none() {
            match state.step() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(kind) => _ = state.fail(Call::Launch, kind),
            }
        }
        true
    }
}
