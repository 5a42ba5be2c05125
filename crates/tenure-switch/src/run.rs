//! Runs: work on a device that computes with a model's storages and waits for their groups.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tenure_core::{Arrival, DataPtr, Name, Site, Storage, StreamId};
use tenure_device::{Driver, Event, EventKind, Stream};

use crate::{Model, Stopped, SwitchError};

/// Work on a stream that computes with the [storages](Model::storage) of a model. The stream waits for each group once,
/// where the work first uses it. A model has one run at a time.
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
    /// The compute time of the device from this use to the first use by another module ([`Site`]), or to the end of the
    /// run, in µs. It is 0 if the previous use was by the same module.
    pub compute_us: f64,
    /// The operation that uses the group, if no other operation does.
    pub operation: Option<Name>,
}

/// The runs of a model, and the groups that they have waited for.
#[derive(Default)]
pub(crate) struct Runs {
    /// Locked while there is a run: a model has one at a time.
    only: Mutex<()>,
    current: Mutex<CurrentRun>,
    is_stopped: AtomicBool,
}

/// The state of the current run.
#[derive(Default)]
struct CurrentRun {
    /// The stream of the run; `None` while there is no run.
    stream: Option<StreamId>,
    /// Whether the stream waits for each group.
    has_waited: Vec<bool>,
    /// The first uses of groups, in order, if the run is measured.
    uses: Option<Vec<GroupUse>>,
    /// The reason why the stream does not wait for a group.
    failure: Option<SwitchError>,
}

/// The first use of a group.
struct GroupUse {
    group: usize,
    module: Name,
    /// The time of the use, if the previous use was by another module.
    at: Option<Event>,
    /// The operation of all uses, if they have the same one.
    operation: Option<Name>,
}

/// A group of a model on a device: a use of its storage makes the current stream wait for it.
struct GroupArrival {
    model: Arc<Model>,
    group: usize,
}

impl Arrival for GroupArrival {
    fn wait(&self) {
        self.model.wait_in_run(self.group);
    }
}

impl Model {
    /// Returns the bytes of a group as a storage of the device, at the address that the model keeps for it, whether or
    /// not the bytes are there. A use of the storage makes the thread's current stream wait for the group: once in a
    /// [run](Self::run), and each time outside of one. The storage is for reading only, while the model is on the
    /// device.
    pub fn storage(self: &Arc<Self>, group: usize) -> Storage {
        let range = &self.manifest().groups()[group];
        let address = self.address() + range.start;
        let bytes = (range.end - range.start) as usize;
        // To the host, a device's address is only a number.
        let first = std::ptr::without_provenance_mut(address as usize);
        let model = Arc::clone(self);
        let kept = Arc::clone(self);
        let data = DataPtr::foreign(first, self.device(), move || drop(kept));
        // SAFETY: the addresses belong to the model as long as `kept` lives. The bytes are there once the device has
        // passed the wait that `Arrival::wait` puts on the stream; the caller must load the model before, as for any
        // copy.
        unsafe { Storage::arriving(data, bytes, GroupArrival { model, group }) }
    }

    /// Begins a run on a stream. Call [`used_by`](Self::used_by) when all of its work is on the stream. A capture does
    /// not use the model; its launches do.
    pub fn run(&self, stream: &Stream) -> Run<'_> {
        let only = self.runs().only.lock();
        let has_waited = vec![false; self.manifest().groups().len()];
        *self.runs().current.lock() = CurrentRun { stream: Some(stream.id()), has_waited, ..CurrentRun::default() };
        Run { model: self, stream: stream.clone(), _only: only }
    }

    /// Begins a run that waits for no group: the stream must already wait for all copies of the model.
    pub fn run_behind_copies(&self, stream: &Stream) -> Run<'_> {
        let run = self.run(stream);
        self.runs().current.lock().has_waited.fill(true);
        run
    }

    /// Begins a run that is measured: [`Run::uses`] then returns the order in which groups were used, and the device's
    /// compute time with each.
    ///
    /// # Errors
    /// The stream cannot wait for the copies.
    pub fn measured_run(&self, stream: &Stream) -> Result<Run<'_>, SwitchError> {
        let groups = self.manifest().groups().len();
        // The stream waits for all groups before the run, so that no measured time includes a wait.
        (0..groups).try_for_each(|group| self.wait(group, stream))?;
        let run = self.run_behind_copies(stream);
        self.runs().current.lock().uses = Some(Vec::new());
        Ok(run)
    }

    /// Stops uses: a thread that uses a storage of the model from now on unwinds with [`Stopped`], without a message.
    /// So it stops putting work on the device at the next weight.
    pub fn stop(&self) {
        self.runs().is_stopped.store(true, Ordering::Relaxed);
    }

    /// Allows storages to be used again.
    pub fn go_on(&self) {
        self.runs().is_stopped.store(false, Ordering::Relaxed);
    }

    /// Makes the current stream wait for a group whose storage is used now: once in a run, each time outside of one.
    /// Unwinds if the model is stopped.
    fn wait_in_run(&self, group: usize) {
        if self.runs().is_stopped.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Stopped));
        }
        let stream = self.memory().streams().current();
        let mut current = self.runs().current.lock();
        let is_of_run = current.stream == Some(stream.id());
        if !is_of_run || !current.has_waited[group] {
            if let Err(error) = self.wait(group, &stream) {
                current.failure.get_or_insert(error);
            } else if is_of_run {
                current.has_waited[group] = true;
            }
        }
        if is_of_run
            && current.uses.is_some()
            && let Err(error) = current.record_use(group, &stream, self.memory().driver())
        {
            current.failure.get_or_insert(error);
        }
    }
}

impl CurrentRun {
    /// Records a use of a group in a measured run.
    fn record_use(&mut self, group: usize, stream: &Stream, driver: &Arc<dyn Driver>) -> Result<(), SwitchError> {
        let Some(uses) = &mut self.uses else { return Ok(()) };
        let site = Site::current();
        let module = site.module();
        let operation = site.operation();
        if let Some(used) = uses.iter_mut().find(|used| used.group == group) {
            used.operation = used.operation.filter(|other| *other == operation);
            return Ok(());
        }
        let is_same_module = uses.last().is_some_and(|last| last.module == module && !module.as_str().is_empty());
        let mut at = (!is_same_module).then(|| Event::new(Arc::clone(driver), EventKind::Timing));
        at.as_mut().map_or(Ok(()), |at| at.record(stream))?;
        uses.push(GroupUse { group, module, at, operation: Some(operation) });
        Ok(())
    }
}

impl Run<'_> {
    /// Ends the run.
    ///
    /// # Errors
    /// The stream could not wait for a group: the results are not valid.
    pub fn end(self) -> Result<(), SwitchError> {
        self.model.runs().current.lock().failure.take().map_or(Ok(()), Err)
    }

    /// Ends a measured run, waits for the device, and returns the groups that it used, in order.
    ///
    /// # Errors
    /// The errors of [`end`](Self::end); a driver call failed.
    pub fn uses(self) -> Result<Vec<DeviceUse>, SwitchError> {
        let mut ended = Event::new(Arc::clone(self.model.memory().driver()), EventKind::Timing);
        ended.record(&self.stream)?;
        ended.synchronize()?;
        let uses = self.model.runs().current.lock().uses.take().unwrap_or_default();
        self.end()?;
        let mut measured = Vec::with_capacity(uses.len());
        for (index, GroupUse { group, at, operation, .. }) in uses.iter().enumerate() {
            let next = uses[index + 1..].iter().find_map(|next| next.at.as_ref()).unwrap_or(&ended);
            let compute_us = at.as_ref().map_or(Ok(0.0), |at| at.elapsed_us(next))?;
            measured.push(DeviceUse { group: *group, compute_us, operation: *operation });
        }
        Ok(measured)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        *self.model.runs().current.lock() = CurrentRun::default();
    }
}
