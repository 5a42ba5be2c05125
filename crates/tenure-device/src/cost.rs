//! The costs of driver calls: a model that replays use, fitted to medians at sizes from 2 MiB to 1 GiB on one NVIDIA
//! H200 (driver 580, CUDA 13.0). `benches/calls.rs` measures the calls and prints them beside this model.
//!
//! Mapping calls cost per chunk, not per call: one `cuMemSetAccess` over 512 chunks takes as long as 512 of them.

use std::ops::Sub;

const GIB: f64 = (1u64 << 30) as f64;

/// The modelled time of one driver call: a fixed part, and one that grows with size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The fixed time of a call, in µs.
    pub call_us: f64,
    /// The additional time for each GiB, in µs.
    pub gib_us: f64,
}

impl Cost {
    /// Returns the time of one call on `bytes` bytes, in µs.
    pub fn us(self, bytes: u64) -> f64 {
        self.call_us + self.gib_us * (bytes as f64 / GIB)
    }
}

/// `cuMemAlloc`.
pub const MALLOC: Cost = Cost { call_us: 38.0, gib_us: 20.0 };
/// `cuMemFree`. The figure leaves out that the call also waits for the device.
pub const FREE: Cost = Cost { call_us: 34.0, gib_us: 190.0 };
/// `cuMemCreate`.
pub const CREATE: Cost = Cost { call_us: 7.0, gib_us: 20.0 };
/// `cuMemMap`.
pub const MAP: Cost = Cost { call_us: 1.0, gib_us: 0.0 };
/// `cuMemSetAccess`, for each chunk.
pub const SET_ACCESS: Cost = Cost { call_us: 22.0, gib_us: 28.0 };
/// `cuMemUnmap`, for each chunk.
pub const UNMAP: Cost = Cost { call_us: 15.0, gib_us: 11.0 };
/// `cuMemRelease`.
pub const RELEASE: Cost = Cost { call_us: 10.0, gib_us: 185.0 };
/// `cuMemHostRegister`, of memory whose pages are already there.
pub const REGISTER_HOST: Cost = Cost { call_us: 0.0, gib_us: 113_000.0 };

/// The cost of a host synchronisation beside its wait, in µs: the pipeline has to fill again. A guess.
pub const HOST_SYNC_US: f64 = 300.0;

/// Counts of the calls made to a driver so far. Failed calls are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Segments allocated.
    pub malloc: u64,
    /// Segments freed.
    pub free: u64,
    /// Chunks created.
    pub create: u64,
    /// Chunks mapped.
    pub map: u64,
    /// Times that a chunk was made accessible.
    pub set_access: u64,
    /// Chunks unmapped.
    pub unmap: u64,
    /// Chunks released.
    pub release: u64,
    /// Ranges of host memory registered.
    pub register_host: u64,
    /// Times that the host waited for an event, a stream or the device, blocking copies included.
    pub host_syncs: u64,
    /// Times that a stream was made to wait for an event of another.
    pub stream_waits: u64,
    /// Physical bytes obtained, by allocating segments and creating chunks.
    pub created_bytes: u64,
    /// Modelled time of all the calls above, in µs: their costs by this module, and the time that the host waited.
    pub driver_us: f64,
}

impl Counters {
    /// Returns the number of calls that allocate, free, map or unmap device memory.
    pub fn memory_calls(&self) -> u64 {
        self.malloc + self.free + self.create + self.map + self.set_access + self.unmap + self.release
    }
}

impl Sub for Counters {
    type Output = Self;

    /// Returns the calls made since `earlier` was taken.
    fn sub(self, earlier: Self) -> Self {
        Self {
            malloc: self.malloc - earlier.malloc,
            free: self.free - earlier.free,
            create: self.create - earlier.create,
            map: self.map - earlier.map,
            set_access: self.set_access - earlier.set_access,
            unmap: self.unmap - earlier.unmap,
            release: self.release - earlier.release,
            register_host: self.register_host - earlier.register_host,
            host_syncs: self.host_syncs - earlier.host_syncs,
            stream_waits: self.stream_waits - earlier.stream_waits,
            created_bytes: self.created_bytes - earlier.created_bytes,
            driver_us: self.driver_us - earlier.driver_us,
        }
    }
}
