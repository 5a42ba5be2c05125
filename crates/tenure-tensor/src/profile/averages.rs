//! Sums over the spans and activities of one name.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tenure_core::Device;

use super::{Activity, InputShape, Profile, Span};

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
    /// first. If `by_shape`, spans whose arguments have other sizes have rows of their own.
    pub fn averages(&self, by_shape: bool) -> Vec<Average> {
        let indices: HashMap<u64, usize> = self.spans.iter().enumerate().map(|(at, span)| (span.id, at)).collect();
        let parent = |span: &Span| span.parent.and_then(|parent| indices.get(&parent)).copied();
        let own: Vec<Sums> = self.own_sums(&indices);
        let mut all = own.clone();
        // A span began before the spans within.
        for at in (0..self.spans.len()).rev() {
            if let Some(outer) = parent(&self.spans[at]) {
                let inner = all[at];
                all[outer].add(inner);
            }
        }
        let mut rows = Rows::default();
        for (at, span) in self.spans.iter().enumerate() {
            let shapes = if by_shape { span.inputs.iter().map(sizes).collect() } else { Vec::new() };
            let mut outer = std::iter::successors(parent(span), |outer| parent(&self.spans[*outer]));
            let is_within_same = outer.any(|outer| self.spans[outer].name == span.name);
            let row = rows.row((span.name.to_string(), false, shapes));
            row.calls += 1;
            row.own += span.own;
            row.own_device += own[at].device;
            row.own_cpu_bytes += own[at].cpu_bytes;
            row.own_device_bytes += own[at].device_bytes;
            if !is_within_same {
                row.total += span.duration;
                row.device += all[at].device;
                row.cpu_bytes += all[at].cpu_bytes;
                row.device_bytes += all[at].device_bytes;
            }
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

    /// Returns the figures of each span without those of the spans within.
    fn own_sums(&self, indices: &HashMap<u64, usize>) -> Vec<Sums> {
        let of_memory = |span: &Span| {
            let of =
                |is_cpu| span.memory.iter().filter(|(device, _)| device.is_cpu() == is_cpu).map(|(_, it)| it).sum();
            Sums { device: Duration::ZERO, cpu_bytes: of(true), device_bytes: of(false) }
        };
        let mut sums: Vec<Sums> = self.spans.iter().map(of_memory).collect();
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
