//! The tensors of networks in files, the order in which a network uses them, and arrangements: the order and the groups
//! in which they lie in an image and are loaded. Devices that copy from the same images share arrangements.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_switch::groups::{Costs, Grouping, Layer};
use tenure_switch::{Entry, FirstUse, KnownOrder, Manifest, OrderKey, Origin, SwitchError};
use tenure_tensor::{DType, Tensor};
use tenure_tier::SourceFile;

use super::Placed;
use super::host_images::HostImages;
use crate::checkpoint::{CheckpointError, Weights};
use crate::{Result, Source as _, StateError};

/// The size in bytes below which consecutive tensors count as one layer, because a copy of so few bytes does not pay.
const LAYER_BYTES: u64 = 1 << 20;

/// The fixed cost of reading a group from a disk, and of waiting for a group that is in memory, in µs.
const READ_US: f64 = 100.0;
const WAIT_US: f64 = 1.0;

/// A tensor in a file.
pub struct StoredTensor {
    /// The dtype of its elements.
    pub dtype: DType,
    /// The tensor's name in the network, and the place of its bytes.
    pub entry: Entry,
}

/// All tensors of a network, each once, even if it has several names. Switchers that [share
/// images](super::Switcher::on_devices) and are given the same `StoredTensors` have one image of them, in the order
/// that one of them learns.
pub struct StoredTensors {
    tensors: Vec<StoredTensor>,
    pub(super) arrangements: Arrangements,
}

/// An order of a network's tensors, divided into groups that are loaded together. Tables, whose rows are read in place,
/// are in no group.
pub struct WeightOrder {
    order: KnownOrder,
    /// Whether it is the order in which a call used the tensors.
    is_recorded: bool,
}

impl StoredTensors {
    /// Finds a network's tensors in safetensors files, under their names or all under one prefix. Other tensors of the
    /// files are ignored.
    ///
    /// # Errors
    /// A file cannot be read; a tensor is missing, has other sizes, or is of `bool`, whose bytes may be invalid values.
    pub fn find<P: AsRef<Path>>(paths: &[P], state: &[(&str, &Tensor)]) -> Result<Self> {
        let files = paths.iter().map(|path| Weights::open(path.as_ref())).collect::<Result<Vec<_>>>()?;
        let mut sources: HashMap<PathBuf, Arc<SourceFile>> = HashMap::new();
        let prefix = state.first().map_or(String::new(), |(first, _)| prefix(&files, first));
        let mut tensors = Vec::new();
        let mut found_ids = HashSet::new();
        let mut missing = Vec::new();
        for (name, shape) in state {
            if found_ids.contains(&shape.id()) {
                continue;
            }
            let full_name = format!("{prefix}{name}");
            let Some(file) = files.iter().find(|file| file.sizes(&full_name).is_some()) else {
                missing.push((shape.id(), *name));
                continue;
            };
            let place = file.place(&full_name)?;
            found_ids.insert(shape.id());
            if place.sizes != shape.sizes() {
                let expected = shape.sizes().to_vec();
                let found = place.sizes.to_vec();
                return Err(StateError::Sizes { of: "model", name: (*name).into(), expected, found, more: 0 }.into());
            }
            if place.dtype == DType::Bool {
                let reason = format!("{name} is of bool, which cannot be used as it is stored: store it as uint8");
                return Err(CheckpointError::format(place.path, reason).into());
            }
            if !sources.contains_key(place.path) {
                sources.insert(place.path.to_owned(), Arc::new(SourceFile::open(place.path)?));
            }
            let origin = Origin::File(Arc::clone(&sources[place.path]), place.offset);
            let entry = Entry { name: (*name).into(), bytes: place.bytes, origin };
            tensors.push(StoredTensor { dtype: place.dtype, entry });
        }
        // For a tensor with several names, one name in the files is enough.
        missing.retain(|(tensor, _)| !found_ids.contains(tensor));
        if !missing.is_empty() {
            let missing = missing.into_iter().map(|(_, name)| name.to_owned()).collect();
            return Err(StateError::Names { of: "model", missing, unexpected: Vec::new() }.into());
        }
        Ok(Self { tensors, arrangements: Arrangements::default() })
    }

    /// Returns the tensors.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// Returns the largest size in bytes of an image, for any order.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.entry.bytes.next_multiple_of(tenure_switch::ALIGNMENT)).sum()
    }

    /// Returns the key under which an order of these tensors is kept, for a device and a grouping.
    pub(super) fn order_key(&self, device: &str, grouping: Grouping) -> OrderKey {
        let tensors: Vec<String> = self
            .tensors
            .iter()
            .map(|StoredTensor { dtype, entry }| format!("{}: {dtype} {}", entry.name, entry.bytes))
            .collect();
        OrderKey::new(&[device, &format!("{grouping:?}")], &tensors)
    }

    /// Returns the manifest of an image in this order.
    ///
    /// # Errors
    /// [`SwitchError::TooLarge`].
    pub fn manifest(&self, name: &str, order: &WeightOrder) -> Result<Arc<Manifest>, SwitchError> {
        let entries = order.order.tensors.iter().map(|index| self.tensors[*index].entry.clone()).collect();
        Ok(Arc::new(Manifest::new(name, entries, order.order.ends.clone())?))
    }

    /// Returns the manifest of an image of an order's [tables](WeightOrder::has_tables). Each table is a group.
    ///
    /// # Errors
    /// [`SwitchError::TooLarge`].
    pub fn tables(&self, name: &str, order: &WeightOrder) -> Result<Arc<Manifest>, SwitchError> {
        let entries = order.order.tables.iter().map(|index| self.tensors[*index].entry.clone()).collect();
        Ok(Arc::new(Manifest::new(name, entries, (1..=order.order.tables.len()).collect())?))
    }

    /// Returns the place of each tensor in the groups of an order's [manifest](Self::manifest). The groups of its
    /// [tables](Self::tables) follow them.
    pub fn placed<'a>(&'a self, order: &'a WeightOrder, manifest: &'a Manifest) -> impl Iterator<Item = Placed<'a>> {
        let of_groups = order.order.tensors.iter().enumerate().map(|(place, index)| {
            let group = manifest.group_of(place);
            (index, group, manifest.place(place).start - manifest.groups()[group].start)
        });
        let count = manifest.groups().len();
        let of_tables = order.order.tables.iter().enumerate().map(move |(table, index)| (index, count + table, 0));
        of_groups.chain(of_tables).map(|(index, group, begin)| {
            let StoredTensor { entry, dtype } = &self.tensors[*index];
            Placed { name: &entry.name, dtype: *dtype, group, begin }
        })
    }
}

impl WeightOrder {
    /// Makes the order of the network's state, each tensor a group, for the time until the order of use is known.
    pub fn unknown(count: usize) -> Self {
        let order = KnownOrder { tensors: (0..count).collect(), ends: (1..=count).collect(), tables: Vec::new() };
        Self { order, is_recorded: false }
    }

    /// Makes an order of use from its record.
    pub(super) fn from_record(order: KnownOrder) -> Self {
        Self { order, is_recorded: true }
    }

    /// Returns the tensors, groups and tables, which files keep.
    pub(super) fn as_known(&self) -> &KnownOrder {
        &self.order
    }

    /// Returns whether the order has tables, whose rows are read in place.
    pub fn has_tables(&self) -> bool {
        !self.order.tables.is_empty()
    }

    /// Returns whether this is the order in which tensors are used.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Learns the order from a run on the host in the [unknown](Self::unknown) order. It takes the first use of each
    /// tensor, the end of the run, and the time of reading all tensors.
    pub fn of_host_run(
        stored: &StoredTensors,
        uses: &[Option<FirstUse>],
        ended: Instant,
        read: Duration,
        grouping: Grouping,
    ) -> Self {
        let bytes: u64 = stored.tensors.iter().map(|tensor| tensor.entry.bytes).sum();
        let bytes_per_us = (bytes as f64 / (read.as_secs_f64() * 1e6)).max(f64::MIN_POSITIVE);
        let costs = Costs { bytes_per_us, copy_us: READ_US, wait_us: WAIT_US };
        Self::recorded(stored, &used_on_host(uses, ended), Vec::new(), grouping, &costs)
    }

    /// Learns the order from a run in the [unknown](Self::unknown) order. `uses` has each used tensor's number and the
    /// time of the computation with it, in µs. The order is divided into groups by the costs of copies and waits.
    /// Unused tensors are the last group; `tables` are in no group.
    pub fn recorded(
        stored: &StoredTensors,
        uses: &[(usize, f64)],
        tables: Vec<usize>,
        grouping: Grouping,
        costs: &Costs,
    ) -> Self {
        let (layers, layer_ends) = layers(stored, uses, grouping);
        let mut ends: Vec<usize> = grouping.divide(&layers, costs).ends.iter().map(|end| layer_ends[end - 1]).collect();
        let mut tensors: Vec<usize> = uses.iter().map(|(tensor, _)| *tensor).collect();
        let used: HashSet<usize> = tensors.iter().chain(&tables).copied().collect();
        tensors.extend((0..stored.tensors.len()).filter(|tensor| !used.contains(tensor)));
        if tensors.len() > uses.len() {
            ends.push(tensors.len());
        }
        Self::from_record(KnownOrder { tensors, ends, tables })
    }
}

/// Returns the tensors used in a run on the host, in which each was a group, in the order of their first uses. With
/// each comes the time in µs from its first use to that of the next tensor, less the time that its use waited for it.
fn used_on_host(uses: &[Option<FirstUse>], ended: Instant) -> Vec<(usize, f64)> {
    let mut used: Vec<(usize, FirstUse)> =
        uses.iter().enumerate().filter_map(|(tensor, used)| Some((tensor, (*used)?))).collect();
    used.sort_by_key(|(tensor, used)| (used.at, *tensor));
    used.iter()
        .enumerate()
        .map(|(place, (tensor, FirstUse { at, waited }))| {
            let next = used.get(place + 1).map_or(ended, |(_, next)| next.at);
            (*tensor, (next - *at).saturating_sub(*waited).as_secs_f64() * 1e6)
        })
        .collect()
}

/// Divides the used tensors into layers. Returns them, and for each the position in `uses` after its last tensor. A
/// layer is the tensors of one module; unless the grouping is `PerLayer`, modules of one block are joined until the
/// layer has [`LAYER_BYTES`].
fn layers(stored: &StoredTensors, uses: &[(usize, f64)], grouping: Grouping) -> (Vec<Layer>, Vec<usize>) {
    let least_bytes = if grouping == Grouping::PerLayer { 0 } else { LAYER_BYTES };
    let mut layers = Vec::new();
    let mut ends = Vec::new();
    let mut block = 0;
    let mut layer = Layer { bytes: 0, compute_us: 0.0, block };
    for (place, (tensor, compute_us)) in uses.iter().enumerate() {
        layer.bytes += stored.tensors[*tensor].entry.bytes;
        layer.compute_us += compute_us;
        let name = &*stored.tensors[*tensor].entry.name;
        let next = uses.get(place + 1).map(|(next, _)| &*stored.tensors[*next].entry.name);
        let ends_block = next.is_none_or(|next| block_of(next) != block_of(name));
        let ends_module = next.is_none_or(|next| module_of(next) != module_of(name));
        if ends_module && (layer.bytes >= least_bytes || ends_block) {
            layers.push(layer);
            ends.push(place + 1);
            block += u32::from(ends_block);
            layer = Layer { bytes: 0, compute_us: 0.0, block };
        }
    }
    (layers, ends)
}

/// Returns the module that has a parameter: `layer1.0.conv1` for `layer1.0.conv1.weight`.
fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

/// Returns the block that has a parameter, such as one of a network's equal layers: its name up to the first number,
/// `layer1.0.` for `layer1.0.conv1.weight`. For a name without a number, it is the part before the first dot.
fn block_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split_inclusive('.') {
        end += part.len();
        if part.trim_end_matches('.').bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
    }
    name.split('.').next().unwrap_or(name)
}

/// Returns the prefix that the files have before all names of a network, such as `bert.`; the shortest with which
/// `first` is in them.
fn prefix(files: &[Weights], first: &str) -> String {
    let names = files.iter().flat_map(|file| file.names());
    let prefixes = names.filter_map(|name| name.strip_suffix(first).map(str::to_owned));
    let whole = prefixes.filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
    whole.min_by_key(String::len).unwrap_or_default()
}

/// An order of a network's tensors, and the images that have it. When its last user drops it, these images leave the
/// host's memory.
pub(super) struct Arrangement {
    pub(super) order: WeightOrder,
    /// The manifest of the image with the tensors in groups.
    pub(super) manifest: Arc<Manifest>,
    /// The manifest of the image with the [tables](WeightOrder::has_tables), if there are any.
    pub(super) tables: Option<Arc<Manifest>>,
    images: Arc<HostImages>,
}

/// The arrangements of a network that devices use now, so that each device takes that of another if there is one.
#[derive(Default)]
pub(super) struct Arrangements {
    latest: Mutex<Latest>,
}

/// The latest arrangements made; they do not keep them alive.
#[derive(Default)]
struct Latest {
    /// The arrangement for the time until the order of use is known: each tensor is a group.
    unknown: Weak<Arrangement>,
    /// The arrangement in the order of use, which a device has learned.
    recorded: Weak<Arrangement>,
}

impl Arrangement {
    /// Makes an arrangement of stored tensors. `name` is the model's, for error messages.
    pub(super) fn new(
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
        order: WeightOrder,
    ) -> Result<Arc<Self>, SwitchError> {
        let manifest = stored.manifest(name, &order)?;
        let tables = order.has_tables().then(|| stored.tables(name, &order)).transpose()?;
        Ok(Arc::new(Self { order, manifest, tables, images: Arc::clone(images) }))
    }
}

impl Drop for Arrangement {
    fn drop(&mut self) {
        self.images.forget(&self.manifest);
        if let Some(tables) = &self.tables {
            self.images.forget(tables);
        }
    }
}

impl Arrangements {
    /// Returns the arrangement for the time until the order of use is known: another device's, or a new one.
    pub(super) fn unknown(
        &self,
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
    ) -> Result<Arc<Arrangement>, SwitchError> {
        let mut latest = self.latest.lock();
        if let Some(unknown) = if_in_use(&latest.unknown, images) {
            return Ok(unknown);
        }
        let unknown = Arrangement::new(stored, images, name, WeightOrder::unknown(stored.tensors().len()))?;
        latest.unknown = Arc::downgrade(&unknown);
        Ok(unknown)
    }

    /// Returns the arrangement in the order of use, if a device with these images has one.
    pub(super) fn recorded(&self, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
        if_in_use(&self.latest.lock().recorded, images)
    }

    /// Makes the arrangement in a learned order of use. If another device has one already, returns that.
    pub(super) fn record(
        &self,
        stored: &StoredTensors,
        images: &Arc<HostImages>,
        name: &str,
        order: WeightOrder,
    ) -> Result<Arc<Arrangement>, SwitchError> {
        let mut latest = self.latest.lock();
        if let Some(recorded) = if_in_use(&latest.recorded, images) {
            return Ok(recorded);
        }
        let recorded = Arrangement::new(stored, images, name, order)?;
        latest.recorded = Arc::downgrade(&recorded);
        Ok(recorded)
    }
}

/// Returns the arrangement if a device still uses it and it is of the store `images`.
fn if_in_use(latest: &Weak<Arrangement>, images: &Arc<HostImages>) -> Option<Arc<Arrangement>> {
    latest.upgrade().filter(|arrangement| Arc::ptr_eq(&arrangement.images, images))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_repeats() {
        let blocks = [
            ("layer1.0.conv1.weight", "layer1.0."),
            ("encoder.layer.11.output.dense.bias", "encoder.layer.11."),
            ("Mixed_5b.branch1x1.conv.weight", "Mixed_5b"),
            ("weight", "weight"),
        ];
        assert_eq!(blocks.map(|(name, _)| block_of(name)), blocks.map(|(_, block)| block));
    }

    fn stored(tensors: &[(&str, u64)]) -> StoredTensors {
        StoredTensors {
            tensors: tensors
                .iter()
                .map(|(name, bytes)| {
                    let origin = Origin::Made(Arc::new(|_: &mut [u8]| ()));
                    StoredTensor { dtype: DType::F32, entry: Entry { name: (*name).into(), bytes: *bytes, origin } }
                })
                .collect(),
            arrangements: Arrangements::default(),
        }
    }

    #[test]
    fn groups_are_divided_between_modules_and_what_is_not_used_comes_last() {
        let stored = stored(&[
            ("unused.weight", 8),
            ("b.1.up.weight", 4 << 20),
            ("b.0.up.weight", 4 << 20),
            ("b.0.up.bias", 64),
            ("b.0.down.weight", 4 << 20),
        ]);
        let uses = [(2, 10.0), (3, 1.0), (4, 10.0), (1, 10.0)];
        let costs = Costs { bytes_per_us: 1e9, copy_us: 0.0, wait_us: 0.0 };
        let ends = |grouping| WeightOrder::recorded(&stored, &uses, Vec::new(), grouping, &costs).order.ends;
        assert_eq!(ends(Grouping::PerLayer), [2, 3, 4, 5]);
        assert_eq!(ends(Grouping::PerBlock), [3, 4, 5]);
        assert_eq!(ends(Grouping::Whole), [4, 5]);
        assert_eq!(WeightOrder::recorded(&stored, &uses, vec![0], Grouping::Whole, &costs).order.tensors, [2, 3, 4, 1]);
    }
}
