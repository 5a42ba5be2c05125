//! What executors report.

use std::mem;
use std::time::Duration;

use super::device::{Device, Running, Work};
use super::request::Entry;
use super::{BatchId, Decision, DeviceId, ModelId, Outcome, RequestId, Scheduler};

impl Scheduler {
    /// All weights of a model that were to be copied to a device are there; the copying took so long.
    pub fn loaded(&mut self, device: DeviceId, model: ModelId, took: Duration, now: Duration) {
        let Some(copy) = self.devices[device.0].end_copy(model) else { return };
        if let Some(served) = self.models.get_mut(&model) {
            served.cost.loaded(copy.part, took);
            let reload = served.cost.reload();
            self.devices.iter_mut().for_each(|device| device.residency.set_reload(model, reload));
        }
        if let Work::Batch(running) = &mut self.devices[device.0].work
            && running.model == model
            && !running.has_started
        {
            let compute = self.models.get(&model).map_or(Duration::ZERO, |served| served.cost.compute(running.rows));
            running.expected_end = running.expected_end.min(now.saturating_add(compute));
        }
        self.unload_if_removed(device, model);
    }

    /// A copy failed. Nothing of the model is on the device any more; a batch that runs it is to be reported as well.
    pub fn load_failed(&mut self, device: DeviceId, model: ModelId) {
        if self.devices[device.0].end_copy(model).is_some() {
            self.devices[device.0].residency.clear(model);
            self.unload_if_removed(device, model);
        }
    }

    /// A batch began to compute, which its weights may still be copied for. It is not run a second time.
    pub fn started(&mut self, batch: BatchId, now: Duration) {
        let Some(device) = self.device_of(batch) else { return };
        let on = &mut self.devices[device.0];
        let Work::Batch(running) = &mut on.work else { return };
        let copied = on.copies.iter().find(|copy| copy.model == running.model).map(|copy| copy.expected_end);
        let compute =
            self.models.get(&running.model).map_or(Duration::ZERO, |served| served.cost.compute(running.rows));
        running.has_started = true;
        running.expected_end = now.saturating_add(compute).max(copied.unwrap_or_default());
    }

    /// A batch is over: it computed for so long, or failed. Returns the requests that its user answers now, in the order of
    /// the batch, without those that were cancelled.
    pub fn finished(&mut self, batch: BatchId, computed: Option<Duration>, now: Duration) -> Vec<RequestId> {
        let Some((device, running)) = self.end_batch(batch, computed, now) else { return Vec::new() };
        // What was computed was there; what failed may be for its weights.
        let on = &mut self.devices[device.0];
        if on.end_copy(running.model).is_some() && computed.is_none() {
            on.residency.clear(running.model);
        }
        // What waited for weights says nothing of the next.
        let served = self.models.get_mut(&running.model).filter(|_| !running.is_switch);
        if let (Some(computed), Some(served)) = (computed, served) {
            served.cost.computed(running.rows, computed);
        }
        self.unload_if_removed(device, running.model);
        self.take_requests(running)
    }

    /// The process that computed a batch ended, and weights are another's: those of the batch are on the device as before, or
    /// still on their way. Returns the requests that its user answers now, as [`finished`](Self::finished) does.
    pub fn interrupted(&mut self, batch: BatchId, now: Duration) -> Vec<RequestId> {
        let Some((device, running)) = self.end_batch(batch, None, now) else { return Vec::new() };
        self.unload_if_removed(device, running.model);
        self.take_requests(running)
    }

    /// Ends a batch's work, which computed for so long, or failed.
    fn end_batch(&mut self, batch: BatchId, computed: Option<Duration>, now: Duration) -> Option<(DeviceId, Running)> {
        let device = self.device_of(batch)?;
        let on = &mut self.devices[device.0];
        let Work::Batch(running) = mem::replace(&mut on.work, Work::Nothing) else { return None };
        if !running.is_switch {
            on.debt = on.debt.saturating_sub(computed.unwrap_or(now.saturating_sub(running.issued)));
        }
        on.residency.let_go(running.model);
        Some((device, running))
    }

    /// The requests of a batch that are still to be answered, which are forgotten.
    fn take_requests(&mut self, running: Running) -> Vec<RequestId> {
        running.requests.into_iter().filter(|id| self.requests.remove(id).is_some()).collect()
    }

    /// A device's executor is gone, with all that was on the device. What had not started is queued again, once, at the
    /// front; what had is answered.
    pub fn executor_lost(&mut self, device: DeviceId) {
        let on = &mut self.devices[device.0];
        on.residency.clear_all();
        on.debt = Duration::ZERO;
        let copied = mem::take(&mut on.copies).into_iter().map(|copy| copy.model);
        let work = mem::replace(&mut on.work, Work::Lost);
        copied.for_each(|model| self.unload_if_removed(device, model));
        let Work::Batch(running) = work else { return };
        self.unload_if_removed(device, running.model);
        for request in running.requests {
            let Some(entry) = self.requests.remove(&request) else { continue };
            let outcome = match self.models.contains_key(&entry.model) {
                _ if running.has_started || entry.is_again => Outcome::Lost,
                false => Outcome::Removed,
                // Its number puts it before all who came later.
                true => {
                    self.enqueue(request, Entry { batch: None, is_again: true, ..entry });
                    continue;
                }
            };
            self.decisions.push_back(Decision::Answer { request, outcome });
        }
    }

    /// A lost device has an executor again, and nothing on it.
    pub fn executor_ready(&mut self, device: DeviceId) {
        let work = &mut self.devices[device.0].work;
        if matches!(work, Work::Lost) {
            *work = Work::Nothing;
        }
    }

    /// Forgets what a device has of a model that was removed, once nothing there uses it.
    pub(super) fn unload_if_removed(&mut self, device: DeviceId, model: ModelId) {
        let on = &mut self.devices[device.0];
        let runs = matches!(&on.work, Work::Batch(running) if running.model == model);
        if self.models.contains_key(&model) || runs || on.is_copying(model) {
            return;
        }
        if on.residency.remove(model).is_some() {
            self.decisions.push_back(Decision::Unload { device, model });
        }
    }

    pub(super) fn device_of(&self, batch: BatchId) -> Option<DeviceId> {
        let runs = |device: &Device| matches!(&device.work, Work::Batch(running) if running.id == batch);
        self.devices.iter().position(runs).map(DeviceId)
    }
}
