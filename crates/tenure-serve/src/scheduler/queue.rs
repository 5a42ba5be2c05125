//! The queue of a model, and the turns of clients in all queues.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::request::{AcceptedRequest, ClientId, RequestId, Shape};

/// Requests by priority, highest first, then by turn, then by age.
type PriorityOrder = BTreeSet<(Reverse<i32>, Duration, RequestId)>;

/// The requests that wait for a model. Every operation takes logarithmic time.
#[derive(Debug)]
pub(super) struct Queue {
    max_rows: u32,
    by_priority: PriorityOrder,
    /// The same requests by age: ids grow.
    by_age: BTreeSet<RequestId>,
    /// The same requests by the time at which they are due.
    by_due: BTreeSet<(Duration, RequestId)>,
    by_shape: HashMap<Shape, ShapeQueue>,
    /// The number of shapes with enough rows for a whole batch.
    full_shapes: usize,
    /// The rows of all requests.
    rows: u64,
    /// The elements of all requests.
    size: u64,
}

/// Requests of one shape, which may run together.
#[derive(Debug, Default)]
struct ShapeQueue {
    by_priority: PriorityOrder,
    rows: u64,
    size: u64,
}

impl Queue {
    pub(super) fn new(max_rows: u32) -> Self {
        Self {
            max_rows,
            by_priority: BTreeSet::new(),
            by_age: BTreeSet::new(),
            by_due: BTreeSet::new(),
            by_shape: HashMap::new(),
            full_shapes: 0,
            rows: 0,
            size: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_priority.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_priority.is_empty()
    }

    /// Returns the elements of all requests.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns how many batches all rows make, if each batch is full.
    pub(super) fn batches(&self) -> u32 {
        u32::try_from(self.rows.div_ceil(u64::from(self.max_rows))).unwrap_or(u32::MAX)
    }

    /// Returns whether some shape has enough rows for a whole batch.
    pub(super) fn fills_a_batch(&self) -> bool {
        self.full_shapes > 0
    }

    /// Returns the earliest time at which a request is due.
    pub(super) fn first_due(&self) -> Option<Duration> {
        self.by_due.first().map(|(due, _)| *due)
    }

    pub(super) fn oldest(&self) -> Option<RequestId> {
        self.by_age.first().copied()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.by_age.iter().copied()
    }

    /// Returns the request that starts the next batch. If a request is due, this is the first of its class (model and
    /// priority); otherwise the first of the highest priority.
    pub(super) fn head(&self, now: Duration, requests: &HashMap<RequestId, AcceptedRequest>) -> Option<RequestId> {
        let is_due = self.by_due.first().filter(|(due, _)| *due <= now);
        let class = is_due.and_then(|(_, id)| requests.get(id)).map(|entry| Reverse(entry.priority));
        match class {
            Some(class) => self.by_priority.range((class, Duration::ZERO, RequestId(0))..).next().map(|(.., id)| *id),
            None => self.by_priority.first().map(|(.., id)| *id),
        }
    }

    /// Returns the batch that starts with a request: it and other requests of its shape, by priority, then turn. With
    /// the others, it has at most `max_size` elements.
    pub(super) fn batch(
        &self,
        head: RequestId,
        max_size: u64,
        requests: &HashMap<RequestId, AcceptedRequest>,
    ) -> Vec<RequestId> {
        let Some(entry) = requests.get(&head) else { return Vec::new() };
        let others = self.by_shape.get(&entry.shape).into_iter().flat_map(|queue| &queue.by_priority);
        let mut batch = vec![head];
        let mut rows = entry.rows;
        let mut size = entry.size;
        for id in others.map(|(.., id)| *id).filter(|id| *id != head) {
            let Some(other) = requests.get(&id) else { break };
            rows = rows.saturating_add(other.rows);
            size = size.saturating_add(other.size);
            // The first request that does not fit ends the batch: no smaller one overtakes it.
            if rows > self.max_rows || size > max_size {
                break;
            }
            batch.push(id);
        }
        batch
    }

    /// Returns the approximate numbers of requests and elements that a batch of a shape would have.
    pub(super) fn expected_batch(&self, shape: &Shape) -> (f64, u64) {
        let Some(queue) = self.by_shape.get(shape) else { return (0.0, 0) };
        let fraction = queue.rows.min(u64::from(self.max_rows)) as f64 / queue.rows.max(1) as f64;
        (queue.by_priority.len() as f64 * fraction, (queue.size as f64 * fraction) as u64)
    }

    pub(super) fn insert(&mut self, id: RequestId, entry: &AcceptedRequest) {
        let key = (Reverse(entry.priority), entry.turn, id);
        self.by_priority.insert(key);
        self.by_age.insert(id);
        self.by_due.insert((entry.due, id));
        self.rows += u64::from(entry.rows);
        self.size += entry.size;
        let queue = self.by_shape.entry(entry.shape.clone()).or_default();
        let was_full = queue.rows >= u64::from(self.max_rows);
        queue.by_priority.insert(key);
        queue.rows += u64::from(entry.rows);
        queue.size += entry.size;
        self.full_shapes += usize::from(queue.rows >= u64::from(self.max_rows) && !was_full);
    }

    pub(super) fn remove(&mut self, id: RequestId, entry: &AcceptedRequest) {
        let key = (Reverse(entry.priority), entry.turn, id);
        self.by_priority.remove(&key);
        self.by_age.remove(&id);
        self.by_due.remove(&(entry.due, id));
        self.rows -= u64::from(entry.rows);
        self.size -= entry.size;
        let Some(queue) = self.by_shape.get_mut(&entry.shape) else { return };
        let was_full = queue.rows >= u64::from(self.max_rows);
        queue.by_priority.remove(&key);
        queue.rows -= u64::from(entry.rows);
        queue.size -= entry.size;
        self.full_shapes -= usize::from(was_full && queue.rows < u64::from(self.max_rows));
        if queue.by_priority.is_empty() {
            self.by_shape.remove(&entry.shape);
        }
    }
}

/// The clients with waiting requests. A request's turn is the time at which it would have arrived if its client sent
/// one request after the other: so a client that sends many at once does not keep others waiting for all of them.
#[derive(Debug, Default)]
pub(super) struct Clients(HashMap<ClientId, WaitingClient>);

/// A client with waiting requests.
#[derive(Debug, Default)]
struct WaitingClient {
    /// The number of its requests that wait.
    waiting: usize,
    /// The earliest turn of its next request.
    next_turn: Duration,
}

impl Clients {
    /// Returns how many requests of a client wait.
    pub(super) fn waiting(&self, client: ClientId) -> usize {
        self.0.get(&client).map_or(0, |client| client.waiting)
    }

    /// Returns the turn of a request that arrives now and takes about `cost`.
    pub(super) fn turn(&mut self, client: ClientId, now: Duration, cost: Duration) -> Duration {
        let client = self.0.entry(client).or_default();
        let turn = client.next_turn.max(now);
        client.next_turn = turn.saturating_add(cost);
        turn
    }

    /// Counts a request that waits from now on.
    pub(super) fn waits(&mut self, client: ClientId) {
        self.0.entry(client).or_default().waiting += 1;
    }

    /// Counts a request that waits no longer. A client without waiting requests is forgotten.
    pub(super) fn left(&mut self, client: ClientId) {
        let Some(entry) = self.0.get_mut(&client) else { return };
        entry.waiting = entry.waiting.saturating_sub(1);
        if entry.waiting == 0 {
            self.0.remove(&client);
        }
    }
}
