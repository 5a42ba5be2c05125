//! The queue of a model.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::request::{AcceptedRequest, RequestId, Shape};

type QueueOrder = BTreeSet<(Reverse<i32>, RequestId)>;

/// The requests that wait for a model. Every operation takes logarithmic time.
#[derive(Debug)]
pub(super) struct Queue {
    max_rows: u32,
    /// The requests by priority, then age.
    order: QueueOrder,
    ages: BTreeSet<RequestId>,
    dues: BTreeSet<(Duration, RequestId)>,
    lanes: HashMap<Shape, Lane>,
    /// The number of lanes that fill a batch.
    full: usize,
    /// The rows of all requests.
    rows: u64,
}

/// Requests of one shape, which may run together.
#[derive(Debug, Default)]
struct Lane {
    order: QueueOrder,
    rows: u64,
}

impl Queue {
    pub(super) fn new(max_rows: u32) -> Self {
        let (order, ages, dues, lanes) = Default::default();
        Self { max_rows, order, ages, dues, lanes, full: 0, rows: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns how many batches the queue makes, if shapes allow.
    pub(super) fn batches(&self) -> u32 {
        u32::try_from(self.rows.div_ceil(u64::from(self.max_rows))).unwrap_or(u32::MAX)
    }

    /// Returns whether some shape has enough rows for a batch.
    pub(super) fn fills_a_batch(&self) -> bool {
        self.full > 0
    }

    /// Returns when the first request is due.
    pub(super) fn due(&self) -> Option<Duration> {
        self.dues.first().map(|(due, _)| *due)
    }

    pub(super) fn oldest(&self) -> Option<RequestId> {
        self.ages.first().copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.ages.iter().copied()
    }

    /// Returns the request that starts the next batch. If a request is due, this is the oldest of its class (model and
    /// priority); otherwise the oldest of the highest priority.
    pub(super) fn head(&self, now: Duration, requests: &HashMap<RequestId, AcceptedRequest>) -> Option<RequestId> {
        let is_due = self.dues.first().filter(|(due, _)| *due <= now);
        let class = is_due.and_then(|(_, id)| requests.get(id)).map(|entry| Reverse(entry.priority));
        match class {
            Some(class) => self.order.range((class, RequestId(0))..).next().map(|(_, id)| *id),
            None => self.order.first().map(|(_, id)| *id),
        }
    }

    /// Returns the batch that starts with a request: it and other requests of its shape, by priority, then age.
    pub(super) fn batch(&self, head: RequestId, requests: &HashMap<RequestId, AcceptedRequest>) -> Vec<RequestId> {
        let Some(entry) = requests.get(&head) else { return Vec::new() };
        let riders = self.lanes.get(&entry.shape).into_iter().flat_map(|lane| &lane.order);
        let mut batch = vec![head];
        let mut rows = entry.rows;
        for id in riders.map(|(_, id)| *id).filter(|id| *id != head) {
            // The first request that does not fit ends the batch: no smaller one overtakes it.
            let more = requests.get(&id).map_or(u32::MAX, |rider| rider.rows);
            match rows.checked_add(more).filter(|rows| *rows <= self.max_rows) {
                Some(sum) => rows = sum,
                None => break,
            }
            batch.push(id);
        }
        batch
    }

    /// Returns the approximate number of requests and rows in a batch of a shape.
    pub(super) fn expected(&self, shape: &Shape) -> (f64, u32) {
        let Some(lane) = self.lanes.get(shape) else { return (0.0, 0) };
        let rows = lane.rows.min(u64::from(self.max_rows));
        (lane.order.len() as f64 * rows as f64 / lane.rows.max(1) as f64, rows as u32)
    }

    pub(super) fn insert(&mut self, id: RequestId, entry: &AcceptedRequest) {
        let place = (Reverse(entry.priority), id);
        self.order.insert(place);
        self.ages.insert(id);
        self.dues.insert((entry.due, id));
        self.rows += u64::from(entry.rows);
        let lane = self.lanes.entry(entry.shape.clone()).or_default();
        let was_full = lane.rows >= u64::from(self.max_rows);
        lane.order.insert(place);
        lane.rows += u64::from(entry.rows);
        self.full += usize::from(lane.rows >= u64::from(self.max_rows) && !was_full);
    }

    pub(super) fn remove(&mut self, id: RequestId, entry: &AcceptedRequest) {
        let place = (Reverse(entry.priority), id);
        self.order.remove(&place);
        self.ages.remove(&id);
        self.dues.remove(&(entry.due, id));
        self.rows -= u64::from(entry.rows);
        let Some(lane) = self.lanes.get_mut(&entry.shape) else { return };
        let was_full = lane.rows >= u64::from(self.max_rows);
        lane.order.remove(&place);
        lane.rows -= u64::from(entry.rows);
        self.full -= usize::from(was_full && lane.rows < u64::from(self.max_rows));
        if lane.order.is_empty() {
            self.lanes.remove(&entry.shape);
        }
    }
}
