//! Placement: each allocation in the tier that a mapping has for its key.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustc_hash::{FxHashMap, FxHashSet};
use tenure_alloc::Address;
use tenure_core::{Allocator, AllocatorError, AllocatorScope, Clock, DataPtr, Device, KeyId, Purpose, Tag, Unforked};
use tenure_plan::{Mapping, Problem};

use crate::kernel_times::{EndedStep, KernelTimes};
use crate::tier::Live;
use crate::{Report, Tier, TierError};

/// How strictly a mapping is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// An allocation whose key has no place is an error. Else it lives in the first tier, and is reported.
    pub is_strict: bool,
    /// What happens where a tier is full.
    pub when_full: WhenFull,
}

/// What happens to an allocation whose tier is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is an error, which names the tier: what is enforced is so, or the program stops.
    #[default]
    Refuse,
    /// It lives in the first other tier that has room, and is reported as missed.
    Miss,
}

/// Sends each allocation to the tier that a mapping has for its key. Opened once in a process, it does nothing until a
/// thread [enters](Self::enter) it: the two calls of `hook_init` in jaewan/pytorch-1, for the process and for each thread.
///
/// A handle: clones are one placement.
///
/// ```
/// use std::collections::BTreeMap;
/// use tenure_core::{AllocatorScope, Device, Name, Purpose, Site};
/// use tenure_plan::Mapping;
/// use tenure_tier::{Medium, Options, Placement, Tier};
///
/// let tiers = vec![
///     Tier::open("DRAM", &Medium::Dram, Some(1 << 20))?,
///     Tier::open("PM", &Medium::Path(std::env::temp_dir()), Some(1 << 20))?,
/// ];
/// let slow = tiers[1].clone();
/// let places = BTreeMap::from([("fc/linear/out#0".to_owned(), 1)]);
/// let mapping = Mapping::new("example", vec!["DRAM".into(), "PM".into()], places)?;
/// let placement = Placement::open(mapping, tiers, Options::default())?;
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
    shared: Arc<Shared>,
}

struct Shared {
    mapping: Mapping,
    tiers: Vec<Tier>,
    options: Options,
    /// Of each key that came: the number of its tier, if it has one.
    places: Unforked<FxHashMap<KeyId, Option<usize>>>,
    /// Keys that live elsewhere since their tier was full, and bytes of all of their allocations.
    missed: Unforked<(FxHashSet<KeyId>, u64)>,
    /// Times of kernels, once they are asked for.
    is_measured: AtomicBool,
    times: Unforked<Option<KernelTimes>>,
}

/// Keeps a thread's allocations placed while it lives.
#[must_use = "it holds for as long as it lives"]
pub struct PlacementGuard {
    _scope: AllocatorScope,
}

/// Where a block ought to be, and whether it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Where the mapping says.
    Placed,
    /// It has no place, and is in the first tier as what has none.
    Unmapped,
    /// In another tier than the mapping says.
    Missed,
}

impl Placement {
    /// A placement by `mapping` in `tiers`, which are found by their names.
    ///
    /// # Errors
    /// [`TierError::Tiers`] if the mapping's are not those.
    pub fn open(mapping: Mapping, tiers: Vec<Tier>, options: Options) -> Result<Self, TierError> {
        let opened = || tiers.iter().map(|tier| tier.name().to_owned()).collect::<Vec<_>>();
        let find = |name: &String| tiers.iter().find(|tier| tier.name() == name).cloned();
        let ordered: Option<Vec<Tier>> = mapping.tiers().iter().map(find).collect();
        match ordered {
            Some(ordered) if ordered.len() == tiers.len() => {
                let shared = Shared {
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
            _ => Err(TierError::Tiers { mapped: mapping.tiers().to_vec(), opened: opened() }),
        }
    }

    /// Places what the calling thread allocates on the CPU, and what threads do that work for it.
    pub fn enter(&self) -> PlacementGuard {
        PlacementGuard { _scope: AllocatorScope::enter(Arc::new(self.clone())) }
    }

    /// Measures the kernels of `problem` from the next [`begin_iteration`](Self::begin_iteration) on, in place of what was
    /// measured before. A [`Recorder`](crate::Recorder) made the problem of the same program: its kernels begin with
    /// allocations. Each allocation with a key reads the clock once.
    pub fn measure(&self, problem: &Problem, clock: Clock) {
        *self.shared.times.lock() = Some(KernelTimes::new(problem, clock));
        self.shared.is_measured.store(true, Relaxed);
    }

    /// From here on it is another step of the program, if kernels are measured. Steps that allocate something else than the
    /// problem says do not count.
    pub fn begin_iteration(&self) {
        self.add_step(KernelTimes::begin_step);
    }

    /// Ends the step. Returns nanoseconds of each of the problem's kernels, the mean over steps. Between the last allocation and
    /// the end of a step with an optimizer, two kernels share the time by the bytes that they access.
    ///
    /// # Errors
    /// [`TierError::NotMeasured`] if nothing is measured, or no step allocated what the problem says.
    pub fn kernel_times_ns(&self) -> Result<Vec<u64>, TierError> {
        self.add_step(KernelTimes::end_step);
        let not_measured = || Err(TierError::NotMeasured { reason: "nothing is measured".into() });
        self.shared.times.lock().as_ref().map_or_else(not_measured, KernelTimes::mean_ns)
    }

    /// Adds the times of the step that `end` ends. Names of keys have a lock of their own, so its allocations are compared while
    /// this one is free, and other threads note theirs.
    fn add_step(&self, end: fn(&mut KernelTimes) -> Option<EndedStep>) {
        let Some(ended) = self.shared.times.lock().as_mut().and_then(end) else { return };
        let kernels_ns = ended.kernels_ns();
        if let Some(times) = self.shared.times.lock().as_mut() {
            times.add(&ended, kernels_ns);
        }
    }

    /// What is followed.
    pub fn mapping(&self) -> &Mapping {
        &self.shared.mapping
    }

    /// The tiers, in the mapping's order.
    pub fn tiers(&self) -> &[Tier] {
        &self.shared.tiers
    }

    /// Gives the pages of all that is free in the tiers back to the system ([`Tier::release_cached`]).
    ///
    /// # Errors
    /// The system refuses.
    pub fn release_cached(&self) -> Result<(), TierError> {
        self.tiers().iter().try_for_each(Tier::release_cached)
    }

    /// What is where, at this moment, as it is verified now.
    pub fn report(&self) -> Report {
        self.report_beside(&[])
    }

    /// The same of a program that has tensors on the CPU in no tier, of which Tenure does not know: so many bytes for tags.
    pub fn report_beside(&self, outside: &[(Tag, u64)]) -> Report {
        Report::new(self, outside)
    }

    /// Whether every key of the mapping came: after an iteration, those that did not are none of this program.
    ///
    /// # Errors
    /// [`TierError::NeverCame`].
    pub fn check_all_came(&self) -> Result<(), TierError> {
        let never = self.never_came();
        match never.first() {
            None => Ok(()),
            Some(first) => Err(TierError::NeverCame { count: never.len(), first: first.clone() }),
        }
    }

    /// Keys of the mapping that no allocation had.
    pub(crate) fn never_came(&self) -> Vec<String> {
        let came: FxHashSet<String> = self.keys(|place| place.is_some()).into_iter().collect();
        self.mapping().places().filter(|(key, _)| !came.contains(*key)).map(|(key, _)| key.to_owned()).collect()
    }

    /// Keys of allocations that the mapping has no place for.
    pub(crate) fn unmapped(&self) -> Vec<String> {
        self.keys(|place| place.is_none())
    }

    /// Keys that were in another tier than theirs at some time, and the bytes of these allocations.
    pub(crate) fn missed(&self) -> (Vec<String>, u64) {
        let (keys, bytes) = self.shared.missed.lock().clone();
        (names(keys.into_iter()), bytes)
    }

    pub(crate) fn verdict(&self, tier: usize, live: &Live) -> Verdict {
        match self.shared.place(live.key) {
            Some(place) if place == tier => Verdict::Placed,
            None if tier == 0 => Verdict::Unmapped,
            _ => Verdict::Missed,
        }
    }

    /// Blocks in use of a tier.
    pub(crate) fn live(&self, tier: usize) -> Vec<(Address, Live)> {
        self.shared.tiers[tier].live()
    }

    fn keys(&self, wanted: impl Fn(Option<usize>) -> bool) -> Vec<String> {
        let places = self.shared.places.lock().clone();
        names(places.into_iter().filter(|(_, place)| wanted(*place)).map(|(key, _)| key))
    }
}

fn names(keys: impl Iterator<Item = KeyId>) -> Vec<String> {
    let mut names: Vec<String> = keys.filter_map(|key| Some(key.key()?.to_string())).collect();
    names.sort_unstable();
    names
}

impl Shared {
    /// The number of the tier of a key, if it has one.
    fn place(&self, key: KeyId) -> Option<usize> {
        if let Some(place) = self.places.lock().get(&key).copied() {
            return place;
        }
        let name = key.key()?.to_string();
        let place = self.mapping.place(&name);
        self.places.lock().insert(key, place);
        place
    }

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

// SAFETY: memory of the tiers, as they give it.
unsafe impl Allocator for Placement {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let (tag, key) = Purpose::identify();
        let data = self.shared.allocate(bytes, tag, key)?;
        if self.shared.is_measured.load(Relaxed) && !data.is_null() && key.key().is_some() {
            self.shared.times.lock().iter_mut().for_each(|times| times.note(key));
        }
        Ok(data)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }
}
