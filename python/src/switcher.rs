//! More of PyTorch's models than fit on a device: what `tenure.torch.Switcher` has of the switch.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{ptr, slice};

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tenure::tier::Source;
use tenure_switch::groups::{Costs, Grouping, Layer};
use tenure_switch::residency::Demand;
use tenure_switch::{
    ALIGNMENT, Entry, Image, Images, KnownOrder, Manifest, Model, OrderKey, Orders, Origin, Switch, SwitchError,
    SwitchOptions,
};

use crate::dlpack;
use crate::errors::{complaint, device_complaint, exception, memory_complaint};
use crate::weights_memory::WeightsMemory;

/// What a copy and a wait take on an H200 whatever their sizes, in µs, a wait with what Python does for it.
const COPY_US: f64 = 3.0;
const WAIT_US: f64 = 5.0;

/// A device's memory for weights, and the host's.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct Switcher {
    memory: WeightsMemory,
    images: Arc<Images>,
    switch: Switch,
}

/// A model's weights. Tensors have the numbers that they were added by, whatever their order is.
#[pyclass(frozen, module = "tenure._native")]
pub(crate) struct SwitchedWeights {
    arranged: Mutex<Arranged>,
    demand: Mutex<Demand>,
}

/// Weights in an order.
#[derive(Clone)]
struct Arranged {
    inner: Arc<Inner>,
    /// Each tensor's place among them.
    places: Arc<[usize]>,
}

/// What tensors of PyTorch's keep, too: nobody else has their addresses while one is there.
pub(crate) struct Inner {
    memory: WeightsMemory,
    images: Arc<Images>,
    switch: Switch,
    model: Model,
    source: Home,
}

/// Where an image comes from.
enum Home {
    /// Files, again and again.
    Files,
    /// Nobody could make it again: it stays.
    Kept(Mutex<Option<Arc<Image>>>),
}

/// Where the bytes of a tensor are, before there is an image.
#[derive(FromPyObject)]
pub(crate) enum Place {
    /// In a file, from a byte on.
    File((PathBuf, u64)),
    /// At an address, until the image is made.
    Memory(usize),
}

#[pymethods]
impl Switcher {
    /// On a device whose memory Tenure does not manage, weights lie beside what the other allocator has.
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

    /// The image of a model's tensors, in an order and in groups that end behind those places of it, and addresses for them.
    fn add(
        &self,
        py: Python<'_>,
        name: &str,
        tensors: Vec<(String, u64, Place)>,
        order: Vec<usize>,
        ends: Vec<usize>,
    ) -> PyResult<SwitchedWeights> {
        py.detach(|| {
            let (entries, is_remade) = entries(tensors)?;
            let entries = order.iter().map(|&entry| entries[entry].clone()).collect();
            let inner = self.weights(name, entries, ends, is_remade).map_err(told)?;
            let (arranged, demand) = (Arranged { inner, places: places(&order) }, Mutex::default());
            Ok(SwitchedWeights { arranged: Mutex::new(arranged), demand })
        })
    }

    /// Arranges weights in another order and other groups, at other addresses: those where they were are never brought any
    /// more. If Ctrl-C came meanwhile, that is done, too.
    fn arrange(&self, py: Python<'_>, weights: &SwitchedWeights, order: Vec<usize>, ends: Vec<usize>) -> PyResult<()> {
        py.detach(|| {
            let before = weights.arranged();
            let inner = self.arranged(&before, &order, ends)?;
            *lock(&weights.arranged) = Arranged { inner, places: places(&order) };
            Ok(())
        })
    }

    /// Bytes that a model can have without anybody's eviction.
    #[getter]
    fn free_bytes(&self) -> u64 {
        self.switch.free_bytes()
    }

    /// Of images, in the host's memory.
    #[getter]
    fn image_bytes(&self) -> u64 {
        self.images.statistics().bytes
    }

    /// Bytes that were copied to the device.
    #[getter]
    fn copied_bytes(&self) -> u64 {
        self.switch.statistics().copied_bytes
    }

    /// Bytes of the device that weights take, in whole chunks, those that no model has included.
    #[getter]
    fn taken_bytes(&self) -> u64 {
        self.switch.statistics().taken_bytes
    }

    /// The most that they took at once.
    #[getter]
    fn peak_bytes(&self) -> u64 {
        self.switch.statistics().peak_bytes
    }

    /// The handle of the stream of all copies.
    #[getter]
    fn copies(&self) -> u64 {
        self.switch.copies().id().0
    }

    /// Lets go of what nobody needs any more, and of memory that no model has; waits for what uses it.
    fn trim(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.switch.settle().and_then(|()| self.switch.trim())).map_err(told)
    }
}

impl Switcher {
    fn arranged(&self, before: &Arranged, order: &[usize], ends: Vec<usize>) -> PyResult<Arc<Inner>> {
        let Inner { model, source, .. } = &*before.inner;
        let (name, entries) = (model.manifest().name(), model.manifest().entries());
        let order = order.iter().map(|&entry| before.places[entry]);
        let ordered = order.clone().map(|entry| entries[entry].clone());
        let Home::Kept(kept) = source else {
            self.images.forget(model.manifest());
            return self.weights(name, ordered.collect(), ends, true).map_err(told);
        };
        let image = lock(kept).take().ok_or_else(|| lost(model))?;
        let contents = Arc::new(contents(&image).map_err(told)?);
        // There may be room for one of the two images only.
        self.images.forget(model.manifest());
        drop(image);
        self.switch.settle().map_err(told)?;
        let remade = ordered.zip(order).map(|(before, entry)| {
            let contents = Arc::clone(&contents);
            let make = move |bytes: &mut [u8]| bytes.copy_from_slice(&std::mem::take(&mut *lock(&contents[entry])));
            Entry { origin: Origin::Made(Arc::new(make)), ..before }
        });
        self.weights(name, remade.collect(), ends, false).map_err(told)
    }

    fn weights(
        &self,
        name: &str,
        entries: Vec<Entry>,
        ends: Vec<usize>,
        is_remade: bool,
    ) -> Result<Arc<Inner>, SwitchError> {
        let manifest = Arc::new(Manifest::new(name, entries, ends)?);
        let model = self.switch.register(&manifest)?;
        let image = acquire(&self.images, &self.switch, &manifest)?;
        // Of a file that cannot be read is told here, and not when the model is called.
        image.wait_for_all().inspect_err(|_| self.images.forget(&manifest))?;
        let source = if is_remade { Home::Files } else { Home::Kept(Mutex::new(Some(image))) };
        let (images, switch) = (Arc::clone(&self.images), self.switch.clone());
        Ok(Arc::new(Inner { memory: self.memory.clone(), images, switch, model, source }))
    }
}

#[pymethods]
impl SwitchedWeights {
    /// All bytes, as PyTorch takes them: `torch.from_dlpack` makes a tensor of it. They can be read when the model is there.
    fn bytes(&self, py: Python<'_>) -> PyResult<Py<PyCapsule>> {
        let inner = self.arranged().inner;
        let Inner { model, memory, .. } = &*inner;
        // One without tensors has no address.
        let address = if model.manifest().bytes() > 0 { model.place(0).start } else { 0 };
        dlpack::bytes(py, address, model.manifest().bytes(), memory.memory.device().index(), Arc::clone(&inner))
    }

    /// Where a tensor begins in them.
    fn begin(&self, entry: usize) -> u64 {
        let Arranged { inner, places } = self.arranged();
        inner.model.manifest().place(places[entry]).start
    }

    /// The group that a tensor comes in.
    fn group_of(&self, entry: usize) -> usize {
        let Arranged { inner, places } = self.arranged();
        inner.model.manifest().group_of(places[entry])
    }

    /// Bytes of each group.
    #[getter]
    fn group_bytes(&self) -> Vec<u64> {
        let inner = self.arranged().inner;
        inner.model.manifest().groups().iter().map(|group| group.end - group.start).collect()
    }

    /// Bytes that it takes on the device at most, in whole chunks, in whatever order its tensors are.
    #[getter]
    fn room_bytes(&self) -> u64 {
        let inner = self.arranged().inner;
        let Inner { model, switch, .. } = &*inner;
        let bytes: u64 = model.manifest().entries().iter().map(|entry| entry.bytes.next_multiple_of(ALIGNMENT)).sum();
        bytes.next_multiple_of(switch.chunk_bytes())
    }

    /// Bytes that are on the device.
    #[getter]
    fn resident_bytes(&self) -> u64 {
        self.arranged().inner.model.resident_bytes()
    }

    /// Bytes that must be free there to bring it.
    #[getter]
    fn missing_bytes(&self) -> u64 {
        self.arranged().inner.model.missing_bytes()
    }

    /// Brings what is missing. Copies are under way then.
    fn load(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let inner = self.arranged().inner;
            let Inner { images, switch, model, source, .. } = &*inner;
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

    /// What is on a stream now uses the model.
    fn used_by(&self, stream: usize) -> PyResult<()> {
        let inner = self.arranged().inner;
        inner.model.used_by(&inner.stream(stream)?).map_err(told)
    }

    /// It is used, after so many uses of all models.
    fn note_use(&self, uses: u64) {
        lock(&self.demand).used(uses);
    }

    /// The worth of its bytes on the device, after so many uses of all models: that with the least leaves first.
    fn worth(&self, uses: u64, priority: i32) -> i64 {
        let inner = self.arranged().inner;
        let Inner { model, images, source, .. } = &*inner;
        let has_image = matches!(source, Home::Kept(_)) || images.has(model.manifest());
        lock(&self.demand).worth(uses, model.manifest().bytes(), has_image, priority)
    }

    /// Lets others have so many bytes of its memory, or a little more. How many they are.
    fn evict(&self, bytes: u64) -> u64 {
        let inner = self.arranged().inner;
        let Inner { model, switch, .. } = &*inner;
        model.evict(bytes.div_ceil(switch.chunk_bytes()) as usize)
    }
}

impl SwitchedWeights {
    fn arranged(&self) -> Arranged {
        lock(&self.arranged).clone()
    }
}

impl Inner {
    fn stream(&self, handle: usize) -> PyResult<tenure_device::Stream> {
        let memory = &self.memory;
        // SAFETY: one of PyTorch's, which it never ends, or the null stream.
        unsafe { memory.stream(handle) }
            .ok_or_else(|| complaint(format!("Tenure does not manage the memory of {}", memory.memory.device())))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.images.forget(self.model.manifest());
    }
}

/// Into which groups layers are divided, of which each has its bytes and how long it computes; the layer behind each
/// group's last.
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

/// The order of a model's tensors that was kept for a device and other settings, and the place behind each group's last; nothing
/// before one was kept. Each of `tensors` says what its order may depend on.
#[pyfunction]
pub(crate) fn known_order(settings: Vec<String>, tensors: Vec<String>) -> Option<(Vec<usize>, Vec<usize>)> {
    // Python computes with no table on the host.
    let order = Orders::of_user()?.find(&order_key(&settings, &tensors)).filter(|order| order.tables.is_empty())?;
    Some((order.tensors, order.ends))
}

/// Keeps a model's order for other processes.
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

/// The place that each tensor has in an order.
fn places(order: &[usize]) -> Arc<[usize]> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &tensor)| places[tensor] = place);
    places.into()
}

/// Tensors for a manifest, and whether their image can be made again.
fn entries(tensors: Vec<(String, u64, Place)>) -> PyResult<(Vec<Entry>, bool)> {
    let mut sources: HashMap<PathBuf, Arc<Source>> = HashMap::new();
    let is_remade = tensors.iter().any(|(.., place)| matches!(place, Place::File(_)));
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, bytes, place) in tensors {
        let origin = match place {
            Place::File((path, begin)) => {
                let source = match sources.entry(path) {
                    Slot::Occupied(opened) => Arc::clone(opened.get()),
                    Slot::Vacant(slot) => {
                        let source = Source::open(slot.key()).map_err(|error| complaint(error.to_string()))?;
                        Arc::clone(slot.insert(Arc::new(source)))
                    }
                };
                Origin::File(source, begin)
            }
            Place::Memory(address) => {
                let read = move || match bytes {
                    // One without elements has no address.
                    0 => &[][..],
                    // SAFETY: the package keeps tensors of so many bytes at the address until the image is made.
                    _ => unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), bytes as usize) },
                };
                if is_remade {
                    let contents: Vec<u8> = read().to_vec();
                    Origin::Made(Arc::new(move |target: &mut [u8]| target.copy_from_slice(&contents)))
                } else {
                    // It is made once, and kept.
                    Origin::Made(Arc::new(move |target: &mut [u8]| target.copy_from_slice(read())))
                }
            }
        };
        entries.push(Entry { name, bytes, origin });
    }
    Ok((entries, is_remade))
}

/// A model's image. What has no room because others are still copied from has it when they were.
fn acquire(images: &Images, switch: &Switch, manifest: &Arc<Manifest>) -> Result<Arc<Image>, SwitchError> {
    match images.acquire(manifest) {
        Err(SwitchError::NoHostRoom { .. }) => {
            switch.settle()?;
            images.acquire(manifest)
        }
        acquired => acquired,
    }
}

/// What an image has of each of its tensors.
fn contents(image: &Image) -> Result<Vec<Mutex<Vec<u8>>>, SwitchError> {
    let manifest = image.manifest();
    (0..manifest.entries().len())
        .map(|entry| {
            let (group, place) = (manifest.group_of(entry), manifest.place(entry));
            let begin = image.wait(group)?.wrapping_add((place.start - manifest.groups()[group].start) as usize);
            // SAFETY: the group is there, and nobody writes it.
            let bytes = unsafe { slice::from_raw_parts(begin, (place.end - place.start) as usize) };
            Ok(Mutex::new(bytes.to_vec()))
        })
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Its image went, and there was no memory for the next.
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
