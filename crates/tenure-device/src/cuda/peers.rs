//! Access of devices to the memory of other devices.

use cudarc::driver::sys::{self, CUdevice, CUmemAccess_flags as Flags, CUmemAccessDesc, CUresult};
use tenure_alloc::Address;
use tenure_core::StreamId;

use super::driver::location;
use super::error::check;
use super::{CudaDriver, platform};
use crate::{AccessMode, Call, CallError, Driver, ErrorKind, Platform};

impl CudaDriver {
    /// Lets `peer` access memory from `malloc` (enabled once for the context) and mapped memory (enabled for each
    /// mapping).
    pub(super) fn enable_access_of(&self, peer: u8) -> Result<(), CallError> {
        let device = self.device().index();
        let refuse = |kind| Err(CallError { call: Call::EnablePeer, kind });
        if peer == device {
            return refuse(ErrorKind::PeerOfItself(peer));
        }
        let other = platform().cuda_driver(peer)?;
        if !platform().can_access_peer(peer, device)? {
            return refuse(ErrorKind::NoPeerAccess { device, peer });
        }
        self.call(Call::EnablePeer, || {
            // The lock is held throughout, so that no mapping becomes accessible meanwhile without the peer.
            let mut space = self.space.lock();
            if space.peers().contains(&other.ordinal) {
                return Ok(());
            }
            let bound = other.context().bind()?;
            // SAFETY: the thread has the peer's context, and this device's is retained.
            match unsafe { sys::cuCtxEnablePeerAccess(self.context().raw(), 0) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {}
                code => check(code)?,
            }
            drop(bound);
            let mut enabled = Vec::new();
            for (address, bytes, access) in space.accessible() {
                if let Err(kind) = check(set_access(address, bytes, &[access_right(other.ordinal, flags(access))])) {
                    let none = [access_right(other.ordinal, Flags::CU_MEM_ACCESS_FLAGS_PROT_NONE)];
                    for (address, bytes) in enabled {
                        // Report the first failure only; a right that stays does no harm.
                        let _ = set_access(address, bytes, &none);
                    }
                    return Err(kind);
                }
                enabled.push((address, bytes));
            }
            space.add_peer(other.ordinal);
            Ok(())
        })
    }

    /// Submits a copy to the memory of another device, on a stream of this device.
    pub(crate) fn copy_to_peer(
        &self,
        target: Address,
        peer: &Self,
        source: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        // If there is no direct path between the two devices, the driver copies through the host.
        let _ = peer.enable_access_of(self.device().index());
        self.in_context(Call::CopyToPeer, || {
            let to = peer.context().raw();
            let from = self.context().raw();
            self.submit(Call::CopyToPeer, stream, bytes, |stream| {
                // SAFETY: both contexts are retained, and the driver checks the addresses.
                unsafe { sys::cuMemcpyPeerAsync(target, to, source, from, bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    /// Makes whole mapped chunks accessible to this device and its peers.
    pub(super) fn make_accessible(&self, address: Address, bytes: u64, access: AccessMode) -> Result<(), CallError> {
        self.call(Call::SetAccess, || {
            let mut space = self.space.lock();
            let count = space.whole_chunks(address, bytes)?;
            let devices = [self.ordinal].into_iter().chain(space.peers().iter().copied());
            let rights: Vec<CUmemAccessDesc> = devices.map(|device| access_right(device, flags(access))).collect();
            self.timings.time(Call::SetAccess, count, bytes, || set_access(address, bytes, &rights))?;
            space.record_access(address, bytes, access);
            Ok(())
        })
    }
}

/// Sets the rights of devices in a range. The driver refuses a range that is not mapped.
fn set_access(address: Address, bytes: u64, rights: &[CUmemAccessDesc]) -> CUresult {
    // SAFETY: `rights` has as many descriptions as the call is told.
    unsafe { sys::cuMemSetAccess(address, bytes as usize, rights.as_ptr(), rights.len()) }
}

/// Describes the access of a device.
fn access_right(device: CUdevice, flags: Flags) -> CUmemAccessDesc {
    CUmemAccessDesc { location: location(device), flags }
}

/// Converts an access to CUDA's form.
fn flags(access: AccessMode) -> Flags {
    match access {
        AccessMode::Read => Flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        AccessMode::ReadWrite => Flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}
