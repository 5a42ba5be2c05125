//! The reports of executors to the scheduler.

use std::mem;
use std::time::Duration;

use super::device::{RunningBatch, ScheduledDevice, Work};
use super::request::AcceptedRequest;
use super::{BatchId, Decision, DeviceId, ModelId, RequestId, Scheduler, Unanswered};

impl Scheduler {
    /// Reports the end of a copy, which took `took`: all weights of the model are on the device.
    pub fn loaded(&mut self, device: DeviceId, model: ModelId, took: Duration, now: Duration) {
        let Some(copy) = self.devices[device.0].end_copy(model) else { return };
        if let Some(served) = self.models.get_mut(&model) {
            served.cost.record_copy(copy.fraction, took);
            let reload = served.cost.reload_time();
            self.devices.iter_mut().for_each(|device| device.residency.set_reload(model, reload));
        }
        if let Work::Batches(running) = &mut self.devices[device.0].work
            && let Some(batch) = running.iter_mut().find(|batch| batch.model == model && !batch.has_started)
        {
            let compute = self.models.get(&model).map_or(Duration::ZERO, |served| served.cost.compute_time(batch.size));
            batch.expected_end = batch.expected_end.min(now.saturating_add(compute));
        }
        self.unload_if_removed(device, model);
    }

    /// Reports that a copy failed. No weights of the model are on the device any more; a batch that runs it must be
    /// reported as well.
    pub fn load_failed(&mut self, device: DeviceId, model: ModelId) {
        if self.devices[device.0].end_copy(model).is_some() {
            self.devices[device.0].residency.clear(model);
            self.unload_if_removed(device, model);
        }
    }

    /// Reports that a batch started to compute, perhaps while its weights are still copied. If its executor is lost
    /// from now on, its requests are not queued again.
    pub fn started(&mut self, batch: BatchId, now: Duration) {
        let Some(device) = self.device_of(batch) else { return };
        let on = &mut self.devices[device.0];
        let Work::Batches(running) = &mut on.work else { return };
        let Some(running) = running.iter_mut().find(|running| running.id == batch) else { return };
        let copied = on.copies.iter().find(|copy| copy.model == running.model).map(|copy| copy.expected_end);
        let compute =
            self.models.get(&running.model).map_or(Duration::ZERO, |served| served.cost.compute_time(running.size));
        running.has_started = true;
        running.expected_end = now.saturating_add(compute).max(copied.unwrap_or_default());
    }

    /// Reports that a batch is over: it computed for `computed`, or failed. Returns the requests that the user must
    /// answer now, in the order of the batch, without those that were cancelled.
    pub fn finished(&mut self, batch: BatchId, computed: Option<Duration>, now: Duration) -> Vec<RequestId> {
        let Some((device, running)) = self.end_batch(batch, computed, now) else { return Vec::new() };
        // A computed batch had its weights; a failed one may have failed because of them.
        let on = &mut self.devices[device.0];
        if on.end_copy(running.model).is_some() && computed.is_none() {
            on.residency.clear(running.model);
        }
        // A batch that waited for weights does not predict the compute time of the next.
        let served = self.models.get_mut(&running.model).filter(|_| !running.is_switch);
        if let (Some(computed), Some(served)) = (computed, served) {
            served.cost.record_compute(running.size, computed);
        }
        self.unload_if_removed(device, running.model);
        self.take_requests(running)
    }

    /// Reports that the process which computed a batch ended, while another process holds the weights: those of the
    /// batch stay on the device or on their way. Returns the requests that the user must answer now, as
    /// [`finished`](Self::finished) does.
    pub fn interrupted(&mut self, batch: BatchId, now: Duration) -> Vec<RequestId> {
        let Some((device, running)) = self.end_batch(batch, None, now) else { return Vec::new() };
        self.unload_if_removed(device, running.model);
        self.take_requests(running)
    }

    /// Ends a batch's work, which computed for `computed`, or failed.
    fn end_batch(
        &mut self,
        batch: BatchId,
        computed: Option<Duration>,
        now: Duration,
    ) -> Option<(DeviceId, RunningBatch)> {
        let device = self.device_of(batch)?;
        let on = &mut self.devices[device.0];
        let running = on.end_batch(batch)?;
        if !running.is_switch {
            on.switch_debt = on.switch_debt.saturating_sub(computed.unwrap_or(now.saturating_sub(running.issued)));
        }
        on.residency.let_go(running.model);
        Some((device, running))
    }

    /// Takes the requests of a batch that are still to be answered, and forgets them.
    fn take_requests(&mut self, running: RunningBatch) -> Vec<RequestId> {
        running.requests.into_iter().filter(|id| self.take_request(*id).is_some()).collect()
    }

    /// Reports that a device's executor is gone, and with it everything on the device. Requests that had not started
    /// are queued again at the front, once; those that had started are answered.
    pub fn executor_lost(&mut self, device: DeviceId) {
        let on = &mut self.devices[device.0];
        on.residency.clear_all();
        on.switch_debt = Duration::ZERO;
        let copies = mem::take(&mut on.copies);
        let work = mem::replace(&mut on.work, Work::Lost);
        for copy in copies {
            self.unload_if_removed(device, copy.model);
        }
        let Work::Batches(lost) = work else { return };
        for running in lost {
            self.unload_if_removed(device, running.model);
            self.requeue(running);
        }
    }

    /// Queues the requests of a lost batch again, or answers those that had started.
    fn requeue(&mut self, running: RunningBatch) {
        for request in running.requests {
            let Some(entry) = self.requests.get(&request) else { continue };
            let outcome = if running.has_started || entry.was_requeued {
                Unanswered::Lost
            } else if !self.models.contains_key(&entry.model) {
                Unanswered::Removed
            } else {
                // Its turn and id put it before all requests that came later.
                if let Some(entry) = self.requests.remove(&request) {
                    self.enqueue(request, AcceptedRequest { batch: None, was_requeued: true, ..entry });
                }
                continue;
            };
            self.take_request(request);
            self.decisions.push_back(Decision::Answer { request, outcome });
        }
    }

    /// Reports that a lost device has an executor again, with nothing on it.
    pub fn executor_ready(&mut self, device: DeviceId) {
        let work = &mut self.devices[device.0].work;
        if matches!(work, Work::Lost) {
            *work = Work::IDLE;
        }
    }

    /// Decides to unload a model from a device if it was removed, and no batch or copy there uses it any more.
    pub(super) fn unload_if_removed(&mut self, device: DeviceId, model: ModelId) {
        let on = &mut self.devices[device.0];
        if self.models.contains_key(&model) || on.runs(model) || on.is_copying(model) {
            return;
        }
        if on.residency.remove(model).is_some() {
            self.decisions.push_back(Decision::Unload { device, model });
        }
    }

    /// Returns the device on which a batch runs, or `None` if it is over.
    pub(super) fn device_of(&self, batch: BatchId) -> Option<DeviceId> {
        self.devices
            .iter()
            .position(|device: &ScheduledDevice| device.running().iter().any(|running| running.id == batch))
            .map(DeviceId)
    }
}
