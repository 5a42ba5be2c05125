//! More PyTorch models than fit on a device: the bridge from `tenure.torch.Switcher` to `tenure-switch`.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{ptr, slice};

use pyo3::prelude::*;
use tenure::tier::SourceFile;
use tenure_switch::groups::{Costs, Grouping, Layer};
use tenure_switch::residency::Demand;
use tenure_switch::{
    ALIGNMENT, Entry, Image, Images, KnownOrder, Manifest, Model, OrderKey, Orders, Origin, Switch, SwitchError,
    SwitchOptions,
};

use crate::errors::{complaint, device_complaint, exception, memory_complaint};
use crate::tensor::dlpack_bytes;
use crate::weights_memory::WeightsMemory;

/// The fixed cost in µs, whatever the size, of a copy and of a wait on an H200. The wait includes Python's part in it.
const COPY_US: f64 = 3.0;
const WAIT_US: f64 = 5.0;

/// A device's memory for weights, and the host's memory for their images.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Switcher {
    memory: WeightsMemory,
    images: Arc<Images>,
    switch: Switch,
}

/// A model's weights. A tensor's number is the order in which it was added, in whatever order the tensors lie.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct SwitchedWeights {
    arranged: Mutex<Arranged>,
    demand: Mutex<Demand>,
}

/// Weights in one order.
#[derive(Clone)]
struct Arranged {
    inner: Arc<SwitchedInner>,
    /// The place of each tensor in the order.
    places: Arc<[usize]>,
}

/// The weights' memory and model. PyTorch's tensors keep it alive, so that their addresses are not reused.
pub(crate) struct SwitchedInner {
    memory: WeightsMemory,
    images: Arc<Images>,
    switch: Switch,
    model: Model,
    source: Home,
}

/// The source of a model's image.
enum Home {
    /// Files, which can be read again.
    Files,
    /// Memory whose contents cannot be made again: the image stays.
    Kept(Mutex<Option<Arc<Image>>>),
}

/// The location of a tensor's bytes before there is an image.
#[derive(FromPyObject)]
pub(crate) enum BytesPlace {
    /// A file, and the offset of the first byte.
    File((PathBuf, u64)),
    /// An address, valid until the image is made.
    Memory(usize),
}

#[pymethods]
impl Switcher {
    /// Opens a device. If Tenure does not manage its memory, the weights lie beside the other allocator's memory.
    #[new]
    fn new(py: Python<'_>, device: u8, device_bytes: u64, host_bytes: u64, chunk_bytes: u64) -> PyResult<Self> {
        py.detach(|| {
            let opened = WeightsMemory::open(device).map_err(exception)?;
            let memory = opened.memory;
            let granularity = memory.driver().granularity();
            if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(granularity) {
                return Err(complaint(format!(
                    "chunk_bytes={chunk_bytes}: expected a multiple of {granularity}, the device's granularity"
                )));
            }
            let images = Images::new(host_bytes, Some(Arc::clone(memory.driver()))).map_err(told)?;
            let switch =
                Switch::new(memory, SwitchOptions { chunk_bytes, ..SwitchOptions::new(device_bytes) }).map_err(told)?;
            Ok(Self { memory: opened, images: Arc::new(images), switch })
        })
    }

    /// Makes the image of a model's tensors and reserves their addresses. `order` lists the tensors; `ends` has, for
    /// each group, the place in `order` after its last tensor.
    fn add(
        &self,
        py: Python<'_>,
        name: &str,
        tensors: Vec<(String, u64, BytesPlace)>,
        order: Vec<usize>,
        ends: Vec<usize>,
    ) -> PyResult<SwitchedWeights> {
        py.detach(|| {
            let (entries, is_remade) = entries(tensors)?;
            let entries = order.iter().map(|&entry| entries[entry].clone()).collect();
            let inner = self.weights(name, entries, ends, is_remade).map_err(told)?;
            let arranged = Arranged { inner, places: places(&order) };
            let demand = Mutex::default();
            Ok(SwitchedWeights { arranged: Mutex::new(arranged), demand })
        })
    }

    /// Arranges weights in another order and other groups, at other addresses. The old addresses never get weights
    /// again. Ctrl-C does not interrupt this.
    fn arrange(&self, py: Python<'_>, weights: &SwitchedWeights, order: Vec<usize>, ends: Vec<usize>) -> PyResult<()> {
        py.detach(|| {
            let before = weights.arranged();
            let inner = self.arranged(&before, &order, ends)?;
            *lock(&weights.arranged) = Arranged { inner, places: places(&order) };
            Ok(())
        })
    }

    /// The bytes that a model can take without an eviction.
    #[getter]
    fn free_bytes(&self) -> u64 {
        self.switch.free_bytes()
    }

    /// The bytes of all images in the host's memory.
    #[getter]
    fn image_bytes(&self) -> u64 {
        self.images.statistics().bytes
    }

    /// The bytes that were copied to the device so far.
    #[getter]
    fn copied_bytes(&self) -> u64 {
        self.switch.statistics().copied_bytes
    }

    /// The device bytes that weights take, in whole chunks, including chunks that no model uses now.
    #[getter]
    fn taken_bytes(&self) -> u64 {
        self.switch.statistics().taken_bytes
    }

    /// The peak of `taken_bytes`.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.switch.statistics().peak_bytes
    }

    /// The handle of the stream that runs all copies.
    #[getter]
    fn copies(&self) -> u64 {
        self.switch.copies().id().0
    }

    /// Frees weights that are no longer needed and memory that no model uses. Waits for work that uses them.
    fn trim(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.switch.settle().and_then(|()| self.switch.trim())).map_err(told)
    }
}

impl Switcher {
    fn arranged(&self, before: &Arranged, order: &[usize], ends: Vec<usize>) -> PyResult<Arc<SwitchedInner>> {
        let SwitchedInner { model, source, .. } = &*before.inner;
        let name = model.manifest().name();
        let entries = model.manifest().entries();
        let order = order.iter().map(|&entry| before.places[entry]);
        let ordered = order.clone().map(|entry| entries[entry].clone());
        let Home::Kept(kept) = source else {
            self.images.forget(model.manifest());
            return self.weights(name, ordered.collect(), ends, true).map_err(told);
        };
        let image = lock(kept).take().ok_or_else(|| lost(model))?;
        let contents = Arc::new(contents(&image).map_err(told)?);
        // The host may have room for only one of the two images.
        self.images.forget(model.manifest());
        drop(image);
        self.switch.settle().map_err(told)?;
        let remade = ordered.zip(order).map(|(before, entry)| {
            let contents = Arc::clone(&contents);
            Entry {
                origin: Origin::Made(Arc::new(move |bytes: &mut [u8]| {
                    bytes.copy_from_slice(&std::mem::take(&mut *lock(&contents[entry])))
                })),
                ..before
            }
        });
        self.weights(name, remade.collect(), ends, false).map_err(told)
    }

    fn weights(
        &self,
        name: &str,
        entries: Vec<Entry>,
        ends: Vec<usize>,
        is_remade: bool,
    ) -> Result<Arc<SwitchedInner>, SwitchError> {
        let manifest = Arc::new(Manifest::new(name, entries, ends)?);
        let model = self.switch.register(&manifest)?;
        let image = acquire(&self.images, &self.switch, &manifest)?;
        // A file that cannot be read is reported here, not when the model is called.
        image.wait_for_all().inspect_err(|_| self.images.forget(&manifest))?;
        let source = if is_remade { Home::Files } else { Home::Kept(Mutex::new(Some(image))) };
        let images = Arc::clone(&self.images);
        let switch = self.switch.clone();
        Ok(Arc::new(SwitchedInner { memory: self.memory.clone(), images, switch, model, source }))
    }
}

#[pymethods]
impl SwitchedWeights {
    /// Returns all bytes as a DLPack capsule; `torch.from_dlpack` makes a tensor of it. The bytes can be read once the
    /// model is on the device.
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let inner = self.arranged().inner;
        let SwitchedInner { model, memory, .. } = &*inner;
        // A model without tensors has no address.
        let address = if model.manifest().bytes() > 0 { model.place(0).start } else { 0 };
        dlpack_bytes(py, address, model.manifest().bytes(), memory.memory.device().index(), Arc::clone(&inner))
    }

    /// Returns the offset in bytes of a tensor in the weights.
    fn begin(&self, entry: usize) -> u64 {
        let Arranged { inner, places } = self.arranged();
        inner.model.manifest().place(places[entry]).start
    }

    /// Returns the group that a tensor is copied with.
    fn group_of(&self, entry: usize) -> usize {
        let Arranged { inner, places } = self.arranged();
        inner.model.manifest().group_of(places[entry])
    }

    /// The bytes of each group.
    #[getter]
    fn group_bytes(&self) -> Vec<u64> {
        let inner = self.arranged().inner;
        inner.model.manifest().groups().iter().map(|group| group.end - group.start).collect()
    }

    /// The most bytes that the model takes on the device, in whole chunks, in any order of its tensors.
    #[getter]
    fn room_bytes(&self) -> u64 {
        let inner = self.arranged().inner;
        let SwitchedInner { model, switch, .. } = &*inner;
        let bytes: u64 = model.manifest().entries().iter().map(|entry| entry.bytes.next_multiple_of(ALIGNMENT)).sum();
        bytes.next_multiple_of(switch.chunk_bytes())
    }

    /// The bytes that are on the device.
    #[getter]
    fn resident_bytes(&self) -> u64 {
        self.arranged().inner.model.resident_bytes()
    }

    /// The bytes that must be free on the device to bring the model.
    #[getter]
    fn missing_bytes(&self) -> u64 {
        self.arranged().inner.model.missing_bytes()
    }

    /// Starts the copies of what is missing on the device. Does not wait for them.
    fn load(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let inner = self.arranged().inner;
            let SwitchedInner { images, switch, model, source, .. } = &*inner;
            let image = match source {
                Home::Files => acquire(images, switch, model.manifest()).map_err(told)?,
                Home::Kept(image) => lock(image).clone().ok_or_else(|| lost(model))?,
            };
            model.load(&image).map(drop).map_err(told)
        })
    }

    /// Makes later work of a stream wait for a group.
    fn wait(&self, group: usize, stream: usize) -> PyResult<()> {
        let inner = self.arranged().inner;
        inner.model.wait(group, &inner.stream(stream)?).map_err(told)
    }

    /// Records that the work now on a stream uses the model.
    fn used_by(&self, stream: usize) -> PyResult<()> {
        let inner = self.arranged().inner;
        inner.model.used_by(&inner.stream(stream)?).map_err(told)
    }

    /// Records a use of the model. `uses` counts the uses of all models so far.
    fn note_use(&self, uses: u64) {
        lock(&self.demand).used(uses);
    }

    /// Returns the worth of the model's bytes on the device. `uses` counts the uses of all models so far. The model
    /// with the least worth is evicted first.
    fn worth(&self, uses: u64, priority: i32) -> i64 {
        let inner = self.arranged().inner;
        let SwitchedInner { model, images, source, .. } = &*inner;
        let has_image = matches!(source, Home::Kept(_)) || images.has(model.manifest());
        lock(&self.demand).worth(uses, model.manifest().bytes(), has_image, priority)
    }

    /// Frees `bytes` of the model's device memory for other models, rounded up to whole chunks. Returns the bytes
    /// freed.
    fn evict(&self, bytes: u64) -> u64 {
        let inner = self.arranged().inner;
        let SwitchedInner { model, switch, .. } = &*inner;
        model.evict(bytes.div_ceil(switch.chunk_bytes()) as usize)
    }
}

impl SwitchedWeights {
    fn arranged(&self) -> Arranged {
        lock(&self.arranged).clone()
    }
}

impl SwitchedInner {
    fn stream(&self, handle: usize) -> PyResult<tenure_device::Stream> {
        let memory = &self.memory;
        // SAFETY: the handle is the null stream or one of PyTorch's, which PyTorch never destroys.
        unsafe { memory.stream(handle) }
            .ok_or_else(|| complaint(format!("Tenure does not manage the memory of {}", memory.memory.device())))
    }
}

impl Drop for SwitchedInner {
    fn drop(&mut self) {
        self.images.forget(self.model.manifest());
    }
}

/// Divides layers into groups. Each layer has its bytes and its computing time in µs. Returns, for each group, the
/// index after its last layer.
#[pyfunction]
pub(crate) fn divide_layers(layers: Vec<(u64, f64)>, bytes_per_us: f64, grouping: &str) -> PyResult<Vec<usize>> {
    let grouping = match grouping {
        "searched" => Grouping::Searched,
        "per_layer" => Grouping::PerLayer,
        "whole" => Grouping::Whole,
        _ => return Err(complaint(format!("grouping={grouping:?}: expected 'searched', 'per_layer' or 'whole'"))),
    };
    let costs = Costs { bytes_per_us, copy_us: COPY_US, wait_us: WAIT_US };
    let layers: Vec<Layer> =
        layers.into_iter().map(|(bytes, compute_us)| Layer { bytes, compute_us, block: 0 }).collect();
    Ok(grouping.divide(&layers, &costs).ends)
}

/// Returns the order of a model's tensors that was kept for these settings, and for each group the place after its last
/// tensor; `None` if none was kept. Each string of `tensors` has the facts about one tensor that its order may depend
/// on.
#[pyfunction]
pub(crate) fn known_order(settings: Vec<String>, tensors: Vec<String>) -> Option<(Vec<usize>, Vec<usize>)> {
    // Python's models keep no tables on the host, so orders with tables are skipped.
    let order = Orders::of_user()?.find(&order_key(&settings, &tensors)).filter(|order| order.tables.is_empty())?;
    Some((order.tensors, order.ends))
}

/// Keeps a model's order, so that other processes find it.
#[pyfunction]
pub(crate) fn keep_order(settings: Vec<String>, tensors: Vec<String>, order: Vec<usize>, ends: Vec<usize>) {
    if let Some(orders) = Orders::of_user() {
        orders.keep(&order_key(&settings, &tensors), &KnownOrder { tensors: order, ends, tables: Vec::new() });
    }
}

fn order_key(settings: &[String], tensors: &[String]) -> OrderKey {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    OrderKey::new(&settings, tensors)
}

/// Returns the place of each tensor in an order.
fn places(order: &[usize]) -> Arc<[usize]> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &tensor)| places[tensor] = place);
    places.into()
}

/// Returns the tensors as entries of a manifest, and whether their image can be made again.
fn entries(tensors: Vec<(String, u64, BytesPlace)>) -> PyResult<(Vec<Entry>, bool)> {
    let mut sources: HashMap<PathBuf, Arc<SourceFile>> = HashMap::new();
    let is_remade = tensors.iter().any(|(.., place)| matches!(place, BytesPlace::File(_)));
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, bytes, place) in tensors {
        let origin = match place {
            BytesPlace::File((path, begin)) => {
                let source = match sources.entry(path) {
                    Slot::Occupied(opened) => Arc::clone(opened.get()),
                    Slot::Vacant(slot) => {
                        let source = SourceFile::open(slot.key()).map_err(|error| complaint(error.to_string()))?;
                        Arc::clone(slot.insert(Arc::new(source)))
                    }
                };
                Origin::File(source, begin)
            }
            BytesPlace::Memory(address) => {
                let read = move || match bytes {
                    // A tensor without elements has no address.
                    0 => &[][..],
                    // SAFETY: the package keeps a tensor of this many bytes at the address until the image is made.
                    _ => unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), bytes as usize) },
                };
                if is_remade {
                    let contents: Vec<u8> = read().to_vec();
                    Origin::Made(Arc::new(move |target: &mut [u8]| target.copy_from_slice(&contents)))
                } else {
                    // Read once: the image is then kept.
                    Origin::Made(Arc::new(move |target: &mut [u8]| target.copy_from_slice(read())))
                }
            }
        };
        entries.push(Entry { name, bytes, origin });
    }
    Ok((entries, is_remade))
}

/// Returns a model's image. If there is no room because other images are still being copied from, waits for those
/// copies.
fn acquire(images: &Images, switch: &Switch, manifest: &Arc<Manifest>) -> Result<Arc<Image>, SwitchError> {
    match images.acquire(manifest) {
        Err(SwitchError::NoHostRoom { .. }) => {
            switch.settle()?;
            images.acquire(manifest)
        }
        acquired => acquired,
    }
}

/// Copies each tensor's bytes out of an image.
fn contents(image: &Image) -> Result<Vec<Mutex<Vec<u8>>>, SwitchError> {
    let manifest = image.manifest();
    (0..manifest.entries().len())
        .map(|entry| {
            let group = manifest.group_of(entry);
            let place = manifest.place(entry);
            let begin = image.wait(group)?.wrapping_add((place.start - manifest.groups()[group].start) as usize);
            // SAFETY: the group has been read, and no other thread writes to it.
            let bytes = unsafe { slice::from_raw_parts(begin, (place.end - place.start) as usize) };
            Ok(Mutex::new(bytes.to_vec()))
        })
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error for a model whose old image is gone while there was no memory for the new one.
fn lost(model: &Model) -> PyErr {
    let name = model.manifest().name();
    complaint(format!(
        "{name}: its weights are lost, as there was no memory to arrange them: remove the model and add it again"
    ))
}

fn told(error: SwitchError) -> PyErr {
    match error {
        SwitchError::Device(_) => device_complaint(error.to_string()),
        SwitchError::Memory(_) if error.is_out_of_memory() => memory_complaint(format!(
            "{error}: what PyTorch allocates has its place beside the weights: take a smaller device_bytes"
        )),
        SwitchError::Memory(_) => device_complaint(error.to_string()),
        _ => complaint(error.to_string()),
    }
}
