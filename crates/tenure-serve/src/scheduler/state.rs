//! The scheduler and its settings.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::cost::{Cost, duration};
use super::device::{RunningBatch, ScheduledDevice, WeightCopy, Work};
use super::model::ServedModel;
use super::queue::{Clients, Queue};
use super::request::AcceptedRequest;
use super::{
    Batch, BatchId, Decision, DeviceId, Eviction, Load, ModelId, ModelSpec, NoRoom, Refusal, RegisterError, RequestId,
    RequestSpec, Residency, Unanswered, WeightsSpec,
};

/// The settings of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// The time that a request of priority 0 without a deadline waits until it is due. Default: 200 ms.
    pub patience: Duration,
    /// The age at which a request counts half in a model's rate of requests, which decides how long its weights stay.
    /// Default: 60 s.
    pub half_life: Duration,
    /// The size in bytes of the chunks in which weights are loaded and evicted. Default: 32 MiB.
    pub chunk_bytes: u64,
    /// Whether models leave a device only as a whole, since its memory cannot be returned in parts. Otherwise only as
    /// many chunks leave as needed.
    pub evicts_whole: bool,
    /// The assumed speed of copying weights until it is measured. Default: 25 GB/s, a PCIe 4.0 link.
    pub copy_bytes_per_second: f64,
    /// The assumed compute time of a batch until it is measured. Default: 10 ms.
    pub compute: Duration,
    /// The longest time that a batch of several requests is expected to compute, so that other requests do not wait
    /// longer for it. Default: 200 ms.
    pub longest_batch: Duration,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            patience: Duration::from_millis(200),
            half_life: Duration::from_secs(60),
            chunk_bytes: 32 << 20,
            evicts_whole: false,
            copy_bytes_per_second: 25e9,
            compute: Duration::from_millis(10),
            longest_batch: Duration::from_millis(200),
        }
    }
}

/// A scheduler, which decides which requests run next and on which device. The module's documentation describes its
/// rules.
///
/// A device runs one batch at a time, or [several](Self::add_parallel_device). After each report, and at
/// [`next_wake`](Self::next_wake), the user [polls](Self::poll) the scheduler until it returns no more decisions.
/// Reports about a batch, model or copy that is already gone are ignored, since a report may be on its way while a
/// decision is made.
///
/// # Panics
/// If a device belongs to another scheduler.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) config: SchedulerConfig,
    pub(super) devices: Vec<ScheduledDevice>,
    pub(super) models: BTreeMap<ModelId, ServedModel>,
    /// The requests that wait or run.
    pub(super) requests: HashMap<RequestId, AcceptedRequest>,
    /// The models with waiting requests.
    pub(super) waiting: BTreeSet<ModelId>,
    /// The deadlines of all requests.
    pub(super) deadlines: BTreeSet<(Duration, RequestId)>,
    /// The clients with waiting requests.
    pub(super) clients: Clients,
    pub(super) decisions: VecDeque<Decision>,
    /// The last number given to a model, request or batch.
    last_id: u64,
}

impl Scheduler {
    /// Creates a scheduler without devices or models.
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            config: SchedulerConfig { chunk_bytes: config.chunk_bytes.max(1), ..config },
            devices: Vec::new(),
            models: BTreeMap::new(),
            requests: HashMap::new(),
            waiting: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            clients: Clients::default(),
            decisions: VecDeque::new(),
            last_id: 0,
        }
    }

    /// Adds a device with this many bytes for weights, whose executor is ready and runs one batch at a time. Models that
    /// were registered before may use it.
    pub fn add_device(&mut self, weight_bytes: u64) -> DeviceId {
        self.add_parallel_device(weight_bytes, 1)
    }

    /// Adds a device as [`add_device`](Self::add_device) does, whose executor runs up to `max_batches` batches at once,
    /// each of another model.
    pub fn add_parallel_device(&mut self, weight_bytes: u64, max_batches: usize) -> DeviceId {
        let SchedulerConfig { chunk_bytes, half_life, evicts_whole, .. } = self.config;
        let mut residency = Residency::new(weight_bytes, chunk_bytes, half_life);
        if evicts_whole {
            residency = residency.evicting_whole();
        }
        for (model, served) in &self.models {
            residency.add(*model, served.weights(false));
        }
        self.devices.push(ScheduledDevice {
            work: Work::IDLE,
            max_batches: max_batches.max(1),
            residency,
            copies: Vec::new(),
            switch_debt: Duration::ZERO,
        });
        DeviceId(self.devices.len() - 1)
    }

    /// Registers a model. A pinned model is pinned to the device with the most room beside its pinned models.
    ///
    /// # Errors
    /// The model fits on no device, would leave another model no room, or could never run.
    pub fn add_model(&mut self, model: ModelSpec) -> Result<ModelId, RegisterError> {
        let max_rows = model.max_rows;
        let max_queued = model.max_queued;
        if max_rows == 0 || max_queued == 0 {
            return Err(RegisterError::NoBatch { max_rows, max_queued });
        }
        let bytes = self.whole_chunks(model.bytes);
        let mut room: Vec<u64> = self.devices.iter().map(|device| device.residency.unpinned_bytes()).collect();
        let most = (0..room.len()).max_by_key(|index| room[*index]);
        let Some(home) = most.filter(|index| room[*index] >= bytes) else {
            let available = most.map_or(0, |index| room[index]);
            let capacity = most.map_or(0, |index| self.devices[index].residency.capacity_bytes());
            return Err(RegisterError::TooLarge { bytes, available, needed: capacity - available + bytes });
        };
        if model.is_pinned {
            room[home] -= bytes;
            let unpinned = self.models.values().filter(|served| !served.spec.is_pinned);
            let largest = unpinned.map(|served| self.whole_chunks(served.spec.bytes)).max().unwrap_or(0);
            if room.iter().all(|room| *room < largest) {
                return Err(RegisterError::PinsTooMuch { bytes, largest });
            }
        }
        let id = ModelId(self.next_id());
        let reload = duration(model.bytes as f64 / self.config.copy_bytes_per_second);
        let cost = Cost::new(reload, self.config.compute);
        let served = ServedModel { queue: Queue::new(max_rows), cost, rests_until: Duration::ZERO, spec: model };
        for (index, device) in self.devices.iter_mut().enumerate() {
            device.residency.add(id, served.weights(served.spec.is_pinned && index == home));
        }
        self.models.insert(id, served);
        Ok(id)
    }

    /// Removes a model and returns whether it existed. Its waiting requests are answered; running ones finish. To
    /// replace a model, add the new one first, so that one always exists, unless both are pinned and do not fit
    /// together. Each device gets one decision to [unload](Decision::Unload) it.
    pub fn remove_model(&mut self, model: ModelId) -> bool {
        let Some(served) = self.models.get(&model) else { return false };
        let ids: Vec<_> = served.queue.ids().collect();
        ids.into_iter().for_each(|id| self.answer_unfinished(id, Unanswered::Removed));
        self.models.remove(&model);
        self.devices.iter_mut().for_each(|device| device.residency.unpin(model));
        (0..self.devices.len()).map(DeviceId).for_each(|device| self.unload_if_removed(device, model));
        true
    }

    /// Runs no batch of a model before this time. Its requests wait.
    pub fn rest(&mut self, model: ModelId, until: Duration) {
        if let Some(served) = self.models.get_mut(&model) {
            served.rests_until = until;
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The request could not be answered, or too many wait.
    pub fn submit(&mut self, request: RequestSpec, now: Duration) -> Result<RequestId, Refusal> {
        let RequestSpec { model, rows, shape, priority, deadline, client, .. } = request;
        let size = request.size.max(rows.into());
        let served = self.models.get(&model).ok_or(Refusal::UnknownModel)?;
        let max_rows = served.spec.max_rows;
        if rows == 0 {
            return Err(Refusal::NoRows);
        }
        if rows > max_rows {
            return Err(Refusal::TooManyRows { rows, max_rows });
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(now));
        let least = served.cost.least_compute_time(size);
        if let Some(left) = left.filter(|left| left.is_zero() || *left < least) {
            return Err(Refusal::TooLate { left, least });
        }
        let queued = served.queue.len();
        let free = served.spec.max_queued.saturating_sub(queued);
        // A client takes at most half of the free places, so that some are left for others.
        let has_place = free > client.map_or(0, |client| self.clients.waiting(client));
        if !has_place && !request.is_continuation {
            return Err(Refusal::Full { queued, retry_after: self.backlog(now) });
        }
        let cost = served.cost.compute_time(size);
        let priority = clamp_priority(served.spec.priority.saturating_add(priority));
        let patience = duration(self.config.patience.as_secs_f64() * f64::from(-priority).exp2());
        let turn = client.map_or(now, |client| self.clients.turn(client, now, cost));
        let due = turn.saturating_add(left.map_or(patience, |left| patience.min(left / 2)));
        let id = RequestId(self.next_id());
        let entry = AcceptedRequest {
            model,
            rows,
            size,
            shape,
            priority,
            arrived: now,
            turn,
            due,
            deadline,
            client,
            batch: None,
            was_requeued: false,
        };
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
        self.enqueue(id, entry);
        Ok(id)
    }

    /// Cancels a request and returns whether it was still to be answered. A running batch goes on, and its result for
    /// this request is discarded.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let is_open = self.requests.contains_key(&request);
        if is_open {
            self.answer_unfinished(request, Unanswered::Cancelled);
        }
        is_open
    }

    /// Returns the largest size of a request that a batch of a model is expected to compute within the
    /// [longest time](SchedulerConfig::longest_batch): larger ones are best sent in parts.
    pub fn size_within_a_batch(&self, model: ModelId) -> u64 {
        self.models.get(&model).map_or(u64::MAX, |served| served.cost.size_within(self.config.longest_batch))
    }

    /// Returns the next decision; `None` until the next report or the [wake time](Self::next_wake).
    pub fn poll(&mut self, now: Duration) -> Option<Decision> {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.answer_unfinished(id, Unanswered::Expired);
        }
        if let Some(decision) = self.decisions.pop_front() {
            return Some(decision);
        }
        for device in (0..self.devices.len()).map(DeviceId) {
            if self.devices[device.0].has_room() {
                let decision = self.choose_batch(device, now);
                if decision.is_some() {
                    return decision;
                }
            }
        }
        None
    }

    /// Starts the copy of a model ahead of its turn, such as the [upcoming](Self::upcoming) one. Returns `None` if its
    /// weights are there or on their way already, if it would displace a model with waiting requests, or if the device
    /// is lost.
    ///
    /// # Errors
    /// Models that are in use or pinned leave no room.
    pub fn prefetch(&mut self, device: DeviceId, model: ModelId, now: Duration) -> Result<Option<Load>, NoRoom> {
        let to = &self.devices[device.0];
        let Some(bytes) = to.residency.missing_bytes(model).filter(|bytes| *bytes > 0) else { return Ok(None) };
        let leaving = to.residency.plan(bytes, now, &self.waiting)?;
        if matches!(to.work, Work::Lost) || leaving.iter().any(|eviction| self.waiting.contains(&eviction.model)) {
            return Ok(None);
        }
        let evict = self.begin_copy(device, model, now)?;
        Ok(Some(Load { device, model, bytes, evict }))
    }

    /// Takes a device for background work, such as training, if it is idle and no request is queued; returns whether it
    /// did. The device gets no batch until [`end_background`](Self::end_background).
    pub fn begin_background(&mut self, device: DeviceId) -> bool {
        let is_free = self.waiting.is_empty() && self.devices[device.0].is_idle();
        if is_free {
            self.devices[device.0].work = Work::Background;
        }
        is_free
    }

    /// Reports that the background work of a device has stopped.
    pub fn end_background(&mut self, device: DeviceId) {
        let work = &mut self.devices[device.0].work;
        if matches!(work, Work::Background) {
            *work = Work::IDLE;
        }
    }

    /// Returns the number of requests that wait for a model.
    pub fn queued(&self, model: ModelId) -> usize {
        self.models.get(&model).map_or(0, |served| served.queue.len())
    }

    /// Returns the weights on a device.
    pub fn residency(&self, device: DeviceId) -> &Residency {
        &self.devices[device.0].residency
    }

    /// Starts a batch on a device with room for it and returns the decision to run it. Returns `None` if copies for later
    /// batches leave no room for its weights; its turn comes when they have ended.
    pub(super) fn issue_batch(
        &mut self,
        device: DeviceId,
        model: ModelId,
        requests: Vec<RequestId>,
        now: Duration,
    ) -> Option<Decision> {
        let load_bytes = self.devices[device.0].residency.missing_bytes(model)?;
        let evict = if load_bytes > 0 { self.begin_copy(device, model, now).ok()? } else { Vec::new() };
        let id = BatchId(self.next_id());
        let mut rows = 0;
        let mut size = 0;
        for request in &requests {
            self.dequeue(*request);
            let entry = self.requests.get_mut(request)?;
            entry.batch = Some(id);
            rows += entry.rows;
            size += entry.size;
        }
        let copy = self.copy_time(model, &self.devices[device.0], now);
        let compute = self.models.get(&model)?.cost.compute_time(size);
        let on = &mut self.devices[device.0];
        on.residency.hold(model);
        on.residency.used(model, requests.len(), now);
        // The device does not stand still for a switch while it runs another batch.
        if on.is_idle() {
            on.switch_debt = on.switch_debt.saturating_add(copy.saturating_sub(compute));
        }
        if let Work::Batches(running) = &mut on.work {
            running.push(RunningBatch {
                id,
                model,
                requests: requests.clone(),
                size,
                issued: now,
                expected_end: now.saturating_add(copy.max(compute)),
                has_started: false,
                is_switch: !copy.is_zero(),
            });
        }
        Some(Decision::Run(Batch { id, device, model, requests, rows, load_bytes, evict }))
    }

    /// Removes a request that waits or runs, and decides to answer it with this outcome. The batch in which it runs goes
    /// on without it.
    pub(super) fn answer_unfinished(&mut self, request: RequestId, outcome: Unanswered) {
        self.dequeue(request);
        let batch = self.take_request(request).and_then(|entry| entry.batch);
        if let Some((device, batch)) = batch.and_then(|batch| Some((self.device_of(batch)?, batch))) {
            self.decisions.push_back(Decision::Discard { device, batch, request });
        }
        self.decisions.push_back(Decision::Answer { request, outcome });
    }

    /// Forgets a request, and returns it if it was still to be answered.
    pub(super) fn take_request(&mut self, request: RequestId) -> Option<AcceptedRequest> {
        let entry = self.requests.remove(&request)?;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, request));
        }
        Some(entry)
    }

    /// Returns a number of bytes, rounded up to whole chunks.
    pub(super) fn whole_chunks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.config.chunk_bytes).saturating_mul(self.config.chunk_bytes)
    }

    /// Makes room for a model's missing weights and records that they are being copied. Returns the evictions.
    fn begin_copy(&mut self, device: DeviceId, model: ModelId, now: Duration) -> Result<Vec<Eviction>, NoRoom> {
        let on = &self.devices[device.0];
        let fraction = self.missing_fraction(model, on);
        let expected_end = now.saturating_add(self.copy_time(model, on, now));
        let on = &mut self.devices[device.0];
        let evict = on.residency.admit(model, now, &self.waiting)?;
        on.residency.hold(model);
        on.copies.push(WeightCopy { model, fraction, expected_end });
        Ok(evict)
    }

    /// Puts an accepted request into its model's queue.
    pub(super) fn enqueue(&mut self, id: RequestId, entry: AcceptedRequest) {
        if let Some(served) = self.models.get_mut(&entry.model) {
            served.queue.insert(id, &entry);
            self.waiting.insert(entry.model);
            if let Some(client) = entry.client {
                self.clients.waits(client);
            }
            self.requests.insert(id, entry);
        }
    }

    /// Removes a request from its model's queue, if it waits there. It stays accepted.
    fn dequeue(&mut self, id: RequestId) {
        let Some(entry) = self.requests.get(&id).filter(|entry| entry.batch.is_none()) else { return };
        let Some(served) = self.models.get_mut(&entry.model) else { return };
        served.queue.remove(id, entry);
        if served.queue.is_empty() {
            self.waiting.remove(&entry.model);
        }
        if let Some(client) = entry.client {
            self.clients.left(client);
        }
    }

    /// Returns the estimated time until all running and waiting batches are done.
    fn backlog(&self, now: Duration) -> Duration {
        let up = self.devices.iter().filter_map(|device| device.idle_in(now));
        let (devices, busy) =
            up.fold((0_u32, Duration::ZERO), |(count, sum), left| (count + 1, sum.saturating_add(left)));
        let waiting = self.waiting.iter().filter_map(|model| self.models.get(model).map(|served| (model, served)));
        let work = waiting.fold(busy, |sum, (model, served)| {
            let copies = self.devices.iter().map(|device| self.copy_time(*model, device, now));
            let compute = served.time_of_batches(served.queue.batches());
            sum.saturating_add(compute).saturating_add(copies.min().unwrap_or_default())
        });
        work / devices.max(1)
    }

    /// Returns a number that was not used before.
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

impl ServedModel {
    /// Returns the time to compute this many batches of those that wait.
    pub(super) fn time_of_batches(&self, batches: u32) -> Duration {
        let size = self.queue.size() / u64::from(self.queue.batches().max(1));
        self.cost.compute_time(size).saturating_mul(batches)
    }

    fn weights(&self, is_pinned: bool) -> WeightsSpec {
        let bytes = self.spec.bytes;
        let reload = self.cost.reload_time();
        WeightsSpec { bytes, reload, priority: clamp_priority(self.spec.priority), is_pinned }
    }
}

/// Limits a priority, so that the times which its powers of two scale stay reasonable.
fn clamp_priority(priority: i32) -> i32 {
    priority.clamp(-10, 10)
}
