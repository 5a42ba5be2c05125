//! The simulated driver's copies and fills, and its pinned host memory.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tenure_alloc::Address;
use tenure_core::StreamId;

use crate::driver::CopyCalls;
use crate::sim::SimDriver;
use crate::sim::memory::SimMemory;
use crate::sim::race::Touches;
use crate::sim::state::SimState;
use crate::{AccessMode, Call, CallError, ErrorKind, Launch, cost};

impl CopyCalls for SimDriver {
    unsafe fn register_host(&self, address: *mut u8, bytes: u64, access: AccessMode) -> Result<(), CallError> {
        self.call(Call::RegisterHost, |state| {
            state.host.register(address as u64, bytes, access)?;
            state.counters.register_host += 1;
            state.counters.driver_us += cost::REGISTER_HOST.us(bytes);
            Ok(())
        })
    }

    fn host_on_device(&self, address: *const u8) -> Result<Address, CallError> {
        self.call(Call::HostOnDevice, |state| state.host.on_device(address as u64, &mut state.memory))
    }

    fn unregister_host(&self, address: *mut u8) -> Result<(), CallError> {
        let range = self.call(Call::UnregisterHost, |state| {
            state.host.unregister(address as u64, &mut state.memory, state.order.host())
        })?;
        let siblings: Vec<_> = self.siblings.lock().iter().filter_map(Weak::upgrade).collect();
        for device in siblings {
            let mut state = device.state.lock();
            if state.fault().is_some() {
                // The device's work is over.
                continue;
            }
            let SimState { host, memory, order, .. } = &mut *state;
            let ended = host.end_use(&range, memory, order.host());
            drop(state);
            self.resume(Call::UnregisterHost, |_| ended)?;
        }
        Ok(())
    }

    fn copy_to_device(&self, target: Address, source: &[u8], stream: StreamId) -> Result<(), CallError> {
        let source = source.to_vec();
        self.synchronize_with(Call::CopyToDevice, |state| {
            let touches = Touches::new(None, Some(target..target.saturating_add(source.len() as u64)));
            state.submit_call(Call::CopyToDevice, stream, touches, move |memory, launch| {
                memory.write(target, &source, launch)
            })?;
            state.stream_goal(stream)
        })
    }

    fn copy_from_device(&self, target: &mut [u8], source: Address, stream: StreamId) -> Result<(), CallError> {
        let len = target.len();
        // The work owns its buffer: it may outlive this call, if other work panics on the way.
        let copy = Arc::new(Mutex::new(Vec::new()));
        let copied = Arc::clone(&copy);
        self.synchronize_with(Call::CopyFromDevice, |state| {
            let touches = Touches::new(Some(source..source.saturating_add(len as u64)), None);
            state.submit_call(Call::CopyFromDevice, stream, touches, move |memory, launch| {
                let mut copied = copied.lock();
                copied.resize(len, 0);
                memory.read(source, &mut copied, launch)
            })?;
            state.stream_goal(stream)
        })?;
        target.copy_from_slice(&copy.lock());
        Ok(())
    }

    unsafe fn copy_to_device_async(
        &self,
        target: Address,
        source: *const u8,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.call(Call::CopyToDeviceAsync, |state| {
            let touches = Touches::new(None, Some(target..target.saturating_add(bytes)));
            let touches = touches.and_host(source, bytes, false);
            let source = HostSource(source, bytes as usize);
            state.submit_call(Call::CopyToDeviceAsync, stream, touches, move |memory, launch| {
                // SAFETY: the caller keeps the bytes readable and unwritten until the stream has passed this copy.
                let source = unsafe { source.bytes() };
                memory.write(target, source, launch)
            })
        })
    }

    unsafe fn copy_from_device_async(
        &self,
        target: *mut u8,
        source: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.call(Call::CopyFromDeviceAsync, |state| {
            let touches = Touches::new(Some(source..source.saturating_add(bytes)), None);
            let touches = touches.and_host(target, bytes, true);
            let target = HostTarget(target, bytes as usize);
            state.submit_call(Call::CopyFromDeviceAsync, stream, touches, move |memory, launch| {
                // SAFETY: the caller leaves the bytes to this copy until the stream has passed it.
                let target = unsafe { target.bytes() };
                memory.read(source, target, launch)
            })
        })
    }

    fn copy_on_device(&self, target: Address, source: Address, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::CopyOnDevice, |state| {
            let reads = source..source.saturating_add(bytes);
            let touches = Touches::new(Some(reads), Some(target..target.saturating_add(bytes)));
            state.submit_call(Call::CopyOnDevice, stream, touches, move |memory, launch| {
                copy(memory, target, source, bytes, launch)
            })
        })
    }

    fn memset(&self, target: Address, value: u8, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::Memset, |state| {
            let touches = Touches::new(None, Some(target..target.saturating_add(bytes)));
            state.submit_call(Call::Memset, stream, touches, move |memory, launch| {
                for (offset, len) in blocks(bytes) {
                    memory.write(target + offset, &vec![value; len], launch)?;
                }
                Ok(())
            })
        })
    }
}

/// Host memory that a queued copy reads.
struct HostSource(*const u8, usize);

// SAFETY: the caller leaves the memory to the copy, on any thread that runs it.
unsafe impl Send for HostSource {}
// SAFETY: the same.
unsafe impl Sync for HostSource {}

impl HostSource {
    /// # Safety
    /// The memory is readable, and no other code writes it, until the slice is dropped.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller promises it. An empty copy may have a null pointer.
        if self.1 == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.0, self.1) } }
    }
}

/// Host memory that a queued copy writes.
struct HostTarget(*mut u8, usize);

// SAFETY: the caller leaves the memory to the copy, on any thread that runs it.
unsafe impl Send for HostTarget {}
// SAFETY: the same.
unsafe impl Sync for HostTarget {}

impl HostTarget {
    /// # Safety
    /// The memory is writable, and no other code touches it, until the slice is dropped.
    #[expect(clippy::mut_from_ref, reason = "it stands for memory that is not its own")]
    unsafe fn bytes(&self) -> &mut [u8] {
        // SAFETY: the caller promises it. An empty copy may have a null pointer.
        if self.1 == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(self.0, self.1) } }
    }
}

fn copy(
    memory: &mut SimMemory,
    target: Address,
    source: Address,
    bytes: u64,
    launch: &Arc<Launch>,
) -> Result<(), ErrorKind> {
    let mut block = Vec::new();
    for (offset, len) in blocks(bytes) {
        block.resize(len, 0);
        memory.read(source + offset, &mut block, launch)?;
        memory.write(target + offset, &block, launch)?;
    }
    Ok(())
}

/// Cuts `bytes` into pieces that fit into a buffer. Returns the offset and length of each.
fn blocks(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    const BLOCK: usize = 1 << 20;
    (0..bytes).step_by(BLOCK).map(move |offset| (offset, (bytes - offset).min(BLOCK as u64) as usize))
}
