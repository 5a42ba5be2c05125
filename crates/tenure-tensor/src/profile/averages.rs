//! Sums over the spans and activities of one name.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tenure_core::Device;

use super::{Activity, InputShape, Profile, Span, SpanEdge};

/// The sums over all spans of one name, or over all of the devices' work of one name. A row of PyTorch's
/// `key_averages`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Average {
    /// The name.
    pub name: String,
    /// Whether it is work of a device, rather than a span.
    pub is_device_work: bool,
    /// The sizes of the tensors among the arguments, if spans of other sizes have rows of their own.
    pub shapes: Vec<Vec<usize>>,
    /// The number of spans, or of pieces of work.
    pub calls: u64,
    /// The spans' own time on the host.
    #[serde(rename = "own_us", serialize_with = "micros")]
    pub own: Duration,
    /// The spans' time on the host. Spans within spans of the same name do not count twice.
    #[serde(rename = "total_us", serialize_with = "micros")]
    pub total: Duration,
    /// The time of the devices' work that the spans themselves launched.
    #[serde(rename = "own_device_us", serialize_with = "micros")]
    pub own_device: Duration,
    /// The time of the devices' work that the spans launched, or the spans within.
    #[serde(rename = "device_us", serialize_with = "micros")]
    pub device: Duration,
    /// The bytes of the host that the spans themselves allocated, less those that they freed.
    pub own_cpu_bytes: i64,
    /// The same, with the spans within.
    pub cpu_bytes: i64,
    /// The bytes of devices that the spans themselves allocated, less those that they freed.
    pub own_device_bytes: i64,
    /// The same, with the spans within.
    pub device_bytes: i64,
}

/// The name of the row of memory that was allocated or freed outside of all spans. PyTorch's name.
pub const OUTSIDE_MEMORY: &str = "[memory]";

/// A row's name, whether it is a device's work, and sizes.
type RowKey = (String, bool, Vec<Vec<usize>>);

/// The figures of one span with the spans within.
#[derive(Clone, Copy, Default)]
struct Sums {
    device: Duration,
    cpu_bytes: i64,
    device_bytes: i64,
}

impl Profile {
    /// Returns the sums over the spans of each name, and over the devices' work of each name, by own time, the longest
    /// first. If `by_shape`, spans whose arguments have other sizes have rows of their own. Memory that was allocated or
    /// freed outside of all spans, such as by dropping a tensor, has the row [`OUTSIDE_MEMORY`].
    pub fn averages(&self, by_shape: bool) -> Vec<Average> {
        let own = self.own_sums();
        let mut all = own.clone();
        // The spans around the place, and how many of them have each name.
        let mut around: Vec<usize> = Vec::new();
        let mut names_around: HashMap<&str, usize> = HashMap::new();
        let mut rows = Rows::default();
        for edge in self.edges() {
            let at = match edge {
                SpanEdge::Begin(at) => {
                    around.push(at);
                    *names_around.entry(&self.spans[at].name).or_default() += 1;
                    continue;
                }
                SpanEdge::End(at) => at,
            };
            around.pop();
            if let Some(outer) = around.last() {
                let inner = all[at];
                all[*outer].add(inner);
            }
            let span = &self.spans[at];
            let shapes = if by_shape { span.inputs.iter().map(sizes).collect() } else { Vec::new() };
            let row = rows.row((span.name.to_string(), false, shapes));
            row.calls += 1;
            row.own += span.own;
            row.own_device += own[at].device;
            row.own_cpu_bytes += own[at].cpu_bytes;
            row.own_device_bytes += own[at].device_bytes;
            let same_around = names_around.entry(&span.name).or_default();
            *same_around -= 1;
            if *same_around == 0 {
                row.total += span.duration;
                row.device += all[at].device;
                row.cpu_bytes += all[at].cpu_bytes;
                row.device_bytes += all[at].device_bytes;
            }
        }
        for point in self.memory.iter().filter(|point| point.span.is_none()) {
            let row = rows.row((OUTSIDE_MEMORY.to_owned(), false, Vec::new()));
            row.calls += 1;
            let [own, all] = match point.device.is_cpu() {
                true => [&mut row.own_cpu_bytes, &mut row.cpu_bytes],
                false => [&mut row.own_device_bytes, &mut row.device_bytes],
            };
            *own += point.change;
            *all += point.change;
        }
        for activity in &self.activities {
            let row = rows.row((activity.name.to_string(), true, Vec::new()));
            row.calls += 1;
            row.own_device += time(activity);
            row.device += time(activity);
        }
        let mut rows = rows.rows;
        rows.sort_by(|one, other| {
            (other.own, other.own_device, &one.name).cmp(&(one.own, one.own_device, &other.name))
        });
        rows
    }

    /// Returns the begin and the end of each span. The edges of a span are around those of the spans within.
    pub fn edges(&self) -> Vec<SpanEdge> {
        let indices = self.indices();
        let mut within: Vec<Vec<usize>> = vec![Vec::new(); self.spans.len()];
        let mut outermost = Vec::new();
        for (at, span) in self.spans.iter().enumerate() {
            match span.parent.and_then(|parent| indices.get(&parent)) {
                Some(&outer) => within[outer].push(at),
                None => outermost.push(at),
            }
        }
        let mut edges = Vec::with_capacity(2 * self.spans.len());
        // The edges to come, the next one last.
        let mut coming: Vec<SpanEdge> = outermost.into_iter().rev().map(SpanEdge::Begin).collect();
        while let Some(edge) = coming.pop() {
            edges.push(edge);
            if let SpanEdge::Begin(at) = edge {
                coming.push(SpanEdge::End(at));
                coming.extend(within[at].iter().rev().copied().map(SpanEdge::Begin));
            }
        }
        edges
    }

    /// Returns the index of each span by its id.
    fn indices(&self) -> HashMap<u64, usize> {
        self.spans.iter().enumerate().map(|(at, span)| (span.id, at)).collect()
    }

    /// Returns the figures of each span without those of the spans within.
    fn own_sums(&self) -> Vec<Sums> {
        let indices = self.indices();
        let mut sums: Vec<Sums> = self
            .spans
            .iter()
            .map(|span: &Span| {
                let of =
                    |is_cpu| span.memory.iter().filter(|(device, _)| device.is_cpu() == is_cpu).map(|(_, it)| it).sum();
                Sums { device: Duration::ZERO, cpu_bytes: of(true), device_bytes: of(false) }
            })
            .collect();
        for activity in &self.activities {
            if let Some(at) = activity.cause.and_then(|cause| indices.get(&cause)) {
                sums[*at].device += time(activity);
            }
        }
        sums
    }

    /// Returns the devices' work as a whole: the sum of its times, on each device.
    pub fn device_times(&self) -> Vec<(Device, Duration)> {
        let mut times: Vec<(Device, Duration)> = Vec::new();
        for activity in &self.activities {
            match times.iter_mut().find(|(device, _)| *device == activity.device) {
                Some((_, sum)) => *sum += time(activity),
                None => times.push((activity.device, time(activity))),
            }
        }
        times.sort_unstable();
        times
    }
}

impl Sums {
    fn add(&mut self, inner: Self) {
        self.device += inner.device;
        self.cpu_bytes += inner.cpu_bytes;
        self.device_bytes += inner.device_bytes;
    }
}

#[derive(Default)]
struct Rows {
    rows: Vec<Average>,
    indices: HashMap<RowKey, usize>,
}

impl Rows {
    fn row(&mut self, key: RowKey) -> &mut Average {
        let (name, is_device_work, shapes) = key.clone();
        let at = *self.indices.entry(key).or_insert_with(|| {
            let [own, total, own_device, device] = [Duration::ZERO; 4];
            let [own_cpu_bytes, cpu_bytes, own_device_bytes, device_bytes] = [0; 4];
            self.rows.push(Average {
                name,
                is_device_work,
                shapes,
                calls: 0,
                own,
                total,
                own_device,
                device,
                own_cpu_bytes,
                cpu_bytes,
                own_device_bytes,
                device_bytes,
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }
}

fn time(activity: &Activity) -> Duration {
    activity.end.saturating_sub(activity.begin)
}

fn sizes(input: &InputShape) -> Vec<usize> {
    input.sizes.clone()
}

/// Writes a time as a number of µs.
fn micros<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_nanos() as f64 / 1000.0)
}
