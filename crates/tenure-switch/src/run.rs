//! Work on a device that computes with a model's storages, and what it waits for.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::{Arrival, DataPtr, Storage, StreamId};
use tenure_device::{Event, EventKind, Stream};

use crate::{Model, SwitchError};

/// Work that is put on a stream and computes with the [storages](Model::storage) of a model: the stream waits for each group
/// once, where the work uses it first. A model has one run at a time.
pub struct Run<'a> {
    model: &'a Model,
    stream: Stream,
    _only: MutexGuard<'a, ()>,
}

/// The first use of a group in a run that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceUse {
    /// The group.
    pub group: usize,
    /// What the device computes from this use to the next one, or to the end of the run, in µs. The wait for the group is in
    /// it, if there was one.
    pub compute_us: f64,
}

/// What the runs of a model have waited for.
#[derive(Default)]
pub(crate) struct Runs {
    only: Mutex<()>,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// That of the run; none while there is no run.
    stream: Option<StreamId>,
    has_waited: Vec<bool>,
    /// The first use of each group, if the run is measured.
    uses: Option<Vec<(usize, Event)>>,
    /// Why the stream does not wait for a group.
    failure: Option<SwitchError>,
}

/// A group of a model, as a storage has it.
struct OnDevice {
    model: Arc<Model>,
    group: usize,
}

impl Arrival for OnDevice {
    fn wait(&self) {
        self.model.arrive(self.group);
    }
}

impl Model {
    /// The bytes of a group as a storage of the device, at the address that the model keeps for it, with or without bytes there.
    /// Whoever uses it makes the thread's current stream wait for the group: once in a [run](Self::run), and each time outside of
    /// one. It is to be read only, while the model is on the device.
    pub fn storage(self: &Arc<Self>, group: usize) -> Storage {
        let range = &self.manifest().groups()[group];
        let (address, bytes) = (self.address() + range.start, (range.end - range.start) as usize);
        // A device's address is a number to the host, which never follows it.
        let first = std::ptr::without_provenance_mut(address as usize);
        let (model, kept) = (Arc::clone(self), Arc::clone(self));
        let data = DataPtr::foreign(first, self.device(), move || drop(kept));
        // SAFETY: the addresses are the model's as long as there is `kept`. Bytes are there when the device has passed the wait
        // that `Arrival::wait` puts on the stream; that the model was loaded before is for who computes, as for any copy.
        unsafe { Storage::arriving(data, bytes, OnDevice { model, group }) }
    }

    /// Begins work on a stream. [`used_by`](Self::used_by) is to be said when all of it is there; a capture uses nothing, its
    /// launches do.
    pub fn run(&self, stream: &Stream) -> Run<'_> {
        self.begin_run(stream, false)
    }

    /// The same; [`Run::uses`] says then in which order groups were used, and how long the device computed with each.
    pub fn measured_run(&self, stream: &Stream) -> Run<'_> {
        self.begin_run(stream, true)
    }

    fn begin_run(&self, stream: &Stream, is_measured: bool) -> Run<'_> {
        let only = self.runs().only.lock();
        let groups = self.manifest().groups().len();
        *self.runs().current.lock() = Current {
            stream: Some(stream.id()),
            has_waited: vec![false; groups],
            uses: is_measured.then(Vec::new),
            failure: None,
        };
        Run { model: self, stream: stream.clone(), _only: only }
    }

    /// A storage of a group is used now.
    fn arrive(&self, group: usize) {
        let stream = self.memory().streams().current();
        let mut current = self.runs().current.lock();
        let is_of_run = current.stream == Some(stream.id());
        if is_of_run && current.has_waited[group] {
            return;
        }
        if let Err(error) = self.wait(group, &stream) {
            current.failure.get_or_insert(error);
            return;
        }
        if !is_of_run {
            return;
        }
        current.has_waited[group] = true;
        let Some(uses) = &mut current.uses else { return };
        let mut used = Event::new(Arc::clone(self.memory().driver()), EventKind::Timing);
        match used.record(&stream) {
            Ok(()) => uses.push((group, used)),
            Err(error) => {
                current.failure.get_or_insert(error.into());
            }
        }
    }
}

impl Run<'_> {
    /// Ends it.
    ///
    /// # Errors
    /// The stream could not wait for a group: what was computed is nothing.
    pub fn end(self) -> Result<(), SwitchError> {
        self.model.runs().current.lock().failure.take().map_or(Ok(()), Err)
    }

    /// Ends a measured run, waits for the device, and says which groups it used, in their order.
    ///
    /// # Errors
    /// Those of [`end`](Self::end); a driver call failed.
    pub fn uses(self) -> Result<Vec<DeviceUse>, SwitchError> {
        let mut ended = Event::new(Arc::clone(self.model.memory().driver()), EventKind::Timing);
        ended.record(&self.stream)?;
        ended.synchronize()?;
        let uses = self.model.runs().current.lock().uses.take().unwrap_or_default();
        self.end()?;
        let mut measured = Vec::with_capacity(uses.len());
        for (index, (group, used)) in uses.iter().enumerate() {
            let next = uses.get(index + 1).map_or(&ended, |(_, next)| next);
            measured.push(DeviceUse { group: *group, compute_us: used.elapsed_us(next)? });
        }
        Ok(measured)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        *self.model.runs().current.lock() = Current::default();
    }
}
