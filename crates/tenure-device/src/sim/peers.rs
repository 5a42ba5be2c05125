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
        // The bytes between the two kernels: the first reads them on the source's device, the second writes them here.
        let read_bytes = Arc::new(Mutex::new(None));
        let awaited_bytes = Arc::clone(&read_bytes);
        let bytes_to_write = Arc::clone(&read_bytes);
        let read = SimKernel::new(name, from).reads(address, bytes).body(move |memory| {
            let mut all = vec![0; bytes as usize];
            memory.read(address, &mut all);
            *read_bytes.lock() = Some(all);
        });
        let write = SimKernel::new(name, stream).writes(target, bytes).body(move |memory| {
            if let Some(all) = bytes_to_write.lock().take() {
                memory.write(target, &all);
            }
        });
        // The bytes are written only once after each read. So neither stream may be captured: a graph of one of them
        // could be launched without the other.
        peer.call(Call::CopyToPeer, |state| {
            let from = state.timeline.stream(from)?;
            state.forbid_in_capture_of(from)
        })?;
        peer.launch(read)?;
        let source = Arc::clone(&driver);
        self.wait_outside(
            stream,
            Box::new(move || match source.executor() {
                // Perhaps no other thread runs the source's stream.
                Executor::Sim(peer) if awaited_bytes.lock().is_none() => {
                    peer.run_if_free() || awaited_bytes.lock().is_some()
                }
                _ => true,
            }),
        )?;
        self.launch(write)?;
        Ok(())
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
