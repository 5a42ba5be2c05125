//! The machine that replays a trace on the simulated driver.

use std::sync::Arc;

use tenure_alloc::{Address, Backing, CachingAllocator};
use tenure_core::StreamId;
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{Counters, DeviceBacking, Driver, MemoryCalls};
use tenure_plan::Summary;

use super::OnDevice;
use super::machine::{LiveBlock, Machine};
use crate::Error;

/// A simulated device whose clock follows the trace. Blocks are neither written nor read: that would take time and show
/// nothing.
pub(super) struct SimulatedMachine {
    driver: Arc<SimDriver>,
    lag_us: u64,
    /// The device's time at the first event of the pass.
    start_us: u64,
    /// The trace's time, converted to the device's. The device's own time may be later, after a wait of the host.
    now_us: u64,
}

impl SimulatedMachine {
    /// Makes a device large enough for the trace of `summary`. Its first segments get the addresses in `script`.
    pub(super) fn new(summary: &Summary, lag_us: u64, script: impl IntoIterator<Item = Address>) -> Self {
        let driver = Arc::new(SimDriver::new(device_for(summary)));
        for &stream in &summary.streams {
            driver.adopt_stream(stream);
        }
        driver.script_addresses(script);
        Self { driver, lag_us, start_us: 0, now_us: 0 }
    }
}

impl Machine for SimulatedMachine {
    fn backing(&self) -> Arc<dyn Backing> {
        Arc::new(DeviceBacking::new(Arc::clone(&self.driver) as Arc<dyn Driver>))
    }

    fn stream(&self, recorded: StreamId) -> StreamId {
        recorded
    }

    fn set_time(&mut self, us: u64) {
        self.now_us = self.start_us.saturating_add(us);
        self.driver.set_time(self.now_us);
    }

    fn allocated(&mut self, _block: &LiveBlock) -> Result<(), Error> {
        Ok(())
    }

    fn freeing(&mut self, block: &LiveBlock) -> Result<(), Error> {
        // Before the free, so that every event that the allocator records on the stream from now on comes after the
        // work.
        if self.lag_us > 0 {
            self.driver.busy_until(block.stream, self.now_us.saturating_add(self.lag_us))?;
        }
        Ok(())
    }

    fn replayed(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn end_pass(&mut self) -> Result<(), Error> {
        let end_us = self.now_us.max(self.driver.now_us());
        self.driver.set_time(end_us.saturating_add(self.lag_us).saturating_add(1));
        self.start_us = self.driver.now_us();
        Ok(())
    }

    fn reserved_bytes(&self) -> Result<u64, Error> {
        let info = self.driver.memory_info()?;
        Ok(info.total - info.free)
    }

    fn peak_reserved_bytes(&self) -> u64 {
        self.driver.peak_bytes()
    }

    fn counters(&self) -> Counters {
        self.driver.counters()
    }

    fn finish(&mut self, _allocator: &dyn CachingAllocator) -> Result<Option<OnDevice>, Error> {
        Ok(None)
    }
}

/// Returns an H200, or a device with room for four times the peak: PyTorch's allocator may hold twice the peak.
fn device_for(summary: &Summary) -> SimConfig {
    /// Several times the memory of any real device; an allocator's tables may grow with it.
    const LARGEST: u64 = 1 << 40;
    let h200 = SimConfig::default();
    let ample = summary.peak_requested_bytes.saturating_mul(4).min(LARGEST).next_multiple_of(h200.granularity_bytes);
    SimConfig { capacity_bytes: h200.capacity_bytes.max(ample), ..h200 }
}
