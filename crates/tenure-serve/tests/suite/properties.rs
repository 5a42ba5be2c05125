//! Property tests of the scheduler: random sequences of events, checked against a simple model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tenure_serve::scheduler::{
    Batch, Decision, DeviceId, ModelId, ModelSpec, Refusal, RequestId, RequestSpec, Scheduler, SchedulerConfig,
    Unanswered,
};

const PATIENCE: Duration = ms(100);
const COMPUTE: Duration = ms(10);
/// The time to copy one byte, which is a chunk.
const COPY: Duration = ms(5);
const CAPACITY: u64 = 8;
const MAX_QUEUED: usize = 12;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Clone, Debug)]
enum Event {
    Submit { model: usize, rows: u32, shape: u64, priority: i32, deadline_ms: Option<u64> },
    Advance(u64),
    Start(usize),
    Finish { device: usize, is_well: bool },
    Cancel(usize),
    Copied { is_well: bool },
    Prefetch(usize),
    Lose(usize),
    Ready(usize),
    Replace(usize),
    Begin(usize),
    End(usize),
}

/// Generates the events of a working device.
fn ordinary() -> BoxedStrategy<Event> {
    let submit = (0..5_usize, 1..4_u32, 0..2_u64, -1..2_i32, prop::option::weighted(0.3, 1..400_u64)).prop_map(
        |(model, rows, shape, priority, deadline_ms)| Event::Submit { model, rows, shape, priority, deadline_ms },
    );
    prop_oneof![
        6 => submit,
        3 => (0..60_u64).prop_map(Event::Advance),
        2 => (0..2_usize).prop_map(Event::Start),
        4 => (0..2_usize).prop_map(|device| Event::Finish { device, is_well: true }),
        1 => (0..100_usize).prop_map(Event::Cancel),
    ]
    .boxed()
}

fn any_event() -> BoxedStrategy<Event> {
    let device = 0..2_usize;
    prop_oneof![
        12 => ordinary(),
        2 => any::<bool>().prop_map(|is_well| Event::Copied { is_well }),
        1 => device.clone().prop_map(|device| Event::Finish { device, is_well: false }),
        2 => device.clone().prop_map(Event::Prefetch),
        1 => device.clone().prop_map(Event::Lose),
        1 => device.clone().prop_map(Event::Ready),
        1 => (0..5_usize).prop_map(Event::Replace),
        1 => device.clone().prop_map(Event::Begin),
        1 => device.prop_map(Event::End),
    ]
    .boxed()
}

#[derive(Clone, Debug)]
struct Asked {
    request: RequestSpec,
    priority: i32,
    arrived: Duration,
    due: Duration,
    state: State,
    was_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waits,
    Runs,
    Ended,
}

#[derive(Debug, Default)]
struct Place {
    is_lost: bool,
    is_background: bool,
    /// The batches that run, and whether they have started.
    running: Vec<(Batch, bool)>,
    /// The resident chunks by model.
    resident: BTreeMap<ModelId, u64>,
    unloaded: BTreeSet<ModelId>,
    copying: Vec<(ModelId, u64)>,
    debt: Duration,
}

struct World {
    scheduler: Scheduler,
    devices: Vec<DeviceId>,
    places: Vec<Place>,
    models: Vec<ModelId>,
    known: BTreeMap<ModelId, ModelSpec>,
    asked: BTreeMap<RequestId, Asked>,
    now: Duration,
    /// The most batches that run on a device at once.
    max_batches: usize,
    /// Whether copies take the expected time, and devices are not lost.
    is_orderly: bool,
}

impl World {
    fn new(devices: usize, max_batches: usize, is_orderly: bool) -> Self {
        let config = SchedulerConfig {
            patience: PATIENCE,
            chunk_bytes: 1,
            copy_bytes_per_second: 1.0 / COPY.as_secs_f64(),
            compute: COMPUTE,
            ..SchedulerConfig::default()
        };
        let mut scheduler = Scheduler::new(config);
        let devices: Vec<_> = (0..devices).map(|_| scheduler.add_parallel_device(CAPACITY, max_batches)).collect();
        let places = devices.iter().map(|_| Place::default()).collect();
        let models = Vec::new();
        let known = BTreeMap::new();
        let asked = BTreeMap::new();
        let now = Duration::ZERO;
        let mut world = Self { scheduler, devices, places, models, known, asked, now, max_batches, is_orderly };
        (0..5).for_each(|index| {
            let name = world.add(index);
            world.models.push(name);
        });
        world
    }

    fn add(&mut self, index: usize) -> ModelId {
        let model = ModelSpec {
            bytes: [1, 2, 3, 5, 7][index],
            max_rows: [1, 4, 3, 8, 4][index],
            max_delay: ms([0, 0, 15, 150, 5][index]),
            max_queued: MAX_QUEUED,
            priority: [0, 0, 1, 0, -1][index],
            is_pinned: index == 0,
        };
        let name = self.scheduler.add_model(model.clone()).unwrap();
        self.known.insert(name, model);
        name
    }

    fn happens(&mut self, event: &Event) {
        let place = |device: &usize| device % self.devices.len();
        match event {
            Event::Submit { model, rows, shape, priority, deadline_ms } => {
                self.submit(*model, *rows, *shape, *priority, deadline_ms.map(ms));
            }
            Event::Advance(by) => self.now += ms(*by),
            Event::Start(device) => {
                for (batch, has_started) in &mut self.places[place(device)].running {
                    *has_started = true;
                    self.scheduler.started(batch.id, self.now);
                }
            }
            Event::Finish { device, is_well } => self.finish(place(device), *is_well),
            Event::Cancel(index) => {
                let Some(id) = self.asked.keys().nth(index % self.asked.len().max(1)).copied() else { return };
                let still = self.asked[&id].state != State::Ended;
                assert_eq!(self.scheduler.cancel(id), still);
                if still {
                    self.expect_answer(id, &Unanswered::Cancelled);
                }
            }
            Event::Copied { is_well } => {
                for index in 0..self.places.len() {
                    self.copied(index, *is_well);
                }
            }
            Event::Prefetch(device) => self.prefetch(place(device)),
            Event::Lose(device) => {
                let index = place(device);
                self.places[index] = Place {
                    is_lost: true,
                    running: std::mem::take(&mut self.places[index].running),
                    ..Place::default()
                };
                self.scheduler.executor_lost(self.devices[index]);
                for (batch, has_started) in std::mem::take(&mut self.places[index].running) {
                    for id in &batch.requests {
                        let asked = self.asked.get_mut(id).unwrap();
                        let stays = !has_started && !asked.was_lost && self.known.contains_key(&batch.model);
                        if asked.state == State::Runs && stays {
                            (asked.state, asked.was_lost) = (State::Waits, true);
                        }
                    }
                }
            }
            Event::Ready(device) => {
                self.places[place(device)].is_lost = false;
                self.scheduler.executor_ready(self.devices[place(device)]);
            }
            Event::Replace(index) => {
                let old = self.models[*index];
                assert!(self.scheduler.remove_model(old) && !self.scheduler.remove_model(old));
                self.known.remove(&old);
                self.models[*index] = self.add(*index);
            }
            Event::Begin(device) => {
                let index = place(device);
                let at_rest = &self.places[index];
                let may = !at_rest.is_lost
                    && !at_rest.is_background
                    && at_rest.running.is_empty()
                    && self.waiting().next().is_none();
                assert_eq!(self.scheduler.begin_background(self.devices[index]), may);
                self.places[index].is_background |= may;
            }
            Event::End(device) => {
                self.places[place(device)].is_background = false;
                self.scheduler.end_background(self.devices[place(device)]);
            }
        }
    }

    fn submit(&mut self, model: usize, rows: u32, shape: u64, priority: i32, left: Option<Duration>) {
        let model = self.models[model];
        let deadline = left.map(|left| self.now + left);
        let request = RequestSpec { rows, shape: [shape].into(), priority, deadline, ..RequestSpec::new(model) };
        let queued = self.waiting().filter(|(_, asked)| asked.request.model == model).count();
        assert_eq!(self.scheduler.queued(model), queued);
        match self.scheduler.submit(request.clone(), self.now) {
            Ok(id) => {
                assert!(queued < MAX_QUEUED && rows <= self.known[&model].max_rows);
                let priority = self.known[&model].priority + priority;
                let patience = PATIENCE.mul_f64(f64::from(-priority).exp2());
                let due = self.now + left.map_or(patience, |left| patience.min(left / 2));
                let asked = Asked { request, priority, arrived: self.now, due, state: State::Waits, was_lost: false };
                assert!(self.asked.insert(id, asked).is_none());
            }
            Err(Refusal::Full { queued, .. }) => assert_eq!(queued, MAX_QUEUED),
            Err(Refusal::TooManyRows { max_rows, .. }) => assert_eq!(max_rows, self.known[&model].max_rows),
            Err(Refusal::TooLate { left, least }) => assert!(left < least && least == COMPUTE),
            Err(other) => panic!("{other}"),
        }
    }

    fn waiting(&self) -> impl Iterator<Item = (&RequestId, &Asked)> {
        self.asked.iter().filter(|(_, asked)| asked.state == State::Waits)
    }

    fn ended(&mut self, id: RequestId) {
        let asked = self.asked.get_mut(&id).unwrap();
        assert_ne!(asked.state, State::Ended, "{id:?} has two outcomes");
        asked.state = State::Ended;
    }

    /// Expects an answer somewhere among the next decisions.
    fn expect_answer(&mut self, id: RequestId, expected: &Unanswered) {
        while let Some(decision) = self.scheduler.poll(self.now) {
            let found =
                matches!(&decision, Decision::Answer { request, outcome } if *request == id && outcome == expected);
            self.decided(decision);
            if found {
                return;
            }
        }
        panic!("{id:?} was not answered");
    }

    fn finish(&mut self, index: usize, is_well: bool) {
        let place = &mut self.places[index];
        if place.running.is_empty() {
            return;
        }
        let (batch, _) = place.running.remove(0);
        if is_well && batch.load_bytes > 0 {
            self.copied(index, true);
        }
        let place = &mut self.places[index];
        if place.copying.iter().any(|(model, _)| *model == batch.model) {
            place.copying.retain(|(model, _)| *model != batch.model);
            if !is_well {
                place.resident.remove(&batch.model);
            }
        }
        if batch.load_bytes == 0 {
            place.debt = place.debt.saturating_sub(COMPUTE);
        }
        let answered = self.scheduler.finished(batch.id, is_well.then_some(COMPUTE), self.now);
        let expected: Vec<_> =
            batch.requests.iter().copied().filter(|id| self.asked[id].state == State::Runs).collect();
        assert_eq!(answered, expected);
        answered.into_iter().for_each(|id| self.ended(id));
    }

    fn copied(&mut self, index: usize, is_well: bool) {
        for (model, chunks) in std::mem::take(&mut self.places[index].copying) {
            if is_well {
                self.scheduler.loaded(self.devices[index], model, COPY * chunks as u32, self.now);
            } else {
                self.scheduler.load_failed(self.devices[index], model);
                self.places[index].resident.remove(&model);
            }
        }
    }

    fn prefetch(&mut self, index: usize) {
        let device = self.devices[index];
        let Some(model) = self.scheduler.upcoming(device, self.now) else { return };
        assert!(self.waiting().any(|(_, asked)| asked.request.model == model));
        if let Ok(Some(load)) = self.scheduler.prefetch(device, model, self.now) {
            assert!(
                load.evict
                    .iter()
                    .all(|eviction| !self.waiting().any(|(_, asked)| asked.request.model == eviction.model))
            );
            self.copy(
                index,
                model,
                load.bytes,
                &load.evict.iter().map(|left| (left.model, left.chunks)).collect::<Vec<_>>(),
            );
        }
    }

    fn copy(&mut self, index: usize, model: ModelId, bytes: u64, evict: &[(ModelId, u64)]) {
        let place = &mut self.places[index];
        assert!(!place.is_lost);
        for (left, chunks) in evict {
            assert!(place.copying.iter().all(|(model, _)| model != left), "{left:?} is being copied");
            assert!(place.running.iter().all(|(batch, _)| batch.model != *left), "{left:?} runs");
            *place.resident.get_mut(left).unwrap() -= chunks;
        }
        *place.resident.entry(model).or_default() += bytes;
        if bytes > 0 {
            place.copying.push((model, bytes));
        }
        assert!(place.resident.values().sum::<u64>() <= CAPACITY);
        assert_eq!(self.scheduler.residency(self.devices[index]).missing_bytes(model), Some(0));
        assert!(self.known.get(&model).is_none_or(|known| known.bytes == place.resident[&model]));
    }

    fn decided(&mut self, decision: Decision) {
        match decision {
            Decision::Run(batch) => self.run(batch),
            Decision::Answer { request, outcome } => {
                let asked = &self.asked[&request];
                match outcome {
                    Unanswered::Expired => assert!(asked.request.deadline.unwrap() <= self.now),
                    Unanswered::TooLate => assert!(asked.request.deadline.unwrap() < self.now + COMPUTE),
                    Unanswered::Removed => assert!(!self.known.contains_key(&asked.request.model)),
                    Unanswered::Lost => assert_eq!(asked.state, State::Runs),
                    _ => {}
                }
                self.ended(request);
            }
            Decision::Discard { device, batch, request } => {
                let place = &self.places[self.devices.iter().position(|other| *other == device).unwrap()];
                assert!(place.running.iter().any(|(on, _)| on.id == batch && on.requests.contains(&request)));
            }
            Decision::Unload { device, model } => {
                let place = &mut self.places[self.devices.iter().position(|other| *other == device).unwrap()];
                place.resident.remove(&model);
                assert!(place.unloaded.insert(model) && !self.known.contains_key(&model));
                assert!(place.running.iter().all(|(batch, _)| batch.model != model));
            }
        }
    }

    fn run(&mut self, batch: Batch) {
        let index = self.devices.iter().position(|other| *other == batch.device).unwrap();
        let place = &self.places[index];
        assert!(!place.is_lost && !place.is_background && place.running.len() < self.max_batches);
        assert!(place.running.iter().all(|(other, _)| other.model != batch.model));
        let head = &self.asked[&batch.requests[0]];
        let known = &self.known[&batch.model];
        for id in &batch.requests {
            let asked = &self.asked[id];
            assert_eq!((asked.state, asked.request.model), (State::Waits, batch.model));
            assert_eq!(asked.request.shape, head.request.shape);
            assert!(asked.request.deadline.is_none_or(|deadline| deadline > self.now));
            // No older request waits in its class and shape.
            let elders = self.waiting().take_while(|(elder, _)| *elder < id).filter(|(_, elder)| {
                (elder.request.model, elder.priority) == (batch.model, asked.priority)
                    && (id == &batch.requests[0] || elder.request.shape == asked.request.shape)
            });
            assert!(elders.into_iter().all(|(elder, _)| batch.requests.contains(elder)));
        }
        let rows: u32 = batch.requests.iter().map(|id| self.asked[id].request.rows).sum();
        assert!(rows == batch.rows && rows <= known.max_rows);
        if self.is_orderly {
            self.check_turn(index, &batch);
        }
        let evict: Vec<_> = batch.evict.iter().map(|left| (left.model, left.chunks)).collect();
        self.copy(index, batch.model, batch.load_bytes, &evict);
        batch.requests.iter().for_each(|id| self.asked.get_mut(id).unwrap().state = State::Runs);
        if self.places[index].running.is_empty() {
            self.places[index].debt += (COPY * batch.load_bytes as u32).saturating_sub(COMPUTE);
        }
        self.places[index].running.push((batch, false));
    }

    /// Checks that due requests go first, except that resident and due ones may go before them for as long as switches
    /// took.
    fn check_turn(&self, index: usize, batch: &Batch) {
        let due = |model: ModelId| {
            let of = self.waiting().filter(|(_, asked)| asked.request.model == model);
            of.map(|(_, asked)| asked.due).min().filter(|due| *due <= self.now)
        };
        let Some(first) = self.known.keys().filter_map(|model| due(*model)).min() else { return };
        let is_first = due(batch.model) == Some(first);
        let is_owed = batch.load_bytes == 0 && !self.places[index].debt.is_zero() && due(batch.model).is_some();
        assert!(is_first || is_owed, "{:?} goes before what was due at {first:?}, now {:?}", batch.model, self.now);
    }

    fn settle(&mut self) {
        while let Some(decision) = self.scheduler.poll(self.now) {
            self.decided(decision);
        }
        let mut up = self.places.iter().filter(|place| !place.is_lost).peekable();
        if up.peek().is_some() && up.all(|place| place.is_background) {
            let yields = self.devices.iter().any(|device| self.scheduler.must_yield(*device, self.now));
            assert_eq!(yields, self.waiting().next().is_some());
        }
        // A device must not be idle while a request that could run waits.
        let [place] = &self.places[..] else { return };
        if !place.is_lost && !place.is_background && place.running.is_empty() && place.copying.is_empty() {
            for (id, asked) in self.waiting() {
                let at = asked.due.min(asked.arrived + self.known[&asked.request.model].max_delay);
                let next = self.scheduler.next_wake(self.now).unwrap_or_default();
                assert!(self.now < next && next <= at, "{id:?} waits beside an idle device");
            }
        }
    }

    /// Lets everything succeed from now on, until all requests are answered.
    fn drain(&mut self) {
        for device in 0..self.devices.len() {
            self.happens(&Event::End(device));
            self.happens(&Event::Ready(device));
        }
        self.settle();
        for _ in 0..400 {
            for device in 0..self.devices.len() {
                self.copied(device, true);
                self.finish(device, true);
            }
            self.settle();
            self.now += ms(10);
        }
        assert!(
            self.asked.values().all(|asked| asked.state == State::Ended),
            "{:?}",
            self.waiting().collect::<Vec<_>>()
        );
        assert_eq!(self.scheduler.next_wake(self.now), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn every_request_has_one_outcome_whatever_happens(
        devices in 1..3_usize,
        max_batches in 1..4_usize,
        events in prop::collection::vec(any_event(), 1..150),
    ) {
        let mut world = World::new(devices, max_batches, false);
        for event in &events {
            world.happens(event);
            world.settle();
        }
        world.drain();
    }

    #[test]
    fn due_requests_go_first_but_for_the_debts_of_switches(events in prop::collection::vec(ordinary(), 1..200)) {
        let mut world = World::new(1, 1, true);
        for event in &events {
            world.happens(event);
            world.settle();
        }
        world.drain();
    }
}

#[test]
fn the_past_takes_no_memory() {
    let mut world = World::new(2, 2, false);
    let mut sizes = Vec::new();
    for round in 0..40_u64 {
        for step in 0..30 {
            let deadline_ms = (step % 7 == 0).then_some(30);
            let rows = 1 + (step % 3) as u32;
            world.happens(&Event::Submit {
                model: (step % 5) as usize,
                rows,
                shape: round * 100 + step,
                priority: 0,
                deadline_ms,
            });
            world.settle();
        }
        // Models are removed while they run, wait or are copied, and a device is lost with them.
        world.happens(&Event::Finish { device: 0, is_well: true });
        world.settle();
        world.happens(&Event::Copied { is_well: true });
        world.happens(&Event::Prefetch(0));
        (1..5).for_each(|index| world.happens(&Event::Replace(index)));
        world.happens(&Event::Lose(0));
        world.drain();
        sizes.push(format!("{:?}", world.scheduler).len());
    }
    // The sizes may grow a little, since ids get more digits.
    assert!(sizes[39] < sizes[1] + sizes[1] / 4, "{sizes:?}");
}
