//! Where a network's weights are on the disk, and in which order they are needed.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_nn::StateError;
use tenure_nn::checkpoint::Weights;
use tenure_switch::groups::{Costs, Grouping, Layer};
use tenure_switch::{Entry, FirstUse, Manifest, Origin};
use tenure_tensor::{DType, Tensor};
use tenure_tier::Source;

use super::ModelError;
use crate::repository::{StoredModel, WeightDtype};

/// Layers of fewer bytes are counted to the next: no copy is worth so few.
const LAYER_BYTES: u64 = 1 << 20;

/// What reading a group takes beside its bytes, and waiting for one that is there, in µs.
const READ_US: f64 = 100.0;
const WAIT_US: f64 = 1.0;

/// A tensor of a file, as it is there.
pub(super) struct StoredTensor {
    pub(super) dtype: DType,
    pub(super) entry: Entry,
}

/// All tensors of a network, each once, whatever its names.
pub(super) struct Stored {
    model: Arc<StoredModel>,
    pub(super) tensors: Vec<StoredTensor>,
}

/// Tensors in the order in which they are needed, in groups.
pub(super) struct Order {
    /// By their numbers.
    tensors: Vec<usize>,
    /// The place behind each group's last.
    ends: Vec<usize>,
    is_recorded: bool,
}

impl Stored {
    /// Finds a network's tensors in the model's files: under their names, or all of them under one prefix. What files have
    /// beside them is for others.
    pub(super) fn find(model: &Arc<StoredModel>, state: &[(&str, &Tensor)]) -> Result<Self, ModelError> {
        let files = model.weights.iter().map(|file| Weights::open(&file.path)).collect::<Result<Vec<_>, _>>()?;
        let mut sources = Vec::new();
        for file in &model.weights {
            sources.push(Arc::new(Source::open(&file.path)?));
        }
        let places = |name: &str| {
            let found = files.iter().zip(&sources).find_map(|(file, source)| Some((file.place(name).ok()?, source)));
            found.map(|(place, source)| (place, Arc::clone(source)))
        };
        let prefix = state.first().map_or(String::new(), |(first, _)| prefix(&files, first));
        let (mut tensors, mut known, mut missing) = (Vec::new(), HashSet::new(), Vec::new());
        for (name, shape) in state {
            if known.contains(&shape.id()) {
                continue;
            }
            let Some((place, source)) = places(&format!("{prefix}{name}")) else {
                missing.push((shape.id(), *name));
                continue;
            };
            known.insert(shape.id());
            if place.sizes != shape.sizes() {
                let (expected, found) = (shape.sizes().to_vec(), place.sizes.to_vec());
                return Err(StateError::Sizes { of: "model", name: (*name).into(), expected, found, more: 0 }.into());
            }
            check_dtype(model, name, place.dtype)?;
            let entry = Entry { name: (*name).into(), bytes: place.bytes, origin: Origin::File(source, place.offset) };
            tensors.push(StoredTensor { dtype: place.dtype, entry });
        }
        // Of a tensor that has several names, files may have one.
        missing.retain(|(tensor, _)| !known.contains(tensor));
        if !missing.is_empty() {
            let missing = missing.into_iter().map(|(_, name)| name.to_owned()).collect();
            return Err(StateError::Names { of: "model", missing, unexpected: Vec::new() }.into());
        }
        let stored = Self { model: Arc::clone(model), tensors };
        stored.check_unchanged()?;
        Ok(stored)
    }

    /// Whether the files are still those that were looked at.
    pub(super) fn check_unchanged(&self) -> Result<(), ModelError> {
        for file in &self.model.weights {
            let now = fs::metadata(&file.path).and_then(|there| Ok((there.len(), there.modified()?)));
            if now.ok() != Some((file.bytes, file.modified)) {
                return Err(ModelError::Changed { path: file.path.clone() });
            }
        }
        Ok(())
    }

    /// Bytes of an image, in whatever order, at most.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.entry.bytes.next_multiple_of(tenure_switch::ALIGNMENT)).sum()
    }

    /// What an image is made of, in an order of this.
    pub(super) fn manifest(&self, order: &Order) -> Result<Arc<Manifest>, ModelError> {
        let entries = order.tensors.iter().map(|index| self.tensors[*index].entry.clone()).collect();
        Ok(Arc::new(Manifest::new(self.model.name.as_str(), entries, order.ends.clone())?))
    }
}

impl Order {
    /// That of the network's state, each tensor by itself: until it is known which are used first.
    pub(super) fn unknown(count: usize) -> Self {
        Self { tensors: (0..count).collect(), ends: (1..=count).collect(), is_recorded: false }
    }

    /// Whether nobody has seen in which order tensors are used.
    pub(super) fn is_unknown(&self) -> bool {
        !self.is_recorded
    }

    /// Which tensor is in a place.
    pub(super) fn tensor(&self, place: usize) -> usize {
        self.tensors[place]
    }

    /// That in which tensors were used, as `uses` has it of the [unknown](Self::unknown) order, in groups that let the last
    /// layer end soonest, by the times of that run and the time to `read` all. What was not used is the last group.
    pub(super) fn recorded(stored: &Stored, uses: &[Option<FirstUse>], ended: Instant, read: Duration) -> Self {
        let mut used: Vec<(usize, FirstUse)> =
            uses.iter().enumerate().filter_map(|(tensor, used)| Some((tensor, (*used)?))).collect();
        used.sort_by_key(|(tensor, used)| (used.at, *tensor));
        let bytes = |tensor: usize| stored.tensors[tensor].entry.bytes;
        // Layers, and the place behind the last tensor of each.
        let (mut layers, mut layer_ends, mut layer) = (Vec::new(), Vec::new(), None);
        for (place, (tensor, FirstUse { at, waited })) in used.iter().enumerate() {
            let next = used.get(place + 1).map_or(ended, |(_, next)| next.at);
            let compute_us = (next - *at).saturating_sub(*waited).as_secs_f64() * 1e6;
            let current = layer.get_or_insert(Layer { bytes: 0, compute_us: 0.0, block: 0 });
            current.bytes += bytes(*tensor);
            current.compute_us += compute_us;
            if current.bytes >= LAYER_BYTES || place + 1 == used.len() {
                layers.extend(layer.take());
                layer_ends.push(place + 1);
            }
        }
        let all: u64 = (0..uses.len()).map(bytes).sum();
        let bytes_per_us = (all as f64 / (read.as_secs_f64() * 1e6)).max(f64::MIN_POSITIVE);
        let costs = Costs { bytes_per_us, copy_us: READ_US, wait_us: WAIT_US };
        let groups = Grouping::Searched.divide(&layers, &costs);
        let mut ends: Vec<usize> = groups.ends.iter().map(|end| layer_ends[end - 1]).collect();
        let mut tensors: Vec<usize> = used.iter().map(|(tensor, _)| *tensor).collect();
        if tensors.len() < uses.len() {
            tensors.extend((0..uses.len()).filter(|tensor| uses[*tensor].is_none()));
            ends.push(tensors.len());
        }
        Self { tensors, ends, is_recorded: true }
    }
}

/// What stands before all names of a network in its files, such as `bert.`.
fn prefix(files: &[Weights], first: &str) -> String {
    use tenure_nn::Source as _;
    let names = files.iter().flat_map(|file| file.names());
    let prefixes = names.filter_map(|name| name.strip_suffix(first).map(str::to_owned));
    let whole = prefixes.filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
    whole.min_by_key(String::len).unwrap_or_default()
}

fn check_dtype(model: &StoredModel, name: &str, stored: DType) -> Result<(), ModelError> {
    if stored == DType::Bool {
        return Err(ModelError::Bool { tensor: name.into() });
    }
    let wanted = model.config.dtype.map(|dtype| match dtype {
        WeightDtype::Float16 => DType::F16,
        WeightDtype::Bfloat16 => DType::BF16,
        WeightDtype::Float32 => DType::F32,
        WeightDtype::Float64 => DType::F64,
    });
    match wanted.filter(|wanted| *wanted != stored && stored.is_floating()) {
        Some(wanted) => Err(ModelError::Conversion { tensor: name.into(), stored, wanted }),
        None => Ok(()),
    }
}
