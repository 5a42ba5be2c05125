//! A replay machine on a real device.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_alloc::{Address, Backing, CachingAllocator};
use tenure_core::StreamId;
use tenure_device::{CallError, Counters, DeviceBacking, Driver, Priority};
use tenure_plan::Summary;

use super::machine::{LiveBlock, Machine};
use super::measured::{HeldMemory, OnDevice};
use super::metered::MeteredBacking;
use crate::Error;

/// The bytes that are written at each end of a block.
const EDGE: u64 = 64;
/// One block in this many is read before its free.
const CHECKED: u64 = 16;

/// A device with its own time and memory. The program writes both ends of every block in the order of its stream, and
/// reads the ends of some blocks before it frees them. This finds wrong mappings, and memory that is in two live
/// blocks.
pub(super) struct RealMachine {
    driver: Arc<dyn Driver>,
    backing: Arc<MeteredBacking>,
    /// The streams of this device, by those of the trace.
    streams: FxHashMap<StreamId, StreamId>,
    /// The bytes in use before the first allocation, by all processes.
    baseline_bytes: u64,
    at_peak: HeldMemory,
    blocks_checked: u64,
}

impl RealMachine {
    pub(super) fn new(summary: &Summary, driver: Arc<dyn Driver>) -> Result<Self, Error> {
        let backing = Arc::new(MeteredBacking::new(Arc::new(DeviceBacking::new(Arc::clone(&driver)))));
        let mut machine = Self {
            driver,
            backing,
            streams: FxHashMap::default(),
            baseline_bytes: 0,
            at_peak: HeldMemory::default(),
            blocks_checked: 0,
        };
        for &stream in &summary.streams {
            let here = match stream {
                StreamId::NULL => stream,
                _ => machine.driver.create_stream(Priority::Default)?,
            };
            machine.streams.insert(stream, here);
        }
        warm_up(&*machine.driver)?;
        machine.baseline_bytes = machine.used_bytes()?;
        Ok(machine)
    }

    /// Returns the bytes of the device in use, by all processes.
    fn used_bytes(&self) -> Result<u64, CallError> {
        let info = self.driver.memory_info()?;
        Ok(info.total - info.free)
    }

    /// Returns the memory held, by the allocator's count and by the device's.
    fn held(&self) -> Result<HeldMemory, CallError> {
        let used_bytes = self.used_bytes()?.saturating_sub(self.baseline_bytes);
        Ok(HeldMemory { reserved_bytes: self.backing.held_bytes(), used_bytes })
    }

    fn check(&mut self, block: &LiveBlock) -> Result<(), Error> {
        let written = pattern(block);
        for (address, bytes) in edges(block) {
            let mut found = vec![0; bytes as usize];
            self.driver.copy_from_device(&mut found, address, block.stream)?;
            if let Some(offset) = found.iter().position(|&byte| byte != written) {
                let address = address + offset as u64;
                return Err(Error::Damaged { block: block.address, address, written, found: found[offset] });
            }
        }
        self.blocks_checked += 1;
        Ok(())
    }
}

impl Machine for RealMachine {
    fn backing(&self) -> Arc<dyn Backing> {
        Arc::clone(&self.backing) as Arc<dyn Backing>
    }

    fn stream(&self, recorded: StreamId) -> StreamId {
        self.streams[&recorded]
    }

    fn set_time(&mut self, _us: u64) {}

    fn allocated(&mut self, block: &LiveBlock) -> Result<(), Error> {
        for (address, bytes) in edges(block) {
            self.driver.memset(address, pattern(block), bytes, block.stream)?;
        }
        Ok(())
    }

    fn freeing(&mut self, block: &LiveBlock) -> Result<(), Error> {
        if block.number.is_multiple_of(CHECKED) { self.check(block) } else { Ok(()) }
    }

    fn replayed(&mut self) -> Result<(), Error> {
        if self.backing.held_bytes() > self.at_peak.reserved_bytes {
            self.at_peak = self.held()?;
        }
        Ok(())
    }

    fn end_pass(&mut self) -> Result<(), Error> {
        Ok(self.driver.synchronize()?)
    }

    fn reserved_bytes(&self) -> Result<u64, Error> {
        Ok(self.backing.held_bytes())
    }

    fn peak_reserved_bytes(&self) -> u64 {
        self.backing.peak_bytes()
    }

    fn counters(&self) -> Counters {
        self.backing.counters()
    }

    fn finish(&mut self, allocator: &dyn CachingAllocator) -> Result<Option<OnDevice>, Error> {
        let calls = self.backing.calls();
        allocator.release_cached()?;
        Ok(Some(OnDevice::new(calls, self.at_peak, self.held()?, self.blocks_checked)))
    }
}

impl Drop for RealMachine {
    fn drop(&mut self) {
        for &stream in self.streams.values().filter(|&&stream| stream != StreamId::NULL) {
            // If the context was lost, its streams are gone too.
            let _ = self.driver.destroy_stream(stream);
        }
    }
}

/// Makes the driver allocate what it needs for the first call of each kind, so that it is in the baseline.
fn warm_up(driver: &dyn Driver) -> Result<(), CallError> {
    let bytes = driver.granularity();
    let address = driver.malloc(bytes)?;
    driver.memset(address, 0, bytes, StreamId::NULL)?;
    driver.copy_from_device(&mut [0; EDGE as usize], address, StreamId::NULL)?;
    driver.free(address)
}

/// Returns the byte with which a block is filled; earlier blocks at the same place had others.
fn pattern(block: &LiveBlock) -> u8 {
    (block.number % 251) as u8 + 1
}

/// Returns the first and the last bytes of a block: the address and size of each.
fn edges(block: &LiveBlock) -> impl Iterator<Item = (Address, u64)> {
    let bytes = block.requested.min(EDGE);
    let last = block.address + block.requested - bytes;
    [(block.address, bytes), (last, bytes)].into_iter().filter(|&(_, bytes)| bytes > 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use tenure_device::sim::{SimConfig, SimDriver};
    use tenure_plan::{Settings, Trace};

    use super::*;

    fn machine() -> (RealMachine, LiveBlock) {
        let driver: Arc<dyn Driver> = Arc::new(SimDriver::new(SimConfig::default()));
        let address = driver.malloc(driver.granularity()).unwrap();
        let summary = Trace::new("empty", 0, Settings::default(), Vec::new()).unwrap().summary();
        let block = LiveBlock { address, requested: 1000, allocated: 1024, stream: StreamId::NULL, number: 0 };
        (RealMachine::new(&summary, driver).unwrap(), block)
    }

    #[test]
    fn a_block_that_keeps_what_was_written_is_sound() {
        let (mut machine, block) = machine();
        machine.allocated(&block).unwrap();
        machine.freeing(&block).unwrap();
        assert_eq!(machine.blocks_checked, 1);
    }

    #[test]
    fn a_byte_that_somebody_else_wrote_is_found() {
        for (offset, found) in [(0, true), (63, true), (999, true), (500, false)] {
            let (mut machine, block) = machine();
            machine.allocated(&block).unwrap();
            machine.driver.memset(block.address + offset, 0, 1, StreamId::NULL).unwrap();
            let checked = machine.freeing(&block);
            let damaged = matches!(checked, Err(Error::Damaged { address, .. }) if address == block.address + offset);
            assert_eq!(damaged, found, "byte {offset}: {checked:?}");
        }
    }

    #[test]
    fn memory_in_use_before_is_not_counted() {
        let (machine, _) = machine();
        assert_eq!(machine.held().unwrap(), HeldMemory::default());
    }

    #[test]
    fn small_blocks_have_both_ends() {
        let (_, block) = machine();
        let edges_of = |requested| {
            let block = LiveBlock { requested, ..block };
            edges(&block).map(|(address, bytes)| (address - block.address, bytes)).collect::<Vec<_>>()
        };
        assert_eq!(edges_of(0), []);
        assert_eq!(edges_of(100), [(0, 64), (36, 64)]);
    }
}
