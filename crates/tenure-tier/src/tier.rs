//! A tier: memory of one kind, and the blocks allocated in it.

use std::ops::Range;
use std::sync::{Arc, Weak};

use tenure_alloc::{Address, Arena, Statistics};
use tenure_core::{Allocator, AllocatorError, DataPtr, Device, KeyId, Purpose, Tag, Unforked};

use crate::blocks::{LiveBlock, TierBlocks};
use crate::forks::{Copied, TierMemory};
use crate::region::Region;
use crate::{Medium, Nature, TierError};

/// The unit of blocks' addresses and sizes in bytes: the granularity of PyTorch's blocks, and eight cache lines.
const BLOCK_BYTES: u64 = 512;

/// All tiers of the process.
static ALL: Unforked<Vec<Weak<TierShared>>> = Unforked::new(Vec::new());

/// Memory of one kind for tensors, with a name and a capacity. Freed blocks are reused, merged with free neighbours.
///
/// This is a handle: clones share one tier, which lives as long as a handle or one of its blocks.
///
/// ```
/// use tenure_core::Allocator;
/// use tenure_tier::{Medium, Tier};
///
/// let tier = Tier::open("slow", &Medium::Path(std::env::temp_dir()), Some(1 << 20))?;
/// println!("{}: {}", tier.name(), tier.nature()); // slow: EMULATED persistent memory, an ordinary file on ext4
/// let block = tier.allocate(1000)?;
/// assert!(tier.addresses().contains(&(block.as_ptr() as u64)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tier {
    shared: Arc<TierShared>,
}

struct TierShared {
    name: String,
    /// Set if the memory is shared with forked children and must be copied for them. Dropped before the region.
    copied: Option<Copied>,
    region: Region,
    blocks: Arc<Unforked<TierBlocks>>,
}

impl Tier {
    /// Opens a tier of `capacity` bytes, in whole pages. Without a capacity it has all memory of the machine, the node
    /// or the device; a file needs one.
    ///
    /// # Errors
    /// [`TierError`]: no such node or device, a file that exists, a file system without room.
    pub fn open(name: impl Into<String>, medium: &Medium, capacity: Option<u64>) -> Result<Self, TierError> {
        let region = Region::open(medium, capacity)?;
        let addresses = region.addresses();
        let start = addresses.start;
        let bytes = addresses.end - addresses.start;
        let arena = Arena::with_block_bytes(start, bytes, BLOCK_BYTES);
        let arena = arena.map_err(|_| TierError::TooSmall {
            what: medium.to_string(),
            capacity: bytes,
            alignment: BLOCK_BYTES,
        })?;
        let blocks = Arc::new(Unforked::new(TierBlocks::new(arena)));
        let copied =
            region.is_shared().then(|| Copied::new(region.pointer(start), bytes as usize, Arc::clone(&blocks)));
        let shared = Arc::new(TierShared { name: name.into(), copied, region, blocks });
        let mut all = ALL.lock();
        all.retain(|tier| tier.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// Returns the tier's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the kind of memory that the tier has.
    pub fn nature(&self) -> &Nature {
        self.shared.region.nature()
    }

    /// Returns the addresses of its blocks.
    pub fn addresses(&self) -> Range<u64> {
        self.shared.region.addresses()
    }

    /// Returns the capacity in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.blocks.lock().arena.bytes()
    }

    /// Returns the counters, in total and by tag.
    pub fn statistics(&self) -> Statistics {
        self.shared.blocks.lock().statistics.clone()
    }

    /// Returns the most bytes that were allocated at once, with rounding.
    pub fn peak_bytes(&self) -> u64 {
        self.shared.blocks.lock().peak_bytes
    }

    /// Returns the counters of all tiers of the process together. Peaks are added up, so the sum is too high if they
    /// were at different times.
    pub fn all_statistics() -> Statistics {
        let mut sum = Statistics::default();
        Self::all().iter().for_each(|tier| sum.merge(&tier.statistics()));
        sum
    }

    /// Resets every peak in all tiers' statistics to the current value.
    pub fn reset_all_peak_statistics() {
        Self::all().iter().for_each(|tier| tier.shared.blocks.lock().statistics.reset_peak());
    }

    /// Returns all tiers of the process.
    fn all() -> Vec<Self> {
        ALL.lock().iter().filter_map(Weak::upgrade).map(|shared| Self { shared }).collect()
    }

    /// Allocates a block for `tag`, with a key.
    ///
    /// # Errors
    /// [`AllocatorError::DeviceOutOfMemory`], which names the tier; [`AllocatorError::Failed`] in a forked child
    /// without a copy.
    pub fn allocate_for(&self, bytes: usize, tag: Tag, key: KeyId) -> Result<DataPtr, AllocatorError> {
        if bytes == 0 {
            return Ok(DataPtr::null(Device::CPU));
        }
        if self.memory() == TierMemory::Absent {
            let reason =
                format!("tier {:?} is not there in this forked child: memory was too short for a copy", self.name());
            return Err(AllocatorError::Failed { device: Device::CPU, call: "allocate", reason });
        }
        let address = self.shared.blocks.lock().allocate(bytes as u64, tag, key);
        let address = address.ok_or_else(|| self.full_error(bytes))?;
        let shared = Arc::clone(&self.shared);
        let data = shared.region.pointer(address);
        Ok(DataPtr::foreign(data, Device::CPU, move || shared.blocks.lock().free(address)))
    }

    /// Gives the pages of all free memory back to the system, which zeroes them before they are used again. Pages of a
    /// file or a device stay: their room was taken for good, so that using them never fails.
    ///
    /// # Errors
    /// The system refused. No block is touched.
    pub fn release_cached(&self) -> Result<(), TierError> {
        if self.region().is_shared() {
            return Ok(());
        }
        // The lock keeps free memory from being allocated meanwhile.
        let blocks = self.shared.blocks.lock();
        let mut held: Vec<_> = blocks.held().collect();
        held.sort_unstable_by_key(|range| range.start);
        let Range { start, end } = self.addresses();
        let ends = std::iter::once(start).chain(held.iter().map(|range| range.end));
        let starts = held.iter().map(|range| range.start).chain(std::iter::once(end));
        ends.zip(starts)
            .try_for_each(|(from, to)| self.region().discard(&(from..to)))
            .map_err(TierError::system(format_args!("tier {:?}", self.name()), "madvise"))
    }

    /// Drops the tier, and removes its file if it has a name. It is for a tier in which nothing was allocated.
    pub fn discard(self) {
        self.region().remove_file();
    }

    /// Returns all blocks in use.
    pub(crate) fn live(&self) -> Vec<(Address, LiveBlock)> {
        self.shared.blocks.lock().live.iter().map(|(address, live)| (*address, *live)).collect()
    }

    pub(crate) fn region(&self) -> &Region {
        &self.shared.region
    }

    /// Returns the reason why the tier cannot be relied on, if there is one.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.memory() {
            TierMemory::Own => self.shared.region.trouble(),
            TierMemory::Copied => Some("a forked child has ordinary memory in its place".into()),
            TierMemory::Absent => Some("it is not there in this forked child".into()),
        }
    }

    /// Returns the memory that this process has in the tier's place.
    fn memory(&self) -> TierMemory {
        self.shared.copied.as_ref().map_or(TierMemory::Own, Copied::memory)
    }

    /// Returns the error for an allocation that finds no room.
    #[cold]
    fn full_error(&self, requested: usize) -> AllocatorError {
        let (free, largest, all) = {
            let blocks = self.shared.blocks.lock();
            (blocks.arena.free_bytes(), blocks.arena.largest_free_bytes(), blocks.arena.bytes())
        };
        let report = format!(
            "tier {:?} ({}) is full: asked for {requested} bytes, {free} of {all} are free, {largest} of them in one \
             piece; give it more, or plan a mapping for less",
            self.name(),
            self.nature()
        );
        AllocatorError::DeviceOutOfMemory { device: Device::CPU, requested, report }
    }
}

// SAFETY: blocks do not overlap until their owners are dropped, and each keeps the mapping that it is in.
unsafe impl Allocator for Tier {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let (tag, key) = Purpose::current();
        self.allocate_for(bytes, tag, key)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }
}
