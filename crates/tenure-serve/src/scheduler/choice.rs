//! The choice of the next batch of a device, and of the device of a model.

use std::cmp::Reverse;
use std::time::Duration;

use super::cost::duration;
use super::device::{ScheduledDevice, Work};
use super::model::ServedModel;
use super::{Decision, DeviceId, ModelId, RequestId, Scheduler, Unanswered};

impl Scheduler {
    /// Returns the model whose weights are best copied to a device while it computes, unless a copy is already running:
    /// of the models with waiting requests and missing weights, the one that is due first.
    pub fn upcoming(&self, device: DeviceId, now: Duration) -> Option<ModelId> {
        let to = &self.devices[device.0];
        if !to.copies.is_empty() || matches!(to.work, Work::Lost) {
            return None;
        }
        let missing = self
            .waiting
            .iter()
            .copied()
            .filter(|model| to.residency.missing_bytes(*model).is_some_and(|bytes| bytes > 0))
            .filter(|model| self.best_device(*model, now) == Some(device));
        missing.min_by_key(|model| self.models[model].queue.first_due())
    }

    /// Returns whether a waiting request would run on a device that does background work. Then the user must stop that
    /// work and call [`end_background`](Self::end_background).
    pub fn must_yield(&self, device: DeviceId, now: Duration) -> bool {
        matches!(self.devices[device.0].work, Work::Background)
            && self.waiting.iter().any(|model| self.best_device(*model, now) == Some(device))
    }

    /// Returns the time at which to poll again if there is no report before; `None` if only a report can lead to a
    /// decision.
    pub fn next_wake(&self, now: Duration) -> Option<Duration> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        if !self.devices.iter().any(ScheduledDevice::has_room) || self.waiting.is_empty() {
            return deadline;
        }
        let ready = self.waiting.iter().filter_map(|model| self.ready_at(&self.models[model], now));
        // A batch that is ready but not running waits for a device that will be free sooner than another could begin.
        let running = self.devices.iter().flat_map(ScheduledDevice::running);
        let busy = running.map(|batch| now.saturating_add(batch.left(now)));
        deadline.into_iter().chain(ready.chain(busy).filter(|at| *at > now)).min()
    }

    /// Returns a batch for a device with room for one, or answers for requests that it would answer too late.
    pub(super) fn choose_batch(&mut self, device: DeviceId, now: Duration) -> Option<Decision> {
        let model = self.choose_model(device, now)?;
        let queue = &self.models.get(&model)?.queue;
        let max_size = self.size_within_a_batch(model);
        let batch = queue.batch(queue.head(now, &self.requests)?, max_size, &self.requests);
        let too_late: Vec<_> = batch.iter().copied().filter(|id| self.is_too_late(*id, now)).collect();
        if too_late.is_empty() {
            return self.issue_batch(device, model, batch, now);
        }
        too_late.into_iter().for_each(|id| self.answer_unfinished(id, Unanswered::TooLate));
        self.decisions.pop_front()
    }

    /// Returns the model whose batch a device should run now, by the order that the module's documentation
    /// describes; `None` if no batch is ready for it.
    fn choose_model(&self, device: DeviceId, now: Duration) -> Option<ModelId> {
        let on = &self.devices[device.0];
        let mut ready: Vec<ModelId> = self
            .waiting
            .iter()
            .copied()
            .filter(|model| on.can_run(*model))
            .filter(|model| self.ready_at(&self.models[model], now).is_some_and(|at| at <= now))
            .collect();
        ready.retain(|model| self.best_device(*model, now) == Some(device));
        // Models with requests that are due now, by the earliest of them.
        let due_since = |model: &ModelId| self.models[model].queue.first_due().filter(|due| *due <= now);
        let without_room: Vec<_> = ready.iter().copied().filter(|model| !on.residency.can_admit(*model)).collect();
        // Others do not take the room for which a model that is due waits, unless a batch that does not end holds it.
        let overdue: Vec<_> =
            on.running().iter().filter(|batch| batch.is_overdue(now)).map(|batch| batch.model).collect();
        let waits_for_room =
            |model: &ModelId| due_since(model).is_some() && on.residency.can_admit_beside(*model, &overdue);
        if without_room.iter().any(waits_for_room) {
            return None;
        }
        ready.retain(|model| !without_room.contains(model));
        let is_due_and_resident =
            |model: &ModelId| on.residency.missing_bytes(*model) == Some(0) && due_since(model).is_some();
        if !on.switch_debt.is_zero() && ready.iter().any(is_due_and_resident) {
            ready.retain(is_due_and_resident);
        }
        let due = ready.iter().filter_map(|model| Some((due_since(model)?, *model)));
        if let Some((_, first)) = due.min() {
            return Some(first);
        }
        ready.into_iter().max_by(|a, b| {
            self.answered_per_second(*a, on, now).total_cmp(&self.answered_per_second(*b, on, now)).then(b.cmp(a))
        })
    }

    /// Returns when a model's next batch should run if no more requests come: now if it is full, otherwise when its
    /// oldest request has waited for `max_delay` or a request is due, but not while the model rests.
    fn ready_at(&self, served: &ServedModel, now: Duration) -> Option<Duration> {
        if served.queue.fills_a_batch() {
            return Some(now.max(served.rests_until));
        }
        let oldest = self.requests.get(&served.queue.oldest()?)?;
        let ready = oldest.arrived.saturating_add(served.spec.max_delay).min(served.queue.first_due()?);
        Some(ready.max(served.rests_until))
    }

    /// Returns the requests per second that a model's next batch would answer, weighted by priority. The time is the
    /// longer of computing and copying missing weights, which overlap.
    fn answered_per_second(&self, model: ModelId, on: &ScheduledDevice, now: Duration) -> f64 {
        let served = &self.models[&model];
        let Some(head) = served.queue.head(now, &self.requests).and_then(|head| self.requests.get(&head)) else {
            return 0.0;
        };
        let (requests, size) = served.queue.expected_batch(&head.shape);
        let size = size.min(self.size_within_a_batch(model));
        let took = served.cost.compute_time(size).max(self.copy_time(model, on, now)).as_secs_f64();
        requests * f64::from(head.priority).exp2() / took.max(1e-9)
    }

    /// Returns the device that could finish copying and earlier batches of a model soonest; among equals, one that can
    /// run it at once, then the one with the fewest bytes to evict, then the one with the most free memory. The result
    /// is the same for all devices, so exactly one takes the model.
    pub(super) fn best_device(&self, model: ModelId, now: Duration) -> Option<DeviceId> {
        let served = &self.models[&model];
        self.devices
            .iter()
            .enumerate()
            .filter_map(|(index, device)| {
                let missing = device.residency.missing_bytes(model).filter(|_| device.residency.fits(model))?;
                let free = device.free_in(model, now)?;
                let copy = self.copy_time(model, device, now);
                let mut time = if device.is_copying(model) { free.max(copy) } else { free.saturating_add(copy) };
                let can_run = device.can_run(model);
                if !can_run {
                    time = time.saturating_add(served.time_of_batches(served.queue.batches().saturating_sub(1)));
                }
                let room = device.residency.free_bytes();
                Some((time, !can_run, missing.saturating_sub(room), Reverse(room), index))
            })
            .min()
            .map(|(.., index)| DeviceId(index))
    }

    /// Returns the time until all of a model's weights are on a device.
    pub(super) fn copy_time(&self, model: ModelId, on: &ScheduledDevice, now: Duration) -> Duration {
        if let Some(copy) = on.copies.iter().find(|copy| copy.model == model) {
            return copy.expected_end.saturating_sub(now);
        }
        let reload = self.models.get(&model).map_or(Duration::ZERO, |served| served.cost.reload_time());
        duration(reload.as_secs_f64() * self.missing_fraction(model, on))
    }

    /// Returns the part of a model's weights that is not on a device, from 0 to 1.
    pub(super) fn missing_fraction(&self, model: ModelId, on: &ScheduledDevice) -> f64 {
        let missing = on.residency.missing_bytes(model).unwrap_or(0);
        let bytes = self.models.get(&model).map_or(0, |served| self.whole_chunks(served.spec.bytes));
        missing as f64 / bytes.max(1) as f64
    }

    /// Returns whether a request would miss its deadline even if it ran now, as fast as ever.
    fn is_too_late(&self, id: RequestId, now: Duration) -> bool {
        let Some(entry) = self.requests.get(&id) else { return false };
        let least =
            self.models.get(&entry.model).map_or(Duration::ZERO, |served| served.cost.least_compute_time(entry.size));
        entry.deadline.is_some_and(|deadline| now.saturating_add(least) > deadline)
    }
}
