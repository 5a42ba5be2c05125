//! Placements: they allocate each tensor in the tier that a mapping names for its key.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustc_hash::{FxHashMap, FxHashSet};
use tenure_alloc::Address;
use tenure_core::{Allocator, AllocatorError, AllocatorScope, Clock, DataPtr, Device, KeyId, Purpose, Tag, Unforked};
use tenure_plan::{Mapping, Problem};

use crate::blocks::LiveBlock;
use crate::kernel_times::{EndedStep, KernelTimes};
use crate::{Tier, TierError};

/// Settings of a [`Placement`]: how strictly the mapping is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementOptions {
    /// Whether an allocation whose key is not in the mapping is an error. If not, it goes to the first tier and is
    /// reported.
    pub is_strict: bool,
    /// The action if a tier is full.
    pub when_full: WhenFull,
}

/// The action for an allocation whose tier is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Return an error that names the tier.
    #[default]
    Refuse,
    /// Use the first other tier that has room, and report a miss.
    Miss,
}

/// Allocates each tensor in the tier that a mapping names for its key. It is opened once per process and does nothing
/// until a thread [enters](Self::enter) it. This matches the two calls of `hook_init` in jaewan/pytorch-1, one for the
/// process and one for each thread.
///
/// This is a handle: clones share one placement.
///
/// ```
/// use std::collections::BTreeMap;
/// use tenure_core::{AllocatorScope, Device, Name, Purpose, Site};
/// use tenure_plan::Mapping;
/// use tenure_tier::{Medium, Placement, PlacementOptions, Tier};
///
/// let tiers = vec![
///     Tier::open("DRAM", &Medium::Dram, Some(1 << 20))?,
///     Tier::open("PM", &Medium::Path(std::env::temp_dir()), Some(1 << 20))?,
/// ];
/// let slow = tiers[1].clone();
/// let places = BTreeMap::from([("fc/linear/out#0".to_owned(), 1)]);
/// let mapping = Mapping::new("example", vec!["DRAM".into(), "PM".into()], places)?;
/// let placement = Placement::open(mapping, tiers, PlacementOptions::default())?;
///
/// let _entered = placement.enter();
/// let _module = Site::enter_module(Name::of("fc"));
/// let _op = Site::enter_operation(Name::of("linear"));
/// let allocator = AllocatorScope::current(Device::CPU).expect("the placement's"); // tensors do this
/// let block = allocator.allocate(1000)?;
/// assert!(slow.addresses().contains(&(block.as_ptr() as u64)));
/// println!("{}", placement.report());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Placement {
    shared: Arc<PlacementShared>,
}

struct PlacementShared {
    mapping: Mapping,
    tiers: Vec<Tier>,
    options: PlacementOptions,
    /// The index of the tier of each key that was allocated so far, if the mapping has one.
    places: Unforked<FxHashMap<KeyId, Option<usize>>>,
    /// The keys placed in another tier because theirs was full, and the bytes of these allocations.
    missed: Unforked<(FxHashSet<KeyId>, u64)>,
    /// Whether `times` is set.
    is_measured: AtomicBool,
    /// The kernel times, once [`Placement::measure`] was called.
    times: Unforked<Option<KernelTimes>>,
}

/// Places a thread's allocations until it is dropped.
#[must_use = "it holds for as long as it lives"]
pub struct PlacementGuard {
    _scope: AllocatorScope,
}

/// The result of checking whether a block is in the tier that the mapping says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// In the tier that the mapping says.
    Placed,
    /// In the first tier, because the mapping has no tier for its key.
    Unmapped,
    /// In another tier than the mapping says.
    Missed,
}

impl Placement {
    /// Opens a placement by `mapping` in `tiers`, which are matched by name.
    ///
    /// # Errors
    /// [`TierError::Tiers`] if `tiers` are not exactly the mapping's.
    pub fn open(mapping: Mapping, tiers: Vec<Tier>, options: PlacementOptions) -> Result<Self, TierError> {
        let ordered = mapping.tiers().iter().map(|name| tiers.iter().find(|tier| tier.name() == name).cloned());
        match ordered.collect::<Option<Vec<Tier>>>() {
            Some(ordered) if ordered.len() == tiers.len() => {
                let shared = PlacementShared {
                    mapping,
                    tiers: ordered,
                    options,
                    places: Unforked::default(),
                    missed: Unforked::default(),
                    is_measured: AtomicBool::new(false),
                    times: Unforked::default(),
                };
                Ok(Self { shared: Arc::new(shared) })
            }
            _ => {
                let opened = tiers.iter().map(|tier| tier.name().to_owned()).collect();
                Err(TierError::Tiers { mapped: mapping.tiers().to_vec(), opened })
            }
        }
    }

    /// Places CPU allocations of the calling thread, and of threads that work for it.
    pub fn enter(&self) -> PlacementGuard {
        PlacementGuard { _scope: AllocatorScope::enter(Arc::new(self.clone())) }
    }

    /// Measures the kernels of `problem` from the next [`begin_iteration`](Self::begin_iteration) on, and discards
    /// earlier measurements. The problem must come from a [`Recorder`](crate::Recorder) of the same program, so that
    /// its kernels begin with allocations. Each allocation with a key reads the clock once.
    pub fn measure(&self, problem: &Problem, clock: Clock) {
        *self.shared.times.lock() = Some(KernelTimes::new(problem, clock));
        self.shared.is_measured.store(true, Relaxed);
    }

    /// Begins another step of the program, if kernels are measured. Steps that do not make the problem's allocations
    /// are not counted.
    pub fn begin_iteration(&self) {
        self.add_step(KernelTimes::begin_step);
    }

    /// Ends the step. Returns the time of each kernel of the problem in ns, averaged over steps. In a step with an
    /// optimizer, two kernels follow the last allocation; they share the time by the bytes that they access.
    ///
    /// # Errors
    /// [`TierError::NotMeasured`] if nothing is measured, or no step made the problem's allocations.
    pub fn kernel_times_ns(&self) -> Result<Vec<u64>, TierError> {
        self.add_step(KernelTimes::end_step);
        match &*self.shared.times.lock() {
            Some(times) => times.mean_ns(),
            None => Err(TierError::NotMeasured { reason: "nothing is measured".into() }),
        }
    }

    /// Ends a step by `end`, and adds its times. Looking up the names of keys takes another lock, so this lock is
    /// released meanwhile, and other threads can record allocations.
    fn add_step(&self, end: fn(&mut KernelTimes) -> Option<EndedStep>) {
        let Some(ended) = self.shared.times.lock().as_mut().and_then(end) else { return };
        let kernels_ns = ended.kernels_ns();
        if let Some(times) = self.shared.times.lock().as_mut() {
            times.add(&ended, kernels_ns);
        }
    }

    /// Returns the mapping that is followed.
    pub fn mapping(&self) -> &Mapping {
        &self.shared.mapping
    }

    /// Returns the tiers, in the mapping's order.
    pub fn tiers(&self) -> &[Tier] {
        &self.shared.tiers
    }

    /// Gives the pages of all free memory in the tiers back to the system ([`Tier::release_cached`]).
    ///
    /// # Errors
    /// The system refused.
    pub fn release_cached(&self) -> Result<(), TierError> {
        self.tiers().iter().try_for_each(Tier::release_cached)
    }

    /// Checks that every key of the mapping was allocated. After a whole iteration, a key that was not belongs to
    /// another program.
    ///
    /// # Errors
    /// [`TierError::NeverCame`] if one did not.
    pub fn check_all_came(&self) -> Result<(), TierError> {
        let never = self.never_came();
        match never.first() {
            None => Ok(()),
            Some(first) => Err(TierError::NeverCame { count: never.len(), first: first.clone() }),
        }
    }

    /// Returns the keys of the mapping that no allocation had.
    pub(crate) fn never_came(&self) -> Vec<String> {
        let came: FxHashSet<String> = self.keys(|place| place.is_some()).into_iter().collect();
        self.mapping().places().filter(|(key, _)| !came.contains(*key)).map(|(key, _)| key.to_owned()).collect()
    }

    /// Returns the keys of allocations that the mapping has no place for.
    pub(crate) fn unmapped(&self) -> Vec<String> {
        self.keys(|place| place.is_none())
    }

    /// Returns the keys that were ever placed in another tier than theirs, and the bytes of these allocations.
    pub(crate) fn missed(&self) -> (Vec<String>, u64) {
        let (keys, bytes) = self.shared.missed.lock().clone();
        (names(keys.into_iter()), bytes)
    }

    /// Compares the tier of a live block with the mapping's.
    pub(crate) fn verdict(&self, tier: usize, live: &LiveBlock) -> Verdict {
        match self.shared.place(live.key) {
            Some(place) if place == tier => Verdict::Placed,
            None if tier == 0 => Verdict::Unmapped,
            _ => Verdict::Missed,
        }
    }

    /// Returns the blocks in use of a tier.
    pub(crate) fn live(&self, tier: usize) -> Vec<(Address, LiveBlock)> {
        self.shared.tiers[tier].live()
    }

    /// Returns the names of the allocated keys whose tier in the mapping satisfies `wanted`.
    fn keys(&self, wanted: impl Fn(Option<usize>) -> bool) -> Vec<String> {
        let places = self.shared.places.lock().clone();
        names(places.into_iter().filter(|(_, place)| wanted(*place)).map(|(key, _)| key))
    }
}

/// Returns the names of keys, sorted.
fn names(keys: impl Iterator<Item = KeyId>) -> Vec<String> {
    let mut names: Vec<String> = keys.filter_map(|key| Some(key.key()?.to_string())).collect();
    names.sort_unstable();
    names
}

impl PlacementShared {
    /// Returns the index of a key's tier, if the mapping has one.
    fn place(&self, key: KeyId) -> Option<usize> {
        if let Some(place) = self.places.lock().get(&key).copied() {
            return place;
        }
        let name = key.key()?.to_string();
        let place = self.mapping.place(&name);
        self.places.lock().insert(key, place);
        place
    }

    /// Allocates a block in the key's tier, or as the options say if there is none or it is full.
    fn allocate(&self, bytes: usize, tag: Tag, key: KeyId) -> Result<DataPtr, AllocatorError> {
        let place = self.place(key);
        if self.options.is_strict
            && place.is_none()
            && let Some(name) = key.key()
        {
            let reason = format!(
                "the mapping of {:?} has no place for {:?}: make one of this program, or be less strict",
                self.mapping.program(),
                name.to_string()
            );
            return Err(AllocatorError::Failed { device: Device::CPU, call: "placement", reason });
        }
        let tier = place.unwrap_or(0);
        let error = match self.tiers[tier].allocate_for(bytes, tag, key) {
            Ok(data) => return Ok(data),
            Err(error) => error,
        };
        if self.options.when_full == WhenFull::Miss {
            let others = self.tiers.iter().enumerate().filter(|(other, _)| *other != tier);
            if let Some(data) = others.filter_map(|(_, other)| other.allocate_for(bytes, tag, key).ok()).next() {
                let mut missed = self.missed.lock();
                missed.0.insert(key);
                missed.1 += bytes as u64;
                return Ok(data);
            }
        }
        Err(error)
    }
}

// SAFETY: this hands out the tiers' memory as they give it.
unsafe impl Allocator for Placement {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let (tag, key) = Purpose::identify();
        let data = self.shared.allocate(bytes, tag, key)?;
        if self.shared.is_measured.load(Relaxed)
            && !data.is_null()
            && key.key().is_some()
            && let Some(times) = self.shared.times.lock().as_mut()
        {
            times.record_allocation(key);
        }
        Ok(data)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }
}
