//! The scheduler and its settings.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::cost::{Cost, duration};
use super::device::{Copy, Running, ScheduledDevice, Work};
use super::model::Served;
use super::queue::Queue;
use super::request::AcceptedRequest;
use super::{
    Batch, BatchId, Decision, DeviceId, Eviction, Load, ModelId, ModelSpec, NoRoom, Refusal, RegisterError, RequestId,
    RequestSpec, Residency, Unanswered, WeightsSpec,
};

/// The settings of a [`Scheduler`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// How long a request of priority 0 lets requests of resident models go first. Default: 200 ms.
    pub patience: Duration,
    /// The age at which a request counts half in the choice of resident models. Default: 60 s.
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
        }
    }
}

/// A scheduler, which decides which requests run next and on which device. The module's documentation describes its
/// rules.
///
/// A device runs one batch at a time. After each report, and at [`next_wake`](Self::next_wake), the user
/// [polls](Self::poll) the scheduler until it returns no more decisions. Reports about a batch, model or copy that is
/// already gone are ignored, since reports and decisions cross.
///
/// # Panics
/// If a device belongs to another scheduler.
#[derive(Debug)]
pub struct Scheduler {
    pub(super) config: SchedulerConfig,
    pub(super) devices: Vec<ScheduledDevice>,
    pub(super) models: BTreeMap<ModelId, Served>,
    /// The requests that wait or run.
    pub(super) requests: HashMap<RequestId, AcceptedRequest>,
    /// The models with waiting requests.
    pub(super) waiting: BTreeSet<ModelId>,
    /// The deadlines of waiting requests.
    pub(super) deadlines: BTreeSet<(Duration, RequestId)>,
    pub(super) decisions: VecDeque<Decision>,
    next: u64,
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
            decisions: VecDeque::new(),
            next: 0,
        }
    }

    /// Adds a device with this many bytes for weights, whose executor is ready. Models that were registered before may
    /// use it.
    pub fn add_device(&mut self, weight_bytes: u64) -> DeviceId {
        let SchedulerConfig { chunk_bytes, half_life, evicts_whole, .. } = self.config;
        let mut residency = Residency::new(weight_bytes, chunk_bytes, half_life);
        if evicts_whole {
            residency = residency.evicting_whole();
        }
        for (model, served) in &self.models {
            residency.add(*model, served.weights(false));
        }
        let device = ScheduledDevice { work: Work::Nothing, residency, copies: Vec::new(), debt: Duration::ZERO };
        self.devices.push(device);
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
            let unpinned = self.models.values().filter(|served| !served.model.is_pinned);
            let largest = unpinned.map(|served| self.whole_chunks(served.model.bytes)).max().unwrap_or(0);
            if room.iter().all(|room| *room < largest) {
                return Err(RegisterError::PinsTooMuch { bytes, largest });
            }
        }
        let id = ModelId(self.number());
        let reload = duration(model.bytes as f64 / self.config.copy_bytes_per_second);
        let served = Served { queue: Queue::new(max_rows), cost: Cost::new(reload, self.config.compute), model };
        for (index, device) in self.devices.iter_mut().enumerate() {
            device.residency.add(id, served.weights(served.model.is_pinned && index == home));
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
        ids.into_iter().for_each(|id| self.answer_queued(id, Unanswered::Removed));
        self.models.remove(&model);
        self.devices.iter_mut().for_each(|device| device.residency.unpin(model));
        (0..self.devices.len()).map(DeviceId).for_each(|device| self.unload_if_removed(device, model));
        true
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The request could not be answered, or too many wait.
    pub fn submit(&mut self, request: RequestSpec, now: Duration) -> Result<RequestId, Refusal> {
        let RequestSpec { model, rows, shape, priority, deadline } = request;
        let served = self.models.get(&model).ok_or(Refusal::UnknownModel)?;
        let max_rows = served.model.max_rows;
        if rows == 0 {
            return Err(Refusal::NoRows);
        }
        if rows > max_rows {
            return Err(Refusal::TooManyRows { rows, max_rows });
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(now));
        let least = served.cost.least(rows);
        if let Some(left) = left.filter(|left| left.is_zero() || *left < least) {
            return Err(Refusal::TooLate { left, least });
        }
        let queued = served.queue.len();
        if queued >= served.model.max_queued {
            return Err(Refusal::Full { queued, retry_after: self.backlog(now) });
        }
        let priority = clamp(served.model.priority.saturating_add(priority));
        let patience = duration(self.config.patience.as_secs_f64() * f64::from(-priority).exp2());
        let due = now.saturating_add(left.map_or(patience, |left| patience.min(left / 2)));
        let id = RequestId(self.number());
        let entry =
            AcceptedRequest { model, rows, shape, priority, arrived: now, due, deadline, batch: None, is_again: false };
        self.enqueue(id, entry);
        Ok(id)
    }

    /// Cancels a request and returns whether it was still to be answered. A running batch goes on, and its result for
    /// this request is discarded.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let Some(entry) = self.requests.get(&request) else { return false };
        let Some(batch) = entry.batch else {
            self.answer_queued(request, Unanswered::Cancelled);
            return true;
        };
        self.requests.remove(&request);
        if let Some(device) = self.device_of(batch) {
            self.decisions.push_back(Decision::Discard { device, batch, request });
        }
        self.decisions.push_back(Decision::Answer { request, outcome: Unanswered::Cancelled });
        true
    }

    /// Returns the next decision; `None` until the next report or the [wake time](Self::next_wake).
    pub fn poll(&mut self, now: Duration) -> Option<Decision> {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.answer_queued(id, Unanswered::Expired);
        }
        if let Some(decision) = self.decisions.pop_front() {
            return Some(decision);
        }
        for device in (0..self.devices.len()).map(DeviceId) {
            if self.devices[device.0].is_idle() {
                let decision = self.choose(device, now);
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
        let evict = self.copy(device, model, now)?;
        Ok(Some(Load { device, model, bytes, evict }))
    }

    /// Takes a device for background work, such as training, if it is idle and no request is queued; returns whether it
    /// did. The device gets no batch until [`end_background`](Self::end_background).
    pub fn begin_background(&mut self, device: DeviceId) -> bool {
        let may = self.waiting.is_empty() && self.devices[device.0].is_idle();
        if may {
            self.devices[device.0].work = Work::Background;
        }
        may
    }

    /// Reports that the background work of a device has stopped.
    pub fn end_background(&mut self, device: DeviceId) {
        let work = &mut self.devices[device.0].work;
        if matches!(work, Work::Background) {
            *work = Work::Nothing;
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

    /// Hands out a batch. Returns `None` if copies ahead leave no room for its weights; they will end.
    pub(super) fn run(
        &mut self,
        device: DeviceId,
        model: ModelId,
        requests: Vec<RequestId>,
        now: Duration,
    ) -> Option<Decision> {
        let load_bytes = self.devices[device.0].residency.missing_bytes(model)?;
        let evict = if load_bytes > 0 { self.copy(device, model, now).ok()? } else { Vec::new() };
        let id = BatchId(self.number());
        let mut rows = 0;
        for request in &requests {
            self.dequeue(*request);
            let entry = self.requests.get_mut(request)?;
            entry.batch = Some(id);
            rows += entry.rows;
        }
        let copy = self.copy_time(model, &self.devices[device.0], now);
        let compute = self.models.get(&model)?.cost.compute(rows);
        let on = &mut self.devices[device.0];
        on.residency.hold(model);
        on.residency.used(model, requests.len(), now);
        on.debt = on.debt.saturating_add(copy.saturating_sub(compute));
        on.work = Work::Batch(Running {
            id,
            model,
            requests: requests.clone(),
            rows,
            issued: now,
            expected_end: now.saturating_add(copy.max(compute)),
            has_started: false,
            is_switch: !copy.is_zero(),
        });
        Some(Decision::Run(Batch { id, device, model, requests, rows, load_bytes, evict }))
    }

    /// Answers a waiting request.
    pub(super) fn answer_queued(&mut self, request: RequestId, outcome: Unanswered) {
        self.dequeue(request);
        self.requests.remove(&request);
        self.decisions.push_back(Decision::Answer { request, outcome });
    }

    pub(super) fn whole_chunks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.config.chunk_bytes).saturating_mul(self.config.chunk_bytes)
    }

    /// Makes room for a model's weights, which count as on their way from now on.
    fn copy(&mut self, device: DeviceId, model: ModelId, now: Duration) -> Result<Vec<Eviction>, NoRoom> {
        let on = &self.devices[device.0];
        let part = self.missing_part(model, on);
        let expected_end = now.saturating_add(self.copy_time(model, on, now));
        let on = &mut self.devices[device.0];
        let evict = on.residency.admit(model, now, &self.waiting)?;
        on.residency.hold(model);
        on.copies.push(Copy { model, part, expected_end });
        Ok(evict)
    }

    pub(super) fn enqueue(&mut self, id: RequestId, entry: AcceptedRequest) {
        if let Some(served) = self.models.get_mut(&entry.model) {
            served.queue.insert(id, &entry);
            self.waiting.insert(entry.model);
            self.deadlines.extend(entry.deadline.map(|deadline| (deadline, id)));
            self.requests.insert(id, entry);
        }
    }

    fn dequeue(&mut self, id: RequestId) {
        let Some(entry) = self.requests.get(&id) else { return };
        let Some(served) = self.models.get_mut(&entry.model) else { return };
        served.queue.remove(id, entry);
        if served.queue.is_empty() {
            self.waiting.remove(&entry.model);
        }
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// Returns the estimated time until all waiting requests are done.
    fn backlog(&self, now: Duration) -> Duration {
        let up = self.devices.iter().filter_map(|device| device.free_in(now));
        let (devices, busy) =
            up.fold((0_u32, Duration::ZERO), |(count, sum), left| (count + 1, sum.saturating_add(left)));
        let waiting = self.waiting.iter().filter_map(|model| self.models.get(model).map(|served| (model, served)));
        let work = waiting.fold(busy, |sum, (model, served)| {
            let copies = self.devices.iter().map(|device| self.copy_time(*model, device, now));
            let compute = served.cost.compute(served.model.max_rows).saturating_mul(served.queue.batches());
            sum.saturating_add(compute).saturating_add(copies.min().unwrap_or_default())
        });
        work / devices.max(1)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Served {
    fn weights(&self, is_pinned: bool) -> WeightsSpec {
        let bytes = self.model.bytes;
        let reload = self.cost.reload();
        WeightsSpec { bytes, reload, priority: clamp(self.model.priority), is_pinned }
    }
}

/// Limits a priority, so that the times which its powers of two scale stay reasonable.
fn clamp(priority: i32) -> i32 {
    priority.clamp(-10, 10)
}
